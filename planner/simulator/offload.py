"""A second tier of KV blocks in host memory (``--kv-offloading-size``): the blocks there, and a DP rank that uses them.

``HostBlocks`` is vLLM's OffloadingConnector with its defaults (LRU, one block at a time, prompts only). Sources:
``distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`` and ``v1/kv_offload/cpu`` of 0.32. It works by
pieces of text instead of blocks:

- Full blocks of a prompt, computed by a step or found on the GPU alone, are offered when it is scheduled.
  After a load only those behind the loaded ones are. Those that the host does not hold are copied there.
- Where the host is full, the blocks that were used longest ago go, but none that is being copied. Without enough of
  these nothing is copied, and the blocks are offered again.
- Blocks are found once the scheduler knows that their copy has ended. A request that would find some before waits, and
  so does one whose blocks are just being loaded for another.
- A request that ends has used all its blocks, the last one first. Until then blocks count as used when they came.
- Each direction of the link takes one copy after the other.

``OffloadRank`` schedules them (``v1/core/sched/scheduler.py``, ``v1/worker/gpu/kv_connector.py`` of 0.32).

- A waiting request whose blocks are found on the host gets blocks for them on the GPU. It steps aside until they are
  there, without a place or budget. A load must leave the blocks that prompts under way still need. Loaded
  requests come before others.
- Loads begin when the step that orders them has computed, stores one step later. What has ended is looked up as a step
  is launched, and the scheduler hears of it with what that step computes. An idle engine looks all the time.

Not modelled: steps that wait for blocks whose store has not ended yet. Blocks that did not fit on the host are offered
again with every change of the batch, in vLLM in every step."""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf, nextafter
from operator import attrgetter

from planner.simulator.blocks import OPEN, KvBlocks, Piece, Tree
from planner.simulator.limits import SchedulerLimits, StepTimer
from planner.simulator.rank import BEGINS, MOMENT_S, DpRank
from planner.simulator.record import Log, Sequence, Step
from planner.timing import Batch


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
    """Blocks of one node of the tree that follow each other and were used together."""

    node: int
    first: int
    last: int  #: the block after it
    turn: int  #: when the block that goes first was used, in blocks; the others follow
    backwards: bool  #: the last block goes first
    store: Copy | None = None  #: that has not ended yet
    loads: int = 0

    @property
    def idle(self) -> bool:
        return self.store is None and not self.loads and self.last > self.first


@dataclass(slots=True)
class _Request:
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
        if index not in self._requests:
            path = self._tree.path_of(index)
            own = self._tree.stop[path[-1]] if path else 0
            self._requests[index] = _Request([*path, -1 - index], own, prompt_tok)

    def find(self, index: int, first: int, last: int) -> int | None:
        """Count the blocks from ``first`` to before ``last`` that can be loaded; None where the request has to wait."""
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
        """Order a copy of blocks that ``find`` found; it is to ``begin``."""
        request, pieces = self._requests[index], self._pieces(index, first, last)
        for piece in pieces:
            for part in self._cut(piece):
                if part.idle:
                    self._idle -= part.last - part.first
                part.loads += 1
        request.used += pieces
        request.offered = last
        return Copy(index, pieces, stores=False)

    def offer(self, index: int, tok: int) -> tuple[Copy | None, bool]:
        """Order a copy of the blocks that the host lacks of a request with ``tok`` tokens computed after this step.

        Return it, if there is one, and whether all of them fit."""
        request = self._requests[index]
        last = min(tok, request.prompt_tok) // self.block_size
        if last <= request.offered:
            return None, True
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
        copy = Copy(index, lacking, stores=True)
        if not self._make_room(copy.blocks, held):
            return None, False
        for node, begin, end in lacking:
            part = _Part(node, begin, end, self._turn, backwards=False, store=copy)
            insort(self._parts.setdefault(node, []), part, key=attrgetter("first"))
            self._turn += end - begin
        self._free -= copy.blocks
        request.offered = last
        request.stores += bool(lacking)
        return copy if lacking else None, True

    def begin(self, copy: Copy, time_s: float) -> None:
        """Send a copy over the link from ``time_s`` on, after those before it in its direction."""
        way = copy.stores
        self._link_free_s[way] = copy.end_s = max(self._link_free_s[way], time_s) + copy.blocks * self.block_s
        self._copies[way].append(copy)
        if copy.stores:
            self.stored += copy.blocks
        else:
            self.loaded += copy.blocks

    def learn(self, time_s: float) -> list[Copy]:
        """Tell the scheduler of the copies that have ended by ``time_s``; return the loads among them."""
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
        return min((copies[0].end_s for copies in self._copies if copies), default=inf)

    def end(self, index: int) -> None:
        """End a request: its blocks are the ones used last, the first of them at the very last."""
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

    def _pieces(self, index: int, first: int, last: int) -> list[Piece]:
        """Places in the tree of the blocks of a request from ``first`` to before ``last``."""
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
        """Parts of a piece that the host holds, in order; parts that reach beyond it are cut."""
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

    def _queued(self, part: _Part) -> None:
        if part.idle:
            heappush(self._queue, (part.turn, next(self._ticket), part))

    def _make_room(self, blocks: int, kept: list[_Part]) -> bool:
        """Drop blocks until ``blocks`` fit, but none of ``kept``; return whether they fit."""
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
    joined: list[Piece] = []
    for node, first, last in sorted(pieces, key=lambda piece: piece[1]):
        before = joined.pop() if joined and joined[-1][0] == node and joined[-1][2] >= first else (node, first, last)
        joined.append((node, before[1], max(before[2], last)))
    return joined


class OffloadRank(DpRank):
    def __init__(self, timer: StepTimer, limits: SchedulerLimits, log: Log, kv: KvBlocks, host: HostBlocks) -> None:
        super().__init__(timer, limits, log, kv)
        self.host = host
        self._loading: dict[int, Sequence] = {}  # requests whose blocks are on their way, or there
        self._had: dict[int, int] = {}  # blocks on the GPU of each of them
        self._there: set[int] = set()  # those of which the scheduler knows that all is there
        self._deferred = self._blocked = False  # whether requests wait for a copy, and whether for free blocks
        self._unstored: dict[int, int] = {}  # requests that did not fit on the host, and their tokens
        self._ordered: list[Copy] = []  # loads
        self._offered: list[Copy] = []  # stores of the step to come
        self._stores: list[Copy] = []  # and of the one before
        self._ended: list[int] = []  # requests that gave their places back
        self._old: list[int] = []  # and those that did before the step to come was scheduled
        self._partial_tok = 0  # of the prompt that is under way, with the step to come
        self._ended_s = -inf  # end of the last step
        # starts of the last steps; a step is scheduled when the one before is launched, or still one earlier
        self._looks_s = [-inf] * (3 if limits.async_scheduling else 1)
        self._asleep = self._woken = False  # whether nothing is to compute until a copy has ended, and was until now
        self._looked = False  # whether this is the second look of an idle engine

    def submit(self, ready_s: float, sequence: Sequence) -> None:
        super().submit(ready_s, sequence)
        if self._asleep and ready_s < self.event[0]:
            self.event = (ready_s, BEGINS)

    def plan(self, start_s: float) -> Step:
        if self._asleep or start_s > self._ended_s:
            self._looks_s = [start_s] * len(self._looks_s)
        self._woken, self._asleep, self._looked = self._asleep, False, False
        self._old, self._ended = self._ended, []
        self._learn(self._looks_s[0])
        step = super().plan(start_s)
        for index in [*self._unstored]:
            if index in self._running:
                self._offer(index, self._unstored[index])
        for sequence, new_tok in step.chunks:
            self._offer(sequence.index, sequence.done_tok + new_tok)
        self._forget(self._old)
        self._old = []
        return step

    def start(self, step: Step, first_s: float, steps: int, growth_s: float) -> None:
        """Start as a ``DpRank`` does; copies begin when the first step has computed."""
        idle, host = not step.chunks and not step.batch.decode_seqs, self.host
        self._copy(step.start_s + (0.0 if idle else first_s))
        if idle:
            self._copy(step.start_s)
            self._asleep = True
            awaited_s = host.next_end_s if self._loading or self._deferred else inf
            self.event = (min(awaited_s, self._inbox[0][0] if self._inbox else inf), BEGINS)
            return
        super().start(step, first_s, steps, growth_s)
        step = self._step
        if self._stores:
            self.stop_after(1)
        elif step.steps > 1 and (self._loading or self._deferred):  # to where the scheduler hears of an awaited copy
            end_s, late = host.next_end_s, len(self._looks_s)
            earlier = sum(at_s >= end_s for at_s in self._looks_s[1:])
            steps = bisect_left(range(step.steps), end_s, key=step.begins_s) + late - earlier
            self.stop_after(min(max(steps, 1), step.steps))

    def end(self) -> list[int]:
        step, self._ended_s = self._step, self.event[0]
        done = super().end()
        starts = [step.begins_s(at) for at in range(max(step.steps - len(self._looks_s), 0), step.steps)]
        self._looks_s = [*self._looks_s, *starts][-len(self._looks_s) :]
        if self._loading:
            self.event = (self._ended_s, BEGINS)
        if self.event[0] > self._ended_s:
            self._pause(self._ended_s)
        return done

    def _pause(self, time_s: float) -> None:
        self._copy(time_s)
        ended, self._old, self._ended = [*self._old, *self._ended], [], []
        self._forget(ended)

    def _forget(self, ended: list[int]) -> None:
        for index in ended:
            if index in self._unstored:
                self._offer(index, self._unstored[index])
                self._unstored.pop(index, None)
            self.host.end(index)

    def _schedule(self) -> tuple[list[tuple[Sequence, int]], bool]:
        self._deferred = self._blocked = False
        waited = bool(self._waiting)
        chunks, calm = super()._schedule()
        if calm and not waited and self._loading:
            used_tok = self.kv.seqs * self.limits.decode_tok + sum(new_tok for _, new_tok in chunks)
            chunks = [*chunks, *self._admit(self.limits.max_num_batched_tokens - used_tok)]
        self._looked = True
        return chunks, calm

    def _receive(self, before_s: float) -> None:
        if self._looked:  # an idle engine looks again at once, and starts with what wakes it
            self._pause(self.event[0])
            self._learn(before_s)
            before_s = nextafter(before_s + 2 * MOMENT_S, inf) if self._woken else before_s
        super()._receive(before_s)

    def _continue_prompt(self, sequence: Sequence, budget_tok: int) -> list[tuple[Sequence, int]]:
        chunks = super()._continue_prompt(sequence, budget_tok)
        self._partial_tok = sequence.done_tok + sum(new_tok for _, new_tok in chunks)
        return chunks

    def _admit(self, budget_tok: int) -> list[tuple[Sequence, int]]:
        chunks: list[tuple[Sequence, int]] = []
        aside: list[Sequence] = []
        places = self._places - len(self._leaving)
        for sequence in [each for index, each in self._loading.items() if index in self._there]:
            if budget_tok <= 0 or len(self._running) >= places or self._blocked:
                break
            new_tok = self._resume(sequence, budget_tok)
            budget_tok -= new_tok
            if new_tok:
                chunks.append((sequence, new_tok))
        while budget_tok > 0 and self._waiting and len(self._running) < places and not self._blocked:
            sequence = self._waiting[0]
            begun_tok = self._look_up(sequence, budget_tok)
            if begun_tok is None:
                aside.append(self._waiting.popleft())
            elif begun_tok or sequence.index in self._loading:
                self._waiting.popleft()
            if begun_tok:
                budget_tok -= begun_tok
                chunks.append((sequence, begun_tok))
        self.most_seqs = max(self.most_seqs, len(self._running))
        self._deferred = self._deferred or bool(aside)
        for sequence in reversed(aside):
            self._waiting.appendleft(sequence)
        return chunks

    def _look_up(self, sequence: Sequence, budget_tok: int) -> int | None:
        """Admit the first that waits, or load blocks for it; return the tokens of its first chunk, None if it waits."""
        cached_tok, held = self.kv.find(sequence)
        self.host.know(sequence.index, sequence.prompt_tok)
        size = self.kv.block_size
        found = self.host.find(sequence.index, cached_tok // size, sequence.prompt_tok // size)
        if found is None:
            return None
        if found:
            self._blocked = not self._order(sequence, cached_tok, held, found)
            return 0
        new_tok = self._begin_prompt(sequence, cached_tok, held, budget_tok)
        self._blocked = not new_tok
        return new_tok

    def _order(self, sequence: Sequence, cached_tok: int, held: int, loaded: int) -> bool:
        """Load ``loaded`` blocks of a waiting request behind those that the GPU has; return whether they fit."""
        kv, index, partial = self.kv, sequence.index, self._partial
        blocks = cached_tok // kv.block_size + loaded
        whole = kv.blocks(sequence.prompt_tok) if self.limits.scheduler_reserve_full_isl else blocks
        # blocks that prompts under way still need: the one that is being computed, and those that are loaded
        reserved = sum(kv.blocks(each.prompt_tok) - self._had[other] for other, each in self._loading.items())
        reserved += kv.blocks(partial.prompt_tok) - kv.blocks(self._partial_tok) if partial is not None else 0
        if whole - held > kv.free or blocks - held > kv.free - reserved:
            return False
        kv.take(blocks - kv.reuse(sequence, cached_tok))
        self._ordered.append(self.host.load(index, blocks - loaded, blocks))
        self._had[index] = blocks
        self._loading[index] = sequence
        if not sequence.lost_tok:
            self.log.cached_tok[index] = blocks * kv.block_size
            self.log.host_tok[index] = loaded * kv.block_size
        return True

    def _resume(self, sequence: Sequence, budget_tok: int) -> int:
        """Admit a request whose blocks are there; return the tokens of its first chunk, 0 where it does not fit."""
        kv, had = self.kv, self._had[sequence.index]
        sequence.done_tok = min(had * kv.block_size, sequence.prompt_tok - 1)
        rest_tok = sequence.prompt_tok - sequence.done_tok
        new_tok = min(rest_tok, budget_tok)
        blocks = kv.blocks(sequence.done_tok + new_tok)
        whole = kv.blocks(sequence.prompt_tok) if self.limits.scheduler_reserve_full_isl else blocks
        if (new_tok < rest_tok and self.limits.whole_prompts) or whole - had > kv.free:
            self._blocked = True
            return 0
        kv.take(blocks - had)
        kv.fill(sequence.index, sequence.done_tok + new_tok)
        self._running[sequence.index] = sequence
        self._there.remove(sequence.index)
        del self._had[sequence.index], self._loading[sequence.index]
        if new_tok < rest_tok:
            self._partial = sequence
        return new_tok

    def _decode(self, start_s: float, once: bool) -> Step:
        if not self.kv.seqs:
            return Step(start_s, 0.0, Batch())
        step = super()._decode(start_s, once)
        step.may_be_cut = not self._blocked and len(self._running) < self._places
        return step

    def _leave(self, sequence: Sequence, tok: int) -> None:
        super()._leave(sequence, tok)
        if not self._leaving:
            self._ended.append(sequence.index)

    def _vacate(self) -> None:
        self._ended += [sequence.index for sequence in self._leaving]
        super()._vacate()

    def _offer(self, index: int, tok: int) -> None:
        copy, fits = self.host.offer(index, tok)
        if copy is not None:
            self._offered.append(copy)
        if fits:
            self._unstored.pop(index, None)
        else:
            self._unstored[index] = tok

    def _copy(self, time_s: float) -> None:
        for copy in (*self._stores, *self._ordered):
            self.host.begin(copy, time_s)
        self._ordered.clear()
        self._stores, self._offered = self._offered, []

    def _learn(self, time_s: float) -> None:
        for copy in self.host.learn(time_s + MOMENT_S):
            self._there.add(copy.index)
            self.kv.fill(copy.index, self._had[copy.index] * self.kv.block_size)
