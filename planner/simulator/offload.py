"""A DP rank with a second tier of KV blocks in host memory (``--kv-offloading-size``).

As in ``v1/core/sched/scheduler.py`` and ``v1/worker/gpu/kv_connector.py`` of 0.32:

- A waiting request whose blocks are found on the host gets room for them on the GPU and steps aside until they are
  there. It takes no place and no budget meanwhile. Those behind it go on.
- What is loaded must leave room for what prompts under way still need. Requests that were loaded come before others.
- Loads begin when the step that orders them has computed, stores one step later. What has ended is looked up as a step
  is launched, and the scheduler hears of it with what that step computes. An idle engine looks all the time.

Not modelled: that a step waits where it takes blocks whose store has not ended yet, and that what found no room on the
host is offered again in every step (here with every change of the batch).
"""

from __future__ import annotations

from bisect import bisect_left
from math import inf, nextafter

from planner.simulator.blocks import KvBlocks
from planner.simulator.host import Copy, HostBlocks
from planner.simulator.limits import SchedulerLimits, StepTimer
from planner.simulator.rank import BEGINS, MOMENT_S, DpRank
from planner.simulator.record import Log
from planner.simulator.sequence import Sequence, Step
from planner.timing import Batch


class OffloadRank(DpRank):
    """A DP rank that loads and stores blocks."""

    def __init__(self, timer: StepTimer, limits: SchedulerLimits, log: Log, kv: KvBlocks, host: HostBlocks) -> None:
        super().__init__(timer, limits, log, kv)
        self.host = host
        self._loading: dict[int, Sequence] = {}  # requests whose blocks are on their way, or there
        self._had: dict[int, int] = {}  # blocks on the GPU of each of them
        self._there: set[int] = set()  # those of which the scheduler knows that all is there
        self._deferred = self._blocked = False  # whether requests wait for a copy, and whether for room
        self._unstored: dict[int, int] = {}  # requests that found no room on the host, and their tokens
        self._ordered: list[Copy] = []  # loads
        self._offered: list[Copy] = []  # stores of the step to come
        self._stores: list[Copy] = []  # and of the one before
        self._ended: list[int] = []  # requests that gave their places back
        self._old: list[int] = []  # and those that did before the step to come was scheduled
        self._partial_tok = 0  # of the prompt that is under way, with the step to come
        self._ended_s = -inf  # end of the last step
        # starts of the last steps; a step is scheduled when the one before is launched, or still one earlier
        self._looks_s = [-inf] * (3 if limits.async_scheduling else 1)
        self._asleep = self._woken = False  # whether nothing is to compute until a copy has ended, and was until now
        self._looked = False  # whether this is the second look of an idle engine

    def submit(self, ready_s: float, sequence: Sequence) -> None:
        """As ``DpRank.submit``."""
        super().submit(ready_s, sequence)
        if self._asleep and ready_s < self.event[0]:
            self.event = (ready_s, BEGINS)

    def plan(self, start_s: float) -> Step:
        """As ``DpRank.plan``; a step of nothing where all wait for copies."""
        if self._asleep or start_s > self._ended_s:
            self._looks_s = [start_s] * len(self._looks_s)
        self._woken, self._asleep, self._looked = self._asleep, False, False
        self._old, self._ended = self._ended, []
        self._learn(self._looks_s[0])
        step = super().plan(start_s)
        for index in [*self._unstored]:
            if index in self._running:
                self._offer(index, self._unstored[index])
        for sequence, new_tok in step.chunks:
            self._offer(sequence.index, sequence.done_tok + new_tok)
        self._forget(self._old)
        self._old = []
        return step

    def start(self, step: Step, first_s: float, steps: int, growth_s: float) -> None:
        """As ``DpRank.start``; copies begin when the first step has computed."""
        idle = not step.chunks and not step.batch.decode_seqs
        self._copy(step.start_s + (0.0 if idle else first_s))
        if not idle:
            super().start(step, first_s, steps, growth_s)
            self._stop_for_copies()
            return
        self._copy(step.start_s)
        self._asleep = True
        awaited_s = self.host.next_end_s if self._loading or self._deferred else inf
        self.event = (min(awaited_s, self._inbox[0][0] if self._inbox else inf), BEGINS)

    def end(self) -> list[int]:
        """As ``DpRank.end``."""
        step, self._ended_s = self._step, self.event[0]
        done = super().end()
        starts = [step.begins_s(at) for at in range(max(step.steps - len(self._looks_s), 0), step.steps)]
        self._looks_s = [*self._looks_s, *starts][-len(self._looks_s) :]
        if self._loading:
            self.event = (self._ended_s, BEGINS)
        if self.event[0] > self._ended_s:
            self._pause(self._ended_s)
        return done

    def _pause(self, time_s: float) -> None:
        """Nothing is left to compute at ``time_s``: a step of nothing passes."""
        self._copy(time_s)
        ended, self._old, self._ended = [*self._old, *self._ended], [], []
        self._forget(ended)

    def _forget(self, ended: list[int]) -> None:
        """Requests have ended before this step was scheduled."""
        for index in ended:
            if index in self._unstored:
                self._offer(index, self._unstored[index])
                self._unstored.pop(index, None)
            self.host.end(index)

    def _schedule(self) -> tuple[list[tuple[Sequence, int]], bool]:
        self._deferred = self._blocked = False
        waited = bool(self._waiting)
        chunks, calm = super()._schedule()
        if calm and not waited and self._loading:
            used_tok = self.kv.seqs * self.limits.decode_tok + sum(new_tok for _, new_tok in chunks)
            chunks = [*chunks, *self._admit(self.limits.max_num_batched_tokens - used_tok)]
        self._looked = True
        return chunks, calm

    def _receive(self, before_s: float) -> None:
        if self._looked:  # an idle engine looks again at once, and starts with what wakes it
            self._pause(self.event[0])
            self._learn(before_s)
            before_s = nextafter(before_s + 2 * MOMENT_S, inf) if self._woken else before_s
        super()._receive(before_s)

    def _continue_prompt(self, sequence: Sequence, budget_tok: int) -> list[tuple[Sequence, int]]:
        chunks = super()._continue_prompt(sequence, budget_tok)
        self._partial_tok = sequence.done_tok + sum(new_tok for _, new_tok in chunks)
        return chunks

    def _admit(self, budget_tok: int) -> list[tuple[Sequence, int]]:
        """As ``DpRank._admit``: those that were loaded, then others, as far as none of their blocks are on the host."""
        chunks: list[tuple[Sequence, int]] = []
        aside: list[Sequence] = []
        places = self._places - len(self._leaving)
        for sequence in [each for index, each in self._loading.items() if index in self._there]:
            if budget_tok <= 0 or len(self._running) >= places or self._blocked:
                break
            new_tok = self._resume(sequence, budget_tok)
            budget_tok -= new_tok
            if new_tok:
                chunks.append((sequence, new_tok))
        while budget_tok > 0 and self._waiting and len(self._running) < places and not self._blocked:
            sequence = self._waiting[0]
            begun_tok = self._look_up(sequence, budget_tok)
            if begun_tok is None:
                aside.append(self._waiting.popleft())
            elif begun_tok or sequence.index in self._loading:
                self._waiting.popleft()
            if begun_tok:
                budget_tok -= begun_tok
                chunks.append((sequence, begun_tok))
        self.most_seqs = max(self.most_seqs, len(self._running))
        self._deferred = self._deferred or bool(aside)
        for sequence in reversed(aside):
            self._waiting.appendleft(sequence)
        return chunks

    def _look_up(self, sequence: Sequence, budget_tok: int) -> int | None:
        """Admit the first that waits, or load blocks for it: the tokens of its first chunk; None if it has to wait."""
        cached_tok, held = self.kv.find(sequence)
        self.host.know(sequence.index, sequence.prompt_tok)
        size = self.kv.block_size
        found = self.host.find(sequence.index, cached_tok // size, sequence.prompt_tok // size)
        if found is None:
            return None
        if found:
            self._blocked = not self._order(sequence, cached_tok, held, found)
            return 0
        new_tok = self._begin_prompt(sequence, cached_tok, held, budget_tok)
        self._blocked = not new_tok
        return new_tok

    def _order(self, sequence: Sequence, cached_tok: int, held: int, found: int) -> bool:
        """Load ``found`` blocks of a waiting request behind those that the GPU has; whether there is room."""
        kv, index = self.kv, sequence.index
        blocks = cached_tok // kv.block_size + found
        whole = kv.blocks(sequence.prompt_tok) if self.limits.scheduler_reserve_full_isl else blocks
        if whole - held > kv.free or blocks - held > kv.free - self._reserved_blocks():
            return False
        kv.take(blocks - kv.reuse(sequence, cached_tok))
        self._ordered.append(self.host.load(index, blocks - found, blocks))
        self._had[index] = blocks
        self._loading[index] = sequence
        if not sequence.lost_tok:
            self.log.cached_tok[index] = blocks * kv.block_size
            self.log.host_tok[index] = found * kv.block_size
        return True

    def _resume(self, sequence: Sequence, budget_tok: int) -> int:
        """The first chunk of a request whose blocks are there: its tokens, 0 where there is no room."""
        kv, had = self.kv, self._had[sequence.index]
        sequence.done_tok = min(had * kv.block_size, sequence.prompt_tok - 1)
        rest_tok = sequence.prompt_tok - sequence.done_tok
        new_tok = min(rest_tok, budget_tok)
        blocks = kv.blocks(sequence.done_tok + new_tok)
        whole = kv.blocks(sequence.prompt_tok) if self.limits.scheduler_reserve_full_isl else blocks
        if (new_tok < rest_tok and self.limits.whole_prompts) or whole - had > kv.free:
            self._blocked = True
            return 0
        kv.take(blocks - had)
        kv.fill(sequence.index, sequence.done_tok + new_tok)
        self._running[sequence.index] = sequence
        self._there.remove(sequence.index)
        del self._had[sequence.index], self._loading[sequence.index]
        if new_tok < rest_tok:
            self._partial = sequence
        return new_tok

    def _reserved_blocks(self) -> int:
        """What prompts under way still need: the one that is being computed, and those that are being loaded."""
        kv = self.kv
        blocks = sum(kv.blocks(each.prompt_tok) - self._had[index] for index, each in self._loading.items())
        if self._partial is not None:
            blocks += kv.blocks(self._partial.prompt_tok) - kv.blocks(self._partial_tok)
        return blocks

    def _decode(self, start_s: float, once: bool) -> Step:
        if not self.kv.seqs:
            return Step(start_s, 0.0, Batch())
        step = super()._decode(start_s, once)
        step.may_be_cut = not self._blocked and len(self._running) < self._places
        return step

    def _stop_for_copies(self) -> None:
        """End the run where the scheduler hears of a copy that somebody waits for."""
        step = self._step
        if self._stores:
            self.stop_after(1)
        elif step.steps > 1 and (self._loading or self._deferred):
            end_s, late = self.host.next_end_s, len(self._looks_s)
            earlier = sum(at_s >= end_s for at_s in self._looks_s[1:])
            steps = bisect_left(range(step.steps), end_s, key=step.begins_s) + late - earlier
            self.stop_after(min(max(steps, 1), step.steps))

    def _leave(self, sequence: Sequence, tok: int) -> None:
        super()._leave(sequence, tok)
        if not self._leaving:
            self._ended.append(sequence.index)

    def _vacate(self) -> None:
        self._ended += [sequence.index for sequence in self._leaving]
        super()._vacate()

    def _offer(self, index: int, tok: int) -> None:
        """A request will have ``tok`` tokens after this step."""
        copy = self.host.offer(index, tok)
        if copy is not None:
            self._offered.append(copy)
        if self.host.lacks(index, tok):
            self._unstored[index] = tok
        else:
            self._unstored.pop(index, None)

    def _copy(self, time_s: float) -> None:
        """Stores of the step before, and loads, begin at ``time_s``."""
        for copy in (*self._stores, *self._ordered):
            self.host.begin(copy, time_s)
        self._ordered.clear()
        self._stores, self._offered = self._offered, []

    def _learn(self, time_s: float) -> None:
        """Hear of the copies that have ended by ``time_s``."""
        for copy in self.host.learn(time_s + MOMENT_S):
            self._there.add(copy.index)
            self.kv.fill(copy.index, self._had[copy.index] * self.kv.block_size)
