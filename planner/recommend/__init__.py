"""Which settings? Search, ranking, reasons; and the plan that comes out."""

from planner.recommend.assemble import assemble, standing
from planner.recommend.search import Candidate, Ranking, Rejected, Request, pareto, rank, wanted_batch

__all__ = ["Candidate", "Ranking", "Rejected", "Request", "assemble", "pareto", "rank", "standing", "wanted_batch"]
