"""What a machine is tuned over: the settings that ``recommend`` chose a plan from, each with its own benchmark.

The plan says GPU, model, lengths and goal. What its command gave stays as given; layout, precision, batch and token
budget are open again. Only settings that may be the best are kept, by the odds that ``recommend`` has for them.

A plan with targets has a load, and all settings are measured under it: one server's share, as its benchmark sends it.
The best serves the goal best of those that keep every target as measured. At a rate that all keep up with, that is for
``max-throughput`` the fewest GPUs, for ``min-latency`` the shortest requests, for ``balanced`` both.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import exp, inf, log
from typing import Any

from planner.engine import SETTINGS, EngineArgs, flag_of, tagged
from planner.errors import InputError
from planner.hardware import load_profile
from planner.model import resolve_model
from planner.planning import defaults
from planner.planning.calibration import Local
from planner.planning.check import launched_args, redeploy
from planner.planning.deployment import Deployment
from planner.planning.plan import Plan, PlanFile, PlannedTarget
from planner.planning.predict import Prediction
from planner.planning.search.by_goal import with_figures
from planner.planning.search.candidate import Candidate, Merit, Ranking
from planner.planning.search.search import Search
from planner.planning.search.space import Objective, Space
from planner.planning.serving import Serving
from planner.planning.tuning.standing import Prospect, Prospects
from planner.units import MS
from planner.workload import Load

#: Settings that a search chooses, so that they are open again unless the plan's command gave them.
OPEN: Mapping[str, Any] = {name: SETTINGS[name].default for name in tagged("searched")}
#: Probability of being better than the best prediction, below which a setting is not worth a run.
LEAST_ODDS = 0.01
#: Of all engines together, and of one checkpoint, layout and KV dtype: what is predicted alike is soon told apart.
MOST_SETTINGS, MOST_PER_ENGINE = 24, 6


@dataclass(frozen=True)
class TunedSetting:
    """One setting: the plan that measures it, and what is known of its merit and of its margin to each target."""

    plan: Plan
    prospects: tuple[Prospect, ...]


def search_again(file: PlanFile, local: Local) -> Search:
    """Return the search that made the plan of ``file``.

    Its targets are left out: they are measured. Raises InputError for a plan of a recorded load, and for targets that
    its benchmark does not measure.
    """
    plan, words = file.plan, shlex.split(file.command)
    _refuse_unmeasured(plan)

    def given(name: str) -> bool:
        return any(word.partition("=")[0] == flag_of(name) for word in words)

    profile, sent = load_profile(plan.gpu).with_network(plan.network_gb_per_s), plan.workload
    args = launched_args(plan)
    opened = {name: unset for name, unset in OPEN.items() if not given(name)}
    fixed = plan.service is None and (given("max_concurrency") or file.goal == "min-latency")
    model = resolve_model(plan.model if plan.model.startswith("/") else plan.requested_model)
    serving = Serving.of(model, profile, replace(args, **opened), redeploy(plan, local).config.version, local=local)
    load = replace(sent.sent, request_rate=inf, max_concurrency=sent.max_concurrency if fixed else None)
    return Search(
        Space((serving,), gpus_per_node=max(plan.gpus_per_node // profile.parts, 1)),
        Objective(file.goal, load, num_prompts=sent.num_prompts if given("num_prompts") else None),
    )


def _refuse_unmeasured(plan: Plan) -> None:
    service = plan.service
    if service is None:
        return
    if plan.classes:
        raise InputError(
            "the plan is for several classes of requests, which tune does not tell apart",
            hint="validate this plan: planner validate DIR; or plan for one class: --request-rate and lengths",
        )
    if service.trace is not None or service.router is not None:
        raise InputError(
            "the plan is for requests whose prompts are known: its benchmark sends random ones, so tune cannot tell "
            "which settings keep its targets",
            hint="plan for --request-rate and lengths, or validate this plan: planner validate DIR",
        )
    named = ("mean", "median", *(f"p{percentile}" for percentile in defaults.PERCENTILES))
    for target in service.targets:
        if target.metric.split("_")[0] not in named:
            raise InputError(
                f"the benchmark does not measure {target.metric}, which the plan has a target for",
                hint=f"plan again with --percentile {', '.join(map(str, defaults.PERCENTILES))} or mean",
            )


def tuned_settings(file: PlanFile, local: Local) -> tuple[Merit, list[TunedSetting]]:
    """The plan of ``file`` first, then every other setting that may be better, and what they are judged by."""
    search = search_again(file, local)
    rankings = [_ranked(search, budget) for budget in _budgets(search.space.args)]
    merit = Merit.among(rankings[0].candidates, file.goal)
    own, sent = redeploy(file.plan, local), file.plan.workload.sent
    found = [_setting(file.plan, merit, _replayed(own, sent), file.plan.targets)]
    if file.plan.service is not None:
        return merit, found + _under_load(search, file.plan, merit, rankings)
    for ranking, candidate in _promising(search, merit, rankings):
        if len(found) == MOST_SETTINGS:
            break
        setting = _measurable(search, merit, ranking, candidate)
        if setting.plan.digest != file.plan.digest:
            found.append(setting)
    return merit, found


def _budgets(args: EngineArgs) -> Iterator[int | None]:
    yield args.max_num_batched_tokens
    if args.max_num_batched_tokens is None:
        yield from defaults.TOKEN_BUDGETS


def _ranked(search: Search, budget: int | None) -> Ranking:
    servings = tuple(serving.changed(max_num_batched_tokens=budget) for serving in search.space.servings)
    (ranking,) = replace(search, space=replace(search.space, servings=servings)).run()
    return ranking


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

    Of each engine with each token budget the largest batch, and that of the plan.
    """
    sent = plan.workload.sent
    tried: dict[tuple[object, int], list[tuple[Ranking, Candidate]]] = {}
    for ranking in rankings:
        for candidate in ranking.candidates:
            key = candidate.engine, candidate.config.max_num_batched_tokens
            tried.setdefault(key, []).append((ranking, candidate))
    settings: list[TunedSetting] = []
    engines: list[object] = []
    for (engine, _), pairs in tried.items():
        largest = max(candidate.config.max_num_seqs for _, candidate in pairs)
        for ranking, candidate in pairs:
            if candidate.config.max_num_seqs in (largest, plan.max_num_seqs):
                prediction = _replayed(candidate.deployment, sent)
                one = replace(candidate, prediction=None)
                measured = search.plan(ranking, one, load=sent)
                if measured.digest != plan.digest:
                    settings.append(_setting(measured, merit, prediction, plan.targets))
                    engines.append(engine)
    if not settings:
        return []
    worth = Prospects.of([setting.prospects for setting in settings]).standing({}).gains
    of_engine: Counter[object] = Counter()
    kept: list[TunedSetting] = []
    for number in sorted(worth, key=lambda number: -worth[number]):
        if worth[number] > 0 and of_engine[engines[number]] < MOST_PER_ENGINE and len(kept) < MOST_SETTINGS - 1:
            of_engine[engines[number]] += 1
            kept.append(settings[number])
    return kept


def _replayed(deployment: Deployment, sent: Load) -> Prediction:
    return Prediction.of(deployment, sent, percentiles=defaults.PERCENTILES)


def _measurable(search: Search, merit: Merit, ranking: Ranking, candidate: Candidate) -> TunedSetting:
    """A candidate with its own benchmark, replayed."""
    found = with_figures(search.objective, candidate)
    assert found.prediction is not None
    ranking = replace(ranking, candidates=tuple(found if one is candidate else one for one in ranking.candidates))
    return _setting(search.plan(ranking, found), merit, found.prediction)


def _setting(plan: Plan, merit: Merit, prediction: Prediction, targets: Iterable[PlannedTarget] = ()) -> TunedSetting:
    figures = {**prediction.figures, **prediction.rates}
    doubt = prediction.uncertainty

    def prospect(logarithm: float, key: str, power: float) -> Prospect:
        return Prospect(logarithm, doubt.spread(key).times(power), abs(power) * doubt.noise(key))

    own = [prospect(merit.of(figures), *merit.figure_at(plan.workload.max_concurrency))]
    result = prediction.result
    margins = [prospect(log(one.limit_ms / result[one.metric]), one.metric, -1.0) for one in targets]
    return TunedSetting(plan, (*own, *margins))


def measured_merit(
    merit: Merit, plan: Plan, result: Mapping[str, Any], targets: Iterable[PlannedTarget] = ()
) -> tuple[float, ...]:
    """The logarithm of the merit of a measured plan, from its benchmark's result, and of its margin to each target.

    In an open loop as many users are there as requests are in flight: their rate x how long one takes (Little).
    """
    rate = float(result["output_throughput"])
    users = plan.workload.max_concurrency or result["request_throughput"] * result["mean_e2el_ms"] * MS
    figures = {**result, "output_throughput_per_gpu": rate / plan.num_gpus, "output_throughput_per_user": rate / users}
    return merit.of(figures), *(log(one.limit_ms / result[one.metric]) for one in targets)


def merit_words(merit: Merit, logarithm: float) -> str:
    value = exp(logarithm)
    if merit.goal == "min-latency":
        return f"{1 / value:,.0f} ms mean E2EL"
    if merit.goal == "max-throughput":
        return f"{value:,.0f} tokens/s per GPU"
    return f"a balance of {value:,.4g}"


def broken_words(targets: Iterable[PlannedTarget], margins: Iterable[float]) -> str:
    """The targets that a measured setting breaks; empty where it keeps all."""
    pairs = zip(targets, margins, strict=True)
    broken = [f"{one.slo} by {exp(-margin) - 1:.0%}" for one, margin in pairs if margin < 0]
    return f"breaks {' and '.join(broken)}" if broken else ""
