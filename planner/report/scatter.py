"""The chart of ``planner evaluate``: predicted against measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from planner.charts import Chart, LinePanel, Mark, Series, Table
from planner.errors import InputError
from planner.evaluate import Evaluated, Figure, statistics
from planner.report.figures import MARKERS
from planner.report.files import write_file
from planner.report.render import note

BAND = 0.2
#: A panel each; of the keys of one, a run shows the first that it measured.
PANELS = {
    "Output throughput": ("tokens/s", ("output_throughput",)),
    "TPOT": ("ms", ("median_tpot_ms", "mean_tpot_ms")),
    "TTFT": ("ms", ("median_ttft_ms", "mean_ttft_ms")),
    "End-to-end latency": ("ms", ("median_e2el_ms", "mean_e2el_ms")),
    "Latency of a batch": ("s", ("avg_latency_s",)),
}


def chart_writer(path: Path) -> Callable[[Sequence[Evaluated]], None]:
    """What writes the chart into ``path``, as SVG or PNG by its name. Raises InputError for any other name at once."""
    if path.suffix not in (".svg", ".png"):
        raise InputError(f"--chart {path} ends in neither .svg nor .png", hint="for example --chart evaluation.svg")

    def write(evaluated: Sequence[Evaluated]) -> None:
        from planner.charts import draw

        chart = evaluation_chart(evaluated)
        if chart is None:
            cause = "--chart: there is nothing to draw, no run was predicted"
            raise InputError(cause, hint="without --chart the output says why")
        write_file(path, draw.png(chart) if path.suffix == ".png" else draw.svg(chart).encode(), flag="--chart")
        note(f"wrote {path}")

    return write


def evaluation_chart(evaluated: Sequence[Evaluated]) -> Chart | None:
    """One panel for each metric that was measured, a colour and marker for each GPU; None where nothing was."""
    gpus = sorted({one.run.gpu for one in evaluated if one.figures})
    panels, rows = [], []
    for title, (unit, keys) in PANELS.items():
        by_gpu = _by_gpu(evaluated, keys)
        if not by_gpu:
            continue
        series = tuple(_series(gpu, gpus.index(gpu), by_gpu[gpu]) for gpu in gpus if gpu in by_gpu)
        every = [figure for figures in by_gpu.values() for figure in figures]
        found = statistics(every)
        words = f"{title}\n{found['within_20']:.0%} within {BAND:.0%}"
        if found["coverage_90"] is not None:
            words += f", {found['coverage_90']:.0%} in the interval"
        marks = (Mark(f"equal, and {BAND:.0%} either way", diagonal=True, spread=BAND),)
        panels.append(
            LinePanel(
                f"measured, {unit}",
                f"predicted, {unit}",
                series,
                words,
                x_log=True,
                y_log=True,
                marks=marks,
                equal=True,
            )
        )
        rows += [_row(title, gpu, by_gpu[gpu]) for gpu in gpus if gpu in by_gpu]
        rows.append(_row(title, "all", every))
    if not panels:
        return None
    refused = sum(one.refused is not None for one in evaluated)
    covered = statistics([figure for one in evaluated for figure in one.figures.values()])["coverage_90"]
    coverage = "" if covered is None else f" {covered:.0%} of all figures lie inside their 90 % interval."
    return Chart(
        "evaluation",
        "Predicted against measured",
        f"{len(evaluated)} runs, {refused} refused. On the line a prediction is exact, in the grey band it is within "
        f"{BAND:.0%}.{coverage}",
        tuple(panels),
        Table(("metric", "GPU", "figures", "median error", f"within {BAND:.0%}", "in interval"), tuple(rows)),
    )


def _by_gpu(evaluated: Sequence[Evaluated], keys: Sequence[str]) -> dict[str, list[Figure]]:
    found: dict[str, list[Figure]] = defaultdict(list)
    for one in evaluated:
        figure = next((one.figures[key] for key in keys if key in one.figures), None)
        if figure is not None and figure.measured > 0 and figure.predicted > 0:
            found[one.run.gpu].append(figure)
    return found


def _series(gpu: str, place: int, figures: Sequence[Figure]) -> Series:
    return Series(
        gpu,
        tuple(figure.measured for figure in figures),
        tuple(figure.predicted for figure in figures),
        place,
        "points",
        MARKERS[(place + place // len(MARKERS)) % len(MARKERS)],
    )


def _row(metric: str, gpu: str, figures: Sequence[Figure]) -> tuple[str, ...]:
    found = statistics(figures)
    covered = "-" if found["coverage_90"] is None else f"{found['coverage_90']:.0%}"
    return metric, gpu, f"{found['n']:,}", f"{found['median_ape']:.1%}", f"{found['within_20']:.0%}", covered
