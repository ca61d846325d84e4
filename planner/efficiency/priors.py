"""What is believed of each efficiency before any run of vLLM: published kernel tables, and assumptions."""

from __future__ import annotations

import tomllib
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field

from planner.collectives import bus_bytes_per_s, latency_s
from planner.hardware.schema import GpuProfile, Quantity
from planner.resources import data_dir
from planner.units import KIB, MIB

#: Share of PCIe that an all-reduce reaches where nobody measured it: without peer access every byte crosses host
#: memory. 5 of 32 GB/s on RTX 4090 and 8 of 64 on a pair of H100 PCIe, read off serving runs; 0.06 to 0.59 on L40S.
PCIE_LINK_SHARE = 0.2


class Prior(BaseModel):
    """What is believed of a parameter before any run of vLLM."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float = Field(gt=0)
    sd: float = Field(gt=0)  #: of its logarithm: 0.1 is about 10 %
    source: str


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
