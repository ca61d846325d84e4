"""Which of vLLM's two model runners serves a model, and which steps therefore have a pipeline to themselves.

With asynchronous scheduling the last stage sends the tokens that it has sampled to all others. In the first runner
(``v1/worker/gpu_model_runner.py``) these begin no other step before, and every request that decodes is in every step:
one step at a time is in the pipeline. The second runner (``v1/worker/gpu/model_runner.py``) keeps as many batches under
way as there are stages, and a request is in one of them.
"""

from __future__ import annotations

from typing import Literal

from planner.engine.resolution import is_hybrid
from planner.engine.settings import EngineConfig
from planner.engine.version import Release
from planner.hardware import GpuProfile
from planner.model import Model

#: Steps that have the pipeline to themselves: none, those that sample a token, or all.
LoneSteps = Literal["none", "sampling", "all"]

#: First release with the second runner for dense models, and for all others that are not named here.
_DENSE_FROM, _ALL_FROM = (0, 25), (0, 29)
_NAMED_FROM: dict[str, Release] = {
    "LlamaForCausalLM": (0, 23),
    "MistralForCausalLM": (0, 23),
    "Qwen3ForCausalLM": (0, 23),
    "DeepseekV2ForCausalLM": (0, 24),
    "GraniteMoeForCausalLM": (0, 24),
    "Qwen2MoeForCausalLM": (0, 24),
    "KimiK3ForConditionalGeneration": (0, 27),
    "DeepseekV4ForCausalLM": (0, 28),
}
#: The same on AMD GPUs, where it was slower or failed. 0.29 alone had it for the last one before.
_NAMED_ON_ROCM_FROM: dict[str, Release] = {
    "KimiK3ForConditionalGeneration": (0, 28),
    "DeepseekV4ForCausalLM": (0, 32),
    "DeepseekV32ForCausalLM": (0, 32),
    "GlmMoeDsaForCausalLM": (0, 32),
}
_UNQUANTIZED = ("bf16", "fp16", "fp32")


def lone_steps(model: Model, config: EngineConfig, profile: GpuProfile) -> LoneSteps:
    """Which steps enter a pipeline only when the one before has left it, and are waited for by the next one likewise.

    The first runner waits for every step in 0.16 to 0.19, and from 0.20 on no longer for one in which all prompts go
    on (``_pp_receive_prev_sampled_token_ids_to_input_batch``; pull request 38726). From 0.28 it waits a little later,
    but before the first layer still (``_prepare_input_ids``). 0.15 leaves a request out until its token is back
    (``v1/core/sched/scheduler.py``), so that batches overlap, as without asynchronous scheduling.
    """
    release = config.version.release
    waits = config.pipeline_parallel_size > 1 and config.async_scheduling and release >= (0, 16)
    if not waits or release >= _second_runner_from(model, config, profile):
        return "none"
    return "sampling" if release >= (0, 20) else "all"


def _second_runner_from(model: Model, config: EngineConfig, profile: GpuProfile) -> Release:
    """The release in which a model takes the second runner, and it waits no more (0.23: pull request 42187).

    Source: ``use_v2_model_runner`` and what it calls in ``config/vllm.py``, 0.23 to 0.32. A variable of the environment
    that chooses, and options that the second runner lacks, are not known here.
    """
    name = model.architecture
    if profile.platform == "rocm" and name in _NAMED_ON_ROCM_FROM:
        return _NAMED_ON_ROCM_FROM[name]
    others = _ALL_FROM if model.is_moe or is_hybrid(model) else _DENSE_FROM
    named = _NAMED_FROM.get(name, others)
    return (0, 24) if named == (0, 23) and config.weight_dtype not in _UNQUANTIZED else named
