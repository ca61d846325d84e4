"""Prefill and decode on servers of their own, beside servers that do both.

::

    TTFT = queue and prefill on a prefill server + transfer of the prompt's KV cache + first step of the decode server
    TPOT = decode steps alone, no prompt is ever among them
    transfer = KV bytes of the prompt on one rank / bytes per second of one GPU's link or network adapter

Prefill servers are replayed with prompts that ask for one token, decode servers with prompts that are cached but for
the last block. The KV cache leaves when the prefill is done. Links run at their line rate unless a rate is given."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, inf
from typing import Any, Literal

from planner.engine import EVERYWHERE, EngineVersion, serve_argv
from planner.errors import IllegalPlanError, InputError, PlannerError
from planner.hardware import GpuProfile
from planner.planning import defaults
from planner.planning.capacity import Capacity, Steady, closed_form_load
from planner.planning.cost import Paid
from planner.planning.defaults import TOLERANCE
from planner.planning.deployment import Deployment
from planner.planning.largest import ROUNDING
from planner.planning.plan import Plan
from planner.planning.predict import ServedLoad
from planner.planning.search.comparison import recipe_of
from planner.planning.search.plans import cost, mean_usd, served_name
from planner.planning.search.search import Search
from planner.planning.search.space import Candidate, Choices, Refused
from planner.units import MS, counted
from planner.workload import Load, Slo, Targets

NIXL_SINCE = (0, 9, 0)  #: vLLM has had its NIXL connector since this release (pull request 17751)
KV_TRANSFER = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
PREFILL_PORT, NIXL_PORT = 8000, 5600  #: vLLM's own defaults
DECODE_PORT = 8200  #: the first of decode servers


@dataclass(frozen=True)
class Side:
    """Servers of one side, and the largest load of one of them."""

    deployment: Deployment
    load: ServedLoad

    @property
    def num_gpus(self) -> int:
        return self.deployment.config.num_gpus

    @property
    def rate_per_gpu(self) -> float:
        return self.load.value / self.num_gpus

    def expected_ms(self, metric: str) -> float:
        """The latency that a measurement stays below with the asked confidence."""
        return next((r.expected_ms for r in self.load.readings if r.slo.metric == metric), 0.0)

    def servers_for(self, rate: float) -> int:
        """Servers that carry ``rate`` requests per second; a rounding error buys no server."""
        return ceil(rate / self.load.value - ROUNDING)


@dataclass(frozen=True)
class Transfer:
    """The way of the KV cache of a prompt from one side to the other."""

    kv_bytes: float  #: of one prompt on the rank that holds most
    bytes_per_s: float  #: of one GPU, one direction
    over: str  #: link, network, or the flag that gives the rate

    @property
    def time_s(self) -> float:
        """Seconds of one prompt; its ranks send side by side."""
        return self.kv_bytes / self.bytes_per_s


@dataclass(frozen=True)
class SideLaunch:
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
    revision: str | None = None  #: of the checkpoint, where one was asked for
    aggregated_ranks: int = 1  #: DP ranks of those servers; sides are planned without

    @property
    def num_gpus(self) -> int:
        return self.least_gpus + self.spares * (self.prefill.num_gpus + self.decode.num_gpus)

    @property
    def least_gpus(self) -> int:
        """(Logical) GPUs without spares, as ``aggregated_gpus`` counts."""
        return self.prefill_servers * self.prefill.num_gpus + self.decode_servers * self.decode.num_gpus

    def launches(self) -> tuple[SideLaunch, SideLaunch]:
        """Both sides as they are started, with vLLM's NIXL connector.

        The router decides which side is asked first, not ``kv_role`` (vLLM's page "NixlConnector Usage Guide").
        Raises IllegalPlanError for versions without it."""
        sides: tuple[tuple[Literal["prefill", "decode"], Side, int, int], ...] = (
            ("prefill", self.prefill, self.prefill_servers, PREFILL_PORT),
            ("decode", self.decode, self.decode_servers, DECODE_PORT),
        )
        launches = []
        for role, side, servers, port in sides:
            config, recipe = side.deployment.config, recipe_of(side.deployment)
            _check_connector(config.version)
            extra = {**recipe.flags, "revision": self.revision, "--kv-transfer-config": KV_TRANSFER}
            words = serve_argv(config, self.model, host=EVERYWHERE, port=port, extra=extra)
            env = {**recipe.env, **config.env, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(NIXL_PORT + port - PREFILL_PORT)}
            launches.append(SideLaunch(role, servers + self.spares, side.num_gpus, tuple(words), env))
        return launches[0], launches[1]

    @property
    def wins(self) -> bool:
        """True if the division carries more on equal GPUs, by more than the tolerance of loads."""
        return self.disaggregated_rate > self.aggregated_rate * (1 + TOLERANCE)

    @property
    def loses(self) -> bool:
        """True if servers that do both carry more, by more than the tolerance of loads, and have no DP ranks either."""
        return self.aggregated_rate > self.disaggregated_rate * (1 + TOLERANCE) and self.aggregated_ranks == 1


@dataclass(frozen=True)
class Apart:
    """A disaggregated plan that is cheaper than servers that do both, at the same confidence."""

    division: Disaggregated
    plan: Plan  #: of servers that do both, on the same GPU
    packages: float  #: whole GPUs that its GPUs are, or are partitions of
    usd_per_hour: float | None  #: where the GPU has a price
    load: float  #: that it carries


def beside(
    search: Search, candidate: Candidate, most: float | None, gpus: int, *, asked: bool
) -> Disaggregated | Refused:
    """Plan disaggregated serving beside ``candidate``, for the same load at the same confidence.

    ``most``: requests per second that one of its servers carries, None where only its share is known. Without a load:
    for as many requests as servers that do both carry on ``gpus`` GPUs. ``asked``: also where bounds say that it loses.
    """
    objective, load, profile = search.objective, candidate.load, candidate.profile
    assert load is not None
    if objective.by != "rate" or objective.load.recorded is not None:
        return Refused(profile.id, "planned for a load of --request-rate and lengths alone")
    if candidate.deployment.covariates["nodes"]:
        return Refused(profile.id, "a side over several nodes is not planned")
    most = max(most or 0.0, load.value)
    rate = objective.value if objective.value is not None else gpus // candidate.config.num_gpus * most
    try:
        return disaggregate(search, candidate, replace(load, value=most), rate, asked=asked)
    except InputError as error:
        return Refused(profile.id, error.cause)


def disaggregate(
    search: Search, candidate: Candidate, aggregated: ServedLoad, rate: float,
    transfer_bytes_per_s: float | None = None, *, asked: bool = True,
) -> Disaggregated | Refused:  # fmt: skip
    """Plan prefill and decode servers with the settings of ``candidate``, at the sizes that carry most per GPU.

    ``aggregated`` is the largest load of one server that does both, ``rate`` the requests per second to carry.
    ``transfer_bytes_per_s``: of one GPU; None: the profile's link within a node, else its network."""
    profile = candidate.profile
    if profile.partition is None:
        profile = profile.with_node(search.space.node_size(profile))
    _check_targets(search.objective.targets)
    sizes = _Sizes(search, candidate, profile, rate)
    division: Disaggregated | Refused = Refused(profile.id, "no decode server meets the targets")
    try:
        if not asked and (least := sizes.never_better(aggregated)):
            return Refused(profile.id, least)
        decode = sizes.decode()
        if decode is None:
            return division
        fits_node = decode.servers_for(rate) * decode.num_gpus < profile.gpus_per_node
        for within_node in (True, False) if fits_node else (False,):
            transfer = Transfer(0.0, *transfer_rate(profile, within_node, transfer_bytes_per_s))
            division = sizes.division(decode, transfer, aggregated)
            if transfer_bytes_per_s or isinstance(division, Refused) or division.num_gpus <= profile.gpus_per_node:
                break
    except PlannerError as error:
        return Refused(profile.id, error.cause)
    return division


def check_apart(search: Search) -> None:
    """Raise InputError for a load, targets or GPUs without disaggregated plans, IllegalPlanError for such a version."""
    space, objective = search.space, search.objective
    if objective.targets is None:
        raise InputError("disaggregated serving is planned for targets", hint="add --ttft and --tpot, each in ms")
    _check_targets(objective.targets)
    if objective.load.recorded is not None or objective.by != "rate":
        hint = "give --request-rate and lengths, not --trace, --class, a workload of turns or --max-concurrency"
        raise InputError("disaggregated serving is planned for requests per second of given lengths", hint=hint)
    if space.coarse:
        cause = f"disaggregated serving is not planned among {len(space.gpus)} types of GPUs"
        raise InputError(cause, hint=f"name at most {defaults.FEW_GPUS} --gpu")
    for serving in space.servings:
        if serving.engine_version is not None:
            _check_connector(serving.engine_version)


def apart_from(search: Search, plan: Plan, division: Disaggregated) -> Apart | None:
    """Return ``division`` as a plan; None where it is not cheaper than ``plan`` by more than the tolerance of loads."""
    value = search.objective.value
    if value is None and not division.wins:
        return None
    whole, rate = value is not None, value or division.aggregated_rate
    packages, usd_per_hour, _ = Paid.of(division.profile, division.num_gpus, rate, search.space.prices, whole=whole)
    apart = Apart(division, plan, packages, usd_per_hour, rate)
    return apart if cost(apart, 1.0) < cost(plan.service, 1.0) else None


def cheapest_apart(plans: Iterable[Plan], apart: Iterable[Apart]) -> Apart | None:
    """Return the cheapest disaggregated servers; None where there are none, or one of ``plans`` is cheaper."""
    plans = list(plans)
    usd = mean_usd(plans)
    cheapest = min(apart, key=lambda one: cost(one, usd), default=None)
    return None if any(cost(plan.service, usd) < cost(cheapest, usd) for plan in plans if cheapest) else cheapest


def transfer_rate(profile: GpuProfile, within_node: bool, given_bytes_per_s: float | None) -> tuple[float, str]:
    """Bytes per second from one GPU to another, on a mesh by one link, and its name. Raises InputError if unknown."""
    links = profile.interconnect
    if given_bytes_per_s:
        return given_bytes_per_s, "--kv-transfer-gb-per-s"
    link = links.link_bandwidth if links.kind == "xgmi-mesh" else links.bandwidth
    link = (link or links.host_bandwidth if links.kind != "none" else None) if within_node else links.network_bandwidth
    if link:
        return link.base, f"{links.kind} link" if within_node else "network"
    what = "link between GPUs" if within_node else "network between nodes"
    state = "pass --kv-transfer-gb-per-s to planner fleet" if within_node else "pass --network-gb-per-s"
    raise InputError(f"the bandwidth of the {what} of {profile.id} is unknown: {state}", hint="of one GPU, in GB/s")


def prompt_kv_bytes(deployment: Deployment, input_len: int) -> int:
    """Bytes of the KV cache of one prompt on the rank that holds most, in whole blocks."""
    pool = replace(deployment.budget.pool, in_flight_tokens=1)
    return pool.blocks_per_request(input_len) * max(stage.block_bytes for stage in deployment.budget.stages)


def best_rate(prefill: Side, decode: Side, gpus: int) -> float:
    """Requests per second of the division of ``gpus`` GPUs that carries most; 0 where none fits."""
    firsts = range(1, gpus // prefill.num_gpus + 1)
    divisions = ((first, (gpus - first * prefill.num_gpus) // decode.num_gpus) for first in firsts)
    rates = (min(first * prefill.load.value, second * decode.load.value) for first, second in divisions)
    return max(rates, default=0.0)


class _Sizes:
    def __init__(self, search: Search, candidate: Candidate, profile: GpuProfile, rate: float) -> None:
        self.search, self.candidate, self.profile, self.rate = search, candidate, profile, rate
        self.confidence = search.objective.confidence
        load, (self.ttft,) = search.objective.load, (slo for slo in search.objective.slos if slo.metric == "ttft")
        self.computed, self.prompts = replace(load, prefix_cache_hit_rate=1.0), replace(load, output_len=1)
        early = replace(self.ttft, limit_ms=self.ttft.limit_ms * defaults.DECODE_SHARE)
        self.slos = tuple(early if slo is self.ttft else slo for slo in search.objective.slos)
        self.decoding = self._by_bound(self.computed, self.slos, enable_prefix_caching=True)
        self.prefilling = self._by_bound(self.prompts, (self.ttft,))

    def never_better(self, aggregated: ServedLoad) -> str:
        """Why no division is cheaper, or carries more on as many GPUs, by the bounds alone; empty where one may."""
        objective, each = self.search.objective, self.candidate.config.num_gpus
        servers, spares = ceil(self.rate / aggregated.value - ROUNDING), objective.spares

        def gpus(rate: float, spares: int = 0) -> float:
            sides = (
                min(((ceil(rate / most - ROUNDING) + spares) * one.config.num_gpus for one, _, most in side), default=0)
                for side in (self.prefilling, self.decoding)
            )
            return sum(sides)

        least, planned = gpus(self.rate, spares), (max(servers, self.candidate.servers) + spares) * each
        if least < planned or gpus(servers * aggregated.value * (1 + TOLERANCE)) <= servers * each:
            return ""
        judged = f"{counted(least)} at best ({defaults.OPTIMISM - 1:.0%} above the closed form, a margin by judgement)"
        return judged if least == planned else f"{judged}, against {counted(planned)}"

    def decode(self) -> Side | None:
        """The decode server that carries most on each GPU; None where none meets the targets."""
        best = None
        for deployment, full, most in self.decoding:
            if best is None or most / deployment.config.num_gpus > best.rate_per_gpu:
                largest = self._largest(deployment, self.computed, self.slos, full)
                side = Side(deployment, largest) if largest else None
                best = side if side and (best is None or side.rate_per_gpu > best.rate_per_gpu) else best
        return best

    def division(self, decode: Side, transfer: Transfer, aggregated: ServedLoad) -> Disaggregated | Refused:
        """The plan over one way of transfer."""
        found = self.prefill(decode, transfer)
        if found is None:
            return Refused(self.profile.id, "no prefill server meets the TTFT target once the transfer is added")
        prefill, transfer = found
        both = max(ceil(self.rate / aggregated.value - ROUNDING), 0)
        gpus = both * self.candidate.config.num_gpus
        return Disaggregated(
            profile=self.profile,
            model=served_name(self.candidate.resolved),
            revision=self.candidate.resolved.revision,
            prefill=prefill,
            decode=decode,
            transfer=transfer,
            prefill_servers=prefill.servers_for(self.rate),
            decode_servers=decode.servers_for(self.rate),
            spares=self.search.objective.spares,
            ttft_ms=prefill.expected_ms("ttft") + transfer.time_s / MS + decode.expected_ms("ttft"),
            tpot_ms=decode.expected_ms("tpot"),
            aggregated_gpus=gpus,
            aggregated_rate=both * aggregated.value,
            disaggregated_rate=best_rate(prefill, decode, gpus),
            aggregated_ranks=self.candidate.config.data_parallel_size,
        )

    def prefill(self, decode: Side, transfer: Transfer) -> tuple[Side, Transfer] | None:
        """The prefill server that carries most on each GPU: prompts that ask for one token, and leave again."""
        best = None
        for deployment, full, bound in self.prefilling:
            alike = deployment.config.speculative_config == decode.deployment.config.speculative_config
            if not alike or (best and bound / deployment.config.num_gpus <= best[0].rate_per_gpu):
                continue
            kv_bytes = max(prompt_kv_bytes(end, self.prompts.input_len) for end in (deployment, decode.deployment))
            sent = replace(transfer, kv_bytes=kv_bytes)
            left_ms = self.ttft.limit_ms - sent.time_s / MS - decode.expected_ms("ttft")
            slos = (replace(self.ttft, limit_ms=left_ms),) if left_ms > 0 else ()
            load = self._largest(deployment, self.prompts, slos, full) if slos else None
            if load is None:
                continue
            most = 1 / sent.time_s if sent.time_s else inf
            side = Side(deployment, load if load.value <= most else replace(load, value=most, bound_by="the transfer"))
            if best is None or side.rate_per_gpu > best[0].rate_per_gpu:
                best = side, sent
        return best

    def _by_bound(self, load: Load, slos: tuple[Slo, ...], **changes: Any) -> list[tuple[Deployment, float, float]]:
        """Each size with the rate of full batches and the most that it carries, the most promising per GPU first."""
        bounds = []
        for one in self._engines(**changes):
            full = Steady.of(one, load).rate(self.confidence)
            carried = closed_form_load(one, load, slos, "rate", confidence=self.confidence)
            bounds.append((one, full, min(full, carried * defaults.OPTIMISM)))
        return sorted(bounds, key=lambda size: -size[2] / size[0].config.num_gpus)

    def _largest(self, deployment: Deployment, load: Load, slos: tuple[Slo, ...], full: float) -> ServedLoad | None:
        load = replace(self.search.objective, load=load).dealt(max(ceil(self.rate / full - ROUNDING), 1))
        return Capacity(deployment, load, Targets(slos, confidence=self.confidence)).largest()

    def _engines(self, **changes: Any) -> Iterator[Deployment]:
        """Yield the engine at every size that holds the load's requests, with the largest batch that it holds."""
        config, resolved, space = self.candidate.config, self.candidate.resolved, self.search.space
        serving = next(one for one in space.servings if one.profile.id == self.profile.id)
        choices = Choices(space, self.search.objective, serving.changed(profile=self.profile))
        kept = {name: getattr(config, name) for name in ("max_num_batched_tokens", "max_model_len")}
        kept |= {"kv_cache_dtype": config.kv_cache_dtype_flag or "auto", **changes}
        drafting = dict.fromkeys((config.speculative_config, space.args.speculative_config))
        for size, drafts in product(choices.tensor_parallel_sizes(resolved.model), drafting):
            experts = config.enable_expert_parallel and size > 1
            args = replace(space.args, tensor_parallel_size=size, enable_expert_parallel=experts, **kept)
            args = replace(args, speculative_config=drafts)
            with suppress(IllegalPlanError):  # a size that cuts a quantisation block, or something similar
                batch = min(choices.largest_batch(resolved, args), config.most_decodes)
                if batch >= 1:
                    yield choices.deployed(resolved, replace(args, max_num_seqs=batch))


def _check_connector(version: EngineVersion) -> None:
    if version.release < NIXL_SINCE:
        raise IllegalPlanError(f"vLLM {version} has no NIXL connector", hint="plan for --engine-version 0.9.0 or newer")


def _check_targets(targets: Targets | None) -> None:
    if targets is None or {slo.metric for slo in targets.slos} != {"ttft", "tpot"}:
        cause = "disaggregated serving needs --ttft and --tpot, one for each side, and takes no other target"
        raise InputError(cause, hint="give both; how --e2el divides over the two sides is not known")
