"""How fast? ``planner predict`` as functions, in the words of ``vllm bench``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack

from planner.api.flags import EngineFlags, engine_args, typed
from planner.api.inputs import (
    GpuName,
    ModelName,
    check_context,
    check_load,
    draft_of,
    found_gpu,
    load_model,
    path_text,
    version_for,
    workload_of,
)
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.output import Bench, PredictionAnswer, PredictionRefused
    from planner.workload import Workload

OWN = (
    "input_len", "output_len", "num_prompts", "max_concurrency", "request_rate", "burstiness", "random_range_ratio",
    "seed", "random_prefix_len", "prefix_cache_hit_rate", "metric_percentiles", "goodput", "batch_size",
    "weight_dtype", "engine_version", "calibration", "explain", "revision", "refresh",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Case:
    """What is to serve the load, as it was asked for."""

    model: ModelName
    gpu: GpuName
    weight_dtype: str | None
    engine_version: str | None
    calibration: str | PathLike[str] | None
    revision: str | None
    refresh: bool
    engine: EngineFlags


def predict_serve(
    model: ModelName,
    gpu: GpuName,
    *,
    input_len: int = 1024,
    output_len: int = 128,
    num_prompts: int = 1000,
    max_concurrency: int | None = None,
    request_rate: float = inf,
    burstiness: float = 1.0,
    random_range_ratio: float = 0.0,
    seed: int = 0,
    random_prefix_len: int = 0,
    prefix_cache_hit_rate: float = 0.0,
    metric_percentiles: Sequence[float] = (99,),
    goodput: Mapping[str, float] | None = None,
    weight_dtype: str | None = None,
    engine_version: str | None = None,
    calibration: str | PathLike[str] | None = None,
    explain: bool = False,
    revision: str | None = None,
    refresh: bool = False,
    **engine: Unpack[EngineFlags],
) -> PredictionAnswer | PredictionRefused:
    """What ``vllm bench serve --dataset-name random`` would measure of a server of ``model`` on ``gpu``.

    Lengths are tokens, ``request_rate`` is requests per second (infinite: all at once), ``goodput`` holds targets in ms
    by metric (``{"ttft": 500}``). ``engine`` and the other keywords are those of ``check_fit``.

    ``answer.result`` has the keys of the bench's result file (``mean_ttft_ms``, ``output_throughput`` in tokens/s, ...)
    and beside each figure ``KEY_lo`` and ``KEY_hi``, its 90 % interval. Where the KV cache does not hold one request,
    ``answer.ok`` is false and ``answer.reason`` says so. Raises IllegalPlanError for settings that vLLM refuses,
    InputError for a load that it would refuse or that does not end, and what ``load_model`` and ``load_gpu`` raise.
    """
    workload = workload_of(
        input_len=input_len,
        output_len=output_len,
        num_prompts=num_prompts,
        max_concurrency=max_concurrency,
        request_rate=request_rate,
        burstiness=burstiness,
        range_ratio=random_range_ratio,
        seed=seed,
        prefix_len=random_prefix_len,
        prefix_cache_hit_rate=prefix_cache_hit_rate,
    )
    case = _Case(model, gpu, weight_dtype, engine_version, calibration, revision, refresh, engine)
    asked = {
        "percentiles": tuple(typed("metric_percentiles", one, float) for one in metric_percentiles),
        "goodput": _targets_ms(goodput or {}),
    }
    return _predict("serve", workload, case, explain=explain, **asked)


def predict_throughput(
    model: ModelName,
    gpu: GpuName,
    *,
    input_len: int,
    output_len: int,
    num_prompts: int = 1000,
    seed: int = 0,
    random_prefix_len: int = 0,
    prefix_cache_hit_rate: float = 0.0,
    weight_dtype: str | None = None,
    engine_version: str | None = None,
    calibration: str | PathLike[str] | None = None,
    explain: bool = False,
    revision: str | None = None,
    refresh: bool = False,
    **engine: Unpack[EngineFlags],
) -> PredictionAnswer | PredictionRefused:
    """What ``vllm bench throughput`` would measure: all prompts at once, without a server. See ``predict_serve``."""
    workload = workload_of(
        input_len=input_len,
        output_len=output_len,
        num_prompts=num_prompts,
        seed=seed,
        prefix_len=random_prefix_len,
        prefix_cache_hit_rate=prefix_cache_hit_rate,
    )
    case = _Case(model, gpu, weight_dtype, engine_version, calibration, revision, refresh, engine)
    return _predict("throughput", workload, case, explain=explain)


def predict_latency(
    model: ModelName,
    gpu: GpuName,
    *,
    input_len: int = 32,
    output_len: int = 128,
    batch_size: int = 8,
    weight_dtype: str | None = None,
    engine_version: str | None = None,
    calibration: str | PathLike[str] | None = None,
    explain: bool = False,
    revision: str | None = None,
    refresh: bool = False,
    **engine: Unpack[EngineFlags],
) -> PredictionAnswer | PredictionRefused:
    """What ``vllm bench latency`` would measure: seconds of one batch from start to end. See ``predict_serve``."""
    workload = workload_of(input_len=input_len, output_len=output_len, num_prompts=batch_size)
    case = _Case(model, gpu, weight_dtype, engine_version, calibration, revision, refresh, engine)
    return _predict("latency", workload, case, explain=explain)


def _predict(
    bench: Bench, workload: Workload, case: _Case, *, explain: bool, **asked: Any
) -> PredictionAnswer | PredictionRefused:
    """Predict ``workload``; ``asked`` is for the result of the bench."""
    from planner.memory import Basis
    from planner.output import PredictionAnswer, PredictionRefused
    from planner.planning import (
        local_for,
        resolve_deployment,
        simulate_latency,
        simulate_serve,
        simulate_throughput,
    )

    args = engine_args(case.engine, own=OWN)
    profile, remarks = found_gpu(case.gpu)  # before the model: a mistyped GPU should not wait for the hub
    resolved = load_model(case.model, weight_dtype=case.weight_dtype, revision=case.revision, refresh=case.refresh)
    version = version_for(case.engine_version, profile)
    local = local_for(path_text(case.calibration))
    remarks = (*remarks, *local.notes)
    basis = Basis(local.constants, draft_of(args))
    deployment = resolve_deployment(
        resolved.model, profile, args, version, offline=bench != "serve", basis=basis, calibration=local.calibration
    )
    check_load(workload)
    check_context(workload, deployment.config.max_model_len, resolved.resolved)
    if deployment.requests_held(workload.max_total_len) < 1:
        return PredictionRefused(deployment, workload, resolved, remarks)
    benches = {
        "serve": simulate_serve,
        "throughput": simulate_throughput,
        "latency": simulate_latency,
    }
    prediction = benches[bench](deployment, workload, **asked)
    return PredictionAnswer(bench, prediction, deployment, resolved, explain, remarks)


def _targets_ms(targets: Mapping[str, float]) -> dict[str, float]:
    for name, given in targets.items():
        limit_ms = typed("goodput", given, float)
        if not (isfinite(limit_ms) and limit_ms > 0):
            raise InputError(f"--goodput {name}:{limit_ms:g} is not a target in ms", hint="such as --goodput ttft:500")
    return {name: float(limit_ms) for name, limit_ms in targets.items()}
