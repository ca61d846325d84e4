"""One list of rows, printed as a table, JSON, CSV or Markdown.

CSV and JSON are for programs: they have exact values, and nothing where there is none. Tables and Markdown are for
people: thousands are separated, ``-`` stands for no value, numbers are right-aligned, tables fit the terminal.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.resources import write_then_rename

SCHEMA_VERSION = 1
WIDTH = 100  #: columns of text where there is no terminal
SPACE = "\N{NO-BREAK SPACE}"  #: between a number and its unit, where ``wrapped`` breaks no line
NARROWEST = 16  #: columns that wrapped text keeps

_LIVE = re.compile(r"([\\|\[\]<])")  #: begins a link, HTML or another cell in Markdown

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of an answer: its key for programs, and how people see it."""

    key: str
    heading: str = ""  #: in tables and Markdown; the key where empty
    form: str | Callable[[float], str] = ""  #: format of a number, such as ``,.2f``, or what writes it
    wraps: bool = False  #: text that may wrap in a table
    aside: bool = False  #: only in CSV and Markdown, where width does not matter
    spare: bool = False  #: goes where a table would be wider than the screen, the last one first
    of: Callable[[Any], Any] | None = None  #: takes the value from a record, see ``rows_of``

    @property
    def title(self) -> str:
        """The heading in tables."""
        return self.heading or self.key

    def cell(self, value: Any) -> str:
        """A value as people read it."""
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int | float):
            if callable(self.form):
                return self.form(value)
            return format(value, self.form or (".4g" if isinstance(value, float) else ""))
        if isinstance(value, list | tuple):
            return ", ".join(map(str, value))
        return str(value)


def rows_of(records: Iterable[Any], columns: Sequence[Column]) -> list[dict[str, Any]]:
    """A row for each record: what ``Column.of`` takes from it, else its attribute of that name."""
    return [{c.key: c.of(record) if c.of else getattr(record, c.key) for c in columns} for record in records]


def json_text(data: Row | Sequence[Row]) -> str:
    """JSON. Every object, and every object of a list, has ``schema_version``; the schema only grows."""

    def versioned(row: Row) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **row}

    whole: Any = versioned(data) if isinstance(data, Mapping) else [versioned(row) for row in data]
    return json.dumps(whole, indent=2, allow_nan=False) + "\n"


def rows_text(rows: Sequence[Row], output: str, columns: Sequence[Column]) -> str:
    """Rows in the form ``output``: table, json, csv or markdown. JSON has every key, the others only ``columns``."""
    if output == "json":
        return json_text(rows)
    if output == "csv":
        return _csv(rows, columns)
    if output == "markdown":
        return _markdown(rows, columns) + "\n"
    return table_text(rows, [column for column in columns if not column.aside]) + "\n"


def html_table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """A table in HTML, every cell escaped."""
    shown = [column for column in columns if not column.aside]
    return _tabulated(shown, [[column.cell(row.get(column.key)) for column in shown] for row in rows], "html", rows)


def table_text(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """A table that fits the terminal: spare columns go, text wraps; else each row becomes a list."""
    columns = _without_spares(rows, columns)
    cells = [[column.cell(row.get(column.key)) for column in columns] for row in rows]
    limit = terminal_width()
    for index, column in enumerate(columns):
        excess = _width(columns, cells) - screen_width()
        if column.wraps and excess > 0:
            width = max(_widest(line[index] for line in cells) - excess, NARROWEST, len(column.title))
            cells = [[*line[:index], _folded(line[index], width), *line[index + 1 :]] for line in cells]
    if limit and _width(columns, cells) > limit:
        return "\n".join(_list_lines(columns, cells))
    return _tabulated(columns, cells, "simple", rows)


def _without_spares(rows: Sequence[Row], columns: Sequence[Column]) -> Sequence[Column]:
    """The columns of which the table fits the screen, as far as leaving out spare ones can do that."""
    kept = list(columns)
    while _width(kept, [[column.cell(row.get(column.key)) for column in kept] for row in rows]) > screen_width():
        spares = [column for column in kept if column.spare]
        if not spares:
            break
        kept.remove(spares[-1])
    return kept


def pair_lines(pairs: Iterable[tuple[str, str]], *, indent: int = 2, label_width: int = 30) -> Iterator[str]:
    """A line for each label and value. Long values wrap below themselves."""
    for label, value in pairs:
        start = f"{' ' * indent}{label:<{label_width}} "
        yield wrapped(value, first=start, rest=" " * len(start))


def command_parts(environment: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """A command quoted for a shell, in parts that belong on one line: each variable, the program, each option."""
    parts = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    for index, word in enumerate(words):
        if index == 0 or word.startswith("--"):
            parts.append(shlex.quote(word))
        else:
            parts[-1] += f" {shlex.quote(word)}"
    return parts


def command_lines(environment: Mapping[str, str], words: Sequence[str]) -> Iterator[str]:
    """A command after ``$``, broken between options into lines that a shell reads as one."""
    parts = command_parts(environment, words)
    line, width = f"  $ {parts[0]}", screen_width() - len(" \\")
    for part in parts[1:]:
        if len(line) + 1 + len(part) > width:
            yield f"{line} \\"
            *cut, line = _cut_in_quotes(f"      {part}", width)
            yield from cut
        else:
            line += f" {part}"
    yield line


def _cut_in_quotes(line: str, width: int) -> Iterator[str]:
    """A line with a long quoted word in pieces, behind commas: a shell joins what begins in the first column."""
    while len(line) > width and line.endswith("'") and (end := line.rfind(",", line.index("'") + 2, width) + 1):
        yield f"{line[:end]}'\\"
        line = f"'{line[end:]}"
    yield line


def wrapped(text: str, *, first: str = "", rest: str = "") -> str:
    """``text`` wrapped to the terminal's width, words whole."""
    filled = textwrap.fill(
        text, screen_width(), initial_indent=first, subsequent_indent=rest,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return filled.replace(SPACE, " ")


def note(text: str) -> None:
    """Print a note for people on stderr."""
    print(wrapped(text, rest="      "), file=sys.stderr)


def print_notes(remarks: Iterable[str]) -> None:
    """Print each note once on stderr."""
    for remark in dict.fromkeys(remarks):
        note(f"note: {remark}")


def terminal_width() -> int:
    """Columns of the terminal (or ``COLUMNS``); 0 where there is none."""
    return shutil.get_terminal_size((0, 0)).columns


def screen_width() -> int:
    """Columns that text is made for: those of the terminal, or ``WIDTH``."""
    return terminal_width() or WIDTH


def _csv(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.key for column in columns])
    writer.writerows([[_plain(row.get(column.key)) for column in columns] for row in rows])
    return text.getvalue()


def _plain(value: Any) -> Any:
    """A value for programs. The csv module writes nothing for None, and exact floats."""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _markdown(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    cells = [
        [_LIVE.sub(r"\\\1", " ".join(column.cell(row.get(column.key)).split("\n"))) for column in columns]
        for row in rows
    ]
    return _tabulated(columns, cells, "github", rows)


def _tabulated(columns: Sequence[Column], cells: Sequence[Sequence[str]], style: str, rows: Sequence[Row]) -> str:
    import tabulate

    tabulate.MIN_PADDING = 0  # no extra room for headings
    numeric = [all(_is_number(row.get(column.key)) for row in rows) for column in columns]
    return str(
        tabulate.tabulate(
            cells,
            headers=[column.title for column in columns],
            tablefmt=style,
            disable_numparse=True,
            colalign=["right" if flush_right else "left" for flush_right in numeric] if rows else None,
        )
    )


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _list_lines(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    longest = max(len(column.title) for column in columns)
    for index, line in enumerate(cells):
        if index:
            yield ""
        titles = (column.title for column in columns)
        yield from pair_lines(
            ((title, " ".join(cell.split())) for title, cell in zip(titles, line, strict=True)),
            indent=0,
            label_width=longest,
        )


def _width(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> int:
    """Characters of the widest line of a table with two spaces between columns."""
    widest = [_widest((column.title, *(line[i] for line in cells))) for i, column in enumerate(columns)]
    return sum(widest) + 2 * (len(columns) - 1)


def _widest(texts: Iterable[str]) -> int:
    """Characters of the longest line of all texts."""
    return max((len(line) for text in texts for line in text.splitlines()), default=0)


def _folded(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def write_file(path: Path, content: bytes, *, flag: str = "-o") -> None:
    """Write a file whole, or not at all. Raises InputError, naming ``flag``, where that is not possible."""
    try:
        if path.is_dir():
            raise InputError(f"{flag} {path} is a folder", hint="name a file in it")
        if path.exists() and not path.is_file():  # a rename would replace a device by a file
            raise InputError(f"{flag} {path} is not a regular file", hint="name a file that may be replaced")
        write_then_rename(path, content)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        cause = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{flag} {str(path)[:200]} cannot be written: {cause}",
            hint=f"name a file that you may write with {flag}",
        ) from error
