"""GPU profiles: facts with unit, source and kind."""

from planner.hardware.loader import aliases, load_all, load_profile, load_whole, profile_ids
from planner.hardware.schema import GpuProfile

__all__ = ["GpuProfile", "aliases", "load_all", "load_profile", "load_whole", "profile_ids"]
