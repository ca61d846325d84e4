"""``planner predict``: how fast, in the words of ``vllm bench``."""

from typing import TYPE_CHECKING

import typer

from planner.cli import options as flag
from planner.cli.engine_flags import takes_engine_flags
from planner.cli.options import Format
from planner.cli.streams import show

if TYPE_CHECKING:
    from planner.engine import EngineArgs


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(help="How fast, in the words of vllm bench.", rich_markup_mode=None)
    group.command("serve", help="Client against a server: vllm bench serve.")(serve)
    group.command("throughput", help="Offline, all prompts at once: vllm bench throughput.")(throughput)
    group.command("latency", help="One batch from start to end: vllm bench latency.")(latency)
    app.add_typer(group, name="predict")


@takes_engine_flags()
def serve(
    *,
    model: flag.ModelArgument,
    gpu: flag.Gpu,
    input_len: flag.RandomInputLen = 1024,
    output_len: flag.RandomOutputLen = 128,
    num_prompts: flag.NumPrompts = 1000,
    max_concurrency: flag.MaxConcurrency = None,
    request_rate: flag.RequestRate = float("inf"),
    burstiness: flag.Burstiness = 1.0,
    range_ratio: flag.RangeRatio = 0.0,
    seed: flag.Seed = 0,
    prefix_len: flag.RandomPrefixLen = 0,
    prefix_cache_hit_rate: flag.PrefixCacheHitRate = 0.0,
    percentiles: flag.Percentiles = "99",
    goodput: flag.Goodput = None,
    args: "EngineArgs",
    weight_dtype: flag.WeightDtype = None,
    engine_version: flag.EngineVersionOption = None,
    calibration: flag.Calibration = None,
    explain: flag.Explain = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0, or 1 when the KV cache does not hold one request of the load."""
    from planner.api.flags import flags_of
    from planner.api.predict import predict_serve
    from planner.cli import inputs

    answer = predict_serve(
        model,
        gpu,
        input_len=input_len,
        output_len=output_len,
        num_prompts=num_prompts,
        max_concurrency=max_concurrency,
        request_rate=request_rate,
        burstiness=burstiness,
        random_range_ratio=range_ratio,
        seed=seed,
        random_prefix_len=prefix_len,
        prefix_cache_hit_rate=prefix_cache_hit_rate,
        metric_percentiles=inputs.percentiles(percentiles),
        goodput=inputs.goodput(goodput or ()),
        weight_dtype=weight_dtype,
        engine_version=engine_version,
        calibration=calibration,
        explain=explain,
        revision=revision,
        refresh=refresh,
        **flags_of(args),
    )
    return show(answer, output)


@takes_engine_flags()
def throughput(
    *,
    model: flag.ModelArgument,
    gpu: flag.Gpu,
    input_len: flag.InputLen,
    output_len: flag.OutputLen,
    num_prompts: flag.NumPrompts = 1000,
    seed: flag.Seed = 0,
    prefix_len: flag.RandomPrefixLen = 0,
    prefix_cache_hit_rate: flag.PrefixCacheHitRate = 0.0,
    args: "EngineArgs",
    weight_dtype: flag.WeightDtype = None,
    engine_version: flag.EngineVersionOption = None,
    calibration: flag.Calibration = None,
    explain: flag.Explain = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0, or 1 when the KV cache does not hold one request of the load."""
    from planner.api.flags import flags_of
    from planner.api.predict import predict_throughput

    answer = predict_throughput(
        model,
        gpu,
        input_len=input_len,
        output_len=output_len,
        num_prompts=num_prompts,
        seed=seed,
        random_prefix_len=prefix_len,
        prefix_cache_hit_rate=prefix_cache_hit_rate,
        weight_dtype=weight_dtype,
        engine_version=engine_version,
        calibration=calibration,
        explain=explain,
        revision=revision,
        refresh=refresh,
        **flags_of(args),
    )
    return show(answer, output)


@takes_engine_flags()
def latency(
    *,
    model: flag.ModelArgument,
    gpu: flag.Gpu,
    input_len: flag.InputLen = 32,
    output_len: flag.OutputLen = 128,
    batch_size: flag.BatchSize = 8,
    args: "EngineArgs",
    weight_dtype: flag.WeightDtype = None,
    engine_version: flag.EngineVersionOption = None,
    calibration: flag.Calibration = None,
    explain: flag.Explain = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0, or 1 when the KV cache does not hold one request of the load."""
    from planner.api.flags import flags_of
    from planner.api.predict import predict_latency

    answer = predict_latency(
        model,
        gpu,
        input_len=input_len,
        output_len=output_len,
        batch_size=batch_size,
        weight_dtype=weight_dtype,
        engine_version=engine_version,
        calibration=calibration,
        explain=explain,
        revision=revision,
        refresh=refresh,
        **flags_of(args),
    )
    return show(answer, output)
