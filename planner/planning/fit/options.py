"""What would make it fit: one change each where that is enough, checked by asking again; nothing is promised else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import ceil
from typing import Any

from planner.engine import EngineArgs, EngineVersion
from planner.errors import PlannerError
from planner.hardware import GpuProfile, load_all, load_whole
from planner.memory import SHIPPED_BASIS, Basis
from planner.model import Model, as_quantized
from planner.planning.fit.check import check_start, min_tensor_parallel_size
from planner.planning.fit.result import Checked, FitResult, Option, Setting
from planner.units import GIB

#: The largest share of memory that is still sane to ask for.
LARGEST_UTILIZATION = 0.97
#: A context below this is no way out.
SHORTEST_CONTEXT_TOK = 1024
#: Other GPUs that are named at most.
OTHER_GPUS = 3
#: Settings that cost little, least first: tried together where none of them is enough alone.
FRUGAL: tuple[tuple[str, Setting], ...] = (
    ("max_num_seqs", 128),
    ("max_num_batched_tokens", 2048),
    ("gpu_memory_utilization", 0.95),
    ("kv_cache_dtype", "fp8"),
)


@dataclass(frozen=True, slots=True)
class _Case:
    """The question that was asked, to be asked again with changes."""

    model: Model
    profile: GpuProfile
    args: EngineArgs
    version: EngineVersion
    basis: Basis

    def ask(
        self,
        change: str,
        settings: dict[str, Setting],
        *,
        model: Model | None = None,
        profile: GpuProfile | None = None,
    ) -> Iterator[Option]:
        """The option, when it fits surely; nothing when it does not, or when vLLM refuses it.

        ``model`` and ``profile`` stand for the ``weight_dtype`` and the ``gpu`` among the settings.
        """
        checked = self.checked(settings, model, profile)
        if checked and checked.verdict == "fits":
            budget, blocks = checked.budget, checked.budget.num_blocks.mid
            yield Option(
                change=change,
                settings=settings,
                verdict=checked.verdict,
                max_model_len=budget.config.max_model_len,
                kv_cache_tokens=budget.logged_tokens(blocks),
                max_concurrency=budget.concurrency(blocks),
            )

    def checked(
        self, settings: dict[str, Setting], model: Model | None = None, profile: GpuProfile | None = None
    ) -> Checked | None:
        """The short answer with ``settings``; None when vLLM refuses them."""
        flags: dict[str, Any] = {k: v for k, v in settings.items() if k not in ("weight_dtype", "gpu")}
        try:
            return check_start(
                model or self.model, profile or self.profile, replace(self.args, **flags), self.version, self.basis
            )
        except PlannerError:
            return None  # not a way out

    def shorter(self, settings: dict[str, Setting]) -> dict[str, Setting]:
        """``settings`` with the longest context that surely fits under them; empty where that is too short."""
        checked = self.checked(settings)
        if checked is None or not checked.budget.pool.groups:
            return {}
        budget = checked.budget
        longest = budget.pool.longest(int(budget.num_blocks.low) - 1, budget.config.max_model_len) // 64 * 64
        if not SHORTEST_CONTEXT_TOK <= longest < budget.config.max_model_len:
            return {}
        return {**settings, "max_model_len": longest}


def ways_out(
    model: Model,
    profile: GpuProfile,
    args: EngineArgs,
    version: EngineVersion,
    result: FitResult,
    basis: Basis = SHIPPED_BASIS,
) -> Iterator[Option]:
    """Changes after which it fits, most useful first: the best setting, precision, number and kind of GPU, then the
    second best of each, and so on; so that the first three are three kinds of way out where there are as many."""
    case = _Case(model, profile, args, version, basis)
    kinds = (
        tuple(_settings(case, result)) or tuple(_frugal(case, result)),
        tuple(_precisions(case)),
        tuple(_more_gpus(case)),
        (*_modes(case), *_other_gpus(case)),
    )
    for rank in zip_longest(*kinds):
        yield from (option for option in rank if option is not None)


def _settings(case: _Case, result: FitResult) -> Iterator[Option]:
    """Single settings, those that take least from the requests first."""
    config = result.config
    share = result.smallest_gpu_memory_utilization
    if share and config.gpu_memory_utilization < share <= LARGEST_UTILIZATION:
        yield from case.ask(f"{share:.0%} of the memory", {"gpu_memory_utilization": share})
    if config.cpu_kvcache_space and result.budget.pool.groups:
        needed = ceil(result.budget.needed_bytes(result.stage, config.max_model_len) / GIB)
        room = int((result.stage.left.low - result.budget.start_up.high) // GIB)
        space = max(needed, min(room, config.cpu_kvcache_space))
        if space != config.cpu_kvcache_space:
            yield from case.ask(f"{space} GiB of KV cache", {"cpu_kvcache_space": space})
    seqs = result.largest_max_num_seqs
    if 1 <= seqs < config.max_num_seqs:
        yield from case.ask(f"at most {seqs} requests at once", {"max_num_seqs": seqs})
    if not config.kv_cache_dtype.startswith("fp8"):
        yield from case.ask("an 8-bit KV cache", {"kv_cache_dtype": "fp8"})
    shorter = case.shorter({})
    if shorter:
        yield from case.ask(f"a context of {shorter['max_model_len']:,} tokens", shorter)
    if not config.enforce_eager and result.stage.graphs_in_budget:
        yield from case.ask("no CUDA graphs (slower)", {"enforce_eager": True})


def _more_gpus(case: _Case) -> Iterator[Option]:
    size = min_tensor_parallel_size(case.model, case.profile, case.args, case.version, case.basis)
    if size and size > case.args.tensor_parallel_size:
        yield from case.ask(f"{size} GPUs, tensor parallel", {"tensor_parallel_size": size})


def _frugal(case: _Case, result: FitResult) -> Iterator[Option]:
    """As few of the frugal settings together as are enough; all of them and a shorter context, where none are."""
    chosen: dict[str, Setting] = {}
    for name, value in FRUGAL:
        if not _saves(name, value, getattr(result.config, name)):
            continue
        chosen[name] = value
        found = tuple(case.ask("frugal settings together", dict(chosen)))
        if found:
            yield from found
            return
    shorter = case.shorter(chosen)
    if shorter:
        length = shorter["max_model_len"]
        yield from case.ask(f"frugal settings and a context of {length:,} tokens", shorter)


def _saves(name: str, value: Any, current: Any) -> bool:
    """Whether ``value`` takes less memory, or leaves more of it, than the current one."""
    if name == "kv_cache_dtype":
        return not str(current).startswith("fp8")
    return bool(value > current if name == "gpu_memory_utilization" else value < current)


def _precisions(case: _Case) -> Iterator[Option]:
    model, profile = case.model, case.profile
    if model.quantization.method is not None or case.args.quantization:
        return
    if profile.supports("fp8"):
        yield from case.ask("fp8 weights, quantised while they load", {"quantization": "fp8"})
    four_bits = "nvfp4" if profile.vendor == "nvidia" and profile.supports("fp4") else "int4-awq"
    for name, dtype in ((f"a 4-bit checkpoint of the model ({four_bits})", four_bits), ("an fp8 checkpoint", "fp8")):
        if dtype != "fp8" or profile.supports("fp8"):
            yield from case.ask(name, {"weight_dtype": dtype}, model=as_quantized(model, dtype))


def _modes(case: _Case) -> Iterator[Option]:
    """The smallest larger mode of the same GPU, the whole GPU among them."""
    own = case.profile
    if own.partition is None:  # nothing is larger than the whole
        return
    larger = [p for p in load_all() if p.whole == own.whole and p.memory_bytes > own.memory_bytes]
    for other in sorted(larger, key=lambda p: p.memory_bytes):
        found = tuple(case.ask(f"{other.name} instead", {"gpu": other.id}, profile=other))
        if found:
            yield from found
            return


def _other_gpus(case: _Case) -> Iterator[Option]:
    """The smallest whole GPUs with more memory on which the same settings fit."""
    own = case.profile
    larger = [
        p for p in load_whole() if p.platform != "cpu" and p.memory_bytes > own.memory_bytes and p.id != own.whole
    ]
    named = 0
    for other in sorted(larger, key=lambda p: p.memory_bytes):
        found = tuple(case.ask(other.name, {"gpu": other.id}, profile=other))
        yield from found
        named += len(found)
        if named >= OTHER_GPUS:
            return
