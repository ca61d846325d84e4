"""Whole GPUs against partitions: every way to fill a node with servers of one model, predicted at the same load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from planner.engine import EngineArgs, EngineVersion, default_version, legal_tensor_parallel_sizes, parse_version
from planner.errors import IllegalPlanError, PlannerError
from planner.hardware import GpuProfile, load_all
from planner.memory import Basis
from planner.model import ResolvedModel, resolve_model
from planner.output.workflows.catalog import Workflow
from planner.output.workflows.subject import Choice, chosen_load, context_for, profile_of
from planner.planning import (
    SHIPPED,
    Candidate,
    Deployment,
    Local,
    Plan,
    Ranking,
    Request,
    assemble,
    estimate,
    resolve_deployment,
    simulate_serve,
)
from planner.units import GIB
from planner.workload import Workload

REMARKS = (
    "every server is given the same share of the requests in flight, and the prediction takes all of them as busy",
    "partitions of one package share its memory bandwidth and power; each holds its own copy of the weights, which is "
    "why the cache of a node shrinks with the number of its servers",
    "tensor parallelism over partitions is not compared: the documents disagree on it, and wrong answers are reported",
)


@dataclass(frozen=True)
class NodeFilling:
    """A node full of equal servers: what one of them is, and what it does with its share of the load."""

    folder: str
    title: str
    servers: int
    deployment: Deployment
    workload: Workload  #: of one server
    result: dict[str, Any]  #: of one server, predicted

    @property
    def output_tok_per_s(self) -> float:
        """Of the whole node."""
        throughput: float = self.result["output_throughput"]
        return self.servers * throughput

    def row(self) -> dict[str, Any]:
        """What COMPARISON.md and compare.sh name of a layout."""
        partition = self.deployment.profile.partition
        tokens = self.deployment.budget.logged_tokens(self.deployment.budget.num_blocks.mid)
        return {
            "folder": self.folder,
            "title": self.title,
            "servers": f"{self.servers}",
            "gpus": f"{self.deployment.config.num_gpus}",
            "throughput": f"{self.output_tok_per_s:,.0f}",
            "ttft": f"{self.result['mean_ttft_ms']:,.0f}",
            "tpot": f"{self.result['mean_tpot_ms']:,.1f}",
            "kv_tokens": f"{self.servers * tokens:,}",
            "predicted": f"{self.output_tok_per_s:.1f}",
            "is_partition": partition is not None,
        }


@dataclass(frozen=True)
class PartitionComparison:
    """The plans of all layouts, each in its folder, and what the templates name."""

    plans: tuple[tuple[str, Plan, GpuProfile], ...]
    names: dict[str, Any]


def compare_partitions(workflow: Workflow, choice: Choice) -> PartitionComparison:
    """Whole GPUs against partitions for a model. Raises IllegalPlanError where there is nothing to compare."""
    whole = profile_of(workflow, choice)
    if whole.partition or whole.platform not in workflow.platforms:
        raise IllegalPlanError(
            f"{workflow.name} starts from a whole AMD GPU, {whole.id} is none", hint="such as --gpu mi300x"
        )
    version = parse_version(choice.engine_version) if choice.engine_version else default_version(whole)
    resolved = resolve_model(choice.model or workflow.model, revision=choice.revision, refresh=choice.refresh)
    load = chosen_load(workflow, choice)
    found, rejected = node_fillings(resolved, whole, load, version, choice.local)
    plans = tuple((layout.folder, _plan(layout, resolved, version), layout.deployment.profile) for layout in found)
    rows = [layout.row() for layout in found]
    cut = next((layout.folder for layout in found if layout.deployment.profile.partition), None)
    for row, (_, plan, _) in zip(rows, plans, strict=True):
        row["result"] = f"results/node-{plan.digest}.json"
        row["partition"] = _partition_argv(row, cut)
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


def node_fillings(
    resolved: ResolvedModel, whole: GpuProfile, load: Workload, version: EngineVersion, local: Local = SHIPPED
) -> tuple[list[NodeFilling], list[str]]:
    """The layouts that are possible, most tokens/s first, and why others are not. ``load`` is that of the node.

    Raises IllegalPlanError where none is possible.
    """
    found: list[NodeFilling] = []
    rejected: list[str] = []
    for profile in _family(whole):
        for size in _sizes(resolved, profile, whole):
            try:
                found.append(_layout(resolved, profile, size, load, version, local))
            except PlannerError as error:
                rejected.append(f"{profile.id}, tensor parallel {size}: {error.cause}")
    if not found:
        raise IllegalPlanError(
            f"{resolved.resolved} fits neither {whole.name} nor its partitions: {'; '.join(rejected)}",
            hint="choose a smaller model",
        )
    return sorted(found, key=lambda layout: -layout.output_tok_per_s), rejected


def _family(whole: GpuProfile) -> Iterator[GpuProfile]:
    yield whole
    for profile in load_all():
        part = profile.partition
        if part and part.of == whole.id and part.compute_mode == "CPX":
            yield profile.model_copy(update={"gpus_per_node": whole.gpus_per_node * part.count})


def _sizes(resolved: ResolvedModel, profile: GpuProfile, whole: GpuProfile) -> Iterator[int]:
    """One GPU for each server and, for whole GPUs, one server on all of them."""
    yield 1
    largest = whole.gpus_per_node
    if profile is whole and largest in legal_tensor_parallel_sizes(resolved.model, profile):
        yield largest


def _layout(
    resolved: ResolvedModel, profile: GpuProfile, size: int, load: Workload, version: EngineVersion, local: Local
) -> NodeFilling:
    servers = profile.gpus_per_node // size
    share = max((load.max_concurrency or servers) // servers, 1)
    one = replace(load, max_concurrency=share, num_prompts=max(load.num_prompts // servers, share))
    args = EngineArgs(tensor_parallel_size=size, max_num_seqs=share, max_model_len=context_for(load.total_len))
    fits: dict[str, Any] = {"basis": Basis(local.constants), "calibration": local.calibration}
    deployment = resolve_deployment(resolved.model, profile, args, version, **fits)
    if deployment.requests_held(load.total_len) < 1:
        stage = deployment.budget.binding
        raise IllegalPlanError(
            f"{stage.weights.loaded_bytes / GIB:.1f} GiB of weights leave {max(stage.available.mid, 0) / GIB:.1f} GiB "
            "for the KV cache, not enough for one request",
            hint="choose a smaller model",
        )
    if profile.partition:
        folder, title = profile.id, f"{profile.partition.compute_mode}/{profile.partition.memory_mode}"
    else:
        folder, title = f"{profile.id}-tp{size}", f"SPX/NPS1, tensor parallel {size}"
    return NodeFilling(folder, title, servers, deployment, one, simulate_serve(deployment, one).result)


def _plan(layout: NodeFilling, resolved: ResolvedModel, version: EngineVersion) -> Plan:
    deployment, load = layout.deployment, layout.workload
    concurrency = load.max_concurrency or 1
    candidate = Candidate(resolved, deployment, estimate(deployment, load.input_len, load.output_len, concurrency))
    request = Request(
        resolved, (deployment.profile,), "balanced", load.input_len, load.output_len, concurrency, load.num_prompts,
        version=version, basis=deployment.basis, calibration=deployment.calibration,
    )  # fmt: skip
    return assemble(request, Ranking(deployment.profile, version, (candidate,), ()), candidate)


def _partition_argv(row: dict[str, Any], cut: str | None) -> tuple[str, ...]:
    """How the node gets into the mode of a layout; ``cut`` is a folder whose partition.sh leads back to whole GPUs."""
    if row["is_partition"]:
        return (f"{row['folder']}/partition.sh",)
    return (f"{cut}/partition.sh", "--leave") if cut else ("compare.sh.nothing",)
