"""Which settings? For a goal, or for latency targets under a load; one GPU type at a time."""

from __future__ import annotations

from planner.engine.images import default_version
from planner.recommend.goals import rank_by_goal
from planner.recommend.request import Ranking, Request
from planner.recommend.targets import rank_by_targets


def rank(request: Request) -> list[Ranking]:
    """The candidates of each GPU of the request, in the order of the request."""
    rankings = []
    for profile in request.gpus:
        version = request.version or default_version(profile)
        by = rank_by_targets if request.targets else rank_by_goal
        rankings.append(by(request, profile, version))
    return rankings
