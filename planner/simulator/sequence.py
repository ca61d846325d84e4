"""The work of a DP rank: requests, steps or rows of equal steps, and the tokens of a step."""

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, floor, sqrt

from planner.simulator.record import StepRun
from planner.timing import Batch

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
