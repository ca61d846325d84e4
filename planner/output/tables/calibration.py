"""``planner calibrate`` in words and rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.evidence import MEANINGS, CalibrationOutcome, figures_of, mean_error, mean_width, statistics
from planner.output.render import Column, rows_of, table_text, wrapped
from planner.output.result import Result

FACTOR_COLUMNS = (
    Column("target", "factor on"),
    Column("when", of=lambda factor: dict(factor.when)),
    Column("before", form=".3f"),
    Column("after", form=".3f", of=lambda factor: factor.factor),
    Column("sd", "± (log)", ".3f"),
    Column("prior_sd", "prior ±", ".3f"),
    Column("runs"),
    Column("determined"),
)
METRIC_COLUMNS = (
    Column("metric"),
    Column("n"),
    Column("before", "median error before", ".1%"),
    Column("after", form=".1%"),
    Column("left_out", "left out", ".1%"),
    Column("before_within_20", "within 20 % before", ".0%"),
    Column("after_within_20", "after", ".0%"),
    Column("left_out_within_20", "left out", ".0%"),
)


@dataclass(frozen=True, repr=False)
class CalibrationAnswer(Result):
    """What a user's own runs taught: ``planner calibrate``. CSV and Markdown have the factors."""

    record: CalibrationOutcome
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the calibration is better, and so worth keeping."""
        return self.record.kept

    def _object(self) -> dict[str, Any]:
        answer = self.record
        return {
            "kept": answer.kept,
            "reason": answer.reason,
            "calibration": str(answer.path),
            "base": answer.base,
            "runs": len(answer.runs),
            "new_runs": answer.new_runs,
            "factors": _factors(answer),
            "metrics": list(_metrics(answer)),
            "error": {
                "before": mean_error(answer.before),
                "after": mean_error(answer.after),
                "left_out": mean_error(answer.left_out) if answer.left_out else None,
            },
            "width": {
                "before": mean_width(answer.before),
                "after": mean_width(answer.after),
                "left_out": mean_width(answer.left_out) if answer.left_out else None,
            },
            "memory": list(dict.fromkeys(fit.name for fit in answer.memory)),
            "refused": [{"run_id": run.run_id, "reason": why} for run, why in answer.refused],
            "notes": list(answer.notes),
        }

    def _rows(self) -> list[dict[str, Any]]:
        return [{**row, "when": _place(row["when"])} for row in _factors(self.record)]

    def _columns(self) -> Sequence[Column]:
        return FACTOR_COLUMNS

    def _lines(self) -> Iterator[str]:
        yield table_text([_in_words(row) for row in _factors(self.record)], FACTOR_COLUMNS)
        yield ""
        yield table_text([_table_row(row) for row in _metrics(self.record)], METRIC_COLUMNS)
        yield ""
        yield wrapped(_verdict(self.record))

    def _title(self) -> str:
        return _verdict(self.record)

    def _html_rows(self) -> tuple[list[dict[str, Any]], Sequence[Column]]:
        return [_in_words(row) for row in _factors(self.record)], FACTOR_COLUMNS

    def _notes(self) -> Iterator[str]:
        return _notes(self.record)


def _factors(answer: CalibrationOutcome) -> list[dict[str, Any]]:
    return rows_of(answer.factors, FACTOR_COLUMNS)


def _in_words(row: dict[str, Any]) -> dict[str, Any]:
    known = "yes" if row["determined"] else "no"
    return {**row, "target": MEANINGS[row["target"]], "when": _place(row["when"]), "determined": known}


def _place(when: dict[str, str]) -> str:
    return " ".join(value for value in when.values() if value)


def _metrics(answer: CalibrationOutcome) -> Iterator[dict[str, Any]]:
    for metric in answer.metrics:
        found = {"before": answer.before, "after": answer.after, "left_out": answer.left_out}
        stated = {name: figures_of(evaluated, metric) for name, evaluated in found.items()}
        errors = {name: _errors(statistics(values)) if values else None for name, values in stated.items()}
        yield {"metric": metric, "n": len(stated["after"]), **errors}


def _errors(found: dict[str, Any]) -> dict[str, float]:
    return {name: found[name] for name in ("median_ape", "within_20", "bias")}


def _table_row(row: dict[str, Any]) -> dict[str, Any]:
    flat = {"metric": row["metric"], "n": row["n"]}
    for name in ("before", "after", "left_out"):
        errors = row[name] or {}
        flat |= {name: errors.get("median_ape"), f"{name}_within_20": errors.get("within_20")}
    return flat


def _verdict(answer: CalibrationOutcome) -> str:
    if answer.reason:
        return f"not kept: {answer.reason}"
    learned = f"error {mean_error(answer.before):.1%} before, {mean_error(answer.after):.1%} after"
    if answer.left_out:
        learned += f", {mean_error(answer.left_out):.1%} for each run when it is left out"
    before, after = mean_width(answer.before), mean_width(answer.after)
    learned += f"; 90 % intervals a factor of {before:.2f} wide before, {after:.2f} after"
    return f"kept in {answer.path}: {len(answer.runs)} run{'' if len(answer.runs) == 1 else 's'}, {learned}"


def _notes(answer: CalibrationOutcome) -> Iterator[str]:
    yield f"the factors multiply the shipped efficiencies, which are fitted on {answer.base}"
    if answer.memory and answer.kept:
        names = ", ".join(dict.fromkeys(fit.name for fit in answer.memory))
        yield f"memory overheads learned from the server's start-up: {names}"
    for run, why in answer.refused:
        yield f"{run.run_id} is left out: {why}"
    yield from answer.notes
