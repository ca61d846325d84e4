"""KV blocks of one engine, counted without walking over the running requests.

A decoding request needs a new block whenever its context has filled the last one. Its context grows by one
token with every tick of the decode clock, so the tick at which it next needs a block is known, modulo the
block size, from the moment it starts to decode. Counting requests by that phase gives the need of any tick at
once, and any ``block_size`` ticks in a row need exactly one block for each request.

Free blocks wait in a queue. Those that have been free for longest are taken first and keep their content until then:
with prefix caching a preempted request finds its blocks again. It gives them back last block first, so others
take the end of its context first.
"""

from __future__ import annotations


class KvBlocks:
    """Free blocks, and the decoding requests by the phase of their contexts."""

    __slots__ = ("_kept", "_phase", "_taken", "block_size", "free", "seqs", "total")

    def __init__(self, total: int, block_size: int) -> None:
        self.total = total
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

    def leave(self, context_tok: int, clock: int) -> int:
        """A decoding request ends, or is preempted, before tick ``clock``; how many blocks it had."""
        self._phase[(context_tok - clock) % self.block_size] -= 1
        self.seqs -= 1
        return self.blocks(context_tok)

    def take(self, blocks: int) -> None:
        """Blocks leave the head of the queue."""
        self.free -= blocks
        self._taken += blocks

    def keep(self, index: int, blocks: int) -> None:
        """A preempted request gives its blocks back."""
        self._kept[index] = (blocks, self._taken + self.free)
        self.free += blocks

    def kept(self, index: int) -> int:
        """How many blocks of a preempted request, its first ones, nobody has taken yet."""
        blocks, mark = self._kept.get(index, (0, 0))
        return min(max(mark + blocks - self._taken, 0), blocks)

    def reuse(self, index: int, blocks: int) -> None:
        """A preempted request has so many of its blocks back, from wherever in the queue they were."""
        _, mark = self._kept.pop(index, (0, 0))
        self.free -= blocks
        behind = [(other, kept) for other, kept in self._kept.items() if kept[1] > mark]
        self._kept.update((other, (count, later - blocks)) for other, (count, later) in behind)

    def need(self, clock: int) -> int:
        """Blocks that the decoding requests need at tick ``clock``."""
        return self._phase[-clock % self.block_size]

    def need_of(self, clock: int, ticks: int) -> int:
        """Blocks that the decoding requests need in ``ticks`` ticks from ``clock`` on."""
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
