"""The workflows, rendered once, and how their scripts are read."""

import json
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from script_machine import Machine

from planner.hardware.profiles import load_profile
from planner.output.scripts.emission import Emission
from planner.output.workflows.documents import find_workflow, list_workflows
from planner.output.workflows.render import plan_workflow
from planner.output.workflows.subject import Choice
from planner.planning.deployment import Deployment
from planner.planning.plan import PlanFile
from planner.planning.predict import Prediction
from planner.workload.load import Load

NAMES = tuple(list_workflows())


class OfShortRequests(Prediction):
    """Figures of 32 short requests: the tests read which figures a script shows, and replays take most of the time."""

    @classmethod
    def of(cls, deployment: Deployment, load: Load, **how: Any) -> Prediction:
        short = {name: min(getattr(load, name), 32) for name in ("input_len", "output_len", "num_prompts")}
        return Prediction.of(deployment, replace(load, **short), **how)


@cache
def files_of(name: str, **choice: Any) -> dict[str, str]:
    """The files of a workflow. Its plan is searched as ever; loads that are measured beside it are shortened."""
    with patch("planner.planning.Prediction", OfShortRequests):
        return plan_workflow(find_workflow(name), Choice(**choice), command=f"planner workflow {name}")


def saved_plan(name: str, **choice: Any) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(files_of(name, **choice)["plan.json"])
    return plan


def commands_in(script: str) -> list[list[str]]:
    """Every line of a script, continued lines joined, as words; comments and what is no plain command left out."""
    found = []
    for line in script.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                found.append(shlex.split(line))
            except ValueError:
                continue
    return found


def in_container(words: list[str]) -> list[str]:
    """What ``docker run --entrypoint PROGRAM IMAGE ...`` runs; other command lines as they are."""
    if "--entrypoint" not in words:
        return words
    at = words.index("--entrypoint")
    return [words[at + 1], *words[at + 3 :]]


def points_of(name: str, script: str, **choice: Any) -> list[list[str]]:
    """The calls of ``measure`` in an offline script."""
    return [words for words in commands_in(files_of(name, **choice)[script]) if words[:1] == ["measure"]]


def value_of(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def machine_of(root: Path, name: str, **choice: Any) -> Machine:
    """A machine with the files of a workflow."""
    files = files_of(name, **choice)
    file = PlanFile.from_json(next(text for path, text in files.items() if path.endswith("plan.json")))
    made = Machine(root, Emission(file, load_profile(file.plan.gpu), 1, ()), files)
    (made.state / "image").unlink()  # it is pulled or built first
    return made
