"""Time of the collectives of one step: all-reduce, all-gather, expert exchange, and the hop between pipeline stages.

::

    all-reduce of S bytes over n ranks = latency(n) + S x 2 (n - 1) / n / bus bandwidth
    all-gather (S after gathering)     = latency(n) + S x (n - 1) / n / bus bandwidth

The topology decides the bus bandwidth. Behind an NVSwitch every rank reaches its full bandwidth whatever n is. In
an xGMI mesh each pair of GPUs has one link, so n ranks use n - 1 links each: a TP 2 pair gets one link of seven
(RCCL measures 48 GB/s for a pair and 310-330 GB/s for eight MI300X, of 64 and 448). PCIe is shared by all.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.engine import EngineConfig, Layout, features_of
from planner.errors import IllegalPlanError, InputError
from planner.hardware import GpuProfile
from planner.memory import offloaded_bytes, stage_weights
from planner.model import Component, Layer, Model, Shard
from planner.timing.operators import ACTIVATION_BYTES, SAMPLED, TOKENS, StepLoad
from planner.units import GB, US

#: Latency added per pair of ranks beyond the first, as a share of the latency of two ranks. vLLM's custom
#: all-reduce under CUDA graphs, 16 KB: H100 4.5 to 5.3 us from 2 to 8 ranks, RTX PRO 6000 on PCIe 5.1 to 27.5.
LATENCY_GROWTH = {"nvswitch": 0.06, "xgmi-mesh": 0.06, "nvlink-bridge": 0.5, "pcie": 1.4}
#: Between nodes, per GPU and one direction: one 400 Gbit/s adapter each, as in DGX H100 and MI300X systems.
NODE_BYTES_PER_S = 50 * GB
NODE_LATENCY_S = 20 * US


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of exchange in a step, all layers together."""

    name: str
    count: int
    load: StepLoad
    bytes_per_unit: float  #: bytes on the bus of one rank, per unit of the load, all ``count`` together
    ranks: int


def step_collectives(model: Model, config: EngineConfig) -> tuple[Collective, ...]:
    """What the ranks of one replica exchange in a step.

    Tensor parallelism reduces the hidden vector after each row-split matrix: after the mixer and after the MLP of
    a layer. Data-parallel replicas of an MoE share the experts: they gather each other's tokens before them and
    scatter the sums after (``--all2all-backend allgather_reducescatter``, vLLM's default). Each rank of a TP group
    does so with its peers in the other replicas, and the group still adds up its slices of the experts; with EP the
    ranks of a group deal its tokens out among them instead (sequence parallelism), and gather them again after.
    Pipeline stages hand over hidden vector and residual. Source: ``AgRsAll2AllManager`` and
    ``use_sequence_parallel_moe`` of vLLM 0.27.
    """
    hidden_bytes = model.hidden_size * ACTIVATION_BYTES
    tp, pp, dp = config.tensor_parallel_size, config.pipeline_parallel_size, config.data_parallel_size
    exchanges = sum(layer.moe is not None for layer in model.layers) if dp > 1 else 0
    dealt = exchanges if config.enable_expert_parallel and tp > 1 else 0
    reductions = sum(_reductions(layer) for layer in model.layers) - dealt + 1  # the embedding's is one more
    found = []
    if tp > 1:
        found.append(Collective("all-reduce", reductions, TOKENS, reductions * hidden_bytes * 2 * (tp - 1) / tp, tp))
        logits_bytes = model.vocab_size * ACTIVATION_BYTES * (tp - 1) / tp
        found.append(Collective("logits all-gather", 1, SAMPLED, logits_bytes, tp))
    if exchanges:
        ranks = Layout.of(config).expert_ranks if dealt else dp
        others = (ranks - 1) / tp if dealt else dp - 1  # of the tokens of one replica, those of all being its share
        moved_bytes = 2 * exchanges * hidden_bytes * others
        found.append(Collective("expert exchange", 2 * exchanges, TOKENS, moved_bytes, ranks))
    if dealt:
        gathered_bytes = dealt * hidden_bytes * (tp - 1) / tp
        found.append(Collective("token all-gather", dealt, TOKENS, gathered_bytes, tp))
    if pp > 1:
        found.append(Collective("pipeline hop", pp - 1, TOKENS, (pp - 1) * 2 * hidden_bytes, 2))
    return tuple(found)


def bus_bytes_per_s(profile: GpuProfile, ranks: int) -> float:
    """Peak bus bandwidth of one GPU among ``ranks``, one direction. Raises IllegalPlanError without links."""
    links = profile.interconnect
    if ranks > links.domain_gpus > 1 or ranks > profile.gpus_per_node:
        return NODE_BYTES_PER_S
    if links.kind == "xgmi-mesh" and links.link_bandwidth:
        return (min(ranks, links.domain_gpus) - 1) * links.link_bandwidth.base
    if links.bandwidth or links.link_bandwidth:
        return (links.bandwidth or links.link_bandwidth).base  # type: ignore[union-attr]
    raise IllegalPlanError(
        f"{profile.name} has no links between GPUs, so {ranks} of them cannot share a model",
        hint="use --tensor-parallel-size 1, and replicas for more throughput",
    )


def latency_s(profile: GpuProfile, ranks: int, two_ranks_s: float) -> float:
    """Seconds that a collective takes however small it is, from those of two ranks."""
    growth = LATENCY_GROWTH.get(profile.interconnect.kind, 1.0)
    beyond_node = NODE_LATENCY_S if ranks > profile.gpus_per_node else 0.0
    return two_ranks_s * (1 + growth * (min(ranks, 8) / 2 - 1)) + beyond_node


def collective_rates(
    collective: Collective, profile: GpuProfile, two_ranks_s: float, link_share: float
) -> tuple[float, float]:
    """Seconds of latency of all ``count`` together, and seconds per unit of load.

    ``two_ranks_s`` is the latency between two ranks, ``link_share`` the share of the links' peak that is reached.
    """
    fixed_s = collective.count * latency_s(profile, collective.ranks, two_ranks_s)
    bytes_per_s = bus_bytes_per_s(profile, collective.ranks) * link_share
    return fixed_s, collective.bytes_per_unit / bytes_per_s


def _reductions(layer: Layer) -> int:
    """Sums over tensor-parallel ranks in one layer: one after a mixer, one after MLP and experts together."""
    outputs = {w.component for w in layer.weights if w.linear and w.shard in (Shard.ROW, Shard.EXPERT_ROW)}
    mixes = bool(outputs & {Component.ATTENTION, Component.STATE})
    return mixes + bool(outputs & {Component.MLP, Component.SHARED_EXPERT, Component.ROUTED_EXPERT})


# --- The link between a GPU and its host: weights and KV blocks that are kept in host memory
#
# ::
#
#     time = bytes / (share x peak of the link, one direction)
#
# A rank reads every weight that ``--cpu-offload-gb`` leaves in host memory once in each step, whatever is computed
# (zero-copy access of ``model_executor/offloader/uva.py``, vLLM 0.27). This is the least: kernels that read a tile
# again, and ranks that share a switch, take longer.

#: Share of a PCIe link that payload gets: packets carry 128 bytes, and 20 to 24 more of headers and checks.
PAYLOAD_SHARE = 0.85


def host_bytes_per_s(profile: GpuProfile, what: str) -> float:
    """What a GPU reads from its host. Raises InputError, naming ``what`` asks for it, where nobody says how fast."""
    link = profile.interconnect.host_bandwidth
    if link is None:
        raise InputError(
            f"{what}: how fast {profile.name} reads from its host is not in its profile",
            hint="name another --gpu, or a profile of your own with interconnect.host_bandwidth",
        )
    return link.base * PAYLOAD_SHARE


def host_reads(model: Model, profile: GpuProfile, config: EngineConfig) -> tuple[int, float]:
    """Bytes that one pass through all stages reads from host memory, and the seconds it takes; none without offload.

    Raises InputError where the speed of the link is not known.
    """
    if not config.cpu_offload_gb:
        return 0, 0.0
    stages = stage_weights(
        model,
        Layout.of(config),
        config.dtype,
        architecture=profile.architecture,
        remainder_last=features_of(config, profile).pipeline_remainder_last,
    )
    read_bytes = offloaded_bytes(stages, config)
    return read_bytes, read_bytes / host_bytes_per_s(profile, "--cpu-offload-gb")
