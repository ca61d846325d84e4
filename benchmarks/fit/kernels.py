"""Time of one kernel, from surfaces fitted to published kernel timings.

A surface gives the time of one kernel on one GPU in one precision::

    time   = (launch floor + time at the peaks) x factor, and never less than the peaks allow
    factor = exp(hat functions of one or two sizes, times polynomials in the logarithms of the shape)

Coordinates stay inside the measured range, so efficiency is constant beyond it. Times never fall with tokens, context
or batch: a surface is tabulated at powers of two, made monotone, and interpolated in logarithms.
``benchmarks/fit/kernels.json`` holds the coefficients, ``benchmarks/kernel_surfaces.py`` fits them, and
``benchmarks/results/kernels.md`` lists their errors on shapes left out. A GPU without tables takes the surface of its
die or of the nearest relative, at its own peaks.

The prediction does not use this module yet. Operators of ``operators`` map to it as follows::

    projections, router, lm_head    gemm_s               tokens; outputs and inputs of each fused matrix on the rank
    experts                         experts_s            tokens of all DP ranks; sizes of one expert on the rank
    attention decode                decode_attention_s   decoding sequences, mean context; heads of the rank
    attention prefill               prefill_attention_s  prompt tokens, (query, key) pairs; heads of the rank
    all-reduce                      all_reduce_s         bytes of one message, ranks
    MLA with all its projections    time_s               mla_decode, mla_prefill with ``latent_work``
    the same with DSA's indexer     time_s               dsa_decode, dsa_prefill with ``latent_work``
    state decode, state prefill     time_s               state_decode, state_prefill with ``state_work``
    DeepEP                          time_s               all_to_all with ``all_to_all_work``

The time of an FP8 or FP4 GEMM includes the quantisation of its rows; ``quantise`` is what fusing it with a norm saves.
FP8 experts on Hopper run as ``fp8_block``; ``fp8`` there is the slower kernel of ModelOpt checkpoints.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from math import ceil, exp, floor, hypot, inf, log, log2, prod
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fit.kernel_work import (
    Peaks,
    Work,
    all_reduce_work,
    decode_attention_work,
    experts_work,
    gemm_work,
    prefill_attention_work,
)
from planner.errors import InputError
from planner.hardware import GpuProfile
from planner.timing.links import bus_bytes_per_s


class Form(BaseModel):
    """Terms of the logarithm of a factor. A term is a product of coordinates: ``n k`` is log n x log k, ``""`` is 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    axis: str  #: the coordinate of the hat functions
    knots: tuple[float, ...]
    terms: tuple[str, ...] = ("",)  #: with a coefficient for each knot
    everywhere: tuple[str, ...] = ()  #: with one coefficient
    axis2: str = ""
    knots2: tuple[float, ...] = (1.0,)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The coordinates that the form uses."""
        words = (self.axis, self.axis2, *" ".join((*self.terms, *self.everywhere)).split())
        return tuple(dict.fromkeys(word for word in words if word))


OF_MEDIAN = 1.48  #: standard deviation over median error, of normal errors


class Surface(BaseModel):
    """One kernel on one GPU in one precision."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: str
    gpu: str
    precision: str  #: of weights or cache; ``/ep``: with expert parallelism; of collectives the library
    floor_us: float = Field(ge=0)
    low: tuple[float, ...]  #: smallest coordinates that were measured, in the order of ``Form.names``
    high: tuple[float, ...]
    by_knot: tuple[tuple[int, ...], ...]  #: thousandths
    everywhere: tuple[int, ...] = ()
    rows: int = Field(gt=0)
    error: float = Field(ge=0)  #: median, on shapes left out
    source: str
    bound: bool = False  #: of the fastest kernel that tuning found, not of the one that an engine runs
    form: Form

    @model_validator(mode="after")
    def _coefficients_match_the_form(self) -> Self:
        form = self.form
        shape = (len(form.knots) * len(form.knots2), len(form.terms), len(form.everywhere), len(form.names))
        lengths = {(len(self.by_knot), len(row), len(self.everywhere), len(self.low)) for row in self.by_knot}
        if lengths != {shape} or len(self.high) != len(self.low):
            raise ValueError(f"{self.kind} of {self.gpu} takes {shape} coefficients, not {lengths}")
        return self

    @cached_property
    def _middles(self) -> dict[str, float]:
        ranges = zip(self.form.names, self.low, self.high, strict=True)
        return {name: (log(low) + log(high)) / 2 for name, low, high in ranges}

    def time_s(self, work: Work) -> float:
        """Seconds of ``work`` on the GPU whose peaks it was worked out with."""
        form = self.form
        ranges = zip(form.names, self.low, self.high, strict=True)
        inside = {name: min(max(work.at[name], low), high) for name, low, high in ranges}
        centred = {name: log(inside[name]) - middle for name, middle in self._middles.items()}
        terms = [_product(term, centred) for term in form.terms]
        total = sum(c * _product(term, centred) for c, term in zip(self.everywhere, form.everywhere, strict=True))
        second = _hats(inside[form.axis2], form.knots2) if form.axis2 else [(0, 1.0)]
        for i, share in _hats(inside[form.axis], form.knots):
            for j, other in second:
                row = self.by_knot[i * len(form.knots2) + j]
                total += share * other * sum(c * term for c, term in zip(row, terms, strict=True))
        seconds = (self.floor_us * 1e-6 + float(work.base_s)) * exp(total / 1000)
        return max(seconds, float(work.bound_s))


def _product(term: str, logs: Mapping[str, float]) -> float:
    return float(prod(logs[name] for name in term.split()))


def _hats(value: float, knots: tuple[float, ...]) -> list[tuple[int, float]]:
    """The knots beside ``value`` with their shares: linear in logarithms, constant outside."""
    right = bisect_right(knots, value)
    if right == 0 or right == len(knots):
        return [(max(right - 1, 0), 1.0)]
    share = log(value / knots[right - 1]) / log(knots[right] / knots[right - 1])
    return [(right - 1, 1 - share), (right, share)]


class Grid:
    """A time that grows with two sizes: ``time_s`` at powers of two, made monotone, interpolated in logarithms.

    Smaller sizes count as ``least``. Beyond ``most`` times are those of ``time_s``, never less than at ``most``.
    """

    def __init__(
        self, time_s: Callable[[float, float], float], most: float, most2: float = 1.0, least: float = 0.5
    ) -> None:
        self._time_s, self._most = time_s, (most, most2)
        self._ends = tuple((floor(log2(low)), ceil(log2(high))) for low, high in ((least, most), (0.5, most2)))
        (low, high), (low2, high2) = self._ends
        self._logs: list[list[float]] = []
        for i in range(low, high + 1):
            row: list[float] = []
            for j in range(low2, high2 + 1):
                below = self._logs[-1][j - low2] if self._logs else -inf
                row.append(max(log(time_s(2.0**i, 2.0**j)), row[-1] if row else below, below))
            self._logs.append(row)

    def time_s(self, x: float, y: float = 1.0) -> float:
        """Seconds at sizes ``x`` and ``y``; never less for more of either."""
        i, right = _place(x, *self._ends[0])
        j, upper = _place(y, *self._ends[1])
        here, there = (row[j] * (1 - upper) + row[j + 1] * upper for row in self._logs[i : i + 2])
        inside_s = exp(here * (1 - right) + there * right)
        return inside_s if x <= self._most[0] and y <= self._most[1] else max(inside_s, self._time_s(x, y))


def _place(value: float, low: int, high: int) -> tuple[int, float]:
    """The node below ``value``, and how far it lies towards the next one."""
    position = min(max(log2(max(value, 1e-9)), low), high) - low
    below = min(int(position), high - low - 1)
    return below, position - below


@cache
def load_surfaces() -> dict[tuple[str, str, str], Surface]:
    """Our surfaces by kind, GPU and precision."""
    path = Path(__file__).parent / "kernels.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    forms = {kind: Form(**form) for kind, form in content["forms"].items()}
    surfaces = [Surface(**entry, form=forms[entry["kind"]]) for entry in content["surfaces"]]
    return {(one.kind, one.gpu, one.precision): one for one in surfaces}


#: GPUs whose surfaces an architecture takes, the nearest first, and the deviation that comes with them.
RELATIVES = {
    "sm_80": {"a100-sxm-80gb": 0.08},
    "sm_86": {"l40s": 0.25, "a100-sxm-80gb": 0.3},
    "sm_89": {"l40s": 0.15},
    "sm_90": {"h200-sxm": 0.08, "h100-sxm": 0.08},
    "sm_100": {"b200-sxm": 0.05, "gb200": 0.05},
    "sm_103": {"b300-sxm": 0.05, "gb300": 0.05, "b200-sxm": 0.15},
    "sm_120": {"rtx-pro-6000": 0.15},
    "sm_121": {"rtx-pro-6000": 0.2},
    "gfx942": {"mi300x": 0.1},
    "gfx950": {"mi355x": 0.1},
}


class Kernels:
    """Times of the kernels of one GPU. The table of a shape is kept, so that asking again is cheap."""

    def __init__(self, profile: GpuProfile) -> None:
        self.profile, self.peaks = profile, Peaks.of(profile)
        self._grids: dict[tuple[object, ...], Grid] = {}

    def surface(self, kind: str, precision: str) -> tuple[Surface, float]:
        """The surface of this GPU or of its nearest relative, and the deviation of the logarithm of its times.

        Raises InputError where no relative has one.
        """
        for gpu, distance in ({self.profile.whole: 0.0} | RELATIVES.get(self.profile.architecture, {})).items():
            surface = load_surfaces().get((kind, gpu, precision))
            if surface:
                return surface, hypot(surface.error * OF_MEDIAN, distance if gpu != self.profile.whole else 0.0)
        raise InputError(
            f"no timings of {kind} in {precision} for {self.profile.name} or a relative of it",
            hint="choose another precision",
        )

    def time_s(self, kind: str, precision: str, work: Work) -> float:
        """Seconds of one kernel, or of one module with all its kernels."""
        return self.surface(kind, precision)[0].time_s(work)

    def _grid(
        self, kind: str, precision: str, shape: tuple[float, ...], work: Callable[[float, float], Work], *most: float
    ) -> Grid:
        key = (kind, precision, *shape)
        if key not in self._grids:
            surface, _ = self.surface(kind, precision)
            self._grids[key] = Grid(lambda x, y: surface.time_s(work(x, y)), *most)
        return self._grids[key]

    def gemm_s(self, precision: str, m: float, n: float, k: float) -> float:
        """Seconds of ``m`` rows times a matrix of ``k`` inputs and ``n`` outputs."""
        return self._grid(
            "gemm", precision, (n, k), lambda x, _: gemm_work(self.peaks, precision, x, n, k), 32768
        ).time_s(m)

    def experts_s(
        self, precision: str, tokens: float, hidden: float, inner: float, experts: float, topk: float, ep: int = 1,
        skew: float = 1.0, matrices: int = 3,
    ) -> float:  # fmt: skip
        """Seconds of the grouped GEMMs of one MoE layer, as ``experts_work``."""
        shape = (hidden, inner, experts, topk, ep, skew, matrices)
        other = ep > 1 and (self.profile.architecture, precision) == ("sm_90", "fp8_block")
        name = f"{precision}/ep" if other else precision  # Hopper runs another kernel where EP is on
        return self._grid(
            "experts", name, shape, lambda x, _: experts_work(self.peaks, precision, x, *shape), 65536
        ).time_s(tokens)

    def decode_attention_s(
        self, kv: str, batch: float, context: float, heads: float, kv_heads: float, head_dim: float, window: float = 0
    ) -> float:
        """Seconds of one token of each of ``batch`` sequences over ``context`` cached tokens each."""
        shape = (heads, kv_heads, head_dim, window)
        return self._grid(
            "decode_attention", kv, shape, lambda x, y: decode_attention_work(self.peaks, kv, x, y, *shape),
            2048, 131072,
        ).time_s(batch, context)  # fmt: skip

    def prefill_attention_s(
        self, kv: str, tokens: float, pairs: float, heads: float, kv_heads: float, head_dim: float, window: float = 0
    ) -> float:
        """Seconds of prompts of ``tokens`` in all with so many (query, key) pairs, those outside a window included.

        A chunk that sees tokens before it counts as a part of a longer prompt.
        """
        length = max(2 * pairs / tokens - 1, 1.0)
        shape = (heads, kv_heads, head_dim, window)
        return self._grid(
            "prefill_attention", kv, shape, lambda x, y: prefill_attention_work(self.peaks, kv, x, y, *shape),
            256, 131072, 2**-8,
        ).time_s(tokens / length, length)  # fmt: skip

    def all_reduce_s(self, library: str, size: float, ranks: int) -> float:
        """Seconds of an all-reduce of ``size`` bytes: ``graph`` or ``eager`` of vLLM, or ``nccl_all_reduce``."""
        bus = bus_bytes_per_s(self.profile, ranks)
        return self._grid("all_reduce", library, (ranks,), lambda x, _: all_reduce_work(bus, x, ranks), 2**29).time_s(
            size
        )
