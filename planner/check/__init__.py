"""Somebody's own ``vllm serve`` line: will it start, what would it deliver, what would deliver more."""

from planner.check.answer import Answer, Asked, Served, check_line
from planner.check.launched import launched_args, redeploy
from planner.check.line import ServeLine, read_line
from planner.check.shell import Found, find_command

__all__ = [
    "Answer",
    "Asked",
    "Found",
    "ServeLine",
    "Served",
    "check_line",
    "find_command",
    "launched_args",
    "read_line",
    "redeploy",
]
