"""One list of rows, printed as a table, JSON, CSV or Markdown.

CSV and JSON have exact values. In tables ``-`` stands for no value, and numbers are right-aligned."""

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
from itertools import zip_longest
from pathlib import Path
from typing import Any

from planner import units
from planner.errors import InputError, os_errors
from planner.resources import package_dir, tables_of, write_then_rename

SCHEMA_VERSION = 1
NAMES = tables_of(package_dir("output") / "names.toml")
Quote = Callable[[str], str]  #: one word, as a shell reads it
WIDTH = 100  #: columns of text where there is no terminal
SPACE = "\N{NO-BREAK SPACE}"  #: between a number and its unit, where ``wrapped`` breaks no line
NARROWEST = 16  #: columns that wrapped text keeps where a word of it is as long

_LIVE = re.compile(r"([\\|\[\]<])")  #: begins a link, HTML or another cell in Markdown

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of an answer: its key for programs, and how people see it."""

    key: str
    heading: str = ""  #: in tables and Markdown; the key where empty
    form: str | Callable[[Any], str] = ""  #: format of a number, such as ``,.2f``, or what writes a value
    wraps: bool = False  #: text that may wrap in a table
    aside: bool = False  #: only in CSV and Markdown, where width does not matter
    #: goes where a table is wider than the screen, the highest first; below 0: where wrapping does not suffice
    spare: int = 0
    of: str | Callable[[Any], Any] = ""  #: path to the value in a record, see ``at``, or what takes it; else the key
    unit: float = 1  #: the value is divided by it: ``GIB`` for a column in GiB of a field in bytes

    @property
    def title(self) -> str:
        return self.heading or self.key

    def value(self, record: Any) -> Any:
        value = self.of(record) if callable(self.of) else at(record, self.of or self.key)
        return value if value is None or self.unit == 1 else value / self.unit

    def cell(self, value: Any) -> str:
        if value is None:
            return "-"
        if callable(self.form):
            return self.form(value)
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int | float):
            return format(value, self.form or (".4g" if isinstance(value, float) else ""))
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def at(record: Any, path: str) -> Any:
    """The value at the end of a path of attributes, keys and places, such as ``config.num_gpus``; None behind None."""
    for name in path.split("."):
        if record is None:
            return None
        if isinstance(record, Mapping):
            record = record.get(name)
        else:
            record = record[int(name)] if name.isdecimal() else getattr(record, name)
    return record


def columns_of(table: str, **named: Callable[[Any], Any]) -> tuple[Column, ...]:
    """The columns of a table in ``columns.toml``; ``named``: functions by the key of their column or as ``form``."""

    def column(key: str, *, of: str = "", form: str = "", unit: float | str = 1, **facts: Any) -> Column:
        names: dict[Any, Any] = {**vars(units), **named}
        return Column(key, of=of or named.get(key, ""), form=names.get(form, form), unit=names.get(unit, unit), **facts)

    columns = tables_of(package_dir("output") / "columns.toml")[table]
    return tuple(column(key, **facts) for key, facts in columns.items())


def rows_of(records: Iterable[Any], columns: Sequence[Column]) -> list[dict[str, Any]]:
    """A row for each record: key to value, by the columns."""
    return [{column.key: column.value(record) for column in columns} for record in records]


def json_text(data: Row | Sequence[Row]) -> str:
    """JSON. Every object, and every object of a list, has ``schema_version``; the schema only grows."""

    def versioned(row: Row) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **row}

    whole: Any = versioned(data) if isinstance(data, Mapping) else [versioned(row) for row in data]
    return json.dumps(whole, indent=2, allow_nan=False) + "\n"


def records_text(records: Sequence[Any], output: str, columns: Sequence[Column]) -> str:
    """A row for each record in the form ``output``: table, json, csv or markdown."""
    if output == "table":
        return f"{table_text(records, columns)}\n"
    rows = rows_of(records, columns)
    if output == "json":
        return json_text(rows)
    if output == "csv":
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([[column.key for column in columns], *(map(_plain, row.values()) for row in rows)])
        return text.getvalue()
    if output != "markdown":
        raise InputError(f"unknown format {output!r}", hint="give table, json, csv or markdown")
    numeric = [rows and all(_is_number(row[column.key]) for row in rows) for column in columns]
    lines = [
        [column.title for column in columns],
        ["---:" if right else "---" for right in numeric],
        *([_LIVE.sub(r"\\\1", " ".join(c.cell(row[c.key]).split("\n"))) for c in columns] for row in rows),
    ]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def table_text(records: Iterable[Any], columns: Sequence[Column]) -> str:
    """A table that fits the terminal: spare columns go, headings and text wrap; else each row becomes a list.

    Laid out here, because rich and tabulate take 40 ms to import, and rich up to 60 ms for a long table."""
    shown = [column for column in columns if not column.aside]
    rows = rows_of(records, shown)
    grid = {column: [column.title, *(column.cell(row[column.key]) for row in rows)] for column in shown}
    for column in sorted(reversed(shown), key=lambda column: -column.spare):
        if column.spare and _excess(grid if column.spare > 0 else _narrowed(grid)) > 0:
            del grid[column]
    narrow = _narrowed(grid)
    if not terminal_width() or _excess(narrow) <= 0:
        return "\n".join(_aligned(narrow, rows))
    titles, *listed = zip(*grid.values(), strict=True)
    lists = []
    for record in listed:
        pairs = ((title, " ".join(cell.split())) for title, cell in zip(titles, record, strict=True))
        lists.append("\n".join(pair_lines(pairs, indent=0, label_width=_widest(titles))))
    return "\n\n".join(lists)


def known_table(records: Sequence[Any], columns: Sequence[Column]) -> str:
    """A table without the columns of which no record has a value."""
    rows = rows_of(records, columns)
    known = [column for column in columns if any(row[column.key] not in (None, "") for row in rows)]
    return table_text(records, known)


Grid = Mapping[Column, Sequence[str]]  #: the cells of each column, its heading first


def _excess(grid: Grid) -> int:
    return sum(map(_widest, grid.values())) + 2 * (len(grid) - 1) - screen_width()


def _narrowed(grid: Grid) -> Grid:
    """The cells in as many lines as the screen needs: first headings wrap, then text, the widest first."""
    narrow = dict(grid)
    for column, (title, *cells) in grid.items():
        if (excess := _excess(narrow)) > 0:
            narrow[column] = [_filled(title, max(len(title) - excess, _widest([*cells, *title.split()]))), *cells]
    widths = {column: _widest(cells) for column, cells in narrow.items() if column.wraps}
    least = {column: min(_widest(" ".join(narrow[column]).split()), NARROWEST) for column in widths}
    for _ in range(_excess(narrow)):
        if wide := [column for column in widths if widths[column] > least[column]]:
            widths[max(wide, key=widths.__getitem__)] -= 1
    return narrow | {column: [_filled(cell, width) for cell in narrow[column]] for column, width in widths.items()}


def _filled(text: str, width: int) -> str:
    """``text`` in lines of ``width``; longer words break on a terminal alone, as programs search for them."""
    lines = []
    for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False):
        for part in textwrap.wrap(re.sub("[._/]", "-", line), width) if terminal_width() else [line]:
            lines.append(line[: len(part)])
            line = line[len(part) :]
    return "\n".join(lines)


def _aligned(grid: Grid, rows: Sequence[Row]) -> Iterator[str]:
    widths = list(map(_widest, grid.values()))
    numeric = [all(_is_number(row.get(column.key)) for row in rows) for column in grid]
    for place, cells in enumerate(zip(*grid.values(), strict=True)):
        for parts in zip_longest(*(cell.split("\n") for cell in cells), fillvalue=""):
            padded = (
                f"{part:{'>' if right else '<'}{width}}"
                for part, width, right in zip(parts, widths, numeric, strict=True)
            )
            yield "  ".join(padded).rstrip()
        if place == 0:
            yield "  ".join("-" * width for width in widths)


def _widest(texts: Iterable[str]) -> int:
    return max((len(line) for text in texts for line in text.splitlines()), default=0)


def pair_lines(pairs: Iterable[tuple[str, str]], *, indent: int = 2, label_width: int = 30) -> Iterator[str]:
    """A line for each label and value. Long values wrap below themselves."""
    for label, value in pairs:
        start = f"{' ' * indent}{label:<{label_width}} "
        yield wrapped(value, first=start, rest=" " * len(start))


def command_parts(environment: Mapping[str, str], words: Sequence[str], quote: Quote = shlex.quote) -> list[str]:
    """A command quoted for a shell, in parts that belong on one line: each variable, the program, each option."""
    parts = [f"{name}={quote(value)}" for name, value in environment.items()]
    for index, word in enumerate(words):
        if index == 0 or word.startswith("--"):
            parts.append(quote(word))
        else:
            parts[-1] += f" {quote(word)}"
    return parts


def command_lines(environment: Mapping[str, str], words: Sequence[str], quote: Quote = shlex.quote) -> Iterator[str]:
    """A command after ``$``, broken between options into lines that a shell reads as one."""
    parts = command_parts(environment, words, quote)
    line, width = f"  $ {parts[0]}", screen_width() - len(" \\")
    for part in parts[1:]:
        if len(line) + 1 + len(part) > width:
            yield f"{line} \\"
            line, quoted = f"      {part}", part.endswith("'")
            while quoted and len(line) > width and (end := line.rfind(",", line.index("'") + 2, width) + 1):
                yield f"{line[:end]}'\\"
                line = f"'{line[end:]}"
        else:
            line += f" {part}"
    yield line


def wrapped(text: str, *, first: str = "", rest: str = "") -> str:
    """``text`` wrapped to the terminal's width, words whole."""
    filled = textwrap.fill(
        text, screen_width(), initial_indent=first, subsequent_indent=rest,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return filled.replace(SPACE, " ")


def note(text: str) -> None:
    print(wrapped(text, rest="      "), file=sys.stderr)


def print_notes(remarks: Iterable[str]) -> None:
    for remark in dict.fromkeys(remarks):
        note(f"note: {remark}")


def terminal_width() -> int:
    """Columns of the terminal (or ``COLUMNS``); 0 where there is none."""
    return shutil.get_terminal_size((0, 0)).columns


def screen_width() -> int:
    """Columns that text is made for: those of the terminal, or ``WIDTH``."""
    return terminal_width() or WIDTH


def _plain(value: Any) -> Any:
    """A value for programs. The csv module writes nothing for None, and exact floats."""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def write_file(path: Path, content: bytes, *, flag: str = "-o") -> None:
    """Write a file whole, or not at all. Raises InputError, naming ``flag``, where that is not possible."""
    cause = f"{flag} {str(path)[:200]} cannot be written"
    # ValueError: a NUL in the name
    with os_errors(cause, ValueError, hint=f"name a file that you may write with {flag}"):
        if path.is_dir():
            raise InputError(f"{flag} {path} is a folder", hint="name a file in it")
        if path.exists() and not path.is_file():  # a rename would replace a device by a file
            raise InputError(f"{flag} {path} is not a regular file", hint="name a file that may be replaced")
        write_then_rename(path, content)
