"""``planner recommend``: which settings, and the scripts that launch and prove them."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import options as flag
from planner.cli.options import LOAD, Format

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.recommend import Ranking, Request

DEFAULT_MODEL = "meta-llama/Llama-3.3-70B-Instruct"
DEFAULT_GPUS = ("mi300x", "mi355x", "b200-sxm", "h100-sxm")
DEFAULT_LEN = 1024
GPUS_PER_NODE = 8


class Goal(StrEnum):
    """What is best."""

    min_latency = "min-latency"
    max_throughput = "max-throughput"
    balanced = "balanced"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("recommend", help="Which GPU, parallelism, precision and batch; and the scripts that prove it.")(
        recommend
    )


def recommend(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help=f"Default: {DEFAULT_MODEL}.")] = None,
    goal: Annotated[Goal, typer.Option("--goal", help="What is best.")] = Goal.balanced,
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", metavar="GPU", help="Profile id, alias or file; repeatable; 'all'.")
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="GPUs that one node has.")] = GPUS_PER_NODE,
    input_len: Annotated[
        int, typer.Option("--random-input-len", "--input-len", rich_help_panel=LOAD, help="Prompt tokens.")
    ] = DEFAULT_LEN,
    output_len: Annotated[
        int, typer.Option("--random-output-len", "--output-len", rich_help_panel=LOAD, help="Output tokens.")
    ] = DEFAULT_LEN,
    max_concurrency: Annotated[
        int | None, typer.Option("--max-concurrency", min=1, rich_help_panel=LOAD, help="Requests in flight.")
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option("--num-prompts", min=1, rich_help_panel=LOAD, help="Default: 5 x the concurrency.")
    ] = None,
    kv_cache_dtype: flag.KvCacheDtype = "auto",
    max_model_len: flag.MaxModelLen = None,
    max_num_seqs: flag.MaxNumSeqs = None,
    max_num_batched_tokens: flag.MaxNumBatchedTokens = None,
    gpu_memory_utilization: flag.GpuMemoryUtilization = None,
    enforce_eager: flag.EnforceEager = False,
    engine_version: flag.EngineVersionOption = None,
    allow_unvalidated: flag.AllowUnvalidated = False,
    directory: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write the scripts into this folder.")
    ] = None,
    pick: Annotated[int, typer.Option("--pick", min=1, help="Which plan to write, 1 is the best.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that exists.")] = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0 when every GPU has a plan, 1 when one of them has none."""
    from planner import report
    from planner.cli.inputs import gpu_profiles
    from planner.engine.config import EngineArgs
    from planner.engine.version import parse_version
    from planner.model.resolve import load_model
    from planner.recommend import Request, rank

    profiles = gpu_profiles(gpu or DEFAULT_GPUS)
    request = Request(
        model=load_model(model or DEFAULT_MODEL, revision=revision, refresh=refresh),
        gpus=tuple(profiles),
        goal=goal.value,
        input_len=input_len,
        output_len=output_len,
        max_concurrency=max_concurrency,
        num_prompts=num_prompts,
        gpus_per_node=gpus,
        version=parse_version(engine_version) if engine_version else None,
        args=EngineArgs(
            kv_cache_dtype=kv_cache_dtype,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            gpu_memory_utilization=gpu_memory_utilization,
            enforce_eager=enforce_eager,
            allow_unvalidated=allow_unvalidated,
        ),
    )
    rankings = rank(request)
    plans = _plans(request, rankings, pick)
    command = shlex.join(["planner", *_typed(context)])
    report.print_recommendation(
        request, rankings, plans, _defaults_taken(context), output, command=command, wrote=directory is not None
    )
    if directory:
        _write(directory, rankings, plans, request, command, force=force)
    return 0 if all(plan is not None for plan in plans) else 1


def _plans(request: Request, rankings: list[Ranking], pick: int) -> list[Plan | None]:
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


def _typed(context: typer.Context) -> list[str]:
    """The command line as it was typed, options that hold folders of this machine included."""
    return list(context.meta.get("planner.argv", sys.argv[1:]))


def _defaults_taken(context: typer.Context) -> dict[str, Any]:
    """Parameters that the user left open, with what was taken."""
    named = {"model": DEFAULT_MODEL, "gpu": list(DEFAULT_GPUS)}
    found: dict[str, Any] = {}
    for name in ("model", "goal", "gpu", "gpus", "input_len", "output_len"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "DEFAULT":
            value = named.get(name, context.params.get(name))
            found[name] = getattr(value, "value", value)
    return found


def _write(
    directory: Path, rankings: list[Ranking], plans: list[Plan | None], request: Request, command: str, *, force: bool
) -> None:
    """Scripts of one GPU into ``directory``, of several into a folder for each below it."""
    from planner import __version__, report
    from planner.plan import PlanFile
    from planner.scripts import Emission, render, write

    several = len(rankings) > 1
    files: dict[Path, dict[str, str]] = {}
    for ranking, plan in zip(rankings, plans, strict=True):
        if plan is None:
            continue
        file = PlanFile(planner_version=__version__, command=command, goal=request.goal, plan=plan)
        lines = tuple(report.predicted_lines(plan))
        emission = Emission(file, ranking.profile, plan.memory["checkpoint_bytes"], lines)
        files[directory / plan.gpu if several else directory] = render(emission)
    if several and directory.exists() and not force:
        from planner.errors import InputError

        raise InputError(f"{directory} already exists", hint="give another folder to -o, or add --force to replace it")
    for folder, content in files.items():
        write(folder, content, force=force)
        report.note(f"wrote {folder}: {', '.join(content)}")
