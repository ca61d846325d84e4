"""What many families read alike from ``config.json``, and how they put a decoder together.

``ModelParts`` of a usual decoder are its layers, one embedding, one final norm and one lm_head. Layers that are alike
are one object: ``layers_by_kind`` builds each kind once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from planner.model.architecture import Attention, Component, Layer, Moe, Shard, Weight
from planner.model.blocks import LLAMA_NAMES, OuterNames, embeddings, linear, vector
from planner.model.config import Config, ModelParts

Kind = TypeVar("Kind", bound=Hashable)

#: Rotary forms that stretch the context beyond ``max_position_embeddings``, by their ``factor``.
STRETCHING = ("linear", "dynamic", "ntk")


def read_attention(config: Config, *, kv_heads: int | None = None) -> Attention:
    """Shape of softmax attention: an explicit ``head_dim`` before hidden / heads, MHA where KV heads are not given."""
    heads = config.size("num_attention_heads")
    if not config.has("head_dim") and config.hidden_size < heads:
        raise config.refuse("num_attention_heads", f"at most hidden_size = {config.hidden_size}")
    head_dim = config.size("head_dim", default=config.hidden_size // heads)
    return Attention(heads, kv_heads or config.size("num_key_value_heads", default=heads), head_dim, head_dim)


def read_moe(config: Config, *, size: str = "moe_intermediate_size", shared: int = 0) -> Moe:
    """Routing under any of the names in use; ``size`` is the key of one expert's width."""
    experts = config.size("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    top_k = config.size("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_top_k", "moe_k")
    return Moe(experts, top_k, config.size(size), shared)


def is_tied(config: Config, *, default: bool) -> bool:
    """Whether lm_head is the embedding: the outer level decides, then the text level, then the class's default."""
    inner = config.flag("tie_word_embeddings", default=default)
    return config.outer.flag("tie_word_embeddings", default=inner)


def context_tokens(config: Config) -> int:
    """The model's own context, as vLLM derives it: ``model_max_length`` first, stretched by the rotary factor.

    Source: ``derive_max_model_len_and_key`` and ``_get_and_verify_max_len`` of vLLM 0.32; without any key it
    takes 2048. YaRN counts where it goes beyond ``max_position_embeddings``.
    """
    tokens = config.size("model_max_length", "max_position_embeddings", default=2048)
    rope = config.get("rope_scaling", "rope_parameters")
    factor = rope.get("factor") if isinstance(rope, Mapping) else None
    if not isinstance(factor, int | float) or isinstance(factor, bool) or not 1 <= factor <= 10_000:
        return tokens
    kind = rope.get("rope_type", rope.get("type"))
    original = rope.get("original_max_position_embeddings")
    if kind == "yarn" and isinstance(original, int) and 1 <= original <= tokens:
        return max(tokens, int(original * factor))
    already_counted = config.text("model_type", default="").startswith("gemma3")
    return int(tokens * factor) if kind in STRETCHING and not already_counted else tokens


def windows(config: Config, *, full_every: int = 0, full_before: int = 0) -> list[int | None]:
    """Sliding window of each layer, None where a layer sees all tokens.

    ``layer_types`` decides where it is given; else every ``full_every``-th layer (0: none) and the first
    ``full_before`` layers see all. ``use_sliding_window: false`` and a null ``sliding_window`` switch windows off.
    """
    count = config.num_layers
    types = config.names("layer_types", count=count)
    if not config.flag("use_sliding_window", default=True) or not config.has("sliding_window"):
        return [None] * count
    window = config.size("sliding_window")
    if types:
        return [window if kind == "sliding_attention" else None for kind in types]
    full = [i < full_before or (full_every > 0 and (i + 1) % full_every == 0) for i in range(count)]
    return [None if sees_all else window for sees_all in full]


def sparse_layers(config: Config) -> list[bool]:
    """Which layers have experts: by ``mlp_layer_types``, else by DeepSeek's or by Qwen's keys; all, without any."""
    count = config.num_layers
    types = config.names("mlp_layer_types", count=count)
    if types:
        return [kind == "sparse" for kind in types]
    first = config.size("first_k_dense_replace", default=0)
    every = config.size("moe_layer_freq", "decoder_sparse_step", default=1)
    dense = set(config.sizes("mlp_only_layers"))
    offset = 0 if config.has("moe_layer_freq") else 1
    return [i >= first and (i + offset) % every == 0 and i not in dense for i in range(count)]


def layers_by_kind(kinds: Sequence[Kind], make: Callable[[Kind], Layer]) -> tuple[Layer, ...]:
    """One layer for each of ``kinds``, in order; layers of one kind are one object."""
    made = {kind: make(kind) for kind in dict.fromkeys(kinds)}
    return tuple(made[kind] for kind in kinds)


def uniform(
    config: Config,
    weights: tuple[Weight, ...],
    attention: Attention,
    moe: Moe | None = None,
    *,
    full_every: int = 0,
    full_before: int = 0,
) -> tuple[Layer, ...]:
    """Layers of the same weights, each with its own sliding window."""
    spans = windows(config, full_every=full_every, full_before=full_before)
    return layers_by_kind(spans, lambda window: Layer(weights, replace(attention, window=window), moe))


def decoder(
    config: Config,
    layers: tuple[Layer, ...],
    names: OuterNames = LLAMA_NAMES,
    *,
    tied: bool = False,
    norm_bias: bool = False,
    head_bias: bool = False,
    extra: tuple[Weight, ...] = (),
    mtp: tuple[Weight, ...] = (),
    remote_code: bool = False,
    notes: tuple[str, ...] = (),
) -> ModelParts:
    """Layers between one embedding and one lm_head; ``tied`` is what the class does when the config does not say.

    ``extra`` are further outer weights: learned positions, a norm of the embedding. ``remote_code``: the
    repository's own Python is needed, for its configuration or its tokenizer.
    """
    hidden, vocab = config.hidden_size, config.size("vocab_size")
    tied = is_tied(config, default=tied)
    return ModelParts(
        layers=layers,
        outer=embeddings(vocab, hidden, names, tied=tied, norm_bias=norm_bias, head_bias=head_bias) + extra,
        hidden_size=hidden,
        vocab_size=vocab,
        max_position_embeddings=context_tokens(config),
        tied_embeddings=tied,
        mtp=mtp,
        layer_prefix=names.layers,
        requires_remote_code=remote_code,
        notes=notes,
    )


# --- multi-token prediction ---------------------------------------------------------------------------------------

#: What checkpoints call the projection of a module: each has one.
PROJECTIONS = ("eh_proj", "e_h_proj", "fc", "input_proj")


def mtp_module(
    layer: Layer,
    hidden_size: int,
    prefix: str,
    *,
    vocab_size: int | None = None,
    projection: str = "eh_proj",
    norm_names: tuple[str, str, str] = ("enorm", "hnorm", "shared_head.norm"),
) -> tuple[Weight, ...]:
    """Weights of one module, which guesses the token after next and serves as a speculative draft::

        input  = projection [2 hidden -> hidden] of (norm of the embedding, norm of the hidden state)
        output = lm_head of a norm of (``layer`` of the input)

    With ``vocab_size`` it has an embedding and a head of its own. Names are full paths under ``prefix``. All are of
    Component.MTP: the main model does not hold them.
    """
    part = Component.MTP
    weights = (
        *layer.weights,
        *linear(projection, hidden_size, 2 * hidden_size, part),
        *(weight for name in norm_names for weight in vector(name, hidden_size, part)),
    )
    if vocab_size:
        table = Weight("embed_tokens", part, (vocab_size, hidden_size), shard=Shard.VOCAB)
        weights += (table, replace(table, name="shared_head.head", linear=True))
    return tuple(replace(weight, name=prefix + weight.name, component=part) for weight in weights)


def mtp_layers(config: Config, layer: Layer, *, tables: bool) -> tuple[Weight, ...]:
    """The ``num_nextn_predict_layers`` modules of DeepSeek-V3 and its like, stored as layers after the last one.

    ``tables``: whether the checkpoint stores the embedding and the head again with each module.
    """
    hidden, first = config.hidden_size, config.num_layers
    vocab = config.size("vocab_size") if tables else None
    weights: tuple[Weight, ...] = ()
    for index in range(config.size("num_nextn_predict_layers", default=0, at_most=16)):
        weights += mtp_module(layer, hidden, f"model.layers.{first + index}.", vocab_size=vocab)
    return weights


def mtp_projections(mtp: tuple[Weight, ...]) -> list[Weight]:
    """The projection of each module among the weights ``mtp``."""
    return [weight for weight in mtp if weight.name.rpartition(".")[2] in PROJECTIONS]
