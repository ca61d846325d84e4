"""From the flags that somebody gives to the settings that the engine runs with, defaults and refusals as vLLM's.

Nothing here looks at memory: whether the settings fit is another question.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.engine.config import Engine, EngineArgs, EngineConfig
from planner.engine.defaults import (
    Usage,
    batch_defaults,
    block_size,
    chunked_prefill,
    is_hybrid,
    prefix_caching,
    v0_batched_tokens,
)
from planner.engine.extras import check_host_memory, ignored, lora_of
from planner.engine.fallback import V0_GONE_IN, v1_serves
from planner.engine.features import Features, default_engine, features
from planner.engine.flags import flag_status, value_status
from planner.engine.kv_dtype import LONG_NAMES, SHORT_NAMES, kv_cache_dtype
from planner.engine.speculative import check_speculative_config
from planner.engine.version import EngineVersion
from planner.errors import IllegalPlanError, InputError
from planner.hardware.schema import GpuProfile
from planner.model.architecture import Attention, LatentAttention, Model
from planner.model.quantization import load_quantized

#: vLLM's method names for checkpoints whose own ``quant_method`` is wider.
_METHODS = {("modelopt", "nvfp4"): "modelopt_fp4", ("modelopt", "mxfp8"): "modelopt_mxfp8"}


def resolve(
    args: EngineArgs, model: Model, profile: GpuProfile, version: EngineVersion, *, usage: Usage = "serve"
) -> EngineConfig:
    """The settings that ``vllm serve`` (or the offline ``LLM`` class) of ``version`` would run with.

    Raises InputError for values outside their range and IllegalPlanError for what vLLM refuses: settings that
    contradict each other, the model, the GPU or the version.
    """
    return _Resolver(args, model, profile, version, usage).config()


@dataclass
class _Resolver:
    args: EngineArgs
    model: Model
    profile: GpuProfile
    version: EngineVersion
    usage: Usage

    def __post_init__(self) -> None:
        self.taken: list[str] = [self.version.note] if self.version.note else []

    def config(self) -> EngineConfig:
        """Resolve each setting from those before it."""
        args = self.args
        self._check_layout()
        check_host_memory(args, self.version)
        self._took(ignored(args))
        dtype, weight_dtype = self._dtype(), self._weight_dtype()
        kv = kv_cache_dtype(
            args.kv_cache_dtype, dtype=dtype, model=self.model, profile=self.profile, version=self.version
        )
        self._took(kv.reason)
        engine = self._engine(fp8_kv_cache=kv.is_fp8, fp32=dtype == "fp32")
        found = features(self.version, self.profile, engine=engine)
        max_model_len = self._max_model_len()
        if args.speculative_config:
            check_speculative_config(
                args.speculative_config, self.model, self.version, found, args.tensor_parallel_size
            )
        chunked = self._chunked_prefill(found, max_model_len)
        tokens, seqs = self._batch(found, max_model_len, chunked=chunked)
        return EngineConfig(
            version=self.version,
            tensor_parallel_size=args.tensor_parallel_size,
            pipeline_parallel_size=args.pipeline_parallel_size,
            data_parallel_size=args.data_parallel_size,
            enable_expert_parallel=args.enable_expert_parallel,
            dtype=dtype,
            weight_dtype=weight_dtype,
            kv_cache_dtype=kv.dtype,
            max_model_len=max_model_len,
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            gpu_memory_utilization=self._utilization(found),
            block_size=self._block_size(),
            enforce_eager=args.enforce_eager,
            enable_prefix_caching=self._prefix_caching(found),
            async_scheduling=self._async_scheduling(found),
            enable_chunked_prefill=chunked,
            engine=engine,
            quantization=args.quantization,
            kv_cache_dtype_flag=kv.flag,
            decode_context_parallel_size=args.decode_context_parallel_size,
            speculative_config=args.speculative_config,
            lora=lora_of(args, self.model, self.version),
            cpu_offload_gb=args.cpu_offload_gb or 0.0,
            kv_offloading_size=args.kv_offloading_size,
            swap_space=args.swap_space,
            cpu_kvcache_space=self._cpu_kvcache_space(),
            defaults_taken=tuple(self.taken),
        )

    def _took(self, what: str) -> None:
        """Note a default, under the name of the version that it is the default of."""
        if what:
            self.taken.append(what)

    def _at_least_one(self, name: str) -> int:
        value: int | None = getattr(self.args, name)
        if value is not None and value < 1:
            flag = "--" + name.replace("_", "-")
            raise InputError(f"{flag} must be at least 1, got {value}", hint=f"give {flag} a positive number")
        return value or 0

    def _check_layout(self) -> None:
        """Sizes that no model or GPU could have, and axes that the version does not have."""
        args = self.args
        for name in (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "decode_context_parallel_size",
        ):
            self._at_least_one(name)
        if args.enable_expert_parallel and not self.model.is_moe:
            raise IllegalPlanError(
                f"--enable-expert-parallel: {self.model.id} has no experts", hint="leave it out for dense models"
            )
        for flag, wanted in (
            ("--data-parallel-size", args.data_parallel_size > 1),
            ("--enable-expert-parallel", args.enable_expert_parallel),
            ("--decode-context-parallel-size", args.decode_context_parallel_size > 1),
        ):
            status = flag_status(self.version, flag)
            if wanted and not status:
                raise IllegalPlanError(f"{flag}: vLLM {self.version} does not have it ({status})", hint=status.hint)
        if args.decode_context_parallel_size > 1:
            self._check_context_parallel(args.decode_context_parallel_size, args.tensor_parallel_size)

    def _check_context_parallel(self, size: int, ranks: int) -> None:
        """The ranks that hold the same KV heads may share their tokens: all of them for MLA, those beyond the KV
        heads for GQA (``config/parallel.py``, ``verify_with_parallel_config``)."""
        flag = f"--decode-context-parallel-size {size}"
        if ranks % size:
            raise IllegalPlanError(
                f"{flag}: does not divide --tensor-parallel-size {ranks}", hint="use a divisor of it: its ranks share"
            )
        mixers = tuple(dict.fromkeys(self.model.mixers()))
        if all(isinstance(mixer, LatentAttention) for mixer in mixers):
            return
        plain = [m for m in mixers if isinstance(m, Attention) and not m.span_tokens and not m.cross]
        if len(plain) < len(mixers) or not features(self.version, self.profile).context_parallel_heads:
            raise IllegalPlanError(
                f"{flag}: how vLLM {self.version} shares the cache of {self.model.id} is not known",
                hint="leave it out: it is for latent attention, and from 0.11.1 on for grouped-query attention",
            )
        for mixer in plain:
            repeats, group = ranks // mixer.num_kv_heads, mixer.num_heads // mixer.num_kv_heads
            if size > repeats or group % size:
                raise IllegalPlanError(
                    f"{flag}: only ranks that repeat KV heads share tokens, and {self.model.id} has "
                    f"{mixer.num_kv_heads} KV heads for {ranks} ranks",
                    hint=f"use {repeats} or less" if repeats > 1 else "raise --tensor-parallel-size or leave it out",
                )

    def _dtype(self) -> str:
        """``auto`` is the checkpoint's; 32 bits become 16, as do bf16 on GPUs that do not have it."""
        asked = SHORT_NAMES.get(self.args.dtype, self.args.dtype)
        half = "fp16" if (self.profile.compute_capability or (9, 9)) < (8, 0) else "bf16"
        if asked == "auto":
            dtype = self.model.dtype
            if dtype == "fp32":  # config/model.py, _resolve_auto_dtype
                dtype = half if self.version.release >= (0, 9, 1) else "fp16"
            dtype = half if dtype == "bf16" else dtype
            self._took(f"dtype {dtype} (auto)")
            return dtype
        if asked not in LONG_NAMES:
            raise InputError(
                f"--dtype {self.args.dtype} is not a type that vLLM computes in",
                hint="use auto, bfloat16, float16 or float32; weights are quantised with --quantization",
            )
        if asked == "bf16" and half == "fp16":
            raise IllegalPlanError(
                f"--dtype {self.args.dtype}: {self.profile.name} has no bfloat16", hint="use --dtype float16"
            )
        return asked

    def _weight_dtype(self) -> str:
        """Of the linear weights, after ``--quantization``. The method must be one that the version has."""
        asked, served = self.args.quantization, self.model
        if asked:
            status = value_status(self.version, "quantization", asked)
            if not status:
                raise IllegalPlanError(
                    f"--quantization {asked}: vLLM {self.version} does not know it ({status})",
                    hint=status.hint or "leave it out to serve the checkpoint as it is",
                )
            served = load_quantized(self.model, asked)
        quantization = served.quantization
        method = _METHODS.get((quantization.method or "", quantization.weight_dtype), quantization.method or "")
        status = value_status(self.version, "quantization", method)
        if status.state in ("not yet", "gone"):
            raise IllegalPlanError(
                f"{self.model.id} is quantised with {method}, which vLLM {self.version} does not have ({status})",
                hint=status.hint or f"choose a vLLM before {status.gone_in}",
            )
        return quantization.weight_dtype

    def _engine(self, *, fp8_kv_cache: bool, fp32: bool) -> Engine:
        """The default engine, or the one that is asked for; each has models that it does not serve."""
        args, model, version = self.args, self.model, self.version
        engine = default_engine(
            version,
            self.profile,
            model=model,
            fp8_kv_cache=fp8_kv_cache,
            fp32=fp32,
            pipeline=args.pipeline_parallel_size > 1,
            drafts=args.speculative_config.method if args.speculative_config else None,
        )
        on_cpu = self.profile.platform == "cpu"
        if engine == "V1" and not v1_serves(model, version, on_cpu=on_cpu):
            raise IllegalPlanError(
                f"the V1 engine of vLLM {version} does not serve {model.architecture}{' on a CPU' if on_cpu else ''}",
                hint="leave VLLM_USE_V1 out, or choose a newer --engine-version",
            )
        if engine == "V0" and version.release >= V0_GONE_IN:
            raise IllegalPlanError(
                f"{model.id} would need the V0 engine on this device, which vLLM {version} does not have",
                hint="choose a newer --engine-version",
            )
        if engine == "V0" and is_hybrid(model):
            raise IllegalPlanError(
                f"vLLM {version} serves {model.id} by its V0 engine, whose memory for states is not modelled",
                hint="choose --engine-version 0.10.2 or newer",
            )
        return engine

    def _max_model_len(self) -> int:
        own, asked = self.model.max_position_embeddings, self.args.max_model_len
        if asked is None:
            self._took(f"max_model_len {own} (the model's own)")
            return own
        self._at_least_one("max_model_len")
        if asked > own:
            raise IllegalPlanError(
                f"--max-model-len {asked} is more than the {own} tokens that {self.model.id} was made for",
                hint=f"use --max-model-len {own} or less; longer contexts need another rope scaling in its config",
            )
        return asked

    def _utilization(self, found: Features) -> float:
        asked = self.args.gpu_memory_utilization
        if asked is None:
            self._took(f"gpu_memory_utilization {found.default_gpu_memory_utilization} (vLLM {self.version})")
            return found.default_gpu_memory_utilization
        if not 0 < asked <= 1:
            raise InputError(
                f"--gpu-memory-utilization must be above 0 and at most 1, got {asked}",
                hint="it is a fraction of the GPU's memory, such as 0.9",
            )
        return asked

    def _cpu_kvcache_space(self) -> int | None:
        """On a CPU only, as in vLLM; None: not named, and vLLM's own or ``planner.memory.given`` to say."""
        asked = self._at_least_one("cpu_kvcache_space")
        return asked or None if self.profile.kv_cache_is_given else None

    def _chunked_prefill(self, found: Features, max_model_len: int) -> bool:
        asked, drafts = self.args.enable_chunked_prefill, self.args.speculative_config
        if drafts and found.engine == "V0":  # left off by default (arg_utils.py), limited where it is asked for
            if asked:
                raise IllegalPlanError(
                    f"--enable-chunked-prefill: with speculative decoding by vLLM {self.version} (V0) it is not "
                    "modelled",
                    hint="leave it out",
                )
            return False
        if asked is None:  # V0 leaves it off beside adapters (arg_utils.py)
            beside_lora = self.args.enable_lora and found.engine == "V0"
            return not beside_lora and chunked_prefill(self.model, max_model_len, found)
        if not asked and found.engine == "V1" and self.version.release < (0, 11, 1):
            raise IllegalPlanError(
                f"--no-enable-chunked-prefill: vLLM {self.version} (V1) always chunks", hint="leave it out"
            )
        return asked

    def _batch(self, found: Features, max_model_len: int, *, chunked: bool) -> tuple[int, int]:
        """(max_num_batched_tokens, max_num_seqs), each as given or by default, and legal together."""
        args = self.args
        asked_tokens, asked_seqs = self._at_least_one("max_num_batched_tokens"), self._at_least_one("max_num_seqs")
        world = args.tensor_parallel_size * args.pipeline_parallel_size
        tokens, seqs = batch_defaults(self.profile, self.version, self.usage, world_size=world)
        if found.engine == "V0":
            tokens, seqs = v0_batched_tokens(self.version, self.model, max_model_len, chunked=chunked), 256
        elif not chunked:
            tokens = max(tokens, max_model_len)
        seqs = asked_seqs or seqs
        if self.version.release >= (0, 11, 1):  # _set_default_max_num_seqs_and_batched_tokens_args
            tokens = min(tokens, seqs * max_model_len)
            seqs = asked_seqs or min(seqs, asked_tokens or tokens)
        tokens = asked_tokens or tokens
        for name, value, asked in (
            ("max_num_batched_tokens", tokens, asked_tokens),
            ("max_num_seqs", seqs, asked_seqs),
        ):
            self._took("" if asked else f"{name} {value} (vLLM {self.version} {found.engine}, {self.usage})")
        if tokens < seqs:
            raise IllegalPlanError(
                f"--max-num-batched-tokens {tokens} is less than --max-num-seqs {seqs}",
                hint="give each sequence of a batch at least one token",
            )
        if not chunked and tokens < max_model_len:
            raise IllegalPlanError(
                f"--max-num-batched-tokens {tokens} is less than --max-model-len {max_model_len} without chunks",
                hint=f"raise it to {max_model_len}, lower --max-model-len, or use --enable-chunked-prefill",
            )
        return tokens, seqs

    def _block_size(self) -> int:
        if self.args.block_size is not None:
            return self._at_least_one("block_size")
        return block_size(self.model, self.profile, self.version)

    def _prefix_caching(self, found: Features) -> bool:
        if self.args.enable_prefix_caching is not None:
            return self.args.enable_prefix_caching
        value = prefix_caching(self.model, found)
        self._took(f"enable_prefix_caching {value} (vLLM {self.version})")
        return value

    def _async_scheduling(self, found: Features) -> bool:
        asked = self.args.async_scheduling
        pipelined = self.args.pipeline_parallel_size > 1 and not found.async_scheduling_with_pipeline
        drafts = self.args.speculative_config
        if asked and drafts and drafts.method in ("ngram", "suffix"):
            raise IllegalPlanError(
                f"--async-scheduling: vLLM {self.version} refuses it with drafts by {drafts.method}",
                hint="leave it out",
            )
        if asked and not found.async_scheduling_exists:
            raise IllegalPlanError(
                f"--async-scheduling: vLLM {self.version} ({found.engine}) does not have it (not before 0.10.0)",
                hint="leave it out, or choose a newer --engine-version",
            )
        if asked and pipelined:
            raise IllegalPlanError(
                f"--async-scheduling: vLLM {self.version} refuses it with --pipeline-parallel-size above 1",
                hint="leave it out, or use --tensor-parallel-size instead",
            )
        if asked is not None:
            return asked
        value = found.async_scheduling and not pipelined and (not drafts or drafts.method in ("mtp", "eagle"))
        self._took(f"async_scheduling {value} (vLLM {self.version})")
        return value
