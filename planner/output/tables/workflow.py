"""``planner workflow NAME --show``: the document's numbers beside the predictions, in words and rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.output.answer import Answer
from planner.output.render import Column, table_text, wrapped
from planner.output.workflows.advised import AdvisedRow, advised_beside
from planner.output.workflows.differences import Difference
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
    """What a document prints for a workflow beside what is predicted for the same run."""

    record: Subject
    figures: tuple[PrintedFigure, ...]
    remarks: tuple[str, ...] = ()

    def _object(self) -> dict[str, Any]:
        found = self.record
        return {
            "workflow": found.workflow.name,
            "documents": [document.title for document in found.workflow.documents],
            "documented": found.documented,
            "model": found.plan.model,
            "gpu": found.plan.gpu,
            "engine_version": found.plan.engine_version,
            "image": found.plan.image,
            "calibration": found.plan.calibration,
            "figures": [_row(figure) for figure in self.figures],
            "advice": [_advice(row) for row in self._advice],
            "differences": [_difference(one) for one in table_of(found)],
            "caveats": list(caveats_of(found, self.figures)),
            "warnings": list(found.plan.warnings),
        }

    @property
    def _advice(self) -> tuple[AdvisedRow, ...]:
        return advised_beside(self.record)

    def _records(self) -> list[dict[str, Any]]:
        return [_row(figure) for figure in self.figures]

    def _columns(self) -> Sequence[Column]:
        return COLUMNS

    def _lines(self) -> Iterator[str]:
        yield wrapped(self._title())
        if self.figures:
            yield ""
            yield table_text(self._records(), COLUMNS)
        else:
            yield "the document prints no numbers for this"
        if rows := self._advice:
            yield "\nthe document's settings for each goal beside the recommended ones, as predicted:"
            yield table_text([_advice(row) for row in rows], ADVICE)
        for caveat in caveats_of(self.record, self.figures):
            yield wrapped(caveat, first="  ! ", rest="    ")

    def _title(self) -> str:
        plan = self.record.plan
        return f"{plan.model} on {plan.num_gpus} x {plan.gpu}, vLLM {plan.engine_version}: printed beside predicted"

    def _notes(self) -> Iterable[str]:
        yield f"calibration: {self.record.plan.calibration}"
        yield from self.record.plan.warnings


def _row(figure: PrintedFigure) -> dict[str, Any]:
    return {column.key: getattr(figure, column.key) for column in COLUMNS}


def _advice(row: AdvisedRow) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in ADVICE}


def _difference(one: Difference) -> dict[str, str]:
    return {"script": one.script, "word": one.word, "printed": one.printed, "here": one.here, "why": one.why}
