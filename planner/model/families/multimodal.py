"""Text models beside a vision tower. The text sits under ``text_config``; Qwen2-VL and Qwen2.5-VL keep it flat."""

from __future__ import annotations

from dataclasses import replace

from planner.model.architecture import Component, Layer
from planner.model.blocks import FUSED_GATE_UP, PRE_NORMS, attention_weights, mlp, moe_mlp, norms, shared_expert, vector
from planner.model.config import Config, ModelParts, family
from planner.model.families.dense import glm, llama, qwen2, qwen3
from planner.model.families.latent import deepseek
from planner.model.families.moe import glm4_moe, qwen3_moe
from planner.model.reading import decoder, layers_by_kind, read_attention, read_moe
from planner.model.vision import (
    glm4_vision,
    llama4_vision,
    matrix,
    mllama_vision,
    moonvit_vision,
    norm,
    pixtral_vision,
    qwen2_5_vision,
    qwen2_vision,
    qwen3_vision,
    with_vision,
)

#: The tower that the class builds where a config leaves keys, or all of it, out.
MISTRAL3_VISION = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 14,
}


@family("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")
def qwen2_vl(config: Config) -> ModelParts:
    """Qwen2-VL and Qwen2.5-VL: Qwen2 and the tower of its generation."""
    tower = qwen2_vision if config.architecture.startswith("Qwen2VL") else qwen2_5_vision
    return with_vision(qwen2(config.nested("text_config")), tower(config.section("vision_config"), "visual."), text="")


@family("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")
def qwen3_vl(config: Config) -> ModelParts:
    """Qwen3-VL: Qwen3, with experts or without, and a tower with DeepStack."""
    text = qwen3_moe if "Moe" in config.architecture else qwen3
    tower = qwen3_vision(config.section("vision_config"), "model.visual.")
    return with_vision(text(config.nested("text_config")), tower, text="model.language_model.")


@family("Mistral3ForConditionalGeneration")
def mistral3(config: Config) -> ModelParts:
    """Mistral Small 3.1 and 3.2, Ministral 3, Mistral Medium 3.5: Mistral, Pixtral's tower, a patch merger.

    Mistral Small 4 has the latent attention and the experts of DeepSeek-V3 instead of Mistral.
    """
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


@family("KimiK25ForConditionalGeneration")
def kimi_k25(config: Config) -> ModelParts:
    """Kimi-K2.5: Kimi K2 and MoonViT."""
    parts = deepseek(config.nested("text_config"))
    tower = moonvit_vision(config.section("vision_config"), parts.hidden_size)
    return replace(with_vision(parts, tower, text="language_model."), requires_remote_code=True)


@family("Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration")
def glm4v(config: Config) -> ModelParts:
    """GLM-4.1V on GLM-4, GLM-4.5V on GLM-4.5-Air: one tower."""
    text = config.nested("text_config").with_defaults({"attention_bias": True})
    parts = glm4_moe(text) if "Moe" in config.architecture else glm(text)
    return with_vision(
        parts, glm4_vision(config.section("vision_config"), "model.visual."), text="model.language_model."
    )


# --- Llama 4 -----------------------------------------------------------------------------------------------------


@family("Llama4ForCausalLM")
def llama4_text(config: Config) -> ModelParts:
    """Llama 4: three of four layers see only their chunk of 8192 tokens; a shared expert in each MoE layer."""
    count = config.num_layers
    chunked = [bool(flag) for flag in config.sizes("no_rope_layers")] or [(i + 1) % 4 != 0 for i in range(count)]
    if len(chunked) != count:
        raise config.refuse("no_rope_layers", f"empty or a list of {count}")
    step = config.size("interleave_moe_layer_step", default=1)
    sparse = set(config.sizes("moe_layers")) or set(range(step - 1, count, step))
    kinds = [(chunked[i], i in sparse) for i in range(count)]
    return decoder(config, layers_by_kind(kinds, lambda kind: _llama4_layer(config, *kind)))


def _llama4_layer(config: Config, chunked: bool, sparse: bool) -> Layer:
    hidden, attention = config.hidden_size, read_attention(config)
    if chunked:
        attention = replace(attention, chunk=config.size("attention_chunk_size", default=8192))
    weights = (
        *attention_weights(attention, hidden, bias=config.flag("attention_bias", default=False)),
        *norms(hidden, *PRE_NORMS),
    )
    if not sparse:
        return Layer(weights + mlp(hidden, config.size("intermediate_size_mlp"), prefix="feed_forward."), attention)
    moe = read_moe(config, size="intermediate_size", shared=1)
    weights += (
        *moe_mlp(hidden, moe, prefix="feed_forward.", router="router", experts="experts.", names=FUSED_GATE_UP),
        *shared_expert(hidden, moe.intermediate_size, prefix="feed_forward.shared_expert."),
    )
    return Layer(weights, attention, moe)


@family("Llama4ForConditionalGeneration")
def llama4(config: Config) -> ModelParts:
    """Llama 4 Scout and Maverick with their tower."""
    parts = llama4_text(config.nested("text_config"))
    vision = config.section("vision_config")
    projector = matrix(
        "multi_modal_projector.linear_1", parts.hidden_size, vision.size("vision_output_dim"), bias=False
    )
    return with_vision(parts, (*llama4_vision(vision, "vision_model."), *projector), text="language_model.")


# --- Llama 3.2 vision ----------------------------------------------------------------------------------------------


@family("MllamaForConditionalGeneration")
def mllama(config: Config) -> ModelParts:
    """Llama 3.2 Vision: Llama 3.1 with gated cross-attention layers among its layers; eight rows more to embed."""
    text, vision = config.nested("text_config"), config.section("vision_config")
    crossed = set(text.sizes("cross_attention_layers"))
    layers = layers_by_kind([i in crossed for i in range(text.num_layers)], lambda cross: _mllama_layer(text, cross))
    parts = decoder(text, layers)
    embedding, *others = parts.outer
    embedding = replace(embedding, shape=(parts.vocab_size + 8, parts.hidden_size))
    projector = matrix("multi_modal_projector", parts.hidden_size, vision.size("vision_output_dim"))
    tower = (*mllama_vision(vision, "vision_model."), *projector)
    return with_vision(replace(parts, outer=(embedding, *others)), tower, text="language_model.")


def _mllama_layer(config: Config, cross: bool) -> Layer:
    hidden, attention = config.hidden_size, read_attention(config)
    rest = mlp(hidden, config.size("intermediate_size")) + norms(hidden, *PRE_NORMS)
    if not cross:
        return Layer(attention_weights(attention, hidden) + rest, attention)
    weights = (
        *attention_weights(attention, hidden, prefix="cross_attn.", qk_norm="head"),
        *vector("cross_attn_attn_gate", 1, Component.ATTENTION),
        *vector("cross_attn_mlp_gate", 1, Component.MLP),
    )
    return Layer(weights + rest, replace(attention, cross=True))
