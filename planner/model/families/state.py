"""State-space mixers, and the models that are made of nothing else: Mamba and Falcon-Mamba.

A state-space layer keeps, per sequence, the last ``kernel - 1`` inputs of a short convolution and a recurrent
state; neither grows with the context. Shapes are those of vLLM's ``MambaStateShapeCalculator``::

    mamba    conv (inner, kernel - 1)                        state (inner, d_state)
    mamba2   conv (inner + 2 groups d_state, kernel - 1)     state (heads, head_dim, d_state)
"""

from __future__ import annotations

from math import ceil

from planner.model.architecture import Component, Layer, Shard, StateMixer, Weight
from planner.model.blocks import linear, norms, vector
from planner.model.config import Config, Parts, family
from planner.model.reading import decoder

STATE = Component.STATE
Mixing = tuple[StateMixer, tuple[Weight, ...]]

#: ``mamba_ssm_cache_dtype`` and ``mamba_ssm_dtype`` of configs, in the words of this package.
STATE_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def column(name: str, *shape: int) -> Weight:
    """A table of one entry per channel or head, split like the channels."""
    return Weight(name, STATE, shape, shard=Shard.COLUMN)


def convolution(prefix: str, channels: int, kernel: int, *, bias: bool) -> tuple[Weight, ...]:
    """The short depth-wise convolution in front of a recurrence."""
    weights = (column(f"{prefix}conv1d", channels, 1, kernel),)
    return (*weights, column(f"{prefix}conv1d.bias", channels)) if bias else weights


def state_dtype(config: Config, *keys: str, default: str | None = None) -> str | None:
    """dtype that the config asks for the recurrent state; None where it asks for none."""
    name = config.text(*keys, default="")
    if name and name not in STATE_DTYPES:
        raise config.refuse(next(k for k in keys if config.has(k)), f"one of {', '.join(STATE_DTYPES)}")
    return STATE_DTYPES.get(name, default)


def mamba(
    hidden: int, inner: int, d_state: int, kernel: int, rank: int, *, prefix: str, conv_bias: bool, bias: bool,
    inner_norms: bool = False,
) -> Mixing:  # fmt: skip
    """Mamba of the first kind; ``rank`` is that of the time-step projection, ``inner_norms`` are Jamba's."""
    weights = (
        *linear(f"{prefix}in_proj", 2 * inner, hidden, STATE, Shard.COLUMN, bias=bias),
        *convolution(prefix, inner, kernel, bias=conv_bias),
        *linear(f"{prefix}x_proj", rank + 2 * d_state, inner, STATE, Shard.ROW),
        *linear(f"{prefix}dt_proj", inner, rank, STATE, Shard.COLUMN, bias=True),
        column(f"{prefix}A_log", inner, d_state),
        column(f"{prefix}D", inner),
        *linear(f"{prefix}out_proj", hidden, inner, STATE, Shard.ROW, bias=bias),
    )
    if inner_norms:
        for name, size in (("dt", rank), ("b", d_state), ("c", d_state)):
            weights += vector(f"{prefix}{name}_layernorm", size)
    return StateMixer("mamba", inner * (kernel - 1), inner * d_state, num_heads=inner), weights


def mamba2(
    hidden: int, heads: int, head_dim: int, groups: int, d_state: int, kernel: int, *, prefix: str, conv_bias: bool,
    bias: bool, dtype: str | None = None,
) -> Mixing:  # fmt: skip
    """Mamba of the second kind: scalar decay per head, B and C shared by the heads of a group."""
    inner = heads * head_dim
    conv_channels = inner + 2 * groups * d_state
    weights = (
        *linear(f"{prefix}in_proj", inner + conv_channels + heads, hidden, STATE, Shard.COLUMN, bias=bias),
        *convolution(prefix, conv_channels, kernel, bias=conv_bias),
        column(f"{prefix}dt_bias", heads),
        column(f"{prefix}A_log", heads),
        column(f"{prefix}D", heads),
        column(f"{prefix}norm", inner),
        *linear(f"{prefix}out_proj", hidden, inner, STATE, Shard.ROW, bias=bias),
    )
    mixer = StateMixer("mamba2", conv_channels * (kernel - 1), heads * head_dim * d_state, heads, dtype)
    return mixer, weights


@family("MambaForCausalLM", "FalconMambaForCausalLM")
def mamba_lm(config: Config) -> Parts:
    """Every layer is one norm and one state-space mixer. Mamba ties its lm_head, Falcon-Mamba does not."""
    hidden = config.size("hidden_size")
    inner = config.size("intermediate_size", default=hidden * config.size("expand", default=2))
    rank = config.get("time_step_rank")
    mixer, weights = mamba(
        hidden,
        inner,
        config.size("state_size", default=16),
        config.size("conv_kernel", default=4),
        ceil(hidden / 16) if rank in (None, "auto") else config.size("time_step_rank"),
        prefix="mixer.",
        conv_bias=config.flag("use_conv_bias", default=True),
        bias=config.flag("use_bias", default=False),
    )
    layer = Layer((*norms(hidden, "norm"), *weights), mixer)
    return decoder(
        config,
        (layer,) * config.num_layers,
        tied=config.architecture == "MambaForCausalLM",
        embed="backbone.embeddings",
        norm="backbone.norm_f",
        layer_prefix="backbone.layers.",
    )
