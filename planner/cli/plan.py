"""``planner recommend``: which settings, and the scripts that launch and prove them."""

import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import options as flag
from planner.cli.engine_flags import takes_engine_flags
from planner.cli.options import LOAD, Format

if TYPE_CHECKING:
    from planner.engine.config import EngineArgs
    from planner.plan import Plan
    from planner.recommend import Ranking, Request

DEFAULT_MODEL = "meta-llama/Llama-3.3-70B-Instruct"
DEFAULT_GPUS = ("mi300x", "mi355x", "b200-sxm", "h100-sxm")
DEFAULT_LEN = 1024
GPUS_PER_NODE = 8
LISTED = 3  #: plans of each GPU in the JSON


class Goal(StrEnum):
    """What is best."""

    min_latency = "min-latency"
    max_throughput = "max-throughput"
    balanced = "balanced"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("recommend", help="Which settings, and the scripts that launch and prove them.")(recommend)


@takes_engine_flags(
    "kv_cache_dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "enforce_eager",
    "allow_unvalidated",
)
def recommend(
    *,
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help=f"Default: {DEFAULT_MODEL}.")] = None,
    goal: Annotated[Goal, typer.Option("--goal", help="What is best.")] = Goal.balanced,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            metavar="GPU",
            help=f"Profile id, alias or file; repeatable; 'all'. Default: {' '.join(DEFAULT_GPUS)}.",
        ),
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="GPUs that one node has.")] = GPUS_PER_NODE,
    input_len: flag.RandomInputLen = DEFAULT_LEN,
    output_len: flag.RandomOutputLen = DEFAULT_LEN,
    max_concurrency: flag.MaxConcurrency = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(
            "--num-prompts",
            min=1,
            max=flag.MOST_PROMPTS,
            rich_help_panel=LOAD,
            help="Requests. Default: 5 x the concurrency.",
        ),
    ] = None,
    args: "EngineArgs",
    engine_version: flag.EngineVersionOption = None,
    directory: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write the scripts into this folder.")
    ] = None,
    pick: Annotated[int, typer.Option("--pick", min=1, help="Which plan to write, 1 is the best.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that exists.")] = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0 when there is a plan for at least one GPU, 1 when there is none."""
    from planner.cli.inputs import check_context, gpu_profiles
    from planner.engine.version import parse_version
    from planner.memory.budget import Basis
    from planner.memory.local import constants_for
    from planner.model.resolve import load_model
    from planner.recommend import Request, rank
    from planner.report.recommendation import print_recommendation
    from planner.workload import Workload

    _refuse_existing(directory, force)
    profiles = gpu_profiles(gpu or DEFAULT_GPUS)
    resolved = load_model(model or DEFAULT_MODEL, revision=revision, refresh=refresh)
    own_context = resolved.model.max_position_embeddings
    workload = Workload(input_len, output_len, num_prompts or 1, max_concurrency)
    check_context(workload, min(own_context, args.max_model_len or own_context), resolved.resolved)
    request = Request(
        model=resolved,
        gpus=tuple(profiles),
        goal=goal.value,
        input_len=input_len,
        output_len=output_len,
        max_concurrency=max_concurrency,
        num_prompts=num_prompts,
        gpus_per_node=gpus,
        version=parse_version(engine_version) if engine_version else None,
        basis=Basis(constants_for(None)),
        args=args,
    )
    rankings = rank(request)
    plans = _plans(request, rankings, pick)
    command = shlex.join(["planner", *(context.obj or ())])
    if directory:
        _write(directory, rankings, plans, request, command, force=force)
    listed = _listed(request, rankings, plans, pick) if output is Format.json else []
    print_recommendation(
        request, rankings, plans, listed, _defaults_taken(context), output, command=command, wrote=directory is not None
    )
    return 0 if any(plan is not None for plan in plans) else 1


def _refuse_existing(directory: Path | None, force: bool) -> None:
    """Before anything is computed. Writing checks again: the folder may have come in the meantime."""
    from planner.errors import InputError

    try:
        exists = directory is not None and directory.exists()
    except OSError as error:
        raise InputError(f"-o {str(directory)[:200]}: {error.strerror}", hint="name another folder") from error
    if exists and not force:
        raise InputError(f"-o {directory} already exists", hint="name another folder, or add --force to replace it")


def _plans(request: "Request", rankings: "Sequence[Ranking]", pick: int) -> "list[Plan | None]":
    """The picked plan of each GPU; None where nothing fits."""
    from planner.errors import InputError
    from planner.recommend import assemble

    plans: list[Plan | None] = []
    for ranking in rankings:
        if ranking.candidates and pick > len(ranking.candidates):
            raise InputError(
                f"--pick {pick}: {ranking.profile.id} has {len(ranking.candidates)} plans", hint="pick a smaller number"
            )
        plans.append(assemble(request, ranking, ranking.candidates[pick - 1]) if ranking.candidates else None)
    return plans


def _listed(
    request: "Request", rankings: "Sequence[Ranking]", plans: "Sequence[Plan | None]", pick: int
) -> "list[Plan]":
    """The picked plan of each GPU and those that could be picked instead, in the order of ``--pick``."""
    from planner.recommend import assemble

    found = [plan for plan in plans if plan is not None]
    for ranking in rankings:
        others = [c for place, c in enumerate(ranking.candidates[:LISTED], 1) if place != pick]
        found += [assemble(request, ranking, candidate) for candidate in others]
    return found


def _defaults_taken(context: typer.Context) -> dict[str, Any]:
    """Parameters that the user left open, with what was taken."""
    goal = context.params.get("goal")
    named = {
        "model": DEFAULT_MODEL,
        "gpu": list(DEFAULT_GPUS),
        "max_concurrency": 8 if goal == Goal.min_latency else "searched",
        "num_prompts": "5 x the concurrency",
    }
    found: dict[str, Any] = {}
    for name in ("model", "goal", "gpu", "gpus", "input_len", "output_len", "max_concurrency", "num_prompts"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "DEFAULT":
            value = named.get(name, context.params.get(name))
            found[name] = getattr(value, "value", value)
    return found


def _write(
    directory: Path,
    rankings: "Sequence[Ranking]",
    plans: "Sequence[Plan | None]",
    request: "Request",
    command: str,
    *,
    force: bool,
) -> None:
    """Scripts of one GPU into ``directory``, of several into a folder for each below it; all of them or none."""
    from planner import __version__
    from planner.plan import PlanFile
    from planner.report.recommendation import predicted_lines
    from planner.report.render import note
    from planner.scripts import Emission, render, write
    from planner.scripts.workflows import needed_by, published_scores

    files: dict[str, str] = {}
    for ranking, plan in zip(rankings, plans, strict=True):
        if plan is None:
            continue
        file = PlanFile(planner_version=__version__, command=command, goal=request.goal, plan=plan)
        lines, scores = tuple(predicted_lines(plan)), published_scores(plan.model, plan.accuracy_task)
        emission = Emission(file, ranking.profile, plan.memory["checkpoint_bytes"], lines, scores)
        folder = f"{plan.gpu}/" if len(rankings) > 1 else ""
        made = {**render(emission), **needed_by(emission)}
        files |= {f"{folder}{name}": content for name, content in made.items()}
    if files:
        write(directory, files, force=force)
        note(f"wrote {len(files)} files into {directory}; start with RUNBOOK.md")
