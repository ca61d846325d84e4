"""FLOP and bytes of single kernels at the peaks of a GPU, and the coordinates of their surfaces in ``kernels``.

All functions take numbers, or arrays of many shapes in a fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import e
from typing import Any

from planner.errors import InputError
from planner.hardware import GpuProfile

#: By precision: bytes of a weight and of an activation with their scales, and the peaks it may run against.
PRECISIONS: dict[str, tuple[float, float, tuple[str, ...]]] = {
    "bf16": (2, 2, ("bf16", "fp16")),
    "fp8": (1, 1, ("fp8",)),
    "fp8_block": (1, 1, ("fp8",)),
    "int8": (1, 1, ("int8",)),
    "nvfp4": (0.5625, 0.5625, ("fp4",)),
    "int4": (0.53, 2, ("bf16", "fp16")),
    "mxfp4": (0.53, 2, ("bf16", "fp16")),  # 16-bit activations
    "mxfp4_mxfp8": (0.53, 1, ("fp8", "bf16")),
    "mxfp4_mxfp4": (0.53, 0.53, ("fp4",)),
}
KV_BYTES = {"bf16": 2, "fp8": 1}
LONGEST_PROMPT = 16384  #: that was measured: of longer ones only the tiles of queries count
SKEWED_EXPONENT = 0.88  #: n tokens routed by a power law touch as many experts as n^0.88 routed at random


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel at the peaks of a GPU. Numbers, or arrays of many shapes in a fit."""

    base_s: Any  #: arithmetic and memory traffic one after the other
    bound_s: Any  #: the longer of both: no kernel is faster
    at: dict[str, Any]  #: coordinates


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks of one GPU."""

    flop_per_s: Mapping[str, float]
    bytes_per_s: float

    @classmethod
    def of(cls, profile: GpuProfile) -> Peaks:
        """The peaks of ``profile`` in the dtypes that it supports."""
        names = ("bf16", "fp16", "fp8", "int8", "fp4")
        flop = {name: profile.peak_flop_per_s(name) for name in names if profile.supports(name)}
        return cls(flop, profile.memory_bandwidth_bytes_per_s)

    def work(self, flop: Any, moved_bytes: Any, before_bytes: Any, peaks: tuple[str, ...], at: dict[str, Any]) -> Work:
        """``before_bytes`` move in a kernel that runs first. Raises InputError where no peak of ``peaks`` is known."""
        rate = next((self.flop_per_s[name] for name in peaks if name in self.flop_per_s), None)
        if rate is None:
            raise InputError(f"this GPU has no peak for {' or '.join(peaks)}", hint="choose a precision it supports")
        compute_s, memory_s, before_s = flop / rate, moved_bytes / self.bytes_per_s, before_bytes / self.bytes_per_s
        return Work(compute_s + memory_s + before_s, _most(compute_s, memory_s), at)


def _most(one: Any, other: Any) -> Any:
    return (one + other + abs(one - other)) / 2


def _least(one: Any, other: Any) -> Any:
    return (one + other - abs(one - other)) / 2


def gemm_work(peaks: Peaks, precision: str, m: Any, n: Any, k: Any) -> Work:
    """``m`` rows times a matrix of ``k`` inputs and ``n`` outputs, with the quantisation of the rows."""
    weight, activation, names = PRECISIONS[precision]
    before = m * k * (2 + activation) if activation < 2 else 0.0 * m
    moved = n * k * weight + m * k * activation + 2 * m * n
    return peaks.work(2 * m * n * k, moved, before, names, {"m": m, "n": n, "k": k})


def experts_work(
    peaks: Peaks, precision: str, tokens: Any, hidden: Any, inner: Any, experts: Any, topk: Any, ep: Any = 1,
    skew: Any = 1.0, matrices: Any = 3,
) -> Work:  # fmt: skip
    """The grouped GEMMs of one MoE layer on one rank of ``ep``: ``tokens`` of all ranks, ``inner`` of this rank.

    ``skew``: 0 for balanced routing, 1 for a power law. ``matrices``: 3 with a gate, else 2.
    """
    weight, _, names = PRECISIONS[precision]
    random = experts * (1 - (1 - topk / experts) ** (tokens**SKEWED_EXPONENT))
    touched = (1 - skew) * _least(experts, tokens * topk) + skew * random
    rows = tokens * topk / ep
    moved = _most(touched / ep, 1.0) * matrices * hidden * inner * weight
    moved = moved + rows * (2 * hidden + (2 * matrices - 2) * inner) * 2
    at = {
        "rows": tokens * topk / experts, "inner": inner, "hidden": hidden, "held": experts / ep,
        "topk": topk, "ep": ep, "skew": 1 + (e - 1) * skew,
    }  # fmt: skip
    return peaks.work(2 * matrices * hidden * inner * rows, moved, 0.0 * rows, names, at)


def decode_attention_work(
    peaks: Peaks, kv: str, batch: Any, context: Any, heads: Any, kv_heads: Any, head_dim: Any, window: Any = 0
) -> Work:
    """One token of each of ``batch`` sequences over ``context`` cached tokens; ``window`` 0: all of them."""
    windowed = 1.0 * (window > 0)
    seen = windowed * _least(context, window) + (1 - windowed) * context
    moved = 2 * batch * kv_heads * head_dim * (seen * KV_BYTES[kv] + 2) + 4 * batch * heads * head_dim
    at = {
        "seen": seen, "parallel": batch * kv_heads, "windowed": 1 + (e - 1) * windowed,
        "beyond": context / seen, "group": heads / kv_heads, "head_dim": head_dim, "batch": batch,
    }  # fmt: skip
    return peaks.work(4 * batch * seen * heads * head_dim, moved, 0.0, ("bf16", "fp16"), at)


def prefill_attention_work(
    peaks: Peaks, kv: str, batch: Any, length: Any, heads: Any, kv_heads: Any, head_dim: Any, window: Any = 0
) -> Work:
    """Causal attention of ``batch`` prompts of ``length`` tokens, with the write to the cache."""
    windowed = 1.0 * (window > 0)
    span = windowed * _least(length, window) + (1 - windowed) * length
    pairs = span * (span + 1) / 2 + (length - span) * span
    moved = batch * length * head_dim * (4 * heads + kv_heads * (8 + 2 * KV_BYTES[kv]))
    parallel = batch * heads * length / _least(length, LONGEST_PROMPT)
    at = {
        "length": length, "parallel": parallel, "windowed": 1 + (e - 1) * windowed,
        "beyond": length / span, "group": heads / kv_heads, "head_dim": head_dim, "batch": batch,
    }  # fmt: skip
    return peaks.work(4 * batch * pairs * heads * head_dim, moved, 0.0, ("bf16", "fp16"), at)


def latent_work(peaks: Peaks, flop: Any, moved_bytes: Any, tokens: Any, seen: Any, heads: Any, weight: Any) -> Work:
    """A module of latent attention: its ``tokens`` see ``seen`` tokens each; ``weight``: bytes of a weight.

    Sparse attention takes at least 64 heads to multiply with.
    """
    at = {"tokens": tokens, "seen": seen, "heads": heads, "weights": weight}
    return peaks.work(flop, moved_bytes, 0.0, ("bf16", "fp16"), at)


def state_work(peaks: Peaks, batch: Any, length: Any, heads: Any, elements: Any) -> Work:
    """Convolution and recurrence of ``length`` tokens of each sequence; ``elements`` of the state of one sequence."""
    moved = 8 * batch * elements + 12 * batch * length * heads * 128
    at = {"size": batch * heads, "length": length, "batch": batch, "heads": heads}
    return peaks.work(8 * batch * length * elements, moved, 0.0, ("bf16", "fp16"), at)


def quantise_work(peaks: Peaks, m: Any, k: Any) -> Work:
    """Quantisation of ``m`` rows of ``k`` activations to 8 bits."""
    return peaks.work(0.0 * m, 3 * m * k, 0.0, ("bf16", "fp16"), {"size": m * k, "k": k})


def all_reduce_work(bus_bytes_per_s: float, size: Any, ranks: Any) -> Work:
    """A message of ``size`` bytes on every rank; ``bus_bytes_per_s`` is the peak of one GPU's links."""
    time_s = 2 * size * (ranks - 1) / ranks / bus_bytes_per_s
    return Work(time_s, time_s / 2, {"size": size, "ranks": ranks})  # a switch that adds halves the traffic


def all_to_all_work(bus_bytes_per_s: float, tokens: Any, hidden: Any, topk: Any, ranks: Any) -> Work:
    """Dispatch or combine of ``tokens`` of one rank among ``ranks`` that hold experts."""
    time_s = 2 * tokens * hidden * _least(topk, ranks) * (ranks - 1) / ranks / bus_bytes_per_s
    return Work(time_s, 0.0 * time_s, {"tokens": tokens, "hidden": hidden, "topk": topk, "ranks": ranks})
