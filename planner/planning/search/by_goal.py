"""The best settings for a goal: rank by the closed form, replay the finalists.

- ``max-throughput``: output tokens/s per GPU.
- ``min-latency``: mean E2EL at the given concurrency.
- ``balanced``: the point of the Pareto front of tokens/s per GPU and per user, in logarithms, farthest from its chord.

A batch fits when the low end of the memory budget holds all its requests at full length, so no plan preempts. Where a
concurrency is asked for, its expected size is enough: requests without a place would wait for a whole answer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import ceil

from planner.engine import EngineArgs
from planner.errors import PlannerError
from planner.model import ResolvedModel
from planner.planning import defaults
from planner.planning.capacity import at_concurrency
from planner.planning.predict import Prediction
from planner.planning.search.candidate import Candidate, Merit, Ranking, Rejected, best_first
from planner.planning.search.plans import for_users
from planner.planning.search.space import Choices, Objective


def rank_by_goal(choices: Choices) -> Ranking:
    """Rank every setting that fits, best first."""
    objective = choices.objective
    engines = [(resolved, args) for resolved in choices.checkpoints() for args in choices.engines(resolved)]
    candidates = [candidate for engine in engines for candidate in _batches(choices, *engine)]
    candidates = best_first(_replayed(choices, best_first(candidates, objective.goal)), objective.goal)
    while candidates and candidates[0].figures is None:  # the closed form promised more than the finalists deliver
        candidates = best_first([with_figures(objective, candidates[0], ranked=True), *candidates[1:]], objective.goal)
    candidates = _recipe_first(choices, candidates) if candidates else []
    rejected = [*choices.rejected, *_runners_up(objective, candidates), *choices.left_out()]
    best = (with_figures(objective, for_users(choices.space, objective, one)) for one in candidates[:1])
    kept = (*best, *(replace(one, prediction=None) for one in candidates[1:]))
    with_fp8_cache = _with_fp8_cache(choices, candidates[0]) if candidates else None
    return Ranking(choices.profile, choices.version, kept, tuple(rejected), with_fp8_cache=with_fp8_cache)


def _with_fp8_cache(choices: Choices, best: Candidate) -> Candidate | None:
    """Return the largest batches of ``best`` with half the KV cache for each; None where that is no faster or asked."""
    goal, load, space, config = choices.objective.goal, choices.objective.load, choices.space, best.config
    short = best.deployment.requests_of(load) * config.data_parallel_size < (load.max_concurrency or 0)
    halved = space.args.kv_cache_dtype == "auto" and not config.kv_cache_dtype.startswith("fp8")
    if not (short or goal == "max-throughput") or not halved or space.coarse or not choices.profile.supports("fp8"):
        return None
    args = replace(space.args, **config.settings("axes"), speculative_config=config.speculative_config)
    args = choices.launched(best.resolved.model, replace(args, kv_cache_dtype="fp8"))
    batches = best_first([*_batches(choices, best.resolved, args)], goal)
    faster = [with_figures(choices.objective, one, ranked=True) for one in batches[:1]]
    least = best.tok_per_s_per_gpu * (1 + defaults.TOLERANCE)
    return next((one for one in faster if one.tok_per_s_per_gpu > least), None)


def _recipe_first(choices: Choices, candidates: list[Candidate]) -> list[Candidate]:
    """Put the recipe's layout first among those alike, of the same checkpoint and GPUs; fewer GPUs before stages."""
    merit = Merit.among(candidates, choices.objective.goal)
    best, least = candidates[0], merit.of_candidate(candidates[0]) - merit.tie
    gpus = range(1 if best.config.pipeline_parallel_size > 1 else best.config.num_gpus, best.config.num_gpus + 1)
    alike = (
        one for one in candidates
        if one.figures and one.config.num_gpus in gpus and merit.of_candidate(one) >= least
        and one.resolved.resolved == best.resolved.resolved
    )  # fmt: skip
    first = min(alike, key=lambda one: (one.config.num_gpus, *choices.beside_recipe(one.resolved, one.config)))
    return [first, *(one for one in candidates if one is not first)]


def with_figures(objective: Objective, candidate: Candidate, *, ranked: bool = False) -> Candidate:
    """Return the candidate with its replay; to be ``ranked``, DP ranks that share experts get lengths that vary.

    Under equal lengths they read prompts in the same steps, as the traffic of users never does."""
    load = objective.closed_loop(candidate.estimate.concurrency)
    in_phase = candidate.in_phase(load)
    if ranked and in_phase:
        load = replace(load, range_ratio=defaults.USUAL_RANGE_RATIO)
    prediction = Prediction.of(candidate.deployment, load, percentiles=defaults.PERCENTILES)
    ranked_it = candidate.figures if candidate.searched and in_phase else None
    return replace(candidate, figures=ranked_it or {**prediction.figures, **prediction.rates}, prediction=prediction)


def _batches(choices: Choices, resolved: ResolvedModel, args: EngineArgs) -> Iterator[Candidate]:
    """Yield the engine at each concurrency that is worth considering."""
    objective, ranks, given = choices.objective, args.data_parallel_size, choices.space.args.max_num_seqs
    wanted = objective.wanted_batch((given or 0) * ranks)
    least, bound = defaults.LATENCY_CONCURRENCY if objective.goal == "balanced" else 1, defaults.MAX_NUM_SEQS
    bound *= ranks if wanted else 1  # --max-num-seqs is of each rank
    try:
        largest = min(choices.largest_batch(resolved, args) * ranks, bound)
        if largest < 1:
            choices.reject_args(resolved, args, choices.deployed(resolved, choices.sized(args, given or 1)).why_not)
            return
        if wanted and wanted > largest:
            largest = min(choices.largest_batch(resolved, args, cautious=False) * ranks, bound)
        usual = {batch for batch in defaults.GOAL_BATCHES if least <= batch < largest}
        for batch in (min(wanted, largest),) if wanted else sorted(usual | {largest}):
            deployment = choices.deployed(resolved, choices.sized(args, given or ceil(batch / ranks)))
            estimate, more = at_concurrency(deployment, objective.load, batch), (wanted or batch) / batch
            queued = replace(estimate, concurrency=wanted or batch, e2el_s=estimate.e2el_s * more)  # behind ``batch``
            yield Candidate(resolved, deployment, queued)
    except PlannerError as error:
        choices.reject_args(resolved, args, error.cause)


def _replayed(choices: Choices, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    most, each = defaults.COARSE_FINALISTS if choices.space.coarse else defaults.FINALISTS
    engines = dict.fromkeys((bool(candidate.config.drafted_tok), candidate.engine) for candidate in candidates)
    of_both = ([engine for drafts, engine in engines if drafts is wanted][:most] for wanted in (False, True))
    left = dict.fromkeys(chain.from_iterable(of_both), each)
    for candidate in candidates:
        if left.get(candidate.engine):
            left[candidate.engine] -= 1
            yield with_figures(choices.objective, candidate, ranked=True)
        else:
            yield candidate


def _runners_up(objective: Objective, candidates: Sequence[Candidate]) -> Iterator[Rejected]:
    """Yield the best of each engine that lost, against the winner."""
    merit = Merit.among(candidates, objective.goal)
    best_of = {candidate.engine: candidate for candidate in reversed(candidates)}
    for candidate in candidates[1:]:
        if best_of[candidate.engine] is candidate:
            behind = merit.odds(objective.load, candidates[0], candidate)
            reason = f"{merit.words(candidate)} against {merit.words(candidates[0])}, {merit.odds_words(behind)}"
            reason += merit.tie_words(candidates[0], candidate)
            yield Rejected.of(candidate.resolved, candidate.deployment, reason, behind)
