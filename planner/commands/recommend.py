"""Searches: ``planner recommend`` (settings, scripts), ``compare`` (GPUs side by side), ``fleet`` (servers, cost)."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval

from planner import __version__, planning, workload
from planner import output as out
from planner.commands import options as opt
from planner.commands.declare import COMMANDS, Option, command, taken
from planner.commands.load import (
    LENGTHS,
    checked_workload,
    gpus_in,
    load_of,
    planned_load,
    refuse_contradictions,
    rivals,
    stock_of,
    stocks,
    with_use_case,
)
from planner.engine import SETTINGS, flag_of, tagged
from planner.errors import InputError
from planner.planning import defaults
from planner.units import GB, MOST_FIGURE, counted
from planner.workload import LATENCIES, Load, Targets

GIVEN = tagged("recommend")  #: settings that the search does not choose, so that they can be given
Served = Annotated["planning.ModelName", opt.model_argument("[MODEL]", f"Default: {defaults.MODEL}.")]
OutputDir = Annotated[str | None, Option("-o", "--output", metavar="DIR", help="Write the scripts into this folder.")]


class ClosedLoop:
    """A load in a closed loop, and the length of a replay."""

    max_concurrency: opt.MaxConcurrency = None
    num_prompts: opt.UsualPrompts = None


class SearchOptions:
    goal: Annotated[defaults.Goal | None, Option(default=defaults.GOAL, help="Optimisation goal.")] = None
    gpus: Annotated[int | None, Interval(ge=1), Option(default=defaults.GPUS_PER_NODE, help="GPUs of one node.")] = None
    nodes: Annotated[int | None, Interval(ge=1, le=defaults.MOST_NODES), Option(help=opt.HELP["nodes"])] = None
    disaggregated: Annotated[bool, Option(help=opt.HELP["disaggregated"])] = False
    speculation: opt.Speculation = True
    weight_dtype: opt.CheckpointDtype = None
    pick: Annotated[int, Interval(ge=1), Option(help="Plan to print and to write; 1 is the best.")] = 1


@command(
    "recommend", help="Best settings for a goal or for targets, and their scripts.",
    groups=(SearchOptions, opt.PlannedLoad, ClosedLoop, opt.SizeOptions, opt.ServerOptions, opt.HUB), engine=GIVEN,
    rivals=rivals(planned=True),
)  # fmt: skip
def recommend_plans(
    model: Served | None = None, gpu: opt.GpusOrDefault | None = None, *, partitions: opt.Partitions = False,
    output: OutputDir = None, force: opt.Force = False, explain: opt.Explain = False, command_line: str = "",
    **options: Any,
) -> "out.Recommendation":  # fmt: skip
    """Find the best settings for each GPU, for a goal or for latency targets under a load.

    The load is given by lengths in tokens, a ``workload`` by name, a ``trace`` or ``classes``; targets in ms at a
    ``percentile``, met with probability ``confidence``. ``answer.defaults_taken`` names what was left open,
    ``answer.best`` is the best plan of all, ``answer.plans`` has one for each GPU; ``write_scripts`` writes them.
    Raises InputError for options that contradict each other, and what ``Serving`` raises."""
    if output is not None and not output.strip():
        raise InputError("-o names no folder", hint="for example -o plans")
    directory = None if output is None else Path(output)
    if directory:
        out.check_folder(directory, force=force)
    stated = _stated(options)
    options, of_case = with_use_case(stated)
    written_out = dict(options)
    searched, size = taken(options, SearchOptions), taken(options, opt.SizeOptions)
    given = taken(options, opt.PlannedLoad) | taken(options, ClosedLoop)
    load, targets = planned_load(given, size, options.get("scheduling_policy"))
    gpu = gpus_in(size) if gpu is None else gpu
    named = defaults.MODEL if model is None else model, defaults.GPUS if gpu is None else gpu
    servings = planning.Serving.on_each(*named, partitions=partitions, rented=True, **options)
    asked, profiles = servings[0], tuple(serving.profile for serving in servings)
    prices = planning.parse_prices(opt.assignments(given.get("price", ())), profiles)
    stock = stock_of(size, profiles, prices)
    load, targets = _sized(load, targets, stocked=stock is not None, **size)
    if targets and (chosen := stated.get("goal")):
        rank = (
            "tokens/s per GPU, not cost, ranks GPUs" if chosen == "max-throughput" else "it decides at equal cost only"
        )
        of_case += (f"--goal {chosen} with targets: {rank}",)
    planning.check_context(load, asked.longest_context, asked.resolved.resolved)
    pick, disaggregated = searched.get("pick", 1), "disaggregated" in searched
    if disaggregated and pick > 1:
        raise InputError("--pick names a plan of servers that do both", hint="leave out --pick or --disaggregated")
    drafts, dtype = searched.get("speculation", True), searched.get("weight_dtype")
    space = planning.Space(servings, searched.get("gpus"), searched.get("nodes"), prices, stock, drafts, dtype)
    goal, num_prompts, name = searched.get("goal", defaults.GOAL), given.get("num_prompts"), given.get("workload")
    sent = load if targets else replace(load, max_concurrency=given.get("max_concurrency"))
    search = planning.Search(space, planning.Objective(goal, sent, targets, num_prompts, workload_name=name, **size))
    if disaggregated:
        planning.check_apart(search)
    rankings = search.run()
    names: dict[str, Any] = {} if model is None else {"model": asked.resolved.requested}
    names |= {} if gpu is None else {"gpu": [profile.id for profile in profiles]}
    picked = tuple(_picked(search, ranking, pick) for ranking in rankings)
    nodes = {profile.id: profile.gpus_per_node // profile.parts for profile in profiles}
    taken_by_default = _defaults_taken({**written_out, "model": model, "gpu": gpu}, targets, max(nodes.values()))
    few = {name: most for name, most in nodes.items() if most < searched.get("gpus", 0)}
    cut = (f"a node of {name} has {counted(most)} at most" for name, most in few.items())
    alone = (
        f"{one.id}: its nodes are planned one by one, as the network between them is unknown (--network-gb-per-s)"
        for one in profiles if searched.get("nodes", 1) > 1 and not one.joins_nodes
    )  # fmt: skip
    answer = out.Recommendation.of(
        search, rankings, picked, pick, taken_by_default, command_line or shlex.join(typed({**names, **stated})),
        wrote=directory is not None, remarks=(*of_case, *cut, *alone, *asked.notes, *load.notes), explain=explain,
        disaggregated=disaggregated,
    )  # fmt: skip
    if directory and (written := write_scripts(answer, directory, force=force)):
        apart = answer.answer_apart
        best, first = (apart.plan, "prefill.sh") if apart else (answer.best, "RUNBOOK.md")
        of_best = f"{best.gpu}/{first}" if best else ""
        start = directory / (of_best if of_best in written else first)
        out.note(f"wrote {len(written)} files into {directory}; start with {start}")
    return answer


def _stated(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that differ from their defaults. Raises InputError for a setting that is searched."""
    declared = COMMANDS["recommend"].parameters
    for name in options:
        if name not in declared:
            raise InputError(f"{flag_of(name)}: it is searched, or not planned", hint="leave it out")
    given = {name: options[name] for name in declared if name in options}  # in the order of the declaration
    stated = {name: value for name, value in given.items() if name in SETTINGS or value != declared[name].default}
    if "burstiness" in stated:  # inf: requests come evenly, as good as from there on
        stated["burstiness"] = min(stated["burstiness"], MOST_FIGURE)
    return stated


def _sized(
    load: "workload.Load", targets: "Targets | None", *, stocked: bool, headroom: float = 0.0, spares: int = 0
) -> "tuple[workload.Load, Targets | None]":
    """The load and the targets with the headroom on top. Raises InputError for a margin without a load."""
    if stocked or not (headroom or spares):
        return load, targets or (Targets() if stocked else None)
    if targets is None or targets.value is None:
        raise InputError("--headroom and --spares have no load to go with", hint="add --request-rate")
    return planning.times(load, 1 + headroom), replace(targets, value=targets.value * (1 + headroom))


def script_files(recommendation: "out.Recommendation") -> dict[str, str]:
    """Scripts of the picked plans by name, those of several GPUs in a folder for each; empty without a plan."""
    command, goal, files = recommendation.command, recommendation.objective.goal, dict[str, str]()
    for ranking, plan in zip(recommendation.rankings, recommendation.plans, strict=True):
        if plan is None:
            continue
        folder, service = f"{plan.gpu}/" if len(recommendation.rankings) > 1 else "", plan.service
        if apart := recommendation.apart.get(plan.gpu):
            made = out.split_files(apart.division, command)
        else:
            lengths_alone = service is None or (service.trace is None and service.prefix_cache_share is None)
            file = planning.PlanFile(planner_version=__version__, command=command, goal=goal, plan=plan)
            made = out.plan_files(file, ranking.profile, tunable=lengths_alone and not plan.classes)
        files |= {f"{folder}{name}": content for name, content in made.items()}
    return files and {**files, "recommendation.json": recommendation.to_json()}  # the last for planner report


def write_scripts(
    recommendation: "out.Recommendation", directory: str | PathLike[str], *, force: bool = False
) -> tuple[str, ...]:
    """Write the scripts of the picked plans into ``directory``, all or none; several GPUs get a folder each.

    Returns the names of the files, empty without a plan. Raises InputError for a folder that exists, unless ``force``.
    """
    files = script_files(recommendation)
    if files:
        out.write_folder(Path(directory), files, force=force)
    return tuple(files)


def _picked(search: "planning.Search", ranking: "planning.Ranking", pick: int) -> "planning.Plan | None":
    if not ranking.candidates:
        return None
    if pick > len(ranking.candidates):
        cause = f"--pick {pick}: {ranking.profile.id} has {len(ranking.candidates)} plans"
        raise InputError(cause, hint="pick a smaller number")
    return search.plan(ranking, ranking.candidates[pick - 1])


def _defaults_taken(stated: Mapping[str, Any], targets: "Targets | None", node: int) -> dict[str, Any]:
    latency = stated.get("goal") == "min-latency"
    taken: dict[str, Any] = {
        "model": defaults.MODEL, "goal": defaults.GOAL, "gpu": list(defaults.GPUS),
        "gpus": min(defaults.GPUS_PER_NODE, node), "input_len": defaults.LEN, "output_len": defaults.LEN,
        "max_concurrency": defaults.LATENCY_CONCURRENCY if latency else "searched",
        "num_prompts": "5 x the concurrency",
    }  # fmt: skip
    if stated.get("have") or stated.get("budget"):
        del taken["gpus"]
    if targets is not None:
        del taken["goal"], taken["max_concurrency"], taken["num_prompts"]
        taken |= {"percentile": f"{workload.DEFAULT_PERCENTILE:g}", "num_prompts": "as the percentile needs"}
    if stated.get("workload") or stated.get("trace") or stated.get("classes"):
        del taken["input_len"], taken["output_len"]
    return {name: value for name, value in taken.items() if stated.get(name) is None}


def repeated(options: Mapping[str, Any], stated: Collection[str] = ()) -> tuple[str, ...]:
    """Return the words that give recommend the options of another command, but those in ``stated`` and defaults."""
    declared = COMMANDS["recommend"].parameters
    repeatable = [name for name in declared if name in options and name not in stated]
    usual = {name: (declared[name].default, declared[name].option.default) for name in repeatable}
    given = {name: options[name] for name in repeatable if name in SETTINGS or options[name] not in usual[name]}
    return tuple(typed(given))[2:]


def typed(given: Mapping[str, Any]) -> Iterator[str]:
    """Return the words of the command line that gives these options of recommend. Others are left out."""
    yield from ("planner", "recommend")
    declared = COMMANDS["recommend"].parameters
    for name, value in given.items():
        if name == "speculative_config" and (drafts := planning.engine_args({name: value}).speculative_config):
            value = drafts.text
        elif name in declared and declared[name].kind == list[str]:
            value = [getattr(one, "word", one) for one in opt.assignments(value)]
        yield from declared[name].words(value) if name in declared else ()


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
) -> "out.ComparisonAnswer":  # fmt: skip
    """Compare GPUs and partition modes on equal hardware under equal load: tokens/s, dollars, watts, odds.

    ``max_concurrency`` (8, 32, 128 requests) or ``request_rate`` are those of all servers of a GPU type; ``price`` is
    USD per GPU and hour. ``answer.record.points`` has every figure, with its interval. Raises InputError for an
    impossible load or price, and what ``Serving`` raises."""
    given = {**locals(), **options}
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
    return out.ComparisonAnswer.of(comparison, *more, remarks=asked.notes, explain=explain)


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


_fleet = partial(opt.panel_option, "Fleet")
#: Options that the suggested command states itself, for its part of the load. It repeats all others.
LOAD_AND_STOCK = (*LENGTHS, *LATENCIES, "workload", "trace", "classes", "request_rate", "budget", "have", "price")
ScriptsDir = Annotated[str | None, _fleet(opt.HELP["launch_scripts"], "-o", "--output", metavar="DIR")]


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
    partitions: opt.Partitions = False, output: ScriptsDir = None, force: opt.Force = False,
    explain: opt.Explain = False, command_line: str = "", **options: Any,
) -> "out.FleetAnswer":  # fmt: skip
    """Size servers, GPUs, dollars and watts that carry a load under latency targets.

    The load is a ``request_rate`` (requests per second, of all servers), ``classes`` or a ``trace``; targets are in ms.
    ``answer.fleets`` has the best first. Raises InputError for an impossible load or price, and as ``Serving`` does."""

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
