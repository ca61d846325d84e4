"""The serving line, with the model's context and places above the load, from the engine that a search compared."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import Any

from planner.engine import prefix_caching
from planner.errors import PlannerError
from planner.planning import defaults
from planner.planning.capacity import measure
from planner.planning.deployment import Deployment
from planner.planning.search.candidate import Candidate
from planner.planning.search.space import Objective, Space


def for_users(space: Space, objective: Objective, candidate: Candidate) -> Candidate:
    """Return the candidate as it is launched for users: with the widest settings that carry its load as well.

    Settings that were given stay. Under targets a wider batch that misses one gives way to the searched batch.
    """
    if candidate.searched is not None:
        return candidate
    searched, own = replace(candidate, searched=candidate.without_replay()), candidate.load
    exactly = objective.by == "rate" and not space.coarse
    for deployment in _wider(space, objective, candidate):
        wide = replace(searched, deployment=deployment, capacity=None)
        if own is None:
            return wide
        with suppress(PlannerError):  # a request that the smaller cache does not hold
            sent, confidence = own.prediction.load, objective.confidence
            load = measure(deployment, sent, objective.slos, confidence=confidence, whole=own.whole, exactly=exactly)
            if load.meets:
                return replace(wide, load=replace(load, bound_by=own.bound_by))
    return searched


def _wider(space: Space, objective: Objective, candidate: Candidate) -> Iterator[Deployment]:
    """Yield the engine with places for its load, with places for the searched batch and with that batch itself.

    Each has the model's context and vLLM's own choice of prefix caching, and is yielded as far as it fits.
    """
    config, given, load, usual = candidate.config, space.args, candidate.load, defaults.USUAL_MAX_NUM_SEQS
    in_flight = load.replay.most_seqs if load else ceil(candidate.estimate.concurrency / config.data_parallel_size)
    wanted = (in_flight * (1 + defaults.PLACES_HEAD_ROOM), config.max_num_seqs)
    enough = [max(next((size for size in usual if size >= places), usual[-1]), in_flight) for places in wanted]
    for places in dict.fromkeys([given.max_num_seqs] if given.max_num_seqs else [*enough, config.max_num_seqs]):
        settings: dict[str, Any] = {"max_num_seqs": min(places, config.max_num_batched_tokens)}
        wide = replace(candidate.deployment, config=replace(config, **settings))
        if given.enable_prefix_caching is None:
            settings["enable_prefix_caching"] = config.enable_prefix_caching or prefix_caching(
                wide.model, wide.budget.features
            )
            wide = replace(wide, config=replace(config, **settings))
        if not given.max_model_len:
            wide = replace(wide, config=replace(wide.config, max_model_len=_longest_context(wide)))
        holds = wide.requests_held(space.planned_len(objective.load), pessimistic=True) >= in_flight
        if wide.config != config and wide.checked.fits and (holds or load):
            yield wide


def _longest_context(deployment: Deployment) -> int:
    """Tokens of the longest request that the low end of the KV cache holds, at most the model's context.

    Engines that never cut a prompt keep theirs: a longer context takes a larger token budget there.
    """
    config, budget = deployment.config, deployment.budget
    own, most = config.max_model_len, min(deployment.model.max_position_embeddings, defaults.LONGEST_CONTEXT)
    if not config.enable_chunked_prefill or config.engine != "V1" or most <= own:
        return own
    if not budget.pool.groups:
        return most
    longest = budget.pool.longest(int(budget.num_blocks.low) - 1, most)
    return longest if longest == most else max(longest // defaults.LONG_CONTEXT_STEP * defaults.LONG_CONTEXT_STEP, own)
