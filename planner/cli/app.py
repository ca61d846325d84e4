"""The commands, put together."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from planner import __version__
from planner.cli.defaults import FILE, read_defaults

#: Commands in the order of the help; each is registered by the module of its name, ``LISTS`` by ``catalog``.
COMMANDS = (
    "fit", "predict", "recommend", "compare", "fleet", "check", "validate", "calibrate", "report", "evaluate",
    "workflow", "deploy", "hardware", "models",
)  # fmt: skip
LISTS = ("hardware", "models")


def app_for(words: Sequence[str]) -> typer.Typer:
    """The command line. It has just the command that ``words`` name: to declare them all takes longer than to answer.

    Help and errors want to know all commands, and so does ``planner.toml``.
    """
    app = typer.Typer(
        name="planner",
        help="Plan how to serve a large language model with vLLM, before renting a GPU.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    named = words[:1] if words and words[0] in COMMANDS and not Path(FILE).exists() else COMMANDS
    for module in dict.fromkeys("catalog" if name in LISTS else name for name in named):
        import_module(f"planner.cli.{module}").register(app)
    return app


def _print_version(value: bool) -> None:
    if value:
        print(f"planner {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    del version
    context.default_map = read_defaults(context.command)
