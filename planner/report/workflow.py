"""Printing workflows: which there are, and what one of them wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from planner.report.render import Column, print_rows

if TYPE_CHECKING:
    from planner.scripts.workflows import Workflow

COLUMNS = (
    Column("name"),
    Column("title", wraps=True),
    Column("model", aside=True),
    Column("gpu"),
    Column("engine_version", "vllm"),
    Column("scripts", wraps=True),
)
FILE_COLUMNS = (Column("file"), Column("purpose", wraps=True))


def print_workflows(found: Iterable[Workflow], output: str) -> None:
    """One row per workflow, with the model, GPU and version that it takes when nothing else is asked for."""
    rows = [
        {
            "name": workflow.name,
            "title": workflow.title,
            "model": workflow.model,
            "gpu": workflow.gpus[0],
            "engine_version": workflow.engine_version,
            "scripts": list(workflow.scripts),
            "sources": list(workflow.sources),
        }
        for workflow in found
    ]
    print_rows(rows, output, columns=COLUMNS)


def print_files(purposes: Mapping[str, str], output: str) -> None:
    """The files of a workflow and what each is for."""
    rows = [{"file": name, "purpose": purpose} for name, purpose in purposes.items()]
    print_rows(rows, output, columns=FILE_COLUMNS)
