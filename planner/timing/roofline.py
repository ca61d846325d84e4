"""Time of one operator or collective: a fixed cost per kernel, and the slower of arithmetic and memory.

::

    time    = fixed + max(compute, memory) + (1 - overlap) x min(compute, memory)
    fixed   = kernels x launch
    compute = FLOP / (share x peak FLOP/s)
    memory  = bytes / (share x peak bytes/s)

``overlap`` 1 is the classic roofline (Williams, Waterman and Patterson, CACM 52(4), 2009). Routed experts hide nothing:
in published timings of grouped GEMMs arithmetic and memory add up. A ``Term`` lists costs at the peaks with the
efficiency that stretches each; ``step`` evaluates one batch, ``fit_steps`` thousands."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from planner.hardware import GpuProfile
from planner.timing.operators import Operator, OperatorKind, StepLoad

#: Bits of a stored value, by the words of ``weight_dtype`` and ``kv_cache_dtype``; anything else starts with its own.
STORED_BITS = {
    "fp32": 16, "bf16": 16, "fp16": 16, "float32": 16, "bfloat16": 16, "float16": 16,
    "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp8_inc": 8, "mxfp8": 8, "int8": 8, "int8-gptq": 8,
}  # fmt: skip
#: Bits of a value with its scales in formats that AMD GPUs without them unpack to bf16 before each GEMM, in a kernel of
#: its own (``quark_ocp_mx.py`` and ``nvfp4/emulation.py`` of vLLM 0.27; ``oracle/mxfp4.py`` of 0.32: W4A4 experts too).
UNPACKED_BITS = {"mxfp4": 4.25, "nvfp4": 4.5}
COMPUTE_BITS = {"fp32": 16, "tf32": 16, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp6": 8, "fp4": 4}


class Part(IntEnum):
    FIXED = 0
    COMPUTE = 1
    MEMORY = 2


class Per(IntEnum):
    STEP = 0
    UNIT = 1  # of the driver of the term
    ROW = 2  # that arithmetic is done on: a unit, of experts a token at one of them


@dataclass(frozen=True, slots=True)
class Cost:
    """``seconds`` at the peaks of the GPU, times one efficiency and over another; the names are those of parameters."""

    part: Part
    per: Per
    seconds: float
    times: str = ""
    over: str = ""


@dataclass(frozen=True, slots=True)
class Term:
    """An operator or a collective on one GPU, before efficiencies."""

    name: str
    count: int  #: kernels
    load: StepLoad
    costs: tuple[Cost, ...]
    flop_per_row: float = 0.0
    fixed_bytes: float = 0.0
    bytes_per_unit: float = 0.0
    bytes_per_row: float = 0.0
    path: str = "memory"  #: what the bytes move over: memory, link or host link
    hides: bool = True  #: the shorter of arithmetic and memory behind the longer


def operator_term(operator: Operator, profile: GpuProfile) -> Term:
    """``operator`` on ``profile``. Raises InputError when the GPU cannot multiply in its dtype."""
    operator = _unpacked(operator, profile)
    cached_in_8_bits = operator.kind is OperatorKind.ATTENTION and STORED_BITS.get(operator.storage) == 8
    if cached_in_8_bits and profile.architecture in ("sm_100", "sm_103"):
        operator = replace(operator, compute_dtype="fp8")  # FlashInfer multiplies as the cache is stored
    return Term(
        operator.name, operator.count, operator.load, tuple(_costs(operator, profile)),
        operator.flop_per_unit, operator.fixed_bytes, operator.bytes_per_unit, operator.bytes_per_row,
        hides=operator.kind is not OperatorKind.EXPERTS,
    )  # fmt: skip


def _unpacked(operator: Operator, profile: GpuProfile) -> Operator:
    """Return ``operator`` with the bytes of weights that are unpacked to 16 bits, written and read again.

    Experts with 4-bit activations are: each step unpacks all of a rank, and reads those that its tokens are routed to.
    """
    bits = UNPACKED_BITS.get(operator.storage, 0.0)
    if not bits or profile.platform != "rocm" or operator.storage not in profile.emulated:
        return operator
    if operator.kind is OperatorKind.GEMM:
        return replace(operator, fixed_bytes=operator.fixed_bytes * (1 + 2 * 16 / bits))
    if operator.kind is OperatorKind.EXPERTS and operator.compute_dtype == "fp4":
        load, each = operator.load, operator.bytes_per_unit
        all_bytes = load.num_experts / load.ranks * each * (1 + 16 / bits)
        return replace(operator, fixed_bytes=operator.fixed_bytes + all_bytes, bytes_per_unit=each * 16 / bits)
    return operator


def _costs(operator: Operator, profile: GpuProfile) -> Iterator[Cost]:
    """GEMMs are padded by ``tile_tok`` rows; plain fp32 units have no tile."""
    peak_flop_per_s, dtype = compute_peak(operator, profile)
    flop, bandwidth = _shares(operator, dtype)
    row_s, byte_s = operator.flop_per_unit / peak_flop_per_s, 1 / profile.memory_bandwidth_bytes_per_s
    yield Cost(Part.FIXED, Per.STEP, operator.count, times=_LAUNCH[operator.kind])
    yield Cost(Part.COMPUTE, Per.ROW, row_s, over=flop)
    yield Cost(Part.MEMORY, Per.STEP, operator.fixed_bytes * byte_s, over=bandwidth)
    yield Cost(Part.MEMORY, Per.UNIT, operator.bytes_per_unit * byte_s, over=bandwidth)
    yield Cost(Part.MEMORY, Per.ROW, operator.bytes_per_row * byte_s, over=bandwidth)
    if operator.kind is OperatorKind.GEMM and dtype != "fp32":
        yield Cost(Part.COMPUTE, Per.STEP, row_s, times="tile_tok", over=flop)


@dataclass(frozen=True, slots=True)
class TimedTerm:
    """A term under one set of efficiencies: each part of its time is linear in units and rows."""

    term: Term
    load: int  #: index of its driver
    fixed_s: float
    compute_s: tuple[float, float, float]  #: per step, unit and row
    memory_s: tuple[float, float, float]
    overlap: float  #: share of the shorter of both that is hidden

    @classmethod
    def of(cls, term: Term, load: int, efficiency: Callable[[str], float]) -> "TimedTerm":
        """``term`` with the value of each efficiency; ``load`` is the index of its driver."""
        sums = [[0.0] * len(Per) for _ in Part]
        for cost in term.costs:
            times = efficiency(cost.times) if cost.times else 1.0
            over = efficiency(cost.over) if cost.over else 1.0
            sums[cost.part][cost.per] += cost.seconds * times / over
        fixed, compute, memory = map(tuple, sums)
        overlap = efficiency("overlap") if term.hides else 0.0
        return cls(term, load, fixed[Per.STEP], compute, memory, overlap)  # type: ignore[arg-type]

    def time_s(self, units: float, rows: float) -> float:
        """Seconds at this load."""
        return sum_s([(0, *self.row[1:])], [(units, rows)])

    @property
    def row(self) -> "Row":
        """The index of its driver and all its numbers, for ``sum_s``."""
        return self.load, self.fixed_s, *self.compute_s[::2], *self.memory_s, self.overlap

    def shares(self, units: float, rows: float) -> dict[str, float]:
        """Seconds by cause, which add up to ``time_s``: launch, compute, and memory, link or host link.

        The rows that pad a tile do no work. They count with the weights, which each step reads whatever its batch."""
        moved_s = self.memory_s[0] + units * self.memory_s[1] + rows * self.memory_s[2]
        worked_s = units * self.compute_s[1] + rows * self.compute_s[2]
        longer, shorter = ("compute", self.term.path) if worked_s > moved_s else (self.term.path, "compute")
        shorter_s = (1 - self.overlap) * min(worked_s, moved_s)
        longer_s = self.time_s(units, rows) - self.fixed_s - shorter_s
        return {"launch": self.fixed_s, longer: longer_s, shorter: shorter_s}


#: Numbers of a term: index of its driver, fixed seconds, compute per step and row, memory per unit too, overlap.
Row = tuple[int, float, float, float, float, float, float, float]


def sum_s(terms: Sequence[Row], drivers: Sequence[tuple[float, float]]) -> float:
    """Seconds of the terms that have something to do at ``drivers``, their units and rows. Every step asks for it."""
    total_s = 0.0
    for load, fixed_s, compute_s, compute_row_s, memory_s, memory_unit_s, memory_row_s, hidden in terms:
        units, rows = drivers[load]
        if units:
            computed_s = compute_s + rows * compute_row_s
            moved_s = memory_s + units * memory_unit_s + rows * memory_row_s
            total_s += fixed_s + computed_s + moved_s - hidden * (computed_s if computed_s < moved_s else moved_s)
    return total_s


#: The efficiency that is the fixed cost of a kernel of each kind.
_LAUNCH = {
    OperatorKind.GEMM: "gemm_launch_s",
    OperatorKind.EXPERTS: "expert_launch_s",
    OperatorKind.ATTENTION: "attention_launch_s",
    OperatorKind.PREFILL_ATTENTION: "attention_launch_s",
    OperatorKind.STATE: "small_launch_s",
    OperatorKind.SMALL: "small_launch_s",
}


def _shares(operator: Operator, compute_dtype: str) -> tuple[str, str]:
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
    """Dense peak that the operator's arithmetic runs against, and its dtype. Raises InputError when there is none."""
    wanted = profile.emulated.get(operator.storage, operator.compute_dtype)
    for dtype in (wanted, *_STAND_INS.get(wanted, ())):
        if profile.supports(dtype):
            return profile.peak_flop_per_s(dtype), dtype
    return profile.peak_flop_per_s(wanted), wanted


_STAND_INS = {"bf16": ("fp16", "fp32"), "fp16": ("bf16", "fp32"), "fp32": ("tf32",)}
