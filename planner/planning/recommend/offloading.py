"""KV blocks in host memory (``--kv-offloading-size``) under targets: what is replayed, and what they are worth."""

from __future__ import annotations

from dataclasses import replace

from planner.engine import default_version
from planner.errors import InputError
from planner.planning.plan import PlannedOffloading, Unaided
from planner.planning.recommend.candidates import deployed, engines
from planner.planning.recommend.request import Candidate, Request
from planner.planning.recommend.service import planned_target
from planner.planning.recommend.target_search import fewest_servers, share_of

MOST_TIMES = 4  #: as many servers as with blocks in host memory, that are looked at without


def check_offloading(request: Request) -> None:
    """Raise InputError where what the host keeps is replayed on no GPU of ``request``."""
    if not (request.args.kv_offloading_size and request.targets and request.load.reused):
        return
    refusals: list[InputError] = []
    for profile in request.gpus:
        version, model = request.version or default_version(profile), request.model
        for args in engines(request, model, profile, version, []):
            try:
                deployed(request, model.model, profile, args, version).check_host_blocks()
            except InputError as error:
                refusals.append(error)
                break  # other layouts are refused for the same reason, or for one of their own
            return
    if refusals:
        raise refusals[0]


def offloading_of(request: Request, candidate: Candidate) -> PlannedOffloading | None:
    """What the host's blocks are worth for ``candidate``, a plan for a known load; None where it keeps none."""
    targets, load, config = request.targets, candidate.load, candidate.config
    if not config.kv_offloading_size or targets is None or load is None or not request.load.reused:
        return None
    bare = replace(candidate.deployment, config=replace(config, kv_offloading_size=None))
    without = share_of(bare, request, targets, candidate.servers, exactly=bool(targets.slos))
    servers: int | None = candidate.servers
    if not without.meets:
        most = MOST_TIMES * candidate.servers
        servers, _, _ = fewest_servers(
            lambda count: share_of(bare, request, targets, count, exactly=bool(targets.slos)),
            candidate.servers + 1, candidate.servers + 1, most,
        )  # fmt: skip
    return PlannedOffloading(
        host_share=load.replay.host_share,
        gpu_share=load.replay.cached_share - load.replay.host_share,
        without=Unaided(
            gpu_share=without.replay.cached_share,
            targets=tuple(map(planned_target, without.readings)),
            total_gpus=servers and servers * config.num_gpus,
        ),
    )
