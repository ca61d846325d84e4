"""Mixture-of-experts decoders with ordinary attention."""

from __future__ import annotations

from dataclasses import replace

from planner.model.architecture import Attention, Component, Layer, Moe, Shard, Weight
from planner.model.blocks import (
    FUSED_GATE_UP,
    PRE_NORMS,
    W1_W3_W2,
    OuterNames,
    QkNorm,
    attention_weights,
    fused,
    linear,
    mlp,
    moe_mlp,
    norms,
    shared_expert,
    vector,
)
from planner.model.config import Config, ModelParts, family
from planner.model.reading import (
    decoder,
    layers_by_kind,
    mtp_layers,
    read_attention,
    read_moe,
    sparse_layers,
    uniform,
    windows,
)


@family("MixtralForCausalLM", "MiniMaxM2ForCausalLM")
def mixtral(config: Config) -> ModelParts:
    """Mixtral: Mistral with experts; ``intermediate_size`` is one expert's.

    MiniMax-M2 normalises q and k over all heads besides. Its MTP modules are not published.
    """
    hidden, attention = config.hidden_size, read_attention(config)
    moe = read_moe(config, size="intermediate_size")
    normed = config.architecture == "MiniMaxM2ForCausalLM" and config.flag("use_qk_norm", default=True)
    weights = (
        *attention_weights(attention, hidden, qk_norm="all heads" if normed else None),
        *moe_mlp(hidden, moe, prefix="block_sparse_moe.", names=W1_W3_W2),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, uniform(config, weights, attention, moe))


@family("PhiMoEForCausalLM", "PhimoeForCausalLM")
def phi_moe(config: Config) -> ModelParts:
    """Phi-3.5-MoE: Mixtral with LayerNorm and biases, in the lm_head too."""
    hidden, attention = config.hidden_size, read_attention(config)
    moe = read_moe(config, size="intermediate_size")
    weights = (
        *attention_weights(attention, hidden, bias=config.flag("attention_bias", default=False)),
        *moe_mlp(hidden, moe, prefix="block_sparse_moe.", names=W1_W3_W2),
        *norms(hidden, *PRE_NORMS, bias=True),
    )
    head_bias = config.flag("lm_head_bias", default=False)
    return decoder(config, uniform(config, weights, attention, moe), norm_bias=True, head_bias=head_bias)


@family("OlmoeForCausalLM")
def olmoe(config: Config) -> ModelParts:
    """OLMoE: small experts in every layer, q and k normalised over all heads."""
    hidden, attention = config.hidden_size, read_attention(config)
    moe = read_moe(config, size="intermediate_size")
    bias = config.flag("attention_bias", default=False)
    weights = (
        *attention_weights(attention, hidden, bias=bias, qk_norm="all heads"),
        *moe_mlp(hidden, moe),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, uniform(config, weights, attention, moe))


@family("GptOssForCausalLM")
def gpt_oss(config: Config) -> ModelParts:
    """gpt-oss: biases everywhere, a learned sink for each head, every other layer slides over 128 tokens."""
    hidden, attention = config.hidden_size, read_attention(config)
    moe = read_moe(config, size="intermediate_size")
    weights = (
        *attention_weights(attention, hidden, bias=config.flag("attention_bias", default=True)),
        *vector("self_attn.sinks", attention.num_heads, Component.ATTENTION),
        *moe_mlp(hidden, moe, router="router", experts="experts.", names=FUSED_GATE_UP, bias=True),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, uniform(config, weights, attention, moe, full_every=2))


@family("DbrxForCausalLM")
def dbrx(config: Config) -> ModelParts:
    """DBRX: 16 fine-grained experts, 4 at a time; sizes stand in ``attn_config`` and ``ffn_config``."""
    hidden, stem = config.hidden_size, "norm_attn_norm."
    attention = read_attention(config, kv_heads=config.nested("attn_config").size("kv_n_heads"))
    moe = read_moe(config.nested("ffn_config"), size="ffn_hidden_size")
    weights = (
        *attention_weights(attention, hidden, prefix=f"{stem}attn.", names=fused("Wqkv", "out_proj")),
        *moe_mlp(hidden, moe, prefix="ffn.", router="router.layer", experts="experts.mlp.", names=("w1", "v1", "w2")),
        *norms(hidden, f"{stem}norm_1", f"{stem}norm_2"),
    )
    around = OuterNames("transformer.wte", "transformer.norm_f", layers="transformer.blocks.")
    return decoder(config, uniform(config, weights, attention, moe), around)


@family("Grok1ModelForCausalLM", "Grok1ForCausalLM")
def grok(config: Config) -> ModelParts:
    """Grok-1 and Grok-2: four norms; Grok-2 has a dense MLP of ``intermediate_size`` beside its experts."""
    hidden, attention = config.hidden_size, read_attention(config)
    dense = config.flag("residual_moe", default=False)
    moe = read_moe(config, size="moe_intermediate_size" if dense else "intermediate_size")
    weights = (
        *attention_weights(attention, hidden, prefix="attn."),
        *moe_mlp(hidden, moe, prefix="moe_block.", names=("linear", "linear_v", "linear_1")),
        *(mlp(hidden, config.size("intermediate_size")) if dense else ()),
        *norms(hidden, "pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm"),
    )
    return decoder(config, (Layer(weights, attention, moe),) * config.num_layers)


@family("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM")
def granite_moe(config: Config) -> ModelParts:
    """Granite 3 MoE: fused experts; the shared form has one expert more that every token passes."""
    hidden, attention = config.hidden_size, read_attention(config)
    shared = config.size("shared_intermediate_size", default=0)
    moe = read_moe(config, size="intermediate_size", shared=1 if shared else 0)
    names = ("input_linear", "input_linear", "output_linear")
    weights = (
        *attention_weights(attention, hidden, bias=config.flag("attention_bias", default=False)),
        *moe_mlp(hidden, moe, prefix="block_sparse_moe.", router="router.layer", experts="", names=names),
        *shared_expert(hidden, shared, prefix="shared_mlp.", names=names),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, uniform(config, weights, attention, moe))


# --- some layers dense, some sparse -----------------------------------------------------------------------------------


def mixed(
    config: Config, attention: Attention, common: tuple[Weight, ...], sparse: tuple[Weight, ...], moe: Moe
) -> tuple[Layer, ...]:
    """Layers that share attention and norms (``common``) and have either experts or an MLP of ``intermediate_size``."""

    def make(kind: tuple[int | None, bool]) -> Layer:
        window, is_sparse = kind
        mixer = replace(attention, window=window)
        if is_sparse:
            return Layer(common + sparse, mixer, moe)
        return Layer(common + mlp(config.hidden_size, config.size("intermediate_size")), mixer)

    spans = windows(config, full_before=config.size("max_window_layers", default=0))
    return layers_by_kind(list(zip(spans, sparse_layers(config), strict=True)), make)


@family("Ernie4_5_MoeForCausalLM")
def ernie_moe(config: Config) -> ModelParts:
    """ERNIE 4.5 with experts: shared ones as one wide MLP, MoE between a first and a last layer; tied."""
    hidden, attention = config.hidden_size, read_attention(config)
    moe = read_moe(config, shared=config.size("moe_num_shared_experts", default=0))
    common = (
        *attention_weights(attention, hidden, bias=config.flag("use_bias", default=False)),
        *norms(hidden, *PRE_NORMS),
    )
    sparse = (
        *moe_mlp(hidden, moe),
        *vector("mlp.moe_statics.e_score_correction_bias", moe.num_experts, Component.ROUTER),
        *shared_expert(hidden, moe.num_shared_experts * moe.intermediate_size, prefix="mlp.shared_experts."),
    )
    count, every = config.num_layers, config.size("moe_layer_interval", default=1)
    first, last = config.size("moe_layer_start_index", default=0), config.size("moe_layer_end_index", default=count - 1)
    dense = common + mlp(hidden, config.size("intermediate_size"))
    kinds = [first <= i <= last and (i + 1) % every == 0 for i in range(count)]
    layers = layers_by_kind(kinds, lambda s: Layer(common + sparse, attention, moe) if s else Layer(dense, attention))
    return decoder(config, layers, tied=True)


@family("Qwen2MoeForCausalLM")
def qwen2_moe(config: Config) -> ModelParts:
    """Qwen1.5-MoE, Qwen2-57B-A14B: experts beside a gated shared one."""
    hidden, attention, moe = config.hidden_size, read_attention(config), read_moe(config, shared=1)
    common = (
        *attention_weights(attention, hidden, qkv_bias=config.flag("qkv_bias", default=True)),
        *norms(hidden, *PRE_NORMS),
    )
    sparse = (
        *moe_mlp(hidden, moe),
        *shared_expert(hidden, config.size("shared_expert_intermediate_size"), prefix="mlp.shared_expert."),
        *linear("mlp.shared_expert_gate", 1, hidden, Component.SHARED_EXPERT),
    )
    return decoder(config, mixed(config, attention, common, sparse, moe))


@family("Qwen3MoeForCausalLM")
def qwen3_moe(config: Config) -> ModelParts:
    """Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder: Qwen3 with experts."""
    hidden, attention, moe = config.hidden_size, read_attention(config), read_moe(config)
    common = (
        *attention_weights(attention, hidden, bias=config.flag("attention_bias", default=False), qk_norm="head"),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, mixed(config, attention, common, moe_mlp(hidden, moe), moe))


@family("Glm4MoeForCausalLM", "Dots1ForCausalLM", "SolarOpenForCausalLM")
def glm4_moe(config: Config) -> ModelParts:
    """GLM-4.5 to 4.7, dots.llm1, Solar Open: the first layers dense, a shared expert in the others."""
    hidden, attention = config.hidden_size, read_attention(config)
    moe = read_moe(config, shared=config.size("n_shared_experts", default=0))
    dots = config.architecture == "Dots1ForCausalLM"
    bias = config.flag("attention_bias", default=False)
    qk_norm: QkNorm = "head" if dots or config.flag("use_qk_norm", default=False) else None
    common = (
        *attention_weights(attention, hidden, bias=dots and bias, qkv_bias=bias, qk_norm=qk_norm),
        *norms(hidden, *PRE_NORMS),
    )
    sparse = (
        *moe_mlp(hidden, moe),
        *shared_expert(hidden, moe.num_shared_experts * moe.intermediate_size, prefix="mlp.shared_experts."),
    )
    layers = mixed(config, attention, common, sparse, moe)
    return decoder(config, layers, mtp=mtp_layers(config, Layer(common + sparse, attention, moe), tables=True))


@family("HYV3ForCausalLM")
def hunyuan_v3(config: Config) -> ModelParts:
    """Hunyuan 3: q and k normalised, each head by itself; the first layer dense, a shared expert in the others.

    Source: ``models/hy_v3/configuration_hy_v3.py`` of transformers 5, ``models/hy_v3.py`` of vLLM.
    """
    hidden, attention = config.hidden_size, read_attention(config)
    if not (config.has("mlp_layer_types") or config.has("first_k_dense_replace")):
        config = config.with_defaults({"first_k_dense_replace": 1})
    moe = read_moe(config, shared=config.size("num_shared_experts", default=0))
    common = (*attention_weights(attention, hidden, qk_norm="head"), *norms(hidden, *PRE_NORMS))
    sparse = (
        *moe_mlp(hidden, moe),
        *shared_expert(hidden, moe.num_shared_experts * moe.intermediate_size, prefix="mlp.shared_experts."),
    )
    layers = mixed(config, attention, common, sparse, moe)
    return decoder(config, layers, mtp=mtp_layers(config, Layer(common + sparse, attention, moe), tables=False))


@family("LagunaForCausalLM")
def laguna(config: Config) -> ModelParts:
    """Laguna: Qwen3 with experts, a shared one among them; sliding layers have more query heads than full ones.

    ``g_proj`` gates the output of each head. Source: ``models/laguna.py`` of vLLM.
    """
    count, full = config.num_layers, read_attention(config)
    heads = config.sizes("num_attention_heads_per_layer", count=count) or [full.num_heads] * count
    kinds = list(zip(windows(config), sparse_layers(config), heads, strict=True))
    return decoder(config, layers_by_kind(kinds, lambda kind: _laguna_layer(config, *kind)))


def _laguna_layer(config: Config, window: int | None, sparse: bool, heads: int) -> Layer:
    hidden, attention = config.hidden_size, replace(read_attention(config), window=window, num_heads=heads)
    weights = (
        *attention_weights(attention, hidden, bias=config.flag("attention_bias", default=False), qk_norm="head"),
        *norms(hidden, *PRE_NORMS),
    )
    gating = config.get("gating", default=False)
    if gating not in (False, True, "per-head"):
        raise config.refuse("gating", "false, true or 'per-head'")
    if gating:
        weights += linear("self_attn.g_proj", heads, hidden, Component.ATTENTION, Shard.COLUMN)
    if not sparse:
        return Layer(weights + mlp(hidden, config.size("intermediate_size")), attention)
    shared = config.size("shared_expert_intermediate_size", default=0)
    moe = read_moe(config, shared=1 if shared else 0)
    weights += moe_mlp(hidden, moe) + shared_expert(hidden, shared, prefix="mlp.shared_expert.")
    return Layer(weights, attention, moe)
