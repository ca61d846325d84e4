"""How many runs ``planner tune`` needs: settings that were all measured are tuned as if none of them had been.

    python benchmarks/tune.py RUNS.csv [--forecasts FILE.json] [--write FILE.md]

Runs that share GPU, model, lengths, source and engine are one grid: layouts, precisions and batches. The fit that
predicts them saw no run of the same GPU and model. Then each order of runs is followed until the best measured setting
is within 3 % of the best of the grid::

    tune          what may gain most, by ``planner.planning.search.tuning``
    random        every order alike: the expected number, (settings + 1) / (settings within 3 % + 1)
    auto-tune     vLLM's benchmarks/auto_tune: one layout after the other (it takes one tensor-parallel size), within
                  it max_num_seqs ascending, then max_num_batched_tokens ascending
    grid          max_num_seqs ascending, within it each layout by its GPUs
    largest       the same from the largest batch down: what somebody tries who wants throughput

Questions: the most output tokens/s per GPU; and the same under a limit of the mean TPOT, for each limit that some
settings keep and some do not. ``--forecasts`` keeps the predictions, and reads them where the file exists.
"""

import argparse
import datetime
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import log
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from fit.leave_out import LEFT_OUT, LeaveOut, case_under, held_out, leave_out_of
from planner.errors import PlannerError
from planner.evidence.evaluation import figures_in_columns, resent, simulate
from planner.evidence.runs import MeasuredRun, read_runs
from planner.planning.search.tuning import SURE, WITHIN, Floats, Prospects

THROUGHPUT = "output_throughput"
TPOTS = ("mean_tpot_ms", "median_tpot_ms", "median_itl_ms")  #: the first that a run has stands for its TPOT
LIMITS_MS = (8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150)
LEAST_SETTINGS = 4


# --- predictions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """What the processes share."""

    without: LeaveOut
    runs: dict[str, MeasuredRun]
    resent: frozenset[str]
    pairs: dict[Any, list[int]]
    grids: dict[Any, list[int]]

    def forecast(self, name: Any) -> dict[str, Any]:
        """Each setting of one grid: measured and predicted figures, and how the latter are uncertain together."""
        observed = self.without.observed
        calibration = held_out(self.without, self.pairs[LEFT_OUT["pair"](observed[self.grids[name][0]])])
        settings, spreads, seen = [], [], set()
        for number in self.grids[name]:
            run = self.runs[observed[number].run_id]
            case = case_under(calibration, run, resent=run.run_id in self.resent)
            try:
                prediction = simulate(case)
                predicted = figures_in_columns(case, prediction)
            except PlannerError:
                continue
            tpot = next((key for key in TPOTS if key in run.metrics and key in predicted), None)
            setting = setting_of(run)
            if str(setting) in seen:
                continue
            seen.add(str(setting))
            keys = [THROUGHPUT] + ([tpot] if tpot else [])
            doubt = prediction.uncertainty
            spreads += [doubt.spread(key) for key in keys]
            figures = {
                key: {"measured": run.metrics[key], "predicted": predicted[key], "noise": doubt.noise(key)}
                for key in keys
            }
            settings.append({**setting, "figures": figures})
        covariance = [[one.covariance(other) for other in spreads] for one in spreads]
        return {"grid": list(map(str, name)), "settings": settings, "covariance": covariance}


def setting_of(run: MeasuredRun) -> dict[str, Any]:
    """What differs between the settings of a grid."""
    layout = (
        run.tensor_parallel_size * run.pipeline_parallel_size * run.data_parallel_size, run.tensor_parallel_size,
        run.pipeline_parallel_size, run.data_parallel_size, run.expert_parallel_size, run.weight_dtype, run.model,
    )  # fmt: skip
    batch = (run.max_num_seqs or run.max_concurrency or 0, run.max_concurrency or 0, run.max_num_batched_tokens or 0)
    return {"layout": layout, "batch": batch}


def read_table(path: Path) -> Table:
    """The runs, the fit to all of them, and the grids."""
    runs = {run.run_id: run for run in read_runs(path)}
    without, _ = leave_out_of((run for run in runs.values() if run.bench != "latency"), processes=2)
    pairs: dict[Any, list[int]] = defaultdict(list)
    grids: dict[Any, list[int]] = defaultdict(list)
    for number, one in enumerate(without.observed):
        run = runs[one.run_id]
        pairs[LEFT_OUT["pair"](one)].append(number)
        if run.bench != "serve" or THROUGHPUT not in run.metrics or run.arrival == "poisson" or run.suspect:
            continue
        lengths = (run.input_len or run.mean_input_len, run.output_len or run.mean_output_len, run.length_distribution)
        engine = (run.engine_build, run.engine_version, run.arrival, run.family)
        grids[run.gpu, one.covariates["shape"], *engine, *lengths].append(number)
    kept = {name: members for name, members in grids.items() if len(members) >= LEAST_SETTINGS}
    _ = without.belief  # once, before there are several processes
    return Table(without, runs, resent(runs.values()), dict(pairs), kept)


_SHARED: list[Table] = []


def _share(table: Table) -> None:
    _SHARED[:] = [table]


def _forecast(name: Any) -> dict[str, Any]:
    return _SHARED[0].forecast(name)


def forecasts(path: Path) -> list[dict[str, Any]]:
    """Of every grid."""
    table = read_table(path)
    with ProcessPoolExecutor(2, get_context("fork"), initializer=_share, initargs=(table,)) as pool:
        return list(pool.map(_forecast, sorted(table.grids, key=str)))


# --- questions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A grid, what is known of it, and what is true."""

    grid: int
    settings: Sequence[dict[str, Any]]
    prospects: Prospects
    measured: Sequence[tuple[float, ...]]  #: logarithms: the merit, and the margin to the limit if there is one

    @property
    def worths(self) -> Floats:
        """Tokens/s per GPU, of what breaks the limit 0."""
        found: Floats = np.array([np.exp(one[0]) * all(margin >= 0 for margin in one[1:]) for one in self.measured])
        return found

    def runs_of(self, order: Sequence[int]) -> int:
        """Runs in that order until one is within 3 % of the best."""
        enough = (1 - WITHIN) * self.worths.max()
        return next(count for count, setting in enumerate(order, 1) if self.worths[setting] >= enough)

    def tuned(self) -> tuple[int, int, float]:
        """Runs of ``tune`` until one is within 3 % of the best; until it stops; share of the best that it has then."""
        order: list[int] = []
        stopped = 0
        while len(order) < len(self.measured):
            known = self.prospects.standing({setting: self.measured[setting] for setting in order}, within=WITHIN)
            if order and known.known >= SURE and not stopped:
                stopped = len(order)
            assert known.next is not None
            order.append(known.next)
        stopped = stopped or len(order)
        return self.runs_of(order), stopped, float(self.worths[order[:stopped]].max() / self.worths.max())


def questions(found: Sequence[dict[str, Any]], *, limited: bool) -> Iterator[Question]:
    """Without a limit, or with each that some settings keep, at least two of them, and some do not."""
    for number, grid in enumerate(found):
        settings = [one for one in grid["settings"] if not limited or len(one["figures"]) == 2]
        if len(settings) < LEAST_SETTINGS:
            continue
        tpots = [list(one["figures"].values())[1]["measured"] for one in settings] if limited else []
        for limit_ms in LIMITS_MS if limited else (None,):
            if limit_ms is None or 2 <= sum(tpot <= limit_ms for tpot in tpots) < len(tpots):
                yield _question(number, grid, settings, limit_ms)


def _question(
    number: int, grid: dict[str, Any], settings: Sequence[dict[str, Any]], limit_ms: float | None
) -> Question:
    rows, signs, noise, predicted, measured = [], [], [], [], []
    row = 0
    for setting in grid["settings"]:
        figures = list(setting["figures"].values())
        if any(setting is one for one in settings):
            for place, sign in ((0, 1.0), (1, -1.0)) if limit_ms else ((0, 1.0),):
                rows.append(row + place)
                signs.append(sign)
                noise.append(figures[place]["noise"])
            predicted.append(_logarithms(setting, figures, "predicted", limit_ms))
            measured.append(_logarithms(setting, figures, "measured", limit_ms))
        row += len(figures)
    covariance = np.array(grid["covariance"])[np.ix_(rows, rows)] * np.outer(signs, signs) + np.diag(np.square(noise))
    return Question(number, settings, Prospects(np.array(predicted), covariance), measured)


def _logarithms(
    setting: dict[str, Any], figures: Sequence[dict[str, float]], key: str, limit_ms: float | None
) -> tuple[float, ...]:
    merit = log(figures[0][key] / setting["layout"][0])
    return (merit, log(limit_ms / figures[1][key])) if limit_ms else (merit,)


# --- answers -------------------------------------------------------------------------------------------------------


def _by(*keys: str, largest: bool = False) -> Callable[[Question], float]:
    def runs(question: Question) -> float:
        settings = question.settings
        order = sorted(range(len(settings)), key=lambda n: [settings[n][key] for key in keys], reverse=largest)
        return question.runs_of(order)

    return runs


def _random(question: Question) -> float:
    good = int((question.worths >= (1 - WITHIN) * question.worths.max()).sum())
    return (len(question.worths) + 1) / (good + 1)


OTHERS: dict[str, Callable[[Question], float]] = {
    "random": _random,
    "auto-tune": _by("layout", "batch"),
    "grid": _by("batch", "layout"),
    "largest": _by("batch", "layout", largest=True),
}


def lines(asked: Sequence[Question]) -> Iterator[str]:
    """Runs until within 3 %, by order."""
    tuned = [question.tuned() for question in asked]
    needed: dict[str, list[float]] = {"tune": [first for first, _, _ in tuned]}
    needed |= {name: [order(question) for question in asked] for name, order in OTHERS.items()}
    yield "| order | median | mean | 90 % of cases | most |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, runs in needed.items():
        yield f"| {name} | {median(runs):.1f} | {mean(runs):.2f} | {np.quantile(runs, 0.9):.1f} | {max(runs):.1f} |"
    stops, shares = [stop for _, stop, _ in tuned], [share for _, _, share in tuned]
    yield ""
    yield (
        f"It stops after {median(stops):.0f} run{'s' if median(stops) != 1 else ''} (median; mean {mean(stops):.2f}, "
        f"most {max(stops)}) and is then "
        f"within 3 % in {mean(share >= 1 - WITHIN for share in shares):.1%} of the cases ({SURE:.0%} promised), "
        f"{1 - mean(shares):.2%} behind on average, {1 - min(shares):.0%} at worst."
    )


def _one_layout(found: Sequence[dict[str, Any]]) -> int:
    """Grids whose settings differ in nothing but batch and token budget."""
    return sum(len({str(setting["layout"]) for setting in grid["settings"]}) == 1 for grid in found)


def report(found: Sequence[dict[str, Any]]) -> str:
    """The tables."""
    text = [
        "# Runs that tuning takes\n",
        f"{datetime.date.today()}; `python benchmarks/tune.py hardware/calibration/runs.csv`: runs until the best "
        "measured setting is within 3 % of the best of its grid, each predicted by a fit that saw no run of that GPU "
        "and model. Goal: a median of 3. No constant of the rule was chosen on these grids.\n",
        f"An easy question: in {_one_layout(found)} of {len(found)} grids the settings are batches of one layout and "
        "precision, and more throughput mostly means the largest of them.\n",
    ]
    for title, limited in (("Most output tokens/s per GPU", False), ("The same under a limit of the TPOT", True)):
        asked = list(questions(found, limited=limited))
        sizes = [len(question.measured) for question in asked]
        grids = len({question.grid for question in asked})
        text.append(f"## {title}\n")
        text.append(
            f"{len(asked)} cases of {grids} grids, {min(sizes)} to {max(sizes)} settings, median {median(sizes):.0f}.\n"
        )
        text += [*lines(asked), ""]
    return "\n".join(text)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--forecasts", type=Path, metavar="FILE.json")
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    asked = parser.parse_args()
    kept: Path | None = asked.forecasts
    found = json.loads(kept.read_text()) if kept and kept.is_file() else forecasts(asked.runs)
    if kept and not kept.is_file():
        kept.write_text(json.dumps(found))
    text = report(found)
    print(text)
    if asked.write:
        asked.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
