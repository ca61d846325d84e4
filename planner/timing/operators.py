"""The work of one engine step on one GPU: for each operator, its kernels, FLOP and bytes.

A matrix of shape (out, in) that n tokens pass through costs, divided as tensor parallelism divides it::

    FLOP  = 2 x out x in x n
    bytes = its stored bytes + (out + in) x 2 x n  read once per step, whatever n is

Attention adds, for each pair of a query token and a cached token that it may see::

    FLOP  = 2 x heads x (head_dim + v_head_dim)    4 x heads x head_dim where both are equal
    bytes = KV elements of one rank x element size read once per sequence in decode

Recurrent states of s elements take 6 s FLOP for each decoded token and 8 s for each prompt token. Every quantity is
linear in its driver. Left out: FLOP of rotary embedding and residual (their kernels and bytes count), vision towers."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from planner.engine import EngineConfig, Layout, LoraConfig, Piece, held_heads, held_piece
from planner.memory import adapted
from planner.model import (
    KV_ELEMENT_BYTES,
    UNQUANTIZED,
    Attention,
    Component,
    CompressedAttention,
    LatentAttention,
    Layer,
    Mixer,
    Model,
    Moe,
    Precision,
    Shard,
    SparseIndexer,
    StateMixer,
    Weight,
)

ACTIVATION_BYTES = 2  #: of one activation element: bf16 or fp16
STATE_BYTES = 4  #: of one element of a recurrent state, kept in fp32
STATE_CHUNK_TOK = 64  #: tokens that chunked linear attention works on at a time
SMALL_KERNELS_PER_LAYER = 6  #: two norms, rotary embedding, KV write, activation, quantise or residual
#: Times the norms of a layer read or write one hidden vector: each of two reads and writes it and the residual.
NORM_PASSES = 8
#: Times the small kernel behind a projection reads or writes what came out of it.
PASSES_OF_OUTPUT = {Component.MLP: 1.5, Component.SHARED_EXPERT: 1.5, Component.ATTENTION: 2.0}
#: Small kernels of sparse attention beside those: of DeepSeek's indexer (``Indexer`` of vLLM's ``deepseek_v2.py``), of
#: MiniMax-M3's (two norms, rotary embedding, cache write, pooling, top-k, conversion), and of compressed attention,
#: assumed: gate, pool, norm, rotary embedding, cache write, rotary embedding of the output, hyper-connections.
INDEXER_KERNELS, BLOCK_INDEXER_KERNELS, COMPRESSOR_KERNELS = 10, 7, 12
#: Times the vector of a token at one of its experts is read or written: gather, output, sum. Two to four fit kernel
#: tables nearly alike.
EXPERT_PASSES = 3
ROUTING_PASSES = 3  #: times the scores of the experts are read or written
ROUTING_KERNELS = 5  #: router softmax and top-k, alignment, permute, activation, combine; beside two grouped GEMMs
SAMPLER_KERNELS = 8  #: penalties, temperature, sort, softmax, draw
SAMPLER_PASSES = 5  #: times the sampler reads or writes the logits
#: PyTorch's sort of all logits, their softmax and sum, and the way back (``topk_topp_sampler.py``): 9 us for each
#: sequence on an H100. Of 35, 60, 120 and 200 passes the fit to all runs has the lowest cost with 60.
SORT_KERNELS, SORT_PASSES = 30, 60
FP32_BYTES = 4
#: Query heads that kernels work on at least: ``prefill_padding`` of flashmla_sparse.py; 64 rows of Hopper's wgmma.
TILE_HEADS = 64


class OperatorKind(StrEnum):
    GEMM = "gemm"
    EXPERTS = "experts"
    ATTENTION = "attention"
    PREFILL_ATTENTION = "prefill_attention"
    STATE = "state"
    SMALL = "small"


class Driver(StrEnum):
    """Quantities that the work of an operator is linear in."""

    TOKENS = "tokens"  # all tokens of the step
    SAMPLED = "sampled"  # sequences that get a token
    DECODES = "decodes"  # decoding sequences
    PREFILL = "prefill"  # prompt tokens
    CONTEXT = "context"  # cached tokens that decoding sequences attend to
    PAIRS = "pairs"  # (query, key) pairs of the prompt tokens
    EXPERTS = "experts"  # distinct experts that the tokens of the step are routed to


@dataclass(frozen=True, slots=True)
class StepLoad:
    driver: Driver
    span: float = inf  #: CONTEXT, PAIRS: rows that a query sees at most
    ratio: int = 1  #: CONTEXT, PAIRS: tokens per cached row
    num_experts: int = 0  #: EXPERTS: of the layer
    top_k: int = 0  #: EXPERTS: per token
    ranks: int = 1  #: EXPERTS: over which whole experts are spread
    peers: int = 1  #: EXPERTS: DP ranks whose tokens meet at the experts
    pads: float = 0.0  #: CONTEXT, PAIRS: pads of a decoding sequence, of a prompt token (constants.toml)
    heads: float = 0.0  #: CONTEXT: query heads that read a row, whose queries fill a tile; 0: no padding


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a step, all layers together, on one rank."""

    name: str
    kind: OperatorKind
    load: StepLoad
    count: int  #: kernel launches (for experts: MoE layers)
    flop_per_unit: float = 0.0  #: per unit of the driver; of experts: per row (a token at one of its experts)
    fixed_bytes: float = 0.0  #: read whatever the driver is
    bytes_per_unit: float = 0.0  #: per unit of the driver: of experts, of one expert
    bytes_per_row: float = 0.0  #: of experts only: activations in and out
    compute_dtype: str = "bf16"  #: of the matrix unit
    storage: str = "bf16"  #: precision of the weights or of the cache, in the words of ``weight_dtype``


AMOUNTS = ("count", "flop_per_unit", "fixed_bytes", "bytes_per_unit", "bytes_per_row")  #: that add up over layers
TOKENS = StepLoad(Driver.TOKENS)
SAMPLED = StepLoad(Driver.SAMPLED)


def step_operators(model: Model, config: EngineConfig, *, sorts: bool = False) -> tuple[Operator, ...]:
    """Operators of one step on one rank, collectives excluded; ``sorts``: the sampler sorts the logits."""
    operators: list[Operator] = []
    for kind in model.layer_kinds:
        operators += _layer_operators(model, kind.layer, kind.precisions, len(kind.indices), config)
    return _merged([*operators, *_outer_operators(model, config, sorts=sorts)])


def _layer_operators(
    model: Model, layer: Layer, precisions: tuple[Precision, ...], times: int, config: EngineConfig
) -> Iterator[Operator]:
    groups: dict[tuple[Component, bool, Precision], list[Weight]] = defaultdict(list)
    for weight, stored in zip(layer.weights, precisions, strict=True):
        if weight.linear:
            precision = _launched(stored, model, config)
            groups[weight.component, weight.shard is Shard.ROW, precision].append(weight)
    experts: dict[Precision, list[Weight]] = defaultdict(list)
    elements = float(NORM_PASSES * model.hidden_size)  # that the small kernels read or write for each token
    for (component, is_output, precision), weights in groups.items():
        if component is Component.ROUTED_EXPERT:
            experts[precision] += weights
        else:
            yield _gemm(_gemm_name(component, is_output), weights, precision, times, config)
            if not is_output:
                outputs = sum(piece.copies * piece.outputs for piece in _pieces(weights, config))
                elements += PASSES_OF_OUTPUT.get(component, 0.0) * outputs
    for precision, weights in experts.items():
        yield from _expert_operators(layer, weights, precision, times, config)
    if layer.mixer is not None:
        for op in mixer_operators(layer.mixer, config):
            yield replace(op, **{name: times * getattr(op, name) for name in AMOUNTS})
    yield Operator(
        "norms and activations", OperatorKind.SMALL, TOKENS, SMALL_KERNELS_PER_LAYER * times,
        bytes_per_unit=times * elements * ACTIVATION_BYTES,
    )  # fmt: skip


def _launched(stored: Precision, model: Model, config: EngineConfig) -> Precision:
    plain = UNQUANTIZED[config.dtype]
    if stored is model.quantization.base:
        return plain
    return replace(stored, compute_dtype=plain.name) if stored.compute_dtype in UNQUANTIZED else stored


def _pieces(weights: Iterable[Weight], config: EngineConfig) -> list[Piece]:
    layout = Layout.of(config)
    return [held_piece(weight, layout) for weight in weights]


def _gemm_name(component: Component, is_output: bool) -> str:
    if component is Component.ATTENTION:
        return "attention output" if is_output else "qkv projection"
    if component is Component.ROUTER:
        return "router"
    return f"{component.value.replace('_', ' ')} {'down' if is_output else 'up'}"


def _gemm(
    name: str, weights: list[Weight], precision: Precision, times: int, config: EngineConfig, load: StepLoad = TOKENS
) -> Operator:
    """Matrices that the same tokens are multiplied with; those that share input and split run as one kernel."""
    pieces = _pieces(weights, config)
    kernels = (weight.name if weight.shard is Shard.ROW else (weight.shape[-1], weight.shard) for weight in weights)
    inputs = {kernel: piece.copies * piece.inputs for kernel, piece in zip(kernels, pieces, strict=True)}
    elements = sum(inputs.values()) + sum(piece.copies * piece.outputs for piece in pieces)
    return Operator(
        name, OperatorKind.GEMM, load, len(inputs) * times,
        flop_per_unit=times * sum(2 * piece.params for piece in pieces),
        fixed_bytes=times * sum(piece.stored_bytes(precision) for piece in pieces),
        bytes_per_unit=times * elements * ACTIVATION_BYTES,
        compute_dtype=precision.compute_dtype,
        storage=precision.name,
    )  # fmt: skip


def _expert_operators(
    layer: Layer, weights: list[Weight], precision: Precision, times: int, config: EngineConfig
) -> Iterator[Operator]:
    """Routed experts, and the kernels that route: one expert is cut by TP, or held whole by one rank of EP."""
    if layer.moe is None:
        return
    moe = layer.moe
    one = [replace(piece, copies=1) for piece in _pieces(weights, config)]
    outer = weights[0].shape[-1]  # the hidden vector, or what it was projected to
    inner = sum(piece.inputs + piece.outputs - outer for piece in one)
    yield Operator(
        "experts", OperatorKind.EXPERTS, _expert_load(moe, config), times,
        flop_per_unit=times * sum(2 * piece.params for piece in one),
        bytes_per_unit=times * sum(piece.stored_bytes(precision) for piece in one),
        bytes_per_row=times * (EXPERT_PASSES * outer + inner) * ACTIVATION_BYTES,
        compute_dtype=precision.compute_dtype,
        storage=precision.name,
    )  # fmt: skip
    yield Operator(
        "routing", OperatorKind.SMALL, TOKENS, ROUTING_KERNELS * times,
        bytes_per_unit=times * moe.num_experts * FP32_BYTES * ROUTING_PASSES,
    )  # fmt: skip


def _expert_load(moe: Moe, config: EngineConfig) -> StepLoad:
    """Distinct experts of one layer; expert parallelism spreads them over ranks, and DP ranks bring their tokens."""
    ranks = Layout.of(config).expert_ranks if config.enable_expert_parallel else 1
    return StepLoad(Driver.EXPERTS, inf, 1, moe.num_experts, moe.top_k, ranks, config.data_parallel_size)


def mixer_operators(mixer: Mixer, config: EngineConfig) -> Iterable[Operator]:
    """Attention or state update of one layer on one rank: what is left of the mixer beside its projections."""
    tp = config.tensor_parallel_size
    kv_bytes = KV_ELEMENT_BYTES[config.kv_cache_dtype]
    if isinstance(mixer, Attention):
        kv_heads, heads = held_heads(mixer.num_kv_heads, tp), held_heads(mixer.num_heads, tp)
        row_bytes = kv_heads * (mixer.head_dim + mixer.v_head_dim) * kv_bytes
        pair_flop = 2 * heads * (mixer.head_dim + mixer.v_head_dim)
        if mixer.indexer is None:
            span = mixer.span_tokens or inf
            seen = StepLoad(Driver.CONTEXT, span, pads=ACTIVATION_BYTES / kv_bytes, heads=heads / kv_heads)
            return _attention(row_bytes, pair_flop, pair_flop, seen, config, pads=1.0)
        key_bytes = mixer.indexer.head_dim * ACTIVATION_BYTES
        seen = StepLoad(Driver.CONTEXT, mixer.indexer.top_k, heads=heads / kv_heads)
        return [
            *_attention(row_bytes, pair_flop, pair_flop, seen, config),
            *_indexer(mixer.indexer, 1, config, key_bytes, BLOCK_INDEXER_KERNELS),
        ]
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, config, kv_bytes)
    return _compressed(mixer, config, kv_bytes) if isinstance(mixer, CompressedAttention) else _state(mixer, tp)


def _attention(
    row_bytes: float, decode_flop: float, prefill_flop: float, seen: StepLoad, config: EngineConfig,
    name: str = "attention", pads: float = 0.0,
) -> list[Operator]:  # fmt: skip
    """One attention layer: ``row_bytes`` of cache per token seen, FLOP per (query, key) pair; ``pads`` of prompts.

    With ``--decode-context-parallel-size`` each rank reads its share of the tokens for the heads of all: as many FLOP.
    """
    pairs = StepLoad(Driver.PAIRS, seen.span, seen.ratio, pads=pads)
    row_bytes /= config.decode_context_parallel_size
    seen = replace(seen, heads=seen.heads * config.decode_context_parallel_size)
    return [
        Operator(
            f"{name} decode", OperatorKind.ATTENTION, seen, 1,
            flop_per_unit=decode_flop, bytes_per_unit=row_bytes, storage=config.kv_cache_dtype,
        ),
        Operator(f"{name} prefill", OperatorKind.PREFILL_ATTENTION, pairs, 1, flop_per_unit=prefill_flop),
    ]  # fmt: skip


def _latent(mixer: LatentAttention, config: EngineConfig, kv_bytes: float) -> Iterator[Operator]:
    """MLA: decode, and prefill with an indexer, in the latent space; every rank reads the whole latent cache."""
    heads = held_heads(mixer.num_heads, config.tensor_parallel_size)
    latent_flop = 2 * heads * (2 * mixer.kv_lora_rank + mixer.qk_rope_head_dim)
    direct_flop = 2 * heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)
    row_bytes = mixer.kv_elements_per_token * kv_bytes
    seen = StepLoad(Driver.CONTEXT, mixer.indexer.top_k if mixer.indexer else inf, heads=heads)
    if mixer.indexer is None:
        yield from _attention(row_bytes, latent_flop, direct_flop, seen, config, pads=1.0)
        return
    key_bytes = mixer.indexer.head_dim + FP32_BYTES
    yield from _gathered(row_bytes, latent_flop, heads, seen, config)
    yield from _indexer(mixer.indexer, 1, config, key_bytes, INDEXER_KERNELS)


def _gathered(
    row_bytes: float, flop: float, heads: int, seen: StepLoad, config: EngineConfig, name: str = "attention"
) -> Iterator[Operator]:
    """Attention to rows that an indexer picks: each prompt token reads its own, for heads padded to a tile."""
    padded = -(-heads // TILE_HEADS) * TILE_HEADS / heads
    decode, prefill = _attention(row_bytes, flop, flop * padded, seen, config, name)
    yield from (decode, replace(prefill, bytes_per_unit=decode.bytes_per_unit, storage=decode.storage))


def _indexer(
    indexer: SparseIndexer, ratio: int, config: EngineConfig, key_bytes: int, kernels: int
) -> Iterator[Operator]:
    """The scorer of sparse attention, whole on every rank: a key per row, fp8 with an fp32 scale or 16 bits."""
    if not indexer.num_heads:
        return
    flop = 2 * indexer.num_heads * indexer.head_dim
    yield from _attention(key_bytes, flop, flop, StepLoad(Driver.CONTEXT, ratio=ratio), config, "indexer")
    yield Operator("indexer kernels", OperatorKind.SMALL, TOKENS, kernels)


def _compressed(mixer: CompressedAttention, config: EngineConfig, kv_bytes: float) -> Iterator[Operator]:
    """A sliding window, and beyond it one compressed row per ``compress_ratio`` tokens, ``top_k`` of them at most."""
    heads = held_heads(mixer.num_heads, config.tensor_parallel_size)
    row_bytes, flop = mixer.head_dim * kv_bytes, 4 * heads * mixer.head_dim
    yield from _gathered(row_bytes, flop, heads, StepLoad(Driver.CONTEXT, mixer.window, heads=heads), config)
    if not mixer.compress_ratio:
        return
    yield Operator("compressed attention kernels", OperatorKind.SMALL, TOKENS, COMPRESSOR_KERNELS)
    span = mixer.indexer.top_k if mixer.indexer else inf
    seen = StepLoad(Driver.CONTEXT, span, mixer.compress_ratio, heads=heads)
    yield from _gathered(row_bytes, flop, heads, seen, config, "compressed attention")
    if mixer.indexer:
        key_bytes = mixer.indexer.head_dim + FP32_BYTES
        yield from _indexer(mixer.indexer, mixer.compress_ratio, config, key_bytes, INDEXER_KERNELS)


def _state(mixer: StateMixer, tensor_parallel_size: int) -> list[Operator]:
    """Linear attention: the state is read and written once per decode token, once per chunk of prompt tokens."""
    share = held_heads(mixer.num_heads, tensor_parallel_size) / mixer.num_heads
    elements = mixer.recurrent_elements * share
    state_bytes = 2 * (elements * STATE_BYTES + mixer.conv_elements * share * ACTIVATION_BYTES)
    return [
        Operator(
            "state decode", OperatorKind.STATE, StepLoad(Driver.DECODES), 2,
            flop_per_unit=6 * elements, bytes_per_unit=state_bytes,
        ),
        Operator(
            "state prefill", OperatorKind.STATE, StepLoad(Driver.PREFILL), 6,
            flop_per_unit=8 * elements, bytes_per_unit=state_bytes / STATE_CHUNK_TOK,
        ),
    ]  # fmt: skip


def _outer_operators(model: Model, config: EngineConfig, *, sorts: bool) -> Iterator[Operator]:
    tp = config.tensor_parallel_size
    yield Operator("embedding", OperatorKind.SMALL, TOKENS, 2, bytes_per_unit=2 * model.hidden_size * ACTIVATION_BYTES)
    head = next((w for w in model.outer if w.component is Component.LM_HEAD and w.linear), None)
    if head is None:  # tied: the embedding is the lm_head
        head = next(w for w in model.outer if w.component is Component.EMBEDDING)
    precision = _launched(model.precision_of(head), model, config)
    yield _gemm("lm_head", [head], precision, 1, config, SAMPLED)
    logits_bytes = model.vocab_size * FP32_BYTES
    yield Operator(
        "sampler", OperatorKind.SMALL, SAMPLED, SAMPLER_KERNELS, bytes_per_unit=SAMPLER_PASSES * logits_bytes
    )
    if sorts:
        yield Operator("sort", OperatorKind.SMALL, SAMPLED, SORT_KERNELS, bytes_per_unit=SORT_PASSES * logits_bytes)
    if tp > 1:
        yield Operator("logits copy", OperatorKind.SMALL, SAMPLED, 1, bytes_per_unit=logits_bytes)


def _merged(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    merged: dict[tuple[object, ...], Operator] = {}
    for op in operators:
        key = (op.name, op.kind, op.load, op.compute_dtype, op.storage)
        old = merged.get(key)
        merged[key] = replace(old, **{name: getattr(old, name) + getattr(op, name) for name in AMOUNTS}) if old else op
    return tuple(merged.values())


# --- LoRA adapters: two thin matrix multiplications beside each of the model's
#
# ::
#
#     FLOP  = 2 x rank x (inputs + outputs)                     of each token and matrix
#     bytes = adapters x rank x (inputs + outputs) x 2          read once per step
#           + (inputs + outputs) x 2 + rank x 8 for each token  the product of the first is kept in 32 bits
#
# vLLM's Punica kernels take two launches for each matrix, fused ones counted once (``lora/ops/triton_ops`` of 0.27),
# at the shares of the model's own matrices. Every adapter that fits is taken to be in use: an upper bound.


def adapter_operators(model: Model, config: EngineConfig) -> tuple[Operator, ...]:
    """The operators that ``--enable-lora`` adds to a step, all layers together; empty without it."""
    lora = config.lora
    if lora is None:
        return ()
    kernels: Counter[StepLoad] = Counter()
    matrices: Counter[StepLoad] = Counter()
    sides: Counter[StepLoad] = Counter()  # inputs and outputs of all matrices on a rank
    for kind in model.layer_kinds:
        times = len(kind.indices)
        fused: dict[StepLoad, set[tuple[object, ...]]] = defaultdict(set)
        for weight in adapted(kind.layer, lora):
            moe = kind.layer.moe if weight.component is Component.ROUTED_EXPERT else None
            load = _expert_load(moe, config) if moe else TOKENS
            key = (weight.name,) if weight.shard is Shard.ROW else (weight.component, weight.shape[-1], weight.shard)
            fused[load].add(() if moe else key)
            matrices[load] += times
            sides[load] += times * sum(held_piece(weight, Layout.of(config)).shape[-2:])
        for load, weights in fused.items():
            kernels[load] += times * len(weights) * (2 if load == TOKENS else 1)  # a launch of experts is both
    return tuple(_adapters(load, kernels[load], matrices[load], sides[load], lora) for load in kernels)


def _adapters(load: StepLoad, kernels: int, matrices: int, sides: int, lora: LoraConfig) -> Operator:
    read_bytes = lora.max_loras * lora.max_lora_rank * sides * ACTIVATION_BYTES
    token_bytes = sides * ACTIVATION_BYTES + 2 * FP32_BYTES * lora.max_lora_rank * matrices
    flop = 2 * lora.max_lora_rank * sides
    if load == TOKENS:
        return Operator("adapters", OperatorKind.GEMM, load, kernels, flop, read_bytes, token_bytes)
    return Operator("expert adapters", OperatorKind.EXPERTS, load, kernels, flop, 0.0, read_bytes, token_bytes)
