"""One DP rank: its queues, its KV blocks and its clock. And ranks that serve by priority, or step together.

The decode clock counts the tokens that each running request has got by decoding, the same for all. A request that
starts to decode at tick c with n tokens to come ends in the step that reaches tick c + n. The work of a step thus does
not depend on how many requests run."""

from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Several
from heapq import heappop, heappush
from math import inf, nextafter
from operator import attrgetter, ge

from planner.simulator.blocks import KvBlocks
from planner.simulator.limits import SchedulerLimits, StepTimer
from planner.simulator.record import ByPriority, Log, Pace, Sequence, Step, StepRun, straight
from planner.timing import Batch

MOMENT_S = 1e-9  #: times closer than this, in s, count as one moment, so that rounding does not decide who comes first
#: Kinds of events, in the order in which those of the same moment happen: steps end before others begin.
ENDS, BEGINS = 0, 1


class DpRank:
    """One data-parallel rank; without data parallelism, the whole engine.

    ``event`` is the time of its next call, and whether it is one of ``begin`` or ``end``."""

    def __init__(self, timer: StepTimer, limits: SchedulerLimits, log: Log, kv: KvBlocks | None = None) -> None:
        self.timer = timer
        self.limits = limits
        self.log = log
        self._places, self._watermark_blocks, self._whole_prompts = (
            limits.places, limits.watermark_blocks, limits.whole_prompts,
        )  # fmt: skip
        size, caching = limits.block_size, limits.enable_prefix_caching
        self.kv = kv or KvBlocks(limits.num_blocks, size, caching=caching, shared=limits.shared_prefix_tok // size)
        self.least_free = self.kv.free  # blocks, at any time
        self.most_seqs = self.most_tok = 0  # of any step: requests that were admitted, and tokens
        self.step_runs: list[StepRun] | None = None  #: every step, where they are wanted
        self.event: tuple[float, int] = (inf, BEGINS)
        self._inbox: deque[tuple[float, Sequence]] = deque()  # sent, by the time they can be seen
        self._waiting: deque[Sequence] | ByPriority = deque()
        self._running: dict[int, Sequence] = {}  # in order of admission
        self._partial: Sequence | None = None  # the last of them, when its prompt is not finished
        self._leaving: dict[Sequence, int] = {}  # ended, but still in the way of the next step; with their tokens
        self._endings: dict[int, list[Sequence]] = {}  # by the decode clock
        self._ending_clocks: list[int] = []  # heap
        self._context_tok = 0  # sum over decoding requests
        self._clock = 0
        self._pace = Pace(limits.tokens_per_step)
        self._ticked_s = 0.0  # end of the last tick
        self._last_start_s = 0.0  # start of the last step
        self._stalled: dict[float, int] = {}  # V0: decoding requests by the time of their last token
        self._step = Step(0.0, 0.0, Batch())

    @property
    def has_plenty(self) -> bool:
        """True if more requests wait than the next step can admit."""
        return len(self._waiting) + len(self._inbox) > self._places

    def submit(self, ready_s: float, sequence: Sequence) -> None:
        """Queue a request that the scheduler can see from ``ready_s`` on; calls must be in order of that time."""
        self._inbox.append((ready_s, sequence))
        time_s, kind = self.event
        if kind == ENDS:
            self._cut()
        elif time_s == inf:
            self.event = (ready_s, BEGINS)

    def begin(self) -> None:
        """Start what is to start now, and set ``event`` to its end."""
        step = self.plan(self.event[0])
        first_s = self.timer.step_s(step.batch)
        steps, growth_s = step.steps, 0.0
        if steps > 1:
            steps, growth_s = straight(lambda at: self.timer.step_s(self.batch_at(step, at)), steps, first_s)
        self.start(step, first_s, steps, growth_s)

    def plan(self, start_s: float) -> Step:
        """Schedule what starts at ``start_s``: one step, or at most as many as are alike. Its times are left open.

        Asynchronous scheduling is one step ahead: what is sent later waits. An idle engine starts with what wakes it.
        """
        self._receive(self._last_start_s if self.limits.async_scheduling else start_s)
        chunks, calm = self._schedule()
        if not chunks and not self.kv.seqs:  # nothing was known in time: the engine pauses and looks again
            self._vacate()
            self._receive(start_s)
            if not self._waiting:
                self._receive(nextafter(start_s + 2 * MOMENT_S, inf))  # after weeks the clock is coarser than a moment
            chunks, calm = self._schedule()
        expecting = bool(self._leaving and self._waiting)
        if self.kv.free < self.least_free:
            self.least_free = self.kv.free
        if self._leaving:
            self._vacate()
        return self._prefill(start_s, chunks) if chunks else self._decode(start_s, once=not calm or expecting)

    def batch_at(self, step: Step, at: int) -> Batch:
        first = step.batch
        if not at:
            return first
        return Batch(first.decode_seqs, first.decode_context_tok + self._pace.ticks(at) * first.decode_seqs)

    def start(self, step: Step, first_s: float, steps: int, growth_s: float) -> None:
        """Start a step that was planned, or ``steps`` of them, of which each takes ``growth_s`` longer."""
        step.first_s, step.growth_s = first_s, growth_s
        if step.chunks:
            self.log.prefill.add(step.batch, first_s)
        else:
            step.steps = steps
        self._step = step
        self.event = (step.end_s, ENDS)
        if step.may_be_cut:
            self._cut()

    @property
    def steps(self) -> int:
        return max(self._step.steps, 1)

    def stop_after(self, steps: int) -> None:
        """End the row that is under way after ``steps`` steps."""
        if steps != self.steps:
            self._step.steps = steps
            self.event = (self._step.end_s, ENDS)

    def rest(self) -> None:
        """End a row in which this engine had nothing to do."""
        end_s = self.event[0]
        self._last_start_s = self._step.begins_s(self._step.steps - 1)
        self.event = (max(end_s, self._inbox[0][0]) if self._inbox else inf, BEGINS)

    def _schedule(self) -> tuple[list[tuple[Sequence, int]], bool]:
        if self.limits.prefill_first:
            chunks = self._admit(self.limits.max_num_batched_tokens)
            return chunks, bool(chunks) or self._make_room()
        calm = not self.kv.seqs or self._make_room()
        budget_tok = self.limits.max_num_batched_tokens - self.kv.seqs * self.limits.decode_tok
        chunks = []
        if self._partial is not None:
            chunks = self._continue_prompt(self._partial, budget_tok)
            calm = calm and bool(chunks)
        if calm and self._waiting:  # a step that preempts admits no request
            chunks += self._admit(budget_tok - sum(new_tok for _, new_tok in chunks))
        return chunks, calm

    def _receive(self, before_s: float) -> None:
        inbox = self._inbox
        while inbox and inbox[0][0] + MOMENT_S < before_s:
            self._waiting.append(inbox.popleft()[1])

    def _make_room(self) -> bool:
        """Take the blocks of the next step, preempting the youngest where they lack; return whether none had to go."""
        calm, kv = True, self.kv
        while (need := kv.need_of(self._clock, self._pace.ticks(1))) > kv.free:
            self._preempt(self._running.popitem()[1])
            calm = False
        if need:
            kv.take(need)
        return calm

    def _preempt(self, sequence: Sequence, given_tok: int = 0) -> None:
        """Put a request back to the head of the queue; its tokens are to be computed again, unless they are found.

        ``given_tok``: tokens for which the step to come had given it blocks already."""
        if sequence is self._partial:
            self._partial = None
            sequence.lost_tok = sequence.done_tok
        else:
            sequence.lost_tok = self._stop_decoding(sequence)
        self.kv.preempt(sequence.index, sequence.lost_tok + given_tok)
        self.log.preemptions[sequence.index] += 1
        self._waiting.appendleft(sequence)

    def _stop_decoding(self, sequence: Sequence) -> int:
        """Make the sampled tokens part of the prompt; return how many tokens of the request are computed."""
        context_tok = sequence.context_tok(self._clock)
        self.kv.leave(context_tok, self._clock)
        self._context_tok -= context_tok
        self._endings[sequence.ends].remove(sequence)
        sampled_tok = 1 + self._clock - sequence.joined
        sequence.last_token_s = last_s = sequence.joined_s if sampled_tok == 1 else self._ticked_s
        sequence.prompt_tok += sampled_tok
        sequence.remaining_tok -= sampled_tok
        if self._stalled:
            self._stalled[last_s] -= 1
            if not self._stalled[last_s]:
                del self._stalled[last_s]
        return context_tok

    def _continue_prompt(self, sequence: Sequence, budget_tok: int) -> list[tuple[Sequence, int]]:
        new_tok = min(sequence.prompt_tok - sequence.done_tok, budget_tok)
        blocks = self.kv.blocks(sequence.done_tok + new_tok) - self.kv.blocks(sequence.done_tok)
        if not self._claim(sequence, blocks):
            return []
        self.kv.fill(sequence.index, sequence.done_tok + new_tok)
        return [(sequence, new_tok)]

    def _claim(self, sequence: Sequence, blocks: int) -> bool:  # noqa: ARG002
        """Take blocks for the prompt of the youngest; return False when it had to go itself, for lack of them."""
        if blocks > self.kv.free:
            self._preempt(self._running.popitem()[1])
            return False
        self.kv.take(blocks)
        return True

    def _admit(self, budget_tok: int) -> list[tuple[Sequence, int]]:
        chunks: list[tuple[Sequence, int]] = []
        places = self._places - len(self._leaving)
        while budget_tok > 0 and self._waiting and len(self._running) < places:
            sequence = self._waiting[0]
            new_tok = self._begin_prompt(sequence, *self.kv.find(sequence), budget_tok)
            if not new_tok:
                break
            self._waiting.popleft()
            budget_tok -= new_tok
            chunks.append((sequence, new_tok))
        self.most_seqs = max(self.most_seqs, len(self._running))
        return chunks

    def _begin_prompt(self, sequence: Sequence, cached_tok: int, held: int, budget_tok: int) -> int:
        """Admit a request with its first chunk, as ``kv.find`` found it; return its tokens, 0 where it does not fit."""
        kv = self.kv
        rest_tok = sequence.prompt_tok - cached_tok
        new_tok = rest_tok if rest_tok < budget_tok else budget_tok
        if new_tok < rest_tok and self._whole_prompts:
            return 0
        blocks = kv.blocks(cached_tok + new_tok)
        whole = new_tok == rest_tok or not self.limits.scheduler_reserve_full_isl
        must_fit = blocks if whole else kv.blocks(sequence.prompt_tok)
        if must_fit - held > kv.free - self._watermark_blocks:
            return 0
        self._running[sequence.index] = sequence
        sequence.done_tok = cached_tok
        if cached_tok:
            if not sequence.lost_tok:
                self.log.cached_tok[sequence.index] = cached_tok
            blocks -= kv.reuse(sequence, cached_tok)
        kv.take(blocks)
        kv.fill(sequence.index, cached_tok + new_tok)
        if new_tok < rest_tok:
            self._partial = sequence
        return new_tok

    def _prefill(self, start_s: float, chunks: list[tuple[Sequence, int]]) -> Step:
        decode_seqs = 0 if self.limits.prefill_first else self.kv.seqs
        prefill_tok = finishing = 0
        pair_tok = 0.0
        for sequence, new_tok in chunks:
            done_tok = sequence.done_tok
            prefill_tok += new_tok
            pair_tok += new_tok * (done_tok + (new_tok + 1) / 2)
            finishing += done_tok + new_tok == sequence.prompt_tok
        context_tok = self._context_tok + decode_seqs if decode_seqs else 0.0
        batch = Batch(decode_seqs, context_tok, len(chunks), prefill_tok, pair_tok, finishing)
        self.most_tok = max(self.most_tok, decode_seqs * self.limits.decode_tok + prefill_tok)
        return Step(start_s, 0.0, batch, steps=0 if self.limits.prefill_first else 1, chunks=chunks)

    def _decode(self, start_s: float, once: bool) -> Step:
        """Decode steps that are alike, to the next ending, lack of blocks or admission; or just one.

        The context of a step includes the token it computes."""
        kv, pace, steps = self.kv, self._pace, 1
        if not once:
            clocks = self._ending_clocks
            while not self._endings.get(clocks[0]):
                self._endings.pop(heappop(clocks), None)
            steps = pace.steps_for(clocks[0] - self._clock)
        if steps > 1 and kv.free < (steps // kv.block_size + 2) * kv.seqs * self.limits.decode_tok:
            first_ticks = pace.ticks(1)  # whose blocks are taken already
            ticks = pace.ticks(steps) - first_ticks
            fit = kv.ticks_that_fit(self._clock + first_ticks, ticks)
            steps = steps if fit == ticks else pace.steps_for(first_ticks + fit + 1) - 1
        room = not self._waiting and len(self._running) < self._places
        return Step(start_s, 0.0, Batch(kv.seqs, self._context_tok + kv.seqs), steps=steps, may_be_cut=room)

    def _cut(self) -> None:
        """End the run with the step after which the next request in the inbox can be seen."""
        step = self._step
        if not self._inbox or not step.may_be_cut:
            return
        ready_s = self._inbox[0][0] + MOMENT_S
        steps = 1 + step.before(ready_s)
        if self.limits.async_scheduling and ready_s >= step.start_s and self._running:
            steps += 1
        if steps < step.steps:
            step.steps = steps
            self.event = (step.end_s, ENDS)

    def end(self) -> list[int]:
        """Account for what ends now, set ``event``, and return the requests that are done."""
        step, end_s = self._step, self.event[0]
        self._last_start_s = step.begins_s(step.steps - 1) if step.steps > 1 else step.start_s
        if self.step_runs is not None:
            self.step_runs.append(step.run(end_s, self._pace.ticks(max(step.steps, 1) - 1)))
        if step.steps:
            self._tick(step, end_s)
        elif self.kv.seqs and not self._stalled:
            self._stalled[self._ticked_s] = self.kv.seqs
        if self.kv.free < self.least_free:
            self.least_free = self.kv.free
        done: list[int] = []
        while self._ending_clocks and self._ending_clocks[0] <= self._clock:  # their last tokens have come
            for sequence in self._endings.pop(heappop(self._ending_clocks), ()):
                context_tok = sequence.context_tok(self._clock)
                self._context_tok -= context_tok
                self.kv.leave(context_tok, self._clock)
                self._leave(sequence, context_tok)
                done.append(sequence.index)
        if step.chunks:
            done += [seq.index for seq, new_tok in step.chunks if self._computed(seq, new_tok, end_s)]
        if self._running or self._waiting:
            self.event = (end_s, BEGINS)
        else:
            self.event = (max(end_s, self._inbox[0][0]) if self._inbox else inf, BEGINS)
        return done

    def _leave(self, sequence: Sequence, tok: int) -> None:
        """End a request. With asynchronous scheduling the next step has been scheduled around it already."""
        del self._running[sequence.index]
        if self.limits.async_scheduling:
            self._leaving[sequence] = tok
        else:
            self.kv.release(sequence.index, tok)

    def _vacate(self) -> None:
        for sequence, tok in self._leaving.items():
            self.kv.release(sequence.index, tok)
        self._leaving.clear()

    def _tick(self, step: Step, end_s: float) -> None:
        """Give every decoding request the tokens of ``step.steps`` steps."""
        seqs, steps, gaps = self.kv.seqs, step.steps, self.log.gaps
        ticks, first_ticks = self._pace.ticks(steps), self._pace.ticks(1)
        if not step.chunks:
            growth_tok = self.limits.tokens_per_step
            self.log.decode.add_run(seqs, self._context_tok + seqs, steps, end_s - step.start_s, growth_tok)
        if seqs and not self._stalled:
            gaps.add(step.start_s, steps, step.first_s, step.growth_s, seqs)
        elif seqs:
            first_end_s = step.begins_s(1)
            for since_s, waited in self._stalled.items():
                gaps.add(since_s, 1, first_end_s - since_s, 0.0, waited)
            self._stalled.clear()
            if steps > 1:
                gaps.add(first_end_s, steps - 1, step.first_s + step.growth_s, step.growth_s, seqs)
        self._context_tok += ticks * seqs
        if seqs and ticks > first_ticks:
            self.kv.take(self.kv.need_of(self._clock + first_ticks, ticks - first_ticks))
        self._clock += ticks
        self._pace.take(steps)
        self._ticked_s = end_s

    def _computed(self, sequence: Sequence, new_tok: int, end_s: float) -> bool:
        sequence.done_tok += new_tok
        if sequence.done_tok < sequence.prompt_tok:
            return False
        if sequence is self._partial:
            self._partial = None
        if sequence.last_token_s is None:
            self.log.first_token_s[sequence.index] = end_s
        else:
            gap_s = end_s - sequence.last_token_s
            self.log.gaps.add(sequence.last_token_s, 1, gap_s, 0.0, 1)
        if sequence.remaining_tok == 1:
            self._leave(sequence, sequence.prompt_tok)
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
        ends = sequence.ends
        if ends not in self._endings:
            self._endings[ends] = []
            heappush(self._ending_clocks, ends)
        self._endings[ends].append(sequence)


class PriorityRank(DpRank):
    """A DP rank under ``--scheduling-policy priority``.

    As in ``vllm/v1/core/sched`` (``request_queue.py``, ``scheduler.py``) of 0.32: waiting requests are admitted by
    priority, then as sent, and preempt no other. Running requests get their blocks in the order of their admission.
    Where one finds none, the last of all that run goes, even if this step had served it already. Where that is the very
    request, the step ends there. Those admitted after it keep their blocks and wait for the next step."""

    def __init__(self, timer: StepTimer, limits: SchedulerLimits, log: Log, kv: KvBlocks | None = None) -> None:
        super().__init__(timer, limits, log, kv)
        self._waiting = ByPriority()
        self._calm = True  # the step to come preempted no request
        self._halted = False  # it ended with a request that found no block
        self._missed: list[Sequence] = []  # decoding, but not in the step to come
        self._served: set[int] | None = None  # in the step to come, so far; None: all

    def end(self) -> list[int]:
        done = super().end()
        if self._missed:  # they are back for the next step
            self._rejoin(self._ticked_s)
        return done

    def _schedule(self) -> tuple[list[tuple[Sequence, int]], bool]:
        if self._missed:  # an empty step takes no time, and ``plan`` tries again
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
            if self._halted:  # it keeps its blocks; its last token was sampled, but is not computed
                self._stop_decoding(sequence)
                sequence.prompt_tok -= 1
                sequence.remaining_tok += 1
                self._missed.append(sequence)
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
            victim = max((*self._running.values(), *self._leaving), key=attrgetter("rank"))
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

    def _rejoin(self, now_s: float) -> None:
        """Decode on, beside those that have had a token at ``now_s``."""
        if self.kv.seqs:
            self._stalled[now_s] = self.kv.seqs
        for sequence in self._missed:
            assert sequence.last_token_s is not None  # it decodes
            self._stalled[sequence.last_token_s] = self._stalled.get(sequence.last_token_s, 0) + 1
            self._join(sequence, sequence.last_token_s)
        self._missed.clear()


#: Amounts of work in a batch; what a DP rank does not fill is left out.
_work = attrgetter(
    "decode_seqs", "decode_context_tok", "prefill_seqs", "prefill_tok", "prefill_pair_tok", "prefill_finishing"
)


class Lockstep:
    """DP ranks that share their experts and take every step together, each with its own queue and cache.

    vLLM's ranks meet at every layer of experts (``run_engine_core`` and ``v1/worker/dp_utils.py`` of 0.27). A rank
    without work runs an empty batch, and all wait for the one with the most to do. Used as a ``DpRank`` is."""

    def __init__(self, timer: StepTimer, ranks: Several[DpRank], limits: SchedulerLimits) -> None:
        self.timer, self.ranks, self.limits = timer, ranks, limits
        self.event: tuple[float, int] = (inf, BEGINS)
        self._resting: list[DpRank] = []

    def submit(self, place: int, ready_s: float, sequence: Sequence) -> None:
        self.ranks[place].submit(ready_s, sequence)
        self._wait()

    def begin(self) -> None:
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
    """Steps whose batch no other exceeds in everything, now and as contexts grow: one of them takes longest."""
    by_work = {_work(step.batch): (rank, step) for rank, step in steps.items()}
    largest: list[tuple[float, ...]] = []
    for work in sorted(by_work, reverse=True):
        if not any(all(map(ge, larger, work)) for larger in largest):
            largest.append(work)
    return [by_work[work] for work in largest]
