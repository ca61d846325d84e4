"""KV blocks of one engine, counted without walking over the running requests.

A decoding request needs a new block whenever its context has filled the last one, which grows by one token with every
tick of the decode clock. Requests are counted by its phase, modulo the block size: the count is the need of a tick. Any
``block_size`` ticks in a row need exactly one block for each request.

Blocks that have been free for longest are taken first and keep their content until then: with prefix caching a
preempted request finds its blocks again. It gives them back last block first: others take the end of its context.

``PrefixBlocks`` also knows what requests have in common. It is vLLM's prefix cache as in ``vllm/v1/core``
(``kv_cache_manager.py``, ``block_pool.py``) of 0.32, by pieces of text instead of blocks. Its rules:

- Only full blocks are found, from the first on, and the last token of a prompt is always computed.
- A block can be found from the moment on that a step is scheduled to fill it, and until another request takes it.
- A request that ends gives its blocks back, the last one first. Full ones go to the end of the queue of free blocks,
  the other to its head. Blocks are taken from the head.
- A block that is found leaves the queue. A block that has to be computed again is a second copy of the same text.

Blocks of one piece of text (a node of ``Prefixes``) are taken and given back together: the queue holds them as one
``_Run`` and loses its end first. Nodes at which a prompt ends with a full block, which it has to compute again, come in
two parts, so none has to be cut."""

from array import array
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.simulator.record import Sequence
from planner.workload import Requests


class KvBlocks:
    """Free blocks, and the decoding requests by the phase of their contexts."""

    __slots__ = ("_kept", "_phase", "_shared", "_taken", "block_size", "caching", "free", "seqs", "total")

    def __init__(self, total: int, block_size: int, *, caching: bool = False, shared: int = 0) -> None:
        self.total = total
        self.caching = caching  #: whether free blocks keep their content
        self._shared = shared  # the first blocks of every request, held once for all
        self.free = total - shared
        self.block_size = block_size
        self.seqs = 0  #: decoding requests
        self._phase = [0] * block_size
        self._taken = 0  # blocks taken from the head of the queue so far
        self._kept: dict[int, tuple[int, int]] = {}  # preempted: its blocks, and how many are taken when they come up

    def blocks(self, tok: int) -> int:
        return -(-tok // self.block_size) - self._shared

    def join(self, context_tok: int, clock: int) -> None:
        """Decode a request with ``context_tok`` tokens computed, whose blocks are taken, from ``clock`` on."""
        self._phase[(context_tok - clock) % self.block_size] += 1
        self.seqs += 1

    def leave(self, context_tok: int, clock: int) -> None:
        """End or preempt a decoding request before tick ``clock``."""
        self._phase[(context_tok - clock) % self.block_size] -= 1
        self.seqs -= 1

    def take(self, blocks: int) -> None:
        self.free -= blocks
        self._taken += blocks

    def find(self, sequence: Sequence) -> tuple[int, int]:
        """Return the cached tokens of a waiting request, and their blocks that other requests hold."""
        if not sequence.lost_tok:
            return sequence.cached_tok, 0
        return max(sequence.cached_tok, (self._shared + self._found(sequence)) * self.block_size), 0

    def reuse(self, sequence: Sequence, cached_tok: int) -> int:
        """Take what ``find`` found, wherever in the queue it is; return the blocks that are not to be taken again."""
        if not sequence.lost_tok:
            return 0
        blocks = min(self._found(sequence), cached_tok // self.block_size - self._shared)
        _, mark = self._kept.pop(sequence.index, (0, 0))
        self.free -= blocks
        behind = [(other, kept) for other, kept in self._kept.items() if kept[1] > mark]
        self._kept.update((other, (count, later - blocks)) for other, (count, later) in behind)
        return blocks

    def fill(self, index: int, tok: int) -> None:
        """Note that the blocks of a request hold ``tok`` tokens from the next step on."""

    def release(self, index: int, tok: int) -> None:  # noqa: ARG002
        """Give back the blocks of a request that ends with ``tok`` tokens computed."""
        self.free += self.blocks(tok)

    def preempt(self, index: int, tok: int) -> None:
        """Give back the blocks of a request with ``tok`` tokens computed, which will look for them again."""
        blocks = self.blocks(tok)
        self._kept[index] = (blocks, self._taken + self.free)
        self.free += blocks

    def _found(self, sequence: Sequence) -> int:
        """The first full blocks of a preempted request that are not taken yet."""
        if not (sequence.lost_tok and self.caching):
            return 0
        blocks, mark = self._kept.get(sequence.index, (0, 0))
        return min(max(mark + blocks - self._taken, 0), blocks, sequence.lost_tok // self.block_size - self._shared)

    def need_of(self, clock: int, ticks: int) -> int:
        """Blocks that the decoding requests need in ``ticks`` ticks from ``clock`` on."""
        if ticks == 1:
            return self._phase[-clock % self.block_size]
        periods, rest = divmod(ticks, self.block_size)
        need = periods * self.seqs
        for tick in range(clock, clock + rest):
            need += self._phase[-tick % self.block_size]
        return need

    def ticks_that_fit(self, clock: int, ticks: int) -> int:
        """Count the ticks, of ``ticks`` from ``clock`` on, that have enough free blocks."""
        if (ticks // self.block_size + 1) * self.seqs <= self.free:
            return ticks
        periods = min(self.free // self.seqs, ticks // self.block_size)
        free = self.free - periods * self.seqs
        fit = periods * self.block_size
        while fit < ticks:
            free -= self._phase[-(clock + fit) % self.block_size]
            if free < 0:
                break
            fit += 1
        return fit


OPEN = 1 << 62  #: where the private part of a request ends
LOST = -OPEN  #: the node of blocks that will not be found again

#: Blocks of a node: the node, the first of them and the one after the last, counted from the beginning of a prompt.
Piece = tuple[int, int, int]


class Tree:
    """The nodes of the requests' prefixes in blocks of one size; a node holds the blocks that end in it."""

    def __init__(self, requests: Requests, block_size: int, first: int = 0) -> None:
        prefixes = requests.prefixes
        assert prefixes is not None  # the caller has checked
        parent, ends_tok, prompt = prefixes.parent, prefixes.end_tok, prefixes.prompt
        self._block_size = block_size
        self._prefixes, self._first, self._sent = prefixes, first, len(prompt)
        stop = ends_tok // block_size
        start = np.where(parent >= 0, stop[parent], 0) if len(parent) else stop
        shared = prompt >= 0
        ends, prompt_tok = prompt[shared], requests.input_len[shared]
        ends = ends[(ends_tok[ends] == prompt_tok) & (prompt_tok % block_size == 0)]
        tipped = np.unique(ends[stop[ends] - start[ends] > 1])
        last = stop[tipped]
        stop[tipped] -= 1
        tip = np.full(len(parent), -1)
        tip[tipped] = len(parent) + np.arange(len(tipped))
        self.start = _column(np.concatenate([start, last - 1]))  #: first block of each node
        self.stop = _column(np.concatenate([stop, last]))  #: block after its last one
        self._tip = _column(tip)  # the last block of a node, as a node of its own
        self._parent = _column(parent)
        self._answer = _column(np.concatenate([prefixes.answer, prefixes.before]))

    def path(self, node: int) -> list[int]:
        """The nodes with blocks from the beginning to ``node``."""
        found = []
        start, stop, tips, parent = self.start, self.stop, self._tip, self._parent
        while node >= 0:
            if tips[node] >= 0:
                found.append(tips[node])
            if stop[node] > start[node]:
                found.append(node)
            node = parent[node]
        found.reverse()
        return found

    def remembered(self, blocks: int, *, spared: bool = False) -> list[Piece]:
        """Pieces that a cache of ``blocks`` holds of the requests answered before, in the order in which they will go.

        Pieces used last are there, ends go before beginnings. The private part of a request is a node of its own, below
        0. ``spared``: less a block where the last request ends in one that is not full and so is never found."""
        tree, size = self._prefixes, self._block_size
        fits = np.flatnonzero(tree.before_tok <= blocks * size)  # the requests answered before that fit
        if spared and np.any(tree.before_tok[fits[-1:]] % size):
            blocks -= 1
            fits = fits[tree.before_tok[fits] <= blocks * size]
        ends_at, full = tree.before[fits], tree.before_tok[fits] // size
        used = self._last_used(ends_at)
        nodes = np.flatnonzero(used >= 0)
        tips = np.asarray(self._tip)[nodes]
        tipped = tips >= 0
        shared = np.concatenate([nodes, tips[tipped]])
        ends_tok = np.where(ends_at >= 0, tree.end_tok[ends_at], 0) if len(tree.end_tok) else 0 * ends_at
        first = np.concatenate([np.asarray(self.start)[shared], ends_tok // size])
        last = np.concatenate([np.asarray(self.stop)[shared], full])
        user = np.concatenate([used[nodes], used[nodes[tipped]], np.arange(len(full))])
        piece = np.concatenate([shared, -1 - self._first - self._sent - fits])
        order = np.lexsort((first, -user))  # the last one first, and each from its beginning
        order = order[first[order] < last[order]]
        piece, first, last = piece[order], first[order], last[order]
        before = np.cumsum(last - first) - (last - first)
        kept = before < blocks
        last = np.minimum(last, first + blocks - before)[kept]
        return list(zip(piece[kept].tolist(), first[kept].tolist(), last.tolist(), strict=True))[::-1]

    def _last_used(self, ends_at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last request that uses each node, of those that end at ``ends_at``; -1: none does."""
        used = [-1] * len(self._parent)
        for place, node in enumerate(ends_at.tolist()):
            if node >= 0:
                used[node] = place
        for node in range(len(used) - 1, -1, -1):  # children come after their parents
            above = self._parent[node]
            if above >= 0 and used[node] > used[above]:
                used[above] = used[node]
        return np.array(used, dtype=np.int64)

    def path_of(self, index: int) -> list[int]:
        """The nodes of a request, its answer included as far as others go on from there."""
        return self.path(self._answer[index - self._first])


def _column(values: NDArray[np.int64]) -> "array[int]":
    return array("q", values.astype(np.int64).tobytes())


@dataclass(slots=True, eq=False)
class _Run:
    """The first blocks of a node, in the cache once."""

    node: int
    blocks: int
    users: int = 0  #: requests that hold it; 0: it is in the queue


@dataclass(slots=True)
class _Holding:
    path: list[Piece]  #: at last its own, not shared
    runs: list[_Run]  #: of the first nodes of the path


class PrefixBlocks(KvBlocks):
    __slots__ = ("_beyond", "_clean", "_found_runs", "_holdings", "_idle", "_runs", "_tree")

    def __init__(self, total: int, block_size: int, tree: Tree) -> None:
        super().__init__(total, block_size, caching=True)
        self._tree = tree
        self._clean = total  # free blocks that hold nothing: the head of the queue
        self._idle: OrderedDict[_Run, None] = OrderedDict()  # the rest of it
        self._runs: dict[int, list[_Run]] = {}  # by node, the oldest copy first
        self._holdings: dict[int, _Holding] = {}
        self._found_runs: list[_Run] = []  # of the last ``find``
        self._beyond = 0  # blocks of the last of them that are not to be used
        for node, first, last in tree.remembered(total, spared=True):
            run = _Run(node, last - first)
            self._runs[node] = [run]
            self._idle[run] = None
            self._clean -= run.blocks

    def take(self, blocks: int) -> None:
        self.free -= blocks
        blocks -= self._clean
        if blocks <= 0:
            self._clean = -blocks
            return
        self._clean = 0
        idle = self._idle
        while blocks > 0:
            run = next(iter(idle))
            if run.blocks > blocks:
                run.blocks -= blocks
                return
            blocks -= run.blocks
            del idle[run]
            self._forget(run)

    def find(self, sequence: Sequence) -> tuple[int, int]:
        holding = self._holdings.get(sequence.index)
        if holding is None:
            start, stop, index = self._tree.start, self._tree.stop, sequence.index
            path = [(node, start[node], stop[node]) for node in self._tree.path_of(index)]
            path.append((-1 - index, path[-1][2] if path else 0, OPEN))
            holding = self._holdings[index] = _Holding(path, [])
        limit = (sequence.prompt_tok - 1) // self.block_size
        copies_of = self._runs
        runs: list[_Run] = []
        blocks, held, self._beyond = 0, 0, 0
        for node, first, last in holding.path:
            copies = copies_of.get(node)
            if copies is None or first >= limit:
                break
            run = copies[0]
            beyond = first + run.blocks - limit
            if beyond > 0:
                if run.users:
                    break
                self._beyond = beyond
            runs.append(run)
            blocks = min(first + run.blocks, limit)
            if run.users:
                held += run.blocks
            if blocks < last:
                break
        self._found_runs = runs
        return blocks * self.block_size, held

    def reuse(self, sequence: Sequence, cached_tok: int) -> int:
        runs = self._holdings[sequence.index].runs = self._found_runs
        if self._beyond:  # the last one stays in the queue with the blocks that are not used
            rest = runs[-1]
            runs[-1] = _Run(rest.node, rest.blocks - self._beyond)
            copies = self._runs[rest.node]
            copies[copies.index(rest)] = runs[-1]
            rest.node, rest.blocks = LOST, self._beyond
        for run in runs:
            if not run.users:  # it leaves the queue where it stood
                self._idle.pop(run, None)
                self.free -= run.blocks
            run.users += 1
        return cached_tok // self.block_size

    def fill(self, index: int, tok: int) -> None:
        holding, full = self._holdings[index], tok // self.block_size
        runs, path = holding.runs, holding.path
        known = len(runs)
        for place in range(known - 1 if known else 0, len(path)):
            node, first, last = path[place]
            if full <= first:
                return
            blocks = (full if full < last else last) - first
            if place >= known:
                runs.append(self._run(node, blocks))
            elif blocks > (run := runs[place]).blocks:
                if run.users > 1:  # another request goes on from here too: each keeps its own
                    own = first + run.blocks
                    path[place + 1 :] = [(LOST, own, OPEN)]
                    if full > own:
                        runs.append(self._run(LOST, full - own))
                    return
                run.blocks = blocks

    def release(self, index: int, tok: int) -> None:
        self.fill(index, tok)  # full blocks can still be found
        for run in reversed(self._holdings.pop(index).runs):
            run.users -= 1
            if not run.users:
                self._idle[run] = None
                self.free += run.blocks
        if tok % self.block_size:
            self.free += 1
            self._clean += 1

    def preempt(self, index: int, tok: int) -> None:
        self.release(index, tok)  # what it has computed so far is found as that of others is

    def _run(self, node: int, blocks: int) -> _Run:
        run = _Run(node, blocks, users=1)
        if node != LOST:
            self._runs.setdefault(node, []).append(run)
        return run

    def _forget(self, run: _Run) -> None:
        if run.node != LOST:
            self._runs[run.node].remove(run)
            if not self._runs[run.node]:
                del self._runs[run.node]
