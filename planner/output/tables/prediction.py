"""Predictions: the benchmark's own table, its own keys, and the operators of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from planner.memory import attention_kinds
from planner.model import ResolvedModel
from planner.output.render import Column, table_text, wrapped
from planner.output.result import MetricRows
from planner.planning import Deployment, Prediction
from planner.simulator import Replay, latency_table, serve_table, throughput_table
from planner.timing import StepBreakdown
from planner.units import GFLOP, MB, MS, TB, TFLOP, US, format_bytes
from planner.workload import Workload

Bench = Literal["serve", "throughput", "latency"]
TABLES = {"serve": serve_table, "throughput": throughput_table, "latency": latency_table}
BASIS = {
    "gpu": "measured on this GPU",
    "architecture": "measured on GPUs of this architecture",
    "global": "taken from other GPUs: none of this architecture was measured",
}
INTERVAL_COLUMNS = (
    Column("metric"),
    Column("value", form=",.2f"),
    Column("lo", "from", ",.2f"),
    Column("hi", "to", ",.2f"),
)
OPERATOR_COLUMNS = (
    Column("operator"),
    Column("kernels", form=","),
    Column("time_us", "us", ",.1f"),
    Column("gflop", "GFLOP", ",.2f"),
    Column("mb", "MB", ",.2f"),
    Column("tflop_per_s", "TFLOP/s", ",.1f"),
    Column("tb_per_s", "TB/s", ",.2f"),
    Column("bound", "bound by"),
)


@dataclass(frozen=True, repr=False)
class PredictionAnswer(MetricRows):
    """How fast one server serves a load, in the words of ``vllm bench``: ``planner predict``."""

    bench: Bench
    record: Prediction  #: the keys of the bench's result file, and the replay behind them
    deployment: Deployment  #: what serves
    resolved: ResolvedModel
    explain: bool = False  #: print the operators of a step too
    remarks: tuple[str, ...] = ()

    @property
    def result(self) -> dict[str, Any]:
        """The keys of the bench's result file; beside each predicted one ``KEY_lo`` and ``KEY_hi``, 90 %."""
        config, used = self.deployment.config, self.deployment.calibrated_by
        return {**self.record.result, "engine_version": str(config.version), "calibration": used}

    @cached_property
    def steps(self) -> dict[str, StepBreakdown]:
        """The average decode step and the average prefill step, operator by operator."""
        return self.deployment.typical_steps(self.record.replay)

    def _object(self) -> dict[str, Any]:
        breakdown = {name: _breakdown(step) for name, step in self.steps.items()}
        return {**self.result, "notes": list(self._notes()), "breakdown": breakdown}

    def _flat(self) -> Iterator[tuple[str, Any]]:
        return _flat(self.result)

    def _lines(self) -> Iterator[str]:
        yield TABLES[self.bench](self.result)
        if self.explain:
            yield ""
            yield from _basis_lines(self.deployment)
        for name, step in self.steps.items() if self.explain else ():
            yield ""
            yield from _step_lines(name, step)
            yield wrapped(_sum(step), first="  ", rest="  ")
            yield wrapped(_share(name, self.record.replay), first="  ", rest="  ")

    def _title(self) -> str:
        config = self.deployment.config
        where = f"{config.num_gpus} x {self.deployment.profile.id}"
        return f"{self.resolved.resolved} on {where}, vLLM {config.version}: predicted bench {self.bench}"

    def _html_rows(self) -> tuple[list[dict[str, Any]], Sequence[Column]]:
        found = self.result
        rows = [
            {"metric": key, "value": value, "lo": found.get(f"{key}_lo"), "hi": found.get(f"{key}_hi")}
            for key, value in found.items()
            if f"{key}_lo" in found
        ]
        return rows, INTERVAL_COLUMNS

    def _notes(self) -> Iterator[str]:
        return _notes(self.deployment, self.resolved)


@dataclass(frozen=True, repr=False)
class PredictionRefused(MetricRows):
    """The honest answer where the KV cache does not hold one request of the load."""

    deployment: Deployment
    workload: Workload
    resolved: ResolvedModel
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Never."""
        return False

    @property
    def result(self) -> dict[str, Any]:
        """What is said instead of figures."""
        return self._object()

    @property
    def reason(self) -> str:
        """Why nothing is predicted."""
        config = self.deployment.config
        left = max(self.deployment.budget.binding.available.mid, 0)
        return (
            f"{self.resolved.resolved} on {config.num_gpus} x {self.deployment.profile.id}, vLLM {config.version}: "
            f"requests of {self.workload.max_total_len:,} tokens cannot be served, {format_bytes(left)} are left for "
            "the KV cache"
        )

    def _object(self) -> dict[str, Any]:
        return {
            "model_id": self.resolved.resolved,
            "gpu": self.deployment.profile.id,
            "engine_version": str(self.deployment.config.version),
            "calibration": self.deployment.calibrated_by,
            "fits": False,
            "reason": self.reason,
            "kv_cache_bytes": round(self.deployment.budget.binding.available.mid),
        }

    def _flat(self) -> Iterator[tuple[str, Any]]:
        return iter(self._object().items())

    def _lines(self) -> Iterator[str]:
        yield wrapped(self.reason)

    def _notes(self) -> Iterator[str]:
        yield "planner fit says what would make it fit"


def _flat(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """One value per row: ``percentiles.99`` for a number inside an object, ``latencies.0`` for one in a list."""
    for key, value in data.items():
        inner = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        if isinstance(inner, Mapping):
            yield from ((f"{key}.{name}", number) for name, number in inner.items())
        else:
            yield key, value


def _breakdown(step: StepBreakdown) -> dict[str, Any]:
    return {
        "total_s": step.total_s,
        "gpu_s": step.gpu_s,
        "launch_s": step.launch_s,
        "host_s": step.host_s,
        "operators": [
            {"name": p.name, "count": p.count, "time_s": p.time_s, "flop": p.flop, "bytes": p.bytes, "bound": p.bound}
            for p in step.parts
        ],
    }


def _step_lines(name: str, step: StepBreakdown) -> Iterator[str]:
    yield f"{name}: {step.total_s / MS:.3f} ms ({step.gpu_s / MS:.3f} ms on the GPU, {step.host_s / MS:.3f} ms host)"
    rows = [
        {
            "operator": part.name,
            "kernels": part.count,
            "time_us": part.time_s / US,
            "gflop": part.flop / GFLOP,
            "mb": part.bytes / MB,
            "tflop_per_s": part.flop / part.time_s / TFLOP if part.time_s and part.flop else None,
            "tb_per_s": part.bytes / part.time_s / TB if part.time_s and part.bytes else None,
            "bound": part.bound,
        }
        for part in step.parts
    ]
    yield table_text(rows, OPERATOR_COLUMNS)


def _basis_lines(deployment: Deployment) -> Iterator[str]:
    """What the operators are made of, and the peaks that they stay below."""
    model, profile, config = deployment.model, deployment.profile, deployment.config
    tokens = (
        f"{model.active_params:,} of {model.total_params:,} parameters"
        if model.is_moe
        else f"{model.total_params:,} parameters"
    )
    ranks = f"; each of {config.num_gpus} GPUs has its part" if config.num_gpus > 1 else ""
    yield wrapped(
        f"{model.id}: {model.num_layers} layers, hidden size {model.hidden_size:,}, vocabulary {model.vocab_size:,}, "
        f"attention {attention_kinds(model)}; a token passes through {tokens}{ranks}"
    )
    peaks = ", ".join(
        f"{profile.peak_flop_per_s(dtype) / TFLOP:,.0f} TFLOP/s {dtype}"
        for dtype in ("bf16", "fp8", "fp4")
        if profile.supports(dtype)
    )
    yield f"{profile.id} at its peak: {profile.memory_bandwidth_bytes_per_s / TB:.2f} TB/s, {peaks}"


def _sum(step: StepBreakdown) -> str:
    """How the step follows from its operators."""
    gpu_s = max(step.gpu_s, step.launch_s)
    gpu = f"{step.gpu_s / MS:.3f} ms, the operators added up,"
    if step.launch_s > step.gpu_s:
        gpu = f"{step.launch_s / MS:.3f} ms, which launching kernel by kernel takes,"
    besides_s = step.total_s - gpu_s
    hidden = "; asynchronous scheduling hides the rest" if step.host_s - besides_s > 1e-9 else ""
    return f"= {gpu} + {besides_s / MS:.3f} ms of the host's{hidden}"


def _share(name: str, served: Replay) -> str:
    """The batch that the step is of, and what all steps like it come to."""
    decode = name == "decode step"
    batch = served.decode_batch if decode else served.prefill_batch
    steps, time_s = (
        (served.decode_steps, served.decode_time_s) if decode else (served.prefill_steps, served.prefill_time_s)
    )
    work = []
    if batch is not None and batch.prefill_tok:
        work.append(f"{batch.prefill_tok:,} prompt tokens")
    if batch is not None and batch.decode_seqs:
        context_tok = batch.decode_context_tok / batch.decode_seqs
        work.append(f"{batch.decode_seqs:,} decoding sequences with {context_tok:,.0f} tokens of context each")
    return f"of {' and '.join(work)}; {steps:,} such step{'' if steps == 1 else 's'} take {time_s:,.3f} s"


def _notes(deployment: Deployment, resolved: ResolvedModel) -> Iterator[str]:
    config = deployment.config
    for condition in deployment.checked.conditions:
        if condition.margin.mid < 0:
            refusal = f"vLLM would not start with these settings: {condition.message}"
            yield f"{refusal}; the figures hold once that is changed"
            break
    yield f"vLLM {config.version}; efficiencies {BASIS[deployment.timer.efficiency.basis]}"
    yield f"calibration: {deployment.calibrated_by}"
    if drafts := config.speculative_config:
        yield (
            f"{drafts.num_speculative_tokens} tokens drafted by {drafts.method}: {drafts.acceptance_length:.2f} tokens "
            "in each step, by the acceptance that was given; no run with drafts was measured, so the intervals are "
            "those of the engine without"
        )
    yield from resolved.notes
    if config.defaults_taken:
        yield f"defaults taken: {'; '.join(config.defaults_taken)}"
