"""Decoders of 2019 to 2023: learned positions, plain MLPs, biases, each project with its own names."""

from __future__ import annotations

from planner.model.architecture import Component, Weight
from planner.model.blocks import PRE_NORMS, OuterNames, attention_weights, fused, mlp, norms
from planner.model.config import Config, ModelParts, family
from planner.model.reading import decoder, read_attention, uniform

GPT2_NAMES = OuterNames("transformer.wte", "transformer.ln_f", layers="transformer.h.")
BLOOM_NAMES = OuterNames("transformer.word_embeddings", "transformer.ln_f", layers="transformer.h.")
H_TO_4H = ("dense_h_to_4h", "dense_4h_to_h")


def positions(name: str, rows: int, hidden_size: int) -> Weight:
    """A table of learned positions, held whole by every rank."""
    return Weight(name, Component.EMBEDDING, (rows, hidden_size))


def mlp_size(config: Config) -> int:
    """Width of the MLP: four hidden sizes where the config does not say."""
    return config.size("intermediate_size", default=4 * config.hidden_size)


@family("GPT2LMHeadModel", "GPTBigCodeForCausalLM")
def gpt2(config: Config) -> ModelParts:
    """GPT-2: everything has a bias; tied. SantaCoder and StarCoder are the same with one KV head."""
    one_head = config.architecture == "GPTBigCodeForCausalLM" and config.flag("multi_query", default=True)
    hidden, attention = config.hidden_size, read_attention(config, kv_heads=1 if one_head else None)
    weights = (
        *attention_weights(attention, hidden, prefix="attn.", names=fused("c_attn", "c_proj"), bias=True),
        *mlp(hidden, mlp_size(config), names=("c_fc", "c_proj"), bias=True),
        *norms(hidden, "ln_1", "ln_2", bias=True),
    )
    table = positions("transformer.wpe", config.size("max_position_embeddings"), hidden)
    layers = uniform(config, weights, attention)
    return decoder(config, layers, GPT2_NAMES, tied=True, norm_bias=True, extra=(table,))


@family("GPTJForCausalLM")
def gpt_j(config: Config) -> ModelParts:
    """GPT-J: attention without biases beside an MLP with them; the lm_head has one too."""
    hidden, attention = config.hidden_size, read_attention(config)
    weights = (
        *attention_weights(attention, hidden, prefix="attn.", names=("q_proj", "k_proj", "v_proj", "out_proj")),
        *mlp(hidden, mlp_size(config), names=("fc_in", "fc_out"), bias=True),
        *norms(hidden, "ln_1", bias=True),
    )
    return decoder(config, uniform(config, weights, attention), GPT2_NAMES, norm_bias=True, head_bias=True)


@family("GPTNeoXForCausalLM")
def gpt_neox(config: Config) -> ModelParts:
    """GPT-NeoX, Pythia, Dolly: biases everywhere but in the lm_head."""
    hidden, attention = config.hidden_size, read_attention(config)
    bias, names = config.flag("attention_bias", default=True), fused("query_key_value", "dense")
    weights = (
        *attention_weights(attention, hidden, prefix="attention.", names=names, bias=bias),
        *mlp(hidden, mlp_size(config), names=H_TO_4H, bias=True),
        *norms(hidden, *PRE_NORMS, bias=True),
    )
    around = OuterNames("gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out", "gpt_neox.layers.")
    return decoder(config, uniform(config, weights, attention), around, norm_bias=True)


@family("OPTForCausalLM")
def opt(config: Config) -> ModelParts:
    """OPT: learned positions, two rows more than the context; tied."""
    hidden, attention = config.hidden_size, read_attention(config)
    if config.size("word_embed_proj_dim", default=hidden) != hidden:
        raise config.refuse("word_embed_proj_dim", f"hidden_size = {hidden}; the projected OPT-350m is not supported")
    bias = config.flag("enable_bias", default=True)
    weights = (
        *attention_weights(attention, hidden, names=("q_proj", "k_proj", "v_proj", "out_proj"), bias=bias),
        *mlp(hidden, mlp_size(config), prefix="", names=("fc1", "fc2"), bias=bias),
        *norms(hidden, "self_attn_layer_norm", "final_layer_norm", bias=True),
    )
    stem = "model.decoder."
    around = OuterNames(f"{stem}embed_tokens", f"{stem}final_layer_norm", layers=f"{stem}layers.")
    table = positions(f"{stem}embed_positions", config.size("max_position_embeddings") + 2, hidden)
    return decoder(config, uniform(config, weights, attention), around, tied=True, norm_bias=True, extra=(table,))


@family("BloomForCausalLM")
def bloom(config: Config) -> ModelParts:
    """BLOOM: ALiBi, a norm on the embedding, biases everywhere; tied."""
    hidden, attention = config.hidden_size, read_attention(config)
    names = fused("query_key_value", "dense")
    weights = (
        *attention_weights(attention, hidden, prefix="self_attention.", names=names, bias=True),
        *mlp(hidden, 4 * hidden, names=H_TO_4H, bias=True),
        *norms(hidden, *PRE_NORMS, bias=True),
    )
    extra = norms(hidden, "transformer.word_embeddings_layernorm", bias=True)
    return decoder(config, uniform(config, weights, attention), BLOOM_NAMES, tied=True, norm_bias=True, extra=extra)


@family("MptForCausalLM", "MPTForCausalLM")
def mpt(config: Config) -> ModelParts:
    """MPT: ALiBi, no biases; tied."""
    if not config.flag("no_bias", default=True):
        raise config.refuse("no_bias", "true, the only published form")
    hidden, inner = config.hidden_size, config.nested("attn_config")
    attention = read_attention(config, kv_heads=inner.size("kv_n_heads", default=config.size("num_attention_heads")))
    width = config.size("expansion_ratio", default=4) * hidden
    weights = (
        *attention_weights(attention, hidden, prefix="attn.", names=fused("Wqkv", "out_proj")),
        *mlp(hidden, width, prefix="ffn.", names=("up_proj", "down_proj")),
        *norms(hidden, "norm_1", "norm_2"),
    )
    around = OuterNames("transformer.wte", "transformer.norm_f", layers="transformer.blocks.")
    return decoder(config, uniform(config, weights, attention), around, tied=True)


@family("FalconForCausalLM", "RWForCausalLM")
def falcon(config: Config) -> ModelParts:
    """Falcon: 7B has one KV head and one norm, 40B and 180B have KV groups and two norms; tied."""
    hidden, names = config.hidden_size, fused("query_key_value", "dense")
    new = config.flag("new_decoder_architecture", default=config.has("n_head_kv"))
    grouped = config.size("num_kv_heads", "n_head_kv", default=config.size("num_attention_heads"))
    one_head = config.flag("multi_query", default=True) and not new
    attention = read_attention(config, kv_heads=1 if one_head else grouped)
    bias = config.flag("bias", default=False)
    weights = (
        *attention_weights(attention, hidden, prefix="self_attention.", names=names, bias=bias),
        *mlp(hidden, mlp_size(config), names=H_TO_4H, bias=bias),
        *norms(hidden, *_falcon_norms(config, new), bias=True),
    )
    return decoder(config, uniform(config, weights, attention), BLOOM_NAMES, tied=True, norm_bias=True)


def _falcon_norms(config: Config, new: bool) -> tuple[str, ...]:
    """Falcon's norms: one where attention and MLP stand side by side, unless the new form gives each its own."""
    parallel = config.flag("parallel_attn", default=True)
    count = config.size("num_ln_in_parallel_attn", default=2 if new and parallel else 1)
    if new and count == 2:
        return "ln_attn", "ln_mlp"
    return PRE_NORMS[:1] if parallel else PRE_NORMS


@family("PhiForCausalLM")
def phi(config: Config) -> ModelParts:
    """Phi-1, Phi-1.5, Phi-2: attention and MLP side by side behind one norm, biases everywhere."""
    hidden, attention = config.hidden_size, read_attention(config)
    normed = config.flag("qk_layernorm", default=False)
    weights = (
        *attention_weights(attention, hidden, names=("q_proj", "k_proj", "v_proj", "dense"), bias=True),
        *(norms(attention.head_dim, "self_attn.q_layernorm", "self_attn.k_layernorm", bias=True) if normed else ()),
        *mlp(hidden, mlp_size(config), names=("fc1", "fc2"), bias=True),
        *norms(hidden, "input_layernorm", bias=True),
    )
    around = OuterNames(norm="model.final_layernorm")
    return decoder(config, uniform(config, weights, attention), around, norm_bias=True, head_bias=True)
