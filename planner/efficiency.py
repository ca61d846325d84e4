"""How much of a GPU's peaks vLLM reaches, and what each kernel, exchange and step costs beside them.

``Efficiency`` holds few numbers, each named and physical: shares of a peak (never above 1) and fixed costs in
seconds. They come from ``hardware/calibration/efficiency.toml``, which has a prior for each number and *effects*:
factors for a circumstance, such as a GPU, its architecture, an era of the engine. The value for a configuration is
the prior times every effect whose ``when`` holds::

    gemm_flop_8 on MI300X = prior x effect(architecture gfx942) x effect(gpu mi300x) x ...

So a GPU without effects of its own takes those of its architecture, and else the prior; ``basis`` says which.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.engine.config import EngineConfig
from planner.engine.features import features_of, graph_batches
from planner.errors import InputError
from planner.hardware.schema import GpuProfile
from planner.model.architecture import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Model,
    StateMixer,
)
from planner.resources import data_dir

Basis = Literal["gpu", "architecture", "global"]


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
    # shapes
    coverage_exponent: float  #: tokens are routed alike: as good as tokens^exponent independent ones
    tile_tok: float  #: rows that a matrix multiplication of few rows is padded by
    expert_tile_tok: float  #: and that of one expert
    overlap: float  #: share of the shorter of compute and memory that is hidden behind the longer
    basis: Basis = "global"  #: the nearest circumstance that was measured


PARAMETERS: tuple[str, ...] = tuple(f.name for f in fields(Efficiency) if f.name != "basis")
#: Shares of something: never above 1.
SHARES: frozenset[str] = frozenset(
    name
    for name in PARAMETERS
    if "bandwidth" in name or "flop" in name or name in ("link_share", "overlap", "coverage_exponent")
)


class Prior(BaseModel):
    """What is believed of a parameter before any run of vLLM."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float = Field(gt=0)
    sd: float = Field(gt=0)  #: of its logarithm: 0.1 is about 10 %
    source: str


class Effect(BaseModel):
    """A factor on a parameter, or on a group of them (``launch``, ``expert_flop``), under some circumstance."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str
    when: dict[str, str]
    factor: float = Field(gt=0)
    sd: float = Field(ge=0)  #: of its logarithm
    kind: Literal["prior", "fitted"]
    source: str

    def applies(self, circumstances: Mapping[str, str]) -> bool:
        """Whether every condition of ``when`` holds."""
        return all(circumstances.get(key) == value for key, value in self.when.items())


class Calibration(BaseModel):
    """The content of an efficiency file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    priors: dict[str, Prior]
    effects: tuple[Effect, ...] = ()

    def efficiency(self, circumstances: Mapping[str, str]) -> Efficiency:
        """The efficiency under ``circumstances`` (see ``circumstances``)."""
        values = {name: self.priors[name].value for name in PARAMETERS}
        basis: Basis = "global"
        for effect in self.effects:
            if not effect.applies(circumstances):
                continue
            for name in targets(effect.target):
                values[name] *= effect.factor
            if "gpu" in effect.when:
                basis = "gpu"
            elif "architecture" in effect.when and basis == "global":
                basis = "architecture"
        for name in SHARES:
            values[name] = min(values[name], 1.0)
        return Efficiency(**values, basis=basis)


@lru_cache(maxsize=64)
def targets(target: str) -> tuple[str, ...]:
    """The parameters that an effect on ``target`` multiplies: one of them, or all of a group.

    A group is written as the common part of its members' names (``launch``, ``expert_flop``, ``host``).
    """
    if target in PARAMETERS:
        return (target,)
    return tuple(name for name in PARAMETERS if target in name)


def load_calibration(path: Path | None = None) -> Calibration:
    """Read an efficiency file; the one we ship without ``path``. Raises InputError naming what is wrong."""
    return _load(path or data_dir("hardware") / "calibration" / "efficiency.toml")


@lru_cache(maxsize=8)
def _load(path: Path) -> Calibration:
    try:
        return Calibration.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"cannot read the calibration {path}: {error.strerror}", hint="check --calibration") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}", hint="write it with planner calibrate") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: {where}: {first['msg']}", hint="write it with planner calibrate") from error


def efficiency_for(
    model: Model, profile: GpuProfile, config: EngineConfig, calibration: Calibration | None = None
) -> Efficiency:
    """The efficiency of ``model`` on ``profile`` under ``config``, from ``calibration`` or the one we ship."""
    return (calibration or load_calibration()).efficiency(circumstances(model, profile, config))


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
    """``mha`` (grouped or not), ``mla``, ``sparse`` (an indexer picks), ``hybrid`` (state-space layers among them)."""
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


def captured(config: EngineConfig, profile: GpuProfile) -> tuple[int, bool]:
    """Largest batch that is replayed as a graph, tokens, and whether steps with prompt tokens are too.

    V0 replays decode steps only; V1 any step, if piece by piece.
    """
    found = features_of(config, profile)
    sizes = graph_batches(config, found)
    return (sizes[-1] if sizes else 0), found.graph_mode != "decode"
