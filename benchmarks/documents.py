"""The tables of the source documents, line by line, as fits predict them that did not see their runs.

    python benchmarks/documents.py [--record FILE]
    python benchmarks/documents.py --audit FOLDER

``--audit`` prints the items of the documents' texts in a folder instead, and fails if a workflow differs from one in
silence, lacks it or has it wrong (``audit.py``).

Left out of the fit is the group that a line belongs to: its GPU, model, TP, weight dtype and engine version, whoever
published it. Takes some five minutes on two cores.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from audit import FAILURES, audit
from audit import table as of_items
from fit.leave_out import LeaveOut, case_under, held_out, leave_out_of
from planner.evidence.evaluation import figures_in_columns, simulate
from planner.evidence.runs import MeasuredRun, read_runs
from planner.resources import data_dir
from planner.timing import Calibration, load_calibration

DATA = Path(__file__).parent.parent / "docs" / "data"
TABLES = {
    "Llama-3.3-70B on one MI355X, AMD's recipe": "mi355x-llama-3.3-70b.csv",
    "Llama 3.1 70B and 405B on eight MI300X, vLLM 0.9.1": "mi300x-vllm-0.9.1.csv",
}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--audit", type=Path, metavar="FOLDER")
    asked = parser.parse_args()
    if asked.audit:
        items = audit(asked.audit)
        print("\n".join(of_items(items)))
        sys.exit(any(one.verdict in FAILURES for one in items))
    record = asked.record
    without, _ = leave_out_of(read_runs(data_dir("hardware") / "calibration" / "runs.csv"), processes=2)
    lines = ["# The documents' tables, predicted without them", ""]
    lines += [f"`benchmarks/documents.py`; a fit to {len(without.observed)} runs less those of the line's group."]
    for title, name in TABLES.items():
        lines += ["", f"## {title}", "", *table(without, read_runs(DATA / name))]
    print("\n".join(lines))
    if record:
        record.write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(without: LeaveOut, runs: list[MeasuredRun]) -> Iterator[str]:
    """One line for each figure of ``runs``, and their bias."""
    errors, inside = list[float](), 0
    yield "| run | load | metric | measured | predicted | low | high | error | inside |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for run in runs:
        case = case_under(unseen(without, run), run)
        load = f"{run.input_len:g}/{run.output_len:g} x {run.batch_size or run.max_concurrency or run.num_prompts}"
        prediction = simulate(case)
        for metric, predicted in figures_in_columns(case, prediction).items():
            measured, bounds = run.metrics.get(metric), prediction.uncertainty.factors(metric)
            if measured is None or bounds is None:
                continue
            lo, hi = (predicted * factor for factor in bounds)
            errors.append(predicted / measured - 1)
            inside += lo <= measured <= hi
            yield (
                f"| {run.run_id} | {load} | {metric} | {measured:.4g} | {predicted:.4g} | {lo:.4g} | {hi:.4g} | "
                f"{errors[-1]:+.1%} | {'yes' if lo <= measured <= hi else 'no'} |"
            )
    bias, size = fmean(errors), fmean(map(abs, errors))
    yield f"\n{len(errors)} figures: bias {bias:+.1%}, mean absolute error {size:.1%}, {inside} inside their interval."


def unseen(without: LeaveOut, run: MeasuredRun) -> Calibration:
    """The fit that saw no run of the group of ``run``."""
    members = [number for number, one in enumerate(without.observed) if one.group == run.group]
    return held_out(without, members) if members else load_calibration()


if __name__ == "__main__":
    main()
