"""One engine: its queues, its KV blocks and its clock.

The decode clock ticks once for every step in which the running requests decode; each of them gets one token
per tick. So a request that starts to decode at tick c with n tokens to come ends at tick c + n, whatever else
happens, and the work of a step does not depend on how many requests run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from planner.scheduler.kv import KvBlocks
from planner.scheduler.limits import Limits, StepTimer
from planner.scheduler.record import Log, StepRun
from planner.step import Batch

#: Times closer than this are one moment, lest rounding decides who comes first, s.
MOMENT_S = 1e-9
#: A run of decode steps may bend this much, relative to its middle step; short runs are not looked at.
BEND, SHORT_RUN = 1e-3, 32
#: Kinds of events, in the order in which those of the same moment happen: steps end before others begin.
ENDS, BEGINS = 0, 1


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in the engine."""

    index: int
    prompt_tok: int  #: tokens to prefill: the prompt, and after a preemption what was generated before
    remaining_tok: int  #: tokens to sample from the end of that prefill on, that one included
    cached_tok: int  #: found in the prefix cache
    done_tok: int = 0  #: computed so far, while prefilling
    joined: int = 0  #: decode clock when it began to decode
    joined_s: float = 0.0
    last_token_s: float | None = None  #: of a preempted request: when its last token came

    def context_tok(self, clock: int) -> int:
        """Tokens computed before tick ``clock``, while decoding."""
        return self.prompt_tok + clock - self.joined

    @property
    def ends(self) -> int:
        """Decode clock when its last token comes."""
        return self.joined + self.remaining_tok - 1


@dataclass(slots=True)
class Step:
    """What the engine is busy with: one step with prompts in it, or a run of steps that only decode."""

    start_s: float
    first_s: float  #: duration of the first step
    batch: Batch  #: of the first step
    growth_s: float = 0.0  #: by which each further step is longer
    ticks: int = 1  #: of the decode clock; 0 while prompts keep everybody else waiting (V0)
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)  #: prompts, with their new tokens
    may_be_cut: bool = False  #: whether a request that comes in meanwhile ends the run

    def begins_s(self, tick: int) -> float:
        """When step ``tick`` of the run begins."""
        return self.start_s + tick * self.first_s + tick * (tick - 1) / 2 * self.growth_s

    @property
    def end_s(self) -> float:
        """When the last step ends."""
        return self.begins_s(max(self.ticks, 1))


class Replica:
    """One engine. ``event`` says when it wants to be called next, and ``begin`` or ``end`` is what to call."""

    def __init__(self, timer: StepTimer, limits: Limits, log: Log) -> None:
        self.timer = timer
        self.limits = limits
        self.log = log
        self.kv = KvBlocks(limits.num_blocks, limits.block_size)
        self.kv_peak_blocks = 0
        self.event: tuple[float, int] = (inf, BEGINS)
        self._inbox: deque[tuple[float, Sequence]] = deque()  # sent, by the time they can be seen
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}  # in order of admission
        self._partial: Sequence | None = None  # the last of them, when its prompt is not finished
        self._leaving_seqs = 0  # ended, but still in the way of the next step
        self._leaving_blocks = 0
        self._endings: dict[int, list[Sequence]] = {}  # by the decode clock
        self._ending_clocks: list[int] = []  # heap
        self._context_tok = 0  # sum over decoding requests
        self._clock = 0
        self._ticked_s = 0.0  # end of the last tick
        self._last_start_s = 0.0  # start of the last step
        self._stalled: dict[float, int] = {}  # V0: decoding requests by the time of their last token
        self._step = Step(0.0, 0.0, Batch())

    def submit(self, ready_s: float, sequence: Sequence) -> None:
        """A request that the scheduler can see from ``ready_s`` on; calls must be in order of that time."""
        self._inbox.append((ready_s, sequence))
        time_s, kind = self.event
        if kind == ENDS:
            self._cut()
        elif time_s == inf:
            self.event = (ready_s, BEGINS)

    def begin(self) -> None:
        """Schedule what starts now, and set ``event`` to its end.

        A step is scheduled just before it starts, or with asynchronous scheduling one step earlier; what is
        sent later, even in answer to the very tokens of the last step, has to wait. An idle engine starts with
        what wakes it.
        """
        start_s = self.event[0]
        self._receive(self._last_start_s if self.limits.async_scheduling else start_s)
        chunks, calm = self._schedule()
        if not chunks and not self.kv.seqs:  # nothing was known in time: the engine pauses and looks again
            self._vacate()
            self._receive(start_s)
            if not self._waiting:
                self._receive(start_s + 2 * MOMENT_S)
            chunks, calm = self._schedule()
        expecting = bool(self._leaving_seqs and self._waiting)
        self._note_peak()
        self._vacate()
        if chunks:
            self._begin_prefill(start_s, chunks)
        else:
            self._begin_decode(start_s, once=not calm or expecting)

    def _schedule(self) -> tuple[list[tuple[Sequence, int]], bool]:
        """Chunks of prompts for the step to come, and whether nobody was preempted for it."""
        if self.limits.prefill_first:
            chunks = self._admit(self.limits.max_num_batched_tokens)
            return chunks, bool(chunks) or self._make_room()
        calm = self._make_room()
        budget_tok = self.limits.max_num_batched_tokens - self.kv.seqs
        chunks = []
        if self._partial is not None:
            chunks = self._continue_prompt(self._partial, budget_tok)
            calm = bool(chunks)
        if calm:  # nobody is admitted in a step that preempts
            chunks += self._admit(budget_tok - sum(new_tok for _, new_tok in chunks))
        return chunks, calm

    def _receive(self, before_s: float) -> None:
        while self._inbox and self._inbox[0][0] + MOMENT_S < before_s:
            self._waiting.append(self._inbox.popleft()[1])

    def _make_room(self) -> bool:
        """Take the blocks of the next tick, preempting the youngest where they lack; whether nobody had to go."""
        calm = True
        while (need := self.kv.need(self._clock)) > self.kv.free:
            self._preempt_youngest()
            calm = False
        self.kv.free -= need
        return calm

    def _preempt_youngest(self) -> None:
        """Back to the head of the waiting queue; all its tokens are to be computed again."""
        _, sequence = self._running.popitem()
        if sequence is self._partial:
            self._partial = None
            self.kv.free += self.kv.blocks(sequence.done_tok)
        else:
            context_tok = sequence.context_tok(self._clock)
            self.kv.free += self.kv.leave(context_tok, self._clock)
            self._context_tok -= context_tok
            self._endings[sequence.ends].remove(sequence)
            sampled_tok = 1 + self._clock - sequence.joined
            sequence.last_token_s = sequence.joined_s if sampled_tok == 1 else self._ticked_s
            sequence.prompt_tok += sampled_tok
            sequence.remaining_tok -= sampled_tok
            if self._stalled:
                self._stalled[sequence.last_token_s] -= 1
        self.log.preemptions[sequence.index] += 1
        self._waiting.appendleft(sequence)

    def _continue_prompt(self, sequence: Sequence, budget_tok: int) -> list[tuple[Sequence, int]]:
        """The next chunk of the prompt that is under way; nothing when it had to be preempted itself."""
        new_tok = min(sequence.prompt_tok - sequence.done_tok, budget_tok)
        blocks = self.kv.blocks(sequence.done_tok + new_tok) - self.kv.blocks(sequence.done_tok)
        if blocks > self.kv.free:
            self._preempt_youngest()
            return []
        self.kv.free -= blocks
        return [(sequence, new_tok)]

    def _admit(self, budget_tok: int) -> list[tuple[Sequence, int]]:
        """First chunks of waiting requests, first come first served, until something runs out."""
        limits, kv = self.limits, self.kv
        chunks: list[tuple[Sequence, int]] = []
        places = limits.max_num_seqs - self._leaving_seqs
        while budget_tok > 0 and self._waiting and len(self._running) < places:
            sequence = self._waiting[0]
            rest_tok = sequence.prompt_tok - sequence.cached_tok
            new_tok = min(rest_tok, budget_tok)
            if new_tok < rest_tok and limits.whole_prompts:
                break
            blocks = kv.blocks(sequence.cached_tok + new_tok)
            must_fit = kv.blocks(sequence.prompt_tok) if limits.scheduler_reserve_full_isl else blocks
            if must_fit > kv.free - limits.watermark_blocks:
                break
            self._waiting.popleft()
            self._running[sequence.index] = sequence
            sequence.done_tok = sequence.cached_tok
            kv.free -= blocks
            budget_tok -= new_tok
            chunks.append((sequence, new_tok))
            if new_tok < rest_tok:
                self._partial = sequence
        return chunks

    def _begin_prefill(self, start_s: float, chunks: list[tuple[Sequence, int]]) -> None:
        """One step with prompts in it; without chunking in V0, with nothing else."""
        decode_seqs = 0 if self.limits.prefill_first else self.kv.seqs
        batch = Batch(
            decode_seqs=decode_seqs,
            decode_context_tok=self._context_tok + decode_seqs if decode_seqs else 0.0,
            prefill_seqs=len(chunks),
            prefill_tok=sum(new_tok for _, new_tok in chunks),
            prefill_pair_tok=sum(new_tok * (seq.done_tok + (new_tok + 1) / 2) for seq, new_tok in chunks),
            prefill_finishing=sum(seq.done_tok + new_tok == seq.prompt_tok for seq, new_tok in chunks),
        )
        time_s = self.timer.step_s(batch)
        self.log.prefill.add(batch, time_s)
        self._step = Step(start_s, time_s, batch, ticks=0 if self.limits.prefill_first else 1, chunks=chunks)
        self.event = (start_s + time_s, ENDS)

    def _begin_decode(self, start_s: float, once: bool) -> None:
        """As many decode steps as are alike, to the next ending, lack of blocks or admission; or just one.

        The context of a step includes the token it computes. Durations are interpolated between the first and the
        last step, which is exact where they are linear in the context; where they are not, the run is cut short.
        """
        seqs = self.kv.seqs
        context_tok = self._context_tok + seqs
        ticks = 1 if once else self._ticks_to_next_ending()
        if ticks > 1:
            ticks = 1 + self.kv.ticks_that_fit(self._clock + 1, ticks - 1)
        first = Batch(seqs, context_tok)
        first_s = self.timer.step_s(first)
        growth_s = 0.0
        if ticks > 1:
            ticks, growth_s = self._straight(seqs, context_tok, ticks, first_s)
        room = not self._waiting and len(self._running) < self.limits.max_num_seqs
        self._step = Step(start_s, first_s, first, growth_s, ticks, may_be_cut=room)
        self.event = (self._step.end_s, ENDS)
        self._cut()

    def _straight(self, seqs: int, context_tok: int, ticks: int, first_s: float) -> tuple[int, float]:
        """How many of ``ticks`` steps grow evenly, halving until the middle one does, and by how much each."""
        last = ticks - 1
        last_s = self.timer.step_s(Batch(seqs, context_tok + last * seqs))
        while last > SHORT_RUN:
            half = last // 2
            half_s = self.timer.step_s(Batch(seqs, context_tok + half * seqs))
            if abs(first_s + (last_s - first_s) * half / last - half_s) <= BEND * half_s:
                break
            last, last_s = half, half_s
        return last + 1, (last_s - first_s) / last

    def _ticks_to_next_ending(self) -> int:
        clocks = self._ending_clocks
        while not self._endings.get(clocks[0]):
            self._endings.pop(heappop(clocks), None)
        return clocks[0] - self._clock

    def _cut(self) -> None:
        """End the run with the step after which the next request in the inbox can be seen."""
        step = self._step
        if not self._inbox or not step.may_be_cut:
            return
        ready_s = self._inbox[0][0] + MOMENT_S
        ticks = 1 + bisect_right(range(1, step.ticks), ready_s, key=step.begins_s)
        if self.limits.async_scheduling and ready_s >= step.start_s:
            ticks += 1
        if ticks < step.ticks:
            step.ticks = ticks
            self.event = (step.end_s, ENDS)

    def end(self) -> list[int]:
        """Account for what ends now, set ``event``, and return the requests that are done."""
        step, end_s = self._step, self.event[0]
        self._last_start_s = step.begins_s(max(step.ticks, 1) - 1)
        if self.log.step_runs is not None:
            self.log.step_runs.append(_run_of(step, end_s))
        if step.ticks:
            self._tick(step, end_s)
        elif self.kv.seqs and not self._stalled:
            self._stalled[self._ticked_s] = self.kv.seqs
        self._note_peak()
        done = [seq.index for seq, new_tok in step.chunks if self._computed(seq, new_tok, end_s)]
        for sequence in self._endings.pop(self._clock, ()):
            context_tok = sequence.context_tok(self._clock)
            self._context_tok -= context_tok
            self._leave(sequence, self.kv.leave(context_tok, self._clock))
            done.append(sequence.index)
        if self._running or self._waiting:
            self.event = (end_s, BEGINS)
        else:
            self.event = (max(end_s, self._inbox[0][0]) if self._inbox else inf, BEGINS)
        return done

    def _leave(self, sequence: Sequence, blocks: int) -> None:
        """End a request. With asynchronous scheduling the next step has been scheduled around it already."""
        del self._running[sequence.index]
        self._leaving_seqs += 1
        self._leaving_blocks += blocks
        if not self.limits.async_scheduling:
            self._vacate()

    def _vacate(self) -> None:
        """Let go of the places and blocks of the requests that have ended."""
        self.kv.free += self._leaving_blocks
        self._leaving_seqs = self._leaving_blocks = 0

    def _note_peak(self) -> None:
        self.kv_peak_blocks = max(self.kv_peak_blocks, self.kv.total - self.kv.free)

    def _tick(self, step: Step, end_s: float) -> None:
        """Every decoding request got ``step.ticks`` tokens."""
        seqs, ticks = self.kv.seqs, step.ticks
        if not step.chunks:
            self.log.decode.add_run(seqs, self._context_tok + seqs, ticks, end_s - step.start_s)
        if seqs:
            self._log_gaps(step, seqs)
            self._context_tok += ticks * seqs
            self.kv.free -= self.kv.need_of(self._clock + 1, ticks - 1)
        self._clock += ticks
        self._ticked_s = end_s

    def _log_gaps(self, step: Step, seqs: int) -> None:
        runs = self.log.runs
        if not self._stalled:
            runs.append((step.start_s, step.ticks, step.first_s, step.growth_s, seqs))
            return
        first_end_s = step.begins_s(1)
        for since_s, waited in self._stalled.items():
            runs.append((since_s, 1, first_end_s - since_s, 0.0, waited))
        self._stalled.clear()
        if step.ticks > 1:
            runs.append((first_end_s, step.ticks - 1, step.first_s + step.growth_s, step.growth_s, seqs))

    def _computed(self, sequence: Sequence, new_tok: int, end_s: float) -> bool:
        """A chunk of a prompt was computed; whether that was the end of the request."""
        sequence.done_tok += new_tok
        if sequence.done_tok < sequence.prompt_tok:
            return False
        if sequence is self._partial:
            self._partial = None
        if sequence.last_token_s is None:
            self.log.first_token_s[sequence.index] = end_s
        else:
            gap_s = end_s - sequence.last_token_s
            self.log.runs.append((sequence.last_token_s, 1, gap_s, 0.0, 1))
        if sequence.remaining_tok == 1:
            self._leave(sequence, self.kv.blocks(sequence.prompt_tok))
            return True
        self._join(sequence, end_s)
        return False

    def _join(self, sequence: Sequence, now_s: float) -> None:
        """Decode from the next tick on."""
        sequence.joined, sequence.joined_s = self._clock, now_s
        self.kv.join(sequence.prompt_tok, self._clock)
        self._context_tok += sequence.prompt_tok
        if self.limits.prefill_first:
            self._stalled[now_s] = self._stalled.get(now_s, 0) + 1
        if sequence.ends not in self._endings:
            self._endings[sequence.ends] = []
            heappush(self._ending_clocks, sequence.ends)
        self._endings[sequence.ends].append(sequence)


def _run_of(step: Step, end_s: float) -> StepRun:
    """The run that ends at ``end_s``, with its last batch: the first, on contexts that grew by a token per step."""
    first, steps = step.batch, max(step.ticks, 1)
    last = first
    if steps > 1:
        last = Batch(first.decode_seqs, first.decode_context_tok + (steps - 1) * first.decode_seqs)
    return StepRun(step.start_s, end_s, steps, first, last)
