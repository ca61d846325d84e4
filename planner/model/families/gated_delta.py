"""Gated delta networks, linear attention whose state is a matrix per head: Qwen3-Next, Qwen3.5, Kimi Linear and K3.

Shapes of the state are those of vLLM's ``MambaStateShapeCalculator``, for k key heads, v value heads::

    gdn    conv (2 k key_dim + v value_dim, kernel - 1)    state (v, value_dim, key_dim)
    kda    conv (3 heads head_dim, kernel - 1)             state (heads, head_dim, head_dim), fp32
"""

from __future__ import annotations

from dataclasses import replace

from planner.model.architecture import Component, LatentAttention, Layer, Moe, Shard, StateMixer, Weight
from planner.model.blocks import (
    PRE_NORMS,
    W1_W3_W2,
    attention_weights,
    linear,
    mlp,
    moe_mlp,
    norms,
    shared_expert,
    vector,
)
from planner.model.config import Config, ModelParts, family
from planner.model.families.hybrid import Mixing, column, convolution, state_dtype
from planner.model.families.latent import latent_weights, read_latent
from planner.model.reading import decoder, layers_by_kind, mtp_module, read_attention, read_moe
from planner.model.vision import MOONVIT_NAMES, blocks, matrix, norm, qwen3_vision, tensor, with_vision

ATTENTION, STATE, ROUTER = Component.ATTENTION, Component.STATE, Component.ROUTER


# --- Qwen3-Next and Qwen3.5 --------------------------------------------------------------------------------------


@family("Qwen3NextForCausalLM")
def qwen3_next(config: Config) -> ModelParts:
    """Qwen3-Next: three gated delta layers, then one of gated attention; MoE with one gated shared expert."""
    # the checkpoint carries a multi-token-prediction module that config.json does not mention
    return _qwen_decoder(config, fused=True, has_mtp=True)


@family("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM")  # fmt: skip
def qwen3_5(config: Config) -> ModelParts:
    """Qwen3.5 and 3.6: the decoder of Qwen3-Next, dense or MoE, and the vision tower of Qwen3-VL."""
    text = config.nested("text_config")
    parts = _qwen_decoder(text, fused=False, has_mtp=text.size("mtp_num_hidden_layers", default=0) > 0)
    if not config.has("vision_config"):
        return parts
    tower = qwen3_vision(config.nested("vision_config"), "model.visual.")
    return with_vision(parts, tower, text="model.language_model.")


def _qwen_decoder(config: Config, *, fused: bool, has_mtp: bool) -> ModelParts:
    full = _full_layer(config)
    layers = layers_by_kind(
        _kinds(config), lambda kind: full if kind == "full_attention" else _delta_layer(config, fused=fused)
    )
    return decoder(config, layers, mtp=_qwen_mtp(config, full) if has_mtp else ())


def _kinds(config: Config) -> list[str]:
    """``linear_attention`` or ``full_attention``, layer by layer."""
    count = config.num_layers
    every = config.size("full_attention_interval", default=4)
    default = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(count)]
    return config.names("layer_types", count=count) or default


def _full_layer(config: Config) -> Layer:
    """Attention whose q projection also yields the gate of its output."""
    hidden, attention = config.hidden_size, read_attention(config)
    q, *others = attention_weights(attention, hidden, qk_norm="head")
    if config.flag("attn_output_gate", default=True):
        q = replace(q, shape=(2 * q.shape[0], hidden))
    ffn, moe = _qwen_ffn(config)
    return Layer((q, *others, *ffn, *norms(hidden, *PRE_NORMS)), attention, moe)


def _delta_layer(config: Config, *, fused: bool) -> Layer:
    """A gated delta layer; ``fused``: Qwen3-Next stores the input projections as two matrices, Qwen3.5 as four."""
    hidden = config.hidden_size
    key_heads, value_heads = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
    key_dim, value_dim = config.size("linear_key_head_dim"), config.size("linear_value_head_dim")
    kernel = config.size("linear_conv_kernel_dim", default=4)
    keys, values = key_heads * key_dim, value_heads * value_dim
    sizes = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values, "in_proj_b": value_heads, "in_proj_a": value_heads}
    if fused:
        sizes = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * value_heads}
    weights = [
        w for name, size in sizes.items() for w in linear(f"linear_attn.{name}", size, hidden, STATE, Shard.COLUMN)
    ]
    ffn, moe = _qwen_ffn(config)
    mixer = StateMixer(
        "gdn",
        conv_elements=(2 * keys + values) * (kernel - 1),
        recurrent_elements=value_heads * value_dim * key_dim,
        num_heads=value_heads,
        recurrent_dtype=state_dtype(config, "mamba_ssm_dtype"),
    )
    return Layer(
        (
            *weights,
            *convolution("linear_attn.", 2 * keys + values, kernel, bias=False),
            column("linear_attn.dt_bias", value_heads),
            column("linear_attn.A_log", value_heads),
            *vector("linear_attn.norm", value_dim),
            *linear("linear_attn.out_proj", hidden, values, STATE, Shard.ROW),
            *ffn,
            *norms(hidden, *PRE_NORMS),
        ),
        mixer,
        moe,
    )


def _qwen_ffn(config: Config) -> tuple[tuple[Weight, ...], Moe | None]:
    hidden = config.hidden_size
    if not config.has("num_experts"):
        return mlp(hidden, config.size("intermediate_size")), None
    if config.sizes("mlp_only_layers") or config.size("decoder_sparse_step", default=1) != 1:
        raise config.refuse("mlp_only_layers", "empty, with decoder_sparse_step 1")
    moe = read_moe(config, shared=1)
    return (
        *moe_mlp(hidden, moe),
        *shared_expert(hidden, config.size("shared_expert_intermediate_size"), prefix="mlp.shared_expert."),
        *linear("mlp.shared_expert_gate", 1, hidden, ROUTER),
    ), moe


def _qwen_mtp(config: Config, full: Layer) -> tuple[Weight, ...]:
    """One more layer of full attention; embedding and lm_head are the main model's."""
    layer = Layer(tuple(replace(w, name=f"layers.0.{w.name}") for w in full.weights))
    names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    return mtp_module(layer, config.hidden_size, "mtp.", projection="fc", norm_names=names)


# --- Kimi Linear and Kimi K3 -------------------------------------------------------------------------------------


@family("KimiLinearForCausalLM", "KimiK3ForConditionalGeneration")
def kimi_linear(config: Config) -> ModelParts:
    """Kimi Linear and Kimi K3: Kimi delta attention in three of four layers, MLA without positions in the fourth.

    K3 adds experts in a narrower latent space, residual mixing over blocks of layers and a vision tower. Written
    after vLLM's ``models/kimi_k3``.
    """
    text = config.nested("text_config")
    hidden = text.hidden_size
    linear_config = text.nested("linear_attn_config")
    delta = {i - 1 for i in linear_config.sizes("kda_layers")}  # counted from 1
    dense = text.size("first_k_dense_replace", default=0)
    kinds = [(i in delta, i >= dense) for i in range(text.num_layers)]
    residual = text.has("attn_res_block_size")

    def make(kind: tuple[bool, bool]) -> Layer:
        is_delta, is_moe = kind
        mixer, mixing = _kimi_delta(linear_config, hidden) if is_delta else _kimi_latent(text)
        ffn, moe = _kimi_moe(text) if is_moe else (mlp(hidden, text.size("intermediate_size")), None)
        weights = (*mixing, *ffn, *norms(hidden, *PRE_NORMS))
        if residual:
            weights += norms(hidden, "self_attention_res_norm", "mlp_res_norm")
            weights += norms(hidden, "self_attention_res_proj", "mlp_res_proj")
        return Layer(weights, mixer, moe)

    mixing_norms = ("model.output_attn_res_norm", "model.output_attn_res_proj") if residual else ()
    parts = decoder(text, layers_by_kind(kinds, make), extra=norms(hidden, *mixing_norms))
    if not config.has("vision_config"):
        return parts
    return with_vision(parts, _kimi_vision(config.nested("vision_config"), hidden), text="language_model.")


def _kimi_delta(config: Config, hidden: int) -> Mixing:
    heads, head_dim = config.size("num_heads"), config.size("head_dim")
    kernel = config.size("short_conv_kernel_size", default=4)
    inner = heads * head_dim
    names = ["q_proj", "k_proj", "v_proj"]
    gate: tuple[Weight, ...] = ()
    if config.flag("use_full_rank_gate", default=False):
        names.append("g_proj")
    else:
        gate = linear("self_attn.g_a_proj", head_dim, hidden, STATE) + linear(
            "self_attn.g_b_proj", inner, head_dim, STATE, Shard.COLUMN
        )
    weights = (
        *(w for name in names for w in linear(f"self_attn.{name}", inner, hidden, STATE, Shard.COLUMN)),
        *gate,
        *linear("self_attn.f_a_proj", head_dim, hidden, STATE),
        *linear("self_attn.f_b_proj", inner, head_dim, STATE, Shard.COLUMN),
        *linear("self_attn.b_proj", heads, hidden, STATE, Shard.COLUMN),
        *(column(f"self_attn.{name}_conv1d", inner, 1, kernel) for name in "qkv"),
        column("self_attn.dt_bias", inner),
        column("self_attn.A_log", heads),
        *vector("self_attn.o_norm", head_dim),
        *linear("self_attn.o_proj", hidden, inner, STATE, Shard.ROW),
    )
    return StateMixer("kda", 3 * inner * (kernel - 1), inner * head_dim, heads, "fp32"), weights


def _kimi_latent(config: Config) -> tuple[LatentAttention, tuple[Weight, ...]]:
    hidden, mixer = config.hidden_size, read_latent(config)
    weights = latent_weights(mixer, hidden)
    if config.flag("mla_use_output_gate", default=False):
        values = mixer.num_heads * mixer.v_head_dim
        weights += linear("self_attn.g_proj", values, hidden, ATTENTION, Shard.COLUMN)
    return mixer, weights


def _kimi_moe(config: Config) -> tuple[tuple[Weight, ...], Moe]:
    hidden, prefix = config.hidden_size, "block_sparse_moe."
    latent = config.size("routed_expert_hidden_size", default=0)
    moe = read_moe(config, shared=config.size("num_shared_experts", default=0))
    shared = moe.num_shared_experts * moe.intermediate_size
    weights = (
        *moe_mlp(hidden, moe, prefix=prefix, names=W1_W3_W2, latent=latent),
        *shared_expert(hidden, shared, prefix=f"{prefix}shared_experts."),
    )
    if latent:
        weights += linear(f"{prefix}routed_expert_down_proj", latent, hidden, Component.MLP)
        weights += linear(f"{prefix}routed_expert_up_proj", hidden, latent, Component.MLP)
    if latent and config.flag("latent_moe_use_norm", default=False):
        weights += vector(f"{prefix}routed_expert_norm", latent)
    return weights, moe


def _kimi_vision(config: Config, text_hidden: int) -> tuple[Weight, ...]:
    """MoonViT without biases, and the second kind of patch merger."""
    if config.text("mm_projector_type", default="patchmergerv2") != "patchmergerv2":
        raise config.refuse("mm_projector_type", "'patchmergerv2'")
    hidden, patch, tower = config.size("vt_hidden_size"), config.size("patch_size"), "vision_tower."
    merged = 4 * hidden
    height, width = config.size("init_pos_emb_height"), config.size("init_pos_emb_width")
    return (
        tensor(f"{tower}patch_embed.proj", hidden, 3, patch, patch),
        tensor(f"{tower}patch_embed.pos_emb", height, width, hidden),
        *blocks(
            f"{tower}encoder.blocks.0.", hidden, config.size("vt_intermediate_size"),
            config.size("vt_num_hidden_layers"), MOONVIT_NAMES, attention_bias=False, mlp_bias=False, norm_bias=False,
            heads_size=config.size("qkv_hidden_size"),
        ),
        *norm(f"{tower}encoder.final_layernorm", hidden, bias=False),
        *matrix("mm_projector.linear_1", merged, merged, bias=False),
        *matrix("mm_projector.linear_2", text_hidden, merged, bias=False),
        *norm("mm_projector.post_norm", text_hidden, bias=False),
    )  # fmt: skip
