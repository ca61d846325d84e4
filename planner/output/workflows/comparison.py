"""Whole GPUs against partitions: every way to fill a node with servers of one model, predicted at the same load."""

from __future__ import annotations

from typing import Any

from planner.engine import default_version, existing_version
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile
from planner.model import ResolvedModel
from planner.output.workflows.documents import Workflow
from planner.output.workflows.subject import Choice, chosen_load, profile_of, refuse_options
from planner.planning import (
    Candidate,
    ComparedPoint,
    Objective,
    Plan,
    Ranking,
    Search,
    Serving,
    Space,
    compare_partitions,
    estimate,
)
from planner.workload import Load

REMARKS = (
    "every server is given the same share of the requests in flight, and the prediction takes all of them as busy",
    "partitions of one GPU share its memory bandwidth and power; each holds its own copy of the weights, which is "
    "why the cache of a node shrinks with the number of its servers",
    "tensor parallelism over partitions is not compared: the documents disagree on it, and wrong answers are reported",
)
#: Options of a workflow that a comparison has no use for: each layout is searched.
_IGNORED = ("draft", "image", "weight_dtype", "kv_cache_dtype", "tensor_parallel_size", "gpus")


def partition_workflow(workflow: Workflow, choice: Choice) -> tuple[list[tuple[str, Plan, GpuProfile]], dict[str, Any]]:
    """Folder, plan and GPU of every layout, and the names of the templates.

    Raises IllegalPlanError for a GPU without partitions, and for a model that fits none of them.
    """
    refuse_options(workflow, choice, _IGNORED)
    whole = profile_of(workflow, choice)
    if whole.partition or whole.platform not in workflow.platforms:
        raise IllegalPlanError(
            f"{workflow.name} starts from a whole AMD GPU, {whole.id} is none", hint="such as --gpu mi300x"
        )
    version = existing_version(choice.engine_version) if choice.engine_version else default_version(whole)
    resolved, load, fits = choice.resolve(choice.model or workflow.model), chosen_load(workflow, choice), choice.local
    points, refused = compare_partitions(Serving.of(resolved, whole, version=version, local=fits), whole, load)
    rejected = [f"{gone.gpu}: {gone.reason}" for gone in refused]
    if not points:
        raise IllegalPlanError(
            f"{resolved.resolved} fits neither {whole.name} nor its partitions: {'; '.join(rejected)}",
            hint="choose a smaller model",
        )
    # partition.sh of any partition leads back to whole GPUs
    cut = next((point.gpu for point in points if point.setup.profile.partition), None)
    back = (f"{cut}/partition.sh", "--leave") if cut else ("compare.sh.nothing",)
    plans = [_plan(point, resolved) for point in points]
    rows = [_row(point, plan, back) for point, plan in zip(points, plans, strict=True)]
    names = {
        "model": resolved.resolved,
        "gpu_name": whole.name,
        "engine_version": str(version),
        "load": f"{load.max_concurrency} requests in flight on the node, {load.input_len} input and "
        f"{load.output_len} output tokens each",
        "calibration": ", ".join(dict.fromkeys(plan.calibration for plan in plans)),
        "layouts": rows,
        "steps": sorted(rows, key=lambda row: (row["is_partition"], row["folder"])),  # few changes of the mode
        "rejected": rejected,
        "remarks": REMARKS,
    }
    profiles = (point.setup.profile for point in points)
    return [(row["folder"], plan, gpu) for row, plan, gpu in zip(rows, plans, profiles, strict=True)], names


def _row(point: ComparedPoint, plan: Plan, back: tuple[str, ...]) -> dict[str, Any]:
    deployment, partition = point.setup.deployment, point.setup.profile.partition
    size = deployment.config.tensor_parallel_size
    tokens = deployment.budget.logged_tokens(deployment.budget.num_blocks.mid)
    mode = f"{partition.compute_mode}/{partition.memory_mode}" if partition else f"SPX/NPS1, tensor parallel {size}"
    return {
        "folder": point.gpu if partition else f"{point.gpu}-tp{size}",
        "title": mode,
        "servers": f"{point.setup.servers}",
        "gpus": f"{deployment.config.num_gpus}",
        "throughput": f"{point.tok_per_s.mid:,.0f}",
        "ttft": f"{point.figures['mean_ttft_ms']:,.0f}",
        "tpot": f"{point.figures['mean_tpot_ms']:,.1f}",
        "kv_tokens": f"{point.setup.servers * tokens:,}",
        "predicted": f"{point.tok_per_s.mid:.1f}",
        "is_partition": partition is not None,
        "result": f"results/node-{plan.digest}.json",
        "partition": (f"{point.gpu}/partition.sh",) if partition else back,
    }


def _plan(point: ComparedPoint, resolved: ResolvedModel) -> Plan:
    deployment, load = point.setup.deployment, point.shares[0].workload
    profile, version, concurrency = deployment.profile, deployment.config.version, load.max_concurrency or 1
    candidate = Candidate(resolved, deployment, estimate(deployment, load.input_len, load.output_len, concurrency))
    sent = Load(load.input_len, load.output_len, max_concurrency=concurrency)
    space = Space((Serving.of(resolved, profile, version=version),))
    search = Search(space, Objective("balanced", sent, num_prompts=load.num_prompts))
    return search.plan(Ranking(profile, version, (candidate,), ()), candidate)
