"""Searches for tests: targets under a load of all servers together, on GPUs by name."""

from dataclasses import replace
from typing import Any

from planner.engine.settings import EngineArgs
from planner.engine.version import EngineVersion
from planner.hardware.profiles import load_profile
from planner.model.resolve import resolve_model
from planner.planning.defaults import Goal
from planner.planning.search.search import Search
from planner.planning.search.space import Choices, Objective, Ranking, Space
from planner.planning.serving import Serving
from planner.workload.load import Load
from planner.workload.targets import Targets

SMALL = "nvidia/Llama-3.1-8B-Instruct-FP8"


def search_for(
    targets: Targets | None,
    *gpus: str,
    model: str = SMALL,
    load: Load | None = None,
    goal: Goal = "balanced",
    args: EngineArgs | None = None,
    version: EngineVersion | None = None,
    gpus_per_node: int | None = None,
    nodes: int | None = None,
    network_gb_per_s: float | None = None,
    prices: dict[str, float] | None = None,
    **objective: Any,
) -> Search:
    """The search for ``targets``, or for the goal alone."""
    profiles = (load_profile(gpu).with_network(network_gb_per_s) for gpu in gpus)
    servings = tuple(Serving.of(resolve_model(model), profile, args, version) for profile in profiles)
    return Search(
        Space(servings, gpus_per_node, nodes, prices or {}),
        Objective(goal, load or Load(512, 128), targets, **objective),
    )


def with_args(search: Search, **settings: Any) -> Search:
    """``search`` with other given settings."""
    servings = tuple(serving.changed(**settings) for serving in search.space.servings)
    return replace(search, space=replace(search.space, servings=servings))


def aiming(search: Search, **objective: Any) -> Search:
    """``search`` with another objective."""
    return replace(search, objective=replace(search.objective, **objective))


def ranked(search: Search) -> Ranking:
    """The ranking of its only GPU."""
    (ranking,) = search.run()
    return ranking


def choices(search: Search) -> Choices:
    """The engines of its only GPU."""
    return Choices(search.space, search.objective, search.space.servings[0])
