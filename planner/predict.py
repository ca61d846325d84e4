"""How fast one engine is: the replay for an answer, a closed form for a ranking.

The closed form is the steady state of a closed loop of C requests: while one request lives, it decodes its
output in a batch of C and sits through the prefill of the other requests once each::

    E2EL = own prefill + (output - 1) x decode step of C + (C - 1) x what one prefill adds
    TTFT = half a step + own prefill        TPOT = (E2EL - TTFT) / (output - 1)
    throughput = C x output / E2EL

The replay knows the burst at the start, the token budget, KV blocks and percentiles; the closed form does not,
and costs a few steps instead of thousands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any

from planner.bench import latency_result, serve_result, throughput_result
from planner.efficiency import circumstances, load_calibration
from planner.engine.config import EngineArgs, EngineConfig
from planner.engine.features import features_of
from planner.engine.resolve import resolve
from planner.engine.version import EngineVersion
from planner.fit import served_model
from planner.hardware import GpuProfile
from planner.memory.budget import SHIPPED_BASIS, Basis, MemoryBudget, memory_budget
from planner.model.architecture import Model
from planner.parallelism import Layout, check_layout
from planner.scheduler import Client, Limits, Replay, replay
from planner.step import Batch, StepBreakdown, StepModel
from planner.workload import Workload

#: Figures that scale with the output throughput.
RATES = frozenset(
    {
        "output_throughput", "total_token_throughput", "request_throughput", "requests_per_second",
        "tokens_per_second", "output_throughput_per_gpu", "output_throughput_per_user",
    }
)  # fmt: skip
#: Whose interval a statistic takes: runs were published with means, medians and 99th percentiles.
STATISTICS = {"mean": "mean", "median": "median", "p50": "median", "p90": "p99", "p95": "p99", "p99": "p99"}
#: Share of a GPU's memory that is taken for the cache of a run where the budget, which is an estimate, leaves less.
KNOWN_TO_RUN = 0.04


@dataclass(frozen=True)
class Deployment:
    """One model served by one engine: what it is made of, what it holds, how long its steps take."""

    model: Model
    profile: GpuProfile
    config: EngineConfig
    basis: Basis = SHIPPED_BASIS  #: overheads of memory: ours, or those that a user's own logs taught
    least_cache_bytes: int = 0  #: on each GPU, whatever the budget says: of what was seen to run

    @cached_property
    def budget(self) -> MemoryBudget:
        """How the memory is divided."""
        return memory_budget(self.model, self.profile, self.config, self.basis)

    @cached_property
    def circumstances(self) -> dict[str, str]:
        """What the fits know this engine by."""
        return circumstances(self.model, self.profile, self.config)

    @cached_property
    def timer(self) -> StepModel:
        """Seconds of a step."""
        return StepModel(self.model, self.profile, self.config)

    def requests_held(self, total_len: int, *, pessimistic: bool = False) -> float:
        """Requests of ``total_len`` tokens that the KV cache holds at once; 0 when there is no cache."""
        blocks = self.budget.num_blocks.low if pessimistic else self.budget.num_blocks.mid
        if not self.budget.pool.groups:
            return float(self.config.max_num_seqs)
        return self.budget.pool.max_concurrency(int(blocks), total_len) if blocks >= 1 else 0.0

    def requests_served(self, total_len: int) -> float:
        """Requests of ``total_len`` tokens that decode at once.

        More than ``requests_held`` where there are windows: vLLM counts the tokens of a whole batch in flight for each
        request, which only those that are being prefilled hold.
        """
        pool, stage = replace(self.budget.pool, in_flight_tokens=1), self.budget.binding
        if not pool.groups:
            return float(self.config.max_num_seqs)
        blocks = max(self.budget.num_blocks.mid, stage.num_blocks(self.least_cache_bytes))
        return pool.max_concurrency(int(blocks), total_len) if blocks >= 1 else 0.0

    def limits(self, total_len: int) -> Limits:
        """What the scheduler is bound by; the KV cache counts tokens of requests of ``total_len``.

        Raises InputError where not one such request fits.
        """
        config = self.config
        return Limits(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            kv_cache_tokens=int(self.requests_served(total_len) * total_len),
            block_size=config.block_size,
            enable_chunked_prefill=config.enable_chunked_prefill,
            prefill_first=config.engine == "V0" and not config.enable_chunked_prefill,
            async_scheduling=config.async_scheduling,
            scheduler_reserve_full_isl=self.budget.features.reserves_whole_prompt,
            data_parallel_size=config.data_parallel_size,
        )

    def replay(self, workload: Workload, *, offline: bool = False) -> Replay:
        """Serve ``workload``, ``offline`` without a front end. Raises InputError where a request never fits."""
        efficiency = self.timer.efficiency
        online = Client(request_s=efficiency.request_s, frontend_s=efficiency.frontend_s)
        client = Client() if offline else online
        return replay(self.timer, workload, self.limits(workload.max_total_len), client)


def deploy(
    model: Model,
    profile: GpuProfile,
    args: EngineArgs,
    version: EngineVersion,
    *,
    offline: bool = False,
    known_to_run: bool = False,
    basis: Basis = SHIPPED_BASIS,
) -> Deployment:
    """The engine that ``args`` describe. Raises IllegalPlanError for what vLLM refuses.

    ``known_to_run``: somebody measured it, so whether the model may be cut like that is not asked, and
    some cache there is.
    """
    config = resolve(args, model, profile, version, usage="offline" if offline else "serve")
    served = served_model(model, args)
    if not known_to_run:
        check_layout(
            served,
            profile,
            Layout.of(config),
            allow_unvalidated=args.allow_unvalidated,
            refines_fp8_blocks=features_of(config, profile).refines_fp8_blocks,
        )
    least = int(KNOWN_TO_RUN * profile.memory_bytes) if known_to_run else 0
    return Deployment(served, profile, config, basis, least)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the bench would write, and the replay behind it."""

    result: dict[str, Any]  #: the keys of the bench's result file
    replay: Replay


def predict_serve(deployment: Deployment, workload: Workload, **asked: Any) -> Prediction:
    """The result of ``vllm bench serve``; ``asked`` as for ``bench.serve_result``."""
    served = deployment.replay(workload)
    result = serve_result(served, workload, model_id=deployment.model.id, **asked)
    return Prediction(with_intervals(deployment, result), served)


def predict_throughput(deployment: Deployment, workload: Workload) -> Prediction:
    """The result of ``vllm bench throughput``: all prompts at once."""
    served = deployment.replay(workload, offline=True)
    return Prediction(with_intervals(deployment, throughput_result(served, model_id=deployment.model.id)), served)


def predict_latency(deployment: Deployment, workload: Workload) -> Prediction:
    """The result of ``vllm bench latency``: one batch of ``num_prompts`` from start to end."""
    served = deployment.replay(workload, offline=True)
    return Prediction(with_intervals(deployment, latency_result(served, model_id=deployment.model.id)), served)


def with_intervals(deployment: Deployment, result: dict[str, Any]) -> dict[str, Any]:
    """``result`` and, beside each predicted figure, ``KEY_lo`` and ``KEY_hi``: the 90 % interval of its fits."""
    found: dict[str, Any] = {}
    for key, value in result.items():
        found[key] = value
        bounds = interval(deployment, key)
        if bounds and isinstance(value, float):
            found[f"{key}_lo"], found[f"{key}_hi"] = value * bounds[0], value * bounds[1]
    return found


def interval(deployment: Deployment, key: str) -> tuple[float, float] | None:
    """Factors around the figure ``key`` between which 90 % of measurements lie; None for what is no prediction."""
    calibration, held = load_calibration(), deployment.circumstances
    if key in ("duration", "elapsed_time"):  # the same work in more time is less throughput
        bounds = calibration.interval("output_throughput", held)
        return (1 / bounds[1], 1 / bounds[0]) if bounds else None
    if key in ("avg_latency", "avg_latency_s"):
        return calibration.interval("avg_latency_s", held)
    if key in RATES:
        return calibration.interval("output_throughput", held)
    statistic, _, metric = key.partition("_")
    if not metric.endswith("_ms") or statistic not in STATISTICS:
        return None
    return calibration.interval(f"{STATISTICS[statistic]}_{metric}", held)


def typical_steps(deployment: Deployment, served: Replay) -> dict[str, StepBreakdown]:
    """The average decode step and the average step with prompt tokens of a replay, operator by operator."""
    batches = {"decode step": served.decode_batch, "prefill step": served.prefill_batch}
    return {name: deployment.timer.breakdown(batch) for name, batch in batches.items() if batch is not None}


@dataclass(frozen=True, slots=True)
class Estimate:
    """Steady state of a closed loop on one replica. Seconds, and tokens per second."""

    concurrency: int
    ttft_s: float
    tpot_s: float
    e2el_s: float
    output_tok_per_s: float

    @property
    def tok_per_s_per_user(self) -> float:
        """Output tokens per second that one request sees, prefill and queueing included."""
        return self.output_tok_per_s / self.concurrency


def estimate(deployment: Deployment, input_len: int, output_len: int, concurrency: int) -> Estimate:
    """Closed form of a closed loop of ``concurrency`` requests of ``input_len`` and ``output_len`` tokens."""
    others = concurrency - 1
    context_tok = input_len + output_len / 2
    step_s = deployment.timer.step_s(Batch(decode_seqs=concurrency, decode_context_tok=concurrency * context_tok))
    own_s, added_s = _prefill_s(deployment, input_len, others, context_tok)
    ttft_s = own_s + step_s / 2
    e2el_s = own_s + (output_len - 1) * step_s + others * added_s
    tpot_s = (e2el_s - ttft_s) / max(output_len - 1, 1)
    return Estimate(concurrency, ttft_s, tpot_s, e2el_s, concurrency * output_len / e2el_s)


def _prefill_s(deployment: Deployment, input_len: int, decoding: int, context_tok: float) -> tuple[float, float]:
    """Seconds of one prompt's prefill among ``decoding`` requests, and how much of that it adds to their steps."""
    context = decoding * context_tok
    chunk = max(deployment.config.max_num_batched_tokens - decoding, 1)
    steps = ceil(input_len / chunk)
    # all chunks together attend to input x (input + 1) / 2 pairs; a step of average size stands for each
    new_tok, pairs_tok = ceil(input_len / steps), input_len * (input_len + 1) / 2 / steps
    step_s = deployment.timer.step_s(Batch(decoding, context, 1, new_tok, pairs_tok, 1))
    return steps * step_s, steps * (step_s - deployment.timer.step_s(Batch(decoding, context)))
