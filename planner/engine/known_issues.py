"""What a publisher says does not work although the parser takes it: plans keep clear of it unless a user asks for it.

Source: AMD, vLLM FP8 latency and throughput benchmarks on MI300X, vLLM 0.9.1: "AITER does not support fp8 kv cache",
and of DeepSeek-V3 and R1 "--max-model-len cannot be greater than 32768".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.engine.check import Problem
from planner.engine.config import EngineConfig
from planner.hardware import GpuProfile
from planner.model.architecture import Model

DEEPSEEK_MAX_MODEL_LEN = 32768  #: tokens
#: Releases with AITER in AMD's images before vLLM took it over, as for the recipes of ``planner.engine``.
FIRST, UNTIL = (0, 8, 4), (0, 10)


def known_issues(config: EngineConfig, env: Mapping[str, str], model: Model, profile: GpuProfile) -> Iterator[Problem]:
    """A remark for each one that these settings run into."""
    if profile.architecture != "gfx942" or not FIRST <= config.version.release < UNTIL:
        return
    image = f"AMD's image of vLLM {config.version} for this GPU"
    if env.get("VLLM_ROCM_USE_AITER", "").lower() in ("1", "true") and config.kv_cache_dtype == "fp8":
        hint = "set it to 0, or leave --kv-cache-dtype out"
        yield Problem("VLLM_ROCM_USE_AITER", f"has no fp8 KV cache in {image}", hint, fatal=False)
    if model.architecture == "DeepseekV3ForCausalLM" and config.max_model_len > DEEPSEEK_MAX_MODEL_LEN:
        cause = f"{config.max_model_len:,} tokens are more than {image} serves this model with"
        yield Problem("--max-model-len", cause, f"give {DEEPSEEK_MAX_MODEL_LEN}", fatal=False)
