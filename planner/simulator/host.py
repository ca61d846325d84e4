"""KV blocks in host memory: vLLM's OffloadingConnector, piece by piece instead of block by block.

As in ``distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`` and ``v1/kv_offload/cpu`` of 0.32, with its
defaults (LRU, one block at a time, prompts only):

- The full blocks of a prompt that a step computes are offered when it is scheduled. Those that the host does not hold
  are copied there. Where it is full, those that were used longest ago go, but none that is being copied; without
  enough of these nothing is copied, and the blocks are offered again.
- What was found on the GPU alone is offered too. After blocks were loaded only those behind them are.
- Blocks are found from the moment on that the scheduler knows that their copy has ended. A request that would find
  some before waits, and so does one whose blocks are just being loaded for another.
- A request that ends has used all its blocks, the last one first. Until then blocks count as used when they came.
- Each direction of the link takes one copy after the other.

Blocks of one node of the tree that follow each other and were used together are one ``_Part``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

from planner.simulator.prefix import OPEN, Piece, Tree


@dataclass(slots=True, eq=False)
class Copy:
    """Blocks of a request on their way from or to the host."""

    index: int
    pieces: list[Piece]
    stores: bool
    blocks: int = 0
    end_s: float = inf  #: known when it begins

    def __post_init__(self) -> None:
        self.blocks = sum(last - first for _, first, last in self.pieces)


@dataclass(slots=True, eq=False)
class _Part:
    node: int
    first: int
    last: int  #: the block after it
    turn: int  #: when the block that goes first was used, in blocks; the others follow
    backwards: bool  #: the last block goes first
    store: Copy | None = None  #: that has not ended yet
    loads: int = 0

    @property
    def idle(self) -> bool:
        """Whether it may go."""
        return self.store is None and not self.loads and self.last > self.first


@dataclass(slots=True)
class _Request:
    """What the host knows of one request."""

    path: list[int]
    own: int  #: first block beyond all that is shared
    prompt_tok: int
    offered: int = 0  #: blocks from the first on that were stored or found
    stores: int = 0  #: under way
    used: list[Piece] = field(default_factory=list)


class HostBlocks:
    """The blocks that host memory keeps for one DP rank, and the link to it."""

    def __init__(self, total: int, block_size: int, tree: Tree, block_s: float) -> None:
        """``total`` blocks; ``block_s`` is the time of one over the link, in s, either way."""
        self.total, self.block_size, self.block_s = total, block_size, block_s
        self.loaded = self.stored = 0  #: blocks so far
        self._tree = tree
        self._parts: dict[int, list[_Part]] = {}  # by node, in order
        self._queue: list[tuple[int, int, _Part]] = []  # heap of idle parts; entries of another turn are void
        self._ticket = count()
        self._turn = 0
        self._requests: dict[int, _Request] = {}
        self._copies: tuple[deque[Copy], deque[Copy]] = (deque(), deque())  # loads and stores that have begun
        self._link_free_s = [0.0, 0.0]
        for node, first, last in tree.remembered(total):
            part = _Part(node, first, last, self._turn, backwards=True)
            self._parts[node] = [part]
            self._queue.append((self._turn, next(self._ticket), part))  # in the order of a heap
            self._turn += last - first
        self._free, self._idle = total - self._turn, self._turn  # blocks that hold nothing, and those that may go

    def know(self, index: int, prompt_tok: int) -> None:
        """A request is looked at; ``prompt_tok`` counts the first time."""
        if index not in self._requests:
            self._enter(index, prompt_tok)

    def find(self, index: int, first: int, last: int) -> int | None:
        """How many of its blocks from ``first`` to before ``last`` can be loaded; None where it has to wait."""
        if self._requests[index].stores:
            return None
        found, waits = first, False
        for node, begin, end in self._pieces(index, first, last):
            for part in self._parts.get(node, ()):
                if part.first > found:
                    break
                if part.last > found:
                    waits = waits or part.store is not None or part.loads > 0
                    found = min(part.last, end)
            if found < end or found < begin:
                break
        return None if waits else found - first

    def load(self, index: int, first: int, last: int) -> Copy:
        """Blocks that ``find`` found are to be copied; the copy is to ``begin``."""
        request, pieces = self._requests[index], self._pieces(index, first, last)
        for piece in pieces:
            for part in self._cut(piece):
                if part.idle:
                    self._idle -= part.last - part.first
                part.loads += 1
        request.used += pieces
        request.offered = last
        return Copy(index, pieces, stores=False)

    def offer(self, index: int, tok: int) -> Copy | None:
        """A request will have computed ``tok`` tokens after this step; the copy of what the host lacks."""
        request = self._requests[index]
        last = min(tok, request.prompt_tok) // self.block_size
        if last <= request.offered:
            return None
        held: list[_Part] = []
        lacking: list[Piece] = []
        for node, begin, end in self._pieces(index, request.offered, last):
            at = begin
            for part in self._cut((node, begin, end)):
                if part.first > at:
                    lacking.append((node, at, part.first))
                at = part.last
                held.append(part)
            if at < end:
                lacking.append((node, at, end))
        request.used += [(part.node, part.first, part.last) for part in held if part.store is None]
        request.used += lacking
        if not lacking:
            request.offered = last
            return None
        copy = Copy(index, lacking, stores=True)
        if not self._make_room(copy.blocks, held):
            return None
        for node, begin, end in lacking:
            self._insert(_Part(node, begin, end, self._turn, backwards=False, store=copy))
            self._turn += end - begin
        self._free -= copy.blocks
        request.offered = last
        request.stores += 1
        return copy

    def lacks(self, index: int, tok: int) -> bool:
        """Whether a request found no room for its first ``tok`` tokens."""
        request = self._requests[index]
        return min(tok, request.prompt_tok) // self.block_size > request.offered

    def begin(self, copy: Copy, time_s: float) -> None:
        """A copy goes over the link from ``time_s`` on, after those before it in its direction."""
        way = copy.stores
        self._link_free_s[way] = copy.end_s = max(self._link_free_s[way], time_s) + copy.blocks * self.block_s
        self._copies[way].append(copy)
        if copy.stores:
            self.stored += copy.blocks
        else:
            self.loaded += copy.blocks

    def learn(self, time_s: float) -> list[Copy]:
        """The scheduler learns of the copies that have ended by ``time_s``; the loads among them."""
        loads, stores = self._copies
        ended = []
        while loads and loads[0].end_s <= time_s:
            ended.append(loads.popleft())
            self._settle(ended[-1])
        while stores and stores[0].end_s <= time_s:
            self._settle(stores.popleft())
        return ended

    @property
    def next_end_s(self) -> float:
        """When the next copy ends; infinite where none is under way."""
        return min((copies[0].end_s for copies in self._copies if copies), default=inf)

    def end(self, index: int) -> None:
        """A request has ended: its blocks are the ones used last, the first of them at the very last."""
        for piece in reversed(_joined(self._requests.pop(index).used)):
            above: _Part | None = None
            for part in reversed(self._cut(piece)):
                part.turn, part.backwards = self._turn, True
                self._turn += part.last - part.first
                if above is not None and above.idle and part.idle and part.last == above.first:
                    part.last, part.turn = above.last, above.turn
                    above.first = above.last
                    self._parts[part.node].remove(above)
                above = part
                self._queued(part)

    def _enter(self, index: int, prompt_tok: int) -> None:
        path = self._tree.path_of(index)
        self._requests[index] = _Request([*path, -1 - index], self._tree.stop[path[-1]] if path else 0, prompt_tok)

    def _pieces(self, index: int, first: int, last: int) -> list[Piece]:
        """Where the blocks of a request from ``first`` to before ``last`` are in the tree."""
        request = self._requests[index]
        start, stop = self._tree.start, self._tree.stop
        pieces = []
        for node in request.path:
            begin, end = (request.own, OPEN) if node < 0 else (start[node], stop[node])
            if begin >= last:
                break
            if end > first:
                pieces.append((node, max(begin, first), min(end, last)))
        return pieces

    def _cut(self, piece: Piece) -> list[_Part]:
        """What the host holds of a piece, in order: parts that reach beyond it come apart."""
        node, begin, end = piece
        parts = self._parts.get(node, [])
        for at in (begin, end):
            for place, part in enumerate(parts):
                if part.first < at < part.last:
                    rest = _Part(node, at, part.last, part.turn, part.backwards, part.store, part.loads)
                    part.last = at
                    if part.backwards:
                        part.turn += rest.last - at
                    else:
                        rest.turn += at - part.first
                    parts.insert(place + 1, rest)
                    self._queued(part)
                    self._queued(rest)
                    break
        return [part for part in parts if begin <= part.first < end]

    def _insert(self, part: _Part) -> None:
        parts = self._parts.setdefault(part.node, [])
        place = len(parts)
        while place and parts[place - 1].first > part.first:
            place -= 1
        parts.insert(place, part)

    def _queued(self, part: _Part) -> None:
        if part.idle:
            heappush(self._queue, (part.turn, next(self._ticket), part))

    def _make_room(self, blocks: int, kept: list[_Part]) -> bool:
        """Let blocks go until there is room for ``blocks``, but none of ``kept``; whether there is."""
        missing = blocks - self._free
        if missing <= 0:
            return True
        if missing > self._idle - sum(part.last - part.first for part in kept if part.idle):
            return False
        spared = []
        while missing > 0:
            entry = heappop(self._queue)
            turn, _, part = entry
            if part.turn != turn or not part.idle:
                continue
            if part in kept:
                spared.append(entry)
                continue
            gone = min(part.last - part.first, missing)
            missing -= gone
            self._free += gone
            self._idle -= gone
            part.turn += gone
            if part.backwards:
                part.last -= gone
            else:
                part.first += gone
            if part.last > part.first:
                self._queued(part)
                continue
            self._parts[part.node].remove(part)
            if not self._parts[part.node]:
                del self._parts[part.node]
        for entry in spared:
            heappush(self._queue, entry)
        return True

    def _settle(self, copy: Copy) -> None:
        """The scheduler knows that a copy has ended."""
        for piece in copy.pieces:
            for part in self._cut(piece):
                if not copy.stores:
                    part.loads -= 1
                elif part.store is copy:
                    part.store = None
                else:
                    continue
                if part.idle:
                    self._idle += part.last - part.first
                    self._queued(part)
        if copy.stores and copy.index in self._requests:
            self._requests[copy.index].stores -= 1


def _joined(pieces: list[Piece]) -> list[Piece]:
    """The same blocks in order, each once."""
    found: list[Piece] = []
    for node, first, last in sorted(pieces, key=lambda piece: piece[1]):
        if found and found[-1][0] == node and found[-1][2] >= first:
            found[-1] = (node, found[-1][1], max(found[-1][2], last))
        else:
            found.append((node, first, last))
    return found
