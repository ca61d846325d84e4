"""Settings, GPUs and scripts: ``planner recommend``."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval

from planner import planning
from planner.commands.declare import COMMANDS, Option, command, taken
from planner.commands.load import gpus_in, planned_load, rivals, stock_of
from planner.commands.options import (
    LOAD,
    Explain,
    Force,
    GpusOrDefault,
    MaxConcurrency,
    Partitions,
    PlannedLoad,
    ServerOptions,
    SizeOptions,
    Speculation,
    assignments,
    model_argument,
)
from planner.engine import SETTINGS, flag_of, tagged
from planner.errors import InputError
from planner.planning import defaults
from planner.units import MOST_FIGURE
from planner.workload import Targets

if TYPE_CHECKING:
    from planner.output import Recommendation
    from planner.planning import ModelName, Plan, Ranking, Search
    from planner.workload import Load

#: Settings that the search does not choose, so that they can be given.
GIVEN = tagged("recommend")
Served = Annotated["ModelName", model_argument("[MODEL]", f"Default: {defaults.MODEL}.")]
OutputDir = Annotated[str | None, Option("-o", "--output", metavar="DIR", help="Write the scripts into this folder.")]
_NODES = "Nodes that one server may fill. Default: 1, more for what does not fit."


class ClosedLoop:
    """A load in a closed loop, and the length of a replay."""

    max_concurrency: MaxConcurrency = None
    num_prompts: Annotated[
        int | None, Interval(ge=1), Option(panel=LOAD, help="Requests. Default: 5 x the concurrency.")
    ] = None


class SearchOptions:
    """The space and the goal of a search."""

    goal: Annotated[defaults.Goal | None, Option(default=defaults.GOAL, help="Optimisation goal.")] = None
    gpus: Annotated[int | None, Interval(ge=1), Option(default=defaults.GPUS_PER_NODE, help="GPUs of one node.")] = None
    nodes: Annotated[int | None, Interval(ge=1, le=defaults.MOST_NODES), Option(help=_NODES)] = None
    disaggregated: Annotated[
        bool, Option(help="Use separate prefill and decode servers where they take fewer GPUs.")
    ] = False
    speculation: Speculation = True
    pick: Annotated[int, Interval(ge=1), Option(help="Plan to print and to write; 1 is the best.")] = 1


@command(
    "recommend",
    help="Settings for a goal or for latency targets, and the scripts that launch and check them.",
    groups=(SearchOptions, PlannedLoad, ClosedLoop, SizeOptions, ServerOptions),
    engine=GIVEN,
    rivals=rivals(planned=True),
)
def recommend_plans(
    model: Served | None = None,
    gpu: GpusOrDefault | None = None,
    *,
    partitions: Partitions = False,
    output: OutputDir = None,
    force: Force = False,
    explain: Explain = False,
    command_line: str = "",
    **options: Any,
) -> "Recommendation":
    """Find the best settings for each GPU, for a goal or for latency targets under a load.

    Defaults are those of ``planner recommend``; ``answer.defaults_taken`` names them. They are the model
    ``meta-llama/Llama-3.3-70B-Instruct``, four GPUs, ``goal="balanced"`` (others: ``"min-latency"``,
    ``"max-throughput"``), ``gpus=8`` in a node, and 1024 tokens in and out.

    The load is given by lengths in tokens, or by a ``workload`` by name (chat, rag, summarise, code, agent, reasoning).
    ``max_concurrency`` (requests in flight) or ``request_rate`` (requests per second, of all servers) go with it. Or it
    is a ``trace``, a file of recorded arrivals and lengths. Or it is several ``classes`` (``Load.of_class("chat", 20,
    1024, 256)``), which share each server and have targets and priorities of their own. A ``router`` deals a trace, or
    a workload of several turns (multi-turn-chat, coding-agent), to servers.

    ``ttft``, ``tpot``, ``itl`` and ``e2el`` are targets in ms at a ``percentile`` (95, ``"mean"``). The cheapest plan
    is found that meets them with probability ``confidence`` (0.8). ``headroom`` is the share of the load that is
    carried on top of it, ``spares`` the number of spare servers. Several GPUs are sorted by USD per hour; ``price``
    is USD per GPU and hour instead of the profiles' (``{"mi355x": 2.5}``). With ``disaggregated``, separate prefill and
    decode servers are the answer where they take fewer GPUs: ``answer.answer_apart``.

    ``pick`` takes another plan than the best. Settings of the engine may be given, except those of the layout, which
    are searched. ``output`` is a folder to write the scripts into. The other keywords are those of ``Serving``.

    ``answer.best`` is the best plan of all, ``answer.plans`` has one for each GPU; ``write_scripts`` writes them.
    Raises InputError for options that contradict each other, a trace that cannot be read, a request longer than the
    model's context and a ``pick`` beyond the last plan. Raises also what ``Serving`` raises.
    """
    from planner.output import Recommendation
    from planner.planning import Objective, Search, Space, check_apart, parse_prices

    directory = _directory(output, force)
    stated = _stated(options)
    options = dict(stated)
    searched, size = taken(options, SearchOptions), taken(options, SizeOptions)
    given = taken(options, PlannedLoad) | taken(options, ClosedLoop)
    load, targets = planned_load(given, size, options.get("scheduling_policy"))
    gpu = gpus_in(size) if gpu is None else gpu
    servings = planning.Serving.on_each(
        defaults.MODEL if model is None else model,
        defaults.GPUS if gpu is None else gpu,
        partitions=partitions,
        **options,
    )
    asked, profiles = servings[0], tuple(serving.profile for serving in servings)
    prices = parse_prices(assignments(given.get("price", ())), profiles)
    stock = stock_of(size, profiles, prices)
    load, targets = _sized(load, targets, stocked=stock is not None, **size)
    if prices and targets is None:
        raise InputError(
            "--price without targets and without a load: plans are then in the order of the goal, not of USD",
            hint="add a target such as --tpot 100, or --request-rate; or ask planner compare",
        )
    planning.check_context(load, asked.longest_context, asked.resolved.resolved)
    pick, disaggregated = searched.get("pick", 1), "disaggregated" in searched
    if disaggregated and pick > 1:
        raise InputError("--pick names a plan of servers that do both", hint="leave out --pick or --disaggregated")
    search = Search(
        Space(
            servings,
            searched.get("gpus", defaults.GPUS_PER_NODE),
            searched.get("nodes"),
            prices,
            stock,
            searched.get("speculation", True),
        ),
        Objective(
            searched.get("goal", defaults.GOAL),
            load if targets else replace(load, max_concurrency=given.get("max_concurrency")),
            targets,
            num_prompts=given.get("num_prompts"),
            workload_name=given.get("workload"),
            **size,
        ),
    )
    if disaggregated:
        check_apart(search)
    rankings = search.run()
    names: dict[str, Any] = {} if model is None else {"": asked.resolved.requested}
    names |= {} if gpu is None else {"gpu": [profile.id for profile in profiles]}
    answer = Recommendation.of(
        search,
        rankings,
        tuple(_picked(search, ranking, pick) for ranking in rankings),
        pick,
        _defaults_taken({**stated, "model": model, "gpu": gpu}, targets),
        command_line or shlex.join(_words({**names, **stated})),
        wrote=directory is not None,
        remarks=(*asked.notes, *load.notes),
        explain=explain,
        disaggregated=disaggregated,
    )
    if directory:
        _write(answer, directory, force=force)
    return answer


def _stated(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that differ from what is taken without them. Raises InputError for a setting that is searched."""
    declared = COMMANDS["recommend"].parameters
    for name in options:
        if name not in declared:
            raise InputError(
                f"{flag_of(name)} is not given to recommend: it is searched, or not planned", hint="leave it out"
            )
    given = {name: options[name] for name in declared if name in options}  # in the order of the declaration
    stated = {name: value for name, value in given.items() if name in SETTINGS or value != declared[name].default}
    if "burstiness" in stated:  # inf: requests come evenly, as good as from there on
        stated["burstiness"] = min(stated["burstiness"], MOST_FIGURE)
    return stated


def _sized(
    load: "Load", targets: "Targets | None", *, stocked: bool, headroom: float = 0.0, spares: int = 0
) -> "tuple[Load, Targets | None]":
    """The load and the targets with the headroom on top. Raises InputError for a margin without a load."""
    if stocked or not (headroom or spares):
        return load, targets or (Targets() if stocked else None)
    if targets is None or targets.value is None:
        raise InputError("--headroom and --spares have no load to go with", hint="add --request-rate")
    return planning.times(load, 1 + headroom), replace(targets, value=targets.value * (1 + headroom))


def script_files(recommendation: "Recommendation") -> dict[str, str]:
    """Scripts that launch, benchmark and validate the picked plans, by name; empty without a plan.

    One GPU's scripts have plain names, those of several are in a folder for each.
    """
    from planner import __version__
    from planner.output import plan_files, split_files
    from planner.planning import PlanFile

    search, rankings = recommendation.search, recommendation.rankings
    files: dict[str, str] = {}
    for ranking, plan in zip(rankings, recommendation.plans, strict=True):
        if plan is None:
            continue
        file = PlanFile(
            planner_version=__version__, command=recommendation.command, goal=search.objective.goal, plan=plan
        )
        folder = f"{plan.gpu}/" if len(rankings) > 1 else ""
        service = plan.service
        tunable = not plan.classes and (
            service is None or (service.trace is None and service.prefix_cache_share is None)
        )
        if apart := recommendation.apart.get(plan.gpu):
            made = split_files(apart.division, recommendation.command)
        else:
            made = plan_files(file, ranking.profile, tunable=tunable)
        files |= {f"{folder}{name}": content for name, content in made.items()}
    return files and {**files, "recommendation.json": recommendation.to_json()}  # the last for planner report


def write_scripts(
    recommendation: "Recommendation", directory: str | PathLike[str], *, force: bool = False
) -> tuple[str, ...]:
    """Write what launches, benchmarks and validates the picked plans into ``directory``; all of it or nothing.

    One GPU's scripts go into ``directory`` itself, those of several into a folder for each below it. Returns the names
    of the files, empty without a plan. Raises InputError for a folder that exists, unless ``force``, and for one that
    cannot be written.
    """
    from planner.output import write_folder

    files = script_files(recommendation)
    if files:
        write_folder(Path(directory), files, force=force)
    return tuple(files)


def _write(answer: "Recommendation", directory: Path, *, force: bool) -> None:
    from planner.output import note

    written = write_scripts(answer, directory, force=force)
    if written:
        best, first = answer.best, "RUNBOOK.md"
        if apart := answer.answer_apart:
            best, first = apart.plan, "prefill.sh"
        of_best = f"{best.gpu}/{first}" if best else ""
        start = directory / (of_best if of_best in written else first)
        note(f"wrote {len(written)} files into {directory}; start with {start}")


def _directory(name: str | None, force: bool) -> Path | None:
    """The folder of ``-o``, refused before anything is computed. Writing checks again: it may exist by then."""
    if name is None:
        return None
    if not name.strip():
        raise InputError("-o names no folder", hint="for example -o plans")
    directory = Path(name)
    try:
        exists, dangling = directory.exists(), directory.is_symlink() and not directory.exists()
    except (OSError, ValueError) as error:  # a name that is too long, or has a NUL in it
        cause = getattr(error, "strerror", None) or str(error)
        raise InputError(f"-o {name[:200]}: {cause}", hint="name another folder") from error
    if dangling:
        raise InputError(f"-o {directory} is a link to nothing", hint="remove the link, or name another folder")
    if exists and not force:
        raise InputError(f"-o {directory} already exists", hint="name another folder, or add --force to replace it")
    return directory


def _picked(search: "Search", ranking: "Ranking", pick: int) -> "Plan | None":
    """The picked plan of a GPU; None where nothing fits."""
    if not ranking.candidates:
        return None
    if pick > len(ranking.candidates):
        raise InputError(
            f"--pick {pick}: {ranking.profile.id} has {len(ranking.candidates)} plans", hint="pick a smaller number"
        )
    return search.plan(ranking, ranking.candidates[pick - 1])


def _defaults_taken(stated: Mapping[str, Any], targets: "Targets | None") -> dict[str, Any]:
    """Parameters that were left open, with what was taken."""
    from planner.workload import DEFAULT_PERCENTILE

    latency = stated.get("goal") == "min-latency"
    taken: dict[str, Any] = {
        "model": defaults.MODEL,
        "goal": defaults.GOAL,
        "gpu": list(defaults.GPUS),
        "gpus": defaults.GPUS_PER_NODE,
        "input_len": defaults.LEN,
        "output_len": defaults.LEN,
        "max_concurrency": defaults.LATENCY_CONCURRENCY if latency else "searched",
        "num_prompts": "5 x the concurrency",
    }
    if targets is not None:
        del taken["goal"], taken["max_concurrency"], taken["num_prompts"]
        taken |= {"percentile": f"{DEFAULT_PERCENTILE:g}", "num_prompts": "as the percentile needs"}
    if stated.get("workload") or stated.get("trace") or stated.get("classes"):
        del taken["input_len"], taken["output_len"]
    return {name: value for name, value in taken.items() if stated.get(name) is None}


def _words(given: Mapping[str, Any]) -> Iterator[str]:
    """The command line that asks the same."""
    yield from ("planner", "recommend")
    declared = COMMANDS["recommend"].parameters
    for name, value in given.items():
        if not name:
            yield value
        elif isinstance(value, bool):
            if value or name in ("enable_prefix_caching", "speculation"):
                yield flag_of(name) if value else flag_of(f"no_{name}")
        elif name == "speculative_config" and (drafts := planning.engine_args({name: value}).speculative_config):
            yield from (flag_of(name), drafts.text)
        elif declared[name].kind == list[str]:  # repeated
            for one in assignments(value):
                yield from (declared[name].flag, getattr(one, "word", one))
        else:
            yield flag_of(name)
            yield ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
