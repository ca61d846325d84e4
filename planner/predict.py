"""How fast one engine is: the replay for an answer, a closed form for a ranking.

The closed form is the steady state of a closed loop of C requests: while one request lives, it decodes its
output in a batch of C and sits through the prefill of each of the C requests once::

    E2EL = (output - 1) x decode step of C  +  C x what one prefill adds
    TTFT = half a step + its own prefill    TPOT = (E2EL - TTFT) / (output - 1)
    throughput = C x output / E2EL

The replay knows the burst at the start, the token budget, KV blocks and percentiles; the closed form does not,
and costs a few steps instead of thousands.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from planner.bench import serve_result
from planner.engine.config import EngineConfig
from planner.hardware import GpuProfile
from planner.model.architecture import Model
from planner.scheduler import Limits, replay
from planner.step import Batch, StepModel
from planner.workload import Workload


@dataclass(frozen=True, slots=True)
class Estimate:
    """Steady state of a closed loop on one replica. Seconds and tokens per second."""

    concurrency: int
    ttft_s: float
    tpot_s: float
    e2el_s: float
    output_tok_per_s: float

    @property
    def tok_per_s_per_user(self) -> float:
        """Output tokens per second that one request sees, prefill and queueing included."""
        return self.output_tok_per_s / self.concurrency


def estimate(timer: StepModel, config: EngineConfig, input_len: int, output_len: int, concurrency: int) -> Estimate:
    """Closed form of a closed loop of ``concurrency`` requests of ``input_len`` and ``output_len`` tokens."""
    decoding = max(concurrency - 1, 0)
    context_tok = input_len + output_len / 2
    step_s = timer.step_s(Batch(decode_seqs=concurrency, decode_context_tok=concurrency * context_tok))
    own_s, added_s = _prefill_s(timer, config, input_len, decoding, context_tok)
    ttft_s = own_s + step_s / 2
    e2el_s = own_s + (output_len - 1) * step_s + decoding * added_s
    tpot_s = (e2el_s - ttft_s) / max(output_len - 1, 1)
    return Estimate(concurrency, ttft_s, tpot_s, e2el_s, concurrency * output_len / e2el_s)


def _prefill_s(
    timer: StepModel, config: EngineConfig, input_len: int, decoding: int, context_tok: float
) -> tuple[float, float]:
    """Seconds of one prompt's prefill among ``decoding`` requests, and how much of that it adds to their steps."""
    decodes = Batch(decode_seqs=decoding, decode_context_tok=decoding * context_tok)
    chunk = max(config.max_num_batched_tokens - decoding, 1)
    steps = ceil(input_len / chunk)
    new = input_len / steps
    # all chunks together attend to input x (input + 1) / 2 pairs; a step of average size stands for each
    step_s = timer.step_s(
        Batch(decoding, decodes.decode_context_tok, 1, ceil(new), new * (input_len + 1) / 2, 1)
    )
    return steps * step_s, steps * (step_s - timer.step_s(decodes))


def limits_of(config: EngineConfig, kv_cache_tokens: int) -> Limits:
    """What the scheduler of one engine is bound by."""
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        kv_cache_tokens=kv_cache_tokens,
        block_size=config.block_size,
        enable_chunked_prefill=config.enable_chunked_prefill,
        prefill_first=config.engine == "V0" and not config.enable_chunked_prefill,
        async_scheduling=config.async_scheduling,
        data_parallel_size=config.data_parallel_size,
    )


def serve(
    model: Model, profile: GpuProfile, config: EngineConfig, workload: Workload, kv_cache_tokens: int
) -> dict[str, Any]:
    """Replay ``workload`` and return the keys of the result file of ``vllm bench serve``."""
    timer = StepModel(model, profile, config)
    return serve_result(replay(timer, workload, limits_of(config, kv_cache_tokens)), workload)
