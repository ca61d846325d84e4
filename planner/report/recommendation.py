"""Printing a recommendation: one line per GPU, then each plan with its reasons and its launch command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from planner.plan import Plan
from planner.recommend import Candidate, Ranking, Rejected, Request, pareto, standing, wanted_batch
from planner.report.render import Column, note, print_command, print_json, print_rows, wrapped
from planner.units import MS

COLUMNS = (
    Column("gpu"),
    Column("num_gpus", "gpus"),
    Column("model", aside=True),
    Column("tensor_parallel_size", "tp"),
    Column("weight_dtype", "weights"),
    Column("kv_cache_dtype", "kv cache"),
    Column("max_num_seqs", "batch", ","),
    Column("output_throughput_per_gpu", "tok/s/gpu", ",.0f"),
    Column("output_throughput_per_user", "tok/s/user", ",.1f"),
    Column("mean_ttft_ms", "TTFT ms", ",.0f"),
    Column("mean_tpot_ms", "TPOT ms", ",.1f"),
    Column("mean_e2el_ms", "E2EL ms", ",.0f"),
    Column("engine_version", "vllm"),
)
SETTINGS = ("gpu", "num_gpus", "model", "tensor_parallel_size", "weight_dtype", "kv_cache_dtype", "max_num_seqs")
FIGURES = (
    "output_throughput_per_gpu", "output_throughput_per_user", "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms",
)  # fmt: skip
SHOWN_REJECTED = 3  #: models per GPU in the table; JSON has all


def print_recommendation(
    request: Request,
    rankings: Sequence[Ranking],
    plans: Sequence[Plan | None],
    listed: Sequence[Plan],
    defaults_taken: Mapping[str, Any],
    output: str,
    *,
    command: str,
    wrote: bool,
) -> None:
    """The plan of each GPU in the order of the GPUs; in JSON ``listed``, best first."""
    made = [plan for plan in plans if plan is not None]
    if output == "json":
        print_json(_object(request, rankings, listed, defaults_taken))
        return
    if made or output != "table":
        print_rows([_row(plan) for plan in made], output, columns=COLUMNS)
    if output != "table":
        return
    for index, (ranking, plan) in enumerate(zip(rankings, plans, strict=True)):
        if index or made:
            print()
        if plan:
            _print_plan(ranking, plan)
        else:
            print(f"{ranking.profile.name}: no plan")
            _print_rejected(ranking)
    taken = ", ".join(f"{name}={_plain(value)}" for name, value in defaults_taken.items())
    if taken:
        note(f"defaults taken: {taken}")
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
    best_first = sorted(plans, key=lambda plan: standing(plan, request.goal), reverse=True)
    return {
        "goal": request.goal,
        "workload": {
            "input_len": request.input_len,
            "output_len": request.output_len,
            "max_concurrency": wanted_batch(request),
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
        "mean_e2el_ms": candidate.e2el_s / MS,
    }


def _row(plan: Plan) -> dict[str, Any]:
    settings = {name: getattr(plan, name) for name in SETTINGS}
    figures = {name: plan.predicted[name] for name in FIGURES}
    return {**settings, **figures, "engine_version": plan.engine_version}


def _print_plan(ranking: Ranking, plan: Plan) -> None:
    print(f"{ranking.profile.name}: {plan.num_gpus} GPU{'s' if plan.num_gpus > 1 else ''}, {plan.model}")
    _print_items("-", plan.why)
    _print_items("!", plan.warnings)
    _print_rejected(ranking)
    # as typed on the machine itself: only a container's server binds to all addresses
    words = list(plan.serve_argv)
    words[words.index("--host") + 1] = "127.0.0.1"
    print_command(plan.env, words)


def _print_rejected(ranking: Ranking) -> None:
    """One line for each model: what lost by its figures first, then what does not fit or cannot run, then the rest."""
    fitting = {
        (c.resolved.resolved, c.config.tensor_parallel_size, c.config.kv_cache_dtype) for c in ranking.candidates
    }

    def order(r: Rejected) -> tuple[bool, bool]:
        return (r.model, r.tensor_parallel_size, r.kv_cache_dtype) not in fitting, r.tensor_parallel_size is None

    winner = ranking.best.resolved.resolved if ranking.best else None  # its other sizes are among the reasons
    best: dict[str, Rejected] = {}
    for rejected in sorted(ranking.rejected, key=order):
        if rejected.model != winner:
            best.setdefault(rejected.model, rejected)
    shown = list(best.values())[:SHOWN_REJECTED]
    _print_items("x", map(_describe, shown))
    if len(ranking.rejected) > len(shown):
        _print_items("x", [f"and {len(ranking.rejected) - len(shown)} more: --format json lists them"])


def _describe(rejected: Rejected) -> str:
    size = f" TP {rejected.tensor_parallel_size}" if rejected.tensor_parallel_size else ""
    return f"{rejected.model}{size}: {rejected.reason}"


def _print_items(mark: str, items: Iterable[str]) -> None:
    for item in items:
        print(wrapped(item, first=f"  {mark} ", rest="    "))


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
