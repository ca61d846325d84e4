"""What a user's own runs are worth: published runs treated as one's own, after ``planner calibrate`` saw some of them.

    python benchmarks/own_runs.py RUNS.csv [--groups N] [--write FILE.md]

The runs of one source with one GPU and one model, at all their loads and TP sizes, are taken for those of a user. The
shipped fits are those to all other runs. Some of the group's runs, drawn at random, calibrate; others of the group are
predicted, always the same ones, by what is shipped and after 1 and 3 runs::

    error      median of |predicted / measured - 1|
    covered    share of the measurements inside the 90 % interval
    width      median of highest / lowest
    score      mean interval score of the logarithms (Gneiting and Raftery, JASA 102, 2007): less is better
"""

import argparse
import datetime
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from math import exp, log
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median

from fit.leave_out import LeaveOut, case_under, held_out, leave_out_of
from planner.errors import PlannerError
from planner.evidence.evaluation import figures_in_columns, resent, simulate
from planner.evidence.fitting import effects_of, fit_own, scatter_of
from planner.evidence.observations import Observed
from planner.evidence.runs import MeasuredRun, read_runs
from planner.timing.fits import Calibration

OWN_RUNS = (0, 1, 3)  #: that calibrate
MOST_PREDICTED = 8  #: runs of a group
SEED = 13
CHOOSING_SEED = 1  #: of the half that ``OF_ITS_LOAD`` was chosen on
LEVEL = 0.9


@dataclass(frozen=True, slots=True)
class Miss:
    """One figure of one run after ``own`` runs of its group."""

    group: str
    gpu: str
    run_id: str
    metric: str
    arrival: str
    own: int
    error: float  #: log(predicted / measured)
    lo: float  #: of the interval, over the measurement, as a logarithm
    hi: float
    deviation: float  #: of the logarithm, without noise


@dataclass(frozen=True)
class Groups:
    """What the processes share."""

    without: LeaveOut
    runs: Mapping[str, MeasuredRun]
    resent: frozenset[str]
    members: Mapping[str, list[int]]

    def misses(self, name: str) -> list[Miss]:
        """Those of one group."""
        members = self.members[name]
        order = random.Random(f"{SEED} {name}").sample(members, len(members))
        observed = self.without.observed
        base = held_out(self.without, members)
        own = [self.runs[observed[number].run_id] for number in order[: max(OWN_RUNS)]]
        asked = order[max(OWN_RUNS) :][:MOST_PREDICTED]
        found: list[Miss] = []
        for count in OWN_RUNS:
            fits = base
            if count:
                fits = base.with_own(effects_of(fit_own(own[:count], base)[0]), "own")
            for number in asked:
                found += self._of(name, observed[number], fits, count)
        return found

    def _of(self, name: str, one: Observed, fits: Calibration, count: int) -> Iterator[Miss]:
        run = self.runs[one.run_id]
        case = case_under(fits, run, resent=run.run_id in self.resent)
        try:
            prediction = simulate(case)
        except PlannerError:
            return
        predicted = figures_in_columns(case, prediction)
        for metric, measured in run.metrics.items():
            bounds = prediction.uncertainty.factors(metric) if metric in predicted else None
            if bounds is None:
                continue
            error = log(predicted[metric] / measured)
            deviations = prediction.uncertainty.deviations(metric)
            yield Miss(name, run.gpu, run.run_id, scatter_of(one, metric), one.arrival, count, error,
                       error + log(bounds[0]), error + log(bounds[1]), deviations[error < 0])  # fmt: skip


def groups_of(observed: Sequence[Observed]) -> dict[str, list[int]]:
    """The runs of one GPU, model and source, where enough are left to predict."""
    found: dict[str, list[int]] = defaultdict(list)
    for number, one in enumerate(observed):
        found[" ".join((one.covariates["gpu"], one.covariates["shape"], one.source))].append(number)
    return {name: members for name, members in found.items() if len(members) > max(OWN_RUNS)}


_SHARED: list[Groups] = []


def _share(groups: Groups) -> None:
    _SHARED[:] = [groups]


def _misses(name: str) -> list[Miss]:
    return _SHARED[0].misses(name)


def rows(misses: Sequence[Miss]) -> Iterator[dict[str, str | float]]:
    """The table: a row for each metric and number of own runs."""
    for metric in sorted({miss.metric for miss in misses}):
        for count in OWN_RUNS:
            of = [miss for miss in misses if miss.metric == metric and miss.own == count]
            yield {
                "metric": metric,
                "own runs": count,
                "figures": len(of),
                "error": f"{median(abs(exp(m.error) - 1) for m in of):.1%}",
                "covered": f"{mean(m.lo <= 0 <= m.hi for m in of):.0%}",
                "width": f"{median(exp(m.hi - m.lo) for m in of):.2f}",
                "score": f"{mean(_score(m) for m in of):.3f}",
            }


def _score(miss: Miss) -> float:
    return miss.hi - miss.lo + 2 / (1 - LEVEL) * (max(miss.lo, 0.0) + max(-miss.hi, 0.0))


def to_markdown(table: Sequence[Mapping[str, str | float]]) -> str:
    """A table of Markdown."""
    head = list(table[0])
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(str(row[name]) for name in head)} |" for row in table)]) + "\n"


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--raw", type=Path, help="every figure, as JSON")
    asked = parser.parse_args()
    runs = {run.run_id: run for run in read_runs(asked.runs)}
    without, _ = leave_out_of(runs.values(), processes=2)
    members = groups_of(without.observed)
    _ = without.belief
    names = random.Random(SEED).sample(sorted(members), min(asked.groups, len(members)))
    groups = Groups(without, runs, resent(runs.values()), members)
    with ProcessPoolExecutor(2, get_context("fork"), initializer=_share, initargs=(groups,)) as pool:
        misses = []
        for found in pool.map(_misses, names):
            misses += found
            if asked.raw:
                asked.raw.write_text(json.dumps([asdict(miss) for miss in misses]))
    text = report(misses, names, len(members))
    print(text)
    if asked.write:
        asked.write.write_text(text)


def report(misses: Sequence[Miss], names: Sequence[str], known: int) -> str:
    """The tables, apart for the groups that ``OF_ITS_LOAD`` was chosen on and for the others; of ``known`` groups."""
    choosing = set(random.Random(CHOOSING_SEED).sample(sorted(names), len(names) // 2))
    chose = to_markdown(list(rows([miss for miss in misses if miss.group in choosing])))
    others = to_markdown(list(rows([miss for miss in misses if miss.group not in choosing])))
    day = datetime.datetime.now(datetime.UTC).date()
    return f"""# What own runs are worth

{len(names)} of {known} groups of one GPU, model and source, each left out of the fits: 1 and 3 of their runs calibrate,
up to {MOST_PREDICTED} others are predicted ({day}, `benchmarks/own_runs.py`).

The share of what a run teaches that holds for its own load alone (`OF_ITS_LOAD`) was chosen on half of the groups,
after a look at its candidates on 58 groups of both halves. So the first table is nearly, not wholly, of groups that
chose nothing.

## Groups that the share was not chosen on

{others}
## Groups that it was chosen on

{chose}"""


if __name__ == "__main__":
    main()
