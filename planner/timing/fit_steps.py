"""Step times of many batches at once, with their derivatives by the logarithm of each efficiency.

Each cost of each term of each batch is one entry of flat arrays: seconds x units x one efficiency / another. Beyond
the costs, three things move a step: the share that overlap hides, the experts that a batch touches, and the host."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.hardware import constant
from planner.timing.efficiencies import PARAMETERS, SHARES
from planner.timing.operators import Driver, StepLoad
from planner.timing.roofline import Part, Per, Term
from planner.timing.step import Batch, SpeculativeStep, StepModel, combine_shares, distinct_experts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
INDEX = {name: i for i, name in enumerate(PARAMETERS)}
IS_SHARE = np.array([name in SHARES for name in PARAMETERS])
NONE = len(PARAMETERS)  #: the column that stands for no efficiency: 1
WIDTH = NONE + 1


class StepTimes:
    """Seconds of ``steps``, each of an engine, a batch and the number of the run that it belongs to."""

    def __init__(self, steps: Iterable[tuple[StepModel, Batch, int]]) -> None:
        self._experts: dict[tuple[int, StepLoad, float], int] = {}
        rows: list[tuple[float, ...]] = []
        engines: dict[int, tuple[StepModel, list[int], list[Batch]]] = {}  # which keeps each, and so its id
        for number, (step, batch, run) in enumerate(steps):
            visits = step.config.num_scheduler_steps
            seqs = (batch.decode_seqs + batch.prefill_seqs) / visits
            rows.append((run, 1 / visits, seqs, step.eager_kernels(batch), step.config.async_scheduling))
            _, numbers, batches = engines.setdefault(id(step), (step, [], []))
            numbers.append(number)
            batches.append(batch)
        run_of_batch, self._visits, self._seqs, self._eager, asynchronous = np.array(rows).T
        self.run: Ints = run_of_batch.astype(np.int64)
        self._asynchronous = asynchronous.astype(np.int64)
        terms, costs = zip(*self._entries(engines.values()), strict=True)
        self._batch_of_term, self._hides = np.hstack(terms)
        term_of_cost, part, times, over, experts, self._seconds = np.hstack(costs)
        self._part: Ints = (term_of_cost * len(Part) + part).astype(np.int64)
        self._touched: Ints = experts.astype(np.int64)
        batch_of_cost = self._batch_of_term[term_of_cost.astype(np.int64)]
        self._times: Ints = batch_of_cost * WIDTH + times.astype(np.int64)
        self._over: Ints = batch_of_cost * WIDTH + over.astype(np.int64)
        run, self._num_experts, self._top_k, self._tokens, self._ranks = np.array(
            [(0, 2, 1, 1, 1)]
            + [(run, load.num_experts, load.top_k, tokens, load.ranks) for run, load, tokens in self._experts]
        ).T
        self._run_of_experts: Ints = run.astype(np.int64)

    def _entries(self, engines: Iterable[tuple[StepModel, list[int], list[Batch]]]) -> Iterator[tuple[Ints, Floats]]:
        """The batches of each term and if it hides the shorter of its parts; and its costs in them."""
        first = 0
        for step, numbers, batches in engines:
            drivers = np.array([step.drivers(batch, step.loads) for batch in batches])
            for timed in step.timed:
                at, load = np.flatnonzero(drivers[:, timed.load, 0]), timed.term.load
                units, rows = drivers[at, timed.load].T
                experts = np.zeros(len(at))
                if load.driver is Driver.EXPERTS:
                    keys = [(int(self.run[numbers[i]]), load, step.expert_tok(load, batches[i])) for i in at]
                    experts += [self._experts.setdefault(key, len(self._experts) + 1) for key in keys]
                kinds = _kinds_of(timed.term)
                costs: Floats = np.empty((6, len(kinds), len(at)))
                costs[1], costs[2], costs[3], touches, step_s, unit_s, row_s = kinds.T[:, :, None]
                costs[0], costs[4] = np.arange(first, first + len(at)), experts * touches
                # experts touched are worked out with the efficiencies
                costs[5] = step_s + unit_s * np.where(touches, 1.0, units) + row_s * rows
                costs = costs[:, costs[5] != 0]
                yield np.array([np.array(numbers)[at], np.full(len(at), timed.term.hides)]), costs
                first += len(at)

    def seconds(self, log_values: Floats) -> tuple[Floats, Floats]:
        """Seconds of each batch, and derivatives, (batches, parameters); takes (runs, parameters)."""
        free = ~(IS_SHARE & (log_values > 0))  # shares stop at 1, and no longer move anything
        values = np.exp(np.where(free, log_values, 0.0))[self.run]
        gpu_s, derivative = self._gpu(values, log_values)
        step_s = values[:, INDEX["host_step_s"]] * self._visits
        seqs_s = values[:, INDEX["host_seq_s"]] * self._seqs
        host_s, launch_s = step_s + seqs_s, values[:, INDEX["eager_launch_s"]] * self._eager
        gpu, launch, host = combine_shares(gpu_s, launch_s, host_s, self._asynchronous, constant("unhidden_host"))
        derivative *= gpu[:, None]
        derivative[:, INDEX["eager_launch_s"]] += launch * launch_s
        derivative[:, INDEX["host_step_s"]] += host * step_s
        derivative[:, INDEX["host_seq_s"]] += host * seqs_s
        return gpu * gpu_s + launch * launch_s + host * host_s, derivative * free[self.run]

    def _gpu(self, values: Floats, log_values: Floats) -> tuple[Floats, Floats]:
        flat = np.hstack([values, np.ones((len(values), 1))]).ravel()
        touched, slope = self._touched_experts(log_values)
        cost_s = self._seconds * flat[self._times] / flat[self._over] * touched[self._touched]
        count = len(self._batch_of_term)
        fixed_s, compute_s, memory_s = _sums(self._part, cost_s, count * len(Part)).reshape(count, len(Part)).T
        overlap = values[self._batch_of_term, INDEX["overlap"]] * self._hides
        hidden_s = overlap * np.minimum(compute_s, memory_s)
        term_s = fixed_s + compute_s + memory_s - hidden_s

        seen = np.ones((count, len(Part)))  # of each part; of the shorter one, the part that stays visible
        seen[:, Part.COMPUTE] -= overlap * (compute_s < memory_s)
        seen[:, Part.MEMORY] -= overlap * (compute_s >= memory_s)
        cost_s *= seen.ravel()[self._part]
        size = len(values) * WIDTH
        by_efficiency = _sums(self._times, cost_s, size) - _sums(self._over, cost_s, size)
        derivative: Floats = by_efficiency.reshape(len(values), WIDTH)[:, :NONE].copy()
        derivative[:, INDEX["overlap"]] -= _sums(self._batch_of_term, hidden_s, len(values))
        batch_of_cost = self._times // WIDTH
        derivative[:, INDEX["coverage_exponent"]] += _sums(batch_of_cost, cost_s * slope[self._touched], len(values))
        return _sums(self._batch_of_term, term_s, len(values)), derivative

    def _touched_experts(self, log_values: Floats) -> tuple[Floats, Floats]:
        """Experts that a rank reads in each batch of each MoE, and the derivative of their logarithm.

        The first one stands for costs that no experts decide. With n = tokens^a and q = 1 - k / E, the derivative of
        E (1 - q^n) by the logarithm of a is -E q^n ln(q) n ln(n)."""
        exponent = np.exp(np.minimum(log_values[self._run_of_experts, INDEX["coverage_exponent"]], 0.0))
        found = distinct_experts(self._num_experts, self._top_k, self._tokens, exponent)
        missed = np.maximum(1 - self._top_k / self._num_experts, 1e-9)
        log_tokens = exponent * np.log(np.maximum(self._tokens, 1.0))
        independent = np.exp(log_tokens)
        slope = -self._num_experts * missed**independent * np.log(missed) * independent * log_tokens / found
        found, slope = found / self._ranks, slope.copy()
        found[0], slope[0] = 1.0, 0.0
        return found, slope


def _kinds_of(term: Term) -> Floats:
    """Costs of one kind in each row: part, efficiencies, whether experts decide; and seconds per step, unit and row."""
    kinds: dict[tuple[int, int, int, bool], list[float]] = {}
    for cost in term.costs:
        touches = cost.per is Per.UNIT and term.load.driver is Driver.EXPERTS
        key = int(cost.part), INDEX.get(cost.times, NONE), INDEX.get(cost.over, NONE), touches
        kinds.setdefault(key, [0.0] * len(Per))[cost.per] += cost.seconds
    return np.array([(*key, *seconds) for key, seconds in kinds.items()])


def _sums(to: Ints, values: Floats, count: int) -> Floats:
    return np.bincount(to, values, count).astype(np.float64, copy=False)


def step_gradients(
    timer: StepModel | SpeculativeStep, batches: Sequence[Batch], moves: Iterable[Floats]
) -> list[tuple[Floats, Floats]]:
    """Seconds of each step, (batches,), and derivatives, (batches, parameters); drafts scale with verification.

    Once for each of ``moves`` of the logarithms of the efficiencies, of which the first is none."""
    if isinstance(timer, SpeculativeStep):
        target, computed = timer.target, [timer.verified(batch) for batch in batches]
    else:
        target, computed = timer, list(batches)
    values = np.log([[getattr(target.efficiency, name) for name in PARAMETERS]])
    times = StepTimes((target, batch, 0) for batch in computed)
    timed = [times.seconds(values + move) for move in moves]
    if target is timer:
        return timed
    scale = np.array([timer.step_s(batch) for batch in batches]) / timed[0][0]
    return [(step_s * scale, derivative * scale[:, None]) for step_s, derivative in timed]
