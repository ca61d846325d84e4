"""Weights of the parts that families share. Names are those of the checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.model.architecture import Attention, Component, Moe, Shard, Weight

#: What checkpoints call the projections of an MLP: those up, and last the one down.
GATED = ("gate_proj", "up_proj", "down_proj")
FUSED_GATE_UP = ("gate_up_proj", "gate_up_proj", "down_proj")
W1_W3_W2 = ("w1", "w3", "w2")
PLAIN = ("up_proj", "down_proj")
PRE_NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True, slots=True)
class OuterNames:
    """What a checkpoint calls the weights around its layers, and what the paths of its layers begin with."""

    embed: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    layers: str = "model.layers."


LLAMA_NAMES = OuterNames()

QkNorm = Literal["head", "all heads"] | None


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
    parts = ("", ".bias") if bias else ("",)
    return tuple(weight for name in names for part in parts for weight in vector(name + part, hidden_size))


def fused(qkv: str, out: str) -> tuple[str, str, str, str]:
    """Names of attention projections of which q, k and v are one matrix."""
    return qkv, qkv, qkv, out


def attention_weights(
    attention: Attention,
    hidden_size: int,
    *,
    prefix: str = "self_attn.",
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
    bias: bool = False,
    qkv_bias: bool | None = None,
    qk_norm: QkNorm = None,
) -> tuple[Weight, ...]:
    """Projections q, k, v and o; a matrix that fuses some of them is given as its parts, all under its name.

    ``bias`` is that of o, and of the others where ``qkv_bias`` does not say. ``qk_norm``: q and k are normalised,
    each head by itself or all heads together.
    """
    part, column = Component.ATTENTION, Shard.COLUMN
    q, k, v, o = (prefix + name for name in names)
    heads, kv_heads, head_dim = attention.num_heads, attention.num_kv_heads, attention.head_dim
    qkv_bias = bias if qkv_bias is None else qkv_bias
    weights = (
        *linear(q, heads * head_dim, hidden_size, part, column, bias=qkv_bias),
        *linear(k, kv_heads * head_dim, hidden_size, part, column, bias=qkv_bias, max_shards=kv_heads),
        *linear(v, kv_heads * attention.v_head_dim, hidden_size, part, column, bias=qkv_bias, max_shards=kv_heads),
        *linear(o, hidden_size, heads * attention.v_head_dim, part, Shard.ROW, bias=bias),
    )
    if qk_norm:
        q_heads, k_heads = (heads, kv_heads) if qk_norm == "all heads" else (1, 1)
        weights += vector(f"{prefix}q_norm", q_heads * head_dim) + vector(f"{prefix}k_norm", k_heads * head_dim)
    return weights


def mlp(
    hidden_size: int,
    intermediate_size: int,
    *,
    prefix: str = "mlp.",
    names: tuple[str, ...] = GATED,
    component: Component = Component.MLP,
    bias: bool = False,
    copies: int = 1,
) -> tuple[Weight, ...]:
    """An MLP: gated (SwiGLU and its like) with three ``names``, plain with two.

    Fused gate and up are two weights under one name.
    """
    routed = component is Component.ROUTED_EXPERT
    column, row = (Shard.EXPERT_COLUMN, Shard.EXPERT_ROW) if routed else (Shard.COLUMN, Shard.ROW)
    *ups, down = (prefix + name for name in names)
    weights: tuple[Weight, ...] = ()
    for up in ups:
        weights += linear(up, intermediate_size, hidden_size, component, column, bias=bias, copies=copies)
    return weights + linear(down, hidden_size, intermediate_size, component, row, bias=bias, copies=copies)


def moe_mlp(
    hidden_size: int,
    moe: Moe,
    *,
    prefix: str = "mlp.",
    router: str = "gate",
    experts: str = "experts.0.",
    names: tuple[str, ...] = GATED,
    bias: bool = False,
    latent: int = 0,
) -> tuple[Weight, ...]:
    """Router and routed experts. One expert stands for all: ``copies`` says how many there are.

    ``latent`` is the size of the narrower vectors that the experts read and write, where they do not work on hidden
    vectors. A buffer that only corrects the routing (one number per expert) is not a parameter and is left out.
    """
    return (
        *linear(f"{prefix}{router}", moe.num_experts, hidden_size, Component.ROUTER, bias=bias),
        *mlp(
            latent or hidden_size, moe.intermediate_size, prefix=f"{prefix}{experts}", names=names,
            component=Component.ROUTED_EXPERT, bias=bias, copies=moe.num_experts,
        ),
    )  # fmt: skip


def shared_expert(hidden_size: int, size: int, *, prefix: str, names: tuple[str, ...] = GATED) -> tuple[Weight, ...]:
    """The expert that every token passes; nothing where ``size`` is 0."""
    return mlp(hidden_size, size, prefix=prefix, names=names, component=Component.SHARED_EXPERT) if size else ()


def embeddings(
    vocab_size: int,
    hidden_size: int,
    names: OuterNames = LLAMA_NAMES,
    *,
    tied: bool,
    norm_bias: bool = False,
    head_bias: bool = False,
) -> tuple[Weight, ...]:
    """Token embedding, final norm and, where it is a matrix of its own, the lm_head."""
    weights = (
        Weight(names.embed, Component.EMBEDDING, (vocab_size, hidden_size), shard=Shard.VOCAB),
        *norms(hidden_size, names.norm, bias=norm_bias),
    )
    if tied:
        return weights
    head = Weight(names.head, Component.LM_HEAD, (vocab_size, hidden_size), shard=Shard.VOCAB, linear=True)
    bias = Weight(f"{names.head}.bias", Component.LM_HEAD, (vocab_size,), shard=Shard.VOCAB)
    return (*weights, head, bias) if head_bias else (*weights, head)
