"""Time of the collectives of one step, of the hop between pipeline stages, and of reads from host memory.

::

    all-reduce of S bytes over n ranks = latency(n) + S x 2 (n - 1) / n / bus bandwidth
    all-gather (S after gathering)     = latency(n) + S x (n - 1) / n / bus bandwidth
    hop of S bytes                     = latency(2) + S / bandwidth
    dispatch or combine by DeepEP      = latency + max(bytes over NVLink, bytes over the network, each / bandwidth)

Behind an NVSwitch every rank has its full bandwidth. In an xGMI mesh each pair of GPUs has one link, so n ranks use
n - 1 each (RCCL on MI300X: 48 GB/s for a pair, 310-330 for eight, of 64 and 448). PCIe is shared by all. Between
nodes a ring runs once over each rank's adapter, so adapters add up. RCCL reaches 330-350 GB/s over two nodes of eight
MI300X with 50 each, NCCL 96 GB/s for eight A100 with four of 25. Ranks are numbered as ``initialize_model_parallel`` of
vLLM's ``distributed/parallel_state.py`` does: TP group, then pipeline stages, then DP ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log2

from planner.engine import EngineConfig, Layout, features_of
from planner.errors import IllegalPlanError, InputError
from planner.hardware import GpuProfile, constant, constant_of
from planner.memory import offloaded_bytes, stage_weights
from planner.model import FP8_BLOCK, Attention, Component, LatentAttention, Layer, Model, Moe, Shard
from planner.timing.operators import ACTIVATION_BYTES, FP32_BYTES, SAMPLED, TOKENS, Driver, StepLoad
from planner.timing.roofline import Cost, Part, Per, Term

#: The latency of a collective was measured up to so many ranks, and is taken to grow no further.
MOST_RANKS_MEASURED = 8


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of collective in a step, all layers together."""

    name: str
    count: int
    load: StepLoad
    bytes_per_unit: float  #: bytes on the bus of one rank, per unit of the load, all ``count`` together
    ranks: int
    span: int  #: GPUs from the first rank to the last: more than ``ranks`` where others lie between them
    #: Of experts, by kernels that send: those kernels, and the bytes of one rank that leave its node, of all ``count``
    kernels: str = ""
    network_bytes_per_unit: float = 0.0


def step_collectives(model: Model, profile: GpuProfile, config: EngineConfig) -> tuple[Collective, ...]:
    """Collectives of a step: those of the ranks of one DP rank, and those of DP ranks that share experts.

    Tensor parallelism reduces the hidden vector after each row-split matrix. DP ranks of an MoE gather each other's
    tokens before the experts and scatter the sums after (``--all2all-backend allgather_reducescatter``). With EP the
    ranks of a TP group deal its tokens out (sequence parallelism) instead of adding up slices, and gather them again.
    Source: ``AgRsAll2AllManager`` and ``use_sequence_parallel_moe`` of vLLM 0.27."""
    hidden_bytes = model.hidden_size * ACTIVATION_BYTES
    tp, pp, dp = config.tensor_parallel_size, config.pipeline_parallel_size, config.data_parallel_size
    moe_layers = sum(layer.moe is not None for layer in model.layers) if dp > 1 else 0
    dealt = moe_layers if config.enable_expert_parallel and tp > 1 else 0
    reductions = sum(_reductions(layer) for layer in model.layers) - dealt + 1  # the embedding's is one more
    found = []
    if tp > 1:
        found.append(
            Collective("all-reduce", reductions, TOKENS, reductions * hidden_bytes * 2 * (tp - 1) / tp, tp, tp)
        )
        logits_bytes = model.vocab_size * ACTIVATION_BYTES * (tp - 1) / tp
        found.append(Collective("logits all-gather", 1, SAMPLED, logits_bytes, tp, tp))
    if moe_layers and config.exchange:
        found.append(_sent(model, profile, config))
    elif moe_layers:
        ranks = Layout.of(config).expert_ranks if dealt else dp
        others = (ranks - 1) / tp if dealt else dp - 1  # of the tokens of one DP rank, those of all being its share
        moved_bytes = 2 * moe_layers * hidden_bytes * others
        found.append(Collective("expert exchange", 2 * moe_layers, TOKENS, moved_bytes, ranks, tp * pp * dp))
    if dealt:
        gathered_bytes = dealt * hidden_bytes * (tp - 1) / tp
        found.append(Collective("token all-gather", dealt, TOKENS, gathered_bytes, tp, tp))
    return (*found, *_shared_context(model, config), *_stage_hops(hidden_bytes, profile, tp, pp))


def _sent(model: Model, profile: GpuProfile, config: EngineConfig) -> Collective:
    """Dispatch of tokens to the ranks of their experts, in fp8 where blocks of weights are, and the sums sent back.

    Source: ``fused_moe/prepare_finalize`` of vLLM 0.32. TP ranks deal out the tokens of their DP rank."""
    ranks, linear = Layout.of(config).expert_ranks, model.quantization.linear
    blocks = config.weight_dtype == "fp8" and linear is not None and linear.group == FP8_BLOCK.group
    nodes, each_expert = min(-(-config.num_gpus // profile.joined_gpus), ranks), "each expert" in config.exchange
    copies = [sent_copies(layer.moe, ranks, nodes, each_expert=each_expert) for layer in model.layers if layer.moe]
    sent_bytes = (1 + FP32_BYTES / 128 if blocks else ACTIVATION_BYTES) + ACTIVATION_BYTES
    sent_bytes *= model.hidden_size / config.tensor_parallel_size
    inside, outside = (sent_bytes * sum(each) for each in zip(*copies, strict=True))
    kernels = "high_throughput" if "high_throughput" in config.exchange else "low_latency"
    return Collective("expert exchange", 2 * len(copies), TOKENS, inside, ranks, config.num_gpus, kernels, outside)


def sent_copies(moe: Moe, ranks: int, nodes: int, *, each_expert: bool) -> tuple[float, float]:
    """Copies of a token that one rank sends over the links of its node, and over the network.

    One for each expert goes straight to its rank. Else one goes to each other node, where it is passed on to each rank.
    """
    if each_expert:
        return moe.top_k * (ranks / nodes - 1) / ranks, moe.top_k * (1 - 1 / nodes)
    return _reached(moe, ranks) * (1 - nodes / ranks), _reached(moe, nodes) * (1 - 1 / nodes)


def _reached(moe: Moe, places: int) -> float:
    """Distinct places among as many as hold a share of the experts each, that the experts of a token are at."""
    open_ = places * (1 - (1 - moe.top_groups / moe.groups) ** max(moe.groups / places, 1))
    return open_ * (1 - (1 - 1 / open_) ** moe.top_k) if open_ > 1 else 1.0


def _shared_context(model: Model, config: EngineConfig) -> Iterator[Collective]:
    """Collectives of ranks that share the tokens of the cache: in each layer, for each token that is decoded.

    - All-gather of the query: each rank answers for the heads of all, in MLA of 512 + 64 (W_UK is absorbed).
    - All-gather of the sums: one exponent of each head, of every rank, in fp32.
    - Reduce-scatter of the output: each rank keeps its own heads, of 512 in MLA.

    Source: ``v1/attention/backends/mla/common.py`` and ``cp_lse_ag_out_rs`` of vLLM 0.11.0. Left out: prompts that go
    on from cached tokens gather these, of MLA 1,152 bytes of a token and layer. Raises InputError for a sparse index.
    """
    ranks = config.decode_context_parallel_size
    if ranks == 1:
        return
    heads_of, layers, moved_bytes = ranks / config.tensor_parallel_size, 0, 0.0
    for mixer in model.mixers():
        if not isinstance(mixer, Attention | LatentAttention) or mixer.indexer is not None:
            raise InputError(
                f"--decode-context-parallel-size: what ranks of {model.id} exchange for their index is not known",
                hint="leave it out; planner fit says what it leaves for the KV cache",
            )
        if isinstance(mixer, LatentAttention):
            query_and_output = mixer.kv_elements_per_token + mixer.kv_lora_rank
        else:
            query_and_output = mixer.head_dim + mixer.v_head_dim
        of_a_head_bytes = query_and_output * ACTIVATION_BYTES + ranks * FP32_BYTES
        moved_bytes += mixer.num_heads * heads_of * of_a_head_bytes * (ranks - 1) / ranks
        layers += 1
    yield Collective("context exchange", 3 * layers, StepLoad(Driver.DECODES), moved_bytes, ranks, ranks)


def _stage_hops(hidden_bytes: int, profile: GpuProfile, tp: int, pp: int) -> Iterator[Collective]:
    """Hops between pipeline stages: hidden vector and residual of each token.

    Each rank sends its slice, and the next stage gathers them (``v1/worker/gpu_worker.py``, vLLM 0.11 to 0.27)."""
    if pp == 1:
        return
    token_bytes = 2 * hidden_bytes
    # a hop leaves the node unless the first rank of the one stage and the last rank of the other share it
    firsts = range(0, (pp - 1) * tp, tp)
    between_nodes = sum(first // profile.joined_gpus != (first + 2 * tp - 1) // profile.joined_gpus for first in firsts)
    for name, hops, span in (
        ("pipeline hop", pp - 1 - between_nodes, 2),
        ("pipeline hop between nodes", between_nodes, profile.joined_gpus + 1),
    ):
        if hops:
            yield Collective(name, hops, TOKENS, hops * token_bytes / tp, 2, span)
    if tp > 1:
        gathered_bytes = (pp - 1) * token_bytes * (tp - 1) / tp
        yield Collective("pipeline all-gather", pp - 1, TOKENS, gathered_bytes, tp, tp)


def joined_nodes(model: Model, profile: GpuProfile, config: EngineConfig) -> int:
    """Nodes over whose network one engine exchanges anything; DP ranks of a dense model exchange nothing."""
    ranks = config.tensor_parallel_size * config.pipeline_parallel_size
    return -(-ranks * (config.data_parallel_size if model.is_moe else 1) // profile.joined_gpus)


def bus_bytes_per_s(profile: GpuProfile, ranks: int, span: int | None = None) -> float:
    """Peak bus bandwidth of a rank, one direction. Raises PlannerError for no links or an unknown network."""
    links, span = profile.interconnect, span or ranks
    if span > profile.joined_gpus:
        network = links.network_bandwidth
        if network is None:
            raise InputError(
                f"the layout needs more than one node of {profile.joined_gpus} GPUs, and the network bandwidth of "
                f"{profile.name} is not in its profile",
                hint="state what one GPU has of it with --network-gb-per-s, such as 50 for an adapter of 400 Gbit/s "
                "for each GPU; or use at most the GPUs of one node",
            )
        of_a_node = max(ranks * profile.joined_gpus // span, 1)  # their adapters add up, to the links inside at most
        return min(of_a_node * network.base, bus_bytes_per_s(profile, of_a_node) if of_a_node > 1 else network.base)
    if span > links.domain_gpus > 1:
        return constant("beyond_links")
    if links.kind == "xgmi-mesh" and links.link_bandwidth:
        return (min(ranks, links.domain_gpus) - 1) * links.link_bandwidth.base
    if bandwidth := links.bandwidth or links.link_bandwidth:
        return bandwidth.base
    if links.kind != "none":
        hint = "add bandwidth to [interconnect] of its profile, or use --tensor-parallel-size 1"
        raise IllegalPlanError(f"link bandwidth of {profile.name} unknown: {ranks} GPUs share the model", hint=hint)
    raise IllegalPlanError(
        f"{profile.name} has no links between GPUs, so {ranks} of them cannot share a model",
        hint="use --tensor-parallel-size 1, and more servers for more throughput",
    )


def latency_factor(profile: GpuProfile, ranks: int) -> float:
    """Latency of a collective over ``ranks``, over that of two ranks."""
    return 1 + constant_of("latency_growth", profile.interconnect.kind) * (min(ranks, MOST_RANKS_MEASURED) / 2 - 1)


def collective_term(collective: Collective, profile: GpuProfile) -> Term:
    """``collective`` on ``profile``. Raises PlannerError where its links are missing or not known."""
    if collective.kernels:
        return _exchange_term(collective, profile)
    bytes_per_s = bus_bytes_per_s(profile, collective.ranks, collective.span)
    latencies = collective.count * latency_factor(profile, collective.ranks)
    nodes = -(-collective.span // profile.joined_gpus)
    share = "link_share" if nodes == 1 else "network_share"
    costs = [
        Cost(Part.FIXED, Per.STEP, latencies, times="collective_s"),
        Cost(Part.MEMORY, Per.UNIT, collective.bytes_per_unit / bytes_per_s, over=share),
    ]
    if nodes > 1:  # a tree over the nodes
        costs.append(Cost(Part.FIXED, Per.STEP, collective.count * ceil(log2(nodes)), times="network_s"))
    return Term(
        collective.name, collective.count, collective.load, tuple(costs),
        bytes_per_unit=collective.bytes_per_unit, path="link",
    )  # fmt: skip


def _exchange_term(collective: Collective, profile: GpuProfile) -> Term:
    """The slower of links and network, which kernels that send use at once."""
    of_a_node = ceil(collective.ranks * profile.joined_gpus / max(collective.span, profile.joined_gpus))
    most = constant_of("exchange_bandwidth", f"{collective.kernels}_{(profile.compute_capability or (0,))[0]}")
    inside_s = collective.bytes_per_unit / min(constant("exchange_share") * bus_bytes_per_s(profile, of_a_node), most)
    network = collective.network_bytes_per_unit
    outside_s = network / bus_bytes_per_s(profile, 1, collective.span) if network else 0.0
    sent = Cost(Part.MEMORY, Per.UNIT, inside_s)
    if outside_s > inside_s:
        sent = Cost(Part.MEMORY, Per.UNIT, outside_s, over="network_share")
    start = Cost(Part.FIXED, Per.STEP, collective.count * constant_of("exchange_latency", collective.kernels))
    return Term(
        collective.name, collective.count, collective.load, (start, sent),
        bytes_per_unit=network if outside_s > inside_s else collective.bytes_per_unit, path="link",
    )  # fmt: skip


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
# A rank reads every weight that ``--cpu-offload-gb`` leaves in host memory once in each step (zero-copy access of
# ``model_executor/offloader/uva.py``, vLLM 0.27): a lower bound.


def host_bytes_per_s(profile: GpuProfile, what: str) -> float:
    """Peak of the link to the host, one direction. Raises InputError, naming ``what`` needs it, where it is unknown."""
    link = profile.interconnect.host_bandwidth
    if link is None:
        raise InputError(
            f"{what}: how fast {profile.name} reads from its host is not in its profile",
            hint="name another --gpu, or a profile of your own with interconnect.host_bandwidth",
        )
    return link.base


def host_read_term(model: Model, profile: GpuProfile, config: EngineConfig) -> Term | None:
    """Reads from host memory of a pass; None without ``--cpu-offload-gb``. Raises InputError for an unknown link."""
    if not config.cpu_offload_gb:
        return None
    remainder_last = features_of(config, profile).pipeline_remainder_last
    stages = stage_weights(model, Layout.of(config), config.dtype, profile.architecture, remainder_last)
    read_bytes = offloaded_bytes(stages, config)
    bytes_per_s = host_bytes_per_s(profile, "--cpu-offload-gb") * constant("pcie_payload_share")
    cost = Cost(Part.MEMORY, Per.STEP, read_bytes / bytes_per_s)
    return Term("weights from host", 1, TOKENS, (cost,), fixed_bytes=read_bytes, path="host link")
