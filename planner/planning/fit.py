"""Memory fit: every figure, the verdict with its interval, changes after which it fits, and the arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product, zip_longest
from math import ceil, floor, inf, lcm
from shlex import quote
from typing import TYPE_CHECKING, Any

from planner import engine as vllm
from planner import model as models
from planner.engine import CPU_KVCACHE_SPACE, FLASHINFER_SAMPLER, EngineConfig, flag_of, flag_status, held_heads
from planner.errors import IllegalPlanError, PlannerError
from planner.hardware import GpuProfile, load_all
from planner.memory import CUT_TOWERS, SHIPPED, MemoryBudget, StageBudget, element_bytes, host_kv_tokens, media_of
from planner.model import Attention, LatentAttention, Model, StateMixer, as_quantized
from planner.planning import defaults
from planner.planning.deployment import FREE, GRAPHS, LOADING, STATES, Deployment, Verdict, remarks, served_model
from planner.planning.largest import largest
from planner.units import GB, GIB, Interval, counted, format_bytes, format_gb, percent

if TYPE_CHECKING:
    from planner.planning.deployment import Condition
    from planner.planning.serving import Serving

Setting = str | int | float | bool


@dataclass(frozen=True, slots=True)
class WayOut:
    """Changes after which it fits, as an entry of ``options[]``."""

    change: str
    #: what to change: flags of vLLM, ``gpu`` (a profile id), ``weight_dtype``, ``model`` (its published checkpoint)
    settings: dict[str, Setting]
    flags: tuple[str, ...]  #: for ``planner fit`` of ``model``; all but ``--gpu`` and ``--weight-dtype`` are vLLM's own
    verdict: Verdict
    num_gpus: int  #: of all ranks together
    max_model_len: int
    kv_cache_tokens: int
    max_concurrency: float  #: requests of ``max_model_len``

    def __str__(self) -> str:
        """The change, with the checkpoint to serve and the flags outside of ``planner fit``."""
        words = (self.settings.get("model"), *(flag for flag in self.flags if not flag.startswith("--weight-dtype")))
        return ": ".join(filter(None, (self.change, " ".join(str(word) for word in words if word))))


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
    ways_out: bool  #: whether ``options`` are looked for
    notes: tuple[str, ...] = ()
    startup_log: tuple[LogLine, ...] = ()  #: where one was given

    def __repr__(self) -> str:
        return f"Fit({self.serving!r}: {self.verdict_words})"

    @cached_property
    def options(self) -> tuple[WayOut, ...]:
        """Changes after which it fits, best first. A table of many GPUs asks for none."""
        return tuple(_ways_out(self)) if self.ways_out and self.verdict != "fits" else ()

    @property
    def deployment(self) -> Deployment:
        return self.serving.memory

    @property
    def fits(self) -> bool:
        return self.deployment.fits

    @property
    def verdict(self) -> Verdict:
        return self.deployment.verdict

    @property
    def verdict_words(self) -> str:
        odds = f": starts with {percent(self.deployment.probability_fits)} probability"
        return self.verdict + (odds if self.verdict == "too close to call" else "")

    @property
    def budget(self) -> MemoryBudget:
        return self.deployment.budget

    @property
    def gpu_id(self) -> str:
        return self.deployment.profile.id

    @property
    def config(self) -> EngineConfig:
        return self.deployment.config

    @property
    def stage(self) -> StageBudget:
        return self.budget.binding

    @property
    def calibration(self) -> str:
        """Source of the overheads for this GPU, version and TP size: ``shipped``, or a file of the user's."""
        fits = self.budget.overheads.own
        return fits[0].origin if fits else SHIPPED

    @property
    def binding_condition(self) -> Condition:
        """The first condition that fails, else the least likely one, of equal ones that with the smallest margin."""
        conditions = self.deployment.conditions
        failing = (condition for condition in conditions if condition.margin.mid < 0)
        return next(failing, min(conditions, key=lambda c: (c.probability, c.margin.mid)))

    @property
    def reason(self) -> str:
        """The message of vLLM; where that is not sure, how far the margin reaches; empty when it fits."""
        name, margin = self.binding_condition.name, self.binding_condition.margin
        if self.verdict == "too close to call":
            return f"{name}: from {-margin.low / GIB:,.2f} GiB too little to {margin.high / GIB:,.2f} GiB to spare"
        return "" if self.verdict == "fits" else self.binding_condition.message

    @cached_property
    def largest_max_model_len(self) -> int:
        """The longest request that the cache holds, up to the model's own context; 0 when none fits."""
        limit = max(self.config.max_model_len, self.budget.model.max_position_embeddings)
        return self.budget.longest(self.budget.num_blocks.mid, limit)

    @cached_property
    def largest_max_num_seqs(self) -> int:
        """The largest ``max_num_seqs`` with which the engine still starts, up to ``max_num_batched_tokens``."""
        starts_with = self.deployment.with_settings
        return largest(lambda places: starts_with(max_num_seqs=places).fits, 0, self.config.max_num_batched_tokens)

    @cached_property
    def smallest_gpu_memory_utilization(self) -> float | None:
        """The smallest share that fits, in steps of 0.01; None where 1 does not, or the cache has a given size."""
        if self.config.given_kv_cache_bytes:
            return None
        conditions = self.deployment.conditions
        lacking = min(c.margin.mid for c in conditions if c.name not in (FREE, LOADING, GRAPHS))
        wanted = self.stage.requested_bytes - lacking
        smallest = max(0.01, ceil(100 * wanted / self.budget.memory_bytes) / 100)
        fits = smallest <= 1 and self.deployment.with_settings(gpu_memory_utilization=smallest).fits
        return smallest if fits else None

    @property
    def smallest_kv_cache_memory_bytes(self) -> int | None:
        """The smallest ``--kv-cache-memory-bytes`` with which the engine starts; None before 0.10.2."""
        if not self.budget.pool.groups or not flag_status(self.config.version, flag_of("kv_cache_memory_bytes")):
            return None
        states_bytes = self.budget.state_blocks * self.stage.block_bytes
        return max(self.budget.needed_bytes(self.stage, self.config.max_model_len), states_bytes)

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Both outcomes where the sampler depends on what is installed; else empty."""
        envs = ({FLASHINFER_SAMPLER: value} for value in ("0", "1"))
        engines = ((env, self.serving.changed(env=env).memory) for env in envs)
        return tuple(
            Outcome(env, engine.verdict, engine.probability_fits, **_held(engine))
            for env, engine in (engines if self.budget.features.sampler == "unknown" else ())
        )

    @property
    def kv_cache(self) -> Interval:
        return self.stage.available

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of one token in every layer that keeps it, on a GPU of that stage."""
        layers = self.stage.weights.layers
        members = (member for group in self.budget.pool.groups for member in group.members)
        return sum(spec.bytes_per_token for layer, spec in members if layer in layers)

    @property
    def kv_bytes_per_next_token(self) -> float:
        """Mean bytes of one more token of a request of ``max_model_len``, in whole blocks; 0 where windows are full."""
        pool, length = self.budget.pool, self.config.max_model_len
        sizes = {spec.block_size for group in pool.groups for spec in group.specs if spec.kind != "state"}
        span = lcm(*sizes) * pool.context_shards
        span *= ceil(length / 4 / span) if span <= length else 1
        blocks = pool.blocks_per_request(length + span) - pool.blocks_per_request(length)
        return blocks * self.stage.block_bytes / span

    @property
    def kv_bytes_per_token_on_average(self) -> float:
        """Mean bytes of the tokens of a request of ``max_model_len``, in whole blocks."""
        return self.kv_bytes_per_request / self.config.max_model_len

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


def _held(engine: Deployment) -> dict[str, Any]:
    budget, blocks = engine.budget, engine.budget.num_blocks.mid
    return {"kv_cache_tokens": budget.logged_tokens(blocks), "max_concurrency": budget.concurrency(blocks)}


def fit_of(serving: Serving, *, ways_out: bool = True) -> Fit:
    """Check whether the engine starts. ``ways_out`` also checks what would make it fit. Raises as ``Serving.fit``."""
    args, smallest = serving.args, None
    names = "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel", "allow_unvalidated"
    given = {name: getattr(args, name) for name in names}
    for size in _legal_sizes(serving, most=args.tensor_parallel_size, **given):
        with suppress(IllegalPlanError):  # a size that leaves another setting illegal
            if serving.changed(tensor_parallel_size=size).memory.fits:
                smallest = size
                break
    return Fit(serving=serving, min_tensor_parallel_size=smallest, ways_out=ways_out, notes=tuple(_notes(serving)))


def sweep_settings(serving: Serving) -> list[Fit]:
    """Results over TP x weight dtype (of 16 bits) x KV cache dtype; combinations that vLLM refuses are left out."""
    model, results = serving.model, list[Fit]()
    weight_dtypes = () if model.quantization.method else (model.dtype, "fp8", "int4-awq")
    models = [as_quantized(model, name) for name in weight_dtypes] or [model]
    for served, size, kv_cache_dtype in product(models, (1, 2, 4, 8), ("auto", "fp8")):
        changed = serving.changed(model=served, tensor_parallel_size=size, kv_cache_dtype=kv_cache_dtype)
        with suppress(IllegalPlanError):  # the sweep lists what can run
            results.append(changed.fit(ways_out=False))
    return results


def _legal_sizes(serving: Serving, **layout: Any) -> Iterable[int]:
    blocks = vllm.version_features(serving.version, serving.profile).fp8_blocks
    model = served_model(serving.model, serving.args, serving.version)
    return vllm.legal_tensor_parallel_sizes(model, serving.profile, fp8_blocks=blocks, **layout)


def _notes(serving: Serving) -> Iterator[str]:
    engine, model = serving.memory, serving.model
    budget, config, loading = engine.budget, engine.config, engine.loading_bytes
    stage, learned, layers = budget.binding, budget.overheads.own, budget.binding.weights.layers
    spread = config.tensor_parallel_size > 1 and not config.mm_encoder_tp_mode and model.model_type not in CUT_TOWERS
    links = engine.profile.interconnect
    origin, logs = learned[0].origin if learned else "", dict.fromkeys(log for fit in learned for log in fit.logs)
    yield from (*model.notes, *model.quantization.notes, *filter(None, [config.version.note]))
    yield from (taken for taken in config.defaults_taken if taken.startswith(CPU_KVCACHE_SPACE) or "LongRoPE" in taken)
    yield from (*config.ignored, *map(str, vllm.without_kernels(serving.profile, config.version)))
    holds = {
        "sampler": budget.features.sampler == "unknown",
        "learned": learned,
        "mtp": model.mtp and not config.speculative_config,
        "rejection_sampler": config.speculative_config,
        "swap_space": config.swap_space is not None,
        "used": config.used_gib,
        "images_on_ranks" if spread else "images": model.vision,
        "graphs": stage.graphs.mid and not stage.graphs_in_budget,
        "stages": config.pipeline_parallel_size > 1,
        "links": links.kind not in ("none", "on-package") and not links.bandwidth and not links.link_bandwidth,
        "shared": engine.profile.memory.utilization,
        "any_length": budget.any_length and budget.num_blocks.high,
        "loading": loading,
    }
    yield from remarks(
        "fit", holds, config=config, sampler=FLASHINFER_SAMPLER, origin=origin, logs=", ".join(logs), layers=layers,
        graphs_gib=stage.graphs.mid / GIB, stages=len(budget.stages), last=layers.stop - 1,
        lengths=budget.length_ends, loading=format_bytes(loading), loaded=format_bytes(stage.weights.loaded_bytes),
    )  # fmt: skip


LARGEST_PERCENT = 97  #: the largest share of memory that is still sane to ask for
SHORTEST_CONTEXT_TOK = 2048  #: a shorter context is no way out
#: Other GPUs that are named at most. They have this many times the memory, and this share of the speed, at least.
OTHER_GPUS, MORE_MEMORY, LEAST_SPEED = 3, 1.1, 0.5
NO_GRAPHS, ONLINE = "no CUDA graphs (slower)", "fp8 weights, quantised while they load"
FEW_PLACES = (128, 64, 32)  #: for requests with a state, each of which takes a block of the cache
#: Settings that cost little, least first: tried together where none of them is enough alone.
FRUGAL: tuple[tuple[str, Setting], ...] = (
    ("max_num_seqs", 128),
    ("max_num_batched_tokens", 2048),
    ("gpu_memory_utilization", 0.95),
    ("kv_cache_dtype", "fp8"),
)


def _ways_out(fit: Fit) -> Iterator[WayOut]:
    """The best setting, number of GPUs and kind of GPU come first, then the second best of each, and so on."""
    # the version stays, also where another GPU has another newest image
    serving, here = fit.serving.changed(engine_version=fit.serving.version), fit.serving.profile
    modes = [other for other in load_all(partitions=True) if other.whole == here.whole]
    larger = [mode for mode in modes if here.partition and mode.memory_bytes > here.memory_bytes]
    same = list(_fewest_gpus(serving))
    if serving.model.quantization.method is None and not serving.args.quantization and here.supports("fp8"):
        published = (one for one in same if one.num_gpus == fit.config.num_gpus and "model" in one.settings)
        ready = [one for one in published if one.settings["weight_dtype"] == "fp8"]
        first = ready or [*_option(serving, ONLINE, {"quantization": "fp8"})]  # loads twice the bytes of a checkpoint
        same = [*first, *(one for one in same if one not in first)]
    one_node = fit.config.pipeline_parallel_size == fit.config.data_parallel_size == 1 and not here.partition
    changing = ("max_model_len", *["model"] * (serving.model.quantization.method is not None))  # what is served
    if one_node and all(not one.settings.keys().isdisjoint(changing) for one in same):
        node = here.gpus_per_node
        size: dict[str, Setting] = {"tensor_parallel_size": node} if fit.config.tensor_parallel_size != node else {}
        two, size = f"{2 * node} GPUs on two nodes (--nnodes 2), TP {node} x PP 2", size | {"pipeline_parallel_size": 2}
        tries = ((f"{two}, {name}", size | more, model) for name, model, more in _precisions(serving, here))
        same += _first(_option(serving, text.removesuffix(", "), asked, model=made) for text, asked, made in tries)
    validated = serving.changed(allow_unvalidated=False)
    made = _first_gpus(validated, sorted(larger, key=lambda p: p.memory_bytes), "{} instead", len(larger))
    wider = sorted(made, key=lambda option: len(option.settings))  # the checkpoint stays, where one holds it
    others = (
        *(one for one in wider if one is wider[0] or one.settings["gpu"] == here.whole),
        *_first_gpus(serving, _other_gpus(serving), "{}", OTHER_GPUS),
    )
    settings = tuple(_settings(serving, fit))
    if all(one.max_model_len < fit.config.max_model_len / 4 for one in settings):
        settings = (*_frugal(serving), *settings)
    own = [] if settings else [one for one in same if one.num_gpus == fit.config.num_gpus]
    kinds = [settings or own, [one for one in same if one not in own], others]
    if here.partition:  # TP over partitions is disputed, and comes last
        kinds.append(tuple(_more_partitions(serving, modes)))
    yield from (option for rank in zip_longest(*kinds) for option in rank if option)


def _of_engine(settings: dict[str, Setting]) -> dict[str, Setting]:
    return {name: value for name, value in settings.items() if name not in ("weight_dtype", "model", "gpu")}


def _option(serving: Serving, change: str, settings: dict[str, Setting], **other: Any) -> Iterator[WayOut]:
    """The option where it surely fits. ``other``: the ``model`` and ``profile`` behind ``weight_dtype`` and ``gpu``."""
    with suppress(PlannerError):
        engine = serving.changed(**_of_engine(settings), **other).memory
        if engine.verdict == "fits":
            served = ("model", "weight_dtype") if "model" in settings else ()
            given = ((name, value) for name, value in settings.items() if name not in served)
            flags = (flag_of(name) + ("" if value is True else f" {quote(str(value))}") for name, value in given)
            sizes = engine.config.num_gpus, engine.config.max_model_len
            yield WayOut(change, settings, tuple(flags), "fits", *sizes, **_held(engine))


def _first(tries: Iterable[Iterator[WayOut]]) -> Iterator[WayOut]:
    yield from next(filter(None, map(tuple, tries)), ())


def _shorter(serving: Serving, settings: dict[str, Setting]) -> dict[str, Setting]:
    """``settings`` with the longest context that surely fits under them; empty where that is too short."""
    with suppress(PlannerError):
        budget = serving.changed(**_of_engine(settings)).memory.budget
        context = budget.config.max_model_len
        longest = budget.longest(budget.num_blocks.low, context) // 64 * 64
        if SHORTEST_CONTEXT_TOK <= longest < context:
            return {**settings, "max_model_len": longest}
    return {}


def _settings(serving: Serving, fit: Fit) -> Iterator[WayOut]:
    config = fit.config
    fewer = (2**power for power in reversed(range((config.max_num_seqs - 1).bit_length())))
    tries = (_option(serving, f"at most {counted(seqs, 'request')} at once", {"max_num_seqs": seqs}) for seqs in fewer)
    places = tuple(_first(tries))
    ample = range(defaults.COMPARED_CONCURRENCY[-1], config.max_num_seqs)  # enough for a heavy load
    free = any(one.settings["max_num_seqs"] in ample for one in places) or fit.binding_condition.name == STATES
    if free:
        yield from places
    yield from _room_outside(serving, fit)
    more = range(round(100 * config.gpu_memory_utilization) + 1, LARGEST_PERCENT + 1)
    yield from _first(_option(serving, f"{one}% of the memory", {"gpu_memory_utilization": one / 100}) for one in more)
    if config.cpu_kvcache_space and fit.budget.pool.groups:
        needed = ceil(fit.budget.needed_bytes(fit.stage, config.max_model_len) / GIB)
        room = int((fit.stage.left.low - fit.budget.start_up.high) // GIB)
        space = max(needed, min(room, config.cpu_kvcache_space))
        if space != config.cpu_kvcache_space:
            yield from _option(serving, f"{space} GiB of KV cache", {"env": f"{CPU_KVCACHE_SPACE}={space}"})
    yield from () if free else places
    length = int((shorter := _shorter(serving, {})).get("max_model_len", 0))
    context = _option(serving, f"a context of {length:,} tokens", shorter) if shorter else ()
    cache = _saves(serving, "kv_cache_dtype", "fp8")
    halved = _option(serving, "an 8-bit KV cache", {"kv_cache_dtype": "fp8"}) if cache else ()
    text = _text_alone(serving)
    # shorter requests cost no accuracy, but a context that was asked for is kept
    shorten = length >= config.max_model_len / 2 and not serving.args.max_model_len
    yield from (*context, *halved, *text) if shorten else (*halved, *text, *context)
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
    if not 0 < share < config.gpu_memory_utilization:
        return
    settings: dict[str, Setting] = {"gpu_memory_utilization": share}
    change, smaller = f"{share:.0%} of the memory", serving.changed(**settings)
    alone = tuple(_option(serving, change, settings))
    yield from alone
    if not alone and fit.binding_condition.name == FREE:
        for way in chain(_settings(smaller, smaller.fit(ways_out=False)), _fewest_gpus(smaller)):
            flags = f"{flag_of('gpu_memory_utilization')} {share}", *way.flags
            yield replace(way, change=f"{change}, {way.change}", settings=settings | way.settings, flags=flags)


def _text_alone(serving: Serving) -> Iterator[WayOut]:
    if media := media_of(serving.model):
        given = vllm.media_limits(serving.args.limit_mm_per_prompt or "{}")
        without = json.dumps({**given, "video": 0}, separators=(",", ":"))
        yield from _option(serving, "no videos", {"limit_mm_per_prompt": without}) if "video" in media else ()
        limits = json.dumps(dict.fromkeys(media, 0), separators=(",", ":"))
        by_switch = flag_status(serving.version, flag_of("language_model_only"))
        settings: dict[str, Setting] = {"language_model_only": True} if by_switch else {"limit_mm_per_prompt": limits}
        alone = tuple(_option(serving, "text alone, without the vision tower", settings))
        yield from alone or _frugal(serving, "text alone, ", settings)


def _frugal(serving: Serving, change: str = "", settings: dict[str, Setting] | None = None) -> Iterator[WayOut]:
    frugal = list[tuple[str, Setting]]()
    with suppress(IllegalPlanError):
        frugal += ((name, value) for name, value in FRUGAL if _saves(serving, name, value))
    some = ({**(settings or {}), **dict(frugal[:count])} for count in range(1, len(frugal) + 1))
    together = tuple(_first(_option(serving, f"{change}frugal settings together", one) for one in some))
    yield from together
    if not together and (shorter := _shorter(serving, {**(settings or {}), **dict(frugal)})):
        words = f"{change}frugal settings and a context of {shorter['max_model_len']:,} tokens"
        yield from _option(serving, words, shorter)


def _saves(serving: Serving, name: str, value: Any) -> bool:
    current = getattr(serving.memory.config, name)
    if name == "kv_cache_dtype":  # Triton attention has no fp8 type before sm_89: vLLM issues 7714 (V0) and 26431
        return serving.profile.supports("fp8") and not str(current).startswith("fp8")
    if name == "enforce_eager":
        return not current and not serving.memory.budget.features.graphs_in_budget
    return bool(value > current if name == "gpu_memory_utilization" else value < current)


#: A checkpoint of fewer bits by its id: many GPUs ask for it.
_published = models.PerModel(lambda _wide, name: models.resolve_model(name, network=False).model)
#: A precision with or without a known checkpoint: its name, the model, the settings that ask for it.
Precision = tuple[str, Model, dict[str, Setting]]


def _precisions(serving: Serving, profile: GpuProfile) -> Iterator[Precision]:
    """The checkpoint as it is, and those of fewer bits that ``profile`` runs: widest first, of 4 bits known first."""
    model, asked = serving.model, serving.resolved.resolved
    whole, entry = model.quantization.method is None, models.find_entry(asked)
    yield "", model, {}
    if serving.args.quantization or not (whole or "8" in model.quantization.weight_dtype):
        return
    made = models.quantized_checkpoints((entry and entry.base) or asked)
    own_first = sorted(made, key=lambda one: one.publisher != asked.partition("/")[0])
    known: dict[str, str] = {}
    for one in (one for one in own_first if profile.vendor in one.platforms and one.weight_dtype not in known):
        with suppress(IllegalPlanError):  # a method of quantisation that the version refuses
            vllm.resolve(serving.args, _published(model, one.id), profile, serving.version)
            known[one.weight_dtype] = one.id
    fp4 = {"nvidia": ("nvfp4",), "amd": ("mxfp4",)}.get(profile.vendor, ()) if profile.supports("fp4") else ()
    four = [dtype for dtype in (*fp4, "int4-awq", "int4", "int4-gptq") if dtype in known]
    if whole:
        four = [*["fp8"] * profile.supports("fp8"), *(four or ["nvfp4" if "nvfp4" in fp4 else "int4-awq"])]
    for dtype in four:
        name = "an fp8 checkpoint" if dtype == "fp8" else f"a 4-bit checkpoint ({dtype})"
        if checkpoint := known.get(dtype):
            yield name, _published(model, checkpoint), {"weight_dtype": dtype, "model": checkpoint}
        elif dtype == "fp8" and serving.memory.budget.features.streams_online_quantization:
            yield ONLINE, model, {"quantization": "fp8"}
        else:
            yield name, as_quantized(model, dtype), {"weight_dtype": dtype}


def of_four_bits(serving: Serving) -> WayOut | None:
    """The first published 4-bit checkpoint that fits the GPUs of ``serving``; None where there is none."""
    precisions = _precisions(serving, serving.profile)
    made = (one for one in precisions if "model" in one[2] and "4" in str(one[2]["weight_dtype"]))
    tries = (_with_cache(serving.changed(model=model), name, settings) for name, model, settings in made)
    return next(chain.from_iterable(tries), None)


def _fewest_gpus(serving: Serving) -> Iterator[WayOut]:
    """The fewest GPUs for each precision, where that is fewer than a wider one takes; fewest changes first."""
    asked, most, options = serving.args.tensor_parallel_size, inf, list[WayOut]()
    precisions = [*_precisions(serving, serving.profile)]
    for name, model, settings in precisions:
        narrow = serving.changed(model=model)
        legal = tuple(_legal_sizes(narrow, most=asked))
        least = asked if asked in legal else max((size for size in legal if size < asked and name), default=asked)
        sizes = [size for size in legal if least <= size < most]
        for size, there in ((size, narrow.changed(tensor_parallel_size=size)) for size in sizes):
            more: dict[str, Setting] = {"tensor_parallel_size": size} if size != asked else {}
            if found := tuple(_with_cache(there, _gpus(serving, size, name), {**more, **settings})):
                options += found
                most = size
                break
        else:
            more_gpus = (size for size in sizes if size > asked and not name)  # those asked for are among the settings
            shorter = ((_gpus(narrow, size), _shorter(narrow, {"tensor_parallel_size": size})) for size in more_gpus)
            tries = ((f"{gpus}, a context of {new['max_model_len']:,} tokens", new) for gpus, new in shorter if new)
            options += _first(_option(narrow, words, short) for words, short in tries)
    if all("tensor_parallel_size" in one.settings for one in options):
        four_bits = (one for one in precisions if one[2].get("weight_dtype", "fp8") != "fp8")
        options += _first(_frugal(serving.changed(model=model), f"{n}, ", more) for n, model, more in four_bits)
    cards = 3 * (serving.profile.interconnect.kind == "pcie")  # such GPUs are seldom several
    costs = {"tensor_parallel_size": cards, "kv_cache_dtype": 1, "max_model_len": 2}  # the others: what requests get
    yield from sorted(options, key=lambda one: (sum(costs.get(name, 0) for name in one.settings), one.num_gpus))


def _with_cache(serving: Serving, change: str, settings: dict[str, Setting]) -> Iterator[WayOut]:
    cheap: tuple[tuple[str, dict[str, Setting]], ...] = (
        ("", {}),
        (", 95% of the memory", {"gpu_memory_utilization": 0.95}),
        (", an 8-bit KV cache", {"kv_cache_dtype": "fp8"}),
        (f", {NO_GRAPHS}", {"enforce_eager": True}),
    )
    with suppress(IllegalPlanError):  # a precision that vLLM refuses, or does not compute on this GPU
        if settings.get("weight_dtype") == "fp8" and settings.keys() <= {"weight_dtype", "model"}:  # before 4 bits
            cheap += ((", frugal settings", {name: value for name, value in FRUGAL if _saves(serving, name, value)}),)
        if settings and serving.memory.lacking_states:
            cheap += tuple((f", at most {places} requests at once", {"max_num_seqs": places}) for places in FEW_PLACES)
        yield from _first(
            _option(serving, change + words, {**settings, **more})
            for words, more in (cheap if settings else ())
            if all(_saves(serving, name, value) for name, value in more.items())
        )


def _gpus(serving: Serving, size: int, name: str = "") -> str:
    args, unit = serving.args, "partition" if serving.profile.partition else "GPU"
    stages, copies = args.pipeline_parallel_size, args.data_parallel_size
    axes = [f"TP {size}", *(f"{axis} {n}" for axis, n in (("PP", stages), ("DP", copies)) if n > 1)]
    count = size * stages * copies
    if size == args.tensor_parallel_size and name:
        return name
    many = f"{count} {unit}s, " + ("tensor parallel" if len(axes) == 1 else " x ".join(axes))
    return ", ".join(filter(None, (many if count > 1 else f"1 {unit}", name)))


def _more_partitions(serving: Serving, modes: Iterable[GpuProfile]) -> Iterator[WayOut]:
    """Tensor parallelism over partitions, in a mode for which a source documents it and another disputes it."""
    here = serving.profile
    alike = [mode for mode in modes if mode.partition and mode.memory_bytes == here.memory_bytes]
    for profile, size in product(sorted(alike, key=lambda p: p.id != here.id), (2, 4, 8)):
        settings: dict[str, Setting] = {"tensor_parallel_size": size, "allow_unvalidated": True}
        settings |= {} if profile.id == here.id else {"gpu": profile.id}
        change = f"tensor parallel over {size} partitions (unvalidated)"
        if options := tuple(_option(serving, change, settings, profile=profile)):
            yield from options
            return


def _other_gpus(serving: Serving) -> list[GpuProfile]:
    """Whole GPUs with clearly more memory in no more nodes, at least half as fast, of its vendor, links and line first.

    The smallest come first among them."""
    here, args = serving.profile, serving.args
    ranks = args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size
    nodes, least_bytes = ceil(ranks / here.gpus_per_node), MORE_MEMORY * here.memory_bytes
    larger = (p for p in load_all() if p.platform != "cpu" and p.id != here.whole and p.memory_bytes > least_bytes)
    few, kind = (p for p in larger if ceil(ranks / p.gpus_per_node) <= nodes), here.interconnect.kind
    fast = [p for p in few if all(new >= LEAST_SPEED * old for old, new in zip(_speed(here), _speed(p), strict=True))]
    line = here.name.split()[1]  # GeForce, Radeon or Instinct
    return sorted(
        fast,
        key=lambda p: (p.vendor != here.vendor, p.interconnect.kind != kind, line not in p.name, p.memory_bytes // GIB),
    )


def _speed(profile: GpuProfile) -> tuple[float, float]:
    """Bytes and 16-bit FLOP per second, at most."""
    return profile.memory_bandwidth_bytes_per_s, profile.peak_flop_per_s("bf16" if profile.supports("bf16") else "fp16")


def _first_gpus(serving: Serving, profiles: Iterable[GpuProfile], change: str, most: int) -> Iterator[WayOut]:
    named, here, size = 0, serving.profile, serving.args.tensor_parallel_size
    for profile in profiles:
        same = max(size * profile.parts // here.parts, 1) if profile.whole == here.whole else size  # of the packages
        ranks: dict[str, Setting] = {"tensor_parallel_size": same} if same != size else {}
        for name, model, settings in _precisions(serving, profile):
            text = ", ".join(filter(None, (change.format(profile.name), name)))
            asked = {"gpu": profile.id, **ranks, **settings}
            options = tuple(_option(serving, text, asked, profile=profile, model=model))
            if options or "fp8" in settings.values():
                break
        yield from options
        named += len(options)
        if named == most:
            return


@dataclass(frozen=True, slots=True)
class ArithmeticLine:
    label: str
    value: str
    how: str = ""  #: the formula or the source


def explain(fit: Fit) -> tuple[ArithmeticLine, ...]:
    """Weights, overheads, cache and concurrency; then the rule of thumb in AMD's documents, and where it is wrong::

    weights + batch x context x 2 x layers x hidden x bytes < memory"""
    rows = (*_weight_lines(fit), *_budget_lines(fit), *_cache_lines(fit), *_rule_of_thumb(fit))
    return tuple(ArithmeticLine(*row) for row in rows)


def _weight_lines(fit: Fit) -> Iterator[tuple[str, str, str]]:
    weights, config, model = fit.stage.weights, fit.config, fit.budget.model
    shared = "on the GPU" if config.tensor_parallel_size == 1 else f"on each of {config.tensor_parallel_size} ranks"
    for component, num_bytes in sorted(weights.by_component.items(), key=lambda item: -item[1]):
        yield f"  {component.replace('_', ' ')}", _both(num_bytes), shared
    parameters = f"{model.total_params:,} parameters, linear weights {config.weight_dtype}, others {config.dtype}"
    lora, positions = config.lora, f"{model.max_position_embeddings:,} positions, loaded with the weights"
    adapters = lora and f"{lora.max_loras} of rank {lora.max_lora_rank}, in every matrix of the layers, used or not"
    offloaded = f"--cpu-offload-gb {config.cpu_offload_gb or 0:g}: read over the host's link in every step"
    rows = (
        ("weights", weights.weight_bytes, parameters),
        ("of these in host memory", weights.offloaded_bytes, offloaded),
        ("adapters", weights.lora_bytes, adapters or ""),
        ("products of projections", weights.absorbed_bytes, "V0 keeps them beside the weights of MLA"),
        ("rotary table", weights.rotary_bytes, positions),
    )
    yield from ((label, _both(num_bytes), how) for label, num_bytes, how in rows if num_bytes)


def _budget_lines(fit: Fit) -> Iterator[tuple[str, str, str]]:
    stage, config, budget = fit.stage, fit.config, fit.budget
    given, rows, share = stage.given_bytes, config.sampled_rows, f"{config.gpu_memory_utilization:g}"
    yield "memory that the engine sees", _both(budget.memory_bytes), f"of one {fit.gpu_id}"
    if given is None:
        yield "budget", _both(stage.requested_bytes), f"{share} of it (--gpu-memory-utilization)"
    how = f"sampling {rows:,} rows of {budget.model.vocab_size:,} logits, "
    how += f"or {config.max_num_batched_tokens:,} tokens at once"
    yield "activation peak", _range(stage.activation), how
    yield "memory outside torch", _range(stage.non_torch), "fitted to start-up logs"
    if size := budget.exchange_bytes:
        yield "  of it buffers", _both(size), f"of {config.all2all}: all2all.py of vLLM, config.hpp of DeepEP"
    inside = "inside the budget" if stage.graphs_in_budget else "captured later, outside the budget"
    yield "graphs", _range(stage.graphs), inside
    if given is None:
        yield "left for the KV cache", _range(fit.kv_cache), "budget - weights - the above"
    else:
        yield "left", _range(stage.left), "memory - weights - the above"
        yield "given to the KV cache", _both(given), f"by {config.kv_cache_given_by}"


def _cache_lines(fit: Fit) -> Iterator[tuple[str, str, str]]:
    config, pool, per_token = fit.config, fit.budget.pool, f"{fit.kv_bytes_per_token:,.0f} B"
    if not pool.groups:
        yield "KV cache", "none", "no layer keeps anything between tokens"
        return
    windows = any(spec.span_tokens for group in pool.groups for spec in group.specs)
    yield "KV cache per token", per_token, _per_token(fit) + ", before windows are full" * windows
    if (next_token := f"{fit.kv_bytes_per_next_token:,.0f} B") != per_token:
        yield "one more token", next_token, f"after {config.max_model_len:,} of them"
    how = f"{config.max_model_len:,} tokens, in {pool.blocks_per_request(config.max_model_len):,} blocks"
    how += f" of {len(pool.groups)} groups of layers" if len(pool.groups) > 1 else ""
    yield "KV cache of one request", _both(fit.kv_bytes_per_request), how
    yield "tokens that vLLM logs", f"{fit.kv_cache_tokens:,}", f"vLLM {config.version}"
    if fit.kv_cache_tokens != fit.kv_cache_capacity_tokens:
        yield "tokens that really fit", f"{fit.kv_cache_capacity_tokens:,}", "in requests of max_model_len"
    yield "requests at once", f"{fit.max_concurrency:,.2f}", f"of {config.max_model_len:,} tokens"
    yield "longest request", f"{fit.largest_max_model_len:,}", "tokens"


def _per_token(fit: Fit) -> str:
    model, config = fit.budget.model, fit.config
    mixers = [model.layers[index].mixer for index in fit.stage.weights.layers if index < model.num_layers]
    latent = next((m for m in model.distinct_mixers if isinstance(m, LatentAttention)), None)
    first = next((m for m in model.distinct_mixers if isinstance(m, Attention)), None)
    if latent:
        row_bytes = max(spec.token_bytes for group in fit.budget.pool.groups for spec in group.specs)
        width = row_bytes // element_bytes(config.kv_cache_dtype)
        kind = fit.budget.features.latents
        padded = f", padded to {width}" * (kind == "padded rows")
        row = f"{latent.kv_elements_per_token} latent elements{padded}; TP does not divide them"
        if kind == "heads":
            heads = held_heads(latent.num_heads, config.tensor_parallel_size)
            row = f"{heads} heads on the rank x {width // heads} x {config.kv_cache_dtype}, without latents"
        return f"{sum(isinstance(mixer, LatentAttention) for mixer in mixers)} layers of {row}"
    if first is None:
        return "a state of fixed size per request instead"
    heads = held_heads(first.num_kv_heads, config.tensor_parallel_size)
    note = ", repeated on ranks" if first.num_kv_heads < config.tensor_parallel_size else ""
    count, width = sum(isinstance(mixer, Attention) for mixer in mixers), first.head_dim + first.v_head_dim
    return f"{count} layers x {heads} KV heads on the rank{note} x {width} x {config.kv_cache_dtype}"


def _rule_of_thumb(fit: Fit) -> Iterator[tuple[str, str, str]]:
    model, config, stage, memory = fit.budget.model, fit.config, fit.stage, fit.budget.memory_bytes
    size = element_bytes(config.dtype)
    per_token = 2 * model.num_layers * model.hidden_size * size
    weights, cache = model.total_params * size, per_token * config.max_model_len
    verdict = "fits" if weights + cache < memory * config.num_gpus else "does not fit"
    yield "rule of thumb in AMD's documents", verdict, "weights + KV cache < memory of all GPUs"
    how = f"{weights / GB:,.2f} GB + {config.max_model_len:,} tokens x {per_token:,} B ({cache / GB:,.2f} GB)"
    yield "  weights + KV cache", format_gb(weights + cache), how
    mixers = model.distinct_mixers
    attention = [m for m in mixers if isinstance(m, Attention)]
    overhead = stage.requested_bytes - stage.weights.loaded_bytes - stage.left.mid
    grouped = next(
        (f"{m.num_kv_heads} KV heads for {m.num_heads}" for m in attention if m.num_kv_heads < m.num_heads), ""
    )
    holds = {
        "latent": any(isinstance(m, LatentAttention) for m in mixers),
        "grouped": grouped,
        "heads": any(m.num_heads * m.head_dim != model.hidden_size for m in attention),
        "windows": any(m.span_tokens for m in attention),
        "states": any(isinstance(m, StateMixer) for m in mixers),
        "ranks": any(m.num_kv_heads < config.tensor_parallel_size for m in attention),
        "cache_dtype": config.kv_cache_dtype != config.dtype,
        "weight_dtype": model.quantization.method,
        "budget": True,
        "example": model.id.lower().startswith("meta-llama/llama-2-13b") and config.max_model_len == 4096,
    }
    spared_gib, overhead_gib = (memory - stage.requested_bytes) / GIB, overhead / GIB
    reasons = remarks(
        "rule_of_thumb", holds, config=config, grouped=grouped, per_token=per_token, spared_gib=spared_gib,
        overhead_gib=overhead_gib,
    )  # fmt: skip
    yield from (("  not in the rule", "", reason) for reason in reasons)


def _both(num_bytes: float) -> str:
    return f"{format_gb(num_bytes)} = {format_bytes(num_bytes)}"


def _range(interval: Interval) -> str:
    return f"{interval.mid / GIB:,.2f} ({interval.low / GIB:,.2f} to {interval.high / GIB:,.2f}) GiB"
