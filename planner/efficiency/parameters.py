"""The efficiencies of one configuration: what each is called and means."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Literal

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
    basis: Basis = "global"  #: the nearest circumstance that was measured


PARAMETERS: tuple[str, ...] = tuple(f.name for f in fields(Efficiency) if f.name != "basis")
#: Shares of something: never above 1.
SHARES: frozenset[str] = frozenset(
    name
    for name in PARAMETERS
    if "bandwidth" in name or "flop" in name or name in ("link_share", "overlap", "coverage_exponent")
)


#: A target of its own: a factor on the GPU's time. It multiplies fixed costs and divides shares, which stop at 1.
SLOWDOWN = "slowdown"
_FIXED_COSTS = frozenset(
    ("gemm_launch_s", "expert_launch_s", "expert_each_s", "attention_launch_s", "small_launch_s", "collective_s")
)


@lru_cache(maxsize=64)
def targets(target: str) -> dict[str, int]:
    """The parameters that a factor on ``target`` changes, and the power of the factor that multiplies each.

    A target is a parameter, a group written as the common part of its members' names (``launch``, ``expert_flop``,
    ``host``), or ``slowdown``.
    """
    if target == SLOWDOWN:
        rates = (name for name in PARAMETERS if "bandwidth" in name or "flop" in name or name == "link_share")
        return dict.fromkeys(rates, -1) | dict.fromkeys(_FIXED_COSTS, 1)
    if target in PARAMETERS:
        return {target: 1}
    return {name: 1 for name in PARAMETERS if target in name}
