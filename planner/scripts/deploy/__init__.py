"""A plan as what a platform runs: docker compose, Kubernetes, LeaderWorkerSet, KServe, llm-d, Slurm, Ray.

``deploy`` turns an ``Emission`` and a ``Site`` into the text of every file of one target. What is started is
``serve_argv`` of the plan; a target adds only what ``docs/deployables.md`` lists for it.
"""

from planner.scripts.deploy.site import Site
from planner.scripts.deploy.targets import FILES, TARGETS, Target, deploy, find

__all__ = ["FILES", "TARGETS", "Site", "Target", "deploy", "find"]
