"""Text models with vision towers and projectors, which memory holds whether images come or not.
Every weight of a tower is of Component.VISION and not ``linear``: text tokens do not pass it, and it is not quantised.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from planner.model.architecture import Component, Layer, ModelParts, Shard, Weight
from planner.model.blocks import (
    FUSED_GATE_UP,
    PRE_NORMS,
    attention_weights,
    decoder,
    layers_by_kind,
    mixed_decoder,
    mlp,
    moe_mlp,
    norms,
    read_attention,
    read_moe,
    shared_expert,
    vector,
)
from planner.model.config import Builder, Config, family
from planner.model.families.dense import gemma3, gemma4, glm, llama, qwen2, qwen3
from planner.model.families.hybrid import kimi_linear_text, qwen3_5_text
from planner.model.families.moe import deepseek, glm4_moe, minimax_m3_text, qwen3_moe, step3p7_text

VISION = Component.VISION


def with_vision(parts: ModelParts, vision: tuple[Weight, ...], *, text: str) -> ModelParts:
    """The text model ``parts`` under the checkpoint's prefix ``text``, beside its vision weights."""

    def renamed(name: str) -> str:
        if text.startswith("model.") and name.startswith("model."):
            return text + name.removeprefix("model.")
        return name if text.startswith("model.") else text + name

    outer = tuple(replace(weight, name=renamed(weight.name)) for weight in parts.outer)
    mtp = tuple(replace(weight, name=renamed(weight.name)) for weight in parts.mtp)
    return replace(parts, vision=vision, outer=outer, mtp=mtp, layer_prefix=renamed(parts.layer_prefix))


def with_tower(
    config: Config, text: Builder, tower: Callable[[Config, ModelParts], tuple[Weight, ...]], *, prefix: str,
    optional: bool = False,
) -> ModelParts:  # fmt: skip
    """The model of ``text_config`` beside the tower of ``vision_config``, which may be missing where ``optional``."""
    parts = text(config.nested("text_config"))
    if optional and not config.has("vision_config"):
        return parts
    vision = config.nested("vision_config") if optional else config.section("vision_config")
    return with_vision(parts, tower(vision, parts), text=prefix)


def tensor(name: str, *shape: int, copies: int = 1, shard: Shard = Shard.NONE) -> Weight:
    return Weight(name, VISION, shape, copies, shard)


def matrix(
    name: str, out_features: int, in_features: int, shard: Shard = Shard.NONE, *, bias: bool = True, copies: int = 1
) -> tuple[Weight, ...]:
    weight = tensor(name, out_features, in_features, copies=copies, shard=shard)
    bias_shard = Shard.COLUMN if shard is Shard.COLUMN else Shard.NONE
    return (weight, tensor(f"{name}.bias", out_features, copies=copies, shard=bias_shard)) if bias else (weight,)


def norm(name: str, size: int, *, bias: bool = True, copies: int = 1) -> tuple[Weight, ...]:
    weight = tensor(name, size, copies=copies)
    return (weight, tensor(f"{name}.bias", size, copies=copies)) if bias else (weight,)


@dataclass(frozen=True, slots=True)
class BlockNames:
    """Names of the parts of a block; one name in ``qkv`` is a fused matrix, two in ``up`` are gated."""

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    out: str = "self_attn.o_proj"
    up: tuple[str, ...] = ("mlp.fc1",)
    down: str = "mlp.fc2"
    norms: tuple[str, ...] = PRE_NORMS


LLAMA_NAMES = BlockNames()
SIGLIP_NAMES = BlockNames(out="self_attn.out_proj", norms=("layer_norm1", "layer_norm2"))
GATED_NAMES = BlockNames(up=("mlp.gate_proj", "mlp.up_proj"), down="mlp.down_proj")
QWEN_NAMES = BlockNames(("attn.qkv",), "attn.proj", norms=("norm1", "norm2"))
QWEN_GATED_NAMES = replace(QWEN_NAMES, up=GATED_NAMES.up, down=GATED_NAMES.down)
PIXTRAL_NAMES = BlockNames(
    ("attention.q_proj", "attention.k_proj", "attention.v_proj"), "attention.o_proj",
    ("feed_forward.gate_proj", "feed_forward.up_proj"), "feed_forward.down_proj", ("attention_norm", "ffn_norm"),
)  # fmt: skip
MOONVIT_NAMES = BlockNames(("wqkv",), "wo", ("mlp.fc0",), "mlp.fc1", ("norm0", "norm1"))


def blocks(
    prefix: str, hidden: int, intermediate: int, copies: int, names: BlockNames = LLAMA_NAMES, *,
    attention_bias: bool = True, mlp_bias: bool = True, norm_bias: bool = True, heads_size: int = 0,
) -> tuple[Weight, ...]:  # fmt: skip
    """``copies`` transformer blocks; ``heads_size`` is the size of all heads together where it is not ``hidden``."""
    column, row = Shard.COLUMN, Shard.ROW
    heads_size = heads_size or hidden
    weights: tuple[Weight, ...] = ()
    for name in names.qkv:
        rows = 3 * heads_size // len(names.qkv)
        weights += matrix(prefix + name, rows, hidden, column, bias=attention_bias, copies=copies)
    weights += matrix(prefix + names.out, hidden, heads_size, row, bias=attention_bias, copies=copies)
    for name in names.up:
        weights += matrix(prefix + name, intermediate, hidden, column, bias=mlp_bias, copies=copies)
    weights += matrix(prefix + names.down, hidden, intermediate, row, bias=mlp_bias, copies=copies)
    for name in names.norms:
        weights += norm(prefix + name, hidden, bias=norm_bias, copies=copies)
    return weights


def patches(config: Config) -> int:
    return (config.size("image_size") // config.size("patch_size")) ** 2


def patch_embedding(name: str, config: Config, hidden: int, *, depth: int = 0) -> Weight:
    """The convolution that turns a patch, of ``depth`` frames for video towers, into a vector."""
    channels = config.size("num_channels", "in_channels", "in_chans", default=3)
    side = config.size("patch_size")
    return tensor(name, hidden, channels, *((depth,) if depth else ()), side, side)


def frames(config: Config) -> int:
    return config.size("temporal_patch_size", default=2)


def siglip_vision(config: Config, parts: ModelParts) -> tuple[Weight, ...]:
    """SigLIP and the projector of Gemma 3."""
    hidden, prefix = config.hidden_size, "vision_tower.vision_model."
    return (
        patch_embedding(f"{prefix}embeddings.patch_embedding", config, hidden),
        tensor(f"{prefix}embeddings.patch_embedding.bias", hidden),
        tensor(f"{prefix}embeddings.position_embedding", patches(config), hidden),
        *blocks(
            f"{prefix}encoder.layers.0.", hidden, config.size("intermediate_size"), config.num_layers,
            SIGLIP_NAMES,
        ),
        *norm(f"{prefix}post_layernorm", hidden),
        tensor("multi_modal_projector.mm_input_projection_weight", hidden, parts.hidden_size),
        tensor("multi_modal_projector.mm_soft_emb_norm", hidden),
    )  # fmt: skip


def gemma4_vision(config: Config, prefix: str) -> tuple[Weight, ...]:
    """Gemma 4's tower: a gated MLP, four norms, q and k normalised, positions for each axis."""
    hidden, count = config.hidden_size, config.num_layers
    layer = f"{prefix}encoder.layers.0."
    head_dim = config.size("head_dim", default=hidden // config.size("num_attention_heads"))
    names = replace(GATED_NAMES, norms=(*PRE_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm"))
    return (
        tensor(f"{prefix}patch_embedder.position_embedding_table", 2, config.size("position_embedding_size"), hidden),
        *matrix(f"{prefix}patch_embedder.input_proj", hidden, 3 * config.size("patch_size") ** 2, bias=False),
        *blocks(
            layer, hidden, config.size("intermediate_size"), count, names,
            attention_bias=config.flag("attention_bias", default=False), mlp_bias=False, norm_bias=False,
        ),
        *norm(f"{layer}self_attn.q_norm", head_dim, bias=False, copies=count),
        *norm(f"{layer}self_attn.k_norm", head_dim, bias=False, copies=count),
    )  # fmt: skip


def gemma4_audio(config: Config, prefix: str) -> tuple[Weight, ...]:
    """The audio tower of Gemma 4 E2B and E4B, a conformer: ``Gemma4AudioModel`` of transformers 5."""
    hidden, count = config.hidden_size, config.num_layers
    first, second = config.sizes("subsampling_conv_channels", count=2) or (128, 32)
    layer, conv = f"{prefix}layers.0.", f"{prefix}subsample_conv_projection."
    shapes = {
        "feed_forward1.ffw_layer_1": (4, 1), "feed_forward1.ffw_layer_2": (1, 4),
        "feed_forward2.ffw_layer_1": (4, 1), "feed_forward2.ffw_layer_2": (1, 4),
        "self_attn.q_proj": (1, 1), "self_attn.k_proj": (1, 1), "self_attn.v_proj": (1, 1), "self_attn.post": (1, 1),
        "self_attn.relative_k_proj": (1, 1), "lconv1d.linear_start": (2, 1), "lconv1d.linear_end": (1, 1),
    }  # fmt: skip
    norm_names = (
        "feed_forward1.pre_layer_norm", "feed_forward1.post_layer_norm",
        "feed_forward2.pre_layer_norm", "feed_forward2.post_layer_norm",
        "lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out",
    )  # fmt: skip
    weights: tuple[Weight, ...] = (
        tensor(f"{conv}layer0.conv", first, 1, 3, 3),
        *norm(f"{conv}layer0.norm", first, bias=False),
        tensor(f"{conv}layer1.conv", second, first, 3, 3),
        *norm(f"{conv}layer1.norm", second, bias=False),
        *matrix(f"{conv}input_proj_linear", hidden, first // 4 * second, bias=False),
        tensor(f"{layer}lconv1d.depthwise_conv1d", hidden, 1, config.size("conv_kernel_size", default=5), copies=count),
        tensor(f"{layer}self_attn.per_dim_scale", hidden // config.size("num_attention_heads"), copies=count),
        *matrix(f"{prefix}output_proj", config.size("output_proj_dims", default=1536), hidden),
    )
    for name, (rows, columns) in shapes.items():
        weights += matrix(layer + name, rows * hidden, columns * hidden, bias=False, copies=count)
    for name in norm_names:
        weights += norm(layer + name, hidden, bias=False, copies=count)
    return weights


def pixtral_vision(config: Config, prefix: str) -> tuple[Weight, ...]:
    """Pixtral's tower: rotary positions, RMSNorm, a gated MLP, no biases."""
    hidden = config.hidden_size
    return (
        patch_embedding(f"{prefix}patch_conv", config, hidden),
        *norm(f"{prefix}ln_pre", hidden, bias=False),
        *blocks(
            f"{prefix}transformer.layers.0.", hidden, config.size("intermediate_size"), config.num_layers,
            PIXTRAL_NAMES, attention_bias=False, mlp_bias=False, norm_bias=False,
        ),
    )  # fmt: skip


def llama4_vision(config: Config, parts: ModelParts) -> tuple[Weight, ...]:
    """Llama 4's tower: a class token, learned positions, pixels shuffled into an adapter; and its projector."""
    output = config.size("vision_output_dim")
    hidden, inner, prefix = config.hidden_size, config.size("intermediate_size"), "vision_model."
    channels, adapter = config.size("num_channels", default=3), config.size("projector_input_dim")
    return (
        tensor(f"{prefix}class_embedding", hidden),
        tensor(f"{prefix}positional_embedding_vlm", patches(config) + 1, hidden),
        *matrix(f"{prefix}patch_embedding.linear", hidden, channels * config.size("patch_size") ** 2, bias=False),
        *norm(f"{prefix}layernorm_pre", hidden),
        *norm(f"{prefix}layernorm_post", hidden),
        *blocks(f"{prefix}model.layers.0.", hidden, inner, config.num_layers),
        *matrix(f"{prefix}vision_adapter.mlp.fc1", adapter, inner, Shard.COLUMN, bias=False),
        *matrix(f"{prefix}vision_adapter.mlp.fc2", config.size("projector_output_dim"), adapter, Shard.ROW, bias=False),
        *matrix("multi_modal_projector.linear_1", parts.hidden_size, output, bias=False),
    )


def mllama_vision(config: Config, prefix: str) -> tuple[Weight, ...]:
    """Llama 3.2's tower: positions for each tile and each aspect ratio, then global layers with gates."""
    hidden, inner = config.hidden_size, config.size("intermediate_size")
    rows, tiles = patches(config) + 1, config.size("max_num_tiles")
    shapes = config.get("supported_aspect_ratios")
    if not isinstance(shapes, list):
        raise config.refuse("supported_aspect_ratios", "a list")
    ratios = len(shapes) + 1
    embeddings = (
        tensor(f"{prefix}class_embedding", hidden),
        patch_embedding(f"{prefix}patch_embedding", config, hidden),
        tensor(f"{prefix}gated_positional_embedding.gate", 1),
        tensor(f"{prefix}gated_positional_embedding.embedding", rows, hidden),
        tensor(f"{prefix}gated_positional_embedding.tile_embedding", ratios, tiles * rows * hidden),
        *(
            weight
            for name in ("pre_tile_positional_embedding", "post_tile_positional_embedding")
            for weight in (
                tensor(f"{prefix}{name}.gate", 1),
                tensor(f"{prefix}{name}.embedding", ratios, tiles * hidden),
            )
        ),
        *norm(f"{prefix}layernorm_pre", hidden),
        *norm(f"{prefix}layernorm_post", hidden),
    )
    count = config.size("num_global_layers", default=0)
    return (
        *embeddings,
        *blocks(f"{prefix}transformer.layers.0.", hidden, inner, config.num_layers, attention_bias=False),
        *blocks(f"{prefix}global_transformer.layers.0.", hidden, inner, count, attention_bias=False),
        tensor(f"{prefix}global_transformer.layers.0.gate_attn", 1, copies=count),
        tensor(f"{prefix}global_transformer.layers.0.gate_ffn", 1, copies=count),
    )


def qwen2_vision(config: Config, _: ModelParts) -> tuple[Weight, ...]:
    """Tower and merger of Qwen2-VL (LayerNorm, plain MLP) and of Qwen2.5-VL (RMSNorm, gated MLP)."""
    prefix, merge = "visual.", config.size("spatial_merge_size", default=2) ** 2
    if first := config.architecture.startswith("Qwen2VL"):
        hidden, out, names = config.size("embed_dim"), config.hidden_size, QWEN_NAMES
        inner = config.size("mlp_ratio", default=4) * hidden
    else:
        hidden, out, names = config.hidden_size, config.size("out_hidden_size"), QWEN_GATED_NAMES
        inner = config.size("intermediate_size")
    return (
        patch_embedding(f"{prefix}patch_embed.proj", config, hidden, depth=frames(config)),
        *blocks(f"{prefix}blocks.0.", hidden, inner, config.size("depth"), names, norm_bias=first),
        *norm(f"{prefix}merger.ln_q", hidden, bias=first),
        *merger_mlp(f"{prefix}merger.mlp.", merge * hidden, out, ("0", "2")),
    )


def qwen3_vision(config: Config, _: ModelParts) -> tuple[Weight, ...]:
    """Qwen3-VL's tower: learned positions, and one merger more per layer tapped by DeepStack (Qwen3.5: none)."""
    prefix = "model.visual."
    hidden, merge = config.hidden_size, config.size("spatial_merge_size", default=2) ** 2
    wide, out, names = merge * hidden, config.size("out_hidden_size"), ("linear_fc1", "linear_fc2")
    taps = len(config.sizes("deepstack_visual_indexes"))
    patch = f"{prefix}patch_embed.proj"
    mergers = (
        *norm(f"{prefix}merger.norm", hidden),
        *merger_mlp(f"{prefix}merger.", wide, out, names),
        *norm(f"{prefix}deepstack_merger_list.0.norm", wide, copies=taps),
        *merger_mlp(f"{prefix}deepstack_merger_list.0.", wide, out, names, copies=taps),
    )
    return (
        patch_embedding(patch, config, hidden, depth=frames(config)),
        tensor(f"{patch}.bias", hidden),
        tensor(f"{prefix}pos_embed", config.size("num_position_embeddings"), hidden),
        *blocks(
            f"{prefix}blocks.0.", hidden, config.size("intermediate_size"), config.size("depth"),
            replace(QWEN_NAMES, up=("mlp.linear_fc1",), down="mlp.linear_fc2"),
        ),
        *mergers,
    )  # fmt: skip


def glm4_vision(config: Config) -> tuple[Weight, ...]:
    """GLM-4.1V's tower: a gated MLP as wide as the text model, a convolution that merges patches, a gated merger."""
    hidden, out, inner = config.hidden_size, config.size("out_hidden_size"), config.size("intermediate_size")
    merge, prefix = config.size("spatial_merge_size", default=2), "model.visual."
    patch, merger = f"{prefix}patch_embed.proj", f"{prefix}merger."
    return (
        tensor(f"{prefix}embeddings.position_embedding", patches(config), hidden),
        patch_embedding(patch, config, hidden, depth=frames(config)),
        tensor(f"{patch}.bias", hidden),
        *norm(f"{prefix}post_conv_layernorm", hidden, bias=False),
        *blocks(
            f"{prefix}blocks.0.", hidden, out, config.size("depth"), QWEN_GATED_NAMES,
            attention_bias=config.flag("attention_bias", default=False), mlp_bias=False, norm_bias=False,
        ),
        *norm(f"{prefix}post_layernorm", hidden, bias=False),
        tensor(f"{prefix}downsample", out, hidden, merge, merge),
        tensor(f"{prefix}downsample.bias", out),
        *matrix(f"{merger}proj", out, out, bias=False),
        *norm(f"{merger}post_projection_norm", out),
        *matrix(f"{merger}gate_proj", inner, out, Shard.COLUMN, bias=False),
        *matrix(f"{merger}up_proj", inner, out, Shard.COLUMN, bias=False),
        *matrix(f"{merger}down_proj", out, inner, Shard.ROW, bias=False),
    )  # fmt: skip


def merger_mlp(prefix: str, wide: int, out: int, names: tuple[str, str], *, copies: int = 1) -> tuple[Weight, ...]:
    return (
        *matrix(prefix + names[0], wide, wide, Shard.COLUMN, copies=copies),
        *matrix(prefix + names[1], out, wide, Shard.ROW, copies=copies),
    )


def moonvit_vision(config: Config, parts: ModelParts) -> tuple[Weight, ...]:
    """MoonViT and its projector: of Kimi-K2.5, and of Kimi K3, without biases and with the second kind of merger."""
    prefix, plain = "vision_tower.", not config.architecture.startswith("KimiK25")
    hidden, out = config.size("vt_hidden_size", "hidden_size"), parts.hidden_size
    positions = config.size("init_pos_emb_height"), config.size("init_pos_emb_width")
    wide = 4 * hidden if plain else prod(config.sizes("merge_kernel_size")) * hidden
    if plain and config.text("mm_projector_type", default="patchmergerv2") != "patchmergerv2":
        raise config.refuse("mm_projector_type", "'patchmergerv2'")
    projector = (
        *matrix("mm_projector.linear_1", wide, wide, bias=False),
        *matrix("mm_projector.linear_2", out, wide, bias=False),
        *norm("mm_projector.post_norm", out, bias=False),
    )
    if not plain:
        projector = norm("mm_projector.pre_norm", hidden) + merger_mlp("mm_projector.proj.", wide, out, ("0", "2"))
    return (
        patch_embedding(f"{prefix}patch_embed.proj", config, hidden),
        *(() if plain else (tensor(f"{prefix}patch_embed.proj.bias", hidden),)),
        tensor(f"{prefix}patch_embed.pos_emb", *positions, hidden),
        *blocks(
            f"{prefix}encoder.blocks.0.", hidden, config.size("vt_intermediate_size", "intermediate_size"),
            config.size("vt_num_hidden_layers", "num_hidden_layers"), MOONVIT_NAMES, attention_bias=not plain,
            mlp_bias=not plain, norm_bias=not plain, heads_size=config.size("qkv_hidden_size") if plain else 0,
        ),
        *norm(f"{prefix}encoder.final_layernorm", hidden, bias=not plain),
        *projector,
    )  # fmt: skip


def step_vision(text_hidden: int) -> tuple[Weight, ...]:
    """The published tower: a ViT with layer scales, two strided convolutions and one projection."""
    hidden, depth, size, patch, positions = 1536, 47, 8960, 14, 2704
    tower, block = "vision_model.", "vision_model.transformer.resblocks.0."
    names = BlockNames(("attn.in_proj",), "attn.out_proj", ("mlp.c_fc",), "mlp.c_proj", ("ln_1", "ln_2"))
    return (
        tensor(f"{tower}conv1", hidden, 3, patch, patch),
        tensor(f"{tower}positional_embedding", positions, hidden),
        *norm(f"{tower}ln_pre", hidden),
        *blocks(block, hidden, size, depth, names),
        *norm(f"{block}ls_1", hidden, bias=False, copies=depth),
        *norm(f"{block}ls_2", hidden, bias=False, copies=depth),
        *matrix(f"{tower}vit_downsampler1", 2 * hidden, 9 * hidden),
        *matrix(f"{tower}vit_downsampler2", 4 * hidden, 18 * hidden),
        *matrix("vit_large_projector", text_hidden, 4 * hidden, bias=False),
    )


def minimax_m3_vision(config: Config, parts: ModelParts) -> tuple[Weight, ...]:
    """A CLIP-like tower with rotary positions; a projector, then one that merges four patches."""
    hidden, depth, size = config.hidden_size, config.num_layers, config.size("intermediate_size")
    outer, text_hidden = config.outer, parts.hidden_size
    patch, project = config.size("patch_size"), outer.size("projector_hidden_size", default=text_hidden)
    merge = outer.nested("img_token_compression_config")
    merged = project * merge.size("spatial_merge_size", default=2) ** 2
    frames = merge.size("temporal_patch_size", default=2)
    tower, block = "vision_tower.", "vision_tower.encoder.layers.0."
    return (
        tensor(f"{tower}embeddings.patch_embedding", hidden, 3, frames, patch, patch),
        *norm(f"{tower}pre_layrnorm", hidden),
        *blocks(block, hidden, size, depth, SIGLIP_NAMES),
        *matrix("multi_modal_projector.linear_1", project, hidden),
        *matrix("multi_modal_projector.linear_2", text_hidden, project),
        *matrix("patch_merge_mlp.linear_1", project, merged),
        *matrix("patch_merge_mlp.linear_2", text_hidden, project),
    )


#: The tower that the class builds where a config leaves keys, or all of it, out.
MISTRAL3_VISION = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "patch_size": 14
}  # fmt: skip


@family("Mistral3ForConditionalGeneration")
def mistral3(config: Config) -> ModelParts:
    """Mistral Small 3.1 to 4, Ministral 3, Mistral Medium 3.5: Mistral or DeepSeek-V3, Pixtral's tower, a merger."""
    inner = config.nested("text_config")
    parts = deepseek(inner) if inner.text("model_type", default="") == "mistral4" else llama(inner)
    given = config.section("vision_config") if config.has("vision_config") else Config({}, model_id=config.model_id)
    vision = given.with_defaults(MISTRAL3_VISION)
    width, hidden = vision.hidden_size, parts.hidden_size
    merge = config.size("spatial_merge_size", default=2) ** 2
    bias = config.flag("multimodal_projector_bias", default=False)
    stem = "multi_modal_projector."
    projector = (
        *norm(f"{stem}norm", width, bias=False),
        *matrix(f"{stem}patch_merger.merging_layer", width, merge * width, bias=False),
        *matrix(f"{stem}linear_1", hidden, width, bias=bias),
        *matrix(f"{stem}linear_2", hidden, hidden, bias=bias),
    )
    return with_vision(parts, (*pixtral_vision(vision, "vision_tower."), *projector), text="language_model.")


@family("Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration")
def glm4v(config: Config) -> ModelParts:
    text = config.nested("text_config").with_defaults({"attention_bias": True})
    parts = glm4_moe(text) if "Moe" in config.architecture else glm(text)
    return with_vision(parts, glm4_vision(config.section("vision_config")), text="model.language_model.")


@family("Step3p7FlashForCausalLM", "Step3p7ForConditionalGeneration")
def step3p7(config: Config) -> ModelParts:
    """Step-3.7-Flash: the published tower, whatever the config says."""
    text = config.nested("text_config")
    return with_vision(step3p7_text(text), step_vision(text.hidden_size), text="model.")


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


@family("Llama4ForCausalLM")
def llama4_text(config: Config) -> ModelParts:
    """Llama 4: three of four layers see only their chunk of 8192 tokens; a shared expert in each MoE layer."""
    count, hidden, full = config.num_layers, config.hidden_size, read_attention(config)
    chunked = config.sizes("no_rope_layers") or [(i + 1) % 4 for i in range(count)]
    if len(chunked) != count:
        raise config.refuse("no_rope_layers", f"empty or a list of {count}")
    step, stem = config.size("interleave_moe_layer_step", default=1), "feed_forward."
    routed = set(config.sizes("moe_layers")) or set(range(step - 1, count, step))
    part = replace(full, chunk=config.size("attention_chunk_size", default=8192))
    moe = read_moe(config, size="intermediate_size", shared=1)
    sparse = (
        *moe_mlp(hidden, moe, prefix=stem, router="router", experts="experts.", names=FUSED_GATE_UP),
        *shared_expert(hidden, moe.intermediate_size, prefix=f"{stem}shared_expert."),
    )
    kinds = [(part if chunked[i] else full, i in routed) for i in range(count)]
    mixing = partial(attention_weights, hidden_size=hidden, bias=config.flag("attention_bias", default=False))
    return mixed_decoder(config, kinds, mixing, moe, sparse, dense="intermediate_size_mlp", prefix=stem)


#: A text model, its tower, and the prefix of the text model's weights.
for _text, _tower, _prefix, *_architectures in (
    (qwen2, qwen2_vision, "", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
    (qwen3, qwen3_vision, "model.language_model.", "Qwen3VLForConditionalGeneration"),
    (qwen3_moe, qwen3_vision, "model.language_model.", "Qwen3VLMoeForConditionalGeneration"),
    (gemma3, siglip_vision, "language_model.", "Gemma3ForConditionalGeneration"),  # from 4B on
    (llama4_text, llama4_vision, "language_model.", "Llama4ForConditionalGeneration"),
):
    family(*_architectures)(partial(with_tower, text=_text, tower=_tower, prefix=_prefix))
# Qwen3.5 and 3.6, Kimi Linear and K3, MiniMax-M3: with a tower where the config has one
for _text, _tower, _prefix, *_architectures in (
    (qwen3_5_text, qwen3_vision, "model.language_model.", "Qwen3_5ForConditionalGeneration",
     "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
    (kimi_linear_text, moonvit_vision, "language_model.", "KimiLinearForCausalLM", "KimiK3ForConditionalGeneration"),
    (minimax_m3_text, minimax_m3_vision, "language_model.", "MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM",
     "MiniMaxM3SparseForConditionalGeneration"),
):  # fmt: skip
    family(*_architectures)(partial(with_tower, text=_text, tower=_tower, prefix=_prefix, optional=True))


@family("KimiK25ForConditionalGeneration")
def kimi_k25(config: Config) -> ModelParts:
    return replace(with_tower(config, deepseek, moonvit_vision, prefix="language_model."), requires_remote_code=True)


@family("MllamaForConditionalGeneration")
def mllama(config: Config) -> ModelParts:
    """Llama 3.2 Vision: Llama 3.1 with gated cross-attention layers among its layers; eight rows more to embed."""
    text, vision = config.nested("text_config"), config.section("vision_config")
    hidden, attention, crossed = text.hidden_size, read_attention(text), set(text.sizes("cross_attention_layers"))

    def make(cross: bool) -> Layer:
        rest = mlp(hidden, text.size("intermediate_size")) + norms(hidden, *PRE_NORMS)
        if not cross:
            return Layer(attention_weights(attention, hidden) + rest, attention)
        weights = (
            *attention_weights(attention, hidden, prefix="cross_attn.", qk_norm="head"),
            *vector("cross_attn_attn_gate", 1, Component.ATTENTION),
            *vector("cross_attn_mlp_gate", 1, Component.MLP),
        )
        return Layer(weights + rest, replace(attention, cross=True))

    parts = decoder(text, layers_by_kind([i in crossed for i in range(text.num_layers)], make))
    embedding, *others = parts.outer
    embedding = replace(embedding, shape=(parts.vocab_size + 8, hidden))
    projector = matrix("multi_modal_projector", hidden, vision.size("vision_output_dim"))
    tower = (*mllama_vision(vision, "vision_model."), *projector)
    return with_vision(replace(parts, outer=(embedding, *others)), tower, text="language_model.")
