"""How fast one engine is: the replay for an answer, a closed form for a ranking.

The closed form is the steady state of a closed loop of C requests: while one request lives, it decodes its
output in a batch of C and sits through the prefill of the other requests once each::

    E2EL = own prefill + (output - 1) x decode step of C + (C - 1) x what one prefill adds
    TTFT = half a step + own prefill        TPOT = (E2EL - TTFT) / (output - 1)
    throughput = C x output / E2EL

The replay knows the burst at the start, the token budget, KV blocks and percentiles. The closed form does not, but it
takes a few steps instead of thousands.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from planner.engine import bench_backend
from planner.planning.deployment import Deployment
from planner.simulator import Replay, latency_result, serve_result, speculative_result, throughput_result
from planner.timing import Batch
from planner.workload import Workload


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the bench would write, and the replay behind it."""

    result: dict[str, Any]  #: the keys of the bench's result file
    replay: Replay


def simulate_serve(
    deployment: Deployment, workload: Workload, *, served: Replay | None = None, **asked: Any
) -> Prediction:
    """The result of ``vllm bench serve``; ``served`` is the replay where it is at hand, ``asked`` as for
    ``bench.serve_result``."""
    served = served or deployment.replay(workload)
    backend = bench_backend(deployment.config.version)
    result = serve_result(served, workload, model_id=deployment.model.id, backend=backend, **asked)
    if drafts := deployment.config.speculative_config:
        result |= speculative_result(served, drafts.acceptance_rates)
    return Prediction(deployment.with_intervals(result), served)


def compared_rates(deployment: Deployment, prediction: Prediction) -> dict[str, float]:
    """The two rates that plans are compared by: output tokens/s of a GPU, and of a user, whose request is in flight."""
    rate = float(prediction.result["output_throughput"])
    users = prediction.result["max_concurrency"] or prediction.replay.mean_in_flight
    return {
        "output_throughput_per_gpu": rate / deployment.config.num_gpus,
        "output_throughput_per_user": rate / users,
    }


def simulate_throughput(deployment: Deployment, workload: Workload) -> Prediction:
    """The result of ``vllm bench throughput``: all prompts at once."""
    served = deployment.replay(workload, offline=True)
    return Prediction(deployment.with_intervals(throughput_result(served, model_id=deployment.model.id)), served)


def simulate_latency(deployment: Deployment, workload: Workload) -> Prediction:
    """The result of ``vllm bench latency``: one batch of ``num_prompts`` from start to end."""
    served = deployment.replay(workload, offline=True)
    return Prediction(deployment.with_intervals(latency_result(served, model_id=deployment.model.id)), served)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Steady state of a closed loop on one DP rank. Seconds, and tokens per second."""

    concurrency: int
    ttft_s: float
    tpot_s: float
    e2el_s: float
    output_tok_per_s: float

    @property
    def tok_per_s_per_user(self) -> float:
        """Output tokens per second that one request sees, prefill and queueing included."""
        return self.output_tok_per_s / self.concurrency


def estimate(
    deployment: Deployment, input_len: int, output_len: int, concurrency: int, prefix_len: int = 0
) -> Estimate:
    """Closed form of a closed loop of ``concurrency`` requests of ``input_len`` and ``output_len`` tokens.

    All begin with the same ``prefix_len`` tokens more, which the prefix cache spares where it is on.
    """
    others = concurrency - 1
    context_tok = prefix_len + input_len + output_len / 2
    cached_tok = prefix_len if deployment.config.enable_prefix_caching else 0
    batch = Batch(decode_seqs=concurrency, decode_context_tok=concurrency * context_tok)
    step_s = deployment.timer.step_s(batch)
    token_s = step_s / deployment.tokens_per_step
    own_s, added_s = _prefill_s(deployment, prefix_len + input_len - cached_tok, others, context_tok, cached_tok)
    ttft_s = own_s + step_s / 2
    e2el_s = own_s + (output_len - 1) * token_s + others * added_s
    tpot_s = (e2el_s - ttft_s) / max(output_len - 1, 1)
    return Estimate(concurrency, ttft_s, tpot_s, e2el_s, concurrency * output_len / e2el_s)


def _prefill_s(
    deployment: Deployment, input_len: int, decoding: int, context_tok: float, cached_tok: int
) -> tuple[float, float]:
    """Seconds of one prompt's prefill among ``decoding`` requests, and how much of that it adds to their steps."""
    context = decoding * context_tok
    chunk = max(deployment.config.max_num_batched_tokens - decoding, 1)
    steps = ceil(input_len / chunk)
    # all chunks together attend to input x (input + 1) / 2 pairs; a step of average size stands for each
    new_tok, pairs_tok = ceil(input_len / steps), input_len * (cached_tok + (input_len + 1) / 2) / steps
    step_s = deployment.timer.step_s(Batch(decoding, context, 1, new_tok, pairs_tok, 1))
    return steps * step_s, steps * (step_s - deployment.timer.step_s(Batch(decoding, context)))
