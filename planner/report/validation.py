"""Printing predicted beside measured."""

from __future__ import annotations

from typing import Any

from planner.report.render import Column, print_json, print_notes, print_rows, wrapped
from planner.validate import Line, Validation

COLUMNS = (
    Column("metric"),
    Column("unit"),
    Column("predicted", form=",.2f"),
    Column("lo", "from", ",.2f"),
    Column("hi", "to", ",.2f"),
    Column("measured", form=",.2f"),
    Column("error", form="+.1%"),
    Column("basis", "bounds"),
    Column("verdict", ""),
)


def print_validation(validation: Validation, output: str) -> None:
    """A line for each metric; for people also the verdict, its likeliest causes and the next things to try."""
    if output == "json":
        print_json(validation.to_json())
        return
    print_rows([_row(line) for line in validation.lines], output, columns=COLUMNS)
    if output == "table":
        _print_verdict(validation)
    print_notes(validation.measured.notes)


def _row(line: Line) -> dict[str, Any]:
    row = {column.key: getattr(line, column.key) for column in COLUMNS[:-1]}
    return {**row, "verdict": _word(line)}


def _word(line: Line) -> str:
    """Above and below in words that say whether it is good."""
    if line.verdict == "inside":
        return "inside"
    if line.unit in ("GiB", "tokens"):
        return "more" if line.verdict == "above" else "less"
    return "slower" if (line.verdict == "above") is line.is_latency else "faster"


def _print_verdict(validation: Validation) -> None:
    plan = validation.measured.plan
    outside = sum(line.verdict != "inside" for line in validation.lines)
    verdict = "inside" if validation.inside else f"outside: {outside} of {len(validation.lines)} lines"
    where = f"{plan.num_gpus} x {plan.gpu}, vLLM {plan.engine_version}, plan {plan.digest}"
    print()
    print(wrapped(f"{plan.model} on {where}: {verdict}"))
    for place, finding in enumerate(validation.findings):
        print(wrapped(finding.cause, first="likeliest cause: " if not place else "or: ", rest="  "))
        print(wrapped(finding.evidence, first="  because ", rest="    "))
        print(wrapped(finding.next_step, first="  next: ", rest="    "))
    for accuracy in validation.measured.accuracy:
        spread = f" ± {accuracy.stderr:.4f}" if accuracy.stderr is not None else ""
        print(f"accuracy {accuracy.task}, {accuracy.metric}: {accuracy.value:.4f}{spread} (not predicted)")
