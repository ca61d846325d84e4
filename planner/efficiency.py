"""How much of a GPU's peaks vLLM reaches, and what each kernel, exchange and step costs beside them.

``Efficiency`` holds few numbers, each named and physical: shares of a peak (never above 1) and fixed costs in
seconds. Three sources give them, each in its own file::

    value = prior                   hardware/calibration/priors.toml, or the GPU's own kernel tables where it has any
          x effect(architecture)    hardware/calibration/efficiency.json: factors fitted to measured runs, each for a
          x effect(GPU) x ...       circumstance, drawn towards 1 where runs are few

So a GPU that nobody measured takes the effects of its architecture, and else the prior; ``basis`` says which.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.collectives import bus_bytes_per_s, latency_s
from planner.engine.config import EngineConfig
from planner.engine.features import features_of, graph_batches
from planner.errors import InputError
from planner.hardware.schema import GpuProfile, Quantity
from planner.model.architecture import Attention, CompressedAttention, LatentAttention, Model, StateMixer
from planner.resources import data_dir
from planner.units import KIB, MIB

Basis = Literal["gpu", "architecture", "global"]

#: How near to a configuration measured runs are: the GPU with this model in this precision; both, but not together;
#: the GPU with other models; another GPU of its architecture; none.
Familiarity = Literal["combination", "parts", "gpu", "architecture", "nothing"]
FAMILIARITIES: tuple[Familiarity, ...] = get_args(Familiarity)
#: Metrics whose intervals are those of another: part of the name, and the other.
STANDS_FOR = {
    "throughput": "output_throughput",
    "latency": "avg_latency_s",
    "duration": "output_throughput",
    "p99_itl": "p99_tpot_ms",
    "median_itl": "median_tpot_ms",
    "mean_itl": "mean_tpot_ms",
    "median_e2el": "mean_e2el_ms",
}


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of peaks (0 to 1) and fixed costs (seconds) of one configuration."""

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
    expert_each_s: float  #: for each expert that they touch, beside its bytes
    attention_launch_s: float
    small_launch_s: float
    eager_launch_s: float  #: that the host needs to launch one kernel without a graph
    # exchanges
    collective_s: float  #: of the smallest all-reduce between two ranks
    link_share: float  #: of the links' peak bandwidth
    # host
    host_step_s: float  #: scheduling, input preparation and output of one step
    host_seq_s: float  #: and of each sequence in it
    request_s: float  #: from the client to the scheduler and back, once per request
    frontend_s: float  #: that the front end works on each request of a burst before any of them goes on
    # shapes
    coverage_exponent: float  #: tokens are routed alike: as good as tokens^exponent independent ones
    tile_tok: float  #: rows that a matrix multiplication of few rows is padded by
    expert_tile_tok: float  #: and that of one expert
    overlap: float  #: share of the shorter of compute and memory that is hidden behind the longer
    slowdown: float  #: of everything on the GPU: what measured neighbours show beyond all of the above
    basis: Basis = "global"  #: the nearest circumstance that was measured


PARAMETERS: tuple[str, ...] = tuple(f.name for f in fields(Efficiency) if f.name != "basis")
#: Shares of something: never above 1.
SHARES: frozenset[str] = frozenset(
    name
    for name in PARAMETERS
    if "bandwidth" in name or "flop" in name or name in ("link_share", "overlap", "coverage_exponent")
)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Prior(_Record):
    """What is believed of a parameter before any run of vLLM."""

    value: float = Field(gt=0)
    sd: float = Field(gt=0)  #: of its logarithm: 0.1 is about 10 %
    source: str


class Effect(_Record):
    """A factor on a parameter, or on a group of them (``launch``, ``expert_flop``), under some circumstance."""

    target: str
    when: dict[str, str]
    factor: float = Field(gt=0)
    sd: float = Field(ge=0)  #: of its logarithm
    rows: int = Field(default=0, ge=0)  #: metrics of measured runs under this circumstance


class Spread(_Record):
    """90 % of measurements lie between ``lo`` and ``hi`` times the prediction, by runs that the fit did not see."""

    metric: str
    familiarity: Familiarity
    lo: float = Field(gt=0)
    hi: float = Field(gt=0)
    rows: int = Field(ge=0)


class Combination(_Record):
    """What was measured together."""

    gpu: str
    architecture: str
    shape: str
    weights: str


class Calibration(_Record):
    """The content of a file of fits."""

    name: str
    fitted_on: str  #: which runs, and when
    median_error: dict[str, float] = Field(default_factory=dict)  #: by metric, of runs that the fit did not see
    effects: tuple[Effect, ...] = ()
    spreads: tuple[Spread, ...] = ()
    combinations: tuple[Combination, ...] = ()

    def efficiency(self, circumstances: Mapping[str, str], priors: Mapping[str, float]) -> Efficiency:
        """The efficiency under ``circumstances``, from the values that ``prior_values`` gives."""
        values = dict(priors)
        basis: Basis = "global"
        for effect in self._matching(circumstances):
            for name in targets(effect.target):
                values[name] *= effect.factor
            if "gpu" in effect.when:
                basis = "gpu"
            elif "architecture" in effect.when and basis == "global":
                basis = "architecture"
        for name in SHARES:
            values[name] = min(values[name], 1.0)
        return Efficiency(**values, basis=basis)

    def familiarity(self, circumstances: Mapping[str, str]) -> Familiarity:
        """How near the fit has been to ``circumstances``."""
        gpu, architecture, shape, weights = (circumstances.get(k, "") for k in Combination.model_fields)
        known = self.combinations
        if any((c.gpu, c.shape, c.weights) == (gpu, shape, weights) for c in known):
            return "combination"
        if any(c.gpu == gpu for c in known):
            return "parts" if any(c.shape == shape for c in known) else "gpu"
        return "architecture" if any(c.architecture == architecture for c in known) else "nothing"

    def interval(self, metric: str, circumstances: Mapping[str, str]) -> tuple[float, float] | None:
        """Factors around a prediction of ``metric`` between which 90 % of measurements lie; None where unknown.

        The less familiar the circumstances, the wider: never narrower than what is known of more familiar ones.
        """
        name = next((name for part, name in STANDS_FOR.items() if part in metric), metric)
        near = FAMILIARITIES[: FAMILIARITIES.index(self.familiarity(circumstances)) + 1]
        found = [spread for spread in self.spreads if spread.metric == name and spread.familiarity in near]
        if not found:
            return None
        return min(spread.lo for spread in found), max(spread.hi for spread in found)

    def _matching(self, circumstances: Mapping[str, str]) -> Iterable[Effect]:
        held = circumstances.items()
        return (effect for effect in self.effects if effect.when.items() <= held)


@lru_cache(maxsize=64)
def targets(target: str) -> tuple[str, ...]:
    """The parameters that an effect on ``target`` multiplies: one of them, or all of a group.

    A group is written as the common part of its members' names (``launch``, ``expert_flop``, ``host``).
    """
    if target in PARAMETERS:
        return (target,)
    return tuple(name for name in PARAMETERS if target in name)


#: Share of PCIe that an all-reduce reaches where nobody measured it: without peer access every byte crosses host
#: memory. 5 of 32 GB/s on RTX 4090 and 8 of 64 on a pair of H100 PCIe, read off serving runs; 0.06 to 0.59 on L40S.
PCIE_LINK_SHARE = 0.2


# --- priors -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def load_priors() -> dict[str, Prior]:
    """The priors that we ship, by parameter."""
    path = data_dir("hardware") / "calibration" / "priors.toml"
    return {name: Prior(**entry) for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items()}


def prior_values(profile: GpuProfile, ranks: int) -> dict[str, float]:
    """The value of each parameter before any fit: of the GPU's own kernel tables, else the global prior."""
    return {name: prior.value for name, prior in load_priors().items()} | kernel_values(profile, ranks)


def kernel_values(profile: GpuProfile, ranks: int) -> dict[str, float]:
    """What the profile's published kernel measurements say, as shares of its peaks and seconds."""
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
    return {name: min(share, 1.0) for name, share in shares.items() if share} | _exchange_values(profile, ranks)


def _share(measured: Quantity | None, peak: Quantity | None) -> float:
    return measured.base / peak.base if measured and peak else 0.0


def _exchange_values(profile: GpuProfile, ranks: int) -> dict[str, float]:
    """Latency and bandwidth of the all-reduce that was measured between so many GPUs."""
    curve = profile.interconnect.allreduce_curve(ranks) if ranks > 1 else None
    if curve is None:
        return {"link_share": PCIE_LINK_SHARE} if profile.interconnect.kind == "pcie" else {}
    small_s = next((time for size, time in curve.points if size >= 8 * KIB), curve.points[-1][1])
    values = {"collective_s": small_s / latency_s(profile, ranks, 1.0)}
    large = [point for point in curve.points if 4 * MIB <= point[0] <= 16 * MIB]
    if large:
        size, time = large[-1]
        bus = size * 2 * (ranks - 1) / ranks / max(time - small_s, 1e-9)
        values["link_share"] = min(bus / bus_bytes_per_s(profile, ranks), 1.0)
    return values


# --- fits -------------------------------------------------------------------------------------------------------------


def load_calibration(path: Path | None = None) -> Calibration:
    """Read a file of fits; the one we ship without ``path``. Raises InputError naming what is wrong."""
    return _load(path or data_dir("hardware") / "calibration" / "efficiency.json")


@lru_cache(maxsize=8)
def _load(path: Path) -> Calibration:
    try:
        return parse_calibration(json.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise InputError(f"cannot read the calibration {path}: {error.strerror}", hint="check --calibration") from error
    except ValueError as error:  # not UTF-8, or not JSON
        raise InputError(f"{path} is not JSON: {error}", hint="write it with planner calibrate") from error


def parse_calibration(content: Any, where: str) -> Calibration:
    """A calibration from what was read of ``where``. Raises InputError naming the field that is wrong."""
    try:
        calibration = Calibration.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InputError(f"{where}: {field}: {first['msg']}", hint="write it with planner calibrate") from error
    for effect in calibration.effects:
        if not targets(effect.target):
            raise InputError(
                f"{where}: no parameter is called {effect.target!r}", hint=f"one of {', '.join(PARAMETERS)}"
            )
    return calibration


def efficiency_for(
    model: Model, profile: GpuProfile, config: EngineConfig, calibration: Calibration | None = None
) -> Efficiency:
    """The efficiency of ``model`` on ``profile`` under ``config``, from ``calibration`` or the one we ship."""
    calibration = calibration or load_calibration()
    priors = prior_values(profile, config.tensor_parallel_size)
    return calibration.efficiency(circumstances(model, profile, config), priors)


# --- circumstances ----------------------------------------------------------------------------------------------------


def circumstances(model: Model, profile: GpuProfile, config: EngineConfig) -> dict[str, str]:
    """What an efficiency may depend on, as words.

    ``gpu`` (of a partition: the whole GPU), ``architecture``, ``platform``, ``links``, ``era`` (see there), ``release``
    (major and minor), ``weights``, ``attention``, ``kind`` (dense or moe), ``shape`` (one architecture at one size,
    whoever trained it), ``tp``.
    """
    return {
        "gpu": profile.partition.of if profile.partition else profile.id,
        "architecture": profile.architecture,
        "platform": profile.platform,
        "links": profile.interconnect.kind,
        "era": era(config, profile),
        "release": ".".join(map(str, config.version.release[:2])),
        "weights": config.weight_dtype,
        "attention": attention_class(model),
        "kind": "moe" if model.is_moe else "dense",
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


def era(config: EngineConfig, profile: GpuProfile) -> str:
    """The era of the engine: versions whose host cost and graphs are alike.

    ``v0``; ``v1`` (graphs leave attention out), ``v1-full`` (graphs of whole decode steps), ``v1-async`` (scheduling
    overlaps the GPU); ``atom`` (AMD's plugin).
    """
    if config.version.build == "vllm+atom-plugin":
        return "atom"
    if config.engine == "V0":
        return "v0"
    found = features_of(config, profile)
    if found.async_scheduling:
        return "v1-async"
    return "v1-full" if found.graph_mode == "full-and-piecewise" else "v1"


@dataclass(frozen=True, slots=True)
class Graphs:
    """Which steps replay a captured graph."""

    max_tok: int  #: largest batch, tokens
    prefill: bool  #: steps with prompt tokens too, if piece by piece
    max_context_tok: float  #: longest context of a decoding sequence

    def holds(self, decode_seqs: float, decode_context_tok: float, prefill_tok: float) -> bool:
        """Whether a step of such a batch replays a graph."""
        fits = decode_seqs + prefill_tok <= self.max_tok and (self.prefill or not prefill_tok)
        return fits and decode_context_tok <= self.max_context_tok * max(decode_seqs, 1)


def graphs(config: EngineConfig, profile: GpuProfile) -> Graphs:
    """vLLM's defaults: V0 captures decode steps, V1 any step.

    V0 before 0.6 ran eager beyond a context of 8,192 tokens (``max_context_len_to_capture``); runs of later V0
    releases show no such step.
    """
    found = features_of(config, profile)
    sizes = graph_batches(config, found)
    short = config.version.release < (0, 6)
    return Graphs(sizes[-1] if sizes else 0, found.graph_mode != "decode", 8192 if short else float("inf"))
