"""All that is known of the plans in a folder: as written, as measured, and replayed at other loads."""

from planner.dossier.folder import Dossier, Entry, read_dossier
from planner.dossier.sweep import LoadPoint, Sweep, sweep

__all__ = ["Dossier", "Entry", "LoadPoint", "Sweep", "read_dossier", "sweep"]
