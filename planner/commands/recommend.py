"""Settings, GPUs and scripts: ``planner recommend``."""

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval

from planner import __version__, planning, workload
from planner import output as out
from planner.commands import options as opt
from planner.commands.declare import COMMANDS, Option, command, taken
from planner.commands.load import gpus_in, planned_load, rivals, stock_of, with_use_case
from planner.engine import SETTINGS, flag_of, tagged
from planner.errors import InputError
from planner.planning import defaults
from planner.units import MOST_FIGURE, counted
from planner.workload import Targets

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
