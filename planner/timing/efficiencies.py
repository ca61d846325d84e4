"""The efficiencies of an engine: their meaning, the covariates that they depend on, and their priors."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field

from planner.engine import EngineConfig, Layout, features_of
from planner.hardware import GpuProfile, Quantity, constant, constant_of
from planner.model import FP8_BLOCK, Attention, CompressedAttention, LatentAttention, Model, StateMixer
from planner.resources import calibration_tables
from planner.timing.links import bus_bytes_per_s, joined_nodes, latency_factor
from planner.units import KIB, MIB


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of peaks (0 to 1) and fixed costs (seconds) of one engine."""

    # share of peak memory bandwidth, by the bits that a value is stored in
    weight_bandwidth_16: float
    weight_bandwidth_8: float
    weight_bandwidth_4: float
    expert_bandwidth_16: float
    expert_bandwidth_8: float
    expert_bandwidth_4: float
    kv_bandwidth_16: float
    kv_bandwidth_8: float
    small_bandwidth: float  #: norms, activations, sampler
    # share of dense peak FLOP/s, by the bits that are multiplied
    gemm_flop_16: float
    gemm_flop_8: float
    gemm_flop_4: float
    expert_flop_16: float
    expert_flop_8: float
    expert_flop_4: float
    attention_flop: float  #: prefill attention, of the bf16 peak
    decode_attention_flop: float
    # seconds that a kernel takes however small it is, replayed from a graph
    gemm_launch_s: float
    expert_launch_s: float  #: of the two grouped GEMMs of one MoE layer together
    attention_launch_s: float
    small_launch_s: float
    eager_launch_s: float  #: of the host, for each kernel that it launches without a graph
    # collectives
    collective_s: float  #: of the smallest all-reduce between two ranks
    link_share: float  #: of the links' peak bandwidth
    network_s: float  #: that a collective takes longer over two nodes than inside one, however small it is
    network_share: float  #: of the line rate of the adapters between nodes
    offload_share: float  #: of the link to the host, by copies of KV blocks
    # host
    host_step_s: float  #: scheduling, input preparation and output of one step
    host_seq_s: float  #: and of each sequence in it
    request_s: float  #: from the client to the scheduler and back, once for each request
    frontend_s: float  #: of the API server, for each request of a burst; none goes on before all are read
    tokenize_s: float  #: and for each token of a prompt
    # shapes
    coverage_exponent: float  #: n tokens touch as many experts as n^exponent independent ones
    tile_tok: float  #: rows that pad a matrix multiplication of few rows
    overlap: float  #: share of the shorter of compute and memory that is hidden behind the longer


PARAMETERS: tuple[str, ...] = tuple(f.name for f in fields(Efficiency))
#: Delays outside the engine, of a request on its way to the scheduler.
CLIENT_DELAYS = ("request_s", "frontend_s", "tokenize_s")
#: Shares of something: never above 1.
SHARES: frozenset[str] = frozenset(
    name
    for name in PARAMETERS
    if any(part in name for part in ("bandwidth", "flop", "_share", "overlap", "coverage_exponent"))
)


#: Factors on all of the GPU's time, on GEMMs and experts, and on steps of many prompt tokens: on costs and over shares.
SLOWDOWN, LINEAR, PREFILL = "slowdown", "linear", "prefill"
_FIXED_COSTS = frozenset(("gemm_launch_s", "expert_launch_s", "attention_launch_s", "small_launch_s", "collective_s"))


@lru_cache(maxsize=64)
def targets(target: str) -> dict[str, int]:
    """The parameters that a factor on ``target`` changes, and the power of the factor that multiplies each.

    A target is a parameter, the common part of the names of several (``launch``, ``host``), or one of the three above.
    ``launch`` is what kernels take inside graphs: outside of these the host launches, whatever the GPU."""
    if target == SLOWDOWN:
        rates = (name for name in PARAMETERS if "bandwidth" in name or "flop" in name or name == "link_share")
        return dict.fromkeys(rates, -1) | dict.fromkeys(_FIXED_COSTS, 1)
    if target == LINEAR:
        return {one: power for one, power in targets(SLOWDOWN).items() if one.startswith(("weight", "gemm", "expert"))}
    if target == PREFILL:
        return {name: -1 for name in PARAMETERS if "flop" in name} | {"eager_launch_s": 1}
    if target in PARAMETERS:
        return {target: 1}
    return {name: 1 for name in PARAMETERS if target in name and name != "eager_launch_s"}


class Prior(BaseModel):
    """An efficiency before any run of vLLM."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float = Field(gt=0)
    sd: float = Field(gt=0)  #: of its logarithm: 0.1 is about 10 %
    source: str
    #: values of kernel tables, by the covariates ``architecture`` and ``weights``
    tables: dict[str, dict[str, float]] = {}


@lru_cache(maxsize=1)
def load_priors() -> dict[str, Prior]:
    return {name: Prior(**entry) for name, entry in calibration_tables("priors").items()}


def prior_values(profile: GpuProfile, covariates: Mapping[str, str]) -> dict[str, float]:
    """Each efficiency before any fit: from kernel tables of the GPU or its architecture, else the global prior."""
    architecture, weights = (covariates.get(name, "") for name in ("architecture", "weights"))
    busiest = constant_of("expert_parallel_flop", architecture) if covariates.get("experts") else 1.0
    values = {
        name: prior.tables.get(architecture, {}).get(weights, prior.value)
        * (busiest if name.startswith("expert_flop") else 1.0)
        for name, prior in load_priors().items()
    }
    return values | kernel_values(profile, int(covariates.get("tp", 1)))


def kernel_values(profile: GpuProfile, ranks: int) -> dict[str, float]:
    """The profile's published kernel measurements, as shares of its peaks and seconds."""
    kernels, memory, compute = profile.kernels, profile.memory, profile.compute
    shares = {
        "weight_bandwidth_16": _share(kernels.gemv_bandwidth or memory.bandwidth_measured, memory.bandwidth),
        "weight_bandwidth_8": _share(kernels.fp8_gemm_bandwidth, memory.bandwidth),
        "weight_bandwidth_4": _share(kernels.fp4_gemm_bandwidth, memory.bandwidth),
        "kv_bandwidth_16": _share(kernels.decode_attention_bandwidth, memory.bandwidth),
        "kv_bandwidth_8": _share(kernels.fp8_kv_decode_attention_bandwidth, memory.bandwidth),
        "gemm_flop_16": _share(kernels.bf16_sustained, compute.bf16),
        "gemm_flop_8": _share(kernels.fp8_sustained, compute.fp8),
        "gemm_flop_4": _share(kernels.fp4_sustained, compute.fp4),
    }
    return {name: min(share, 1.0) for name, share in shares.items() if share} | _collective_values(profile, ranks)


def _share(measured: Quantity | None, peak: Quantity | None) -> float:
    return measured.base / peak.base if measured and peak else 0.0


def _collective_values(profile: GpuProfile, ranks: int) -> dict[str, float]:
    curve = next((one for one in profile.interconnect.allreduce if one.gpus == ranks > 1), None)
    if curve is None:
        return {"link_share": constant("pcie_link_share")} if profile.interconnect.kind == "pcie" else {}
    small_s = next((time for size, time in curve.points if size >= 8 * KIB), curve.points[-1][1])
    values = {"collective_s": small_s / latency_factor(profile, ranks)}
    large = [point for point in curve.points if 4 * MIB <= point[0] <= 16 * MIB]
    if large:
        size, time = large[-1]
        bus = size * 2 * (ranks - 1) / ranks / max(time - small_s, 1e-9)
        values["link_share"] = min(bus / bus_bytes_per_s(profile, ranks), 1.0)
    return values


Key = tuple[str, tuple[tuple[str, str], ...]]  #: a factor: its target, and the covariates for which it holds
#: Covariates that most engines do not have: a factor with one of them is of those that have it.
SPECIAL = ("partition", "nodes", "bus", "experts", "tabled", "untabled", "source")


@dataclass(frozen=True, slots=True)
class Line:
    """One factor for each value of ``scope``, with standard deviation ``sd`` of its logarithm before any run."""

    target: str
    scope: tuple[str, ...]
    sd: float
    where: Mapping[str, str] = field(default_factory=dict)  #: engines that have such a factor; empty: all

    def key(self, covariates: Mapping[str, str]) -> Key | None:
        """The factor of an engine, if it has one. A covariate that is not known is a value of its own."""
        lacks = any(name in self.scope and not covariates.get(name) for name in SPECIAL)
        if lacks or not self.where.items() <= covariates.items():
            return None
        return self.target, tuple(sorted((name, covariates.get(name, "")) for name in self.scope))


#: Architectures that vLLM serves with the kernels of another one: they differ in their peaks only.
SAME_KERNELS = {"sm_103": "sm_100"}


def covariates_of(model: Model, profile: GpuProfile, config: EngineConfig) -> dict[str, str]:
    """The covariates of an engine, which its efficiencies may depend on.

    ``gpu`` is the whole GPU of a partition, ``partition`` its mode or empty. ``nodes`` is the number that a network
    joins, or empty. ``bus`` is ``pcie`` where GPUs have no links of their own, or empty. ``experts`` is ``tp`` or
    ``dp`` where TP or DP ranks hold whole experts, or empty. ``untabled`` is a platform whose experts have no kernel
    tables, or empty. ``launches`` is ``rocm`` on AMD, whose GPUs share it. ``release`` is the major and minor version
    of vLLM, ``shape`` one architecture at one size. ``weights`` is ``weight_dtype``, but ``fp8-block`` where scales of
    blocks have kernels of their own, and ``int4`` for AWQ and GPTQ on CUDA, which share Marlin."""
    nodes = joined_nodes(model, profile, config)
    holds_whole = model.is_moe and config.enable_expert_parallel and Layout.of(config).expert_ranks > 1
    architecture = SAME_KERNELS.get(profile.architecture, profile.architecture)
    linear, weights = model.quantization.linear, str(config.weight_dtype)
    if weights == "fp8" and linear and linear.group == FP8_BLOCK.group:
        weights = "fp8-block"
    elif profile.platform == "cuda" and weights in ("int4-awq", "int4-gptq"):
        weights = "int4"
    return {
        "machine": "",  # the user's own
        "gpu": profile.whole,
        "partition": profile.partition.compute_mode if profile.partition else "",
        "architecture": architecture,
        "platform": profile.platform,
        "launches": architecture if profile.platform == "cuda" else profile.platform,
        "links": profile.interconnect.kind,
        "bus": "pcie" if profile.interconnect.kind == "pcie" else "",
        "nodes": str(nodes) if nodes > 1 else "",
        "generation": engine_generation(config, profile),
        "release": ".".join(map(str, config.version.release[:2])),
        "weights": weights,
        "attention": attention_class(model),
        "kind": "moe" if model.is_moe else "dense",
        "experts": ("dp" if config.data_parallel_size > 1 else "tp") if holds_whole else "",
        "tabled": "moe" if model.is_moe and profile.platform == "cuda" else "",
        "untabled": "" if profile.platform == "cuda" else profile.platform,
        "shape": f"{model.model_type or model.architecture}-{model.num_layers}x{model.hidden_size}",
        "tp": str(config.tensor_parallel_size),
    }


def attention_class(model: Model) -> str:
    """``mha`` (grouped or not), ``window``, ``mla``, ``sparse`` (an indexer picks), ``hybrid`` (with states)."""
    mixers = list(model.mixers())
    if any(isinstance(m, StateMixer) for m in mixers):
        return "hybrid"
    if any(isinstance(m, CompressedAttention) or getattr(m, "indexer", None) for m in mixers):
        return "sparse"
    if any(isinstance(m, LatentAttention) for m in mixers):
        return "mla"
    return "window" if any(isinstance(m, Attention) and m.span_tokens for m in mixers) else "mha"


def engine_generation(config: EngineConfig, profile: GpuProfile) -> str:
    """``v0``; ``v1``, ``v1-full`` (graphs of whole decode steps), ``v1-async`` (scheduling overlaps); ``atom``.

    Runs of older releases with ``--async-scheduling`` are of ``v1-async``; newer ones without it keep its kernels."""
    if config.version.build == "vllm+atom-plugin":
        return "atom"
    if config.engine == "V0":
        return "v0"
    found = features_of(config, profile)
    if config.async_scheduling or found.async_scheduling:
        return "v1-async"
    return "v1-full" if found.graph_mode == "full-and-piecewise" else "v1"
