"""The kinds of servers that a fleet may be made of, and what one of each carries of each class.

For every GPU and class the search of ``recommend`` finds the engine that carries most requests per second and GPU
under the targets. Each of them is then tried on the other classes too, and so is the same engine on fewer GPUs: where
whole servers are kept in reserve, small ones may cost less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from planner.engine import EngineArgs, EngineConfig, EngineVersion
from planner.errors import InputError, PlannerError
from planner.hardware import GpuProfile
from planner.memory import SHIPPED_BASIS, Basis
from planner.model import ResolvedModel
from planner.planning import defaults
from planner.planning.capacity import Capacity, at_load, measure, steady_rate
from planner.planning.defaults import Objective, RentedBy
from planner.planning.deployment import Deployment
from planner.planning.predict import ServedLoad
from planner.planning.recommend.assemble import rank
from planner.planning.recommend.candidates import deployed, largest_batch
from planner.planning.recommend.request import Candidate, Ranking, Request
from planner.timing import Calibration
from planner.workload import Load, Router, Slo, Targets, check_classes


@dataclass(frozen=True)
class FleetRequest:
    """Everything that a fleet is planned from."""

    model: ResolvedModel
    gpus: tuple[GpuProfile, ...]
    demands: tuple[Load, ...]
    slos: tuple[Slo, ...]
    headroom: float = 0.2  #: share of the load that is carried on top of it
    n_plus: int = 1  #: spare servers of each kind
    confidence: float = defaults.CONFIDENCE  #: with which the targets are kept
    objective: Objective = "usd"
    rented_by: RentedBy = "gpu"
    prices: Mapping[str, float] = field(default_factory=dict)  #: USD per hour by profile id, over the profile's own
    stock: Mapping[str, int] = field(default_factory=dict)  #: whole GPUs that there are, by profile id
    version: EngineVersion | None = None  #: None: the newest with an image for each GPU
    basis: Basis = SHIPPED_BASIS
    calibration: Calibration | None = None
    args: EngineArgs = field(default_factory=EngineArgs)
    router: Router = "round-robin"  #: between the servers and requests whose prompts have something in common

    def __post_init__(self) -> None:
        if not 0 <= self.headroom <= defaults.MOST_HEADROOM:
            raise InputError(
                f"--headroom {self.headroom:g} is not a share of the load", hint="0.2 leaves room for 20 %"
            )
        check_classes(self.classes, self.args.scheduling_policy)

    def slos_of(self, demand: Load) -> tuple[Slo, ...]:
        """The targets of servers that serve one class, or all classes together."""
        if demand.name not in {one.name for one in self.classes} or not any(slo.group for slo in self.slos):
            return self.slos
        return tuple(replace(slo, group="") for slo in self.slos if slo.group in ("", demand.name))

    @property
    def classes(self) -> tuple[Load, ...]:
        """The classes, also where one demand stands for all of them."""
        return self.demands[0].classes or self.demands

    @property
    def loads(self) -> tuple[float, ...]:
        """Requests per second of each class that have to be carried, headroom included."""
        return tuple(demand.request_rate * (1 + self.headroom) for demand in self.demands)

    def request_for(self, demand: Load) -> Request:
        """The search for the best engine of each GPU for one class."""
        return Request(
            model=self.model,
            gpus=self.gpus,
            goal="max-throughput",
            load=demand if demand.reused else demand.as_drawn(),
            version=self.version,
            basis=self.basis,
            calibration=self.calibration,
            args=self.args,
            longest_len=demand.longest_len,
            targets=Targets(self.slos_of(demand), "rate", None, confidence=self.confidence),
        )

    def request_at(self, load: float) -> Request:
        """The search for the fewest servers that carry ``load`` of the only class, whose requests are known."""
        (demand,) = self.demands
        targets = Targets(self.slos, "rate", load, confidence=self.confidence, router=self.router)
        sent = demand.at_rate(load, demand.count)
        return replace(self.request_for(demand), goal="balanced", targets=targets, load=sent)


@dataclass(frozen=True)
class ServerKind:
    """One engine, and what one server of it carries of each class."""

    candidate: Candidate
    loads: tuple[ServedLoad | None, ...]  #: the largest of each class; None: not one request in time

    @property
    def deployment(self) -> Deployment:
        """The engine."""
        return self.candidate.deployment

    @property
    def profile(self) -> GpuProfile:
        """The (logical) GPU."""
        return self.deployment.profile

    @property
    def num_gpus(self) -> int:
        """(Logical) GPUs of one server."""
        return self.deployment.config.num_gpus

    @property
    def capacity(self) -> tuple[float, ...]:
        """Requests per second of each class; 0 where it cannot serve it."""
        return tuple(load.value if load else 0.0 for load in self.loads)


@dataclass(frozen=True)
class NoServer:
    """A GPU on which no engine keeps the targets, and what stands against it."""

    profile: GpuProfile
    reason: str


def server_kinds(asked: FleetRequest) -> tuple[list[ServerKind], list[NoServer]]:
    """The kinds of servers of each GPU, each with its capacity for all classes; and the GPUs that have none.

    The size of the load and the prices play no part here.
    """
    rankings = [rank(asked.request_for(demand)) for demand in asked.demands]
    kinds: list[ServerKind] = []
    refused: list[NoServer] = []
    for profile, *of_classes in zip(asked.gpus, *rankings, strict=True):
        engines: dict[EngineConfig, tuple[Candidate, dict[Load, ServedLoad | None]]] = {}
        for demand, ranking in zip(asked.demands, of_classes, strict=True):
            if best := ranking.best:
                _, known = engines.setdefault(best.config, (best, {}))
                if demand.recorded is None or demand.reused:  # else the search knows mean lengths only
                    known[demand] = best.load
                if len(asked.gpus) <= defaults.FEW_GPUS:  # among more, the best engine of each will do
                    for smaller in _smaller(asked, demand, best):
                        engines.setdefault(smaller.config, (smaller, {}))
        found = [_kind(asked, candidate, known) for candidate, known in engines.values()]
        kinds += found
        if not found:
            reasons = zip(asked.demands, of_classes, strict=True)
            refused.append(NoServer(profile, "; ".join(f"{d.name}: {_why_none(ranking)}" for d, ranking in reasons)))
    return kinds, refused


def dealt_kinds(asked: FleetRequest) -> tuple[list[ServerKind], list[NoServer]]:
    """As ``server_kinds`` of one GPU, for requests whose prompts have something in common.

    What a server finds hangs on what it is sent, so each kind is one for as many servers as its candidate has.
    """
    (ranking,) = rank(asked.request_at(asked.loads[0]))
    kinds = [ServerKind(candidate, (candidate.load,)) for candidate in ranking.candidates]
    return kinds, [] if kinds else [NoServer(asked.gpus[0], f"{asked.demands[0].name}: {_why_none(ranking)}")]


def _kind(asked: FleetRequest, candidate: Candidate, known: Mapping[Load, ServedLoad | None]) -> ServerKind:
    deployment = candidate.deployment
    loads = (
        known[demand] if demand in known else carried(asked, deployment, demand, confidence=asked.confidence)
        for demand in asked.demands
    )
    return ServerKind(candidate, tuple(loads))


def _smaller(asked: FleetRequest, demand: Load, best: Candidate) -> Iterator[Candidate]:
    """The same engine on half and a quarter of the GPUs: it carries less on each, but leaves less idle, too."""
    request, config = asked.request_for(demand), best.config
    for size in (config.tensor_parallel_size // 2, config.tensor_parallel_size // 4):
        if size < 1 or config.pipeline_parallel_size * config.data_parallel_size > 1:
            return
        try:
            deployment = resized(request, best, size)
        except PlannerError:
            return
        if deployment is None:
            return
        yield replace(best, deployment=deployment, load=None)


def resized(request: Request, engine: Candidate, size: int, **changes: Any) -> Deployment | None:
    """``engine`` with TP of ``size``, and the largest batch that it holds there; None where that is not one request.

    ``changes`` are other settings. Raises PlannerError for what vLLM refuses.
    """
    config, model, profile = engine.config, engine.resolved.model, engine.deployment.profile
    args = replace(
        request.args,
        tensor_parallel_size=size,
        enable_expert_parallel=config.enable_expert_parallel and size > 1,
        kv_cache_dtype=config.kv_cache_dtype_flag or "auto",
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        **changes,
    )
    batch = largest_batch(request, model, profile, args, config.version)
    if batch < 1:
        return None
    args = replace(args, max_num_seqs=min(batch, config.max_num_batched_tokens))
    return deployed(request, model, profile, args, config.version)


def carried(asked: FleetRequest, deployment: Deployment, demand: Load, *, confidence: float) -> ServedLoad | None:
    """The largest load of one class on one server; None where it cannot keep the targets, or not hold a request."""
    longest = demand.longest_len
    if longest > deployment.config.max_model_len or deployment.requests_held(longest) < 1:
        return None
    return capacity_of(asked, deployment, demand).largest(confidence)


def capacity_of(asked: FleetRequest, deployment: Deployment, demand: Load) -> Capacity:
    """What one server carries of one class; to first order among many types of GPUs, as in ``recommend``."""
    targets = Targets(asked.slos_of(demand), confidence=asked.confidence)
    return Capacity(deployment, demand, targets, exactly=len(asked.gpus) <= defaults.FEW_GPUS)


def rate_at(asked: FleetRequest, deployment: Deployment, demand: Load, confidence: float) -> float:
    """Requests per second of one class that one server carries with ``confidence``; 0 where it carries none."""
    if not asked.slos:
        return steady_rate(deployment, demand, confidence=confidence)  # what the replay would be sent
    load = carried(asked, deployment, demand, confidence=confidence)
    return load.value if load else 0.0


def carries(asked: FleetRequest, deployment: Deployment, demand: Load, rate: float, confidence: float) -> bool:
    """Whether one server carries ``rate`` requests per second of a class with ``confidence``."""
    if rate > steady_rate(deployment, demand, confidence=confidence):
        return False
    slos = asked.slos_of(demand)
    sent = at_load(deployment, demand, slos, "rate", rate)
    return measure(deployment, sent, slos, confidence=confidence, whole=False).meets


def servers_for(load: float, capacity: float) -> int:
    """Servers of ``capacity`` that carry ``load``; a rounding error buys no server."""
    return ceil(load / capacity - 1e-9)


def _why_none(ranking: Ranking) -> str:
    closest = ranking.closest
    if closest and closest.load and closest.load.readings:
        worst = max(closest.load.readings, key=lambda reading: reading.excess)
        return f"{worst.slo} becomes {worst.expected_ms:,.0f} ms at best"
    size = [rejected for rejected in ranking.rejected if rejected.tensor_parallel_size]  # not the checkpoint, the GPU
    reasons = [rejected.reason for rejected in size or ranking.rejected]
    return reasons[0] if reasons else "nothing fits"
