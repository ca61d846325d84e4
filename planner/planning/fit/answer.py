"""Does it fit? The whole answer: verdict, every figure, the limits of each setting, and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from planner.engine import CPU_KVCACHE_SPACE, EngineArgs, EngineConfig, EngineVersion
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile
from planner.memory import SHIPPED_BASIS, Basis, MemoryBudget
from planner.model import Model, as_quantized
from planner.planning.fit.options import Asked, ways_out
from planner.planning.fit.result import FitResult
from planner.units import GIB

if TYPE_CHECKING:
    from planner.planning.serving import Serving


def fit_model(
    model: Model,
    profile: GpuProfile,
    args: EngineArgs,
    version: EngineVersion,
    *,
    requested_model: str = "",
    resolved_model: str = "",
    look_for_options: bool = True,
    basis: Basis = SHIPPED_BASIS,
) -> FitResult:
    """Whether ``model`` starts on GPUs of ``profile`` with the settings ``args`` under vLLM ``version``.

    ``requested_model`` is the name that the user gave and ``resolved_model`` what it led to (the model's own id when
    they are left out); ``look_for_options`` also checks what would make it fit; ``basis`` are overheads other than
    ours, and the draft of ``--speculative-config``.
    Raises IllegalPlanError for settings that vLLM refuses whatever the memory, UnsupportedModelError for a model
    whose cache is not understood, InputError for a flag with an impossible value.
    """
    asked = Asked(model, profile, args, version, basis)
    deployment = asked.deployment()
    result = FitResult(
        requested_model=requested_model or model.id,
        resolved_model=resolved_model or model.id,
        deployment=deployment,
        min_tensor_parallel_size=asked.min_tensor_parallel_size(),
        notes=tuple(_notes(model, deployment.budget)),
    )
    if look_for_options and result.verdict != "fits":
        return replace(result, options=tuple(ways_out(asked, result)))
    return result


def sweep_settings(
    serving: Serving,
    *,
    tensor_parallel_sizes: Iterable[int] = (1, 2, 4, 8),
    weight_dtypes: Iterable[str] | None = None,
    kv_cache_dtypes: Iterable[str] = ("auto", "fp8"),
) -> list[FitResult]:
    """Results over TP x weight dtype x KV cache dtype; combinations that vLLM refuses are left out.

    ``weight_dtypes``: None for the checkpoint and, where it has 16 bits, the usual published forms of it.
    """
    model = serving.model
    if weight_dtypes is None:
        weight_dtypes = () if model.quantization.method else (model.dtype, "fp8", "int4-awq")
    models = [as_quantized(model, name) for name in weight_dtypes] or [model]
    results: list[FitResult] = []
    for served, size, kv_cache_dtype in product(models, tensor_parallel_sizes, kv_cache_dtypes):
        asked = serving.changed(
            resolved=replace(serving.resolved, model=served), tensor_parallel_size=size, kv_cache_dtype=kv_cache_dtype
        )
        with suppress(IllegalPlanError):  # not a plan: the sweep lists what can run
            results.append(asked.fit(ways_out=False))
    return results


def _notes(model: Model, budget: MemoryBudget) -> Iterator[str]:
    stage, config = budget.binding, budget.config
    yield from model.notes
    yield from model.quantization.notes
    if config.version.note:
        yield config.version.note
    yield from (taken for taken in config.defaults_taken if taken.startswith(CPU_KVCACHE_SPACE) or "LongRoPE" in taken)
    if budget.features.sampler == "unknown":
        yield (
            f"vLLM {config.version} samples with FlashInfer where it is installed, in less memory: "
            "--flashinfer-sampler or --no-flashinfer-sampler says which"
        )
    own = budget.overheads.own
    if own:
        logs = ", ".join(dict.fromkeys(log for fit in own for log in fit.logs))
        yield f"memory overheads of this machine, from {own[0].origin} (log {logs})"
    if model.mtp and config.speculative_config is None:
        yield "MTP modules are not loaded: speculative decoding is not asked for"
    if config.speculative_config:
        yield "the rejection sampler's memory in the profile run is not modelled"
    yield from _extra_notes(config)
    if model.vision:
        yield "the vision encoder's share of the profile run depends on image sizes, so its interval is wide"
    if not stage.graphs_in_budget and stage.graphs.mid:
        yield (
            f"vLLM {config.version} captures about {stage.graphs.mid / GIB:.1f} GiB of graphs outside its budget: "
            f"the engine uses more than {config.gpu_memory_utilization:g} of the GPU's memory"
        )
        left = budget.memory_bytes - budget.start_up.mid - stage.requested_bytes
        if stage.graphs.mid > left:
            yield f"only {left / GIB:.1f} GiB are left for them: capture may run out of memory"
    if config.pipeline_parallel_size > 1:
        layers = stage.weights.layers
        yield f"of {len(budget.stages)} pipeline stages, the one with layers {layers.start} to {layers.stop - 1} binds"


def _extra_notes(config: EngineConfig) -> Iterator[str]:
    """About what is held beside the model."""
    if config.lora:
        yield "vLLM serves adapters only for models that support them (SupportsLoRA); this is not checked here"
    if config.swap_space is not None:
        yield "--swap-space is host memory and changes nothing: vLLM recomputes requests instead of swapping them"
