"""Work and results of a replay: requests, steps or rows of equal steps, times of every request, and token gaps."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import pairwise
from math import ceil, floor, inf, nan, sqrt
from operator import add
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.timing import Batch

PART = 2**18  #: steps that are spelt out at once
SORTED = 2**13  #: of them that are sorted
ROUNDING = 1e-12  #: of a gap, relative
TOGETHER_S = 1e-9  #: moments so near are one
TINY = 1e-200  #: growth in s of gaps that do not grow


@dataclass(slots=True)
class Tally:
    """Sums over steps of one kind."""

    steps: int = 0
    time_s: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0, 0.0, 0, 0, 0.0, 0])  #: of the first fields of the batches

    def add(self, batch: Batch, time_s: float) -> None:
        self.steps += 1
        self.time_s += time_s
        self.sums[:] = map(add, self.sums, batch)

    def add_run(self, seqs: int, context_tok: float, steps: int, time_s: float, growth_tok: float) -> None:
        """Count ``steps`` decode steps of ``seqs`` requests, the first on ``context_tok`` tokens.

        ``growth_tok``: by which each step lengthens the context of a request."""
        self.steps += steps
        self.time_s += time_s
        self.sums[0] += seqs * steps
        self.sums[1] += context_tok * steps + growth_tok * seqs * steps * (steps - 1) / 2

    @property
    def batch(self) -> Batch | None:
        """The average batch, counts rounded; None when there was no step."""
        if not self.steps:
            return None
        seqs, context_tok, prompts, prompt_tok, pair_tok, finishing = (total / self.steps for total in self.sums)
        return Batch(round(seqs), context_tok, round(prompts), round(prompt_tok), pair_tok, round(finishing))


class StepRun(NamedTuple):
    """Steps that differ in the context of their sequences only, from ``first`` to ``last``."""

    start_s: float
    end_s: float
    steps: int
    first: Batch
    last: Batch


class GapLog:
    """The token gaps as they come: the columns of ``TokenRuns``."""

    __slots__ = ("gap_s", "growth_s", "start_s", "steps", "tokens")

    def __init__(self) -> None:
        self.start_s, self.gap_s, self.growth_s = array("d"), array("d"), array("d")
        self.steps, self.tokens = array("q"), array("q")

    def add(self, start_s: float, steps: int, gap_s: float, growth_s: float, tokens: int) -> None:
        self.start_s.append(start_s)
        self.steps.append(steps)
        self.gap_s.append(gap_s)
        self.growth_s.append(growth_s)
        self.tokens.append(tokens)


class NoGaps(GapLog):
    __slots__ = ()

    def add(self, start_s: float, steps: int, gap_s: float, growth_s: float, tokens: int) -> None:
        pass


@dataclass(slots=True)
class Log:
    """Written by the DP ranks while they run. Times are the engine's own."""

    first_token_s: "array[float]"
    end_s: "array[float]"
    preemptions: "array[int]"
    cached_tok: "array[int]"  #: found in the prefix cache when it was first scheduled
    gaps: GapLog
    host_tok: dict[int, int] = field(default_factory=dict)  #: of ``cached_tok``, by request: loaded from host memory
    decode: Tally = field(default_factory=Tally)  #: steps that only decode
    prefill: Tally = field(default_factory=Tally)  #: steps with prompt tokens in them

    @classmethod
    def of(cls, num_requests: int, *, keep_gaps: bool = True) -> "Log":
        first_s, end_s = array("d", [nan]) * num_requests, array("d", [inf]) * num_requests
        none = array("q", [0]) * num_requests
        return cls(first_s, end_s, none, none[:], GapLog() if keep_gaps else NoGaps())


@dataclass(frozen=True, slots=True)
class TokenRuns:
    """Every output token but the first of each request, in runs of equally spaced growth.

    Step k of a run ends ``gap_s + k * growth_s`` after step k - 1. At its end ``tokens`` requests get a token after
    just that gap. With speculative decoding they get several at once, which a client sees as one. Shape (runs,)."""

    start_s: NDArray[np.float64]
    steps: NDArray[np.int64]
    gap_s: NDArray[np.float64]
    growth_s: NDArray[np.float64]
    tokens: NDArray[np.int64]

    @classmethod
    def of(cls, log: GapLog, *, delay_s: float = 0.0) -> "TokenRuns":
        runs = cls(*map(np.asarray, (log.start_s, log.steps, log.gap_s, log.growth_s, log.tokens)))
        if delay_s:
            np.add(runs.start_s, delay_s, out=runs.start_s)
        return runs

    def gaps(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The gap of every single step in s, and how many tokens came after that gap."""
        run, k = _spelt_out(self.steps)
        return self.gap_s[run] + k * self.growth_s[run], self.tokens[run]

    def emissions(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The end of every single step in s, and how many tokens came then."""
        run, k = _spelt_out(self.steps)
        past_s = (k + 1) * self.gap_s[run] + k * (k + 1) / 2 * self.growth_s[run]
        return self.start_s[run] + past_s, self.tokens[run]

    def parts(self) -> "Iterator[TokenRuns]":
        """Pieces of about ``PART`` steps, or of a run: of a million requests all would take a gigabyte."""
        upto = np.cumsum(self.steps)
        cuts = np.searchsorted(upto, np.arange(PART, self.steps.sum(), PART))
        for begin, end in pairwise(np.unique([0, *cuts, len(upto)])):
            yield self._of(np.arange(begin, end))

    def moments_s(self) -> tuple[float, float]:
        """Mean and standard deviation of the gaps of all tokens."""
        steps, weights = self.steps, self.tokens
        count, sum_k = max(int((steps * weights).sum()), 1), steps * (steps - 1) / 2
        mean_s = float((weights * (steps * self.gap_s + sum_k * self.growth_s)).sum()) / count
        first_s, sum_k2 = self.gap_s - mean_s, sum_k * (2 * steps - 1) / 3
        terms = steps * first_s**2 + 2 * sum_k * first_s * self.growth_s + sum_k2 * self.growth_s**2
        return mean_s, max(float((weights * terms).sum()) / count, 0.0) ** 0.5

    def gaps_at(self, ranks: Iterable[int]) -> NDArray[np.float64]:
        """The gaps in s at ``ranks`` (from 0) among those of all tokens in ascending order."""
        even = self.growth_s == 0  # as one step with the tokens of all
        steps, tokens = np.where(even, 1, self.steps), np.where(even, self.steps * self.tokens, self.tokens)
        runs, last_s = replace(self, steps=steps, tokens=tokens), self.gap_s + (steps - 1) * self.growth_s
        ends_s = np.minimum(self.gap_s, last_s), np.maximum(self.gap_s, last_s)
        return np.array([runs._gap_at(rank, *ends_s) for rank in ranks])

    def _gap_at(self, rank: int, least_s: NDArray[np.float64], most_s: NDArray[np.float64]) -> float:
        """Halve where it lies until few steps are left, and sort the gaps of those."""
        low_s, high_s, near = float(least_s.min()), float(most_s.max()), self
        left = near.steps.sum()
        while left > SORTED and low_s < (middle_s := (low_s + high_s) / 2) < high_s:
            if (near._upto(middle_s, least_s) * near.tokens).sum() > rank:
                high_s = middle_s
            else:
                low_s = middle_s
            below = most_s < low_s * (1 - ROUNDING)
            rank -= int((near.steps * near.tokens)[below].sum())
            within = np.flatnonzero(~below & (least_s <= high_s * (1 + ROUNDING)))
            near, least_s, most_s = near._of(within), least_s[within], most_s[within]
            left = (near._upto(high_s, least_s) - near._upto(low_s, least_s)).sum()
        first = np.maximum(near._upto(low_s * (1 - ROUNDING), least_s) - 1, 0)
        after = np.minimum(near._upto(high_s * (1 + ROUNDING), least_s) + 1, near.steps)
        run, k = _spelt_out(after - first)
        place = first[run] + k  # in ascending order
        k = np.where(near.growth_s[run] < 0, near.steps[run] - 1 - place, place)
        gap_s = near.gap_s[run] + k * near.growth_s[run]
        order = np.argsort(gap_s)
        rank -= int((first * near.tokens).sum())
        return float(gap_s[order][np.searchsorted(np.cumsum(near.tokens[run][order]), rank, side="right")])

    def _upto(self, gap_s: float, least_s: NDArray[np.float64]) -> NDArray[np.int64]:
        """Steps of each run, whose shortest gap is ``least_s``, that are not longer than ``gap_s``; to rounding."""
        steps = np.floor((gap_s - least_s) / np.maximum(np.abs(self.growth_s), TINY)) + 1
        whole: NDArray[np.int64] = np.clip(steps, 0, self.steps).astype(np.int64)
        return whole

    def _of(self, runs: NDArray[np.int64] | slice) -> "TokenRuns":
        return TokenRuns(self.start_s[runs], self.steps[runs], self.gap_s[runs], self.growth_s[runs], self.tokens[runs])


def _spelt_out(steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    run = np.repeat(np.arange(len(steps)), steps)
    before = np.cumsum(steps) - steps
    return run, np.arange(len(run)) - before[run]


#: Fields of a replay that hold a figure of each request.
_OF_REQUESTS = (
    "input_len", "output_len", "arrival_s", "sent_s", "ready_s", "first_token_s", "end_s", "preemptions", "cached_tok",
    "group",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Replay:
    """A load served: the client's view of every request, and the engine's steps.

    Arrays have shape (num_requests,), in the order sent. Times are seconds since the start of the benchmark."""

    input_len: NDArray[np.int64]
    output_len: NDArray[np.int64]
    arrival_s: NDArray[np.float64]  #: when the request wanted to be sent
    sent_s: NDArray[np.float64]  #: when it was sent; later than its arrival while the client is at its limit
    ready_s: NDArray[np.float64]  #: when the scheduler could see it
    first_token_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    preemptions: NDArray[np.int64]
    cached_tok: NDArray[np.int64]  #: of the prompt, found in the prefix cache
    host_tok: NDArray[np.int64]  #: of these, loaded from host memory
    token_runs: TokenRuns
    kv_cache_usage_peak: float  #: largest fraction of KV blocks in use on a DP rank
    most_seqs: int  #: requests that a DP rank had admitted at once
    most_step_tok: int  #: tokens that a step of a DP rank had at most
    decode: Tally  #: steps that only decode, DP ranks added up
    prefill: Tally  #: steps with prompt tokens in them
    step_runs: tuple[StepRun, ...] = ()  #: every step of the first DP rank in order, with ``keep_steps``
    group: NDArray[np.int64] | None = None  #: the number of each request's class, in ``groups``
    groups: tuple[str, ...] = ()

    def of(self, group: str) -> "Replay":
        """The requests of one class; the steps and the token gaps stay those of all."""
        if self.group is None:
            raise ValueError("no classes were sent")
        which = self.group == self.groups.index(group)
        arrays = {name: value[which] for name in _OF_REQUESTS if (value := getattr(self, name)) is not None}
        return replace(self, **arrays)

    def second_cycle(self, each: int, response_s: float) -> "Replay":
        """The second ``each`` of the requests, and the time from the end of the first ones to theirs.

        ``response_s``: from the end of a step until the client holds its tokens."""
        start_s, end_s = (float(self.end_s[part].max()) - TOGETHER_S for part in (slice(each), slice(each, 2 * each)))
        arrays = {name: value[each : 2 * each] for name in _OF_REQUESTS if (value := getattr(self, name)) is not None}
        moved = {name: value - start_s if name.endswith("_s") else value for name, value in arrays.items()}
        begun_s, since_s = self.token_runs.start_s, start_s - response_s
        gaps = self.token_runs._of(np.flatnonzero((start_s <= begun_s) & (begun_s < end_s)))
        steps = (run for run in self.step_runs if since_s <= run.start_s < end_s - response_s)
        runs = tuple(run._replace(start_s=run.start_s - since_s, end_s=run.end_s - since_s) for run in steps)
        return replace(self, **moved, token_runs=replace(gaps, start_s=gaps.start_s - start_s), step_runs=runs)

    def without_gaps(self) -> "Replay":
        """A copy without the gaps between tokens, which are most of a long replay."""
        return replace(self, token_runs=TokenRuns.of(GapLog()))

    @property
    def duration_s(self) -> float:
        return float(self.end_s.max())

    @property
    def mean_in_flight(self) -> float:
        return float(self.e2el_s.sum()) / self.duration_s

    @property
    def cached_share(self) -> float:
        return float(self.cached_tok.sum() / self.input_len.sum())

    @property
    def host_share(self) -> float:
        return float(self.host_tok.sum() / self.input_len.sum())

    @property
    def ttft_s(self) -> NDArray[np.float64]:
        return self.first_token_s - self.sent_s

    @property
    def e2el_s(self) -> NDArray[np.float64]:
        return self.end_s - self.sent_s

    @property
    def tpot_s(self) -> NDArray[np.float64]:
        """(E2EL - TTFT) / (output tokens - 1) of the requests with more than one output token."""
        several = self.output_len > 1
        return (self.end_s - self.first_token_s)[several] / (self.output_len[several] - 1)


#: Largest distance of the middle of a row of decode steps from a straight line, relative; short rows are not checked.
BEND, SHORT_RUN = 1e-3, 32
TINY_S = 1e-12  #: so that nothing is divided by zero


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in the engine: its prompt, its answer, and how far it is."""

    index: int
    prompt_tok: int  #: tokens to prefill: the prompt, and after a preemption what was generated before
    remaining_tok: int  #: tokens to sample from the end of that prefill on, that one included
    cached_tok: int  #: found in the prefix cache
    done_tok: int = 0  #: computed so far, while prefilling
    lost_tok: int = 0  #: computed before a preemption
    joined: int = 0  #: decode clock when it began to decode
    joined_s: float = 0.0
    last_token_s: float | None = None  #: of a preempted request: when its last token came
    priority: int = 0  #: lower comes first, with ``--scheduling-policy priority``

    def context_tok(self, clock: int) -> int:
        return self.prompt_tok + clock - self.joined

    @property
    def ends(self) -> int:
        return self.joined + self.remaining_tok - 1

    @property
    def rank(self) -> tuple[int, int]:
        return self.priority, self.index


class ByPriority:
    """Waiting requests, the first by ``rank`` ahead, also of those that were preempted; used as a deque."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Sequence]] = []

    def append(self, sequence: Sequence) -> None:
        heappush(self._heap, (sequence.rank, sequence))

    appendleft = append

    def popleft(self) -> Sequence:
        return heappop(self._heap)[1]

    def __getitem__(self, place: int) -> Sequence:
        return self._heap[place][1]

    def __len__(self) -> int:
        return len(self._heap)


@dataclass(slots=True)
class Step:
    """One step with prompts in it, or a run of steps that only decode."""

    start_s: float
    first_s: float  #: duration of the first step
    batch: Batch  #: of the first step
    growth_s: float = 0.0  #: by which each further step is longer
    steps: int = 1  #: that decode; 0 while all others wait for prompts (V0)
    chunks: Several[tuple[Sequence, int]] = ()  #: prompts, with their new tokens
    may_be_cut: bool = False  #: whether a request that comes in meanwhile ends the run

    def begins_s(self, step: int) -> float:
        return self.start_s + step * self.first_s + step * (step - 1) / 2 * self.growth_s

    @property
    def end_s(self) -> float:
        return self.begins_s(self.steps) if self.steps > 1 else self.start_s + self.first_s

    def before(self, time_s: float) -> int:
        """Count the further steps that begin at ``time_s`` at the latest."""
        last = self.steps - 1
        if last < 1 or time_s < self.start_s + self.first_s:
            return 0
        wait_s = time_s - self.start_s
        # begins_s(k) = time_s, solved for k; then put right by what rounding does
        slope_s = self.first_s - self.growth_s / 2
        root = sqrt(max(slope_s * slope_s + 2 * self.growth_s * wait_s, 0.0))
        step = int(min(max(2 * wait_s / max(slope_s + root, TINY_S), 0), last))
        while step < last and self.begins_s(step + 1) <= time_s:
            step += 1
        while step and self.begins_s(step) > time_s:
            step -= 1
        return step

    def run(self, end_s: float, grown_tok: int) -> StepRun:
        """The record of a run that ended at ``end_s``: in its last batch contexts have grown by ``grown_tok`` each."""
        first, last = self.batch, self.batch
        if self.steps > 1:
            last = Batch(first.decode_seqs, first.decode_context_tok + grown_tok * first.decode_seqs)
        return StepRun(self.start_s, end_s, max(self.steps, 1), first, last)


def straight(time_of: Callable[[int], float], steps: int, first_s: float) -> tuple[int, float]:
    """Count the steps, of ``steps``, that grow evenly, halving until the middle one does, and the growth of each.

    Interpolation between the first and the last one is exact where time is linear in the context."""
    if steps <= 1:
        return steps, 0.0
    last = steps - 1
    last_s = time_of(last)
    while last > SHORT_RUN:
        half = last // 2
        half_s = time_of(half)
        if abs(first_s + (last_s - first_s) * half / last - half_s) <= BEND * half_s:
            break
        last, last_s = half, half_s
    return last + 1, (last_s - first_s) / last


class Pace:
    """Tokens that each decoding request gets in a row of steps: one each, or more with speculative decoding.

    The first n steps make floor(n x ``tokens_per_step``) tokens, so that 2.5 means 2, 3, 2, 3, ... and a row of steps
    needs no walk over its steps.

    >>> pace = Pace(2.5)
    >>> pace.ticks(1), pace.ticks(2), pace.steps_for(6)
    (2, 5, 3)
    """

    __slots__ = ("_steps", "_tokens_per_step")

    def __init__(self, tokens_per_step: float) -> None:
        self._tokens_per_step = tokens_per_step
        self._steps = 0  # taken so far

    def ticks(self, steps: int) -> int:
        each, taken = self._tokens_per_step, self._steps
        return steps if each == 1 else floor((taken + steps) * each) - floor(taken * each)

    def steps_for(self, ticks: int) -> int:
        """The fewest steps, at least one, that make ``ticks`` tokens or more."""
        if self._tokens_per_step == 1:
            return max(ticks, 1)
        steps = max(ceil(ticks / self._tokens_per_step) - 1, 1)
        while self.ticks(steps) < ticks:
            steps += 1
        return steps

    def take(self, steps: int) -> None:
        self._steps += steps
