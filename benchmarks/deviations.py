"""How much each efficiency differs between runs, learnt from the shipped runs; and what that is worth on unseen ones.

    python benchmarks/deviations.py                 learn, and write hardware/calibration/structure.toml
    python benchmarks/deviations.py --nested        learn on four fifths of the pairs of GPU and model, judge on others

The second is the check of the first: a deviation that was learnt on the very runs that it is judged by could flatter.
It prints errors of the linear model, whose queues are those of the fit to all runs.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from fit.design import Design, Structure
from fit.deviations import learn_deviations, to_toml
from planner.evidence.fitting import FitProblem
from planner.evidence.observations import Observed, Terms, observe
from planner.evidence.runs import read_runs
from planner.resources import data_dir
from planner.timing import load_calibration

CALIBRATION = data_dir("hardware") / "calibration"
FOLDS = 5


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nested", action="store_true")
    nested = parser.parse_args().nested
    observed, _ = observe(read_runs(CALIBRATION / "runs.csv"))
    if nested:
        judge(observed)
        return
    learnt = learn_deviations(Terms(observed), Structure.shipped())
    path = CALIBRATION / "structure.toml"
    text = to_toml(learnt, path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    print(text)


def judge(observed: Sequence[Observed]) -> None:
    """Errors on each fold with the deviations of the other folds, beside those with the deviations of all."""
    fold, terms = folds(observed), Terms(observed)
    found: dict[str, dict[str, list[float]]] = {"nested": defaultdict(list), "all": defaultdict(list)}
    for number in range(FOLDS):
        seen = [one for one, at in zip(observed, fold, strict=True) if at != number]
        used = np.array([fold[run] != number for run in terms.metric_run.tolist()])
        for name, structure in (
            ("nested", learn_deviations(Terms(seen), Structure.shipped())),
            ("all", Structure.shipped()),
        ):
            errors = errors_of(terms, structure, used)
            for row in np.flatnonzero(~used):
                found[name][terms.metric_names[row]].append(abs(np.expm1(errors[row])))
    print(f"{'metric':24}{'figures':>9}{'nested':>9}{'all':>9}   median error of pairs of GPU and model left out")
    for metric, errors_nested in sorted(found["nested"].items()):
        medians = f"{np.median(errors_nested):9.1%}{np.median(found['all'][metric]):9.1%}"
        print(f"{metric:24}{len(errors_nested):9}{medians}")


def folds(observed: Sequence[Observed]) -> list[int]:
    """The fold of each run: pairs of GPU and model dealt out in the order in which they come."""
    pairs = [(one.covariates["gpu"], one.covariates["shape"]) for one in observed]
    number = {pair: i % FOLDS for i, pair in enumerate(dict.fromkeys(pairs))}
    return [number[pair] for pair in pairs]


def errors_of(terms: Terms, structure: Structure, used: np.ndarray) -> np.ndarray:
    """log(predicted / measured) of every metric by a fit to those ``used``."""
    design = Design(terms.observed, structure.lines)
    problem = FitProblem(terms, design, structure.sigma)
    start = design.factors_of(load_calibration().effects)  # where the iteration begins, not where it ends
    fitted = problem.solve(used, start, uncertain=False)
    return terms.log_metrics(design.log_values(fitted.factors))[0] - terms.log_measured


if __name__ == "__main__":
    main()
