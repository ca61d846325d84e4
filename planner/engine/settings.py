"""The settings of one vLLM engine, in vLLM's own words.

``EngineArgs`` is what somebody asks for, ``None`` meaning the default of the version at hand.
``EngineConfig`` is what the engine then runs with: it is what memory is computed for, what is simulated
and what is launched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from planner.engine.version import EngineVersion

#: vLLM's two engines: V0 until 0.10, V1 by default from 0.8.0 on NVIDIA and from 0.9.1 on AMD.
Engine = Literal["V0", "V1"]
#: How tokens are drafted, see ``planner.engine.speculative``.
SpeculativeMethod = Literal["mtp", "draft_model", "eagle", "ngram", "suffix"]
MOST_RANKS = 1024  #: on one axis; more than any engine was ever spread over
CPU_KVCACHE_SPACE = "VLLM_CPU_KVCACHE_SPACE"


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """What ``--speculative-config`` says."""

    method: SpeculativeMethod
    num_speculative_tokens: int
    model: str | None = None  #: of the draft: a hub id or a path
    draft_tensor_parallel_size: int | None = None  #: None: as the model's; else that or 1
    text: str = ""  #: the JSON as it is launched
    #: Share of steps in which the first drafted token is accepted, the first two, ...; empty: nobody said
    acceptance_rates: tuple[float, ...] = ()

    @property
    def has_draft_model(self) -> bool:
        """Whether a second checkpoint is loaded."""
        return self.method in ("draft_model", "eagle")

    @property
    def acceptance_length(self) -> float:
        """Mean tokens of a step: the accepted ones and the one that the model itself adds, as vLLM logs it."""
        return 1 + sum(self.acceptance_rates)


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Room for adapters, see ``planner.engine.extras``."""

    max_loras: int  #: in one batch, and so on the GPU
    max_lora_rank: int
    max_cpu_loras: int  #: kept in host memory, those on the GPU among them
    fully_sharded_loras: bool = False
    adapts_experts: bool = True  #: routed experts have adapters too
    adapts_tables: bool = False  #: embedding and lm_head have


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
    cpu_kvcache_space: int | None = None  #: GiB of KV cache of each rank on a CPU: VLLM_CPU_KVCACHE_SPACE
    block_size: int | None = None
    enforce_eager: bool = False
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    decode_context_parallel_size: int = 1
    speculative_config: SpeculativeConfig | None = None
    enable_lora: bool = False
    max_loras: int | None = None
    max_lora_rank: int | None = None
    max_cpu_loras: int | None = None
    fully_sharded_loras: bool = False
    cpu_offload_gb: float | None = None  #: GiB of weights of each GPU that stay in host memory
    kv_offloading_size: float | None = None  #: GiB of host memory for KV blocks, all ranks together
    swap_space: float | None = None  #: GiB of host memory of each GPU for swapped blocks, V0
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
    lora: LoraConfig | None = None
    cpu_offload_gb: float = 0.0
    kv_offloading_size: float | None = None
    swap_space: float | None = None
    cpu_kvcache_space: int | None = None  #: None: the cache is what ``gpu_memory_utilization`` leaves
    defaults_taken: tuple[str, ...] = ()

    @property
    def env(self) -> dict[str, str]:
        """Variables that say what no flag does."""
        return {CPU_KVCACHE_SPACE: str(self.cpu_kvcache_space)} if self.cpu_kvcache_space else {}

    @property
    def layout(self) -> dict[str, Any]:
        """How the model lies on the GPUs, in the names that every answer has for it: parallel axes, element types."""
        names = "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"
        return {name: getattr(self, name) for name in (*names, "weight_dtype", "kv_cache_dtype")}

    @property
    def drafted_tok(self) -> int:
        """Tokens that are drafted for each decoding request in a step."""
        return self.speculative_config.num_speculative_tokens if self.speculative_config else 0

    @property
    def num_gpus(self) -> int:
        """GPUs (or partitions) of all replicas together."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size
