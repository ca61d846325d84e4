"""How the parameters of the commands are typed. The load has the names of ``vllm bench``.

An option that one command alone has stands beside that command.
"""

from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any, Literal

from planner.commands.completion import gpus, models
from planner.commands.declare import Argument, Option, Parameter
from planner.planning import defaults

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from planner.commands.inputs import GpuName, ModelName
    from planner.workload import Load

LOAD = "Load (flags of vllm bench)"
TARGETS = "Targets"

FormatName = Literal["table", "json", "csv", "markdown"]
_FORMAT = Option(help="Form of the data on stdout.")
Format = Annotated[FormatName, _FORMAT]
FORMAT = Parameter("format", FormatName, "table", _FORMAT)
#: A path, as text or as an object.
PathName = str | PathLike[str]

# --- What is planned for

Model = Annotated[
    "ModelName",
    Argument(
        kind=str, metavar="MODEL", autocompletion=models, help="Hub id, folder with a config.json, or a config.json."
    ),
]
ModelOrDefault = Annotated[
    "ModelName",
    Argument(
        kind=str, metavar="[MODEL]", autocompletion=models, help="Hub id, folder with a config.json, or a config.json."
    ),
]
Gpu = Annotated[
    "GpuName",
    Option(kind=str, metavar="GPU", autocompletion=gpus, help="Profile id, alias or file; or 'local'."),
]
Gpus = Annotated[
    "GpuName | Iterable[GpuName]",
    Option(
        kind=list[str],
        metavar="GPU",
        autocompletion=gpus,
        help="Profile id, alias or file; 'all'; or 'local'. Repeatable, or with commas.",
    ),
]
GpusOrDefault = Annotated[
    "GpuName | Iterable[GpuName]",
    Option(
        kind=list[str],
        metavar="GPU",
        autocompletion=gpus,
        help="Profile id, alias or file; 'all'; or 'local'. Repeatable, or with commas. "
        f"Default: {' '.join(defaults.GPUS)}.",
    ),
]
NetworkGbPerS = Annotated[
    float | None,
    Option(
        "--network-gb-per-s",
        metavar="GB/S",
        help="What one GPU has of the network between nodes: 50 for an adapter of 400 Gbit/s for each GPU. "
        "Default: the profile's.",
    ),
]
WeightDtype = Annotated[
    str | None, Option(help="Plan the usual checkpoint of this precision: fp8, mxfp4, int4-awq, ...")
]
EngineVersion = Annotated[
    str | None,
    Option(metavar="VERSION", help="vLLM version, or date of a build. Default: the newest with an image for the GPU."),
]
Calibration = Annotated[
    PathName | None,
    Option(
        kind=str,
        metavar="FILE|none",
        help="File of planner calibrate, or none for the fits as shipped. Default: your own fits, if there are any.",
    ),
]
Revision = Annotated[str | None, Option(help="Branch, tag or commit on the hub.")]
Refresh = Annotated[bool, Option(help="Ask the hub even if the answer is known locally.")]
Timeout = Annotated[
    float, Option(min=0, metavar="S", help="Seconds for all that the hub is asked about a model. Default: 30.")
]
Explain = Annotated[bool, Option(help="Say everything: all reasons, the whole tables, the arithmetic.")]
Price = Annotated[
    "Mapping[str, float] | Sequence[str]",
    Option(kind=list[str], metavar="GPU=USD", help="USD per GPU and hour, instead of the profile's. Repeatable."),
]
Force = Annotated[bool, Option(help="Write into a folder that exists.")]

# --- The load


def _tokens(what: str, *names: str) -> Any:
    return Option(*names, panel=LOAD, default=defaults.LEN if names else None, help=f"{what} tokens.")


InputLen = Annotated[int, _tokens("Prompt")]
OutputLen = Annotated[int, _tokens("Output")]
RandomInputLen = Annotated[int, _tokens("Prompt", "--random-input-len", "--input-len")]
RandomOutputLen = Annotated[int, _tokens("Output", "--random-output-len", "--output-len")]
RangeRatio = Annotated[
    float, Option(panel=LOAD, default=0.0, help="Lengths vary by this share in both directions, such as 0.2.")
]
PrefixLen = Annotated[int, Option(min=0, panel=LOAD, help="Tokens that all prompts begin with.")]
PrefixCacheHitRate = Annotated[float, Option(panel=LOAD, help="Share of each prompt that is in the prefix cache.")]
WorkloadName = Annotated[
    str | None,
    Option(
        kind=Literal["chat", "rag", "summarise", "code", "agent", "reasoning", "multi-turn-chat", "coding-agent"],
        panel=LOAD,
        help="A workload by name, instead of lengths.",
    ),
]
RouterName = Annotated[
    Literal["round-robin", "least-loaded", "prefix-aware"] | None,
    Option(panel=LOAD, help="Which server gets which request. Default: round-robin."),
]
NumPrompts = Annotated[int, Option(min=1, panel=LOAD, help="Requests.")]
BatchSize = Annotated[int, Option(min=1, panel=LOAD, help="Prompts of the one batch.")]
MaxConcurrency = Annotated[int | None, Option(min=1, panel=LOAD, help="Most requests in flight.")]
RequestRate = Annotated[float, Option(panel=LOAD, help="Requests per second.")]
TotalRate = Annotated[float | None, Option(panel=LOAD, help="Requests per second, of all servers together.")]


def _classes_of(words: "Sequence[str]") -> "tuple[Load, ...]":
    from planner.workload import Load

    return tuple(map(Load.parse, words))


Classes = Annotated[
    "Sequence[Load]",
    Option(
        "--class",
        kind=list[str],
        read=_classes_of,
        metavar="NAME=RATE:IN:OUT[,ttft=MS][,tpot=MS][,e2el=MS][,priority=N]",
        panel=LOAD,
        help="Instead: one of several classes of requests, with targets and a priority of its own. Repeatable.",
    ),
]
Burstiness = Annotated[float, Option(panel=LOAD, default=1.0, help="Of the arrivals: 1 is Poisson, less is burstier.")]
Seed = Annotated[int, Option(min=0, max=2**32 - 1, panel=LOAD, default=0, help="Of random lengths and arrivals.")]

# --- Latency targets


def _target(what: str) -> Any:
    return Option(metavar="MS", panel=TARGETS, help=f"Largest acceptable {what}, in ms.")


Ttft = Annotated[float | None, _target("time to first token")]
Tpot = Annotated[float | None, _target("time per output token after the first")]
Itl = Annotated[float | None, _target("gap between two tokens")]
E2el = Annotated[float | None, _target("end-to-end latency")]
Percentile = Annotated[
    float | str,
    Option(kind=str, metavar="P", panel=TARGETS, default="99", help="Percentile that keeps the targets, or mean."),
]
Confidence = Annotated[
    float | None,
    Option(
        panel=TARGETS,
        metavar="P",
        default=f"{defaults.CONFIDENCE:g}",
        help="Probability with which the targets are kept, from 0.05 to 0.99.",
    ),
]
