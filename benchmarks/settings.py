"""The settings of all published runs, each with its runs: what ``planner`` counts as evidence.

    python benchmarks/settings.py    hardware/calibration/runs.csv -> hardware/calibration/settings.csv

Renew it whenever the runs change: a test compares the two.
"""

import csv
from collections import defaultdict

from planner.evidence.evaluation import case_of
from planner.evidence.runs import MeasuredRun, read_runs
from planner.resources import data_dir
from planner.timing.fits import setting_of

COVARIATES = ("gpu", "architecture", "shape", "kind", "weights", "generation", "release", "layout")


def setting(run: MeasuredRun) -> tuple[str, ...]:
    """The setting of a run."""
    engine = case_of(run).deployment
    has = setting_of(engine.covariates, engine.config)
    return *(has[name] for name in COVARIATES), run.model, run.weight_dtype


if __name__ == "__main__":
    folder = data_dir("hardware") / "calibration"
    run_ids = defaultdict[tuple[str, ...], list[str]](list)
    for run in read_runs(folder / "runs.csv"):
        run_ids[setting(run)].append(run.run_id)
    with (folder / "settings.csv").open("w", encoding="utf-8", newline="") as file:
        write = csv.writer(file, lineterminator="\n")
        write.writerow((*COVARIATES, "model", "weight_dtype", "runs", "run_ids"))
        write.writerows((*one, len(runs), " ".join(runs)) for one, runs in sorted(run_ids.items()))
