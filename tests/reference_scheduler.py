"""Continuous batching written out token by token and step by step: slow, obvious, and only for tests.

Every request keeps the list of its token times and of its blocks; every step walks over the running queue as
vLLM's scheduler does. Nothing is shared with ``planner.simulator.rank`` but the records of limits and batches.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, floor, inf

from planner.simulator.client import Client
from planner.simulator.limits import SchedulerLimits, StepTimer
from planner.timing.step import Batch
from planner.workload.requests import Requests

MOMENT_S = 1e-9  # what happens within a nanosecond happens at once


@dataclass(eq=False)
class Request:
    index: int
    prompt: int
    output: int
    ready_s: float
    priority: int = 0
    computed: int = 0
    blocks: int = 0
    preemptions: int = 0
    decoding: bool = False  #: its prompt, or all it had before a preemption, is computed
    token_times_s: list[float] = field(default_factory=list)

    @property
    def rank(self) -> tuple[int, int]:
        return self.priority, self.index

    @property
    def tokens(self) -> int:
        """Tokens that exist: all but the newest must be computed before the next can be sampled."""
        return self.prompt + len(self.token_times_s)


class Engine:
    def __init__(self, timer: StepTimer, limits: SchedulerLimits) -> None:
        self.timer = timer
        self.limits = limits
        self.inbox: list[Request] = []
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        #: free blocks, taken from the front and given back at the end, each with what is in it: request, place
        self.queue: list[tuple[int, int] | None] = [None] * (limits.kv_cache_tokens // limits.block_size)
        self.smallest_free = self.free
        self.scheduled: list[tuple[Request, int]] = []
        self.decode_steps = 0
        self.ended: list[Request] = []  # asynchronous: still in the way of the next step
        self.last_start_s = 0.0
        self.end_s = inf  # of the step under way
        self.idle_until_s = inf  # no step under way: when the next begins

    def next_event(self) -> tuple[float, int]:
        return (self.end_s, 0) if self.scheduled else (self.idle_until_s, 1)

    def gained(self) -> int:
        """Tokens that the next step brings every decoding request: 1, or of n steps floor(n x tokens_per_step)."""
        each, taken = self.limits.tokens_per_step, self.decode_steps
        return floor((taken + 1) * each) - floor(taken * each)

    def submit(self, request: Request) -> None:
        self.inbox.append(request)
        if not self.scheduled:
            self.idle_until_s = min(self.idle_until_s, request.ready_s)

    @property
    def free(self) -> int:
        return len(self.queue)

    def allocate(self, request: Request, new: int) -> bool:
        missing = ceil((request.computed + new) / self.limits.block_size) - request.blocks
        if missing > self.free:
            return False
        del self.queue[:missing]
        request.blocks += missing
        return True

    def release(self, request: Request) -> None:
        """Give the blocks back, the last one first; full ones keep what is in them."""
        for place in reversed(range(request.blocks)):
            full = (place + 1) * self.limits.block_size <= request.computed
            self.queue.append((request.index, place) if full else None)
        request.blocks = 0

    def found(self, request: Request) -> int:
        """How many of its first blocks a request finds as it left them."""
        places = 0
        while self.limits.enable_prefix_caching and (request.index, places) in self.queue:
            places += 1
        return places

    def held(self, request: Request, found: int) -> int:
        """How many of the blocks that it finds are not free."""
        return 0

    def reuse(self, request: Request, found: int) -> None:
        for place in range(found):
            self.queue.remove((request.index, place))

    def begin(self) -> None:
        now_s = self.idle_until_s
        self.receive((self.last_start_s if self.limits.async_scheduling else now_s) - MOMENT_S)
        self.schedule()
        if not self.scheduled:  # idle, or all it served had to go: start with whatever is there now
            self.clear_ended()
            self.receive(now_s - MOMENT_S)
            if not self.waiting:
                self.receive(now_s + MOMENT_S)
            self.schedule()
        self.smallest_free = min(self.smallest_free, self.free)
        self.clear_ended()
        self.last_start_s = now_s
        self.end_s = now_s + self.timer.step_s(self.batch())

    def receive(self, before_s: float) -> None:
        while self.inbox and self.inbox[0].ready_s < before_s:
            self.waiting.append(self.inbox.pop(0))
        self.sort_waiting()

    def sort_waiting(self) -> None:
        if self.limits.scheduling_policy == "priority":
            self.waiting.sort(key=lambda request: request.rank)

    def clear_ended(self) -> None:
        for request in self.ended:
            self.release(request)
        self.ended = []

    def schedule(self) -> None:
        if self.limits.prefill_first:
            self.admit(self.limits.max_num_batched_tokens)
            if not self.scheduled:
                self.schedule_running()
        else:
            budget, preempted = self.schedule_running()
            if not preempted:
                self.admit(budget)

    def schedule_running(self) -> tuple[int, bool]:
        budget, preempted, position = self.limits.max_num_batched_tokens, False, 0
        while position < len(self.running):
            request = self.running[position]
            new = self.gained() if request.decoding else min(request.tokens - request.computed, budget)
            fits = self.allocate(request, new)
            while not fits:
                victim = self.victim()
                preempted = True
                if victim in self.ended:
                    self.ended.remove(victim)
                    self.release(victim)
                    fits = self.allocate(request, new)
                    continue
                if self.running.index(victim) < position:
                    position -= 1
                    served = next(entry for entry in self.scheduled if entry[0] is victim)
                    self.scheduled.remove(served)
                    budget += self.limits.decode_tok
                self.running.remove(victim)
                self.release(victim)
                victim.computed, victim.decoding = 0, False
                victim.preemptions += 1
                self.waiting.insert(0, victim)
                self.sort_waiting()
                if victim is request:
                    break
                fits = self.allocate(request, new)
            if not fits:
                break
            self.scheduled.append((request, new))
            budget -= self.limits.decode_tok if request.decoding else new
            position += 1
        return budget, preempted

    def victim(self) -> Request:
        if self.limits.scheduling_policy == "priority":
            return max([*self.running, *self.ended], key=lambda request: request.rank)
        return self.running[-1]

    def admit(self, budget: int) -> None:
        limits = self.limits
        watermark = int(limits.watermark * (limits.kv_cache_tokens // limits.block_size))
        places = min(limits.max_num_seqs, limits.max_num_batched_tokens // limits.decode_tok)
        while self.waiting and budget > 0 and len(self.running) + len(self.ended) < places:
            request = self.waiting[0]
            cached = min(int(limits.prefix_cache_hit_rate * request.prompt), request.prompt - 1)
            found = self.found(request)
            cached = max(cached // limits.block_size, found) * limits.block_size
            new = request.tokens - cached
            if new > budget:
                if limits.prefill_first or not limits.enable_chunked_prefill:
                    break
                new = budget
            whole = ceil(request.tokens / limits.block_size)
            first = ceil((cached + new) / limits.block_size)
            needed = (whole if limits.scheduler_reserve_full_isl else first) - self.held(request, found)
            if needed > self.free - watermark:
                break
            self.reuse(request, found)
            request.computed, request.blocks = cached, found
            self.allocate(request, new)
            self.running.append(self.waiting.pop(0))
            self.scheduled.append((request, new))
            budget -= new

    def batch(self) -> Batch:
        decode = [r for r, new in self.scheduled if r.decoding]
        prefill = [(r, new) for r, new in self.scheduled if not r.decoding]
        return Batch(
            decode_seqs=len(decode),
            decode_context_tok=float(sum(r.tokens for r in decode)),
            prefill_seqs=len(prefill),
            prefill_tok=sum(new for _, new in prefill),
            prefill_pair_tok=float(sum(r.computed + k + 1 for r, new in prefill for k in range(new))),
            prefill_finishing=sum(r.computed + new == r.tokens for r, new in prefill),
        )

    def end(self) -> list[Request]:
        done = []
        prompts_only = self.limits.prefill_first and not any(request.decoding for request, _ in self.scheduled)
        self.decode_steps += not prompts_only
        for request, new in self.scheduled:
            finishes = request.decoding or request.computed + new == request.tokens
            request.computed += new
            if finishes:
                sampled = min(new if request.decoding else 1, request.output - len(request.token_times_s))
                request.token_times_s += [self.end_s] * sampled
                request.decoding = True
            if len(request.token_times_s) == request.output:
                self.running.remove(request)
                self.ended.append(request)
                done.append(request)
        self.scheduled = []
        if not self.limits.async_scheduling:
            self.clear_ended()
        if self.running or self.waiting:
            self.idle_until_s = self.end_s
        else:
            self.idle_until_s = max(self.end_s, self.inbox[0].ready_s) if self.inbox else inf
        return done


@dataclass
class Outcome:
    """Times as the client sees them, one entry per request."""

    sent_s: list[float]
    token_times_s: list[list[float]]
    preemptions: list[int]
    kv_cache_usage_peak: float

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for times in self.token_times_s for a, b in pairwise(times)]


def reference_replay(
    timer: StepTimer,
    requests: Requests,
    limits: SchedulerLimits,
    max_concurrency: int | None = None,
    client: Client | None = None,
    kind: Callable[[StepTimer, SchedulerLimits], Engine] | None = None,
) -> Outcome:
    client = client or Client()
    engines = [(kind or Engine)(timer, limits) for _ in range(limits.data_parallel_size)]
    everything: list[Request] = []
    sent_s: list[float] = []
    count = len(requests.input_len)

    def send(place_s: float) -> None:
        index = len(sent_s)
        sent_s.append(max(place_s, float(requests.arrival_s[index])))
        request = Request(
            index,
            int(requests.input_len[index]),
            int(requests.output_len[index]),
            sent_s[-1] + client.request_s,
            0 if requests.priority is None else int(requests.priority[index]),
        )
        everything.append(request)
        engines[index % len(engines)].submit(request)

    for _ in range(min(max_concurrency or count, count)):
        send(0.0)
    while True:
        engine = min(engines, key=Engine.next_event)
        if engine.next_event()[0] == inf:
            break
        if not engine.scheduled:
            engine.begin()
            continue
        now_s = engine.end_s
        for _ in engine.end():
            if len(sent_s) < count:
                send(now_s + client.response_s)
    total = limits.kv_cache_tokens // limits.block_size
    return Outcome(
        sent_s,
        [[t + client.response_s for t in request.token_times_s] for request in everything],
        [request.preemptions for request in everything],
        max(1 - engine.smallest_free / total for engine in engines),
    )
