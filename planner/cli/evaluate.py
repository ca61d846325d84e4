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
    calibration: flag.Calibration = None,
    chart: Annotated[
        Path | None, typer.Option("--chart", metavar="FILE", help="Also draw it: a file that ends in .svg or .png.")
    ] = None,
    output: flag.OutputFormat = Format.table,
) -> int:
    """Exit status 0: how good the predictions are is in the output."""
    from planner.api.measured import evaluate_runs
    from planner.output import chart_writer, print_result

    draw = chart_writer(chart) if chart else None
    answer = evaluate_runs(runs, calibration=calibration)
    print_result(answer, output)
    if draw:
        draw(answer.evaluated)
    return 0
