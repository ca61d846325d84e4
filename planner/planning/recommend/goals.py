"""The best settings for a goal: rank by the closed form, replay the finalists.

Goals::

    max-throughput   output tokens/s per GPU
    min-latency      mean E2EL at the given concurrency
    balanced         the knee of the Pareto front of tokens/s per GPU against tokens/s per user: the point
                     farthest from the chord between the ends of the front, both axes logarithmic. The front
                     begins at the concurrency of min-latency and ends at max-throughput, so it lies between them

Searched: checkpoint (precision) x KV dtype x TP, PP, DP, EP x ``max_num_seqs``, as under targets but for token budgets
and an fp8 KV cache without scales. ``max_num_seqs`` of all DP ranks together and the client's concurrency are one
number, as the recipes advise. A batch counts as fitting when the pessimistic end of the memory budget holds all its
requests at full length, so nothing that is recommended preempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log
from typing import Any

from planner.engine import EngineArgs, EngineVersion
from planner.errors import PlannerError
from planner.hardware import GpuProfile
from planner.model import ResolvedModel
from planner.planning import defaults
from planner.planning.capacity import at_concurrency
from planner.planning.defaults import Goal
from planner.planning.odds import Forecast, percent
from planner.planning.predict import Prediction
from planner.planning.recommend.candidates import checkpoints, deployed, engines, largest_batch, left_out, why_not
from planner.planning.recommend.request import Candidate, Ranking, Rejected, Request, pareto
from planner.units import MS
from planner.workload import OF_A_REQUEST, Load


def rank_by_goal(request: Request, profile: GpuProfile, version: EngineVersion) -> Ranking:
    """Every setting that fits, best first."""
    candidates: list[Candidate] = []
    rejected: list[Rejected] = []
    for resolved in checkpoints(request.model, profile, rejected):
        for args in engines(request, resolved, profile, version, rejected):
            candidates += _batches(request, resolved, profile, args, version, rejected)
    candidates = candidates_best_first(candidates, request.goal)
    candidates = candidates_best_first(_replayed(request, candidates), request.goal)
    while candidates and candidates[0].figures is None:  # the closed form promised more than the finalists kept
        candidates = candidates_best_first([with_figures(request, candidates[0]), *candidates[1:]], request.goal)
    if candidates:
        rejected += _runners_up(request, candidates)
    rejected += left_out(request, profile, version)
    best_first = (
        replace(one, prediction=one.prediction if not place else None) for place, one in enumerate(candidates)
    )
    return Ranking(profile, version, tuple(best_first), tuple(rejected))


def predicted(prediction: Prediction) -> dict[str, Any]:
    """The keys of the benchmark's result file, and the two rates that plans are compared by, with their intervals."""
    rates = prediction.with_intervals(prediction.rates)
    return {**{key: value for key, value in prediction.result.items() if value is not None}, **rates}


def replayed(request: Request, candidate: Candidate, workload: Load) -> Prediction:
    """What the benchmark would measure of ``workload``, from the replay of the search where that is of it.

    Of a trace it sent other requests.
    """
    load, targets = candidate.load, request.targets
    goodput: dict[str, float] = {}
    if workload.classes and targets:
        own = {one.name for one in workload.classes if one.limits_ms}
        of_all = (slo for slo in targets.slos if slo.group not in own and slo.metric in OF_A_REQUEST)
        goodput = {slo.metric: slo.limit_ms for slo in of_all}
    if load and load.whole and load.sent == workload:
        return load.prediction.reported(defaults.PERCENTILES, goodput)
    return Prediction.of(candidate.deployment, workload, percentiles=defaults.PERCENTILES, goodput=goodput)


def _batches(
    request: Request,
    resolved: ResolvedModel,
    profile: GpuProfile,
    args: EngineArgs,
    version: EngineVersion,
    rejected: list[Rejected],
) -> Iterator[Candidate]:
    """The concurrencies at which this engine is worth considering."""
    model = resolved.model

    def reject(reason: str) -> None:
        rejected.append(Rejected.of_args(profile, resolved, args, reason))

    ranks = args.data_parallel_size
    try:
        largest = min(largest_batch(request, model, profile, args, version) * ranks, defaults.MAX_NUM_SEQS)
        if largest < 1:
            reject(why_not(deployed(request, model, profile, args, version)))
            return
        batches = _worth_trying(request, largest)
        if not batches:
            reject(f"holds {largest} requests of this length at once, {request.wanted_batch} are asked for")
        for batch in batches:
            each = request.args.max_num_seqs or ceil(batch / ranks)
            deployment = deployed(request, model, profile, replace(args, max_num_seqs=each), version)
            yield Candidate(resolved, deployment, at_concurrency(deployment, request.load, batch))
    except PlannerError as error:
        reject(error.cause)


def _worth_trying(request: Request, largest: int) -> Sequence[int]:
    if wanted := request.wanted_batch:
        return (wanted,) if wanted <= largest else ()
    least = defaults.LATENCY_CONCURRENCY if request.goal == "balanced" else 1
    return sorted({batch for batch in defaults.GOAL_BATCHES if least <= batch < largest} | {largest})


@dataclass(frozen=True, slots=True)
class Merit:
    """How well a prediction serves a goal: its rates, to the powers that count in it."""

    goal: Goal
    per_user: float = 1.0  #: powers of ``balanced``, 2 together: with them both ends of the front are alike
    per_gpu: float = 1.0

    @classmethod
    def among(cls, candidates: Iterable[Candidate], goal: Goal) -> Merit:
        """By the front of ``candidates``; of a front of one point any axis length does."""
        front = pareto(candidates) if goal == "balanced" else []
        if not front:
            return cls(goal)
        users = log(front[0].tok_per_s_per_user / front[-1].tok_per_s_per_user) or 1.0
        gpus = log(front[-1].tok_per_s_per_gpu / front[0].tok_per_s_per_gpu) or 1.0
        return cls(goal, 2 * gpus / (users + gpus), 2 * users / (users + gpus))

    def of(self, figures: Mapping[str, Any]) -> float:
        """Its logarithm, of the figures of a prediction; larger is better."""
        if self.goal == "min-latency":
            return -log(figures["mean_e2el_ms"])
        per_gpu = log(figures["output_throughput_per_gpu"])
        if self.goal == "max-throughput":
            return per_gpu
        return self.per_user * log(figures["output_throughput_per_user"]) + self.per_gpu * per_gpu

    def of_candidate(self, candidate: Candidate) -> float:
        """The same of a candidate."""
        return self.of(
            {
                "mean_e2el_ms": candidate.e2el_s / MS,
                "output_throughput_per_gpu": candidate.tok_per_s_per_gpu,
                "output_throughput_per_user": candidate.tok_per_s_per_user,
            }
        )

    @property
    def hangs_on(self) -> tuple[str, float]:
        """The figure of a result whose power it is, for one setting, and that power."""
        if self.goal == "min-latency":
            return "mean_e2el_ms", -1.0
        # both rates are one throughput, over GPUs and over users
        return "output_throughput", 1.0 if self.goal == "max-throughput" else self.per_user + self.per_gpu

    def hangs_on_at(self, max_concurrency: int | None) -> tuple[str, float]:
        """The same of one measured load. At a rate that is sent, not ``max_concurrency``, users wait: E2EL says how."""
        if max_concurrency is not None or self.goal != "balanced":
            return self.hangs_on
        return "mean_e2el_ms", -self.per_user

    def odds(self, request: Request, one: Candidate, other: Candidate) -> float:
        """Probability that measurements of ``one`` serve the goal better than those of ``other``."""
        return self._forecast(request, one).beats(self._forecast(request, other))

    def _forecast(self, request: Request, candidate: Candidate) -> Forecast:
        doubt, value = request.doubt_about(candidate), exp(self.of_candidate(candidate))
        return Forecast.of(value, doubt, *self.hangs_on)


def candidates_best_first(candidates: Sequence[Candidate], goal: Goal) -> list[Candidate]:
    """By merit; of equals, the one with fewer GPUs and the smaller batch."""
    merit = Merit.among(candidates, goal)
    return sorted(candidates, key=lambda c: (-merit.of_candidate(c), c.config.num_gpus, c.config.max_num_seqs))


def _replayed(request: Request, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The best candidates of the best engines with their replay, the others as they are."""
    several, each = defaults.COARSE_FINALISTS if request.coarse else defaults.FINALISTS
    left = dict.fromkeys(list(dict.fromkeys(candidate.engine for candidate in candidates))[:several], each)
    found: list[Candidate] = []
    for candidate in candidates:
        engine = candidate.engine
        if left.get(engine):
            left[engine] -= 1
            found.append(with_figures(request, candidate))
        else:
            found.append(candidate)
    return found


def with_figures(request: Request, candidate: Candidate) -> Candidate:
    """The candidate with the replay of its closed loop."""
    prediction = replayed(request, candidate, request.closed_loop(candidate.estimate.concurrency))
    figures = {**prediction.figures, **prediction.rates}
    return replace(candidate, figures=figures, prediction=prediction)


def odds_words(behind: float) -> str:
    """``behind with 93% probability``, or ahead."""
    return f"{'behind' if behind >= 0.5 else 'ahead'} with {percent(max(behind, 1 - behind))} probability"


def _runners_up(request: Request, candidates: Sequence[Candidate]) -> Iterator[Rejected]:
    """The best of each engine that lost, against the winner."""
    winner, goal = candidates[0], request.goal
    merit = Merit.among(candidates, goal)
    seen = {winner.engine}
    for candidate in candidates[1:]:
        if candidate.engine in seen:
            continue
        seen.add(candidate.engine)
        behind = merit.odds(request, winner, candidate)
        reason = f"{figure(candidate, goal)} against {figure(winner, goal)}, {odds_words(behind)}"
        yield replace(Rejected.of(candidate, reason), probability_behind=behind)


def figure(candidate: Candidate, goal: Goal) -> str:
    """The number that the goal is about, in words."""
    if goal == "min-latency":
        return f"mean E2EL {candidate.e2el_s:.2f} s"
    if goal == "max-throughput":
        return f"{candidate.tok_per_s_per_gpu:,.0f} output tokens/s per GPU"
    return f"{candidate.tok_per_s_per_gpu:,.0f} tokens/s per GPU at {candidate.tok_per_s_per_user:.0f} per user"
