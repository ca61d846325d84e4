"""Results of a replay: times of every request, and the token gaps of every run of equal steps."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, nan
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
