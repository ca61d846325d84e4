"""GPUs side by side: ``planner compare``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, get_args

from planner.commands.declare import Option, command, keywords
from planner.commands.inputs import (
    asked_version,
    assignments,
    basis_for,
    check_count,
    find_gpus,
    fits_for,
    load_model,
    typed,
)
from planner.commands.load import check_context, checked_workload, fields_of, load_of, refuse_contradictions, rivals
from planner.commands.options import (
    LOAD,
    TIME,
    Burstiness,
    Calibration,
    EngineVersion,
    Explain,
    GpusOrDefault,
    ModelOrDefault,
    NetworkGbPerS,
    Price,
    RangeRatio,
    Refresh,
    Revision,
    Seed,
    Timeout,
    WeightDtype,
    WorkloadName,
)
from planner.engine import flag_of
from planner.errors import InputError, UnknownNameError
from planner.planning import defaults, engine_args

if TYPE_CHECKING:
    from planner.output import ComparisonAnswer
    from planner.workload import Load

_SHOWN = ",".join(map(str, defaults.COMPARED_CONCURRENCY))


def _several(flag: str, kind: type, *names: str, help: str) -> Option:
    """An option that takes one number, or several with commas."""

    def read(text: str) -> list[Any]:
        try:
            values = [float(part) for part in text.split(",")]
        except ValueError:
            values = []
        if not values or not all(0 < value < inf for value in values):
            raise InputError(f"{flag} {text!r} is not a list of positive numbers", hint=f"for example {flag} 8,32,128")
        if kind is int and any(value != int(value) for value in values):
            raise InputError(f"{flag} {text!r} is not a list of whole numbers", hint=f"for example {flag} 8,32,128")
        return [kind(value) for value in values]

    return Option(flag, *names, kind=str, read=read, metavar="N,N", panel=LOAD, help=help)


Per = Annotated[
    defaults.Per,
    Option(help="What is equal: packages (a GPU with all its partitions), nodes, or logical GPUs as they are."),
]
Packages = Annotated[
    int | None, Option(min=1, help="Packages of each type. Default: the fewest on which all hold the model.")
]
InputLens = Annotated[
    int | Sequence[int], _several("--random-input-len", int, "--input-len", help="Prompt tokens, or several lengths.")
]
OutputLens = Annotated[
    int | Sequence[int],
    _several("--random-output-len", int, "--output-len", help="Output tokens: as many as input lengths, or one."),
]
Concurrencies = Annotated[
    int | Sequence[int] | None,
    _several(
        "--max-concurrency",
        int,
        help=f"Requests in flight on all servers of a GPU type together. Default: {_SHOWN}.",
    ),
]
RequestRates = Annotated[
    float | Sequence[float] | None,
    _several("--request-rate", float, help="Instead: requests per second, of all servers of a GPU type together."),
]


@command(
    "compare",
    help="GPUs and partition modes side by side, on equal hardware under equal load.",
    engine=TIME,
    searched=("tensor_parallel_size",),
    rivals=rivals(planned=True),
)
def compare_gpus(
    model: ModelOrDefault = defaults.MODEL,
    gpu: GpusOrDefault = defaults.GPUS,
    *,
    per: Per = "package",
    packages: Packages = None,
    input_len: InputLens = defaults.LEN,
    output_len: OutputLens = defaults.LEN,
    max_concurrency: Concurrencies = None,
    request_rate: RequestRates = None,
    burstiness: Burstiness = 1.0,
    random_range_ratio: RangeRatio = 0.0,
    workload: WorkloadName = None,
    seed: Seed = 0,
    price: Price = (),
    network_gb_per_s: NetworkGbPerS = None,
    weight_dtype: WeightDtype = None,
    engine_version: EngineVersion = None,
    calibration: Calibration = None,
    explain: Explain = False,
    revision: Revision = None,
    refresh: Refresh = False,
    timeout: Timeout | None = None,
    **engine: Any,
) -> ComparisonAnswer:
    """Several GPUs and partition modes on equal hardware under equal load: tokens/s, dollars, watts, who leads where.

    Equal are whole GPUs with all their partitions (``per="package"``, ``packages`` of them), nodes, or logical GPUs.
    Lengths are tokens, ``workload`` names usual ones instead, ``max_concurrency`` requests in flight (8, 32 and 128
    where nothing is said), ``request_rate`` requests per second, each of all servers of a GPU type together;
    several make a table for each. ``price`` are USD per GPU and hour instead of the profiles' (``{"mi355x":
    2.5}``), ``network_gb_per_s`` what one GPU has of the network between nodes. The layout is searched unless
    ``tensor_parallel_size`` is given; the other keywords are those of ``check_fit``.

    ``answer.record.points`` has every figure, with its interval. Raises InputError for what is no load and no price,
    IllegalPlanError for settings that vLLM refuses, and what ``load_model`` and ``load_gpu`` raise.
    """
    from planner.output import ComparisonAnswer
    from planner.planning import Question, compare_hardware, parse_prices

    if per not in get_args(defaults.Per):
        raise UnknownNameError("unit", str(per), get_args(defaults.Per), see="planner compare --help")
    check_count("packages", packages)
    args = engine_args(engine, own=keywords(compare_gpus))
    lengths = {"input_len": input_len, "output_len": output_len, "random_range_ratio": random_range_ratio}
    said = {name: value for name, value in lengths.items() if value not in (defaults.LEN, 0.0)}
    arrivals = {"max_concurrency": max_concurrency, "request_rate": request_rate}
    refuse_contradictions({"workload": workload, **said, **arrivals}, planned=True)
    if workload is not None:
        named = load_of(workload=checked_workload(workload, turns=False))
        input_len, output_len, random_range_ratio = named.input_len, named.output_len, named.range_ratio
    rhythm = {"burstiness": burstiness, "range_ratio": random_range_ratio, "seed": seed}
    workloads = _workloads(input_len, output_len, max_concurrency, request_rate, rhythm)
    profiles, remarks = find_gpus(gpu, network_gb_per_s)
    prices = parse_prices(assignments(price), profiles)
    resolved = load_model(model, weight_dtype=weight_dtype, revision=revision, refresh=refresh, timeout=timeout)
    own_context = resolved.model.max_position_embeddings
    for load in workloads:
        check_context(load, min(args.max_model_len or own_context, own_context), resolved.resolved)
    local = fits_for(calibration)
    question = Question(
        resolved.model,
        args,
        per,
        packages,
        (args.tensor_parallel_size,) if "tensor_parallel_size" in engine else (),
        asked_version(engine_version),
        basis_for(local, args),
        local.calibration,
    )
    comparison = compare_hardware(question, profiles, workloads, prices)
    return ComparisonAnswer.of(comparison, profiles, prices, (*remarks, *local.notes), resolved.notes, explain)


def _workloads(
    input_len: int | Sequence[int],
    output_len: int | Sequence[int],
    max_concurrency: int | Sequence[int] | None,
    request_rate: float | Sequence[float] | None,
    rhythm: Mapping[str, Any],
) -> list[Load]:
    """Every pair of lengths under every load."""
    loads: list[dict[str, Any]]
    if request_rate is not None:
        loads = [{"request_rate": rate, **rhythm} for rate in _numbers("request_rate", request_rate, float)]
    else:
        in_flight = defaults.COMPARED_CONCURRENCY if max_concurrency is None else max_concurrency
        closed = {name: value for name, value in rhythm.items() if name != "burstiness"}
        loads = [{"max_concurrency": places, **closed} for places in _numbers("max_concurrency", in_flight, int)]
    lengths = _pairs(_numbers("input_len", input_len, int), _numbers("output_len", output_len, int))
    every = dict.fromkeys(
        fields_of(input_len=given, output_len=answered, num_prompts=1, **load)
        for given, answered in lengths
        for load in loads
    )
    found = list(every)  # each once
    if len(found) > defaults.MOST_LOADS:
        raise InputError(
            f"{len(found)} loads are more than {defaults.MOST_LOADS}", hint="compare fewer lengths or loads at once"
        )
    return found


def _pairs(inputs: Sequence[int], outputs: Sequence[int]) -> list[tuple[int, int]]:
    if len(outputs) == 1:
        return [(length, outputs[0]) for length in inputs]
    if len(inputs) == 1:
        return [(inputs[0], length) for length in outputs]
    if len(inputs) != len(outputs):
        raise InputError(
            f"--random-input-len names {len(inputs)} lengths, --random-output-len {len(outputs)}",
            hint="give as many of both, or one of either",
        )
    return list(zip(inputs, outputs, strict=True))


def _numbers(name: str, given: Any, kind: type) -> list[Any]:
    """Positive numbers, in their order: lengths are pairs, in which one may come again."""
    values = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    found = [typed(name, value, kind) for value in values]
    if not found or not all(0 < value < inf for value in found):
        raise InputError(f"{flag_of(name)} {given!r} is not positive", hint=f"for example {flag_of(name)} 8")
    return found
