"""``planner evaluate`` in words, rows and a chart: predicted against measured."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.evidence import Evaluated, PredictedFigure, evaluation_json, statistics, summary
from planner.output.answer import Answer, fields_of
from planner.output.charts import MARKERS, Chart, LinePanel, Mark, Series, svg
from planner.output.render import Column, note, table_text, write_file
from planner.output.tables.shared import counted
from planner.workload import METRICS

SUMMARY = (
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
RUN = ("run_id", "gpu", "model")
FIGURE = ("measured", "predicted", "lo", "hi", "error")
ROWS = tuple(map(Column, (*RUN, "metric", *FIGURE, "refused", "calibration")))


@dataclass(frozen=True, repr=False)
class Evaluation(Answer):
    """Predictions beside measurements: ``planner evaluate``. CSV has the rows, the table has the summary, JSON both."""

    columns = ROWS
    evaluated: tuple[Evaluated, ...]  #: each run with its figures, or why it was refused
    remarks: tuple[str, ...] = ()

    def summary(self) -> list[dict[str, Any]]:
        """Errors by GPU, bench and metric, as fractions."""
        return summary(self.evaluated)

    def to_svg(self) -> str:
        """Predicted against measured, as an SVG file. Raises InputError where no run was predicted."""
        return _svg(self.evaluated)

    def _object(self) -> dict[str, Any]:
        return evaluation_json(self.evaluated)

    def _records(self) -> Iterator[dict[str, Any]]:
        for one in self.evaluated:
            run = {**fields_of(one.run, *RUN), "refused": one.refused}
            if one.refused:
                yield run
            for name, figure in one.figures.items():
                yield {**run, "metric": name, **fields_of(figure, *FIGURE), "calibration": one.calibration}

    def sentences(self) -> Iterator[str]:
        yield table_text(self.summary(), SUMMARY)

    def _html(self) -> tuple[list[dict[str, Any]], Sequence[Column]]:
        return self.summary(), SUMMARY

    def _notes(self) -> Iterator[str]:
        refused = Counter(one.refused for one in self.evaluated if one.refused)
        yield f"{counted(len(self.evaluated), 'run')}, {sum(refused.values())} refused"
        used = Counter(one.calibration for one in self.evaluated if one.calibration)
        if used:
            yield "calibration: " + ", ".join(f"{name} ({times})" for name, times in used.most_common())
        for reason, times in refused.most_common():
            yield f"{times} x {reason}"


# --- the chart -----------------------------------------------------------------------------------------------------

BAND = 0.2
#: Panels of the chart. A run shows the first metric of a panel that it measured.
PANELS = {
    "Output throughput": ("output_throughput",),
    "TPOT": ("median_tpot_ms", "mean_tpot_ms"),
    "TTFT": ("median_ttft_ms", "mean_ttft_ms"),
    "End-to-end latency": ("median_e2el_ms", "mean_e2el_ms"),
    "Latency of a batch": ("avg_latency_s",),
}


#: Of the table below the chart: title of the panel, GPU, statistics.
CHART_COLUMNS = (
    Column("metric", of="0"),
    Column("GPU", of="1"),
    Column("figures", form=",", of="2.n"),
    Column("median error", form=".1%", of="2.median_ape"),
    Column(f"within {BAND:.0%}", form=".0%", of="2.within_20"),
    Column("in interval", form=".0%", of="2.coverage_90"),
)


def chart_writer(path: Path) -> Callable[[Sequence[Evaluated]], None]:
    """A function that writes the chart as SVG. Raises InputError unless ``path`` ends in .svg."""
    if path.suffix != ".svg":
        raise InputError(f"--chart {path} does not end in .svg", hint="for example --chart evaluation.svg")

    def write(evaluated: Sequence[Evaluated]) -> None:
        write_file(path, _svg(evaluated).encode(), flag="--chart")
        note(f"wrote {path}")

    return write


def _svg(evaluated: Sequence[Evaluated]) -> str:
    chart = evaluation_chart(evaluated)
    if chart is None:
        raise InputError("nothing to draw: no run was predicted", hint="see the notes of planner evaluate")
    return svg(chart)


def evaluation_chart(evaluated: Sequence[Evaluated]) -> Chart | None:
    """A panel for each metric, a colour and marker for each GPU; None where nothing was predicted."""
    gpus = sorted({one.run.gpu for one in evaluated if one.figures})
    panels: list[LinePanel] = []
    records: list[tuple[str, str, dict[str, Any]]] = []
    for title, keys in PANELS.items():
        by_gpu, unit = _by_gpu(evaluated, keys), METRICS[keys[0]].unit
        if not by_gpu:
            continue
        whole = statistics([figure for figures in by_gpu.values() for figure in figures])
        words = f"{title}\n{whole['within_20']:.0%} within {BAND:.0%}"
        if whole["coverage_90"] is not None:
            words += f", {whole['coverage_90']:.0%} in the interval"
        series = tuple(_series(gpu, place, by_gpu[gpu]) for place, gpu in enumerate(gpus) if gpu in by_gpu)
        marks = (Mark(f"equal, and {BAND:.0%} either way", diagonal=True, spread=BAND),)
        labels = f"measured, {unit}", f"predicted, {unit}"
        panels.append(LinePanel(*labels, series, words, x_log=True, y_log=True, marks=marks, equal=True))
        records += [(title, gpu, statistics(by_gpu[gpu])) for gpu in gpus if gpu in by_gpu]
        records.append((title, "all", whole))
    if not panels:
        return None
    refused = sum(one.refused is not None for one in evaluated)
    covered = statistics([figure for one in evaluated for figure in one.figures.values()])["coverage_90"]
    coverage = "" if covered is None else f" {covered:.0%} of all measurements lie in their 90 % interval."
    return Chart(
        "evaluation",
        "Predicted against measured",
        f"{len(evaluated)} runs, {refused} refused. A prediction on the line is exact, one in the grey band is within "
        f"{BAND:.0%}.{coverage}",
        tuple(panels),
        CHART_COLUMNS,
        records,
    )


def _by_gpu(evaluated: Sequence[Evaluated], keys: Sequence[str]) -> dict[str, list[PredictedFigure]]:
    by_gpu: dict[str, list[PredictedFigure]] = defaultdict(list)
    for one in evaluated:
        figure = next((one.figures[key] for key in keys if key in one.figures), None)
        if figure is not None and figure.measured > 0 and figure.predicted > 0:
            by_gpu[one.run.gpu].append(figure)
    return by_gpu


def _series(gpu: str, place: int, figures: Sequence[PredictedFigure]) -> Series:
    x, y = (tuple(getattr(figure, name) for figure in figures) for name in ("measured", "predicted"))
    return Series(gpu, x, y, place, "points", MARKERS[(place + place // len(MARKERS)) % len(MARKERS)])
