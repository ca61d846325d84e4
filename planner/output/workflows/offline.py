"""Offline measurements: each point is a command of its own, and what is printed and predicted for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any

from planner.engine import (
    EngineVersion,
    ServeLine,
    bench_latency_argv,
    bench_throughput_argv,
    env_status,
    flag_status,
    program_argv,
    read_drafts,
)
from planner.errors import IllegalPlanError, InputError
from planner.output.workflows.catalog import Point, Variant
from planner.output.workflows.documents import Command
from planner.output.workflows.subject import (
    Subject,
    check_fits,
    engine_env,
    engine_settings,
    other_options,
    with_steps,
    written_out,
)
from planner.planning import Deployment, resolve_deployment, simulate_latency, simulate_throughput
from planner.workload import Load

#: Titles of the scripts that are made from the template ``offline.sh.j2``.
OFFLINE_SCRIPTS = {
    "latency.sh": "Measure the latency of batches offline.",
    "ttft.sh": "Measure the time to first token offline: one output token, no graphs.",
    "throughput.sh": "Measure the throughput with all prompts at once, offline.",
    "speculative.sh": "Measure latency with and without a small model that drafts.",
    "quick_reduce.sh": "Measure latency with quick reduce off, and in each of its number formats.",
    "aiter.sh": "Measure latency with and without AITER.",
}
#: What ``vllm bench latency`` takes where a command does not say how often.
WARM_UP_ITERATIONS, ITERATIONS = 10, 30


@dataclass(frozen=True, slots=True)
class OfflinePoint:
    """One offline measurement: a command, and what is expected of it."""

    name: str
    key: str  #: of the result file
    expected: str
    options: tuple[str, ...]  #: of docker run
    argv: tuple[str, ...]
    metric: str  #: ``avg_latency`` in seconds, ``output_throughput`` in tokens/s
    predicted: Mapping[str, Any]  #: the keys of the result file with their intervals; empty where nothing is predicted
    published: float | None
    printed: Command
    published_key: float | None = None  #: ``published`` in the unit of ``key``
    env: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What ``planner validate`` compares a result with."""
        lo, hi = (self.predicted.get(f"{self.key}_{end}") for end in ("lo", "hi"))
        own = {"name": self.name, "key": self.key, "predicted": self.predicted.get(self.key)}
        return {**own, "lo": lo, "hi": hi, "published": self.published_key}


def offline_names(found: Subject, script: str) -> dict[str, Any]:
    """What the template of an offline script names."""
    points = offline_points(found, "throughput" if script == "throughput.sh" else "latency")
    return {
        "title": OFFLINE_SCRIPTS[script],
        "job": script.removesuffix(".sh").replace("_", "-"),
        "points": points,
        "points_total": len(points),
    }


def offline_points(found: Subject, bench: str = "") -> tuple[OfflinePoint, ...]:
    """The measurements of a workflow that ``bench`` (latency, throughput; empty: both) makes, each in every variant.

    Raises IllegalPlanError where the version does not have what is measured, or where one does not fit.
    """
    workflow = found.workflow
    points = [
        point
        for point in workflow.points(found.version, found.profile, found.resolved.resolved)
        if bench in str(point.command.read().command)
    ]
    if not points:
        raise InputError(f"{workflow.name} measures no {bench}", hint="planner workflow list shows those that do")
    _check_variants(found)
    return tuple(
        _point(found, point, variant, predicted=index == 0)
        for point in points
        for index, variant in enumerate(workflow.variants)
    )


def _check_variants(found: Subject) -> None:
    """Raise IllegalPlanError where the version reads none of the variables that the variants differ in."""
    names = {name for variant in found.workflow.variants for name in variant.env}
    known = [name for name in names if env_status(found.version, name, platform=found.profile.platform)]
    if names and not known:
        (name, *_) = sorted(names)
        status = env_status(found.version, name, platform=found.profile.platform)
        raise IllegalPlanError(
            f"{found.workflow.name}: vLLM {found.version} does not read {name} ({status}): its points would be alike",
            hint=status.hint or "choose another --engine-version",
        )


def _point(found: Subject, point: Point, variant: Variant, *, predicted: bool) -> OfflinePoint:
    command = _with_draft(found, point.command)
    deployment, line = _engine(found, command)
    drafts = deployment.config.speculative_config is not None
    load, latency = _load(found, command), "latency" in line.command
    result = _predict(deployment, load, latency=latency) if predicted and not drafts else {}
    metric = point.metric or ("avg_latency" if latency else "output_throughput")
    published = point.published if _as_printed(found) and predicted else None
    platform = found.profile.platform
    env = {**engine_env(command.env, found.version, platform), **engine_env(variant.env, found.version, platform)}
    env |= _same_engine(found)
    own = {name: value for name, value in env.items() if found.plan.env.get(name) != value}
    said = ", ".join(_expected(result, metric, published, load)) or "nothing to compare with"
    partition = found.profile.partition
    if result and partition and not partition.isolated_bandwidth:
        said += "; as if every partition of the GPU were busy, alone it has more bandwidth"
    return OfflinePoint(
        name=_name(found, load, variant, latency=latency, drafts=drafts),
        key="avg_latency" if latency else "tokens_per_second",
        expected=said,
        options=tuple(word for name, value in own.items() for word in ("--env", f"{name}={value}")),
        argv=_argv(found, deployment, line, load, latency=latency),
        metric=metric,
        predicted=result,
        published=published,
        printed=point.command,
        published_key=_in_key(published, metric, load),
        env={**found.plan.env, **own},
    )


def _as_printed(found: Subject) -> bool:
    """Whether the printed numbers are of this version and of these settings."""
    asked = found.choice.asked - {"model", "--model", "--tokenizer", "--quantization"}
    return found.documented and str(found.version) == found.workflow.engine_version and not asked


def _with_draft(found: Subject, command: Command) -> Command:
    return command.with_options({"--speculative-model": found.draft}) if found.draft and _drafts(command) else command


def _drafts(command: Command) -> bool:
    return "--speculative-model" in command.argv


def _engine(found: Subject, command: Command) -> tuple[Deployment, ServeLine]:
    """The engine of one measurement. Raises IllegalPlanError where it would not start."""
    version, like = _base_version(found), found.deployment
    args, version, line = engine_settings(command, found.choice, found.profile, found.resolved, version)
    if "latency" in line.command and args.enable_prefix_caching is None:
        args = replace(args, enable_prefix_caching=False)  # latency.py sets it so from 0.9.1 on
    if not found.documented:  # what was found for this model and GPU, with the document's way of measuring
        args = replace(
            found.args, max_model_len=None, enforce_eager=args.enforce_eager, max_num_seqs=args.max_num_seqs,
            speculative_config=args.speculative_config, enable_prefix_caching=args.enable_prefix_caching,
        )  # fmt: skip
        args, version = _held(found, args, _load(found, command)), found.version
        line = replace(line, num_scheduler_steps=1)
    if args.speculative_config and found.draft:
        drafts = args.speculative_config
        given = {"model": found.draft, "num_speculative_tokens": drafts.num_speculative_tokens}
        args = replace(args, speculative_config=read_drafts(given))
    deployment = resolve_deployment(
        found.resolved.model, found.profile, args, version, offline=True, basis=like.basis,
        calibration=like.calibration,
    )  # fmt: skip
    deployment = with_steps(deployment, line)
    check_fits(replace(deployment, config=replace(deployment.config, speculative_config=None)), found.resolved, args)
    return deployment, line


def _held(found: Subject, args: Any, load: Load) -> Any:
    """A context that holds the request, where the plan's own is another one; the document's on its own models."""
    tokens = args.max_num_batched_tokens
    places = args.max_num_seqs or 0
    return replace(
        args,
        max_model_len=max(load.max_total_len, found.config.max_model_len),
        max_num_batched_tokens=max(tokens, places) if tokens else None,
    )


def _base_version(found: Subject) -> EngineVersion:
    """The version with the engine that both runs of a comparison with drafts get."""
    return replace(found.version, engine="V0") if _same_engine(found) else replace(found.version, engine="")


def _same_engine(found: Subject) -> dict[str, str]:
    """Without and with a draft the engine is the same one: from 0.8.0 to 0.9.2 only V0 drafts with a model."""
    return {"VLLM_USE_V1": "0"} if found.draft and (0, 8) <= found.version.release < (0, 10) else {}


def _load(found: Subject, command: Command) -> Load:
    choice, load = found.choice, command.read(platform=found.profile.platform).workload(command.document.version)
    asked = {name: value for name in ("input_len", "output_len") if (value := getattr(choice, name)) is not None}
    if choice.num_prompts is not None and "throughput" in command.argv[1]:
        asked["num_prompts"] = choice.num_prompts
    return replace(load, **asked)


def _argv(found: Subject, deployment: Deployment, line: ServeLine, load: Load, *, latency: bool) -> tuple[str, ...]:
    model, platform, config = found.plan.model, found.profile.platform, deployment.config
    extra = other_options(line, found.version, model)
    if not found.documented:
        extra = {**{k: v for k, v in found.recipe.flags.items() if k not in extra}, **extra}
        extra.pop("num-scheduler-steps", None)  # it would bring the older engine, which is not what was found
        extra = {k: v for k, v in extra.items() if _takes(found.version, k, line, value=v)}
    if not latency:
        words = bench_throughput_argv(config, load, model, platform=platform, extra=extra)
        return written_out(words, line, found.version)
    warm_up, iterations = (line.others.get(flag) for flag in ("--num-iters-warmup", "--num-iters"))
    words = bench_latency_argv(
        config, model, input_len=load.input_len, output_len=load.output_len, batch_size=load.num_prompts,
        num_iters_warmup=int(warm_up or WARM_UP_ITERATIONS), num_iters=int(iterations or ITERATIONS),
        platform=platform, extra=extra,
    )  # fmt: skip
    return written_out(words, line, found.version)


def _takes(version: EngineVersion, name: str, line: ServeLine, *, value: Any) -> bool:
    flag = f"--no-{name}" if value is False else f"--{name}"
    return bool(flag_status(version, flag, program_argv(line.command, version, "rocm")[1]))


def _predict(deployment: Deployment, load: Load, *, latency: bool) -> dict[str, Any]:
    """The result as it is predicted; empty where not one request fits."""
    if deployment.requests_held(load.total_len) < 1:
        return {}
    simulate = simulate_latency if latency else simulate_throughput
    return simulate(deployment, load).result


def _expected(result: Mapping[str, Any], metric: str, published: float | None, load: Load) -> Iterator[str]:
    """The prediction and the printed figure, in the unit of the result's key."""
    if "avg_latency" in result:
        yield f"predicted {result['avg_latency']:,.2f} s{_interval(result, 'avg_latency', ',.2f')}"
    elif "tokens_per_second" in result:
        interval = _interval(result, "tokens_per_second", ",.0f")
        yield f"predicted {result['tokens_per_second']:,.1f} tokens/s{interval}"
    if published and metric == "avg_latency":
        yield f"published {published:,.3f} s"
    elif published:
        yield f"published {_in_key(published, metric, load):,.1f} tokens/s ({published:,.1f} of them output)"


def _in_key(published: float | None, metric: str, load: Load) -> float | None:
    """A printed figure in the unit of the result's key, which counts input and output tokens."""
    if published is None or metric == "avg_latency":
        return published
    return published * load.total_len / load.output_len


def _interval(result: Mapping[str, Any], key: str, form: str) -> str:
    low, high = result.get(f"{key}_lo", nan), result.get(f"{key}_hi", nan)
    return f" ({low:{form}} to {high:{form}})" if low == low else ""


def _name(found: Subject, load: Load, variant: Variant, *, latency: bool, drafts: bool) -> str:
    parts = ["latency" if latency else "throughput", f"in{load.input_len}", f"out{load.output_len}"]
    parts.append(f"bs{load.num_prompts}" if latency else f"prompts{load.num_prompts}")
    name = variant.name or (("with" if drafts else "without") if found.draft else "")
    return "-".join([*parts, name] if name else parts)
