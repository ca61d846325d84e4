"""The largest rate that decode steps alone allow under a limit of TPOT: b / (step(b) x output), as a bound.

It holds whatever the scheduler does. Steps never get shorter with more requests in them, so a convex function m below
step(b) exists. Requests that meet the limit T see steps of m(b) <= T on average (Jensen, each step weighed with its
requests). There tokens per second are at most b / m(b). Pipelines have no such bound.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import inf

from planner.planning.deployment import Deployment
from planner.planning.search.space import Objective
from planner.planning.uncertainty import least_upper
from planner.timing.step import Batch
from planner.units import MS

GRID = 1.25  #: ratio of neighbouring batches at which steps are timed


def rate_bound(deployment: Deployment, objective: Objective, bound: float) -> float:
    """Requests per second that one server never exceeds under the targets; ``bound``: of full batches."""
    load = objective.load
    fixed = load.range_ratio == 0 and load.recorded is None
    if not fixed or load.output_len < 2 or deployment.config.pipeline_parallel_size > 1:
        return bound
    for slo in objective.slos:
        if slo.metric == "tpot":
            limit_s = slo.limit_ms * MS / least_upper(deployment, slo.key, objective.confidence)
            meeting = 1.0 if slo.percentile is None else slo.percentile / 100  # the share of requests that must
            step_tok = deployment.tokens_per_step
            if step_tok > 1:  # a row of steps makes at most one token more than on average
                step_tok *= (load.output_len - 1) / max(load.output_len - 2, 1)
            tok_per_s = decode_bound(deployment, load.input_len, limit_s * step_tok) * step_tok
            bound = min(bound, tok_per_s / meeting / (load.output_len - 1))
    return bound


def decode_bound(deployment: Deployment, input_len: int, limit_s: float) -> float:
    """Decode steps of requests per second, of all DP ranks, that take ``limit_s`` on average at most."""
    config, batches = deployment.config, [1]
    while batches[-1] < config.max_num_seqs:
        batches.append(min(max(batches[-1] + 1, int(batches[-1] * GRID)), config.max_num_seqs))
    # between two batches of the grid a step takes at least as long as with the smaller one
    corners = [(1.0, deployment.timer.step_s(Batch(1, input_len)))]
    for small, large in pairwise(batches):
        corners.append((float(large), deployment.timer.step_s(Batch(small, small * input_len))))
    best, before, before_s = 0.0, 0.0, 0.0
    for batch, time_s in _lower_hull(corners):
        if time_s > limit_s:
            if before:  # where the line from the corner before reaches the limit
                share = (limit_s - before_s) / (time_s - before_s)
                best = max(best, (before + share * (batch - before)) / limit_s)
            break
        best = max(best, batch / time_s)
        before, before_s = batch, time_s
    return best * config.data_parallel_size


def _lower_hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Corners of the largest convex function below ``points``, which ascend in the first coordinate."""

    def slope(left: tuple[float, float], right: tuple[float, float]) -> float:
        width = right[0] - left[0]
        return (right[1] - left[1]) / width if width else inf

    hull: list[tuple[float, float]] = []
    for point in points:
        while len(hull) > 1 and slope(hull[-2], hull[-1]) >= slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull
