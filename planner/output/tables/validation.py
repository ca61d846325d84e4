"""``planner validate`` in words and rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.evidence import ComparedLine, Validation
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
