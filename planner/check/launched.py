"""The engine and the load of a plan, put together again from the command lines that its scripts run."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from planner.check.line import read_line
from planner.engine.version import parse_version
from planner.hardware import load_profile
from planner.local import SHIPPED, Local
from planner.memory.budget import Basis
from planner.model.resolve import load_model
from planner.plan import Plan
from planner.predict import Deployment, deploy
from planner.workload import Workload


def redeploy(plan: Plan, local: Local = SHIPPED) -> Deployment:
    """The engine that ``serve_argv`` launches. Raises PlannerError where its model or GPU is not known here."""
    version = parse_version(plan.engine_version)
    profile = load_profile(plan.gpu)
    model = load_model(plan.model).model
    args = replace(read_line(plan.serve_argv, version, env=plan.env).args, allow_unvalidated=True)
    return deploy(model, profile, args, version, basis=Basis(local.constants), calibration=local.calibration)


def workload_of(plan: Plan) -> Workload:
    """What the plan's benchmark sends."""
    sent = plan.workload
    return Workload(**{**sent.model_dump(), "request_rate": sent.request_rate or inf})
