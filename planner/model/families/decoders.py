"""Dense decoders (Llama and its relatives, older ones, Gemma, Nemotron NAS), and decoders with a mixture of experts.

Attention is ordinary, latent (MLA) or of a form of its own."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from planner.model.architecture import (
    Attention,
    Component,
    CompressedAttention,
    LatentAttention,
    Layer,
    ModelParts,
    Moe,
    Shard,
    SparseIndexer,
    Weight,
)
from planner.model.blocks import (
    FUSED_GATE_UP,
    GATED,
    PLAIN,
    PRE_NORMS,
    W1_W3_W2,
    OuterNames,
    QkNorm,
    attention_weights,
    decoder,
    experts,
    family_rows,
    fused,
    layers_by_kind,
    linear,
    mixed_decoder,
    mlp,
    moe_mlp,
    mtp_layers,
    mtp_module,
    norms,
    read_attention,
    read_moe,
    shared_expert,
    sparse_layers,
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


def dense_rows(config: Config, *, names: Mapping[str, str] | None = None, **options: Any) -> ModelParts:
    """A decoder of ``uniform.toml`` with a plain MLP, or a gated one."""
    make, ffn = (plain, options.pop("plain")) if "plain" in options else (gated, options.pop("gated", {}))
    return uniform_decoder(config, make(config, **ffn), names=OuterNames(**names or {}), **options)


family_rows("llama", llama_like)
family_rows("other", dense_rows)


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


ATTENTION = Component.ATTENTION


@family("GptOssForCausalLM")
def gpt_oss(config: Config) -> ModelParts:
    """gpt-oss: biases everywhere, a learned sink for each head, every other layer slides over 128 tokens."""
    attention, moe = read_attention(config), read_moe(config, size="intermediate_size")
    ffn = moe_mlp(config.hidden_size, moe, router="router", experts="experts.", names=FUSED_GATE_UP, bias=True)
    sinks, bias = vector("self_attn.sinks", attention.num_heads, ATTENTION), config.flag("attention_bias", default=True)
    return uniform_decoder(config, ffn, moe=moe, bias=bias, extra_weights=sinks, full_every=2)


@family("DbrxForCausalLM")
def dbrx(config: Config) -> ModelParts:
    """DBRX: 16 fine-grained experts, 4 at a time; sizes stand in ``attn_config`` and ``ffn_config``."""
    stem, names = "norm_attn_norm.", ("w1", "v1", "w2")
    attention = read_attention(config, kv_heads=config.nested("attn_config").size("kv_n_heads"))
    moe = read_moe(config.nested("ffn_config"), size="ffn_hidden_size")
    return uniform_decoder(
        config,
        moe_mlp(config.hidden_size, moe, prefix="ffn.", router="router.layer", experts="experts.mlp.", names=names),
        moe=moe, attention=attention, prefix=f"{stem}attn.", qkvo=fused("Wqkv", "out_proj"),
        norm_names=(f"{stem}norm_1", f"{stem}norm_2"),
        names=OuterNames("transformer.wte", "transformer.norm_f", layers="transformer.blocks."),
    )  # fmt: skip


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
    hidden, shared = config.hidden_size, config.size("shared_intermediate_size", default=0)
    moe = read_moe(config, size="intermediate_size", shared=1 if shared else 0)
    names = ("input_linear", "input_linear", "output_linear")
    ffn = moe_mlp(hidden, moe, prefix="block_sparse_moe.", router="router.layer", experts="", names=names)
    ffn += shared_expert(hidden, shared, prefix="shared_mlp.", names=names)
    return uniform_decoder(config, ffn, moe=moe, bias=config.flag("attention_bias", default=False))


def mixed(
    config: Config, moe: Moe, sparse: tuple[Weight, ...], *, mtp_tables: bool | None = None, **projections: Any
) -> ModelParts:
    attention, routed = read_attention(config), sparse_layers(config)
    kinds = [(replace(attention, window=w), s) for w, s in zip(windows(config), routed, strict=True)]
    mixing = partial(attention_weights, hidden_size=config.hidden_size, **projections)
    return mixed_decoder(config, kinds, mixing, moe, sparse, mtp_tables=mtp_tables)


def listed(
    config: Config, *, size: str = "moe_intermediate_size", shared: str = "", sparse: Mapping[str, Any] | None = None,
    uniform: bool = False, head_bias: bool = False, **options: Any,
) -> ModelParts:  # fmt: skip
    """A decoder of ``uniform.toml``, with experts in each layer or as ``mixed``; ``shared``: key of the shared ones."""
    hidden = config.hidden_size
    moe = read_moe(config, size=size, shared=config.size(shared, default=0) if shared else 0)
    ffn = experts(hidden, moe) if shared else moe_mlp(hidden, moe, **sparse or {})
    if uniform:
        return uniform_decoder(config, ffn, moe=moe, outer={"head_bias": head_bias}, **options)
    return mixed(config, moe, ffn, **options)


family_rows("experts", partial(listed, uniform=True))
family_rows("mixed", listed)


@family("Ernie4_5_MoeForCausalLM")
def ernie_moe(config: Config) -> ModelParts:
    """ERNIE 4.5 with experts: shared ones as one wide MLP, MoE between a first and a last layer; tied."""
    hidden, attention = config.hidden_size, read_attention(config)
    moe = read_moe(config, shared=config.size("moe_num_shared_experts", default=0))
    mixing = partial(attention_weights, hidden_size=hidden, bias=config.flag("use_bias", default=False))
    correction = vector("mlp.moe_statics.e_score_correction_bias", moe.num_experts, Component.ROUTER)
    count, every = config.num_layers, config.size("moe_layer_interval", default=1)
    first, last = config.size("moe_layer_start_index", default=0), config.size("moe_layer_end_index", default=count - 1)
    kinds = [(attention, first <= i <= last and (i + 1) % every == 0) for i in range(count)]
    return mixed_decoder(config, kinds, mixing, moe, experts(hidden, moe) + correction, tied=True)


@family("Qwen2MoeForCausalLM")
def qwen2_moe(config: Config) -> ModelParts:
    """Qwen1.5-MoE, Qwen2-57B-A14B: experts beside a gated shared one."""
    hidden, moe = config.hidden_size, read_moe(config, shared=1)
    sparse = (
        *moe_mlp(hidden, moe),
        *shared_expert(hidden, config.size("shared_expert_intermediate_size"), prefix="mlp.shared_expert."),
        *linear("mlp.shared_expert_gate", 1, hidden, Component.SHARED_EXPERT),
    )
    return mixed(config, moe, sparse, qkv_bias=config.flag("qkv_bias", default=True))


@family("LagunaForCausalLM")
def laguna(config: Config) -> ModelParts:
    """Laguna (vLLM's ``models/laguna.py``): more query heads in sliding layers; ``g_proj`` gates each head."""
    hidden, count, full = config.hidden_size, config.num_layers, read_attention(config)
    heads = config.sizes("num_attention_heads_per_layer", count=count) or [full.num_heads] * count
    spans = [replace(full, window=w, num_heads=h) for w, h in zip(windows(config), heads, strict=True)]
    gating = config.get("gating", default=False)
    if gating not in (False, True, "per-head"):
        raise config.refuse("gating", "false, true or 'per-head'")
    shared = config.size("shared_expert_intermediate_size", default=0)
    moe, bias = read_moe(config, shared=1 if shared else 0), config.flag("attention_bias", default=False)
    sparse = moe_mlp(hidden, moe) + shared_expert(hidden, shared, prefix="mlp.shared_expert.")

    def mixing(attention: Attention) -> tuple[Weight, ...]:
        gate = linear("self_attn.g_proj", attention.num_heads, hidden, ATTENTION, Shard.COLUMN) if gating else ()
        return attention_weights(attention, hidden, bias=bias, qk_norm="head") + gate

    return mixed_decoder(config, list(zip(spans, sparse_layers(config), strict=True)), mixing, moe, sparse)


def read_latent(config: Config, indexer: SparseIndexer | None = None) -> LatentAttention:
    """Shape of MLA; ``q_lora_rank`` null means that queries are not compressed."""
    heads, q_rank = config.size("num_attention_heads"), config.size("q_lora_rank", default=0) or None
    keys = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    sizes: dict[str, Any] = {key: config.size(key) for key in keys}
    return LatentAttention(heads, **sizes, q_lora_rank=q_rank, indexer=indexer)


def latent_weights(mla: LatentAttention, hidden: int, *, bias: bool = False) -> tuple[Weight, ...]:
    """Projections of MLA: down to the latents on every rank, up from them split by heads."""
    part, stem = Component.ATTENTION, "self_attn."
    heads, q_rank, kv_rank = mla.num_heads, mla.q_lora_rank, mla.kv_lora_rank
    q_size = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    if q_rank:
        queries = (
            *linear(f"{stem}q_a_proj", q_rank, hidden, part, bias=bias),
            *vector(f"{stem}q_a_layernorm", q_rank),
            *linear(f"{stem}q_b_proj", q_size, q_rank, part, Shard.COLUMN),
        )
    else:
        queries = linear(f"{stem}q_proj", q_size, hidden, part, Shard.COLUMN)
    return (
        *queries,
        *linear(f"{stem}kv_a_proj_with_mqa", kv_rank + mla.qk_rope_head_dim, hidden, part, bias=bias),
        *vector(f"{stem}kv_a_layernorm", kv_rank),
        *linear(f"{stem}kv_b_proj", heads * (mla.qk_nope_head_dim + mla.v_head_dim), kv_rank, part, Shard.COLUMN),
        *linear(f"{stem}o_proj", hidden, heads * mla.v_head_dim, part, Shard.ROW, bias=bias),
    )


@family("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "KimiK2ForCausalLM",
        "GlmMoeDsaForCausalLM", "Glm4MoeLiteForCausalLM", "Mistral4ForCausalLM")  # fmt: skip
def deepseek(config: Config) -> ModelParts:
    """DeepSeek V2, V3, R1, V3.2, Kimi K2, GLM-5: MLA, the first layers dense, shared experts in the others."""
    hidden, stem, count = config.hidden_size, "self_attn.indexer.", config.num_layers
    bias = config.flag("attention_bias", default=False)
    moe = read_moe(config, shared=config.size("n_shared_experts", default=0))

    def mixing(mla: LatentAttention) -> tuple[Weight, ...]:
        weights, indexer = latent_weights(mla, hidden, bias=bias), mla.indexer
        if indexer and indexer.num_heads:  # held whole by every rank
            size = indexer.num_heads * indexer.head_dim
            weights += linear(f"{stem}wq_b", size, config.size("q_lora_rank"), ATTENTION)
            weights += linear(f"{stem}wk", indexer.head_dim, hidden, ATTENTION)
            weights += norms(indexer.head_dim, f"{stem}k_norm", bias=True)
            weights += linear(f"{stem}weights_proj", indexer.num_heads, hidden, ATTENTION)
        return weights

    indexers: list[SparseIndexer | None] = [None] * count
    if config.has("index_topk"):  # from V3.2 on; GLM-5.2 reuses that of an earlier layer in three of four
        top_k, shared = config.size("index_topk"), SparseIndexer(0, 0, config.size("index_topk"))
        full = SparseIndexer(config.size("index_n_heads"), config.size("index_head_dim"), top_k)
        types = config.names("indexer_types", count=count) or ["full"] * count
        indexers = [shared if kind == "shared" else full for kind in types]
    kinds = [(read_latent(config, i), s) for i, s in zip(indexers, sparse_layers(config), strict=True)]
    return mixed_decoder(
        config, kinds, mixing, moe, experts(hidden, moe), mtp_tables=config.architecture.startswith("Deepseek"),
        remote_code=config.text("model_type", default="") == "kimi_k2",  # its tokenizer is its own
    )  # fmt: skip


@family("MiniCPM3ForCausalLM")
def minicpm3(config: Config) -> ModelParts:
    """MiniCPM3: MLA with ordinary MLPs; tied."""
    hidden, mla = config.hidden_size, read_latent(config)
    weights = (
        *latent_weights(mla, hidden, bias=config.flag("attention_bias", default=False)),
        *mlp(hidden, config.size("intermediate_size")),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, (Layer(weights, mla),) * config.num_layers, tied=True)


@family("DeepseekV4ForCausalLM")
def deepseek_v4(config: Config) -> ModelParts:
    """DeepSeek-V4: one shared KV row per token, compressed beyond a window, and hyper-connections around each block."""
    hidden, count = config.hidden_size, config.num_layers
    ratios = config.sizes("compress_ratios")
    if len(ratios) < count or not set(ratios) <= {0, 4, 128}:
        raise config.refuse("compress_ratios", f"0, 4 or 128 for each of {count} layers")
    mtp: tuple[Weight, ...] = ()
    mixing = _mixing("hc_head", config)
    for i, ratio in enumerate(ratios[count : count + config.size("num_nextn_predict_layers", default=0)]):
        # one more layer; embedding and hidden state have a projection each, laid side by side here
        layer, names = Layer(_v4_layer(config, ratio).weights + mixing), ("enorm", "hnorm", "norm")
        mtp += mtp_module(layer, hidden, f"mtp.{i}.", projection="e_h_proj", norm_names=names)
    return decoder(
        config, layers_by_kind(ratios[:count], lambda ratio: _v4_layer(config, ratio)),
        OuterNames("embed", "norm", "head", "layers."), extra=mixing, mtp=mtp,
    )  # fmt: skip


def _v4_layer(config: Config, ratio: int) -> Layer:
    hidden, moe = config.hidden_size, read_moe(config, shared=config.size("n_shared_experts"))
    indexer = None
    if ratio == 4:  # only the fine compression is picked from; the coarse one is read whole
        indexer = SparseIndexer(config.size("index_n_heads"), config.size("index_head_dim"), config.size("index_topk"))
    mixer = CompressedAttention(
        config.size("num_attention_heads"), config.size("head_dim"), config.size("sliding_window"), ratio, indexer
    )
    weights = (
        *_v4_attention(config, mixer),
        *experts(hidden, moe, prefix="ffn.", names=W1_W3_W2),
        *norms(hidden, "attn_norm", "ffn_norm"),
        *_mixing("hc_attn", config),
        *_mixing("hc_ffn", config),
    )
    return Layer(weights, mixer, moe)


def _v4_attention(config: Config, mixer: CompressedAttention) -> tuple[Weight, ...]:
    hidden, heads, head_dim, indexer = config.hidden_size, mixer.num_heads, mixer.head_dim, mixer.indexer
    q_rank, o_rank, groups = config.size("q_lora_rank"), config.size("o_lora_rank"), config.size("o_groups")
    weights = (
        *linear("attn.wq_a", q_rank, hidden, ATTENTION),
        *vector("attn.q_norm", q_rank),
        *linear("attn.wq_b", heads * head_dim, q_rank, ATTENTION, Shard.COLUMN),
        *linear("attn.wkv", head_dim, hidden, ATTENTION),
        *vector("attn.kv_norm", head_dim),
        *linear("attn.wo_a", groups * o_rank, heads * head_dim // groups, ATTENTION, Shard.COLUMN),
        *linear("attn.wo_b", hidden, groups * o_rank, ATTENTION, Shard.ROW),
        Weight("attn.attn_sink", ATTENTION, (heads,), shard=Shard.COLUMN),
    )
    if mixer.compress_ratio:
        weights += _compressor("attn.compressor.", hidden, head_dim, mixer.compress_ratio)
    if indexer:
        weights += linear("attn.indexer.wq_b", indexer.num_heads * indexer.head_dim, q_rank, ATTENTION)
        weights += linear("attn.indexer.weights_proj", indexer.num_heads, hidden, ATTENTION)
        weights += _compressor("attn.indexer.compressor.", hidden, indexer.head_dim, mixer.compress_ratio)
    return weights


def _compressor(prefix: str, hidden: int, head_dim: int, ratio: int) -> tuple[Weight, ...]:
    width = head_dim * (2 if ratio == 4 else 1)
    return (
        *linear(f"{prefix}wkv", width, hidden, ATTENTION),
        *linear(f"{prefix}wgate", width, hidden, ATTENTION),
        *vector(f"{prefix}norm", head_dim),
        Weight(f"{prefix}ape", ATTENTION, (ratio, width)),
    )


def _mixing(name: str, config: Config) -> tuple[Weight, ...]:
    """Hyper-connections: weights that mix residual streams around a block, or join them before the head."""
    streams, head = config.size("hc_mult", default=4), name == "hc_head"
    mixes = streams if head else streams * (streams + 2)
    matrix = Weight(f"{name}_fn", Component.NORM, (mixes, streams * config.hidden_size))
    return (matrix, *vector(f"{name}_base", mixes), *vector(f"{name}_scale", 1 if head else 3))


@family("MiMoV2FlashForCausalLM")
def mimo_v2(config: Config) -> ModelParts:
    """MiMo-V2-Flash: keys wider than values, and sliding layers with heads of their own and a sink per head. vLLM
    drafts with the first of its dense MTP layers alone, which config.json does not name (``mimo_v2_mtp.py``)."""
    hidden, count, moe = config.hidden_size, config.num_layers, read_moe(config)
    if config.size("n_shared_experts", default=0):
        raise config.refuse("n_shared_experts", "0 or null")
    keys = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
    heads, kv_heads, head_dim, v_head_dim = (config.size(key) for key in keys)
    full = Attention(heads, kv_heads, head_dim, v_head_dim)
    heads, kv_heads, head_dim, v_head_dim = (config.size(f"swa_{key}") for key in keys)
    sliding = Attention(heads, kv_heads, head_dim, v_head_dim, window=config.size("sliding_window"))
    kinds = [sliding if slides else full for slides in config.sizes("hybrid_layer_pattern", count=count)]

    def mixing(attention: Attention) -> tuple[Weight, ...]:
        weights = attention_weights(attention, hidden)
        if config.flag(f"add_{'swa' if attention.window else 'full'}_attention_sink_bias", default=False):
            weights += (Weight("self_attn.attention_sink_bias", ATTENTION, (attention.num_heads,), shard=Shard.COLUMN),)
        return weights

    routed = map(bool, config.sizes("moe_layer_freq", count=count))
    layer = Layer((*mixing(sliding), *mlp(hidden, config.size("intermediate_size")), *norms(hidden, *PRE_NORMS)))
    mtp = mtp_module(layer, hidden, "model.mtp.layers.0.", norm_names=("enorm", "hnorm", "final_layernorm"))
    parts = mixed_decoder(config, list(zip(kinds, routed, strict=True)), mixing, moe, moe_mlp(hidden, moe))
    return replace(parts, mtp=mtp)


def step3p7_text(config: Config) -> ModelParts:
    """Step-3.7-Flash: a gate per head, MoE with one shared expert. Sliding layers have half as many heads again (96
    beside 64): the published total, 201,365,316,160, needs them, and some copies of config.json lack them."""
    hidden, other = config.hidden_size, config.nested("attention_other_setting")
    heads, kv_heads = config.size("num_attention_heads"), config.size("num_key_value_heads", "num_attention_groups")
    full = Attention(heads, kv_heads, config.size("head_dim"), config.size("head_dim"))
    more = heads * 3 // 2 if other is config else other.size("num_attention_heads")
    sliding = replace(full, num_heads=more, window=config.size("sliding_window"))
    first_moe = config.size("first_k_dense_replace", default=3)
    kinds = [(sliding if window else full, i >= first_moe) for i, window in enumerate(windows(config))]

    def mixing(attention: Attention) -> tuple[Weight, ...]:
        gate = linear("self_attn.g_proj", attention.num_heads, hidden, ATTENTION, Shard.COLUMN)
        return attention_weights(attention, hidden, qk_norm="head") + gate

    moe = read_moe(config, shared=1)
    shared = shared_expert(hidden, config.size("share_expert_dim"), prefix="share_expert.")
    # each prediction layer is a dense sliding layer with an lm_head of its own
    head = Weight("shared_head.output", Component.MTP, (config.size("vocab_size"), hidden), shard=Shard.VOCAB)
    dense = mlp(hidden, config.size("intermediate_size"))
    layer = Layer((*mixing(sliding), *dense, *norms(hidden, *PRE_NORMS), head))
    parts = mixed_decoder(
        config, kinds, mixing, moe, moe_mlp(hidden, moe, prefix="moe.") + shared,
        notes=("the vision tower is that of the published checkpoint; config.json does not describe it",),
    )  # fmt: skip
    return replace(parts, mtp=mtp_layers(config, layer, tables=False))


def minimax_m3_text(config: Config) -> ModelParts:
    """MiniMax-M3: GQA that reads the 16 blocks of 128 tokens that a light indexer picks; MoE with one shared expert."""
    hidden, count, full, stem = config.hidden_size, config.num_layers, read_attention(config), "block_sparse_moe."
    moe = read_moe(config, size="intermediate_size", shared=config.size("n_shared_experts", default=0))
    qk_norm: QkNorm = "head" if config.flag("use_qk_norm", default=True) else None
    sparse, picked, indexed = config.nested("sparse_attention_config"), [0] * count, full
    if sparse is not config:
        tokens = sparse.size("sparse_topk_blocks") * sparse.size("sparse_block_size")
        sizes = sparse.size("sparse_num_index_heads"), sparse.size("sparse_index_dim")
        picked = sparse.sizes("sparse_attention_freq", count=count)
        indexed = replace(full, indexer=SparseIndexer(*sizes, top_k=tokens))

    def mixing(attention: Attention) -> tuple[Weight, ...]:
        weights, indexer = attention_weights(attention, hidden, qk_norm=qk_norm), attention.indexer
        if indexer:
            size = indexer.head_dim
            weights += linear("self_attn.index_q_proj", indexer.num_heads * size, hidden, ATTENTION)
            weights += linear("self_attn.index_k_proj", size, hidden, ATTENTION)
            weights += norms(size, "self_attn.index_q_norm", "self_attn.index_k_norm")
        return weights

    ffn = moe_mlp(hidden, moe, prefix=stem, names=W1_W3_W2)
    if moe.num_shared_experts:
        size = moe.num_shared_experts * config.size("shared_intermediate_size")
        ffn += shared_expert(hidden, size, prefix=f"{stem}shared_experts.")
    routed = config.sizes("moe_layer_freq", count=count)
    kinds = [(indexed if p else full, bool(r)) for p, r in zip(picked, routed, strict=True)]
    return mixed_decoder(config, kinds, mixing, moe, ffn, dense="dense_intermediate_size")
