"""Speed of one server: ``planner predict``, with the flags and the output of ``vllm bench``."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval

from planner import evidence, output, planning
from planner.commands import options as opt
from planner.commands.declare import COMMANDS, Option, command, taken
from planner.commands.load import load_of, refuse_contradictions, rivals
from planner.errors import InputError
from planner.resources import package_dir, tables_of
from planner.workload import Load


def _targets_of(words: Sequence[str]) -> dict[str, float]:
    if len({word.partition(":")[0] for word in words}) < len(words):
        raise InputError(f"--goodput {' '.join(words)} gives a target twice", hint="give each once")
    try:
        return {name: float(text) for name, _, text in (word.partition(":") for word in words)}
    except ValueError as error:
        cause = f"--goodput {' '.join(words)!r} is not a target in ms"
        raise InputError(cause, hint="for example --goodput ttft:500") from error


Ms = Annotated[float, Interval(gt=0, lt=inf)]
_TRACE = Option(kind=Path, metavar="FILE", panel=opt.LOAD, help=opt.HELP["trace"])
_TARGETS = Option(kind=list[str], read=_targets_of, metavar="NAME:MS", panel=opt.LOAD, help=opt.HELP["goodput"])
_percentiles = partial(opt.numbers, "--metric-percentiles", example="50,90,99")
_PERCENTILES = Option(kind=str, read=_percentiles, default="99", panel=opt.LOAD, help=opt.HELP["percentiles"])


class ServeLoad:
    """The load of ``vllm bench serve``, with its defaults."""

    input_len: opt.RandomInputLen = 1024
    output_len: opt.RandomOutputLen = 128
    num_prompts: opt.NumPrompts = 1000
    max_concurrency: opt.MaxConcurrency = None
    request_rate: Annotated[float, Option(panel=opt.LOAD, help="Requests per second.")] = inf
    burstiness: opt.Burstiness = 1.0
    random_range_ratio: opt.RangeRatio = 0.0
    seed: opt.Seed = 0
    random_prefix_len: opt.PrefixLen = 0
    prefix_cache_hit_rate: opt.PrefixCacheHitRate = 0.0
    workload: opt.WorkloadName = None
    trace: Annotated[opt.PathName | None, _TRACE] = None
    classes: opt.Classes = ()


@command(
    "predict serve", help="A client against a server: vllm bench serve.", groups=(ServeLoad, *opt.SERVING),
    engine=opt.TIME, rivals=rivals(planned=False),
)  # fmt: skip
def predict_serve(
    model: opt.Model,
    gpu: opt.Gpu,
    *,
    metric_percentiles: Annotated[tuple[float, ...], _PERCENTILES] = (99,),
    goodput: Annotated[dict[str, Ms] | None, _TARGETS] = None,
    explain: opt.Explain = False,
    **options: Any,
) -> "output.PredictionAnswer | output.PredictionRefused":
    """Predict what ``vllm bench serve --dataset-name random`` would measure of a server of ``model`` on ``gpu``.

    Lengths are tokens, ``request_rate`` is requests per second (infinite: all at once), ``goodput`` has targets in ms.
    ``answer.result`` has the keys of the bench's result file, and ``KEY_lo`` and ``KEY_hi``, the 90 % interval.
    Where the KV cache does not hold one request, ``answer.ok`` is false. Raises InputError for an impossible load."""
    given = taken(options, ServeLoad)
    refuse_contradictions(given, planned=False)
    fields = {"max_concurrency": given.pop("max_concurrency", None), "burstiness": given.get("burstiness", 1.0)}
    fields["prefix_cache_hit_rate"] = given.pop("prefix_cache_hit_rate", 0.0)
    prompts = given.get("num_prompts")
    given = {"output_len": ServeLoad.output_len, "num_prompts": ServeLoad.num_prompts} | given
    load = load_of(**given, scheduling_policy=options.get("scheduling_policy"))
    if load.drawn:  # the last ones of several turns, after those that have filled the cache
        load = load.at_rate(load.request_rate, prompts) if prompts else load.share_of(1)
    load = replace(load, num_prompts=load.count, **fields)
    asked = {"percentiles": metric_percentiles, "goodput": goodput or {}}
    return _predict("serve", load, planning.Serving(model, gpu, **options), explain, **asked)


@command(
    "predict throughput", help="Offline, all prompts at once: vllm bench throughput.", groups=opt.SERVING,
    engine=opt.TIME,
)  # fmt: skip
def predict_throughput(
    model: opt.Model, gpu: opt.Gpu, *, input_len: opt.InputLen, output_len: opt.OutputLen,
    num_prompts: opt.NumPrompts = 1000, seed: opt.Seed = 0, random_prefix_len: opt.PrefixLen = 0,
    prefix_cache_hit_rate: opt.PrefixCacheHitRate = 0.0, explain: opt.Explain = False, **options: Any,
) -> "output.PredictionAnswer | output.PredictionRefused":  # fmt: skip
    """Predict what ``vllm bench throughput`` would measure: all prompts at once, without a server."""
    load = Load(
        input_len, output_len, num_prompts, seed=seed or 0, prefix_len=random_prefix_len,
        prefix_cache_hit_rate=prefix_cache_hit_rate,
    )  # fmt: skip
    return _predict("throughput", load, planning.Serving(model, gpu, **options), explain)


@command("predict latency", help="One batch end to end: vllm bench latency.", groups=opt.SERVING, engine=opt.TIME)
def predict_latency(
    model: opt.Model, gpu: opt.Gpu, *, input_len: opt.InputLen = 32, output_len: opt.OutputLen = 128,
    batch_size: Annotated[int, Interval(ge=1), Option(panel=opt.LOAD, help="Prompts of the one batch.")] = 8,
    explain: opt.Explain = False, **options: Any,
) -> "output.PredictionAnswer | output.PredictionRefused":  # fmt: skip
    """Predict what ``vllm bench latency`` would measure: seconds of one batch from start to end."""
    load = Load(input_len, output_len, batch_size)
    return _predict("latency", load, planning.Serving(model, gpu, **options), explain)


def _predict(
    bench: "planning.Bench", load: Load, serving: "planning.Serving", explain: bool, **asked: Any
) -> "output.PredictionAnswer | output.PredictionRefused":
    resolved, notes = serving.resolved, (*serving.notes, *load.notes)
    deployment = serving.engine_of(bench)
    planning.check_load(load, deployment.config.max_model_len, resolved.resolved)
    if deployment.refusal(load):
        return output.PredictionRefused(deployment, load, resolved, remarks=notes)
    if bench == "latency" and deployment.resent(load) is not load:
        notes += (f"vllm bench latency {deployment.config.version} times prompts that its warm-up left in the cache",)
    prediction = serving.predict(load, bench=bench, **asked)
    near = evidence.nearest_runs(deployment, load, prediction.result, bench, serving.local) if explain else ()
    shown: dict[str, Any] = {"explain": explain, "remarks": notes, "nearest": tuple(near)}
    return output.PredictionAnswer.of(bench, prediction, deployment, resolved, **shown)


def of_bench(words: Sequence[str]) -> list[str]:
    """The words in whole, without those that change no figure, which a note names. InputError for the unsimulated."""
    tables, kept, left = tables_of(package_dir("commands") / "bench.toml"), list[str](), list[str]()
    ignored, declared = (*tables["options"], *tables["switches"]), COMMANDS.get(" ".join(words[:2]))
    parameters = declared.parameters.values() if declared else ()
    names = (name for one in parameters for name in one.option.names or (one.flag,))
    known = {*ignored, *tables["refused"], *"/".join(names).split("/")}
    if "--" in words:
        raise InputError("predict takes the options of a line", hint="planner check --gpu GPU -- LINE reads it whole")
    rest = iter(words)
    for word in rest:
        typed, equals, value = word.partition("=")
        dashed = typed.replace("_", "-")  # as vLLM's parser, which takes a beginning for the one option that has it
        meant = [dashed] if dashed in known else [name for name in known if name.startswith(dashed)]
        flag = meant[0] if typed.startswith("--") and len(meant) == 1 else typed
        if flag in ("--model", *tables["options"]):
            value = value or next(rest, "")
        if flag in tables["refused"] and value != "random":
            raise InputError(f"{f'{flag} {value}'.strip()} is not simulated", hint=tables["refused"][flag])
        if flag in ignored:
            left.append(flag)
        else:
            kept.append(value if flag == "--model" else f"{flag}{equals}{value}")
    if left:
        output.note(f"note: no effect on the prediction: {', '.join(left)}")
    return kept
