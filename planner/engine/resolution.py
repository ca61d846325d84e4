"""Resolution of the settings that the engine runs with: vLLM's defaults by version, and its refusals.
Read off the sources of 0.6.3 to 0.33.0; file and function are named. Memory is not looked at here.

>>> with_acceptance(parse_speculative_config('{"method": "mtp", "num_speculative_tokens": 2}'), "0.5").acceptance_length
1.75
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import inf
from typing import Any, Literal, NamedTuple, get_args

from planner import model as models
from planner.engine import flags
from planner.engine.features import (
    V0_GONE_IN,
    Features,
    asked_engine,
    default_engine,
    is_hybrid,
    needs_v0,
    releases,
    uses_latent_attention,
    v1_serves,
    version_features,
)
from planner.engine.settings import (
    ACCEPTANCE_RATE,
    ANY_LENGTH,
    EXCHANGES,
    GATHER,
    SETTINGS,
    UNMODELLED,
    Engine,
    EngineArgs,
    EngineConfig,
    LoraConfig,
    SpeculativeConfig,
    SpeculativeMethod,
    flag_of,
    generation_config,
    media_limits,
)
from planner.engine.version import EngineVersion, Release, release_of, release_text
from planner.errors import IllegalPlanError, InputError, UnmodelledError
from planner.hardware import GpuProfile
from planner.model import Model
from planner.resources import package_dir, tables_of
from planner.units import GIB

Usage = Literal["serve", "offline"]
_REFUSALS = tables_of(package_dir("engine") / "refusals.toml")["refusals"]
#: vLLM's long names, by the short ones used here.
LONG_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_NO_FLOAT16 = ("gemma2", "gemma3", "gemma3_text", "glm4")  #: ``_FLOAT16_NOT_SUPPORTED_MODELS`` of config/model.py
SHORT_NAMES = {long: short for short, long in LONG_NAMES.items()} | {"half": "fp16", "float": "fp32"}
#: vLLM's method names for checkpoints whose own ``quant_method`` is wider.
_METHODS = {("modelopt", "nvfp4"): "modelopt_fp4", ("modelopt", "mxfp8"): "modelopt_mxfp8"}
BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)  #: ``BlockSize`` of ``config/cache.py`` to 0.17; 256 from 0.12.0 on
POLICIES = ("fcfs", "priority")  #: of ``--scheduling-policy``
V0_LONG_CONTEXT = 32768  #: V0 splits prompts by default where contexts are longer (``arg_utils.py``)
#: V0, ``SchedulerConfig``: tokens of a step with chunked prefill; 512 to 0.6.4.
_V0_CHUNK_TOKENS = 2048
#: V0: least tokens of a step when a model sees images (``_MULTIMODAL_MODEL_MAX_NUM_BATCHED_TOKENS``).
_V0_MULTIMODAL_TOKENS = 5120


def _refusal(
    kind: str, remedy: Mapping[str, Any] | None = None, error: type[InputError] = IllegalPlanError, **values: Any
) -> InputError:
    """Return a refusal of ``refusals.toml``: its cause and hint with these ``values``, and the settings it adds."""
    cause, hint = (text.format(**values) for text in _REFUSALS[kind])
    return error(cause, hint=hint, **(remedy or {}))


def resolve(
    args: EngineArgs, model: Model, profile: GpuProfile, version: EngineVersion, *, usage: Usage = "serve"
) -> EngineConfig:
    """The settings that ``vllm serve`` of ``version`` runs with. Raises InputError, IllegalPlanError as vLLM does."""
    return _Resolver(args, model, profile, version, "offline" if args.offline else usage).config()


def of_latency_bench(args: EngineArgs, version: EngineVersion) -> EngineArgs:
    """``args`` as ``vllm bench latency`` has them: no prefix cache since 0.9.1 (pull request 18639)."""
    kept = version.release < (0, 9, 1)
    return args if kept or args.enable_prefix_caching is not None else replace(args, enable_prefix_caching=False)


def stretched(model: Model, args: EngineArgs, version: EngineVersion) -> Model:
    """The model with its context under ``--hf-overrides``, and under the variable that allows a longer one."""
    keys, allowed = args.overridden, flags.is_on(args.env, flags.ALLOW_LONG)
    if keys:  # from 0.30 on YaRN counts by max_position_embeddings alone (pull request 56446)
        model = models.with_overrides(model, keys, yarn=version.release < (0, 30))
    longest = max(model.max_position_embeddings, allowed * (args.max_model_len or 0))
    return replace(model, max_position_embeddings=longest) if allowed else model


@dataclass
class _Resolver:
    args: EngineArgs
    model: Model
    profile: GpuProfile
    version: EngineVersion
    usage: Usage

    def __post_init__(self) -> None:
        self.taken: list[str] = [self.version.note] if self.version.note else []
        env = self.args.env
        engine = asked_engine(needs_v0({}, env, self.version), env.get(flags.USE_V1), self.version)
        self.version = replace(self.version, engine=engine or self.version.engine)

    def config(self) -> EngineConfig:
        args = self.args
        self._check_options()
        self._check_layout()
        self._took(ignored_lora_flags(args))
        weight_dtype = self._weight_dtype()
        dtype = self._dtype()
        kv = kv_cache_dtype(args.kv_cache_dtype, dtype, self.model, self.profile, self.version)
        self._took(kv.reason)
        engine = self._engine(fp8_kv_cache=kv.dtype.startswith("fp8"), fp32=dtype == "fp32")
        features = version_features(self.version, self.profile, engine=engine)
        max_model_len = self._max_model_len()
        if drafts := args.speculative_config:
            check_speculative_config(drafts, self.model, self.version, features, args.tensor_parallel_size)
        chunked = self._chunked_prefill(features, max_model_len)
        tokens, seqs = self._batch(features, max_model_len, chunked=chunked)
        check_known(self.model, self.version)
        check_kernels(self.model, self.profile, self.version, kv, LONG_NAMES[dtype])
        share, shared = features.default_gpu_memory_utilization, self.profile.memory.utilization
        seldom = "to be given: vLLM's own is seldom free in shared memory" * bool(shared)
        resolved = {
            "version": self.version, "dtype": dtype, "weight_dtype": weight_dtype or dtype, "kv_cache_dtype": kv.dtype,
            "kv_cache_dtype_flag": kv.flag, "max_model_len": max_model_len, "max_num_seqs": seqs,
            "max_num_batched_tokens": tokens,
            "gpu_memory_utilization": self._or("gpu_memory_utilization", share, seldom),
            "block_size": self._block_size(),
            "enable_prefix_caching": self._prefix_caching(features),
            "async_scheduling": self._async_scheduling(features), "enable_chunked_prefill": chunked, "engine": engine,
            "lora": resolve_lora(args, self.model, self.version), "cpu_offload_gb": args.cpu_offload_gb or 0.0,
            "env": self._environment(),
        }  # fmt: skip
        as_given = {row.name: getattr(args, row.name) for row in fields(EngineArgs)}
        return EngineConfig(**as_given | resolved, defaults_taken=tuple(self.taken))

    def _prefix_caching(self, features: Features) -> bool:
        if not self.args.enable_prefix_caching or prefix_caching(self.model, features, asked=True):
            return bool(self._or("enable_prefix_caching", prefix_caching(self.model, features)))
        cause = f"vLLM {self.version} keeps no prefixes of {self.model.architecture}, which has recurrent states"
        if features.hybrid_prefix_caching == "refused":
            hint = "leave it out, or choose --engine-version 0.15.0 or newer"
            raise IllegalPlanError(f"--enable-prefix-caching: {cause}, and does not start", hint=hint)
        self._took(f"--enable-prefix-caching: ignored, {cause} (0.15.0 and newer do)")
        return False

    def _took(self, what: str) -> None:
        if what:
            self.taken.append(what)

    def _or(self, name: str, default: Any, source: str = "") -> Any:
        asked = getattr(self.args, name)
        self._took(f"{name} {default} ({source or f'vLLM {self.version}'})" if asked is None else "")
        return default if asked is None else asked

    def _check_options(self) -> None:
        for field in fields(self.args):
            row, asked = SETTINGS[field.name], getattr(self.args, field.name)
            row.check(asked)
            if row.ours or asked is None or asked is False or asked == row.default:
                continue
            if row.on == "gpu" and self.profile.platform == "cpu":
                raise IllegalPlanError(f"{row.flag}: vLLM does not use it on a CPU", hint="leave it out")
            if row.name != "speculative_config":  # whose older spellings are checked below
                flags.flag_status(self.version, row.flag).require(f"{row.flag}: vLLM {self.version}")
        for name, known in (("scheduling_policy", POLICIES), ("mm_encoder_tp_mode", ("weights", "data"))):
            if (value := getattr(self.args, name)) not in (None, *known):
                raise InputError(f"{SETTINGS[name].flag} {value!r} is unknown", hint=f"use {' or '.join(known)}")
        limits = self.args.limit_mm_per_prompt or "{}"
        counts = json.dumps(dict(media_limits(limits)))
        if not limits.startswith("{") and self.version.release >= (0, 10):  # ``nullable_kvs`` of arg_utils.py to 0.9.2
            raise _refusal("limits", {"limit_mm_per_prompt": counts}, asked=limits, version=self.version, counts=counts)
        generation_config(self.args.override_generation_config or "{}")

    def _environment(self) -> flags.Environment:
        """The variables that count on this device. Raises IllegalPlanError for one that the version does not read."""
        counted: dict[str, str] = {}
        for name, value in self.args.env.items():
            known, on_cpu = flags.VARIABLES.get(name), self.profile.kv_cache_is_given
            if known and known.on and (known.on == "cpu") is not on_cpu:
                self._took(f"{name} has no effect on {'a CPU' if on_cpu else 'a GPU'}")
                continue
            status = flags.env_status(self.version, name, platform=self.profile.platform)
            if not status:
                cause = f"{name}: vLLM {self.version} does not read it ({status})"
                option = status.replaced_by.partition(" ")[0]
                hint = status.hint.replace("nothing", "leave it out", 1) or "leave it out"
                if option.startswith("--") and option[2:].replace("-", "_") not in SETTINGS:
                    hint = f"leave it out: no speed here depends on its successor {option}, which planner check reads"
                raise IllegalPlanError(cause, hint=hint)
            counted[name] = value
        return flags.Environment(counted)

    def _check_layout(self) -> None:
        args = self.args
        if args.flashinfer_sampler and self.profile.platform != "cuda":
            raise IllegalPlanError(f"{flags.FLASHINFER_SAMPLER}=1: FlashInfer is for NVIDIA GPUs", hint="leave it out")
        if args.enable_expert_parallel and not self.model.is_moe:
            raise IllegalPlanError(f"--enable-expert-parallel: {self.model.id} has no experts", hint="leave it out")
        if args.all2all != GATHER:
            self._check_exchange(args.all2all)
        if args.enable_eplb or args.redundant_experts:
            self._check_eplb(args.enable_expert_parallel * args.tensor_parallel_size * args.data_parallel_size)
        if args.decode_context_parallel_size > 1:
            self._check_context_parallel(args.decode_context_parallel_size, args.tensor_parallel_size)

    def _check_exchange(self, name: str) -> None:
        """DeepEP and its like run between DP ranks with whole experts (``all2all_utils.py``), where links are."""
        args, profile, word = self.args, self.profile, f"--all2all-backend {name}"
        if args.all2all_backend == name:
            status = flags.value_status(self.version, "all2all_backend", name)
            status.require(f"{word}: vLLM {self.version}", f"leave it out for {GATHER}")
        exchange, shared = EXCHANGES.get(name), args.data_parallel_size > 1 and self.model.is_moe
        if not shared or not exchange:
            self._took(f"{word}: ignored, {f'{GATHER} runs' if shared else 'no DP ranks share experts'}")
            return
        if not args.enable_expert_parallel:
            raise _refusal("whole_experts", {"enable_expert_parallel": True}, word=word)
        if "buffers" not in exchange:
            self._took(f"{word}: ignored in memory, its buffers are not known")
        spread = "links" in exchange and args.num_gpus > profile.joined_gpus
        foreign = exchange & {"cuda", "rocm"} - {profile.platform} or profile.platform == "cpu"
        if spread or foreign or profile.interconnect.kind in ("pcie", "none"):
            cause = f"{word}: it has no kernels for {profile.name}" + f" on {args.num_gpus} GPUs" * spread
            hint = f"use up to {profile.joined_gpus} GPUs, or leave it out" if spread else "leave it out"
            raise IllegalPlanError(cause, hint=hint, all2all_backend=GATHER)

    def _check_eplb(self, ranks: int) -> None:
        """EPLB moves whole experts between ``ranks`` that hold as many each (``config/parallel.py``, ``layer.py``)."""
        copies, config = self.args.redundant_experts, json.loads(self.args.eplb_config or "{}")
        if not self.args.enable_eplb:
            raise _refusal("copies", {"enable_eplb": True}, copies=copies)
        if ranks < 2 and self.version.release >= (0, 10, 1):
            raise _refusal("no_ranks", {"enable_eplb": False, "eplb_config": None})
        experts = copies + max((layer.moe.num_experts for layer in self.model.layers if layer.moe), default=0)
        if left := experts % max(ranks, 1):
            even = json.dumps({**config, "num_redundant_experts": copies + ranks - left})
            raise _refusal("uneven_experts", {"eplb_config": even}, experts=experts, ranks=ranks, even=even)

    def _check_context_parallel(self, size: int, ranks: int) -> None:
        """Ranks with the same KV heads may share tokens (``config/parallel.py``, ``verify_with_parallel_config``)."""
        flag = f"--decode-context-parallel-size {size}"
        if ranks % size:
            raise _refusal("divisor", flag=flag, ranks=ranks)
        mixers = self.model.distinct_mixers
        if all(isinstance(mixer, models.LatentAttention) for mixer in mixers):
            return
        plain = [m for m in mixers if isinstance(m, models.Attention) and not m.span_tokens and not m.cross]
        if len(plain) < len(mixers) or not version_features(self.version, self.profile).context_parallel_heads:
            raise _refusal("shared_cache", None, UnmodelledError, flag=flag, version=self.version, model=self.model.id)
        for mixer in plain:
            repeats, group = ranks // mixer.num_kv_heads, mixer.num_heads // mixer.num_kv_heads
            if size > repeats or group % size:
                heads = f"{self.model.id} has {mixer.num_kv_heads} KV heads for {ranks} ranks"
                cause = f"{flag}: only ranks that repeat KV heads share tokens, and {heads}"
                hint = f"use {repeats} or less" if repeats > 1 else "raise --tensor-parallel-size or leave it out"
                raise IllegalPlanError(cause, hint=hint)

    def _dtype(self) -> str:
        """``auto`` is the checkpoint's type; fp32 becomes a 16-bit type, and bf16 becomes fp16 on GPUs without it."""
        asked = SHORT_NAMES.get(self.args.dtype, self.args.dtype)
        half = "fp16" if (self.profile.compute_capability or (9, 9)) < (8, 0) else "bf16"
        verified, instead = self.version.release >= (0, 9, 1), "fp32" if half == "fp16" else "bf16"
        unstable = verified and self.model.model_type in _NO_FLOAT16
        if asked == "auto":  # config/model.py, _resolve_auto_dtype
            dtype = self.model.dtype
            dtype = (half if verified else "fp16") if dtype == "fp32" else half if dtype == "bf16" else dtype
            asked = instead if unstable and dtype == "fp16" else dtype
            self._took(f"dtype {asked} (auto)")
        if asked not in LONG_NAMES:
            hint = "use auto, bfloat16, float16 or float32; weights are quantised with --quantization"
            raise InputError(f"--dtype {self.args.dtype} is not a type that vLLM computes in", hint=hint)
        if asked == "bf16" and half == "fp16":
            raise _refusal("bfloat16", {"dtype": "float16"}, dtype=self.args.dtype, gpu=self.profile.name)
        stored, table = self.model.quantization, tables_of(package_dir("engine") / "capabilities.toml")["activations"]
        method = _METHODS.get((stored.method or "", stored.weight_dtype), stored.method)
        both = ["bf16", "fp16"]
        types = table.get(method, both) if method else both if self.args.quantization else LONG_NAMES
        taken = [one for one in types if (one, half) != ("bf16", "fp16") and not (unstable and one == "fp16")]
        if asked not in taken:
            cause = f"--dtype {LONG_NAMES[asked]}: vLLM refuses it for {self.model.id}"
            if not taken:
                hint = "serve a checkpoint that is not quantised, or use a GPU with bfloat16, such as --gpu l4"
                raise IllegalPlanError(cause, hint=hint)
            instead = LONG_NAMES[taken[0]]
            raise IllegalPlanError(cause, hint=f"use --dtype {instead}", dtype=instead)
        return asked

    def _weight_dtype(self) -> str:
        """Precision of the weights; empty for that of the activations."""
        version, served, stored = self.version, self.model, self.model.quantization.method
        if stored == "":  # ``_verify_quantization``: to 0.10 an unknown method, later unquantised
            raise _refusal("method", model=served.id, version=version)
        asked = self.args.quantization
        if asked and stored == "modelopt" and "modelopt" not in asked and version.release < (0, 10):
            raise _refusal("quantised", asked=asked, model=served.id)
        if asked and stored != "modelopt":  # ``override_quantization_method`` of modelopt.py puts its own in place
            status = flags.value_status(version, "quantization", asked)
            named = f"--quantization {asked}: vLLM {version}"
            status.require(named, "leave it out to serve the checkpoint as it is")
            known = [m for m in models.AT_LOAD_TIME if flags.value_status(version, "quantization", m)]
            known = [method for method in known if self._runs(method, "load_time")]
            if stored is None and asked in UNMODELLED["load_time"]:
                raise UnmodelledError(f"--quantization {asked}: its weights are not modelled", hint="leave it out")
            if stored is None and asked not in known:
                offered = (m for m in known if (models.AT_LOAD_TIME[m][0] or served.is_moe) and not self._deprecated(m))
                cause = f"{named} cannot quantise {served.id} with it at load time on {self.profile.name}"
                own = f"int4-{asked}"  # those in FP8 may not run here either
                made = (one.id for one in models.quantized_checkpoints(served.id) if one.weight_dtype == own)
                hint = f"serve {next(made, 'a quantised checkpoint')}, or use one of: {', '.join(offered)}"
                raise IllegalPlanError(cause, hint=hint)
            served = models.load_quantized(self.model, asked)
            if served.quantization.method == asked and served.quantization.weight_dtype in models.UNQUANTIZED:
                self._took(f"--quantization {asked}: ignored, {served.id} has no experts")
        quantization = served.quantization
        method = _METHODS.get((quantization.method or "", quantization.weight_dtype), quantization.method or "")
        method = "inc" if method == "auto-round" and version.release >= (0, 15) else method  # inc.py overrides it
        status = flags.value_status(version, "quantization", method)
        if status.state in ("not yet", "gone"):
            cause = f"{served.id} is quantised with {method}, which vLLM {version} does not have ({status})"
            raise IllegalPlanError(cause, hint=status.hint or f"choose a vLLM before {status.gone_in}")
        if self._deprecated(method):
            instead = self._instead(served, quantization.weight_dtype) or "another quantisation"
            remedy = {"allow_deprecated_quantization": True}
            raise _refusal("deprecated", remedy, version=version, method=method, model=served.id, instead=instead)
        int8 = quantization.linear is not None and quantization.linear.compute_dtype == "int8"
        form = f"{method} {'int8' if int8 else quantization.weight_dtype}"
        without_cutlass = int8 and "CutlassInt8" in self.args.env.get("VLLM_DISABLED_KERNELS", "")  # Triton's are next
        if stored and not self._runs(form, "checkpoint") and not without_cutlass:
            kernels, words = "int8_kernels" if int8 else "kernels", " ".join(dict.fromkeys(form.split()))
            instead = (self._instead(served, "fp8") if int8 else None) or "an fp8 or 16-bit checkpoint"
            gpu, model = self.profile.name, served.id
            raise _refusal(kernels, version=version, model=model, form=words, gpu=gpu, instead=instead)
        return "" if quantization.weight_dtype in models.UNQUANTIZED else quantization.weight_dtype

    def _instead(self, served: Model, weight_dtype: str) -> str | None:
        """Return a known checkpoint of the same base, made for this GPU by another method of quantisation."""
        entry, vendor = models.find_entry(served.id), self.profile.vendor
        made = models.quantized_checkpoints((entry and entry.base) or served.id)
        alike = (one.id for one in made if one.weight_dtype == weight_dtype and vendor in one.platforms)
        methods = ((name, models.resolve_model(name, network=False).model.quantization.method) for name in alike)
        return next((name for name, method in methods if method != served.quantization.method), None)

    def _deprecated(self, method: str) -> bool:
        """True if the version serves the method of quantisation only with ``--allow-deprecated-quantization``."""
        listed = flags.value_status(self.version, "deprecated_quantization", method)
        return bool(listed) and not self.args.allow_deprecated_quantization

    def _runs(self, method: str, table: Literal["load_time", "checkpoint"]) -> bool:
        """True if the method of quantisation runs on the GPU, by ``capabilities.toml``."""
        rows = tables_of(package_dir("engine") / "capabilities.toml")[table].get(method, [["0", 0, 9999]])
        number = int(re.sub(r"\D", "", self.profile.architecture.replace("a", "0")))
        return any(least <= number <= most for since, least, most in rows if release_of(since) <= self.version.release)

    def _engine(self, *, fp8_kv_cache: bool, fp32: bool) -> Engine:
        args, model, version = self.args, self.model, self.version
        pipeline = args.pipeline_parallel_size > 1
        drafts = args.speculative_config.method if args.speculative_config else None
        engine = default_engine(version, self.profile, model, fp8_kv_cache, fp32, pipeline, drafts)
        on_cpu = self.profile.platform == "cpu"
        if engine == "V1" and not v1_serves(model, version, on_cpu=on_cpu):
            where = f"{model.architecture}{' on a CPU' if on_cpu else ''}"
            raise _refusal("v1", version=version, where=where)
        if engine == "V0" and version.release >= V0_GONE_IN:
            raise _refusal("v0", model=model.id, version=version)
        if engine == "V0" and is_hybrid(model):
            raise _refusal("v0_states", error=UnmodelledError, version=version, model=model.id)
        return engine

    def _max_model_len(self) -> int:
        args, asked = self.args, self.args.max_model_len
        context, keys = stretched(self.model, args, self.version).max_position_embeddings, args.overridden
        if others := ", ".join(name for name in keys if "rope" not in name and "max_" not in name):
            self._took(f"--hf-overrides {others}: ignored, only the context counts")
        asked = None if asked == ANY_LENGTH else asked  # before the memory is known
        short = self.model.unstretched_tokens
        if asked is None and short and short < context and self.version.release >= (0, 12):  # config/model.py, 0.12.0
            self._took(f"max_model_len {short} (of {context}: vLLM {self.version} does not stretch by LongRoPE)")
            return short
        if asked is None:
            self._took(f"max_model_len {context} (the model's own)")
            return context
        if asked > context:
            cause = f"--max-model-len {asked} is more than the {context} tokens that {self.model.id} was made for"
            longer = json.dumps({**keys, "max_position_embeddings": asked})
            ways = f"stretch it by --hf-overrides '{longer}'" + " beside rope_parameters" * ("rope" not in longer)
            hint = f"use --max-model-len {context} or less, {ways}, or set {flags.ALLOW_LONG}=1"
            remedy = {"hf_overrides": longer} if "rope" in longer else {"max_model_len": context}
            raise IllegalPlanError(cause, hint=hint, **remedy)
        return asked

    def _chunked_prefill(self, features: Features, max_model_len: int) -> bool:
        """On in V1; in V0 for long contexts without images, MLA, windows, drafts, adapters (``arg_utils.py``)."""
        asked, drafts, model = self.args.enable_chunked_prefill, self.args.speculative_config, self.model
        if drafts and features.engine == "V0" and asked:
            raise _refusal("chunked_drafts", error=UnmodelledError, version=self.version)
        if asked is False and features.engine == "V1" and self.version.release < (0, 11, 1):
            raise _refusal("chunks", {"enable_chunked_prefill": None}, version=self.version)
        caching = self.args.enable_prefix_caching
        cached = caching is not False and prefix_caching(model, features, asked=bool(caching))
        if asked is False and cached and aligns_states(model, self.version):
            raise _refusal("cached_chunks", {"enable_chunked_prefill": None}, version=self.version, model=model.id)
        if asked is not None:
            return asked
        if features.engine == "V1":
            return True
        above = inf if features.chunked_prefill_above is None else features.chunked_prefill_above
        latents = uses_latent_attention(model) and features.latents != "heads"
        windows = any(isinstance(m, models.Attention) and m.window for m in model.distinct_mixers)
        return max_model_len > above and not (self.args.enable_lora or drafts or model.vision or windows or latents)

    def _batch(self, features: Features, max_model_len: int, *, chunked: bool) -> tuple[int, int]:
        args = self.args
        asked_tokens, asked_seqs = args.max_num_batched_tokens, args.max_num_seqs
        world = args.tensor_parallel_size * args.pipeline_parallel_size
        tokens, seqs = batch_defaults(self.profile, self.version, self.usage, world_size=world)
        if features.engine == "V0":
            # SchedulerConfig: a whole context, unless prompts are split; an image is never
            whole = max(max_model_len, 2048, _V0_MULTIMODAL_TOKENS if self.model.vision else 0)
            chunk = 512 if self.version.release < (0, 6, 5) else _V0_CHUNK_TOKENS
            tokens, seqs = chunk if chunked else whole, 256
        else:
            batched = "batched" in args.exchange and self.version.release >= (0, 20)  # ``get_batch_defaults``'s caller
            tokens = max(256 if batched else tokens, 0 if chunked else max_model_len)
        seqs = asked_seqs or seqs
        if self.version.release >= (0, 11, 1):  # _set_default_max_num_seqs_and_batched_tokens_args
            tokens = min(tokens, seqs * max_model_len)
            seqs = asked_seqs or min(seqs, asked_tokens or tokens)
        tokens = asked_tokens or tokens
        limits = ("max_num_batched_tokens", tokens, asked_tokens), ("max_num_seqs", seqs, asked_seqs)
        for name, value, asked in limits:
            self._took("" if asked else f"{name} {value} (vLLM {self.version} {features.engine}, {self.usage})")
        if tokens < seqs:
            raise _refusal("tokens", tokens=tokens, seqs=seqs)
        # 0.7.1 to 0.7.3 check the token budget before they see MLA, which switches chunks off
        at_first = args.enable_chunked_prefill
        if at_first is None:
            at_first = max_model_len > V0_LONG_CONTEXT and self.profile.platform == "cuda"
        late = features.absorbs_latents and uses_latent_attention(self.model) and at_first
        if not chunked and tokens < max_model_len and not late:
            way = "enable_chunked_prefill" if features.engine == "V1" else "max_num_batched_tokens"
            raise _refusal("unchunked", {way: None}, tokens=tokens, context=max_model_len)
        return tokens, seqs

    def _block_size(self) -> int:
        """Tokens of a block, which kernels divide (``select_common_block_size``); ``cuda.py`` sets them to 0.17."""
        asked, usual = self.args.block_size, block_size(self.model, self.profile, self.version)
        if asked is None:
            return usual
        listed = self.version.release < (0, 18)  # config/cache.py: any number from 0.18.0 on, which kernels divide
        if asked not in BLOCK_SIZES and (listed or asked % 16):
            cause = f"--block-size {asked}: vLLM {self.version} has no kernel for it"
            sizes = ", ".join(map(str, BLOCK_SIZES))
            raise IllegalPlanError(cause, hint=f"use one of: {sizes}{'' if listed else ', or a multiple of 16'}")
        cuda, latent = self.profile.platform == "cuda", uses_latent_attention(self.model)
        if listed and cuda and latent and asked % usual:
            self._took(f"--block-size {asked}: ignored, vLLM {self.version} sets {usual} for latent attention")
            return usual
        if asked % (divisor := _sparse_block(self.model, cuda=cuda)):
            cause = f"--block-size {asked}: the sparse attention of {self.model.id} takes multiples of {divisor}"
            raise IllegalPlanError(cause, hint=f"use --block-size {divisor}", block_size=divisor)
        return asked

    def _async_scheduling(self, features: Features) -> bool:
        asked = self.args.async_scheduling
        pipelined = self.args.pipeline_parallel_size > 1 and not features.async_scheduling_with_pipeline
        method = self.args.speculative_config.method if self.args.speculative_config else ""
        refusals = {
            f"refuses it with drafts by {method}": (method in IN_STEP, ""),
            f"({features.engine}) does not have it (not before 0.10.0)": (
                not features.async_scheduling_exists, ", or choose a newer --engine-version",
            ),
            "refuses it with --pipeline-parallel-size above 1": (pipelined, ", or use --tensor-parallel-size instead"),
        }  # fmt: skip
        for cause, (holds, other) in refusals.items():
            if asked and holds:
                raise IllegalPlanError(f"--async-scheduling: vLLM {self.version} {cause}", hint=f"leave it out{other}")
        drafted = method in ("", "mtp", "eagle", "eagle3")
        return bool(self._or("async_scheduling", features.async_scheduling and not pipelined and drafted))


def aligns_states(model: Model, version: EngineVersion) -> bool:
    """True if cached states lie at the ends of chunks, mode ``align`` of ``MambaModelConfig``: always from 0.28 on."""
    kinds = {mixer.kind for mixer in model.distinct_mixers if isinstance(mixer, models.StateMixer)}
    return bool(kinds) and version.release >= ((0, 28) if kinds <= {"mamba", "mamba2"} else (0, 15))


def prefix_caching(model: Model, features: Features, *, asked: bool = False) -> bool:
    """True if vLLM keeps prefixes of this model by itself, or with ``asked`` if told to."""
    kinds = {mixer.kind if isinstance(mixer, models.StateMixer) else "attention" for mixer in model.distinct_mixers}
    if kinds == {"attention"}:
        return asked or features.prefix_caching
    how = features.hybrid_prefix_caching
    if asked:
        return how in ("asked", "default") or (how == "mamba" and kinds <= {"attention", "mamba", "mamba2"})
    return how == "default" and "attention" in kinds


def batch_defaults(
    profile: GpuProfile, version: EngineVersion, usage: Usage, *, world_size: int = 1
) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of a V1 engine, before the model's length is looked at:
    ``_set_default_args_v1``, later ``get_batch_defaults``. ``world_size`` is TP x PP; CPUs scale with it."""
    offline = usage == "offline"
    if profile.platform == "cpu":
        return (4096 * world_size, 256 * world_size) if offline else (2048 * world_size, 128 * world_size)
    if version.release >= (0, 28) and profile.memory_bytes >= 160 * GIB:
        return 16384, 1024
    if _is_large(profile, version):
        return (16384, 1024) if offline else (8192, 1024)
    small_seqs = 1024 if version.release < (0, 8, 4) else 256
    return (8192, small_seqs) if offline else (2048, small_seqs)


def block_size(model: Model, profile: GpuProfile, version: EngineVersion) -> int:
    """Tokens of a KV block (``platforms/cuda.py`` to 0.17, ``get_preferred_block_size`` after), mostly 16. MLA takes
    64 on Hopper to 0.17 (FlashMLA), 128 and later 32 on Blackwell (CUTLASS, FlashInfer), 1 on AMD to 0.19 (AITER)."""
    release = version.release
    if any(isinstance(mixer, models.CompressedAttention) for mixer in model.distinct_mixers):
        return 256  # sparse_swa.py; the recipes name it too
    if profile.platform == "cpu":
        return 16 if uses_latent_attention(model) or release < (0, 9) else 128
    if not uses_latent_attention(model):
        return max(16, _sparse_block(model))
    if profile.platform == "rocm":
        return 1 if (0, 8, 5) <= release < (0, 20) else 16
    capability = (profile.compute_capability or (0, 0))[0]
    if _picks_latents(model):
        return 64
    if capability == 10 and release >= (0, 10, 2):
        return 128 if release < (0, 18) else 32
    return 64 if capability == 9 and (0, 8) <= release < (0, 18) else 16


def _sparse_block(model: Model, *, cuda: bool = True) -> int:
    """Tokens that sparse attention reads at once (``indexer.py`` of 0.27.1 and 0.32.0); latents on AMD take any."""
    kinds = {type(mixer) for mixer in model.distinct_mixers if getattr(mixer, "indexer", None)}
    sizes = {models.CompressedAttention: 256, models.Attention: 128, models.LatentAttention: 64 if cuda else 1}
    return next((tokens for kind, tokens in sizes.items() if kind in kinds), 1)


def _is_large(profile: GpuProfile, version: EngineVersion) -> bool:
    """H100 and H200 by name to 0.8.4; by memory from 0.8.5, without A100 from 0.9.0, never GB10."""
    name = profile.name.lower()
    if version.release < (0, 8, 5):
        return "h100" in name or "h200" in name
    if version.release >= (0, 9) and "a100" in name:
        return False
    # GB10: NVML names no memory, which counts as none; by name from 0.33.0
    return profile.compute_capability != (12, 1) and profile.memory_bytes >= 70 * GIB


class KvDtype(NamedTuple):
    dtype: str  #: bf16, fp16, fp32, fp8, fp8_e4m3, ...
    flag: str  #: value of ``--kv-cache-dtype``
    reason: str = ""  #: empty where it was asked for


def kv_cache_dtype(asked: str, dtype: str, model: Model, profile: GpuProfile, version: EngineVersion) -> KvDtype:
    """Resolve ``--kv-cache-dtype``; ``auto`` mostly follows ``dtype``, that of the activations. Raises IllegalPlanError
    for a value that the version does not have, or whose layout is not modelled."""
    if asked == "auto":
        reason = _fp8_by_default(model, profile, version)
        if reason:
            return KvDtype("fp8", "fp8", f"kv_cache_dtype fp8: {reason}")
        return KvDtype(dtype, "auto", f"kv_cache_dtype {dtype} (auto)")
    name = SHORT_NAMES.get(asked, asked)
    names = ["auto", *dict.fromkeys(LONG_NAMES.get(one, one) for one in models.KV_ELEMENT_BYTES)]
    modelled = (one for one in names if flags.value_status(version, "kv_cache_dtype", one))
    possible, flag = f"use one of: {', '.join(modelled)}", LONG_NAMES.get(name, name)
    if name == dtype:
        if not _fp8_by_default(model, profile, version):
            return KvDtype(dtype, "auto")
        if not flags.value_status(version, "kv_cache_dtype", flag):
            raise _refusal("fp8_cache", {"kv_cache_dtype": "fp8"}, flag=flag, version=version)
        return KvDtype(dtype, flag)
    status = flags.value_status(version, "kv_cache_dtype", flag)
    if status.state == "unknown":
        raise InputError(f"--kv-cache-dtype {asked} is not a value that vLLM knows", hint=possible)
    if not status:
        raise IllegalPlanError(f"--kv-cache-dtype {asked}: vLLM {version} does not have it ({status})", hint=possible)
    if name in LONG_NAMES:  # vLLM 0.33 refuses it and older versions compute nonsense
        raise _refusal("cache_dtype", asked=asked, dtype=dtype)
    if name not in models.KV_ELEMENT_BYTES:
        raise UnmodelledError(f"--kv-cache-dtype {asked}: its layout in memory is not modelled", hint=possible)
    return KvDtype(name, flag)


def _fp8_by_default(model: Model, profile: GpuProfile, version: EngineVersion) -> str:
    """Why ``auto`` means fp8; empty where it means the model's own type. Quark's scales need ``--kv-cache-dtype fp8``.

    Sources: ``resolve_kv_cache_dtype_string`` (ModelOpt, 0.14.0 on), ``attention.py`` (compressed-tensors, 0.15.0 on),
    ``models/config.py`` (DeepSeek-V3.2 in 0.11.0; GLM-5 on Blackwell, 0.32.0 on)."""
    release, method = version.release, model.quantization.method or ""
    carries = (model.quantization.kv_cache_dtype or "").startswith("fp8")
    if carries and method.startswith("modelopt") and release >= (0, 14):
        return "the checkpoint carries scales for it (ModelOpt)"
    if carries and method == "compressed-tensors" and release >= (0, 15):
        return "the checkpoint carries scales for it (compressed-tensors)"
    if any(isinstance(mixer, models.CompressedAttention) for mixer in model.distinct_mixers):
        return "the packed layout of DeepSeek-V4"
    sparse = _picks_latents(model)
    if sparse and model.architecture == "DeepseekV32ForCausalLM" and (0, 11) <= release < (0, 11, 1):
        return "vLLM 0.11.0 packs DeepSeek-V3.2"
    blackwell = (profile.compute_capability or (0, 0))[0] == 10
    if sparse and model.architecture == "GlmMoeDsaForCausalLM" and blackwell and release >= (0, 32):
        return "vLLM's choice for GLM-5 on Blackwell"
    return ""


def check_known(model: Model, version: EngineVersion) -> None:
    """Raise IllegalPlanError where ``version`` does not know the architecture. Assumed releases are not judged."""
    name = model.architecture
    first, last = releases("first").get(name, version.release), releases("last").get(name, version.release)
    if version.note or version.build != "vllm" or first <= version.release <= last:
        return
    early = version.release < first
    knows, edge = ("does not know", "later") if early else ("no longer knows", "before")
    cause = f"vLLM {version} {knows} {name}, the architecture of {model.id}"
    raise IllegalPlanError(cause, hint=f"choose --engine-version {release_text(first if early else last)} or {edge}")


def check_kernels(model: Model, profile: GpuProfile, version: EngineVersion, kv: KvDtype, dtype: str) -> None:
    """Raise IllegalPlanError where no attention kernel for an NVIDIA GPU serves the model, or reads its 8-bit cache.

    ``supports_compute_capability`` of the sparse backends in ``v1/attention/backends/mla`` (0.14.0, 0.27.1, 0.32.0) and
    in ``deepseek_v4``; 0.11.0 has FlashMLA only. None runs on 12.x to 0.22 (issue 45317)."""
    major, missing = (profile.compute_capability or (9, 0))[0], ""
    sparse = _picks_latents(model) or any(isinstance(m, models.CompressedAttention) for m in model.distinct_mixers)
    if sparse and major not in (9, 10) and not (major == 12 and version.release >= (0, 23)):
        missing, hint = "sparse attention", "use a GPU of compute capability 9 or 10, such as --gpu h200"
    elif kv.dtype.startswith("fp8") and not _reads_fp8(model, profile.compute_capability, version.release):
        missing = f"--kv-cache-dtype {kv.dtype}"
        hint = f"use --kv-cache-dtype {dtype}" if _fp8_by_default(model, profile, version) else "leave it at auto"
    elif kv.dtype == "fp8_e5m2":  # ``supported_kv_cache_dtypes`` of v1/attention/backends/mla
        latent = uses_latent_attention(model) and profile.platform == "cuda" and version.release >= (0, 14)
        scaled = (model.quantization.method or "").startswith(("fp8", "modelopt"))
        beside = "the scales of FP8 checkpoints" if scaled else "latent attention" if latent else ""
        missing, hint = beside and f"{beside} and --kv-cache-dtype fp8_e5m2", "use --kv-cache-dtype fp8"
    if missing:
        cause = f"vLLM {version} has no kernel for {model.id} with {missing} on {profile.name}"
        raise IllegalPlanError(cause, hint=hint)


def _reads_fp8(model: Model, capability: tuple[int, int] | None, release: Release) -> bool:
    """Triton does from sm_89 on, for MLA after 0.14 (``triton_attn.py``, ``mla/triton_mla.py``). Below sm_90 it is all
    that sinks have, and heads of sizes that FlashInfer lacks (``_get_backend_priorities`` of ``platforms/cuda.py``)."""
    if capability is None or release < V0_GONE_IN:
        return True
    if model.architecture == "KimiK3ForConditionalGeneration":  # kimi_k3/nvidia/mla.py: its prefill takes fp8 queries
        return capability[0] == 10
    latent, sizes = uses_latent_attention(model), {getattr(mixer, "head_dim", 128) for mixer in model.distinct_mixers}
    sinks = any("sink" in weight.name for kind in model.layer_kinds for weight in kind.layer.weights)
    triton = latent or sinks or sizes - {64, 128, 256, 512} or capability < (8, 0) or release < (0, 11, 1)
    return capability[0] in (9, 10) or not triton or (capability >= (8, 9) and not (latent and release < (0, 15)))


def _picks_latents(model: Model) -> bool:
    return any(isinstance(mixer, models.LatentAttention) and mixer.indexer for mixer in model.distinct_mixers)


FLAG, RATE_FLAG = SETTINGS["speculative_config"].flag, ACCEPTANCE_RATE.flag
OLD_FLAGS: dict[str, str] = tables_of(package_dir("engine") / "replaced.toml")["speculative"]
V0_ENDS = (0, 10)  #: the V0 engine's speculative decoding went before the engine itself (vLLM pull request 21152)
#: vLLM's names of methods whose memory is understood; older versions call mtp after the model's architecture.
METHODS: dict[str, SpeculativeMethod] = {name: name for name in get_args(SpeculativeMethod)} | {"[ngram]": "ngram"}
HEADS_SINCE = (0, 13)  #: Red Hat published gpt-oss with its EAGLE head on 0.13.0; no run on AMD is published
IN_STEP = ("ngram", "suffix")  #: methods that vLLM refuses beside asynchronous scheduling
#: Keys of ``--speculative-config`` that change how many tokens are drafted or verified from step to step.
UNTIMED = frozenset(UNMODELLED["draft_keys"])
_EXAMPLE = f'such as {FLAG} \'{{"method": "mtp", "num_speculative_tokens": 1}}\''


def parse_speculative_config(text: str) -> SpeculativeConfig:
    """Read the JSON of ``--speculative-config``. Raises InputError for what is no such JSON, or not understood."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{FLAG} is not JSON: {text[:80]!r}", hint=_EXAMPLE) from error
    if not isinstance(given, dict):
        raise InputError(f"{FLAG} is not a JSON object: {text[:80]!r}", hint=_EXAMPLE)
    tokens = given.get("num_speculative_tokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise _refusal("drafted", error=InputError, flag=FLAG, tokens=repr(tokens), example=_EXAMPLE)
    draft = given.get("model")
    if draft is not None and not isinstance(draft, str):
        raise InputError(f"{FLAG}: model must be a hub id or a path, got {draft!r}", hint=_EXAMPLE)
    method = _method(given.get("method"), draft)
    if method in ("draft_model", "eagle", "eagle3") and not draft:
        raise InputError(f"{FLAG}: method {method} needs a model", hint='add "model": a hub id or a path')
    size = given.get("draft_tensor_parallel_size")
    if size is not None and (not isinstance(size, int) or size < 1):
        raise InputError(f"{FLAG}: draft_tensor_parallel_size must be at least 1, got {size!r}", hint="leave it out")
    text = json.dumps(given, separators=(",", ":"))
    return SpeculativeConfig(method, tokens, draft, size, text, _synthetic(given, tokens))


def read_drafts(
    drafts: SpeculativeConfig | Mapping[str, Any] | str | None, rates: float | Sequence[float] | str | None = None
) -> SpeculativeConfig | None:
    """``--speculative-config`` and ``--speculative-acceptance-rate``, as the library takes them. Raises InputError."""
    if drafts is not None and not isinstance(drafts, SpeculativeConfig):
        try:
            drafts = parse_speculative_config(drafts if isinstance(drafts, str) else json.dumps(drafts))
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"{FLAG}: {error}", hint="give a mapping, or its JSON") from error
    if rates is None:
        return drafts
    if drafts is None:
        raise InputError(f"{RATE_FLAG} without {FLAG}", hint=f"add {FLAG}, or leave {RATE_FLAG} out")
    text = ",".join(map(str, rates)) if isinstance(rates, Sequence) and not isinstance(rates, str) else str(rates)
    return with_acceptance(drafts, text)


def with_acceptance(wanted: SpeculativeConfig, text: str) -> SpeculativeConfig:
    """``wanted`` with ``--speculative-acceptance-rate``: one rate, or one for each drafted token. Raises InputError."""
    if wanted.acceptance_rates:
        raise InputError(f"{RATE_FLAG}: {FLAG} sets a synthetic acceptance already", hint=f"leave {RATE_FLAG} out")
    tokens = wanted.num_speculative_tokens
    try:
        given = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{RATE_FLAG} {text[:80]!r} is not a number", hint="such as 0.7, or 0.8,0.6,0.4") from error
    rates = [given[0] ** (place + 1) for place in range(tokens)] if len(given) == 1 else given
    return replace(wanted, acceptance_rates=_checked_rates(rates, tokens, f"{RATE_FLAG} {text[:80]}"))


def with_imposed_acceptance(drafts: SpeculativeConfig, version: EngineVersion) -> SpeculativeConfig:
    """Return ``drafts`` for vLLM's synthetic rejection sampler, which accepts as predicted whatever the prompts are.

    Drafts whose acceptance is not known, and those of versions before 0.20, come back as they are."""
    rates = [round(rate, 4) for rate in drafts.acceptance_rates]
    if not rates or not flags.value_status(version, "speculative_config", "synthetic_acceptance_rates"):
        return drafts
    synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    return parse_speculative_config(json.dumps(json.loads(drafts.text) | synthetic))


def searched_drafts(
    model: Model, resolved: str, version: EngineVersion, profile: GpuProfile
) -> Iterator[SpeculativeConfig]:
    """Yield drafts by the model's own MTP modules, else by its EAGLE head, with the acceptance published for them."""
    head, ran = _published("eagle3", resolved).get("head"), version.release >= HEADS_SINCE
    heads = [head] if head and ran and profile.platform == "cuda" else []
    own = ({"method": "mtp", "num_speculative_tokens": tokens} for tokens in _published_rates(resolved))
    for text in map(json.dumps, own) if model.mtp else heads:
        if assumed := assumed_acceptance(parse_speculative_config(text), resolved):
            yield assumed


def assumed_acceptance(drafts: SpeculativeConfig, resolved: str) -> SpeculativeConfig | None:
    """Return ``drafts`` with the acceptance published for such models; None where none is, as of draft models."""
    published = _published_rates(resolved, drafts.method)
    if not published or UNTIMED & json.loads(drafts.text or "{}").keys():
        return None
    nearest = min(published, key=lambda tokens: abs(tokens - drafts.num_speculative_tokens))
    expected, *ends = (with_acceptance(drafts, str(rate)) for rate in published[nearest])
    low, high = (end.acceptance_length for end in ends)
    return replace(expected, acceptance_range=(low, high))


def _published_rates(resolved: str, method: str = "mtp") -> dict[int, list[float]]:
    """Share of drafted tokens accepted (expected, 5 %, 95 %) by their number, of the checkpoint's family."""
    return {int(tokens): shares for tokens, shares in _published(method, resolved).get("rates", {}).items()}


def _published(method: str, resolved: str) -> dict[str, Any]:
    name, rows = resolved.split("/")[-1].lower(), tables_of(package_dir("engine") / "acceptance.toml").get(method, ())
    return next((row for row in rows if re.match(row["models"], name)), {})


def _synthetic(given: dict[str, Any], tokens: int) -> tuple[float, ...]:
    """Rates of the synthetic rejection sampler (``config/speculative.py`` of 0.27), if any. A mean length stands for
    the rates that scatter least: its whole part always, its rest at one more position."""
    rates, length = given.get("synthetic_acceptance_rates"), given.get("synthetic_acceptance_length")
    if isinstance(length, int | float) and not isinstance(length, bool):
        if not 1 <= length <= tokens + 1:
            raise _refusal("length", error=InputError, flag=FLAG, most=tokens + 1, length=length, example=_EXAMPLE)
        return tuple(min(max(length - 1 - place, 0.0), 1.0) for place in range(tokens))
    if rates is None:
        return ()
    if not isinstance(rates, list) or not all(isinstance(rate, int | float) for rate in rates):
        raise InputError(f"{FLAG}: synthetic_acceptance_rates must be a list of numbers", hint=_EXAMPLE)
    return _checked_rates(rates, tokens, f"{FLAG}: synthetic_acceptance_rates {rates}")


def _checked_rates(rates: Sequence[float], tokens: int, what: str) -> tuple[float, ...]:
    if len(rates) != tokens:
        raise _refusal("rates", error=InputError, what=what, rates=len(rates), tokens=tokens)
    if not all(0 <= rate <= 1 for rate in rates) or any(after > before for before, after in pairwise(rates)):
        raise _refusal("rising_rates", error=InputError, what=what)
    return tuple(map(float, rates))


def _method(named: Any, draft: str | None) -> SpeculativeMethod:
    """The method, guessed from the draft's name where it is not given, as vLLM guesses (``config/speculative.py``)."""
    if named is None:
        if draft is None:
            raise InputError(f"{FLAG}: neither method nor model is given", hint=_EXAMPLE)
        if "eagle3" in draft.lower():
            named = "eagle3"
        elif draft in ("ngram", "[ngram]"):
            named = "ngram"
        else:
            named = "eagle" if "eagle-" in draft.lower() else "draft_model"
    known = METHODS.get(str(named)) or ("mtp" if str(named).endswith("_mtp") else None)
    if known is None:
        cause = f"{FLAG}: the memory of method {named!r} is not known"
        kind = UnmodelledError if named in UNMODELLED["draft_methods"] else InputError
        raise kind(cause, hint=f"one of: {', '.join(dict.fromkeys(METHODS))}")
    return known


def speculative_options(wanted: SpeculativeConfig, version: EngineVersion) -> Iterator[tuple[str, str]]:
    """Options that launch ``wanted``: the JSON, or the older ones. Raises IllegalPlanError for a key without one."""
    if flags.flag_status(version, FLAG):
        yield FLAG, wanted.text
        return
    given = json.loads(wanted.text)
    if wanted.method == "ngram":
        given["model"] = "[ngram]"
    given.pop("method", None)
    for key, value in given.items():
        if key not in OLD_FLAGS:
            raise IllegalPlanError(f"{FLAG}: vLLM {version} has no option for {key!r}", hint="leave it out")
        yield OLD_FLAGS[key], str(value)


def check_speculative_config(
    wanted: SpeculativeConfig, model: Model, version: EngineVersion, features: Features, tensor_parallel_size: int
) -> None:
    """Raise IllegalPlanError where the version, the engine or the model cannot draft like that."""
    old = bool(flags.flag_status(version, OLD_FLAGS["model"]))
    if not old:
        flags.flag_status(version, FLAG).require(f"{FLAG}: vLLM {version}")
    # V0 drafts with a model or from the prompt, to 0.9; its MTP, EAGLE and Medusa workers are not modelled
    if features.engine == "V0" and (version.release >= V0_ENDS or wanted.method not in ("draft_model", "ngram")):
        gone = version.release >= V0_ENDS
        cause = "which no longer drafts (since 0.10.0)" if gone else f"whose drafts by {wanted.method} are not modelled"
        cause = f"{FLAG}: vLLM {version} runs its V0 engine here, {cause}"
        raise (IllegalPlanError if gone else UnmodelledError)(cause, hint="choose a newer --engine-version")
    for key in json.loads(wanted.text or "{}"):
        status = flags.value_status(version, "speculative_config", key)
        if not status and not (old and (key in OLD_FLAGS or key == "method")):
            cause = f"{FLAG}: vLLM {version} does not know {key!r} ({status})"
            raise IllegalPlanError(cause, hint=status.hint or "leave it out")
    if wanted.method == "draft_model" and not features.draft_models and features.engine == "V1":
        raise _refusal("draft_model", flag=FLAG, version=version)
    if json.loads(wanted.text or "{}").get("method") == "mtp" and version.release < (0, 11):  # config/speculative.py
        raise _refusal("mtp", {"speculative_config": None}, flag=FLAG, version=version)
    since = releases("mtp").get(model.architecture, (0,))
    if wanted.method == "mtp" and (not model.mtp or version.release < since):
        cause = f"{FLAG}: {model.id} has no multi-token-prediction modules"
        cause += f" in vLLM {version} (not before {release_text(since)})" if model.mtp else ""
        raise IllegalPlanError(cause, hint='use another "method", such as ngram', speculative_config=None)
    # ``_raise_if_draft_tp_mismatch`` of v1/spec_decode/draft_model.py: the first runner, used for draft models to 0.27
    cut = wanted.method == "draft_model" and features.engine == "V1" and version.release < (0, 28)
    if wanted.draft_tensor_parallel_size not in (None, tensor_parallel_size, tensor_parallel_size if cut else 1):
        draft, other = wanted.draft_tensor_parallel_size, "not" if cut else "neither 1 nor"
        raise _refusal("draft_size", flag=FLAG, draft=draft, other=other, size=tensor_parallel_size)


def check_draft(config: EngineConfig, model: Model, draft: Model | None) -> None:
    """Raise IllegalPlanError for a draft model with another vocabulary: ``verify_equal_vocab_size_if_draft_model`` of
    config/speculative.py, in V0 an assertion of spec_decode_worker.py."""
    wanted, key = config.speculative_config, "use_heterogeneous_vocab"
    if not draft or not wanted or wanted.method != "draft_model" or draft.vocab_size == model.vocab_size:
        return
    if not json.loads(wanted.text or "{}").get(key):
        cause = f"{FLAG}: {draft.id} has a vocabulary of {draft.vocab_size:,}, {model.id} of {model.vocab_size:,}"
        other = f', or add "{key}": true' if flags.value_status(config.version, "speculative_config", key) else ""
        raise IllegalPlanError(cause, hint=f"use a draft with the same vocabulary{other}")


RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
MOST_VOCABULARY = 258_048  #: ``lora/layers/logits_processor.py``


def resolve_lora(args: EngineArgs, model: Model, version: EngineVersion) -> LoraConfig | None:
    """Adapter slots that ``args`` ask for; None without ``--enable-lora``. Raises InputError, IllegalPlanError."""
    if not args.enable_lora:
        return None
    rank, loras = args.max_lora_rank or 16, args.max_loras or 1
    in_host = loras if args.max_cpu_loras is None else args.max_cpu_loras
    if rank not in RANKS:
        cause, larger = f"--max-lora-rank {rank} is no rank that vLLM has", [one for one in RANKS if one > rank]
        hint = f"use {(larger or RANKS[-1:])[0]}, which serves adapters of all ranks up to it"
        raise IllegalPlanError(cause, hint=hint, **({"max_lora_rank": larger[0]} if larger else {}))
    if in_host < loras:
        raise _refusal("adapters_in_host", {"max_cpu_loras": loras}, in_host=in_host, loras=loras)
    name, release, never, refused = model.architecture, version.release, (1,), ""
    tables = releases("adapted_tables").get(name, never) <= release < releases("plain_tables").get(name, never)
    if release <= releases("no_adapters").get(name, ()):  # ``load_lora_model`` raises ValueError
        refused = f"vLLM {version} serves no adapters of {name}"
    elif tables and model.vocab_size > MOST_VOCABULARY:
        refused = f"vLLM adapts an lm_head of at most {MOST_VOCABULARY:,} rows, and {model.id} has {model.vocab_size:,}"
    if refused:
        raise IllegalPlanError(f"--enable-lora: {refused}", hint="leave it out, or merge the adapter into the model")
    if args.fully_sharded_loras and args.enable_expert_parallel:
        raise _refusal("sharded_adapters")
    if args.fully_sharded_loras and rank % args.tensor_parallel_size:
        raise _refusal("sharded_rank", rank=rank, size=args.tensor_parallel_size)
    # routed experts have adapters since FusedMoEWithLoRA (pull request 21229)
    experts, joined = release >= (0, 11, 1), releases("joined_experts").get(name, never) <= release
    return LoraConfig(loras, rank, in_host, args.fully_sharded_loras, experts, tables, joined)


def ignored_lora_flags(args: EngineArgs) -> str:
    """A note on flags of adapters without ``--enable-lora``: vLLM ignores them and says nothing."""
    if args.enable_lora:
        return ""
    names = ("max_loras", "max_lora_rank", "max_cpu_loras", "fully_sharded_loras")
    words = [flag_of(name) for name in names if getattr(args, name)]
    return f"{' and '.join(words)}: ignored without --enable-lora, as by vLLM" if words else ""
