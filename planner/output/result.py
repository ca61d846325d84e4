"""What every answer can do: be a JSON object, rows, a table for people; and show itself in a notebook.

A function of ``planner.commands`` returns it; the command line prints it with ``print_result``.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from planner.output.render import Column, Row, html_table, json_text, print_notes, rows_text


class Result(ABC):
    """An answer. ``print(result)`` shows what the command prints, a notebook shows a table.

    Subclasses have the typed records that the answer rests on as attributes.
    """

    remarks: tuple[str, ...] = ()  #: on what was asked, such as which GPUs ``local`` found

    @property
    def ok(self) -> bool:
        """Whether the honest answer is yes: the command then ends with exit status 0, else with 1."""
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        """Everything that somebody who relies on the answer should know; the command writes it to stderr."""
        return tuple(dict.fromkeys((*self.remarks, *self._notes())))

    def to_dict(self) -> Any:
        """What the command prints with ``--format json``, as Python objects: the schema only grows.

        A list of objects where the command prints a list.
        """
        return json.loads(self.to_json())  # so that tuples are lists here too, and keys are strings

    def to_json(self) -> str:
        """The same as the very text."""
        return json_text(self._object())

    def rows(self) -> list[dict[str, Any]]:
        """The rows that the command writes with ``--format csv``: key to value, None where there is none.

        ``pandas.DataFrame(result.rows())`` is a data frame.
        """
        return [{column.key: row.get(column.key) for column in self._columns()} for row in self._rows()]

    def to_text(self, output: str = "table") -> str:
        """The answer in the form ``table``, ``json``, ``csv`` or ``markdown``, as the command prints it."""
        if output == "json":
            return self.to_json()
        if output == "table":
            return "".join(f"{line}\n" for line in self._lines())
        return rows_text(self._rows(), output, columns=self._columns())

    def __str__(self) -> str:
        return self.to_text().removesuffix("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table for a notebook, with what stands above it and the notes; everything in it is escaped."""
        title = f"<p><b>{escape(self._title())}</b></p>\n" if self._title() else ""
        items = "".join(f"<li>{escape(note)}</li>\n" for note in self.notes)
        notes = f"\n<details><summary>notes</summary>\n<ul>\n{items}</ul></details>" if items else ""
        return f"{title}{html_table(*self._html_rows())}{notes}\n"

    @abstractmethod
    def _object(self) -> Row | Sequence[Row]:
        """The data of the JSON object, or of each object of a list; ``schema_version`` is added."""

    @abstractmethod
    def _rows(self) -> Sequence[Row]:
        """What CSV and Markdown have, under ``_columns``."""

    @abstractmethod
    def _columns(self) -> Sequence[Column]:
        """The columns of ``_rows``."""

    def _lines(self) -> Iterable[str]:
        """What people see on a terminal; one entry may have several lines."""
        yield rows_text(self._rows(), "table", columns=self._columns()).removesuffix("\n")

    def _title(self) -> str:
        """One line above the table of a notebook."""
        return ""

    def _html_rows(self) -> tuple[Sequence[Row], Sequence[Column]]:
        """What a notebook shows."""
        return self._rows(), self._columns()

    def _notes(self) -> Iterable[str]:
        """What is said about the answer itself."""
        return ()


class MetricRows(Result):
    """An answer whose rows are the keys of its JSON object."""

    def _columns(self) -> Sequence[Column]:
        return Column("metric"), Column("value")

    def _rows(self) -> Sequence[Row]:
        return [{"metric": key, "value": value} for key, value in self._flat() if value is not None]

    @abstractmethod
    def _flat(self) -> Iterator[tuple[str, Any]]:
        """Key and value of each row."""


def print_result(result: Result, output: str) -> None:
    """The answer on stdout; notes on stderr, of JSON only what the object does not have itself."""
    print(result.to_text(output), end="")
    print_notes(result.remarks if output == "json" else result.notes)
