"""Models with state-space or linear-attention layers: Mamba, Jamba, Nemotron-H, Granite 4, MiniMax-M1, Qwen, Kimi.

Elements per sequence, as in vLLM's ``MambaStateShapeCalculator``, for k key heads and v value heads::

    mamba    conv (inner, kernel - 1)                        state (inner, d_state)
    mamba2   conv (inner + 2 groups d_state, kernel - 1)     state (heads, head_dim, d_state)
    gdn      conv (2 k key_dim + v value_dim, kernel - 1)    state (v, value_dim, key_dim): gated delta network
    kda      conv (3 heads head_dim, kernel - 1)             state (heads, head_dim, head_dim), fp32"""

from dataclasses import replace
from math import ceil
from typing import Any

from planner.model.architecture import Component, Layer, ModelParts, Moe, Shard, StateMixer, Weight
from planner.model.blocks import (
    PLAIN,
    PRE_NORMS,
    W1_W3_W2,
    OuterNames,
    attention_weights,
    decoder,
    layers_by_kind,
    linear,
    mixed_decoder,
    mlp,
    moe_mlp,
    mtp_module,
    norms,
    read_attention,
    read_moe,
    shared_expert,
    vector,
)
from planner.model.config import Config, family
from planner.model.families.decoders import latent_weights, read_latent

STATE, SHARED = Component.STATE, Component.SHARED_EXPERT
BACKBONE_NAMES = OuterNames("backbone.embeddings", "backbone.norm_f", layers="backbone.layers.")
Mixing = tuple[StateMixer, tuple[Weight, ...]]
#: ``mamba_ssm_cache_dtype`` and ``mamba_ssm_dtype`` of configs, in the words of this package.
STATE_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def column(name: str, *shape: int) -> Weight:
    return Weight(name, STATE, shape, shard=Shard.COLUMN)


def convolution(config: Config, prefix: str, channels: int, kernel: int) -> tuple[Weight, ...]:
    weights = (column(f"{prefix}conv1d", channels, 1, kernel),)
    bias = config.flag("use_conv_bias", "mamba_conv_bias", default=True)
    return (*weights, column(f"{prefix}conv1d.bias", channels)) if bias else weights


def state_dtype(config: Config, key: str, default: str | None = None) -> str | None:
    """dtype that the config asks for the recurrent state; ``default`` where it asks for none."""
    name = config.text(key, default="")
    if name and name not in STATE_DTYPES:
        raise config.refuse(key, f"one of {', '.join(STATE_DTYPES)}")
    return STATE_DTYPES.get(name, default)


def mamba(config: Config, inner: int, prefix: str, *, inner_norms: bool = False) -> Mixing:
    """Mamba of the first kind; ``inner_norms`` are Jamba's. Rank of the time step: a sixteenth of the hidden size."""
    hidden = config.hidden_size
    d_state = config.size("state_size", "mamba_d_state", default=16)
    kernel = config.size("conv_kernel", "mamba_d_conv", default=4)
    given = config.get("time_step_rank", "mamba_dt_rank")
    rank = ceil(hidden / 16) if given in (None, "auto") else config.size("time_step_rank", "mamba_dt_rank")
    bias = config.flag("use_bias", "mamba_proj_bias", default=False)
    weights = (
        *linear(f"{prefix}in_proj", 2 * inner, hidden, STATE, Shard.COLUMN, bias=bias),
        *convolution(config, prefix, inner, kernel),
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


def mamba2(config: Config, head_dim: int, prefix: str, *, dtype: str | None = None) -> Mixing:
    """Mamba of the second kind: scalar decay per head, B and C shared by the heads of a group."""
    hidden, heads = config.hidden_size, config.size("mamba_num_heads", "mamba_n_heads")
    groups, d_state = config.size("n_groups", "mamba_n_groups"), config.size("ssm_state_size", "mamba_d_state")
    inner, kernel = heads * head_dim, config.size("conv_kernel", "mamba_d_conv", default=4)
    conv_channels = inner + 2 * groups * d_state
    bias = config.flag("mamba_proj_bias", default=False)
    weights = (
        *linear(f"{prefix}in_proj", inner + conv_channels + heads, hidden, STATE, Shard.COLUMN, bias=bias),
        *convolution(config, prefix, conv_channels, kernel),
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
    hidden = config.hidden_size
    inner = config.size("intermediate_size", default=hidden * config.size("expand", default=2))
    mixer, weights = mamba(config, inner, "mixer.")
    layers = (Layer((*norms(hidden, "norm"), *weights), mixer),) * config.num_layers
    return decoder(config, layers, BACKBONE_NAMES, tied=config.architecture == "MambaForCausalLM")


@family("JambaForCausalLM")
def jamba(config: Config) -> ModelParts:
    """Jamba: one layer in ``attn_layer_period`` is attention, one in ``expert_layer_period`` routes to experts."""
    hidden, attention = config.hidden_size, read_attention(config)
    experts, top_k = config.size("num_experts", default=16), config.size("num_experts_per_tok", default=2)
    moe = Moe(experts, top_k, config.size("intermediate_size"))
    state, state_weights = mamba(config, hidden * config.size("mamba_expand", default=2), "mamba.", inner_norms=True)

    def picks(name: str, period: int, offset: int) -> range:
        key = f"{name}_layer_offset"
        first = config.size(key, default=0) if config.has(key) else offset
        return range(first, config.num_layers, config.size(f"{name}_layer_period", default=period))

    on_attention, routed = picks("attn", 8, 4), picks("expert", 2, 1) if moe.num_experts > 1 else ()
    kinds = [(attention if i in on_attention else state, i in routed) for i in range(config.num_layers)]
    return mixed_decoder(
        config, kinds, lambda mixer: attention_weights(attention, hidden) if mixer is attention else state_weights,
        moe, moe_mlp(hidden, moe, prefix="feed_forward.", router="router"), prefix="feed_forward.",
        norm_names=("input_layernorm", "pre_ff_layernorm"), names=OuterNames(norm="model.final_layernorm"),
    )  # fmt: skip


BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


@family("NemotronHForCausalLM")
def nemotron_h(config: Config) -> ModelParts:
    """Nemotron-H, Nano 2 and Nemotron 3: each layer is one of Mamba-2, attention, MLP or MoE, as the pattern says."""
    kinds = _nemotron_blocks(config, "layers_block_type", "hybrid_override_pattern")
    if config.size("num_hidden_layers", default=len(kinds)) != len(kinds):
        raise config.refuse("num_hidden_layers", f"{len(kinds)}, the number of blocks in the pattern")
    layers = layers_by_kind(kinds, lambda kind: _nemotron_layer(config, kind))
    keys = ("mtp_layers_block_type", "mtp_hybrid_override_pattern")
    mtp: tuple[Weight, ...] = ()
    if config.size("num_nextn_predict_layers", default=0) and any(config.has(key) for key in keys):
        blocks = [_nemotron_layer(config, kind).weights for kind in _nemotron_blocks(config, *keys)]
        weights = tuple(replace(w, name=f"layers.{i}.{w.name}") for i, block in enumerate(blocks) for w in block)
        mtp = mtp_module(Layer(weights), config.hidden_size, "mtp.", norm_names=("enorm", "hnorm", "final_layernorm"))
    return decoder(config, layers, BACKBONE_NAMES, mtp=mtp)


def _nemotron_blocks(config: Config, list_key: str, pattern_key: str) -> list[str]:
    names = config.names(list_key) or [BLOCKS.get(letter, letter) for letter in config.text(pattern_key)]
    if not names or not set(names) <= set(BLOCKS.values()):
        raise config.refuse(list_key if config.has(list_key) else pattern_key, f"made of {', '.join(BLOCKS.values())}")
    return names


def _nemotron_layer(config: Config, kind: str) -> Layer:
    hidden = config.hidden_size
    norm = norms(hidden, "norm")
    if kind == "mamba":
        config = config.with_defaults({"n_groups": 8, "ssm_state_size": 128})
        # vLLM before 0.21 took fp16 where the config is silent
        dtype = state_dtype(config, "mamba_ssm_cache_dtype", default="fp32")
        mixer, mixing = mamba2(config, config.size("mamba_head_dim"), "mixer.", dtype=dtype)
        return Layer(norm + mixing, mixer)
    if kind == "attention":
        attention = read_attention(config.with_defaults({"head_dim": config.get("attention_head_dim")}))
        bias = config.flag("attention_bias", default=False)
        return Layer(norm + attention_weights(attention, hidden, prefix="mixer.", bias=bias), attention)
    if kind == "moe":
        return _nemotron_moe(config, norm)
    bias = config.flag("mlp_bias", default=False)
    return Layer(norm + mlp(hidden, config.size("intermediate_size"), prefix="mixer.", names=PLAIN, bias=bias))


def _nemotron_moe(config: Config, norm: tuple[Weight, ...]) -> Layer:
    """Experts of two matrices; in Nemotron 3 Super and Ultra they work in a narrower latent space."""
    hidden, latent = config.hidden_size, config.size("moe_latent_size", default=0)
    moe = read_moe(config, shared=config.size("n_shared_experts", default=1))
    shared = config.size("moe_shared_expert_intermediate_size") * moe.num_shared_experts
    weights = (
        *norm,
        *moe_mlp(hidden, moe, prefix="mixer.", experts="experts.", names=PLAIN, latent=latent),
        *shared_expert(hidden, shared, prefix="mixer.shared_experts.", names=PLAIN),
    )
    if latent:
        weights += linear("mixer.fc1_latent_proj", latent, hidden, Component.MLP)
        weights += linear("mixer.fc2_latent_proj", hidden, latent, Component.MLP)
    return Layer(weights, moe=moe)


@family("GraniteMoeHybridForCausalLM")
def granite_hybrid(config: Config) -> ModelParts:
    """Granite 4: Mamba-2 or attention, then a shared MLP beside routed experts, if any. Gate and up are one matrix."""
    config = config.with_defaults({"mamba_n_groups": 1, "mamba_d_state": 256})
    hidden, attention, experts = config.hidden_size, read_attention(config), config.size("num_local_experts", default=0)
    head_dim = hidden * config.size("mamba_expand", default=2) // config.size("mamba_n_heads")
    if config.get("mamba_d_head") not in (None, "auto"):
        head_dim = config.size("mamba_d_head")
    state, state_weights = mamba2(config, head_dim, "mamba.")
    shared, part = config.size("shared_intermediate_size"), SHARED if experts else Component.MLP
    ffn = (
        *linear("shared_mlp.input_linear", 2 * shared, hidden, part, Shard.COLUMN),
        *linear("shared_mlp.output_linear", hidden, shared, part, Shard.ROW),
    )
    moe, stem = None, "block_sparse_moe."
    if experts:
        moe = Moe(experts, config.size("num_experts_per_tok"), config.size("intermediate_size"), num_shared_experts=1)
        size, routed = moe.intermediate_size, Component.ROUTED_EXPERT
        ffn += linear(f"{stem}router.layer", experts, hidden, Component.ROUTER)
        ffn += linear(f"{stem}input_linear", 2 * size, hidden, routed, Shard.EXPERT_COLUMN, copies=experts)
        ffn += linear(f"{stem}output_linear", hidden, size, routed, Shard.EXPERT_ROW, copies=experts)
    kinds = config.names("layer_types", "layers_block_type", count=config.num_layers)
    if not kinds or not set(kinds) <= {"mamba", "attention"}:
        raise config.refuse("layer_types", "a list of 'mamba' and 'attention'")
    mixers: list[tuple[Any, bool]] = [(attention if kind == "attention" else state, True) for kind in kinds]
    return mixed_decoder(
        config, mixers, lambda mixer: attention_weights(attention, hidden) if mixer is attention else state_weights,
        moe, ffn, tied=True,
    )  # fmt: skip


@family("MiniMaxM1ForCausalLM", "MiniMaxText01ForCausalLM")
def minimax_m1(config: Config) -> ModelParts:
    """MiniMax-Text-01 and M1: lightning (linear) attention in seven of eight layers, softmax in the eighth."""
    hidden, attention = config.hidden_size, read_attention(config)
    inner = attention.num_heads * attention.head_dim
    moe = read_moe(config, size="intermediate_size")
    lightning = StateMixer("lightning", 0, inner * attention.head_dim, attention.num_heads)
    linear_attention = (
        *linear("self_attn.qkv_proj", 3 * inner, hidden, STATE, Shard.COLUMN),
        *linear("self_attn.output_gate", inner, hidden, STATE, Shard.COLUMN),
        *linear("self_attn.out_proj", hidden, inner, STATE, Shard.ROW),
        *vector("self_attn.norm", inner),
    )
    if config.size("shared_intermediate_size", default=0):
        raise config.refuse("shared_intermediate_size", "0: shared experts of MiniMax-Text-01 are not understood")
    softmax = config.sizes("attn_type_list", count=config.num_layers)
    kinds: list[tuple[Any, bool]] = [(attention if kind else lightning, True) for kind in softmax]
    return mixed_decoder(
        config, kinds, lambda mixer: attention_weights(attention, hidden) if mixer is attention else linear_attention,
        moe, moe_mlp(hidden, moe, prefix="block_sparse_moe.", names=W1_W3_W2),
    )  # fmt: skip


@family("Qwen3NextForCausalLM")
def qwen3_next(config: Config) -> ModelParts:
    """Qwen3-Next: three gated delta layers, then one of gated attention; MoE with one gated shared expert."""
    # the checkpoint carries a multi-token-prediction module that config.json does not mention
    return _qwen_decoder(config, fused=True, has_mtp=True)


def qwen3_5_text(config: Config) -> ModelParts:
    return _qwen_decoder(config, fused=False, has_mtp=config.size("mtp_num_hidden_layers", default=0) > 0)


def _qwen_decoder(config: Config, *, fused: bool, has_mtp: bool) -> ModelParts:
    """``fused``: Qwen3-Next stores the input projections of delta layers as two matrices, Qwen3.5 as four. The q
    projection of a full layer also yields its gate. The MTP module is one more full layer."""
    hidden, count, attention = config.hidden_size, config.num_layers, read_attention(config)
    q, *others = attention_weights(attention, hidden, qk_norm="head")
    if config.flag("attn_output_gate", default=True):
        q = replace(q, shape=(2 * q.shape[0], hidden))
    delta, delta_weights = _delta(config, fused=fused)
    ffn, moe = _qwen_ffn(config)
    every = config.size("full_attention_interval", default=4)
    default = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(count)]
    types = config.names("layer_types", count=count) or default
    kinds: list[tuple[Any, bool]] = [(attention if kind == "full_attention" else delta, True) for kind in types]
    mtp: tuple[Weight, ...] = ()
    if has_mtp:
        full = (q, *others, *ffn, *norms(hidden, *PRE_NORMS))
        layer = Layer(tuple(replace(w, name=f"layers.0.{w.name}") for w in full))
        names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        mtp = mtp_module(layer, hidden, "mtp.", projection="fc", norm_names=names)
    parts = mixed_decoder(config, kinds, lambda mixer: (q, *others) if mixer is attention else delta_weights, moe, ffn)
    return replace(parts, mtp=mtp)


def _delta(config: Config, *, fused: bool) -> Mixing:
    hidden, stem = config.hidden_size, "linear_attn."
    key_heads, value_heads = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
    key_dim, value_dim = config.size("linear_key_head_dim"), config.size("linear_value_head_dim")
    kernel = config.size("linear_conv_kernel_dim", default=4)
    keys, values = key_heads * key_dim, value_heads * value_dim
    sizes = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values, "in_proj_b": value_heads, "in_proj_a": value_heads}
    if fused:
        sizes = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * value_heads}
    weights = (
        *(w for name, size in sizes.items() for w in linear(stem + name, size, hidden, STATE, Shard.COLUMN)),
        column(f"{stem}conv1d", 2 * keys + values, 1, kernel),
        column(f"{stem}dt_bias", value_heads),
        column(f"{stem}A_log", value_heads),
        *vector(f"{stem}norm", value_dim),
        *linear(f"{stem}out_proj", hidden, values, STATE, Shard.ROW),
    )
    dtype, convolved = state_dtype(config, "mamba_ssm_dtype"), (2 * keys + values) * (kernel - 1)
    return StateMixer("gdn", convolved, value_heads * value_dim * key_dim, value_heads, dtype), weights


def _qwen_ffn(config: Config) -> tuple[tuple[Weight, ...], Moe | None]:
    hidden = config.hidden_size
    if not config.has("num_experts"):
        return mlp(hidden, config.size("intermediate_size")), None
    if config.sizes("mlp_only_layers") or config.size("decoder_sparse_step", default=1) != 1:
        raise config.refuse("mlp_only_layers", "empty, with decoder_sparse_step 1")
    moe = read_moe(config, shared=1)
    return (
        *moe_mlp(hidden, moe),
        *shared_expert(hidden, config.size("shared_expert_intermediate_size"), prefix="mlp.shared_expert."),
        *linear("mlp.shared_expert_gate", 1, hidden, Component.ROUTER),
    ), moe


def kimi_linear_text(config: Config) -> ModelParts:
    """Kimi Linear and Kimi K3: Kimi delta attention in three of four layers, MLA without positions in the fourth. K3
    adds latent experts and residual mixing over blocks of layers (vLLM's ``models/kimi_k3``)."""
    hidden, latent = config.hidden_size, read_latent(config)
    linear_config = config.nested("linear_attn_config")
    on_delta = {i - 1 for i in linear_config.sizes("kda_layers")}  # counted from 1
    dense = config.size("first_k_dense_replace", default=0)
    delta, delta_weights = _kimi_delta(linear_config, hidden)
    full = latent_weights(latent, hidden)
    if config.flag("mla_use_output_gate", default=False):
        full += linear(
            "self_attn.g_proj", latent.num_heads * latent.v_head_dim, hidden, Component.ATTENTION, Shard.COLUMN
        )
    ffn, moe = _kimi_moe(config)
    residual = [f"{part}_res_{kind}" for kind in ("norm", "proj") for part in ("self_attention", "mlp")]
    mixing_norms = ["model.output_attn_res_norm", "model.output_attn_res_proj"]
    if not config.has("attn_res_block_size"):
        residual, mixing_norms = [], []
    kinds: list[tuple[Any, bool]] = [(delta if i in on_delta else latent, i >= dense) for i in range(config.num_layers)]
    return mixed_decoder(
        config, kinds, lambda mixer: delta_weights if mixer is delta else full, moe, ffn,
        norm_names=(*PRE_NORMS, *residual), extra=norms(hidden, *mixing_norms),
    )  # fmt: skip


def _kimi_delta(config: Config, hidden: int) -> Mixing:
    heads, head_dim = config.size("num_heads"), config.size("head_dim")
    kernel = config.size("short_conv_kernel_size", default=4)
    inner = heads * head_dim
    names = ["q_proj", "k_proj", "v_proj"]
    gate: tuple[Weight, ...] = ()
    if config.flag("use_full_rank_gate", default=False):
        names.append("g_proj")
    else:
        gate = linear("self_attn.g_a_proj", head_dim, hidden, STATE) + linear(
            "self_attn.g_b_proj", inner, head_dim, STATE, Shard.COLUMN
        )
    weights = (
        *(w for name in names for w in linear(f"self_attn.{name}", inner, hidden, STATE, Shard.COLUMN)),
        *gate,
        *linear("self_attn.f_a_proj", head_dim, hidden, STATE),
        *linear("self_attn.f_b_proj", inner, head_dim, STATE, Shard.COLUMN),
        *linear("self_attn.b_proj", heads, hidden, STATE, Shard.COLUMN),
        *(column(f"self_attn.{name}_conv1d", inner, 1, kernel) for name in "qkv"),
        column("self_attn.dt_bias", inner),
        column("self_attn.A_log", heads),
        *vector("self_attn.o_norm", head_dim),
        *linear("self_attn.o_proj", hidden, inner, STATE, Shard.ROW),
    )
    return StateMixer("kda", 3 * inner * (kernel - 1), inner * head_dim, heads, "fp32"), weights


def _kimi_moe(config: Config) -> tuple[tuple[Weight, ...], Moe]:
    hidden, prefix = config.hidden_size, "block_sparse_moe."
    latent = config.size("routed_expert_hidden_size", default=0)
    moe = read_moe(config, shared=config.size("num_shared_experts", default=0))
    shared = moe.num_shared_experts * moe.intermediate_size
    weights = (
        *moe_mlp(hidden, moe, prefix=prefix, names=W1_W3_W2, latent=latent),
        *shared_expert(hidden, shared, prefix=f"{prefix}shared_experts."),
    )
    if latent:
        weights += linear(f"{prefix}routed_expert_down_proj", latent, hidden, Component.MLP)
        weights += linear(f"{prefix}routed_expert_up_proj", hidden, latent, Component.MLP)
    if latent and config.flag("latent_moe_use_norm", default=False):
        weights += vector(f"{prefix}routed_expert_norm", latent)
    return weights, moe
