"""How accurate the predictions are, on runs that the fit did not see; and the fit that we ship.

    python benchmarks/accuracy.py [RUNS.csv]                 errors with runs, groups, models, GPUs, sources left out
    python benchmarks/accuracy.py RUNS.csv --record FILE   the same as a page of Markdown
    python benchmarks/accuracy.py RUNS.csv --write DIR     also fit to all runs: DIR/efficiency.json and DIR/runs.csv

What is left out together says what is asked: a new load, a new combination, a pair of GPU and model, a model, a GPU or
a source that was never seen. Every run is replayed with the fit that did not see it. Coverage is that of intervals
found without the same runs. Takes some ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from planner.evidence.effects import load_structure
from planner.evidence.fitting import EfficiencyFit
from planner.evidence.leave_out import LEFT_OUT, LeaveOut, held_out_intervals, leave_out, replayed_errors, spreads
from planner.evidence.observe import Observed, combinations, observe
from planner.evidence.runs import MEASUREMENTS, REPLICAS, RUN_COLUMNS, MeasuredRun, read_runs
from planner.evidence.terms import Terms
from planner.timing.fits import Calibration, Proximity, to_text

#: The runs that the shipped fits rest on.
SHIPPED_RUNS = Path(__file__).parent.parent / "hardware" / "calibration" / "runs.csv"
LARGE = ("mi300x", "mi325x", "mi355x", "h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb")
#: Median error and share within 20 %, for runs of a pair of GPU and model that was left out.
AIMS = {
    "latency, mi300x": "4 %, 97 %",
    "TPOT, stock": "6 %, 87 %",
    "output throughput, stock": "6 %, 87 %",
    "TTFT, closed-loop": "12 %, 70 %",
    "TTFT, lone prompt": "10 %, 85 %",
    "TPOT, ATOM": "9 %, 85 %",
}
#: GPUs with fewer figures than this have no coverage of their own.
LEAST_FIGURES = 50
#: What is left out together, and what that asks.
SECTIONS: dict[Proximity | Literal["source"], str] = {
    "setting": "A new load on a known setting: single runs left out",
    "combination": "A known GPU and model in a new combination: one GPU, model, TP, weight dtype and version left out",
    "parts": "A GPU and a model that were not measured together: pairs left out",
    "gpu": "A model never seen: all runs of one architecture at one size left out",
    "architecture": "A GPU never seen: all runs of one GPU left out",
    "source": "A source never seen: all runs that one party published left out",
}
COVERED: tuple[Proximity, ...] = ("setting", "combination", "parts")  #: sections that show intervals too
LEAST_SOURCES = 3  #: of a GPU whose bias is shown
PROCESSES = 2
HOPPER_AND_BLACKWELL = ("h100-sxm", "h200-sxm", "b200-sxm")


def kinds(one: Observed, run: MeasuredRun, metric: str) -> Iterator[str]:
    """The lines of the table that a metric of a run counts in."""
    has = {m.name for m in one.metrics}
    engine = "ATOM" if run.engine_build != "vllm" else "stock"
    if metric == "avg_latency_s":
        yield f"latency, {run.gpu}"
    elif metric == "output_throughput":
        yield f"throughput, {run.gpu}" if run.bench == "throughput" else f"output throughput, {engine}"
    elif metric == "mean_tpot_ms" or (metric == "median_tpot_ms" and "mean_tpot_ms" not in has):
        yield f"TPOT, {engine}"
        yield f"TPOT, {engine}, {'data-centre' if run.gpu in LARGE else 'other'} GPUs"
        if run.gpu in HOPPER_AND_BLACKWELL and one.config.engine == "V1":
            yield f"TPOT, {'MoE' if one.model.is_moe else 'dense'}, H100 H200 B200, V1"
    elif metric == "mean_ttft_ms" or (metric == "median_ttft_ms" and "mean_ttft_ms" not in has):
        yield f"TTFT, {run.arrival}"
        if run.max_concurrency == 1:
            yield "TTFT, lone prompt"
    elif metric.startswith("p99"):
        yield metric


def table(
    observed: Sequence[Observed], runs: dict[str, MeasuredRun], terms: Terms, errors: np.ndarray
) -> Iterator[str]:
    """Median error, share within 20 %, and bias, by kind of metric, beside what we aim at."""
    found: dict[str, list[float]] = defaultdict(list)
    for run, metric, error in zip(terms.metric_run, terms.metric_names, errors, strict=True):
        one = observed[run]
        ratio = np.exp(-error if metric == "output_throughput" else error)
        for kind in kinds(one, runs[one.run_id], metric):
            found[kind].append(ratio - 1)
    yield "| | figures | median error | within 20 % | bias | aim |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for kind, values in sorted(found.items()):
        error = np.abs(values)
        yield (
            f"| {kind} | {len(values)} | {np.median(error):.1%} | {np.mean(error <= 0.2):.0%} | "
            f"{np.median(values):+.1%} | {AIMS.get(kind, '')} |"
        )


def coverage(terms: Terms, errors: np.ndarray, proximity: Proximity) -> Iterator[str]:
    """Share of measurements inside their intervals, and the median of highest over lowest, by GPU."""
    found: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    bounds = held_out_intervals(terms, errors, proximity)
    for run, metric, error, (lo, hi) in zip(terms.metric_run, terms.metric_names, errors, bounds, strict=True):
        ratio = float(np.exp(error if metric == "output_throughput" else -error))
        for name in ("all", terms.observed[run].covariates["gpu"]):
            found[name].append((lo <= ratio <= hi, hi / lo))
    yield "| GPU | figures | inside the 90 % interval | median width (highest / lowest) |"
    yield "| --- | --- | --- | --- |"
    for name, values in sorted(found.items()):
        if len(values) >= LEAST_FIGURES:
            inside, width = np.array(values).T
            yield f"| {name} | {len(values)} | {inside.mean():.0%} | {np.median(width):.2f} |"


def source_of(one: Observed) -> str:
    """Who published a run."""
    return one.source


def carried(source: Path, target: Path) -> None:
    """The columns that a fit needs, with the source of each run; suspect rows stay behind."""
    columns = [name for name in (*RUN_COLUMNS, REPLICAS, *MEASUREMENTS, "source") if name != "suspect"]
    with source.open(newline="", encoding="utf-8-sig") as read, target.open("w", newline="", encoding="utf-8") as write:
        table_out = csv.DictWriter(write, columns, extrasaction="ignore", lineterminator="\n")
        table_out.writeheader()
        table_out.writerows(row for row in csv.DictReader(read) if not row.get("suspect"))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", default=SHIPPED_RUNS)
    parser.add_argument("--write", type=Path, metavar="DIR")
    parser.add_argument("--record", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    every = {run.run_id: run for run in read_runs(arguments.runs)}
    observed, refused = observe(every.values(), processes=PROCESSES)
    without = leave_out(observed)
    keys = {**LEFT_OUT, "source": source_of}
    wanted = keys if arguments.write else SECTIONS
    errors = {name: replayed_errors(without, every.values(), keys[name], processes=PROCESSES) for name in wanted}
    lines = list(report(without, errors, refused, every))
    print("\n".join(lines))
    if arguments.record:
        arguments.record.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if arguments.write:
        write(without, errors, arguments.runs, arguments.write)


def report(
    without: LeaveOut,
    errors: Mapping[str, np.ndarray],
    refused: Sequence[tuple[MeasuredRun, str]],
    runs: dict[str, MeasuredRun],
) -> Iterator[str]:
    """The page that ``--record`` writes."""
    terms = without.problem.terms
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    yield "# Accuracy on runs that the fit did not see"
    yield ""
    yield f"`benchmarks/accuracy.py`, {datetime.date.today()}, on top of commit {commit.stdout.strip() or 'unknown'}."
    yield f"{len(terms.observed)} runs; {len(refused)} refused" + (":" if refused else ".")
    for run, why in refused:
        yield f"- {run.run_id} {run.gpu} {run.model}: {why}"
    yield "A fit without a group is one step from the fit to everything (`planner/evidence/leave_out.py`)."
    yield "Every run is replayed with the fit that did not see it (`replayed_errors` in the same module)."
    for name, title in SECTIONS.items():
        yield from ("", f"## {title}", "", *table(terms.observed, runs, terms, errors[name]))
        if name in COVERED:
            yield from ("", *coverage(terms, errors[name], name))
    yield from ("", "## Bias by GPU, pairs of GPU and model left out", "", *bias(terms, errors["parts"]))
    yield from ("", "## What each line of the structure gives", "", *parameters(without))


def bias(terms: Terms, errors: np.ndarray) -> Iterator[str]:
    """Median of predicted / measured - 1 by GPU and metric, where at least three sources measured."""
    found: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for run, metric, error in zip(terms.metric_run.tolist(), terms.metric_names, errors, strict=True):
        one = terms.observed[run]
        found[one.covariates["gpu"], metric].append((-error if metric == "output_throughput" else error, one.source))
    yield "| GPU | metric | figures | sources | bias |"
    yield "| --- | --- | --- | --- | --- |"
    for (gpu, metric), values in sorted(found.items()):
        sources = {source for _, source in values}
        if len(sources) >= LEAST_SOURCES and not metric.startswith("p99"):
            middle = np.expm1(np.median([error for error, _ in values]))
            yield f"| {gpu} | {metric} | {len(values)} | {len(sources)} | {middle:+.1%} |"


def parameters(without: LeaveOut) -> Iterator[str]:
    """How many factors each line of the structure has, how many are shipped, and of how many runs the median is."""
    design = without.problem.design
    effects = EfficiencyFit(design, without.factors, np.zeros_like(without.factors), float("nan")).effects()
    shipped: dict[tuple[str, frozenset[str]], list[int]] = defaultdict(list)
    for effect in effects:
        shipped[effect.target, frozenset(effect.when)].append(effect.rows)
    yield "| target | covariates | deviation | factors shipped | runs of the median factor |"
    yield "| --- | --- | --- | --- | --- |"
    for target, scope, sd in load_structure().lines:
        rows = shipped[target, frozenset(scope)]
        yield f"| {target} | {', '.join(scope)} | {sd:.2f} | {len(rows)} | {np.median(rows) if rows else 0:.0f} |"
    yield f"| all, with one for each efficiency | | | {len(effects)} | |"


def write(without: LeaveOut, errors: Mapping[str, np.ndarray], source: Path, folder: Path) -> None:
    """Fit to everything, and find the intervals for each of ``LEFT_OUT``."""
    observed = without.problem.terms.observed
    found, median_error = spreads(without.problem.terms, {name: errors[name] for name in LEFT_OUT})
    calibration = Calibration(
        name="published runs",
        fitted_on=f"{len(observed)} published runs of vLLM (runs.csv), {datetime.date.today()}",
        median_error=median_error,
        effects=without.refit().effects(),
        spreads=found,
        combinations=combinations(observed),
    )
    (folder / "efficiency.json").write_text(to_text(calibration), encoding="utf-8")
    if source.resolve() != (folder / "runs.csv").resolve():
        carried(source, folder / "runs.csv")


if __name__ == "__main__":
    main()
