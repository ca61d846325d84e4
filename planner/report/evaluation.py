"""Printing predictions beside measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from planner.evaluate import Evaluated, summary, to_json
from planner.report.render import Column, note, print_json, print_rows

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
ROW_COLUMNS = tuple(
    map(Column, ("run_id", "gpu", "model", "metric", "measured", "predicted", "lo", "hi", "error", "refused"))
)


def print_evaluation(evaluated: Sequence[Evaluated], output: str) -> None:
    """JSON has rows and summary, CSV and Markdown the rows, the table the summary."""
    if output == "json":
        print_json(to_json(evaluated))
        return
    if output != "table":
        print_rows([row for one in evaluated for row in _rows(one)], output, columns=ROW_COLUMNS)
        return
    print_rows(summary(evaluated), output, columns=SUMMARY_COLUMNS)
    refused = Counter(one.refused for one in evaluated if one.refused)
    note(f"{len(evaluated)} runs, {sum(refused.values())} refused")
    for reason, times in refused.most_common():
        note(f"  {times} x {reason}")


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
        }
        for name, figure in one.figures.items()
    ]
