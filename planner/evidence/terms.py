"""The step times of many runs at once, as arrays, with their derivatives by every efficiency.

The same arithmetic as ``planner.step`` (a test holds the two together), written for a fit: each operator of each
batch is one entry of flat arrays, and what does not depend on an efficiency is worked out once::

    time of an entry = launches x launch + max(compute, memory) + (1 - overlap) x min(compute, memory)
    compute = (work + (tile + expert tile x experts) x work of a row) / share of FLOP/s
    memory  = (bytes + experts x bytes of one) / share of bytes/s + experts x cost of each
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from planner.evidence.observe import Floats, Observed
from planner.timing import (
    LAUNCH,
    PARAMETERS,
    SHARES,
    UNHIDDEN_HOST,
    Batch,
    Operator,
    OperatorKind,
    StepModel,
    bus_bytes_per_s,
    compute_peak,
    graphs,
    latency_s,
    shares,
)

Ints = NDArray[np.int64]
INDEX = {name: i for i, name in enumerate(PARAMETERS)}
IS_SHARE = np.array([name in SHARES for name in PARAMETERS])
GEMM, EXPERTS, LINK, OTHER = range(4)


@dataclass
class _Entries:
    """Columns of the flat arrays while they are filled: one value per operator and batch."""

    columns: dict[str, list[float]] = field(default_factory=dict)

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.columns.setdefault(name, []).append(value)

    def floats(self, name: str) -> Floats:
        return np.array(self.columns.get(name, ()), dtype=np.float64)

    def ints(self, name: str) -> Ints:
        return np.array(self.columns.get(name, ()), dtype=np.int64)


class Terms:
    """The metrics of ``observed`` as functions of the efficiencies of each run."""

    def __init__(self, observed: Sequence[Observed]) -> None:
        self.observed = observed
        entries, batches, links = _Entries(), _Entries(), _Entries()
        steps: dict[tuple[int, str, object], StepModel] = {}
        first_batch = metric = 0
        for run, one in enumerate(observed):
            key = (id(one.model), one.profile.id, one.config)
            step = steps.setdefault(key, StepModel(one.model, one.profile, one.config))
            for number, batch in enumerate(one.batches):
                _add_batch(batches, step, batch, run)
                _add_operators(entries, step, batch, run, first_batch + number)
            for found in one.metrics:
                for number in np.flatnonzero(found.weights).tolist():
                    links.add(metric=metric, batch=first_batch + number, weight=found.weights[number])
                metric += 1
            first_batch += len(one.batches)
        self.num_batches, self.num_metrics = first_batch, metric
        self._read(entries, batches, links)
        every = [(run, m) for run, one in enumerate(observed) for m in one.metrics]
        self.metric_run: Ints = np.array([run for run, _ in every], dtype=np.int64)
        self.metric_names = [m.name for _, m in every]
        self.log_measured: Floats = np.log([m.measured_s for _, m in every])
        self._requests: Floats = np.array([m.requests for _, m in every])
        self._waits: Floats = np.array([m.waits for _, m in every])

    def _read(self, entries: _Entries, batches: _Entries, links: _Entries) -> None:
        self.batch, self.run = entries.ints("batch"), entries.ints("run")
        self.flop, self.bandwidth, self.launch = entries.ints("flop"), entries.ints("bandwidth"), entries.ints("launch")
        self.kind = entries.ints("kind")
        self.launches, self.work, self.row_work = (entries.floats(n) for n in ("launches", "work", "row_work"))
        self.bytes, self.each_bytes, self.fixed = (entries.floats(n) for n in ("bytes", "each_bytes", "fixed"))
        self.tokens, self.experts, self.unrouted, self.ranks = (
            entries.floats(n) for n in ("tokens", "experts", "unrouted", "ranks")
        )
        self.batch_run, self.seqs = batches.ints("run"), batches.floats("seqs")
        self.eager_kernels, self.visits = batches.floats("eager_kernels"), batches.floats("visits")
        self.asynchronous = batches.ints("asynchronous").astype(bool)
        self.link_metric, self.link_batch, self.link_weight = (
            links.ints("metric"), links.ints("batch"), links.floats("weight"),
        )  # fmt: skip

    def log_metrics(self, log_values: Floats) -> tuple[Floats, Floats]:
        """Logarithm of every metric, and its derivative by the logarithm of every efficiency of its run.

        ``log_values`` has shape (runs, parameters); the results (metrics,) and (metrics, parameters).
        """
        values = np.exp(log_values)
        free = ~(IS_SHARE & (log_values > 0))  # shares stop at 1, and no longer move anything
        values[~free] = 1.0
        batch_s, batch_d = self._batches(values, free)
        metric_s = _sums(self.link_metric, self.link_weight * batch_s[self.link_batch], self.num_metrics)
        delays = {"request_s": self._requests, "frontend_s": self._waits}
        derivative = _weighted_rows(self.link_metric, self.link_batch, self.link_weight, batch_d, self.num_metrics)
        for name, times in delays.items():
            delay_s = times * values[self.metric_run, INDEX[name]]
            metric_s += delay_s
            derivative[:, INDEX[name]] += delay_s
        return np.log(metric_s), derivative / metric_s[:, None]

    def _batches(self, values: Floats, free: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Seconds of each batch, and the derivative by the logarithm of each efficiency."""
        gpu_s, gpu_d = self._gpu(values, free)
        eager_s = self.eager_kernels * values[self.batch_run, INDEX["eager_launch_s"]]
        step_s = values[self.batch_run, INDEX["host_step_s"]] / self.visits
        seqs_s = values[self.batch_run, INDEX["host_seq_s"]] * self.seqs / self.visits
        host_s = step_s + seqs_s
        busy_s = np.maximum(gpu_s, eager_s)
        hidden = self.asynchronous & (host_s > busy_s)  # the GPU's time, behind the host's
        host_share = np.where(self.asynchronous, UNHIDDEN_HOST + hidden, 1.0)
        total_s = np.where(hidden, 0.0, busy_s) + host_share * host_s
        derivative = gpu_d * (~hidden & (gpu_s >= eager_s))[:, None]
        derivative[:, INDEX["eager_launch_s"]] += np.where(~hidden & (eager_s > gpu_s), eager_s, 0.0)
        derivative[:, INDEX["host_step_s"]] += host_share * step_s
        derivative[:, INDEX["host_seq_s"]] += host_share * seqs_s
        return total_s, derivative

    def _gpu(self, values: Floats, free: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Seconds of the operators and exchanges of each batch, and the derivatives."""
        run = self.run

        def at(name: str) -> Floats:
            found: Floats = values[run, INDEX[name]]
            return found

        experts, links = self.kind == EXPERTS, self.kind == LINK
        exponent = at("coverage_exponent")
        similar = np.where(self.tokens > 1, np.maximum(self.tokens, 1.0) ** exponent, self.tokens)
        left = self.unrouted**similar
        touched = self.experts * (1 - left) / self.ranks
        tile = np.where(self.kind == GEMM, at("tile_tok"), 0.0)
        padded = at("expert_tile_tok") * touched
        flop_share = np.where(links, 1.0, values[run, self.flop])
        byte_share = values[run, self.bandwidth]
        compute_s = (self.work + self.row_work * (tile + padded)) / flop_share
        moved_s = (self.bytes + touched * self.each_bytes) / byte_share
        each_s = np.where(experts, touched * self.launches * at("expert_each_s"), 0.0)
        memory_s, launch_s = moved_s + each_s, self.launches * values[run, self.launch]
        overlap = at("overlap")
        by_compute = np.where(compute_s > memory_s, 1.0, 1 - overlap)
        by_memory = np.where(compute_s > memory_s, 1 - overlap, 1.0)
        time_s = launch_s + by_compute * compute_s + by_memory * memory_s + self.fixed

        count, width = self.num_batches, len(PARAMETERS)
        flat = _sums(self.batch * width + self.launch, launch_s, count * width)
        flop_d = np.where(links, 0.0, -by_compute * compute_s * free[run, self.flop])
        flat += _sums(self.batch * width + self.flop, flop_d, count * width)
        byte_d = -by_memory * moved_s * free[run, self.bandwidth]
        flat += _sums(self.batch * width + self.bandwidth, byte_d, count * width)
        derivative: Floats = flat.reshape(count, width)
        touched_d = -self.experts * left * np.log(self.unrouted) * similar / self.ranks
        touched_d *= exponent * np.log(np.maximum(self.tokens, 1.0)) * free[run, INDEX["coverage_exponent"]]
        coverage_d = by_compute * touched_d * at("expert_tile_tok") * self.row_work / flop_share
        coverage_d += by_memory * touched_d * (self.each_bytes / byte_share + self.launches * at("expert_each_s"))
        further = {
            "coverage_exponent": np.where(experts, coverage_d, 0.0),
            "expert_each_s": by_memory * each_s,
            "tile_tok": by_compute * self.row_work * tile / flop_share,
            "expert_tile_tok": by_compute * self.row_work * padded / flop_share,
            "overlap": -overlap * np.minimum(compute_s, memory_s) * ~links * free[run, INDEX["overlap"]],
        }
        for name, contribution in further.items():
            derivative[:, INDEX[name]] += _sums(self.batch, contribution, count)
        return _sums(self.batch, time_s, count), derivative


def _sums(to: Ints, values: Floats, count: int) -> Floats:
    """For each of ``count`` results the sum of the values that belong to it."""
    return np.bincount(to, values, count).astype(np.float64)


def _weighted_rows(to: Ints, source: Ints, weight: Floats, rows: Floats, count: int) -> Floats:
    """For each of ``count`` results the sum of ``weight`` x the source's row."""
    sums: Floats = csr_matrix((weight, (to, source)), shape=(count, len(rows))) @ rows
    return sums


def _add_batch(batches: _Entries, step: StepModel, batch: Batch, run: int) -> None:
    captured = graphs(step.config, step.profile).holds(batch.decode_seqs, batch.decode_context_tok, batch.prefill_tok)
    batches.add(
        run=run,
        seqs=batch.decode_seqs + batch.prefill_seqs,
        eager_kernels=0 if captured else step.kernels,
        visits=step.config.num_scheduler_steps,
        asynchronous=step.config.async_scheduling,
    )


def _add_operators(entries: _Entries, step: StepModel, batch: Batch, run: int, number: int) -> None:
    bytes_per_s = step.profile.memory_bandwidth_bytes_per_s
    for operator, units, rows in step.work(batch):
        flop_per_s, dtype = compute_peak(operator, step.profile)
        flop, bandwidth = shares(operator, dtype)
        common = {"batch": number, "run": run, "launches": operator.count, "fixed": 0.0}
        common |= {"flop": INDEX[flop], "bandwidth": INDEX[bandwidth], "launch": INDEX[LAUNCH[operator.kind]]}
        row_s = operator.flop_per_unit / flop_per_s
        if operator.kind is OperatorKind.EXPERTS:
            entries.add(**common, **_expert_columns(step, operator, batch, rows, row_s, bytes_per_s))
            continue
        gemm = operator.kind is OperatorKind.GEMM
        entries.add(
            **common, **_NO_EXPERTS, kind=GEMM if gemm else OTHER, work=units * row_s, row_work=row_s if gemm else 0.0,
            bytes=(operator.fixed_bytes + units * operator.bytes_per_unit) / bytes_per_s,
        )  # fmt: skip
    for exchange, units in step.exchanges(batch):
        beyond_s = latency_s(step.profile, exchange.ranks, 0.0)
        entries.add(
            batch=number, run=run, kind=LINK, flop=INDEX["overlap"], bandwidth=INDEX["link_share"],
            launch=INDEX["collective_s"], work=0.0, row_work=0.0, **_NO_EXPERTS,
            launches=exchange.count * (latency_s(step.profile, exchange.ranks, 1.0) - beyond_s),
            bytes=units * exchange.bytes_per_unit / bus_bytes_per_s(step.profile, exchange.ranks),
            fixed=exchange.count * beyond_s,
        )  # fmt: skip


_NO_EXPERTS = {"each_bytes": 0.0, "tokens": 1.0, "experts": 0.0, "unrouted": 0.5, "ranks": 1.0}


def _expert_columns(
    step: StepModel, operator: Operator, batch: Batch, rows: float, row_s: float, bytes_per_s: float
) -> dict[str, float]:
    load = operator.load
    return {
        "kind": EXPERTS,
        "work": rows * row_s,
        "row_work": row_s,
        "bytes": rows * operator.bytes_per_row / bytes_per_s,
        "each_bytes": operator.bytes_per_unit / bytes_per_s,
        "tokens": step.tokens(batch) * load.peers,
        "experts": load.num_experts,
        "unrouted": max(1 - load.top_k / load.num_experts, 1e-9),
        "ranks": load.ranks,
    }
