"""How accurate the predictions are, on runs that the fit did not see; and the fit that we ship.

    python benchmarks/accuracy.py RUNS.csv              errors with groups of runs, and with single runs, left out
    python benchmarks/accuracy.py RUNS.csv --write DIR  also fit to all runs: DIR/efficiency.json and DIR/runs.csv

A group is one GPU, model, TP, weight dtype and engine version: leaving it out asks what a planner is asked. Leaving out
single runs asks how well a table that was half measured is completed.
"""

from __future__ import annotations

import argparse
import csv
import datetime
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from planner.calibration import Observed, cross_validate, fit, spreads
from planner.calibration.crossval import LEFT_OUT
from planner.calibration.effects import Design
from planner.calibration.fit import Problem
from planner.calibration.terms import Terms
from planner.efficiency import Calibration, to_text
from planner.measurements import METRICS, RUN_COLUMNS, Run, read_runs
from planner.observations import combinations, observe

LARGE = ("mi300x", "mi325x", "mi355x", "h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb")
HOPPER_AND_BLACKWELL = ("h100-sxm", "h200-sxm", "b200-sxm")


def kinds(one: Observed, run: Run, metric: str) -> Iterator[str]:
    """The lines of the table that a metric of a run counts in."""
    has = {m.name for m in one.metrics}
    engine = "ATOM" if run.engine_build != "vllm" else "stock"
    if metric == "avg_latency_s":
        yield f"latency, {run.gpu}"
    elif metric == "output_throughput":
        yield f"throughput, {run.gpu}" if run.bench == "throughput" else f"output throughput, {engine}"
    elif metric == "mean_tpot_ms" or (metric == "median_tpot_ms" and "mean_tpot_ms" not in has):
        yield f"TPOT, {engine}, {'data-centre' if run.gpu in LARGE else 'other'} GPUs"
        if run.gpu in HOPPER_AND_BLACKWELL and one.config.engine == "V1":
            yield f"TPOT, {'MoE' if one.model.is_moe else 'dense'}, H100 H200 B200, V1"
    elif metric == "mean_ttft_ms" or (metric == "median_ttft_ms" and "mean_ttft_ms" not in has):
        yield f"TTFT, {run.arrival}"
    elif metric.startswith("p99"):
        yield metric


def table(observed: Sequence[Observed], runs: dict[str, Run], terms: Terms, errors: np.ndarray) -> None:
    """Median error, share within 20 %, and bias, by kind of metric."""
    found: dict[str, list[float]] = defaultdict(list)
    for run, metric, error in zip(terms.metric_run, terms.metric_names, errors, strict=True):
        one = observed[run]
        ratio = np.exp(-error if metric == "output_throughput" else error)
        for kind in kinds(one, runs[one.run_id], metric):
            found[kind].append(ratio - 1)
    print(f"{'':42}{'n':>5}{'median error':>14}{'within 20 %':>13}{'bias':>8}")
    for kind, values in sorted(found.items()):
        error = np.abs(values)
        print(f"{kind:42}{len(values):5}{np.median(error):14.1%}{np.mean(error <= 0.2):13.0%}{np.median(values):+8.1%}")


def carried(source: Path, target: Path) -> None:
    """The columns that a fit needs, with the source of each run; suspect rows stay behind."""
    columns = [name for name in (*RUN_COLUMNS, *METRICS, "source") if name != "suspect"]
    with source.open(newline="", encoding="utf-8-sig") as read, target.open("w", newline="", encoding="utf-8") as write:
        table_out = csv.DictWriter(write, columns, extrasaction="ignore", lineterminator="\n")
        table_out.writeheader()
        table_out.writerows(row for row in csv.DictReader(read) if not row.get("suspect"))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--write", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    runs = {run.run_id: run for run in read_runs(arguments.runs)}
    observed, refused = observe(runs.values())
    for run, why in refused:
        print(f"left out: {run.run_id} {run.gpu} {run.model}: {why}")
    problem = Problem(Terms(observed), Design(observed))
    print(f"\n{len(observed)} runs, groups left out")
    table(observed, runs, problem.terms, cross_validate(observed, problem=problem))
    print("\nsingle runs left out")
    table(observed, runs, problem.terms, cross_validate(observed, left_out=lambda one: one.run_id, problem=problem))
    if arguments.write:
        write(observed, arguments.runs, arguments.write)


def write(observed: Sequence[Observed], source: Path, folder: Path) -> None:
    """Fit to everything, and find the intervals for each of ``LEFT_OUT``."""
    print(f"\nintervals: {', '.join(LEFT_OUT)} left out")
    found, median_error = spreads(observed)
    calibration = Calibration(
        name="published runs",
        fitted_on=f"{len(observed)} published runs of vLLM (runs.csv), {datetime.date.today()}",
        median_error=median_error,
        effects=fit(observed).effects(),
        spreads=found,
        combinations=combinations(observed),
    )
    (folder / "efficiency.json").write_text(to_text(calibration), encoding="utf-8")
    carried(source, folder / "runs.csv")


if __name__ == "__main__":
    main()
