"""Vision towers and projectors: memory holds them whether images come or not.

Every weight is of Component.VISION and is not ``linear``: text tokens do not pass it, and quantisation leaves it as it
is. Tensor parallelism splits the blocks as it splits a decoder's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from planner.model.architecture import Component, Shard, Weight
from planner.model.blocks import PRE_NORMS
from planner.model.config import Config, ModelParts

VISION = Component.VISION


def with_vision(parts: ModelParts, vision: tuple[Weight, ...], *, text: str) -> ModelParts:
    """The text model ``parts`` under the checkpoint's prefix ``text``, beside its vision weights.

    ``model.`` of the text model becomes ``text`` where that ends so (``model.language_model.``), else ``text``
    goes before it (``language_model.model.``).
    """

    def renamed(name: str) -> str:
        if text.startswith("model.") and name.startswith("model."):
            return text + name.removeprefix("model.")
        return name if text.startswith("model.") else text + name

    outer = tuple(replace(weight, name=renamed(weight.name)) for weight in parts.outer)
    mtp = tuple(replace(weight, name=renamed(weight.name)) for weight in parts.mtp)
    return replace(parts, vision=vision, outer=outer, mtp=mtp, layer_prefix=renamed(parts.layer_prefix))


def tensor(name: str, *shape: int, copies: int = 1, shard: Shard = Shard.NONE) -> Weight:
    """A weight of the tower."""
    return Weight(name, VISION, shape, copies, shard)


def matrix(
    name: str, out_features: int, in_features: int, shard: Shard = Shard.NONE, *, bias: bool = True, copies: int = 1
) -> tuple[Weight, ...]:
    """A matrix and, usually, its bias."""
    weight = tensor(name, out_features, in_features, copies=copies, shard=shard)
    bias_shard = Shard.COLUMN if shard is Shard.COLUMN else Shard.NONE
    return (weight, tensor(f"{name}.bias", out_features, copies=copies, shard=bias_shard)) if bias else (weight,)


def norm(name: str, size: int, *, bias: bool = True, copies: int = 1) -> tuple[Weight, ...]:
    """A LayerNorm, or an RMSNorm where there is no bias."""
    weight = tensor(name, size, copies=copies)
    return (weight, tensor(f"{name}.bias", size, copies=copies)) if bias else (weight,)


@dataclass(frozen=True, slots=True)
class BlockNames:
    """What a checkpoint calls the parts of a block; one name in ``qkv`` is a fused matrix, two in ``up`` are gated."""

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
    ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "attention.o_proj",
    ("feed_forward.gate_proj", "feed_forward.up_proj"),
    "feed_forward.down_proj",
    ("attention_norm", "ffn_norm"),
)
MOONVIT_NAMES = BlockNames(("wqkv",), "wo", ("mlp.fc0",), "mlp.fc1", ("norm0", "norm1"))


def blocks(
    prefix: str,
    hidden: int,
    intermediate: int,
    copies: int,
    names: BlockNames = LLAMA_NAMES,
    *,
    attention_bias: bool = True,
    mlp_bias: bool = True,
    norm_bias: bool = True,
    heads_size: int = 0,
) -> tuple[Weight, ...]:
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
    """Patches of one image of the tower's own size."""
    return (config.size("image_size") // config.size("patch_size")) ** 2


def patch_embedding(name: str, config: Config, hidden: int, *, depth: int = 0) -> Weight:
    """The convolution that turns a patch, of ``depth`` frames for video towers, into a vector."""
    channels = config.size("num_channels", "in_channels", "in_chans", default=3)
    side = config.size("patch_size")
    return tensor(name, hidden, channels, *((depth,) if depth else ()), side, side)


def frames(config: Config) -> int:
    """Frames of a video that share one patch."""
    return config.size("temporal_patch_size", default=2)


def siglip_vision(config: Config, prefix: str) -> tuple[Weight, ...]:
    """SigLIP, as in Gemma 3."""
    hidden = config.hidden_size
    return (
        patch_embedding(f"{prefix}embeddings.patch_embedding", config, hidden),
        tensor(f"{prefix}embeddings.patch_embedding.bias", hidden),
        tensor(f"{prefix}embeddings.position_embedding", patches(config), hidden),
        *blocks(
            f"{prefix}encoder.layers.0.", hidden, config.size("intermediate_size"), config.num_layers,
            SIGLIP_NAMES,
        ),
        *norm(f"{prefix}post_layernorm", hidden),
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
    """The audio tower of Gemma 4 E2B and E4B: a conformer.

    A layer is an MLP, chunked attention, a light convolution, and an MLP again. Source: ``Gemma4AudioModel`` of
    transformers 5, ``models/gemma4/modular_gemma4.py``.
    """
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


def llama4_vision(config: Config, prefix: str) -> tuple[Weight, ...]:
    """Llama 4's tower: a class token, learned positions, pixels shuffled into an adapter."""
    hidden, inner = config.hidden_size, config.size("intermediate_size")
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


def qwen2_vision(config: Config, prefix: str) -> tuple[Weight, ...]:
    """Qwen2-VL's tower and merger: LayerNorm and a plain MLP. Here ``hidden_size`` is the text model's."""
    hidden, merge = config.size("embed_dim"), config.size("spatial_merge_size", default=2) ** 2
    inner = config.size("mlp_ratio", default=4) * hidden
    return (
        patch_embedding(f"{prefix}patch_embed.proj", config, hidden, depth=frames(config)),
        *blocks(
            f"{prefix}blocks.0.", hidden, inner, config.size("depth"), QWEN_NAMES,
        ),
        *norm(f"{prefix}merger.ln_q", hidden),
        *merger_mlp(f"{prefix}merger.mlp.", merge * hidden, config.hidden_size, ("0", "2")),
    )  # fmt: skip


def qwen2_5_vision(config: Config, prefix: str) -> tuple[Weight, ...]:
    """Qwen2.5-VL's tower and merger: RMSNorm and a gated MLP with biases."""
    hidden, merge = config.hidden_size, config.size("spatial_merge_size", default=2) ** 2
    return (
        patch_embedding(f"{prefix}patch_embed.proj", config, hidden, depth=frames(config)),
        *blocks(
            f"{prefix}blocks.0.", hidden, config.size("intermediate_size"), config.size("depth"), QWEN_GATED_NAMES,
            norm_bias=False,
        ),
        *norm(f"{prefix}merger.ln_q", hidden, bias=False),
        *merger_mlp(f"{prefix}merger.mlp.", merge * hidden, config.size("out_hidden_size"), ("0", "2")),
    )  # fmt: skip


def qwen3_vision(config: Config, prefix: str) -> tuple[Weight, ...]:
    """Qwen3-VL's tower: learned positions, and one merger more for each layer tapped by DeepStack.

    Qwen3.5 has the same tower without DeepStack.
    """
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


def glm4_vision(config: Config, prefix: str) -> tuple[Weight, ...]:
    """GLM-4.1V's tower: a gated MLP as wide as the text model, a convolution that merges patches, a gated merger."""
    hidden, out, inner = config.hidden_size, config.size("out_hidden_size"), config.size("intermediate_size")
    merge, patch, merger = config.size("spatial_merge_size", default=2), f"{prefix}patch_embed.proj", f"{prefix}merger."
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
    """Two matrices with biases from merged patches to the text model's hidden size."""
    return (
        *matrix(prefix + names[0], wide, wide, Shard.COLUMN, copies=copies),
        *matrix(prefix + names[1], out, wide, Shard.ROW, copies=copies),
    )


def moonvit_vision(config: Config, text_hidden: int) -> tuple[Weight, ...]:
    """MoonViT and its projector, as in Kimi-K2.5: interpolated positions, fused q, k, v."""
    prefix = "vision_tower."
    hidden = config.size("vt_hidden_size", "hidden_size")
    height, width = config.size("init_pos_emb_height"), config.size("init_pos_emb_width")
    wide = prod(config.sizes("merge_kernel_size")) * hidden
    return (
        patch_embedding(f"{prefix}patch_embed.proj", config, hidden),
        tensor(f"{prefix}patch_embed.proj.bias", hidden),
        tensor(f"{prefix}patch_embed.pos_emb", height, width, hidden),
        *blocks(
            f"{prefix}encoder.blocks.0.", hidden, config.size("vt_intermediate_size", "intermediate_size"),
            config.size("vt_num_hidden_layers", "num_hidden_layers"), MOONVIT_NAMES,
        ),
        *norm(f"{prefix}encoder.final_layernorm", hidden),
        *norm("mm_projector.pre_norm", hidden),
        *merger_mlp("mm_projector.proj.", wide, text_hidden, ("0", "2")),
    )  # fmt: skip
