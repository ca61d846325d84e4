"""From a workflow to the text of its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from planner import __version__
from planner.engine import builds
from planner.errors import InputError
from planner.hardware import GpuProfile
from planner.memory import stored_weight_bytes
from planner.model import resolve_model
from planner.output.scripts.emission import Emission, build_script, render_scripts, servers_per_node, template_names
from planner.output.scripts.text import refuse_tokens, render_template
from planner.output.tables.recommendation import predicted_lines
from planner.output.workflows.catalog import Workflow
from planner.output.workflows.comparison import partition_workflow
from planner.output.workflows.documents import published_scores
from planner.output.workflows.names import build_names, instance_names, workflow_names
from planner.output.workflows.offline import OFFLINE_SCRIPTS, offline_points
from planner.output.workflows.printed import PrintedFigure, caveats_of, printed_beside, table_of
from planner.output.workflows.subject import Choice, Subject, subject
from planner.planning import Plan, PlanFile
from planner.units import GB

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
    "points.json": "has what is printed and predicted for each offline measurement, for planner validate",
    "COMPARISON.md": "predicts whole GPUs against partitions",
    "WORKFLOW.md": "lists the files and says what differs from the document",
}
_SERVERS = ("instances.sh", "nginx.conf")


def plan_workflow(workflow: Workflow, choice: Choice, *, command: str) -> dict[str, str]:
    """Every file of a workflow: those of its plan, its own scripts and ``WORKFLOW.md``.

    Raises PlannerError where the workflow is not possible with what is chosen.
    """
    make = _comparison if "compare.sh" in workflow.scripts else _single
    files = make(workflow, choice, command)
    refuse_tokens(files)
    return files


def show_workflow(workflow: Workflow, choice: Choice) -> tuple[Subject, tuple[PrintedFigure, ...]]:
    """What a workflow is about, and every printed figure beside its prediction. Raises as ``plan_workflow``."""
    if "compare.sh" in workflow.scripts:
        raise InputError(f"{workflow.name} has no printed numbers", hint="its COMPARISON.md has the predictions")
    found = subject(workflow, choice)
    return found, printed_beside(found)


def plan_files(file: PlanFile, profile: GpuProfile, *, tunable: bool = False) -> dict[str, str]:
    """What launches, benchmarks and validates a plan: name to content; ``tunable``: tune.sh too.

    Raises as ``render_scripts``.
    """
    plan = file.plan
    lines, scores = tuple(predicted_lines(plan)), published_scores(plan.model, plan.accuracy_task)
    emission = Emission(file, profile, plan.memory["checkpoint_bytes"], lines, scores, tunes=tunable)
    return {**render_scripts(emission), **needed_by(emission)}


def needed_by(emission: Emission) -> dict[str, str]:
    """What a plan needs beside its own scripts: several servers on a node, an image that no registry has."""
    plan = emission.file.plan
    files = _servers(emission) if plan.image and servers_per_node(plan) > 1 else {}
    build = next((build for build in builds().values() if build.image == plan.image), None)
    if build and build_script(plan) == "build_image.sh":
        files["build_image.sh"] = _render("build_image.sh", {**template_names(emission), **build_names(build)})
    refuse_tokens(files)
    return files


def purpose_of(name: str) -> str:
    """What a file of a workflow is for; empty for those of every plan."""
    return PURPOSES.get(name.rsplit("/", 1)[-1], "")


def calibration_of(files: Mapping[str, str]) -> str:
    """Whose fits predicted the plans among the files of a workflow: ``shipped``, or the files of the user's own."""
    plans = (PlanFile.from_json(text).plan for name, text in files.items() if name.endswith("plan.json"))
    return ", ".join(dict.fromkeys(plan.calibration for plan in plans))


def _single(workflow: Workflow, choice: Choice, command: str) -> dict[str, str]:
    """One plan and the scripts around it."""
    found = subject(workflow, choice)
    emission = _emission(found, command)
    base = template_names(emission)
    files = {**render_scripts(emission), **needed_by(emission)}
    scripts = scripts_of(found)
    for script in scripts:
        if script in _SERVERS:
            files |= _servers(emission)
        else:
            template = "offline.sh" if script in OFFLINE_SCRIPTS else script
            files[script] = _render(template, {**base, **workflow_names(found, script)})
    if OFFLINE_SCRIPTS.keys() & set(scripts):
        points = [point.to_json() for point in offline_points(found)]
        files["points.json"] = json.dumps({"digest": found.plan.digest, "points": points}, indent=2) + "\n"
    files["WORKFLOW.md"] = _about(workflow, command, found.plan.calibration, scripts, found)
    return files


def scripts_of(found: Subject) -> tuple[str, ...]:
    """The workflow's scripts: an image that no registry has is built, not pulled."""
    scripts = found.workflow.scripts
    built = found.build is not None and found.build.commit
    return tuple("build_image.sh" if built and script == "pull_image.sh" else script for script in scripts)


def _comparison(workflow: Workflow, choice: Choice, command: str) -> dict[str, str]:
    """A folder for each layout, what compares them, and the prediction."""
    found = partition_workflow(workflow, choice)
    files: dict[str, str] = {}
    for folder, plan, profile in found.plans:
        emission = _plan_emission(plan, profile, command)
        inner = {**render_scripts(emission), **_servers(emission)}
        files |= {f"{folder}/{name}": content for name, content in inner.items()}
    names = {**found.names, "command": command, "planner_version": __version__}
    files |= {script: _render(script, names) for script in workflow.scripts}
    files["WORKFLOW.md"] = _about(workflow, command, found.names["calibration"], workflow.scripts)
    return files


def _emission(found: Subject, command: str) -> Emission:
    """The plan's scripts, with the document's way to measure accuracy, and the disk that the workflow needs."""
    workflow, plan = found.workflow, found.plan
    emission = _plan_emission(plan, found.profile, command)
    draft = stored_weight_bytes(resolve_model(found.draft).model) if found.draft else 0
    own, needs = emission.checkpoint_bytes, []
    if (
        "quantize.sh" in workflow.scripts
    ):  # the 16-bit checkpoint is downloaded, and the quantised one written beside it
        stored = stored_weight_bytes(found.resolved.model)
        needs.append(f"{ceil(own / GB)} GB for the quantised checkpoint")
        own = stored + own
    if draft:
        needs.append(f"{ceil(draft / GB)} GB of {found.draft}")
    return replace(
        emission,
        checkpoint_bytes=own + draft,
        expected_accuracy=published_scores(plan.model, plan.accuracy_task) if found.documented else (),
        accuracy=workflow.accuracy.argv if workflow.accuracy and found.documented else (),
        accuracy_max_model_len=workflow.accuracy_max_model_len,
        disk_includes=tuple(needs),
    )


def _plan_emission(plan: Plan, profile: GpuProfile, command: str) -> Emission:
    file = PlanFile(planner_version=__version__, command=command, goal="balanced", plan=plan)
    return Emission(file, profile, plan.memory["checkpoint_bytes"], tuple(predicted_lines(plan)))


def _servers(emission: Emission) -> dict[str, str]:
    """As ``needed_by``, for one server too: the same script starts and measures every layout."""
    names = instance_names(emission)
    return {name: _render(name, names) for name in _SERVERS}


def _about(
    workflow: Workflow, command: str, calibration: str, scripts: tuple[str, ...], found: Subject | None = None
) -> str:
    remarks = (*workflow.remarks, *(found.build.corrections if found and found.build else ()))
    figures = printed_beside(found) if found else ()
    names = {
        "calibration": calibration,
        "workflow": workflow,
        "documents": "; ".join(document.title for document in workflow.documents),
        "planner_version": __version__,
        "command": command,
        "purposes": [(script, PURPOSES[script]) for script in scripts],
        "documented": found is None or found.documented,
        "differences": table_of(found) if found else (),
        "remarks": remarks,
        "caveats": caveats_of(found, figures) if found else (),
        "printed": [figure.words for figure in figures],
    }
    return _render("WORKFLOW.md", names)


def _render(name: str, names: Mapping[str, object]) -> str:
    return render_template(f"{name}.j2", names, ("workflows", "vllm"))
