"""How fast? ``planner predict``, in the words of ``vllm bench``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from planner.commands.declare import Option, command, keywords
from planner.commands.load import (
    check_context,
    check_load,
    fields_of,
    load_of,
    refuse_contradictions,
    rivals,
    with_fields,
)
from planner.commands.options import (
    LOAD,
    TIME,
    BatchSize,
    Burstiness,
    Calibration,
    Classes,
    EngineVersion,
    Explain,
    Gpu,
    InputLen,
    MaxConcurrency,
    Model,
    NetworkGbPerS,
    NumPrompts,
    OutputLen,
    PrefixCacheHitRate,
    PrefixLen,
    RandomInputLen,
    RandomOutputLen,
    RangeRatio,
    Refresh,
    RequestRate,
    Revision,
    Seed,
    Timeout,
    WeightDtype,
    WorkloadName,
)
from planner.errors import InputError
from planner.planning import Serving, engine_args, typed

if TYPE_CHECKING:
    from planner.commands.options import PathName
    from planner.output import Bench, PredictionAnswer, PredictionRefused
    from planner.workload import Load


def _percentiles(text: str) -> tuple[float, ...]:
    """The numbers of ``50,90,99``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(
            f"--metric-percentiles {text!r} is not a list of numbers", hint="for example 50,90,99"
        ) from error


def _targets_of(words: Sequence[str]) -> dict[str, float]:
    """Targets in ms by metric, from ``ttft:500``."""
    targets: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition(":")
        try:
            targets[name] = float(text)
        except ValueError as error:
            raise _no_target(word) from error
    return targets


Percentiles = Annotated[
    Sequence[float],
    Option(kind=str, read=_percentiles, default="99", panel=LOAD, help="Percentiles to report, such as 50,90,99."),
]
Trace = Annotated[
    "PathName | None",
    Option(
        kind=Path,
        metavar="FILE",
        panel=LOAD,
        help="Instead of lengths: recorded requests, at their own pace or at --request-rate.",
    ),
]
Goodput = Annotated[
    Mapping[str, float] | None,
    Option(
        kind=list[str],
        read=_targets_of,
        metavar="NAME:MS",
        panel=LOAD,
        help="Target of ttft, tpot or e2el, in ms, that counts a request as good. Repeatable.",
    ),
]


#: Of ``vllm bench serve``: a value that differs was said.
DEFAULTS = {
    "input_len": 1024, "output_len": 128, "random_range_ratio": 0.0, "burstiness": 1.0, "seed": 0, "num_prompts": 1000
}  # fmt: skip


@command(
    "predict serve", help="A client against a server: vllm bench serve.", engine=TIME, rivals=rivals(planned=False)
)
def predict_serve(
    model: Model,
    gpu: Gpu,
    *,
    input_len: RandomInputLen = 1024,
    output_len: RandomOutputLen = 128,
    num_prompts: NumPrompts = 1000,
    max_concurrency: MaxConcurrency = None,
    request_rate: RequestRate = inf,
    burstiness: Burstiness = 1.0,
    random_range_ratio: RangeRatio = 0.0,
    seed: Seed = 0,
    random_prefix_len: PrefixLen = 0,
    prefix_cache_hit_rate: PrefixCacheHitRate = 0.0,
    workload: WorkloadName = None,
    trace: Trace = None,
    classes: Classes = (),
    metric_percentiles: Percentiles = (99,),
    goodput: Goodput = None,
    network_gb_per_s: NetworkGbPerS = None,
    weight_dtype: WeightDtype = None,
    engine_version: EngineVersion = None,
    calibration: Calibration = None,
    explain: Explain = False,
    revision: Revision = None,
    refresh: Refresh = False,
    timeout: Timeout | None = None,
    **engine: Any,
) -> PredictionAnswer | PredictionRefused:
    """What ``vllm bench serve --dataset-name random`` would measure of a server of ``model`` on ``gpu``.

    Lengths are tokens, ``workload`` names usual ones instead, ``request_rate`` is requests per second (infinite:
    all at once), ``goodput`` holds targets in ms by metric (``{"ttft": 500}``). ``classes`` (``Load.of_class("chat",
    4, 1024, 256)``: a name, requests per second, tokens in and out) are sent together; those without targets of their
    own have the ``goodput``. ``engine`` and the other keywords are those of ``check_fit``.

    ``answer.result`` has the keys of the bench's result file (``mean_ttft_ms``, ``output_throughput`` in tokens/s, ...)
    and beside each figure ``KEY_lo`` and ``KEY_hi``, its 90 % interval. Where the KV cache does not hold one request,
    ``answer.ok`` is false and ``answer.reason`` says so. Raises IllegalPlanError for settings that vLLM refuses,
    InputError for a load that it would refuse or that does not end, and what ``load_model`` and ``load_gpu`` raise.
    """
    engine_args(engine, own=keywords(predict_serve))
    lengths: dict[str, Any] = {
        "input_len": input_len,
        "output_len": output_len,
        "random_range_ratio": random_range_ratio,
    }
    rhythm: dict[str, Any] = {"burstiness": burstiness, "seed": seed, "num_prompts": num_prompts}
    sources: dict[str, Any] = {"workload": workload, "trace": trace, "classes": tuple(classes)}
    said = {name: value for name, value in (lengths | rhythm).items() if value != DEFAULTS[name]}
    rate = {"request_rate": request_rate} if request_rate != inf else {}
    refuse_contradictions({**sources, **said, **rate}, planned=False)
    load = load_of(
        **sources, **lengths, **rhythm, request_rate=request_rate, scheduling_policy=engine.get("scheduling_policy")
    )
    if load.drawn:  # the last ones of several turns, after those that have filled the cache
        load = load.share_of(1, most=num_prompts)
    load = with_fields(
        load, num_prompts=load.count, max_concurrency=max_concurrency, burstiness=burstiness,
        prefix_cache_hit_rate=prefix_cache_hit_rate, prefix_len=load.prefix_len or random_prefix_len,
    )  # fmt: skip
    serving = Serving(
        model, gpu, network_gb_per_s=network_gb_per_s, weight_dtype=weight_dtype, engine_version=engine_version,
        calibration=calibration, revision=revision, refresh=refresh, timeout=timeout, **engine,
    )  # fmt: skip
    asked: dict[str, Any] = {
        "percentiles": tuple(typed("metric_percentiles", one, float) for one in metric_percentiles),
        "goodput": _targets_ms(goodput or {}),
    }
    return _predict("serve", load, serving, explain=explain, **asked)


@command("predict throughput", help="Offline, all prompts at once: vllm bench throughput.", engine=TIME)
def predict_throughput(
    model: Model,
    gpu: Gpu,
    *,
    input_len: InputLen,
    output_len: OutputLen,
    num_prompts: NumPrompts = 1000,
    seed: Seed = 0,
    random_prefix_len: PrefixLen = 0,
    prefix_cache_hit_rate: PrefixCacheHitRate = 0.0,
    network_gb_per_s: NetworkGbPerS = None,
    weight_dtype: WeightDtype = None,
    engine_version: EngineVersion = None,
    calibration: Calibration = None,
    explain: Explain = False,
    revision: Revision = None,
    refresh: Refresh = False,
    timeout: Timeout | None = None,
    **engine: Any,
) -> PredictionAnswer | PredictionRefused:
    """What ``vllm bench throughput`` would measure: all prompts at once, without a server. See ``predict_serve``."""
    load = fields_of(
        input_len=input_len,
        output_len=output_len,
        num_prompts=num_prompts,
        seed=seed,
        prefix_len=random_prefix_len,
        prefix_cache_hit_rate=prefix_cache_hit_rate,
    )
    serving = Serving(
        model, gpu, network_gb_per_s=network_gb_per_s, weight_dtype=weight_dtype, engine_version=engine_version,
        calibration=calibration, revision=revision, refresh=refresh, timeout=timeout, **engine,
    )  # fmt: skip
    return _predict("throughput", load, serving, explain=explain)


@command("predict latency", help="One batch from start to end: vllm bench latency.", engine=TIME)
def predict_latency(
    model: Model,
    gpu: Gpu,
    *,
    input_len: InputLen = 32,
    output_len: OutputLen = 128,
    batch_size: BatchSize = 8,
    network_gb_per_s: NetworkGbPerS = None,
    weight_dtype: WeightDtype = None,
    engine_version: EngineVersion = None,
    calibration: Calibration = None,
    explain: Explain = False,
    revision: Revision = None,
    refresh: Refresh = False,
    timeout: Timeout | None = None,
    **engine: Any,
) -> PredictionAnswer | PredictionRefused:
    """What ``vllm bench latency`` would measure: seconds of one batch from start to end. See ``predict_serve``."""
    load = fields_of(input_len=input_len, output_len=output_len, num_prompts=batch_size)
    serving = Serving(
        model, gpu, network_gb_per_s=network_gb_per_s, weight_dtype=weight_dtype, engine_version=engine_version,
        calibration=calibration, revision=revision, refresh=refresh, timeout=timeout, **engine,
    )  # fmt: skip
    return _predict("latency", load, serving, explain=explain)


def _predict(
    bench: Bench,
    load: Load,
    serving: Serving,
    *,
    explain: bool,
    **asked: Any,
) -> PredictionAnswer | PredictionRefused:
    """Predict ``load``; ``asked`` is for the result of the bench."""
    from planner.output import PredictionAnswer, PredictionRefused

    resolved, notes = serving.resolved, (*serving.notes, *load.notes)
    deployment = serving.deployment if bench == "serve" else serving.offline
    check_load(load)
    check_context(load, deployment.config.max_model_len, resolved.resolved)
    if deployment.requests_held(load.longest_len) < 1:
        return PredictionRefused(deployment, load, resolved, notes)
    prediction = serving.predict(load, bench=bench, **asked)
    return PredictionAnswer.of(bench, prediction, deployment, resolved, explain, notes)


def _targets_ms(targets: Mapping[str, float]) -> dict[str, float]:
    limits_ms = {name: float(typed("goodput", given, float)) for name, given in targets.items()}
    for name, limit_ms in limits_ms.items():
        if not (isfinite(limit_ms) and limit_ms > 0):
            raise _no_target(f"{name}:{limit_ms:g}")
    return limits_ms


def _no_target(word: str) -> InputError:
    return InputError(f"--goodput {word!r} is not a target in ms", hint="for example --goodput ttft:500")
