"""From a workflow to the text of its files."""

from __future__ import annotations

from collections.abc import Mapping

from planner import __version__
from planner.hardware import GpuProfile
from planner.output.scripts.emission import Emission, servers_per_node, template_names
from planner.output.scripts.render import refuse_tokens, render_scripts, render_template
from planner.output.tables.recommendation import predicted_lines
from planner.output.workflows.catalog import Workflow
from planner.output.workflows.comparison import partition_workflow
from planner.output.workflows.names import instance_names, workflow_names
from planner.output.workflows.offline import OFFLINE_SCRIPTS
from planner.output.workflows.subject import Choice, subject
from planner.planning import Plan, PlanFile

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


def needed_by(emission: Emission) -> dict[str, str]:
    """What a plan needs beside its own scripts: several servers, where a node holds more than one."""
    plan = emission.file.plan
    files = _servers(emission) if plan.image and servers_per_node(plan) > 1 else {}
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
    emission = _emission(found.plan, found.profile, command, workflow.expected if found.documented else ())
    base = template_names(emission)
    files = {**render_scripts(emission), **needed_by(emission)}
    if workflow.accuracy_task:
        base["accuracy_max_model_len"] = workflow.accuracy_max_model_len
        files["accuracy.sh"] = _render("accuracy.sh", base)
    for script in workflow.scripts:
        if script in _SERVERS:
            files |= _servers(emission)
        else:
            template = "offline.sh" if script in OFFLINE_SCRIPTS else script
            files[script] = _render(template, {**base, **workflow_names(found, script)})
    files["WORKFLOW.md"] = _about(workflow, command, found.plan.calibration)
    return files


def _comparison(workflow: Workflow, choice: Choice, command: str) -> dict[str, str]:
    """A folder for each layout, what compares them, and the prediction."""
    found = partition_workflow(workflow, choice)
    files: dict[str, str] = {}
    for folder, plan, profile in found.plans:
        emission = _emission(plan, profile, command)
        inner = {**render_scripts(emission), **_servers(emission)}
        files |= {f"{folder}/{name}": content for name, content in inner.items()}
    names = {**found.names, "command": command, "planner_version": __version__}
    files |= {script: _render(script, names) for script in workflow.scripts}
    files["WORKFLOW.md"] = _about(workflow, command, found.names["calibration"])
    return files


def _emission(plan: Plan, profile: GpuProfile, command: str, expected: tuple[str, ...] = ()) -> Emission:
    file = PlanFile(planner_version=__version__, command=command, goal="balanced", plan=plan)
    return Emission(file, profile, plan.memory["checkpoint_bytes"], tuple(predicted_lines(plan)), expected)


def _servers(emission: Emission) -> dict[str, str]:
    """As ``needed_by``, for one server too: the same script starts and measures every layout."""
    names = instance_names(emission)
    return {name: _render(name, names) for name in _SERVERS}


def _about(workflow: Workflow, command: str, calibration: str) -> str:
    names = {
        "calibration": calibration,
        "workflow": workflow,
        "documents": "; ".join(workflow.sources),
        "planner_version": __version__,
        "command": command,
        "purposes": [(script, PURPOSES[script]) for script in workflow.scripts],
        "corrections": workflow.corrections,
    }
    return _render("WORKFLOW.md", names)


def _render(name: str, names: Mapping[str, object]) -> str:
    return render_template(f"{name}.j2", names, ("workflows", "vllm"))
