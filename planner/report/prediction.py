"""Printing predictions: the benchmark's own table, its own keys, and the operators of a step."""

from __future__ import annotations

from typing import Any

from planner.bench import latency_table, serve_table, throughput_table
from planner.model.resolve import ResolvedModel
from planner.predict import Deployment, Prediction, typical_steps
from planner.report.render import note, print_json, print_rows
from planner.step import StepBreakdown
from planner.units import GB, MS, TFLOP, US
from planner.workload import Workload


def can_serve(deployment: Deployment, workload: Workload) -> bool:
    """Whether the KV cache holds one request of the load; says so where it does not."""
    if deployment.requests_held(workload.max_total_len) >= 1:
        return True
    stage = deployment.budget.binding
    note(
        f"{deployment.model.id} on {deployment.profile.id} cannot serve requests of {workload.max_total_len} tokens: "
        f"{max(stage.available.mid, 0) / GB:.2f} GB are left for the KV cache; see planner fit"
    )
    return False


def print_prediction(
    bench: str,
    prediction: Prediction,
    deployment: Deployment,
    resolved: ResolvedModel,
    output: str,
    *,
    explain: bool,
) -> None:
    """``bench`` is serve, throughput or latency."""
    steps = typical_steps(deployment, prediction.replay)
    breakdown = {name: _breakdown(step) for name, step in steps.items()}
    data = prediction.result
    if output == "json":
        print_json({**data, "engine_version": str(deployment.config.version), "breakdown": breakdown})
        return
    if output != "table":
        print_rows([{"metric": key, "value": value} for key, value in data.items() if value is not None], output)
        return
    tables = {"serve": serve_table, "throughput": throughput_table, "latency": latency_table}
    print(tables[bench](data))
    if explain:
        for name, step in steps.items():
            print()
            _print_step(name, step)
    _print_notes(deployment, resolved)


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
            "time_us": f"{part.time_s / US:,.1f}",
            "GFLOP": f"{part.flop / TFLOP * 1000:,.2f}",
            "MB": f"{part.bytes / GB * 1000:,.2f}",
            "bound": part.bound,
        }
        for part in step.parts
    ]
    print_rows(rows, "table")


def _print_notes(deployment: Deployment, resolved: ResolvedModel) -> None:
    config = deployment.config
    note(f"note: vLLM {config.version}; efficiencies measured for this {deployment.timer.efficiency.basis}")
    for remark in dict.fromkeys((*resolved.notes, *config.defaults_taken)):
        note(f"note: {remark}")
