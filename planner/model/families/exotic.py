"""Decoders that share little with others: DeepSeek-V4, Nemotron NAS, MiMo-V2-Flash, Step-3.7-Flash, MiniMax-M3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.model.architecture import Attention, Component, CompressedAttention, Layer, Shard, SparseIndexer, Weight
from planner.model.blocks import (
    PRE_NORMS,
    W1_W3_W2,
    OuterNames,
    QkNorm,
    attention_weights,
    linear,
    mlp,
    moe_mlp,
    norms,
    shared_expert,
    vector,
)
from planner.model.config import Config, ModelParts, family
from planner.model.reading import decoder, layers_by_kind, mtp_module, read_attention, read_moe, windows
from planner.model.vision import SIGLIP_NAMES, BlockNames, blocks, matrix, norm, tensor, with_vision

ATTENTION = Component.ATTENTION


# --- DeepSeek-V4 -------------------------------------------------------------------------------------------------


@family("DeepseekV4ForCausalLM")
def deepseek_v4(config: Config) -> ModelParts:
    """DeepSeek-V4: one shared KV row per token, compressed beyond a window, and hyper-connections around each block.

    Names are those of DeepSeek's own checkpoints (``layers.0.attn.wq_a``).
    """
    hidden, count = config.hidden_size, config.num_layers
    ratios = config.sizes("compress_ratios")
    if len(ratios) < count or not set(ratios) <= {0, 4, 128}:
        raise config.refuse("compress_ratios", f"0, 4 or 128 for each of {count} layers")
    mtp: tuple[Weight, ...] = ()
    for i, ratio in enumerate(ratios[count : count + config.size("num_nextn_predict_layers", default=0)]):
        mtp += _v4_mtp(config, ratio, f"mtp.{i}.")
    return decoder(
        config,
        layers_by_kind(ratios[:count], lambda ratio: _v4_layer(config, ratio)),
        OuterNames("embed", "norm", "head", "layers."),
        extra=_head_mixing(hidden, config.size("hc_mult", default=4)),
        mtp=mtp,
    )


def _v4_layer(config: Config, ratio: int) -> Layer:
    hidden, streams = config.hidden_size, config.size("hc_mult", default=4)
    moe = read_moe(config, shared=config.size("n_shared_experts"))
    shared = moe.num_shared_experts * moe.intermediate_size
    weights = (
        *_v4_attention(config, ratio),
        *moe_mlp(hidden, moe, prefix="ffn.", names=W1_W3_W2),
        *shared_expert(hidden, shared, prefix="ffn.shared_experts.", names=W1_W3_W2),
        *norms(hidden, "attn_norm", "ffn_norm"),
        *_stream_mixing("hc_attn", hidden, streams),
        *_stream_mixing("hc_ffn", hidden, streams),
    )
    indexer = None
    if ratio == 4:  # only the fine compression is picked from; the coarse one is read whole
        indexer = SparseIndexer(config.size("index_n_heads"), config.size("index_head_dim"), config.size("index_topk"))
    mixer = CompressedAttention(
        config.size("num_attention_heads"), config.size("head_dim"), config.size("sliding_window"), ratio, indexer
    )
    return Layer(weights, mixer, moe)


def _v4_attention(config: Config, ratio: int) -> tuple[Weight, ...]:
    hidden, heads, head_dim = config.hidden_size, config.size("num_attention_heads"), config.size("head_dim")
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
    if ratio:
        weights += _compressor("attn.compressor.", hidden, head_dim, ratio)
    if ratio == 4:
        index_heads, index_dim = config.size("index_n_heads"), config.size("index_head_dim")
        weights += (
            *linear("attn.indexer.wq_b", index_heads * index_dim, q_rank, ATTENTION),
            *linear("attn.indexer.weights_proj", index_heads, hidden, ATTENTION),
            *_compressor("attn.indexer.compressor.", hidden, index_dim, ratio),
        )
    return weights


def _compressor(prefix: str, hidden: int, head_dim: int, ratio: int) -> tuple[Weight, ...]:
    """Gated pooling of ``ratio`` tokens into one row; windows of the fine compression overlap, so it has two halves."""
    width = head_dim * (2 if ratio == 4 else 1)
    return (
        *linear(f"{prefix}wkv", width, hidden, ATTENTION),
        *linear(f"{prefix}wgate", width, hidden, ATTENTION),
        *vector(f"{prefix}norm", head_dim),
        Weight(f"{prefix}ape", ATTENTION, (ratio, width)),
    )


def _stream_mixing(name: str, hidden: int, streams: int) -> tuple[Weight, ...]:
    """Hyper-connections: how ``streams`` residual streams are read, written and mixed around one block."""
    mixes = streams * (streams + 2)
    return (
        Weight(f"{name}_fn", Component.NORM, (mixes, streams * hidden)),
        *vector(f"{name}_base", mixes),
        *vector(f"{name}_scale", 3),
    )


def _head_mixing(hidden: int, streams: int) -> tuple[Weight, ...]:
    """How the residual streams become one hidden vector in front of the lm_head."""
    return (
        Weight("hc_head_fn", Component.NORM, (streams, streams * hidden)),
        *vector("hc_head_base", streams),
        *vector("hc_head_scale", 1),
    )


def _v4_mtp(config: Config, ratio: int, prefix: str) -> tuple[Weight, ...]:
    """One more layer; embedding and hidden state have a projection each, laid side by side here."""
    hidden = config.hidden_size
    layer = Layer(_v4_layer(config, ratio).weights + _head_mixing(hidden, config.size("hc_mult", default=4)))
    return mtp_module(layer, hidden, prefix, projection="e_h_proj", norm_names=("enorm", "hnorm", "norm"))


# --- Nemotron NAS ------------------------------------------------------------------------------------------------


@family("DeciLMForCausalLM")
def nemotron_nas(config: Config) -> ModelParts:
    """Llama-Nemotron Super and Ultra: a search gave each layer its own KV heads and MLP size, or left a part out."""
    found = config.need("block_configs")
    if not isinstance(found, list) or len(found) != config.num_layers:
        raise config.refuse("block_configs", "a list of one entry per layer")
    kinds = [(_nas_attention(config, block), _nas_mlp(config, block)) for block in found]
    return decoder(config, layers_by_kind(kinds, lambda kind: _nas_layer(config, *kind)))


def _nas_part(config: Config, block: Any, part: str) -> Mapping[str, Any] | None:
    """One half of a block; None where the search left it out."""
    found = block.get(part) if isinstance(block, Mapping) else None
    if not isinstance(found, Mapping):
        raise config.refuse("block_configs", f"made of entries with {part!r}")
    if found.get("replace_with_linear") or found.get("sparsify"):
        raise config.refuse("block_configs", "free of 'replace_with_linear' and 'sparsify', which are not understood")
    return None if found.get("no_op") else found


def _nas_attention(config: Config, block: Any) -> int:
    """KV heads; 0 where there is no attention."""
    part = _nas_part(config, block, "attention")
    if part is None:
        return 0
    group = part.get("n_heads_in_group")
    heads = config.size("num_attention_heads")
    if not isinstance(group, int) or group < 1 or heads % group:
        raise config.refuse("block_configs", "with n_heads_in_group that divides the heads")
    return heads // group


def _nas_mlp(config: Config, block: Any) -> int:
    """Intermediate size: two thirds of the multiple of the hidden size, rounded up to a multiple of 256; 0 for none."""
    part = _nas_part(config, block, "ffn")
    if part is None:
        return 0
    multiple = part.get("ffn_mult")
    if not isinstance(multiple, int | float) or not 0 < multiple < 100:
        raise config.refuse("block_configs", "with a positive ffn_mult")
    size = int(2 * multiple * config.hidden_size / 3)
    return -(-size // 256) * 256


def _nas_layer(config: Config, kv_heads: int, mlp_size: int) -> Layer:
    hidden = config.hidden_size
    weights: tuple[Weight, ...] = ()
    attention = read_attention(config, kv_heads=kv_heads) if kv_heads else None
    if attention:
        weights += attention_weights(attention, hidden) + norms(hidden, "input_layernorm")
    if mlp_size:
        weights += mlp(hidden, mlp_size) + norms(hidden, "post_attention_layernorm")
    return Layer(weights, attention)


# --- MiMo-V2-Flash -----------------------------------------------------------------------------------------------


@family("MiMoV2FlashForCausalLM")
def mimo_v2(config: Config) -> ModelParts:
    """MiMo-V2-Flash: keys wider than values, and sliding layers with heads of their own and a sink per head."""
    hidden, count = config.hidden_size, config.num_layers
    sliding = config.sizes("hybrid_layer_pattern", count=count)
    routed = config.sizes("moe_layer_freq", count=count)

    def make(kind: tuple[int, int]) -> Layer:
        is_sliding, is_moe = kind
        attention = _mimo_attention(config, sliding=bool(is_sliding))
        weights = attention_weights(attention, hidden) + norms(hidden, *PRE_NORMS)
        sinks = "add_swa_attention_sink_bias" if is_sliding else "add_full_attention_sink_bias"
        if config.flag(sinks, default=False):
            weights += (Weight("self_attn.attention_sink_bias", ATTENTION, (attention.num_heads,), shard=Shard.COLUMN),)
        if not is_moe:
            return Layer(weights + mlp(hidden, config.size("intermediate_size")), attention)
        if config.size("n_shared_experts", default=0):
            raise config.refuse("n_shared_experts", "0 or null")
        moe = read_moe(config)
        return Layer(weights + moe_mlp(hidden, moe), attention, moe)

    return decoder(config, layers_by_kind(list(zip(sliding, routed, strict=True)), make))


def _mimo_attention(config: Config, *, sliding: bool) -> Attention:
    own = "swa_" if sliding else ""
    return Attention(
        config.size(f"{own}num_attention_heads"),
        config.size(f"{own}num_key_value_heads"),
        config.size(f"{own}head_dim"),
        config.size(f"{own}v_head_dim"),
        window=config.size("sliding_window") if sliding else None,
    )


# --- Step-3.7-Flash ----------------------------------------------------------------------------------------------


@family("Step3p7FlashForCausalLM", "Step3p7ForConditionalGeneration")
def step3p7(config: Config) -> ModelParts:
    """Step-3.7-Flash: sliding layers with more heads than the full ones, a gate per head, MoE with one shared expert.

    Sliding layers have half as many heads again (96 beside 64): the published total, 201,365,316,160, needs them,
    and some copies of config.json leave ``attention_other_setting`` out.
    """
    text = config.nested("text_config")
    dense = text.size("first_k_dense_replace", default=3)
    kinds = [(window, i >= dense) for i, window in enumerate(windows(text))]
    layers = layers_by_kind(kinds, lambda kind: _step_layer(text, *kind))
    note = "the vision tower is that of the published checkpoint; config.json does not describe it"
    parts = decoder(text, layers, mtp=_step_mtp(text), notes=(note,))
    return with_vision(parts, _step_vision(text.hidden_size), text="model.")


def _step_layer(config: Config, window: int | None, is_moe: bool) -> Layer:
    hidden = config.hidden_size
    attention = _step_attention(config, window)
    weights = (
        *attention_weights(attention, hidden, qk_norm="head"),
        *linear("self_attn.g_proj", attention.num_heads, hidden, ATTENTION, Shard.COLUMN),
        *norms(hidden, *PRE_NORMS),
    )
    if not is_moe:
        return Layer(weights + mlp(hidden, config.size("intermediate_size")), attention)
    moe = read_moe(config, shared=1)
    weights += (
        *moe_mlp(hidden, moe, prefix="moe."),
        *shared_expert(hidden, config.size("share_expert_dim"), prefix="share_expert."),
    )
    return Layer(weights, attention, moe)


def _step_attention(config: Config, window: int | None) -> Attention:
    heads, kv_heads = config.size("num_attention_heads"), config.size("num_key_value_heads", "num_attention_groups")
    head_dim = config.size("head_dim")
    if window:
        other = config.nested("attention_other_setting")
        own = heads * 3 // 2 if other is config else other.size("num_attention_heads")
        return Attention(own, kv_heads, head_dim, head_dim, window)
    return Attention(heads, kv_heads, head_dim, head_dim)


def _step_mtp(config: Config) -> tuple[Weight, ...]:
    """Each prediction layer is a dense sliding layer with an lm_head of its own."""
    hidden, vocab = config.hidden_size, config.size("vocab_size")
    weights: tuple[Weight, ...] = ()
    for i in range(config.size("num_nextn_predict_layers", default=0)):
        head = Weight("shared_head.output", Component.MTP, (vocab, hidden), shard=Shard.VOCAB)
        layer = Layer((*_step_layer(config, config.size("sliding_window"), is_moe=False).weights, head))
        weights += mtp_module(layer, hidden, f"model.layers.{config.num_layers + i}.")
    return weights


def _step_vision(text_hidden: int) -> tuple[Weight, ...]:
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


# --- MiniMax-M3 --------------------------------------------------------------------------------------------------


@family("MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration")
def minimax_m3(config: Config) -> ModelParts:
    """MiniMax-M3: GQA that reads the 16 blocks of 128 tokens that a light indexer picks; MoE with one shared expert."""
    text = config.nested("text_config")
    count = text.num_layers
    sparse = text.nested("sparse_attention_config")
    picked = sparse.sizes("sparse_attention_freq", count=count) if sparse is not text else [0] * count
    routed = text.sizes("moe_layer_freq", count=count)
    kinds = list(zip(picked, routed, strict=True))
    layers = layers_by_kind(kinds, lambda kind: _m3_layer(text, sparse if kind[0] else None, bool(kind[1])))
    parts = decoder(text, layers)
    if not config.has("vision_config"):
        return parts
    vision = _m3_vision(config.nested("vision_config"), config, text.hidden_size)
    return with_vision(parts, vision, text="language_model.")


def _m3_layer(config: Config, sparse: Config | None, is_moe: bool) -> Layer:
    hidden, attention = config.hidden_size, read_attention(config)
    qk_norm: QkNorm = "head" if config.flag("use_qk_norm", default=True) else None
    weights = attention_weights(attention, hidden, qk_norm=qk_norm) + norms(hidden, *PRE_NORMS)
    if sparse:
        heads, head_dim = sparse.size("sparse_num_index_heads"), sparse.size("sparse_index_dim")
        tokens = sparse.size("sparse_topk_blocks") * sparse.size("sparse_block_size")
        attention = replace(attention, indexer=SparseIndexer(heads, head_dim, top_k=tokens))
        weights += (
            *linear("self_attn.index_q_proj", heads * head_dim, hidden, ATTENTION),
            *linear("self_attn.index_k_proj", head_dim, hidden, ATTENTION),
            *vector("self_attn.index_q_norm", head_dim),
            *vector("self_attn.index_k_norm", head_dim),
        )
    if not is_moe:
        return Layer(weights + mlp(hidden, config.size("dense_intermediate_size")), attention)
    moe = read_moe(config, size="intermediate_size", shared=config.size("n_shared_experts", default=0))
    weights += moe_mlp(hidden, moe, prefix="block_sparse_moe.", names=W1_W3_W2)
    if moe.num_shared_experts:
        size = moe.num_shared_experts * config.size("shared_intermediate_size")
        weights += shared_expert(hidden, size, prefix="block_sparse_moe.shared_experts.")
    return Layer(weights, attention, moe)


def _m3_vision(config: Config, outer: Config, text_hidden: int) -> tuple[Weight, ...]:
    """A CLIP-like tower with rotary positions; a projector, then one that merges four patches."""
    hidden, depth, size = config.hidden_size, config.num_layers, config.size("intermediate_size")
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
