"""Replicas that share their experts: none takes a step before the others do.

vLLM's data-parallel ranks meet at every layer of experts (``run_engine_core`` and ``v1/worker/dp_utils.py`` of 0.27):
a rank without work runs an empty batch beside the others, and all wait for the one with the most to do. So a prompt
on one of them holds up the tokens of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import replace
from math import inf
from operator import attrgetter, ge

import numpy as np

from planner.simulator.limits import Client, SchedulerLimits, StepTimer
from planner.simulator.record import Log, Replay, TokenRuns
from planner.simulator.replica import BEGINS, ENDS, Replica
from planner.simulator.sequence import Sequence, Step, straight
from planner.timing import Batch
from planner.workload import Requests, Workload

#: How much is in a batch, one after the other: what replicas do not fill is left out.
_work = attrgetter(
    "decode_seqs", "decode_context_tok", "prefill_seqs", "prefill_tok", "prefill_pair_tok", "prefill_finishing"
)


class Lockstep:
    """Several engines that step together, each with its own queue and cache. Used as a ``Replica`` is."""

    def __init__(self, timer: StepTimer, replicas: Several[Replica], limits: SchedulerLimits) -> None:
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


# --- The client and its engines: who is sent when, and to which replica


def replay(
    timer: StepTimer,
    workload: Workload,
    limits: SchedulerLimits,
    client: Client | None = None,
    requests: Requests | None = None,
    *,
    keep_steps: bool = False,
) -> Replay:
    """Serve ``workload`` on engines with ``limits`` and return what the client measures.

    ``timer`` gives the time of a step of one replica. ``requests`` replaces the lengths and arrival times that
    ``workload`` would draw, as for a recorded trace; the concurrency stays the workload's. With ``keep_steps`` the
    result lists every step that ran. The result depends on nothing but the arguments.

    Raises InputError when a request can never be scheduled within ``limits``.
    """
    sender = _Sender(timer, workload, limits, client or Client(), requests or workload.sample())
    if keep_steps:
        sender.log.step_runs = []
    sender.run()
    return sender.result()


class _Sender:
    """The benchmark client: a semaphore of ``max_concurrency`` places, and requests dealt to replicas in turn."""

    def __init__(
        self, timer: StepTimer, workload: Workload, limits: SchedulerLimits, client: Client, requests: Requests
    ) -> None:
        self.requests = requests
        self.client = client
        self.limits = limits
        self.input_len: list[int] = requests.input_len.tolist()
        self.output_len: list[int] = requests.output_len.tolist()
        self.arrival_s: list[float] = requests.arrival_s.tolist()
        for lengths in set(zip(self.input_len, self.output_len, strict=True)):
            limits.check(*lengths)
        self.places = workload.max_concurrency or len(self.input_len)
        self.sent_s: list[float] = []
        self._ready_s = 0.0  # when the engine sees the newest request
        self._loaded_s = [0.0] * limits.data_parallel_size  # when each engine has loaded its blocks from the host
        self.log = Log.of(len(self.input_len))
        self.replicas = [Replica(timer, limits, self.log) for _ in range(limits.data_parallel_size)]
        together = limits.lockstep and len(self.replicas) > 1
        self.group = Lockstep(timer, self.replicas, limits) if together else None
        self.engines: list[Replica | Lockstep] = [self.group] if self.group else [*self.replicas]

    def run(self) -> None:
        """From the opening burst to the last token."""
        opening = min(self.places, len(self.input_len))
        together = Counter(self.arrival_s[:opening])
        for arrival_s in self.arrival_s[:opening]:
            self._send_next(0.0, together[arrival_s])
        while True:
            engine = min(self.engines, key=_next_event)
            time_s, kind = engine.event
            if time_s == inf:
                break
            if kind != ENDS:
                engine.begin()
                continue
            done = engine.end()
            for index in done:
                self.log.end_s[index] = time_s
                if len(self.sent_s) < len(self.input_len):
                    self._send_next(time_s + self.client.response_s, len(done))

    def _send_next(self, place_s: float, together: int) -> None:
        """Send the next request, one of ``together``, once it has arrived and a place is free from ``place_s`` on."""
        index = len(self.sent_s)
        sent_s = max(place_s, self.arrival_s[index])
        self.sent_s.append(sent_s)
        prompt_tok = self.input_len[index]
        cached_tok = self.limits.cached_tok(prompt_tok)
        sequence = Sequence(index, prompt_tok, self.output_len[index], cached_tok)
        ready_s = sent_s + self.client.request_s + self.client.frontend_s * together
        place = index % len(self.replicas)
        if self.limits.load_s_per_tok:
            ready_s = max(ready_s, self._loaded_s[place]) + cached_tok * self.limits.load_s_per_tok
            self._loaded_s[place] = ready_s
        self._ready_s = max(self._ready_s, ready_s)  # first come, first served
        if self.group:
            self.group.submit(place, self._ready_s, sequence)
        else:
            self.replicas[place].submit(self._ready_s, sequence)

    def result(self) -> Replay:
        """The log as the client sees it."""
        log = self.log
        peak_blocks = max(replica.kv_peak_blocks for replica in self.replicas)
        return Replay(
            input_len=self.requests.input_len,
            output_len=self.requests.output_len,
            arrival_s=self.requests.arrival_s,
            sent_s=np.array(self.sent_s),
            first_token_s=np.array(log.first_token_s) + self.client.response_s,
            end_s=np.array(log.end_s) + self.client.response_s,
            preemptions=np.array(log.preemptions),
            token_runs=TokenRuns.of(log.runs, delay_s=self.client.response_s),
            kv_cache_usage_peak=peak_blocks / self.limits.num_blocks,
            decode_steps=log.decode.steps,
            decode_time_s=log.decode.time_s,
            decode_batch=log.decode.mean(),
            prefill_steps=log.prefill.steps,
            prefill_time_s=log.prefill.time_s,
            prefill_batch=log.prefill.mean(),
            step_runs=tuple(log.step_runs or ()),
        )


def _next_event(engine: Replica | Lockstep) -> tuple[float, int]:
    return engine.event
