"""The tables of the source documents, line by line, as fits predict them that did not see their runs.

    python benchmarks/documents.py [--record FILE]
    python benchmarks/documents.py --audit

``--audit`` prints the workflows beside their documents instead: changed options, the mean error of the printed figures,
and the settings that a document advises beside the recommended ones.

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
from planner.model import resolve_model
from planner.output.workflows.documents import entries, list_workflows
from planner.output.workflows.printed import changed_options, printed_beside
from planner.output.workflows.subject import Choice, Subject, subject
from planner.planning import Deployment, Objective, Prediction, Search, Serving, Space, defaults
from planner.resources import data_dir
from planner.timing import Calibration, load_calibration
from planner.workload import Load

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
    """Print the workflows beside their documents: changed options, mean error of the figures, advised settings."""
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
        for line in advised(found):
            print(line)


def advised(found: Subject) -> Iterator[str]:
    """Settings that the document advises for a goal, and the recommended ones, with predictions for both."""
    ids = {document.id for document in found.workflow.documents}
    for one in entries("advice"):
        if found.printed is None or one["document"] not in ids or one["gpu"] != found.profile.id:
            continue
        for size in one["tensor_parallel_size"]:
            args = found.args.changed(tensor_parallel_size=size, max_num_seqs=one["max_num_seqs"])
            serving = found.serving(args, found.version)
            if serving.fit(ways_out=False).fits:
                yield advice(found, one["goal"], "document", serving.deployment, one["max_num_seqs"])
        load = found.plan.workload
        space = Space((Serving.of(resolve_model(found.plan.model), found.profile, version=found.version),))
        answer = Search(space, Objective(one["goal"], Load(load.input_len, load.output_len))).run()[0].best
        if answer:
            yield advice(found, one["goal"], "planner", answer.deployment, answer.estimate.concurrency)


def advice(found: Subject, goal: str, source: str, deployment: Deployment, concurrency: int) -> str:
    """A setting with its predicted throughput per GPU, TTFT and TPOT."""
    like, config = found.plan.workload, deployment.config
    prompts = defaults.PROMPTS_PER_SLOT * concurrency
    load = Load(like.input_len, like.output_len, prompts, max_concurrency=concurrency)
    figures = Prediction.of(deployment, load).figures
    return (
        f"- {goal}, {source}: TP {config.tensor_parallel_size}, batch {config.max_num_seqs}, {config.weight_dtype}: "
        f"{figures['output_throughput'] / config.num_gpus:,.0f} tokens/s per GPU, "
        f"TTFT {figures['mean_ttft_ms']:,.0f} ms, TPOT {figures['mean_tpot_ms']:,.1f} ms"
    )


if __name__ == "__main__":
    main()
