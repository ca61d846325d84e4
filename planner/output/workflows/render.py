"""From a workflow to the text of its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jinja2

from planner import __version__
from planner.output.scripts.emission import Emission, is_native, template_names
from planner.output.scripts.render import jinja_environment, refuse_tokens, render_scripts
from planner.output.tables.recommendation import predicted_lines
from planner.output.workflows.catalog import Workflow
from planner.output.workflows.comparison import compare_partitions
from planner.output.workflows.names import TEMPLATES, copies_of, instance_names, workflow_script_names
from planner.output.workflows.subject import Choice, subject
from planner.planning import Plan, PlanFile
from planner.resources import data_dir

#: What the files of workflows are for, as WORKFLOW.md and ``planner workflow`` say it.
PURPOSES = {
    "pull_image.sh": "pulls the image and writes its digest down",
    "build_image.sh": "builds the image at the document's commit",
    "build_engine.sh": "builds AITER and vLLM from source on top of an image",
    "shell.sh": "opens a shell in the image",
    "download.sh": "downloads the model with hf",
    "quantize.sh": "quantises a 16-bit checkpoint to FP8 with Quark",
    "request.sh": "sends one request and shows the answer",
    "latency.sh": "measures the latency of batches offline",
    "ttft.sh": "measures the time to first token offline",
    "throughput.sh": "measures the throughput of all prompts at once, offline",
    "speculative.sh": "measures latency with and without a draft model",
    "quick_reduce.sh": "measures latency in each form of quick reduce",
    "aiter.sh": "measures latency with and without AITER",
    "sweep.sh": "measures the server at several loads, by concurrency or by request rate",
    "guidellm.sh": "measures the server with GuideLLM",
    "instances.sh": "starts, stops and measures one server on each share of the node's GPUs",
    "nginx.conf": "spreads requests over these servers",
    "mad.sh": "runs AMD's own benchmark",
    "compare.sh": "measures the layouts of COMPARISON.md one after the other",
    "COMPARISON.md": "predicts whole GPUs against partitions",
    "WORKFLOW.md": "says what is here and what differs from the document",
}


def plan_workflow(workflow: Workflow, choice: Choice, *, command: str) -> dict[str, str]:
    """Every file of a workflow: those of its plan, its own scripts and ``WORKFLOW.md``.

    Raises PlannerError where the workflow is not possible with what is chosen.
    """
    if "compare.sh" in workflow.scripts:
        return _checked(_comparison(workflow, choice, command))
    found = subject(workflow, choice)
    emission = _emission(found.plan, found.profile, command, found.workflow.expected if found.documented else ())
    base = template_names(emission)
    if workflow.accuracy_task:
        base["accuracy_max_model_len"] = workflow.accuracy_max_model_len
    templates = _templates()
    files = {**render_scripts(emission), **needed_by(emission)}
    if workflow.accuracy_task:
        files["accuracy.sh"] = templates.get_template("accuracy.sh.j2").render(base)
    for script in workflow.scripts:
        own = workflow_script_names(found, emission, base, script)
        files[script] = templates.get_template(TEMPLATES.get(script, f"{script}.j2")).render({**base, **own})
    files["WORKFLOW.md"] = _about(found.workflow, found.workflow.scripts, command, found.plan.calibration)
    return _checked(files)


def needed_by(emission: Emission) -> dict[str, str]:
    """What a plan needs beside its own scripts: several servers, where a node holds more than one."""
    plan = emission.file.plan
    if is_native(plan) or copies_of(plan) < 2:
        return {}
    return _checked(_servers(emission))


def purpose_of(name: str) -> str:
    """What a file of a workflow is for; empty for those of every plan."""
    return PURPOSES.get(name.rsplit("/", 1)[-1], "")


def _emission(plan: Plan, profile: Any, command: str, expected: tuple[str, ...] = ()) -> Emission:
    file = PlanFile(planner_version=__version__, command=command, goal="balanced", plan=plan)
    return Emission(file, profile, plan.memory["checkpoint_bytes"], tuple(predicted_lines(plan)), expected)


def _comparison(workflow: Workflow, choice: Choice, command: str) -> dict[str, str]:
    """A folder for each layout, what compares them, and the prediction."""
    found = compare_partitions(workflow, choice)
    templates = _templates()
    files: dict[str, str] = {}
    for folder, plan, profile in found.plans:
        emission = _emission(plan, profile, command)
        inner = {**render_scripts(emission), **_servers(emission)}
        files |= {f"{folder}/{name}": content for name, content in inner.items()}
    names = {**found.names, "command": command, "planner_version": __version__}
    for script in workflow.scripts:
        files[script] = templates.get_template(f"{script}.j2").render(names)
    files["WORKFLOW.md"] = _about(workflow, workflow.scripts, command, names["calibration"])
    return files


def _servers(emission: Emission) -> dict[str, str]:
    """As ``needed_by``, for one copy too: every layout is started and measured by the same script."""
    base = template_names(emission)
    names = {**base, **instance_names(emission, base)}
    return {name: _templates().get_template(f"{name}.j2").render(names) for name in ("instances.sh", "nginx.conf")}


def calibration_of(files: Mapping[str, str]) -> str:
    """Whose fits predicted the plans among the files of a workflow: ``shipped``, or the files of the user's own."""
    plans = (PlanFile.from_json(text).plan for name, text in files.items() if name.endswith("plan.json"))
    return ", ".join(dict.fromkeys(plan.calibration for plan in plans))


def _about(workflow: Workflow, scripts: tuple[str, ...], command: str, calibration: str) -> str:
    names = {
        "calibration": calibration,
        "workflow": workflow,
        "documents": "; ".join(workflow.sources),
        "planner_version": __version__,
        "command": command,
        "purposes": [(script, PURPOSES[script]) for script in scripts],
        "corrections": workflow.corrections,
    }
    return _templates().get_template("WORKFLOW.md.j2").render(names)


def _checked(files: dict[str, str]) -> dict[str, str]:
    refuse_tokens(files)
    return files


def _templates() -> jinja2.Environment:
    folder = data_dir("templates")
    return jinja_environment([folder / "workflows", folder / "vllm"])
