"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from planner import __version__
from planner.cli import catalog, check, fit, measure, plan, predict, validate, workflow
from planner.cli.defaults import read_defaults

app = typer.Typer(
    name="planner",
    help="Plan how to serve a large language model with vLLM, before renting a GPU.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(value: bool) -> None:
    if value:
        print(f"planner {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    del version
    context.default_map = read_defaults(context.command)


fit.register(app)
predict.register(app)
plan.register(app)
check.register(app)
validate.register(app)
measure.register(app)
workflow.register(app)
catalog.register(app)
