"""``planner evaluate``: predictions beside measurements."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as flag
from planner.cli.options import Format


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("evaluate", help="Predicted beside measured: row by row, and a summary.")(evaluate)


def evaluate(
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="One row per measured run.")],
    output: flag.OutputFormat = Format.table,
) -> int:
    """Exit status 0: how good the predictions are is in the output."""
    from planner.evaluate import evaluate as predict_all
    from planner.measurements import read_runs
    from planner.report.evaluation import print_evaluation

    print_evaluation(predict_all(read_runs(runs)), output)
    return 0
