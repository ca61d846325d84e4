"""What a search chooses from: checkpoints of the model, engines on a GPU, and the batches that its memory holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import count

from planner.engine import (
    CPU_KVCACHE_SPACE,
    EngineArgs,
    EngineVersion,
    Layout,
    legal_tensor_parallel_sizes,
    recipe_for,
    uses_latent_attention,
)
from planner.errors import PlannerError
from planner.hardware import GpuProfile
from planner.model import Checkpoint, Model, ResolvedModel, quantized_checkpoints, resolve_model
from planner.planning import defaults
from planner.planning.deployment import Deployment, resolve_deployment
from planner.planning.recommend.request import Rejected, Request
from planner.units import GIB

#: Besides the model's own publisher: those who publish evaluations with their quantised checkpoints.
TRUSTED_PUBLISHERS = frozenset({"amd", "nvidia", "redhatai"})
GUESSES = 2  #: of the largest batch, before the range that is left is halved
#: DP attention with EP has been in ``vllm serve`` since this release (``--data-parallel-size``: 0.8.3 offline, 0.9.0).
DATA_PARALLEL_SINCE = (0, 9)
#: Links over which TP goes as far as it reaches.
FAST_LINKS = frozenset({"nvswitch", "xgmi-mesh"})


def checkpoints(
    asked: ResolvedModel, profile: GpuProfile, rejected: list[Rejected] | None = None
) -> Iterator[ResolvedModel]:
    """The model asked for and the checkpoints made of it that this GPU runs; of a derived one there are none."""
    yield asked
    if asked.source == "path":
        return
    own = asked.model.quantization
    seen = {(own.weight_dtype, own.kv_cache_dtype)}
    for checkpoint in quantized_checkpoints(asked.resolved):
        reason = _not_trusted(checkpoint, asked) or _not_for(checkpoint, profile)
        key = (checkpoint.weight_dtype, checkpoint.kv_cache_dtype)
        if reason is None and key in seen:
            reason = "another checkpoint of the same precision is considered"
        if reason is not None:
            if rejected is not None:
                rejected.append(
                    Rejected(profile.id, checkpoint.id, None, None, reason, weight_dtype=checkpoint.weight_dtype)
                )
            continue
        seen.add(key)
        yield resolve_model(checkpoint.id, network=False)


def _not_trusted(checkpoint: Checkpoint, asked: ResolvedModel) -> str | None:
    if checkpoint.publisher.lower() in TRUSTED_PUBLISHERS or checkpoint.publisher == asked.resolved.split("/")[0]:
        return None
    return f"quantised by {checkpoint.publisher}: ask for it by name to plan it"


def _not_for(checkpoint: Checkpoint, profile: GpuProfile) -> str | None:
    if profile.vendor in ("amd", "nvidia") and profile.vendor not in checkpoint.platforms:
        return f"published for {' and '.join(checkpoint.platforms)} GPUs"
    if checkpoint.weight_dtype in profile.emulated:
        return (
            f"{profile.name} computes {checkpoint.weight_dtype} in {profile.emulated[checkpoint.weight_dtype]}: "
            "saves memory, not time; ask for the checkpoint by name to plan it"
        )
    return None


def deployed(
    request: Request, model: Model, profile: GpuProfile, args: EngineArgs, version: EngineVersion
) -> Deployment:
    """One engine, on the ground that the request stands on. Raises IllegalPlanError for what vLLM refuses."""
    return resolve_deployment(model, profile, args, version, basis=request.basis, calibration=request.calibration)


def node_size(request: Request, profile: GpuProfile) -> int:
    """Logical GPUs of one node: those of ``gpus_per_node`` packages, at most what the profile's nodes have."""
    parts = profile.partition.count if profile.partition else 1
    return min((request.gpus_per_node or profile.gpus_per_node) * parts, profile.gpus_per_node)


def context_of(request: Request, model: Model) -> int:
    """``max_model_len`` for the request's lengths: rounded up, never above the model's own context."""
    total = request.longest_len or request.load.longest_len
    return max(min(defaults.round_context(total), model.max_position_embeddings), total)


def engines(
    request: Request, resolved: ResolvedModel, profile: GpuProfile, version: EngineVersion, rejected: list[Rejected]
) -> Iterator[EngineArgs]:
    """Layouts x KV dtypes, with what the recipes advise: what goals and targets choose from."""
    found = list(wherever(request, resolved.model, profile, version))
    if not found:
        rejected.append(Rejected(profile.id, resolved.resolved, None, None, "no tensor-parallel size is legal"))
    for layout in found:
        for kv_cache_dtype in kv_cache_dtypes(request, resolved.model, profile):
            args = replace(request.args, **asdict(layout), kv_cache_dtype=kv_cache_dtype)
            try:
                yield launched(request, resolved.model, profile, args, version)
            except PlannerError as error:
                rejected.append(Rejected.of_args(profile, resolved, args, error.cause))


def launched(
    request: Request, model: Model, profile: GpuProfile, args: EngineArgs, version: EngineVersion
) -> EngineArgs:
    """``args`` with a context for the request, and what the recipes advise where nothing was asked for."""
    args = _as_recipes_advise(request, args, model, profile, version)
    return replace(args, max_model_len=args.max_model_len or context_of(request, model))


def tensor_parallel_sizes(
    request: Request, model: Model, profile: GpuProfile, *, enable_expert_parallel: bool = False
) -> list[int]:
    """Powers of two that are legal inside one node of the newest version; older ones refuse in their own words.

    Whole experts on each rank (EP) may be legal at sizes that cut their blocks.
    """
    legal = legal_tensor_parallel_sizes(
        model,
        profile,
        enable_expert_parallel=enable_expert_parallel,
        allow_unvalidated=request.args.allow_unvalidated,
        fp8_blocks="refined",
    )
    return [size for size in legal if size <= node_size(request, profile) and size & (size - 1) == 0]


def whole_experts(model: Model, version: EngineVersion) -> bool:
    """Whether ranks may hold whole experts (EP)."""
    return model.is_moe and version.release >= DATA_PARALLEL_SINCE


def layouts(request: Request, model: Model, profile: GpuProfile, version: EngineVersion) -> Iterator[Layout]:
    """Every layout inside one node that is worth considering: ``left_out`` has the others.

    TP x pipeline stages; of an MoE also with whole experts on each rank (EP), and with copies of the attention (DP)
    whose ranks share the experts. Over fast links stages are only for GPUs that TP cannot be cut for, since hardly a
    run with stages was measured. Many types of GPUs are searched coarsely: stages as over fast links, DP only over
    whole nodes and where attention is latent, so that TP would repeat the KV cache.
    """
    sizes, node = tensor_parallel_sizes(request, model, profile), node_size(request, profile)
    experts = whole_experts(model, version)
    whole = tensor_parallel_sizes(request, model, profile, enable_expert_parallel=True) if experts else []
    yield from map(Layout, sizes)
    yield from (Layout(size, enable_expert_parallel=True) for size in whole if size > 1)
    if profile.partition is not None:
        return
    shared = experts and (not request.coarse or uses_latent_attention(model))
    reached = sizes if request.coarse or profile.interconnect.kind in FAST_LINKS else []
    for copies in _powers_of_two(node):
        if shared:
            least = node if request.coarse else 1
            yield from (Layout(s, 1, copies, True) for s in whole if least <= s * copies <= node)
        fits = [size for size in sizes if size * copies <= node and size * copies not in reached]
        yield from (Layout(size, copies) for size in fits)
        if experts and not request.coarse:
            yield from (Layout(size, copies, 1, True) for size in fits if size > 1)


def left_out(request: Request, profile: GpuProfile, version: EngineVersion) -> Iterator[Rejected]:
    """What a search does not look at, with the reason."""
    for reason in _not_searched(request, request.model.model, version):
        yield Rejected(profile.id, request.model.resolved, None, None, f"left out: {reason}")


def _not_searched(request: Request, model: Model, version: EngineVersion) -> Iterator[str]:
    if request.coarse:
        yield (
            f"among {len(request.gpus)} types of GPUs: other token budgets than vLLM's own, an fp8 KV cache "
            "without scales, stages where TP reaches as many GPUs, DP inside a node; name one --gpu for all of it"
        )
    elif request.targets is None:
        yield (
            "other token budgets than vLLM's own, which moved the best of 15 such searches by 2 % at most, "
            "and an fp8 KV cache without scales, which may cost accuracy; both are searched under targets, and "
            "--max-num-batched-tokens and --kv-cache-dtype set them"
        )
    elif not request.args.max_num_batched_tokens:
        budgets = ", ".join(map(str, sorted((*defaults.SHARED_BUDGETS, *defaults.TOKEN_BUDGETS))))
        yield (
            f"token budgets beside vLLM's own and {budgets} (the least with DP), and batches beside the largest "
            f"and {', '.join(map(str, defaults.TARGET_BATCHES))}, which change a plan by a few percent; "
            "--max-num-batched-tokens and --max-num-seqs set others"
        )
    if model.is_moe and not whole_experts(model, version):
        yield f"EP and DP, which vLLM {version} does not have"
    if not model.is_moe:
        yield "DP, as copies of a model without experts share nothing: they are servers of their own"
    yield "stages together with DP, and sizes that are no powers of two"
    yield (
        "stages over NVLink or Infinity Fabric where TP reaches as many GPUs: hardly a run with stages was "
        "measured; planner predict serve --pipeline-parallel-size shows them"
    )
    if request.args.speculative_config is None and model.mtp:
        yield (
            "drafts of the checkpoint's own module, as nobody said how many are accepted: "
            "--speculative-config with --speculative-acceptance-rate plans with them"
        )
    if request.targets is None:
        return
    yield (
        "of the ranking, prefill and decode on servers of their own, which stand beside the best plan where "
        "the load takes several servers; --disaggregated makes them the plan where they take fewer GPUs"
    )


def wherever(request: Request, model: Model, profile: GpuProfile, version: EngineVersion) -> Iterator[Layout]:
    """Layouts inside one node, and those over as many nodes as the request says."""
    for nodes in request.over:
        more = layouts_over(request, model, profile, version, nodes) if nodes > 1 else None
        yield from more or layouts(request, model, profile, version)


def layouts_over(
    request: Request, model: Model, profile: GpuProfile, version: EngineVersion, nodes: int
) -> Iterator[Layout]:
    """Layouts that fill ``nodes`` nodes, with whole experts on each rank (EP) too where there are any.

    ::

        TP inside a node, stages over them     one hop of each token from node to node
        TP over all nodes                      two sums in each layer cross the network
        attention by DP, experts by EP         tokens cross it to their experts and back, in each layer

    Ranks fill nodes in the order of TP, PP, DP, so that a TP group whose size divides that of a node stays inside.
    """
    node = node_size(request, profile)
    for experts in (False, True) if whole_experts(model, version) else (False,):
        inside = tensor_parallel_sizes(request, model, profile, enable_expert_parallel=experts)
        if fitting := [size for size in inside if node % size == 0]:
            yield Layout(fitting[-1], nodes * node // fitting[-1], 1, experts)
        most = nodes * node
        legal = legal_tensor_parallel_sizes(
            model, profile, enable_expert_parallel=experts, fp8_blocks="refined", most=most,
            allow_unvalidated=request.args.allow_unvalidated,
        )  # fmt: skip
        if most in legal:
            yield Layout(most, 1, 1, experts)
        if experts:
            yield from (Layout(size, 1, most // size, True) for size in inside if node % size == 0)


def _powers_of_two(most: int) -> Iterator[int]:
    """2, 4, 8, ... up to ``most``."""
    power = 2
    while power <= most:
        yield power
        power *= 2


def kv_cache_dtypes(request: Request, model: Model, profile: GpuProfile) -> tuple[str, ...]:
    """fp8 where the checkpoint was made for it: its scales are measured, so accuracy is the publisher's."""
    if request.args.kv_cache_dtype != "auto":
        return (request.args.kv_cache_dtype,)
    if model.quantization.kv_cache_dtype and profile.supports("fp8"):
        return ("fp8",)
    if (
        request.targets and not request.coarse and profile.supports("fp8")
    ):  # without scales: said in the plan's warnings
        return ("auto", "fp8")
    return ("auto",)


def _as_recipes_advise(
    request: Request, args: EngineArgs, model: Model, profile: GpuProfile, version: EngineVersion
) -> EngineArgs:
    """Settings of the recipes where nothing was asked for; ``max_num_seqs`` is searched, not taken.

    Recipes that keep no prefixes were written for prompts that have none in common: other loads keep vLLM's default.
    """
    advised = recipe_for(model, profile, version, kv_cache_dtype=args.kv_cache_dtype).settings
    not_taken = {"max_num_seqs", "enable_prefix_caching"} if request.reuses else {"max_num_seqs"}
    unset = {
        name: value
        for name, value in advised.items()
        if name not in not_taken and getattr(args, name) in (None, "auto")
    }
    return replace(args, **unset)


def largest_batch(request: Request, model: Model, profile: GpuProfile, args: EngineArgs, version: EngineVersion) -> int:
    """The largest ``max_num_seqs`` whose requests, all of full length, the pessimistic end of the KV cache holds; at
    most what a search may ask for, 0 where not one fits.

    The profile run samples for ``max_num_seqs`` rows, so that a larger batch leaves a smaller cache. What the cache of
    one batch holds is nearly always the answer, or one less, and is tried first; then halves.
    """
    batch = args.max_num_seqs or max(defaults.MAX_NUM_SEQS, request.max_concurrency or 0)
    if args.max_num_batched_tokens and not args.max_num_seqs:
        batch = min(batch, args.max_num_batched_tokens)
    low, high = 0, batch  # low is held, more than high is not
    for step in count():
        if low >= high:
            break
        deployment = deployed(request, model, profile, replace(args, max_num_seqs=batch), version)
        held = int(deployment.requests_held(request.total_len, pessimistic=True))
        low, high = (batch, min(high, held)) if held >= batch else (max(low, held), batch - 1)
        batch = min(held + 1, high) if step < GUESSES else (low + high + 1) // 2
    return low


def why_not(deployment: Deployment) -> str:
    """Why not one request fits."""
    stage, space = deployment.budget.binding, deployment.config.cpu_kvcache_space
    left = max(stage.left.low, 0)
    if not left:
        weights, memory = stage.weights.loaded_bytes / GIB, deployment.budget.memory_bytes / GIB
        return f"does not fit: {weights:.1f} GiB of weights on each GPU, which has {memory:.1f} GiB"
    return (
        f"does not fit: {stage.weights.loaded_bytes / GIB:.1f} GiB of weights on each GPU leave "
        f"{left / GIB:.1f} GiB for the KV cache" + (f", {CPU_KVCACHE_SPACE} is {space}" if space else "")
    )
