"""Does it fit: every figure, the verdict with its interval, changes after which it fits, and the arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product, starmap, zip_longest
from math import ceil, floor, inf, lcm
from typing import TYPE_CHECKING, Any

from planner.engine import (
    CPU_KVCACHE_SPACE,
    FLASHINFER_SAMPLER,
    EngineConfig,
    features_of,
    flag_of,
    flag_status,
    held_heads,
    legal_tensor_parallel_sizes,
    version_features,
)
from planner.errors import IllegalPlanError, PlannerError
from planner.hardware import GpuProfile, load_all
from planner.memory import SHIPPED, Interval, MemoryBudget, StageBudget, element_bytes, host_kv_tokens
from planner.model import Attention, LatentAttention, Model, StateMixer, as_quantized
from planner.planning.deployment import GRAPHS, Condition, Deployment, Verdict, served_model
from planner.planning.odds import percent
from planner.units import GB, GIB, format_bytes, format_gb

if TYPE_CHECKING:
    from planner.planning.serving import Serving

Setting = str | int | float | bool


@dataclass(frozen=True, slots=True)
class WayOut:
    """Changes after which it fits, as an entry of ``options[]``."""

    change: str
    settings: dict[str, Setting]  #: what to change: flags of vLLM, ``gpu`` (a profile id), ``weight_dtype``
    flags: tuple[str, ...]  #: the same as flags of ``planner fit``; all but those two are vLLM's own
    verdict: Verdict
    num_gpus: int  #: of all ranks together
    max_model_len: int
    kv_cache_tokens: int
    max_concurrency: float  #: requests of ``max_model_len``


@dataclass(frozen=True, slots=True)
class Outcome:
    """Memory with one value of a variable that decides and was not given, as an entry of ``outcomes[]``."""

    env: dict[str, str]
    verdict: Verdict
    probability_fits: float
    kv_cache_tokens: int
    max_concurrency: float


@dataclass(frozen=True, slots=True)
class LogLine:
    """One figure that vLLM logged when it started, beside its prediction, as an entry of ``startup_log[]``."""

    line: str
    unit: str  #: bytes per GPU, tokens, blocks or requests of the engine
    predicted: float
    lo: float
    hi: float
    logged: float
    inside: bool  #: whether the logged figure is in the interval, its own rounding allowed for


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Memory of a model on a GPU, and whether it starts. Bytes per GPU, tokens and concurrency per engine."""

    serving: Serving
    min_tensor_parallel_size: int | None
    options: tuple[WayOut, ...] = ()  #: changes after which it fits
    notes: tuple[str, ...] = ()
    startup_log: tuple[LogLine, ...] = ()  #: where one was given

    @property
    def deployment(self) -> Deployment:
        """The engine, for questions about memory alone."""
        return self.serving.memory

    @property
    def fits(self) -> bool:
        """The best estimate; ``verdict`` says how sure it is."""
        return self.deployment.checked.fits

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all conditions."""
        return self.deployment.checked.verdict

    @property
    def verdict_words(self) -> str:
        """The verdict; where it is too close to call, with the probability that it starts."""
        odds = f": starts with {percent(self.deployment.checked.probability_fits)} probability"
        return self.verdict + (odds if self.verdict == "too close to call" else "")

    @property
    def budget(self) -> MemoryBudget:
        """The division of the memory of each GPU."""
        return self.deployment.budget

    @property
    def gpu_id(self) -> str:
        """Profile id of the GPU, such as ``h100-sxm``."""
        return self.deployment.profile.id

    @property
    def config(self) -> EngineConfig:
        """The engine's settings, defaults filled in."""
        return self.deployment.config

    @property
    def stage(self) -> StageBudget:
        """The pipeline stage with the least memory left."""
        return self.budget.binding

    @property
    def calibration(self) -> str:
        """Source of the overheads for this GPU, version and TP size: ``shipped``, or a file of the user's."""
        fits = self.budget.overheads.own
        return fits[0].origin if fits else SHIPPED

    @property
    def binding_condition(self) -> Condition:
        """The first condition that fails, else the one with the smallest margin."""
        conditions = self.deployment.checked.conditions
        failing = (condition for condition in conditions if condition.margin.mid < 0)
        return next(failing, min(conditions, key=lambda c: c.margin.mid))

    @property
    def reason(self) -> str:
        """The message of the condition that fails, or might; empty when it fits."""
        return "" if self.verdict == "fits" else self.binding_condition.message

    @cached_property
    def largest_max_model_len(self) -> int:
        """The longest request that the cache holds, up to the model's own context; 0 when none fits."""
        limit = max(self.config.max_model_len, self.budget.model.max_position_embeddings)
        if not self.budget.pool.groups:
            return limit
        return self.budget.pool.longest(int(self.budget.num_blocks.mid) - 1, limit)

    @cached_property
    def largest_max_num_seqs(self) -> int:
        """The largest ``max_num_seqs`` with which the engine still starts, up to ``max_num_batched_tokens``."""
        low, high = 0, self.config.max_num_batched_tokens
        if self._fits_with(max_num_seqs=high):
            return high
        while high - low > max(1, low // 64):
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits_with(max_num_seqs=middle) else (low, middle)
        return low

    @cached_property
    def smallest_gpu_memory_utilization(self) -> float | None:
        """The smallest ``gpu_memory_utilization``, in steps of 0.01, that still fits.

        None where even 1 is too little, and where the size of the cache is given: the share then bounds nothing.
        """
        if self.config.given_kv_cache_bytes:
            return None
        conditions = self.deployment.checked.conditions
        lacking = min(c.margin.mid for c in conditions if c.name != "free memory below budget")
        wanted = self.stage.requested_bytes - lacking
        smallest = max(0.01, ceil(100 * wanted / self.budget.memory_bytes) / 100)
        return smallest if smallest <= 1 and self._fits_with(gpu_memory_utilization=smallest) else None

    @property
    def smallest_kv_cache_memory_bytes(self) -> int | None:
        """The smallest ``--kv-cache-memory-bytes`` that holds a request of ``max_model_len``; None before 0.10.2."""
        if not self.budget.pool.groups or not flag_status(self.config.version, flag_of("kv_cache_memory_bytes")):
            return None
        return self.budget.needed_bytes(self.stage, self.config.max_model_len)

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Both outcomes where the sampler depends on what is installed; else empty."""
        if self.budget.features.sampler != "unknown":
            return ()
        return tuple(self._outcome({FLASHINFER_SAMPLER: value}) for value in ("0", "1"))

    def _outcome(self, env: dict[str, str]) -> Outcome:
        engine = self.serving.changed(env=env).memory
        budget, blocks = engine.budget, engine.budget.num_blocks.mid
        return Outcome(
            env,
            engine.checked.verdict,
            round(engine.checked.probability_fits, 3),
            budget.logged_tokens(blocks),
            round(budget.concurrency(blocks), 2),
        )

    def _fits_with(self, **settings: Any) -> bool:
        return replace(self.deployment, config=replace(self.config, **settings)).checked.fits

    @property
    def kv_cache(self) -> Interval:
        """Memory for the KV cache on a GPU of that stage."""
        return self.stage.available

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of one token in every layer that keeps it, on a GPU of that stage."""
        layers = self.stage.weights.layers
        return sum(
            spec.bytes_per_token
            for group in self.budget.pool.groups
            for layer, spec in group.members
            if layer in layers
        )

    @property
    def kv_bytes_per_next_token(self) -> float:
        """Bytes of one more token of a request of ``max_model_len``: 0 where windows are full.

        The mean over as many tokens as all groups of layers allot blocks for together.
        """
        pool, length = self.budget.pool, self.config.max_model_len
        sizes = {spec.block_size for group in pool.groups for spec in group.specs if spec.kind != "state"}
        span = lcm(*sizes) * pool.context_shards
        span *= ceil(length / 4 / span) if span <= length else 1
        blocks = pool.blocks_per_request(length + span) - pool.blocks_per_request(length)
        return blocks * self.stage.block_bytes / span

    @property
    def kv_bytes_per_request(self) -> int:
        """KV cache of one request of ``max_model_len``, as vLLM counts it in blocks."""
        return self.budget.pool.blocks_per_request(self.config.max_model_len) * self.stage.block_bytes

    @property
    def kv_cache_tokens(self) -> int:
        """The "GPU KV cache size" that vLLM would log."""
        return self.budget.logged_tokens(self.budget.num_blocks.mid)

    @property
    def kv_cache_capacity_tokens(self) -> int:
        """Tokens that requests of ``max_model_len`` can hold at once, whatever the version prints."""
        return int(self.max_concurrency * self.config.max_model_len)

    @property
    def host_kv_cache_tokens(self) -> int:
        """Tokens that host memory holds beside the GPU (``--kv-offloading-size``)."""
        return host_kv_tokens(self.config, self.kv_bytes_per_token)

    @property
    def max_concurrency(self) -> float:
        """Requests of ``max_model_len`` that the cache holds at once."""
        return self.budget.concurrency(self.budget.num_blocks.mid)

    def to_json(self) -> dict[str, Any]:
        """The object of ``planner fit --format json``."""
        model, config, stage, budget = self.budget.model, self.config, self.stage, self.budget
        resolved, weights, blocks = self.serving.resolved, stage.weights, budget.num_blocks
        drafts = config.speculative_config
        return {
            "schema_version": 1,
            **_named(self, "fits", "verdict"),
            "probability_fits": round(self.deployment.checked.probability_fits, 3),
            "reason": self.reason,
            **_interval("margin_bytes", self.binding_condition.margin),
            "model": _named(resolved, "requested", "resolved") | _named(model, "total_params", "active_params"),
            "gpu": {"id": self.gpu_id, "memory_bytes": budget.memory_bytes},
            "engine_version": str(config.version),
            **config.layout,
            **_named(config, "max_model_len", "max_num_seqs", "max_num_batched_tokens"),
            "block_size": budget.pool.block_size,
            **_named(config, "gpu_memory_utilization", "env", "decode_context_parallel_size"),
            "speculative_config": json.loads(drafts.text) if drafts else None,
            "calibration": self.calibration,
            "budget_bytes": stage.requested_bytes,
            "weights_bytes": weights.weight_bytes,
            "weights_bytes_by_component": dict(weights.by_component),
            "weights_bytes_by_dtype": dict(weights.by_dtype),
            **_named(weights, "draft_bytes", "lora_bytes", "offloaded_bytes"),
            "host_kv_cache_tokens": self.host_kv_cache_tokens,
            "rotary_bytes": weights.rotary_bytes,
            **_interval("activation_bytes", stage.activation),
            **_interval("cuda_graph_bytes", stage.graphs),
            "cuda_graph_in_budget": stage.graphs_in_budget,
            **_interval("non_torch_bytes", stage.non_torch),
            **_interval("unexplained_bytes", stage.unexplained),
            **_interval("kv_cache_bytes", self.kv_cache),
            "kv_bytes_per_token": _whole(self.kv_bytes_per_token),
            "kv_bytes_per_next_token": _whole(round(self.kv_bytes_per_next_token, 2)),
            "kv_bytes_per_request": self.kv_bytes_per_request,
            "num_gpu_blocks": int(blocks.mid),
            "kv_cache_tokens": self.kv_cache_tokens,
            "kv_cache_tokens_lo": budget.logged_tokens(blocks.low),
            "kv_cache_tokens_hi": budget.logged_tokens(blocks.high),
            "kv_cache_capacity_tokens": self.kv_cache_capacity_tokens,
            "max_concurrency": round(self.max_concurrency, 2),
            **_named(self, "largest_max_model_len", "largest_max_num_seqs", "smallest_gpu_memory_utilization"),
            **_named(self, "smallest_kv_cache_memory_bytes", "min_tensor_parallel_size"),
            **{name: list(map(asdict, getattr(self, name))) for name in ("outcomes", "startup_log", "options")},
            "defaults_taken": list(config.defaults_taken),
            "notes": list(self.notes),
        }


def _named(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _interval(name: str, interval: Interval) -> dict[str, int]:
    return {name: round(interval.mid), f"{name}_lo": round(interval.low), f"{name}_hi": round(interval.high)}


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value


def fit_of(serving: Serving, *, ways_out: bool = True) -> Fit:
    """Check whether the engine starts. ``ways_out`` also checks what would make it fit. Raises as ``Serving.fit``."""
    notes = (*_notes(serving.model, serving.memory.budget), *_loading_notes(serving))
    fit = Fit(serving=serving, min_tensor_parallel_size=_min_tensor_parallel_size(serving), notes=notes)
    if ways_out and fit.verdict != "fits":
        return replace(fit, options=tuple(_ways_out(fit)))
    return fit


def sweep_settings(serving: Serving) -> list[Fit]:
    """Results over TP x weight dtype x KV cache dtype; combinations that vLLM refuses are left out.

    The weights are those of the checkpoint and, where it has 16 bits, of its usual published forms.
    """
    model, results = serving.model, list[Fit]()
    weight_dtypes = () if model.quantization.method else (model.dtype, "fp8", "int4-awq")
    models = [as_quantized(model, name) for name in weight_dtypes] or [model]
    for served, size, kv_cache_dtype in product(models, (1, 2, 4, 8), ("auto", "fp8")):
        changed = serving.changed(model=served, tensor_parallel_size=size, kv_cache_dtype=kv_cache_dtype)
        with suppress(IllegalPlanError):  # the sweep lists what can run
            results.append(changed.fit(ways_out=False))
    return results


def _min_tensor_parallel_size(serving: Serving) -> int | None:
    """The smallest legal TP size that fits, everything else as asked; None where none does."""
    args = serving.args
    names = "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel", "allow_unvalidated"
    for size in _legal_sizes(serving, most=args.tensor_parallel_size, **_named(args, *names)):
        with suppress(IllegalPlanError):  # a size that leaves another setting illegal
            if serving.changed(tensor_parallel_size=size).memory.checked.fits:
                return size
    return None


def _legal_sizes(serving: Serving, **layout: Any) -> Iterable[int]:
    blocks = version_features(serving.version, serving.profile).fp8_blocks
    model = served_model(serving.model, serving.args)
    return legal_tensor_parallel_sizes(model, serving.profile, fp8_blocks=blocks, **layout)


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
            f"--env {FLASHINFER_SAMPLER}=1 or =0 says which"
        )
    learned = budget.overheads.own
    if learned:
        logs = ", ".join(dict.fromkeys(log for fit in learned for log in fit.logs))
        yield f"memory overheads of this machine, from {learned[0].origin} (log {logs})"
    if model.mtp and config.speculative_config is None:
        yield "MTP modules are not loaded: speculative decoding is not asked for"
    if config.speculative_config:
        yield "the rejection sampler's memory in the profile run is not modelled"
    if config.lora:
        yield "vLLM serves adapters only for models that support them (SupportsLoRA); this is not checked here"
    if config.swap_space is not None:
        yield "--swap-space is host memory and changes nothing: vLLM recomputes requests instead of swapping them"
    yield from _memory_notes(model, budget)
    if config.pipeline_parallel_size > 1:
        layers = stage.weights.layers
        yield f"of {len(budget.stages)} pipeline stages, the one with layers {layers.start} to {layers.stop - 1} binds"


def _memory_notes(model: Model, budget: MemoryBudget) -> Iterator[str]:
    config, stage = budget.config, budget.binding
    if config.used_gib:
        yield f"other processes hold {config.used_gib:g} GiB of each GPU, which vLLM does not count as its own"
    if model.vision:
        whole = config.tensor_parallel_size > 1 and not config.mm_encoder_tp_mode
        spread = "--mm-encoder-tp-mode data spreads images over the ranks, " if whole else ""
        yield (
            f"the profile run encodes images of the largest size: {spread}"
            "--limit-mm-per-prompt and --skip-mm-profiling leave them out"
        )
    if stage.graphs.mid and not stage.graphs_in_budget:
        yield (
            f"vLLM {config.version} captures about {stage.graphs.mid / GIB:.1f} GiB of graphs outside its budget: "
            f"the engine uses more than {config.gpu_memory_utilization:g} of the GPU's memory"
        )


def _loading_notes(serving: Serving) -> Iterator[str]:
    engine = serving.memory
    if loading := engine.loading_bytes:
        yield (
            f"vLLM {engine.config.version} loads the 16-bit weights whole, {format_bytes(loading)} on each GPU, before "
            f"it quantises them; a checkpoint in {engine.config.weight_dtype} needs "
            f"{format_bytes(engine.budget.binding.weights.loaded_bytes)}"
        )


# --- ways out: single changes where one is enough, else as few as possible, each checked ------------------------------

#: The largest share of memory that is still sane to ask for.
LARGEST_UTILIZATION = 0.97
#: A shorter context is no way out.
SHORTEST_CONTEXT_TOK = 1024
#: Other GPUs that are named at most, and how many times the memory they have at least: less is no way out.
OTHER_GPUS, MORE_MEMORY = 3, 1.1
NO_GRAPHS = "no CUDA graphs (slower)"
#: Settings that cost little, least first: tried together where none of them is enough alone.
FRUGAL: tuple[tuple[str, Setting], ...] = (
    ("max_num_seqs", 128),
    ("max_num_batched_tokens", 2048),
    ("gpu_memory_utilization", 0.95),
    ("kv_cache_dtype", "fp8"),
)


def _ways_out(fit: Fit) -> Iterator[WayOut]:
    """Changes after which it fits, each checked by asking again.

    The best setting, number of GPUs and kind of GPU come first, each with the precision that it needs, then the second
    best of each, and so on. So the first three are of three kinds, if possible.
    """
    # the version stays, also where another GPU has another newest image
    serving = fit.serving.changed(engine_version=fit.serving.version)
    settings = tuple(_settings(serving, fit)) or tuple(_frugal(serving, fit))
    same = (*_online(serving), *_fewest_gpus(serving))
    others = (*_modes(serving), *_other_gpus(serving))
    kinds = [settings, same, others]
    if serving.profile.partition:  # TP over partitions is disputed, and comes last
        kinds.append(tuple(_more_partitions(serving)))
    for rank in zip_longest(*kinds):
        yield from (option for option in rank if option is not None)


def _option(serving: Serving, change: str, settings: dict[str, Setting], **other: Any) -> Iterator[WayOut]:
    """The option, when it surely fits; nothing when it does not, or when vLLM refuses it.

    ``other`` are the ``model`` and the ``profile`` that ``weight_dtype`` and ``gpu`` among the settings stand for.
    """
    flags = {name: value for name, value in settings.items() if name not in ("weight_dtype", "gpu")}
    try:
        engine = serving.changed(**flags, **other).memory
    except PlannerError:
        return
    if engine.checked.verdict == "fits":
        budget, blocks = engine.budget, engine.budget.num_blocks.mid
        yield WayOut(
            change=change,
            settings=settings,
            flags=tuple(flag_of(name) + ("" if value is True else f" {value}") for name, value in settings.items()),
            verdict="fits",
            num_gpus=engine.config.num_gpus,
            max_model_len=engine.config.max_model_len,
            kv_cache_tokens=budget.logged_tokens(blocks),
            max_concurrency=round(budget.concurrency(blocks), 2),
        )


def _first(tries: Iterable[Iterator[WayOut]]) -> Iterator[WayOut]:
    """The options of the first try that has any."""
    yield from next(filter(None, map(tuple, tries)), ())


def _shorter(serving: Serving, settings: dict[str, Setting]) -> dict[str, Setting]:
    """``settings`` with the longest context that surely fits under them; empty where that is too short."""
    with suppress(PlannerError):
        budget = serving.changed(**settings).memory.budget
        context, blocks = budget.config.max_model_len, int(budget.num_blocks.low) - 1
        longest = budget.pool.longest(blocks, context) // 64 * 64 if budget.pool.groups else 0
        if SHORTEST_CONTEXT_TOK <= longest < context:
            return {**settings, "max_model_len": longest}
    return {}


def _settings(serving: Serving, fit: Fit) -> Iterator[WayOut]:
    """Single settings, those that take least from the requests first."""
    config = fit.config
    yield from _room_outside(serving, fit)
    share = fit.smallest_gpu_memory_utilization
    if share and config.gpu_memory_utilization < share <= LARGEST_UTILIZATION:
        yield from _option(serving, f"{share:.0%} of the memory", {"gpu_memory_utilization": share})
    if config.cpu_kvcache_space and fit.budget.pool.groups:
        needed = ceil(fit.budget.needed_bytes(fit.stage, config.max_model_len) / GIB)
        room = int((fit.stage.left.low - fit.budget.start_up.high) // GIB)
        space = max(needed, min(room, config.cpu_kvcache_space))
        if space != config.cpu_kvcache_space:
            yield from _option(serving, f"{space} GiB of KV cache", {"env": f"{CPU_KVCACHE_SPACE}={space}"})
    seqs = fit.largest_max_num_seqs
    if 1 <= seqs < config.max_num_seqs:
        yield from _option(serving, f"at most {seqs} requests at once", {"max_num_seqs": seqs})
    if not config.kv_cache_dtype.startswith("fp8"):
        yield from _option(serving, "an 8-bit KV cache", {"kv_cache_dtype": "fp8"})
    if shorter := _shorter(serving, {}):
        yield from _option(serving, f"a context of {shorter['max_model_len']:,} tokens", shorter)
    if not config.enforce_eager and fit.stage.graphs_in_budget:
        yield from _option(serving, NO_GRAPHS, {"enforce_eager": True})


def _room_outside(serving: Serving, fit: Fit) -> Iterator[WayOut]:
    """Settings that leave more memory outside the budget: for graphs, or to other processes."""
    config, stage, budget = fit.config, fit.stage, fit.budget
    taken = budget.start_up.high
    if fit.binding_condition.name == GRAPHS:
        yield from _option(serving, NO_GRAPHS, {"enforce_eager": True})
        if flag_status(config.version, flag_of("max_cudagraph_capture_size")):
            yield from _option(serving, "graphs of small batches alone", {"max_cudagraph_capture_size": 64})
        taken += stage.graphs.high - stage.activation.low
    share = floor(100 * (1 - taken / budget.memory_bytes)) / 100
    if 0 < share < config.gpu_memory_utilization:
        yield from _option(serving, f"{share:.0%} of the memory", {"gpu_memory_utilization": share})


def _frugal(serving: Serving, fit: Fit) -> Iterator[WayOut]:
    """The fewest frugal settings that are enough together; else all of them and a shorter context."""
    frugal = [(name, value) for name, value in FRUGAL if _saves(name, value, getattr(fit.config, name))]
    some = (dict(frugal[:count]) for count in range(1, len(frugal) + 1))
    together = tuple(_first(_option(serving, "frugal settings together", settings) for settings in some))
    yield from together
    if not together and (shorter := _shorter(serving, dict(frugal))):
        length = shorter["max_model_len"]
        yield from _option(serving, f"frugal settings and a context of {length:,} tokens", shorter)


def _saves(name: str, value: Any, current: Any) -> bool:
    """True if ``value`` takes less memory, or leaves more of it, than the current one."""
    if name == "kv_cache_dtype":
        return not str(current).startswith("fp8")
    return bool(value > current if name == "gpu_memory_utilization" else value < current)


def _online(serving: Serving) -> Iterator[WayOut]:
    if serving.model.quantization.method is None and not serving.args.quantization and serving.profile.supports("fp8"):
        yield from _option(serving, "fp8 weights, quantised while they load", {"quantization": "fp8"})


#: A precision that somebody may have made a checkpoint of: its name, the model, the settings that ask for it.
Precision = tuple[str, Model, dict[str, Setting]]


def _precisions(serving: Serving, profile: GpuProfile) -> Iterator[Precision]:
    """The checkpoint as it is, and those of fewer bits that ``profile`` runs, widest first."""
    model = serving.model
    yield "", model, {}
    if model.quantization.method is not None or serving.args.quantization:
        return
    if profile.supports("fp8"):
        yield "an fp8 checkpoint", as_quantized(model, "fp8"), {"weight_dtype": "fp8"}
    four_bits = "nvfp4" if profile.vendor == "nvidia" and profile.supports("fp4") else "int4-awq"
    yield f"a 4-bit checkpoint ({four_bits})", as_quantized(model, four_bits), {"weight_dtype": four_bits}


def _fewest_gpus(serving: Serving) -> Iterator[WayOut]:
    """The fewest GPUs for each precision, where that is fewer than a wider one takes; fewest changes first."""
    asked, options = serving.args.tensor_parallel_size, list[WayOut]()
    most = inf
    for name, model, settings in _precisions(serving, serving.profile):
        narrow = serving.changed(model=model)
        sizes = [size for size in _legal_sizes(narrow) if asked <= size < most]
        for size in sizes:
            more: dict[str, Setting] = {"tensor_parallel_size": size} if size > asked else {}
            if found := tuple(_with_cache(narrow, _gpus(serving, size, name), {**more, **settings})):
                options += found
                most = size
                break
        else:
            options += _short(narrow, sizes) if not name else ()
    changed = {"kv_cache_dtype", "max_model_len"}  # what the requests get
    yield from sorted(options, key=lambda option: (len(changed & option.settings.keys()), option.num_gpus))


def _with_cache(serving: Serving, change: str, settings: dict[str, Setting]) -> Iterator[WayOut]:
    """The option, else the same with one cheap setting more; the asked settings alone are none."""
    config = serving.memory.config
    cheap: tuple[tuple[str, dict[str, Setting]], ...] = (
        ("", {}),
        (", 95% of the memory", {"gpu_memory_utilization": 0.95}),
        (", an 8-bit KV cache", {"kv_cache_dtype": "fp8"}),
    )
    yield from _first(
        _option(serving, change + words, {**settings, **more})
        for words, more in (cheap if settings else ())
        if all(_saves(name, value, getattr(config, name)) for name, value in more.items())
    )


def _short(serving: Serving, sizes: Iterable[int]) -> Iterator[WayOut]:
    """The fewest GPUs with a shorter context."""
    contexts = ((size, _shorter(serving, {"tensor_parallel_size": size})) for size in sizes)
    yield from _first(
        _option(serving, f"{_gpus(serving, size)}, a context of {short['max_model_len']:,} tokens", short)
        for size, short in contexts
        if short
    )


def _gpus(serving: Serving, size: int, name: str = "") -> str:
    """GPUs of all ranks with TP ``size``, and the precision."""
    args, unit = serving.args, "partition" if serving.profile.partition else "GPU"
    stages, copies = args.pipeline_parallel_size, args.data_parallel_size
    axes = [f"TP {size}", *(f"{axis} {n}" for axis, n in (("PP", stages), ("DP", copies)) if n > 1)]
    count = size * stages * copies
    if size == args.tensor_parallel_size and name:
        return name
    many = f"{count} {unit}s, " + ("tensor parallel" if len(axes) == 1 else " x ".join(axes))
    return ", ".join(filter(None, (many if count > 1 else f"1 {unit}", name)))


def _more_partitions(serving: Serving) -> Iterator[WayOut]:
    """Tensor parallelism over partitions, in a mode for which a source documents it and another disputes it."""
    here = serving.profile
    alike = [p for p in _modes_of(here) if p.partition and p.memory_bytes == here.memory_bytes]

    def over(profile: GpuProfile, size: int) -> Iterator[WayOut]:
        settings: dict[str, Setting] = {"tensor_parallel_size": size, "allow_unvalidated": True}
        settings |= {} if profile.id == here.id else {"gpu": profile.id}
        change = f"{size} partitions, tensor parallel, which is disputed"
        return _option(serving, change, settings, profile=profile)

    yield from _first(starmap(over, product(sorted(alike, key=lambda p: p.id != here.id), (2, 4, 8))))


def _modes(serving: Serving) -> Iterator[WayOut]:
    """The smallest larger mode of the same GPU, the whole GPU among them."""
    here = serving.profile
    larger = [p for p in _modes_of(here) if p.memory_bytes > here.memory_bytes] if here.partition else []
    yield from _first_gpus(serving, sorted(larger, key=lambda p: p.memory_bytes), "{} instead", 1)


def _modes_of(profile: GpuProfile) -> Iterator[GpuProfile]:
    return (other for other in load_all(partitions=True) if other.whole == profile.whole)


def _other_gpus(serving: Serving) -> Iterator[WayOut]:
    """The smallest whole GPUs with clearly more memory on which it fits, in no more nodes, of the same vendor first."""
    here, args = serving.profile, serving.args
    ranks = args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size
    nodes = ceil(ranks / here.gpus_per_node)
    others = (p for p in load_all() if p.platform != "cpu" and p.id != here.whole)
    larger = [p for p in others if p.memory_bytes > MORE_MEMORY * here.memory_bytes]
    few = [p for p in larger if ceil(ranks / p.gpus_per_node) <= nodes]
    kind = here.interconnect.kind
    few.sort(key=lambda p: (p.vendor != here.vendor, round(p.memory_bytes / GIB), p.interconnect.kind != kind))
    yield from _first_gpus(serving, few, "{}", OTHER_GPUS)


def _first_gpus(serving: Serving, profiles: Iterable[GpuProfile], change: str, most: int) -> Iterator[WayOut]:
    """The first GPUs on which it fits, as it is or in 8 bits, at most so many."""
    named = 0
    for profile in profiles:
        for name, model, settings in _precisions(serving, profile):
            text = ", ".join(filter(None, (change.format(profile.name), name)))
            options = tuple(_option(serving, text, {"gpu": profile.id, **settings}, profile=profile, model=model))
            if options or settings.get("weight_dtype") == "fp8":
                break
        yield from options
        named += len(options)
        if named == most:
            return


# --- the arithmetic, line by line -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArithmeticLine:
    """One line of the arithmetic, as ``--explain`` shows it."""

    label: str
    value: str
    how: str = ""  #: the formula or the source


def explain(fit: Fit) -> tuple[ArithmeticLine, ...]:
    """Weights, overheads, cache and concurrency; then the rule of thumb in AMD's documents, and where it is wrong.

    The documents' rule::

        weights + batch x context x 2 x layers x hidden x bytes < memory

    It is the special case of multi-head attention on a GPU without any overhead.
    """
    return (*_weight_lines(fit), *_budget_lines(fit), *_cache_lines(fit), *_rule_of_thumb(fit))


def _weight_lines(fit: Fit) -> Iterator[ArithmeticLine]:
    weights, config, model = fit.stage.weights, fit.config, fit.budget.model
    ranks = config.tensor_parallel_size
    shared = f"on each of {ranks} ranks" if ranks > 1 else "on the GPU"
    for component, num_bytes in sorted(weights.by_component.items(), key=lambda item: -item[1]):
        yield ArithmeticLine(f"  {component.replace('_', ' ')}", _both(num_bytes), shared)
    how = f"{model.total_params:,} parameters, linear weights in {config.weight_dtype}, the rest in {config.dtype}"
    yield ArithmeticLine("weights", _both(weights.weight_bytes), how)
    if weights.offloaded_bytes:
        how = f"--cpu-offload-gb {config.cpu_offload_gb:g}: read over the host's link in every step"
        yield ArithmeticLine("of these in host memory", _both(weights.offloaded_bytes), how)
    if lora := config.lora:
        how = f"{lora.max_loras} of rank {lora.max_lora_rank}, in every matrix of the layers, used or not"
        yield ArithmeticLine("adapters", _both(weights.lora_bytes), how)
    if weights.absorbed_bytes:
        how = "V0 keeps them beside the weights of MLA"
        yield ArithmeticLine("products of projections", _both(weights.absorbed_bytes), how)
    if weights.rotary_bytes:
        how = f"{model.max_position_embeddings:,} positions, loaded with the weights"
        yield ArithmeticLine("rotary table", _both(weights.rotary_bytes), how)


def _budget_lines(fit: Fit) -> Iterator[ArithmeticLine]:
    stage, config, budget = fit.stage, fit.config, fit.budget
    yield ArithmeticLine("memory that the engine sees", _both(budget.memory_bytes), f"of one {fit.gpu_id}")
    if stage.given_bytes is None:
        how = f"{config.gpu_memory_utilization:g} of it (--gpu-memory-utilization)"
        yield ArithmeticLine("budget", _both(stage.requested_bytes), how)
    rows = config.sampled_rows
    how = f"sampling {rows:,} rows of {budget.model.vocab_size:,} logits, "
    how += f"or {config.max_num_batched_tokens:,} tokens at once"
    yield ArithmeticLine("activation peak", _range(stage.activation), how)
    yield ArithmeticLine("memory outside torch", _range(stage.non_torch), "fitted to start-up logs")
    inside = "inside the budget" if stage.graphs_in_budget else "captured later, outside the budget"
    yield ArithmeticLine("graphs", _range(stage.graphs), inside)
    if stage.given_bytes is None:
        yield ArithmeticLine("left for the KV cache", _range(fit.kv_cache), "budget - weights - the above")
    else:
        yield ArithmeticLine("left", _range(stage.left), "memory - weights - the above")
        yield ArithmeticLine("given to the KV cache", _both(stage.given_bytes), f"by {config.kv_cache_given_by}")


def _cache_lines(fit: Fit) -> Iterator[ArithmeticLine]:
    config, pool = fit.config, fit.budget.pool
    if not pool.groups:
        yield ArithmeticLine("KV cache", "none", "no layer keeps anything between tokens")
        return
    yield ArithmeticLine("KV cache per token", f"{fit.kv_bytes_per_token:,.0f} B", _per_token(fit))
    if round(fit.kv_bytes_per_next_token) != round(fit.kv_bytes_per_token):
        how = f"after {config.max_model_len:,} of them"
        yield ArithmeticLine("one more token", f"{fit.kv_bytes_per_next_token:,.0f} B", how)
    how = f"{config.max_model_len:,} tokens, in {pool.blocks_per_request(config.max_model_len):,} blocks"
    how += f" of {len(pool.groups)} groups of layers" if len(pool.groups) > 1 else ""
    yield ArithmeticLine("KV cache of one request", _both(fit.kv_bytes_per_request), how)
    yield ArithmeticLine("tokens that vLLM logs", f"{fit.kv_cache_tokens:,}", f"vLLM {config.version}")
    if fit.kv_cache_tokens != fit.kv_cache_capacity_tokens:
        how = "in requests of max_model_len"
        yield ArithmeticLine("tokens that really fit", f"{fit.kv_cache_capacity_tokens:,}", how)
    yield ArithmeticLine("requests at once", f"{fit.max_concurrency:,.2f}", f"of {config.max_model_len:,} tokens")
    yield ArithmeticLine("longest request", f"{fit.largest_max_model_len:,}", "tokens")


def _per_token(fit: Fit) -> str:
    model, config = fit.budget.model, fit.config
    kinds = dict.fromkeys(model.mixers())
    first = next((m for m in kinds if isinstance(m, Attention)), None)
    latent = next((m for m in kinds if isinstance(m, LatentAttention)), None)
    mixers = [model.layers[index].mixer for index in fit.stage.weights.layers if index < model.num_layers]
    if latent:
        layers = sum(isinstance(mixer, LatentAttention) for mixer in mixers)
        return f"{layers} layers of {_latent_row(latent, fit)}"
    if first is None:
        return "a state of fixed size per request instead"
    heads = held_heads(first.num_kv_heads, config.tensor_parallel_size)
    note = ", repeated on ranks" if first.num_kv_heads < config.tensor_parallel_size else ""
    width = first.head_dim + first.v_head_dim
    count = sum(isinstance(mixer, Attention) for mixer in mixers)
    return f"{count} layers x {heads} KV heads on the rank{note} x {width} x {config.kv_cache_dtype}"


def _latent_row(latent: LatentAttention, fit: Fit) -> str:
    """Elements that a layer of MLA keeps of a token in this version."""
    row_bytes = max(spec.token_bytes for group in fit.budget.pool.groups for spec in group.specs)
    elements, size = latent.kv_elements_per_token, element_bytes(fit.config.kv_cache_dtype)
    kind = features_of(fit.config, fit.deployment.profile).latents
    if kind == "heads":
        heads = held_heads(latent.num_heads, fit.config.tensor_parallel_size)
        width = row_bytes // heads // size
        return f"{heads} heads on the rank x {width} x {fit.config.kv_cache_dtype}, without latents"
    padded = f", padded to {row_bytes // size}" if kind == "padded rows" else ""
    return f"{elements} latent elements{padded}; TP does not divide them"


def naive_kv_bytes_per_token(model: Model, bytes_per_element: int = 2) -> int:
    """The documents' formula: 2 x layers x hidden size x bytes."""
    return 2 * model.num_layers * model.hidden_size * bytes_per_element


def _rule_of_thumb(fit: Fit) -> Iterator[ArithmeticLine]:
    model, config, budget = fit.budget.model, fit.config, fit.budget
    per_token = naive_kv_bytes_per_token(model, element_bytes(config.dtype))
    weights = model.total_params * element_bytes(config.dtype)
    cache = per_token * config.max_model_len
    verdict = "fits" if weights + cache < budget.memory_bytes * config.num_gpus else "does not fit"
    yield ArithmeticLine("rule of thumb in AMD's documents", verdict, "weights + KV cache < memory of all GPUs")
    how = f"{weights / GB:,.2f} GB + {config.max_model_len:,} tokens x {per_token:,} B ({cache / GB:,.2f} GB)"
    yield ArithmeticLine("  weights + KV cache", format_gb(weights + cache), how)
    for reason in _where_it_is_wrong(fit, per_token):
        yield ArithmeticLine("  not in the rule", "", reason)


def _where_it_is_wrong(fit: Fit, naive_per_token: int) -> Iterator[str]:
    model, config, stage = fit.budget.model, fit.config, fit.stage
    mixers = tuple(dict.fromkeys(model.mixers()))
    attention = [m for m in mixers if isinstance(m, Attention)]
    if any(isinstance(m, LatentAttention) for m in mixers):
        yield "latent attention: one compressed row per token instead of keys and values of every head"
    grouped = next((m for m in attention if m.num_kv_heads < m.num_heads), None)
    if grouped:
        yield (
            f"grouped queries: {grouped.num_kv_heads} KV heads for {grouped.num_heads} query heads; "
            f"the rule's {naive_per_token:,} B per token are too many"
        )
    if any(m.num_heads * m.head_dim != model.hidden_size for m in attention):
        yield "heads x head_dim is not the hidden size"
    if any(m.span_tokens for m in attention):
        yield "layers with a window keep only their window"
    if any(isinstance(m, StateMixer) for m in mixers):
        yield "layers with a state keep a fixed size per request"
    if any(m.num_kv_heads < config.tensor_parallel_size for m in attention):
        yield f"{config.tensor_parallel_size} ranks repeat the KV heads: their cache does not shrink further"
    if config.kv_cache_dtype != config.dtype:
        yield f"the cache is kept in {config.kv_cache_dtype}"
    if model.quantization.method:
        yield f"weights are stored in {config.weight_dtype}, scales come on top"
    overhead = stage.requested_bytes - stage.weights.loaded_bytes - stage.left.mid
    spare = fit.budget.memory_bytes - stage.requested_bytes
    yield (
        f"{spare / GIB:.2f} GiB that vLLM leaves alone, and {overhead / GIB:.2f} GiB of activations, graphs and "
        "communicators"
    )
    if model.id.lower().startswith("meta-llama/llama-2-13b") and config.max_model_len == 4096:
        yield "the document's 3.6 GB of KV cache for this example are 3.36 GB by its own formula: 4,096 x 819,200 B"


def _both(num_bytes: float) -> str:
    return f"{format_gb(num_bytes)} = {format_bytes(num_bytes)}"


def _range(interval: Interval) -> str:
    return f"{interval.mid / GIB:,.2f} ({interval.low / GIB:,.2f} to {interval.high / GIB:,.2f}) GiB"
