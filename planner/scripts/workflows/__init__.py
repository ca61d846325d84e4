"""Scripts beside those of every plan: one workflow for each job that the published recipes describe.

``names`` lists them, ``plan_workflow`` turns one into files, ``needed_by`` gives what a plan needs that a user did not
ask for by name. What each workflow serves and with which settings is in ``workflows.toml``, with its sources.
"""

from planner.scripts.workflows.catalog import Workflow, find, workflows
from planner.scripts.workflows.render import needed_by, plan_workflow, purpose_of
from planner.scripts.workflows.subject import Choice

__all__ = ["Choice", "Workflow", "find", "needed_by", "plan_workflow", "purpose_of", "workflows"]
