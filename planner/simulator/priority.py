"""vLLM's ``--scheduling-policy priority``: who comes first, and who has to go.

As in ``vllm/v1/core/sched`` (``request_queue.py``, ``scheduler.py``) of 0.32. A lower number comes first; of equal ones
that which was sent first.

- Waiting requests are admitted in that order, those that were preempted among them. Nobody is preempted for them.
- Running requests get their blocks in the order of their admission. Where one finds none, the last of all that run
  goes, be it that this step had served it already.
- Where that is the very request that found none, the step ends there: those admitted after it keep their blocks, and
  wait for the next step.
"""

from __future__ import annotations

from operator import attrgetter

from planner.simulator.blocks import KvBlocks
from planner.simulator.limits import SchedulerLimits, StepTimer
from planner.simulator.rank import DpRank
from planner.simulator.record import Log
from planner.simulator.sequence import ByPriority, Sequence, Step

_rank = attrgetter("rank")


class PriorityRank(DpRank):
    """A DP rank that serves by priority."""

    def __init__(self, timer: StepTimer, limits: SchedulerLimits, log: Log, kv: KvBlocks | None = None) -> None:
        super().__init__(timer, limits, log, kv)
        self._waiting = ByPriority()
        self._calm = True  # nobody was preempted for the step to come
        self._halted = False  # it ended with a request that found no block
        self._missed: list[Sequence] = []  # decoding, but not in the step to come
        self._served: set[int] | None = None  # in the step to come, so far; None: all

    def end(self) -> list[int]:
        """As ``DpRank.end``; who missed the step is back for the next."""
        done = super().end()
        if self._missed:
            self._rejoin(self._ticked_s)
        return done

    def _schedule(self) -> tuple[list[tuple[Sequence, int]], bool]:
        if self._missed:  # a step with nobody in it takes no time, and ``plan`` tries again
            self._rejoin(self._ticked_s)
        self._calm, self._halted = True, False
        return super()._schedule()

    def _make_room(self) -> bool:
        ticks = self._pace.ticks(1)
        need = self.kv.need_of(self._clock, ticks)
        if need <= self.kv.free:
            self.kv.take(need)
            return True
        self._served = set()
        for sequence in [*self._running.values()]:
            if sequence is self._partial or sequence.index not in self._running:
                continue
            if self._halted:
                self._miss(sequence)
                continue
            context_tok = sequence.context_tok(self._clock)
            if self._claim(sequence, self.kv.blocks(context_tok + ticks) - self.kv.blocks(context_tok)):
                self._served.add(sequence.index)
        self._served = None
        return False

    def _continue_prompt(self, sequence: Sequence, budget_tok: int) -> list[tuple[Sequence, int]]:
        return [] if self._halted else super()._continue_prompt(sequence, budget_tok)

    def _admit(self, budget_tok: int) -> list[tuple[Sequence, int]]:
        return super()._admit(budget_tok) if self._calm else []

    def _claim(self, sequence: Sequence, blocks: int) -> bool:
        while blocks > self.kv.free:
            self._calm = False
            victim = max((*self._running.values(), *self._leaving), key=_rank)
            if victim in self._leaving:  # with asynchronous scheduling it still stands among them
                self.kv.release(victim.index, self._leaving.pop(victim))
                continue
            del self._running[victim.index]
            served = victim is not self._partial and (self._served is None or victim.index in self._served)
            self._preempt(victim, self._pace.ticks(1) if served else 0)
            if victim is sequence:
                self._halted = True
                return False
        self.kv.take(blocks)
        return True

    def _decode(self, start_s: float, once: bool) -> Step:
        step = super()._decode(start_s, once)
        step.may_be_cut = len(self._running) < self.limits.places  # who comes may go ahead of those that wait
        return step

    def _miss(self, sequence: Sequence) -> None:
        """It keeps its blocks, and gets no token in the step to come."""
        self._stop_decoding(sequence)
        sequence.prompt_tok -= 1  # its last token was sampled, but is not computed
        sequence.remaining_tok += 1
        self._missed.append(sequence)

    def _rejoin(self, now_s: float) -> None:
        """Decode on, those beside them too, who have had a token at ``now_s``."""
        if self.kv.seqs:
            self._stalled[now_s] = self.kv.seqs
        for sequence in self._missed:
            assert sequence.last_token_s is not None  # it decodes
            self._stalled[sequence.last_token_s] = self._stalled.get(sequence.last_token_s, 0) + 1
            self._join(sequence, sequence.last_token_s)
        self._missed.clear()
