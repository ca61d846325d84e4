"""Calibration by a user's own runs, and whether it predicts better than the fits that we ship.

Runs of earlier calibrations in the file count too; a new run replaces an earlier one of the same name."""

import datetime
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, log
from operator import attrgetter
from pathlib import Path
from statistics import mean

import numpy as np

from planner import progress
from planner.engine import parse_version
from planner.errors import InputError
from planner.evidence.evaluation import Evaluated, PredictedFigure, case_of, evaluate, evaluate_run
from planner.evidence.fitting import DETERMINED, MEANINGS, Factor, OwnFit, effects_of, fit_own, load_structure
from planner.evidence.folder import MeasuredPlan
from planner.evidence.results import EXACT
from planner.evidence.runs import MEASUREMENTS, MeasuredRun, runs_of
from planner.evidence.sources import Sources
from planner.hardware import load_profile
from planner.memory import FittedConstant
from planner.model import resolve_model
from planner.planning import LEVEL, SHIPPED, Local, Serving, launched_line, read_local, read_start, save
from planner.timing import LocalFits, base_digest, load_calibration
from planner.units import counted

LEAST_LEFT_OUT, MOST_FOLDS = 3, 20  #: runs from which on some are left out, and most parts that are left out
#: Measured and predicted speeds that differ by a larger factor have different units, such as s and ms. A machine
#: without measurements may well be off by a factor of ten.
IMPLAUSIBLE = 200
#: Metrics that only a wrong unit puts that far off. A TTFT can be: of a queue that the prediction does not see.
SPEEDS = "output_throughput", "total_token_throughput", "avg_latency_s", "mean_tpot_ms", "median_tpot_ms"


@dataclass(frozen=True)
class CalibrationOutcome:
    """Outcome of a calibration. ``reason``: why it is discarded; None: it is kept."""

    path: Path  #: of the calibration file
    base: str  #: what the factors multiply
    runs: tuple[MeasuredRun, ...]  #: of this calibration and of earlier ones
    new_runs: int
    factors: tuple[Factor, ...]
    before: tuple[Evaluated, ...]  #: predicted with the file that existed, else as shipped
    after: tuple[Evaluated, ...]
    left_out: tuple[Evaluated, ...]  #: each run predicted by a fit to the others; empty where there are too few
    refused: tuple[tuple[MeasuredRun, str], ...]  #: runs that cannot be replayed, with the reason
    memory: tuple[FittedConstant, ...]  #: constants from start-up logs
    efficiency: LocalFits
    notes: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def kept(self) -> bool:
        return self.reason is None

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that were measured, in the order of the benchmark."""
        return tuple(name for name in MEASUREMENTS if any(name in one.figures for one in self.after))

    def save(self) -> Path:
        """Write the file: replace its factors and runs, add to its constants of memory."""
        return save(self.memory, self.efficiency, self.path)


def calibrate(sources: Sources, path: Path, *, fresh: bool = False) -> CalibrationOutcome:
    """Fit the factors of this machine to ``sources`` and, unless ``fresh``, to the runs of ``path``."""
    there = read_local(path) if path.is_file() and not fresh else SHIPPED
    earlier = there.efficiency or LocalFits(base="", fitted_on="")
    old = runs_of(earlier.runs, str(path))
    usable, unusable, remarks = _usable([run for run in sources.runs if not run.suspect])
    new = [one.run for one in usable]
    runs = list({run.run_id: run for run in (*old, *new)}.values())
    if not runs:
        raise InputError("there is no run to calibrate on", hint="give a table of runs, a result or a plan's folder")
    memory = tuple(fit for folder in sources.folders for fit in _memory(folder))
    progress.say(f"fitting {len(runs):,} runs")
    fits, refused = _fit(runs)
    factors = tuple(factor for fit in fits for factor in fit.factors(earlier.effects))
    if all(np.linalg.eigvalsh(fit.fitted.covariance)[0] >= DETERMINED**2 for fit in fits):  # not even a sum of them
        cause = f"the runs determine none of the factors ({_meanings(factors)}): nothing was changed"
        raise InputError(cause, hint="add runs of other loads, or more metrics of these runs")
    failed, known = {run.run_id for run, _ in refused}, {run.run_id for run in old}
    used = [run for run in runs if run.run_id not in failed]
    names = {run.run_id for run in used}
    left_out = _left_out(used, fits)
    fitted_on = f"{counted(len(used), 'run')}, {datetime.datetime.now(datetime.UTC).date()}"
    records = tuple(run.record() for run in runs)
    efficiency = LocalFits(base=base_digest(), fitted_on=fitted_on, effects=effects_of(fits), runs=records)
    shipped = tuple(usable if used == new else evaluate(used))
    before = shipped
    if there.efficiency and not there.is_stale:
        before = tuple(evaluate(used, Local(path, efficiency=there.efficiency)))
    answer = CalibrationOutcome(
        path=path, base=load_calibration().fitted_on, runs=tuple(used), new_runs=len(names - known),
        factors=factors, before=before, after=tuple(evaluate(used, Local(path, efficiency=efficiency))),
        left_out=left_out, refused=(*unusable, *refused), memory=memory, efficiency=efficiency,
        notes=(*remarks, *_notes(used, len(names - {run.run_id for run in new}), factors, left_out)),
    )  # fmt: skip
    return replace(answer, reason=_reason(shipped, answer))


_SEE_EVALUATE = "planner evaluate gives the reason for each run"


def _usable(runs: Sequence[MeasuredRun]) -> tuple[list[Evaluated], list[tuple[MeasuredRun, str]], list[str]]:
    """Return runs that can be replayed, the others with the reason, and notes; refuses a run in another unit."""
    usable, unusable, remarks = [], [], []
    for one in evaluate(runs):
        if one.refused:
            unusable.append((one.run, one.refused))
            continue
        if _received_together(one):
            kept = {name: of for name, of in one.run.metrics.items() if not re.search("_(ttft|tpot|itl)_", name)}
            figures = {name: figure for name, figure in one.figures.items() if name in kept}
            one = replace(one, run=replace(one.run, metrics=kept), figures=figures)
            remarks.append(f"{one.run.run_id}: the client read many tokens at once, so TTFT, TPOT and ITL are left out")
        usable.append(one)
        for name in SPEEDS:
            figure = one.figures.get(name)
            if figure and not 1 / IMPLAUSIBLE < figure.measured / figure.predicted < IMPLAUSIBLE:
                found = f"{figure.measured:g}, predicted {figure.predicted:.4g}"
                cause = f"{one.run.run_id}: {name} is {found}: no machine is {IMPLAUSIBLE} times faster or slower"
                raise InputError(cause, hint="check its unit, and that GPU, model and lengths are those of the run")
    if unusable and not usable:
        raise InputError(f"nothing to calibrate on: {unusable[0][1]}", hint=_SEE_EVALUATE)
    return usable, unusable, remarks


def _received_together(one: Evaluated) -> bool:
    """True if the client was too slow to read each token: TPOT is almost zero, and the sum still is the E2EL."""
    metrics, output_len = one.run.metrics, one.run.mean_output_len or one.run.output_len
    ttft, tpot, e2el = (metrics.get(f"mean_{name}_ms") for name in ("ttft", "tpot", "e2el"))
    if not (ttft and tpot and e2el and output_len):
        return False
    adds_up = abs((ttft + (output_len - 1) * tpot) / e2el - 1) < EXACT
    figures = (one.figures.get(f"{statistic}_tpot_ms") for statistic in ("mean", "median"))
    return adds_up and any(f.measured * IMPLAUSIBLE < f.predicted for f in figures if f)


def _fit(runs: Sequence[MeasuredRun]) -> tuple[list[OwnFit], list[tuple[MeasuredRun, str]]]:
    fits, refused = fit_own(runs, load_calibration())
    silent = "no metric that a fit uses"
    if not fits:
        raise InputError(f"nothing to calibrate on: {refused[0][1] if refused else silent}", hint=_SEE_EVALUATE)
    used = {one.run_id for fit in fits for one in fit.design.observed} | {run.run_id for run, _ in refused}
    return fits, [*refused, *((run, silent) for run in runs if run.run_id not in used)]


def _left_out(runs: Sequence[MeasuredRun], fits: Iterable[OwnFit]) -> tuple[Evaluated, ...]:
    if len(runs) < LEAST_LEFT_OUT:
        return ()
    folds = min(len(runs), MOST_FOLDS)
    fold = {run.run_id: place % folds for place, run in enumerate(runs)}
    predicted: dict[str, Evaluated] = {}
    for number in progress.each(range(folds), lambda _: "predicting the runs that a fit to the others did not see"):
        used = [(fit, np.array([fold[one.run_id] != number for one in fit.design.observed])) for fit in fits]
        effects = effects_of(fit.to_some(seen) for fit, seen in used if seen.any())
        local = Local(Path("calibration"), efficiency=LocalFits(base=base_digest(), fitted_on="", effects=effects))
        predicted |= {run.run_id: evaluate_run(run, local) for run in runs if fold[run.run_id] == number}
    return tuple(predicted[run.run_id] for run in runs)


def _memory(folder: MeasuredPlan) -> tuple[FittedConstant, ...]:
    if folder.startup is None:
        return ()
    plan = folder.plan
    model, profile = resolve_model(plan.model, network=False).model, load_profile(plan.gpu)
    version = parse_version(plan.engine_version)
    return read_start(folder.startup, Serving.of(model, profile, launched_line(plan).args, version)).learned


def figures_of(evaluated: Iterable[Evaluated], metric: str | None = None) -> list[PredictedFigure]:
    """Return all figures of a metric, by default of all metrics that fits use."""
    wanted = load_structure()["sigma"] if metric is None else (metric,)
    return [figure for one in evaluated for name, figure in one.figures.items() if name in wanted]


def mean_error(evaluated: Iterable[Evaluated]) -> float:
    """Mean over runs of the mean absolute logarithm of predicted / measured, over the metrics that fits use."""
    by_run: dict[str, list[float]] = defaultdict(list)
    for one in evaluated:
        used = figures_of((one,)) or figures_of((one,), "total_token_throughput")
        by_run[one.run.run_id] += [abs(log(f.predicted / f.measured)) for f in used]
    return mean(mean(errors) for errors in by_run.values() if errors)


def mean_width(evaluated: Iterable[Evaluated]) -> float:
    """Return the geometric mean of highest / lowest of all 90 % intervals."""
    return exp(mean(_widths(evaluated) or [0.0]))


def _widths(evaluated: Iterable[Evaluated]) -> list[float]:
    return [log(f.hi / f.lo) for f in figures_of(evaluated) if f.lo and f.hi]


def _score(evaluated: Sequence[Evaluated]) -> float:
    """Mean interval score of the logarithms (Gneiting and Raftery, JASA 102, 2007), less is better.

    It is the width, and 2 / (1 - 0.9) times how far a measurement lies outside; without an interval, the error."""
    missed = [max(log(f.lo / f.measured), log(f.measured / f.hi), 0.0) for f in figures_of(evaluated) if f.lo and f.hi]
    return mean(_widths(evaluated)) + 2 / (1 - LEVEL) * mean(missed) if missed else mean_error(evaluated)


def _reason(shipped: Sequence[Evaluated], answer: CalibrationOutcome) -> str | None:
    before, after = _score(shipped), _score(answer.left_out or answer.after)
    if after < before:
        return None
    of_which = " of runs that the fit did not see" if answer.left_out else ""
    scores = f"interval score {after:.3f} with it, {before:.3f} without; less is better"
    return f"it makes predictions{of_which} worse ({scores})" + (": add more runs" if answer.left_out else "")


def _meanings(factors: Iterable[Factor]) -> str:
    return "; ".join(dict.fromkeys(MEANINGS[factor.target] for factor in factors))


def _notes(
    used: Sequence[MeasuredRun], again: int, factors: Sequence[Factor], left_out: Sequence[Evaluated]
) -> Iterator[str]:
    if again:
        yield f"{again} of the {len(used)} runs are from earlier calibrations; --fresh leaves them out"
    known = {factor.target for factor in factors if factor.determined}
    if unknown := _meanings(factor for factor in factors if factor.target not in known):
        yield f"these runs do not determine: {unknown}; those factors stay close to 1"
    if not left_out:
        yield "with fewer than three runs, the error after is of the runs that the fit saw: none is left out"
    settings = [case_of(run).deployment.covariates for run in used]
    if len({tuple(one[name] for name in ("gpu", "shape", "weights", "tp")) for one in settings}) == 1:
        yield "one setting was measured: other models on the machine may differ"
    lengths = ("input_len", "mean_input_len", "output_len", "mean_output_len")
    load = attrgetter(*lengths, "arrival", "max_concurrency", "request_rate")
    if len({load(run) for run in used if run.bench == "serve"}) == 1:
        yield "one load was measured: the TTFT of other loads may be far off; add a run with --max-concurrency 1"
