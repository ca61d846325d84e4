"""``planner workflow NAME --show``: the document's numbers beside the predictions, in words and rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from planner.output.answer import Answer, fields_of
from planner.output.render import Column, rows_of, table_text, wrapped
from planner.output.tables.shared import items
from planner.output.workflows.differences import PrintedFigure, caveats_of, figure_text, table_of
from planner.output.workflows.subject import Subject

COLUMNS = (
    Column("run"),
    Column("metric"),
    Column("published", "printed", figure_text),
    Column("predicted", form=figure_text),
    Column("lo", "from", figure_text),
    Column("hi", "to", figure_text),
    Column("error", form="+.1%"),
    Column("unit"),
)


@dataclass(frozen=True, repr=False)
class WorkflowAnswer(Answer):
    """The figures of a document for a workflow beside the predictions for the same runs."""

    columns = COLUMNS
    record: Subject
    figures: tuple[PrintedFigure, ...]
    caveats: tuple[str, ...]
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Subject, figures: tuple[PrintedFigure, ...]) -> WorkflowAnswer:
        """The answer, with the document's caveats on its figures."""
        return cls(record, figures, caveats_of(record, figures))

    def _object(self) -> dict[str, Any]:
        return {
            **fields_of(self.record, "workflow=workflow.name", "documented"),
            "documents": [document.title for document in self.record.workflow.documents],
            **fields_of(self.record.plan, "model", "gpu", "engine_version", "image", "calibration", "warnings"),
            "figures": rows_of(self.figures, COLUMNS),
            "differences": [
                fields_of(one, "script", "word", "printed", "here", "why") for one in table_of(self.record)
            ],
            "caveats": list(self.caveats),
        }

    def _records(self) -> tuple[PrintedFigure, ...]:
        return self.figures

    def sentences(self) -> Iterator[str]:
        """The figures and the document's caveats."""
        yield wrapped(self._title())
        yield f"\n{table_text(self.figures, COLUMNS)}" if self.figures else "the document prints no numbers for this"
        yield from items("!", self.caveats)

    def _title(self) -> str:
        plan = self.record.plan
        return f"{plan.model} on {plan.num_gpus} x {plan.gpu}, vLLM {plan.engine_version}: printed beside predicted"

    def _notes(self) -> Iterable[str]:
        yield f"calibration: {self.record.plan.calibration}"
        yield from self.record.plan.warnings
