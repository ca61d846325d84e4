"""Mixture-of-experts decoders with ordinary attention."""

from __future__ import annotations

from dataclasses import replace

from planner.model.architecture import Attention, Component, Layer, Moe, Weight
from planner.model.blocks import GATED, attention_weights, gated_mlp, linear, moe_mlp, norms, vector
from planner.model.config import Config, ModelParts, family
from planner.model.reading import (
    PRE_NORMS,
    decoder,
    layers_by_kind,
    mtp_layers,
    read_attention,
    sparse_layers,
    whole_qk_norm,
    windows,
)

W123 = ("w1", "w3", "w2")
FUSED_EXPERTS = ("gate_up_proj", "gate_up_proj", "down_proj")


def read_moe(config: Config, *, size: str = "moe_intermediate_size", shared: int = 0) -> Moe:
    """Routing under any of the names in use; ``size`` is the key of one expert's width."""
    experts = config.size("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    top_k = config.size("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_top_k")
    return Moe(experts, top_k, config.size(size), shared)


def shared_expert(hidden: int, size: int, *, prefix: str, names: tuple[str, str, str] = GATED) -> tuple[Weight, ...]:
    """The expert that every token passes; nothing where ``size`` is 0."""
    return gated_mlp(hidden, size, prefix=prefix, names=names, component=Component.SHARED_EXPERT) if size else ()


def uniform(config: Config, weights: tuple[Weight, ...], attention: Attention, moe: Moe) -> tuple[Layer, ...]:
    """Layers that are all MoE, with the windows that the config gives."""
    return layers_by_kind(windows(config), lambda w: Layer(weights, replace(attention, window=w), moe))


@family("MixtralForCausalLM")
def mixtral(config: Config) -> ModelParts:
    """Mixtral: Mistral with experts; ``intermediate_size`` is one expert's."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    moe = read_moe(config, size="intermediate_size")
    weights = (
        *attention_weights(attention, hidden),
        *moe_mlp(hidden, moe, prefix="block_sparse_moe.", names=W123),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, uniform(config, weights, attention, moe))


@family("PhiMoEForCausalLM", "PhimoeForCausalLM")
def phi_moe(config: Config) -> ModelParts:
    """Phi-3.5-MoE: Mixtral with LayerNorm and biases, in the lm_head too."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    moe = read_moe(config, size="intermediate_size")
    bias = config.flag("attention_bias", default=False)
    weights = (
        *attention_weights(attention, hidden, qkv_bias=bias, out_bias=bias),
        *moe_mlp(hidden, moe, prefix="block_sparse_moe.", names=W123),
        *norms(hidden, *PRE_NORMS, bias=True),
    )
    return decoder(
        config, uniform(config, weights, attention, moe), norm_bias=True,
        head_bias=config.flag("lm_head_bias", default=False),
    )  # fmt: skip


@family("OlmoeForCausalLM")
def olmoe(config: Config) -> ModelParts:
    """OLMoE: small experts in every layer, q and k normalised over all heads."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    moe = read_moe(config, size="intermediate_size")
    bias = config.flag("attention_bias", default=False)
    weights = (
        *attention_weights(attention, hidden, qkv_bias=bias, out_bias=bias, qk_norm=whole_qk_norm(attention)),
        *moe_mlp(hidden, moe),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, uniform(config, weights, attention, moe))


@family("MiniMaxM2ForCausalLM")
def minimax_m2(config: Config) -> ModelParts:
    """MiniMax-M2: Mixtral's names, q and k normalised over all heads. Its MTP modules are not published."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    moe = read_moe(config, size="intermediate_size")
    qk_norm = whole_qk_norm(attention) if config.flag("use_qk_norm", default=True) else None
    weights = (
        *attention_weights(attention, hidden, qk_norm=qk_norm),
        *moe_mlp(hidden, moe, prefix="block_sparse_moe.", names=W123),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, uniform(config, weights, attention, moe))


@family("GptOssForCausalLM")
def gpt_oss(config: Config) -> ModelParts:
    """gpt-oss: biases everywhere, a learned sink for each head, every other layer slides over 128 tokens."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    moe = read_moe(config, size="intermediate_size")
    bias = config.flag("attention_bias", default=True)
    weights = (
        *attention_weights(attention, hidden, qkv_bias=bias, out_bias=bias),
        *vector("self_attn.sinks", attention.num_heads, Component.ATTENTION),
        *moe_mlp(
            hidden, moe, router="router", experts="experts.", names=FUSED_EXPERTS, router_bias=True, expert_bias=True
        ),
        *norms(hidden, *PRE_NORMS),
    )
    spans = windows(config, full_every=2)
    return decoder(config, layers_by_kind(spans, lambda w: Layer(weights, replace(attention, window=w), moe)))


@family("DbrxForCausalLM")
def dbrx(config: Config) -> ModelParts:
    """DBRX: 16 fine-grained experts, 4 at a time; sizes stand in ``attn_config`` and ``ffn_config``."""
    hidden, ffn = config.size("hidden_size"), config.nested("ffn_config")
    attention = read_attention(config, kv_heads=config.nested("attn_config").size("kv_n_heads"))
    moe = read_moe(ffn, size="ffn_hidden_size")
    stem = "norm_attn_norm."
    weights = (
        *attention_weights(attention, hidden, prefix=f"{stem}attn.", names=("Wqkv", "Wqkv", "Wqkv", "out_proj")),
        *moe_mlp(hidden, moe, prefix="ffn.", router="router.layer", experts="experts.mlp.", names=("w1", "v1", "w2")),
        *norms(hidden, f"{stem}norm_1", f"{stem}norm_2"),
    )
    return decoder(
        config, (Layer(weights, attention, moe),) * config.num_layers, layer_prefix="transformer.blocks.",
        embed="transformer.wte", norm="transformer.norm_f",
    )  # fmt: skip


@family("Grok1ModelForCausalLM", "Grok1ForCausalLM")
def grok(config: Config) -> ModelParts:
    """Grok-1 and Grok-2: four norms; Grok-2 has a dense MLP of ``intermediate_size`` beside its experts."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    dense = config.flag("residual_moe", default=False)
    moe = read_moe(config, size="moe_intermediate_size" if dense else "intermediate_size")
    weights = (
        *attention_weights(attention, hidden, prefix="attn."),
        *moe_mlp(hidden, moe, prefix="moe_block.", names=("linear", "linear_v", "linear_1")),
        *(gated_mlp(hidden, config.size("intermediate_size")) if dense else ()),
        *norms(hidden, "pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm"),
    )
    return decoder(config, (Layer(weights, attention, moe),) * config.num_layers)


@family("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM")
def granite_moe(config: Config) -> ModelParts:
    """Granite 3 MoE: fused experts; the shared form has one expert more that every token passes."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    shared = config.size("shared_intermediate_size", default=0)
    moe = read_moe(config, size="intermediate_size", shared=1 if shared else 0)
    bias = config.flag("attention_bias", default=False)
    fused = ("input_linear", "input_linear", "output_linear")
    weights = (
        *attention_weights(attention, hidden, qkv_bias=bias, out_bias=bias),
        *moe_mlp(hidden, moe, prefix="block_sparse_moe.", router="router.layer", experts="", names=fused),
        *shared_expert(hidden, shared, prefix="shared_mlp.", names=fused),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, uniform(config, weights, attention, moe))


# --- some layers dense, some sparse ------------------------------------------------------------------------------


def mixed(
    config: Config, attention: Attention, common: tuple[Weight, ...], sparse: tuple[Weight, ...], moe: Moe
) -> tuple[Layer, ...]:
    """Layers that share attention and norms (``common``) and have either experts or an MLP of ``intermediate_size``."""

    def make(kind: tuple[int | None, bool]) -> Layer:
        window, is_sparse = kind
        mixer = replace(attention, window=window)
        if is_sparse:
            return Layer(common + sparse, mixer, moe)
        return Layer(common + gated_mlp(config.size("hidden_size"), config.size("intermediate_size")), mixer)

    spans = windows(config, full_before=config.size("max_window_layers", default=0))
    return layers_by_kind(list(zip(spans, sparse_layers(config), strict=True)), make)


@family("Ernie4_5_MoeForCausalLM")
def ernie_moe(config: Config) -> ModelParts:
    """ERNIE 4.5 with experts: shared ones as one wide MLP, MoE between a first and a last layer; tied."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    shared, bias = config.size("moe_num_shared_experts", default=0), config.flag("use_bias", default=False)
    moe = Moe(config.size("moe_num_experts"), config.size("moe_k"), config.size("moe_intermediate_size"), shared)
    common = attention_weights(attention, hidden, qkv_bias=bias, out_bias=bias) + norms(hidden, *PRE_NORMS)
    sparse = (
        *moe_mlp(hidden, moe),
        *vector("mlp.moe_statics.e_score_correction_bias", moe.num_experts, Component.ROUTER),
        *shared_expert(hidden, shared * moe.intermediate_size, prefix="mlp.shared_experts."),
    )
    count, every = config.num_layers, config.size("moe_layer_interval", default=1)
    first, last = config.size("moe_layer_start_index", default=0), config.size("moe_layer_end_index", default=count - 1)
    dense = common + gated_mlp(hidden, config.size("intermediate_size"))
    kinds = [first <= i <= last and (i + 1) % every == 0 for i in range(count)]
    layers = layers_by_kind(kinds, lambda s: Layer(common + sparse, attention, moe) if s else Layer(dense, attention))
    return decoder(config, layers, tied=True)


@family("Qwen2MoeForCausalLM")
def qwen2_moe(config: Config) -> ModelParts:
    """Qwen1.5-MoE, Qwen2-57B-A14B: experts beside a gated shared one."""
    hidden, attention, moe = config.size("hidden_size"), read_attention(config), read_moe(config, shared=1)
    common = attention_weights(attention, hidden, qkv_bias=config.flag("qkv_bias", default=True))
    sparse = (
        *moe_mlp(hidden, moe),
        *shared_expert(hidden, config.size("shared_expert_intermediate_size"), prefix="mlp.shared_expert."),
        *linear("mlp.shared_expert_gate", 1, hidden, Component.SHARED_EXPERT),
    )
    common += norms(hidden, *PRE_NORMS)
    return decoder(config, mixed(config, attention, common, sparse, moe))


@family("Qwen3MoeForCausalLM")
def qwen3_moe(config: Config) -> ModelParts:
    """Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder: Qwen3 with experts."""
    hidden, attention, moe = config.size("hidden_size"), read_attention(config), read_moe(config)
    bias = config.flag("attention_bias", default=False)
    common = (
        *attention_weights(attention, hidden, qkv_bias=bias, out_bias=bias, qk_norm=attention.head_dim),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, mixed(config, attention, common, moe_mlp(hidden, moe), moe))


@family("Glm4MoeForCausalLM", "Dots1ForCausalLM", "SolarOpenForCausalLM")
def glm4_moe(config: Config) -> ModelParts:
    """GLM-4.5 to 4.7, dots.llm1, Solar Open: the first layers dense, a shared expert in the others."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    shared = config.size("n_shared_experts", default=0)
    moe = read_moe(config, shared=shared)
    dots = config.architecture == "Dots1ForCausalLM"
    qk_norm = attention.head_dim if dots or config.flag("use_qk_norm", default=False) else None
    common = (
        *attention_weights(
            attention, hidden, qkv_bias=config.flag("attention_bias", default=False), qk_norm=qk_norm,
            out_bias=dots and config.flag("attention_bias", default=False),
        ),
        *norms(hidden, *PRE_NORMS),
    )  # fmt: skip
    sparse = (
        *moe_mlp(hidden, moe),
        *shared_expert(hidden, shared * moe.intermediate_size, prefix="mlp.shared_experts."),
    )
    layers = mixed(config, attention, common, sparse, moe)
    return decoder(config, layers, mtp=mtp_layers(config, Layer(common + sparse, attention, moe), tables=True))
