"""A replay: the benchmark's client, and the DP ranks that it sends requests to."""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from planner import progress
from planner.errors import InputError
from planner.simulator.blocks import PrefixBlocks, Tree
from planner.simulator.limits import SchedulerLimits, StepTimer
from planner.simulator.rank import ENDS, DpRank, Lockstep, PriorityRank
from planner.simulator.record import Log, Replay, Sequence, StepRun, TokenRuns
from planner.workload import Load, Requests

#: Called with the metrics of every request that ends, in s by name, and with its class; true ends the replay.
Hopeless = Callable[[Mapping[str, float], str], bool]
#: Chunks of prompts that are replayed at most, and for each request: a budget of two tokens would take minutes.
MOST_CHUNKS, MOST_CHUNKS_EACH = 40_000, 20
MOST_CHUNKS_EACH_SHARED = 100  #: where prompts have something in common, and most of a long one is usually found
PROGRESS_EACH = 10_000  #: requests after which a replay reports its progress
#: Requests of an open loop that are handed to the engine together, and how long before it can see them, at least.
AHEAD, AHEAD_S = 4096, 1.0


@dataclass(frozen=True, slots=True)
class Client:
    """Seconds that pass outside the engine. Zero: an infinitely fast API server and network."""

    request_s: float = 0.0  #: from sending a request until the scheduler can see it
    response_s: float = 0.0  #: from the end of a step until the client holds its tokens
    #: work of the API server on a request; those sent at the same moment wait for each other, since they pass
    #: its stages (template, tokenizer) side by side on one core
    frontend_s: float = 0.0
    tokenize_s: float = 0.0  #: its work on a token of the prompt, beside others

    def delay_s(self, prompt_tok: int, together: int) -> float:
        """Seconds from sending a request, one of ``together``, until the scheduler can see it."""
        return self.request_s + self.frontend_s * together + self.tokenize_s * prompt_tok


def replay(
    timer: StepTimer, load: Load, limits: SchedulerLimits, client: Client | None = None, *, keep_steps: bool = False,
    keep_gaps: bool = True, hopeless: Hopeless | None = None,
) -> Replay:  # fmt: skip
    """Serve ``load`` under ``limits`` and return what the client measures; ``timer`` gives the steps of one DP rank.

    With ``keep_steps`` the result lists every step; without ``keep_gaps`` it takes half the memory. Once ``hopeless``
    it is that of the requests that have ended. Raises InputError when a request can never be scheduled."""
    sender = _Sender(timer, load, limits, client or Client(), keep_gaps)
    for sent in sender.requests.pool or (sender.requests,):  # one after the other on one clock
        if sender.run(sent, hopeless, keep_steps=keep_steps):
            break
    served = sender.result()
    return served.second_cycle(load.num_prompts, sender.client.response_s) if load.steady else served


class _Sender:
    def __init__(self, timer: StepTimer, load: Load, limits: SchedulerLimits, client: Client, keep_gaps: bool) -> None:
        requests = self.requests = load.requests()
        self.timer, self.client, self.limits = timer, client, limits
        self.input_len = array("q", requests.input_len.astype(np.int64).tobytes())
        self.output_len = array("q", requests.output_len.astype(np.int64).tobytes())
        self.arrival_s = array("d", requests.arrival_s.astype(np.float64).tobytes())
        longest = int((requests.input_len + requests.output_len).argmax())
        limits.check(self.input_len[longest], self.output_len[longest])
        self.priority = None if requests.priority is None else array("q", requests.priority.astype(np.int64).tobytes())
        chunks = int((requests.input_len // limits.max_num_batched_tokens).sum())
        each = MOST_CHUNKS_EACH_SHARED if requests.prefixes is not None or load.prefix_len else MOST_CHUNKS_EACH
        if chunks > max(MOST_CHUNKS, each * len(self.input_len)):
            cause = f"the prompts come to {chunks:,} steps of --max-num-batched-tokens {limits.max_num_batched_tokens}"
            raise InputError(cause, hint=f"raise it, or send fewer prompts: {MOST_CHUNKS:,} such steps can be replayed")
        self.places = min(load.max_concurrency or len(self.input_len), len(self.input_len))
        self.sent_s = array("d")
        self.ready_s = array("d")  # when the engine sees it
        self._together = _together(self.arrival_s, self.places) if client.frontend_s else None
        # the scheduler looks at the first that waits alone, unless others may go ahead
        in_order = limits.scheduling_policy == "fcfs" and not limits.host_blocks
        self._in_parts = in_order and self.places == len(self.input_len)
        self.log = Log.of(len(self.input_len), keep_gaps=keep_gaps)
        self.served: list[DpRank] = []  # of all servers
        self.step_runs: list[StepRun] = []

    def run(self, sent: Requests, hopeless: Hopeless | None = None, *, keep_steps: bool = False) -> bool:
        """Serve ``sent`` on a server of its own, from when the one before idles; return whether it is hopeless."""
        end_s, next_event, first, limits = self.log.end_s, attrgetter("event"), len(self.sent_s), self.limits
        idle_s, count = max(end_s[:first], default=0.0), first + len(sent.arrival_s)
        if first:
            self.arrival_s[first:count] = array("d", (idle_s + sent.arrival_s).tobytes())
        self.opening = min(first + self.places, count)  # those before find a place whatever happens
        self._ahead_s = -inf  # until when each rank knows what comes next
        self._loaded_s = [idle_s] * limits.data_parallel_size  # when each rank has loaded its blocks from the host
        self.ranks = _ranks(self.timer, limits, self.log, sent, first)
        self.ranks[0].step_runs = self.step_runs if keep_steps else None
        self.served += self.ranks
        self.group = Lockstep(self.timer, self.ranks, limits) if limits.lockstep and len(self.ranks) > 1 else None
        clocked: list[DpRank | Lockstep] = [self.group] if self.group else [*self.ranks]
        one = clocked[0] if len(clocked) == 1 else None
        self._open(0.0 if self.opening == count else inf)  # in a closed loop what follows is sent after all of these
        while True:
            rank = one or min(clocked, key=next_event)
            time_s, kind = rank.event
            if self._ahead_s < time_s + AHEAD_S and self._open(time_s):
                continue  # what was sent may come first
            if kind != ENDS:
                if time_s == inf:
                    break
                rank.begin()
                continue
            done = rank.end()
            for index in done:
                end_s[index] = time_s
                if hopeless and hopeless(*self._metrics_s(index)):
                    return True
                if index % PROGRESS_EACH == PROGRESS_EACH - 1:
                    progress.say(f"{index + 1:,} of {count:,} requests")
                if self.opening < count and len(self.sent_s) < count:
                    self._send_next(time_s + self.client.response_s, len(done))
        return False

    def _open(self, time_s: float) -> bool:
        """Send what the engine may look at up to ``time_s`` and a while longer, and for each rank one request more.

        Of a burst send little more than the ranks can admit: a million would take half a gigabyte. Return whether any.
        """
        before = len(self.sent_s)
        while self._ahead_s < time_s + AHEAD_S and not (self._in_parts and all(r.has_plenty for r in self.ranks)):
            sent = len(self.sent_s)
            for index in range(sent, min(sent + AHEAD, self.opening)):
                self._send_next(0.0, self._together[index] if self._together else 0)
            self._ahead_s = inf if len(self.sent_s) >= self.opening else self.ready_s[-len(self.ranks)]
        return len(self.sent_s) > before

    def _send_next(self, place_s: float, together: int) -> None:
        """Send the next request, one of ``together``, once it has arrived and a place is free from ``place_s`` on."""
        index = len(self.sent_s)
        sent_s = max(place_s, self.arrival_s[index])
        self.sent_s.append(sent_s)
        prompt_tok = self.input_len[index]
        cached_tok = self.limits.cached_tok(prompt_tok)
        sequence = Sequence(index, prompt_tok, self.output_len[index], cached_tok)
        if self.priority:
            sequence.priority = self.priority[index]
        ready_s = sent_s + self.client.delay_s(prompt_tok, together)
        place = index % len(self.ranks)
        if self.limits.load_s_per_tok:
            ready_s = max(ready_s, self._loaded_s[place]) + cached_tok * self.limits.load_s_per_tok
            self._loaded_s[place] = ready_s
        ready_s = max(self.ready_s[-1], ready_s) if self.ready_s else ready_s  # first come, first served
        self.ready_s.append(ready_s)
        if self.group:
            self.group.submit(place, ready_s, sequence)
        else:
            self.ranks[place].submit(ready_s, sequence)

    def _metrics_s(self, index: int) -> tuple[dict[str, float], str]:
        """Metrics of a request that has ended, in s (0 for the TPOT of a single token, as in vLLM), and its class."""
        sent_s, first_s, end_s = self.sent_s[index], self.log.first_token_s[index], self.log.end_s[index]
        response_s, more_tok, sent = self.client.response_s, self.output_len[index] - 1, self.requests
        tpot_s = (end_s - first_s) / more_tok if more_tok else 0.0
        metrics_s = {"ttft": first_s + response_s - sent_s, "tpot": tpot_s, "e2el": end_s + response_s - sent_s}
        return metrics_s, sent.groups[sent.group[index]] if sent.group is not None else ""

    def result(self) -> Replay:
        log = self.log
        first_token_s, end_s = np.asarray(log.first_token_s), np.asarray(log.end_s)
        for column_s in (first_token_s, end_s):
            np.add(column_s, self.client.response_s, out=column_s)
        finite = np.isfinite(end_s)
        ended: NDArray[np.bool_] | slice = slice(None)  # which copies nothing
        of_sent = ended
        if not finite.all():
            ended, of_sent = finite, finite[: len(self.sent_s)]  # the last of a burst may not be sent yet
        host_tok = np.zeros(len(self.input_len), dtype=np.int64)
        host_tok[[*log.host_tok]] = [*log.host_tok.values()]
        peak_blocks = self.limits.num_blocks - min(rank.least_free for rank in self.served)
        return Replay(
            input_len=self.requests.input_len[ended],
            output_len=self.requests.output_len[ended],
            arrival_s=np.asarray(self.arrival_s)[ended],
            sent_s=np.asarray(self.sent_s)[of_sent],
            ready_s=np.asarray(self.ready_s)[of_sent],
            first_token_s=first_token_s[ended],
            end_s=end_s[ended],
            preemptions=np.asarray(log.preemptions)[ended],
            cached_tok=np.asarray(log.cached_tok)[ended],
            host_tok=host_tok[ended],
            token_runs=TokenRuns.of(log.gaps, delay_s=self.client.response_s),
            kv_cache_usage_peak=peak_blocks / self.limits.num_blocks,
            most_seqs=max(rank.most_seqs for rank in self.served),
            most_step_tok=max(max(rank.most_tok, rank.most_seqs * self.limits.decode_tok) for rank in self.served),
            decode=log.decode,
            prefill=log.prefill,
            step_runs=tuple(self.step_runs),
            group=None if self.requests.group is None else self.requests.group[ended],
            groups=self.requests.groups,
        )


def _ranks(timer: StepTimer, limits: SchedulerLimits, log: Log, requests: Requests, first: int) -> list[DpRank]:
    ranks = range(limits.data_parallel_size)
    kind = PriorityRank if limits.scheduling_policy == "priority" else DpRank
    if requests.prefixes is None or not limits.enable_prefix_caching:
        return [kind(timer, limits, log) for _ in ranks]
    tree = Tree(requests, limits.block_size, first)
    caches = [PrefixBlocks(limits.num_blocks, limits.block_size, tree) for _ in ranks]
    if not limits.host_blocks:
        return [kind(timer, limits, log, kv) for kv in caches]
    from planner.simulator.offload import HostBlocks, OffloadRank

    blocks, size, block_s = limits.host_blocks, limits.block_size, limits.host_block_s
    return [OffloadRank(timer, limits, log, kv, HostBlocks(blocks, size, tree, block_s)) for kv in caches]


def _together(arrival_s: "array[float]", count: int) -> "array[int]":
    """For each of the first ``count`` requests, how many arrive at its moment."""
    moments_s = np.asarray(arrival_s)[:count]
    first = np.flatnonzero(np.diff(moments_s, prepend=-inf))  # in the order of their arrival
    counts = np.diff(first, append=count)
    return array("q", np.repeat(counts, counts).astype(np.int64).tobytes())
