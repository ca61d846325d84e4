"""Offline measurements: each point is a command of its own, and what is expected of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from planner.engine import (
    EngineConfig,
    VllmCommand,
    bench_latency_argv,
    bench_throughput_argv,
    env_status,
    flag_status,
)
from planner.errors import IllegalPlanError, InputError
from planner.output.workflows.catalog import Measure, PublishedRow, Variant
from planner.output.workflows.subject import Subject, bench_command
from planner.planning import Deployment, defaults, resolve_deployment, simulate_latency, simulate_throughput
from planner.workload import Workload

#: Titles of the scripts that are made from the template ``offline.sh.j2``.
OFFLINE_SCRIPTS = {
    "latency.sh": "Measure the latency of batches offline.",
    "ttft.sh": "Measure the time to first token offline: one output token, no graphs.",
    "throughput.sh": "Measure the throughput with all prompts at once, offline.",
    "speculative.sh": "Measure latency with and without a small model that drafts.",
    "quick_reduce.sh": "Measure latency with quick reduce off, and in each of its number formats.",
    "aiter.sh": "Measure latency with and without AITER.",
}


@dataclass(frozen=True, slots=True)
class OfflinePoint:
    """One offline measurement: a command, and what is expected of it."""

    name: str
    key: str  #: of the result file
    expected: str
    options: tuple[str, ...]  #: of docker run
    argv: tuple[str, ...]


def offline_names(found: Subject, script: str) -> dict[str, Any]:
    """What the template of an offline script names."""
    points = offline_points(found, "throughput" if script == "throughput.sh" else "latency")
    return {
        "title": OFFLINE_SCRIPTS[script],
        "job": script.removesuffix(".sh").replace("_", "-"),
        "points": points,
        "points_total": len(points),
    }


def offline_points(found: Subject, bench: str) -> tuple[OfflinePoint, ...]:
    """The measurements of a workflow that ``bench`` (latency or throughput) makes, every row in every variant.

    Raises IllegalPlanError where the version cannot draft with a model, and that is what the workflow measures.
    """
    measure = found.workflow.measure
    rows = [row for row in measure.rows if row.bench == bench] if measure else []
    if not measure or not rows:
        raise InputError(f"{found.workflow.name} measures no {bench}", hint="planner workflow list shows those that do")
    return tuple(point for row in rows for point in _points(found, measure, row))


def _points(found: Subject, measure: Measure, row: PublishedRow) -> Iterator[OfflinePoint]:
    if found.draft:
        config, flags, env = speculation(found, measure)
        yield _point(found, measure, row, Variant("without"), config=config, env=env)
        yield _point(found, measure, row, Variant("with"), config=config, env=env, flags=flags, predicted=False)
        return
    for index, variant in enumerate(measure.variants):
        yield _point(found, measure, row, variant, predicted=index == 0)


def _point(
    found: Subject,
    measure: Measure,
    row: PublishedRow,
    variant: Variant,
    *,
    config: EngineConfig | None = None,
    env: dict[str, str] | None = None,
    flags: dict[str, Any] | None = None,
    predicted: bool = True,
) -> OfflinePoint:
    deployment = _offline(found, measure, row)
    if config:
        deployment = replace(deployment, config=_same_engine(deployment.config, config))
    wanted = {**variant.env, **(env or {})}
    known = {k: v for k, v in wanted.items() if env_status(found.version, k, platform=found.profile.platform)}
    return OfflinePoint(
        name=_name(row, variant),
        key="avg_latency" if row.bench == "latency" else "tokens_per_second",
        expected=", ".join(_expected(found, deployment, row, predicted=predicted)) or "nothing to compare with",
        options=tuple(word for name, value in known.items() for word in ("--env", f"{name}={value}")),
        argv=tuple(_argv(found, deployment.config, row, flags or {})),
    )


def _offline(found: Subject, measure: Measure, row: PublishedRow) -> Deployment:
    """The plan's settings, with one context and one batch for all rows, so that they compile the same graphs."""
    args, config = found.args, found.config
    rows = [other for other in measure.rows if other.bench == row.bench]
    places = row.max_num_seqs or max([args.max_num_seqs or 0, *(other.batch_size for other in rows)])
    tokens = args.max_num_batched_tokens
    longest = max(other.input_len + other.output_len for other in rows)
    settings = replace(
        args,
        max_model_len=args.max_model_len or defaults.round_context(longest),
        max_num_seqs=places or None,
        max_num_batched_tokens=max(tokens, places) if tokens else None,
        # the same prompts are sent again and again: a prefix cache would answer for the GPU
        enable_prefix_caching=False if row.bench == "latency" else args.enable_prefix_caching,
    )
    like = found.deployment
    return resolve_deployment(
        found.resolved.model,
        found.profile,
        settings,
        config.version,
        offline=True,
        basis=like.basis,
        calibration=like.calibration,
    )


def _argv(found: Subject, config: EngineConfig, row: PublishedRow, flags: dict[str, Any]) -> list[str]:
    bench: VllmCommand = "bench latency" if row.bench == "latency" else "bench throughput"
    own = found.flags_for(bench_command(found.version, bench))
    if row.bench == "latency":
        own.pop("disable-detokenize", None)
        return bench_latency_argv(
            config, found.plan.model, input_len=row.input_len, output_len=row.output_len, batch_size=row.batch_size,
            platform=found.profile.platform, extra={**own, **flags},
        )  # fmt: skip
    load = Workload(row.input_len, row.output_len, row.num_prompts)
    return bench_throughput_argv(
        config, load, found.plan.model, platform=found.profile.platform, extra={**own, **flags}
    )


def _expected(found: Subject, deployment: Deployment, row: PublishedRow, *, predicted: bool) -> Iterator[str]:
    """The prediction and the published figure, in the unit of the result's key."""
    load = Workload(row.input_len, row.output_len, row.requests)
    if predicted and deployment.requests_held(load.total_len) >= 1:
        if row.bench == "latency":
            yield f"predicted {simulate_latency(deployment, load).result['avg_latency']:,.2f} s"
        else:
            yield f"predicted {simulate_throughput(deployment, load).result['tokens_per_second']:,.1f} tokens/s"
    if row.published and found.documented and str(found.version) == found.workflow.engine_version:
        if row.bench == "latency":
            yield f"published {row.published:,.3f} s"
        else:  # the key counts input and output
            total = row.published * load.total_len / row.output_len
            yield f"published {total:,.1f} tokens/s ({row.published:,.1f} of them output)"


def _name(row: PublishedRow, variant: Variant) -> str:
    parts = [row.bench, f"in{row.input_len}", f"out{row.output_len}"]
    parts.append(f"bs{row.batch_size}" if row.batch_size else f"prompts{row.num_prompts}")
    return "-".join([*parts, variant.name] if variant.name else parts)


def speculation(found: Subject, measure: Measure) -> tuple[EngineConfig, dict[str, Any], dict[str, str]]:
    """The engine, the options and the variables of drafting with a model, in the words of the version.

    V0 drafts with a model until 0.9.2, V1 from 0.15.0 on, and nothing between does (``spec_decode/`` and
    ``v1/spec_decode/draft_model.py`` of the releases). Raises IllegalPlanError for what cannot.
    """
    release, config = found.version.release, found.config
    if (0, 10) <= release < (0, 15):
        raise IllegalPlanError(
            f"vLLM {found.version} does not draft with a model",
            hint="choose an --engine-version up to 0.9.2, or 0.15.0 and later",
        )
    if flag_status(found.version, "--speculative-model"):
        flags: dict[str, Any] = {
            "speculative-model": found.draft, "num-speculative-tokens": measure.draft_tokens
        }  # fmt: skip
    else:
        drafting = {"model": found.draft, "num_speculative_tokens": measure.draft_tokens}
        flags = {"speculative-config": drafting}
    if (0, 8) <= release < (0, 10):
        tokens = max(config.max_num_batched_tokens, config.max_model_len)
        old = replace(config, engine="V0", enable_chunked_prefill=False, max_num_batched_tokens=tokens)
        return old, flags, {"VLLM_USE_V1": "0"}
    return config, flags, {}


def _same_engine(config: EngineConfig, like: EngineConfig) -> EngineConfig:
    tokens = max(config.max_num_batched_tokens, config.max_model_len) if like.engine == "V0" else 0
    return replace(
        config,
        engine=like.engine,
        enable_chunked_prefill=like.enable_chunked_prefill,
        max_num_batched_tokens=tokens or config.max_num_batched_tokens,
    )
