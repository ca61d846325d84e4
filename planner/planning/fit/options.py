"""What would make it fit: single changes where one is enough, else as few as possible, each checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import ceil
from typing import Any

from planner.engine import EngineArgs, EngineVersion, legal_tensor_parallel_sizes, version_features
from planner.errors import IllegalPlanError, PlannerError
from planner.hardware import GpuProfile, load_all
from planner.memory import SHIPPED_BASIS, Basis
from planner.model import Model, as_quantized
from planner.planning.deployment import Deployment, resolve_deployment, served_model
from planner.planning.fit.result import FitResult, Setting, WayOut
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
class Asked:
    """What is asked for, to be asked again with changes."""

    model: Model
    profile: GpuProfile
    args: EngineArgs
    version: EngineVersion
    basis: Basis = SHIPPED_BASIS

    def deployment(self, **settings: Any) -> Deployment:
        """The engine with ``settings`` changed. Raises PlannerError where vLLM refuses them."""
        args = replace(self.args, **settings)
        return resolve_deployment(self.model, self.profile, args, self.version, basis=self.basis)

    def option(
        self,
        change: str,
        settings: dict[str, Setting],
        *,
        model: Model | None = None,
        profile: GpuProfile | None = None,
    ) -> Iterator[WayOut]:
        """The option, when it surely fits; nothing when it does not, or when vLLM refuses it.

        ``model`` and ``profile`` stand for the ``weight_dtype`` and the ``gpu`` among the settings.
        """
        flags = {name: value for name, value in settings.items() if name not in ("weight_dtype", "gpu")}
        try:
            found = replace(self, model=model or self.model, profile=profile or self.profile).deployment(**flags)
        except PlannerError:
            return
        if found.checked.verdict == "fits":
            budget, blocks = found.budget, found.budget.num_blocks.mid
            yield WayOut(
                change=change,
                settings=settings,
                verdict="fits",
                max_model_len=found.config.max_model_len,
                kv_cache_tokens=budget.logged_tokens(blocks),
                max_concurrency=budget.concurrency(blocks),
            )

    def shorter(self, settings: dict[str, Setting]) -> dict[str, Setting]:
        """``settings`` with the longest context that surely fits under them; empty where that is too short."""
        try:
            budget = self.deployment(**settings).budget
        except PlannerError:
            return {}
        if not budget.pool.groups:
            return {}
        longest = budget.pool.longest(int(budget.num_blocks.low) - 1, budget.config.max_model_len) // 64 * 64
        if not SHORTEST_CONTEXT_TOK <= longest < budget.config.max_model_len:
            return {}
        return {**settings, "max_model_len": longest}

    def min_tensor_parallel_size(self) -> int | None:
        """The smallest legal TP size that fits, everything else as asked; None where none does."""
        args = self.args
        sizes = legal_tensor_parallel_sizes(
            served_model(self.model, args),
            self.profile,
            pipeline_parallel_size=args.pipeline_parallel_size,
            data_parallel_size=args.data_parallel_size,
            enable_expert_parallel=args.enable_expert_parallel,
            allow_unvalidated=args.allow_unvalidated,
            fp8_blocks=version_features(self.version, self.profile).fp8_blocks,
            most=args.tensor_parallel_size,
        )
        for size in sizes:
            try:
                fits = self.deployment(tensor_parallel_size=size).checked.fits
            except IllegalPlanError:  # a size that leaves another setting illegal
                continue
            if fits:
                return size
        return None


def ways_out(asked: Asked, result: FitResult) -> Iterator[WayOut]:
    """Changes after which it fits, each checked by asking again.

    The best setting, precision, number and kind of GPU come first, then the second best of each, and so on: the first
    three are three kinds of way out where there are as many. Where none of them is enough on such GPUs, several
    changes together come first.
    """
    kinds = (
        tuple(_settings(asked, result)) or tuple(_frugal(asked, result)),
        tuple(_precisions(asked)),
        tuple(_more_gpus(asked, result)),
    )
    if not any(kinds[:2]) and not result.min_tensor_parallel_size:
        yield from sorted(_several(asked), key=lambda option: option.settings["tensor_parallel_size"])
    others = (*_modes(asked), *_other_gpus(asked))
    ordered = (*kinds[:2], others, kinds[2]) if asked.profile.partition else (*kinds, others)  # disputed TP is last
    for rank in zip_longest(*ordered):
        yield from (option for option in rank if option is not None)


def _settings(asked: Asked, result: FitResult) -> Iterator[WayOut]:
    """Single settings, those that take least from the requests first."""
    config = result.config
    share = result.smallest_gpu_memory_utilization
    if share and config.gpu_memory_utilization < share <= LARGEST_UTILIZATION:
        yield from asked.option(f"{share:.0%} of the memory", {"gpu_memory_utilization": share})
    if config.cpu_kvcache_space and result.budget.pool.groups:
        needed = ceil(result.budget.needed_bytes(result.stage, config.max_model_len) / GIB)
        room = int((result.stage.left.low - result.budget.start_up.high) // GIB)
        space = max(needed, min(room, config.cpu_kvcache_space))
        if space != config.cpu_kvcache_space:
            yield from asked.option(f"{space} GiB of KV cache", {"cpu_kvcache_space": space})
    seqs = result.largest_max_num_seqs
    if 1 <= seqs < config.max_num_seqs:
        yield from asked.option(f"at most {seqs} requests at once", {"max_num_seqs": seqs})
    if not config.kv_cache_dtype.startswith("fp8"):
        yield from asked.option("an 8-bit KV cache", {"kv_cache_dtype": "fp8"})
    shorter = asked.shorter({})
    if shorter:
        yield from asked.option(f"a context of {shorter['max_model_len']:,} tokens", shorter)
    if not config.enforce_eager and result.stage.graphs_in_budget:
        yield from asked.option("no CUDA graphs (slower)", {"enforce_eager": True})


def _more_gpus(asked: Asked, result: FitResult) -> Iterator[WayOut]:
    size = result.min_tensor_parallel_size
    if size and size > asked.args.tensor_parallel_size:
        yield from asked.option(f"{size} GPUs, tensor parallel", {"tensor_parallel_size": size})
    elif asked.profile.partition:
        yield from _more_partitions(asked)


def _several(asked: Asked) -> Iterator[WayOut]:
    """Of each precision the fewest GPUs on which it fits, with a shorter context where the whole one is too much."""
    args, profile = asked.args, asked.profile
    as_is: tuple[str, Model, dict[str, Setting]] = ("", asked.model, {})
    for name, model, settings in (as_is, *_narrower(asked)):
        narrow = replace(asked, model=model)
        sizes = legal_tensor_parallel_sizes(
            served_model(model, args), profile, fp8_blocks=version_features(asked.version, profile).fp8_blocks
        )
        for size in sizes:
            if size < args.tensor_parallel_size:
                continue
            gpus = f"{size} GPUs, tensor parallel" if size > 1 else f"1 {'partition' if profile.partition else 'GPU'}"
            change = f"{gpus}, {name}" if name else gpus
            found = tuple(narrow.option(change, {"tensor_parallel_size": size, **settings}, model=model))
            if not found and (short := narrow.shorter({"tensor_parallel_size": size})):
                length = short["max_model_len"]
                found = tuple(
                    narrow.option(f"{change}, a context of {length:,} tokens", {**short, **settings}, model=model)
                )
            if found:
                yield from found
                break


def _more_partitions(asked: Asked) -> Iterator[WayOut]:
    """Tensor parallelism over partitions, in a mode for which a source documents it and another disputes it."""
    own = asked.profile
    alike = [
        p
        for p in load_all(partitions=True)
        if p.whole == own.whole and p.partition and p.memory_bytes == own.memory_bytes
    ]
    for profile in sorted(alike, key=lambda p: p.id != own.id):
        for size in (2, 4, 8):
            settings: dict[str, Setting] = {"tensor_parallel_size": size, "allow_unvalidated": True}
            if profile.id != own.id:
                settings["gpu"] = profile.id
            found = tuple(
                asked.option(f"{size} partitions, tensor parallel, which is disputed", settings, profile=profile)
            )
            if found:
                yield from found
                return


def _frugal(asked: Asked, result: FitResult) -> Iterator[WayOut]:
    """As few of the frugal settings together as are enough; all of them and a shorter context, where none are."""
    chosen: dict[str, Setting] = {}
    for name, value in FRUGAL:
        if not _saves(name, value, getattr(result.config, name)):
            continue
        chosen[name] = value
        found = tuple(asked.option("frugal settings together", dict(chosen)))
        if found:
            yield from found
            return
    shorter = asked.shorter(chosen)
    if shorter:
        length = shorter["max_model_len"]
        yield from asked.option(f"frugal settings and a context of {length:,} tokens", shorter)


def _saves(name: str, value: Any, current: Any) -> bool:
    """Whether ``value`` takes less memory, or leaves more of it, than the current one."""
    if name == "kv_cache_dtype":
        return not str(current).startswith("fp8")
    return bool(value > current if name == "gpu_memory_utilization" else value < current)


def _precisions(asked: Asked) -> Iterator[WayOut]:
    model, profile = asked.model, asked.profile
    if model.quantization.method is not None or asked.args.quantization:
        return
    if profile.supports("fp8"):
        yield from asked.option("fp8 weights, quantised while they load", {"quantization": "fp8"})
    for name, narrow, settings in _narrower(asked):
        yield from asked.option(name, settings, model=narrow)


def _narrower(asked: Asked) -> Iterator[tuple[str, Model, dict[str, Setting]]]:
    """Checkpoints of fewer bits that somebody may have made, the smallest first; none of one that is quantised."""
    model, profile = asked.model, asked.profile
    if model.quantization.method is not None or asked.args.quantization:
        return
    four_bits = "nvfp4" if profile.vendor == "nvidia" and profile.supports("fp4") else "int4-awq"
    for name, dtype in ((f"a 4-bit checkpoint of the model ({four_bits})", four_bits), ("an fp8 checkpoint", "fp8")):
        if dtype != "fp8" or profile.supports("fp8"):
            yield name, as_quantized(model, dtype), {"weight_dtype": dtype}


def _modes(asked: Asked) -> Iterator[WayOut]:
    """The smallest larger mode of the same GPU, the whole GPU among them."""
    own = asked.profile
    if own.partition is None:  # nothing is larger than the whole
        return
    larger = [p for p in load_all(partitions=True) if p.whole == own.whole and p.memory_bytes > own.memory_bytes]
    for other in sorted(larger, key=lambda p: p.memory_bytes):
        found = tuple(asked.option(f"{other.name} instead", {"gpu": other.id}, profile=other))
        if found:
            yield from found
            return


def _other_gpus(asked: Asked) -> Iterator[WayOut]:
    """The smallest whole GPUs with more memory on which the same settings fit, in no more nodes."""
    own, args = asked.profile, asked.args
    ranks = args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size
    nodes = ceil(ranks / own.gpus_per_node)
    larger = [
        p
        for p in load_all()
        if p.platform != "cpu"
        and p.memory_bytes > own.memory_bytes
        and p.id != own.whole
        and ceil(ranks / p.gpus_per_node) <= nodes
    ]
    named = 0
    for other in sorted(larger, key=lambda p: p.memory_bytes):
        found = tuple(asked.option(other.name, {"gpu": other.id}, profile=other))
        yield from found
        named += len(found)
        if named >= OTHER_GPUS:
            return
