"""Write the lower part of docs/reference/commands.md from the declarations of the commands.

An option that at least ``SHARED`` commands declare alike is listed once, under "Shared options". Each command names the
shared options that it takes, or those that it lacks.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import typer

from planner.commands.main import app_for

ROOT = Path(__file__).resolve().parent.parent
MARK = "<!-- `make docs` writes what follows from the declarations of the commands. -->\n"
SHARED = 2
WIDTH = 120
PLAIN = "General"  #: the panel of an option that names none
RANGE = re.compile(r" \[(at least|at most|from) [^][]*\]")  #: of a number; --help has it

OF_VLLM = "(flags of vllm serve)"  #: end of a panel whose options vLLM documents
#: The engine's options in any version of vLLM.
FLAGS = frozenset(
    " ".join(json.loads((ROOT / "planner/engine/flags.json").read_text(encoding="utf-8"))["engine"].values()).split()
)

Command = Any  #: of click; typer keeps the class in different places, version by version


class Row(NamedTuple):
    """One option of one command, as its help shows it."""

    panel: str
    name: str
    written: str
    meaning: str


def with_reference(page: str) -> str:
    """A page with today's reference below its mark; a page without a mark as it is."""
    return page.partition(MARK)[0] + MARK + reference() if MARK in page else page


def reference() -> str:
    """Each command with its usage and its own options, then the shared options by panel."""
    commands = list(_commands(typer.main.get_command(app_for(())), "planner"))
    shared = _shared(row for _, command in commands for row in _rows(command))
    text = "".join(_section(name, command, shared) for name, command in commands)
    text += "\n## Shared options\n\nWhere no default is given, it is that of the command.\n"
    for panel in dict.fromkeys(row.panel for row in shared):
        rows = [row for row in shared if row.panel == panel]
        text += f"\n**{_short(panel)}**\n\n"
        if panel.endswith(OF_VLLM):
            known = _words(row.name for row in rows if row.name in FLAGS)
            text += f"{_wrapped(f'As in `vllm serve`: {known}.')}\n\n"
            rows = [row for row in rows if row.name not in FLAGS]
        text += _list(rows)
    return text


def _commands(command: Command, name: str) -> Iterator[tuple[str, Command]]:
    """What can be called: the words that are typed, and the command."""
    for word, child in getattr(command, "commands", {}).items():
        yield from _commands(child, f"{name} {word}")
    if not hasattr(command, "commands"):
        yield name, command


def _rows(command: Command) -> Iterator[Row]:
    context = command.context_class(command)
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden:
            written, meaning = option.get_help_record(context)
            panel = option.rich_help_panel or PLAIN
            written = re.sub(r" <(int|float|str)( range)?>", "", written)
            yield Row(panel, option.opts[0], written, RANGE.sub("", " ".join(meaning.split())))


def _shared(rows: Iterable[Row]) -> list[Row]:
    """The most common declaration of each option, where enough commands share it."""
    counts = Counter(rows)
    best: dict[tuple[str, str], Row] = {}
    for row, count in counts.most_common():
        if count >= SHARED:
            best.setdefault((row.panel, row.name), row)
    return [row for row in counts if row in best.values()]


def _section(name: str, command: Command, shared: list[Row]) -> str:
    rows = list(_rows(command))
    text = f"\n## {_synopsis(name, command, rows)}\n\n{_wrapped(command.help)}\n"
    own = [row for row in rows if row not in shared]
    if own:
        text += f"\n{_list(own)}"
    named = [_named(panel, rows, shared) for panel in dict.fromkeys(row.panel for row in rows if row in shared)]
    if named:
        text += f"\n{_wrapped('[Shared](#shared-options): ' + '; '.join(named) + '.')}\n"
    return text


def _named(panel: str, rows: list[Row], shared: list[Row]) -> str:
    """The shared options of a panel that a command takes, in the fewest words."""
    of_panel = [row for row in shared if row.panel == panel]
    named = [row.name for row in of_panel if row in rows]
    missing = list(dict.fromkeys(row.name for row in of_panel if row.name not in {each.name for each in rows}))
    if len(named) <= len(missing):
        return _words(named)
    return f"all of {_short(panel)}" + (f" but {_words(missing)}" if missing else "")


def _short(panel: str) -> str:
    return panel.partition(" (")[0]


def _synopsis(name: str, command: Command, rows: list[Row]) -> str:
    """The usage line, with the options that have to be given."""
    usage = " ".join(command.get_usage(command.context_class(command, info_name=name)).split())
    for ugly, plain in (
        ("Usage: ", ""),
        (" [OPTIONS]", ""),
        ("{", ""),
        ("}", ""),
        ("[[", "["),
        ("]]", "]"),
        ("]...]", "]"),
        ("......", "..."),
    ):
        usage = usage.replace(ugly, plain)
    needed = [row.written.rpartition(", ")[2] for row in rows if row.meaning.endswith("[required]")]
    return " ".join([usage, *needed])


def _wrapped(text: str) -> str:
    return fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def _words(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _list(rows: Iterable[Row]) -> str:
    return "".join(f"- `{row.written}`: {row.meaning}\n" for row in rows)
