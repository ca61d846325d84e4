"""The tables of the source documents, line by line, as fits predict them that did not see their runs.

    python benchmarks/documents.py [--record FILE]
    python benchmarks/documents.py --audit

``--audit`` prints the workflows beside their documents instead: changed options, mean error of printed figures.

Left out of the fit is the group that a line belongs to: its GPU, model, TP, weight dtype and engine version, whoever
published it. Takes some five minutes on two cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from fit.leave_out import LeaveOut, held_out, leave_out_of
from planner.evidence.evaluation import case_of, figures_in_columns, simulate
from planner.evidence.runs import MeasuredRun, read_runs
from planner.output.workflows.documents import list_workflows
from planner.output.workflows.printed import changed_options, printed_beside
from planner.output.workflows.subject import Choice, subject
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
    parser.add_argument("--audit", action="store_true")
    asked = parser.parse_args()
    if asked.audit:
        audit()
        return
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
    """One line for each figure of ``runs``."""
    yield "| run | load | metric | measured | predicted | low | high | error | inside |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for run in runs:
        case = case_of(run).with_fits(unseen(without, run))
        load = f"{run.input_len:g}/{run.output_len:g} x {run.batch_size or run.max_concurrency or run.num_prompts}"
        prediction = simulate(case)
        for metric, predicted in figures_in_columns(case, prediction).items():
            measured, bounds = run.metrics.get(metric), prediction.uncertainty.factors(metric)
            if measured is None or bounds is None:
                continue
            lo, hi = (predicted * factor for factor in bounds)
            yield (
                f"| {run.run_id} | {load} | {metric} | {measured:.4g} | {predicted:.4g} | {lo:.4g} | {hi:.4g} | "
                f"{predicted / measured - 1:+.1%} | {'yes' if lo <= measured <= hi else 'no'} |"
            )


def unseen(without: LeaveOut, run: MeasuredRun) -> Calibration:
    """The fit that saw no run of the group of ``run``."""
    members = [number for number, one in enumerate(without.observed) if one.group == run.group]
    return held_out(without, members) if members else load_calibration()


def audit() -> None:
    """Print the workflows beside their documents: changed options, mean error of the figures."""
    for workflow in list_workflows().values():
        if "compare.sh" in workflow.scripts:
            continue
        found = subject(workflow, Choice())
        print(f"\n## {workflow.name}: {found.plan.model}, {found.plan.gpu}, vLLM {found.plan.engine_version}\n")
        print("| script | option | printed | here |\n| --- | --- | --- | --- |")
        for one in changed_options(found):
            print(f"| {' | '.join(one.values())} |")
        errors = [figure.error for figure in printed_beside(found) if figure.error is not None]
        if errors:
            print(f"\n{len(errors)} printed figures beside predictions, mean error {sum(errors) / len(errors):+.1%}")


if __name__ == "__main__":
    main()
