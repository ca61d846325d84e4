"""What a machine is tuned over: the settings that ``recommend`` chose a plan from, each with its own benchmark.

The plan says GPU, model, lengths and goal. What its command gave stays as given; layout, precision, batch and token
budget are open again. Only settings that may be the best are kept, by the odds that ``recommend`` has for them.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import exp
from typing import Any

from planner.engine import EngineArgs, flag_of
from planner.errors import InputError
from planner.hardware import load_profile
from planner.memory import Basis
from planner.model import resolve_model
from planner.planning import defaults
from planner.planning.calibration import Local
from planner.planning.check import launched_args, redeploy
from planner.planning.deployment import Deployment
from planner.planning.plan import Plan, PlanFile
from planner.planning.predict import Prediction, compared_rates, simulate_serve
from planner.planning.recommend.assemble import assemble
from planner.planning.recommend.goals import Merit, rank_by_goal, with_figures
from planner.planning.recommend.request import Candidate, Ranking, Request
from planner.planning.tuning.standing import Prospect

#: Settings that a search chooses, so that they are open again unless the plan's command gave them.
OPEN: Mapping[str, Any] = {
    "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1, "enable_expert_parallel": False,
    "kv_cache_dtype": "auto", "max_num_seqs": None, "max_num_batched_tokens": None,
}  # fmt: skip
#: Probability of being better than the best prediction, below which a setting is not worth a run.
LEAST_ODDS = 0.01
#: Of all engines together, and of one checkpoint, layout and KV dtype: what is predicted alike is soon told apart.
MOST_SETTINGS, MOST_PER_ENGINE = 24, 6


@dataclass(frozen=True)
class TunedSetting:
    """One setting: the plan that measures it, and what is known of its merit."""

    plan: Plan
    merit: Prospect


def request_again(file: PlanFile, local: Local) -> Request:
    """What ``recommend`` was asked for when it made the plan of ``file``.

    Raises InputError for a plan with targets: its servers share a load, and one machine measures one server.
    """
    plan, words = file.plan, shlex.split(file.command)
    if plan.service is not None:
        raise InputError(
            "the plan has targets: tune looks for the best settings of a goal",
            hint="plan again with --goal and without targets, or validate this plan: planner validate DIR",
        )

    def given(name: str) -> bool:
        return any(word.partition("=")[0] == flag_of(name) for word in words)

    profile, sent = load_profile(plan.gpu).with_network(plan.network_gb_per_s), plan.workload
    args = launched_args(plan)
    opened = {name: unset for name, unset in OPEN.items() if not given(name)}
    fixed = given("max_concurrency") or file.goal == "min-latency"
    return Request(
        model=resolve_model(plan.model if plan.model.startswith("/") else plan.requested_model),
        gpus=(profile,),
        goal=file.goal,
        input_len=sent.input_len,
        output_len=sent.output_len,
        max_concurrency=sent.max_concurrency if fixed else None,
        num_prompts=sent.num_prompts if given("num_prompts") else None,
        gpus_per_node=max(plan.gpus_per_node // profile.parts, 1),
        version=redeploy(plan, local).config.version,
        basis=Basis(local.constants),
        calibration=local.calibration,
        args=replace(args, **opened),
        range_ratio=sent.range_ratio,
        burstiness=sent.burstiness,
        seed=sent.seed,
        prefix_len=sent.prefix_len,
    )


def tuned_settings(file: PlanFile, local: Local) -> tuple[Merit, list[TunedSetting]]:
    """The plan of ``file`` first, then every other setting that may be better, and what they are judged by."""
    request = request_again(file, local)
    rankings = [_ranked(request, budget) for budget in _budgets(request.args)]
    merit = Merit.among(rankings[0].candidates, request.goal)
    own = redeploy(file.plan, local)
    found = [_setting(file.plan, own, merit, simulate_serve(own, file.plan.workload.sent))]
    for ranking, candidate in _promising(request, merit, rankings):
        if len(found) == MOST_SETTINGS:
            break
        setting = _measurable(request, merit, ranking, candidate)
        if setting.plan.digest != file.plan.digest:
            found.append(setting)
    return merit, found


def _budgets(args: EngineArgs) -> Iterator[int | None]:
    """Token budgets: the one that is given, or that of recipes and vLLM first."""
    yield args.max_num_batched_tokens
    if args.max_num_batched_tokens is None:
        yield from defaults.TOKEN_BUDGETS


def _ranked(request: Request, budget: int | None) -> Ranking:
    asked = replace(request, args=replace(request.args, max_num_batched_tokens=budget))
    assert asked.version is not None
    return rank_by_goal(asked, request.gpus[0], asked.version)


def _promising(request: Request, merit: Merit, rankings: Iterable[Ranking]) -> Iterator[tuple[Ranking, Candidate]]:
    """The settings with some chance against the best prediction, the likeliest first."""
    pairs = {candidate.config: (ranking, candidate) for ranking in rankings for candidate in ranking.candidates}
    best = max((candidate for _, candidate in pairs.values()), key=merit.of_candidate, default=None)
    if best is None:
        return
    odds = {config: merit.odds(request, candidate, best) for config, (_, candidate) in pairs.items()}
    of_engine: Counter[object] = Counter()
    for config in sorted(odds, key=lambda config: -odds[config]):
        engine = pairs[config][1].engine
        if odds[config] >= LEAST_ODDS and of_engine[engine] < MOST_PER_ENGINE:
            of_engine[engine] += 1
            yield pairs[config]


def _measurable(request: Request, merit: Merit, ranking: Ranking, candidate: Candidate) -> TunedSetting:
    """A candidate with its own benchmark, replayed."""
    found = with_figures(request, candidate)
    assert found.prediction is not None
    ranking = replace(ranking, candidates=tuple(found if one is candidate else one for one in ranking.candidates))
    return _setting(assemble(request, ranking, found), found.deployment, merit, found.prediction)


def _setting(plan: Plan, deployment: Deployment, merit: Merit, prediction: Prediction) -> TunedSetting:
    key, power = merit.hangs_on
    figures = {**prediction.figures, **compared_rates(deployment, prediction)}
    doubt = prediction.uncertainty
    return TunedSetting(
        plan, Prospect(merit.of(figures), doubt.spread(key).times(power), abs(power) * doubt.noise(key))
    )


def measured_merit(merit: Merit, plan: Plan, result: Mapping[str, Any]) -> float:
    """The logarithm of the merit of a measured plan, from the result of its benchmark."""
    rate = float(result["output_throughput"])
    users = plan.workload.max_concurrency or 1
    return merit.of(
        {**result, "output_throughput_per_gpu": rate / plan.num_gpus, "output_throughput_per_user": rate / users}
    )


def merit_words(merit: Merit, logarithm: float) -> str:
    """The merit in the words of the goal."""
    value = exp(logarithm)
    if merit.goal == "min-latency":
        return f"{1 / value:,.0f} ms mean E2EL"
    if merit.goal == "max-throughput":
        return f"{value:,.0f} tokens/s per GPU"
    return f"a balance of {value:,.4g}"
