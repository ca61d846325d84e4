"""DP ranks that share their experts: none takes a step before the others do.

vLLM's ranks meet at every layer of experts (``run_engine_core`` and ``v1/worker/dp_utils.py`` of 0.27):
a rank without work runs an empty batch beside the others, and all wait for the one with the most to do. So a prompt
on one of them holds up the tokens of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Several
from math import inf
from operator import attrgetter, ge

from planner.simulator.limits import SchedulerLimits, StepTimer
from planner.simulator.rank import BEGINS, ENDS, DpRank
from planner.simulator.sequence import Sequence, Step, straight
from planner.timing import Batch

#: How much is in a batch; what a DP rank does not fill is left out.
_work = attrgetter(
    "decode_seqs", "decode_context_tok", "prefill_seqs", "prefill_tok", "prefill_pair_tok", "prefill_finishing"
)


class Lockstep:
    """DP ranks that step together, each with its own queue and cache. Used as a ``DpRank`` is."""

    def __init__(self, timer: StepTimer, ranks: Several[DpRank], limits: SchedulerLimits) -> None:
        """``limits`` are those of each of them."""
        self.timer, self.ranks, self.limits = timer, ranks, limits
        self.event: tuple[float, int] = (inf, BEGINS)
        self._resting: list[DpRank] = []

    def submit(self, place: int, ready_s: float, sequence: Sequence) -> None:
        """A request for the rank at ``place``, as ``DpRank.submit``."""
        self.ranks[place].submit(ready_s, sequence)
        self._wait()

    def begin(self) -> None:
        """Start what is to start now, on all ranks."""
        start_s = self.event[0]
        self._resting = [rank for rank in self.ranks if rank.event[0] > start_s]
        steps = {rank: rank.plan(start_s) for rank in self.ranks if rank not in self._resting}
        longest = max(min(step.steps for step in steps.values()), 1)
        tokens = sum(self._tokens(step.batch) for step in steps.values())
        slowest = list(steps.items()) if self.limits.pipelined else _largest(steps)
        first_s = self._time_s(slowest, tokens, 0)
        row = straight(lambda at: self._time_s(slowest, tokens, at), longest, first_s)
        for rank in self.ranks:
            step = steps.get(rank) or Step(start_s, first_s, Batch(), may_be_cut=True)
            rank.start(step, first_s, *row)
        self._wait()

    def end(self) -> list[int]:
        """Account for what ends now on all ranks, and return the requests that are done."""
        done: list[int] = []
        for rank in self.ranks:
            if rank in self._resting:
                rank.rest()
            else:
                done += rank.end()
        self._wait()
        return done

    def _time_s(self, steps: Iterable[tuple[DpRank, Step]], tokens: int, at: int) -> float:
        """Seconds of the rank that takes longest over its step ``at``, beside the others: ``tokens`` in all."""
        batches = (rank.batch_at(step, at) for rank, step in steps)
        return max(self.timer.step_s(batch._replace(peer_tok=tokens - self._tokens(batch))) for batch in batches)

    def _tokens(self, batch: Batch) -> int:
        return batch.decode_seqs * self.limits.decode_tok + batch.prefill_tok

    def _wait(self) -> None:
        """The next event: all ranks end together, after as many steps as the first of them wants to look up."""
        if any(rank.event[1] == ENDS for rank in self.ranks):
            steps = min(rank.steps for rank in self.ranks)
            for rank in self.ranks:
                rank.stop_after(steps)
        self.event = min(rank.event for rank in self.ranks)


def _largest(steps: Mapping[DpRank, Step]) -> list[tuple[DpRank, Step]]:
    """Those whose batch none of the others exceeds in everything, now and as contexts grow: no other takes longer."""
    by_work = {_work(step.batch): (rank, step) for rank, step in steps.items()}
    found: list[tuple[float, ...]] = []
    for work in sorted(by_work, reverse=True):
        if not any(all(map(ge, larger, work)) for larger in found):
            found.append(work)
    return [by_work[work] for work in found]
