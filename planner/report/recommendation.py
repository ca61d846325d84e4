"""Printing a recommendation: one line per GPU, then each plan with its reasons and its launch command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.plan import Plan
from planner.recommend import Candidate, Ranking, Request, pareto
from planner.report.render import note, print_json, print_rows

COLUMNS = (
    "gpu", "model", "tp", "weights", "kv_cache", "max_num_seqs", "tok/s/gpu", "tok/s/user", "ttft_ms", "tpot_ms",
    "e2el_ms", "vllm",
)  # fmt: skip
SHOWN_REJECTED = 6  #: per GPU in the table; JSON has all


def print_recommendation(
    request: Request,
    rankings: Sequence[Ranking],
    plans: Sequence[Plan | None],
    defaults_taken: Mapping[str, Any],
    output: str,
    *,
    command: str,
    wrote: bool,
) -> None:
    """All plans, best first in JSON; in the order of the GPUs in tables."""
    made = [plan for plan in plans if plan is not None]
    if output == "json":
        print_json(_object(request, rankings, made, defaults_taken))
        return
    print_rows([_row(plan) for plan in made], output, columns=COLUMNS)
    if output != "table":
        return
    for ranking, plan in zip(rankings, plans, strict=True):
        print()
        if plan is None:
            _print_nothing(ranking)
        else:
            _print_plan(ranking, plan)
    taken = ", ".join(f"{name} = {_plain(value)}" for name, value in defaults_taken.items())
    if taken:
        note(f"\ndefaults taken: {taken}")
    if not wrote and made:
        note(f"write the scripts with: {command} -o plans")


def predicted_lines(plan: Plan) -> Iterator[str]:
    """The figures that are worth a line in a script's header."""
    figures = plan.predicted
    total, each = figures["output_throughput"], figures["output_throughput_per_gpu"]
    yield f"output throughput  {total:,.0f} tokens/s ({each:,.0f} per GPU)"
    for name in ("ttft", "tpot", "itl", "e2el"):
        mean, p99 = figures[f"mean_{name}_ms"], figures[f"p99_{name}_ms"]
        yield f"{name.upper():<5}              {mean:,.1f} ms mean, {p99:,.1f} ms p99"


def _object(
    request: Request, rankings: Sequence[Ranking], plans: Sequence[Plan], defaults_taken: Mapping[str, Any]
) -> dict[str, Any]:
    best_first = sorted(plans, key=lambda plan: _merit(plan, request.goal), reverse=True)
    return {
        "goal": request.goal,
        "workload": {
            "input_len": request.input_len,
            "output_len": request.output_len,
            "max_concurrency": request.max_concurrency,
            "num_prompts": request.num_prompts,
        },
        "defaults_taken": [f"{name} = {_plain(value)}" for name, value in defaults_taken.items()],
        "plans": [plan.model_dump(mode="json") for plan in best_first],
        "pareto": [_point(candidate) for ranking in rankings for candidate in pareto(ranking.candidates)],
        "rejected": [
            {
                "gpu": rejected.gpu,
                "model": rejected.model,
                "tensor_parallel_size": rejected.tensor_parallel_size,
                "kv_cache_dtype": rejected.kv_cache_dtype,
                "reason": rejected.reason,
            }
            for ranking in rankings
            for rejected in ranking.rejected
        ],
    }


def _merit(plan: Plan, goal: str) -> float:
    figures = plan.predicted
    if goal == "min-latency":
        return -float(figures["mean_e2el_ms"])
    if goal == "max-throughput":
        return float(figures["output_throughput_per_gpu"])
    return float(figures["output_throughput_per_gpu"] * figures["output_throughput_per_user"])


def _point(candidate: Candidate) -> dict[str, Any]:
    config = candidate.config
    return {
        "gpu": candidate.deployment.profile.id,
        "model": candidate.resolved.resolved,
        "tensor_parallel_size": config.tensor_parallel_size,
        "weight_dtype": config.weight_dtype,
        "kv_cache_dtype": config.kv_cache_dtype,
        "max_num_seqs": config.max_num_seqs,
        "output_throughput_per_gpu": candidate.tok_per_s_per_gpu,
        "output_throughput_per_user": candidate.tok_per_s_per_user,
        "mean_e2el_ms": candidate.estimate.e2el_s * 1000,
    }


def _row(plan: Plan) -> dict[str, Any]:
    figures = plan.predicted
    return {
        "gpu": f"{plan.num_gpus} x {plan.gpu}",
        "model": plan.model,
        "tp": plan.tensor_parallel_size,
        "weights": plan.weight_dtype,
        "kv_cache": plan.kv_cache_dtype,
        "max_num_seqs": plan.max_num_seqs,
        "tok/s/gpu": f"{figures['output_throughput_per_gpu']:,.0f}",
        "tok/s/user": f"{figures['output_throughput_per_user']:,.1f}",
        "ttft_ms": f"{figures['mean_ttft_ms']:,.0f}",
        "tpot_ms": f"{figures['mean_tpot_ms']:,.1f}",
        "e2el_ms": f"{figures['mean_e2el_ms']:,.0f}",
        "vllm": plan.engine_version,
    }


def _print_plan(ranking: Ranking, plan: Plan) -> None:
    print(f"{ranking.profile.name}: {plan.num_gpus} GPU{'s' if plan.num_gpus > 1 else ''}, {plan.model}")
    for reason in plan.why:
        print(f"  - {reason}")
    for warning in plan.warnings:
        print(f"  ! {warning}")
    for rejected in ranking.rejected[:SHOWN_REJECTED]:
        size = f" TP {rejected.tensor_parallel_size}" if rejected.tensor_parallel_size else ""
        print(f"  x {rejected.model}{size}: {rejected.reason}")
    if len(ranking.rejected) > SHOWN_REJECTED:
        print(f"  x and {len(ranking.rejected) - SHOWN_REJECTED} more: --format json lists them")
    environment = " ".join(shlex.quote(f"{name}={value}") for name, value in plan.env.items())
    print(f"  $ {environment} {shlex.join(plan.serve_argv)}".replace("$  ", "$ "))


def _print_nothing(ranking: Ranking) -> None:
    print(f"{ranking.profile.name}: no plan")
    for rejected in ranking.rejected[:SHOWN_REJECTED]:
        size = f" TP {rejected.tensor_parallel_size}" if rejected.tensor_parallel_size else ""
        print(f"  x {rejected.model}{size}: {rejected.reason}")


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
