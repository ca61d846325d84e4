"""The reference of the commands, made from their declarations: what docs/commands.md holds below its mark.

An option that at least ``SHARED`` commands declare alike stands once, under "Shared options"; each command names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from textwrap import fill
from typing import Any, NamedTuple

import typer

from planner.commands.main import app_for

MARK = "<!-- `make docs` writes what follows from the declarations of the commands. -->\n"
SHARED = 3
WIDTH = 120
MOST_NAMED = 12  #: shared options of one panel that a command names one by one
PLAIN = "General"  #: the panel of an option that names none

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
    """Every command: what it is for, how it is called, its options by panel."""
    commands = list(_commands(typer.main.get_command(app_for(())), "planner"))
    shared = _shared(row for _, command in commands for row in _rows(command))
    text = "".join(_section(name, command, shared) for name, command in commands)
    text += "\n## Shared options\n\nThey mean the same in every command that names them.\n"
    for panel in dict.fromkeys(row.panel for row in shared):
        text += f"\n### {panel}\n\n{_table(row for row in shared if row.panel == panel)}"
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
            yield Row(panel, option.opts[0], written.replace(" range>", ">"), " ".join(meaning.split()))


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
    text = f"\n## {name}\n\n{_wrapped(command.help)}\n\n```\n{_synopsis(name, command, rows)}\n```\n"
    for panel in dict.fromkeys(row.panel for row in rows):
        own = [row for row in rows if row.panel == panel and row not in shared]
        named = [row.name for row in rows if row.panel == panel and row in shared]
        missing = [row.name for row in shared if row.panel == panel and row.name not in {each.name for each in rows}]
        if own:
            text += f"\n**{panel}**\n\n{_table(own)}"
        most = f"all but {_words(missing)}" if missing else "all"
        said = most if len(named) > MOST_NAMED else _words(named)
        if named:
            text += f"\n{_wrapped(f'{panel}, [shared](#shared-options): {said}')}\n"
    return text


def _synopsis(name: str, command: Command, rows: list[Row]) -> str:
    """The usage line, with the options that have to be given."""
    usage = " ".join(command.get_usage(command.context_class(command, info_name=name)).split())
    for ugly, plain in (
        ("Usage: ", ""),
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


def _table(rows: Iterable[Row]) -> str:
    cells = (tuple(cell.replace("|", r"\|") for cell in (row.written, row.meaning)) for row in rows)
    return "| option | meaning |\n|---|---|\n" + "".join(f"| `{written}` | {meaning} |\n" for written, meaning in cells)
