"""``planner validate``: a plan's prediction beside what its scripts measured."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as flag
from planner.cli.options import Format
from planner.cli.streams import show


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(
        "validate",
        help="Measured results of an emitted plan beside its prediction, and why they differ. Exit status 1 where a "
        "figure is outside its bounds, or where the server's log says that something else ran than planned: another "
        "vLLM, other settings.",
    )(validate)


def validate(
    *,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a plan, after ./benchmark.sh ran in it.")],
    output: flag.OutputFormat = Format.table,
) -> int:
    """Exit status 0 when the plan ran and every measurement lies within its bounds, 1 when one does not."""
    from planner.api.measured import validate_plan

    return show(validate_plan(directory), output)
