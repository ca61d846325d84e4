"""The settings of one vLLM engine, in vLLM's own words.

``EngineArgs`` is what somebody asks for, ``None`` meaning the default of the version at hand.
``EngineConfig`` is what the engine then runs with: it is what memory is computed for, what is simulated
and what is launched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.engine.version import EngineVersion

#: vLLM's two engines: V0 until 0.10, V1 by default from 0.8.0 on NVIDIA and from 0.9.1 on AMD.
Engine = Literal["V0", "V1"]
#: How tokens are drafted, see ``planner.engine.speculative``.
SpeculativeMethod = Literal["mtp", "draft_model", "eagle", "ngram", "suffix"]


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """What ``--speculative-config`` says."""

    method: SpeculativeMethod
    num_speculative_tokens: int
    model: str | None = None  #: of the draft: a hub id or a path
    draft_tensor_parallel_size: int | None = None  #: None: as the model's; else that or 1
    text: str = ""  #: the JSON as it is launched

    @property
    def has_draft_model(self) -> bool:
        """Whether a second checkpoint is loaded."""
        return self.method in ("draft_model", "eagle")


@dataclass(frozen=True, slots=True)
class EngineArgs:
    """Flags of ``vllm serve`` that change memory or time. None: vLLM's default."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    dtype: str = "auto"
    quantization: str | None = None  #: ``fp8`` quantises a 16-bit checkpoint at load time
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    block_size: int | None = None
    enforce_eager: bool = False
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    decode_context_parallel_size: int = 1
    speculative_config: SpeculativeConfig | None = None
    allow_unvalidated: bool = False  #: plan what one source documents and another reports broken


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The settings that one engine runs with; nothing left open."""

    version: EngineVersion
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    enable_expert_parallel: bool
    dtype: str  #: bf16, fp16 or fp32: activations and everything not quantised
    weight_dtype: str  #: of the linear weights, as in the contract: bf16, fp8, mxfp4, ...
    kv_cache_dtype: str  #: element type of the cache, resolved: bf16, fp16, fp8, ...
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    block_size: int
    enforce_eager: bool
    enable_prefix_caching: bool
    async_scheduling: bool
    enable_chunked_prefill: bool = True
    engine: Engine = "V1"
    quantization: str | None = None  #: what the checkpoint is quantised to at load time; None: served as it is
    kv_cache_dtype_flag: str | None = None  #: value of ``--kv-cache-dtype`` that gives ``kv_cache_dtype``
    num_scheduler_steps: int = 1  #: V0 only: steps that the GPU takes for one visit of the scheduler
    decode_context_parallel_size: int = 1  #: ranks of the TP group that share the tokens of the KV cache
    speculative_config: SpeculativeConfig | None = None
    defaults_taken: tuple[str, ...] = ()

    @property
    def num_gpus(self) -> int:
        """GPUs (or partitions) of all replicas together."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size
