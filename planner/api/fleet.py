"""How many GPUs, and what do they cost? ``planner fleet`` as a function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from planner.api.compare import words_of
from planner.api.flags import EngineFlags, engine_args, flag_of, typed
from planner.api.inputs import (
    GpuName,
    ModelName,
    asked_version,
    check_context,
    check_count,
    found_gpus,
    load_model,
    path_text,
)
from planner.errors import InputError, UnknownNameError
from planner.planning import defaults

if TYPE_CHECKING:
    from planner.hardware import GpuProfile
    from planner.output import FleetAnswer
    from planner.planning import Demand, Disaggregated, Fleets, NotDivided

Minimise = Literal["usd", "gpus", "watts"]
Rent = Literal["gpu", "node"]
CHOICES = {"minimise": ("usd", "gpus", "watts"), "rent": ("gpu", "node")}
OWN = (
    "request_rate", "input_len", "output_len", "random_range_ratio", "workload", "classes", "trace", "ttft", "tpot",
    "e2el", "percentile", "optimistic", "headroom", "n_plus", "minimise", "rent", "stock", "price", "disaggregated",
    "kv_transfer_gb_per_s", "engine_version", "calibration", "revision", "refresh",
)  # fmt: skip


def size_fleet(
    model: ModelName = defaults.MODEL,
    gpu: GpuName | Iterable[GpuName] = defaults.GPUS,
    *,
    request_rate: float | None = None,
    input_len: int | None = None,
    output_len: int | None = None,
    random_range_ratio: float | None = None,
    workload: str | None = None,
    classes: Sequence[Demand] = (),
    trace: str | PathLike[str] | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
    e2el: float | None = None,
    percentile: float | str = 99,
    optimistic: bool = False,
    headroom: float = 0.2,
    n_plus: int = 1,
    minimise: Minimise = "usd",
    rent: Rent = "gpu",
    stock: Mapping[str, int] | Sequence[str] = (),
    price: Mapping[str, float] | Sequence[str] = (),
    disaggregated: bool = False,
    kv_transfer_gb_per_s: float | None = None,
    engine_version: str | None = None,
    calibration: str | PathLike[str] | None = None,
    revision: str | None = None,
    refresh: bool = False,
    **engine: Unpack[EngineFlags],
) -> FleetAnswer:
    """Servers, GPUs, dollars and watts that carry a load under latency targets.

    The load is a ``request_rate`` (requests per second, of all servers together) of ``input_len`` and ``output_len``
    tokens (1024 each where nothing is said) or of a ``workload`` by name; several ``classes``
    (``Demand("chat", 20, 1024, 256)``: a name, requests per second, tokens in and out); or a ``trace``, a file of
    recorded arrivals. ``ttft``, ``tpot`` and ``e2el`` are targets in ms at a ``percentile``. ``headroom`` is the share
    of the load that is carried on top of it, ``n_plus`` spare servers of each kind, ``stock`` whole GPUs that there are
    at most, ``price`` USD per GPU and hour instead of the profiles'. ``engine`` are settings that are given instead of
    searched.

    ``answer.fleets`` are all fleets, the best first. Raises InputError for what is no load, no target, no price, and
    what ``load_model`` and ``load_gpu`` raise.
    """
    from planner.memory import Basis
    from planner.output import FleetAnswer
    from planner.planning import FleetRequest, local_for, parse_prices, plan_fleets
    from planner.workload import parse_slos, refuse_gaps_of_one_token

    for name, value in (("minimise", minimise), ("rent", rent)):
        if value not in CHOICES[name]:
            raise UnknownNameError(name, str(value), CHOICES[name], see="planner fleet --help")
    check_count("n_plus", n_plus, least=0, most=100)
    args = engine_args(engine, own=OWN)
    limits_ms = {"ttft": ttft, "tpot": tpot, "e2el": e2el}
    limits_ms = {name: value if value is None else typed(name, value, float) for name, value in limits_ms.items()}
    slos = parse_slos(limits_ms, str(percentile))
    demands, notes = _demands(
        request_rate, input_len, output_len, random_range_ratio, workload, tuple(classes),
        Path(trace) if trace is not None else None,
    )  # fmt: skip
    profiles, remarks = found_gpus(gpu)
    prices, stocks = parse_prices(words_of(price), profiles), _stocks(words_of(stock), profiles)
    transfer_bytes_per_s = _transfer(kv_transfer_gb_per_s, disaggregated)
    resolved = load_model(model, revision=revision, refresh=refresh)
    own_context = resolved.model.max_position_embeddings
    for demand in demands:
        if demand.requests is None and not demand.range_ratio:
            refuse_gaps_of_one_token(slos, demand.output_len)
        longest = demand.longest_len if demand.requests is not None else None
        most = min(own_context, args.max_model_len or own_context)
        check_context(demand.workload, most, resolved.resolved, longest_len=longest)
    local = local_for(path_text(calibration))
    asked = FleetRequest(
        model=resolved,
        gpus=profiles,
        demands=demands,
        slos=slos,
        headroom=typed("headroom", headroom, float),
        n_plus=n_plus,
        pessimistic=not optimistic,
        objective=minimise,
        rented_by=rent,
        prices=prices,
        stock=stocks,
        version=asked_version(engine_version),
        basis=Basis(local.constants),
        calibration=local.calibration,
        args=args,
    )
    fleets = plan_fleets(asked)
    divided = _divided(fleets, transfer_bytes_per_s) if disaggregated else ()
    return FleetAnswer(fleets, divided, (*remarks, *local.notes), (*notes, *resolved.notes))


def _demands(
    request_rate: float | None,
    input_len: int | None,
    output_len: int | None,
    range_ratio: float | None,
    workload: str | None,
    classes: tuple[Demand, ...],
    trace: Path | None,
) -> tuple[tuple[Demand, ...], tuple[str, ...]]:
    """The classes of requests, and remarks on where they are from."""
    from planner.planning import Demand
    from planner.workload import NAMED, read_trace

    lengths = any(value is not None for value in (input_len, output_len, range_ratio))
    ways = {"--class": bool(classes), "--trace": trace is not None, "--workload": workload is not None}
    given = [name for name, is_given in (*ways.items(), ("--random-input-len or its like", lengths)) if is_given]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} both say how long requests are", hint="give one of them")
    if classes:
        if request_rate is not None:
            raise InputError("--request-rate and --class both say how many requests come", hint="give one of them")
        if len(classes) > defaults.MOST_CLASSES:
            raise InputError(
                f"--class is given {len(classes)} times", hint=f"plan {defaults.MOST_CLASSES} classes at most"
            )
        return tuple(replace(one, request_rate=float(one.request_rate)) for one in classes), ()
    rate = None if request_rate is None else typed("request_rate", request_rate, float)
    if trace is not None:
        recorded = read_trace(trace)
        return Demand.of_trace(recorded, rate), recorded.notes
    if rate is None:
        raise InputError("no load is given", hint="add --request-rate, --class or --trace")
    if workload is not None:
        if typed("workload", workload, str) not in NAMED:
            raise UnknownNameError("workload", workload, NAMED, see="docs/library.md")
        return (Demand.named("", rate, workload),), ()
    input_tok = defaults.LEN if input_len is None else typed("input_len", input_len, int)
    output_tok = defaults.LEN if output_len is None else typed("output_len", output_len, int)
    ratio = 0.0 if range_ratio is None else typed("random_range_ratio", range_ratio, float)
    return (Demand(f"{input_tok}/{output_tok}", rate, input_tok, output_tok, ratio),), ()


def _stocks(words: Sequence[str], profiles: Sequence[GpuProfile]) -> dict[str, int]:
    """Whole GPUs by profile id, from ``h100=16``."""
    from planner.hardware import load_profile

    known = {profile.id for profile in profiles} | {profile.whole for profile in profiles}
    found: dict[str, int] = {}
    for word in words:
        name, _, text = word.partition("=")
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise InputError(f"--stock {word!r} is not GPU=N", hint="a positive number of GPUs, such as h100=16")
        gpu = load_profile(name).id
        if gpu not in known:
            raise InputError(f"--stock {word!r}: {gpu} is not among the GPUs", hint=f"add --gpu {gpu}")
        if gpu in found:
            raise InputError(f"--stock of {gpu} is given twice", hint="give each GPU one number")
        found[gpu] = int(text)
    return found


def _transfer(gb_per_s: float | None, disaggregated: bool) -> float | None:
    """Bytes per second."""
    from planner.units import GB

    if gb_per_s is None:
        return None
    rate: float = typed("kv_transfer_gb_per_s", gb_per_s, float)
    flag = flag_of("kv_transfer_gb_per_s")
    if not (isfinite(rate) and rate > 0):
        raise InputError(f"{flag} {rate:g} is no rate", hint="give GB/s of one GPU, such as 50")
    if not disaggregated:
        raise InputError(f"{flag} has nothing to go with", hint="add --disaggregated")
    return rate * GB


def _divided(fleets: Fleets, transfer_bytes_per_s: float | None) -> tuple[Disaggregated | NotDivided, ...]:
    """Prefill and decode servers of each GPU that has a fleet, with the engine that carries most on each GPU."""
    from planner.planning import disaggregate

    found = []
    for each in fleets.single:
        kind = max(each.kinds, key=lambda kind: kind.capacity[0] / kind.num_gpus)
        found.append(disaggregate(fleets.asked, kind, transfer_bytes_per_s))
    return tuple(found)
