"""Options that several commands share, each declared once. The load has the names of ``vllm bench``."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval

from planner import hardware, model, planning, workload
from planner.commands.declare import Argument, Option
from planner.engine import SETTINGS
from planner.errors import InputError
from planner.planning import defaults
from planner.resources import package_dir, tables_of
from planner.units import LEAST_FIGURE, MOST_FIGURE
from planner.workload import DEFAULT_PERCENTILE

LOAD = "Load (flags of vllm bench)"
TARGETS = "Targets"
SIZE = "Size"
#: Settings that change memory, and settings that change time.
MEMORY = tuple(name for name, row in SETTINGS.items() if row.only != "time")
TIME = tuple(name for name, row in SETTINGS.items() if row.only != "memory")
PathName = str | PathLike[str]  #: a path, as text or as an object


def complete_model(incomplete: str) -> list[str]:
    """Hub ids of the catalog that begin so; without their organisation where that is enough to name them."""
    ids = model.catalog_ids()
    short = beginning(incomplete, (name.partition("/")[2] for name in ids))
    return beginning(incomplete, ids) or [name for name in short if model.find_entry(name)]


def complete_gpu(incomplete: str) -> list[str]:
    """Ids of GPU profiles that begin so, or their aliases where no id does."""
    ids = beginning(incomplete, (*hardware.profile_ids(), "all", "local"))
    return ids or beginning(incomplete, sorted(hardware.aliases()))


def beginning(typed: str, names: Iterable[str]) -> list[str]:
    return [typed + name[len(typed) :] for name in names if name.lower().startswith(typed.lower())]


def model_argument(metavar: str = "MODEL", text: str = "Hub id, folder with a config.json, or a config.json.") -> Any:
    """MODEL; in brackets if it may be left out."""
    return Argument(kind=str, metavar=metavar, autocompletion=complete_model, help=text)


def panel_option(panel: str, text: str, *names: str, **settings: Any) -> Any:
    return Option(*names, panel=panel, help=text, **settings)


def gpu_option(text: str, **settings: Any) -> Any:
    return Option(**{"kind": str, "metavar": "GPU", "autocompletion": complete_gpu, "help": text, **settings})


HELP: dict[str, str] = tables_of(package_dir("commands") / "options.toml")["help"]  #: longer helps by option
_load, _size = (partial(panel_option, panel) for panel in (LOAD, SIZE))
_GPUS = "Profile id, alias or file; 'all'; or 'local'. Repeatable, or with commas."
_DEFAULT_GPUS = gpu_option(f"{_GPUS} Default: {' '.join(defaults.GPUS)}.", kind=list[str])
Model = Annotated["planning.ModelName", model_argument()]
ModelOrDefault = Annotated["planning.ModelName", model_argument("[MODEL]")]
Gpu = Annotated["planning.GpuName", gpu_option("Profile id, alias or file; or 'local'.")]
Gpus = Annotated["planning.GpuName | Iterable[planning.GpuName]", gpu_option(_GPUS, kind=list[str])]
GpusOrDefault = Annotated["planning.GpuName | Iterable[planning.GpuName]", _DEFAULT_GPUS]
Partitions = Annotated[bool, Option("--partitions", help="Also the partitions and MIG profiles of these GPUs.")]
_NETWORK = Option(metavar="GB/S", help=HELP["network"])
NetworkGbPerS = Annotated[float | None, Interval(ge=defaults.LEAST_GB_PER_S, le=defaults.MOST_GB_PER_S), _NETWORK]
EngineVersion = Annotated[str | None, Option(metavar="VERSION", help=HELP["engine_version"])]
Calibration = Annotated[PathName | None, Option(kind=str, metavar="FILE|none", help=HELP["calibration"])]
Explain = Annotated[bool, Option(help="Verbose output: all candidates, full tables and the calculation.")]
Force = Annotated[bool, Option(help="Write into a folder that exists.")]
Format = Annotated[Literal["table", "json", "csv", "markdown"], Option(help="Form of the data.")]
_PRICE = Option(kind=list[str], metavar="GPU=USD", help="USD per GPU and hour, instead of the profile's. Repeatable.")
Price = Annotated["Mapping[str, float] | Sequence[str]", _PRICE]


def assignments(given: Mapping[str, float] | Sequence[str]) -> list[str]:
    """``GPU=NUMBER`` for each, as it is typed."""
    return list(given) if not hasattr(given, "items") else [f"{name}={number}" for name, number in given.items()]


def numbers(flag: str, words: str, example: str) -> tuple[float, ...]:
    """Numbers with commas between. Raises InputError for anything else."""
    try:
        return tuple(float(part) for part in words.split(","))
    except ValueError as error:
        raise InputError(f"{flag} {words!r} is not a list of numbers", hint=f"for example {example}") from error


#: Types of the options in ``options.toml``, and what completes their words.
_TYPES = {"int": int, "float": float, "str": str, "bool": bool, "list": list[str]}
_COMPLETED = {"MODEL": complete_model, "GPU": complete_gpu}


def group_of(table: str, panel: str = "") -> type:
    """The group of options that a table of ``options.toml`` declares: those without a default may be left out."""
    group, members = type(table, (), {}), dict[str, Any]()
    for name, row in tables_of(package_dir("commands") / "options.toml")[table].items():
        kind: Any = Literal[tuple(row["choices"])] if "choices" in row else _TYPES[row["type"]]
        kind = kind if "default" in row else kind | None
        option = Option(
            *(row[spelling] for spelling in ("flag", "short") if spelling in row),
            panel=LOAD if row.get("of") == "load" else panel,
            metavar=row.get("metavar"),
            autocompletion=_COMPLETED.get(row.get("metavar", "")),
            help=row["help"],
        )
        bounds = (Interval(ge=row["least"]),) if "least" in row else ()
        members[name] = Annotated[kind, *bounds, option]
        setattr(group, name, row.get("default"))
    group.__annotations__ = members
    return group


class ServerOptions:
    """Options of every question about servers, beside the engine's settings: keywords of ``planner.Serving``."""

    network_gb_per_s: NetworkGbPerS = None
    engine_version: EngineVersion = None
    calibration: Calibration = None


_CHECKPOINTS = Option(metavar="DTYPE", help="Precision of the checkpoints to plan. Default: any.")
CheckpointDtype = Annotated[str | None, _CHECKPOINTS]
HUB = group_of("hub")
#: All keywords of ``planner.Serving`` but the engine's settings, where the precision is not searched.
SERVING = (group_of("precision"), ServerOptions, HUB)


def _tokens(what: str, *names: str) -> Any:
    return Option(*names, panel=LOAD, default=defaults.LEN if names else None, help=f"{what} tokens.")


_WORKLOADS = Literal[
    "chat", "rag", "summarise", "code", "agent", "reasoning", "offline", "mlperf-interactive",
    "multi-turn-chat", "coding-agent",
]  # fmt: skip
InputLen = Annotated[int, _tokens("Prompt")]
OutputLen = Annotated[int, _tokens("Output")]
RandomInputLen = Annotated[int | None, _tokens("Prompt", "--random-input-len", "--input-len")]
RandomOutputLen = Annotated[int | None, _tokens("Output", "--random-output-len", "--output-len")]
RangeRatio = Annotated[float | None, _load("Lengths vary by this share in both directions, such as 0.2.", default=0.0)]
PrefixLen = Annotated[int, Interval(ge=0), _load("Tokens that all prompts begin with.")]
PrefixCacheHitRate = Annotated[float, _load("Share of each prompt that is in the prefix cache.")]
WorkloadName = Annotated[str | None, _load("A workload by name, instead of lengths.", kind=_WORKLOADS)]
RouterName = Annotated[
    Literal["least-loaded", "prefix-aware", "round-robin", "random"] | None,
    _load("Distribution of requests to servers. Default: least-loaded; prefix-aware where prompts share prefixes."),
]
NumPrompts = Annotated[int, Interval(ge=1), _load("Requests.")]
UsualPrompts = Annotated[int | None, Interval(ge=1), _load("Requests. Default: 5 x the concurrency.")]
MaxConcurrency = Annotated[int | None, Interval(ge=1), _load("Maximum concurrent requests.")]
TotalRate = Annotated[float | None, _load("Requests per second, of all servers together.")]
_CLASSES = _load(
    "Instead: one of several classes of requests, with targets and a priority of its own. Repeatable.", "--class",
    kind=list[str], read=lambda words: tuple(map(workload.Load.parse, words)),
    metavar="NAME=RATE:IN:OUT[,ttft=MS][,tpot=MS][,e2el=MS][,priority=N]",
)  # fmt: skip
Classes = Annotated["Sequence[workload.Load]", _CLASSES]
Burstiness = Annotated[float | None, _load("Burstiness of arrivals: 1 is Poisson, less is burstier.", default=1.0)]
Seed = Annotated[int | None, Interval(ge=0, le=2**32 - 1), _load("Seed of random lengths and arrivals.", default=0)]


def _target(what: str) -> Any:
    return Option(metavar="MS", panel=TARGETS, help=f"Largest acceptable {what}, in ms.")


_PERCENTILE = Option(kind=str, metavar="P", panel=TARGETS, default=f"{DEFAULT_PERCENTILE:g}", help=HELP["percentile"])
Ttft = Annotated[float | None, _target("time to first token")]
Tpot = Annotated[float | None, _target("time per output token after the first")]
E2el = Annotated[float | None, _target("end-to-end latency")]
Percentile = Annotated[float | str | None, _PERCENTILE]
Confidence = Annotated[
    float | None,
    Interval(ge=defaults.LEAST_CONFIDENCE, le=defaults.MOST_CONFIDENCE),
    Option(panel=TARGETS, metavar="P", default=f"{defaults.CONFIDENCE:g}", help=HELP["probability"]),
]


_BUDGET = _size("Find the largest load for this price in USD per hour.", metavar="USD/H")
Speculation = Annotated[bool, Option("--speculation/--no-speculation", help=HELP["speculation"])]


class SizeOptions:
    """Headroom and spares, and GPUs to fill instead of a load to carry."""

    headroom: Annotated[float, Interval(ge=0, le=defaults.MOST_HEADROOM), _size("Extra load, as a share of it.")] = 0.0
    spares: Annotated[int, Interval(ge=0, le=100), _size("Spare servers of each kind.", "--spares", "--n-plus")] = 0
    budget: Annotated[float | None, Interval(ge=LEAST_FIGURE, le=MOST_FIGURE), _BUDGET] = None
    have: Annotated["Mapping[str, int] | Sequence[str]", _size(HELP["have"], kind=list[str], metavar="GPU=N")] = ()


class PlannedLoad:
    """Load and latency targets that servers are planned for, and prices."""

    input_len: RandomInputLen = None
    output_len: RandomOutputLen = None
    random_range_ratio: RangeRatio = None
    random_prefix_len: PrefixLen = 0
    workload: WorkloadName = None
    use_case: Annotated[str | None, _load("A workload by name, with its usual targets.", kind=_WORKLOADS)] = None
    request_rate: TotalRate = None
    burstiness: Burstiness = None
    trace: Annotated[PathName | None, _load(HELP["recorded"], kind=Path, metavar="FILE")] = None
    classes: Classes = ()
    router: RouterName = None
    seed: Seed = None
    ttft: Ttft = None
    tpot: Tpot = None
    itl: Annotated[float | None, _target("gap between two tokens")] = None
    e2el: E2el = None
    percentile: Percentile = None
    confidence: Confidence = None
    price: Price = ()
