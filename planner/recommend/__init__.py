"""Which settings? Search, ranking, reasons; and the plan that comes out."""

from planner.recommend.assemble import assemble, best_first, order_words
from planner.recommend.engines import CONTEXT_STEP
from planner.recommend.goals import pareto, wanted_batch
from planner.recommend.request import Candidate, Ranking, Rejected, Request, Targets
from planner.recommend.search import rank
from planner.recommend.service import closest_lines, closest_point

__all__ = [
    "CONTEXT_STEP",
    "Candidate",
    "Ranking",
    "Rejected",
    "Request",
    "Targets",
    "assemble",
    "best_first",
    "closest_lines",
    "closest_point",
    "order_words",
    "pareto",
    "rank",
    "wanted_batch",
]
