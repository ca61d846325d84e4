"""What a user's own runs teach about the machine they ran on, and whether that is worth keeping."""

from planner.calibrate.answer import Answer, calibrate
from planner.calibrate.factors import Factor
from planner.calibrate.sources import Sources, Stated, read_sources

__all__ = ["Answer", "Factor", "Sources", "Stated", "calibrate", "read_sources"]
