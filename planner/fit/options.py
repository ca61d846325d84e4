"""What would make it fit: single changes first, each checked by asking again; nothing is promised unchecked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.engine.config import EngineArgs
from planner.engine.version import EngineVersion
from planner.errors import PlannerError
from planner.fit.check import Checked, check, min_tensor_parallel_size
from planner.fit.result import FitResult, Option
from planner.hardware import load_all
from planner.hardware.schema import GpuProfile
from planner.model.architecture import Model
from planner.model.quantization import as_quantized

#: Shares of memory that are still sane to ask for.
LARGEST_UTILIZATION = 0.97
#: A context below this is no way out.
SHORTEST_CONTEXT_TOK = 1024
#: Other GPUs that are named at most.
OTHER_GPUS = 3


def ways_out(
    model: Model, profile: GpuProfile, args: EngineArgs, version: EngineVersion, result: FitResult
) -> Iterator[Option]:
    """Changes after which it fits, cheapest first: settings, precision, more GPUs, another mode, another GPU."""
    yield from _settings(model, profile, args, version, result)
    yield from _precisions(model, profile, args, version)
    yield from _more_gpus(model, profile, args, version)
    yield from _modes(model, profile, args, version)
    yield from _other_gpus(model, profile, args, version)


def _settings(
    model: Model, profile: GpuProfile, args: EngineArgs, version: EngineVersion, result: FitResult
) -> Iterator[Option]:
    config = result.config
    shorter = result.largest_max_model_len // 64 * 64
    if SHORTEST_CONTEXT_TOK <= shorter < config.max_model_len:
        yield from _try(
            model, profile, replace(args, max_model_len=shorter), version,
            f"a context of {shorter:,} tokens", f"--max-model-len {shorter}",
        )  # fmt: skip
    share = result.smallest_gpu_memory_utilization
    if share and config.gpu_memory_utilization < share <= LARGEST_UTILIZATION:
        yield from _try(
            model, profile, replace(args, gpu_memory_utilization=share), version,
            f"{share:.0%} of the memory", f"--gpu-memory-utilization {share:g}",
        )  # fmt: skip
    seqs = result.largest_max_num_seqs
    if 1 <= seqs < config.max_num_seqs:
        yield from _try(
            model, profile, replace(args, max_num_seqs=seqs), version,
            f"at most {seqs} requests at once", f"--max-num-seqs {seqs}",
        )  # fmt: skip
    if not config.enforce_eager and result.stage.graphs_in_budget:
        yield from _try(
            model, profile, replace(args, enforce_eager=True), version, "no CUDA graphs (slower)", "--enforce-eager"
        )  # fmt: skip
    if not config.kv_cache_dtype.startswith(("fp8", "nvfp4")):
        yield from _try(
            model, profile, replace(args, kv_cache_dtype="fp8"), version, "an 8-bit KV cache", "--kv-cache-dtype fp8"
        )  # fmt: skip


def _precisions(model: Model, profile: GpuProfile, args: EngineArgs, version: EngineVersion) -> Iterator[Option]:
    if model.quantization.method is not None or args.quantization:
        return
    if profile.supports("fp8"):
        online = replace(args, quantization="fp8")
        yield from _try(model, profile, online, version, "fp8 weights, quantised while loading", "--quantization fp8")
        yield from _try(
            as_quantized(model, "fp8"), profile, args, version, "an fp8 checkpoint of the model", "--weight-dtype fp8"
        )  # fmt: skip
    four_bits = "nvfp4" if profile.vendor == "nvidia" and profile.supports("fp4") else "int4-awq"
    yield from _try(
        as_quantized(model, four_bits), profile, args, version,
        f"a 4-bit checkpoint of the model ({four_bits})", f"--weight-dtype {four_bits}",
    )  # fmt: skip


def _more_gpus(model: Model, profile: GpuProfile, args: EngineArgs, version: EngineVersion) -> Iterator[Option]:
    size = min_tensor_parallel_size(model, profile, args, version)
    if size and size > args.tensor_parallel_size:
        yield from _try(
            model, profile, replace(args, tensor_parallel_size=size), version,
            f"{size} GPUs, tensor parallel", f"--tensor-parallel-size {size}",
        )  # fmt: skip


def _modes(model: Model, profile: GpuProfile, args: EngineArgs, version: EngineVersion) -> Iterator[Option]:
    """Other partition modes of the same GPU, and the whole GPU."""
    whole = profile.partition.of if profile.partition else profile.id
    family = [p for p in load_all() if p.id != profile.id and whole in (p.id, p.partition and p.partition.of)]
    for other in sorted(family, key=lambda p: p.memory_bytes):
        if other.memory_bytes <= profile.memory_bytes or (other.partition and other.partition.legal):
            continue
        found = tuple(_try(model, other, args, version, f"the mode {other.name}", f"--gpu {other.id}"))
        if found:
            yield from found
            return


def _other_gpus(model: Model, profile: GpuProfile, args: EngineArgs, version: EngineVersion) -> Iterator[Option]:
    """The smallest whole GPUs with more memory on which the same settings fit."""
    larger = [
        p for p in load_all() if not p.partition and p.platform != "cpu" and p.memory_bytes > profile.memory_bytes
    ]
    named = 0
    for other in sorted(larger, key=lambda p: p.memory_bytes):
        found = tuple(_try(model, other, args, version, other.name, f"--gpu {other.id}"))
        yield from found
        named += len(found)
        if named >= OTHER_GPUS:
            return


def _try(
    model: Model, profile: GpuProfile, args: EngineArgs, version: EngineVersion, change: str, *flags: str
) -> Iterator[Option]:
    """The option, when it fits surely; nothing when it does not or vLLM refuses it."""
    try:
        checked = check(model, profile, args, version)
    except PlannerError:
        return  # not a way out: the engine refuses these settings
    if checked.verdict == "fits":
        yield _option(checked, change, flags)


def _option(checked: Checked, change: str, flags: tuple[str, ...]) -> Option:
    budget = checked.budget
    blocks = budget.num_blocks.mid
    return Option(
        change=change,
        flags=flags,
        verdict=checked.verdict,
        max_model_len=budget.config.max_model_len,
        kv_cache_tokens=budget.logged_tokens(blocks),
        max_concurrency=budget.concurrency(blocks),
    )
