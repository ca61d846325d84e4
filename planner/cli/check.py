"""``planner check``: somebody's own ``vllm serve`` line, for a GPU and a version."""

import sys
from typing import Annotated

import typer

from planner.cli import options as flag
from planner.cli.options import LOAD, Format, Goal
from planner.cli.streams import show

#: ``--`` is not needed in front of the line: what is not an option of this command belongs to the line.
_LINE = {"ignore_unknown_options": True}


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(
        "check",
        help="Would this vllm serve line start, what would it deliver, and what would deliver more?",
        context_settings=_LINE,
    )(check)


def check(
    *,
    line: Annotated[
        list[str],
        typer.Argument(metavar="LINE", help="-- vllm serve MODEL ...; or a script with it, a plan's folder, '-'."),
    ],
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="GPU", help="Profile id, alias or file; 'local'. Default: the plan's."),
    ] = None,
    engine_version: flag.EngineVersionOption = None,
    model: Annotated[
        str | None, typer.Option("--as-model", metavar="MODEL", help="What a path in the line stands for.")
    ] = None,
    input_len: Annotated[
        int | None,
        typer.Option("--random-input-len", "--input-len", min=1, rich_help_panel=LOAD, help="Default: 1024."),
    ] = None,
    output_len: Annotated[
        int | None,
        typer.Option("--random-output-len", "--output-len", min=1, rich_help_panel=LOAD, help="Default: 1024."),
    ] = None,
    max_concurrency: Annotated[
        int | None,
        typer.Option("--max-concurrency", min=1, rich_help_panel=LOAD, help="Default: as many as run at once."),
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option("--num-prompts", min=1, rich_help_panel=LOAD, help="Default: 5 x the concurrency.")
    ] = None,
    goal: Annotated[Goal, typer.Option("--goal", help="What a better plan is better at.")] = Goal.balanced,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, help="GPUs that a better plan may use. Default: as many as the line.")
    ] = None,
    calibration: flag.Calibration = None,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0 when it starts, 1 when it does not."""
    from planner.api.check import check_command
    from planner.errors import InputError

    if line[0].startswith("-") and line[0] != "-":  # in front of the line it was meant for this command
        raise InputError(f"No such option: {line[0].partition('=')[0]}", hint="see planner check --help")
    one = line[0] if len(line) == 1 else line
    answer = check_command(
        sys.stdin.read() + "\n" if one == "-" else one,
        gpu,
        engine_version=engine_version,
        as_model=model,
        input_len=input_len,
        output_len=output_len,
        max_concurrency=max_concurrency,
        num_prompts=num_prompts,
        goal=goal.value,
        gpus=gpus,
        calibration=calibration,
        revision=revision,
        refresh=refresh,
    )
    return show(answer, output)
