"""How vLLM divides its cache memory into blocks, and the tokens and concurrency that it then prints.

::

    block bytes  = pages of the largest group of layers; groups share one pool of blocks
    num_blocks   = floor(available bytes / block bytes), the least of all ranks
    a request    = the sum, over groups, of the blocks it needs at max_model_len
    concurrency  = num_blocks / blocks of a request

A model whose layers are all alike is one group. A mixture (full and sliding window, attention and state) is cut
into groups of equal size: the smallest layer count of any kind, or the largest if it is less than 1.5 times that.
The last group of a kind may be padded, which costs memory.

"GPU KV cache size: N tokens" changed its meaning: floor(num_blocks / groups) x block size up to 0.19,
int(concurrency x max_model_len) from 0.20.0. For models of one kind both agree up to rounding; for mixtures
the old figure is less than what fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from planner.memory.kv_cache import CacheSpec

#: Layers and what each keeps, in order.
LayerSpecs = Sequence[tuple[int, CacheSpec]]
Member = tuple[int, CacheSpec]


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share one block table."""

    members: tuple[Member, ...]

    def page_bytes(self, stage: range) -> int:
        """Bytes of one block of this group on the stage that holds the layers of ``stage``."""
        return sum(spec.page_bytes for layer, spec in self.members if layer in stage)

    def blocks(self, num_tokens: int, in_flight_tokens: int, states: int) -> int:
        """Blocks that one request of ``num_tokens`` takes from the pool."""
        return max(spec.pages_per_request(num_tokens, in_flight_tokens, states=states) for spec in self.specs)

    @cached_property
    def specs(self) -> frozenset[CacheSpec]:
        """The different specs of the group's layers."""
        return frozenset(spec for _, spec in self.members)


@dataclass(frozen=True)
class BlockPool:
    """Groups of layers over one pool of blocks, as one engine has them."""

    groups: tuple[CacheGroup, ...]
    in_flight_tokens: int
    states_per_request: int = 1
    context_shards: int = 1  #: decode context parallelism: ranks that share the tokens of full attention

    def block_bytes(self, stage: range) -> int:
        """Bytes of one block on a rank of ``stage``: its largest group."""
        return max((group.page_bytes(stage) for group in self.groups), default=0)

    @cached_property
    def block_size(self) -> int:
        """Tokens of one block: the least of all groups that keep tokens; 0 where only states are kept."""
        sizes = [spec.block_size for group in self.groups for spec in group.specs if spec.kind != "state"]
        return min(sizes, default=0)

    def blocks_per_request(self, num_tokens: int) -> int:
        """Blocks that one request of ``num_tokens`` needs."""
        held = -(-num_tokens // self.context_shards)
        return sum(group.blocks(held, self.in_flight_tokens, self.states_per_request) for group in self.groups)

    def max_concurrency(self, num_blocks: int, num_tokens: int) -> float:
        """Requests of ``num_tokens`` that the pool holds at once ("Maximum concurrency")."""
        return num_blocks / self.blocks_per_request(num_tokens)

    def logged_tokens(self, num_blocks: int, max_model_len: int, *, by_concurrency: bool) -> int:
        """What "GPU KV cache size" prints: ``by_concurrency`` from 0.20.0 on, by block size before."""
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
    layers: LayerSpecs,
    *,
    hybrid: bool,
    in_flight_tokens: int,
    states_per_request: int = 1,
    context_shards: int = 1,
) -> BlockPool:
    """The pool for ``layers``; without ``hybrid``, windows and chunks are kept whole like full attention."""
    members = tuple(layers) if hybrid else _promoted(layers)
    return BlockPool(_groups(members), in_flight_tokens, states_per_request, context_shards)


def _promoted(layers: LayerSpecs) -> tuple[Member, ...]:
    """Windows and chunks as full attention, where the model mixes them with it."""
    if not any(spec.kind == "full" for _, spec in layers):
        return tuple(layers)
    local = ("window", "chunk")
    return tuple((i, replace(spec, kind="full", span_tokens=0) if spec.kind in local else spec) for i, spec in layers)


def _groups(members: tuple[Member, ...]) -> tuple[CacheGroup, ...]:
    if not members:
        return ()
    if len({_type(spec) for _, spec in members}) == 1:
        return (CacheGroup(members),)
    if any(spec.tokens_per_row > 1 for _, spec in members):
        return _packed_groups(members)
    return _equal_groups(_equal_pages(members))


def _equal_pages(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """Blocks of more tokens for narrow layers, or padded pages, until all pages are equal."""
    largest = max(spec.page_bytes for _, spec in members)

    def widen(spec: CacheSpec) -> CacheSpec:
        factor, remainder = divmod(largest, spec.page_bytes)
        if spec.kind == "state" or remainder:
            return replace(spec, padded_bytes=largest)
        return replace(spec, block_size=spec.block_size * factor)

    widened = {spec: widen(spec) for spec in {spec for _, spec in members}}
    return tuple((layer, widened[spec]) for layer, spec in members)


def _equal_groups(members: tuple[Member, ...]) -> tuple[CacheGroup, ...]:
    """Groups of equal layer count; the layers of a kind go to its groups in turn."""
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
    """Groups of layers with pages of several sizes side by side, as DeepSeek-V4 has them.

    Layers of one type form a bucket. A bucket may repeat a pattern of page sizes (one layer of each). All such buckets
    are cut into groups of the same number of repeats, the number that pads least. Where there are none, windows are
    cut to fit the blocks that the other layers need.
    """
    buckets: dict[tuple[object, ...], list[Member]] = {}
    for member in members:
        buckets.setdefault(_type(member[1]), []).append(member)
    columns = [_by_page_bytes(bucket) for bucket in buckets.values()]
    repeats = [max(map(len, column)) for column in columns]
    balanced = [len({len(layers) for layers in column}) == 1 for column in columns]
    least = max(
        (n for n, column, even in zip(repeats, columns, balanced, strict=True) if even and len(column) > 1), default=0
    )
    per_group = _least_padding([n for n, even in zip(repeats, balanced, strict=True) if even], least) if least else 0
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
    """Layers of one type always need the same number of pages, so one block table serves them."""
    return spec.kind, spec.block_size, spec.span_tokens


def _by_page_bytes(bucket: list[Member]) -> list[list[Member]]:
    columns: dict[int, list[Member]] = {}
    for member in bucket:
        columns.setdefault(member[1].page_bytes, []).append(member)
    return list(columns.values())


def _least_padding(counts: list[int], least: int) -> int:
    """The size, at least ``least``, whose multiples exceed ``counts`` least in total; the largest of such sizes."""
    return min(range(least, max(counts) + 1), key=lambda size: (sum(-n % size for n in counts), -size))
