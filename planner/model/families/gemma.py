"""Gemma: tied, wide heads, norms before and after; from the second generation on with sliding windows."""

from __future__ import annotations

from dataclasses import replace

from planner.model.architecture import Attention, Component, Layer, Moe, Weight
from planner.model.blocks import attention_weights, gated_mlp, moe_mlp, norms, vector
from planner.model.config import Config, Parts, family
from planner.model.families.dense import llama_like
from planner.model.reading import PRE_NORMS, decoder, layers_by_kind, read_attention, windows
from planner.model.vision import gemma4_vision, siglip_vision, with_vision

FOUR_NORMS = (*PRE_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")

#: What the class takes where a published config leaves keys out (google/gemma-3-4b-it does).
GEMMA3_DEFAULTS = {
    "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131072, "sliding_window": 4096,
}  # fmt: skip


GEMMA4_DEFAULTS = {"sliding_window": 512, "head_dim": 256, "global_head_dim": 512}


@family("GemmaForCausalLM")
def gemma(config: Config) -> Parts:
    """Gemma 1: Llama's weights, tied."""
    bias = config.flag("attention_bias", default=False)
    return llama_like(config, qkv_bias=bias, out_bias=bias, tied=True)


@family("Gemma2ForCausalLM")
def gemma2(config: Config) -> Parts:
    """Gemma 2: every other layer slides."""
    bias = config.flag("attention_bias", default=False)
    return llama_like(config, qkv_bias=bias, out_bias=bias, norm_names=FOUR_NORMS, tied=True, full_every=2)


@family("Gemma3ForCausalLM")
def gemma3(config: Config) -> Parts:
    """Gemma 3: five of six layers slide; q and k are normalised, each head by itself."""
    config = config.with_defaults(GEMMA3_DEFAULTS)
    bias = config.flag("attention_bias", default=False)
    return llama_like(
        config, qkv_bias=bias, out_bias=bias, norm_names=FOUR_NORMS, tied=True,
        qk_norm=read_attention(config).head_dim,
        full_every=config.size("sliding_window_pattern", "_sliding_window_pattern", default=6),
    )  # fmt: skip


@family("Gemma3ForConditionalGeneration")
def gemma3_vision(config: Config) -> Parts:
    """Gemma 3 from 4B on: a SigLIP tower, pooled and projected."""
    parts = gemma3(config.nested("text_config"))
    vision = config.section("vision_config")
    width = vision.size("hidden_size")
    projector = (
        Weight("multi_modal_projector.mm_input_projection_weight", Component.VISION, (width, parts.hidden_size)),
        *vector("multi_modal_projector.mm_soft_emb_norm", width, Component.VISION),
    )
    tower = siglip_vision(vision, "vision_tower.vision_model.")
    return with_vision(parts, (*tower, *projector), text="language_model.")


@family("Gemma4ForCausalLM")
def gemma4(config: Config) -> Parts:
    """Gemma 4: full layers have wider and fewer KV heads of their own, and may use the keys as values."""
    config = config.with_defaults(GEMMA4_DEFAULTS)
    for key in ("num_kv_shared_layers", "hidden_size_per_layer_input"):
        if config.size(key, default=0):
            raise config.refuse(key, "0: shared KV layers and per-layer embeddings (E2B, E4B) are not supported")
    spans = windows(config, full_every=6)
    layers = layers_by_kind(spans, lambda window: _gemma4_layer(config, window))
    return decoder(config, layers, tied=True)


def _gemma4_layer(config: Config, window: int | None) -> Layer:
    """One layer; ``window`` is None for a full one."""
    hidden, attention = config.size("hidden_size"), replace(read_attention(config), window=window)
    same_kv = window is None and config.flag("attention_k_eq_v", default=False)
    if window is None:
        head_dim = config.size("global_head_dim")
        kv_heads = config.size("num_global_key_value_heads", default=attention.num_kv_heads)
        attention = Attention(attention.num_heads, kv_heads if same_kv else attention.num_kv_heads, head_dim, head_dim)
    bias = config.flag("attention_bias", default=False)
    weights = tuple(
        weight
        for weight in attention_weights(attention, hidden, qkv_bias=bias, out_bias=bias, qk_norm=attention.head_dim)
        if not (same_kv and "v_proj" in weight.name)
    )
    weights += gated_mlp(hidden, config.size("intermediate_size")) + norms(hidden, *FOUR_NORMS)
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


@family("Gemma4ForConditionalGeneration")
def gemma4_multimodal(config: Config) -> Parts:
    """Gemma 4 with its vision tower. The audio tower of the small ones is not supported."""
    if config.has("audio_config"):
        raise config.refuse("audio_config", "null: the audio tower is not supported")
    parts = gemma4(config.nested("text_config"))
    vision = config.section("vision_config")
    projection = Weight(
        "model.embed_vision.embedding_projection", Component.VISION, (parts.hidden_size, vision.size("hidden_size"))
    )
    return with_vision(parts, (*gemma4_vision(vision, "model.vision_tower."), projection), text="model.language_model.")
