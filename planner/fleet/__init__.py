"""How many servers of which kind carry a load, and what that costs."""

from planner.fleet.demand import Demand, check_names, named, of_trace, parse_class
from planner.fleet.disaggregated import Disaggregated, NotDivided, disaggregate
from planner.fleet.kinds import Asked, NoServer, ServerKind, server_kinds
from planner.fleet.plan import Fleet, Fleets, Pool, Rented, fleets_of, plan_fleets

__all__ = [
    "Asked",
    "Demand",
    "Disaggregated",
    "Fleet",
    "Fleets",
    "NoServer",
    "NotDivided",
    "Pool",
    "Rented",
    "ServerKind",
    "check_names",
    "disaggregate",
    "fleets_of",
    "named",
    "of_trace",
    "parse_class",
    "plan_fleets",
    "server_kinds",
]
