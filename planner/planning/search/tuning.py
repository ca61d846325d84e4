"""Tuning of a machine: candidate settings, the one to measure next, and the probability that the best is known.

A setting is worth its merit, nothing where it misses a target as measured. The logarithms of merits and of margins
(limit over latency) of all settings are one normal distribution. Measurements y condition the settings x that are
open::

    x | y  ~  normal(mean_x + C_xy C_yy^-1 (y - mean_y),  C_xx - C_xy C_yy^-1 C_yx)

Of draws from it, with b the best measured worth::

    gain of a setting    mean of max(worth - b, 0)     expected improvement: Jones et al., "Efficient global
                                                       optimization", Journal of Global Optimization 13, 1998
    best is known        share of the draws in which no open setting is worth more than b (1 + within)"""

import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, inf, log
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from planner.engine import SETTINGS, flag_of, tagged
from planner.errors import InputError, os_errors
from planner.hardware import load_profile
from planner.model import resolve_model
from planner.planning import defaults
from planner.planning.calibration import Local
from planner.planning.defaults import Goal
from planner.planning.deployment import Deployment
from planner.planning.plan import Plan, PlanFile, PlannedTarget
from planner.planning.predict import Prediction
from planner.planning.search.search import Search, with_figures
from planner.planning.search.space import Candidate, Merit, Objective, Ranking, Space
from planner.planning.serving import Serving, launched_line, redeploy
from planner.planning.uncertainty import Forecast
from planner.resources import read_given, write_then_rename
from planner.units import MS
from planner.workload import Load

Floats = NDArray[np.float64]
DRAWS = 4096
SEED = 0
LEAST_VARIANCE = 1e-6  #: added to the variance of what was measured, so that nearly equal figures stay separable


@dataclass(frozen=True, eq=False)
class Prospects:
    """The logarithms of the merit and of the margins (limit / latency) of each setting."""

    mean: Floats  #: (settings, 1 + targets): the merit first
    covariance: Floats  #: (settings x (1 + targets)) twice

    @classmethod
    def of(cls, settings: Sequence[Sequence[Forecast]]) -> "Prospects":
        each = [one for setting in settings for one in setting]
        covariance = np.diag([(one.power * one.noise) ** 2 for one in each])
        for row, one in enumerate(each):
            for column, other in enumerate(each[: row + 1]):
                if one.spread is not None and other.spread is not None:
                    shared = one.spread.covariance(other.spread) * one.power * other.power
                    covariance[row, column] += shared
                    covariance[column, row] += shared * (row != column)
        return cls(np.array([[log(one.value) for one in setting] for setting in settings]), covariance)

    def standing(
        self, measured: Mapping[int, Sequence[float]], out: Collection[int] = (), *, within: float = 0.0
    ) -> "Standing":
        """After ``measured``, the logarithms by setting, where the settings ``out`` do not run.

        ``within``: share by which another setting has to be better to count."""

        def worth(logarithms: Floats) -> Floats:
            """exp(merit) where no margin is negative, else 0; (..., 1 + targets) to (...)."""
            return np.asarray(np.exp(logarithms[..., 0]) * (logarithms[..., 1:] >= 0).all(axis=-1))

        worths = {setting: float(worth(np.array(values))) for setting, values in measured.items()}
        best = max((setting for setting in worths if worths[setting] > 0), key=worths.__getitem__, default=None)
        least = worths[best] if best is not None else 0.0
        still = [number for number in range(len(self.mean)) if number not in measured and number not in out]
        if not still:
            return Standing(best, {}, 1.0)
        drawn = worth(self._draws(still, measured))  # (draws, open settings)
        gains = np.maximum(drawn - least, 0.0).mean(axis=0) / (least or 1.0)
        known = float((drawn <= least * (1 + within)).all(axis=1).mean())
        return Standing(best, dict(zip(still, gains.tolist(), strict=True)), known)

    def _draws(self, still: Sequence[int], measured: Mapping[int, Sequence[float]]) -> Floats:
        """Draws of the logarithms of the open settings, (draws, settings, 1 + targets)."""
        rows = np.arange(self.mean.size).reshape(self.mean.shape)
        mean, x, y = self.mean.ravel(), rows[still].ravel(), rows[list(measured)].ravel()
        expected, left = mean[x], self.covariance[np.ix_(x, x)]
        if len(y):
            told = self.covariance[np.ix_(y, y)] + LEAST_VARIANCE * np.eye(len(y))
            weights = np.linalg.solve(told, self.covariance[np.ix_(y, x)]).T
            off = np.concatenate([np.asarray(values) for values in measured.values()]) - mean[y]
            expected, left = expected + weights @ off, left - weights @ self.covariance[np.ix_(y, x)]
        variance, directions = np.linalg.eigh(left)
        root = directions * np.sqrt(np.maximum(variance, 0.0))
        normal = np.random.default_rng(SEED).standard_normal((DRAWS, len(x)))
        drawn: Floats = (expected + normal @ root.T).reshape(DRAWS, len(still), -1)
        return drawn


@dataclass(frozen=True)
class Standing:
    """The best setting and the expected gains after some runs."""

    best: int | None  #: of the measured settings; None: none of them meets the targets
    gains: Mapping[int, float]  #: of each open setting, over the worth of the best
    known: float  #: probability that no open setting is better

    @property
    def next(self) -> int | None:
        """The setting that gains most; None: none is open."""
        return max(self.gains, key=self.gains.__getitem__, default=None)


SCHEMA_VERSION = 1
WITHIN = 0.03  #: another setting has to be better by this share to count: two runs of one setting differ by as much
SURE = 0.95  #: probability with which the best has to be known
MOST_LOG = 100.0  #: bound of a logarithm, and of its variance: no machine is e^100 times as fast as another


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TunedRun(_Record):
    """A setting's run: its merit and margins, or why it does not run."""

    setting: int
    merit: float | None = None  #: its logarithm as measured; None: the setting does not run
    margins: tuple[float, ...] = ()  #: logarithm of limit over measured, of each target
    reason: str = ""  #: why it does not
    seconds: float = 0.0  #: start and end of the server included
    tried: bool = True  #: else another run says that it does not run


class TuningState(_Record):
    """The settings, what is known of them, and the runs. Settings are numbered; the plan that is tuned is 0."""

    schema_version: int = SCHEMA_VERSION
    planner_version: str
    digest: str  #: of the plan that is tuned
    goal: Goal
    per_user: float = 1.0  #: powers of ``Merit``
    per_gpu: float = 1.0
    folders: tuple[str, ...]  #: of each setting's plan, below that of the plan that is tuned
    targets: tuple[PlannedTarget, ...] = ()  #: that a setting has to keep as measured
    mean: tuple[float, ...]  #: of the logarithms of merit and margins, setting by setting, as predicted
    covariance: tuple[tuple[float, ...], ...]
    runs: tuple[TunedRun, ...] = ()
    running: int | None = None  #: the setting whose server may be up
    process: int | None = None  #: of the script that measures it

    @classmethod
    def begun(
        cls, planner_version: str, digest: str, merit: Merit, prospects: Sequence[Sequence[Forecast]],
        folders: Sequence[str], targets: Sequence[PlannedTarget] = (),
    ) -> "TuningState":  # fmt: skip
        """Before any run. ``prospects``: merit and margins of each setting, whose plans lie in ``folders``."""
        known = Prospects.of(prospects)
        return cls(
            planner_version=planner_version, digest=digest, goal=merit.goal, per_user=merit.per_user,
            per_gpu=merit.per_gpu, folders=tuple(folders), targets=tuple(targets),
            mean=tuple(known.mean.ravel().tolist()), covariance=tuple(map(tuple, known.covariance.tolist())),
        )  # fmt: skip

    @property
    def merit(self) -> Merit:
        return Merit(self.goal, self.per_user, self.per_gpu)

    @property
    def measured(self) -> Mapping[int, float]:
        return {run.setting: run.merit for run in self.runs if run.merit is not None}

    @property
    def margins(self) -> Mapping[int, tuple[float, ...]]:
        return {run.setting: run.margins for run in self.runs if run.merit is not None}

    @property
    def out(self) -> Mapping[int, str]:
        return {run.setting: run.reason for run in self.runs if run.merit is None}

    @property
    def tried(self) -> tuple[TunedRun, ...]:
        return tuple(run for run in self.runs if run.tried)

    def has_spent(self, runs: int | None, minutes: float | None) -> bool:
        """True if all runs together took as many ``runs`` or ``minutes``. None: no limit."""
        spent_s = sum(run.seconds for run in self.runs)
        return (runs is not None and len(self.tried) >= runs) or (minutes is not None and spent_s >= 60 * minutes)

    @cached_property
    def standing(self) -> Standing:
        prospects = Prospects(np.array(self.mean).reshape(len(self.folders), -1), np.array(self.covariance))
        measured = {setting: (merit, *self.margins[setting]) for setting, merit in self.measured.items()}
        return prospects.standing(measured, self.out, within=WITHIN)

    @property
    def next(self) -> int | None:
        """The setting to measure: one that was running, the plan itself, then what may gain most; None at the end."""
        if self.running is not None or not self.runs:
            return self.running or 0
        return self.standing.next if self.standing.known < SURE else None

    def with_(self, **changes: object) -> Self:
        return type(self).model_validate({**self.model_dump(), **changes})

    def save(self, path: Path) -> None:
        """Write the file whole. Raises InputError where that is not possible."""
        with os_errors(f"{path} cannot be written", hint="free some space there"):
            write_then_rename(path, (self.model_dump_json(indent=1) + "\n").encode())


def read_state(path: Path, digest: str) -> TuningState | None:
    """The state of the tuning of the plan ``digest``; None where it has not begun.

    Raises InputError for a file that is broken, or of another plan."""
    again = "remove that folder to tune from the start; results in it are then measured again"
    try:
        state = TuningState.model_validate_json(read_given(path))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, ValueError) as error:
        raise InputError(f"{path} is not the state of a tuning", hint=again) from error
    targets, runs, known = len(state.targets), [run for run in state.runs if run.merit is not None], state.covariance
    sizes = {len(state.folders) * (1 + targets), len(state.mean), len(known), *map(len, known)}
    numbers = [*(run.setting for run in state.runs), state.running or 0]
    judged = all(len(run.margins) == targets for run in runs)
    if len(sizes) != 1 or not judged or not all(0 <= number < len(state.folders) for number in numbers):
        raise InputError(f"{path} is not the state of a tuning: its parts do not fit", hint=again)
    logs = [*state.mean, *(log for run in runs for log in (run.merit or 0.0, *run.margins))]
    if not np.allclose(known, np.transpose(known)) or max(np.abs(known).max(), *map(abs, logs)) > MOST_LOG:
        raise InputError(f"{path} is not the state of a tuning: its numbers are of no machine", hint=again)
    if state.schema_version != SCHEMA_VERSION or state.digest != digest:
        raise InputError(f"{path} is of another plan, {state.digest}, or another planner", hint=again)
    return state


#: Settings that a search chooses, so that they are open again unless the plan's command gave them.
OPEN: Mapping[str, Any] = {name: SETTINGS[name].default for name in tagged("searched")}
LEAST_ODDS = 0.01  #: probability of being better than the best prediction, below which a setting is not worth a run
MOST_SETTINGS, MOST_PER_ENGINE = 24, 6  #: settings of all engines together, and of one checkpoint, layout and KV dtype


class TunedSetting(NamedTuple):
    """One setting: the plan that measures it, and what is known of its merit and of its margin to each target."""

    plan: Plan
    prospects: tuple[Forecast, ...]


def search_again(file: PlanFile, local: Local) -> Search:
    """Return the search that made the plan of ``file``, without its targets: they are measured.

    Raises InputError for a plan of a recorded load, and for targets that its benchmark does not measure."""
    plan, words, service, sent = file.plan, shlex.split(file.command), file.plan.service, file.plan.workload
    other = "validate this plan: planner validate DIR; or plan for --request-rate and lengths"
    named = ("mean", "median", *(f"p{percentile}" for percentile in defaults.PERCENTILES))
    unknown = next((one.metric for one in plan.targets if one.metric.split("_")[0] not in named), None)
    if service and plan.classes:
        raise InputError("the plan is for several classes of requests, which tune does not distinguish", hint=other)
    if service and (service.trace is not None or service.prefix_cache_share is not None):
        cause = "the plan is for requests whose prompts are known: its benchmark sends random ones, so tune cannot tell"
        raise InputError(f"{cause} which settings meet its targets", hint=other)
    if unknown:
        hint = f"plan again with --percentile {', '.join(map(str, defaults.PERCENTILES))} or mean"
        raise InputError(f"the benchmark does not measure {unknown}, which the plan has a target for", hint=hint)

    def given(name: str) -> bool:
        return any(word.partition("=")[0] == flag_of(name) for word in words)

    profile = load_profile(plan.gpu).with_network(plan.network_gb_per_s)
    opened = {name: unset for name, unset in OPEN.items() if not given(name)}
    args, version = replace(launched_line(plan).args, **opened), redeploy(plan, local).config.version
    model = resolve_model(plan.model if plan.model.startswith("/") else plan.requested_model)
    serving = Serving.of(model, profile, args, version, local=local)
    fixed = service is None and (given("max_concurrency") or file.goal == "min-latency")
    load = replace(sent.sent, request_rate=inf, max_concurrency=sent.max_concurrency if fixed else None)
    return Search(
        Space((serving,), gpus_per_node=max(plan.gpus_per_node // profile.parts, 1)),
        Objective(file.goal, load, num_prompts=sent.num_prompts if given("num_prompts") else None),
    )


def tuned_settings(file: PlanFile, local: Local) -> tuple[Merit, list[TunedSetting]]:
    """The plan of ``file`` first, then every other setting that may be better, and what they are judged by."""
    search, rankings = search_again(file, local), list[Ranking]()
    asked = search.space.args.max_num_batched_tokens
    for budget in (asked, *(defaults.TOKEN_BUDGETS if asked is None else ())):
        servings = tuple(serving.changed(max_num_batched_tokens=budget) for serving in search.space.servings)
        (ranking,) = replace(search, space=replace(search.space, servings=servings)).run()
        own = tuple(one.searched or one for one in ranking.candidates)  # at their own batch
        rankings.append(replace(ranking, candidates=own))
    merit = Merit.among(rankings[0].candidates, file.goal)
    planned = _replayed(redeploy(file.plan, local), file.plan.workload.sent)
    found = [_setting(file.plan, merit, planned, file.plan.targets)]
    if file.plan.service is not None:
        return merit, found + _under_load(search, file.plan, merit, rankings)
    for ranking, candidate in _promising(search, merit, rankings):
        if len(found) == MOST_SETTINGS:
            break
        one = with_figures(search.objective, candidate)  # with its own benchmark
        assert one.prediction is not None
        among = tuple(one if other is candidate else other for other in ranking.candidates)
        plan = search.plan(replace(ranking, candidates=among), one, load=one.prediction.load)
        if not _is_planned(candidate, file.plan):
            found.append(_setting(plan, merit, one.prediction))
    return merit, found


def _replayed(deployment: Deployment, sent: Load) -> Prediction:
    return Prediction.of(deployment, sent, percentiles=defaults.PERCENTILES)


def _promising(search: Search, merit: Merit, rankings: Iterable[Ranking]) -> Iterator[tuple[Ranking, Candidate]]:
    """The settings with some chance against the best prediction, the likeliest first."""
    pairs = {candidate.config: (ranking, candidate) for ranking in rankings for candidate in ranking.candidates}
    best = max((candidate for _, candidate in pairs.values()), key=merit.of_candidate, default=None)
    if best is None:
        return
    odds = {config: merit.odds(search.objective.load, candidate, best) for config, (_, candidate) in pairs.items()}
    of_engine: Counter[object] = Counter()
    for config in sorted(odds, key=lambda config: -odds[config]):
        engine = pairs[config][1].engine
        if odds[config] >= LEAST_ODDS and of_engine[engine] < MOST_PER_ENGINE:
            of_engine[engine] += 1
            yield pairs[config]


def _under_load(search: Search, plan: Plan, merit: Merit, rankings: Iterable[Ranking]) -> list[TunedSetting]:
    """Settings that may be the best under the load of ``plan`` and its targets, most expected of them first.

    Of each engine with each token budget the largest batch, and that of the plan."""
    sent = plan.workload.sent
    tried: dict[tuple[object, int], list[tuple[Ranking, Candidate]]] = defaultdict(list)
    for ranking in rankings:
        for candidate in ranking.candidates:
            tried[candidate.engine, candidate.config.max_num_batched_tokens].append((ranking, candidate))
    settings: list[tuple[object, TunedSetting]] = []
    for (engine, _), pairs in tried.items():
        batches = {max(candidate.config.max_num_seqs for _, candidate in pairs), plan.max_num_seqs}
        for ranking, candidate in pairs:
            if candidate.config.max_num_seqs in batches and not _is_planned(candidate, plan):
                prediction = _replayed(candidate.deployment, sent)
                made = search.plan(ranking, replace(candidate, prediction=None), load=sent)
                settings.append((engine, _setting(made, merit, prediction, plan.targets)))
    worth = Prospects.of([one.prospects for _, one in settings]).standing({}).gains if settings else {}
    of_engine, kept = Counter[object](), list[TunedSetting]()
    for number in sorted(worth, key=lambda number: -worth[number]):
        engine, setting = settings[number]
        if worth[number] > 0 and of_engine[engine] < MOST_PER_ENGINE and len(kept) < MOST_SETTINGS - 1:
            of_engine[engine] += 1
            kept.append(setting)
    return kept


def _is_planned(candidate: Candidate, plan: Plan) -> bool:
    line = plan.benchmark_line or plan
    planned = {name: getattr(plan, name) for name in candidate.config.choice} | {"max_num_seqs": line.max_num_seqs}
    return candidate.config.choice == planned


def _setting(plan: Plan, merit: Merit, prediction: Prediction, targets: Iterable[PlannedTarget] = ()) -> TunedSetting:
    doubt, result = prediction.uncertainty, prediction.result
    queues = plan.workload.max_concurrency is None and merit.goal == "balanced"  # so E2EL decides
    figure = ("mean_e2el_ms", -merit.per_user) if queues else merit.figure
    own = Forecast.of(exp(merit.of({**prediction.figures, **prediction.rates})), doubt, *figure)
    margins = (Forecast.of(one.limit_ms / result[one.metric], doubt, one.metric, -1.0) for one in targets)
    return TunedSetting(plan, (own, *margins))


def measured_merit(
    merit: Merit, plan: Plan, result: Mapping[str, Any], targets: Iterable[PlannedTarget] = ()
) -> tuple[float, ...]:
    """The logarithm of the merit of a measured plan, from its benchmark's result, and of its margin to each target.

    In an open loop as many users are there as requests are in flight: their rate x how long one takes (Little)."""
    rate = float(result["output_throughput"])
    users = plan.workload.max_concurrency or result["request_throughput"] * result["mean_e2el_ms"] * MS
    figures = {**result, "output_throughput_per_gpu": rate / plan.num_gpus, "output_throughput_per_user": rate / users}
    return merit.of(figures), *(log(one.limit_ms / result[one.metric]) for one in targets)


def merit_words(merit: Merit, logarithm: float) -> str:
    value = exp(logarithm)
    if merit.goal == "min-latency":
        return f"{1 / value:,.0f} ms mean E2EL"
    return f"{value:,.0f} tokens/s per GPU" if merit.goal == "max-throughput" else f"a balance of {value:,.4g}"


def broken_words(targets: Iterable[PlannedTarget], margins: Iterable[float]) -> str:
    """The targets that a measured setting breaks; empty where it keeps all."""
    pairs = zip(targets, margins, strict=True)
    broken = [f"{one.slo} by {exp(-margin) - 1:.0%}" for one, margin in pairs if margin < 0]
    return f"breaks {' and '.join(broken)}" if broken else ""
