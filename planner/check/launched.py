"""The engine of a plan, put together again from the command line that its scripts run."""

from __future__ import annotations

from dataclasses import replace

from planner.check.line import read_line
from planner.engine.config import EngineArgs
from planner.engine.version import parse_version
from planner.hardware import load_profile
from planner.local import SHIPPED, Local
from planner.memory.budget import Basis
from planner.model.resolve import load_model
from planner.plan import Plan
from planner.predict import Deployment, deploy


def launched_args(plan: Plan) -> EngineArgs:
    """The settings that ``serve_argv`` and the plan's variables ask for."""
    line = read_line(plan.serve_argv, parse_version(plan.engine_version), env=plan.env)
    return replace(line.args, allow_unvalidated=True)


def redeploy(plan: Plan, local: Local = SHIPPED) -> Deployment:
    """The engine that ``serve_argv`` launches. Raises PlannerError where its model or GPU is not known here."""
    version = parse_version(plan.engine_version)
    profile = load_profile(plan.gpu)
    model = load_model(plan.model).model
    basis = Basis(local.constants)
    return deploy(model, profile, launched_args(plan), version, basis=basis, calibration=local.calibration)
