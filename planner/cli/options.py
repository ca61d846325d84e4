"""Flags that several commands share. Those of the load carry the names of ``vllm bench``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from planner.planning import defaults


class Format(StrEnum):
    """How data is printed on stdout."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"


class Goal(StrEnum):
    """What is best."""

    min_latency = "min-latency"
    max_throughput = "max-throughput"
    balanced = "balanced"


class WorkloadName(StrEnum):
    """Loads that have a name."""

    chat = "chat"
    rag = "rag"
    summarise = "summarise"
    code = "code"
    agent = "agent"
    reasoning = "reasoning"


LOAD = "Load (flags of vllm bench)"
TARGETS = "Targets"


def _target(what: str) -> Any:
    return typer.Option(metavar="MS", rich_help_panel=TARGETS, help=f"{what} may be so long, ms.")


ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Hub id, folder with a config.json, or a config.json.")
]
ModelOrDefault = Annotated[str, typer.Argument(metavar="[MODEL]", help="Hub id, folder or config.json.")]
Gpu = Annotated[str, typer.Option("--gpu", metavar="GPU", help="Profile id, alias or file; 'local'.")]
Gpus = Annotated[
    list[str], typer.Option("--gpu", metavar="GPU", help="Profile id, alias or file; repeatable; 'all', 'local'.")
]
GpusOrDefault = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="GPU",
        help=f"Profile id, alias or file; repeatable; 'all'. Default: {' '.join(defaults.GPUS)}.",
    ),
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
    int, typer.Option("--num-prompts", min=1, max=defaults.MOST_PROMPTS, rich_help_panel=LOAD, help="Requests.")
]
BatchSize = Annotated[
    int,
    typer.Option(
        "--batch-size", min=1, max=defaults.MOST_PROMPTS, rich_help_panel=LOAD, help="Prompts of the one batch."
    ),
]
MaxConcurrency = Annotated[
    int | None, typer.Option("--max-concurrency", min=1, rich_help_panel=LOAD, help="Most requests in flight.")
]
RequestRate = Annotated[float, typer.Option("--request-rate", rich_help_panel=LOAD, help="Requests per second.")]
FleetRate = Annotated[
    float | None,
    typer.Option("--request-rate", rich_help_panel=LOAD, help="Requests per second of all servers together."),
]
Workload = Annotated[
    WorkloadName | None,
    typer.Option("--workload", rich_help_panel=LOAD, help="Lengths by name, instead of numbers."),
]
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

Ttft = Annotated[float | None, _target("Time to first token")]
Tpot = Annotated[float | None, _target("Time per output token after the first")]
Itl = Annotated[float | None, _target("Gap between tokens")]
E2el = Annotated[float | None, _target("End-to-end latency")]
Optimistic = Annotated[
    bool,
    typer.Option(
        "--optimistic", rich_help_panel=TARGETS, help="Hold the targets against the better end of the interval."
    ),
]

Price = Annotated[
    list[str] | None,
    typer.Option("--price", metavar="GPU=USD", help="USD per GPU and hour, instead of the profile's; repeatable."),
]
