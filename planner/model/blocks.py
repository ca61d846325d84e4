"""Weights of the parts that families share. Names are those of the checkpoints."""

from __future__ import annotations

from planner.model.architecture import Attention, Component, Shard, Weight


def linear(
    name: str,
    out_features: int,
    in_features: int,
    component: Component,
    shard: Shard = Shard.NONE,
    *,
    bias: bool = False,
    copies: int = 1,
    max_shards: int | None = None,
) -> tuple[Weight, ...]:
    """A matrix that tokens are multiplied with, and its bias."""
    matrix = Weight(name, component, (out_features, in_features), copies, shard, max_shards, linear=True)
    if not bias:
        return (matrix,)
    # the bias of a row-split matrix is added once, after the reduction: every rank holds all of it
    bias_shard = Shard.NONE if shard is Shard.ROW else shard
    return matrix, Weight(f"{name}.bias", component, (out_features,), copies, bias_shard, max_shards)


def vector(name: str, size: int, component: Component = Component.NORM, copies: int = 1) -> tuple[Weight, ...]:
    """A norm weight, a bias, a table of scalars: held whole by every rank."""
    return (Weight(name, component, (size,), copies),)


def norms(hidden_size: int, *names: str, bias: bool = False) -> tuple[Weight, ...]:
    """Norms of one hidden vector each, with or without bias."""
    found: tuple[Weight, ...] = ()
    for name in names:
        found += vector(name, hidden_size)
        if bias:
            found += vector(f"{name}.bias", hidden_size)
    return found


def attention_weights(
    attention: Attention,
    hidden_size: int,
    *,
    prefix: str = "self_attn.",
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: int | None = None,
) -> tuple[Weight, ...]:
    """Separate q, k, v and o projections; ``qk_norm`` is the size of the q and k norms, where there are any."""
    part = Component.ATTENTION
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    weights = (
        *linear(f"{prefix}q_proj", heads * attention.head_dim, hidden_size, part, Shard.COLUMN, bias=qkv_bias),
        *linear(
            f"{prefix}k_proj", kv_heads * attention.head_dim, hidden_size, part, Shard.COLUMN,
            bias=qkv_bias, max_shards=kv_heads,
        ),
        *linear(
            f"{prefix}v_proj", kv_heads * attention.v_head_dim, hidden_size, part, Shard.COLUMN,
            bias=qkv_bias, max_shards=kv_heads,
        ),
        *linear(f"{prefix}o_proj", hidden_size, heads * attention.v_head_dim, part, Shard.ROW, bias=out_bias),
    )  # fmt: skip
    if qk_norm:
        weights += vector(f"{prefix}q_norm", qk_norm) + vector(f"{prefix}k_norm", qk_norm)
    return weights


def gated_mlp(
    hidden_size: int,
    intermediate_size: int,
    *,
    prefix: str = "mlp.",
    component: Component = Component.MLP,
    bias: bool = False,
    copies: int = 1,
) -> tuple[Weight, ...]:
    """SwiGLU and its like: gate, up and down projections."""
    column = Shard.EXPERT if component is Component.ROUTED_EXPERT else Shard.COLUMN
    row = Shard.EXPERT if component is Component.ROUTED_EXPERT else Shard.ROW
    return (
        *linear(f"{prefix}gate_proj", intermediate_size, hidden_size, component, column, bias=bias, copies=copies),
        *linear(f"{prefix}up_proj", intermediate_size, hidden_size, component, column, bias=bias, copies=copies),
        *linear(f"{prefix}down_proj", hidden_size, intermediate_size, component, row, bias=bias, copies=copies),
    )


def plain_mlp(
    hidden_size: int,
    intermediate_size: int,
    *,
    up: str = "mlp.up_proj",
    down: str = "mlp.down_proj",
    bias: bool = False,
) -> tuple[Weight, ...]:
    """Two matrices with an activation between them."""
    return (
        *linear(up, intermediate_size, hidden_size, Component.MLP, Shard.COLUMN, bias=bias),
        *linear(down, hidden_size, intermediate_size, Component.MLP, Shard.ROW, bias=bias),
    )


def embeddings(
    vocab_size: int,
    hidden_size: int,
    *,
    tied: bool,
    embed: str = "model.embed_tokens",
    head: str = "lm_head",
    norm: str = "model.norm",
    norm_bias: bool = False,
    head_bias: bool = False,
) -> tuple[Weight, ...]:
    """Token embedding, final norm and, where it is a matrix of its own, the lm_head."""
    weights = (
        Weight(embed, Component.EMBEDDING, (vocab_size, hidden_size), shard=Shard.VOCAB),
        *norms(hidden_size, norm, bias=norm_bias),
    )
    if tied:
        return weights
    matrix = Weight(head, Component.LM_HEAD, (vocab_size, hidden_size), shard=Shard.VOCAB, linear=True)
    bias = (Weight(f"{head}.bias", Component.LM_HEAD, (vocab_size,), shard=Shard.VOCAB),) if head_bias else ()
    return (*weights, matrix, *bias)
