"""The entry point: one place that turns errors into exit statuses.

0 yes · 1 the honest answer is no · 2 bad input · 3 the hub could not be reached or refused · 70 a bug · 130 Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import tomllib
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from planner import __version__
from planner.cli import catalog, fit, measure, plan, predict
from planner.errors import InputError, PlannerError

#: typer raises usage errors of the command-line parser it builds on; BadParameter's parent covers them all
_UsageError = typer.BadParameter.__bases__[0]
_ClickException = _UsageError.__bases__[0]

app = typer.Typer(
    name="planner",
    help="Plan how to serve a large language model with vLLM, before renting a GPU.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"planner {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    del version


fit.register(app)
predict.register(app)
plan.register(app)
measure.register(app)
catalog.register(app)


def read_defaults(path: Path) -> dict[str, dict[str, Any]]:
    """Defaults of ``planner.toml``: a table per command, a key per flag. Empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path}: {error}", hint="fix the file, or move it away") from error
    commands = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    for name, table in tables.items():
        if name not in commands or not isinstance(table, dict):
            raise InputError(
                f"{path}: [{name}] is not a command",
                hint=f"use tables named after commands: {', '.join(sorted(commands))}",
            )
    return {name: {key.replace("-", "_"): value for key, value in table.items()} for name, table in tables.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status. Never raises for anything that a user can cause."""
    try:
        status = app(
            args=list(sys.argv[1:] if arguments is None else arguments),
            standalone_mode=False,
            default_map=read_defaults(Path("planner.toml")),
        )
        sys.stdout.flush()
    except PlannerError as error:
        return _complain(error.cause, error.hint, error.exit_status)
    except typer.Abort:
        return _complain("aborted", "", 130)
    except KeyboardInterrupt:
        return _complain("interrupted", "", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone: nothing more to say
        return 0
    except _ClickException as error:
        return _complain(_first_line(error), "run the command with --help to see its arguments", 2)
    except Exception:
        traceback.print_exc()
        return _complain("this is a bug in planner", "please report it with the command and the trace above", 70)
    return status if isinstance(status, int) else 0


def _first_line(error: BaseException) -> str:
    message = getattr(error, "format_message", lambda: str(error))()
    return " ".join(str(message).split()) or "a command is missing"


def _complain(cause: str, hint: str, status: int) -> int:
    print(f"error: {' '.join(cause.split())}", file=sys.stderr)
    if hint:
        print(f"hint: {' '.join(hint.split())}", file=sys.stderr)
    return status


def run() -> None:
    """Console script."""
    sys.exit(main())
