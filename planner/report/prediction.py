"""Printing predictions: the benchmark's own table, its own keys, and the operators of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.bench import latency_table, serve_table, throughput_table
from planner.fit import Checked
from planner.model.resolve import ResolvedModel
from planner.predict import Deployment, Prediction, typical_steps
from planner.report.render import Column, print_json, print_notes, print_rows, print_table, wrapped
from planner.step import StepBreakdown
from planner.units import GFLOP, MB, MS, TB, TFLOP, US, format_bytes
from planner.workload import Workload

TABLES = {"serve": serve_table, "throughput": throughput_table, "latency": latency_table}
BASIS = {
    "gpu": "measured on this GPU",
    "architecture": "measured on GPUs of this architecture",
    "global": "taken from other GPUs: none of this architecture was measured",
}
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


def print_refusal(deployment: Deployment, workload: Workload, resolved: ResolvedModel, output: str) -> None:
    """The honest answer where the KV cache does not hold one request of the load."""
    stage, config = deployment.budget.binding, deployment.config
    left = max(stage.available.mid, 0)
    reason = (
        f"{resolved.resolved} on {config.num_gpus} x {deployment.profile.id}, vLLM {config.version}: requests of "
        f"{workload.max_total_len:,} tokens cannot be served, {format_bytes(left)} are left for the KV cache"
    )
    if output == "table":
        print(wrapped(reason))
        print_notes(["planner fit says what would make it fit"])
        return
    answer = {
        "model_id": resolved.resolved,
        "gpu": deployment.profile.id,
        "engine_version": str(config.version),
        "fits": False,
        "reason": reason,
        "kv_cache_bytes": round(stage.available.mid),
    }
    if output == "json":
        print_json(answer)
    else:
        print_rows([{"metric": key, "value": value} for key, value in answer.items()], output)


def print_prediction(
    bench: str,
    prediction: Prediction,
    deployment: Deployment,
    checked: Checked,
    resolved: ResolvedModel,
    output: str,
    *,
    explain: bool,
) -> None:
    """``bench`` is serve, throughput or latency; ``checked`` says whether the engine starts as it is configured."""
    steps = typical_steps(deployment, prediction.replay)
    data = {**prediction.result, "engine_version": str(deployment.config.version)}
    notes = list(_notes(deployment, checked, resolved))
    if output == "json":
        breakdown = {name: _breakdown(step) for name, step in steps.items()}
        print_json({**data, "notes": notes, "breakdown": breakdown})
        return
    if output == "table":
        print(TABLES[bench](data))
        for name, step in steps.items() if explain else ():
            print()
            _print_step(name, step)
    else:
        print_rows([{"metric": key, "value": value} for key, value in data.items() if value is not None], output)
    print_notes(notes)


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


def _print_step(name: str, step: StepBreakdown) -> None:
    print(f"{name}: {step.total_s / MS:.3f} ms ({step.gpu_s / MS:.3f} ms on the GPU, {step.host_s / MS:.3f} ms host)")
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
    print_table(rows, OPERATOR_COLUMNS)


def _notes(deployment: Deployment, checked: Checked, resolved: ResolvedModel) -> Iterator[str]:
    config = deployment.config
    for condition in checked.conditions:
        if condition.margin.mid < 0:
            refusal = f"vLLM would not start with these settings: {condition.message}"
            yield f"{refusal}; the figures hold once that is changed"
            break
    yield f"vLLM {config.version}; efficiencies {BASIS[deployment.timer.efficiency.basis]}"
    yield from resolved.notes
    if config.defaults_taken:
        yield f"defaults taken: {'; '.join(config.defaults_taken)}"
