"""GPUs side by side: ``planner compare``."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import inf
from typing import Annotated, Any

from annotated_types import Interval

from planner import output, planning
from planner.commands import options as opt
from planner.commands.declare import Option, command
from planner.commands.load import checked_workload, load_of, refuse_contradictions, rivals
from planner.engine import flag_of
from planner.errors import InputError
from planner.planning import defaults
from planner.workload import Load

#: Options that the suggested command states itself. It repeats all others.
STATED = ("model", "gpu", "partitions", "input_len", "output_len", "max_concurrency", "request_rate", "workload",
          "price", "explain")  # fmt: skip
Whole = Annotated[int, Interval(ge=1)]
Positive = Annotated[float, Interval(gt=0, lt=inf)]


def _several(flag: str, *names: str, text: str) -> Any:
    def read(words: str) -> list[float]:
        numbers = opt.numbers(flag, words, f"{flag} 8,32,128")
        return [int(number) if number.is_integer() else number for number in numbers]

    return Option(flag, *names, kind=str, read=read, metavar="N,N", panel=opt.LOAD, help=text)


_SHOWN = f"{opt.HELP['concurrencies']} Default: {','.join(map(str, defaults.COMPARED_CONCURRENCY))}."
Per = Annotated[defaults.Per, Option(help=opt.HELP["per"])]
Packages = Annotated[int | None, Interval(ge=1), Option(help=opt.HELP["packages"])]
InputLens = Annotated["int | Sequence[int]", _several("--random-input-len", "--input-len", text=opt.HELP["inputs"])]
OutputLens = Annotated["int | Sequence[int]", _several("--random-output-len", "--output-len", text=opt.HELP["outputs"])]
Concurrencies = Annotated["int | Sequence[int] | None", _several("--max-concurrency", text=_SHOWN)]
RequestRates = Annotated["float | Sequence[float] | None", _several("--request-rate", text=opt.HELP["rates"])]


@command(
    "compare", help="GPUs side by side, on equal hardware under equal load.", groups=opt.SERVING, engine=opt.TIME,
    searched=("tensor_parallel_size",), rivals=rivals(planned=True),
)  # fmt: skip
def compare_gpus(
    model: opt.ModelOrDefault = defaults.MODEL, gpu: opt.GpusOrDefault = defaults.GPUS, *,
    partitions: opt.Partitions = False, per: Per = "package", packages: Packages = None,
    input_len: InputLens = defaults.LEN, output_len: OutputLens = defaults.LEN, max_concurrency: Concurrencies = None,
    request_rate: RequestRates = None, burstiness: opt.Burstiness = 1.0, random_range_ratio: opt.RangeRatio = 0.0,
    workload: opt.WorkloadName = None, seed: opt.Seed = 0, price: opt.Price = (), explain: opt.Explain = False,
    **options: Any,
) -> "output.ComparisonAnswer":  # fmt: skip
    """Compare GPUs and partition modes on equal hardware under equal load: tokens/s, dollars, watts, odds.

    ``max_concurrency`` (8, 32, 128 requests) or ``request_rate`` are those of all servers of a GPU type; ``price`` is
    USD per GPU and hour. ``answer.record.points`` has every figure, with its interval. Raises InputError for an
    impossible load or price, and what ``Serving`` raises."""
    given = {**locals(), **options}
    from planner.commands.recommend import repeated

    lengths = {"input_len": input_len, "output_len": output_len, "random_range_ratio": random_range_ratio}
    changed = {name: value for name, value in lengths.items() if value not in (defaults.LEN, 0.0)}
    arrivals = {"max_concurrency": max_concurrency, "request_rate": request_rate}
    refuse_contradictions({"workload": workload, **changed, **arrivals}, planned=True)
    if workload is not None:
        named = load_of(workload=checked_workload(workload, turns=False))
        input_len, output_len, random_range_ratio = named.input_len, named.output_len, named.range_ratio
    rhythm = {"burstiness": burstiness, "range_ratio": random_range_ratio, "seed": seed}
    loads = _loads(input_len, output_len, max_concurrency, request_rate, rhythm)
    servings = planning.Serving.on_each(model, gpu, partitions=partitions, rented=True, **options)
    asked, profiles = servings[0], [serving.profile for serving in servings]
    prices = planning.parse_prices(opt.assignments(price), profiles)
    for load in loads:
        planning.check_context(load, asked.longest_context, asked.resolved.resolved)
    sizes = (asked.args.tensor_parallel_size,) if "tensor_parallel_size" in options else ()
    comparison = planning.compare_hardware(planning.Question(asked, per, packages, sizes), profiles, loads, prices)
    more = profiles, prices, asked.resolved.notes, repeated({**given, "random_range_ratio": random_range_ratio}, STATED)
    return output.ComparisonAnswer.of(comparison, *more, remarks=asked.notes, explain=explain)


def _loads(
    input_len: int | Sequence[int], output_len: int | Sequence[int],
    max_concurrency: int | Sequence[int] | None, request_rate: float | Sequence[float] | None,
    rhythm: Mapping[str, Any],
) -> list[Load]:  # fmt: skip
    arrivals: list[dict[str, Any]]
    if request_rate is not None:
        arrivals = [{"request_rate": rate, **rhythm} for rate in _numbers("request_rate", request_rate, Positive)]
    else:
        in_flight = defaults.COMPARED_CONCURRENCY if max_concurrency is None else max_concurrency
        closed = {name: value for name, value in rhythm.items() if name != "burstiness"}
        arrivals = [{"max_concurrency": flying, **closed} for flying in _numbers("max_concurrency", in_flight, Whole)]
    inputs, outputs = _numbers("input_len", input_len, Whole), _numbers("output_len", output_len, Whole)
    if 1 not in (len(inputs), len(outputs)) and len(inputs) != len(outputs):
        cause = f"--random-input-len names {len(inputs)} lengths, --random-output-len {len(outputs)}"
        raise InputError(cause, hint="give as many of both, or one of either")
    most = max(len(inputs), len(outputs))
    pairs = zip(inputs * (most if len(inputs) == 1 else 1), outputs * (most if len(outputs) == 1 else 1), strict=True)
    every = dict.fromkeys(
        Load(given, answered, num_prompts=1, **load) for (given, answered), load in product(pairs, arrivals)
    )
    if len(every) > defaults.MOST_LOADS:
        raise InputError(f"{len(every)} loads are more than {defaults.MOST_LOADS}", hint="compare fewer at once")
    return list(every)


def _numbers(name: str, given: Any, kind: Any) -> list[Any]:
    values: Iterable[Any] = given if hasattr(given, "__iter__") and not isinstance(given, str) else [given]
    numbers = [planning.typed(name, value, kind) for value in values]
    if not numbers:
        raise InputError(f"{flag_of(name)} is empty", hint=f"for example {flag_of(name)} 8")
    return numbers
