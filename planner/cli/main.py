"""The entry point: one place that turns errors into exit statuses, and one that writes to the terminal.

0 yes · 1 the honest answer is no · 2 bad input · 3 the hub could not be reached or refused · 70 a bug · 130 Ctrl-C.

What a command prints is collected and written when it has ended, so an error leaves nothing half printed.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import typer

from planner.cli.app import app_for
from planner.cli.defaults import source_of
from planner.cli.streams import complain, write
from planner.errors import PlannerError

BUG = 70
INTERRUPTED = 130
#: What the command-line parser raises: the base of the bases of typer's own error, wherever its version keeps them.
ParserError: type[Exception] = typer.BadParameter.__mro__[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status. Never raises for anything that a user can cause."""
    data, remarks = StringIO(), StringIO()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with redirect_stdout(data), redirect_stderr(remarks):
            status = _run(words)
        write(data.getvalue(), sys.stdout)
        write(remarks.getvalue(), sys.stderr)
    except (KeyboardInterrupt, typer.Abort):
        return complain("interrupted", INTERRUPTED)
    except PlannerError as error:
        return complain(_as_typed(error.cause, words), error.exit_status, hint=error.hint)
    except ParserError as error:
        return complain(_cause(error), 2, hint=_usage_hint(error))
    except Exception:
        traceback.print_exc()
        return complain("this is a bug in planner", BUG, hint="please report it with the command and the trace above")
    return status


def _run(words: list[str]) -> int:
    """The exit status that a command line gives. Raises whatever its command raises."""
    status = app_for(words)(args=words, prog_name="planner", standalone_mode=False, obj=words)
    if status == INTERRUPTED:  # newer versions of typer answer Ctrl-C so
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0


def _as_typed(cause: str, words: Sequence[str]) -> str:
    """The lengths of a load by the names that the user chose: those of ``vllm bench serve`` begin with random."""
    for side in ("input", "output"):
        if any(word.partition("=")[0] == f"--random-{side}-len" for word in words):
            cause = cause.replace(f"--{side}-len", f"--random-{side}-len")
    return cause


def _cause(error: Exception) -> str:
    """What the parser says, after the name of the file where a value came from ``planner.toml``."""
    message = str(getattr(error, "format_message", error.__str__)()).replace("Value error, ", "")
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if context and parameter and source_of(context, parameter.name) == "DEFAULT_MAP":
        return f"planner.toml: {message}"
    return message or "no command is given"


def _usage_hint(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"see {context.command_path if context else 'planner'} --help"
