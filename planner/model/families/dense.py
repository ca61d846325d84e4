"""Llama and its many relatives: decoders of attention and a gated MLP, with small differences. Gemma stands last."""

from __future__ import annotations

from dataclasses import replace

from planner.model.architecture import Attention, Component, Layer, Moe, Shard, Weight
from planner.model.blocks import (
    FUSED_GATE_UP,
    PLAIN,
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
    vector,
)
from planner.model.config import Config, ModelParts, family
from planner.model.reading import decoder, layers_by_kind, mtp_module, read_attention, uniform, windows
from planner.model.vision import gemma4_audio, gemma4_vision, matrix, siglip_vision, with_vision

FOUR_NORMS = (*PRE_NORMS, "post_self_attn_layernorm", "post_mlp_layernorm")
POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
GEMMA_NORMS = (*PRE_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def llama_like(
    config: Config,
    *,
    bias: bool | None = None,
    qkv_bias: bool | None = None,
    qk_norm: QkNorm = None,
    norm_names: tuple[str, ...] = PRE_NORMS,
    norm_bias: bool = False,
    full_every: int = 0,
    full_before: int = 0,
    tied: bool = False,
) -> ModelParts:
    """Separate projections, a gated MLP, and norms of one hidden vector each, under Llama's names.

    ``bias`` is that of the attention: by default what ``attention_bias`` says.
    """
    hidden, attention = config.hidden_size, read_attention(config)
    bias = config.flag("attention_bias", default=False) if bias is None else bias
    weights = (
        *attention_weights(attention, hidden, bias=bias, qkv_bias=qkv_bias, qk_norm=qk_norm),
        *mlp(hidden, config.size("intermediate_size"), bias=config.flag("mlp_bias", default=False)),
        *norms(hidden, *norm_names, bias=norm_bias),
    )
    layers = uniform(config, weights, attention, full_every=full_every, full_before=full_before)
    return decoder(config, layers, norm_bias=norm_bias, tied=tied)


@family("LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "Ministral3ForCausalLM", "InternLMForCausalLM",
        "AquilaForCausalLM", "AquilaModel", "CwmForCausalLM", "GraniteForCausalLM")  # fmt: skip
def llama(config: Config) -> ModelParts:
    """Llama, Mistral, Yi, SmolLM, Vicuna, Granite, ...: GQA and SwiGLU."""
    bias = config.flag("attention_bias", "bias", default=False)
    return llama_like(config, bias=bias, qkv_bias=config.flag("qkv_bias", default=bias))


@family("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
def eagle3(config: Config) -> ModelParts:
    """EAGLE-3 drafts (``llama_eagle3.py``): the first layer reads embedding and hidden state side by side.

    Hidden states of three layers of the model are projected to one; lm_head is over ``draft_vocab_size`` tokens.
    """
    parts, hidden = llama_like(config), config.hidden_size
    first = parts.layers[0]
    widened = tuple(
        replace(w, shape=(w.shape[0], 2 * hidden)) if w.name.endswith(("q_proj", "k_proj", "v_proj")) else w
        for w in first.weights
    )
    layer = replace(first, weights=(*widened, Weight("hidden_norm", Component.NORM, (hidden,))))
    target = config.size("target_hidden_size", default=hidden)
    vocab = config.size("draft_vocab_size", default=config.size("vocab_size"))
    own = (w for w in parts.outer if w.component is not Component.LM_HEAD)
    head = Weight("lm_head", Component.LM_HEAD, (vocab, hidden), shard=Shard.VOCAB)
    projection = Weight("fc", Component.MLP, (hidden, 3 * target))
    outer = (*own, head, projection)
    return replace(parts, layers=(layer, *parts.layers[1:]), outer=outer, tied_embeddings=False)


@family("SmolLM3ForCausalLM", "Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM")
def llama_tied(config: Config) -> ModelParts:
    """SmolLM3 (some layers go without rotary embeddings) and ERNIE 4.5: Llama's weights, tied."""
    return llama_like(config, bias=config.flag("attention_bias", "use_bias", default=False), tied=True)


@family("Qwen2ForCausalLM")
def qwen2(config: Config) -> ModelParts:
    """Qwen2, Qwen2.5, QwQ: biases on q, k and v; windows, where used, start at layer ``max_window_layers``."""
    return llama_like(config, bias=False, qkv_bias=True, full_before=config.size("max_window_layers", default=0))


@family("Qwen3ForCausalLM")
def qwen3(config: Config) -> ModelParts:
    """Qwen3: q and k are normalised, each head by itself."""
    return llama_like(config, qk_norm="head", full_before=config.size("max_window_layers", default=0))


@family("MiMoForCausalLM")
def mimo(config: Config) -> ModelParts:
    """MiMo-7B: Qwen2 with one MTP module."""
    parts = llama_like(config, bias=False, qkv_bias=config.flag("attention_bias", default=True))
    names = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    prefix = "model.mtp_layers.0."
    mtp = mtp_module(parts.layers[-1], config.hidden_size, prefix, projection="input_proj", norm_names=names)
    return replace(parts, mtp=mtp * config.size("num_nextn_predict_layers", default=0, at_most=16))


@family("SeedOssForCausalLM")
def seed_oss(config: Config) -> ModelParts:
    """Seed-OSS: biases of q, k and v, and of the output, are switched apart."""
    qkv_bias = config.flag("attention_bias", default=True)
    return llama_like(config, bias=config.flag("attention_out_bias", default=False), qkv_bias=qkv_bias)


@family("Olmo2ForCausalLM", "Olmo3ForCausalLM")
def olmo(config: Config) -> ModelParts:
    """OLMo 2 and 3: norms after attention and MLP, q and k normalised over all heads; 3 slides in 3 of 4 layers."""
    return llama_like(config, qk_norm="all heads", norm_names=POST_NORMS, full_every=4)


@family("Exaone4ForCausalLM")
def exaone4(config: Config) -> ModelParts:
    """EXAONE 4: OLMo 2's norms, q and k normalised per head; the 32B slides in 3 of 4 layers."""
    pattern = config.get("sliding_window_pattern")
    full_every = len(pattern) if isinstance(pattern, str) else config.size("sliding_window_pattern", default=4)
    return llama_like(config, bias=False, qk_norm="head", norm_names=POST_NORMS, full_every=full_every)


@family("ExaoneForCausalLM")
def exaone(config: Config) -> ModelParts:
    """EXAONE 3 and 3.5: Llama under GPT-2's names."""
    hidden, attention = config.hidden_size, read_attention(config)
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    weights = (
        *attention_weights(attention, hidden, prefix="attn.attention.", names=names),
        *mlp(hidden, config.size("intermediate_size"), names=("c_fc_0", "c_fc_1", "c_proj")),
        *norms(hidden, "ln_1", "ln_2"),
    )
    around = OuterNames("transformer.wte", "transformer.ln_f", layers="transformer.h.")
    return decoder(config, uniform(config, weights, attention), around, remote_code=True)


@family("HunYuanDenseV1ForCausalLM")
def hunyuan(config: Config) -> ModelParts:
    """Hunyuan dense: Llama with q and k normalised, each head by itself."""
    return llama_like(config, qk_norm="head" if config.flag("use_qk_norm", default=True) else None)


@family("CohereForCausalLM", "Cohere2ForCausalLM")
def cohere(config: Config) -> ModelParts:
    """Command R, Aya: attention and MLP side by side behind one norm; tied. The second generation slides in 3 of 4."""
    qk_norm: QkNorm = "all heads" if config.flag("use_qk_norm", default=False) else None
    full_every = config.size("sliding_window_pattern", default=4)
    return llama_like(config, norm_names=PRE_NORMS[:1], tied=True, qk_norm=qk_norm, full_every=full_every)


@family("StableLmForCausalLM", "StableLMEpochForCausalLM")
def stablelm(config: Config) -> ModelParts:
    """StableLM: Llama with LayerNorm; the 12B has one norm for both parts and norms each head of q and k."""
    return llama_like(
        config,
        bias=False,
        qkv_bias=config.flag("use_qkv_bias", default=False),
        qk_norm="all heads" if config.flag("qk_layernorm", default=False) else None,
        norm_bias=True,
        norm_names=PRE_NORMS[:1] if config.flag("use_parallel_residual", default=False) else PRE_NORMS,
    )


@family("Phi3ForCausalLM")
def phi3(config: Config) -> ModelParts:
    """Phi-3, Phi-3.5, Phi-4: q, k, v and gate, up are fused matrices."""
    hidden, attention = config.hidden_size, read_attention(config)
    weights = (
        *attention_weights(attention, hidden, names=fused("qkv_proj", "o_proj")),
        *mlp(hidden, config.size("intermediate_size"), names=FUSED_GATE_UP),
        *norms(hidden, *PRE_NORMS),
    )
    parts = decoder(config, uniform(config, weights, attention))
    return replace(parts, unstretched_tokens=config.size("original_max_position_embeddings", default=0) or None)


@family("Phi3SmallForCausalLM")
def phi3_small(config: Config) -> ModelParts:
    """Phi-3-small: a fused gated MLP, biases everywhere; every other layer reads its KV cache block-sparsely."""
    hidden, attention = config.hidden_size, read_attention(config)
    weights = (
        *attention_weights(attention, hidden, names=fused("query_key_value", "dense"), bias=True),
        *mlp(hidden, config.size("ff_intermediate_size"), names=("up_proj", "up_proj", "down_proj"), bias=True),
        *norms(hidden, *PRE_NORMS, bias=True),
    )
    return decoder(
        config,
        uniform(config, weights, attention),
        OuterNames(norm="model.final_layernorm"),
        tied=True,
        norm_bias=True,
        remote_code=True,
        notes=("block-sparse attention layers are counted as full attention",),
    )


@family("InternLM2ForCausalLM")
def internlm2(config: Config) -> ModelParts:
    """InternLM2: Llama under other names, q, k and v fused."""
    hidden, attention = config.hidden_size, read_attention(config)
    bias = config.flag("bias", default=False)
    weights = (
        *attention_weights(attention, hidden, prefix="attention.", names=fused("wqkv", "wo"), bias=bias),
        *mlp(hidden, config.size("intermediate_size"), prefix="feed_forward.", names=W1_W3_W2),
        *norms(hidden, "attention_norm", "ffn_norm"),
    )
    around = OuterNames("model.tok_embeddings", head="output")
    return decoder(config, uniform(config, weights, attention), around, remote_code=True)


@family("BaichuanForCausalLM", "BaiChuanForCausalLM")
def baichuan(config: Config) -> ModelParts:
    """Baichuan and Baichuan 2: multi-head attention, q, k and v fused as ``W_pack``."""
    hidden, attention = config.hidden_size, read_attention(config)
    weights = (
        *attention_weights(attention, hidden, names=fused("W_pack", "o_proj")),
        *mlp(hidden, config.size("intermediate_size")),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, uniform(config, weights, attention), remote_code=True)


@family("GlmForCausalLM", "Glm4ForCausalLM")
def glm(config: Config) -> ModelParts:
    """GLM-4-9B in Hugging Face form: fused gate and up. GLM-4-0414 has norms after attention and MLP as well."""
    hidden, attention = config.hidden_size, read_attention(config)
    four = config.architecture.startswith("Glm4")
    weights = (
        *attention_weights(attention, hidden, qkv_bias=config.flag("attention_bias", default=False)),
        *mlp(hidden, config.size("intermediate_size"), names=FUSED_GATE_UP),
        *norms(hidden, *(FOUR_NORMS if four else PRE_NORMS)),
    )
    return decoder(config, uniform(config, weights, attention))


@family("ChatGLMModel", "ChatGLMForConditionalGeneration")
def chatglm(config: Config) -> ModelParts:
    """ChatGLM2, ChatGLM3 and GLM-4-9B in their own form: KV heads under ``multi_query_group_num``."""
    if not config.flag("rmsnorm", default=True) or config.flag("add_bias_linear", default=False):
        raise config.refuse("add_bias_linear", "false with rmsnorm true, the only published form")
    grouped = config.flag("multi_query_attention", default=False)
    attention = read_attention(config, kv_heads=config.size("multi_query_group_num") if grouped else None)
    hidden, names = config.hidden_size, fused("query_key_value", "dense")
    qkv_bias = config.flag("add_qkv_bias", default=False)
    weights = (
        *attention_weights(attention, hidden, prefix="self_attention.", names=names, qkv_bias=qkv_bias),
        *mlp(hidden, config.size("ffn_hidden_size"), names=("dense_h_to_4h", "dense_h_to_4h", "dense_4h_to_h")),
        *norms(hidden, *PRE_NORMS),
    )
    around = OuterNames(
        "transformer.embedding.word_embeddings",
        "transformer.encoder.final_layernorm",
        "transformer.output_layer",
        "transformer.encoder.layers.",
    )
    return decoder(config, uniform(config, weights, attention), around, remote_code=True)


@family("NemotronForCausalLM", "ArceeForCausalLM")
def squared_relu(config: Config) -> ModelParts:
    """Nemotron-3 and -4, Minitron, Arcee: a plain MLP of squared ReLU; Nvidia's have LayerNorm with bias."""
    hidden, attention = config.hidden_size, read_attention(config)
    norm_bias = config.architecture == "NemotronForCausalLM"
    mlp_bias = config.flag("mlp_bias", default=False)
    weights = (
        *attention_weights(attention, hidden, bias=config.flag("attention_bias", default=False)),
        *mlp(hidden, config.size("intermediate_size"), names=PLAIN, bias=mlp_bias),
        *norms(hidden, *PRE_NORMS, bias=norm_bias),
    )
    return decoder(config, uniform(config, weights, attention), norm_bias=norm_bias)


@family("Starcoder2ForCausalLM")
def starcoder2(config: Config) -> ModelParts:
    """StarCoder2: LayerNorm with bias, a plain MLP, biases where ``use_bias`` says; tied."""
    hidden, attention = config.hidden_size, read_attention(config)
    bias = config.flag("use_bias", default=True)
    weights = (
        *attention_weights(attention, hidden, bias=bias),
        *mlp(hidden, config.size("intermediate_size"), names=("c_fc", "c_proj"), bias=bias),
        *norms(hidden, *PRE_NORMS, bias=True),
    )
    return decoder(config, uniform(config, weights, attention), norm_bias=True, tied=True)


# --- Gemma: tied, wide heads, norms before and after; from the second generation on with sliding windows --------------

#: What the class takes where a published config leaves keys out (google/gemma-3-4b-it does).
GEMMA3_DEFAULTS = {
    "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131072, "sliding_window": 4096,
}  # fmt: skip
GEMMA4_DEFAULTS = {"sliding_window": 512, "head_dim": 256, "global_head_dim": 512}


@family("GemmaForCausalLM")
def gemma(config: Config) -> ModelParts:
    """Gemma 1: Llama's weights, tied."""
    return llama_like(config, tied=True)


@family("Gemma2ForCausalLM")
def gemma2(config: Config) -> ModelParts:
    """Gemma 2: every other layer slides."""
    return llama_like(config, norm_names=GEMMA_NORMS, tied=True, full_every=2)


@family("Gemma3ForCausalLM")
def gemma3(config: Config) -> ModelParts:
    """Gemma 3: five of six layers slide; q and k are normalised, each head by itself."""
    config = config.with_defaults(GEMMA3_DEFAULTS)
    full_every = config.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return llama_like(config, norm_names=GEMMA_NORMS, tied=True, qk_norm="head", full_every=full_every)


@family("Gemma3ForConditionalGeneration")
def gemma3_vision(config: Config) -> ModelParts:
    """Gemma 3 from 4B on: a SigLIP tower, pooled and projected."""
    parts = gemma3(config.nested("text_config"))
    vision = config.section("vision_config")
    width = vision.hidden_size
    projector = (
        Weight("multi_modal_projector.mm_input_projection_weight", Component.VISION, (width, parts.hidden_size)),
        *vector("multi_modal_projector.mm_soft_emb_norm", width, Component.VISION),
    )
    tower = siglip_vision(vision, "vision_tower.vision_model.")
    return with_vision(parts, (*tower, *projector), text="language_model.")


@family("Gemma4ForCausalLM")
def gemma4(config: Config) -> ModelParts:
    """Gemma 4: full layers have wider and fewer KV heads of their own, and may use the keys as values.

    E2B and E4B give each layer an embedding of its own, and their last layers read the cache of an earlier layer.
    Source: ``models/gemma4/modular_gemma4.py`` of transformers 5, ``models/gemma4.py`` of vLLM.
    """
    config = config.with_defaults(GEMMA4_DEFAULTS)
    spans = windows(config, full_every=6)
    first_shared = config.num_layers - config.size("num_kv_shared_layers", default=0)
    if first_shared < 1 or not set(spans[first_shared:]) <= set(spans[:first_shared]):
        raise config.refuse("num_kv_shared_layers", "few enough to leave a layer of each kind before them")
    kinds = [(window, i >= first_shared) for i, window in enumerate(spans)]
    layers = layers_by_kind(kinds, lambda kind: _gemma4_layer(config, *kind))
    return decoder(config, layers, tied=True, extra=_per_layer_embeddings(config))


def _per_layer_embeddings(config: Config) -> tuple[Weight, ...]:
    """The embeddings that each layer adds to its input, and what mixes them with the first hidden vector."""
    size = config.size("hidden_size_per_layer_input", default=0)
    if not size:
        return ()
    rows = config.size("vocab_size_per_layer_input", default=config.size("vocab_size"))
    width, stem = config.num_layers * size, "model."
    return (
        Weight(f"{stem}embed_tokens_per_layer", Component.EMBEDDING, (rows, width), shard=Shard.VOCAB),
        *linear(f"{stem}per_layer_model_projection", width, config.hidden_size, Component.MLP, Shard.COLUMN),
        *vector(f"{stem}per_layer_projection_norm", size),
    )


def _gemma4_layer(config: Config, window: int | None, shared: bool) -> Layer:
    """One layer. ``window`` is None for a full one. A ``shared`` one reads the cache of an earlier layer.

    Checkpoints hold the key and value projections of shared layers all the same, and vLLM keeps and runs them.
    """
    hidden, attention = config.hidden_size, replace(read_attention(config), window=window)
    same_kv = window is None and config.flag("attention_k_eq_v", default=False)
    if window is None:
        head_dim = config.size("global_head_dim")
        kv_heads = config.size("num_global_key_value_heads", default=attention.num_kv_heads)
        attention = Attention(attention.num_heads, kv_heads if same_kv else attention.num_kv_heads, head_dim, head_dim)
    attention = replace(attention, shared=shared)
    weights = tuple(
        weight
        for weight in attention_weights(
            attention, hidden, bias=config.flag("attention_bias", default=False), qk_norm="head"
        )
        if not (same_kv and "v_proj" in weight.name)
    )
    wide = 2 if shared and config.flag("use_double_wide_mlp", default=False) else 1
    weights += mlp(hidden, wide * config.size("intermediate_size")) + norms(hidden, *GEMMA_NORMS)
    weights += _per_layer_gate(config)
    if not config.flag("enable_moe_block", default=False):
        return Layer(weights, attention)
    moe = Moe(config.size("num_experts"), config.size("top_k_experts"), config.size("moe_intermediate_size"))
    weights += (
        *moe_mlp(hidden, moe, prefix="", router="router.proj"),
        *vector("router.scale", hidden, Component.ROUTER),
        *vector("router.per_expert_scale", moe.num_experts, Component.ROUTER),
        *norms(hidden, "post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"),
    )
    return Layer(weights, attention, moe)


def _per_layer_gate(config: Config) -> tuple[Weight, ...]:
    """What a layer does with its own embedding: a gate down to its size and a projection back up."""
    hidden, size = config.hidden_size, config.size("hidden_size_per_layer_input", default=0)
    if not size:
        return ()
    return (
        *linear("per_layer_input_gate", size, hidden, Component.MLP),
        *linear("per_layer_projection", hidden, size, Component.MLP),
        *norms(hidden, "post_per_layer_input_norm"),
    )


@family("Gemma4ForConditionalGeneration")
def gemma4_multimodal(config: Config) -> ModelParts:
    """Gemma 4 with its vision tower; E2B and E4B also have an audio tower."""
    parts = gemma4(config.nested("text_config"))
    vision = config.section("vision_config")
    towers = (
        *gemma4_vision(vision, "model.vision_tower."),
        *matrix("model.embed_vision.embedding_projection", parts.hidden_size, vision.hidden_size, bias=False),
    )
    if config.has("audio_config"):
        audio = config.section("audio_config")
        size = audio.size("output_proj_dims", default=1536)
        towers += gemma4_audio(audio, "model.audio_tower.")
        towers += matrix("model.embed_audio.embedding_projection", parts.hidden_size, size, bias=False)
    return with_vision(parts, towers, text="model.language_model.")
