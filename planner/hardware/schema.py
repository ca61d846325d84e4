"""What a profile in ``hardware/*.toml`` may say. Every number carries unit, source and kind.

A vendor's figure is ``spec``; a benchmark that somebody ran and published is ``measured``; arithmetic on such
figures is ``derived``. What is fitted to runs of vLLM is not here: fits live in ``hardware/calibration``.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from planner.errors import InputError
from planner.units import FACTORS, to_base


def _known_unit(unit: str) -> str:
    if unit not in FACTORS:
        raise ValueError(f"unknown unit {unit!r}, known: {', '.join(FACTORS)}")
    return unit


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Quantity(_Facts):
    """A number with its unit, where it comes from and what kind of number it is."""

    value: float = Field(ge=0)
    unit: Annotated[str, AfterValidator(_known_unit)]
    source: str
    kind: Literal["spec", "measured", "derived"]
    note: str = ""

    @property
    def base(self) -> float:
        """The value in the unit used inside: bytes, seconds, FLOP/s, bytes/s."""
        return to_base(self.value, self.unit)


class Source(_Facts):
    """Where a figure was published."""

    title: str
    retrieved: datetime.date
    url: str = ""


class Rule(_Facts):
    """Whether something may be done on this hardware, and why not."""

    allowed: bool
    reason: str
    source: str
    validated: bool = True  #: False: documented by one source and disputed by another; only when asked for
    fix: str = ""  #: what to do instead


class Partition(_Facts):
    """A logical GPU: a part of an AMD package, a MIG slice of an NVIDIA GPU."""

    of: str  #: profile id of the whole GPU
    compute_mode: str  #: CPX, DPX, QPX, or ``MIG 1g.10gb``
    memory_mode: str = ""  #: NPS1, NPS2, NPS4; empty on NVIDIA
    count: int = Field(ge=1)  #: logical GPUs of one package in this mode
    isolated_bandwidth: bool  #: True where the hardware guarantees the share (MIG); False where siblings compete (CPX)
    tensor_parallel: Rule
    legal: Rule | None = None  #: status of the mode itself, where it is disputed


class Memory(_Facts):
    """Three figures for one memory, never mixed."""

    engine_visible: Quantity  #: total of ``torch.cuda.mem_get_info``: what vLLM budgets on
    driver: Quantity | None = None  #: what nvidia-smi or amd-smi prints
    marketing: Quantity | None = None  #: on the box
    bandwidth: Quantity  #: peak
    bandwidth_measured: Quantity | None = None  #: stream or GEMV benchmark


class Compute(_Facts):
    """Dense peaks by dtype. An absent dtype is unsupported, never derived from another."""

    fp32: Quantity | None = None
    tf32: Quantity | None = None
    fp16: Quantity | None = None
    bf16: Quantity | None = None
    fp8: Quantity | None = None
    int8: Quantity | None = None
    fp6: Quantity | None = None
    fp4: Quantity | None = None


class Interconnect(_Facts):
    """Links between the GPUs of one node."""

    kind: Literal["nvswitch", "nvlink-bridge", "xgmi-mesh", "pcie", "none"]
    link_bandwidth: Quantity | None = None  #: one link, one direction; on a mesh a pair of GPUs shares one link
    links: int | None = None
    bandwidth: Quantity | None = None  #: one GPU to all others, one direction
    allreduce_busbw: Quantity | None = None  #: large-message all-reduce bus bandwidth, measured
    allreduce_latency: Quantity | None = None  #: 16 KB, all GPUs of the node, vLLM's custom kernel under graphs
    domain_gpus: int = Field(default=1, ge=1)  #: GPUs that these links join


class Kernels(_Facts):
    """Published kernel measurements: t = launch + bytes / bandwidth. Priors for the fits."""

    gemv_bandwidth: Quantity | None = None
    gemv_launch: Quantity | None = None
    fp8_gemm_bandwidth: Quantity | None = None
    fp8_gemm_launch: Quantity | None = None
    decode_attention_bandwidth: Quantity | None = None
    decode_attention_launch: Quantity | None = None
    fp8_kv_decode_attention_bandwidth: Quantity | None = None
    bf16_sustained: Quantity | None = None
    fp8_sustained: Quantity | None = None
    fp4_sustained: Quantity | None = None


class Price(_Facts):
    """Rental price of one whole GPU, from aggregators; stale within weeks."""

    low: Quantity | None = None
    typical: Quantity
    high: Quantity | None = None
    date: str


class GpuProfile(_Facts):
    """One GPU, or one mode of partitioning it."""

    id: str
    name: str
    vendor: Literal["amd", "nvidia", "cpu"]
    architecture: str  #: gfx942, sm_90, ...
    platform: Literal["rocm", "cuda", "cpu"]
    aliases: tuple[str, ...] = ()
    gpus_per_node: int = Field(ge=1)  #: logical GPUs in one node
    compute_units: int | None = None  #: CUs or SMs
    memory: Memory
    compute: Compute
    emulated: dict[str, str] = Field(default_factory=dict)  #: weight format -> dtype it is computed in
    fp8_format: str = ""  #: e4m3fnuz on gfx942, e4m3fn elsewhere
    interconnect: Interconnect
    kernels: Kernels = Kernels()
    tdp: Quantity | None = None
    price: Price | None = None
    partition: Partition | None = None
    notes: tuple[str, ...] = ()
    sources: dict[str, Source]

    @property
    def memory_bytes(self) -> int:
        """Memory that the engine sees, bytes."""
        return int(self.memory.engine_visible.base)

    @property
    def memory_bandwidth_bytes_per_s(self) -> float:
        """Peak memory bandwidth."""
        return self.memory.bandwidth.base

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """NVIDIA's compute capability, (9, 0) for sm_90; None elsewhere."""
        if not self.architecture.startswith("sm_"):
            return None
        digits = self.architecture.removeprefix("sm_").rstrip("a")
        return int(digits[:-1]), int(digits[-1])

    def supports(self, dtype: str) -> bool:
        """Whether the matrix units multiply in ``dtype`` (fp16, bf16, fp8, int8, fp4, ...)."""
        return getattr(self.compute, dtype, None) is not None

    def peak_flop_per_s(self, dtype: str) -> float:
        """Dense peak in ``dtype``. Raises InputError when the hardware does not have it."""
        peak: Quantity | None = getattr(self.compute, dtype, None)
        if peak is None:
            have = ", ".join(k for k, v in self.compute if v)
            raise InputError(f"{self.name} has no {dtype} matrix units", hint=f"use one of: {have}")
        return peak.base

    @model_validator(mode="after")
    def _every_source_is_listed(self) -> GpuProfile:
        missing = sorted({q.source for q in _quantities(self)} - self.sources.keys())
        if missing:
            raise ValueError(f"sources not listed: {', '.join(missing)}")
        return self


def _quantities(facts: BaseModel) -> list[Quantity | Rule]:
    """Every number and rule below ``facts``."""
    found: list[Quantity | Rule] = []
    for _, value in facts:
        if isinstance(value, Quantity | Rule):
            found.append(value)
        elif isinstance(value, BaseModel):
            found.extend(_quantities(value))
    return found
