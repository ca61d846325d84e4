"""One model on one engine: the settings that vLLM runs with, what the memory holds, how long a step takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, exp
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

from planner import engine, memory, simulator, timing, workload  # loaded where they are used: ``fit`` needs no time
from planner.engine import AITER, EngineArgs, EngineConfig, EngineVersion, Layout, features_of, recipe_for, resolve
from planner.errors import IllegalPlanError, InputError
from planner.hardware import GpuProfile, constant
from planner.memory import SHIPPED_BASIS, Basis, MemoryBudget, StageBudget, host_kv_tokens, memory_budget
from planner.model import LatentAttention, Model, PerModel, Shard, as_quantized, load_quantized
from planner.resources import package_dir, tables_of
from planner.units import GB, GIB, Interval, format_bytes, percent

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.planning.predict import Estimate

_load_quantized = PerModel(load_quantized)
_without_vision = PerModel(lambda model: replace(model, vision=()))
_whole_vision = PerModel(
    lambda model: replace(model, vision=tuple(replace(weight, shard=Shard.NONE) for weight in model.vision))
)


@dataclass(frozen=True)
class Deployment:
    """One model served by one engine."""

    model: Model  #: as the engine holds it
    profile: GpuProfile
    config: EngineConfig
    basis: Basis = SHIPPED_BASIS  #: overheads of memory: ours, or those that a user's own logs taught
    calibration: timing.Calibration | None = None  #: efficiencies and their intervals; None: those that we ship
    checkpoint: Model | None = None  #: as it is stored, where the engine quantises it while it loads
    least_cache_bytes: int = 0  #: on each GPU, whatever the budget says: the engine was seen to run
    least_cache_tok: int = 0  #: likewise, tokens of each DP rank
    moved: timing.Efficiency | None = None  #: other efficiencies than those of the fits
    without_aiter: bool = False  #: it starts without AMD's kernels, which nearly all measured servers had

    @cached_property
    def budget(self) -> MemoryBudget:
        return memory_budget(self.model, self.profile, self.config, self.basis)

    def __repr__(self) -> str:
        return f"Deployment({self.model.id} on {self.config.num_gpus} x {self.profile.id}, vLLM {self.config.version})"

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The start-up checks of the engine's memory."""
        return tuple(_conditions(self.budget, self.loading_bytes))

    @property
    def fits(self) -> bool:
        return all(condition.margin.mid >= 0 for condition in self.conditions)

    @property
    def lacking_states(self) -> str:
        """vLLM's refusal if the low end of the memory has too few blocks for the states of all places; else empty."""
        return next((c.message for c in self.conditions if c.name == STATES and c.margin.low < 0), "")

    @property
    def verdict(self) -> Verdict:
        order: tuple[Verdict, ...] = ("fits", "too close to call", "does not fit")
        return max((condition.verdict for condition in self.conditions), key=order.index, default="fits")

    @property
    def why_not(self) -> str:
        """The reason why not one request fits for certain."""
        stage, space = self.budget.binding, self.config.cpu_kvcache_space
        weights, memory = stage.weights.loaded_bytes / GIB, self.budget.memory_bytes / GIB
        least, left, most = (end / GIB for end in (stage.left.low, stage.left.mid, stage.left.high))
        given = f", {engine.CPU_KVCACHE_SPACE} is {space}" if space else ""
        rest = f" leave {left:.1f} GiB ({least:.1f} to {most:.1f}) for the KV cache{given}"
        if most <= 0:
            rest = f", which has {memory:.1f} GiB{': none is left for the KV cache' if weights <= memory else ''}"
        odds = f"too close to call: starts with {percent(self.probability_fits)} probability; "
        verdict = odds if self.verdict == "too close to call" else "does not fit: "
        return f"{verdict}{weights:.1f} GiB of weights on each GPU{rest}"

    def refusal(self, load: workload.Load) -> str:
        """The reason why the KV cache does not hold the longest request of ``load``; empty where it does."""
        if self.requests_held(load.longest_len) >= 1:
            return ""
        left, tokens = self.budget.binding.available.mid, f"requests of {load.max_total_len:,} tokens cannot be served"
        return f"{tokens}, {format_bytes(left)} are left for the KV cache" if left > 0 else self.why_not

    @property
    def probability_fits(self) -> float:
        """Probability of starting: that of the least likely condition, as all depend on the same overheads."""
        return min((condition.probability for condition in self.conditions), default=1.0)

    @cached_property
    def loading_bytes(self) -> int:
        """Weights of a GPU before they are quantised, where all of them are loaded first; else 0."""
        if not self.checkpoint or self.budget.features.streams_online_quantization:
            return 0
        stored = memory.stage_weights(self.checkpoint, Layout.of(self.config), self.config.dtype)
        return max(stage.loaded_bytes for stage in stored)

    @cached_property
    def estimates(self) -> dict[tuple[int, int, int, int], Estimate]:
        """Closed forms that were made, by what ``estimate`` is asked."""
        return {}

    @cached_property
    def covariates(self) -> dict[str, str]:
        return timing.covariates_of(self.model, self.profile, self.config)

    @cached_property
    def efficiency(self) -> timing.Efficiency:
        return self.moved or timing.efficiency_for(self.model, self.profile, self.config, self.calibration)

    @cached_property
    def timer(self) -> timing.StepModel | timing.SpeculativeStep:
        """Seconds of a step. Raises InputError where it is not known how many drafted tokens are accepted."""
        steps = timing.StepModel(self.model, self.profile, self.config, self.efficiency)
        drafts = self.config.speculative_config
        return timing.speculative_step(steps, self.basis.draft, self.calibration) if drafts else steps

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a decoding request gets in one step, on average."""
        drafts = self.config.speculative_config
        return drafts.acceptance_length if drafts else 1.0

    @property
    def calibrated_by(self) -> str:
        """``shipped``, or the files of the user's own fits that have a say in speed or memory."""
        speed = self.calibration.origin(self.covariates) if self.calibration else timing.SHIPPED
        origins = dict.fromkeys((speed, *(fit.origin for fit in self.budget.overheads.own)))
        return ", ".join(name for name in origins if name != timing.SHIPPED) or timing.SHIPPED

    @cached_property
    def evidence(self) -> timing.Evidence:
        """The class and number of the nearest measured runs."""
        return (self.calibration or timing.load_calibration()).evidence(self.covariates, self.config)

    @property
    def network_remark(self) -> str:
        """Caveat for an engine over several nodes: its network, and how much was measured; empty on one node."""
        nodes, network = self.covariates["nodes"], self.profile.interconnect.network_bandwidth
        if not nodes or network is None:
            return ""
        runs = (self.calibration or timing.load_calibration()).runs_over_nodes
        rate = f"{network.base / GB:g} GB/s of the network ({network.note})"
        gathers = self.config.data_parallel_size > 1 and self.profile.platform == "cuda" and not self.config.exchange
        fewer = "; DeepEP (--all2all-backend) sends a fraction of the bytes" * gathers
        runs_text = f"{runs} runs over nodes were measured, so intervals are wide"
        return f"over {nodes} nodes, each GPU with {rate}: {runs_text}{fewer}"

    @cached_property
    def with_aiter(self) -> engine.Recipe | None:
        """The recipe, if it sets AITER for this GPU and model."""
        cuts = engine.cuts_expert_blocks(self.model, Layout.of(self.config))  # which AITER's experts do not read
        cache = self.config.kv_cache_dtype
        recipe = recipe_for(self.model, self.profile, self.config.version, kv_cache_dtype=cache, cuts_blocks=cuts)
        return recipe if recipe.env.get(AITER) == "1" else None

    @property
    def _latent(self) -> bool:
        return any(isinstance(mixer, LatentAttention) for mixer in self.model.mixers())

    @property
    def slow_steps(self) -> Mapping[str, list[float]]:
        """Published factors on steps without AITER (``factors``) by ``context_tok``; empty for an engine with it."""
        name = "slow_steps_latent" if self._latent else "slow_steps"
        table: dict[str, list[float]] = tables_of(package_dir("planning") / "remarks.toml")[name]
        return table if self.without_aiter and self.with_aiter else {}

    def lacked_kernels(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables and the option that bring AITER to an AMD server whose ``env`` lacks it; empty for others."""
        if not (recipe := self.with_aiter) or engine.is_on(env, AITER):
            return {}
        moe, backend = f"{AITER}_MOE", recipe.flags.get("attention-backend", "")
        wanted = {AITER: "1", moe: recipe.env.get(moe, "1"), "--attention-backend": backend}
        return {name: value for name, value in wanted.items() if value and value != {moe: "1", **env}.get(name)}

    def kernels_remark(self, env: Mapping[str, str]) -> str:
        """Caveat for an AMD server whose ``env`` lacks AITER; empty for others."""
        if not (lacked := self.lacked_kernels(env)):
            return ""
        words = " ".join(name + (" " if name[0] == "-" else "=") + value for name, value in lacked.items())
        off, latent = self.without_aiter, self._latent
        cases = {"off_latent": off and latent, "off": off, "unset_latent": latent, "unset": True}
        return next(remarks("without_aiter", cases, words=words))

    @property
    def media_remark(self) -> str:
        """Caveat for a server of images, which no load holds."""
        return next(remarks("load", {"images": self.model.vision}), "")

    @property
    def unused_host_remark(self) -> str:
        """Caveat for ``--kv-offloading-size`` under a load of random prompts."""
        unused = "--kv-offloading-size changes no figure here: the requests of this load share no prompts"
        return unused if self.config.kv_offloading_size else ""

    @cached_property
    def known(self) -> timing.Known:
        return (self.calibration or timing.load_calibration()).known(self.covariates)

    def with_efficiencies_moved(self, by: NDArray[np.float64]) -> Deployment:
        """A copy with the logarithms of its efficiencies moved by ``by``, (parameters,)."""
        moves = zip(timing.PARAMETERS, by.tolist(), strict=True)
        values = {name: getattr(self.efficiency, name) * exp(move) for name, move in moves}
        values |= {name: min(values[name], 1.0) for name in timing.SHARES}
        return replace(self, moved=replace(self.efficiency, **values))

    def with_settings(self, **settings: Any) -> Deployment:
        """A copy with other settings of the engine, whose defaults and legality are not looked at again."""
        return replace(self, config=replace(self.config, **settings))

    def in_16_bits(self) -> Deployment | None:
        """A copy with the weights as they were before they were quantised; None where they do not fit."""
        base = self.model.quantization.base.name
        config = replace(self.config, weight_dtype=base)
        wide = replace(self, model=as_quantized(self.model, base), config=config, checkpoint=None, moved=None)
        return wide if wide.fits else None

    def stepping(self, steps: int) -> Deployment:
        """The engine with ``steps`` for each visit of its scheduler: V0 takes several, except on a CPU."""
        if self.config.engine != "V0" or self.profile.platform == "cpu":
            return self
        return self.with_settings(num_scheduler_steps=steps)

    def typical_steps(self, served: simulator.Replay) -> dict[str, timing.StepBreakdown]:
        """The average decode step and the average step with prompt tokens of a replay, operator by operator."""
        batches = {"decode step": served.decode.batch, "prefill step": served.prefill.batch}
        return {name: self.timer.breakdown(batch) for name, batch in batches.items() if batch is not None}

    def requests_held(self, total_len: int) -> float:
        """Requests of ``total_len`` tokens that vLLM logs for the KV cache; below 1 it refuses such a context."""
        blocks, pool = self.budget.num_blocks.mid, self.budget.pool
        if not pool.groups:
            return float(self.config.max_num_seqs)
        return pool.max_concurrency(int(blocks), total_len) if blocks >= 1 else 0.0

    def requests_of(self, load: workload.Load, *, pessimistic: bool = False) -> float:
        """Requests of ``load`` that decode at once, see ``requests_served``."""
        held_len = load.held_len(caching=self.config.enable_prefix_caching)
        return self.requests_served(held_len, load.common_len, pessimistic=pessimistic)

    def requests_served(self, total_len: int, common_len: int = 0, *, pessimistic: bool = False) -> float:
        """Requests of ``total_len`` tokens that decode at once, ``pessimistic``: in the low end of the KV cache.

        A prefix cache holds their first ``common_len`` tokens once. With windows more than ``requests_held``: vLLM
        counts the tokens of a whole batch in flight for each request."""
        pool, stage, blocks = replace(self.budget.pool, in_flight_tokens=1), self.budget.binding, self.budget.num_blocks
        if not pool.groups:
            return float(self.config.max_num_seqs)
        most = max(blocks.low if pessimistic else blocks.mid, stage.num_blocks(self.least_cache_bytes))
        common_len = common_len // self.config.block_size * self.config.block_size * self.config.enable_prefix_caching
        held = pool.max_concurrency(int(most), total_len, common_len) if most >= 1 else 0.0
        return max(held, (self.least_cache_tok - common_len) / (total_len - common_len))

    def limits(self, total_len: int, common_len: int = 0) -> simulator.SchedulerLimits:
        """The limits of the scheduler for requests of ``total_len``. Raises InputError where not one fits."""
        config, features = self.config, self.budget.features
        if config.engine == "V0" and config.scheduling_policy == "priority":
            cause = "--scheduling-policy priority of vLLM's V0 engine is not simulated"
            raise InputError(cause, hint="choose a newer --engine-version")
        once = common_len // config.block_size * config.block_size * config.enable_prefix_caching
        own_tok = -(-total_len // config.block_size) * config.block_size - once
        return simulator.SchedulerLimits.of(
            config,
            kv_cache_tokens=int(self.requests_served(total_len, common_len) * own_tok) + once,
            scheduler_reserve_full_isl=features.reserves_whole_prompt,
            watermark=features.watermark,
            lockstep=self._lockstep,
            tokens_per_step=self.tokens_per_step,
        )

    @property
    def client(self) -> simulator.Client:
        """The delays of a request on its way to the scheduler."""
        return simulator.Client(**{name: getattr(self.efficiency, name) for name in timing.CLIENT_DELAYS})

    def replay(
        self, load: workload.Load, *, offline: bool = False, keep_steps: bool = False, keep_gaps: bool = True,
        hopeless: simulator.Hopeless | None = None,
    ) -> simulator.Replay:  # fmt: skip
        """Serve ``load``, ``offline`` without a front end; ``hopeless`` ends it early.

        Raises InputError where a request never fits."""
        config, longest = self.config, load.max_total_len if load.recorded is None else load.recorded.max_total_len
        limits = self.with_prefixes(self.limits(longest + config.drafted_tok, load.common_len), load)
        if load.reused and config.kv_offloading_size:
            limits = self.with_host_blocks(limits)
        lists = {"keep_steps": keep_steps, "keep_gaps": keep_gaps}
        client = simulator.Client() if offline else self.client
        return simulator.replay(self.timer, load, limits, client, **lists, hopeless=hopeless)

    def with_prefixes(self, limits: simulator.SchedulerLimits, load: workload.Load) -> simulator.SchedulerLimits:
        """``limits`` with what the prefix cache spares; ``--kv-offloading-size`` brings all but the common prefix.

        Raises InputError for hits in a cache that is switched off."""
        rate, config = load.prefix_cache_hit_rate, self.config
        if not config.enable_prefix_caching:
            if rate:
                hint = "add --enable-prefix-caching, or leave the rate out"
                raise InputError(f"--prefix-cache-hit-rate {rate:g}: the engine keeps no prefixes", hint=hint)
            return limits
        loaded = rate and config.kv_offloading_size and self.budget.pool.block_size
        load_s = self._token_bytes / self._host_bytes_per_s if loaded else 0.0
        return replace(limits, prefix_cache_hit_rate=rate, shared_prefix_tok=load.prefix_len, load_s_per_tok=load_s)

    def resent(self, load: workload.Load) -> workload.Load:
        """``load`` as sent a second time: its prompts are cached, if the cache keeps them all."""
        keeps = self.config.enable_prefix_caching and (
            load.num_prompts * load.total_len <= self.limits(load.max_total_len).kv_cache_tokens
        )
        return replace(load, prefix_cache_hit_rate=1.0) if keeps else load

    def with_host_blocks(self, limits: simulator.SchedulerLimits) -> simulator.SchedulerLimits:
        """``limits`` with the host blocks of ``--kv-offloading-size``. Raises InputError as ``check_host_blocks``."""
        self.check_host_blocks()
        blocks = host_kv_tokens(self.config, self._token_bytes) // limits.block_size
        block_s = self._token_bytes * limits.block_size / self._host_bytes_per_s
        return replace(limits, host_blocks=blocks, host_block_s=block_s)

    def check_host_blocks(self) -> None:
        """Raise InputError for settings without a replay of ``--kv-offloading-size``, or without a known link."""
        config, pool = self.config, self.budget.pool
        if not config.kv_offloading_size:
            return
        not_replayed = {
            "an engine that keeps no prefixes": not config.enable_prefix_caching,
            "DP ranks that step together": self._lockstep,
            "--scheduling-policy priority": config.scheduling_policy == "priority",
            "a model whose layers keep different blocks": len(pool.groups) != 1 or not pool.block_size,
        }
        if what := next((what for what, holds in not_replayed.items() if holds), None):
            cause = f"--kv-offloading-size: what the host keeps of a trace is not replayed for {what}"
            raise InputError(cause, hint="leave it out to see the trace without it")
        _ = self._host_bytes_per_s

    @property
    def _lockstep(self) -> bool:
        """True if DP ranks share their experts, and take every step together."""
        return self.config.data_parallel_size > 1 and self.model.is_moe

    @property
    def _token_bytes(self) -> float:
        """KV bytes of a token of a long context on a GPU of the stage that has most."""
        return self.budget.binding.block_bytes / self.budget.pool.block_size

    @property
    def _host_bytes_per_s(self) -> float:
        """Bandwidth of copies of KV blocks, one direction."""
        return timing.host_bytes_per_s(self.profile, "--kv-offloading-size") * self.efficiency.offload_share


def remarks(table: str, holds: Mapping[str, object], **values: object) -> Iterator[str]:
    """Texts of ``remarks.toml`` whose condition holds, with ``values``; a key that the table lacks is itself a text."""
    texts = tables_of(package_dir("planning") / "remarks.toml")[table]
    for name in (name for name, condition in holds.items() if name and condition):
        yield texts[name].format(**values) if name in texts else name


def served_model(model: Model, args: EngineArgs, version: EngineVersion) -> Model:
    """The model as the engine holds it: 8-bit by ``--quantization``, a vision tower whole, or none without media."""
    if args.language_model_only or memory.leaves_tower_out(model, args.limit_mm_per_prompt, version.release):
        model = _without_vision(model)
    if args.mm_encoder_tp_mode == "data" and model.model_type not in memory.CUT_TOWERS:
        model = _whole_vision(model)
    return _load_quantized(model, args.quantization) if args.quantization else model


def resolve_deployment(
    model: Model, profile: GpuProfile, args: EngineArgs, version: EngineVersion, *, offline: bool = False,
    as_started: bool = False, known_to_run: bool = False, basis: Basis = SHIPPED_BASIS,
    calibration: timing.Calibration | None = None,
) -> Deployment:  # fmt: skip
    """The engine that ``args`` describe. Raises IllegalPlanError for settings that vLLM refuses whatever the memory.

    ``offline``: the defaults are those of ``vllm bench latency`` and ``throughput``, without a server.
    ``as_started``: a KV cache whose size is not given is what vLLM itself takes, also on a CPU.
    ``known_to_run``: somebody measured this engine, so the layout is not checked and there is always some cache."""
    if (as_started or known_to_run) and args.gpu_memory_utilization is None:
        args = replace(args, gpu_memory_utilization=engine.default_utilization(version))
    config = resolve(args, model, profile, version, usage="offline" if offline else "serve")
    model = engine.stretched(model, args, version)
    served = served_model(model, args, version)
    engine.check_draft(config, served, basis.draft)
    if not known_to_run:
        unvalidated, blocks = args.allow_unvalidated, features_of(config, profile).fp8_blocks
        engine.check_layout(served, profile, Layout.of(config), allow_unvalidated=unvalidated, fp8_blocks=blocks)
    config = config if as_started else memory.with_kv_cache_space(served, profile, config, basis)
    if basis.any_length and args.max_model_len is None:  # _auto_fit_max_model_len of kv_cache_utils.py
        if version.release < (0, 14):
            cause = f"--max-model-len auto: vLLM {version} takes a number"
            raise IllegalPlanError(cause, hint="give one, or choose --engine-version 0.14.0 or newer")
        budget = memory.memory_budget(served, profile, config, basis)
        config = replace(config, max_model_len=max(1, budget.longest(budget.num_blocks.mid, config.max_model_len)))
    else:
        basis = replace(basis, any_length=False)
    least_bytes = int(constant("known_to_run") * profile.memory_bytes) if known_to_run else 0
    return Deployment(
        served, profile, config, basis, calibration, checkpoint=None if served is model else model,
        least_cache_bytes=least_bytes, without_aiter=not engine.is_on(args.env, AITER, "1"),
    )  # fmt: skip


#: Conditions on the memory beside the budget: other processes leave the budget free; weights and graphs fit.
FREE, LOADING, GRAPHS = "free memory below budget", "weights exceed memory", "CUDA graphs exceed memory"
STATES = "max_num_seqs exceeds Mamba cache blocks"  #: where each request of a graph needs a block for its state
Verdict = Literal["fits", "does not fit", "too close to call"]
#: Standard deviations from the best estimate of an overhead to either end of its interval, taken as one of 90 %.
ENDS = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True, slots=True)
class Condition:
    """One check of vLLM's start-up, with its margin."""

    name: str  #: in vLLM's terms
    margin: Interval  #: bytes per GPU to spare; negative where they lack
    message: str  #: what vLLM says, or would

    @property
    def verdict(self) -> Verdict:
        return "fits" if self.margin.low >= 0 else "does not fit" if self.margin.high < 0 else "too close to call"

    @property
    def probability(self) -> float:
        """Probability of passing: each side of the margin is half a normal distribution of its own width."""
        mid = self.margin.mid
        width = mid - self.margin.low if mid >= 0 else self.margin.high - mid
        return NormalDist().cdf(ENDS * mid / width) if width else float(mid >= 0)


def _conditions(budget: MemoryBudget, loading_bytes: int) -> Iterator[Condition]:
    config, memory = budget.config, budget.memory_bytes
    requested = ceil(memory * config.gpu_memory_utilization)
    free = Interval.exact(memory).minus(budget.start_up)
    # v1/worker/gpu_worker.py asks from 0.9.1 on; a CPU whose cache is given is not asked: cpu_worker.py
    if config.engine == "V1" and config.version.release >= (0, 9, 1) and not config.cpu_kvcache_space:
        yield Condition(
            FREE,
            free.minus(Interval.exact(requested)),
            f"Free memory on device ({free.mid / GIB:.2f}/{memory / GIB:.2f} GiB) on startup is less than desired GPU "
            f"memory utilization ({config.gpu_memory_utilization}, {requested / GIB:.2f} GiB)",
        )
    heaviest = max(max(s.weights.loaded_bytes for s in budget.stages), loading_bytes)
    yield Condition(
        LOADING,
        free.minus(Interval.exact(heaviest)),
        f"out of memory while loading: {heaviest / GIB:.2f} GiB of weights, {free.mid / GIB:.2f} GiB free",
    )
    distinct: dict[tuple[int, int], StageBudget] = {}  # middle stages are often alike
    for stage in budget.stages:
        distinct.setdefault((stage.weights.loaded_bytes, stage.block_bytes), stage)
    for stage in distinct.values():
        yield from _cache_conditions(budget, stage)
    stage = budget.binding
    # graphs are captured when the peak of the profile run is over; AMD's driver takes memory of the host for them
    if not stage.graphs_in_budget and stage.graphs.high > 0 and budget.overheads.where["vendor"] == "nvidia":
        beyond = free.minus(Interval.exact(requested - stage.activation.low)).minus(stage.graphs)
        yield Condition(
            GRAPHS,
            beyond,
            f"out of memory while capturing graphs: {stage.graphs.mid / GIB:.2f} GiB beside a budget of "
            f"{requested / GIB:.2f} GiB, of {free.mid / GIB:.2f} GiB free",
        )


def _cache_conditions(budget: MemoryBudget, stage: StageBudget) -> Iterator[Condition]:
    available, length = stage.available, 1 if budget.any_length else budget.config.max_model_len
    loaded, memory = stage.weights.loaded_bytes, budget.memory_bytes
    if stage.given_bytes is not None:
        free = stage.left.minus(budget.start_up)
        yield Condition(
            "KV cache exceeds memory",
            free.minus(Interval.exact(stage.given_bytes)),
            f"Available memory ({free.mid / GIB:.2f}/{memory / GIB:.2f} GiB) on kv cache allocation is less than "
            f"requested memory for kv ({stage.given_bytes / GIB:.2f} GiB): decrease {budget.config.kv_cache_given_by}",
        )
        available = Interval.exact(stage.given_bytes)
    yield Condition(
        "weights exceed budget" if loaded > stage.requested_bytes else "no cache blocks",
        available.minus(Interval.exact(stage.block_bytes)),
        f"No available memory for the cache blocks: {loaded / GIB:.2f} GiB of weights in a budget of "
        f"{stage.requested_bytes / GIB:.2f} GiB leave {available.mid / GIB:.2f} GiB",
    )
    if budget.pool.groups:
        needed = budget.needed_bytes(stage, length)
        yield Condition(
            "max_model_len larger than cache",
            available.minus(Interval.exact(needed)),
            f"To serve at least one request with the model's max seq len ({length}), {needed / GIB:.2f} GiB KV cache "
            f"is needed, which is larger than the available KV cache memory ({available.mid / GIB:.2f} GiB)",
        )
    if states := budget.state_blocks:
        limit = "max_num_seqs" if states == budget.config.max_num_seqs else "largest graph of decode steps"
        yield Condition(
            STATES,
            available.minus(Interval.exact(states * stage.block_bytes)),
            f"{limit} ({states}) exceeds available Mamba cache blocks ({stage.num_blocks(available.mid)})",
        )
