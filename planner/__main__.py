"""``python -m planner``."""

from planner.commands import run

run()
