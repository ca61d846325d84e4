"""Servers over several nodes: where a model does not fit one, or where somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.engine import EngineVersion
from planner.hardware import GpuProfile
from planner.planning import defaults
from planner.planning.recommend.candidates import node_size
from planner.planning.recommend.request import Ranking, Rejected, Request

Search = Callable[[Request, GpuProfile, EngineVersion], Ranking]


def rank_over_nodes(search: Search, request: Request, profile: GpuProfile, version: EngineVersion) -> Ranking:
    """What ``search`` finds on as many nodes as one server may fill.

    Where nobody said how many: on one, or on the fewest that hold a request, if one does not.
    """
    if request.nodes:
        return search(replace(request, over=tuple(range(1, request.nodes + 1))), _seen(request, profile), version)
    ranking = search(request, profile, version)
    if ranking.candidates or ranking.closest or not _may_spread(request, profile):
        return ranking
    if profile.interconnect.network_bandwidth is None and profile.joined_gpus <= profile.gpus_per_node:
        needed = "one node does not hold it, and nobody stated the network between nodes: add --network-gb-per-s"
        refusal = Rejected(profile.id, request.model.resolved, node_size(request, profile), None, needed)
        return replace(ranking, rejected=(refusal, *ranking.rejected))
    for nodes in range(2, defaults.MOST_NODES + 1):
        found = search(replace(request, over=(nodes,)), _seen(request, profile), version)
        if found.candidates or found.closest:
            return replace(found, rejected=(*found.rejected, *ranking.rejected))
    return ranking


def _may_spread(request: Request, profile: GpuProfile) -> bool:
    """Partitions and processors stay on their node; a search over many types of GPUs does, too."""
    return profile.partition is None and profile.platform != "cpu" and not request.coarse


def _seen(request: Request, profile: GpuProfile) -> GpuProfile:
    """The GPU in nodes of the size that is asked for, which decides what crosses the network."""
    return profile.with_node(node_size(request, profile)) if _may_spread(request, profile) else profile
