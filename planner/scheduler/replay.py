"""The client and its engines: who is sent when, and to which replica."""

from __future__ import annotations

from math import inf

import numpy as np

from planner.scheduler.limits import Client, Limits, StepTimer
from planner.scheduler.record import Log, Replay, TokenRuns
from planner.scheduler.replica import ENDS, Replica, Sequence
from planner.workload import Requests, Workload


def replay(
    timer: StepTimer,
    workload: Workload,
    limits: Limits,
    client: Client | None = None,
    requests: Requests | None = None,
) -> Replay:
    """Serve ``workload`` on engines with ``limits`` and return what the client measures.

    ``timer`` gives the time of a step of one replica. ``requests`` replaces the lengths and arrival times that
    ``workload`` would draw, as for a recorded trace; the concurrency stays the workload's. The result depends
    on nothing but the arguments.

    Raises InputError when a request can never be scheduled within ``limits``.
    """
    sender = _Sender(timer, workload, limits, client or Client(), requests or workload.sample())
    sender.run()
    return sender.result()


class _Sender:
    """The benchmark client: a semaphore of ``max_concurrency`` places, and requests dealt to replicas in turn."""

    def __init__(
        self, timer: StepTimer, workload: Workload, limits: Limits, client: Client, requests: Requests
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
        self.log = Log.of(len(self.input_len))
        self.replicas = [Replica(timer, limits, self.log) for _ in range(limits.data_parallel_size)]

    def run(self) -> None:
        """From the opening burst to the last token."""
        for _ in range(min(self.places, len(self.input_len))):
            self._send_next(0.0)
        while True:
            replica = min(self.replicas, key=_next_event)
            time_s, kind = replica.event
            if time_s == inf:
                break
            if kind != ENDS:
                replica.begin()
                continue
            for index in replica.end():
                self.log.end_s[index] = time_s
                if len(self.sent_s) < len(self.input_len):
                    self._send_next(time_s + self.client.response_s)

    def _send_next(self, place_s: float) -> None:
        """Send the next request, once it has arrived and a place is free from ``place_s`` on."""
        index = len(self.sent_s)
        sent_s = max(place_s, self.arrival_s[index])
        self.sent_s.append(sent_s)
        prompt_tok = self.input_len[index]
        cached_tok = self.limits.cached_tok(prompt_tok)
        sequence = Sequence(index, prompt_tok, self.output_len[index], cached_tok)
        self.replicas[index % len(self.replicas)].submit(sent_s + self.client.request_s, sequence)

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
        )


def _next_event(replica: Replica) -> tuple[float, int]:
    return replica.event
