"""Time of one operator: a fixed cost per kernel, and the slower of arithmetic and memory.

::

    time = kernels x launch + max(compute, memory) + (1 - overlap) x min(compute, memory)
    compute = FLOP / (share x peak FLOP/s)          memory = bytes / (share x peak bytes/s)

``overlap`` 1 is the classic roofline (Williams, Waterman and Patterson, CACM 52(4), 2009); below 1, part of the
shorter of the two is not hidden. The fixed cost is what kernel tables show at small sizes: t = t0 + bytes / BW.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.hardware import GpuProfile
from planner.timing.efficiencies import Efficiency
from planner.timing.operators import Operator, OperatorKind

#: Bits of a stored value, by the words of ``weight_dtype`` and ``kv_cache_dtype``; anything else starts with its own.
STORED_BITS = {
    "fp32": 16, "bf16": 16, "fp16": 16, "float32": 16, "bfloat16": 16, "float16": 16,
    "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp8_inc": 8, "mxfp8": 8, "int8": 8, "int8-gptq": 8,
}  # fmt: skip
#: Bits of a value with its scales in formats that AMD GPUs without them unpack to bf16 before each matrix
#: multiplication, in a kernel of its own (``quark_ocp_mx.py`` and ``nvfp4/emulation.py`` of vLLM 0.27). Elsewhere, and
#: in grouped GEMMs of experts, values are unpacked on their way to the matrix unit.
UNPACKED_BITS = {"mxfp4": 4.25, "nvfp4": 4.5}
COMPUTE_BITS = {"fp32": 16, "tf32": 16, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp6": 8, "fp4": 4}


@dataclass(frozen=True, slots=True)
class Rates:
    """What one operator runs at on one GPU: seconds per kernel, FLOP/s and bytes/s, efficiencies included."""

    launch_s: float
    flop_per_s: float
    bytes_per_s: float


def kernel_time_s(launch_s: float, compute_s: float, memory_s: float, overlap: float) -> float:
    """Seconds of one operator whose ``compute_s`` and ``memory_s`` overlap by the share ``overlap``."""
    if compute_s > memory_s:
        return launch_s + compute_s + (1 - overlap) * memory_s
    return launch_s + memory_s + (1 - overlap) * compute_s


def as_run(operator: Operator, profile: GpuProfile) -> Operator:
    """``operator`` with the bytes that emulation adds: weights that are unpacked are written and read once more."""
    bits = UNPACKED_BITS.get(operator.storage)
    if bits is None or operator.kind is not OperatorKind.GEMM or profile.platform != "rocm":
        return operator
    if operator.storage not in profile.emulated:
        return operator
    return replace(operator, fixed_bytes=operator.fixed_bytes * (1 + 2 * 16 / bits))


def rates(operator: Operator, profile: GpuProfile, efficiency: Efficiency) -> Rates:
    """Rates of ``operator`` on ``profile``. Raises InputError when the GPU cannot multiply in its dtype."""
    peak_flop, dtype = compute_peak(operator, profile)
    share_flop, share_bytes = shares(operator, dtype)
    return Rates(
        launch_s=getattr(efficiency, LAUNCH[operator.kind]),
        flop_per_s=peak_flop * getattr(efficiency, share_flop),
        bytes_per_s=profile.memory_bandwidth_bytes_per_s * getattr(efficiency, share_bytes),
    )


#: Which field of ``Efficiency`` is the fixed cost of a kernel of each kind.
LAUNCH = {
    OperatorKind.GEMM: "gemm_launch_s",
    OperatorKind.EXPERTS: "expert_launch_s",
    OperatorKind.ATTENTION: "attention_launch_s",
    OperatorKind.PREFILL_ATTENTION: "attention_launch_s",
    OperatorKind.STATE: "small_launch_s",
    OperatorKind.SMALL: "small_launch_s",
}


def shares(operator: Operator, compute_dtype: str) -> tuple[str, str]:
    """The fields of ``Efficiency`` that are the operator's share of peak FLOP/s and of peak bytes/s."""
    stored = STORED_BITS.get(operator.storage, 4)
    computed = COMPUTE_BITS[compute_dtype]
    match operator.kind:
        case OperatorKind.GEMM:
            return f"gemm_flop_{computed}", f"weight_bandwidth_{stored}"
        case OperatorKind.EXPERTS:
            return f"expert_flop_{computed}", f"expert_bandwidth_{stored}"
        case OperatorKind.ATTENTION:
            return "decode_attention_flop", f"kv_bandwidth_{max(stored, 8)}"
        case OperatorKind.PREFILL_ATTENTION:
            return "attention_flop", "kv_bandwidth_16"
        case _:
            return "attention_flop", "small_bandwidth"


def compute_peak(operator: Operator, profile: GpuProfile) -> tuple[float, str]:
    """Dense peak that the operator's arithmetic runs against, and its dtype.

    A format that the GPU emulates runs in the dtype the profile says; bf16 and fp16 share a peak where only one is
    given; fp32 activations run on tf32 or plain fp32 units. Raises InputError when there is none.
    """
    wanted = profile.emulated.get(operator.storage, operator.compute_dtype)
    for dtype in (wanted, *_STAND_INS.get(wanted, ())):
        if profile.supports(dtype):
            return profile.peak_flop_per_s(dtype), dtype
    return profile.peak_flop_per_s(wanted), wanted


_STAND_INS = {"bf16": ("fp16", "fp32"), "fp16": ("bf16", "fp32"), "fp32": ("tf32",)}
