"""Scripts beside those of every plan: one workflow for each job that the published recipes describe.

``workflows`` lists them, ``plan_workflow`` turns one into files, ``needed_by`` gives what a plan needs of them without
being asked. What each workflow serves and with which settings is in ``workflows.toml``, with its sources.
"""

from planner.scripts.workflows.catalog import Workflow, find, published_scores, workflows
from planner.scripts.workflows.render import calibration_of, needed_by, plan_workflow, purpose_of
from planner.scripts.workflows.subject import Choice

__all__ = [
    "Choice",
    "Workflow",
    "calibration_of",
    "find",
    "needed_by",
    "plan_workflow",
    "published_scores",
    "purpose_of",
    "workflows",
]
