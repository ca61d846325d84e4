"""Everything a search may choose on one GPU: checkpoints, layouts, KV dtypes, token budgets and batches.

``Space`` holds the given settings, ``Objective`` the goal or the targets. ``Choices`` has both for one GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from math import inf

from planner.engine import (
    CPU_KVCACHE_SPACE,
    EngineArgs,
    Layout,
    SpeculativeConfig,
    legal_tensor_parallel_sizes,
    recipe_for,
    searched_drafts,
    uses_latent_attention,
)
from planner.errors import PlannerError
from planner.hardware import GpuProfile
from planner.model import Checkpoint, Model, ResolvedModel, quantized_checkpoints, resolve_model
from planner.planning import defaults
from planner.planning.defaults import Goal
from planner.planning.deployment import Deployment
from planner.planning.search.candidate import Rejected
from planner.planning.serving import Serving
from planner.units import GIB
from planner.workload import By, Load, Router, Slo, Targets

#: Publishers of quantised checkpoints with published evaluations, beside the model's own publisher.
TRUSTED_PUBLISHERS = frozenset({"amd", "nvidia", "redhatai"})
#: Integer formats, with the floating-point formats of their width that go first and the matrix units of those.
NATIVE: Mapping[str, Mapping[str, str]] = {
    "int8-gptq": {"fp8": "fp8"},
    **{name: {"nvfp4": "fp4", "mxfp4": "fp4"} for name in ("int4", "int4-awq", "int4-gptq")},
}
#: First release with DP attention and EP in ``vllm serve`` (``--data-parallel-size``: 0.8.3 offline, 0.9.0 served).
DATA_PARALLEL_SINCE = (0, 9)
#: Interconnects over which TP is preferred to pipeline stages as far as it reaches.
FAST_LINKS = frozenset({"nvswitch", "xgmi-mesh"})


@dataclass(frozen=True)
class Space:
    """One model on several types of GPUs, with the settings that are given instead of searched."""

    servings: tuple[Serving, ...]  #: one for each GPU, of one model and with the same settings
    gpus_per_node: int | None = None  #: whole GPUs of one node; None: as the profile says
    nodes: int | None = None  #: most nodes of one server; None: one, or the fewest that hold the model
    prices: Mapping[str, float] = field(default_factory=dict)  #: USD per hour by profile id, before the profile's own
    stock: Mapping[str, int] | None = None  #: whole GPUs by profile id, of which the largest load is asked for
    speculation: bool = False  #: whether drafts by the model's own MTP modules are searched too

    @property
    def model(self) -> ResolvedModel:
        return self.servings[0].resolved

    @property
    def args(self) -> EngineArgs:
        return self.servings[0].args

    @property
    def gpus(self) -> tuple[GpuProfile, ...]:
        """The GPUs, in the asked order."""
        return tuple(serving.profile for serving in self.servings)

    @property
    def coarse(self) -> bool:
        """Whether each GPU is searched coarsely under targets, because there are many.

        Coarse: vLLM's own token budget, an fp8 KV cache only with scales, copies of attention only over whole nodes,
        and the first of the cheapest engines.
        """
        return len(self.servings) > defaults.FEW_GPUS

    def most_gpus(self, profile: GpuProfile) -> int | None:
        """Return the (logical) GPUs of the stock; None without one."""
        if self.stock is None:
            return None
        return self.stock.get(profile.id, self.stock.get(profile.whole, 0)) * profile.parts

    def planned_len(self, load: Load) -> int:
        """Return the KV tokens that are reserved for each request of ``load``."""
        return load.held_len(caching=self.args.enable_prefix_caching is not False)

    def node_size(self, profile: GpuProfile) -> int:
        """Return the logical GPUs of one node: ``gpus_per_node`` packages, at most the profile's."""
        parts = profile.partition.count if profile.partition else 1
        return min((self.gpus_per_node or profile.gpus_per_node) * parts, profile.gpus_per_node)


@dataclass(frozen=True)
class Objective:
    """The goal, or the latency targets and the load of all servers together that meet them at the least cost."""

    goal: Goal
    load: Load  #: of all servers together
    targets: Targets | None = None  #: None: the goal alone decides, at the concurrency of the load
    num_prompts: int | None = None  #: requests of each replay; None: as many as the figures need
    headroom: float = 0.0  #: share of the load that is carried on top of it; ``load`` and ``value`` include it
    spares: int = 0  #: servers of each kind beside those that carry the load
    workload_name: str | None = None

    @property
    def by(self) -> By:
        """The unit of the load: requests per second, or requests in flight."""
        return self.targets.by if self.targets else "concurrency"

    @property
    def value(self) -> float | None:
        """The load of all servers together; None: as much as one server carries."""
        return self.targets.value if self.targets else None

    @property
    def router(self) -> Router:
        """The router between requests and servers."""
        asked = self.targets.router if self.targets else None
        return asked or ("prefix-aware" if self.load.reused else "least-loaded")

    def dealt(self, servers: int) -> Load:
        """The load with the arrivals that one of ``servers`` sees of drawn requests, at any rate.

        Every ``servers``-th arrival of a gamma process is one with that many times the shape: ``--burstiness``. That is
        round-robin; the least loaded server does no worse. At random each server has arrivals like all of them.
        """
        load = self.load
        drawn = load.recorded is None and self.by == "rate" and self.router != "random"
        return replace(load, burstiness=load.burstiness * servers) if drawn and servers > 1 else load

    @property
    def slos(self) -> tuple[Slo, ...]:
        return self.targets.slos if self.targets else ()

    @property
    def confidence(self) -> float:
        """Probability with which the targets are met."""
        return self.targets.confidence if self.targets else defaults.CONFIDENCE

    @property
    def wanted_batch(self) -> int | None:
        """Concurrency at which a goal compares every engine; None where it is searched."""
        latency = defaults.LATENCY_CONCURRENCY if self.goal == "min-latency" else None
        return self.load.max_concurrency or latency

    @property
    def classes(self) -> tuple[tuple[float, Load, tuple[Slo, ...]], ...]:
        """Each class of the load with its share of the requests and its targets; one for a load without classes."""
        rate = sum(one.request_rate for one in self.load.classes)
        classes = (
            (one.request_rate / rate, one, tuple(slo for slo in self.slos if slo.group in ("", one.name)))
            for one in self.load.classes
        )
        return tuple(classes) or ((1.0, self.load, self.slos),)

    def closed_loop(self, concurrency: int) -> Load:
        """Return the load with ``concurrency`` requests in flight, and enough of them for a steady state."""
        return self.load.at_concurrency(concurrency, self.num_prompts or defaults.PROMPTS_PER_SLOT * concurrency)


class Choices:
    """The engines of one GPU that a search may choose, and those that it turned down."""

    def __init__(self, space: Space, objective: Objective, serving: Serving, nodes: tuple[int, ...] = (1,)) -> None:
        """``nodes`` are the numbers of nodes that one server may fill."""
        self.space, self.objective, self.serving, self.nodes = space, objective, serving, nodes
        self.profile, self.version = serving.profile, serving.version
        self.planned_len = space.planned_len(objective.load)
        self.most_gpus = space.most_gpus(self.profile)
        self.rejected: list[Rejected] = []
        self._deployed: dict[tuple[str, EngineArgs], Deployment] = {}

    # ------------------------------------------------------------------ engines

    def checkpoints(self) -> Iterator[ResolvedModel]:
        """Yield the asked model and the checkpoints made of it that this GPU runs; a quantised one has none."""
        asked = self.space.model
        yield asked
        if asked.source == "path":
            return
        own = asked.model.quantization
        seen = {(own.weight_dtype, own.kv_cache_dtype)}
        made = quantized_checkpoints(asked.resolved)
        suited = {one.weight_dtype for one in made if self._unsuitable(one) is None}
        for checkpoint in made:
            reason = self._unsuitable(checkpoint) or self._not_native(checkpoint, suited)
            key = (checkpoint.weight_dtype, checkpoint.kv_cache_dtype)
            if reason is None and key in seen:
                reason = "another checkpoint of the same precision is considered"
            if reason is not None:
                self.reject(checkpoint.id, reason, weight_dtype=checkpoint.weight_dtype)
                continue
            seen.add(key)
            yield resolve_model(checkpoint.id, network=False)

    def _unsuitable(self, checkpoint: Checkpoint) -> str | None:
        profile, publisher = self.profile, self.space.model.resolved.split("/")[0]
        if checkpoint.publisher.lower() not in TRUSTED_PUBLISHERS and checkpoint.publisher != publisher:
            return f"quantised by {checkpoint.publisher}: ask for it by name to plan it"
        if profile.vendor in ("amd", "nvidia") and profile.vendor not in checkpoint.platforms:
            return f"published for {' and '.join(checkpoint.platforms)} GPUs"
        if checkpoint.weight_dtype in profile.emulated:
            return (
                f"{profile.name} computes {checkpoint.weight_dtype} in {profile.emulated[checkpoint.weight_dtype]}: "
                "saves memory, not time; ask for the checkpoint by name to plan it"
            )
        return None

    def _not_native(self, checkpoint: Checkpoint, suited: Set[str]) -> str | None:
        """The reason to leave out a format where the GPU computes another of its width and a checkpoint has it."""
        for native, unit in NATIVE.get(checkpoint.weight_dtype, {}).items():
            if native in suited and self.profile.supports(unit):
                return (
                    f"{self.profile.name} has matrix units for {native}, which goes before {checkpoint.weight_dtype}: "
                    "ask for the checkpoint by name to plan it"
                )
        return None

    def engines(self, resolved: ResolvedModel) -> Iterator[EngineArgs]:
        """Yield layouts x KV dtypes of one checkpoint, with the settings that its recipes advise."""
        layouts = list(self._layouts_over_nodes(resolved.model))
        if not layouts:
            self.reject(resolved.resolved, "no tensor-parallel size is legal")
        for layout in layouts:
            for kv_cache_dtype in self._kv_cache_dtypes(resolved.model):
                args = replace(self.space.args, **asdict(layout), kv_cache_dtype=kv_cache_dtype)
                try:
                    args = self.launched(resolved.model, args)
                except PlannerError as error:
                    self.reject_args(resolved, args, error.cause)
                    continue
                yield args
                for drafts in self._drafts(resolved, args):
                    yield replace(args, speculative_config=drafts)

    def _drafts(self, resolved: ResolvedModel, args: EngineArgs) -> Sequence[SpeculativeConfig]:
        """Drafts to search for an engine: none with stages, which vLLM's proposers do not support, nor with adapters.

        Among many GPUs one number of drafted tokens stands for all.
        """
        asked = args.speculative_config or args.enable_lora or args.pipeline_parallel_size > 1
        if asked or not self.space.speculation:
            return ()
        drafts = tuple(searched_drafts(resolved.model, resolved.resolved))
        return drafts[-1:] if self.space.coarse else drafts

    def launched(self, model: Model, args: EngineArgs) -> EngineArgs:
        """Return ``args`` with a context for the load, and with the recipes' settings where nothing was asked for."""
        args = self._as_recipes_advise(model, args)
        return replace(args, max_model_len=args.max_model_len or self._context(model))

    def deployed(self, resolved: ResolvedModel, args: EngineArgs) -> Deployment:
        """Return one engine; its step times are computed once. Raises IllegalPlanError for what vLLM refuses."""
        key = resolved.resolved, args
        if key not in self._deployed:
            self._deployed[key] = self.serving.changed(resolved=resolved, args=args).deployment
        return self._deployed[key]

    def largest_batch(self, resolved: ResolvedModel, args: EngineArgs) -> int:
        """Largest ``max_num_seqs`` whose requests, all of full length, the low end of the KV cache holds; 0: none.

        The profile run samples for ``max_num_seqs`` rows, so that a larger batch leaves a smaller cache. What the cache
        of one batch holds is nearly always the answer, or one less, and is tried first; then halves.
        """
        closed = 0 if self.objective.targets else self.objective.load.max_concurrency or 0
        batch = args.max_num_seqs or max(defaults.MAX_NUM_SEQS, closed)
        if args.max_num_batched_tokens and not args.max_num_seqs:
            batch = min(batch, args.max_num_batched_tokens)
        low, high = 0, batch  # low is held, more than high is not
        for step in count():
            if low >= high:
                break
            deployment = self.deployed(resolved, replace(args, max_num_seqs=batch))
            held = int(deployment.requests_held(self.planned_len, pessimistic=True))
            low, high = (batch, min(high, held)) if held >= batch else (max(low, held), batch - 1)
            batch = min(held + 1, high) if step < defaults.BATCH_GUESSES else (low + high + 1) // 2
        return low

    def servers_in_stock(self, num_gpus: int) -> int:
        """Servers of so many GPUs that the stock holds, spares left out; without a stock one."""
        return 1 if self.most_gpus is None else max(self.most_gpus // num_gpus - self.objective.spares, 0)

    def gpus_each(self, num_gpus: int) -> float:
        """GPUs that one server counts for: its share of the stock, because what is left over carries nothing."""
        servers = self.servers_in_stock(num_gpus)
        return num_gpus if self.most_gpus is None else self.most_gpus / servers if servers else inf

    # ------------------------------------------------------------------ what was turned down

    def reject(self, model: str, reason: str, **settings: str | int | None) -> None:
        """Remember something that cannot run or lost, with the reason."""
        self.rejected.append(Rejected(self.profile.id, model, reason=reason, **settings))  # type: ignore[arg-type]

    def reject_args(self, resolved: ResolvedModel, args: EngineArgs, reason: str) -> None:
        self.rejected.append(Rejected.of_args(self.profile, resolved, args, reason))

    def left_out(self) -> Iterator[Rejected]:
        """Yield what this search does not look at, with the reasons."""
        for reason in self._not_searched():
            yield Rejected(self.profile.id, self.space.model.resolved, reason=f"left out: {reason}")

    def _not_searched(self) -> Iterator[str]:
        space, model, targets = self.space, self.space.model.model, self.objective.targets
        if space.coarse:
            yield (
                f"among {len(space.gpus)} types of GPUs: other token budgets than vLLM's own, an fp8 KV cache "
                "without scales, stages where TP reaches as many GPUs, DP inside a node; name one --gpu for all of it"
            )
        elif targets is None:
            yield (
                "other token budgets than vLLM's own, which moved the best of 15 such searches by 2 % at most, "
                "and an fp8 KV cache without scales, which may cost accuracy; both are searched under targets, and "
                "--max-num-batched-tokens and --kv-cache-dtype set them"
            )
        elif not space.args.max_num_batched_tokens:
            budgets = ", ".join(map(str, defaults.TOKEN_BUDGETS))
            yield (
                f"token budgets beside vLLM's own and {budgets}, and batches beside the largest "
                f"and {', '.join(map(str, defaults.TARGET_BATCHES))}, which change a plan by a few percent; "
                "--max-num-batched-tokens and --max-num-seqs set others"
            )
        if model.is_moe and not self._whole_experts(model):
            yield f"EP and DP, which vLLM {self.version} does not have"
        if not model.is_moe:
            yield "DP, as copies of a model without experts share nothing: they are servers of their own"
        yield "stages together with DP, and sizes that are no powers of two"
        yield (
            "stages over NVLink or Infinity Fabric where TP reaches as many GPUs: hardly a run with stages was "
            "measured; planner predict serve --pipeline-parallel-size shows them"
        )
        if space.args.speculative_config is None and model.mtp and not space.speculation:
            yield "drafts of the checkpoint's own MTP modules: --speculative-config plans with them"
        if targets is not None:
            yield (
                "of the ranking, prefill and decode on servers of their own, which stand beside the best plan where "
                "the load takes several servers; --disaggregated makes them the plan where they take fewer GPUs"
            )

    # ------------------------------------------------------------------ layouts

    def tensor_parallel_sizes(self, model: Model, *, enable_expert_parallel: bool = False) -> list[int]:
        """Powers of two that are legal inside one node of the newest version; older ones refuse in their own words.

        Whole experts on each rank (EP) may be legal at sizes that cut their blocks.
        """
        legal = legal_tensor_parallel_sizes(
            model,
            self.profile,
            enable_expert_parallel=enable_expert_parallel,
            allow_unvalidated=self.space.args.allow_unvalidated,
            fp8_blocks="refined",
        )
        node = self.space.node_size(self.profile)
        return [size for size in legal if size <= node and size & (size - 1) == 0]

    def _whole_experts(self, model: Model) -> bool:
        """Whether ranks may hold whole experts (EP)."""
        return model.is_moe and self.version.release >= DATA_PARALLEL_SINCE

    def _layouts_over_nodes(self, model: Model) -> Iterator[Layout]:
        """Yield layouts inside one node, and those over as many nodes as a server may fill."""
        for nodes in self.nodes:
            more = self._layouts_over(model, nodes) if nodes > 1 else None
            yield from more or self._layouts(model)

    def _layouts(self, model: Model) -> Iterator[Layout]:
        """Yield every layout inside one node that is worth considering: ``left_out`` names the others.

        TP x pipeline stages; of an MoE also with whole experts on each rank (EP), and with copies of the attention (DP)
        whose ranks share the experts. Over fast links stages are only for GPUs that TP cannot be cut for, since hardly
        a run with stages was measured. Many types of GPUs are searched coarsely: stages as over fast links, DP only
        over whole nodes and where attention is latent, so that TP would repeat the KV cache.
        """
        coarse, node = self.space.coarse, self.space.node_size(self.profile)
        sizes, experts = self.tensor_parallel_sizes(model), self._whole_experts(model)
        whole = self.tensor_parallel_sizes(model, enable_expert_parallel=True) if experts else []
        yield from map(Layout, sizes)
        yield from (Layout(size, enable_expert_parallel=True) for size in whole if size > 1)
        if self.profile.partition is not None:
            return
        shared = experts and (not coarse or uses_latent_attention(model))
        reached = sizes if coarse or self.profile.interconnect.kind in FAST_LINKS else []
        for copies in (2**power for power in range(1, node.bit_length())):
            if shared:
                least = node if coarse else 1
                yield from (Layout(s, 1, copies, True) for s in whole if least <= s * copies <= node)
            fits = [size for size in sizes if size * copies <= node and size * copies not in reached]
            yield from (Layout(size, copies) for size in fits)
            if experts and not coarse:
                yield from (Layout(size, copies, 1, True) for size in fits if size > 1)

    def _layouts_over(self, model: Model, nodes: int) -> Iterator[Layout]:
        """Yield layouts that fill ``nodes`` nodes, with whole experts on each rank (EP) where there are any.

        ::

            TP inside a node, stages over them     one hop of each token from node to node
            TP over all nodes                      two sums in each layer cross the network
            attention by DP, experts by EP         tokens cross it to their experts and back, in each layer

        Ranks fill nodes in the order of TP, PP, DP, so that a TP group whose size divides that of a node stays inside.
        """
        node = self.space.node_size(self.profile)
        most = nodes * node
        for experts in (False, True) if self._whole_experts(model) else (False,):
            inside = self.tensor_parallel_sizes(model, enable_expert_parallel=experts)
            fitting = [size for size in inside if node % size == 0]
            if fitting:
                yield Layout(fitting[-1], most // fitting[-1], 1, experts)
            legal = legal_tensor_parallel_sizes(
                model, self.profile, enable_expert_parallel=experts, fp8_blocks="refined", most=most,
                allow_unvalidated=self.space.args.allow_unvalidated,
            )  # fmt: skip
            if most in legal:
                yield Layout(most, 1, 1, experts)
            if experts:
                yield from (Layout(size, 1, most // size, True) for size in fitting)

    # ------------------------------------------------------------------ settings

    def _kv_cache_dtypes(self, model: Model) -> tuple[str, ...]:
        """fp8 where the checkpoint has measured scales for it; under targets also without, which a warning names."""
        asked, fp8 = self.space.args.kv_cache_dtype, self.profile.supports("fp8")
        if asked != "auto":
            return (asked,)
        if model.quantization.kv_cache_dtype and fp8:
            return ("fp8",)
        return ("auto", "fp8") if self.objective.targets and not self.space.coarse and fp8 else ("auto",)

    def _context(self, model: Model) -> int:
        """``max_model_len`` for the load: rounded up, never above the model's own context."""
        total = self.objective.load.longest_len
        return max(min(defaults.round_context(total), model.max_position_embeddings), total)

    def _as_recipes_advise(self, model: Model, args: EngineArgs) -> EngineArgs:
        """Settings of the recipes where nothing was asked for; ``max_num_seqs`` is searched, not taken.

        Recipes that keep no prefixes were written for prompts that share none: other loads keep vLLM's default.
        """
        advised = recipe_for(model, self.profile, self.version, kv_cache_dtype=args.kv_cache_dtype).settings
        load = self.objective.load
        skipped = {"max_num_seqs"} | ({"enable_prefix_caching"} if load.prefix_len or load.reused else set())
        unset = {
            name: value
            for name, value in advised.items()
            if name not in skipped and getattr(args, name) in (None, "auto")
        }
        return replace(args, **unset)


def why_not(deployment: Deployment) -> str:
    """Return the reason why not one request fits."""
    stage, space = deployment.budget.binding, deployment.config.cpu_kvcache_space
    weights, left = stage.weights.loaded_bytes / GIB, max(stage.left.low, 0)
    if not left:
        memory = deployment.budget.memory_bytes / GIB
        return f"does not fit: {weights:.1f} GiB of weights on each GPU, which has {memory:.1f} GiB"
    return f"does not fit: {weights:.1f} GiB of weights on each GPU leave {left / GIB:.1f} GiB for the KV cache" + (
        f", {CPU_KVCACHE_SPACE} is {space}" if space else ""
    )
