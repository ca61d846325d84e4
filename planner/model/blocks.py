"""Weights of the parts that families share. Names are those of the checkpoints."""

from __future__ import annotations

from planner.model.architecture import Attention, Component, Moe, Shard, Weight

GATED = ("gate_proj", "up_proj", "down_proj")


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
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: int | tuple[int, int] | None = None,
) -> tuple[Weight, ...]:
    """Projections q, k, v and o; a matrix that fuses some of them is given as its parts, all under its name.

    ``qk_norm`` is the size of the q and of the k norm, where there are any.
    """
    part, column = Component.ATTENTION, Shard.COLUMN
    q, k, v, o = (prefix + name for name in names)
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    k_size, v_size = kv_heads * attention.head_dim, kv_heads * attention.v_head_dim
    weights = (
        *linear(q, heads * attention.head_dim, hidden_size, part, column, bias=qkv_bias),
        *linear(k, k_size, hidden_size, part, column, bias=qkv_bias, max_shards=kv_heads),
        *linear(v, v_size, hidden_size, part, column, bias=qkv_bias, max_shards=kv_heads),
        *linear(o, hidden_size, heads * attention.v_head_dim, part, Shard.ROW, bias=out_bias),
    )
    if qk_norm:
        q_norm, k_norm = (qk_norm, qk_norm) if isinstance(qk_norm, int) else qk_norm
        weights += vector(f"{prefix}q_norm", q_norm) + vector(f"{prefix}k_norm", k_norm)
    return weights


def gated_mlp(
    hidden_size: int,
    intermediate_size: int,
    *,
    prefix: str = "mlp.",
    names: tuple[str, str, str] = GATED,
    component: Component = Component.MLP,
    bias: bool = False,
    copies: int = 1,
) -> tuple[Weight, ...]:
    """SwiGLU and its like: gate, up and down projections; fused gate and up are two weights under one name."""
    routed = component is Component.ROUTED_EXPERT
    column, row = (Shard.EXPERT_COLUMN, Shard.EXPERT_ROW) if routed else (Shard.COLUMN, Shard.ROW)
    gate, up, down = (prefix + name for name in names)
    return (
        *linear(gate, intermediate_size, hidden_size, component, column, bias=bias, copies=copies),
        *linear(up, intermediate_size, hidden_size, component, column, bias=bias, copies=copies),
        *linear(down, hidden_size, intermediate_size, component, row, bias=bias, copies=copies),
    )


def moe_mlp(
    hidden_size: int,
    moe: Moe,
    *,
    prefix: str = "mlp.",
    router: str = "gate",
    experts: str = "experts.0.",
    names: tuple[str, str, str] = GATED,
    router_bias: bool = False,
    expert_bias: bool = False,
) -> tuple[Weight, ...]:
    """Router and routed experts. One expert stands for all: ``copies`` says how many there are.

    A buffer that only corrects the routing (one number per expert) is not a parameter and is left out.
    """
    return (
        *linear(f"{prefix}{router}", moe.num_experts, hidden_size, Component.ROUTER, bias=router_bias),
        *gated_mlp(
            hidden_size, moe.intermediate_size, prefix=f"{prefix}{experts}", names=names,
            component=Component.ROUTED_EXPERT, bias=expert_bias, copies=moe.num_experts,
        ),
    )  # fmt: skip


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
