"""What publishers of recipes set beside the planned settings, and what they report broken.

``recipes.toml`` holds the recipes in layers, each with its source and the newest spelling of each name. A version that
has only an older spelling gets that one. What a version does not have is left out, and the answer says so.

What is broken: AMD, vLLM FP8 latency and throughput benchmarks on MI300X, vLLM 0.9.1: "AITER does not support fp8 kv
cache", and of DeepSeek-V3 and R1 "--max-model-len cannot be greater than 32768".
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from planner.engine.flags import VllmCommand, env_status, flag_status, value_status
from planner.engine.generation import default_engine
from planner.engine.parse import FlagProblem
from planner.engine.resolution import uses_latent_attention
from planner.engine.settings import Engine, EngineConfig
from planner.engine.version import EngineVersion, release_of
from planner.hardware import GpuProfile
from planner.model import Model
from planner.resources import package_dir

#: Older names of keys in ``--compilation-config``.
_OLDER_KEYS = {
    "fuse_allreduce_rms": "enable_fi_allreduce_fusion",
    "eliminate_noops": "enable_noop",
    "fuse_attn_quant": "enable_attn_fusion",
    "mode": "level",
}
_NEWER_KEYS = {older: newer for newer, older in _OLDER_KEYS.items()}
#: Variables, and keys of ``--compilation-config``, that change sums over several GPUs only.
_OF_SUMS = frozenset({"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "fuse_allreduce_rms"})
DEEPSEEK_MAX_MODEL_LEN = 32768  #: tokens
HOPPER_ISSUES_UNTIL = (0, 12)
#: Releases whose AMD images had AITER before vLLM had it: first, and first without.
AITER_IMAGES_SINCE, AITER_IMAGES_UNTIL = (0, 8, 4), (0, 10)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Variables and options to add to a plan, and settings that the sources suggest for it."""

    env: dict[str, str] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)  #: for ``extra`` of ``serve_argv``
    settings: dict[str, Any] = field(default_factory=dict)  #: names of EngineArgs
    sources: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  #: what the sources set and the version does not have


def recipe_for(
    model: Model,
    profile: GpuProfile,
    version: EngineVersion,
    *,
    kv_cache_dtype: str = "auto",
    engine: Engine | None = None,
    tensor_parallel_size: int | None = None,
) -> Recipe:
    """The layers that match, merged, in names that ``version`` has.

    With ``tensor_parallel_size`` 1, what changes sums over GPUs only is left out; None keeps it.
    """
    env: dict[str, str] = {}
    flags: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    sources: dict[str, None] = {}
    for layer in _data()["recipe"]:
        if _matches(layer, model, profile, version, fp8_kv=kv_cache_dtype.startswith("fp8")):
            env |= layer.get("env", {})
            flags |= layer.get("flags", {})
            settings |= layer.get("settings", {})
            sources[_data()["sources"][layer["source"]]] = None
    if model.requires_remote_code:
        flags["trust-remote-code"] = True
    env |= _engine_choice(version, engine or default_engine(version, profile))
    if tensor_parallel_size == 1:
        env, flags = _without_sums(env), _without_sums(flags)
    left_out: list[str] = []
    return Recipe(
        env=dict(_known_env(env, version, profile, left_out)),
        flags=dict(_known_flags(flags, version, left_out)),
        settings=settings,
        sources=tuple(sources),
        left_out=tuple(left_out),
    )


def _matches(layer: dict[str, Any], model: Model, profile: GpuProfile, version: EngineVersion, *, fp8_kv: bool) -> bool:
    """Whether everything that a layer asks for holds."""
    name = model.id.rstrip("/").rsplit("/", 1)[-1].lower()
    tests: dict[str, Callable[[Any], bool]] = {
        "platform": lambda asked: asked == profile.platform,
        "arch": lambda asked: profile.architecture.rstrip("a") in asked,
        "models": lambda asked: any(re.search(rf"(?:^|-){pattern}", name) for pattern in asked),
        "weight_dtype": lambda asked: model.quantization.weight_dtype in asked,
        "moe": lambda asked: model.is_moe is asked,
        "latent": lambda asked: uses_latent_attention(model) is asked,
        "fp8_kv": lambda asked: fp8_kv is asked,
        "since": lambda asked: version.release >= release_of(asked),
        "until": lambda asked: version.release < release_of(asked),
    }
    return all(test(layer[key]) for key, test in tests.items() if key in layer)


def _without_sums(entries: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in entries.items() if key not in _OF_SUMS}
    return {key: _without_sums(value) if isinstance(value, Mapping) else value for key, value in kept.items()}


def _engine_choice(version: EngineVersion, engine: Engine) -> dict[str, str]:
    """Which of the two engines, while both are there and V1 is the default."""
    if version.release < (0, 8):
        return {}
    return {"VLLM_USE_V1": "1" if engine == "V1" else "0"}


def _known_env(
    env: dict[str, str], version: EngineVersion, profile: GpuProfile, left_out: list[str]
) -> Iterator[tuple[str, str]]:
    for name, value in sorted(env.items()):
        if env_status(version, name, platform=profile.platform):
            yield name, value
        elif name != "VLLM_USE_V1":
            left_out.append(f"{name}={value}")


def _known_flags(
    flags: dict[str, Any], version: EngineVersion, left_out: list[str], command: VllmCommand = "serve"
) -> Iterator[tuple[str, Any]]:
    for name, value in flags.items():
        known = flag_status(version, f"--{name}" if value is not False else f"--no-{name}", command)
        if not known:
            left_out.append(f"--{name}")
        elif name == "compilation-config":
            config = _known_keys(value, version, left_out)
            if config:
                yield name, config
        else:
            yield name, value


def spelled_options(
    options: Mapping[str, str], version: EngineVersion, command: VllmCommand = "serve"
) -> dict[str, Any]:
    """Options of ``command`` with their values as text, those that ``version`` has, in its words.

    An empty value is that of a switch. Keys of ``--compilation-config`` get their older or newer names.
    """
    flags: dict[str, Any] = {}
    for flag, text in options.items():
        name = flag.removeprefix("--")
        switch_off = not text and name.startswith("no-")
        flags[name.removeprefix("no-") if switch_off else name] = text or not switch_off
    config = flags.get("compilation-config", "")
    if isinstance(config, str) and config.startswith("{"):
        flags["compilation-config"] = json.loads(config)
    found = dict(_known_flags(flags, version, [], command))
    return {**found, "compilation-config": {}} if config == "{}" else found


def _known_keys(
    config: Mapping[str, Any], version: EngineVersion, left_out: list[str], kind: Any = "compilation_config"
) -> dict[str, Any]:
    """Keys in the spelling of the version; ``full_cuda_graph`` was the switch before there were modes.

    Of FlashInfer and the like, whose full graphs are for decode batches only, ``FULL`` becomes ``FULL_AND_PIECEWISE``
    when the engine starts (``gpu_model_runner.py``).
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        older, newer = _OLDER_KEYS.get(key, ""), _NEWER_KEYS.get(key, "")
        if isinstance(value, Mapping):
            inner = _known_keys(value, version, left_out, kind="pass_config")
            found |= {key: inner} if inner else {}
        elif value_status(version, kind, key):
            found[key] = list(value) if isinstance(value, list) else value
        elif older and value_status(version, kind, older):
            found[older] = value
        elif newer and value_status(version, kind, newer):
            found[newer] = value
        elif key == "full_cuda_graph" and value_status(version, kind, "cudagraph_mode"):
            found["cudagraph_mode"] = "FULL_AND_PIECEWISE"
        elif key == "cudagraph_mode" and value_status(version, kind, "full_cuda_graph"):
            found["full_cuda_graph"] = True
        else:
            left_out.append(f"--compilation-config {key}")
    return found


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    return tomllib.loads((package_dir("engine") / "recipes.toml").read_text(encoding="utf-8"))


def known_issues(
    config: EngineConfig, env: Mapping[str, str], model: Model, profile: GpuProfile, *, compilation: str = ""
) -> Iterator[FlagProblem]:
    """What these settings run into that the parser takes and a vendor reports broken.

    ``compilation`` is the text of ``--compilation-config``.
    """
    if (profile.compute_capability or (0, 0))[0] == 9:
        yield from _hopper_issues(config, compilation)
    if profile.architecture != "gfx942" or not AITER_IMAGES_SINCE <= config.version.release < AITER_IMAGES_UNTIL:
        return
    image = f"AMD's image of vLLM {config.version} for this GPU"
    if env.get("VLLM_ROCM_USE_AITER", "").lower() in ("1", "true") and config.kv_cache_dtype == "fp8":
        hint = "set it to 0, or leave --kv-cache-dtype out"
        yield FlagProblem("VLLM_ROCM_USE_AITER", f"has no fp8 KV cache in {image}", hint, fatal=False)
    if model.architecture == "DeepseekV3ForCausalLM" and config.max_model_len > DEEPSEEK_MAX_MODEL_LEN:
        cause = f"{config.max_model_len:,} tokens are more than {image} serves this model with"
        yield FlagProblem("--max-model-len", cause, f"give {DEEPSEEK_MAX_MODEL_LEN}", fatal=False)


def _hopper_issues(config: EngineConfig, compilation: str) -> Iterator[FlagProblem]:
    """NVIDIA's recipe of 0.10.1: neither is supported on Hopper; vLLM's recipes set both there from 0.12 on."""
    if config.version.release >= HOPPER_ISSUES_UNTIL:
        return
    said = f"NVIDIA's recipe says that it is not supported on Hopper yet, with vLLM {config.version}"
    if config.async_scheduling:
        yield FlagProblem("--async-scheduling", said, "leave it out", fatal=False)
    if "enable_fi_allreduce_fusion" in compilation:
        yield FlagProblem("--compilation-config enable_fi_allreduce_fusion", said, "leave it out", fatal=False)
