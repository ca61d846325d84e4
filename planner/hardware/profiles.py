"""GPU profiles: the format of ``hardware/*.toml``, the shipped files, and those of users.

A figure is a vendor's (``spec``), a published measurement or log (``measured``), or arithmetic on these (``derived``).

>>> load_profile("MI300X").compute_units
304
"""

import datetime
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import cache
from math import inf, log
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from planner.errors import InputError, UnknownNameError, fault_in, os_errors
from planner.resources import calibration_tables, data_dir, may_be_path, package_dir, read_toml, tables_of
from planner.units import FACTORS, GB, GIB, counted, to_base

STATED = "stated"  #: source of a figure that a command line gives
Kind = Literal["spec", "measured", "derived"]
MOST_GPUS = 4096  #: joined by one profile: seven times the largest rack of today
#: Rates under a power limit fall by so much times the square of the share of power that is missing.
POWER_LIMIT_LOSS = 1.25
#: Figures outside these bounds are slips, in any unit, and would give endless times.
_Positive = Annotated[float, Field(ge=1e-6, le=1e18, allow_inf_nan=False, strict=True)]


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Quantity(_Facts):
    value: _Positive
    unit: str
    source: str
    kind: Kind
    note: str = ""

    @property
    def base(self) -> float:
        return to_base(self.value, self.unit)


def _one_of(*units: str) -> Callable[[Any], Any]:
    assert set(units) <= FACTORS.keys()  # a slip in this file, not a user's

    def check(value: str | Quantity) -> str | Quantity:
        unit = value.unit if isinstance(value, Quantity) else value
        if unit not in units:
            raise ValueError(f"unit {unit!r} is not one of {', '.join(units)}")
        return value

    return check


_BYTE_UNITS, _TIME_UNITS = ("B", "KiB", "MiB", "GiB", "KB", "MB", "GB", "TB"), ("us", "ms", "s")
Bytes = Annotated[Quantity, AfterValidator(_one_of(*_BYTE_UNITS))]
BytesPerSecond = Annotated[Quantity, AfterValidator(_one_of("B/s", "GB/s", "TB/s"))]
OperationsPerSecond = Annotated[Quantity, AfterValidator(_one_of("FLOP/s", "TFLOP/s", "TOP/s"))]
Watts = Annotated[Quantity, AfterValidator(_one_of("W"))]
Share = Annotated[Quantity, AfterValidator(_one_of("1"))]
DollarsPerHour = Annotated[Quantity, AfterValidator(_one_of("USD/h"))]


class Source(_Facts):
    title: str
    retrieved: datetime.date
    url: str = ""


class PartitionRule(_Facts):
    allowed: bool
    reason: str
    source: str
    validated: bool = True  #: False: one source documents it and another disputes it; planned only when asked for
    fix: str = ""  #: what to do instead

    @model_validator(mode="after")
    def _refusals_offer_a_way_out(self) -> Self:
        if not (self.allowed and self.validated) and not self.fix:
            raise ValueError("a rule that refuses or doubts needs a 'fix'")
        return self


class Partition(_Facts):
    """A logical GPU: a compute partition of an AMD GPU, or a MIG slice of an NVIDIA GPU."""

    of: str  #: profile id of the whole GPU
    compute_mode: str  #: CPX, DPX, QPX, or ``MIG 1g.10gb``
    memory_mode: str = ""  #: NPS1, NPS2, NPS4; empty on NVIDIA
    count: int = Field(ge=1)  #: logical GPUs of one whole GPU in this mode
    isolated_bandwidth: bool  #: whether the hardware guarantees the share (MIG); else siblings compete for it (CPX)
    tensor_parallel: PartitionRule  #: over the partitions of one whole GPU
    tensor_parallel_across_packages: PartitionRule | None = None  #: over those of several; None: the same rule
    legal: PartitionRule | None = None  #: status of the mode itself, where it is disputed

    def tensor_parallel_rule(self, tensor_parallel_size: int) -> PartitionRule:
        """The rule for a model on this many partitions; more than ``count`` lie on several whole GPUs."""
        across = self.tensor_parallel_across_packages
        return across if across and tensor_parallel_size > self.count else self.tensor_parallel


class Memory(_Facts):
    engine_visible: Bytes  #: total of ``torch.cuda.mem_get_info``: what vLLM budgets on
    driver: Bytes | None = None  #: as nvidia-smi or amd-smi prints it
    marketing: Bytes | None = None  #: as it is sold
    bandwidth: BytesPerSecond  #: peak
    bandwidth_measured: BytesPerSecond | None = None  #: stream or GEMV benchmark
    technology: str = ""  #: HBM3, GDDR7, ...
    utilization: Share | None = None  #: that a server takes where CPU and GPU share the memory; None: vLLM's default
    #: The setting that bounds the KV cache: a share of ``engine_visible``, or a size on a CPU
    budget: Literal["gpu_memory_utilization", "VLLM_CPU_KVCACHE_SPACE"] = "gpu_memory_utilization"


class Compute(_Facts):
    """Dense peaks by dtype. A dtype that is absent is unsupported; none is derived from another."""

    fp32: OperationsPerSecond | None = None
    tf32: OperationsPerSecond | None = None
    fp16: OperationsPerSecond | None = None
    bf16: OperationsPerSecond | None = None
    fp8: OperationsPerSecond | None = None
    int8: OperationsPerSecond | None = None
    fp6: OperationsPerSecond | None = None
    fp4: OperationsPerSecond | None = None


class AllReduceCurve(_Facts):
    """Measured time of one all-reduce by message size, for one number of GPUs."""

    gpus: int = Field(ge=2)
    method: str  #: which kernel or library, and how it was launched
    size_unit: Annotated[str, AfterValidator(_one_of(*_BYTE_UNITS))]
    sizes: tuple[_Positive, ...]  #: of the message on one GPU, ascending
    time_unit: Annotated[str, AfterValidator(_one_of(*_TIME_UNITS))]
    times: tuple[_Positive, ...]
    source: str
    kind: Kind
    note: str = ""

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        pairs = zip(self.sizes, self.times, strict=True)
        return tuple((to_base(size, self.size_unit), to_base(time, self.time_unit)) for size, time in pairs)

    @model_validator(mode="after")
    def _a_time_for_each_size(self) -> Self:
        if len(self.sizes) != len(self.times) or not self.sizes:
            raise ValueError(f"{len(self.sizes)} sizes and {len(self.times)} times")
        if list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError("sizes must ascend")
        return self


class Interconnect(_Facts):
    kind: Literal["nvswitch", "nvlink-bridge", "xgmi-mesh", "on-package", "pcie", "none"]
    link_bandwidth: BytesPerSecond | None = None  #: one link, one direction; on a mesh a pair of GPUs shares one link
    links: int | None = Field(default=None, ge=1)
    bandwidth: BytesPerSecond | None = None  #: one GPU to all others, one direction
    host_bandwidth: BytesPerSecond | None = None  #: PCIe or similar, one direction
    network_bandwidth: BytesPerSecond | None = None  #: one GPU's share of the adapters to other nodes, one direction
    allreduce: tuple[AllReduceCurve, ...] = ()
    domain_gpus: int = Field(default=1, ge=1, le=MOST_GPUS)  #: GPUs that these links join


class Kernels(_Facts):
    """Published measurements of kernels: priors of the fits. Bandwidths are slopes, without the cost of the launch."""

    gemv_bandwidth: BytesPerSecond | None = None
    fp8_gemm_bandwidth: BytesPerSecond | None = None
    fp4_gemm_bandwidth: BytesPerSecond | None = None
    decode_attention_bandwidth: BytesPerSecond | None = None
    fp8_kv_decode_attention_bandwidth: BytesPerSecond | None = None
    bf16_sustained: OperationsPerSecond | None = None
    fp8_sustained: OperationsPerSecond | None = None
    fp4_sustained: OperationsPerSecond | None = None


class ListPrice(_Facts):
    """Rental price on demand, from aggregators; stale within weeks. A partition has its share."""

    low: DollarsPerHour | None = None
    typical: DollarsPerHour
    high: DollarsPerHour | None = None
    date: str  #: month of the collection, or ``undated``; ``MONTH, owned`` for the cost of a card of one's own

    @model_validator(mode="after")
    def _low_to_high(self) -> Self:
        known = [price.base for price in (self.low, self.typical, self.high) if price]
        if known != sorted(known):
            raise ValueError(f"low, typical and high must ascend, got {', '.join(f'{usd:g}' for usd in known)}")
        return self


class GpuProfile(_Facts):
    id: str
    name: str
    vendor: Literal["amd", "nvidia", "cpu"]
    architecture: str  #: gfx942, sm_90, ...
    platform: Literal["rocm", "cuda", "cpu"]
    aliases: tuple[str, ...] = ()
    gpus_per_node: int = Field(ge=1, le=MOST_GPUS)  #: logical GPUs in one node
    compute_units: int | None = Field(default=None, ge=1)  #: CUs or SMs
    memory: Memory
    compute: Compute
    emulated: dict[str, str] = Field(default_factory=dict)  #: weight format -> the dtype that it is computed in
    emulated_source: str = ""
    fp8_format: str = ""  #: e4m3fnuz on gfx942, e4m3fn elsewhere
    interconnect: Interconnect
    kernels: Kernels = Kernels()
    tdp: Watts | None = None  #: board power; of a partition its share
    price: ListPrice | None = None
    partition: Partition | None = None
    notes: tuple[str, ...] = ()
    sources: dict[str, Source]

    def __repr__(self) -> str:
        return f"GpuProfile({self.id})"

    @property
    def memory_bytes(self) -> int:
        return int(self.memory.engine_visible.base)

    @property
    def kv_cache_is_given(self) -> bool:
        """True where ``VLLM_CPU_KVCACHE_SPACE`` sets the size of the KV cache, not a share of the memory."""
        return self.memory.budget == "VLLM_CPU_KVCACHE_SPACE"

    @property
    def memory_bandwidth_bytes_per_s(self) -> float:
        return self.memory.bandwidth.base

    @property
    def parts(self) -> int:
        """Logical GPUs of one whole GPU in this mode: 1 without partitions, 8 for CPX."""
        return self.partition.count if self.partition else 1

    def counted(self, number: float) -> str:
        """``8 GPUs``; ``8 partitions`` where it is a part of one."""
        return counted(number, "partition" if self.partition else "GPU")

    @property
    def whole(self) -> str:
        """Id of the whole GPU, the unit that is rented: its own, or that of the GPU it is a part of."""
        return self.partition.of if self.partition else self.id.split("@")[0]

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        if not self.architecture.startswith("sm_"):
            return None
        digits = self.architecture.removeprefix("sm_").rstrip("a")
        return int(digits[:-1]), int(digits[-1])

    def supports(self, dtype: str) -> bool:
        """True if the GPU has matrix units for ``dtype`` (fp16, bf16, fp8, int8, fp4, ...)."""
        return getattr(self.compute, dtype, None) is not None

    def peak_flop_per_s(self, dtype: str) -> float:
        """Dense peak in ``dtype``. Raises InputError for a dtype that the hardware does not have."""
        peak: Quantity | None = getattr(self.compute, dtype, None)
        if peak is None:
            have = ", ".join(k for k, v in self.compute if v)
            raise InputError(f"{self.name} has no {dtype} matrix units", hint=f"use one of: {have}")
        return peak.base

    @property
    def joined_gpus(self) -> int:
        """GPUs that reach each other without the network: those of a node, or of nodes that links join (NVL72)."""
        return max(self.gpus_per_node, self.interconnect.domain_gpus)

    @property
    def joins_nodes(self) -> bool:
        """True if what GPUs exchange between nodes is known: their network, or links that join nodes."""
        return self.interconnect.network_bandwidth is not None or self.joined_gpus > self.gpus_per_node

    def with_network(self, gb_per_s: float | None) -> "GpuProfile":
        """A copy with a network to other nodes of ``gb_per_s`` per GPU; the profile itself for None."""
        if gb_per_s is None:
            return self
        network = Quantity(value=gb_per_s, unit="GB/s", source=STATED, kind="spec", note="--network-gb-per-s")
        links = self.interconnect.model_copy(update={"network_bandwidth": network})
        title = Source(title="Stated for this plan", retrieved=datetime.date.today())
        return self.model_copy(update={"interconnect": links, "sources": {**self.sources, STATED: title}})

    def at_power(self, watts: int) -> "GpuProfile":
        """A copy under a power limit (``nvidia-smi -pl``), which lowers the rates of cores and memory.

        Raises InputError for a limit above the board's power or below half of it, and where that is not known."""
        tdp_w = self.tdp.base if self.tdp else 0.0
        if not tdp_w / 2 <= watts <= tdp_w:
            bounds = f"it is {tdp_w / 2:.0f} to {tdp_w:.0f} W" if self.tdp else "its board power is not known"
            raise InputError(f"{self.id} has no power limit of {watts} W: {bounds}", hint=f"give --gpu {self.id}")
        share = 1 - POWER_LIMIT_LOSS * (1 - watts / tdp_w) ** 2

        def slower(facts: BaseModel) -> dict[str, Quantity]:
            rates = {name: one for name, one in facts if isinstance(one, Quantity) and one.unit.endswith("/s")}
            return {name: one.model_copy(update={"value": one.value * share}) for name, one in rates.items()}

        parts = {name: getattr(self, name) for name in ("memory", "compute", "kernels")}
        capped: dict[str, Any] = {name: facts.model_copy(update=slower(facts)) for name, facts in parts.items()}
        tdp = Quantity(value=watts, unit="W", source=STATED, kind="spec", note="power limit")
        named = {"id": f"{self.id}@{watts}w", "name": f"{self.name} at {watts} W"}
        return self.model_copy(update={**capped, **named, "tdp": tdp})

    def with_node(self, gpus: int) -> "GpuProfile":
        """A copy with ``gpus`` per node, all joined by its links; links beyond a node (NVL72) stay as they are."""
        links = self.interconnect
        if links.domain_gpus <= self.gpus_per_node:
            links = links.model_copy(update={"domain_gpus": min(links.domain_gpus, gpus)})
        return self.model_copy(update={"gpus_per_node": gpus, "interconnect": links})

    def figures(self) -> Iterator[tuple[str, Quantity | PartitionRule | AllReduceCurve]]:
        """Every number and rule with its path in the file, such as ``memory.bandwidth``."""
        return _figures(self, "")

    @model_validator(mode="after")
    def _every_source_is_listed(self) -> Self:
        used = {figure.source for _, figure in self.figures()} | {self.emulated_source} - {""}
        if self.emulated and not self.emulated_source:
            raise ValueError("'emulated' needs 'emulated_source'")
        if missing := sorted(used - self.sources.keys()):
            raise ValueError(f"sources not listed: {', '.join(missing)}: add [sources.{missing[0]}]")
        return self


def _figures(facts: BaseModel, path: str) -> Iterator[tuple[str, Quantity | PartitionRule | AllReduceCurve]]:
    for name, value in facts:
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Quantity | PartitionRule | AllReduceCurve):
                yield path + name, part
            elif isinstance(part, BaseModel):
                yield from _figures(part, f"{path}{name}.")


_ALIASES = "aliases.toml"
_BRANDS = re.compile(r"\b(?:nvidia|amd|geforce|instinct|tesla|quadro|radeon(?: ai pro)?)\b")
_COUNTED = re.compile(r"(\d{1,3})(?:-?[x*]-?|-)(.+)|(.+\d.*?)-?[x*:]-?(\d{1,3})")
_LIMITED = re.compile(r"([^@]+)@\s*(\d{1,5})\s*[wW]")
_HINT = "start from the file of a similar GPU; every number is { value, unit, source, kind }"


@cache
def profile_ids() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in data_dir("hardware").glob("*.toml") if file.name != _ALIASES))


@cache
def aliases() -> dict[str, str]:
    table: dict[str, list[str]] = tables_of(data_dir("hardware") / _ALIASES)
    return {alias: profile_id for profile_id, names in table.items() for alias in names}


def tool_names() -> dict[str, dict[str, list[str]]]:
    """PCI ids and the names that the vendors' tools print, by profile id."""
    return tables_of(package_dir("hardware") / "devices.toml")


def load_profile(name: str) -> GpuProfile:
    """The profile called ``name``: an id, an alias, a vendor's name, or the path of a ``.toml`` file; ``8xH100`` sets
    the GPUs of a node, ``h100@500w`` a power limit. Raises UnknownNameError, or InputError for a file that is no
    profile, for more GPUs than a node has, and for a limit outside the GPU's.

    >>> load_profile("NVIDIA GeForce RTX 4090").id, load_profile("4xH100").gpus_per_node
    ('rtx-4090', 4)
    """
    if name.lower().endswith(".toml") and may_be_path():
        return _read(Path(name))
    if limit := _LIMITED.fullmatch(name):
        return load_profile(limit[1]).at_power(int(limit[2]))
    plain, count = counted_name(name)
    profile_id = _id_of(plain)
    if profile_id is None:
        if "," in name:
            raise InputError(f"{name!r} is more than one GPU", hint="give one; planner compare takes several")
        see = "`planner hardware list`" + ", or give the path of a .toml file" * may_be_path()
        raise UnknownNameError("GPU", name, see=see, near=_nearest(plain))
    profile = _shipped(profile_id)
    if count is not None and not 1 <= count <= profile.gpus_per_node:
        hint = f"give --gpu {profile.id}, and how many by --tensor-parallel-size, or by --gpus and --nodes"
        raise InputError(f"{name}: a node of {profile.id} has {counted(profile.gpus_per_node)}", hint=hint)
    return profile if count is None else profile.with_node(count)


def counted_name(name: str) -> tuple[str, int | None]:
    """The plain name of a GPU, and the number of GPUs in ``8xH100``, ``8 H100`` or ``h100:8``."""
    plain = _plain(name)
    if _id_of(plain) or not (match := _COUNTED.fullmatch(plain)):
        return plain, None
    return match[2] or match[3], int(match[1] or match[4])


def _plain(name: str) -> str:
    """A name in lower case, without brands, its words joined by hyphens: ``h100-80gb``."""
    return "-".join(re.findall(r"[^\s_-]+", re.sub(r"(?<=\d) (?=gb)", "", _BRANDS.sub(" ", name.lower()))))


def _id_of(plain: str) -> str | None:
    """The profile of a plain name, with hyphens or without, and with its memory size or without: ``b200-180gb``."""
    found = {known.replace("-", ""): profile_id for known, profile_id in _names().items()}.get(plain.replace("-", ""))
    sized = re.fullmatch(r"(.+?)-?(\d+)gb", plain)
    if found or not sized or not (base := _id_of(sized[1])):
        return found
    return base if abs(_shipped(base).memory_bytes / GIB / int(sized[2]) - 1) < 0.08 else None  # B200: 180 or 192


@cache
def _names() -> dict[str, str]:
    printed = {_plain(name): profile_id for profile_id, device in tool_names().items() for name in device["names"]}
    return {**printed, **aliases(), **{profile_id: profile_id for profile_id in profile_ids()}}


def _nearest(name: str) -> list[str]:
    others: dict[str, list[Any]] = tables_of(package_dir("hardware") / "unprofiled.toml")
    fits = [other for other in others if re.match(rf"(?:[rg]tx-?)?{other}(?!\d)", name)]
    if not fits:
        first: dict[str, str] = {}
        for known in get_close_matches(name, [one for one in _names() if one != "cpu"], n=9, cutoff=0.5):
            first.setdefault(_names()[known], known)
        return list(first.values())[:3]
    architecture, memory_gb = others[max(fits, key=len)]

    def distance(profile: GpuProfile) -> tuple[float, float]:
        vendor = profile.architecture[:2] == architecture[:2]
        generations = abs(_generation(profile.architecture) - _generation(architecture))
        return (generations if vendor else inf), abs(log(profile.memory_bytes / (memory_gb * GB)))

    return [profile.id for profile in sorted(load_all(), key=distance)][:3]


def _generation(architecture: str) -> int:
    """First number of an architecture: 9 for sm_90 and for gfx942."""
    number = re.fullmatch(r"sm_(\d+)\d|gfx(\d+)\w\w", architecture)
    return int(number[1] or number[2]) if number else 0


@cache
def load_all(*, partitions: bool = False) -> tuple[GpuProfile, ...]:
    """The shipped profiles of whole GPUs, sorted by id; ``partitions`` adds those of GPU partitions and MIG slices."""
    # a look at the text: parsing every file takes longer
    texts = {name: (data_dir("hardware") / f"{name}.toml").read_text("utf-8") for name in profile_ids()}
    return tuple(_shipped(name) for name, text in texts.items() if partitions or "\n[partition]\n" not in text)


@cache
def _shipped(profile_id: str) -> GpuProfile:
    names = tuple(alias for alias, target in aliases().items() if target == profile_id)
    return _read(data_dir("hardware") / f"{profile_id}.toml", aliases=names)


def _read(path: Path, **extra: Any) -> GpuProfile:
    with os_errors(f"cannot read GPU profile {path}", hint="check the path"):
        facts = read_toml(path, hint=_HINT)
    try:
        return GpuProfile.model_validate({"id": path.stem, **extra, **facts})
    except ValidationError as error:
        raise InputError(f"{path}: {fault_in(error)}", hint=_HINT) from error


class Constant(_Facts):
    """A number with its unit and basis; ``runs``: measured runs determine it."""

    value: float
    unit: str
    basis: str
    runs: bool


@cache
def load_constants() -> dict[str, Constant]:
    """All constants by name; those of a group are named ``group.member``."""
    return dict(_constants("", calibration_tables("constants")))


def _constants(prefix: str, table: dict[str, Any]) -> Iterator[tuple[str, Constant]]:
    for name, entry in table.items():
        if "value" in entry:
            yield prefix + name, Constant(**entry)
        else:
            yield from _constants(f"{prefix}{name}.", entry)


def constant(name: str) -> float:
    entry = load_constants()[name]
    return to_base(entry.value, entry.unit)


def constant_of(group: str, member: str) -> float:
    """The value for ``member`` of a group, else that of the group's ``other``."""
    name = f"{group}.{member}"
    return constant(name if name in load_constants() else f"{group}.other")
