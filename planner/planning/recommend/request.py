"""What is asked for, what was found, and what was turned down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from planner.engine import EngineArgs, EngineConfig, EngineVersion, Layout
from planner.hardware import GpuProfile
from planner.memory import SHIPPED_BASIS, Basis
from planner.model import ResolvedModel
from planner.planning import defaults
from planner.planning.capacity import Capacity
from planner.planning.defaults import Goal
from planner.planning.deployment import Deployment
from planner.planning.predict import Estimate, Prediction, ServedLoad, estimated_uncertainty
from planner.planning.uncertainty import Uncertainty
from planner.timing import Calibration
from planner.units import MS
from planner.workload import Load, Slo, Targets


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for."""

    model: ResolvedModel
    gpus: tuple[GpuProfile, ...]
    goal: Goal
    load: Load  #: what is sent to all servers together; how many, and how fast, is for the search to say
    max_concurrency: int | None = None
    num_prompts: int | None = None
    gpus_per_node: int | None = None  #: GPUs that one node has; None: as the profile says
    nodes: int | None = None  #: that one server may fill; None: one, or as many as it needs
    over: tuple[int, ...] = (1,)  #: nodes that servers are searched on now
    version: EngineVersion | None = None  #: None: the newest with an image for each GPU
    basis: Basis = SHIPPED_BASIS  #: overheads of memory: ours, or those of the user's own machines
    calibration: Calibration | None = None  #: efficiencies likewise; None: those that we ship
    args: EngineArgs = field(default_factory=EngineArgs)  #: settings that are given, not searched
    longest_len: int | None = None  #: tokens that the context has to hold; None: those of the load
    targets: Targets | None = None  #: None: the goal decides alone
    workload_name: str | None = None
    prices: Mapping[str, float] = field(default_factory=dict)  #: USD per hour by profile id, over the profile's own

    @property
    def parts(self) -> tuple[tuple[float, Load, tuple[Slo, ...]], ...]:
        """Each class of the load, its share of the requests and its targets; one where no classes are told apart."""
        slos = self.targets.slos if self.targets else ()
        rate = sum(one.request_rate for one in self.load.classes)
        classes = (
            (one.request_rate / rate, one, tuple(slo for slo in slos if slo.group in ("", one.name)))
            for one in self.load.classes
        )
        return tuple(classes) or ((1.0, self.load, slos),)

    def closed_loop(self, concurrency: int) -> Load:
        """The same requests, ``concurrency`` of them in flight at once, and enough of them for a steady state."""
        prompts = self.num_prompts or defaults.PROMPTS_PER_SLOT * concurrency
        return self.load.at_concurrency(concurrency, prompts)

    @property
    def wanted_batch(self) -> int | None:
        """The concurrency that every engine is compared at; None where it is searched."""
        latency = defaults.LATENCY_CONCURRENCY if self.goal == "min-latency" else None
        return self.args.max_num_seqs or self.max_concurrency or latency

    def doubt_about(self, candidate: Candidate) -> Uncertainty:
        """How far measurements may lie from the figures of a candidate, by its closed form."""
        concurrency = ceil(candidate.estimate.concurrency / candidate.config.data_parallel_size)
        lengths = self.load.input_len, self.load.output_len
        return estimated_uncertainty(candidate.deployment, *lengths, concurrency, self.load.prefix_len)

    @property
    def reuses(self) -> bool:
        """Whether prompts are known to begin alike."""
        return self.load.prefix_len > 0 or self.load.reused

    @property
    def coarse(self) -> bool:
        """Whether there are so many types of GPUs that each is searched coarsely under targets.

        Coarse: vLLM's own token budget, an fp8 KV cache only with scales, copies of attention only over whole nodes,
        and the first of the cheapest engines.
        """
        return len(self.gpus) > defaults.FEW_GPUS

    @property
    def total_len(self) -> int:
        """KV tokens that room is kept for per request."""
        return self.load.held_len(caching=self.args.enable_prefix_caching is not False)


@dataclass(frozen=True, slots=True)
class Rejected:
    """Something that was considered, and why it lost or cannot run. ``None``: before there was such a setting."""

    gpu: str
    model: str
    tensor_parallel_size: int | None
    kv_cache_dtype: str | None
    reason: str
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    enable_expert_parallel: bool | None = None
    weight_dtype: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    probability_behind: float | None = None  #: that the best serves the goal better; None where that is not the reason

    @classmethod
    def of(cls, candidate: Candidate, reason: str) -> Rejected:
        """A candidate that lost, with everything that it would have been launched with."""
        config = candidate.config
        return cls(
            gpu=candidate.deployment.profile.id,
            model=candidate.resolved.resolved,
            reason=reason,
            **config.choice,
        )

    @classmethod
    def of_args(cls, profile: GpuProfile, resolved: ResolvedModel, args: EngineArgs, reason: str) -> Rejected:
        """Settings that cannot run."""
        return cls(
            gpu=profile.id,
            model=resolved.resolved,
            tensor_parallel_size=args.tensor_parallel_size,
            kv_cache_dtype=args.kv_cache_dtype,
            reason=reason,
            pipeline_parallel_size=args.pipeline_parallel_size,
            data_parallel_size=args.data_parallel_size,
            enable_expert_parallel=args.enable_expert_parallel,
            weight_dtype=resolved.model.quantization.weight_dtype,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
        )


@dataclass(frozen=True)
class Candidate:
    """One engine that fits, at one concurrency."""

    resolved: ResolvedModel
    deployment: Deployment
    estimate: Estimate
    figures: dict[str, Any] | None = None  #: of the replay, for the finalists; the others have the closed form alone
    prediction: Prediction | None = None  #: the replay and its doubt, for the best
    servers: int = 1  #: that carry the load together
    load: ServedLoad | None = None  #: what one of them carries, where there are targets
    too_much: ServedLoad | None = None  #: what one of fewer servers had to carry, and broke a target with
    capacity: Capacity | None = None  #: the same of other loads, as far as they were replayed

    @property
    def config(self) -> EngineConfig:
        """The engine's settings."""
        return self.deployment.config

    @property
    def engine(self) -> tuple[str, Layout, str]:
        """What its batches have in common: checkpoint, layout and KV dtype."""
        return self.resolved.resolved, Layout.of(self.config), self.config.kv_cache_dtype

    @property
    def num_gpus(self) -> int:
        """GPUs of all servers."""
        return self.servers * self.config.num_gpus

    @property
    def tok_per_s_per_gpu(self) -> float:
        """Output tokens per second and GPU."""
        if self.figures:
            return float(self.figures["output_throughput_per_gpu"])
        if self.load:
            return self.load.output_tok_per_s / self.config.num_gpus
        return self.estimate.output_tok_per_s / self.config.num_gpus

    @property
    def tok_per_s_per_user(self) -> float:
        """Output tokens per second of one request."""
        if self.figures:
            return float(self.figures["output_throughput_per_user"])
        return self.estimate.tok_per_s_per_user

    @property
    def e2el_s(self) -> float:
        """Mean end-to-end latency."""
        if self.load and not self.figures:
            return float(self.load.replay.e2el_s.mean())
        return self.figures["mean_e2el_ms"] * MS if self.figures else self.estimate.e2el_s


@dataclass(frozen=True)
class Ranking:
    """The candidates of one GPU, best first, and what was turned down."""

    profile: GpuProfile
    version: EngineVersion
    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    closest: Candidate | None = None  #: where no plan meets the targets: the one that comes nearest

    @property
    def best(self) -> Candidate | None:
        """The plan to make, None where nothing fits."""
        return self.candidates[0] if self.candidates else None

    @property
    def pareto(self) -> list[Candidate]:
        """Those that no other beats in both tokens/s per GPU and tokens/s per user."""
        return pareto(self.candidates)


def pareto(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those that no other beats in both tokens/s per GPU and tokens/s per user; fastest per user first."""
    front: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (-c.tok_per_s_per_user, -c.tok_per_s_per_gpu)):
        if not front or candidate.tok_per_s_per_gpu > front[-1].tok_per_s_per_gpu:
            front.append(candidate)
    return front
