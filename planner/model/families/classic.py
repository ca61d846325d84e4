"""Decoders of 2019 to 2023: learned positions, plain MLPs, biases, each project with its own names."""

from __future__ import annotations

from planner.model.architecture import Component, Layer, Weight
from planner.model.blocks import attention_weights, norms, plain_mlp
from planner.model.config import Config, ModelParts, family
from planner.model.reading import decoder, read_attention


def positions(name: str, rows: int, hidden_size: int) -> Weight:
    """A table of learned positions, held whole by every rank."""
    return Weight(name, Component.EMBEDDING, (rows, hidden_size))


def mlp_size(config: Config) -> int:
    """Width of the MLP: four hidden sizes where the config does not say."""
    return config.size("intermediate_size", default=4 * config.size("hidden_size"))


def fused(qkv: str, out: str) -> tuple[str, str, str, str]:
    """Names of projections of which q, k and v are one matrix."""
    return qkv, qkv, qkv, out


@family("GPT2LMHeadModel")
def gpt2(config: Config) -> ModelParts:
    """GPT-2: everything has a bias; tied."""
    return _gpt2(config, kv_heads=None)


def _gpt2(config: Config, *, kv_heads: int | None) -> ModelParts:
    hidden, attention = config.size("hidden_size"), read_attention(config, kv_heads=kv_heads)
    names = fused("c_attn", "c_proj")
    weights = (
        *attention_weights(attention, hidden, prefix="attn.", names=names, qkv_bias=True, out_bias=True),
        *plain_mlp(hidden, mlp_size(config), up="mlp.c_fc", down="mlp.c_proj", bias=True),
        *norms(hidden, "ln_1", "ln_2", bias=True),
    )
    return decoder(
        config, (Layer(weights, attention),) * config.num_layers, tied=True, layer_prefix="transformer.h.",
        embed="transformer.wte", norm="transformer.ln_f", norm_bias=True,
        extra=(positions("transformer.wpe", config.size("max_position_embeddings"), hidden),),
    )  # fmt: skip


@family("GPTBigCodeForCausalLM")
def gpt_bigcode(config: Config) -> ModelParts:
    """SantaCoder, StarCoder: GPT-2 with one KV head."""
    return _gpt2(config, kv_heads=1 if config.flag("multi_query", default=True) else None)


@family("GPTJForCausalLM")
def gpt_j(config: Config) -> ModelParts:
    """GPT-J: attention without biases beside an MLP with them; the lm_head has one too."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    weights = (
        *attention_weights(attention, hidden, prefix="attn.", names=("q_proj", "k_proj", "v_proj", "out_proj")),
        *plain_mlp(hidden, mlp_size(config), up="mlp.fc_in", down="mlp.fc_out", bias=True),
        *norms(hidden, "ln_1", bias=True),
    )
    return decoder(
        config, (Layer(weights, attention),) * config.num_layers, layer_prefix="transformer.h.",
        embed="transformer.wte", norm="transformer.ln_f", norm_bias=True, head_bias=True,
    )  # fmt: skip


@family("GPTNeoXForCausalLM")
def gpt_neox(config: Config) -> ModelParts:
    """GPT-NeoX, Pythia, Dolly: biases everywhere but in the lm_head."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    bias = config.flag("attention_bias", default=True)
    names = fused("query_key_value", "dense")
    weights = (
        *attention_weights(attention, hidden, prefix="attention.", names=names, qkv_bias=bias, out_bias=bias),
        *plain_mlp(hidden, mlp_size(config), up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h", bias=True),
        *norms(hidden, "input_layernorm", "post_attention_layernorm", bias=True),
    )
    return decoder(
        config, (Layer(weights, attention),) * config.num_layers, layer_prefix="gpt_neox.layers.",
        embed="gpt_neox.embed_in", norm="gpt_neox.final_layer_norm", head="embed_out", norm_bias=True,
    )  # fmt: skip


@family("OPTForCausalLM")
def opt(config: Config) -> ModelParts:
    """OPT: learned positions, two rows more than the context; tied."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    if config.size("word_embed_proj_dim", default=hidden) != hidden:
        raise config.refuse("word_embed_proj_dim", f"hidden_size = {hidden}; the projected OPT-350m is not supported")
    bias = config.flag("enable_bias", default=True)
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    weights = (
        *attention_weights(attention, hidden, names=names, qkv_bias=bias, out_bias=bias),
        *plain_mlp(hidden, mlp_size(config), up="fc1", down="fc2", bias=bias),
        *norms(hidden, "self_attn_layer_norm", "final_layer_norm", bias=True),
    )
    stem = "model.decoder."
    return decoder(
        config, (Layer(weights, attention),) * config.num_layers, tied=True, layer_prefix=f"{stem}layers.",
        embed=f"{stem}embed_tokens", norm=f"{stem}final_layer_norm", norm_bias=True,
        extra=(positions(f"{stem}embed_positions", config.size("max_position_embeddings") + 2, hidden),),
    )  # fmt: skip


@family("BloomForCausalLM")
def bloom(config: Config) -> ModelParts:
    """BLOOM: ALiBi, a norm on the embedding, biases everywhere; tied."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    names = fused("query_key_value", "dense")
    weights = (
        *attention_weights(attention, hidden, prefix="self_attention.", names=names, qkv_bias=True, out_bias=True),
        *plain_mlp(hidden, 4 * hidden, up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h", bias=True),
        *norms(hidden, "input_layernorm", "post_attention_layernorm", bias=True),
    )
    return decoder(
        config, (Layer(weights, attention),) * config.num_layers, tied=True, layer_prefix="transformer.h.",
        embed="transformer.word_embeddings", norm="transformer.ln_f", norm_bias=True,
        extra=norms(hidden, "transformer.word_embeddings_layernorm", bias=True),
    )  # fmt: skip


@family("MptForCausalLM", "MPTForCausalLM")
def mpt(config: Config) -> ModelParts:
    """MPT: ALiBi, no biases; tied."""
    if not config.flag("no_bias", default=True):
        raise config.refuse("no_bias", "true, the only published form")
    hidden = config.size("hidden_size")
    inner = config.nested("attn_config")
    attention = read_attention(config, kv_heads=inner.size("kv_n_heads", default=config.size("num_attention_heads")))
    weights = (
        *attention_weights(attention, hidden, prefix="attn.", names=fused("Wqkv", "out_proj")),
        *plain_mlp(hidden, config.size("expansion_ratio", default=4) * hidden, up="ffn.up_proj", down="ffn.down_proj"),
        *norms(hidden, "norm_1", "norm_2"),
    )
    return decoder(
        config, (Layer(weights, attention),) * config.num_layers, tied=True, layer_prefix="transformer.blocks.",
        embed="transformer.wte", norm="transformer.norm_f",
    )  # fmt: skip


@family("FalconForCausalLM", "RWForCausalLM")
def falcon(config: Config) -> ModelParts:
    """Falcon: 7B has one KV head and one norm, 40B and 180B have KV groups and two norms; tied."""
    hidden = config.size("hidden_size")
    new = config.flag("new_decoder_architecture", default=config.has("n_head_kv"))
    grouped = config.size("num_kv_heads", "n_head_kv", default=config.size("num_attention_heads"))
    one_head = config.flag("multi_query", default=True) and not new
    attention = read_attention(config, kv_heads=1 if one_head else grouped)
    bias = config.flag("bias", default=False)
    names = fused("query_key_value", "dense")
    weights = (
        *attention_weights(attention, hidden, prefix="self_attention.", names=names, qkv_bias=bias, out_bias=bias),
        *plain_mlp(hidden, mlp_size(config), up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h", bias=bias),
        *norms(hidden, *_falcon_norms(config, new), bias=True),
    )
    return decoder(
        config, (Layer(weights, attention),) * config.num_layers, tied=True, layer_prefix="transformer.h.",
        embed="transformer.word_embeddings", norm="transformer.ln_f", norm_bias=True,
    )  # fmt: skip


def _falcon_norms(config: Config, new: bool) -> tuple[str, ...]:
    """Falcon's norms: one where attention and MLP stand side by side, unless the new form gives each its own."""
    parallel = config.flag("parallel_attn", default=True)
    count = config.size("num_ln_in_parallel_attn", default=2 if new and parallel else 1)
    if new and count == 2:
        return "ln_attn", "ln_mlp"
    return ("input_layernorm",) if parallel else ("input_layernorm", "post_attention_layernorm")


@family("PhiForCausalLM")
def phi(config: Config) -> ModelParts:
    """Phi-1, Phi-1.5, Phi-2: attention and MLP side by side behind one norm, biases everywhere."""
    hidden, attention = config.size("hidden_size"), read_attention(config)
    normed = config.flag("qk_layernorm", default=False)
    names = ("q_proj", "k_proj", "v_proj", "dense")
    weights = (
        *attention_weights(attention, hidden, names=names, qkv_bias=True, out_bias=True),
        *(norms(attention.head_dim, "self_attn.q_layernorm", "self_attn.k_layernorm", bias=True) if normed else ()),
        *plain_mlp(hidden, mlp_size(config), up="mlp.fc1", down="mlp.fc2", bias=True),
        *norms(hidden, "input_layernorm", bias=True),
    )
    return decoder(
        config, (Layer(weights, attention),) * config.num_layers, norm="model.final_layernorm", norm_bias=True,
        head_bias=True,
    )  # fmt: skip
