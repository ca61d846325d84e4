"""The command line: parse, call, print. No arithmetic, and nothing heavy imported before it is needed."""

from planner.cli.main import main, run

__all__ = ["main", "run"]
