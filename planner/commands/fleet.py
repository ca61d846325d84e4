"""How many GPUs, and what do they cost? ``planner fleet``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from planner.commands.declare import Option, command, keywords
from planner.commands.inputs import (
    asked_version,
    assignments,
    check_count,
    checked_rate,
    find_gpus,
    fits_for,
    load_model,
    typed,
)
from planner.commands.load import (
    check_context,
    check_planned_rate,
    check_router,
    checked_confidence,
    load_of,
    refuse_contradictions,
    rivals,
    slos_of,
)
from planner.commands.options import (
    LOAD,
    Calibration,
    Classes,
    Confidence,
    E2el,
    EngineVersion,
    Explain,
    Force,
    GpusOrDefault,
    ModelOrDefault,
    NetworkGbPerS,
    PathName,
    Percentile,
    Price,
    RandomInputLen,
    RandomOutputLen,
    RangeRatio,
    Refresh,
    Revision,
    RouterName,
    Timeout,
    TotalRate,
    Tpot,
    Ttft,
    WorkloadName,
)
from planner.engine import flag_of, tagged
from planner.errors import InputError, UnknownNameError
from planner.planning import defaults, engine_args
from planner.units import whole_number

if TYPE_CHECKING:
    from planner.hardware import GpuProfile
    from planner.output import FleetAnswer
    from planner.planning import Disaggregated, Fleets, NotDivided
    from planner.workload import Load

FLEET = "Fleet"

Trace = Annotated[
    PathName | None,
    Option(
        kind=Path,
        metavar="FILE",
        panel=LOAD,
        help="Instead: recorded arrivals and lengths, split into classes by length. --request-rate rescales them.",
    ),
]
Headroom = Annotated[float, Option(panel=FLEET, help="Extra load to carry, as a share of the load.")]
NPlus = Annotated[int, Option(min=0, max=100, panel=FLEET, help="Spare servers of each kind.")]
Minimise = Annotated[defaults.Objective, Option(panel=FLEET, help="What the best fleet has least of.")]
Rent = Annotated[defaults.RentedBy, Option(panel=FLEET, help="What is rented at once: single GPUs, or whole nodes.")]
Stock = Annotated[
    Mapping[str, int] | Sequence[str],
    Option(kind=list[str], metavar="GPU=N", panel=FLEET, help="Largest number of whole GPUs of a type. Repeatable."),
]
Disaggregate = Annotated[bool, Option(panel=FLEET, help="Also plan separate servers for prefill and decode.")]
OutputDir = Annotated[
    str, Option("-o", "--output", metavar="DIR", panel=FLEET, help="Write what launches prefill and decode apart.")
]
KvTransfer = Annotated[
    float | None,
    Option(
        panel=FLEET,
        help="GB/s at which one GPU sends KV cache. Default: line rate of the profile's link or network.",
    ),
]


def size_fleet(
    model: ModelOrDefault = defaults.MODEL,
    gpu: GpusOrDefault = defaults.GPUS,
    *,
    request_rate: TotalRate = None,
    input_len: RandomInputLen | None = None,
    output_len: RandomOutputLen | None = None,
    random_range_ratio: RangeRatio | None = None,
    workload: WorkloadName = None,
    classes: Classes = (),
    trace: Trace = None,
    router: RouterName = None,
    ttft: Ttft = None,
    tpot: Tpot = None,
    e2el: E2el = None,
    percentile: Percentile = 99,
    confidence: Confidence = None,
    headroom: Headroom = 0.2,
    n_plus: NPlus = 1,
    minimise: Minimise = "usd",
    rent: Rent = "gpu",
    stock: Stock = (),
    price: Price = (),
    disaggregated: Disaggregate = False,
    kv_transfer_gb_per_s: KvTransfer = None,
    network_gb_per_s: NetworkGbPerS = None,
    engine_version: EngineVersion = None,
    calibration: Calibration = None,
    explain: Explain = False,
    revision: Revision = None,
    refresh: Refresh = False,
    timeout: Timeout | None = None,
    **engine: Any,
) -> FleetAnswer:
    """Servers, GPUs, dollars and watts that carry a load under latency targets.

    The load is a ``request_rate`` (requests per second, of all servers together) of ``input_len`` and ``output_len``
    tokens (1024 each where nothing is said) or of a ``workload`` by name; several ``classes``
    (``Load.of_class("chat", 20, 1024, 256)``: a name, requests per second, tokens in and out); or a ``trace``, a file
    of recorded arrivals, which a ``router`` deals to the servers.
    ``ttft``, ``tpot`` and ``e2el`` are targets in ms at a ``percentile``. ``headroom`` is the share
    of the load that is carried on top of it, ``n_plus`` spare servers of each kind, ``stock`` whole GPUs that there are
    at most, ``price`` USD per GPU and hour instead of the profiles'. ``engine`` are settings that are given instead of
    searched.

    ``answer.fleets`` are all fleets, the best first. Raises InputError for what is no load, no target, no price, and
    what ``load_model`` and ``load_gpu`` raise.
    """
    from planner.memory import Basis
    from planner.output import FleetAnswer
    from planner.planning import FleetRequest, parse_prices, plan_fleets

    for name, value, known in (("minimise", minimise, defaults.Objective), ("rent", rent, defaults.RentedBy)):
        if value not in get_args(known):
            raise UnknownNameError(name, str(value), get_args(known), see="planner fleet --help")
    check_count("n_plus", n_plus, least=0, most=100)
    args = engine_args(engine, own=keywords(size_fleet))
    limits_ms = {"ttft": ttft, "tpot": tpot, "e2el": e2el}
    limits_ms = {name: value if value is None else typed(name, value, float) for name, value in limits_ms.items()}
    demands, notes = _demands({
        "request_rate": request_rate, "input_len": input_len, "output_len": output_len,
        "random_range_ratio": random_range_ratio, "workload": workload, "classes": tuple(classes), "trace": trace,
    })  # fmt: skip
    slos = slos_of(demands, limits_ms, str(percentile))
    check_router(router, demands)
    profiles, remarks = find_gpus(gpu, network_gb_per_s)
    prices, stocks = parse_prices(assignments(price), profiles), _stocks(assignments(stock), profiles)
    transfer_bytes_per_s = _transfer(kv_transfer_gb_per_s, disaggregated)
    resolved = load_model(model, revision=revision, refresh=refresh, timeout=timeout)
    own_context = resolved.model.max_position_embeddings
    for demand in demands:
        check_context(demand, min(own_context, args.max_model_len or own_context), resolved.resolved)
    local = fits_for(calibration)
    asked = FleetRequest(
        model=resolved,
        gpus=profiles,
        demands=demands,
        slos=slos,
        headroom=typed("headroom", headroom, float),
        n_plus=n_plus,
        confidence=checked_confidence(confidence) or defaults.CONFIDENCE,
        objective=minimise,
        rented_by=rent,
        prices=prices,
        stock=stocks,
        version=asked_version(engine_version),
        basis=Basis(local.constants),
        calibration=local.calibration,
        args=args,
        router=router or "round-robin",
    )
    fleets = plan_fleets(asked)
    divided = _divided(fleets, transfer_bytes_per_s) if disaggregated else ()
    return FleetAnswer.of(fleets, divided, (*remarks, *local.notes), (*notes, *resolved.notes), explain)


@command(
    "fleet",
    help="Servers, GPUs, dollars and watts for a load under latency targets.",
    extends=size_fleet,
    engine=tagged("fleet"),
    rivals=rivals(planned=True),
)
def fleet(*, output: OutputDir | None = None, force: Force = False, command_line: str, **options: Any) -> FleetAnswer:
    """The fleets, and what launches prefill and decode apart where a folder is named."""
    from planner.output import note, write_folder

    if output is not None and not options.get("disaggregated"):
        raise InputError("-o writes what launches prefill and decode apart", hint="add --disaggregated")
    answer = size_fleet(**options)
    files = answer.split_files(command_line) if output is not None else {}
    if output is not None and files:
        write_folder(Path(output), files, force=force)
        note(f"wrote {', '.join(files)} into {output}")
    return answer


def _demands(given: Mapping[str, Any]) -> tuple[tuple[Load, ...], tuple[str, ...]]:
    """The classes of requests, and remarks on where they are from."""
    from planner.workload import Load

    refuse_contradictions(given, planned=True)
    rate = given["request_rate"]
    if given["classes"]:
        for one in given["classes"]:
            check_planned_rate(one.request_rate, f"--class {one.name}")
        return given["classes"], ()
    if given["trace"] is None and rate is None:
        raise InputError("no load is given", hint="add --request-rate, --class or --trace")
    load = load_of(**given)
    check_planned_rate(load.request_rate)
    if load.origin is not None:
        return Load.classes_of_trace(load.origin, rate and load.request_rate), load.notes
    name = given["workload"] or f"{load.input_len}/{load.output_len}"
    return (replace(load, name=name),), ()


def _stocks(words: Sequence[str], profiles: Sequence[GpuProfile]) -> dict[str, int]:
    """Whole GPUs by profile id, from ``h100=16``."""
    from planner.hardware import load_profile

    known = {profile.id for profile in profiles} | {profile.whole for profile in profiles}
    found: dict[str, int] = {}
    for word in words:
        name, _, text = word.partition("=")
        if not (number := whole_number(text)):
            raise InputError(f"--stock {word!r} is not GPU=N", hint="a positive number of GPUs, such as h100=16")
        gpu = load_profile(name).id
        if gpu not in known:
            raise InputError(f"--stock {word!r}: {gpu} is not among the GPUs", hint=f"add --gpu {gpu}")
        if gpu in found:
            raise InputError(f"--stock of {gpu} is given twice", hint="give each GPU one number")
        found[gpu] = number
    return found


def _transfer(gb_per_s: float | None, disaggregated: bool) -> float | None:
    """Bytes per second."""
    from planner.units import GB

    rate = checked_rate("kv_transfer_gb_per_s", gb_per_s)
    if rate is None:
        return None
    if not disaggregated:
        raise InputError(f"{flag_of('kv_transfer_gb_per_s')} has nothing to go with", hint="add --disaggregated")
    return rate * GB


def _divided(fleets: Fleets, transfer_bytes_per_s: float | None) -> tuple[Disaggregated | NotDivided, ...]:
    """Prefill and decode servers of each GPU that has a fleet, with the engine that carries most on each GPU."""
    from planner.planning import disaggregate

    found = []
    for each in fleets.single:
        kind = max(each.kinds, key=lambda kind: kind.capacity[0] / kind.num_gpus)
        found.append(disaggregate(fleets.asked, kind, transfer_bytes_per_s))
    return tuple(found)
