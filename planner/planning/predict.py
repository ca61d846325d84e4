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

from planner.engine import (
    EngineArgs,
    EngineConfig,
    EngineVersion,
    Layout,
    bench_backend,
    check_layout,
    features_of,
    resolve,
)
from planner.errors import InputError
from planner.hardware import GpuProfile
from planner.memory import SHIPPED_BASIS, Basis, MemoryBudget, memory_budget, with_kv_cache_space
from planner.model import Model
from planner.planning.fit.check import served_model
from planner.simulator import (
    Client,
    Replay,
    SchedulerLimits,
    latency_result,
    replay,
    serve_result,
    speculative_result,
    throughput_result,
)
from planner.timing import (
    SHIPPED,
    Batch,
    Calibration,
    SpeculativeStep,
    StepBreakdown,
    StepModel,
    covariates_of,
    efficiency_for,
    host_bytes_per_s,
    load_calibration,
    speculative_step,
)
from planner.workload import Requests, Workload

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
    calibration: Calibration | None = None  #: efficiencies and their intervals; None: those that we ship
    least_cache_bytes: int = 0  #: on each GPU, whatever the budget says: of what was seen to run
    least_cache_tok: int = 0  #: and tokens of each replica

    @cached_property
    def budget(self) -> MemoryBudget:
        """How the memory is divided."""
        return memory_budget(self.model, self.profile, self.config, self.basis)

    @cached_property
    def circumstances(self) -> dict[str, str]:
        """What the fits know this engine by."""
        return covariates_of(self.model, self.profile, self.config)

    @cached_property
    def timer(self) -> StepModel | SpeculativeStep:
        """Seconds of a step. Raises InputError where it is not known how many drafted tokens are accepted."""
        efficiency = efficiency_for(self.model, self.profile, self.config, self.calibration)
        steps = StepModel(self.model, self.profile, self.config, efficiency)
        drafts = self.config.speculative_config
        return speculative_step(steps, self.basis.draft, self.calibration) if drafts else steps

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a decoding request gets in one step, on average."""
        drafts = self.config.speculative_config
        return drafts.acceptance_length if drafts else 1.0

    @property
    def calibrated_by(self) -> str:
        """``shipped``, or the files of the user's own fits that have a say in speed or memory."""
        speed = self.calibration.origin(self.circumstances) if self.calibration else SHIPPED
        own = dict.fromkeys((speed, *(fit.origin for fit in self.budget.overheads.own)))
        return ", ".join(name for name in own if name != SHIPPED) or SHIPPED

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
        held = pool.max_concurrency(int(blocks), total_len) if blocks >= 1 else 0.0
        return max(held, self.least_cache_tok / total_len)

    def limits(self, total_len: int) -> SchedulerLimits:
        """What the scheduler is bound by; the KV cache counts tokens of requests of ``total_len``.

        Raises InputError where not one such request fits.
        """
        config = self.config
        return SchedulerLimits(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            kv_cache_tokens=int(self.requests_served(total_len) * total_len),
            block_size=config.block_size,
            enable_chunked_prefill=config.enable_chunked_prefill,
            enable_prefix_caching=config.enable_prefix_caching,
            prefill_first=config.engine == "V0" and not config.enable_chunked_prefill,
            async_scheduling=config.async_scheduling,
            scheduler_reserve_full_isl=self.budget.features.reserves_whole_prompt,
            data_parallel_size=config.data_parallel_size,
            lockstep=config.data_parallel_size > 1 and self.model.is_moe,
            pipelined=config.pipeline_parallel_size > 1,
            decode_tok=1 + config.drafted_tok,
            tokens_per_step=self.tokens_per_step,
        )

    def replay(self, workload: Workload, requests: Requests | None = None, *, offline: bool = False) -> Replay:
        """Serve ``workload``, ``offline`` without a front end; ``requests`` are sent instead of those it draws.

        Raises InputError where a request never fits.
        """
        efficiency = self.timer.efficiency
        online = Client(request_s=efficiency.request_s, frontend_s=efficiency.frontend_s)
        client = Client() if offline else online
        longest = workload.max_total_len if requests is None else requests.max_total_len
        limits = self.with_prefixes(self.limits(longest + self.config.drafted_tok), workload)
        return replay(self.timer, workload, limits, client, requests)

    def with_prefixes(self, limits: SchedulerLimits, workload: Workload) -> SchedulerLimits:
        """``limits`` with what the prefix cache spares of ``workload``.

        With ``--kv-offloading-size`` all that is found, but for the prefix that every prompt has, is taken to come from
        the host. Raises InputError for hits in a cache that is switched off.
        """
        rate, config, pool = workload.prefix_cache_hit_rate, self.config, self.budget.pool
        if not config.enable_prefix_caching:
            if rate:
                raise InputError(
                    f"--prefix-cache-hit-rate {rate:g}: the engine keeps no prefixes",
                    hint="add --enable-prefix-caching, or leave the rate out",
                )
            return limits
        load_s_per_tok = 0.0
        if rate and config.kv_offloading_size and pool.block_size:
            token_bytes = self.budget.binding.block_bytes / pool.block_size
            load_s_per_tok = token_bytes / host_bytes_per_s(self.profile, "--kv-offloading-size")
        return replace(
            limits,
            prefix_cache_hit_rate=rate,
            shared_prefix_tok=workload.prefix_len,
            load_s_per_tok=load_s_per_tok,
        )


def resolve_deployment(
    model: Model,
    profile: GpuProfile,
    args: EngineArgs,
    version: EngineVersion,
    *,
    offline: bool = False,
    known_to_run: bool = False,
    basis: Basis = SHIPPED_BASIS,
    calibration: Calibration | None = None,
) -> Deployment:
    """The engine that ``args`` describe. Raises IllegalPlanError for what vLLM refuses.

    ``known_to_run``: somebody measured it, so whether the model may be cut like that is not asked, and
    some cache there is.
    """
    served = served_model(model, args)
    config = resolve(args, model, profile, version, usage="offline" if offline else "serve")
    config = with_kv_cache_space(served, profile, config, basis)
    if not known_to_run:
        check_layout(
            served,
            profile,
            Layout.of(config),
            allow_unvalidated=args.allow_unvalidated,
            refines_fp8_blocks=features_of(config, profile).refines_fp8_blocks,
        )
    least = int(KNOWN_TO_RUN * profile.memory_bytes) if known_to_run else 0
    return Deployment(served, profile, config, basis, calibration, least)


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
    return Prediction(with_intervals(deployment, result), served)


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
    return Prediction(with_intervals(deployment, throughput_result(served, model_id=deployment.model.id)), served)


def simulate_latency(deployment: Deployment, workload: Workload) -> Prediction:
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
    calibration, held = deployment.calibration or load_calibration(), deployment.circumstances
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
