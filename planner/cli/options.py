"""Flags that several commands share. Those of the load carry the names of ``vllm bench``."""

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


LOAD = "Load (flags of vllm bench)"
MOST_PROMPTS = 100_000  #: a replay takes seconds for so many; no benchmark sends more

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Hub id, folder with a config.json, or a config.json.")
]
Gpu = Annotated[str, typer.Option("--gpu", metavar="GPU", help="Profile id, alias or file; 'local'.")]
Gpus = Annotated[
    list[str], typer.Option("--gpu", metavar="GPU", help="Profile id, alias or file; repeatable; 'all', 'local'.")
]
OutputFormat = Annotated[Format, typer.Option("--format", help="How to print the data.")]
EngineVersionOption = Annotated[
    str | None,
    typer.Option(
        "--engine-version", metavar="VERSION", help="vLLM version, or date of a build. Default: newest with an image."
    ),
]
Revision = Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")]
Refresh = Annotated[bool, typer.Option("--refresh", help="Ask the hub even where a local answer exists.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show the arithmetic.")]
WeightDtype = Annotated[
    str | None,
    typer.Option("--weight-dtype", help="Plan the usual checkpoint of this precision: fp8, mxfp4, int4-awq, ..."),
]

Calibration = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="FILE|none",
        help="A file of planner calibrate, or none: as shipped. Default: this user's own, where it exists.",
    ),
]

InputLen = Annotated[int, typer.Option("--input-len", rich_help_panel=LOAD, help="Prompt tokens.")]
OutputLen = Annotated[int, typer.Option("--output-len", rich_help_panel=LOAD, help="Output tokens.")]
RandomInputLen = Annotated[
    int, typer.Option("--random-input-len", "--input-len", rich_help_panel=LOAD, help="Prompt tokens.")
]
RandomOutputLen = Annotated[
    int, typer.Option("--random-output-len", "--output-len", rich_help_panel=LOAD, help="Output tokens.")
]
RandomPrefixLen = Annotated[
    int,
    typer.Option("--random-prefix-len", min=0, rich_help_panel=LOAD, help="Tokens that all prompts begin with."),
]
PrefixCacheHitRate = Annotated[
    float,
    typer.Option(
        "--prefix-cache-hit-rate", rich_help_panel=LOAD, help="Share of each prompt that is in the prefix cache."
    ),
]
NumPrompts = Annotated[
    int, typer.Option("--num-prompts", min=1, max=MOST_PROMPTS, rich_help_panel=LOAD, help="Requests.")
]
BatchSize = Annotated[
    int, typer.Option("--batch-size", min=1, max=MOST_PROMPTS, rich_help_panel=LOAD, help="Prompts of the one batch.")
]
MaxConcurrency = Annotated[
    int | None, typer.Option("--max-concurrency", min=1, rich_help_panel=LOAD, help="Most requests in flight.")
]
RequestRate = Annotated[float, typer.Option("--request-rate", rich_help_panel=LOAD, help="Requests per second.")]
Burstiness = Annotated[float, typer.Option("--burstiness", rich_help_panel=LOAD, help="1 is Poisson.")]
RangeRatio = Annotated[
    float, typer.Option("--random-range-ratio", rich_help_panel=LOAD, help="Lengths vary by this share.")
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, max=2**32 - 1, rich_help_panel=LOAD, help="Of lengths and arrivals.")
]
Percentiles = Annotated[str, typer.Option("--metric-percentiles", rich_help_panel=LOAD, help="Such as 50,90,99.")]
Goodput = Annotated[
    list[str] | None,
    typer.Option("--goodput", metavar="NAME:MS", rich_help_panel=LOAD, help="ttft, tpot or e2el target; repeatable."),
]
