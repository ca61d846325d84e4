"""The settings of one vLLM engine, each declared once: name, type, default, spelling, bounds, help and uses.

A field of ``EngineArgs`` is that declaration; options, keywords, readers and launch lines follow from it. It has the
requested settings, ``EngineConfig`` those that the engine then runs with.

>>> SETTINGS["tensor_parallel_size"].flags
('--tensor-parallel-size', '-tp')
>>> SETTINGS["max_num_seqs"].check(0)
Traceback (most recent call last):
planner.errors.InputError: --max-num-seqs must be at least 1, got 0
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import inf, log
from statistics import NormalDist
from typing import Any, Literal, Self, get_args, get_type_hints

from planner.engine.flags import ALL2ALL, CPU_KVCACHE_SPACE, FLASHINFER_SAMPLER, MXFP4_MARLIN, Environment
from planner.engine.version import EngineVersion
from planner.errors import InputError
from planner.resources import package_dir, tables_of
from planner.units import GIB, MOST_FIGURE, meant, whole_number

#: vLLM's two engines: V0 until 0.10, V1 by default from 0.8.0 on NVIDIA and from 0.9.1 on AMD.
Engine = Literal["V0", "V1"]
#: Methods of speculative decoding, see ``planner.engine.resolution``.
SpeculativeMethod = Literal["mtp", "draft_model", "eagle", "eagle3", "ngram", "suffix"]
#: Uses of a setting. ``axes``: parallel axes that every answer names. ``layout``: how the model lies on the GPUs.
#: ``batch``: bounds of one step. ``searched``: chosen by a search. ``plan``: repeated in a plan. ``result``: asked of
#: whoever has a measured result without its plan. ``logged``: printed at start-up, and not of the layout.
#: ``recommend``, ``fleet``: taken by these commands.
Tag = Literal["axes", "layout", "batch", "searched", "plan", "result", "logged", "recommend", "fleet"]
_SCALES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SCALED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
ANY_LENGTH = -1  #: ``--max-model-len auto``
#: Backends of ``--all2all-backend`` that send tokens to their experts' ranks, with their traits; and the default.
EXCHANGES = {name: frozenset(traits) for name, traits in tables_of(package_dir("engine") / "exchanges.toml").items()}
GATHER = "allgather_reducescatter"
MOST_RANKS = 1024  #: on one axis; more than any engine was ever spread over


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    method: SpeculativeMethod
    num_speculative_tokens: int
    model: str | None = None  #: of the draft: a hub id or a path
    draft_tensor_parallel_size: int | None = None  #: None: as the model's; else that or 1
    text: str = ""  #: the JSON as it is launched
    #: Share of steps in which the first drafted token is accepted, the first two, ...; empty: not known
    acceptance_rates: tuple[float, ...] = ()
    acceptance_range: tuple[float, float] | None = None  #: 90 % of the acceptance length, where it is assumed

    @property
    def has_draft_model(self) -> bool:
        return self.method in ("draft_model", "eagle", "eagle3")

    @property
    def acceptance_length(self) -> float:
        """Mean tokens of a step: the accepted ones and the one that the model itself adds, as vLLM logs it."""
        return 1 + sum(self.acceptance_rates)

    @property
    def acceptance_deviation(self) -> float:
        """Standard deviation of the logarithm of the acceptance length; 0 where it is given."""
        low, high = self.acceptance_range or (1.0, 1.0)
        return log(high / low) / (2 * NormalDist().inv_cdf(0.95))

    @property
    def words(self) -> str:
        """Method and drafted tokens, such as ``MTP 3``."""
        return f"{self.method.upper().replace('_', ' ')} {self.num_speculative_tokens}"

    @property
    def accepted_words(self) -> str:
        """Tokens of a step, such as ``2.4 tokens per step (1.9 to 3.1, as published)``."""
        ends = [f"{end:.1f}" for end in self.acceptance_range or ()]
        basis = f"{' to '.join(ends)}, as published" if ends else "as given"
        return f"{self.acceptance_length:.1f} tokens per step ({basis})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str = ""  #: field of EngineArgs and keyword of the library
    kind: Any = None
    default: Any = None
    help: str = ""
    short: str = ""  #: the short spelling, such as ``-tp``
    least: float | None = None
    above: float | None = None
    most: float | None = None
    metavar: str = ""  #: what ``--help`` shows for the value: a unit, or its form
    ours: bool = False  #: planner's own, no option of vLLM
    scaled: bool = False  #: a count with a suffix, as vLLM's ``human_readable_int`` reads it
    on: Literal["", "gpu"] = ""  #: where it has a meaning; empty: everywhere
    only: Literal["", "memory", "time"] = ""  #: what it changes, where the other is not modelled or not touched
    tags: str = ""  #: uses, each a ``Tag``

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def is_switch(self) -> bool:
        return self.kind in (bool, bool | None)

    @property
    def value_type(self) -> Any:
        return next(kind for kind in (self.kind, *get_args(self.kind)) if isinstance(kind, type))

    @property
    def flags(self) -> tuple[str, ...]:
        off = f"/{flag_of('no_' + self.name)}" if self.kind == bool | None else ""
        return tuple(filter(None, (self.flag + off, self.short)))

    def read(self, text: str) -> Any:
        """The value of a text; of lengths ``32k`` is 32,000 and ``32K`` 32,768. Raises ValueError or OverflowError."""
        if text == "auto" and self.name == "max_model_len":
            return ANY_LENGTH
        scaled = _SCALED.fullmatch(text.strip()) if self.scaled else None
        return int(float(scaled[1]) * _SCALES[scaled[2]]) if scaled else self.value_type(text)

    def check(self, value: Any) -> None:
        any_length = value == ANY_LENGTH and self.name == "max_model_len"
        if not isinstance(value, int | float) or isinstance(value, bool) or any_length:
            return
        least, above, most = (
            default if bound is None else bound
            for bound, default in ((self.least, -inf), (self.above, -inf), (self.most, MOST_FIGURE))
        )
        if least <= value <= most and above < value:
            return
        wanted = [f"at least {least:g}"] if self.least is not None else []
        wanted += [f"above {above:g}"] if self.above is not None else []
        wanted += [f"at most {most:,g}"] if self.most is not None or value > most else []
        cause = f"{self.flag} must be {' and '.join(wanted) or 'a number'}, got {value}"
        hint = meant(self.flag, value, self.most) or f"give such a number, or leave {self.flag} out for the default"
        raise InputError(cause, hint=hint)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def _row(default: Any, text: str, tags: str = "", **facts: Any) -> Any:
    return field(default=default, metadata={"help": text, "tags": tags, **facts})


_RANKS: Mapping[str, Any] = {"least": 1, "most": MOST_RANKS}
_AXIS: Mapping[str, Any] = {**_RANKS, "tags": "axes layout searched plan result"}
_COUNT: Mapping[str, Any] = {"least": 1}
_TOKENS: Mapping[str, Any] = {"least": 1, "scaled": True}
_BYTES: Mapping[str, Any] = {"least": 1, "scaled": True, "metavar": "BYTES"}
_JSON: Mapping[str, Any] = {"short": "-sc", "metavar": "JSON"}
_GIB: Mapping[str, Any] = {"least": 0, "metavar": "GIB"}
_BATCH = "batch searched plan result logged recommend fleet"
_GIVEN = "plan result logged recommend fleet"


@dataclass(frozen=True, slots=True)
class EngineArgs:
    """Flags of ``vllm serve`` that change memory or time, in the order of commands. None: vLLM's default."""

    tensor_parallel_size: int = _row(1, "GPUs that share each layer.", short="-tp", **_AXIS)
    pipeline_parallel_size: int = _row(1, "Stages of layers.", short="-pp", **_AXIS)
    data_parallel_size: int = _row(1, "Copies of the engine that share the load (DP ranks).", short="-dp", **_AXIS)
    decode_context_parallel_size: int = _row(
        1, "Ranks that share tokens of the KV cache.", "layout plan recommend fleet", short="-dcp", **_RANKS
    )
    enable_expert_parallel: bool = _row(
        False, "Whole experts on each rank.", "axes layout searched plan result", short="-ep"
    )
    all2all_backend: str = _row(
        GATHER, "Backend of the exchange of tokens between DP ranks of experts.", "recommend fleet", metavar="BACKEND"
    )
    enable_eplb: bool = _row(False, "Balance the load of experts over ranks.")
    eplb_config: str | None = _row(None, "Settings of EPLB: num_redundant_experts counts.", metavar="JSON")
    dtype: str = _row("auto", "auto, bfloat16, float16 or float32.", "layout")
    quantization: str | None = _row(
        None, "Quantise while loading: fp8, ... Default: serve the checkpoint as it is.", "recommend fleet", short="-q"
    )
    allow_deprecated_quantization: bool = _row(False, "Serve quantisations that vLLM deprecates.", "recommend fleet")
    kv_cache_dtype: str = _row("auto", "auto, fp8, bfloat16, ...", "searched plan result logged recommend fleet")
    max_model_len: int | None = _row(None, "Longest context, or auto. Default: the model's own.", _GIVEN, **_TOKENS)
    max_num_seqs: int | None = _row(None, "Largest batch.", _BATCH, **_COUNT)
    max_num_batched_tokens: int | None = _row(None, "Tokens of one step.", _BATCH, **_TOKENS)
    gpu_memory_utilization: float | None = _row(None, "Share of the memory, such as 0.9.", _GIVEN, above=0, most=1)
    kv_cache_memory_bytes: int | None = _row(None, "KV cache of each GPU, in place of a share.", on="gpu", **_BYTES)
    block_size: int | None = _row(None, "Tokens of a KV block.", "plan logged", **_COUNT)
    enforce_eager: bool = _row(False, "No CUDA/HIP graphs.", _GIVEN)
    max_cudagraph_capture_size: int | None = _row(None, "Largest batch with a graph.", "logged recommend", **_COUNT)
    speculative_config: SpeculativeConfig | None = _row(None, "Speculative decoding.", "recommend", **_JSON)
    enable_lora: bool = _row(False, "Serve LoRA adapters.", "recommend")
    max_loras: int | None = _row(None, "Adapters in one batch. Default: 1.", "recommend", **_COUNT)
    max_lora_rank: int | None = _row(None, "Largest rank. Default: 16.", "recommend", **_COUNT)
    max_cpu_loras: int | None = _row(None, "Adapters in host memory. Default: as --max-loras.", "recommend", **_COUNT)
    fully_sharded_loras: bool = _row(False, "Cut adapters over all ranks.", "recommend")
    cpu_offload_gb: float | None = _row(None, "Weights of each GPU that stay in host memory.", "recommend", **_GIB)
    kv_offloading_size: float | None = _row(None, "Host memory for KV blocks of all ranks.", "recommend fleet", **_GIB)
    swap_space: float | None = _row(None, "Host memory of each GPU for swapped blocks (V0).", **_GIB)
    enable_prefix_caching: bool | None = _row(None, "Keep blocks of shared prefixes.", _GIVEN)
    enable_chunked_prefill: bool | None = _row(None, "Split long prompts.", "logged")
    async_scheduling: bool | None = _row(None, "Schedule while the GPU computes.", "plan result")
    scheduling_policy: str | None = _row(
        None, "fcfs, or priority (the lower number of --class first).", "recommend fleet", only="time", metavar="POLICY"
    )
    override_generation_config: str | None = _row(
        None, "Sampling of requests that name none: top_p, top_k, ...", "recommend fleet", metavar="JSON", only="time"
    )
    hf_overrides: str | None = _row(
        None, "Keys of config.json to replace: its context alone counts.", "recommend fleet", metavar="JSON"
    )
    language_model_only: bool = _row(False, "Leave the vision tower out.", "logged recommend fleet")
    limit_mm_per_prompt: str | None = _row(
        None, "Maximum images and videos per prompt.", "recommend fleet", metavar="JSON"
    )
    mm_processor_kwargs: str | None = _row(None, "Image processor: max_pixels counts.", metavar="JSON", only="memory")
    skip_mm_profiling: bool = _row(False, "No images in the profile run.", "logged", only="memory")
    mm_encoder_tp_mode: str | None = _row(
        None, "Vision tower cut over the ranks (weights) or whole on each (data).", metavar="MODE", only="memory"
    )
    offline: bool = _row(False, "Defaults of the class LLM, not of vllm serve.", only="memory", ours=True)
    used_gib: float = _row(0.0, "Memory of each GPU that other processes hold.", only="memory", ours=True, **_GIB)
    env: Environment = _row(
        Environment(), f"Variable of the server, such as {CPU_KVCACHE_SPACE}=40 or VLLM_USE_V1=0. Repeatable.",
        "recommend fleet", metavar="NAME=VALUE", ours=True,
    )  # fmt: skip
    allow_unvalidated: bool = _row(
        False, "Plan what one source documents and another reports broken.", "recommend fleet", ours=True
    )

    def settings(self, tag: Tag) -> dict[str, Any]:
        return {name: getattr(self, name) for name in tagged(tag)}

    def changed(self, **settings: Any) -> Self:
        if "env" in settings:
            settings["env"] = Environment({**self.env, **Environment.read(settings["env"])})
        return replace(self, **settings)

    @property
    def drafted_tok(self) -> int:
        """Tokens that are drafted for each decoding request in a step."""
        return self.speculative_config.num_speculative_tokens if self.speculative_config else 0

    @property
    def most_decodes(self) -> int:
        """Requests that the token budget of one step decodes, each with its drafts; 0: no budget is set."""
        return (self.max_num_batched_tokens or 0) // (1 + self.drafted_tok)

    @property
    def all2all(self) -> str:
        """The backend of ``--all2all-backend``, before which the variable of 0.9 to 0.14 comes."""
        return self.env.get(ALL2ALL) or self.all2all_backend

    @property
    def exchange(self) -> frozenset[str]:
        """Traits of the backend by which ranks send tokens to experts of others; none: they gather or share none."""
        sends = self.enable_expert_parallel and self.data_parallel_size > 1
        return EXCHANGES.get(self.all2all, frozenset()) if sends else frozenset()

    @property
    def redundant_experts(self) -> int:
        """Copies of experts of each layer that EPLB places beside them."""
        config = json_object("--eplb-config", self.eplb_config or "{}", '{"num_redundant_experts": 32}')
        return int(config.get("num_redundant_experts", 0))

    @property
    def overridden(self) -> Mapping[str, Any]:
        """Keys of ``config.json`` that ``hf_overrides`` replaces."""
        return json_object("--hf-overrides", self.hf_overrides or "{}", '{"max_position_embeddings": 131072}')

    @property
    def truncates(self) -> bool:
        """True if a token is drawn from the likeliest ones, by top-p or top-k."""
        sampling = generation_config(self.override_generation_config or "{}")
        cut = sampling.get("top_p", 1.0) < 1 or sampling.get("top_k", 0) > 0
        return cut and sampling.get("temperature", 1.0) > 0

    @property
    def cpu_kvcache_space(self) -> int | None:
        """GiB of the KV cache of each rank on a CPU; None: what ``gpu_memory_utilization`` leaves."""
        return whole_number(self.env.get(CPU_KVCACHE_SPACE, ""))

    @property
    def flashinfer_sampler(self) -> bool | None:
        return self.env.switch(FLASHINFER_SAMPLER)

    @property
    def mxfp4_use_marlin(self) -> bool | None:
        return self.env.switch(MXFP4_MARLIN)

    @property
    def num_gpus(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


#: Kept in ``speculative_config`` of EngineArgs; vLLM has no such option.
ACCEPTANCE_RATE = Setting(
    name="speculative_acceptance_rate", kind=str | None,
    help="Chance that a drafted token is accepted after the one before; or the share of steps up to each position.",
    metavar="RATE[,RATE...]", ours=True, only="time", tags="recommend",
)  # fmt: skip


def _settings() -> dict[str, Setting]:
    kinds, rows = get_type_hints(EngineArgs), {}
    for row in fields(EngineArgs):
        rows[row.name] = Setting(name=row.name, kind=kinds[row.name], default=row.default, **row.metadata)
        if row.name == "speculative_config":
            rows[ACCEPTANCE_RATE.name] = ACCEPTANCE_RATE
    return rows


SETTINGS: Mapping[str, Setting] = _settings()  #: every setting, by name


@cache
def media_limits(text: str) -> Mapping[str, int]:
    """Read ``--limit-mm-per-prompt``: JSON, with a count or an object with one, or ``image=2,video=0`` as to 0.9."""
    try:
        pairs = json.loads(text) if text.startswith("{") else dict(pair.split("=") for pair in text.split(","))
        return {name: int(value["count"] if isinstance(value, dict) else value) for name, value in pairs.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        cause = f"--limit-mm-per-prompt {text[:80]!r} is not read"
        raise InputError(cause, hint="""give JSON, such as '{"image": 0, "video": 0}'""") from error


@cache
def json_object(flag: str, text: str, example: str) -> Mapping[str, Any]:
    """Return the object of an option in JSON. Raises InputError for anything else."""
    with suppress(ValueError):
        if isinstance(value := json.loads(text), dict):
            return value
    raise InputError(f"{flag} {text[:80]!r} is not read", hint=f"give JSON, such as '{example}'")


def generation_config(text: str) -> Mapping[str, float]:
    """Return the numbers of ``--override-generation-config`` by name. Raises as ``json_object``."""
    given = json_object("--override-generation-config", text, '{"temperature": 0.7, "top_p": 0.95}')
    return {name: float(value) for name, value in given.items() if isinstance(value, int | float)}


@cache
def tagged(tag: Tag) -> tuple[str, ...]:
    return tuple(name for name, row in SETTINGS.items() if tag in row.tags.split())


#: Settings that a plan repeats: layout and element types, bounds of one step, others.
PLANNED = tuple(dict.fromkeys((*tagged("axes"), "weight_dtype", "kv_cache_dtype", *tagged("batch"), *tagged("plan"))))
UNMODELLED = tables_of(package_dir("engine") / "unmodelled.toml")  #: parts of vLLM that planner does not model
NOT_SIMULATED = frozenset(UNMODELLED["options"])


@dataclass(frozen=True, slots=True)
class LoraConfig:
    max_loras: int  #: in one batch, and so on the GPU
    max_lora_rank: int
    max_cpu_loras: int  #: kept in host memory, those on the GPU among them
    fully_sharded_loras: bool = False
    adapts_experts: bool = True  #: routed experts have adapters too
    adapts_tables: bool = False  #: embedding and lm_head have
    joins_gate_up: bool = False  #: gate and up of an expert share one A (``FusedMoE3DWithLoRA``)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(EngineArgs):
    """The settings that one engine runs with; ``env`` has the variables that count on the device."""

    version: EngineVersion
    weight_dtype: str  #: of the linear weights, as in the contract: bf16, fp8, mxfp4, ...
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    block_size: int
    enable_prefix_caching: bool
    async_scheduling: bool
    enable_chunked_prefill: bool = True
    cpu_offload_gb: float = 0.0
    engine: Engine = "V1"
    kv_cache_dtype_flag: str | None = None  #: value of ``--kv-cache-dtype`` that gives ``kv_cache_dtype``
    num_scheduler_steps: int = 1  #: V0 only: steps that the GPU takes for one visit of the scheduler
    lora: LoraConfig | None = None
    defaults_taken: tuple[str, ...] = ()

    @property
    def ignored(self) -> tuple[str, ...]:
        """Notes on options that were given and that vLLM ignores."""
        return tuple(taken for taken in self.defaults_taken if ": ignored" in taken)

    @property
    def given_kv_cache_bytes(self) -> int | None:
        """Size of the KV cache of each rank, where it is given; None: what is left of the memory."""
        return self.cpu_kvcache_space * GIB if self.cpu_kvcache_space else self.kv_cache_memory_bytes

    @property
    def kv_cache_given_by(self) -> str:
        """Variable or option that gives the size of the KV cache, with its value."""
        if self.cpu_kvcache_space:
            return f"{CPU_KVCACHE_SPACE}={self.cpu_kvcache_space}"
        return f"{flag_of('kv_cache_memory_bytes')} {self.kv_cache_memory_bytes}"

    @property
    def layout(self) -> dict[str, Any]:
        return {**self.settings("axes"), "weight_dtype": self.weight_dtype, "kv_cache_dtype": self.kv_cache_dtype}

    @property
    def choice(self) -> dict[str, Any]:
        return self.layout | self.settings("batch")

    @property
    def planned(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in PLANNED}

    @property
    def max_running(self) -> int:
        """Requests that run at once at most, all DP ranks together."""
        return self.max_num_seqs * self.data_parallel_size

    @property
    def sampled_rows(self) -> int:
        """Rows of logits that one step of a rank samples from at most."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)
