"""Time of one engine step: its operators, its collectives and the host.

::

    step = max(operators + collectives, launches)  +  host        host work waits for the GPU
    step = max(operators + collectives, launches, host)           asynchronous scheduling (vLLM 0.14 on)

``launches`` is what the host needs to launch every kernel one by one; steps that replay a captured graph are spared
it. ``step_s`` is called for every step of a replay: all that does not depend on the batch is worked out once.

>>> step = StepModel(model, profile, config)                                         # doctest: +SKIP
>>> step.step_s(Batch(decode_seqs=64, decode_context_tok=64 * 2048))                 # doctest: +SKIP
0.0113
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log, sqrt

from planner.engine import EngineConfig
from planner.hardware import GpuProfile
from planner.model import Model
from planner.timing.covariates import graphs
from planner.timing.efficiencies import Efficiency
from planner.timing.fits import efficiency_for
from planner.timing.links import Collective, collective_rates, host_reads, step_collectives
from planner.timing.operators import Driver, Operator, OperatorKind, StepLoad, adapter_operators, step_operators
from planner.timing.roofline import as_run, kernel_time_s, rates

#: Share of the host's time that asynchronous scheduling cannot hide.
UNHIDDEN_HOST = 0.1


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes. All zero is an empty step."""

    decode_seqs: int = 0
    decode_context_tok: float = 0.0  #: sum of context lengths over the decoding sequences
    prefill_seqs: int = 0  #: sequences that get prompt tokens in this step
    prefill_tok: int = 0  #: prompt tokens computed in this step
    prefill_pair_tok: float = 0.0  #: sum over chunks of new x (context before + (new + 1) / 2): (query, key) pairs
    prefill_finishing: int = 0  #: prompts that end in this step and so sample a token
    decode_query_tok: int = 1  #: tokens that each decoding sequence computes: 1, or drafted ones too
    decode_sampled: int = 1  #: how many of these get logits
    peer_tok: int | None = None  #: tokens that replicas bring to the same experts; None: as many as these, each


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One operator, exchange or the host in a step."""

    name: str
    count: int  #: kernels
    time_s: float
    flop: float
    bytes: float
    bound: str  #: memory, compute, launch, link or host: the largest part of ``time_s``


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """The parts of one step. ``total_s`` is not their sum where the host works beside the GPU."""

    parts: tuple[OperatorTime, ...]
    gpu_s: float  #: operators and exchanges
    launch_s: float  #: what launching kernel by kernel takes; 0 for a captured graph
    host_s: float
    total_s: float


def distinct_experts(num_experts: int, top_k: int, tokens: float, coverage_exponent: float = 1.0) -> float:
    """Expected number of experts that ``tokens`` tokens touch: E (1 - (1 - k / E)^n).

    Tokens that were routed independently have n = ``tokens``; real ones resemble each other, which n = tokens^a
    with a below 1 expresses.
    """
    effective: float = tokens**coverage_exponent if tokens > 1 else tokens
    untouched: float = (1 - top_k / num_experts) ** effective
    return num_experts * (1 - untouched)


def hottest_rows(rows: float, ranks: int) -> float:
    """Rows on the busiest of ``ranks`` that share ``rows`` at random: m + sqrt(2 m ln ranks) with m the mean."""
    mean = rows / ranks
    return mean if ranks == 1 else mean + sqrt(2 * mean * log(ranks))


def _seen(rows: float, queries: float, span: float) -> float:
    """Rows that ``queries`` see in all, ``span`` each at most; whole where there is no limit."""
    return rows if span == inf else min(rows, queries * span)


@dataclass(frozen=True, slots=True)
class _Term:
    """One operator with its rates worked in: seconds as a function of its driver."""

    operator: Operator
    load: int  #: index of its driver
    launch_s: float  #: of all kernels
    compute_s: float  #: per unit; of experts: per row
    weights_s: float  #: whatever the driver is
    memory_s: float  #: per unit; of experts: what each costs beside its bytes included
    row_s: float  #: of experts: memory per row
    tile: float  #: rows that a small batch is padded by

    def time_s(self, units: float, rows: float, overlap: float) -> float:
        """Seconds at ``units`` of the driver; experts read ``units`` experts and compute ``rows``."""
        return kernel_time_s(self.launch_s, *self.parts_s(units, rows), overlap)

    def parts_s(self, units: float, rows: float) -> tuple[float, float]:
        """Seconds of arithmetic and of memory traffic."""
        if rows:
            return (rows + self.tile * units) * self.compute_s, units * self.memory_s + rows * self.row_s
        return (units + self.tile) * self.compute_s, self.weights_s + units * self.memory_s


class StepModel:
    """Seconds of the steps of one engine: ``model`` on ``profile`` under ``config``."""

    def __init__(
        self, model: Model, profile: GpuProfile, config: EngineConfig, efficiency: Efficiency | None = None
    ) -> None:
        """``efficiency``: by default the one we ship. Raises InputError where the GPU lacks a dtype or a link."""
        self.model, self.profile, self.config = model, profile, config
        self.efficiency = efficiency or efficiency_for(model, profile, config)
        own = tuple(as_run(operator, profile) for operator in step_operators(model, config))
        self.operators = own + adapter_operators(model, config)
        self._host_read_bytes, self._host_read_s = host_reads(model, profile, config)
        self.collectives = step_collectives(model, config)
        loads = [operator.load for operator in self.operators] + [exchange.load for exchange in self.collectives]
        self._loads = list(dict.fromkeys(loads))
        self._terms = [self._term(operator) for operator in self.operators]
        exchange = (profile, self.efficiency.collective_s, self.efficiency.link_share)
        self._links = [(self._loads.index(c.load), *collective_rates(c, *exchange)) for c in self.collectives]
        self.kernels = sum(operator.count for operator in self.operators)  #: launches of one step
        self._graphs = graphs(config, profile)

    def step_s(self, batch: Batch, besides_s: float = 0.0) -> float:
        """Seconds of one engine step, scheduling and sampling included; 0 for an empty batch.

        ``besides_s``: what else the GPU does in that step, such as drafting. Never less for more of anything in
        ``batch``. With pipeline parallelism: the pass through all stages of one of the batches that fill the
        pipeline.
        """
        seqs = batch.decode_seqs + batch.prefill_seqs
        if not seqs:
            return 0.0
        return self._total_s(self.device_s(batch) + besides_s, 0.0, self._host_s(seqs))

    def device_s(self, batch: Batch) -> float:
        """Seconds of the same step on the GPU alone: what a pass costs that the scheduler does not see."""
        return max(self._gpu_s(batch), self._launch_s(batch))

    def _gpu_s(self, batch: Batch) -> float:
        """Seconds of operators and exchanges."""
        drivers = self._drivers(batch)
        overlap = self.efficiency.overlap
        gpu_s = self._host_read_s
        for term in self._terms:
            units, rows = drivers[term.load]
            if units:
                gpu_s += term.time_s(units, rows, overlap)
        for load, fixed_s, unit_s in self._links:
            units, _ = drivers[load]
            if units:
                gpu_s += fixed_s + units * unit_s
        return gpu_s

    def breakdown(self, batch: Batch) -> StepBreakdown:
        """The same step, part by part."""
        if not batch.decode_seqs + batch.prefill_seqs:
            return StepBreakdown((), 0.0, 0.0, 0.0, 0.0)
        drivers = self._drivers(batch)
        parts = [self._operator_time(term, *drivers[term.load]) for term in self._terms if drivers[term.load][0]]
        for collective, (load, fixed_s, unit_s) in zip(self.collectives, self._links, strict=True):
            units, _ = drivers[load]
            if units:
                bound = "launch" if fixed_s > units * unit_s else "link"
                time_s = fixed_s + units * unit_s
                moved = units * collective.bytes_per_unit
                parts.append(OperatorTime(collective.name, collective.count, time_s, 0.0, moved, bound))
        if self._host_read_s:
            parts.append(OperatorTime("weights from host", 1, self._host_read_s, 0.0, self._host_read_bytes, "link"))
        gpu_s = sum(part.time_s for part in parts)
        host_s, launch_s = self._host_s(batch.decode_seqs + batch.prefill_seqs), self._launch_s(batch)
        parts.append(OperatorTime("host", 1, host_s, 0.0, 0.0, "host"))
        return StepBreakdown(tuple(parts), gpu_s, launch_s, host_s, self._total_s(gpu_s, launch_s, host_s))

    def _total_s(self, gpu_s: float, launch_s: float, host_s: float) -> float:
        gpu_s = max(gpu_s, launch_s)
        if self.config.async_scheduling:
            return max(gpu_s, host_s) + UNHIDDEN_HOST * host_s
        return gpu_s + host_s

    def _host_s(self, seqs: int) -> float:
        visit_s = self.efficiency.host_step_s + self.efficiency.host_seq_s * seqs
        return visit_s / self.config.num_scheduler_steps

    def work(self, batch: Batch) -> Iterator[tuple[Operator, float, float]]:
        """Each operator that has something to do, with the units of its driver and, for experts, the rows."""
        drivers = self._drivers(batch)
        for term in self._terms:
            units, rows = drivers[term.load]
            if units:
                yield term.operator, units, rows

    def exchanges(self, batch: Batch) -> Iterator[tuple[Collective, float]]:
        """Each exchange that takes place, with the units of its driver."""
        drivers = self._drivers(batch)
        for collective, (load, _, _) in zip(self.collectives, self._links, strict=True):
            if drivers[load][0]:
                yield collective, drivers[load][0]

    def tokens(self, batch: Batch) -> float:
        """Tokens that pass through the model at once: of one of the batches that fill the pipeline."""
        return (batch.decode_seqs * batch.decode_query_tok + batch.prefill_tok) * self._share(batch)

    def _share(self, batch: Batch) -> float:
        """In a pipeline of p stages, p batches are under way at once and each has its share of the work."""
        return 1.0 / max(1, min(self.config.pipeline_parallel_size, batch.decode_seqs + batch.prefill_seqs))

    def _launch_s(self, batch: Batch) -> float:
        """Seconds of launching kernel by kernel; 0 where a captured graph is replayed."""
        query_tok = batch.decode_query_tok
        if self._graphs.holds(batch.decode_seqs * query_tok, batch.decode_context_tok * query_tok, batch.prefill_tok):
            return 0.0
        return self.kernels * self.efficiency.eager_launch_s

    def _drivers(self, batch: Batch) -> list[tuple[float, float]]:
        """Units of each load in ``batch``, and rows where the load is experts."""
        share = self._share(batch)
        decodes, context = batch.decode_seqs * share, batch.decode_context_tok * share
        prefill, pairs = batch.prefill_tok * share, batch.prefill_pair_tok * share
        query_tok, verifies = batch.decode_query_tok, batch.decode_query_tok > 1
        tokens = decodes * query_tok + prefill
        sampled = (batch.decode_seqs * batch.decode_sampled + batch.prefill_finishing) * share
        drivers: list[tuple[float, float]] = []
        for load in self._loads:
            match load.driver:
                case Driver.TOKENS:
                    drivers.append((tokens, 0.0))
                case Driver.SAMPLED:
                    drivers.append((sampled, 0.0))
                case Driver.CONTEXT:
                    seen = _seen(context / load.ratio, decodes, load.span)  # read once, whatever asks
                    drivers.append((seen, seen * query_tok if verifies else 0.0))
                case Driver.PAIRS:
                    drivers.append((_seen(pairs / load.ratio, prefill, load.span), 0.0))
                case Driver.EXPERTS:
                    peers_tok = tokens * (load.peers - 1) if batch.peer_tok is None else batch.peer_tok * share
                    drivers.append(self._experts(load, tokens + peers_tok))
                case Driver.DECODES:
                    # a state is read once, and written after each token: any of them may be the last accepted one
                    drivers.append((decodes * (1 + query_tok) / 2, decodes * query_tok if verifies else 0.0))
                case Driver.PREFILL:
                    drivers.append((prefill, 0.0))
        return drivers

    def _experts(self, load: StepLoad, tokens: float) -> tuple[float, float]:
        """Experts that the busiest rank reads, and rows that it computes, of the ``tokens`` of all replicas."""
        touched = distinct_experts(load.num_experts, load.top_k, tokens, self.efficiency.coverage_exponent)
        rows = hottest_rows(tokens * load.top_k, load.ranks)
        return touched / load.ranks, rows

    def _term(self, operator: Operator) -> _Term:
        rate = rates(operator, self.profile, self.efficiency)
        tile = {OperatorKind.GEMM: self.efficiency.tile_tok, OperatorKind.EXPERTS: self.efficiency.expert_tile_tok}
        each_s = operator.count * self.efficiency.expert_each_s if operator.kind is OperatorKind.EXPERTS else 0.0
        return _Term(
            operator=operator,
            load=self._loads.index(operator.load),
            launch_s=operator.count * rate.launch_s,
            compute_s=operator.flop_per_unit / rate.flop_per_s,
            weights_s=operator.fixed_bytes / rate.bytes_per_s,
            memory_s=operator.bytes_per_unit / rate.bytes_per_s + each_s,
            row_s=operator.bytes_per_row / rate.bytes_per_s,
            tile=tile.get(operator.kind, 0.0),
        )

    def _operator_time(self, term: _Term, units: float, rows: float) -> OperatorTime:
        compute_s, memory_s = term.parts_s(units, rows)
        op = term.operator
        bound = max((term.launch_s, "launch"), (compute_s, "compute"), (memory_s, "memory"))[1]
        return OperatorTime(
            op.name,
            op.count,
            term.time_s(units, rows, self.efficiency.overlap),
            op.flop_per_unit * (rows or units),
            op.fixed_bytes + op.bytes_per_unit * units + op.bytes_per_row * rows,
            bound,
        )
