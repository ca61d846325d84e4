"""Printing workflows: which there are, and what one of them wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.report.render import Column, Row, print_rows

COLUMNS = (
    Column("name"),
    Column("title", wraps=True),
    Column("model", aside=True),
    Column("gpu"),
    Column("engine_version", "vllm"),
    Column("scripts", wraps=True),
)
FILE_COLUMNS = (Column("file"), Column("purpose", wraps=True))


def print_workflows(rows: Sequence[Row], output: str) -> None:
    """One row per workflow, with the model, GPU and version that it takes when nothing else is asked for."""
    print_rows(rows, output, columns=COLUMNS)


def print_files(purposes: Mapping[str, str], output: str) -> None:
    """The files of a workflow and what each is for."""
    rows = [{"file": name, "purpose": purpose} for name, purpose in purposes.items()]
    print_rows(rows, output, columns=FILE_COLUMNS)
