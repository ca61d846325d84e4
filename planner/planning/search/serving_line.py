"""The serving line: the engine that users get, from the one that a search compared.

A search compares engines at the benchmark's load, with a context for its requests and places for those in flight: the
benchmark line. Users send longer requests, and sometimes more of them. The plan launches the model's context and
places above the load, and its figures are those of that launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Any

from planner.engine import prefix_caching
from planner.errors import PlannerError
from planner.planning import defaults
from planner.planning.capacity import measure
from planner.planning.deployment import Deployment
from planner.planning.search.candidate import Candidate, without_replay
from planner.planning.search.space import Objective, Space


def for_users(space: Space, objective: Objective, candidate: Candidate) -> Candidate:
    """Return the candidate as it is launched for users: with the widest settings that carry its load as well.

    Settings that were given stay. Under targets a wider batch that misses one gives way to the searched batch.
    """
    if candidate.searched is not None:
        return candidate
    searched = replace(candidate, searched=without_replay(candidate))
    for deployment in _wider(space, objective, candidate):
        wide = replace(searched, deployment=deployment, capacity=None)
        if candidate.load is None:
            return wide
        try:
            load = measure(
                deployment,
                candidate.load.prediction.load,
                objective.slos,
                confidence=objective.confidence,
                whole=candidate.load.whole,
                exactly=objective.by == "rate" and not space.coarse,
            )
        except PlannerError:  # a request that the smaller cache does not hold
            continue
        if load.meets:
            return replace(wide, load=replace(load, bound_by=candidate.load.bound_by))
    return searched


def _wider(space: Space, objective: Objective, candidate: Candidate) -> Iterator[Deployment]:
    """Yield the engine with places for its load, with places for the searched batch and with that batch itself.

    Each has the model's context and vLLM's own choice of prefix caching, and is yielded as far as it fits.
    """
    config, given, load = candidate.config, space.args, candidate.load
    in_flight = load.replay.most_seqs if load else ceil(candidate.estimate.concurrency / config.data_parallel_size)
    enough = [
        max(_usual(size), in_flight) for size in (in_flight * (1 + defaults.PLACES_HEAD_ROOM), config.max_num_seqs)
    ]
    for max_num_seqs in dict.fromkeys([given.max_num_seqs] if given.max_num_seqs else [*enough, config.max_num_seqs]):
        wide = _changed(candidate.deployment, max_num_seqs=min(max_num_seqs, config.max_num_batched_tokens))
        if given.enable_prefix_caching is None:
            keeps = config.enable_prefix_caching or prefix_caching(wide.model, wide.budget.features)
            wide = _changed(wide, enable_prefix_caching=keeps)
        if not given.max_model_len:
            wide = _changed(wide, max_model_len=_longest_context(wide))
        holds = wide.requests_held(space.planned_len(objective.load), pessimistic=True) >= in_flight
        if wide.config != config and wide.checked.fits and (holds or load):
            yield wide


def _changed(deployment: Deployment, **settings: Any) -> Deployment:
    return replace(deployment, config=replace(deployment.config, **settings))


def _usual(places: float) -> int:
    """The least of the usual batches with so many places, or the largest."""
    return next((size for size in defaults.USUAL_MAX_NUM_SEQS if size >= places), defaults.USUAL_MAX_NUM_SEQS[-1])


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
