"""What every answer can do: turn into a JSON object, rows, or a table, and show itself in a notebook.

A function of ``planner.commands`` returns it; the command line prints it with ``print_result``.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, ClassVar

from planner.output.render import Column, Row, html_table, json_text, print_notes, rows_text


class Result(ABC):
    """An answer. ``print(result)`` shows what the command prints; a notebook shows a table.

    Subclasses have the typed records behind the answer as attributes.
    """

    remarks: tuple[str, ...] = ()  #: notes on the question, such as which GPUs ``local`` found
    verdict_first: ClassVar[bool] = False  #: whether the text begins with the answer in a sentence
    explain: bool = False  #: say everything (``--explain``), not what fits one screen

    @property
    def ok(self) -> bool:
        """Whether the answer is yes: the command ends with exit status 0, else with 1."""
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before relying on the answer. The command writes it to stderr."""
        return tuple(dict.fromkeys((*self.remarks, *self._notes())))

    @property
    def shown_notes(self) -> tuple[str, ...]:
        """Those that are printed below the text."""
        return self.notes if self.explain else tuple(dict.fromkeys((*self.remarks, *self._brief_notes())))

    def to_dict(self) -> Any:
        """What the command prints with ``--format json``: an object, or a list of objects. The schema only grows."""
        return json.loads(self.to_json())  # tuples become lists, and keys strings

    def to_json(self) -> str:
        """What the command prints with ``--format json``, as text."""
        return json_text(self._object())

    def rows(self) -> list[dict[str, Any]]:
        """What the command prints with ``--format csv``: key to value, None where there is none.

        ``pandas.DataFrame(result.rows())`` makes a data frame of it.
        """
        return [{column.key: row.get(column.key) for column in self._columns()} for row in self._rows()]

    def to_text(self, output: str = "table") -> str:
        """The answer in the form ``table``, ``json``, ``csv`` or ``markdown``, as the command prints it."""
        if output == "json":
            return self.to_json()
        if output == "table":
            return "".join(f"{line}\n" for line in (self._lines() if self.explain else self._brief_lines()))
        return rows_text(self._rows(), output, self._columns())

    def __str__(self) -> str:
        return self.to_text().removesuffix("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table for a notebook, with title and notes, everything escaped."""
        title = f"<p><b>{escape(self._title())}</b></p>\n" if self._title() else ""
        items = "".join(f"<li>{escape(note)}</li>\n" for note in self.notes)
        notes = f"\n<details><summary>notes</summary>\n<ul>\n{items}</ul></details>" if items else ""
        return f"{title}{html_table(*self._html_rows())}{notes}\n"

    @abstractmethod
    def _object(self) -> Row | Sequence[Row]:
        """The JSON object, or the objects of a list, without ``schema_version``."""

    @abstractmethod
    def _rows(self) -> Sequence[Row]:
        """The rows of CSV and Markdown."""

    @abstractmethod
    def _columns(self) -> Sequence[Column]:
        """The columns of ``_rows``."""

    def _lines(self) -> Iterable[str]:
        """The text for a terminal; an entry may have several lines."""
        yield rows_text(self._rows(), "table", self._columns()).removesuffix("\n")

    def _brief_lines(self) -> Iterable[str]:
        """What of the text fits one screen, the verdict first."""
        return self._lines()

    def _title(self) -> str:
        """One line above the table of a notebook."""
        return ""

    def _html_rows(self) -> tuple[Sequence[Row], Sequence[Column]]:
        """Rows and columns of the table for a notebook."""
        return self._rows(), self._columns()

    def _notes(self) -> Iterable[str]:
        """Notes on the answer itself."""
        return ()

    def _brief_notes(self) -> Iterable[str]:
        """Those of them that stand below one screen."""
        return self._notes()


class MetricRows(Result):
    """An answer whose rows are the figures of ``result``."""

    @property
    @abstractmethod
    def result(self) -> Mapping[str, Any]:
        """Key to figure."""

    def _columns(self) -> Sequence[Column]:
        return Column("metric"), Column("value")

    def _rows(self) -> Sequence[Row]:
        return [{"metric": key, "value": value} for key, value in _flat(self.result) if value is not None]


def _flat(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """One value per row: ``percentiles.99`` for a number inside an object, ``latencies.0`` for one in a list."""
    for key, value in data.items():
        inner = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        if isinstance(inner, Mapping):
            yield from ((f"{key}.{name}", number) for name, number in inner.items())
        else:
            yield key, value


def print_result(result: Result, output: str) -> None:
    """Print the answer on stdout and its notes on stderr; with JSON, only the notes that the object lacks."""
    print(result.to_text(output), end="")
    print_notes({"json": result.remarks, "table": result.shown_notes}.get(output, result.notes))
