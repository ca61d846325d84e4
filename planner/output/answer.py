"""One answer: a record, the columns of its rows, and its sentences. It renders, and computes nothing."""

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from planner.engine import EngineVersion
from planner.output.render import Column, Row, at, json_text, print_notes, records_text, rows_of, table_text
from planner.units import MS


@dataclass(frozen=True, repr=False, kw_only=True)
class Answer:
    """An answer, with the typed records behind it as attributes; ``print(answer)`` shows what the command prints."""

    remarks: tuple[str, ...] = ()  #: notes on the question, such as which GPUs ``local`` means
    explain: bool = False  #: all details (``--explain``), not what fits one screen
    verdict_first: ClassVar[bool] = False  #: whether the text begins with the answer in a sentence
    columns: ClassVar[Sequence[Column]] = ()  #: of ``rows``
    records: ClassVar[str] = ""  #: path to the records that ``rows`` has a row for
    keys: ClassVar[Sequence[str]] = ()  #: fields of the JSON object, as of ``fields_of``

    @property
    def ok(self) -> bool:
        """True if the answer is yes: the command ends with exit status 0, else with 1."""
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        """Everything to know before relying on the answer. The command writes it to stderr."""
        return tuple(dict.fromkeys((*self.remarks, *self._notes())))

    @property
    def shown_notes(self) -> tuple[str, ...]:
        """The notes that are printed below the text."""
        return self.notes if self.explain else tuple(dict.fromkeys((*self.remarks, *self._brief_notes())))

    def to_dict(self) -> Any:
        """The object, or the list of objects, of ``--format json``. The schema only grows."""
        return json.loads(self.to_json())  # tuples become lists, and keys strings

    def to_json(self) -> str:
        return json_text(self._object())

    def to_rows(self) -> list[dict[str, Any]]:
        """The rows of ``--format csv``, for a data frame: key to value, None where there is none."""
        return rows_of(self._records(), self._columns())

    rows = to_rows

    def to_text(self, output: str = "table") -> str:
        """The answer in the form ``table``, ``json``, ``csv`` or ``markdown``, as the command prints it."""
        if output == "json":
            return self.to_json()
        if output == "table":
            return "".join(f"{line}\n" for line in self.sentences())
        return records_text(list(self._records()), output, self._columns())

    def __str__(self) -> str:
        return self.to_text().removesuffix("\n")

    __repr__ = __str__

    def sentences(self) -> Iterable[str]:
        yield table_text(self._records(), self._columns())

    def _object(self) -> Row | Sequence[Row]:
        return fields_of(self, *self.keys)

    def _records(self) -> Iterable[Any]:
        records: Iterable[Any] = at(self, self.records)
        return records

    def _columns(self) -> Sequence[Column]:
        return self.columns

    def _notes(self) -> Iterable[str]:
        return ()

    def _brief_notes(self) -> Iterable[str]:
        return self._notes()


class MetricAnswer(Answer):
    """An answer whose rows are the figures of ``result``."""

    columns = (Column("metric", of="0"), Column("value", of="1"))

    @property
    @abstractmethod
    def result(self) -> Mapping[str, Any]:
        """The figures by their keys in the result file."""

    def _records(self) -> Iterator[tuple[str, Any]]:
        """One figure each: ``percentiles.99`` for a number inside an object, ``latencies.0`` for one in a list."""
        for key, value in self.result.items():
            inner = dict(enumerate(value)) if isinstance(value, list | tuple) else value
            if isinstance(inner, Mapping):
                yield from ((f"{key}.{name}", number) for name, number in inner.items() if number is not None)
            elif value is not None:
                yield key, value


def fields_of(record: Any, *fields: str) -> dict[str, Any]:
    """Fields as JSON has them: ``key``, ``path.to.key`` or ``key=path.to.field``; seconds become ms for keys in ms."""
    known = {}
    for field in fields:
        name, _, path = field.rpartition("=")
        key, value = name or path.rpartition(".")[2], at(record, path)
        in_ms = key.endswith("_ms") and path.endswith("_s") and value is not None
        known[key] = value / MS if in_ms else str(value) if isinstance(value, EngineVersion) else to_plain(value)
    return known


def to_plain(value: Any) -> Any:
    """Dataclasses, pydantic models and what they hold, as JSON has them."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, by_alias=False, fallback=str)


def print_answer(answer: Answer, output: str) -> None:
    """Print the answer on stdout, its notes on stderr; with JSON those that it lacks, beside no rows the sentences."""
    print(answer.to_text(output), end="")
    if output in ("csv", "markdown") and answer.verdict_first and not answer.rows():
        print_notes(" ".join(one.split()) for one in answer.sentences())
    print_notes({"json": answer.remarks, "table": answer.shown_notes}.get(output, answer.notes))
