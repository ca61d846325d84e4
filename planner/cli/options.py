"""Flags that several commands share. Engine flags carry vLLM's own names."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Format(StrEnum):
    """How data is printed on stdout."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"


ENGINE = "Engine (flags of vllm serve)"
LOAD = "Load (flags of vllm bench)"

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Hub id, folder with a config.json, or a config.json.")
]
Gpus = Annotated[list[str], typer.Option("--gpu", metavar="GPU", help="Profile id, alias or file; repeatable; 'all'.")]
OutputFormat = Annotated[Format, typer.Option("--format", help="How to print the data.")]
EngineVersionOption = Annotated[
    str | None,
    typer.Option("--engine-version", metavar="VERSION", help="vLLM version; default: newest with an image."),
]
Revision = Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")]
Refresh = Annotated[bool, typer.Option("--refresh", help="Ask the hub even where a local answer exists.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show the arithmetic.")]

TensorParallelSize = Annotated[
    int,
    typer.Option("--tensor-parallel-size", "-tp", min=1, rich_help_panel=ENGINE, help="GPUs that share each layer."),
]
PipelineParallelSize = Annotated[
    int,
    typer.Option("--pipeline-parallel-size", "-pp", min=1, rich_help_panel=ENGINE, help="Stages of layers."),
]
DataParallelSize = Annotated[
    int,
    typer.Option("--data-parallel-size", "-dp", min=1, rich_help_panel=ENGINE, help="Replicas of the engine."),
]
EnableExpertParallel = Annotated[
    bool, typer.Option("--enable-expert-parallel", rich_help_panel=ENGINE, help="Whole experts per rank.")
]
Dtype = Annotated[str, typer.Option("--dtype", rich_help_panel=ENGINE, help="auto, bfloat16, float16 or float32.")]
QuantizationOption = Annotated[
    str | None,
    typer.Option("--quantization", "-q", rich_help_panel=ENGINE, help="fp8 quantises at load time."),
]
KvCacheDtype = Annotated[str, typer.Option("--kv-cache-dtype", rich_help_panel=ENGINE, help="auto, fp8, bfloat16, ...")]
MaxModelLen = Annotated[
    int | None,
    typer.Option("--max-model-len", rich_help_panel=ENGINE, help="Context; default: the model's own."),
]
MaxNumSeqs = Annotated[int | None, typer.Option("--max-num-seqs", rich_help_panel=ENGINE, help="Largest batch.")]
MaxNumBatchedTokens = Annotated[
    int | None, typer.Option("--max-num-batched-tokens", rich_help_panel=ENGINE, help="Tokens of one step.")
]
GpuMemoryUtilization = Annotated[
    float | None,
    typer.Option("--gpu-memory-utilization", rich_help_panel=ENGINE, help="Share of memory to use."),
]
BlockSize = Annotated[int | None, typer.Option("--block-size", rich_help_panel=ENGINE, help="Tokens of a KV block.")]
EnforceEager = Annotated[bool, typer.Option("--enforce-eager", rich_help_panel=ENGINE, help="No CUDA/HIP graphs.")]
AllowUnvalidated = Annotated[
    bool,
    typer.Option("--allow-unvalidated", help="Plan what one source documents and another reports broken."),
]
WeightDtype = Annotated[
    str | None,
    typer.Option("--weight-dtype", help="Plan the usual checkpoint of this precision: fp8, mxfp4, int4-awq, ..."),
]
