"""``planner predict``: how fast, in the words of ``vllm bench``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import options as flag
from planner.cli.options import LOAD, Format

if TYPE_CHECKING:
    from planner.model.resolve import ResolvedModel
    from planner.predict import Deployment

Gpu = Annotated[str, typer.Option("--gpu", metavar="GPU", help="Profile id, alias or file.")]
InputLen = Annotated[int, typer.Option("--input-len", rich_help_panel=LOAD, help="Prompt tokens.")]
OutputLen = Annotated[int, typer.Option("--output-len", rich_help_panel=LOAD, help="Output tokens.")]
RandomInputLen = Annotated[
    int, typer.Option("--random-input-len", "--input-len", rich_help_panel=LOAD, help="Prompt tokens.")
]
RandomOutputLen = Annotated[
    int, typer.Option("--random-output-len", "--output-len", rich_help_panel=LOAD, help="Output tokens.")
]
NumPrompts = Annotated[int, typer.Option("--num-prompts", rich_help_panel=LOAD, help="Requests.")]
BatchSize = Annotated[int, typer.Option("--batch-size", rich_help_panel=LOAD, help="Prompts of the one batch.")]
MaxConcurrency = Annotated[
    int | None, typer.Option("--max-concurrency", rich_help_panel=LOAD, help="Most requests in flight.")
]
RequestRate = Annotated[float, typer.Option("--request-rate", rich_help_panel=LOAD, help="Requests per second.")]
Burstiness = Annotated[float, typer.Option("--burstiness", rich_help_panel=LOAD, help="1 is Poisson.")]
RangeRatio = Annotated[
    float, typer.Option("--random-range-ratio", rich_help_panel=LOAD, help="Lengths vary by this share.")
]
Seed = Annotated[int, typer.Option("--seed", rich_help_panel=LOAD)]
Percentiles = Annotated[str, typer.Option("--metric-percentiles", rich_help_panel=LOAD, help="Such as 50,90,99.")]


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(help="How fast, in the words of vllm bench.", no_args_is_help=True, rich_markup_mode=None)
    group.command("serve", help="Client against a server: vllm bench serve.")(serve)
    group.command("throughput", help="Offline, all prompts at once: vllm bench throughput.")(throughput)
    group.command("latency", help="One batch from start to end: vllm bench latency.")(latency)
    app.add_typer(group, name="predict")


def serve(
    model: flag.ModelArgument,
    gpu: Gpu,
    input_len: RandomInputLen = 1024,
    output_len: RandomOutputLen = 128,
    num_prompts: NumPrompts = 1000,
    max_concurrency: MaxConcurrency = None,
    request_rate: RequestRate = float("inf"),
    burstiness: Burstiness = 1.0,
    range_ratio: RangeRatio = 0.0,
    seed: Seed = 0,
    percentiles: Percentiles = "99",
    tensor_parallel_size: flag.TensorParallelSize = 1,
    pipeline_parallel_size: flag.PipelineParallelSize = 1,
    data_parallel_size: flag.DataParallelSize = 1,
    enable_expert_parallel: flag.EnableExpertParallel = False,
    dtype: flag.Dtype = "auto",
    quantization: flag.QuantizationOption = None,
    kv_cache_dtype: flag.KvCacheDtype = "auto",
    max_model_len: flag.MaxModelLen = None,
    max_num_seqs: flag.MaxNumSeqs = None,
    max_num_batched_tokens: flag.MaxNumBatchedTokens = None,
    gpu_memory_utilization: flag.GpuMemoryUtilization = None,
    block_size: flag.BlockSize = None,
    enforce_eager: flag.EnforceEager = False,
    weight_dtype: flag.WeightDtype = None,
    engine_version: flag.EngineVersionOption = None,
    allow_unvalidated: flag.AllowUnvalidated = False,
    explain: flag.Explain = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0, or 1 when the load does not fit the KV cache at all."""
    from planner import report
    from planner.predict import predict_serve
    from planner.workload import Workload

    workload = Workload(
        input_len, output_len, num_prompts, max_concurrency, request_rate, burstiness, range_ratio, seed
    )
    resolved, deployment = _deployed(locals(), model, gpu, offline=False)
    if not report.can_serve(deployment, workload):
        return 1
    result = predict_serve(deployment, workload, percentiles=_numbers(percentiles))
    report.print_prediction("serve", result, deployment, resolved, output, explain=explain)
    return 0


def throughput(
    model: flag.ModelArgument,
    gpu: Gpu,
    input_len: InputLen,
    output_len: OutputLen,
    num_prompts: NumPrompts = 1000,
    seed: Seed = 0,
    tensor_parallel_size: flag.TensorParallelSize = 1,
    pipeline_parallel_size: flag.PipelineParallelSize = 1,
    data_parallel_size: flag.DataParallelSize = 1,
    enable_expert_parallel: flag.EnableExpertParallel = False,
    dtype: flag.Dtype = "auto",
    quantization: flag.QuantizationOption = None,
    kv_cache_dtype: flag.KvCacheDtype = "auto",
    max_model_len: flag.MaxModelLen = None,
    max_num_seqs: flag.MaxNumSeqs = None,
    max_num_batched_tokens: flag.MaxNumBatchedTokens = None,
    gpu_memory_utilization: flag.GpuMemoryUtilization = None,
    block_size: flag.BlockSize = None,
    enforce_eager: flag.EnforceEager = False,
    weight_dtype: flag.WeightDtype = None,
    engine_version: flag.EngineVersionOption = None,
    allow_unvalidated: flag.AllowUnvalidated = False,
    explain: flag.Explain = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0, or 1 when the load does not fit the KV cache at all."""
    from planner import report
    from planner.predict import predict_throughput
    from planner.workload import Workload

    workload = Workload(input_len, output_len, num_prompts, seed=seed)
    resolved, deployment = _deployed(locals(), model, gpu, offline=True)
    if not report.can_serve(deployment, workload):
        return 1
    result = predict_throughput(deployment, workload)
    report.print_prediction("throughput", result, deployment, resolved, output, explain=explain)
    return 0


def latency(
    model: flag.ModelArgument,
    gpu: Gpu,
    input_len: InputLen = 32,
    output_len: OutputLen = 128,
    batch_size: BatchSize = 8,
    tensor_parallel_size: flag.TensorParallelSize = 1,
    pipeline_parallel_size: flag.PipelineParallelSize = 1,
    data_parallel_size: flag.DataParallelSize = 1,
    enable_expert_parallel: flag.EnableExpertParallel = False,
    dtype: flag.Dtype = "auto",
    quantization: flag.QuantizationOption = None,
    kv_cache_dtype: flag.KvCacheDtype = "auto",
    max_model_len: flag.MaxModelLen = None,
    max_num_seqs: flag.MaxNumSeqs = None,
    max_num_batched_tokens: flag.MaxNumBatchedTokens = None,
    gpu_memory_utilization: flag.GpuMemoryUtilization = None,
    block_size: flag.BlockSize = None,
    enforce_eager: flag.EnforceEager = False,
    weight_dtype: flag.WeightDtype = None,
    engine_version: flag.EngineVersionOption = None,
    allow_unvalidated: flag.AllowUnvalidated = False,
    explain: flag.Explain = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0, or 1 when the load does not fit the KV cache at all."""
    from planner import report
    from planner.predict import predict_latency
    from planner.workload import Workload

    workload = Workload(input_len, output_len, batch_size)
    resolved, deployment = _deployed(locals(), model, gpu, offline=True)
    if not report.can_serve(deployment, workload):
        return 1
    result = predict_latency(deployment, workload)
    report.print_prediction("latency", result, deployment, resolved, output, explain=explain)
    return 0


def _deployed(given: dict[str, Any], model: str, gpu: str, *, offline: bool) -> tuple[ResolvedModel, Deployment]:
    """The model and the engine that the flags in ``given`` describe."""
    from dataclasses import fields

    from planner.cli.inputs import engine_version_for, model_as
    from planner.engine.config import EngineArgs
    from planner.hardware import load_profile
    from planner.predict import deploy

    profile = load_profile(gpu)  # before the model: a mistyped GPU should not wait for the hub
    resolved = model_as(model, given["weight_dtype"], revision=given["revision"], refresh=given["refresh"])
    args = EngineArgs(**{field.name: given[field.name] for field in fields(EngineArgs) if field.name in given})
    version = engine_version_for(given["engine_version"], profile)
    return resolved, deploy(resolved.model, profile, args, version, offline=offline)


def _numbers(text: str) -> tuple[float, ...]:
    from planner.errors import InputError

    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(
            f"--metric-percentiles {text!r} is not a list of numbers", hint="for example 50,90,99"
        ) from error
