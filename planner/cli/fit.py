"""``planner fit``: does the model fit?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from planner.cli import options as flag
from planner.cli.options import Format


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("fit", help="Does the model start on this GPU, and how many tokens will its KV cache hold?")(fit)


def fit(
    model: flag.ModelArgument,
    gpu: flag.Gpus,
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
    sweep: Annotated[bool, typer.Option("--sweep", help="Table over TP x precision x KV dtype.")] = False,
    explain: flag.Explain = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0 when it fits on every GPU asked for, 1 when it does not fit on one of them."""
    from planner import report
    from planner.cli.inputs import engine_version_for, gpu_profiles, model_as
    from planner.engine.config import EngineArgs
    from planner.fit import fit as fit_model
    from planner.fit import sweep as sweep_model

    profiles = gpu_profiles(gpu)  # before the model: a mistyped GPU should not wait for the hub
    resolved = model_as(model, weight_dtype, revision=revision, refresh=refresh)
    args = EngineArgs(
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
        enable_expert_parallel=enable_expert_parallel,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        gpu_memory_utilization=gpu_memory_utilization,
        block_size=block_size,
        enforce_eager=enforce_eager,
        allow_unvalidated=allow_unvalidated,
    )
    results: list[Any] = []
    for profile in profiles:
        version = engine_version_for(engine_version, profile)
        if sweep:
            results += sweep_model(resolved.model, profile, args, version, weight_dtypes=_precisions(resolved.model))
        else:
            results.append(fit_model(resolved.model, profile, args, version, requested_model=resolved.requested))
    report.print_fit(results, resolved, output, explain=explain, sweep=sweep)
    return 0 if all(result.fits for result in results) or sweep else 1


def _precisions(model: Any) -> tuple[str, ...]:
    """A 16-bit model is swept over the usual published precisions too; a quantised one is what it is."""
    return () if model.quantization.method else (model.dtype, "fp8", "int4-awq")
