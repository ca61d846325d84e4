"""``planner workflow NAME --show``: the document's numbers beside the predictions, in words and rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from planner.output.answer import Answer, fields_of
from planner.output.render import Column, rows_of, table_text, wrapped
from planner.output.tables.shared import items
from planner.output.workflows.advised import AdvisedRow, advised_beside
from planner.output.workflows.printed import PrintedFigure, caveats_of, figure_text, table_of
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
ADVICE = (
    Column("goal"),
    Column("whose"),
    Column("tensor_parallel_size", "tp"),
    Column("max_num_seqs", "batch", ","),
    Column("weight_dtype", "weights"),
    Column("output_throughput_per_gpu", "tok/s/gpu", ",.0f"),
    Column("mean_ttft_ms", "TTFT ms", ",.0f"),
    Column("mean_tpot_ms", "TPOT ms", ",.1f"),
)


@dataclass(frozen=True, repr=False)
class WorkflowAnswer(Answer):
    """The figures of a document for a workflow beside the predictions for the same runs."""

    columns = COLUMNS
    record: Subject
    figures: tuple[PrintedFigure, ...]
    advice: tuple[AdvisedRow, ...]  #: the document's settings for each goal, and the recommended ones
    caveats: tuple[str, ...]
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Subject, figures: tuple[PrintedFigure, ...]) -> WorkflowAnswer:
        """The answer, with the settings of the document predicted."""
        return cls(record, figures, advised_beside(record), caveats_of(record, figures))

    def _object(self) -> dict[str, Any]:
        return {
            **fields_of(self.record, "workflow=workflow.name", "documented"),
            "documents": [document.title for document in self.record.workflow.documents],
            **fields_of(self.record.plan, "model", "gpu", "engine_version", "image", "calibration", "warnings"),
            "figures": rows_of(self.figures, COLUMNS),
            "advice": rows_of(self.advice, ADVICE),
            "differences": [
                fields_of(one, "script", "word", "printed", "here", "why") for one in table_of(self.record)
            ],
            "caveats": list(self.caveats),
        }

    def _records(self) -> tuple[PrintedFigure, ...]:
        return self.figures

    def sentences(self) -> Iterator[str]:
        """The figures, the advice, and caveats."""
        yield wrapped(self._title())
        yield f"\n{table_text(self.figures, COLUMNS)}" if self.figures else "the document prints no numbers for this"
        if self.advice:
            yield "\nthe document's settings for each goal beside the recommended ones, as predicted:"
            yield table_text(self.advice, ADVICE)
        yield from items("!", self.caveats)

    def _title(self) -> str:
        plan = self.record.plan
        return f"{plan.model} on {plan.num_gpus} x {plan.gpu}, vLLM {plan.engine_version}: printed beside predicted"

    def _notes(self) -> Iterable[str]:
        yield f"calibration: {self.record.plan.calibration}"
        yield from self.record.plan.warnings
