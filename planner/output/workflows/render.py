"""The files of a workflow: those of its plan, its own scripts and ``WORKFLOW.md``."""

import json
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from planner import __version__, engine, planning
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile
from planner.memory import stored_weight_bytes
from planner.model import resolve_model
from planner.output.render import at
from planner.output.scripts import emission as scripts
from planner.output.scripts.text import refuse_tokens, render_template
from planner.output.tables.recommendation import predicted_lines
from planner.output.tables.shared import calibration_note
from planner.output.workflows.documents import Workflow, instead_of, purposes, score_lines
from planner.output.workflows.offline import OFFLINE_SCRIPTS, guidellm_names, offline_names, offline_points, sweep_names
from planner.output.workflows.printed import PRINTED, caveats_of, changed_options, printed_beside
from planner.output.workflows.subject import Choice, Subject
from planner.units import GB
from planner.workload import Load

MAD_NEWEST = (0, 10, 0)  #: MAD's script passes --num-scheduler-steps and calls benchmarks/benchmark_*.py


def plan_workflow(workflow: Workflow, choice: Choice, *, command: str) -> dict[str, str]:
    """Every file of a workflow. Raises PlannerError if the workflow is impossible with the options."""
    files = (_comparison if "compare.sh" in workflow.scripts else _single)(workflow, choice, command)
    refuse_tokens(files)
    return files


def plan_files(file: planning.PlanFile, profile: GpuProfile, *, tunable: bool = False) -> dict[str, str]:
    """Files that launch, benchmark and validate a plan, by name; ``tunable``: tune.sh too."""
    scores = score_lines(file.plan.model, file.plan.accuracy_task)
    emission = _emission(file, profile, expected_accuracy=scores, tunes=tunable)
    return {**scripts.render_scripts(emission), **scripts.needed_by(emission)}


def purpose_of(name: str) -> str:
    """The purpose of a file of a workflow; empty for unknown files."""
    return purposes().get(name.rsplit("/", 1)[-1], "")


def calibration_of(files: Mapping[str, str]) -> str:
    """The fits that predicted the plans of a workflow, and the GPUs that they rest on."""
    plans = (planning.PlanFile.from_json(text).plan for name, text in files.items() if name.endswith("plan.json"))
    return "; ".join(calibration_note((plan.gpu, plan.calibration, plan.evidence_note) for plan in plans))


def _single(workflow: Workflow, choice: Choice, command: str) -> dict[str, str]:
    job = Subject(workflow, choice)
    emission = _of_job(job, command)
    base = scripts.template_names(emission)
    files = {**scripts.render_scripts(emission), **scripts.needed_by(emission)}
    built = job.build is not None and job.build.commit  # built instead of pulled
    steps = ["build_image.sh" if built and one == "pull_image.sh" else one for one in workflow.scripts]
    offline = [script for script in steps if script in OFFLINE_SCRIPTS]
    for script in steps:
        if script in scripts.SERVER_FILES:
            files |= scripts.servers_files(emission)
        else:
            template = "offline.sh" if script in offline else script
            files[script] = _render(template, {**base, **_script_names(job, script)})
    if offline:
        points = [point.to_json() for point in offline_points(job)]
        files["points.json"] = json.dumps({"digest": job.plan.digest, "points": points}, indent=2) + "\n"
    files["WORKFLOW.md"] = _about(workflow, command, job.plan.calibration, steps, job)
    return files


def _about(workflow: Workflow, command: str, calibration: str, steps: Sequence[str], job: Subject | None = None) -> str:
    figures = printed_beside(job) if job else ()
    corrections = job.build.corrections if job and job.build else ()
    names = {
        "calibration": calibration,
        "workflow": workflow,
        "documents": "; ".join(document.title for document in workflow.documents),
        "planner_version": __version__,
        "command": command,
        "purposes": [(script, purposes()[script]) for script in steps],
        "instead": [(" ".join(entry["words"]), entry["here"]) for entry in instead_of(workflow.documents)],
        "remarks": (*workflow.remarks, *corrections),
        "has_runbook": job is not None,  # of a comparison each layout has one
        "documented": job is None or job.documented,
        "changed": [tuple(row.values()) for row in changed_options(job)] if job else (),
        "caveats": caveats_of(job, figures) if job else (),
        "printed_titles": [column.title for column in PRINTED],
        "printed": [[column.cell(column.value(figure)) for column in PRINTED] for figure in figures],
    }
    return _render("WORKFLOW.md", names)


def _render(name: str, names: Mapping[str, object]) -> str:
    return render_template(f"{name}.j2", names, ("workflows", "vllm"))


def _emission(file: planning.PlanFile, profile: GpuProfile, **more: Any) -> scripts.Emission:
    plan = file.plan
    own = {"checkpoint_bytes": plan.memory["checkpoint_bytes"], "predicted_lines": tuple(predicted_lines(plan))}
    return scripts.Emission(file, profile, **own | more)


def _file(plan: planning.Plan, command: str) -> planning.PlanFile:
    return planning.PlanFile(planner_version=__version__, command=command, goal="balanced", plan=plan)


def _of_job(job: Subject, command: str) -> scripts.Emission:
    workflow, plan = job.workflow, job.plan
    needed, parts = plan.memory["checkpoint_bytes"], []
    if "quantize.sh" in workflow.scripts:  # the 16-bit checkpoint is downloaded, the quantised one written beside it
        written = stored_weight_bytes(job.deployment.model)
        parts.append(f"{ceil(written / GB)} GB for the quantised checkpoint")
        needed += written
    if job.draft:
        draft_bytes = stored_weight_bytes(resolve_model(job.draft).model)
        parts.append(f"{ceil(draft_bytes / GB)} GB of {job.draft}")
        needed += draft_bytes
    documents: dict[str, Any] = {}
    if job.documented:
        documents = {"expected_accuracy": score_lines(plan.model, plan.accuracy_task), "accuracy": workflow.accuracy}
    return _emission(
        _file(plan, command), job.profile, checkpoint_bytes=needed, disk_includes=tuple(parts),
        accuracy_max_model_len=workflow.accuracy_max_model_len, **documents,
    )  # fmt: skip


def _script_names(job: Subject, script: str) -> dict[str, Any]:
    plan, version, own = job.plan, job.version, dict[str, Any]()
    # the request of the NVIDIA recipe
    body = {"model": scripts.served_name(plan), "prompt": "San Francisco is a", "max_tokens": 20, "temperature": 0}
    match script:
        case "build_image.sh" if job.build:
            own = scripts.build_names(job.build)
        case "build_engine.sh":
            own = {"base_image": engine.image_for(job.profile, version).name, "vllm_ref": f"v{version}"}
        case "sweep.sh":
            own = sweep_names(plan, job.deployment)
        case "guidellm.sh":
            own = guidellm_names(plan)
        case "mad.sh":
            own = _mad_names(job)
        case _ if script in OFFLINE_SCRIPTS:
            own = offline_names(job, script)
    worker = script.removesuffix(".sh").replace("_", "-")
    own["revision"] = job.choice.revision
    return {"built": bool(job.build), "draft": job.draft, "request_body": json.dumps(body), "job": worker, **own}


def _mad_names(job: Subject) -> dict[str, Any]:
    if job.version.release > MAD_NEWEST:
        cause = f"AMD's vllm_benchmark_report.sh passes --num-scheduler-steps, which vLLM {job.version} does not take"
        hint = "choose an --engine-version up to 0.10.0, or planner workflow latency and throughput"
        raise IllegalPlanError(cause, hint=hint)
    own = "float8" if job.deployment.config.weight_dtype == "fp8" else "float16"
    return {"mad_dtype": job.workflow.dtypes.get(job.choice.weight_dtype or "", own), "points": offline_points(job)}


#: Options of a workflow that a comparison has no use for: each layout is searched.
_IGNORED = ("draft", "image", "weight_dtype", "kv_cache_dtype", "tensor_parallel_size", "gpus")


def _comparison(workflow: Workflow, choice: Choice, command: str) -> dict[str, str]:
    """A folder of files for every layout, and their comparison. Raises IllegalPlanError if none fits."""
    choice.refuse(workflow, _IGNORED)
    whole = choice.profile(workflow)
    if whole.partition or whole.platform not in workflow.platforms:
        raise IllegalPlanError(f"{workflow.name} starts from a whole AMD GPU", hint="such as --gpu mi300x")
    version = planning.version_for(choice.engine_version, whole)
    resolved, load = choice.resolve(choice.model or workflow.model), choice.load(workflow)
    serving = planning.Serving.of(resolved, whole, version=version, local=choice.local)
    points, refused = planning.compare_partitions(serving, whole, load)
    rejected = [f"{gone.gpu}: {gone.reason}" for gone in refused]
    if not points:
        cause = f"{resolved.resolved} fits neither {whole.name} nor its partitions: {'; '.join(rejected)}"
        raise IllegalPlanError(cause, hint="choose a smaller model")
    # partition.sh of any partition leads back to whole GPUs
    cut = next((point.gpu for point in points if point.rented.profile.partition), None)
    back = (f"{cut}/partition.sh", "--leave") if cut else ("compare.sh.nothing",)
    rows = [_row(point, _plan(point, serving), back) for point in points]
    calibration = ", ".join(dict.fromkeys(row["plan"].calibration for row in rows))
    names = {
        "model": resolved.resolved,
        "gpu_name": whole.name,
        "engine_version": str(version),
        "load": load,
        "calibration": calibration,
        "layouts": rows,
        "steps": sorted(rows, key=lambda row: (bool(row["profile"].partition), row["folder"])),  # few changes of mode
        "rejected": rejected,
        "command": command,
        "planner_version": __version__,
    }
    files: dict[str, str] = {}
    for row in rows:
        emission = _emission(_file(row["plan"], command), row["profile"])
        inner = {**scripts.render_scripts(emission), **scripts.servers_files(emission)}
        files |= {f"{row['folder']}/{name}": content for name, content in inner.items()}
    files |= {script: _render(script, names) for script in workflow.scripts}
    files["WORKFLOW.md"] = _about(workflow, command, calibration, workflow.scripts)
    return files


def _row(point: planning.ComparedPoint, plan: planning.Plan, back: tuple[str, ...]) -> dict[str, Any]:
    served, profile, size = point.candidate, point.rented.profile, plan.tensor_parallel_size
    partition = profile.partition
    tokens = served.deployment.budget.logged_tokens(served.deployment.budget.num_blocks.mid)
    mode = f"{partition.compute_mode}/{partition.memory_mode}" if partition else f"SPX/NPS1, tensor parallel {size}"
    return {
        "plan": plan,
        "profile": profile,
        "folder": point.gpu if partition else f"{point.gpu}-tp{size}",
        "cells": (
            *(mode, served.servers, plan.num_gpus, f"{point.tok_per_s.mid:,.0f}"),
            f"{at(point, 'latencies.mean_ttft_ms.mid'):,.0f}",
            f"{at(point, 'latencies.mean_tpot_ms.mid'):,.1f}",
            f"{served.servers * tokens:,}",
        ),
        "predicted": f"{point.tok_per_s.mid:.1f}",
        "result": f"results/{plan.node_result_name}",
        "partition": (f"{point.gpu}/partition.sh",) if partition else back,
    }


def _plan(point: planning.ComparedPoint, serving: planning.Serving) -> planning.Plan:
    space, load = planning.Space((serving.changed(profile=point.rented.profile),)), point.busiest.load
    sent = Load(load.input_len, load.output_len, max_concurrency=load.max_concurrency)
    search = planning.Search(space, planning.Objective("balanced", sent, num_prompts=load.num_prompts))
    return search.plan(search.of_one(point.candidate.deployment))
