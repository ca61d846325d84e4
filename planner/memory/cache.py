"""KV cache of each layer on one rank, and the blocks that vLLM cuts its cache memory into.

- MHA, GQA and MQA take KV heads on the rank x (key + value elements) x element bytes, per token.
- MLA takes (latent + rotary key) x element bytes, per token. Every rank holds all of it.
- A sparse indexer takes an 8-bit key and a 4-byte scale per 128 elements, per token.
- Windows and chunks take the same, but only for the tokens that a query can still see.
- States (convolution and recurrent) are held once per request. TP divides them.
- DeepSeek-V4 has a window of 584-byte rows, and one row per ``compress_ratio`` tokens beyond it.

Blocks::

    block bytes  = pages of the largest group of layers; groups share one pool of blocks
    num_blocks   = floor(available bytes / block bytes), the least of all ranks
    concurrency  = num_blocks / the sum, over groups, of the blocks a request needs at max_model_len

Layers of one kind are one group. A mixture is cut into groups of equal size: the smallest layer count of any kind, or
the largest if it is less than 1.5 times that. The last group of a kind may be padded. "GPU KV cache size: N tokens" is
floor(num_blocks / groups) x block size up to 0.19, int(concurrency x max_model_len) from 0.20.0. Source:
``vllm/v1/kv_cache_interface.py`` and the models of 0.32.0, checked against the block counts of start-up logs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from planner import model as models
from planner.engine import EngineConfig, Latents, features_of, held_heads
from planner.errors import InputError
from planner.hardware import GpuProfile

Kind = Literal["full", "window", "chunk", "cross", "state"]
#: Bytes of one MLA token and layer in formats that pack latent, rotary key and scales into one row.
PACKED_MLA_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
#: Before MLA, keys and values of a head were padded to this (``deepseek_v2.py`` of 0.6.6); 0.7.2 and 0.7.3 pad rows of
#: latents to so many bytes of the model's type (``align_to_256bytes``).
EXPANDED_HEAD_DIM, LATENT_ALIGNMENT = 256, 256
#: DeepSeek-V4: 448 bytes of 8-bit latent, 128 of rotary key, 8 of scales. Pages are aligned to 576 bytes.
COMPRESSED_ROW_BYTES, COMPRESSED_ALIGNMENT = 584, 576
#: Tokens of a block of DeepSeek-V4's compressed caches and of its window cache.
COMPRESSED_BLOCK, COMPRESSED_WINDOW_BLOCK = 256, 64
#: Image tokens that a cross-attention layer of Llama-3.2-Vision keeps for one image: 4 tiles of 1,601.
MLLAMA_ENCODER_TOKENS = 4 * 1601
#: Mixers and architectures whose recurrent state vLLM holds in 32 bits where the checkpoint does not say.
FP32_STATE_KINDS, FP32_STATE_ARCHITECTURES = ("kda",), ("NemotronH",)
CONV_COLUMNS = 3  #: columns of a convolution's state: its kernel less one, and the kernel of every published model is 4
#: States whose convolution keeps a column for each draft token (``mamba_utils.py``).
DRAFTED_STATES = ("mamba2", "gdn", "kda")


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Cache of one layer on one rank. Two layers with equal specs can share a block table."""

    kind: Kind
    block_size: int  #: tokens of one page
    token_bytes: int = 0  #: of one stored row
    span_tokens: int = 0  #: of a window, a chunk, or the encoder's output
    tokens_per_row: int = 1  #: tokens that one stored row stands for
    state_bytes: int = 0  #: of one request's state
    alignment: int = 1  #: a page is rounded up to a multiple of this
    padded_bytes: int = 0  #: size that a page is padded to, so that layers of several kinds share blocks

    @property
    def page_bytes(self) -> int:
        rows = max(1, self.block_size // self.tokens_per_row)
        content = self.state_bytes if self.kind == "state" else rows * self.token_bytes
        return max(-(-content // self.alignment) * self.alignment, self.padded_bytes)

    @property
    def bytes_per_token(self) -> float:
        """Bytes that one more token adds while it is kept; 0 for a state."""
        return 0.0 if self.kind == "state" else self.token_bytes / self.tokens_per_row

    def pages_per_request(self, num_tokens: int, in_flight_tokens: int, *, states: int = 1) -> int:
        """Most pages of a request of ``num_tokens`` when it is admitted; windows keep ``in_flight_tokens`` besides."""
        if self.kind == "state":
            return states
        if self.kind == "cross":
            return -(-self.span_tokens // self.block_size)
        if self.kind == "window":  # the window need not begin where a block does: one more
            return -(-min(self.span_tokens - 1 + in_flight_tokens, num_tokens) // self.block_size) + 1
        if self.kind == "chunk":
            num_tokens = min(self.span_tokens + in_flight_tokens, num_tokens)
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class CacheSettings:
    tensor_parallel_size: int
    dtype: str  #: of the model in the engine: bf16, fp16 or fp32
    kv_cache_dtype: str
    block_size: int
    encoder_tokens: int  #: of cross attention, where the architecture does not say
    packs_sparse_latents: bool = True  #: an 8-bit cache of sparse MLA is kept in packed rows of 656 bytes
    num_speculative_tokens: int = 0  #: drafted per step: convolutions keep a column for each
    latents: Latents = "rows"

    @classmethod
    def of(cls, config: EngineConfig, profile: GpuProfile) -> "CacheSettings":
        # FlashMLA and SM 12.x pack rows of 656 bytes; a B200 (FlashInfer) logged 78 x 576 + 21 x 132 bytes per token
        packs = profile.vendor == "nvidia" and (profile.compute_capability or (0, 0))[0] != 10
        return cls(
            config.tensor_parallel_size, config.dtype, config.kv_cache_dtype, config.block_size,
            config.max_num_batched_tokens, packs, config.drafted_tok, features_of(config, profile).latents,
        )  # fmt: skip


def element_bytes(kv_cache_dtype: str) -> int:
    """Bytes of one cached element. Raises InputError for a type whose layout is not known."""
    known = models.KV_ELEMENT_BYTES.get(kv_cache_dtype)
    if known is None:
        names = ", ".join((*models.KV_ELEMENT_BYTES, *PACKED_MLA_BYTES))
        raise InputError(f"--kv-cache-dtype {kv_cache_dtype}: bytes per token not known", hint=f"one of: {names}")
    return int(known)


def layer_specs(
    model: models.Model, settings: CacheSettings, drafts: Sequence[tuple[int, CacheSpec]] = ()
) -> tuple[tuple[int, CacheSpec], ...]:
    """(layer, spec) of every cache of the model, in vLLM's order; a layer can keep several. ``drafts`` come as layers
    beyond the last. Pages of attention and states are made equal (``align_states``)."""
    found = (*specs_of(model, (layer.mixer for layer in model.layers), settings), *drafts)
    aligned = align_states({spec for _, spec in found})
    return tuple((index, aligned.get(spec, spec)) for index, spec in found)


def specs_of(
    model: models.Model, mixers: Iterable[models.Mixer | None], settings: CacheSettings, *, first_layer: int = 0
) -> list[tuple[int, CacheSpec]]:
    """(layer, spec) of each of ``mixers``, counted from ``first_layer``, before pages are made equal."""
    known: dict[models.Mixer, tuple[CacheSpec, ...]] = {}
    found: list[tuple[int, CacheSpec]] = []
    for index, mixer in enumerate(mixers, first_layer):
        if mixer is None:
            continue
        if mixer not in known:
            known[mixer] = tuple(_mixer_specs(model, mixer, settings))
        found += [(index, spec) for spec in known[mixer]]
    return found


def _mixer_specs(model: models.Model, mixer: models.Mixer, settings: CacheSettings) -> Iterator[CacheSpec]:
    if isinstance(mixer, models.StateMixer):
        yield CacheSpec("state", settings.block_size, state_bytes=state_bytes(model, mixer, settings))
    elif isinstance(mixer, models.LatentAttention):
        eight_bits = settings.kv_cache_dtype.startswith("fp8")
        packed = mixer.indexer and eight_bits and settings.packs_sparse_latents
        dtype = "fp8_ds_mla" if packed else settings.kv_cache_dtype
        yield CacheSpec("full", settings.block_size, latent_bytes(mixer, replace(settings, kv_cache_dtype=dtype)))
        if mixer.indexer and mixer.indexer.head_dim:  # some layers use the indexer of a layer before them
            yield CacheSpec("full", settings.block_size, indexer_bytes(mixer.indexer))
    elif isinstance(mixer, models.CompressedAttention):
        yield from _compressed_specs(mixer)
    elif not mixer.shared:
        yield _attention_spec(model, mixer, settings)
        if mixer.indexer:
            yield CacheSpec("full", settings.block_size, mixer.indexer.head_dim * element_bytes(settings.dtype))


def _attention_spec(model: models.Model, mixer: models.Attention, settings: CacheSettings) -> CacheSpec:
    heads = held_heads(mixer.num_kv_heads, settings.tensor_parallel_size)
    token_bytes = heads * (mixer.head_dim + mixer.v_head_dim) * element_bytes(settings.kv_cache_dtype)
    if mixer.cross:
        tokens = MLLAMA_ENCODER_TOKENS if model.model_type == "mllama" else settings.encoder_tokens
        return CacheSpec("cross", settings.block_size, token_bytes, tokens)
    kind: Kind = "window" if mixer.window else "chunk" if mixer.chunk else "full"
    return CacheSpec(kind, settings.block_size, token_bytes, mixer.span_tokens or 0)


def latent_bytes(mixer: models.LatentAttention, settings: CacheSettings) -> int:
    """Bytes of one token in one MLA layer: the same on every rank, whatever TP is, where latents are kept."""
    if packed := PACKED_MLA_BYTES.get(settings.kv_cache_dtype):
        return packed
    size, elements = element_bytes(settings.kv_cache_dtype), mixer.kv_elements_per_token
    if settings.latents == "heads":
        return 2 * held_heads(mixer.num_heads, settings.tensor_parallel_size) * EXPANDED_HEAD_DIM * size
    if settings.latents == "padded rows":
        aligned = LATENT_ALIGNMENT // element_bytes(settings.dtype)
        elements = -(-elements // aligned) * aligned
    return elements * size


def indexer_bytes(indexer: models.SparseIndexer) -> int:
    """Bytes of one token in the cache of a sparse-attention indexer: 8-bit key, 4-byte scale per 128 elements."""
    return indexer.head_dim + 4 * -(-indexer.head_dim // 128)


def state_bytes(model: models.Model, mixer: models.StateMixer, settings: CacheSettings) -> int:
    """Bytes of one request's state in one layer on one rank. The convolution has one more column per draft token."""
    held_in_fp32 = mixer.kind in FP32_STATE_KINDS or model.architecture.startswith(FP32_STATE_ARCHITECTURES)
    dtype = mixer.recurrent_dtype or ("fp32" if held_in_fp32 else settings.dtype)
    conv_elements = mixer.conv_elements
    if mixer.kind in DRAFTED_STATES:
        conv_elements += conv_elements // CONV_COLUMNS * settings.num_speculative_tokens
    whole = conv_elements * element_bytes(settings.dtype) + mixer.recurrent_elements * element_bytes(dtype)
    return -(-whole * held_heads(mixer.num_heads, settings.tensor_parallel_size) // mixer.num_heads)


def _compressed_specs(mixer: models.CompressedAttention) -> Iterator[CacheSpec]:
    """DeepSeek-V4: the window, the compressed rows, the indexer's, and the half-finished groups in 32 bits."""
    aligned = COMPRESSED_ALIGNMENT
    yield CacheSpec("window", COMPRESSED_WINDOW_BLOCK, COMPRESSED_ROW_BYTES, mixer.window, alignment=aligned)
    ratio = mixer.compress_ratio
    if not ratio:
        return
    overlap = 2 if ratio == 4 else 1
    unfinished = CacheSpec(
        "window", 4 if ratio == 4 else 8, overlap * mixer.head_dim * 2 * 4, overlap * ratio, alignment=aligned
    )
    yield CacheSpec("full", COMPRESSED_BLOCK, COMPRESSED_ROW_BYTES, tokens_per_row=ratio, alignment=aligned)
    yield unfinished
    if mixer.indexer:
        row = indexer_bytes(mixer.indexer)
        yield CacheSpec("full", COMPRESSED_BLOCK, row, tokens_per_row=ratio, alignment=aligned)
        yield replace(unfinished, token_bytes=overlap * mixer.indexer.head_dim * 2 * 4)


def align_states(specs: set[CacheSpec]) -> dict[CacheSpec, CacheSpec]:
    """Larger attention blocks and padded states, so that both pages are equal ("Setting attention block size to 1072
    tokens", "Padding mamba page size by ..."). Empty unless a model mixes the two."""
    states = [spec for spec in specs if spec.kind == "state"]
    others = [spec for spec in specs if spec.kind != "state"]
    if not states or not others:
        return {}
    state = max(spec.page_bytes for spec in states)
    unit = max(spec.block_size for spec in others)
    widest = max(spec.token_bytes for spec in others)
    block_size = unit * max(1, -(-state // (unit * widest)))
    page = block_size * widest
    aligned = {spec: replace(spec, block_size=block_size) for spec in others}
    return aligned | {spec: replace(spec, block_size=block_size, padded_bytes=page) for spec in states}


LayerSpecs = Sequence[tuple[int, CacheSpec]]  #: layers and what each keeps, in order
Member = tuple[int, CacheSpec]


@dataclass(frozen=True)
class CacheGroup:
    members: tuple[Member, ...]

    def page_bytes(self, stage: range) -> int:
        return sum(spec.page_bytes for layer, spec in self.members if layer in stage)

    def blocks(self, num_tokens: int, in_flight_tokens: int, states: int) -> int:
        return max(spec.pages_per_request(num_tokens, in_flight_tokens, states=states) for spec in self.specs)

    @cached_property
    def specs(self) -> frozenset[CacheSpec]:
        return frozenset(spec for _, spec in self.members)


@dataclass(frozen=True)
class BlockPool:
    groups: tuple[CacheGroup, ...]
    in_flight_tokens: int
    states_per_request: int = 1
    context_shards: int = 1  #: decode context parallelism: ranks that share the tokens of full attention

    def block_bytes(self, stage: range) -> int:
        return max((group.page_bytes(stage) for group in self.groups), default=0)

    @cached_property
    def block_size(self) -> int:
        """Tokens of one block: the least of all groups that keep tokens; 0 where only states are kept."""
        sizes = [spec.block_size for group in self.groups for spec in group.specs if spec.kind != "state"]
        return min(sizes, default=0)

    def blocks_per_request(self, num_tokens: int) -> int:
        held = -(-num_tokens // self.context_shards)
        return sum(group.blocks(held, self.in_flight_tokens, self.states_per_request) for group in self.groups)

    def max_concurrency(self, num_blocks: int, num_tokens: int, shared_tok: int = 0) -> float:
        """Requests of ``num_tokens`` that fit at once; full attention holds their first ``shared_tok`` tokens once."""
        specs = (next(iter(group.specs)) for group in self.groups)  # alike in kind and block size
        shared = sum(shared_tok // self.context_shards // spec.block_size for spec in specs if spec.kind == "full")
        return max(num_blocks - shared, 0) / (self.blocks_per_request(num_tokens) - shared)

    def logged_tokens(self, num_blocks: int, max_model_len: int, *, by_concurrency: bool) -> int:
        """Tokens that "GPU KV cache size" prints: ``by_concurrency`` from 0.20.0 on, by block size before."""
        if by_concurrency or not self.block_size:
            return int(self.max_concurrency(num_blocks, max_model_len) * max_model_len)
        return num_blocks // len(self.groups) * self.block_size * self.context_shards

    def longest(self, num_blocks: int, limit: int) -> int:
        """The longest request, up to ``limit`` tokens, that ``num_blocks`` hold; 0 when not even one token does."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.blocks_per_request(middle) <= num_blocks else (low, middle - 1)
        return low


def block_pool(
    layers: LayerSpecs, hybrid: bool, in_flight_tokens: int, states_per_request: int = 1, context_shards: int = 1
) -> BlockPool:
    """The pool for ``layers``; without ``hybrid``, windows and chunks are kept whole like full attention."""
    if not hybrid and any(spec.kind == "full" for _, spec in layers):
        local = ("window", "chunk")
        layers = [(i, replace(s, kind="full", span_tokens=0) if s.kind in local else s) for i, s in layers]
    return BlockPool(_groups(tuple(layers)), in_flight_tokens, states_per_request, context_shards)


def _groups(members: tuple[Member, ...]) -> tuple[CacheGroup, ...]:
    if not members:
        return ()
    if len({_type(spec) for _, spec in members}) == 1:
        return (CacheGroup(members),)
    if any(spec.tokens_per_row > 1 for _, spec in members):
        return _packed_groups(members)
    return _equal_groups(members)


def _equal_groups(members: tuple[Member, ...]) -> tuple[CacheGroup, ...]:
    """Groups of equal layer count, over pages made equal: blocks of more tokens for narrow layers, or padded pages."""
    largest = max(spec.page_bytes for _, spec in members)
    widened: dict[CacheSpec, CacheSpec] = {}
    for spec in {spec for _, spec in members}:
        factor, remainder = divmod(largest, spec.page_bytes)
        if spec.kind == "state" or remainder:
            widened[spec] = replace(spec, padded_bytes=largest)
        else:
            widened[spec] = replace(spec, block_size=spec.block_size * factor)
    members = tuple((layer, widened[spec]) for layer, spec in members)
    counts = Counter(spec for _, spec in members)
    size = min(counts.values())
    if max(counts.values()) < 1.5 * size:
        size = max(counts.values())
    groups: list[CacheGroup] = []
    for spec, count in counts.items():
        same = tuple(member for member in members if member[1] == spec)
        number = -(-count // size)
        groups += [CacheGroup(same[first::number]) for first in range(number)]
    return tuple(groups)


def _packed_groups(members: tuple[Member, ...]) -> tuple[CacheGroup, ...]:
    """Groups of layers with pages of several sizes side by side, as DeepSeek-V4 has them. Layers of one type form a
    bucket; buckets that repeat a pattern of page sizes are cut into groups of the same number of repeats, the one that
    pads least. Without any, windows are cut to fit the blocks that the other layers need."""
    buckets: dict[tuple[object, ...], list[Member]] = {}
    for member in members:
        buckets.setdefault(_type(member[1]), []).append(member)
    columns: list[list[list[Member]]] = []
    for bucket in buckets.values():
        by_page: dict[int, list[Member]] = {}
        for member in bucket:
            by_page.setdefault(member[1].page_bytes, []).append(member)
        columns.append(list(by_page.values()))
    repeats = [max(map(len, column)) for column in columns]
    balanced = [len({len(layers) for layers in column}) == 1 for column in columns]
    least = max(
        (n for n, column, even in zip(repeats, columns, balanced, strict=True) if even and len(column) > 1), default=0
    )
    per_group, even_repeats = 0, [n for n, even in zip(repeats, balanced, strict=True) if even]
    if least:  # the size whose multiples exceed the repeats least in total, the largest of such sizes
        sizes = range(least, max(even_repeats) + 1)
        per_group = min(sizes, key=lambda size: (sum(-n % size for n in even_repeats), -size))
    anchor = max(sum(spec.page_bytes for _, spec in b) for b in buckets.values() if b[0][1].kind != "window")
    groups: list[CacheGroup] = []
    for bucket, column, number, even in zip(buckets.values(), columns, repeats, balanced, strict=True):
        cuts = 1
        if per_group and even:
            cuts = -(-number // per_group)
        elif not per_group and bucket[0][1].kind == "window":
            cuts = -(-len(bucket) // max(anchor // bucket[0][1].page_bytes, 1))
        if cuts == 1:
            groups.append(CacheGroup(tuple(bucket)))
        else:
            pattern = list(zip(*column, strict=True))
            groups += [
                CacheGroup(tuple(member for repeat in pattern[first::cuts] for member in repeat))
                for first in range(cuts)
            ]
    return tuple(groups)


def _type(spec: CacheSpec) -> tuple[object, ...]:
    return spec.kind, spec.block_size, spec.span_tokens


def stored_weight_bytes(model: models.Model, *, mtp: bool = False) -> int:
    """Bytes of the stored weights with their scales, with MTP modules if ``mtp``, without vocabulary padding."""
    layers = sum(
        len(kind.indices) * precision.stored_bytes(weight.shape, weight.copies)
        for kind in model.layer_kinds
        for weight, precision in zip(kind.layer.weights, kind.precisions, strict=True)
    )
    outside = (*model.outer, *model.vision, *(model.mtp if mtp else ()))
    return layers + sum(model.precision_of(w).stored_bytes(w.shape, w.copies) for w in outside)


def kv_bytes_per_token(model: models.Model, *, past_windows: bool = False) -> int:
    """Bytes of one token in every layer that keeps it, TP 1, in the KV dtype that the checkpoint carries scales for.

    ``past_windows``: of one more token where windows, chunks and the encoder's output are full."""
    dtype = model.quantization.kv_cache_dtype or model.dtype
    settings = CacheSettings(1, model.dtype, dtype, block_size=16, encoder_tokens=0)
    specs = (spec for _, spec in layer_specs(model, settings) if not (past_windows and spec.span_tokens))
    return round(sum(spec.bytes_per_token for spec in specs))


def attention_kinds(model: models.Model) -> str:
    """The kinds of token mixers, most frequent first: ``GQA 32/8``, ``MLA + sparse indexer``, ``GDN, GQA 16/2``."""
    counts = Counter(map(_kind, model.mixers()))
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{k} x {n}" for k, n in counts.most_common())


def _kind(mixer: models.Mixer) -> str:
    if isinstance(mixer, models.StateMixer):
        return mixer.kind.upper() if len(mixer.kind) < 4 else mixer.kind
    indexed = " + sparse indexer" if mixer.indexer else ""
    if isinstance(mixer, models.LatentAttention):
        return f"MLA{indexed}"
    if isinstance(mixer, models.CompressedAttention):
        ratio = f", 1 row per {mixer.compress_ratio} tokens" if mixer.compress_ratio else ""
        return f"window {mixer.window}{ratio}{indexed}"
    heads, kv_heads = mixer.num_heads, mixer.num_kv_heads
    name = f"MHA {heads}" if heads == kv_heads else f"{'MQA' if kv_heads == 1 else 'GQA'} {heads}/{kv_heads}"
    details = (
        (mixer.cross, ", cross"), (mixer.shared, ", shared KV"), (mixer.window, f", window {mixer.window}"),
        (mixer.chunk, f", chunks of {mixer.chunk}"),
    )  # fmt: skip
    return name + "".join(text for holds, text in details if holds) + indexed
