"""Replicas that share their experts: none takes a step before the others do.

vLLM's data-parallel ranks meet at every layer of experts (``run_engine_core`` and ``v1/worker/dp_utils.py`` of 0.27):
a rank without work runs an empty batch beside the others, and all wait for the one with the most to do. So a prompt
on one of them holds up the tokens of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import replace
from math import inf
from operator import attrgetter, ge

from planner.scheduler.limits import Limits, StepTimer
from planner.scheduler.parts import Sequence, Step, straight
from planner.scheduler.replica import BEGINS, ENDS, Replica
from planner.step import Batch

#: How much is in a batch, one after the other: what replicas do not fill is left out.
_work = attrgetter(
    "decode_seqs", "decode_context_tok", "prefill_seqs", "prefill_tok", "prefill_pair_tok", "prefill_finishing"
)


class Lockstep:
    """Several engines that step together, each with its own queue and cache. Used as a ``Replica`` is."""

    def __init__(self, timer: StepTimer, replicas: Several[Replica], limits: Limits) -> None:
        """``limits`` are those of each of them."""
        self.timer, self.replicas, self.limits = timer, replicas, limits
        self.event: tuple[float, int] = (inf, BEGINS)
        self._resting: list[Replica] = []

    def submit(self, place: int, ready_s: float, sequence: Sequence) -> None:
        """A request for the engine at ``place``, as ``Replica.submit``."""
        self.replicas[place].submit(ready_s, sequence)
        self._wait()

    def begin(self) -> None:
        """Start what is to start now, on all engines."""
        start_s = self.event[0]
        self._resting = [replica for replica in self.replicas if replica.event[0] > start_s]
        steps = {replica: replica.plan(start_s) for replica in self.replicas if replica not in self._resting}
        longest = min(step.steps for step in steps.values())
        tokens = sum(self._tokens(step.batch) for step in steps.values())
        slowest = list(steps.items()) if self.limits.pipelined else _largest(steps)
        first_s = self._time_s(slowest, tokens, 0)
        row = straight(lambda at: self._time_s(slowest, tokens, at), longest, first_s)
        for replica in self.replicas:
            step = steps.get(replica) or Step(start_s, first_s, Batch(), may_be_cut=True)
            replica.start(step, first_s, *row)
        self._wait()

    def end(self) -> list[int]:
        """Account for what ends now on all engines, and return the requests that are done."""
        done: list[int] = []
        for replica in self.replicas:
            if replica in self._resting:
                replica.rest()
            else:
                done += replica.end()
        self._wait()
        return done

    def _time_s(self, steps: Iterable[tuple[Replica, Step]], tokens: int, at: int) -> float:
        """Seconds of the engine that takes longest over its step ``at``, beside the others: ``tokens`` in all."""
        batches = (replica.batch_at(step, at) for replica, step in steps)
        return max(self.timer.step_s(replace(batch, peer_tok=tokens - self._tokens(batch))) for batch in batches)

    def _tokens(self, batch: Batch) -> int:
        return batch.decode_seqs * self.limits.decode_tok + batch.prefill_tok

    def _wait(self) -> None:
        """The next event: all engines end together, after as many steps as the first of them wants to look up."""
        if any(replica.event[1] == ENDS for replica in self.replicas):
            steps = min(replica.steps for replica in self.replicas)
            for replica in self.replicas:
                replica.stop_after(steps)
        self.event = min(replica.event for replica in self.replicas)


def _largest(steps: Mapping[Replica, Step]) -> list[tuple[Replica, Step]]:
    """Those whose batch none of the others exceeds in everything, now and as contexts grow: no other takes longer."""
    by_work = {_work(step.batch): (replica, step) for replica, step in steps.items()}
    found: list[tuple[float, ...]] = []
    for work in sorted(by_work, reverse=True):
        if not any(all(map(ge, larger, work)) for larger in found):
            found.append(work)
    return [by_work[work] for work in found]
