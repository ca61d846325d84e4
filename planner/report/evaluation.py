"""Predictions beside measurements, in rows and in a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import InputError
from planner.evaluate import Evaluated, summary, to_json
from planner.report.render import Column, table_text
from planner.report.result import Result

SUMMARY_COLUMNS = (
    Column("gpu"),
    Column("bench"),
    Column("metric"),
    Column("n"),
    Column("median_ape", "median APE", ".1%"),
    Column("mape", "mean APE", ".1%"),
    Column("within_20", "within 20%", ".1%"),
    Column("bias", form="+.1%"),
    Column("coverage_90", "in interval", ".1%"),
)
ROWS = "run_id", "gpu", "model", "metric", "measured", "predicted", "lo", "hi", "error", "refused", "calibration"
ROW_COLUMNS = tuple(map(Column, ROWS))


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """Predictions beside measurements: ``planner evaluate``. JSON has rows and summary, the table the summary."""

    evaluated: tuple[Evaluated, ...]  #: each run with its figures, or why it was refused
    remarks: tuple[str, ...] = ()

    def summary(self) -> list[dict[str, Any]]:
        """Errors by GPU, bench and metric, as fractions."""
        return summary(self.evaluated)

    def to_svg(self) -> str:
        """Predicted against measured as the file of an SVG picture. Raises InputError where no run was predicted."""
        from planner.charts import draw
        from planner.report.scatter import evaluation_chart

        chart = evaluation_chart(self.evaluated)
        if chart is None:
            raise InputError("there is nothing to draw: no run was predicted", hint="the notes of the answer say why")
        return draw.svg(chart)

    def _object(self) -> dict[str, Any]:
        return to_json(self.evaluated)

    def _rows(self) -> list[dict[str, Any]]:
        return [row for one in self.evaluated for row in _rows(one)]

    def _columns(self) -> Sequence[Column]:
        return ROW_COLUMNS

    def _lines(self) -> Iterator[str]:
        yield table_text(self.summary(), SUMMARY_COLUMNS)

    def _html_rows(self) -> tuple[list[dict[str, Any]], Sequence[Column]]:
        return self.summary(), SUMMARY_COLUMNS

    def _notes(self) -> Iterator[str]:
        refused = Counter(one.refused for one in self.evaluated if one.refused)
        yield f"{len(self.evaluated)} run{'' if len(self.evaluated) == 1 else 's'}, {sum(refused.values())} refused"
        used = Counter(one.calibration for one in self.evaluated if one.calibration)
        if used:
            yield "calibration: " + ", ".join(f"{name} ({times})" for name, times in used.most_common())
        for reason, times in refused.most_common():
            yield f"{times} x {reason}"


def _rows(one: Evaluated) -> list[dict[str, Any]]:
    run = {"run_id": one.run.run_id, "gpu": one.run.gpu, "model": one.run.model, "refused": one.refused}
    if one.refused:
        return [run]
    return [
        {
            **run,
            "metric": name,
            "measured": figure.measured,
            "predicted": figure.predicted,
            "lo": figure.lo,
            "hi": figure.hi,
            "error": figure.error,
            "calibration": one.calibration,
        }
        for name, figure in one.figures.items()
    ]
