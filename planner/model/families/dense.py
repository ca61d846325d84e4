"""Llama and its many relatives: decoders of attention and a gated MLP, with small differences."""

from __future__ import annotations

from dataclasses import replace

from planner.model.architecture import Weight
from planner.model.blocks import attention_weights, gated_mlp, norms, plain_mlp
from planner.model.config import Config, Parts, family
from planner.model.mtp import mtp_module
from planner.model.reading import PRE_NORMS, decoder, read_attention, sliding, whole_qk_norm, windows

FUSED_QKV = ("qkv_proj", "qkv_proj", "qkv_proj", "o_proj")
FUSED_GATE_UP = ("gate_up_proj", "gate_up_proj", "down_proj")
FOUR_NORMS = (*PRE_NORMS, "post_self_attn_layernorm", "post_mlp_layernorm")
POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")


def llama_like(
    config: Config,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: int | tuple[int, int] | None = None,
    norm_names: tuple[str, ...] = PRE_NORMS,
    norm_bias: bool = False,
    full_every: int = 0,
    full_before: int = 0,
    tied: bool = False,
) -> Parts:
    """Separate projections, a gated MLP, and norms of one hidden vector each, under Llama's names."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    weights = (
        *attention_weights(attention, hidden, qkv_bias=qkv_bias, out_bias=out_bias, qk_norm=qk_norm),
        *gated_mlp(hidden, config.size("intermediate_size"), bias=config.flag("mlp_bias", default=False)),
        *norms(hidden, *norm_names, bias=norm_bias),
    )
    spans = windows(config, full_every=full_every, full_before=full_before)
    return decoder(config, sliding(weights, attention, spans), norm_bias=norm_bias, tied=tied)


@family("LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "Ministral3ForCausalLM", "InternLMForCausalLM",
        "AquilaForCausalLM", "AquilaModel", "CwmForCausalLM", "GraniteForCausalLM")  # fmt: skip
def llama(config: Config) -> Parts:
    """Llama, Mistral, Yi, SmolLM, Vicuna, Granite, ...: GQA and SwiGLU."""
    bias = config.flag("attention_bias", "bias", default=False)
    return llama_like(config, qkv_bias=config.flag("qkv_bias", default=bias), out_bias=bias)


@family("SmolLM3ForCausalLM", "Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM")
def llama_tied(config: Config) -> Parts:
    """SmolLM3 (some layers go without rotary embeddings) and ERNIE 4.5: Llama's weights, tied."""
    bias = config.flag("attention_bias", "use_bias", default=False)
    return llama_like(config, qkv_bias=bias, out_bias=bias, tied=True)


@family("Qwen2ForCausalLM")
def qwen2(config: Config) -> Parts:
    """Qwen2, Qwen2.5, QwQ: biases on q, k and v; windows, where used, start at layer ``max_window_layers``."""
    return llama_like(config, qkv_bias=True, full_before=config.size("max_window_layers", default=0))


@family("Qwen3ForCausalLM")
def qwen3(config: Config) -> Parts:
    """Qwen3: q and k are normalised, each head by itself."""
    bias = config.flag("attention_bias", default=False)
    return llama_like(
        config, qkv_bias=bias, out_bias=bias, qk_norm=read_attention(config).head_dim,
        full_before=config.size("max_window_layers", default=0),
    )  # fmt: skip


@family("MiMoForCausalLM")
def mimo(config: Config) -> Parts:
    """MiMo-7B: Qwen2 with one MTP module."""
    parts = llama_like(config, qkv_bias=config.flag("attention_bias", default=True))
    hidden = config.size("hidden_size")
    names = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    mtp = mtp_module(parts.layers[-1], hidden, "model.mtp_layers.0.", projection="input_proj", norm_names=names)
    return replace(parts, mtp=mtp * config.size("num_nextn_predict_layers", default=0, at_most=16))


@family("SeedOssForCausalLM")
def seed_oss(config: Config) -> Parts:
    """Seed-OSS: biases of q, k and v, and of the output, are switched apart."""
    return llama_like(
        config,
        qkv_bias=config.flag("attention_bias", default=True),
        out_bias=config.flag("attention_out_bias", default=False),
    )


@family("Olmo2ForCausalLM", "Olmo3ForCausalLM")
def olmo(config: Config) -> Parts:
    """OLMo 2 and 3: norms after attention and MLP, q and k normalised over all heads; 3 slides in 3 of 4 layers."""
    bias = config.flag("attention_bias", default=False)
    return llama_like(
        config,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=whole_qk_norm(read_attention(config)),
        norm_names=POST_NORMS,
        full_every=4,
    )


@family("Exaone4ForCausalLM")
def exaone4(config: Config) -> Parts:
    """EXAONE 4: OLMo 2's norms, q and k normalised per head; the 32B slides in 3 of 4 layers."""
    pattern = config.get("sliding_window_pattern")
    full_every = len(pattern) if isinstance(pattern, str) else config.size("sliding_window_pattern", default=4)
    return llama_like(config, qk_norm=read_attention(config).head_dim, norm_names=POST_NORMS, full_every=full_every)


@family("ExaoneForCausalLM")
def exaone(config: Config) -> Parts:
    """EXAONE 3 and 3.5: Llama under GPT-2's names."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    weights = (
        *attention_weights(attention, hidden, prefix="attn.attention.", names=names),
        *gated_mlp(hidden, config.size("intermediate_size"), names=("c_fc_0", "c_fc_1", "c_proj")),
        *norms(hidden, "ln_1", "ln_2"),
    )
    return decoder(
        config, sliding(weights, attention, windows(config)), layer_prefix="transformer.h.",
        embed="transformer.wte", norm="transformer.ln_f", remote_code=True,
    )  # fmt: skip


@family("HunYuanDenseV1ForCausalLM")
def hunyuan(config: Config) -> Parts:
    """Hunyuan dense: Llama with q and k normalised, each head by itself."""
    bias = config.flag("attention_bias", default=False)
    qk_norm = read_attention(config).head_dim if config.flag("use_qk_norm", default=True) else None
    return llama_like(config, qkv_bias=bias, out_bias=bias, qk_norm=qk_norm)


@family("CohereForCausalLM", "Cohere2ForCausalLM")
def cohere(config: Config) -> Parts:
    """Command R, Aya: attention and MLP side by side behind one norm; tied. The second generation slides in 3 of 4."""
    bias = config.flag("attention_bias", default=False)
    return llama_like(
        config, qkv_bias=bias, out_bias=bias, norm_names=("input_layernorm",), tied=True,
        qk_norm=whole_qk_norm(read_attention(config)) if config.flag("use_qk_norm", default=False) else None,
        full_every=config.size("sliding_window_pattern", default=4),
    )  # fmt: skip


@family("Phi3ForCausalLM")
def phi3(config: Config) -> Parts:
    """Phi-3, Phi-3.5, Phi-4: q, k, v and gate, up are fused matrices."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    weights = (
        *attention_weights(attention, hidden, names=FUSED_QKV),
        *gated_mlp(hidden, config.size("intermediate_size"), names=FUSED_GATE_UP),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, sliding(weights, attention, windows(config)), notes=longrope_notes(config))


def longrope_notes(config: Config) -> tuple[str, ...]:
    """What vLLM does with a context that LongRoPE stretches."""
    original = config.size("original_max_position_embeddings", default=0)
    if not original or original >= config.size("max_position_embeddings"):
        return ()
    return (f"LongRoPE: vLLM (0.32 at least) takes max_model_len {original} where none is given",)


@family("Phi3SmallForCausalLM")
def phi3_small(config: Config) -> Parts:
    """Phi-3-small: a fused gated MLP, biases everywhere; every other layer reads its KV cache block-sparsely."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    names = ("query_key_value", "query_key_value", "query_key_value", "dense")
    weights = (
        *attention_weights(attention, hidden, names=names, qkv_bias=True, out_bias=True),
        *gated_mlp(hidden, config.size("ff_intermediate_size"), names=("up_proj", "up_proj", "down_proj"), bias=True),
        *norms(hidden, *PRE_NORMS, bias=True),
    )
    note = "block-sparse attention layers are counted as full attention"
    return decoder(
        config, sliding(weights, attention, windows(config)), tied=True, norm="model.final_layernorm",
        norm_bias=True, remote_code=True, notes=(note,),
    )  # fmt: skip


@family("InternLM2ForCausalLM")
def internlm2(config: Config) -> Parts:
    """InternLM2: Llama under other names, q, k and v fused."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    bias = config.flag("bias", default=False)
    weights = (
        *attention_weights(
            attention, hidden, prefix="attention.", names=("wqkv", "wqkv", "wqkv", "wo"), qkv_bias=bias, out_bias=bias
        ),
        *gated_mlp(hidden, config.size("intermediate_size"), prefix="feed_forward.", names=("w1", "w3", "w2")),
        *norms(hidden, "attention_norm", "ffn_norm"),
    )
    layers = sliding(weights, attention, windows(config))
    return decoder(config, layers, embed="model.tok_embeddings", head="output", remote_code=True)


@family("BaichuanForCausalLM", "BaiChuanForCausalLM")
def baichuan(config: Config) -> Parts:
    """Baichuan and Baichuan 2: multi-head attention, q, k and v fused as ``W_pack``."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    weights = (
        *attention_weights(attention, hidden, names=("W_pack", "W_pack", "W_pack", "o_proj")),
        *gated_mlp(hidden, config.size("intermediate_size")),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, sliding(weights, attention, windows(config)), remote_code=True)


@family("GlmForCausalLM")
def glm(config: Config) -> Parts:
    """GLM-4-9B in Hugging Face form: fused gate and up."""
    return _glm(config, PRE_NORMS)


@family("Glm4ForCausalLM")
def glm4(config: Config) -> Parts:
    """GLM-4-0414: norms after attention and MLP as well."""
    return _glm(config, FOUR_NORMS)


def _glm(config: Config, norm_names: tuple[str, ...]) -> Parts:
    hidden, attention = config.size("hidden_size"), read_attention(config)
    weights: tuple[Weight, ...] = (
        *attention_weights(attention, hidden, qkv_bias=config.flag("attention_bias", default=False)),
        *gated_mlp(hidden, config.size("intermediate_size"), names=FUSED_GATE_UP),
        *norms(hidden, *norm_names),
    )
    return decoder(config, sliding(weights, attention, windows(config)))


@family("ChatGLMModel", "ChatGLMForConditionalGeneration")
def chatglm(config: Config) -> Parts:
    """ChatGLM2, ChatGLM3 and GLM-4-9B in their own form: KV heads under ``multi_query_group_num``."""
    if not config.flag("rmsnorm", default=True) or config.flag("add_bias_linear", default=False):
        raise config.refuse("add_bias_linear", "false with rmsnorm true, the only published form")
    grouped = config.flag("multi_query_attention", default=False)
    attention = read_attention(config, kv_heads=config.size("multi_query_group_num") if grouped else None)
    hidden = config.size("hidden_size")
    qkv_bias = config.flag("add_qkv_bias", default=False)
    names = ("query_key_value", "query_key_value", "query_key_value", "dense")
    weights = (
        *attention_weights(attention, hidden, prefix="self_attention.", names=names, qkv_bias=qkv_bias),
        *gated_mlp(hidden, config.size("ffn_hidden_size"), names=("dense_h_to_4h", "dense_h_to_4h", "dense_4h_to_h")),
        *norms(hidden, *PRE_NORMS),
    )
    outer = "transformer.encoder."
    return decoder(
        config, sliding(weights, attention, windows(config)), embed="transformer.embedding.word_embeddings",
        norm=f"{outer}final_layernorm", head="transformer.output_layer", layer_prefix=f"{outer}layers.",
        remote_code=True,
    )  # fmt: skip


@family("NemotronForCausalLM", "ArceeForCausalLM")
def squared_relu(config: Config) -> Parts:
    """Nemotron-3 and -4, Minitron, Arcee: a plain MLP of squared ReLU; Nvidia's have LayerNorm with bias."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    bias = config.flag("attention_bias", default=False)
    norm_bias = config.architecture == "NemotronForCausalLM"
    weights = (
        *attention_weights(attention, hidden, qkv_bias=bias, out_bias=bias),
        *plain_mlp(hidden, config.size("intermediate_size"), bias=config.flag("mlp_bias", default=False)),
        *norms(hidden, *PRE_NORMS, bias=norm_bias),
    )
    return decoder(config, sliding(weights, attention, windows(config)), norm_bias=norm_bias)


@family("Starcoder2ForCausalLM")
def starcoder2(config: Config) -> Parts:
    """StarCoder2: LayerNorm with bias, a plain MLP, biases where ``use_bias`` says; tied."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    bias = config.flag("use_bias", default=True)
    weights = (
        *attention_weights(attention, hidden, qkv_bias=bias, out_bias=bias),
        *plain_mlp(hidden, config.size("intermediate_size"), up="mlp.c_fc", down="mlp.c_proj", bias=bias),
        *norms(hidden, *PRE_NORMS, bias=True),
    )
    return decoder(config, sliding(weights, attention, windows(config)), norm_bias=True, tied=True)


@family("StableLmForCausalLM", "StableLMEpochForCausalLM")
def stablelm(config: Config) -> Parts:
    """StableLM: Llama with LayerNorm; the 12B has one norm for both parts and norms each head of q and k."""
    qk_norm = whole_qk_norm(read_attention(config)) if config.flag("qk_layernorm", default=False) else None
    norm_names = PRE_NORMS[:1] if config.flag("use_parallel_residual", default=False) else PRE_NORMS
    return llama_like(
        config,
        qkv_bias=config.flag("use_qkv_bias", default=False),
        qk_norm=qk_norm,
        norm_bias=True,
        norm_names=norm_names,
    )
