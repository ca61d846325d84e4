"""Whole GPUs against partitions: every way to fill a node with servers of one model, predicted at the same load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.engine import EngineArgs, EngineVersion, default_version, parse_version
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile
from planner.memory import Basis
from planner.model import ResolvedModel, resolve_model
from planner.output.workflows.catalog import Workflow
from planner.output.workflows.subject import Choice, chosen_load, profile_of
from planner.planning import (
    Candidate,
    ComparedPoint,
    Plan,
    Question,
    Ranking,
    Request,
    assemble,
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


@dataclass(frozen=True)
class PartitionComparison:
    """The plans of all layouts, each in its folder, and what the templates name."""

    plans: tuple[tuple[str, Plan, GpuProfile], ...]
    names: dict[str, Any]


def partition_workflow(workflow: Workflow, choice: Choice) -> PartitionComparison:
    """Whole GPUs against partitions for a model. Raises IllegalPlanError where there is nothing to compare."""
    whole = profile_of(workflow, choice)
    if whole.partition or whole.platform not in workflow.platforms:
        raise IllegalPlanError(
            f"{workflow.name} starts from a whole AMD GPU, {whole.id} is none", hint="such as --gpu mi300x"
        )
    version = parse_version(choice.engine_version) if choice.engine_version else default_version(whole)
    resolved = resolve_model(
        choice.model or workflow.model,
        revision=choice.revision,
        refresh=choice.refresh,
        timeout_s=choice.timeout_s,
    )
    load, fits = chosen_load(workflow, choice), choice.local
    question = Question(
        resolved.model, EngineArgs(), version=version, basis=Basis(fits.constants), calibration=fits.calibration
    )
    points, refused = compare_partitions(question, whole, load)
    rejected = [f"{gone.gpu}: {gone.reason}" for gone in refused]
    if not points:
        raise IllegalPlanError(
            f"{resolved.resolved} fits neither {whole.name} nor its partitions: {'; '.join(rejected)}",
            hint="choose a smaller model",
        )
    plans = tuple((_folder(point), _plan(point, resolved, version), point.setup.profile) for point in points)
    cut = next((point.gpu for point in points if point.setup.profile.partition), None)
    rows = [_row(point, plan, cut) for point, (_, plan, _) in zip(points, plans, strict=True)]
    names = {
        "model": resolved.resolved,
        "gpu_name": whole.name,
        "engine_version": str(version),
        "load": f"{load.max_concurrency} requests in flight on the node, {load.input_len} input and "
        f"{load.output_len} output tokens each",
        "calibration": ", ".join(dict.fromkeys(plan.calibration for _, plan, _ in plans)),
        "layouts": rows,
        "steps": sorted(rows, key=lambda row: (row["is_partition"], row["folder"])),  # few changes of the mode
        "rejected": rejected,
        "remarks": REMARKS,
    }
    return PartitionComparison(plans, names)


def _folder(point: ComparedPoint) -> str:
    size = point.setup.deployment.config.tensor_parallel_size
    return point.gpu if point.setup.profile.partition else f"{point.gpu}-tp{size}"


def _row(point: ComparedPoint, plan: Plan, cut: str | None) -> dict[str, Any]:
    """What COMPARISON.md and compare.sh name of a layout."""
    deployment, partition = point.setup.deployment, point.setup.profile.partition
    size = deployment.config.tensor_parallel_size
    tokens = deployment.budget.logged_tokens(deployment.budget.num_blocks.mid)
    mode = f"{partition.compute_mode}/{partition.memory_mode}" if partition else f"SPX/NPS1, tensor parallel {size}"
    return {
        "folder": _folder(point),
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
        "partition": _partition_argv(point, cut),
    }


def _plan(point: ComparedPoint, resolved: ResolvedModel, version: EngineVersion) -> Plan:
    """The plan of one of the servers."""
    deployment, load = point.setup.deployment, point.shares[0].workload
    concurrency = load.max_concurrency or 1
    candidate = Candidate(resolved, deployment, estimate(deployment, load.input_len, load.output_len, concurrency))
    request = Request(
        resolved, (deployment.profile,), "balanced", Load(load.input_len, load.output_len), concurrency,
        load.num_prompts,
        version=version, basis=deployment.basis, calibration=deployment.calibration,
    )  # fmt: skip
    return assemble(request, Ranking(deployment.profile, version, (candidate,), ()), candidate)


def _partition_argv(point: ComparedPoint, cut: str | None) -> tuple[str, ...]:
    """How the node gets into the mode of a layout; ``cut`` is a folder whose partition.sh leads back to whole GPUs."""
    if point.setup.profile.partition:
        return (f"{point.gpu}/partition.sh",)
    return (f"{cut}/partition.sh", "--leave") if cut else ("compare.sh.nothing",)
