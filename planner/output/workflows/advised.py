"""Settings that a document recommends for a goal beside those that ``planner recommend`` finds, both as predicted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from planner.model import resolve_model
from planner.output.workflows.documents import Advice, advice
from planner.output.workflows.subject import Subject
from planner.planning import Deployment, Request, defaults, rank, resolve_deployment, simulate_serve
from planner.workload import Load


@dataclass(frozen=True, slots=True)
class AdvisedRow:
    """One setting for a goal, and what is predicted for it with as many requests in flight as it batches."""

    goal: str
    whose: str
    tensor_parallel_size: int
    max_num_seqs: int
    weight_dtype: str
    output_throughput_per_gpu: float
    mean_ttft_ms: float
    mean_tpot_ms: float


def advised_beside(found: Subject) -> tuple[AdvisedRow, ...]:
    """The document's advice for this GPU and model, and the recommended settings for the same goals."""
    if not found.documented or found.printed is None:
        return ()
    ids = {document.id for document in found.workflow.documents}
    own = [one for one in advice() if one.document in ids and one.gpu == found.profile.id]
    return tuple(row for one in own for row in (*_documents(found, one), *_recommended(found, one)))


def _documents(found: Subject, one: Advice) -> Iterator[AdvisedRow]:
    for size in one.tensor_parallel_size:
        args = replace(found.args, tensor_parallel_size=size, max_num_seqs=one.max_num_seqs)
        deployment = resolve_deployment(
            found.resolved.model, found.profile, args, found.version, basis=found.deployment.basis,
            calibration=found.deployment.calibration,
        )  # fmt: skip
        if deployment.checked.fits:
            yield _row(found, one.goal, "document", deployment, one.max_num_seqs)


def _recommended(found: Subject, one: Advice) -> Iterator[AdvisedRow]:
    """For the same checkpoint: the model that it was made of would let another precision win."""
    load = found.plan.workload.sent
    asked = Request(
        resolve_model(found.plan.model), (found.profile,), cast(defaults.Goal, one.goal),
        Load(load.input_len, load.output_len), version=found.version, basis=found.choice.basis,
        calibration=found.choice.local.calibration,
    )  # fmt: skip
    (ranking,) = rank(asked)
    if ranking.best:
        concurrency = ranking.best.estimate.concurrency
        yield _row(found, one.goal, "planner", ranking.best.deployment, concurrency)


def _row(found: Subject, goal: str, whose: str, deployment: Deployment, concurrency: int) -> AdvisedRow:
    like, config = found.plan.workload, deployment.config
    prompts = defaults.PROMPTS_PER_SLOT * concurrency
    load = Load(like.input_len, like.output_len, prompts, max_concurrency=concurrency)
    result = simulate_serve(deployment, load).figures
    return AdvisedRow(
        goal, whose, config.tensor_parallel_size, config.max_num_seqs, config.weight_dtype,
        result["output_throughput"] / config.num_gpus, result["mean_ttft_ms"], result["mean_tpot_ms"],
    )  # fmt: skip
