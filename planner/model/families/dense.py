"""Dense decoders: Llama and its relatives, older decoders, Gemma, and the searched layers of Nemotron NAS."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.model.architecture import Attention, Component, Layer, ModelParts, Moe, Shard, Weight
from planner.model.blocks import (
    FUSED_GATE_UP,
    GATED,
    PLAIN,
    PRE_NORMS,
    OuterNames,
    attention_weights,
    decoder,
    family_rows,
    fused,
    layers_by_kind,
    linear,
    mlp,
    moe_mlp,
    mtp_module,
    norms,
    read_attention,
    uniform_decoder,
    vector,
    windows,
)
from planner.model.config import Config, family

POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
GEMMA_NORMS = (*PRE_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")
H_TO_4H = ("dense_h_to_4h", "dense_4h_to_h")
QKV_OUT = ("q_proj", "k_proj", "v_proj", "out_proj")
GPT2_NAMES = OuterNames("transformer.wte", "transformer.ln_f", layers="transformer.h.")
BLOOM_NAMES = OuterNames("transformer.word_embeddings", "transformer.ln_f", layers="transformer.h.")


def gated(config: Config, *, key: str = "intermediate_size", **options: Any) -> tuple[Weight, ...]:
    return mlp(config.hidden_size, config.size(key), **options)


def plain(config: Config, *, names: tuple[str, str], bias: bool, prefix: str = "mlp.") -> tuple[Weight, ...]:
    hidden = config.hidden_size
    return mlp(hidden, config.size("intermediate_size", default=4 * hidden), prefix=prefix, names=names, bias=bias)


def llama_like(
    config: Config, *, bias: bool | None = None, mlp_names: tuple[str, ...] = GATED, tied: bool = False, **other: Any
) -> ModelParts:
    """A decoder with the flags of Llama's config: ``attention_bias`` unless ``bias`` is given, and ``mlp_bias``."""
    if bias is None:
        bias = config.flag("attention_bias", "bias", "use_bias", default=False)
        other = {"qkv_bias": config.flag("qkv_bias", default=bias), **other}
    ffn = gated(config, names=mlp_names, bias=config.flag("mlp_bias", default=False))
    return uniform_decoder(config, ffn, bias=bias, outer={"tied": tied}, **other)


def listed(config: Config, *, names: Mapping[str, str] | None = None, **options: Any) -> ModelParts:
    """A decoder of ``uniform.toml`` with a plain MLP, or a gated one."""
    make, ffn = (plain, options.pop("plain")) if "plain" in options else (gated, options.pop("gated", {}))
    return uniform_decoder(config, make(config, **ffn), names=OuterNames(**names or {}), **options)


family_rows("llama", llama_like)
family_rows("other", listed)


@family("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
def eagle3(config: Config) -> ModelParts:
    """EAGLE-3 drafts (``llama_eagle3.py``): the first layer reads embedding and hidden state side by side. Hidden
    states of three layers are projected to one; lm_head is over ``draft_vocab_size`` tokens."""
    parts, hidden = llama_like(config), config.hidden_size
    first = parts.layers[0]
    widened = tuple(
        replace(w, shape=(w.shape[0], 2 * hidden)) if w.name.endswith(("q_proj", "k_proj", "v_proj")) else w
        for w in first.weights
    )
    layer = replace(first, weights=(*widened, Weight("hidden_norm", Component.NORM, (hidden,))))
    target = config.size("target_hidden_size", default=hidden)
    vocab = config.size("draft_vocab_size", default=config.size("vocab_size"))
    outer = (
        *(w for w in parts.outer if w.component is not Component.LM_HEAD),
        Weight("lm_head", Component.LM_HEAD, (vocab, hidden), shard=Shard.VOCAB),
        Weight("fc", Component.MLP, (hidden, 3 * target)),
    )
    return replace(parts, layers=(layer, *parts.layers[1:]), outer=outer, tied_embeddings=False)


@family("MiMoForCausalLM")
def mimo(config: Config) -> ModelParts:
    """MiMo-7B: Qwen2 with one MTP module."""
    parts = llama_like(config, bias=False, qkv_bias=config.flag("attention_bias", default=True))
    names = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    prefix = "model.mtp_layers.0."
    mtp = mtp_module(parts.layers[-1], config.hidden_size, prefix, projection="input_proj", norm_names=names)
    return replace(parts, mtp=mtp * config.size("num_nextn_predict_layers", default=0, at_most=16))


@family("Exaone4ForCausalLM")
def exaone4(config: Config) -> ModelParts:
    """EXAONE 4: OLMo 2's norms, q and k normalised per head; the 32B slides in 3 of 4 layers."""
    pattern = config.get("sliding_window_pattern")
    full_every = len(pattern) if isinstance(pattern, str) else config.size("sliding_window_pattern", default=4)
    return llama_like(config, bias=False, qk_norm="head", norm_names=POST_NORMS, full_every=full_every)


@family("Phi3ForCausalLM")
def phi3(config: Config) -> ModelParts:
    """Phi-3, Phi-3.5, Phi-4: q, k, v and gate, up are fused matrices."""
    parts = uniform_decoder(config, gated(config, names=FUSED_GATE_UP), qkvo=fused("qkv_proj", "o_proj"))
    return replace(parts, unstretched_tokens=config.size("original_max_position_embeddings", default=0) or None)


@family("ChatGLMModel", "ChatGLMForConditionalGeneration")
def chatglm(config: Config) -> ModelParts:
    """ChatGLM2, ChatGLM3 and GLM-4-9B in their own form: KV heads under ``multi_query_group_num``."""
    if not config.flag("rmsnorm", default=True) or config.flag("add_bias_linear", default=False):
        raise config.refuse("add_bias_linear", "false with rmsnorm true, the only published form")
    kv_heads = config.size("multi_query_group_num") if config.flag("multi_query_attention", default=False) else None
    stem = "transformer.encoder."
    return uniform_decoder(
        config,
        gated(config, key="ffn_hidden_size", names=("dense_h_to_4h", "dense_h_to_4h", "dense_4h_to_h")),
        attention=read_attention(config, kv_heads=kv_heads), prefix="self_attention.",
        qkvo=fused("query_key_value", "dense"), qkv_bias=config.flag("add_qkv_bias", default=False),
        names=OuterNames("transformer.embedding.word_embeddings", f"{stem}final_layernorm", "transformer.output_layer",
                         f"{stem}layers."),
        outer={"remote_code": True},
    )  # fmt: skip


@family("Starcoder2ForCausalLM")
def starcoder2(config: Config) -> ModelParts:
    """StarCoder2: LayerNorm with bias, a plain MLP, biases where ``use_bias`` says; tied."""
    bias = config.flag("use_bias", default=True)
    ffn = gated(config, names=("c_fc", "c_proj"), bias=bias)
    return uniform_decoder(config, ffn, bias=bias, norm_bias=True, outer={"tied": True})


@family("GPT2LMHeadModel", "GPTBigCodeForCausalLM")
def gpt2(config: Config) -> ModelParts:
    """GPT-2: everything has a bias; tied. SantaCoder and StarCoder are the same with one KV head."""
    one_head = config.architecture == "GPTBigCodeForCausalLM" and config.flag("multi_query", default=True)
    positions = config.size("max_position_embeddings"), config.hidden_size
    return uniform_decoder(
        config, plain(config, names=("c_fc", "c_proj"), bias=True),
        attention=read_attention(config, kv_heads=1 if one_head else None), prefix="attn.",
        qkvo=fused("c_attn", "c_proj"), bias=True, norm_names=("ln_1", "ln_2"), norm_bias=True, names=GPT2_NAMES,
        outer={"tied": True, "extra": (Weight("transformer.wpe", Component.EMBEDDING, positions),)},
    )  # fmt: skip


@family("OPTForCausalLM")
def opt(config: Config) -> ModelParts:
    """OPT: learned positions, two rows more than the context; tied."""
    hidden, attention = config.hidden_size, read_attention(config)
    if config.size("word_embed_proj_dim", default=hidden) != hidden:
        raise config.refuse("word_embed_proj_dim", f"hidden_size = {hidden}; the projected OPT-350m is not supported")
    bias, stem = config.flag("enable_bias", default=True), "model.decoder."
    positions = config.size("max_position_embeddings") + 2, hidden
    return uniform_decoder(
        config, plain(config, prefix="", names=("fc1", "fc2"), bias=bias), attention=attention, qkvo=QKV_OUT,
        bias=bias, norm_names=("self_attn_layer_norm", "final_layer_norm"), norm_bias=True,
        names=OuterNames(f"{stem}embed_tokens", f"{stem}final_layer_norm", layers=f"{stem}layers."),
        outer={"tied": True, "extra": (Weight(f"{stem}embed_positions", Component.EMBEDDING, positions),)},
    )  # fmt: skip


@family("BloomForCausalLM")
def bloom(config: Config) -> ModelParts:
    """BLOOM: ALiBi, a norm on the embedding, biases everywhere; tied."""
    hidden = config.hidden_size
    return uniform_decoder(
        config, mlp(hidden, 4 * hidden, names=H_TO_4H, bias=True), prefix="self_attention.",
        qkvo=fused("query_key_value", "dense"), bias=True, norm_bias=True, names=BLOOM_NAMES,
        outer={"tied": True, "extra": norms(hidden, "transformer.word_embeddings_layernorm", bias=True)},
    )  # fmt: skip


@family("MptForCausalLM", "MPTForCausalLM")
def mpt(config: Config) -> ModelParts:
    """MPT, without biases, with ALiBi; the lm_head is tied."""
    if not config.flag("no_bias", default=True):
        raise config.refuse("no_bias", "true, the only published form")
    hidden = config.hidden_size
    kv_heads = config.nested("attn_config").size("kv_n_heads", default=config.size("num_attention_heads"))
    ffn = mlp(hidden, config.size("expansion_ratio", default=4) * hidden, prefix="ffn.", names=PLAIN)
    return uniform_decoder(
        config, ffn, attention=read_attention(config, kv_heads=kv_heads), prefix="attn.",
        qkvo=fused("Wqkv", "out_proj"), norm_names=("norm_1", "norm_2"), outer={"tied": True},
        names=OuterNames("transformer.wte", "transformer.norm_f", layers="transformer.blocks."),
    )  # fmt: skip


@family("FalconForCausalLM", "RWForCausalLM")
def falcon(config: Config) -> ModelParts:
    """Falcon: 7B has one KV head and one norm, 40B and 180B have KV groups and two norms; tied."""
    new = config.flag("new_decoder_architecture", default=config.has("n_head_kv"))
    grouped = config.size("num_kv_heads", "n_head_kv", default=config.size("num_attention_heads"))
    one_head = config.flag("multi_query", default=True) and not new
    bias = config.flag("bias", default=False)
    # one norm where attention and MLP stand side by side, unless the new form gives each its own
    parallel = config.flag("parallel_attn", default=True)
    count = config.size("num_ln_in_parallel_attn", default=2 if new and parallel else 1)
    norm_names = ("ln_attn", "ln_mlp") if new and count == 2 else PRE_NORMS[: 1 if parallel else 2]
    return uniform_decoder(
        config, plain(config, names=H_TO_4H, bias=bias),
        attention=read_attention(config, kv_heads=1 if one_head else grouped), prefix="self_attention.",
        qkvo=fused("query_key_value", "dense"), bias=bias, norm_names=norm_names, norm_bias=True, names=BLOOM_NAMES,
        outer={"tied": True},
    )  # fmt: skip


@family("PhiForCausalLM")
def phi(config: Config) -> ModelParts:
    """Phi-1, Phi-1.5, Phi-2: attention and MLP side by side behind one norm, biases everywhere."""
    attention = read_attention(config)
    qk_norms = norms(attention.head_dim, "self_attn.q_layernorm", "self_attn.k_layernorm", bias=True)
    return uniform_decoder(
        config, plain(config, names=("fc1", "fc2"), bias=True), attention=attention,
        qkvo=("q_proj", "k_proj", "v_proj", "dense"), bias=True,
        extra_weights=qk_norms if config.flag("qk_layernorm", default=False) else (),
        norm_names=("input_layernorm",), norm_bias=True, names=OuterNames(norm="model.final_layernorm"),
        outer={"head_bias": True},
    )  # fmt: skip


@family("Gemma4ForCausalLM")
def gemma4(config: Config) -> ModelParts:
    """Gemma 4: full layers have wider and fewer KV heads, and may use the keys as values. E2B and E4B have an embedding
    per layer, and their last layers read an earlier layer's cache, though checkpoints hold their k and v. Source:
    ``models/gemma4/modular_gemma4.py`` of transformers 5, ``models/gemma4.py`` of vLLM."""
    config = config.with_defaults({"sliding_window": 512, "head_dim": 256, "global_head_dim": 512})
    spans = windows(config, full_every=6)
    first_shared = config.num_layers - config.size("num_kv_shared_layers", default=0)
    if first_shared < 1 or not set(spans[first_shared:]) <= set(spans[:first_shared]):
        raise config.refuse("num_kv_shared_layers", "few enough to leave a layer of each kind before them")
    kinds = [(window, i >= first_shared) for i, window in enumerate(spans)]
    layers = layers_by_kind(kinds, lambda kind: _gemma4_layer(config, *kind))
    extra: tuple[Weight, ...] = ()
    size = config.size("hidden_size_per_layer_input", default=0)
    if size:  # added to the input of each layer, and what mixes them with the first hidden vector
        rows, width = config.size("vocab_size_per_layer_input", default=config.size("vocab_size")), len(spans) * size
        extra = (
            Weight("model.embed_tokens_per_layer", Component.EMBEDDING, (rows, width), shard=Shard.VOCAB),
            *linear("model.per_layer_model_projection", width, config.hidden_size, Component.MLP, Shard.COLUMN),
            *vector("model.per_layer_projection_norm", size),
        )
    return decoder(config, layers, tied=True, extra=extra)


def _gemma4_layer(config: Config, window: int | None, shared: bool) -> Layer:
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
    if size := config.size("hidden_size_per_layer_input", default=0):  # of the layer's own embedding
        weights += linear("per_layer_input_gate", size, hidden, Component.MLP)
        weights += linear("per_layer_projection", hidden, size, Component.MLP)
        weights += norms(hidden, "post_per_layer_input_norm")
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


@family("DeciLMForCausalLM")
def nemotron_nas(config: Config) -> ModelParts:
    """Llama-Nemotron Super and Ultra: a search gave each layer its own KV heads and MLP size, or left a part out."""
    blocks, hidden, heads = config.need("block_configs"), config.hidden_size, config.size("num_attention_heads")
    if not isinstance(blocks, list) or len(blocks) != config.num_layers:
        raise config.refuse("block_configs", "a list of one entry per layer")

    def read(block: Any, part: str, key: str) -> float:
        half = block.get(part) if isinstance(block, Mapping) else None
        if not isinstance(half, Mapping) or half.get("replace_with_linear") or half.get("sparsify"):
            raise config.refuse("block_configs", f"made of {part!r} without 'replace_with_linear' and 'sparsify'")
        number = 0 if half.get("no_op") else half.get(key)
        if not isinstance(number, int | float) or not (half.get("no_op") or 0 < number < 10_000):
            raise config.refuse("block_configs", f"with a positive {key}")
        return number

    def make(kind: tuple[float, float]) -> Layer:
        group, multiple = kind
        attention = read_attention(config, kv_heads=int(heads // group)) if group else None
        weights = attention_weights(attention, hidden) + norms(hidden, PRE_NORMS[0]) if attention else ()
        if multiple:  # two thirds of the multiple of the hidden size, rounded up to a multiple of 256
            weights += mlp(hidden, -(-int(2 * multiple * hidden / 3) // 256) * 256) + norms(hidden, PRE_NORMS[1])
        return Layer(weights, attention)

    kinds = [(read(b, "attention", "n_heads_in_group"), read(b, "ffn", "ffn_mult")) for b in blocks]
    if any(group and heads % group for group, _ in kinds):
        raise config.refuse("block_configs", "with n_heads_in_group that divides the heads")
    return decoder(config, layers_by_kind(kinds, make))
