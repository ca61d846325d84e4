"""Parts that families share: weights under the checkpoints' names, common config values, decoders."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

from planner.model.architecture import Attention, Component, Layer, Model, ModelParts, Moe, Shard, Weight
from planner.model.config import Config, family
from planner.resources import package_dir, tables_of

Kind = TypeVar("Kind", bound=Hashable)
QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED = ("gate_proj", "up_proj", "down_proj")  #: names of the projections of an MLP: those up, and last the one down
FUSED_GATE_UP = ("gate_up_proj", "gate_up_proj", "down_proj")
W1_W3_W2 = ("w1", "w3", "w2")
PLAIN = ("up_proj", "down_proj")
PRE_NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True, slots=True)
class OuterNames:
    """Names of the weights around the layers, and the prefix of the paths of layers."""

    embed: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    layers: str = "model.layers."


LLAMA_NAMES = OuterNames()
QkNorm = Literal["head", "all heads"] | None


def linear(
    name: str, out_features: int, in_features: int, component: Component, shard: Shard = Shard.NONE, *,
    bias: bool = False, copies: int = 1, max_shards: int | None = None,
) -> tuple[Weight, ...]:  # fmt: skip
    """A matrix that tokens are multiplied with, and its bias."""
    matrix = Weight(name, component, (out_features, in_features), copies, shard, max_shards, linear=True)
    # the bias of a row-split matrix is added once, after the reduction: every rank holds all of it
    bias_shard = Shard.NONE if shard is Shard.ROW else shard
    added = Weight(f"{name}.bias", component, (out_features,), copies, bias_shard, max_shards)
    return (matrix, added) if bias else (matrix,)


def vector(name: str, size: int, component: Component = Component.NORM, copies: int = 1) -> tuple[Weight, ...]:
    return (Weight(name, component, (size,), copies),)


def norms(hidden_size: int, *names: str, bias: bool = False) -> tuple[Weight, ...]:
    parts = ("", ".bias") if bias else ("",)
    return tuple(weight for name in names for part in parts for weight in vector(name + part, hidden_size))


def fused(qkv: str, out: str) -> tuple[str, str, str, str]:
    return qkv, qkv, qkv, out


def attention_weights(
    attention: Attention, hidden_size: int, *, prefix: str = "self_attn.", qkvo: tuple[str, str, str, str] = QKVO,
    bias: bool = False, qkv_bias: bool | None = None, qk_norm: QkNorm = None,
) -> tuple[Weight, ...]:  # fmt: skip
    """Projections q, k, v and o; a fused matrix is given as its parts, all under its name. ``bias`` is that of o, and
    of q, k, v unless ``qkv_bias`` is given. ``qk_norm``: per head or over all heads."""
    part, column = Component.ATTENTION, Shard.COLUMN
    q, k, v, o = (prefix + name for name in qkvo)
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
    hidden_size: int, intermediate_size: int, *, prefix: str = "mlp.", names: tuple[str, ...] = GATED,
    component: Component = Component.MLP, bias: bool = False, copies: int = 1,
) -> tuple[Weight, ...]:  # fmt: skip
    """An MLP: gated (SwiGLU and its like) with three ``names``, plain with two. Fused gate and up are two weights."""
    routed = component is Component.ROUTED_EXPERT
    column, row = (Shard.EXPERT_COLUMN, Shard.EXPERT_ROW) if routed else (Shard.COLUMN, Shard.ROW)
    *ups, down = (prefix + name for name in names)
    weights: tuple[Weight, ...] = ()
    for up in ups:
        weights += linear(up, intermediate_size, hidden_size, component, column, bias=bias, copies=copies)
    return weights + linear(down, hidden_size, intermediate_size, component, row, bias=bias, copies=copies)


def moe_mlp(
    hidden_size: int, moe: Moe, *, prefix: str = "mlp.", router: str = "gate", experts: str = "experts.0.",
    names: tuple[str, ...] = GATED, bias: bool = False, latent: int = 0,
) -> tuple[Weight, ...]:  # fmt: skip
    """Router and routed experts, one weight for all with ``copies``. ``latent``: size of the vectors that experts read
    and write instead of hidden vectors. Buffers that only correct the routing are left out."""
    return (
        *linear(f"{prefix}{router}", moe.num_experts, hidden_size, Component.ROUTER, bias=bias),
        *mlp(
            latent or hidden_size, moe.intermediate_size, prefix=f"{prefix}{experts}", names=names,
            component=Component.ROUTED_EXPERT, bias=bias, copies=moe.num_experts,
        ),
    )  # fmt: skip


def shared_expert(hidden_size: int, size: int, *, prefix: str, names: tuple[str, ...] = GATED) -> tuple[Weight, ...]:
    return mlp(hidden_size, size, prefix=prefix, names=names, component=Component.SHARED_EXPERT) if size else ()


def experts(hidden_size: int, moe: Moe, *, prefix: str = "mlp.", names: tuple[str, ...] = GATED) -> tuple[Weight, ...]:
    """Router, routed experts, and the shared ones as one wide MLP."""
    shared = moe.num_shared_experts * moe.intermediate_size
    return (
        *moe_mlp(hidden_size, moe, prefix=prefix, names=names),
        *shared_expert(hidden_size, shared, prefix=f"{prefix}shared_experts.", names=names),
    )


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
    groups, taken = config.size("n_group", default=0), config.size("topk_group", default=0)
    if not groups and config.text("model_type", default="").startswith("deepseek_v3"):  # its own defaults
        groups, taken = 8, 4
    return Moe(experts, top_k, config.size(size), shared, max(groups, 1), min(max(taken, 1), max(groups, 1)))


def context_tokens(config: Config, *, yarn: bool = True) -> int:
    """The model's own context, stretched by the rotary factor; 2048 without any key (``_get_and_verify_max_len`` of
    vLLM 0.32: ``model_max_length`` first). With ``yarn`` YaRN counts beyond ``max_position_embeddings``."""
    tokens = config.size("model_max_length", "max_position_embeddings", default=2048)
    rope = config.get("rope_scaling", "rope_parameters")
    factor = rope.get("factor") if isinstance(rope, Mapping) else None
    if not isinstance(factor, int | float) or isinstance(factor, bool) or not 1 <= factor <= 10_000:
        return tokens
    kind = rope.get("rope_type", rope.get("type"))
    original = rope.get("original_max_position_embeddings")
    if yarn and kind == "yarn" and isinstance(original, int) and 1 <= original <= tokens:
        return max(tokens, int(original * factor))
    already_counted = config.text("model_type", default="").startswith("gemma3")
    return int(tokens * factor) if kind in STRETCHING and not already_counted else tokens


def with_overrides(model: Model, overrides: Mapping[str, Any], *, yarn: bool = True) -> Model:
    """Return ``model`` with the context that it has under ``--hf-overrides``; ``yarn``: YaRN stretches it."""
    config = Config({"max_position_embeddings": model.max_position_embeddings, **overrides}, model_id=model.id)
    return replace(model, max_position_embeddings=context_tokens(config, yarn=yarn))


def windows(config: Config, *, full_every: int = 0) -> list[int | None]:
    """Sliding window of each layer, None for full attention. ``layer_types`` decides where it is given; else every
    ``full_every``-th layer (0: none) and the first ``max_window_layers`` see all."""
    count = config.num_layers
    types = config.names("layer_types", count=count)
    if not config.flag("use_sliding_window", default=True) or not config.has("sliding_window"):
        return [None] * count
    window, full_before = config.size("sliding_window"), config.size("max_window_layers", default=0)
    if types:
        return [window if kind == "sliding_attention" else None for kind in types]
    full = [i < full_before or (full_every > 0 and (i + 1) % full_every == 0) for i in range(count)]
    return [None if sees_all else window for sees_all in full]


def sparse_layers(config: Config) -> list[bool]:
    """For each layer whether it has experts: by ``mlp_layer_types``, DeepSeek's keys or Qwen's; True without any."""
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


def decoder(
    config: Config, layers: tuple[Layer, ...], names: OuterNames = LLAMA_NAMES, *, tied: bool = False,
    norm_bias: bool = False, head_bias: bool = False, extra: tuple[Weight, ...] = (), mtp: tuple[Weight, ...] = (),
    remote_code: bool = False, notes: tuple[str, ...] = (),
) -> ModelParts:  # fmt: skip
    """Layers between one embedding and one lm_head. ``tied`` is the class's default, ``extra`` are further outer
    weights."""
    hidden, vocab = config.hidden_size, config.size("vocab_size")
    key = "tie_word_embeddings"  # the outer level decides, then the text level, then the class
    tied = config.outer.flag(key, default=config.flag(key, default=tied))
    embedding = Weight(names.embed, Component.EMBEDDING, (vocab, hidden), shard=Shard.VOCAB)
    outer = (embedding, *norms(hidden, names.norm, bias=norm_bias))
    if not tied:
        head = Weight(names.head, Component.LM_HEAD, (vocab, hidden), shard=Shard.VOCAB, linear=True)
        bias = Weight(f"{names.head}.bias", Component.LM_HEAD, (vocab,), shard=Shard.VOCAB)
        outer += (head, bias) if head_bias else (head,)
    return ModelParts(
        layers=layers, outer=outer + extra, hidden_size=hidden, vocab_size=vocab, mtp=mtp, tied_embeddings=tied,
        max_position_embeddings=context_tokens(config), layer_prefix=names.layers, requires_remote_code=remote_code,
        notes=tuple(notes),
    )  # fmt: skip


def uniform_decoder(
    config: Config, ffn: tuple[Weight, ...], *, moe: Moe | None = None, attention: Attention | None = None,
    norm_names: tuple[str, ...] = PRE_NORMS, norm_bias: bool = False, extra_weights: tuple[Weight, ...] = (),
    full_every: int = 0, names: OuterNames = LLAMA_NAMES, outer: Mapping[str, Any] | None = None, **projections: Any,
) -> ModelParts:  # fmt: skip
    """A decoder whose layers differ in their windows only. ``projections`` goes to ``attention_weights``."""
    hidden, shape = config.hidden_size, attention or read_attention(config)
    weights = (
        *attention_weights(shape, hidden, **projections),
        *extra_weights,
        *ffn,
        *norms(hidden, *norm_names, bias=norm_bias),
    )
    spans = windows(config, full_every=full_every)
    layers = layers_by_kind(spans, lambda window: Layer(weights, replace(shape, window=window), moe))
    return decoder(config, layers, names, norm_bias=norm_bias, **outer or {})


def family_rows(table: str, build: Callable[..., ModelParts]) -> None:
    """Register the rows of a table of ``uniform.toml``: ``build`` gets their options, and those that configs give."""

    def built(
        config: Config, *, defaults: Mapping[str, Any] = {}, flags: Mapping[str, Any] = {},
        sizes: Mapping[str, Any] = {}, **options: Any,
    ) -> ModelParts:  # fmt: skip
        config = config.with_defaults(defaults)
        on = {name: config.flag(key, default=default) for name, (key, default, _) in flags.items()}
        values = {name: on[name] and value for name, (_, _, value) in flags.items() if on[name] or value is True}
        numbers = {name: config.size(*keys, default=default) for name, (*keys, default) in sizes.items()}
        return build(config, **options, **values, **numbers)

    for row in map(dict, tables_of(package_dir("model") / "families" / "uniform.toml")[table]):
        family(*row.pop("classes"))(partial(built, **row))


PROJECTIONS = ("eh_proj", "e_h_proj", "fc", "input_proj")  #: names of the projection of a module: each has one


def mtp_module(
    layer: Layer, hidden_size: int, prefix: str, *, vocab_size: int | None = None, projection: str = "eh_proj",
    norm_names: tuple[str, str, str] = ("enorm", "hnorm", "shared_head.norm"),
) -> tuple[Weight, ...]:  # fmt: skip
    """Weights of one module, a speculative draft of the token after next, full paths under ``prefix``::

        input  = projection [2 hidden -> hidden] of (norm of the embedding, norm of the hidden state)
        output = lm_head of a norm of (``layer`` of the input)

    With ``vocab_size`` it has an embedding and a head of its own."""
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
    """The ``num_nextn_predict_layers`` modules of DeepSeek-V3. ``tables``: each repeats embedding and head."""
    hidden, first = config.hidden_size, config.num_layers
    vocab = config.size("vocab_size") if tables else None
    weights: tuple[Weight, ...] = ()
    for index in range(config.size("num_nextn_predict_layers", default=0, at_most=16)):
        weights += mtp_module(layer, hidden, f"model.layers.{first + index}.", vocab_size=vocab)
    return weights


def mixed_decoder(
    config: Config, kinds: Sequence[tuple[Any, bool]], mixing: Callable[[Any], tuple[Weight, ...]], moe: Moe | None,
    sparse: tuple[Weight, ...], *, dense: str = "intermediate_size", prefix: str = "mlp.",
    norm_names: tuple[str, ...] = PRE_NORMS, mtp_tables: bool | None = None, **outer: Any,
) -> ModelParts:  # fmt: skip
    """A decoder with ``moe`` or an MLP (``dense``: key of its size) in each layer. ``kinds``: mixer, and True for
    experts. ``mixing`` makes the weights of a mixer, ``sparse`` are those of the experts, ``mtp_tables`` as in
    ``mtp_layers``."""
    hidden = config.hidden_size

    def make(kind: tuple[Any, bool]) -> Layer:
        mixer, is_sparse = kind
        weights = mixing(mixer) + norms(hidden, *norm_names)
        if is_sparse:
            return Layer(weights + sparse, mixer, moe)
        return Layer(weights + mlp(hidden, config.size(dense), prefix=prefix), mixer)

    mtp = () if mtp_tables is None else mtp_layers(config, make((kinds[0][0], True)), tables=mtp_tables)
    return decoder(config, layers_by_kind(kinds, make), mtp=mtp, **outer)


def mtp_projections(mtp: tuple[Weight, ...]) -> list[Weight]:
    return [weight for weight in mtp if weight.name.rpartition(".")[2] in PROJECTIONS]
