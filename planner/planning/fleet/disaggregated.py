"""Prefill and decode on servers of their own, beside servers that do both.

::

    TTFT = queue and prefill on a prefill server + transfer of the prompt's KV cache + first step of the decode server
    TPOT = decode steps alone, no prompt is ever among them
    transfer = KV bytes of the prompt on one rank / bytes per second of one GPU's link or network adapter

Prefill servers are replayed with prompts that ask for one token; decode servers with prompts of which all but the last
block is there already. The KV cache leaves when the prefill is done; engines that send layer by layer while they
compute do better. A link is taken at its line rate unless a rate is given, so the transfer takes at least that long.

Targets are those of TTFT and TPOT, both. How one of E2EL divides over the two sides is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil, inf
from typing import Literal

from planner.engine import EVERYWHERE, EngineVersion, serve_argv
from planner.errors import IllegalPlanError, InputError, PlannerError
from planner.hardware import GpuProfile
from planner.planning import defaults
from planner.planning.capacity import Capacity, at_load, doubt_at, most_in_flight, steady_rate
from planner.planning.cost import price_of
from planner.planning.defaults import IDLE, TOLERANCE, USUALLY_KEPT
from planner.planning.deployment import Deployment
from planner.planning.fleet.kinds import FleetRequest, ServerKind, resized, servers_for
from planner.planning.largest import bracket, largest
from planner.planning.plan import Plan
from planner.planning.predict import THROUGHPUT, Prediction, ServedLoad
from planner.planning.recommend.assemble import recipe_of, served_name
from planner.planning.recommend.candidates import node_size, tensor_parallel_sizes
from planner.planning.recommend.request import Candidate, Request
from planner.planning.recommend.service import cost
from planner.timing import Batch
from planner.units import MS
from planner.workload import Load, Slo, Targets

#: Share of the target of TTFT that a decode server may take until it gives its first token.
DECODE_SHARE = 0.25
#: vLLM has had its NIXL connector since this release (pull request 17751).
NIXL_SINCE = (0, 9, 0)
KV_TRANSFER = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
PREFILL_PORT, NIXL_PORT = 8000, 5600  #: vLLM's own defaults


@dataclass(frozen=True)
class Side:
    """Servers of one side, and the largest load of one of them."""

    deployment: Deployment
    load: ServedLoad

    @property
    def num_gpus(self) -> int:
        """(Logical) GPUs of one server."""
        return self.deployment.config.num_gpus

    @property
    def rate_per_gpu(self) -> float:
        """Requests per second and GPU."""
        return self.load.value / self.num_gpus


@dataclass(frozen=True)
class Transfer:
    """How the KV cache of a prompt gets from one side to the other."""

    kv_bytes: float  #: of one prompt on the rank that holds most
    bytes_per_s: float  #: of one GPU, one direction
    over: str  #: link, network, or the flag that gives the rate

    @property
    def time_s(self) -> float:
        """Seconds of one prompt; its ranks send side by side."""
        return self.kv_bytes / self.bytes_per_s


@dataclass(frozen=True)
class SideLaunch:
    """One side as it is launched."""

    role: Literal["prefill", "decode"]
    servers: int  #: spares included
    num_gpus: int  #: of one server
    serve_argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Disaggregated:
    """Prefill and decode servers of one GPU type, beside servers that do both on as many GPUs."""

    profile: GpuProfile
    model: str  #: the checkpoint to serve
    prefill: Side
    decode: Side
    transfer: Transfer
    prefill_servers: int
    decode_servers: int
    spares: int  #: of each side
    ttft_ms: float  #: all three parts at the statistic and the end of the interval that the target asks for
    tpot_ms: float
    aggregated_gpus: int  #: that servers which do both need for the same load, without spares
    aggregated_rate: float  #: requests per second that those carry
    disaggregated_rate: float  #: requests per second that the best division of as many GPUs carries; 0: none fits

    @property
    def num_gpus(self) -> int:
        """(Logical) GPUs, spares included."""
        prefill = (self.prefill_servers + self.spares) * self.prefill.num_gpus
        return prefill + (self.decode_servers + self.spares) * self.decode.num_gpus

    @property
    def least_gpus(self) -> int:
        """The same without spares, as ``aggregated_gpus`` counts."""
        return self.num_gpus - self.spares * (self.prefill.num_gpus + self.decode.num_gpus)

    def launches(self, decode_port: int) -> tuple[SideLaunch, SideLaunch]:
        """How both sides are started, with vLLM's NIXL connector; decode servers listen on ``decode_port``.

        The connector takes no notice of ``kv_role``: who asks which side first is the router's to decide (vLLM's page
        "NixlConnector Usage Guide"). Raises IllegalPlanError for versions without it.
        """
        return (
            self._launch("prefill", self.prefill, self.prefill_servers, PREFILL_PORT),
            self._launch("decode", self.decode, self.decode_servers, decode_port),
        )

    def _launch(self, role: Literal["prefill", "decode"], side: Side, servers: int, port: int) -> SideLaunch:
        config, recipe = side.deployment.config, recipe_of(side.deployment)
        _check_connector(config.version)
        extra = {**recipe.flags, "--kv-transfer-config": KV_TRANSFER}
        words = serve_argv(config, self.model, host=EVERYWHERE, port=port, extra=extra)
        env = {**recipe.env, **config.env, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(NIXL_PORT)}
        return SideLaunch(role, servers + self.spares, side.num_gpus, tuple(words), env)

    @property
    def wins(self) -> bool:
        """Whether the division carries more on equal GPUs, by more than loads are told apart."""
        return self.disaggregated_rate > self.aggregated_rate * (1 + TOLERANCE)

    @property
    def loses(self) -> bool:
        """Whether servers that do both carry more."""
        return self.aggregated_rate > self.disaggregated_rate * (1 + TOLERANCE)


@dataclass(frozen=True)
class Apart:
    """Prefill and decode apart as a plan: cheaper than servers that do both, at the same confidence."""

    division: Disaggregated
    plan: Plan  #: of servers that do both, on the same GPU
    packages: float  #: whole GPUs that its GPUs are, or are partitions of
    usd_per_hour: float | None  #: where the GPU has a price
    cost: tuple[bool, float, float]  #: for a unit of the load: ``cost`` of a plan, then its whole GPUs


@dataclass(frozen=True)
class NotDivided:
    """Why there is no such plan for a GPU."""

    profile: GpuProfile
    reason: str


def disaggregate(
    asked: FleetRequest, kind: ServerKind, transfer_bytes_per_s: float | None = None
) -> Disaggregated | NotDivided:
    """Prefill and decode servers with checkpoint and settings of ``kind``, at the sizes that carry most per GPU.

    ``transfer_bytes_per_s``: of one GPU; None: the profile's link where all fits into a node, else its network.
    Raises InputError for targets or loads that are not planned for.
    """
    demand, profile = _only(asked), kind.profile
    aggregated = kind.loads[0]
    try:
        decode = _decode_side(asked, kind, demand)
        if decode is None:
            return NotDivided(profile, "no decode server keeps the targets")
        load = demand.request_rate * (1 + asked.headroom)
        found: Disaggregated | NotDivided | None = None
        fits_node = servers_for(load, decode.load.value) * decode.num_gpus < profile.gpus_per_node
        for within_node in (True, False) if fits_node else (False,):
            bytes_per_s, over = transfer_rate(profile, within_node, transfer_bytes_per_s)
            found = _with_transfer(asked, kind, demand, decode, bytes_per_s, over, load, aggregated)
            if transfer_bytes_per_s or isinstance(found, NotDivided) or found.num_gpus <= profile.gpus_per_node:
                return found
    except PlannerError as error:
        return NotDivided(profile, error.cause)
    assert found is not None
    return found


def beside(request: Request, candidate: Candidate, most: float | None, gpus: int) -> Disaggregated | NotDivided:
    """Prefill and decode apart beside ``candidate``, a plan of ``request`` for targets: same load, same confidence.

    ``most``: requests per second that one of its servers carries, None where no more than its share is known. Without
    a load: on ``gpus`` GPUs, with as many requests as servers that do both carry there.
    """
    targets, load, profile = request.targets, candidate.load, candidate.deployment.profile
    assert targets is not None and load is not None
    if targets.by != "rate" or request.load.recorded is not None:
        return NotDivided(profile, "planned for a load of --request-rate and lengths alone")
    if candidate.deployment.covariates["nodes"]:
        return NotDivided(profile, "a side over several nodes is not planned")
    servers = candidate.servers if targets.value is not None else gpus // candidate.config.num_gpus
    node = profile.with_node(node_size(request, profile)) if profile.partition is None else profile
    candidate = replace(candidate, deployment=replace(candidate.deployment, profile=node))
    most = max(most or 0.0, load.value)
    rate = targets.value if targets.value is not None else servers * most
    demand = replace(request.load, request_rate=rate, burstiness=1.0, seed=0)
    asked = FleetRequest(
        model=request.model,
        gpus=(node,),
        demands=(demand,),
        slos=targets.slos,
        headroom=0.0,
        n_plus=0,
        confidence=targets.confidence,
        version=candidate.config.version,
        basis=request.basis,
        calibration=request.calibration,
        args=request.args,
    )
    try:
        return disaggregate(asked, ServerKind(candidate, (replace(load, value=most),)))
    except InputError as error:
        return NotDivided(profile, error.cause)


def check_apart(request: Request) -> None:
    """Raise InputError for a load, targets or GPUs that prefill and decode apart are not planned for.

    And IllegalPlanError for a version that cannot launch them.
    """
    targets = request.targets
    if targets is None:
        raise InputError("prefill and decode apart are planned for targets", hint="add --ttft and --tpot, each in ms")
    _check_targets(targets.slos)
    if request.load.recorded is not None or targets.by != "rate":
        raise InputError(
            "prefill and decode apart are planned for requests per second of given lengths",
            hint="give --request-rate and lengths, not --trace, --class, a workload of turns or --max-concurrency",
        )
    if request.coarse:
        raise InputError(
            f"prefill and decode apart are not planned among {len(request.gpus)} types of GPUs",
            hint=f"name at most {defaults.FEW_GPUS} --gpu",
        )
    if request.version is not None:
        _check_connector(request.version)


def apart_from(request: Request, plan: Plan, division: Disaggregated) -> Apart | None:
    """``division`` as a plan; None where it is not cheaper than ``plan``, by more than loads are told apart."""
    targets, profile = request.targets, division.profile
    assert targets is not None
    load, packages = targets.value or division.aggregated_rate, division.least_gpus / profile.parts
    if targets.value is not None:  # nobody rents a part of a GPU
        packages = ceil(packages)
    elif not division.wins:
        return None
    price = price_of(profile, request.prices)
    usd = price.usd_per_h.mid * profile.parts * packages if price else None
    size = packages / load
    found = Apart(division, plan, packages, usd, (usd is None, size if usd is None else usd / load, size))
    return found if found.cost < _cost_of(plan) else None


def cheapest_apart(plans: Iterable[Plan], apart: Iterable[Apart]) -> Apart | None:
    """The cheapest of ``apart``; None where there is none, or one of ``plans`` is cheaper."""
    found = min(apart, key=lambda one: one.cost, default=None)
    return None if found is None or any(_cost_of(plan) < found.cost for plan in plans) else found


def _cost_of(plan: Plan) -> tuple[bool, float, float]:
    service = plan.service
    assert service is not None
    return *cost(plan), service.packages / (service.load or 1.0)


def transfer_rate(profile: GpuProfile, within_node: bool, given_bytes_per_s: float | None) -> tuple[float, str]:
    """Bytes per second from one GPU to another, and over what. Raises InputError where that is not known.

    On a mesh a pair of GPUs shares one link.
    """
    if given_bytes_per_s:
        return given_bytes_per_s, "--kv-transfer-gb-per-s"
    links = profile.interconnect
    if within_node:
        link = links.link_bandwidth if links.kind == "xgmi-mesh" else links.bandwidth
        link = link or links.host_bandwidth
        if link and links.kind != "none":
            return link.base, f"{links.kind} link"
    elif links.network_bandwidth:
        return links.network_bandwidth.base, "network"
    what = "link between GPUs" if within_node else "network between nodes"
    state = "--kv-transfer-gb-per-s of planner fleet states it" if within_node else "add --network-gb-per-s"
    raise InputError(f"nobody stated the bandwidth of the {what} of {profile.id}: {state}", hint="of one GPU, in GB/s")


def prompt_kv_bytes(deployment: Deployment, input_len: int) -> int:
    """Bytes of the KV cache of one prompt on the rank that holds most, in whole blocks."""
    pool = replace(deployment.budget.pool, in_flight_tokens=1)
    return pool.blocks_per_request(input_len) * max(stage.block_bytes for stage in deployment.budget.stages)


def best_division(prefill: Side, decode: Side, gpus: int) -> tuple[int, int, float]:
    """Servers of each side on ``gpus`` GPUs that carry most, and requests per second; zeros where none fits."""
    best = (0, 0, 0.0)
    for first in range(1, gpus // prefill.num_gpus + 1):
        second = (gpus - first * prefill.num_gpus) // decode.num_gpus
        rate = min(first * prefill.load.value, second * decode.load.value)
        if rate > best[2]:
            best = (first, second, rate)
    return best


def _with_transfer(
    asked: FleetRequest,
    kind: ServerKind,
    demand: Load,
    decode: Side,
    bytes_per_s: float,
    over: str,
    load: float,
    aggregated: ServedLoad | None,
) -> Disaggregated | NotDivided:
    """The plan over one way of transfer."""
    profile = kind.profile
    ttft = next(slo for slo in asked.slos if slo.metric == "ttft")
    first_ms = _expected_ms(decode, "ttft")

    def tried(deployment: Deployment) -> tuple[Side, Transfer] | None:
        kv_bytes = max(prompt_kv_bytes(end, demand.input_len) for end in (deployment, decode.deployment))
        transfer = Transfer(kv_bytes, bytes_per_s, over)
        left_ms = ttft.limit_ms - transfer.time_s / MS - first_ms
        side = _prefill_side(asked, deployment, demand, ttft, left_ms, transfer) if left_ms > 0 else None
        return (side, transfer) if side else None

    best: tuple[Side, Transfer] | None = None
    prompts = replace(demand, output_len=1)
    bounds = [(steady_rate(one, prompts, confidence=asked.confidence), one) for one in _engines(asked, kind, demand)]
    for bound, deployment in sorted(bounds, key=lambda pair: -pair[0] / pair[1].config.num_gpus):
        if best is None or bound / deployment.config.num_gpus > best[0].rate_per_gpu:
            best = max(filter(None, (best, tried(deployment))), key=lambda pair: pair[0].rate_per_gpu, default=None)
    if best is None:
        return NotDivided(profile, "no prefill server keeps the TTFT target once the transfer is added")
    prefill, transfer = best
    both = servers_for(load, aggregated.value) if aggregated else 0
    gpus = both * kind.num_gpus
    return Disaggregated(
        profile=profile,
        model=served_name(kind.candidate.resolved),
        prefill=prefill,
        decode=decode,
        transfer=transfer,
        prefill_servers=servers_for(load, prefill.load.value),
        decode_servers=servers_for(load, decode.load.value),
        spares=asked.n_plus,
        ttft_ms=_expected_ms(prefill, "ttft") + transfer.time_s / MS + first_ms,
        tpot_ms=_expected_ms(decode, "tpot"),
        aggregated_gpus=gpus,
        aggregated_rate=both * aggregated.value if aggregated else 0.0,
        disaggregated_rate=best_division(prefill, decode, gpus)[2],
    )


def _only(asked: FleetRequest) -> Load:
    if len(asked.demands) > 1 or asked.demands[0].recorded is not None:
        raise InputError(
            "prefill and decode apart are planned for one class of requests",
            hint="give --request-rate and lengths instead of --class or --trace",
        )
    _check_targets(asked.slos)
    return asked.demands[0]


def _check_connector(version: EngineVersion) -> None:
    if version.release < NIXL_SINCE:
        raise IllegalPlanError(f"vLLM {version} has no NIXL connector", hint="plan for --engine-version 0.9.0 or newer")


def _check_targets(slos: Sequence[Slo]) -> None:
    if {slo.metric for slo in slos} != {"ttft", "tpot"}:
        raise InputError(
            "prefill and decode apart need --ttft and --tpot, one for each side, and take no other target",
            hint="give both; how --e2el divides over the two sides is not known",
        )


def _engines(asked: FleetRequest, kind: ServerKind, demand: Load, *, cached: bool = False) -> Iterator[Deployment]:
    """The engine of ``kind`` at every size that holds the load's requests; ``cached``: it takes in computed prompts."""
    request = asked.request_for(demand)
    changes = {"enable_prefix_caching": True} if cached else {}
    for size in tensor_parallel_sizes(request, kind.candidate.resolved.model, kind.profile):
        try:
            found = resized(request, kind.candidate, size, **changes)
        except IllegalPlanError:  # a size that cuts a quantisation block, or the like
            continue
        if found:
            yield found


def _decode_side(asked: FleetRequest, kind: ServerKind, demand: Load) -> Side | None:
    """The decode server that carries most on each GPU; None where none keeps the targets."""
    slos = [replace(slo, limit_ms=slo.limit_ms * DECODE_SHARE) if slo.metric == "ttft" else slo for slo in asked.slos]
    computed = replace(demand, prefix_cache_hit_rate=1.0)
    loads = [
        _DecodeLoad(one, computed, tuple(slos), asked.confidence) for one in _engines(asked, kind, demand, cached=True)
    ]
    best: Side | None = None
    for load in sorted(loads, key=lambda load: -load.guess / load.server.config.num_gpus):
        if best is None or load.guess / load.server.config.num_gpus > best.rate_per_gpu:
            found = load.largest()
            side = Side(load.server, found) if found else None
            best = max(filter(None, (best, side)), key=lambda side: side.rate_per_gpu, default=None)
    return best


def _prefill_side(
    asked: FleetRequest, deployment: Deployment, demand: Load, ttft: Slo, left_ms: float, transfer: Transfer
) -> Side | None:
    """One prefill server: prompts that ask for one token, and whose cache has to leave again."""
    workload = replace(demand, output_len=1)
    targets = Targets((replace(ttft, limit_ms=left_ms),), confidence=asked.confidence)
    load = Capacity(deployment, workload, targets).largest()
    if load is None:
        return None
    most = 1 / transfer.time_s if transfer.time_s else inf
    return Side(deployment, load if load.value <= most else replace(load, value=most, bound_by="the transfer"))


class _DecodeLoad:
    """What one decode server carries under targets."""

    def __init__(self, server: Deployment, workload: Load, slos: tuple[Slo, ...], confidence: float) -> None:
        self.server, self.workload, self.slos, self.confidence = server, workload, slos, confidence
        places = min(most_in_flight(server), server.requests_served(workload.max_total_len) * self._ranks)
        self._most = max(places / self._ranks, 1)  # requests on one rank
        doubt = doubt_at(server, workload, round(self._most))
        self._ceiling = self._steady_rate(self._most) * doubt.upper("output_throughput", 1 - confidence)

    @cached_property
    def guess(self) -> float:
        """The rate of the largest batch whose steps keep the limit of TPOT: hardly more is carried."""
        doubt = doubt_at(self.server, self.workload, 1)
        limit_s = min(
            (slo.limit_ms * MS / doubt.upper(slo.key, self.confidence) for slo in self.slos if slo.metric == "tpot"),
            default=inf,
        )
        batch = largest(lambda batch: self._step_s(batch) <= limit_s, 1, max(ceil(self._most), 1))
        return min(self._steady_rate(batch), self._ceiling)

    def largest(self) -> ServedLoad | None:
        """The largest rate that keeps the targets, by bisection: to first order, then where the batch reacts too."""
        least = min(IDLE / (self.workload.output_len * self._step_s(1)), self._ceiling)
        first, _ = bracket(partial(self._at, reacts=False), self.guess, least, self._ceiling, TOLERANCE)
        if first is None:
            return None
        guess = first.value * USUALLY_KEPT
        met, missed = bracket(partial(self._at, reacts=True), guess, least, first.value, TOLERANCE)
        return met and replace(met, bound_by=missed.binding if missed else THROUGHPUT)

    def _at(self, rate: float, *, reacts: bool) -> ServedLoad:
        """One rate; ``reacts``: on an engine that is slower more requests are in flight, which slows its steps."""
        sent = at_load(self.server, self.workload, self.slos, "rate", rate)
        served = Prediction.until_missed(self.server, sent, self.slos, self.confidence, whole=True)
        readings = served.readings(self.slos, self.confidence, exactly=reacts)
        return ServedLoad(served, readings, 1.0, rate <= self._ceiling * (1 + TOLERANCE), rate)

    def _steady_rate(self, batch: float) -> float:
        """Requests per second of full batches of decode steps, ``batch`` on each rank."""
        return self._ranks * batch / (self.workload.output_len * self._step_s(batch))

    def _step_s(self, batch: float) -> float:
        context_tok = self.workload.input_len + self.workload.output_len / 2
        step_s = self.server.timer.step_s(Batch(decode_seqs=round(batch), decode_context_tok=batch * context_tok))
        return step_s / self.server.tokens_per_step

    @property
    def _ranks(self) -> int:
        return self.server.config.data_parallel_size


def _expected_ms(side: Side, metric: str) -> float:
    return next((r.expected_ms for r in side.load.readings if r.slo.metric == metric), 0.0)
