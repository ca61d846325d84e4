"""The loads that a running server is measured at, and what is predicted for each."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from planner.engine import bench_serve_argv
from planner.output.scripts.emission import SEED_STEP, served_name
from planner.planning import Deployment, Plan, defaults, simulate_serve
from planner.workload import Load

GUIDELLM_REQUIREMENT = "guidellm[recommended]==0.8.1"
#: Of the request rate that is predicted as the most: from idle to more than it takes
RATES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1)
MOST_STEPS = 50  #: more doublings than there are of ``max_num_seqs``


@dataclass(frozen=True, slots=True)
class SweepLoad:
    """One load of a sweep: a command, how many requests it sends, and the output tokens/s that are predicted."""

    name: str
    prompts: int
    predicted: str
    seed: int
    argv: tuple[str, ...]


def sweep_names(plan: Plan, deployment: Deployment) -> dict[str, Any]:
    """What the template of sweep.sh names: both kinds of loads."""
    closed, rates = concurrency_loads(plan, deployment), rate_loads(plan, deployment)
    return {
        "concurrency_loads": closed,
        "concurrency_total": len(closed),
        "rate_loads": rates,
        "rate_total": len(rates),
    }


def guidellm_names(plan: Plan) -> dict[str, Any]:
    """What the template of guidellm.sh names. JSON, because GuideLLM cuts its other form at every comma."""
    loads, sent = _closed_loads(plan), plan.workload
    return {
        "guidellm_requirement": GUIDELLM_REQUIREMENT,
        "guidellm_backend": json.dumps({"kind": "openai_http", "model": served_name(plan)}),
        "guidellm_tokenizer": json.dumps({"kind": "huggingface_auto", "model": plan.model}),
        "guidellm_data": json.dumps(
            {"kind": "synthetic_text", "prompt_tokens": sent.input_len, "output_tokens": sent.output_len}
        ),
        "guidellm_total": len(loads),
        "guidellm_loads": loads,
    }


def concurrency_loads(plan: Plan, deployment: Deployment) -> tuple[SweepLoad, ...]:
    """One request at a time, two, four, ... to ``max_num_seqs``."""
    return tuple(
        _predict(plan, deployment, f"concurrency-{load.max_concurrency}", load) for load in _closed_loads(plan)
    )


def rate_loads(plan: Plan, deployment: Deployment) -> tuple[SweepLoad, ...]:
    """Requests per second, as shares of what the server is predicted to answer with every place taken."""
    most = plan.max_num_seqs
    closed = _closed(plan, most)
    highest = simulate_serve(deployment, closed).figures["request_throughput"]
    rates = sorted({float(f"{share * highest:.2g}") for share in RATES})
    loads = [
        replace(closed, max_concurrency=None, request_rate=rate, seed=_seed(plan, MOST_STEPS + place))
        for place, rate in enumerate(rates)
    ]
    return tuple(_predict(plan, deployment, f"rate-{load.request_rate:g}", load) for load in loads)


def _closed_loads(plan: Plan) -> list[Load]:
    most = plan.max_num_seqs
    steps = sorted({1 << power for power in range(most.bit_length()) if 1 << power < most} | {most})
    return [replace(_closed(plan, step), seed=_seed(plan, place)) for place, step in enumerate(steps)]


def _seed(plan: Plan, place: int) -> int:
    """The seed of the load in that place: neither the benchmark's own nor that of its warm-up."""
    return plan.workload.seed + SEED_STEP * (2 + place)


def _closed(plan: Plan, concurrency: int) -> Load:
    load = plan.workload
    return Load(
        load.input_len,
        load.output_len,
        defaults.PROMPTS_PER_SLOT * concurrency,
        max_concurrency=concurrency,
        seed=load.seed,
    )


def _predict(plan: Plan, deployment: Deployment, name: str, load: Load) -> SweepLoad:
    throughput = simulate_serve(deployment, load).figures["output_throughput"]
    argv = bench_serve_argv(load, plan.model, deployment.config.version, platform=deployment.profile.platform)
    return SweepLoad(name, load.num_prompts, f"{throughput:.1f}", load.seed, tuple(argv))
