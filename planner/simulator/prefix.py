"""KV blocks that know what they hold: vLLM's prefix cache, piece by piece instead of block by block.

As in ``vllm/v1/core`` (``kv_cache_manager.py``, ``block_pool.py``) of 0.32:

- Only full blocks are found, from the first on, and the last token of a prompt is always computed.
- A block can be found from the moment on that a step is scheduled to fill it, and until somebody else takes it.
- A request that ends gives its blocks back, the last one first. Those that are full go to the end of the queue of free
  blocks, the one that is not goes to its head. Blocks are taken from the head.
- A block that is found leaves the queue. A block that has to be computed again is a second copy of the same text.

Blocks of one piece of text (a node of ``Prefixes``) are taken and given back together, so the queue holds them as one
``_Run`` and loses its end first. A node never has to be cut: those at which a prompt ends with a full block, which that
prompt has to compute again, come in two parts.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.simulator.blocks import KvBlocks
from planner.simulator.sequence import Sequence
from planner.workload import Requests

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPEN = 1 << 62  #: where the private part of a request ends
NOBODYS = -OPEN  #: the node of blocks that nobody will find

#: Blocks of a node: the node, the first of them and the one after the last, counted from the beginning of a prompt.
Piece = tuple[int, int, int]


class Tree:
    """The nodes of the requests' prefixes in blocks of one size; a node holds the blocks that end in it."""

    def __init__(self, requests: Requests, block_size: int) -> None:
        prefixes = requests.prefixes
        assert prefixes is not None  # who calls has asked
        parent, ends_tok, prompt = prefixes.parent, prefixes.end_tok, prefixes.prompt
        self._block_size = block_size
        self._prefixes, self._sent = prefixes, len(prompt)
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

    def remembered(self, blocks: int) -> list[Piece]:
        """What a cache of so many ``blocks`` keeps of the requests answered before, that which it forgets first first.

        As if they had passed through, one after the other: what was used last is there, ends go before beginnings.
        The private part of a request is a node of its own, below 0.
        """
        tree, fits = self._prefixes, self._fit(blocks)
        ends_at, full = tree.before[fits], tree.before_tok[fits] // self._block_size
        used = self._last_used(ends_at)
        nodes = np.flatnonzero(used >= 0)
        tips = np.asarray(self._tip)[nodes]
        tipped = tips >= 0
        shared = np.concatenate([nodes, tips[tipped]])
        ends_tok = np.where(ends_at >= 0, tree.end_tok[ends_at], 0) if len(tree.end_tok) else 0 * ends_at
        first = np.concatenate([np.asarray(self.start)[shared], ends_tok // self._block_size])
        last = np.concatenate([np.asarray(self.stop)[shared], full])
        user = np.concatenate([used[nodes], used[nodes[tipped]], np.arange(len(full))])
        piece = np.concatenate([shared, -1 - self._sent - fits])
        order = np.lexsort((first, -user))  # the last one first, and each from its beginning
        order = order[first[order] < last[order]]
        piece, first, last = piece[order], first[order], last[order]
        before = np.cumsum(last - first) - (last - first)
        kept = before < blocks
        last = np.minimum(last, first + blocks - before)[kept]
        pieces = zip(piece[kept].tolist(), first[kept].tolist(), last.tolist(), strict=True)
        return list(pieces)[::-1]

    def ends_in_a_part(self, blocks: int) -> bool:
        """Whether the last of them ends in a block that is not full, which nobody finds."""
        return bool(np.any(self._prefixes.before_tok[self._fit(blocks)[-1:]] % self._block_size))

    def _fit(self, blocks: int) -> NDArray[np.int64]:
        """Which of the requests answered before fit so many blocks."""
        return np.flatnonzero(self._prefixes.before_tok <= blocks * self._block_size)

    def _last_used(self, ends_at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last of the requests that end at these nodes to use each node; -1 where none does."""
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
        return self.path(self._answer[index])


def _column(values: NDArray[np.int64]) -> array[int]:
    """The same numbers, quickly read one by one."""
    return array("q", values.astype(np.int64).tobytes())


@dataclass(slots=True, eq=False)
class _Run:
    """The first blocks of a node, in the cache once."""

    node: int
    blocks: int
    users: int = 0  #: requests that hold it; 0: it is in the queue


@dataclass(slots=True)
class _Holding:
    """What one request has."""

    path: list[tuple[int, int, int]]  #: nodes with their first block and the one after; at last its own, not shared
    runs: list[_Run]  #: of the first nodes of the path


class PrefixBlocks(KvBlocks):
    """The blocks of one DP rank."""

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
        unused = tree.ends_in_a_part(total)
        for node, first, last in tree.remembered(total - unused):
            run = _Run(node, last - first)
            self._runs[node] = [run]
            self._idle[run] = None
            self._clean -= run.blocks

    def take(self, blocks: int) -> None:
        """Blocks leave the head of the queue, and what they held is forgotten."""
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
        """As ``KvBlocks.find``: the cached blocks from the first one on."""
        holding = self._holdings.get(sequence.index) or self._enter(sequence.index)
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
        """As ``KvBlocks.reuse``."""
        runs = self._holdings[sequence.index].runs = self._found_runs
        if self._beyond:
            runs[-1] = self._cut(runs[-1])
        for run in runs:
            if not run.users:  # it leaves the queue where it stood
                self._idle.pop(run, None)
                self.free -= run.blocks
            run.users += 1
        return cached_tok // self.block_size

    def fill(self, index: int, tok: int) -> None:
        """As ``KvBlocks.fill``: full blocks can be found from now on."""
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
                    path[place + 1 :] = [(NOBODYS, own, OPEN)]
                    if full > own:
                        runs.append(self._run(NOBODYS, full - own))
                    return
                run.blocks = blocks

    def release(self, index: int, tok: int) -> None:
        """As ``KvBlocks.release``: full blocks can still be found."""
        self.fill(index, tok)
        self._give_back(self._holdings.pop(index).runs, tok)

    def preempt(self, index: int, tok: int) -> None:
        """As ``KvBlocks.preempt``."""
        self.release(index, tok)  # what it has computed so far is found as that of others is

    def _enter(self, index: int) -> _Holding:
        """A request is looked at for the first time."""
        start, stop = self._tree.start, self._tree.stop
        path = [(node, start[node], stop[node]) for node in self._tree.path_of(index)]
        path.append((-1 - index, path[-1][2] if path else 0, OPEN))
        holding = self._holdings[index] = _Holding(path, [])
        return holding

    def _run(self, node: int, blocks: int) -> _Run:
        """One copy more of the first blocks of a node, for one request."""
        run = _Run(node, blocks, users=1)
        if node != NOBODYS:
            copies = self._runs.get(node)
            if copies is None:
                self._runs[node] = [run]
            else:
                copies.append(run)
        return run

    def _give_back(self, runs: list[_Run], tok: int) -> None:
        """The end of a context first: to the end of the queue, but what is no full block to its head."""
        for run in reversed(runs):
            run.users -= 1
            if not run.users:
                self._idle[run] = None
                self.free += run.blocks
        if tok % self.block_size:
            self.free += 1
            self._clean += 1

    def _cut(self, run: _Run) -> _Run:
        """The first blocks of an idle run; the others keep their place in the queue, and nobody will find them."""
        part = _Run(run.node, run.blocks - self._beyond)
        copies = self._runs[run.node]
        copies[copies.index(run)] = part
        run.node, run.blocks = NOBODYS, self._beyond
        return part

    def _forget(self, run: _Run) -> None:
        if run.node == NOBODYS:
            return
        copies = self._runs[run.node]
        if len(copies) == 1:
            del self._runs[run.node]
        else:
            copies.remove(run)
