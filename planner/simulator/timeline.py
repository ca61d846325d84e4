"""The figures of a benchmark as weighted sums of the times of engine steps.

A figure is a mean over requests of the time between two moments of a request. Its weight on a step is the share of
requests whose interval holds the step, over what the figure divides by:

- TTFT: from sent to first token, by requests.
- TPOT: from first to last token, by (output tokens - 1) and by requests.
- E2EL: from sent to last token, by requests.
- Duration (of a throughput, of a batch): every step counts once.

Medians and percentiles are means over the requests near them. Steps with similar loads are merged, some forty in all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from planner.simulator.client import Client
from planner.simulator.record import Replay, StepRun
from planner.timing import Batch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LOADS = 6  #: the first fields of a batch, by which steps differ in a replay
LOADS_PER_OCTAVE = 2  #: batches whose loads round to the same half octave are merged
DIGITS = 1024  #: more than there are half octaves of a float, on both sides of 1, in what is met
#: Requests that a statistic is the mean of: shares of all, ordered by the metric.
NEAR = {"mean": (0.0, 1.0), "median": (0.45, 0.55), "p90": (0.85, 0.95), "p95": (0.92, 0.98), "p99": (0.98, 1.0)}
#: A server keeps up with a load that takes it this much longer than the last request takes to arrive, at most.
KEEPS_UP = 1.15


@dataclass(frozen=True, eq=False)
class StepSum:
    """``weights`` x times of the batches + ``fixed_s`` + delays outside the engine, in seconds."""

    weights: Floats  #: for each batch of the timeline
    fixed_s: float = 0.0  #: that no efficiency changes
    delays: Mapping[str, float] = field(default_factory=dict)  #: how often it contains each of ``CLIENT_DELAYS``


class Timeline:
    """The steps of a replay in order, and the merged batches that stand for them."""

    def __init__(self, served: Replay) -> None:
        """``served``: a replay with its steps; of several DP ranks, with those of the first one."""
        runs = served.step_runs
        self.served = served
        self._start_s = np.array([run.start_s for run in runs])
        self._end_s = np.array([run.end_s for run in runs])
        self._steps: Floats = np.array([run.steps for run in runs], dtype=np.float64)
        self._busy_s = float((self._end_s - self._start_s).sum())
        self.batches, self._ends = _representatives(runs)
        # for each request, how many were sent at the same moment
        _, number, counts = np.unique(served.sent_s, return_inverse=True, return_counts=True)
        self._delays = {
            "request_s": np.ones(len(served.sent_s)),
            "frontend_s": counts[number].astype(np.float64),
            "tokenize_s": served.input_len.astype(np.float64),
        }

    def every_step(self) -> StepSum:
        return StepSum(self._by_batch(self._steps))

    def duration(self, client: Client) -> StepSum:
        """The time that a run takes: its steps, and what the engine waits for ``client``.

        A server that keeps up takes as long as the requests take to arrive, and then to finish."""
        served, last_s = self.served, float(self.served.arrival_s.max())
        if served.duration_s < KEEPS_UP * last_s:
            rest = self._between(np.array([last_s]), np.array([served.duration_s]), np.ones(1))
            return StepSum(rest, fixed_s=last_s)
        idle_s = max(served.duration_s - self._busy_s, 0.0)
        mean = {name: float(times.mean()) for name, times in self._delays.items()}
        delay_s = sum(getattr(client, name) * times for name, times in mean.items())
        waits = idle_s / delay_s if delay_s else 0.0
        return StepSum(self._by_batch(self._steps), delays={name: waits * times for name, times in mean.items()})

    def latency(self, metric: str, statistics: Sequence[str]) -> dict[str, StepSum]:
        """``ttft``, ``tpot`` or ``e2el`` by statistic (``NEAR``); nothing where no request has it."""
        served = self.served
        from_s, to_s = {
            "ttft": (served.ready_s, served.first_token_s),
            "e2el": (served.ready_s, served.end_s),
            "tpot": (served.first_token_s, served.end_s),
        }[metric]
        several = np.flatnonzero(served.output_len > 1) if metric == "tpot" else np.arange(len(from_s))
        if not len(several):
            return {}
        divisor = np.maximum(served.output_len - 1, 1) if metric == "tpot" else np.ones(len(from_s))
        order = several[np.argsort(((to_s - from_s) / divisor)[several], kind="stable")]
        sums = {}
        for statistic in statistics:
            low, high = NEAR[statistic]
            chosen = order[int(low * len(order)) : max(int(high * len(order)), int(low * len(order)) + 1)]
            weights = self._between(from_s[chosen], to_s[chosen], 1 / divisor[chosen] / len(chosen))
            waits = self._delays.items() if metric != "tpot" else ()
            sums[statistic] = StepSum(weights, delays={name: float(times[chosen].mean()) for name, times in waits})
        return sums

    def _between(self, from_s: Floats, to_s: Floats, share: Floats) -> Floats:
        """For each batch: sum over requests of ``share`` x its steps between the request's two moments."""
        first = np.searchsorted(self._end_s, from_s + 1e-12, side="right")
        after = np.searchsorted(self._start_s, to_s - 1e-12, side="left")
        holds = after > first
        first, after, part = first[holds], after[holds], share[holds]
        size, last = len(self._steps), after - 1
        whole = np.cumsum(np.bincount(first, part, size + 1) - np.bincount(after, part, size + 1))[:size]
        duration_s = np.maximum(self._end_s - self._start_s, 1e-12)
        missed = np.maximum(from_s[holds] - self._start_s[first], 0.0) / duration_s[first]
        beyond = np.maximum(self._end_s[last] - to_s[holds], 0.0) / duration_s[last]
        cut = np.bincount(first, part * missed, size) + np.bincount(last, part * beyond, size)
        return self._by_batch(np.maximum((whole - cut) * self._steps, 0.0))

    def _by_batch(self, per_run: Floats) -> Floats:
        """Half of a run of steps counts as its first batch, half as its last: loads grow evenly between them."""
        halves: Floats = np.zeros(len(self.batches))
        for end in self._ends:
            halves += np.bincount(end, per_run / 2, len(halves))
        return halves


def _representatives(runs: Sequence[StepRun]) -> tuple[list[Batch], tuple[Ints, Ints]]:
    """Merged batches, and for each run of steps the numbers of its first and its last one."""
    both = chain.from_iterable((run.first, run.last) for run in runs)
    loads = np.fromiter(chain.from_iterable(batch[:LOADS] for batch in both), float).reshape(-1, LOADS)
    _, chosen, ends = np.unique(_likeness(loads), return_index=True, return_inverse=True)
    order = np.argsort(chosen)  # as they come
    ends = np.argsort(order)[ends.ravel()]
    weights = np.repeat([run.steps / 2 for run in runs], 2)
    sums = np.array([np.bincount(ends, weights * column, len(chosen)) for column in loads.T])
    means = (sums / np.bincount(ends, weights, len(chosen))).T
    return [Batch(*mean) for mean in means.tolist()], (ends[::2], ends[1::2])


def _likeness(loads: Floats) -> Ints:
    """Equal numbers for batches whose sequences, contexts and prompts round to the same half octaves."""
    seqs, context_tok, _, prompt_tok, pair_tok, _ = loads.T
    sizes = np.array([seqs, context_tok / np.maximum(seqs, 1), prompt_tok, pair_tok / np.maximum(prompt_tok, 1)])
    octaves = np.log2(sizes, out=np.full_like(sizes, -np.inf), where=sizes > 0)
    digits = np.where(sizes > 0, np.rint(LOADS_PER_OCTAVE * octaves) + DIGITS // 2, 0.0).astype(np.int64)
    likeness: Ints = DIGITS ** np.arange(len(digits)) @ digits
    return likeness
