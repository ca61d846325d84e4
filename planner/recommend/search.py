"""Which settings? Enumerate, prune what memory forbids, rank by the closed form, replay the finalists.

Goals::

    max-throughput   output tokens/s per GPU
    min-latency      mean E2EL at the given concurrency
    balanced         the knee of the Pareto front of tokens/s per GPU against tokens/s per user: the point
                     farthest from the chord between the ends of the front, both axes logarithmic. The front
                     begins at the concurrency of min-latency and ends at max-throughput, so it lies between them

Searched: checkpoint (precision) x KV dtype x tensor-parallel size x ``max_num_seqs``. ``max_num_seqs`` and the
client's concurrency are one number, as the recipes advise. A batch counts as fitting when the pessimistic end of
the memory budget holds all its requests at full length, so nothing that is recommended preempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import Any

from planner.engine.config import EngineArgs, EngineConfig
from planner.engine.images import default_version
from planner.engine.recipes import recipe_for
from planner.engine.version import EngineVersion
from planner.errors import PlannerError
from planner.hardware import GpuProfile
from planner.memory.budget import SHIPPED_BASIS, Basis
from planner.model import catalog
from planner.model.architecture import Model
from planner.model.resolve import ResolvedModel, load_model
from planner.parallelism import legal_tensor_parallel_sizes
from planner.plan import Goal
from planner.predict import Deployment, Estimate, deploy, estimate, predict_serve, with_intervals
from planner.units import GIB, MS
from planner.workload import Workload

DEFAULT_CONCURRENCY = 8  #: of min-latency, where none is given
MAX_NUM_SEQS = 1024  #: vLLM's own default on large GPUs; larger batches are not searched
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, MAX_NUM_SEQS)
#: Besides the model's own publisher: those who publish evaluations with their quantised checkpoints.
TRUSTED_PUBLISHERS = frozenset({"amd", "nvidia", "redhatai"})
FINALISTS = 6  #: engines of each GPU whose best batches are replayed
FINALISTS_PER_ENGINE = 2
PROMPTS_PER_SLOT = 5  #: the recipes: at least five times the concurrency, to see the steady state
PERCENTILES = (50, 90, 99)
CONTEXT_STEP = 256  #: max_model_len is the request's length rounded up to this, so that no odd value is launched


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for."""

    model: ResolvedModel
    gpus: tuple[GpuProfile, ...]
    goal: Goal
    input_len: int
    output_len: int
    max_concurrency: int | None = None
    num_prompts: int | None = None
    gpus_per_node: int | None = None  #: GPUs that one node has; None: as the profile says
    version: EngineVersion | None = None  #: None: the newest with an image for each GPU
    basis: Basis = SHIPPED_BASIS  #: overheads of memory: ours, or those of the user's own machines
    args: EngineArgs = field(default_factory=EngineArgs)  #: settings that are given, not searched


@dataclass(frozen=True, slots=True)
class Rejected:
    """Something that was considered, and why it lost or cannot run."""

    gpu: str
    model: str
    tensor_parallel_size: int | None
    kv_cache_dtype: str | None
    reason: str


@dataclass(frozen=True)
class Candidate:
    """One engine that fits, at one concurrency."""

    resolved: ResolvedModel
    deployment: Deployment
    estimate: Estimate
    figures: dict[str, Any] | None = None  #: of the replay, for the finalists; the others have the closed form alone

    @property
    def config(self) -> EngineConfig:
        """The engine's settings."""
        return self.deployment.config

    @property
    def tok_per_s_per_gpu(self) -> float:
        """Output tokens per second and GPU."""
        if self.figures:
            return float(self.figures["output_throughput_per_gpu"])
        return self.estimate.output_tok_per_s / self.config.num_gpus

    @property
    def tok_per_s_per_user(self) -> float:
        """Output tokens per second of one request."""
        if self.figures:
            return float(self.figures["output_throughput_per_user"])
        return self.estimate.tok_per_s_per_user

    @property
    def e2el_s(self) -> float:
        """Mean end-to-end latency."""
        return self.figures["mean_e2el_ms"] * MS if self.figures else self.estimate.e2el_s


@dataclass(frozen=True)
class Ranking:
    """The candidates of one GPU, best first, and what was turned down."""

    profile: GpuProfile
    version: EngineVersion
    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]

    @property
    def best(self) -> Candidate | None:
        """The plan to make, None where nothing fits."""
        return self.candidates[0] if self.candidates else None


def rank(request: Request) -> list[Ranking]:
    """The candidates of each GPU of the request, in the order of the request."""
    return [_rank_gpu(request, profile) for profile in request.gpus]


def _rank_gpu(request: Request, profile: GpuProfile) -> Ranking:
    version = request.version or default_version(profile)
    candidates: list[Candidate] = []
    rejected: list[Rejected] = []
    for resolved in checkpoints(request.model, profile, rejected):
        for args in _engines(request, resolved.model, profile, version, rejected):
            found = list(_batches(request, resolved, profile, args, version, rejected))
            candidates += found
    candidates = best_first(candidates, request.goal)
    candidates = best_first(_replayed(request, candidates), request.goal)
    if candidates:
        rejected += _runners_up(candidates, request.goal)
    return Ranking(profile, version, tuple(candidates), tuple(rejected))


# --- what there is to choose from --------------------------------------------------------------------------------


def checkpoints(
    asked: ResolvedModel, profile: GpuProfile, rejected: list[Rejected] | None = None
) -> Iterator[ResolvedModel]:
    """The model asked for and, where that is not quantised, the quantised checkpoints that this GPU runs."""
    yield asked
    if asked.model.quantization.method or asked.source == "path":
        return
    seen: set[tuple[str, str | None]] = set()
    for checkpoint in catalog.checkpoints_of(asked.resolved):
        reason = _not_trusted(checkpoint, asked) or _not_for(checkpoint, profile)
        key = (checkpoint.weight_dtype, checkpoint.kv_cache_dtype)
        if reason is None and key in seen:
            reason = "another checkpoint of the same precision is considered"
        if reason is not None:
            if rejected is not None:
                rejected.append(Rejected(profile.id, checkpoint.id, None, None, reason))
            continue
        seen.add(key)
        yield load_model(checkpoint.id, network=False)


def _not_trusted(checkpoint: catalog.Checkpoint, asked: ResolvedModel) -> str | None:
    if checkpoint.publisher.lower() in TRUSTED_PUBLISHERS or checkpoint.publisher == asked.resolved.split("/")[0]:
        return None
    return f"quantised by {checkpoint.publisher}: ask for it by name to plan it"


def _not_for(checkpoint: catalog.Checkpoint, profile: GpuProfile) -> str | None:
    if profile.vendor in ("amd", "nvidia") and profile.vendor not in checkpoint.platforms:
        return f"published for {' and '.join(checkpoint.platforms)} GPUs"
    if checkpoint.weight_dtype in profile.emulated:
        return (
            f"{profile.name} computes {checkpoint.weight_dtype} in {profile.emulated[checkpoint.weight_dtype]}: "
            "saves memory, not time; ask for the checkpoint by name to plan it"
        )
    return None


def _engines(
    request: Request, model: Model, profile: GpuProfile, version: EngineVersion, rejected: list[Rejected]
) -> Iterator[EngineArgs]:
    """Tensor-parallel sizes x KV dtypes."""
    node = node_size(request, profile)
    sizes = [
        size
        for size in legal_tensor_parallel_sizes(model, profile, allow_unvalidated=request.args.allow_unvalidated)
        if size <= node and size & (size - 1) == 0
    ]
    if not sizes:
        rejected.append(Rejected(profile.id, model.id, None, None, "no tensor-parallel size is legal"))
    for size in sizes:
        for kv_cache_dtype in _kv_cache_dtypes(request, model, profile):
            args = replace(request.args, tensor_parallel_size=size, kv_cache_dtype=kv_cache_dtype)
            args = _as_recipes_advise(args, model, profile, version)
            yield replace(args, max_model_len=args.max_model_len or context_of(request, model))


def _as_recipes_advise(args: EngineArgs, model: Model, profile: GpuProfile, version: EngineVersion) -> EngineArgs:
    """Settings of the recipes where nothing was asked for; ``max_num_seqs`` is searched, not taken."""
    advised = recipe_for(model, profile, version, kv_cache_dtype=args.kv_cache_dtype).settings
    unset = {
        name: value
        for name, value in advised.items()
        if name != "max_num_seqs" and getattr(args, name) in (None, "auto")
    }
    return replace(args, **unset)


def workload_of(request: Request, concurrency: int) -> Workload:
    """What the benchmark of a plan sends."""
    prompts = request.num_prompts or PROMPTS_PER_SLOT * concurrency
    return Workload(request.input_len, request.output_len, prompts, max_concurrency=concurrency)


def predicted(deployment: Deployment, workload: Workload) -> dict[str, Any]:
    """The keys of the benchmark's result file, and the two rates that plans are compared by."""
    result = predict_serve(deployment, workload, percentiles=PERCENTILES).result
    rates = {
        "output_throughput_per_gpu": result["output_throughput"] / deployment.config.num_gpus,
        "output_throughput_per_user": result["output_throughput"] / (workload.max_concurrency or 1),
    }
    return {**{key: value for key, value in result.items() if value is not None}, **with_intervals(deployment, rates)}


def node_size(request: Request, profile: GpuProfile) -> int:
    """Logical GPUs of one node: those of ``gpus_per_node`` packages, at most what the profile's nodes have."""
    parts = profile.partition.count if profile.partition else 1
    return min((request.gpus_per_node or profile.gpus_per_node) * parts, profile.gpus_per_node)


def context_of(request: Request, model: Model) -> int:
    """``max_model_len`` for the request's lengths: rounded up, never above the model's own context."""
    total = request.input_len + request.output_len
    return max(min(-(-total // CONTEXT_STEP) * CONTEXT_STEP, model.max_position_embeddings), total)


def _kv_cache_dtypes(request: Request, model: Model, profile: GpuProfile) -> tuple[str, ...]:
    """fp8 where the checkpoint was made for it: its scales are measured, so accuracy is the publisher's."""
    if request.args.kv_cache_dtype != "auto":
        return (request.args.kv_cache_dtype,)
    if model.quantization.kv_cache_dtype and profile.supports("fp8"):
        return ("fp8",)
    return ("auto",)


# --- which of it fits, and how fast it is ------------------------------------------------------------------------


def _batches(
    request: Request,
    resolved: ResolvedModel,
    profile: GpuProfile,
    args: EngineArgs,
    version: EngineVersion,
    rejected: list[Rejected],
) -> Iterator[Candidate]:
    """The concurrencies at which this engine is worth considering."""
    model = resolved.model

    def reject(reason: str) -> None:
        size, kv_cache_dtype = args.tensor_parallel_size, args.kv_cache_dtype
        rejected.append(Rejected(profile.id, model.id, size, kv_cache_dtype, reason))

    try:
        largest = _largest_batch(request, model, profile, args, version)
        if largest < 1:
            reject(_why_not(deploy(model, profile, args, version, basis=request.basis)))
            return
        batches = _worth_trying(request, largest)
        if not batches:
            reject(f"holds {largest} requests of this length at once, {wanted_batch(request)} are asked for")
        for batch in batches:
            deployment = deploy(model, profile, replace(args, max_num_seqs=batch), version, basis=request.basis)
            figures = estimate(deployment, request.input_len, request.output_len, batch)
            yield Candidate(resolved, deployment, figures)
    except PlannerError as error:
        reject(error.cause)


def _largest_batch(
    request: Request, model: Model, profile: GpuProfile, args: EngineArgs, version: EngineVersion
) -> int:
    """Requests of full length that the pessimistic end of the KV cache holds; at most MAX_NUM_SEQS."""
    batch = args.max_num_seqs or MAX_NUM_SEQS
    holds = 0
    for _ in range(2):  # a smaller max_num_seqs frees activation memory, which may hold a few requests more
        deployment = deploy(model, profile, replace(args, max_num_seqs=batch), version, basis=request.basis)
        holds = int(deployment.requests_held(request.input_len + request.output_len, pessimistic=True))
        if holds >= batch:
            return batch
        batch = max(holds, 1)
    return holds


def _why_not(deployment: Deployment) -> str:
    stage = deployment.budget.binding
    left = max(stage.available.low, 0)
    return (
        f"does not fit: {stage.weights.loaded_bytes / GIB:.1f} GiB of weights on each GPU leave "
        f"{left / GIB:.1f} GiB for the KV cache"
    )


def wanted_batch(request: Request) -> int | None:
    """The concurrency that every engine is compared at; None where it is searched."""
    if request.args.max_num_seqs or request.max_concurrency:
        return request.args.max_num_seqs or request.max_concurrency
    return DEFAULT_CONCURRENCY if request.goal == "min-latency" else None


def _worth_trying(request: Request, largest: int) -> Sequence[int]:
    if wanted := wanted_batch(request):
        return (wanted,) if wanted <= largest else ()
    least = DEFAULT_CONCURRENCY if request.goal == "balanced" else 1
    return sorted({batch for batch in BATCHES if least <= batch < largest} | {largest})


# --- what won, what lost -----------------------------------------------------------------------------------------


def best_first(candidates: Sequence[Candidate], goal: Goal) -> list[Candidate]:
    """By merit; of equals, the one with fewer GPUs and the smaller batch."""
    merit = merits(candidates, goal)
    return sorted(candidates, key=lambda c: (-merit[id(c)], c.config.num_gpus, c.config.max_num_seqs))


def _replayed(request: Request, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The best candidates of the best engines with their replay, the others as they are."""
    engines = list(dict.fromkeys(map(_engine, candidates)))[:FINALISTS]
    left = dict.fromkeys(engines, FINALISTS_PER_ENGINE)
    found: list[Candidate] = []
    for candidate in candidates:
        engine = _engine(candidate)
        if left.get(engine):
            left[engine] -= 1
            workload = workload_of(request, candidate.estimate.concurrency)
            found.append(replace(candidate, figures=predicted(candidate.deployment, workload)))
        else:
            found.append(candidate)
    return found


def merits(candidates: Sequence[Candidate], goal: Goal) -> dict[int, float]:
    """How well each candidate serves the goal, by ``id``; larger is better."""
    if goal == "min-latency":
        return {id(c): -c.e2el_s for c in candidates}
    if goal == "max-throughput":
        return {id(c): c.tok_per_s_per_gpu for c in candidates}
    front = pareto(candidates)
    if not front:
        return {}
    user, each = log(front[0].tok_per_s_per_user), log(front[-1].tok_per_s_per_gpu)
    # of a front of one point any axis length does
    users = user - log(front[-1].tok_per_s_per_user) or 1.0
    gpus = each - log(front[0].tok_per_s_per_gpu) or 1.0
    return {
        id(c): (log(c.tok_per_s_per_user) - user) / users + (log(c.tok_per_s_per_gpu) - each) / gpus for c in candidates
    }


def pareto(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those that no other beats in both tokens/s per GPU and tokens/s per user; fastest per user first."""
    front: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (-c.tok_per_s_per_user, -c.tok_per_s_per_gpu)):
        if not front or candidate.tok_per_s_per_gpu > front[-1].tok_per_s_per_gpu:
            front.append(candidate)
    return front


def _runners_up(candidates: Sequence[Candidate], goal: Goal) -> Iterator[Rejected]:
    """The best of each engine that lost, against the winner."""
    winner = candidates[0]
    seen = {_engine(winner)}
    for candidate in candidates[1:]:
        if _engine(candidate) in seen:
            continue
        seen.add(_engine(candidate))
        config = candidate.config
        yield Rejected(
            candidate.deployment.profile.id,
            candidate.resolved.resolved,
            config.tensor_parallel_size,
            config.kv_cache_dtype,
            f"{figure(candidate, goal)} against {figure(winner, goal)}",
        )


def _engine(candidate: Candidate) -> tuple[Any, ...]:
    config = candidate.config
    return candidate.resolved.resolved, config.tensor_parallel_size, config.kv_cache_dtype


def figure(candidate: Candidate, goal: Goal) -> str:
    """The number that the goal is about, in words."""
    if goal == "min-latency":
        return f"mean E2EL {candidate.e2el_s:.2f} s"
    if goal == "max-throughput":
        return f"{candidate.tok_per_s_per_gpu:,.0f} output tokens/s per GPU"
    return f"{candidate.tok_per_s_per_gpu:,.0f} tokens/s per GPU at {candidate.tok_per_s_per_user:.0f} per user"
