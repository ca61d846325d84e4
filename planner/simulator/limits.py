"""Bounds of a replay: the limits of the engine's scheduler, and the clock of a step."""

from dataclasses import dataclass, fields
from typing import Any, Protocol

from planner.engine import SETTINGS, EngineConfig
from planner.errors import InputError
from planner.timing import Batch


class StepTimer(Protocol):
    """Anything that knows how long a step takes."""

    def step_s(self, batch: Batch) -> float:
        """Seconds from the start of the step that computes ``batch`` to the start of the next."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The settings of one engine that its scheduler reads, under vLLM's names.

    ``prefill_first`` is the V0 engine without chunked prefill: whole prompts, in steps of their own, ahead of any
    decoding. Otherwise the V1 order holds: running requests first, then waiting ones, in one step; V0 with chunked
    prefill did nearly the same. Ranks in ``lockstep`` share their experts and take every step together. Without stages
    that pipeline it (``pipelined``) a step never takes less time for more of anything in its batch. All requests move
    alike: n steps make floor(n x ``tokens_per_step``) tokens, so differences in acceptance between requests are not
    seen.

    Not modelled: ``long_prefill_token_threshold`` (off by default). Requests take turns where the budget does not hold
    the drafts of all; here fewer run. Asynchronous scheduling may preempt a request that has just ended, to have its
    blocks a step earlier; here it does not. Raises InputError for limits that vLLM refuses too."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_tokens: int  #: of each DP rank
    block_size: int = 16
    enable_chunked_prefill: bool = True
    prefill_first: bool = False
    scheduler_reserve_full_isl: bool = True  #: a prompt is admitted when all of it fits (V0, and since 0.19)
    watermark: float = 0.0  #: share of all blocks that stays free then
    #: what arrives is seen one step later, and a request that has ended keeps its place and blocks for one step more
    async_scheduling: bool = False
    enable_prefix_caching: bool = False
    prefix_cache_hit_rate: float = 0.0  #: fraction of each prompt, in whole blocks, counted for each request
    shared_prefix_tok: int = 0  #: that begin all prompts, and that all find
    load_s_per_tok: float = 0.0  #: of a token that is found in host memory, one request after the other
    host_blocks: int = 0  #: in the host memory of each DP rank, see ``planner.simulator.offload``
    host_block_s: float = 0.0  #: of a block over the link
    data_parallel_size: int = 1
    lockstep: bool = False
    pipelined: bool = False
    decode_tok: int = 1  #: computed for a request in a decode step: the drafted ones and one more
    tokens_per_step: float = 1.0  #: by which it moves on, on average
    scheduling_policy: str = "fcfs"

    @classmethod
    def of(cls, config: EngineConfig, **others: Any) -> "SchedulerLimits":
        """The limits of an engine: the settings of ``config`` that have the same names, and ``others``."""
        alike = {one.name: getattr(config, one.name) for one in fields(cls) if hasattr(config, one.name)}
        own = {
            "scheduling_policy": config.scheduling_policy or "fcfs",
            "prefill_first": config.engine == "V0" and not config.enable_chunked_prefill,
            "pipelined": config.pipeline_parallel_size > 1,
            "decode_tok": 1 + config.drafted_tok,
        }
        return cls(**{**alike, **own, **others})

    def __post_init__(self) -> None:
        budget = f"--max-num-batched-tokens {self.max_num_batched_tokens}"
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "data_parallel_size"):
            SETTINGS[name].check(getattr(self, name))
        if self.max_num_batched_tokens < self.max_num_seqs:
            cause = f"{budget} is less than --max-num-seqs {self.max_num_seqs}"
            raise InputError(cause, hint="every running request needs one token of each step's budget")
        if self.num_blocks < 1:
            cause = f"a KV cache of {self.kv_cache_tokens} tokens holds no block of {self.block_size} tokens"
            raise InputError(cause, hint="the model leaves no memory for a KV cache: use more or larger GPUs")
        if not 1 <= self.tokens_per_step <= self.decode_tok <= self.max_num_batched_tokens:
            cause = f"{self.tokens_per_step:g} tokens per step of {self.decode_tok}, of {budget}"
            hint = "a step yields between one token and all that it computes: lower num_speculative_tokens"
            raise InputError(cause, hint=hint)

    @property
    def num_blocks(self) -> int:
        return self.kv_cache_tokens // self.block_size

    @property
    def places(self) -> int:
        """Requests that run at once: the budget of a step holds all tokens of each."""
        return min(self.max_num_seqs, self.max_num_batched_tokens // self.decode_tok)

    @property
    def watermark_blocks(self) -> int:
        """Blocks that an admission must leave free."""
        return int(self.watermark * self.num_blocks)

    @property
    def whole_prompts(self) -> bool:
        """True if a prompt must be computed in one step."""
        return self.prefill_first or not self.enable_chunked_prefill

    def cached_tok(self, prompt_tok: int) -> int:
        """Tokens of a prompt that the prefix cache spares: whole blocks, and never the last token."""
        hit = min(max(int(self.prefix_cache_hit_rate * prompt_tok), self.shared_prefix_tok), prompt_tok - 1)
        return hit // self.block_size * self.block_size

    def check(self, input_tok: int, output_tok: int) -> None:
        """Raise InputError when a request could never be scheduled to its end."""
        # the last token is sampled, never computed; drafts may go beyond it
        total_tok = input_tok + output_tok - 1 + self.decode_tok - 1
        request = f"a request of {input_tok} + {output_tok} tokens"
        if -(-total_tok // self.block_size) > self.num_blocks - self.watermark_blocks:
            cause = f"{request} does not fit a KV cache of {self.kv_cache_tokens} tokens"
            raise InputError(cause, hint="shorten the requests, or leave more memory for the KV cache")
        if self.whole_prompts and total_tok > self.max_num_batched_tokens:
            cause = f"without chunked prefill --max-num-batched-tokens {self.max_num_batched_tokens} is below {request}"
            raise InputError(cause, hint="raise --max-num-batched-tokens or switch chunked prefill on")
