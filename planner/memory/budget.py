"""Memory that vLLM has for its KV cache when it starts, by version::

    requested  = ceil(total x gpu_memory_utilization)         total: what the driver reports, not what is free
    available  = requested - weights - activation peak - memory outside torch [- CUDA graphs, from 0.20.0]

The stage whose cache holds the fewest blocks is the limit. A cache of given size leaves the rest of the memory to
everything else, graphs too (``determine_available_memory`` of ``v1/worker/gpu_worker.py``)."""

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import ceil

from planner import engine
from planner.engine import CPU_KVCACHE_SPACE, EngineConfig, EngineVersion, Features, Layout, features_of, graph_batches
from planner.hardware import GpuProfile
from planner.memory import weights as loaded
from planner.memory.cache import BlockPool, CacheSettings, block_pool, element_bytes, layer_specs
from planner.memory.overheads import Constants, Overheads, PeakTerms, exchange_bytes, peak_terms, shipped, total
from planner.model import Attention, CompressedAttention, LatentAttention, Model, PerModel, StateMixer
from planner.units import GIB, Interval


@dataclass(frozen=True, slots=True)
class Basis:
    constants: Constants | None = None  #: fitted overheads; None: those that we ship
    draft: Model | None = None  #: the second model of ``--speculative-config``
    full_graphs: bool = True  #: False: ``--compilation-config`` leaves attention outside the graphs
    any_length: bool = False  #: ``--max-model-len auto``: vLLM shortens the context to what the cache holds


SHIPPED_BASIS = Basis()


@dataclass(frozen=True)
class StageBudget:
    """Memory of one GPU of one pipeline stage, bytes."""

    weights: loaded.RankWeights
    requested_bytes: int  #: that vLLM may take: a share of the memory, or all of it where the cache is given
    unexplained: Interval  #: how far totals of GPUs of one name and weights as loaded differ; what a log has beyond
    activation: Interval
    non_torch: Interval
    graphs: Interval
    graphs_in_budget: bool
    block_bytes: int  #: of one KV block on this GPU
    given_bytes: int | None = None  #: size of the cache, where that is named; None: what is left

    @cached_property
    def available(self) -> Interval:
        """For the KV cache; negative where nothing is left, or less than the size that was given."""
        given, left = self.given_bytes, self.left
        if given is None:
            return left
        return Interval(*(given if end >= given else end - given for end in (left.mid, left.low, left.high)))

    @cached_property
    def left(self) -> Interval:
        taken = [self.activation, self.non_torch, self.unexplained]
        if self.graphs_in_budget:
            taken.append(self.graphs)
        return Interval.exact(self.requested_bytes - self.weights.loaded_bytes).minus(total(taken))

    def num_blocks(self, available_bytes: float) -> int:
        return max(0, int(available_bytes // self.block_bytes)) if self.block_bytes else 0


@dataclass(frozen=True)
class MemoryBudget:
    """Memory of one engine: every stage, the pool of KV blocks over them, and the limiting stage."""

    model: Model
    config: EngineConfig
    features: Features
    overheads: Overheads
    memory_bytes: int  #: that the engine sees on each GPU
    start_up: Interval  #: taken before vLLM looks how much is free, by itself and by other processes
    stages: tuple[StageBudget, ...]
    pool: BlockPool
    any_length: bool = False
    exchange_bytes: int = 0  #: of the memory outside torch: buffers of DeepEP

    @cached_property
    def binding(self) -> StageBudget:
        """The stage with the fewest KV blocks; without a cache, the one with the least memory left."""
        return min(self.stages, key=lambda s: (s.num_blocks(s.available.mid), s.available.mid))

    @cached_property
    def num_blocks(self) -> Interval:
        ends = ("mid", "low", "high")
        return Interval(*(min(s.num_blocks(getattr(s.available, end)) for s in self.stages) for end in ends))

    @cached_property
    def state_blocks(self) -> int:
        return engine.state_blocks(self.model, self.config, self.features)

    def longest(self, num_blocks: float, limit: int) -> int:
        """Return the tokens of the longest request, up to ``limit``, beside the block that vLLM reserves."""
        return self.pool.longest(int(num_blocks) - 1, limit) if self.pool.groups else limit

    @property
    def length_ends(self) -> tuple[int, int]:
        """Return the shortest and the longest context that ``--max-model-len auto`` may get."""
        blocks, limit = self.num_blocks, self.model.max_position_embeddings
        return self.longest(blocks.low, limit), self.longest(blocks.high, limit)

    def needed_bytes(self, stage: StageBudget, num_tokens: int) -> int:
        """KV cache for a request of ``num_tokens`` on a GPU of ``stage``, with the block that vLLM reserves."""
        return (self.pool.blocks_per_request(num_tokens) + 1) * stage.block_bytes

    def logged_tokens(self, num_blocks: float) -> int:
        if not num_blocks or not self.pool.groups:
            return 0
        return self.pool.logged_tokens(
            int(num_blocks), self.config.max_model_len, by_concurrency=self.features.kv_tokens == "concurrency"
        )

    def concurrency(self, num_blocks: float) -> float:
        if not self.pool.groups:
            return float(self.config.max_num_seqs)
        return self.pool.max_concurrency(int(num_blocks), self.config.max_model_len)


def memory_budget(
    model: Model, profile: GpuProfile, config: EngineConfig, basis: Basis = SHIPPED_BASIS
) -> MemoryBudget:
    """Divide the memory of each GPU. Raises InputError for a KV cache type whose layout is not known."""
    layout, found = Layout.of(config), features_of(config, profile)
    full = basis.full_graphs and profile.platform != "cpu"
    found = found if full else replace(found, graph_mode="piecewise")
    overheads = overheads_of(model, profile, config, basis.constants or shipped())
    memory = overheads.find("memory")
    memory_bytes = round(memory.interval.mid) if memory else profile.memory_bytes
    given = config.given_kv_cache_bytes
    requested = memory_bytes if given else ceil(memory_bytes * config.gpu_memory_utilization)
    settings, batches = CacheSettings.of(config, profile), 1  # ``max_concurrent_batches``
    if found.window_batches > 1 and config.pipeline_parallel_size > 1:
        batches = config.pipeline_parallel_size
    elif config.async_scheduling:
        batches = found.window_batches
    in_flight = config.max_num_batched_tokens * batches
    drafts = loaded.draft_specs(model, settings, config.speculative_config, basis.draft)
    sizes = (in_flight, states_per_request(config), config.decode_context_parallel_size)
    pool = block_pool(layer_specs(model, settings, drafts), keeps_windows(model, found), *sizes)
    architecture = loaded.MARLIN if config.mxfp4_use_marlin else profile.architecture
    weights = loaded.stage_weights(model, layout, config.dtype, architecture, found.pipeline_remainder_last)
    if found.absorbs_latents:
        weights = tuple(
            replace(stage, absorbed_bytes=loaded.absorbed_bytes(model, layout, config.dtype, stage.layers))
            for stage in weights
        )
    exchanged = exchange_bytes(model, config, several_nodes=config.num_gpus > profile.joined_gpus)
    terms = peak_terms_of(model, config, overheads).scaled  # the sampler, the forward pass or the vision encoder
    peaks = [total((overheads[name].scaled(size), Interval.exact(fixed))) for name, (size, fixed) in terms.items()]
    non_torch = overheads.non_torch_bytes.plus(Interval.exact(exchanged))
    graphs = graph_bytes(model, config, found, overheads)
    in_budget = found.graphs_in_budget or (given is not None and graphs.mid > 0)
    others = [overheads["reported_memory"].scaled(requested), overheads["unexplained"], overheads["loading"]]
    if model.quantization.assumed:
        others.append(overheads["assumed"].scaled(max(stage.loaded_bytes for stage in weights)))
    parts = total(others), reduce(Interval.larger, peaks), non_torch, graphs
    stages = tuple(
        StageBudget(stage, requested, *parts, in_budget, pool.block_bytes(stage.layers), given)
        for stage in loaded.with_drafts(loaded.with_extras(weights, model, config), model, config, basis.draft)
    )
    start_up = overheads["start_up"].plus(Interval.exact(config.used_gib * GIB))
    stated = memory_bytes, start_up, stages, pool, basis.any_length, exchanged
    return MemoryBudget(model, config, found, overheads, *stated)


def overheads_of(model: Model, profile: GpuProfile, config: EngineConfig, constants: Constants) -> Overheads:
    found = features_of(config, profile)
    # ranks that a GPU has communicators with inside a stage: DP ranks of an MoE share its experts
    ranks = Layout.of(config).expert_ranks if model.is_moe else config.tensor_parallel_size
    where = {
        "gpu": profile.id.split("@")[0], "vendor": profile.vendor, "architecture": profile.architecture,
        "capability": (profile.compute_capability or (0, 0))[0], "link": profile.interconnect.kind,
        "model": model.id, "model_type": model.model_type, "weight_dtype": config.weight_dtype,
        "bits": (model.quantization.linear or model.quantization.base).bits,
        "layers": "moe" if model.is_moe else "dense", "attention": _attention(model), "tensor_parallel_size": ranks,
        "sampler": found.sampler, "engine": config.engine, "graphs_in_budget": found.graphs_in_budget,
    }  # fmt: skip
    return Overheads(constants, config.version.release, where)


def _attention(model: Model) -> str:
    kinds = {mixer.kind if isinstance(mixer, StateMixer) else type(mixer) for mixer in model.distinct_mixers}
    if "gdn" in kinds or CompressedAttention in kinds:
        return "gdn" if "gdn" in kinds else "compressed"
    states = any(isinstance(kind, str) for kind in kinds)
    return "state" if states else "latent" if LatentAttention in kinds else ""


@PerModel
def keeps_windows(model: Model, found: Features) -> bool:
    """True if layers with a window, or with chunks, keep only the tokens that a query can still see."""
    chunked = any(isinstance(m, Attention) and m.chunk for m in model.distinct_mixers)
    return found.keeps_chunks if chunked else found.keeps_windows


def states_per_request(config: EngineConfig) -> int:
    """Recurrent states: two with prefix caching (mode "align"), one per draft token (``num_speculative_blocks``)."""
    drafts = config.speculative_config.num_speculative_tokens if config.speculative_config else 0
    return (2 if config.enable_prefix_caching else 1) + drafts


def peak_terms_of(model: Model, config: EngineConfig, overheads: Overheads) -> PeakTerms:
    return peak_terms(model, config, element_bytes(config.dtype), rocm=overheads.where["vendor"] == "amd")


def graph_bytes(model: Model, config: EngineConfig, found: Features, overheads: Overheads) -> Interval:
    """CUDA or HIP graphs: a fixed part, and a part for each layer of each graph; nothing in eager mode."""
    captures = graph_captures(model, config, found)
    if not captures:
        return Interval.exact(0)
    return total((overheads["graphs"], overheads["graph_each"].scaled(captures)))


def graph_captures(model: Model, config: EngineConfig, found: Features) -> int:
    """Layers times captured batch sizes; twice with adapters (``cudagraph_specialize_lora``, from 0.11.1)."""
    kinds = 2 if config.lora and config.version.release >= (0, 11, 1) else 1
    return kinds * len(graph_batches(config, found)) * model.num_layers


def with_kv_cache_space(
    model: Model, profile: GpuProfile, config: EngineConfig, basis: Basis = SHIPPED_BASIS
) -> EngineConfig:
    """``config`` with as many whole GiB of KV cache as a CPU surely has left, at least 1, where the user set none.

    ``VLLM_CPU_KVCACHE_SPACE`` is for each rank (``platforms/cpu.py``). From 0.20.0 on a worker with less free memory
    refuses to start (``determine_available_memory`` in ``v1/worker/cpu_worker.py``); before, nothing is checked."""
    if not profile.kv_cache_is_given or config.given_kv_cache_bytes:
        return config
    space = max(1, int(memory_budget(model, profile, config, basis).binding.left.low // GIB))
    taken = f"{CPU_KVCACHE_SPACE}={space}: the whole GiB that {config.gpu_memory_utilization:g} of the memory leaves"
    return config.changed(env={CPU_KVCACHE_SPACE: space}, defaults_taken=(*config.defaults_taken, taken))


def unset_kv_cache_space(profile: GpuProfile, version: EngineVersion) -> int | None:
    """GiB of the cache where ``VLLM_CPU_KVCACHE_SPACE`` is not set: 4 to 0.12, half a NUMA node's memory from 0.13.

    None from 0.20.0 on: it is the rest of the utilization at that moment, which no plan can know."""
    if version.release < (0, 13):
        return 4
    return int(profile.memory_bytes / 2 // GIB) if version.release < (0, 20) else None
