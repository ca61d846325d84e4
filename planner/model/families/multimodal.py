"""Text models with vision towers and projectors, which memory holds whether images come or not.
Every weight of a tower is of Component.VISION and not ``linear``: text tokens do not pass it, and it is not quantised.
What is neither repeated nor split over ranks is counted, not shaped: only its size matters."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

from planner.model import blocks
from planner.model.architecture import Component, Layer, ModelParts, Shard, Weight
from planner.model.config import BUILDERS, Builder, Config, family
from planner.model.families.decoders import deepseek, gemma4, minimax_m3_text, step3p7_text
from planner.model.families.hybrid import kimi_linear_text, qwen3_5_text

Weights = tuple[Weight, ...]
MODEL, LANGUAGE = "model.language_model.", "language_model."


def with_tower(
    config: Config, text: Builder, tower: Callable[[Config, ModelParts], Weights], prefix: str, absent: str = "refused"
) -> ModelParts:
    """The model of ``text_config``, its weights under ``prefix``, beside the tower of ``vision_config``. ``absent``: a
    config without one is ``refused``, has ``no tower``, or the ``default`` one."""
    parts = text(config.nested("text_config"))
    if config.has("vision_config") or absent == "refused":
        vision = config.section("vision_config")
    elif absent == "default":
        vision = Config({}, model_id=config.model_id, outer=config.outer)
    else:
        return parts

    def renamed(name: str) -> str:
        # a head stays outside a model with a prefix of its own
        return re.sub(r"^model\.", prefix, name) if prefix.startswith("model.") else prefix + name

    def moved(weights: Weights) -> Weights:
        return tuple(replace(weight, name=renamed(weight.name)) for weight in weights)

    layer_prefix, outer, mtp = renamed(parts.layer_prefix), moved(parts.outer), moved(parts.mtp)
    return replace(parts, vision=tower(vision, parts), outer=outer, mtp=mtp, layer_prefix=layer_prefix)


def whole(**params: int) -> Weights:
    """Parts that every rank holds whole, by their number of parameters."""
    return tuple(Weight(f"vision.{name}", Component.VISION, (size,)) for name, size in params.items())


def matrix(
    name: str, out_features: int, in_features: int, shard: Shard, *, bias: bool = True, copies: int = 1
) -> Weights:
    """A matrix and its bias; that of a row-split one is added once, so that every rank holds all of it."""
    weight = Weight(f"vision.{name}", Component.VISION, (out_features, in_features), copies, shard)
    bias_shard = Shard.COLUMN if shard is Shard.COLUMN else Shard.NONE
    added = Weight(f"{weight.name}.bias", Component.VISION, (out_features,), copies, bias_shard)
    return (weight, added) if bias else (weight,)


def transformer(
    hidden: int, intermediate: int, copies: int, *, vectors: int, fused_qkv: bool = False, gated: bool = False,
    attention_bias: bool = True, mlp_bias: bool = True, heads_size: int = 0,
) -> Weights:  # fmt: skip
    """``copies`` transformer blocks. ``vectors``: parameters of a block's norms, scales and gates. ``heads_size``: size
    of all heads together where it is not ``hidden``."""
    heads_size = heads_size or hidden
    qkv_size, qkv_copies = (3 * heads_size, copies) if fused_qkv else (heads_size, 3 * copies)
    up_copies = 2 * copies if gated else copies
    return (
        *matrix("blocks.qkv", qkv_size, hidden, Shard.COLUMN, bias=attention_bias, copies=qkv_copies),
        *matrix("blocks.out", hidden, heads_size, Shard.ROW, bias=attention_bias, copies=copies),
        *matrix("blocks.up", intermediate, hidden, Shard.COLUMN, bias=mlp_bias, copies=up_copies),
        *matrix("blocks.down", hidden, intermediate, Shard.ROW, bias=mlp_bias, copies=copies),
        Weight("vision.blocks.vectors", Component.VISION, (vectors,), copies),
    )


def merger(wide: int, out: int, *, copies: int = 1) -> Weights:
    up = matrix("merger.up", wide, wide, Shard.COLUMN, copies=copies)
    return up + matrix("merger.down", out, wide, Shard.ROW, copies=copies)


def patches(config: Config) -> int:
    return (config.size("image_size") // config.size("patch_size")) ** 2


def pixels(config: Config) -> int:
    """Values of a patch, which one convolution turns into a vector."""
    return config.size("num_channels", "in_channels", "in_chans", default=3) * config.size("patch_size") ** 2


def frames(config: Config) -> int:
    return config.size("temporal_patch_size", default=2)


def siglip_vision(config: Config, parts: ModelParts) -> Weights:
    """SigLIP and the projector of Gemma 3."""
    hidden = config.hidden_size
    embeddings = (pixels(config) + 1 + patches(config)) * hidden
    outside = whole(embeddings=embeddings, norm=2 * hidden, projector=(parts.hidden_size + 1) * hidden)
    return outside + transformer(hidden, config.size("intermediate_size"), config.num_layers, vectors=4 * hidden)


def gemma4_vision(config: Config, parts: ModelParts) -> Weights:
    """Gemma 4's tower: a gated MLP, four norms, q and k normalised, positions for each axis; E2B and E4B have one for
    audio too."""
    hidden = config.hidden_size
    head_dim = config.size("head_dim", default=hidden // config.size("num_attention_heads"))
    patch, positions = 3 * config.size("patch_size") ** 2, 2 * config.size("position_embedding_size")
    weights = (
        *whole(embeddings=(patch + positions) * hidden, projector=parts.hidden_size * hidden),
        *transformer(
            hidden, config.size("intermediate_size"), config.num_layers, vectors=4 * hidden + 2 * head_dim, gated=True,
            attention_bias=config.flag("attention_bias", default=False), mlp_bias=False,
        ),
    )  # fmt: skip
    if not config.outer.has("audio_config"):
        return weights
    return weights + gemma4_audio(config.outer.section("audio_config"), parts.hidden_size)


def gemma4_audio(config: Config, text_hidden: int) -> Weights:
    """The audio tower of Gemma 4 E2B and E4B, a conformer: ``Gemma4AudioModel`` of transformers 5. A block has two
    feed-forward parts, attention (q, k, v, relative k, output) and a light convolution, and nine norms."""
    hidden, count, output = config.hidden_size, config.num_layers, config.size("output_proj_dims", default=1536)
    first, second = config.sizes("subsampling_conv_channels", count=2) or (128, 32)
    kernel, head_dim = config.size("conv_kernel_size", default=5), hidden // config.size("num_attention_heads")
    return (
        *whole(
            audio_convolutions=(9 + 1) * first + (9 * first + 1) * second,
            audio_input=first // 4 * second * hidden,
            audio_output=(hidden + 1) * output,
            audio_projector=text_hidden * output,
            audio_vectors=count * ((9 + kernel) * hidden + head_dim),
        ),
        *matrix("audio.feed_forward", 4 * hidden, hidden, Shard.NONE, bias=False, copies=4 * count),
        *matrix("audio.attention", hidden, hidden, Shard.NONE, bias=False, copies=5 * count),
        *matrix("audio.convolution", hidden, hidden, Shard.NONE, bias=False, copies=3 * count),
    )


def pixtral_vision(given: Config, parts: ModelParts) -> Weights:
    """Pixtral's tower: rotary positions, RMSNorm, a gated MLP, no biases; and a projector that merges patches."""
    # the tower that the class builds where a config leaves keys, or all of it, out
    config = given.with_defaults({"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
                                  "num_attention_heads": 16, "patch_size": 14})  # fmt: skip
    hidden, text, outer = config.hidden_size, parts.hidden_size, config.outer
    merge = outer.size("spatial_merge_size", default=2) ** 2
    biases = 2 * text if outer.flag("multimodal_projector_bias", default=False) else 0
    projector = (1 + merge * hidden) * hidden + (hidden + text) * text + biases
    return whole(embeddings=pixels(config) * hidden, norm=hidden, projector=projector) + transformer(
        hidden, config.size("intermediate_size"), config.num_layers, vectors=2 * hidden, gated=True,
        attention_bias=False, mlp_bias=False,
    )  # fmt: skip


def llama4_vision(config: Config, parts: ModelParts) -> Weights:
    """Llama 4's tower: a class token, learned positions, pixels shuffled into an adapter; and its projector."""
    hidden, inner, adapter = config.hidden_size, config.size("intermediate_size"), config.size("projector_input_dim")
    embeddings = (1 + patches(config) + 1 + pixels(config)) * hidden
    return (
        *whole(embeddings=embeddings, norms=4 * hidden, projector=parts.hidden_size * config.size("vision_output_dim")),
        *transformer(hidden, inner, config.num_layers, vectors=4 * hidden),
        *matrix("adapter.up", adapter, inner, Shard.COLUMN, bias=False),
        *matrix("adapter.down", config.size("projector_output_dim"), adapter, Shard.ROW, bias=False),
    )


def mllama_vision(config: Config, parts: ModelParts) -> Weights:
    """Llama 3.2's tower: positions for each tile and each aspect ratio, then global layers with gates."""
    hidden, inner = config.hidden_size, config.size("intermediate_size")
    rows, tiles = patches(config) + 1, config.size("max_num_tiles")
    shapes = config.get("supported_aspect_ratios")
    if not isinstance(shapes, list):
        raise config.refuse("supported_aspect_ratios", "a list")
    ratios = len(shapes) + 1
    return (
        *whole(
            embeddings=(1 + pixels(config)) * hidden,
            positions=1 + (1 + ratios * tiles) * rows * hidden,
            tile_positions=2 * (1 + ratios * tiles * hidden),  # before and after the layers
            norms=4 * hidden,
            projector=parts.hidden_size * (config.size("vision_output_dim") + 1),
        ),
        *transformer(hidden, inner, config.num_layers, vectors=4 * hidden, attention_bias=False),
        *transformer(
            hidden, inner, config.size("num_global_layers", default=0), vectors=4 * hidden + 2, attention_bias=False
        ),
    )


def qwen2_vision(config: Config, _: ModelParts) -> Weights:
    """Tower and merger of Qwen2-VL (LayerNorm, plain MLP) and of Qwen2.5-VL (RMSNorm, gated MLP)."""
    if first := config.architecture.startswith("Qwen2VL"):
        hidden, out, parts_of_norm = config.size("embed_dim"), config.hidden_size, 2
        inner = config.size("mlp_ratio", default=4) * hidden
    else:
        hidden, out, parts_of_norm = config.hidden_size, config.size("out_hidden_size"), 1
        inner = config.size("intermediate_size")
    norm, depth = parts_of_norm * hidden, config.size("depth")
    return (
        *whole(embeddings=frames(config) * pixels(config) * hidden, norm=norm),
        *transformer(hidden, inner, depth, vectors=2 * norm, fused_qkv=True, gated=not first),
        *merger(config.size("spatial_merge_size", default=2) ** 2 * hidden, out),
    )


def qwen3_vision(config: Config, _: ModelParts) -> Weights:
    """Qwen3-VL's tower: learned positions, and one merger more per layer tapped by DeepStack (Qwen3.5: none)."""
    hidden, taps = config.hidden_size, len(config.sizes("deepstack_visual_indexes"))
    wide = config.size("spatial_merge_size", default=2) ** 2 * hidden
    patch, positions = frames(config) * pixels(config) + 1, config.size("num_position_embeddings")
    inner, depth = config.size("intermediate_size"), config.size("depth")
    return (
        *whole(embeddings=(patch + positions) * hidden, norms=2 * hidden + taps * 2 * wide),
        *transformer(hidden, inner, depth, vectors=4 * hidden, fused_qkv=True),
        *merger(wide, config.size("out_hidden_size"), copies=1 + taps),
    )


def glm4_vision(config: Config, _: ModelParts) -> Weights:
    """GLM-4.1V's tower: a gated MLP as wide as the text model, a convolution that merges patches, a gated merger."""
    hidden, out, inner = config.hidden_size, config.size("out_hidden_size"), config.size("intermediate_size")
    merge = config.size("spatial_merge_size", default=2) ** 2
    return (
        *whole(
            embeddings=(patches(config) + frames(config) * pixels(config) + 1) * hidden,
            norms=2 * hidden,
            downsample=(hidden * merge + 1) * out,
            projector=(out + 2) * out,
        ),
        *transformer(
            hidden, out, config.size("depth"), vectors=2 * hidden, fused_qkv=True, gated=True,
            attention_bias=config.flag("attention_bias", default=False), mlp_bias=False,
        ),
        *matrix("merger.gate", inner, out, Shard.COLUMN, bias=False),
        *matrix("merger.up", inner, out, Shard.COLUMN, bias=False),
        *matrix("merger.down", out, inner, Shard.ROW, bias=False),
    )  # fmt: skip


def moonvit_vision(config: Config, parts: ModelParts) -> Weights:
    """MoonViT and its projector: of Kimi-K2.5, and of Kimi K3, without biases and with the second kind of merger."""
    bias, out = config.architecture.startswith("KimiK25"), parts.hidden_size
    if not bias and config.text("mm_projector_type", default="patchmergerv2") != "patchmergerv2":
        raise config.refuse("mm_projector_type", "'patchmergerv2'")
    hidden, parts_of_norm = config.size("vt_hidden_size", "hidden_size"), 2 if bias else 1
    patch = pixels(config) + (1 if bias else 0)
    positions = config.size("init_pos_emb_height") * config.size("init_pos_emb_width")
    if bias:
        projector = whole(projector_norm=2 * hidden) + merger(prod(config.sizes("merge_kernel_size")) * hidden, out)
    else:
        wide = 4 * hidden
        projector = whole(projector=(wide + out) * wide + out)
    inner = config.size("vt_intermediate_size", "intermediate_size")
    count = config.size("vt_num_hidden_layers", "num_hidden_layers")
    return (
        *whole(embeddings=(patch + positions) * hidden, norm=parts_of_norm * hidden),
        *transformer(
            hidden, inner, count, vectors=2 * parts_of_norm * hidden, fused_qkv=True, attention_bias=bias,
            mlp_bias=bias, heads_size=0 if bias else config.size("qkv_hidden_size"),
        ),
        *projector,
    )  # fmt: skip


def step_vision(_: Config, parts: ModelParts) -> Weights:
    """Step-3.7-Flash, the published tower whatever the config says: a ViT with layer scales, two strided convolutions
    and one projection."""
    hidden, depth, size, patch, positions = 1536, 47, 8960, 14, 2704
    return (
        *whole(
            embeddings=(3 * patch**2 + positions) * hidden,
            norm=2 * hidden,
            downsamplers=2 * hidden * (9 * hidden + 1) + 4 * hidden * (18 * hidden + 1),
            projector=4 * hidden * parts.hidden_size,
        ),
        *transformer(hidden, size, depth, vectors=6 * hidden, fused_qkv=True),
    )


def minimax_m3_vision(config: Config, parts: ModelParts) -> Weights:
    """A CLIP-like tower with rotary positions; a projector, then one that merges four patches."""
    hidden, text, merge = config.hidden_size, parts.hidden_size, config.outer.nested("img_token_compression_config")
    project = config.outer.size("projector_hidden_size", default=text)
    merged = project * merge.size("spatial_merge_size", default=2) ** 2
    return (
        *whole(
            embeddings=3 * frames(merge) * config.size("patch_size") ** 2 * hidden,
            norm=2 * hidden,
            projector=project * (hidden + 1) + text * (project + 1),
            merger=project * (merged + 1) + text * (project + 1),
        ),
        *transformer(hidden, config.size("intermediate_size"), config.num_layers, vectors=4 * hidden),
    )


def mistral3_text(config: Config) -> ModelParts:
    """Mistral Small 3.1 to 4, Ministral 3, Mistral Medium 3.5: Mistral or DeepSeek-V3."""
    mistral4 = config.text("model_type", default="") == "mistral4"
    return deepseek(config) if mistral4 else BUILDERS["MistralForCausalLM"](config)


def glm4v_text(config: Config) -> ModelParts:
    config = config.with_defaults({"attention_bias": True})
    return BUILDERS["Glm4MoeForCausalLM" if "Moe" in config.architecture else "Glm4ForCausalLM"](config)


def kimi_k25_text(config: Config) -> ModelParts:
    return replace(deepseek(config), requires_remote_code=True)


@family("Llama4ForCausalLM")
def llama4_text(config: Config) -> ModelParts:
    """Llama 4: three of four layers see only their chunk of 8192 tokens; a shared expert in each MoE layer."""
    count, hidden, full = config.num_layers, config.hidden_size, blocks.read_attention(config)
    chunked = config.sizes("no_rope_layers") or [(i + 1) % 4 for i in range(count)]
    if len(chunked) != count:
        raise config.refuse("no_rope_layers", f"empty or a list of {count}")
    step, stem = config.size("interleave_moe_layer_step", default=1), "feed_forward."
    routed = set(config.sizes("moe_layers")) or set(range(step - 1, count, step))
    part = replace(full, chunk=config.size("attention_chunk_size", default=8192))
    moe = blocks.read_moe(config, size="intermediate_size", shared=1)
    sparse = (
        *blocks.moe_mlp(hidden, moe, prefix=stem, router="router", experts="experts.", names=blocks.FUSED_GATE_UP),
        *blocks.shared_expert(hidden, moe.intermediate_size, prefix=f"{stem}shared_expert."),
    )
    kinds = [(part if chunked[i] else full, i in routed) for i in range(count)]
    mixing = partial(blocks.attention_weights, hidden_size=hidden, bias=config.flag("attention_bias", default=False))
    return blocks.mixed_decoder(config, kinds, mixing, moe, sparse, dense="intermediate_size_mlp", prefix=stem)


def mllama_text(config: Config) -> ModelParts:
    """Llama 3.2 Vision: Llama 3.1 with gated cross-attention layers among its layers; eight rows more to embed."""
    hidden, attention = config.hidden_size, blocks.read_attention(config)
    crossed = set(config.sizes("cross_attention_layers"))

    def make(cross: bool) -> Layer:
        rest = blocks.mlp(hidden, config.size("intermediate_size")) + blocks.norms(hidden, *blocks.PRE_NORMS)
        if not cross:
            return Layer(blocks.attention_weights(attention, hidden) + rest, attention)
        weights = (
            *blocks.attention_weights(attention, hidden, prefix="cross_attn.", qk_norm="head"),
            *blocks.vector("cross_attn_attn_gate", 1, Component.ATTENTION),
            *blocks.vector("cross_attn_mlp_gate", 1, Component.MLP),
        )
        return Layer(weights + rest, replace(attention, cross=True))

    parts = blocks.decoder(config, blocks.layers_by_kind([i in crossed for i in range(config.num_layers)], make))
    embedding, *others = parts.outer
    return replace(parts, outer=(replace(embedding, shape=(parts.vocab_size + 8, hidden)), *others))


#: A text model, its tower, the prefix of the text model's weights, and what a config without a tower means.
for _text, _tower, _prefix, _absent, *_architectures in (
    (BUILDERS["Qwen2ForCausalLM"], qwen2_vision, "", "refused", "Qwen2VLForConditionalGeneration",
     "Qwen2_5_VLForConditionalGeneration"),
    (BUILDERS["Qwen3ForCausalLM"], qwen3_vision, MODEL, "refused", "Qwen3VLForConditionalGeneration"),
    (BUILDERS["Qwen3MoeForCausalLM"], qwen3_vision, MODEL, "refused", "Qwen3VLMoeForConditionalGeneration"),
    (BUILDERS["Gemma3ForCausalLM"], siglip_vision, LANGUAGE, "refused", "Gemma3ForConditionalGeneration"),  # 4B on
    (gemma4, gemma4_vision, MODEL, "refused", "Gemma4ForConditionalGeneration"),
    (llama4_text, llama4_vision, LANGUAGE, "refused", "Llama4ForConditionalGeneration"),
    (mllama_text, mllama_vision, LANGUAGE, "refused", "MllamaForConditionalGeneration"),
    (mistral3_text, pixtral_vision, LANGUAGE, "default", "Mistral3ForConditionalGeneration"),
    (glm4v_text, glm4_vision, MODEL, "refused", "Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration"),
    (step3p7_text, step_vision, "model.", "default", "Step3p7FlashForCausalLM", "Step3p7ForConditionalGeneration"),
    (kimi_k25_text, moonvit_vision, LANGUAGE, "refused", "KimiK25ForConditionalGeneration"),
    # Qwen3.5 and 3.6
    (qwen3_5_text, qwen3_vision, MODEL, "no tower", "Qwen3_5ForConditionalGeneration",
     "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
    (kimi_linear_text, moonvit_vision, LANGUAGE, "no tower", "KimiLinearForCausalLM", "KimiK3ForConditionalGeneration"),
    (minimax_m3_text, minimax_m3_vision, LANGUAGE, "no tower", "MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM",
     "MiniMaxM3SparseForConditionalGeneration"),
):  # fmt: skip
    family(*_architectures)(partial(with_tower, text=_text, tower=_tower, prefix=_prefix, absent=_absent))
