"""KV blocks of one engine, counted without walking over the running requests.

A decoding request needs a new block whenever its context has filled the last one. Its context grows by one
token with every tick of the decode clock, so the tick at which it next needs a block is known, modulo the
block size, from the moment it starts to decode. Counting requests by that phase gives the need of any tick at
once, and any ``block_size`` ticks in a row need exactly one block for each request.

Free blocks wait in a queue. Those that have been free for longest are taken first and keep their content until then:
with prefix caching a preempted request finds its blocks again. It gives them back last block first, so others
take the end of its context first. ``planner.simulator.prefix`` also knows what requests have in common.
"""

from __future__ import annotations

from planner.simulator.sequence import Sequence


class KvBlocks:
    """Free blocks, and the decoding requests by the phase of their contexts."""

    __slots__ = ("_kept", "_phase", "_taken", "block_size", "caching", "free", "seqs", "total")

    def __init__(self, total: int, block_size: int, *, caching: bool = False) -> None:
        self.total = total
        self.caching = caching  #: whether free blocks keep their content
        self.free = total
        self.block_size = block_size
        self.seqs = 0  #: decoding requests
        self._phase = [0] * block_size
        self._taken = 0  # blocks taken from the head of the queue so far
        self._kept: dict[int, tuple[int, int]] = {}  # preempted: its blocks, and how many are taken when they come up

    def blocks(self, tok: int) -> int:
        """Blocks that hold ``tok`` tokens."""
        return -(-tok // self.block_size)

    def join(self, context_tok: int, clock: int) -> None:
        """A request with ``context_tok`` tokens computed, whose blocks are taken, decodes from ``clock`` on."""
        self._phase[(context_tok - clock) % self.block_size] += 1
        self.seqs += 1

    def leave(self, context_tok: int, clock: int) -> None:
        """A decoding request ends, or is preempted, before tick ``clock``."""
        self._phase[(context_tok - clock) % self.block_size] -= 1
        self.seqs -= 1

    def take(self, blocks: int) -> None:
        """Blocks leave the head of the queue."""
        self.free -= blocks
        self._taken += blocks

    def find(self, sequence: Sequence) -> tuple[int, int]:
        """Tokens of a waiting request that need not be computed, and their blocks that others hold already."""
        if not sequence.lost_tok:
            return sequence.cached_tok, 0
        return max(sequence.cached_tok, self._found(sequence) * self.block_size), 0

    def reuse(self, sequence: Sequence, cached_tok: int) -> int:
        """A request takes what ``find`` found, wherever in the queue that was; how many blocks it need not take."""
        if not sequence.lost_tok:
            return 0
        blocks = min(self._found(sequence), cached_tok // self.block_size)
        _, mark = self._kept.pop(sequence.index, (0, 0))
        self.free -= blocks
        behind = [(other, kept) for other, kept in self._kept.items() if kept[1] > mark]
        self._kept.update((other, (count, later - blocks)) for other, (count, later) in behind)
        return blocks

    def fill(self, index: int, tok: int) -> None:
        """The blocks of a request hold ``tok`` tokens from the next step on."""

    def release(self, index: int, tok: int) -> None:  # noqa: ARG002
        """A request that has computed ``tok`` tokens ends, and gives its blocks back."""
        self.free += self.blocks(tok)

    def preempt(self, index: int, tok: int) -> None:
        """A request that has computed ``tok`` tokens gives its blocks back and will look for them again."""
        blocks = self.blocks(tok)
        self._kept[index] = (blocks, self._taken + self.free)
        self.free += blocks

    def _found(self, sequence: Sequence) -> int:
        """Full blocks of a preempted request, its first ones, that nobody has taken yet."""
        if not (sequence.lost_tok and self.caching):
            return 0
        blocks, mark = self._kept.get(sequence.index, (0, 0))
        return min(max(mark + blocks - self._taken, 0), blocks, sequence.lost_tok // self.block_size)

    def need(self, clock: int) -> int:
        """Blocks that the decoding requests need at tick ``clock``."""
        return self._phase[-clock % self.block_size]

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
        """How many of ``ticks`` ticks from ``clock`` on find enough free blocks."""
        if (ticks // self.block_size + 1) * self.seqs <= self.free:
            return ticks
        periods = min(self.free // self.seqs, ticks // self.block_size)
        free = self.free - periods * self.seqs
        fit = periods * self.block_size
        while fit < ticks:
            free -= self.need(clock + fit)
            if free < 0:
                break
            fit += 1
        return fit
