"""Servers, GPUs and cost of a load: ``planner fleet``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval

from planner import output as out
from planner import planning, workload
from planner.commands import options as opt
from planner.commands.declare import command, taken
from planner.commands.load import LENGTHS, gpus_in, planned_load, rivals, stock_of, stocks, with_use_case
from planner.engine import tagged
from planner.errors import InputError
from planner.planning import defaults
from planner.units import GB
from planner.workload import LATENCIES, Targets

_fleet = partial(opt.panel_option, "Fleet")
#: Options that the suggested command states itself, for its part of the load. It repeats all others.
LOAD_AND_STOCK = (*LENGTHS, *LATENCIES, "workload", "trace", "classes", "request_rate", "budget", "have", "price")
OutputDir = Annotated[str | None, _fleet(opt.HELP["launch_scripts"], "-o", "--output", metavar="DIR")]


class FleetOptions:
    minimise: Annotated[defaults.Objective, _fleet("Quantity to minimise.")] = "usd"
    rent: Annotated[defaults.RentedBy, _fleet("Billing unit: gpu or node.")] = "gpu"
    stock: Annotated[
        "Mapping[str, int] | Sequence[str]", _fleet(opt.HELP["stock"], kind=list[str], metavar="GPU=N")
    ] = ()
    speculation: opt.Speculation = True
    weight_dtype: opt.CheckpointDtype = None
    disaggregated: Annotated[bool, _fleet("Also plan separate servers for prefill and decode.")] = False
    kv_transfer_gb_per_s: Annotated[
        float | None,
        Interval(ge=defaults.LEAST_GB_PER_S, le=defaults.MOST_GB_PER_S),
        _fleet(opt.HELP["kv_transfer"]),
    ] = None


@command(
    "fleet", help="Servers, GPUs, USD and watts for a load within targets.",
    groups=(opt.PlannedLoad, opt.SizeOptions, FleetOptions, opt.ServerOptions, opt.HUB), engine=tagged("fleet"),
    rivals=rivals(planned=True),
)  # fmt: skip
def size_fleet(
    model: opt.ModelOrDefault = defaults.MODEL, gpu: opt.GpusOrDefault | None = None, *,
    partitions: opt.Partitions = False, output: OutputDir = None, force: opt.Force = False,
    explain: opt.Explain = False, command_line: str = "", **options: Any,
) -> "out.FleetAnswer":  # fmt: skip
    """Size servers, GPUs, dollars and watts that carry a load under latency targets.

    The load is a ``request_rate`` (requests per second, of all servers), ``classes`` or a ``trace``; targets are in ms.
    ``answer.fleets`` has the best first. Raises InputError for an impossible load or price, and as ``Serving`` does."""
    from planner.commands.recommend import repeated

    options, of_case = with_use_case(options)
    options.pop("goal", None)  # of a use case without targets
    of_recommend = repeated(options, LOAD_AND_STOCK)
    given, size, fleet = (taken(options, group) for group in (opt.PlannedLoad, opt.SizeOptions, FleetOptions))
    transfer_gb_per_s, divide = fleet.get("kv_transfer_gb_per_s"), fleet.get("disaggregated", False)
    if transfer_gb_per_s is not None and not divide:
        raise InputError("--kv-transfer-gb-per-s has nothing to go with", hint="add --disaggregated")
    if output is not None and not divide:
        raise InputError("-o writes launch scripts of disaggregated serving", hint="add --disaggregated")
    if output is not None:
        out.check_folder(Path(output), force=force)
    load, targets = planned_load(given, size, options.get("scheduling_policy"))
    filled = size.keys() & {"budget", "have"}
    targets = targets or (Targets() if filled else None)
    if targets is None or (targets.value is None and not filled):
        raise InputError("no load is given", hint="add --request-rate, --class or --trace; or --budget or --have")
    gpu = (gpus_in(size) if gpu is None else gpu) or defaults.GPUS
    if load.classes:
        load, demands = replace(load, name="all"), load.classes
    elif load.origin is not None:
        demands = workload.Load.classes_of_trace(load.origin, targets.value if "request_rate" in given else None)
    else:
        load = replace(load, name=given.get("workload") or f"{load.input_len}/{load.output_len}")
        demands = (load,)
    servings = planning.Serving.on_each(model, gpu, partitions=partitions, rented=True, **options)
    first, profiles = servings[0], tuple(serving.profile for serving in servings)
    prices = planning.parse_prices(opt.assignments(given.get("price", ())), profiles)
    limits = stocks("--stock", opt.assignments(fleet.get("stock", ())), profiles)
    stock = stock_of(size, profiles, prices)
    for demand in demands:
        planning.check_context(demand, first.longest_context, first.resolved.resolved)
    terms = {name: fleet[name] for name in ("minimise", "rent") if name in fleet}
    objective = planning.Objective("balanced", load, targets, **size)
    further = {"speculation": fleet.get("speculation", True), "weight_dtype": fleet.get("weight_dtype")}
    space = planning.Space(servings, prices=prices, stock=stock, **further)
    search = planning.Search(space, objective)
    fleets = planning.plan_fleets(search, planning.Terms(stock=limits, **terms), demands)
    divided = []
    for each in fleets.single if divide else ():  # with the engine that carries most on each GPU
        kind = max(each.kinds, key=lambda kind: kind.rates[0] / kind.num_gpus)
        one, rate = kind.loads[0], each.solver.demands[0].request_rate
        assert one is not None
        sent_bytes_per_s = transfer_gb_per_s and transfer_gb_per_s * GB
        divided.append(planning.disaggregate(each.solver.search, kind.candidate, one, rate, sent_bytes_per_s))
    more = tuple(divided), (*load.notes, *first.resolved.notes), of_recommend
    answer = out.FleetAnswer.of(fleets, *more, remarks=(*of_case, *first.notes), explain=explain)
    files = answer.split_files(command_line) if output is not None else {}
    if output is not None and files:
        out.write_folder(Path(output), files, force=force)
        out.note(f"wrote {', '.join(files)} into {output}")
    return answer
