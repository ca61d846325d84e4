"""State-space mixers, and the models that are made of nothing else: Mamba and Falcon-Mamba.

A state-space layer keeps, per sequence, the last ``kernel - 1`` inputs of a short convolution and a recurrent
state; neither grows with the context. Shapes are those of vLLM's ``MambaStateShapeCalculator``::

    mamba    conv (inner, kernel - 1)                        state (inner, d_state)
    mamba2   conv (inner + 2 groups d_state, kernel - 1)     state (heads, head_dim, d_state)
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from planner.model.architecture import Attention, Component, Layer, Moe, Shard, StateMixer, Weight
from planner.model.blocks import attention_weights, gated_mlp, linear, moe_mlp, norms, plain_mlp, vector
from planner.model.config import Config, ModelParts, family
from planner.model.reading import decoder, layers_by_kind, mtp_module, read_attention

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
def mamba_lm(config: Config) -> ModelParts:
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


# --- Attention in a few layers, a recurrent state in the others: Jamba, Nemotron-H, Granite 4, MiniMax-M1

W1_W3_W2 = ("w1", "w3", "w2")  #: gate, up and down projections under their oldest names
STATE, ROUTED, SHARED, ROUTER = Component.STATE, Component.ROUTED_EXPERT, Component.SHARED_EXPERT, Component.ROUTER


# --- Jamba -------------------------------------------------------------------------------------------------------


@family("JambaForCausalLM")
def jamba(config: Config) -> ModelParts:
    """Jamba: one layer in ``attn_layer_period`` is attention, one in ``expert_layer_period`` routes to experts."""
    hidden = config.size("hidden_size")
    experts = config.size("num_experts", default=16)

    def make(kind: tuple[bool, bool]) -> Layer:
        is_attention, is_moe = kind
        mixer, mixing = _jamba_attention(config) if is_attention else _jamba_mamba(config)
        moe = Moe(experts, config.size("num_experts_per_tok", default=2), config.size("intermediate_size"))
        ffn = gated_mlp(hidden, moe.intermediate_size, prefix="feed_forward.")
        if is_moe:
            ffn = moe_mlp(hidden, moe, prefix="feed_forward.", router="router")
        return Layer(
            (*mixing, *ffn, *norms(hidden, "input_layernorm", "pre_ff_layernorm")), mixer, moe if is_moe else None
        )

    attention, routed = _jamba_picks(config, "attn", 8, 4), _jamba_picks(config, "expert", 2, 1)
    kinds = [(i in attention, experts > 1 and i in routed) for i in range(config.num_layers)]
    return decoder(config, layers_by_kind(kinds, make), norm="model.final_layernorm")


def _jamba_picks(config: Config, name: str, period: int, offset: int) -> range:
    """Layers of one kind: every ``period``-th, from ``offset`` on."""
    key = f"{name}_layer_offset"
    first = config.size(key, default=0) if config.has(key) else offset
    return range(first, config.num_layers, config.size(f"{name}_layer_period", default=period))


def _jamba_attention(config: Config) -> tuple[Attention, tuple[Weight, ...]]:
    attention = read_attention(config)
    return attention, attention_weights(attention, config.size("hidden_size"))


def _jamba_mamba(config: Config) -> Mixing:
    hidden = config.size("hidden_size")
    rank = config.get("mamba_dt_rank")
    return mamba(
        hidden,
        hidden * config.size("mamba_expand", default=2),
        config.size("mamba_d_state", default=16),
        config.size("mamba_d_conv", default=4),
        ceil(hidden / 16) if rank in (None, "auto") else config.size("mamba_dt_rank"),
        prefix="mamba.",
        conv_bias=config.flag("mamba_conv_bias", default=True),
        bias=config.flag("mamba_proj_bias", default=False),
        inner_norms=True,
    )


# --- Nemotron-H --------------------------------------------------------------------------------------------------

BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


@family("NemotronHForCausalLM")
def nemotron_h(config: Config) -> ModelParts:
    """Nemotron-H, Nano 2 and Nemotron 3: each layer is one of Mamba-2, attention, MLP or MoE, as the pattern says."""
    kinds = _nemotron_blocks(config, "layers_block_type", "hybrid_override_pattern")
    if config.size("num_hidden_layers", default=len(kinds)) != len(kinds):
        raise config.refuse("num_hidden_layers", f"{len(kinds)}, the number of blocks in the pattern")
    return decoder(
        config,
        layers_by_kind(kinds, lambda kind: _nemotron_layer(config, kind)),
        embed="backbone.embeddings",
        norm="backbone.norm_f",
        mtp=_nemotron_mtp(config),
        layer_prefix="backbone.layers.",
    )


def _nemotron_blocks(config: Config, list_key: str, pattern_key: str) -> list[str]:
    """Kind of each layer, from a list of names or from a string of one letter per layer."""
    names = config.names(list_key) or [BLOCKS.get(letter, letter) for letter in config.text(pattern_key)]
    if not names or not set(names) <= set(BLOCKS.values()):
        raise config.refuse(list_key if config.has(list_key) else pattern_key, f"made of {', '.join(BLOCKS.values())}")
    return names


def _nemotron_layer(config: Config, kind: str) -> Layer:
    hidden = config.size("hidden_size")
    norm = norms(hidden, "norm")
    if kind == "mamba":
        mixer, mixing = mamba2(
            hidden,
            config.size("mamba_num_heads"),
            config.size("mamba_head_dim"),
            config.size("n_groups", default=8),
            config.size("ssm_state_size", default=128),
            config.size("conv_kernel", default=4),
            prefix="mixer.",
            conv_bias=config.flag("use_conv_bias", default=True),
            bias=config.flag("mamba_proj_bias", default=False),
            # vLLM before 0.21 took fp16 where the config is silent
            dtype=state_dtype(config, "mamba_ssm_cache_dtype", default="fp32"),
        )
        return Layer((*norm, *mixing), mixer)
    if kind == "attention":
        heads = config.size("num_attention_heads")
        head_dim = config.size("head_dim", "attention_head_dim", default=hidden // heads)
        attention = Attention(heads, config.size("num_key_value_heads", default=heads), head_dim, head_dim)
        bias = config.flag("attention_bias", default=False)
        return Layer(
            (*norm, *attention_weights(attention, hidden, prefix="mixer.", qkv_bias=bias, out_bias=bias)), attention
        )
    if kind == "moe":
        return _nemotron_moe(config, norm)
    bias = config.flag("mlp_bias", default=False)
    return Layer(
        norm
        + plain_mlp(hidden, config.size("intermediate_size"), up="mixer.up_proj", down="mixer.down_proj", bias=bias)
    )


def _nemotron_moe(config: Config, norm: tuple[Weight, ...]) -> Layer:
    """Experts of two matrices each; in Nemotron 3 Super and Ultra they work in a narrower latent space."""
    hidden, size = config.size("hidden_size"), config.size("moe_intermediate_size")
    latent = config.size("moe_latent_size", default=0)
    shared_experts = config.size("n_shared_experts", default=1)
    shared = config.size("moe_shared_expert_intermediate_size") * shared_experts
    moe = Moe(config.size("n_routed_experts"), config.size("num_experts_per_tok"), size, shared_experts)
    width = latent or hidden
    weights = (
        *norm,
        *linear("mixer.gate", moe.num_experts, hidden, ROUTER),
        *linear("mixer.experts.up_proj", size, width, ROUTED, Shard.EXPERT_COLUMN, copies=moe.num_experts),
        *linear("mixer.experts.down_proj", width, size, ROUTED, Shard.EXPERT_ROW, copies=moe.num_experts),
        *linear("mixer.shared_experts.up_proj", shared, hidden, SHARED, Shard.COLUMN),
        *linear("mixer.shared_experts.down_proj", hidden, shared, SHARED, Shard.ROW),
    )
    if latent:
        weights += linear("mixer.fc1_latent_proj", latent, hidden, Component.MLP)
        weights += linear("mixer.fc2_latent_proj", hidden, latent, Component.MLP)
    return Layer(weights, moe=moe)


def _nemotron_mtp(config: Config) -> tuple[Weight, ...]:
    """The multi-token-prediction module: the blocks of its own pattern behind one projection."""
    keys = ("mtp_layers_block_type", "mtp_hybrid_override_pattern")
    if not config.size("num_nextn_predict_layers", default=0) or not any(config.has(key) for key in keys):
        return ()
    blocks = [_nemotron_layer(config, kind).weights for kind in _nemotron_blocks(config, *keys)]
    weights = tuple(replace(w, name=f"layers.{i}.{w.name}") for i, block in enumerate(blocks) for w in block)
    return mtp_module(
        Layer(weights), config.size("hidden_size"), "mtp.", norm_names=("enorm", "hnorm", "final_layernorm")
    )


# --- Granite 4 ---------------------------------------------------------------------------------------------------


@family("GraniteMoeHybridForCausalLM")
def granite_hybrid(config: Config) -> ModelParts:
    """Granite 4: Mamba-2 or attention, then a shared MLP beside routed experts (or alone, where there are none)."""
    hidden = config.size("hidden_size")
    experts, shared = config.size("num_local_experts", default=0), config.size("shared_intermediate_size")

    def make(kind: str) -> Layer:
        mixer: Attention | StateMixer = read_attention(config)
        if kind == "attention":
            mixing = attention_weights(read_attention(config), hidden)
        else:
            mixer, mixing = _granite_mamba(config)
        weights = (*norms(hidden, "input_layernorm", "post_attention_layernorm"), *mixing)
        weights += _granite_mlp("shared_mlp.", hidden, shared, SHARED if experts else Component.MLP)
        if not experts:
            return Layer(weights, mixer)
        moe = Moe(experts, config.size("num_experts_per_tok"), config.size("intermediate_size"), num_shared_experts=1)
        weights += linear("block_sparse_moe.router.layer", experts, hidden, ROUTER)
        weights += _granite_mlp("block_sparse_moe.", hidden, moe.intermediate_size, ROUTED, experts)
        return Layer(weights, mixer, moe)

    kinds = config.names("layer_types", "layers_block_type", count=config.num_layers)
    if not kinds or not set(kinds) <= {"mamba", "attention"}:
        raise config.refuse("layer_types", "a list of 'mamba' and 'attention'")
    return decoder(config, layers_by_kind(kinds, make), tied=True)


def _granite_mamba(config: Config) -> Mixing:
    hidden, heads = config.size("hidden_size"), config.size("mamba_n_heads")
    head_dim = config.get("mamba_d_head")
    inner = hidden * config.size("mamba_expand", default=2)
    return mamba2(
        hidden,
        heads,
        inner // heads if head_dim in (None, "auto") else config.size("mamba_d_head"),
        config.size("mamba_n_groups", default=1),
        config.size("mamba_d_state", default=256),
        config.size("mamba_d_conv", default=4),
        prefix="mamba.",
        conv_bias=config.flag("mamba_conv_bias", default=True),
        bias=config.flag("mamba_proj_bias", default=False),
    )


def _granite_mlp(prefix: str, hidden: int, size: int, component: Component, copies: int = 1) -> tuple[Weight, ...]:
    """Gate and up are one matrix in the checkpoint."""
    column, row = (Shard.EXPERT_COLUMN, Shard.EXPERT_ROW) if component is ROUTED else (Shard.COLUMN, Shard.ROW)
    return (
        *linear(f"{prefix}input_linear", 2 * size, hidden, component, column, copies=copies),
        *linear(f"{prefix}output_linear", hidden, size, component, row, copies=copies),
    )


# --- MiniMax-M1 --------------------------------------------------------------------------------------------------


@family("MiniMaxM1ForCausalLM", "MiniMaxText01ForCausalLM")
def minimax_m1(config: Config) -> ModelParts:
    """MiniMax-Text-01 and M1: lightning (linear) attention in seven of eight layers, softmax in the eighth."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    inner = attention.num_heads * attention.head_dim
    moe = Moe(config.size("num_local_experts"), config.size("num_experts_per_tok"), config.size("intermediate_size"))
    lightning = StateMixer("lightning", 0, inner * attention.head_dim, attention.num_heads)
    linear_attention = (
        *linear("self_attn.qkv_proj", 3 * inner, hidden, STATE, Shard.COLUMN),
        *linear("self_attn.output_gate", inner, hidden, STATE, Shard.COLUMN),
        *linear("self_attn.out_proj", hidden, inner, STATE, Shard.ROW),
        *vector("self_attn.norm", inner),
    )
    rest = (
        *moe_mlp(hidden, moe, prefix="block_sparse_moe.", names=W1_W3_W2),
        *norms(hidden, "input_layernorm", "post_attention_layernorm"),
    )

    def make(is_softmax: int) -> Layer:
        if is_softmax:
            return Layer(attention_weights(attention, hidden) + rest, attention, moe)
        return Layer(linear_attention + rest, lightning, moe)

    kinds = config.sizes("attn_type_list", count=config.num_layers)
    if config.size("shared_intermediate_size", default=0):
        raise config.refuse("shared_intermediate_size", "0: shared experts of MiniMax-Text-01 are not understood")
    return decoder(config, layers_by_kind(kinds, make))
