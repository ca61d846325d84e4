"""``planner validate`` in words and rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

from planner.evidence import ComparedLine, PlannedPoint, Validation, read_offline
from planner.output.render import Column, table_text, wrapped
from planner.output.result import Result

COLUMNS = (
    Column("metric"),
    Column("unit"),
    Column("published", form=",.2f"),
    Column("predicted", form=",.2f"),
    Column("lo", "from", ",.2f"),
    Column("hi", "to", ",.2f"),
    Column("measured", form=",.2f"),
    Column("error", form="+.1%"),
    Column("basis", "bounds"),
    Column("verdict", ""),
)


@dataclass(frozen=True, repr=False)
class ValidationAnswer(Result):
    """A plan's prediction beside its measurements, likeliest causes, and what to try next: ``planner validate``."""

    record: Validation
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the plan itself was measured, and every measurement lies within its bounds."""
        return self.record.inside and self.record.as_planned

    def _object(self) -> dict[str, Any]:
        answer = self.record.to_json()
        return {
            **answer,
            "lines": [{**line, "published": self._published.get(line["metric"])} for line in answer["lines"]],
        }

    @property
    def _published(self) -> Mapping[str, float]:
        """A document's result of the same run, by metric; empty where no document has one."""
        return self.record.measured.plan.published

    def _rows(self) -> list[dict[str, Any]]:
        own = [{**_row(line), "published": self._published.get(line.metric)} for line in self.record.lines]
        further = [(one.load, line) for one in self.record.further for line in one.lines]
        return own + [{**_row(line), "metric": f"{load} {line.metric}"} for load, line in further]

    def _columns(self) -> Sequence[Column]:
        return COLUMNS

    def _lines(self) -> Iterator[str]:
        shown = COLUMNS if self._published else [column for column in COLUMNS if column.key != "published"]
        yield table_text(self._rows(), shown)
        yield ""
        yield from _verdict_lines(self.record)

    def _title(self) -> str:
        return _headline(self.record)

    def _notes(self) -> Iterable[str]:
        return self.record.notes


def _row(line: ComparedLine) -> dict[str, Any]:
    row = {column.key: getattr(line, column.key, None) for column in COLUMNS[:-1]}
    return {**row, "verdict": _word(line)}


def _word(line: ComparedLine) -> str:
    """Above or below its bounds, in words that say whether that is good."""
    if line.is_inside:
        return "inside"
    if line.unit in ("GiB", "tokens"):
        return "more" if line.verdict == "above" else "less"
    return "slower" if (line.verdict == "above") is line.is_latency else "faster"


def _headline(validation: Validation) -> str:
    plan = validation.measured.plan
    outside = sum(not line.is_inside for line in validation.every_line)
    verdict = "inside" if validation.inside else f"outside: {outside} of {len(validation.every_line)} lines"
    verdict += "" if validation.as_planned else ", but this is not the plan" if validation.inside else ", not the plan"
    where = f"{plan.num_gpus} x {plan.gpu}, vLLM {plan.engine_version}, plan {plan.digest}"
    where += f", calibration: {plan.calibration}"
    return f"{plan.model} on {where}: {verdict}"


def _verdict_lines(validation: Validation) -> Iterator[str]:
    yield wrapped(_headline(validation))
    first, others = ("mind: ", "and: ") if validation.inside else ("likeliest cause: ", "or: ")
    for place, finding in enumerate(validation.findings):
        mark = "not the plan: " if finding.not_the_plan else others if place else first
        yield wrapped(finding.cause, first=mark, rest="  ")
        yield wrapped(finding.evidence, first="  because ", rest="    ")
        yield wrapped(finding.next_step, first="  next: ", rest="    ")
    for accuracy in validation.measured.accuracy:
        spread = f" ± {accuracy.stderr:.4f}" if accuracy.stderr is not None else ""
        yield f"accuracy {accuracy.task}, {accuracy.metric}: {accuracy.value:.4f}{spread} (not predicted)"


OFFLINE = tuple(column for column in COLUMNS if column.key != "basis")


@dataclass(frozen=True, repr=False)
class OfflineValidation(Result):
    """Offline measurements of a workflow's folder, each beside what is printed and what is predicted for it."""

    lines: tuple[dict[str, Any], ...]
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every measurement that is predicted lies within its interval."""
        return all(line["verdict"] in ("inside", "not predicted") for line in self.lines)

    def _object(self) -> dict[str, Any]:
        return {"inside": self.ok, "lines": list(self.lines)}

    def _rows(self) -> list[dict[str, Any]]:
        return list(self.lines)

    def _columns(self) -> Sequence[Column]:
        return OFFLINE


def validate_offline(directory: Path) -> OfflineValidation | None:
    """What the offline scripts of a folder measured; None where there is no such result, or one of the server.

    Raises InputError for a result, or a list of points, that is broken.
    """
    table, results = directory / "points.json", directory / "results"
    if not table.is_file() or any(results.glob("serve-*.json")):
        return None
    lines = tuple(starmap(_measured, read_offline(directory)))
    return OfflineValidation(lines) if lines else None


def _measured(point: PlannedPoint, measured: float) -> dict[str, Any]:
    """One row: the measurement of a point, and where it lies."""
    low, high, predicted = point.lo, point.hi, point.predicted
    outside = low is not None and high is not None and not low <= measured <= high
    slower = (measured > (high or 0)) is (point.key == "avg_latency")
    return {
        "metric": f"{point.name} {point.key}",
        "unit": "s" if point.key == "avg_latency" else "tokens/s",
        "published": point.published,
        "predicted": predicted,
        "lo": low,
        "hi": high,
        "measured": measured,
        "error": measured / predicted - 1 if predicted else None,
        "verdict": ("slower" if slower else "faster") if outside else "inside" if predicted else "not predicted",
    }
