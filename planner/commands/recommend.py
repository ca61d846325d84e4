"""Which settings? ``planner recommend``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from planner.commands.declare import Argument, Option, command, keywords
from planner.commands.inputs import asked_version, assignments, basis_for, find_gpus, fits_for, load_model, typed
from planner.commands.load import (
    check_burstiness,
    check_context,
    checked_confidence,
    fields_of,
    load_of,
    refuse_contradictions,
    rivals,
    targets_of,
    with_fields,
)
from planner.commands.options import (
    LOAD,
    Burstiness,
    Calibration,
    Classes,
    Confidence,
    E2el,
    EngineVersion,
    Explain,
    Force,
    GpusOrDefault,
    Itl,
    MaxConcurrency,
    NetworkGbPerS,
    PathName,
    Percentile,
    PrefixLen,
    Price,
    RandomInputLen,
    RandomOutputLen,
    RangeRatio,
    Refresh,
    Revision,
    RouterName,
    Seed,
    Timeout,
    TotalRate,
    Tpot,
    Ttft,
    WorkloadName,
    complete_model,
)
from planner.engine import SETTINGS, flag_of, tagged
from planner.errors import InputError, UnknownNameError
from planner.planning import defaults, engine_args
from planner.units import MOST_FIGURE
from planner.workload import LATENCIES, benchmarks

if TYPE_CHECKING:
    from planner.commands.inputs import ModelName
    from planner.hardware import GpuProfile
    from planner.model import ResolvedModel
    from planner.output import Recommendation
    from planner.planning import Plan, Ranking, Request, Targets

#: Settings that the search does not choose, so that they can be given.
GIVEN = tagged("recommend")

Served = Annotated[
    "ModelName",
    Argument(kind=str, metavar="[MODEL]", autocompletion=complete_model, help=f"Default: {defaults.MODEL}."),
]
Goal = Annotated[defaults.Goal, Option(default=defaults.GOAL, help="What the best plan is best at.")]
GpusPerNode = Annotated[int, Option("--gpus", min=1, default=defaults.GPUS_PER_NODE, help="GPUs of one node.")]
Nodes = Annotated[
    int,
    Option(
        min=1, max=defaults.MOST_NODES, help="Nodes that one server may fill. Default: 1, more for what does not fit."
    ),
]
Trace = Annotated[
    PathName,
    Option(kind=Path, metavar="FILE", panel=LOAD, help="Recorded arrivals and lengths, CSV or JSON lines."),
]
NumPrompts = Annotated[int, Option(min=1, panel=LOAD, help="Requests. Default: 5 x the concurrency.")]
Pick = Annotated[int, Option(min=1, help="Plan to print and to write; 1 is the best.")]
Disaggregate = Annotated[
    bool, Option(help="Prefill and decode on servers of their own are the plan where they take fewer GPUs.")
]
OutputDir = Annotated[str, Option("-o", "--output", metavar="DIR", help="Write the scripts into this folder.")]


def recommend_plans(
    model: Served | None = None,
    gpu: GpusOrDefault | None = None,
    *,
    goal: Goal | None = None,
    gpus: GpusPerNode | None = None,
    nodes: Nodes | None = None,
    network_gb_per_s: NetworkGbPerS = None,
    input_len: RandomInputLen | None = None,
    output_len: RandomOutputLen | None = None,
    random_range_ratio: RangeRatio | None = None,
    random_prefix_len: PrefixLen = 0,
    workload: WorkloadName = None,
    max_concurrency: MaxConcurrency = None,
    request_rate: TotalRate = None,
    burstiness: Burstiness | None = None,
    trace: Trace | None = None,
    classes: Classes = (),
    router: RouterName = None,
    seed: Seed | None = None,
    num_prompts: NumPrompts | None = None,
    ttft: Ttft = None,
    tpot: Tpot = None,
    itl: Itl = None,
    e2el: E2el = None,
    percentile: Percentile | None = None,
    confidence: Confidence = None,
    price: Price = (),
    disaggregated: Disaggregate = False,
    engine_version: EngineVersion = None,
    calibration: Calibration = None,
    pick: Pick = 1,
    explain: Explain = False,
    revision: Revision = None,
    refresh: Refresh = False,
    timeout: Timeout | None = None,
    **engine: Any,
) -> Recommendation:
    """The best settings for each GPU, for a goal or for latency targets under a load.

    What is left out has the defaults of ``planner recommend``, and ``answer.defaults_taken`` names them: the model
    ``meta-llama/Llama-3.3-70B-Instruct``, four GPUs side by side, ``goal="balanced"`` (others: ``"min-latency"``,
    ``"max-throughput"``), ``gpus=8`` in a node, 1024 tokens in and out.

    The load is given by lengths in tokens or a ``workload`` by name (chat, rag, summarise, code, agent, reasoning) and
    ``max_concurrency`` (requests in flight) or ``request_rate`` (requests per second, of all servers together); or as
    a ``trace``, a file of recorded arrivals and lengths; or as ``classes`` (``Load.of_class("chat", 20, 1024, 256)``),
    which share each server and have targets and priorities of their own. ``router`` says how a trace, or a workload of
    several turns (multi-turn-chat, coding-agent), is dealt to servers. ``ttft``, ``tpot``, ``itl`` and ``e2el`` are
    targets in ms at a ``percentile`` (99, ``"mean"``): the cheapest plan is found that keeps them
    with probability ``confidence`` (0.8); several GPUs stand by USD per hour, ``price`` says others than the
    profiles' per GPU (``{"mi355x": 2.5}``). With ``disaggregated``, prefill and decode on servers of their own are the
    answer where they take fewer GPUs at that confidence: ``answer.answer_apart``. ``engine`` are settings that are
    given instead of searched; those of the layout are searched and cannot be given. ``pick`` takes another plan than
    the best.

    ``answer.best`` is the best plan of all, ``answer.plans`` has one for each GPU; ``write_scripts`` writes them.
    Raises InputError for flags that contradict each other, a trace that cannot be read, a request longer than the
    model's context and a ``pick`` that there is not, and what ``load_model`` and ``load_gpu`` raise.
    """
    given = _checked(
        {name: value for name, value in locals().items() if name not in ("model", "gpu", "engine", "explain")}
    )
    _refuse_searched(engine)
    args = engine_args(engine, own=keywords(recommend_plans))
    profiles, remarks = find_gpus(defaults.GPUS if gpu is None else gpu, network_gb_per_s)
    refuse_contradictions(given, planned=True)
    check_burstiness(given.get("burstiness"))
    said = ("input_len", "output_len", "random_range_ratio", "workload", "trace", "classes", "request_rate", "seed")
    load = load_of(
        **{name: given[name] for name in (*said, "burstiness") if name in given},
        scheduling_policy=args.scheduling_policy,
    )
    if load.classes and num_prompts:
        benchmarks(load.classes, given["num_prompts"])  # refuses a class of which that many send none
    of_targets = ("percentile", "request_rate", "max_concurrency", "router")
    targets = targets_of(
        load, {name: given.get(name) for name in LATENCIES},
        confidence=checked_confidence(confidence), **{name: given.get(name) for name in of_targets},
    )  # fmt: skip
    from planner.planning import parse_prices

    prices = parse_prices(given.get("price", ()), profiles)
    if prices and targets is None:
        raise InputError(
            "--price without targets and without a load: plans are then in the order of the goal, not of USD",
            hint="add a target such as --tpot 100, or --request-rate; or ask planner compare",
        )
    resolved = load_model(
        defaults.MODEL if model is None else model, revision=revision, refresh=refresh, timeout=timeout
    )
    own_context = resolved.model.max_position_embeddings
    load = with_fields(load, prefix_len=load.prefix_len or random_prefix_len)
    flying = fields_of(
        input_len=1, output_len=1, num_prompts=given.get("num_prompts", 1), max_concurrency=given.get("max_concurrency")
    ).max_concurrency  # refuses what is no load
    limit = min(own_context, args.max_model_len or own_context)
    check_context(load, limit, resolved.resolved)

    from planner.output import Recommendation
    from planner.planning import Request, check_apart, rank

    if disaggregated and pick > 1:
        raise InputError("--pick names a plan of servers that do both", hint="leave out --pick or --disaggregated")
    local = fits_for(calibration)
    request = Request(
        model=resolved,
        gpus=profiles,
        goal=goal or defaults.GOAL,
        load=load,
        max_concurrency=None if targets else flying,
        num_prompts=given.get("num_prompts"),
        gpus_per_node=given.get("gpus", defaults.GPUS_PER_NODE),
        nodes=given.get("nodes"),
        version=asked_version(engine_version),
        basis=basis_for(local, args),
        calibration=local.calibration,
        args=args,
        targets=targets,
        workload_name=workload,
        prices=prices,
    )
    if disaggregated:
        check_apart(request)
    rankings = tuple(rank(request))
    plans = tuple(_picked(request, ranking, pick) for ranking in rankings)
    stated = {**given, "model": model, "gpu": gpu}
    taken = _defaults_taken(stated, targets)
    command = shlex.join(_words(resolved, model is None, profiles, gpu is None, {**given, **engine}))
    remarks = (*remarks, *local.notes, *load.notes)
    return Recommendation.of(
        request, rankings, plans, pick, taken, command,
        remarks=remarks, explain=explain, disaggregated=disaggregated,
    )  # fmt: skip


def script_files(recommendation: Recommendation) -> dict[str, str]:
    """What launches, benchmarks and validates the picked plans: name to content; none where there is no plan.

    One GPU's scripts have plain names, those of several are in a folder for each.
    """
    from planner import __version__
    from planner.output import plan_files, split_files
    from planner.planning import PlanFile

    request, rankings = recommendation.request, recommendation.rankings
    files: dict[str, str] = {}
    for ranking, plan in zip(rankings, recommendation.plans, strict=True):
        if plan is None:
            continue
        file = PlanFile(planner_version=__version__, command=recommendation.command, goal=request.goal, plan=plan)
        folder = f"{plan.gpu}/" if len(rankings) > 1 else ""
        service = plan.service
        tunable = not plan.classes and (service is None or (service.trace or service.router) is None)
        if apart := recommendation.apart.get(plan.gpu):
            made = split_files(apart.division, recommendation.command)
        else:
            made = plan_files(file, ranking.profile, tunable=tunable)
        files |= {f"{folder}{name}": content for name, content in made.items()}
    return files and {**files, "recommendation.json": recommendation.to_json()}  # the last for planner report


def write_scripts(
    recommendation: Recommendation, directory: str | PathLike[str], *, force: bool = False
) -> tuple[str, ...]:
    """Write what launches, benchmarks and validates the picked plans into ``directory``; all of it or nothing.

    One GPU's scripts go into ``directory`` itself, those of several into a folder for each below it. Returns the names
    of the files; none where there is no plan. Raises InputError for a folder that exists, unless ``force``, and for one
    that cannot be written.
    """
    from planner.output import write_folder

    files = script_files(recommendation)
    if files:
        write_folder(Path(directory), files, force=force)
    return tuple(files)


@command(
    "recommend",
    help="Which settings, and the scripts that launch and prove them.",
    extends=recommend_plans,
    engine=GIVEN,
    rivals=rivals(planned=True),
)
def recommend(
    *, output: OutputDir | None = None, force: Force = False, command_line: str, **options: Any
) -> Recommendation:
    """The plans, and their scripts where a folder is named."""
    from planner.output import note

    directory = _directory(output, force)
    found = recommend_plans(**options)
    answer = replace(found, command=command_line, wrote=directory is not None)
    if directory:
        written = write_scripts(answer, directory, force=force)
        if written:
            best, first = answer.best, "RUNBOOK.md"
            if apart := answer.answer_apart:
                best, first = apart.plan, "prefill.sh"
            of_best = f"{best.gpu}/{first}" if best else ""
            start = directory / (of_best if of_best in written else first)
            note(f"wrote {len(written)} files into {directory}; start with {start}")
    return answer


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


COUNTS = ("gpus", "nodes", "input_len", "output_len", "max_concurrency", "num_prompts", "pick")
REPEATED = {"price": "--price", "classes": "--class"}
NUMBERS = ("request_rate", "network_gb_per_s", "burstiness", "random_range_ratio", *LATENCIES)


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is said, with plain values. Raises InputError for a value of another kind than the flag's."""
    unsaid = {
        "price": (), "classes": (), "pick": 1, "random_prefix_len": 0, "refresh": False, "timeout": None,
        "disaggregated": False,
    }  # fmt: skip
    found = {name: value for name, value in given.items() if value is not None and value != unsaid.get(name)}
    for name, value in found.items():
        if name in COUNTS or name == "seed":
            found[name] = typed(name, value, int)
        elif name in NUMBERS:
            number = typed(name, value, float)
            # inf: requests come evenly, as good as from there on
            found[name] = min(number, MOST_FIGURE) if name == "burstiness" else number
        elif name == "trace":
            found[name] = Path(value)
        elif name == "workload":
            typed(name, value, str)
        elif name == "percentile":
            found[name] = str(value)
        elif name in ("price", "classes"):
            found[name] = assignments(value) if name == "price" else tuple(value)
        if name in COUNTS and found[name] < 1:
            raise InputError(f"{flag_of(name)} must be at least 1, got {value}", hint="give a positive number")
    if found.get("goal", defaults.GOAL) not in get_args(defaults.Goal):
        raise UnknownNameError("goal", str(found["goal"]), get_args(defaults.Goal), see="planner recommend --help")
    return found


def _refuse_searched(engine: Mapping[str, Any]) -> None:
    for name in engine:
        if name not in GIVEN and name in SETTINGS:
            raise InputError(
                f"{flag_of(name)} is not given to recommend: it is searched, or not planned", hint="leave it out"
            )


def _picked(request: Request, ranking: Ranking, pick: int) -> Plan | None:
    """The picked plan of a GPU; None where nothing fits."""
    from planner.planning import assemble

    if not ranking.candidates:
        return None
    if pick > len(ranking.candidates):
        raise InputError(
            f"--pick {pick}: {ranking.profile.id} has {len(ranking.candidates)} plans", hint="pick a smaller number"
        )
    return assemble(request, ranking, ranking.candidates[pick - 1])


def _defaults_taken(stated: Mapping[str, Any], targets: Targets | None) -> dict[str, Any]:
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


def _words(
    resolved: ResolvedModel,
    default_model: bool,
    profiles: Iterable[GpuProfile],
    default_gpus: bool,
    given: Mapping[str, Any],
) -> Iterator[str]:
    """The command line that asks the same."""
    yield from ("planner", "recommend")
    if not default_model:
        yield resolved.requested
    for profile in () if default_gpus else profiles:
        yield from ("--gpu", profile.id)
    for name, value in given.items():
        if value is None or (value is False and name != "enable_prefix_caching"):
            continue
        if name in REPEATED:
            for one in value:
                yield from (REPEATED[name], getattr(one, "word", one))
        elif isinstance(value, bool):
            yield flag_of(name) if value else flag_of(f"no_{name}")
        elif name == "speculative_config" and (drafts := engine_args({name: value}).speculative_config):
            yield from (flag_of(name), drafts.text)
        else:
            yield flag_of(name)
            yield ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
