"""``planner recommend``: which settings, and the scripts that launch and prove them."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import options as flag
from planner.cli.defaults import source_of
from planner.cli.engine_flags import takes_engine_flags
from planner.cli.options import LOAD, TARGETS, Format, Goal
from planner.cli.streams import show
from planner.planning import defaults

if TYPE_CHECKING:
    from planner.engine import EngineArgs
    from planner.hardware import GpuProfile


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("recommend", help="Which settings, and the scripts that launch and prove them.")(recommend)


@takes_engine_flags(
    "kv_cache_dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "cpu_kvcache_space",
    "enforce_eager",
    "speculative_config",
    "speculative_acceptance_rate",
    "enable_lora",
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
    "fully_sharded_loras",
    "cpu_offload_gb",
    "kv_offloading_size",
    "enable_prefix_caching",
    "allow_unvalidated",
)
def recommend(
    *,
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help=f"Default: {defaults.MODEL}.")] = None,
    goal: Annotated[Goal, typer.Option("--goal", help="What is best.")] = Goal.balanced,
    gpu: flag.GpusOrDefault = None,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="GPUs that one node has.")] = defaults.GPUS_PER_NODE,
    input_len: flag.RandomInputLen = defaults.LEN,
    output_len: flag.RandomOutputLen = defaults.LEN,
    range_ratio: flag.RangeRatio = 0.0,
    prefix_len: flag.RandomPrefixLen = 0,
    workload: flag.Workload = None,
    max_concurrency: flag.MaxConcurrency = None,
    request_rate: flag.FleetRate = None,
    burstiness: flag.Burstiness = 1.0,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", rich_help_panel=LOAD, help="Recorded arrivals and lengths, CSV or JSON lines."
        ),
    ] = None,
    seed: flag.Seed = 0,
    num_prompts: Annotated[
        int | None,
        typer.Option(
            "--num-prompts",
            min=1,
            max=defaults.MOST_PROMPTS,
            rich_help_panel=LOAD,
            help="Requests. Default: 5 x the concurrency.",
        ),
    ] = None,
    ttft: flag.Ttft = None,
    tpot: flag.Tpot = None,
    itl: flag.Itl = None,
    e2el: flag.E2el = None,
    percentile: Annotated[
        str | None,
        typer.Option(
            "--percentile", metavar="P", rich_help_panel=TARGETS, help="Of the targets, or mean. Default: 99."
        ),
    ] = None,
    optimistic: flag.Optimistic = False,
    price: flag.Price = None,
    args: "EngineArgs",
    engine_version: flag.EngineVersionOption = None,
    calibration: flag.Calibration = None,
    output_dir: Annotated[
        str | None, typer.Option("-o", "--output", metavar="DIR", help="Write the scripts into this folder.")
    ] = None,
    pick: Annotated[int, typer.Option("--pick", min=1, help="Which plan to write, 1 is the best.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that exists.")] = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0 when there is a plan for at least one GPU, 1 when there is none."""
    from planner.api.flags import flags_of
    from planner.api.recommend import GIVEN, recommend_plans, write_scripts
    from planner.output import note

    directory = _directory(output_dir, force)
    stated = _stated(
        context,
        goal=goal.value,
        gpus=gpus,
        input_len=input_len,
        output_len=output_len,
        random_range_ratio=range_ratio,
        workload=workload.value if workload else None,
        max_concurrency=max_concurrency,
        request_rate=request_rate,
        burstiness=burstiness,
        trace=trace,
        seed=seed,
        num_prompts=num_prompts,
        percentile=percentile,
    )
    found = recommend_plans(
        model,
        _profiles(context, gpu) if gpu else None,
        **stated,
        ttft=ttft,
        tpot=tpot,
        itl=itl,
        e2el=e2el,
        random_prefix_len=prefix_len,
        optimistic=optimistic,
        price=price or (),
        engine_version=engine_version,
        calibration=calibration,
        pick=pick,
        revision=revision,
        refresh=refresh,
        **flags_of(args, GIVEN),
    )
    answer = replace(found, command=shlex.join(["planner", *(context.obj or ())]), wrote=directory is not None)
    if directory:
        written = write_scripts(answer, directory, force=force)
        if written:
            note(f"wrote {len(written)} files into {directory}; start with RUNBOOK.md")
    return show(answer, output)


def _stated(context: typer.Context, **given: Any) -> dict[str, Any]:
    """What is said about the goal and the load; None where nothing is.

    What planner.toml says gives way where the command line says something else about the same.
    """
    from planner.api.load import OF_A_NAME, OF_A_TRACE

    def source(name: str) -> str:
        parameter = {"random_range_ratio": "range_ratio"}.get(name, name)
        return source_of(context, parameter)

    sources = {name: source(name) for name in given}
    lengths, arrivals = set(OF_A_NAME), {"request_rate", "max_concurrency"}
    rivals = [({"trace"}, set(OF_A_TRACE)), ({"workload"}, lengths), (lengths, {"workload"})]
    rivals += [({one}, arrivals - {one}) for one in arrivals]
    for typed, others in rivals:
        if any(sources[name] == "COMMANDLINE" for name in typed):
            sources |= {name: "DEFAULT" for name in others if sources[name] != "COMMANDLINE"}
    return {name: None if sources[name] == "DEFAULT" else value for name, value in given.items()}


def _directory(name: str | None, force: bool) -> Path | None:
    """Refused before anything is computed. Writing checks again: the folder may have come in the meantime."""
    from planner.errors import InputError

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


def _profiles(context: typer.Context, names: list[str]) -> "list[GpuProfile]":
    """The GPUs asked for; a name that is wrong in planner.toml says so."""
    from planner.cli.inputs import gpu_profiles
    from planner.errors import InputError

    try:
        return gpu_profiles(names)
    except InputError as error:
        if source_of(context, "gpu") != "DEFAULT_MAP":
            raise
        raise InputError(f"planner.toml: [recommend] gpu: {error.cause}", hint=error.hint) from error
