"""Collectives: bytes by formula, bandwidth by topology."""

from dataclasses import replace

import pytest
from memory_cases import config, model
from physics_cases import engine, gpu, llama_8b, moe_model, quantity

from planner.errors import IllegalPlanError, InputError
from planner.hardware import load_profile
from planner.hardware.profiles import GpuProfile
from planner.timing.efficiencies import Line, covariates_of
from planner.timing.links import (
    Collective,
    bus_bytes_per_s,
    collective_term,
    latency_factor,
    sent_copies,
    step_collectives,
)
from planner.timing.roofline import Part


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_all_reduce_moves_two_n_minus_one_over_n(tp: int) -> None:
    # one after the embedding, two per layer, each of one hidden vector of 4096 in 16 bits
    found = {c.name: c for c in step_collectives(llama_8b(), gpu(), engine(tp))}
    assert found["all-reduce"].count == 65
    assert found["all-reduce"].bytes_per_unit == 65 * 8192 * 2 * (tp - 1) / tp
    assert found["logits all-gather"].bytes_per_unit == 128_256 * 2 * (tp - 1) / tp


def test_one_gpu_exchanges_nothing() -> None:
    assert step_collectives(llama_8b(), gpu(), engine()) == ()


@pytest.mark.parametrize(("ranks", "gb_s"), [(2, 64), (4, 192), (8, 448)])
def test_in_a_mesh_each_pair_has_one_link(ranks: int, gb_s: float) -> None:
    assert bus_bytes_per_s(gpu(links="xgmi-mesh"), ranks) == gb_s * 1e9


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_behind_a_switch_the_number_of_ranks_does_not_matter(ranks: int) -> None:
    assert bus_bytes_per_s(gpu(), ranks) == 450e9


def networked(gb_s: float = 25, **changes: object) -> GpuProfile:
    """The test GPU with so much network for each GPU."""
    links = gpu().interconnect.model_copy(update={"network_bandwidth": quantity(gb_s, "GB/s"), **changes})
    return gpu().model_copy(update={"interconnect": links})


def seconds(collective: Collective, profile: GpuProfile, part: Part) -> float:
    """Of one unit of load, where the latency of two ranks is 1 s and links reach their peak."""
    return sum(cost.seconds for cost in collective_term(collective, profile).costs if cost.part is part)


def test_between_nodes_the_adapters_of_a_node_add_up() -> None:
    # a ring enters and leaves a node once for each of its ranks, through the adapter of that rank
    assert bus_bytes_per_s(networked(25), 16) == 8 * 25e9
    assert bus_bytes_per_s(networked(25), 8) == 450e9
    # four ranks with four GPUs between each and the next lie on two nodes of eight, two on each
    assert bus_bytes_per_s(networked(25), 4, span=16) == 2 * 25e9
    # two ranks, one on each node: one adapter
    assert bus_bytes_per_s(networked(25), 2, span=16) == 25e9
    # the links inside a node are the limit where adapters have more
    assert bus_bytes_per_s(networked(100), 16) == 450e9


@pytest.mark.parametrize(
    ("gpu_name", "adapter_gb_s", "measured_gb_s"),
    [
        # all-reduce over two nodes of eight MI300X with 8 x 400 Gbit/s: 330 to 350 GB/s (ROCm/cvs)
        ("mi300x", 50, 340),
        # 24 A100 with four adapters of 200 Gbit/s to a node: "the theoretical performance is 100 GB/s", 96 at the peak
        # (NVIDIA/nccl-tests issue 119)
        ("a100-sxm-80gb", 12.5, 96),
        # 248 nodes of eight H200 with 8 x 400 Gbit/s: "typically measuring around 350G" (nccl-tests issue 283)
        ("h200-sxm", 50, 350),
    ],
)
def test_published_bus_bandwidths_over_nodes(gpu_name: str, adapter_gb_s: float, measured_gb_s: float) -> None:
    profile = load_profile(gpu_name)
    links = profile.interconnect.model_copy(update={"network_bandwidth": quantity(adapter_gb_s, "GB/s")})
    bus = bus_bytes_per_s(profile.model_copy(update={"interconnect": links}), 16) / 1e9
    assert 0.8 * bus <= measured_gb_s <= bus


def test_beyond_the_links_of_a_node_50_gb_s_are_assumed() -> None:
    bridged = gpu().model_copy(update={"interconnect": gpu().interconnect.model_copy(update={"domain_gpus": 2})})
    assert (bus_bytes_per_s(bridged, 2), bus_bytes_per_s(bridged, 4)) == (450e9, 50e9)


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(InputError, match="network bandwidth") as error:
        bus_bytes_per_s(gpu(), 16)
    assert error.value.hint


def test_nvlink_that_joins_nodes_is_no_network() -> None:
    rack = networked(50, domain_gpus=72).model_copy(update={"gpus_per_node": 4})
    assert bus_bytes_per_s(rack, 8) == 450e9
    names = {c.name for c in step_collectives(llama_8b(), rack, engine(4, pipeline_parallel_size=2))}
    assert "pipeline hop" in names and "pipeline hop between nodes" not in names


def test_without_links_there_is_no_tensor_parallelism() -> None:
    with pytest.raises(IllegalPlanError, match="no links"):
        bus_bytes_per_s(gpu(links="none"), 2)


def test_latency_of_the_published_tables() -> None:
    # vLLM custom all-reduce of 16 KB under graphs: H100 4.5 us (2 GPUs) and 5.3 us (8); PCIe RTX PRO 6000 5.1 and 27.5
    assert latency_factor(gpu(), 8) == pytest.approx(5.3 / 4.5, rel=0.02)
    assert latency_factor(gpu(links="pcie"), 8) == pytest.approx(27.5 / 5.1, rel=0.05)
    assert latency_factor(gpu(), 2) == 1


@pytest.mark.parametrize(("kind", "factor"), [("xgmi-mesh", 1.18), ("nvlink-bridge", 2.5), ("on-package", 4.0)])
def test_latency_of_eight_ranks_where_nobody_measured_it(kind: str, factor: float) -> None:
    # a mesh as a switch; a bridge between a switch and PCIe; anything else one latency more for each further pair
    links = gpu().interconnect.model_copy(update={"kind": kind})
    assert latency_factor(gpu().model_copy(update={"interconnect": links}), 8) == pytest.approx(factor)


def test_a_mesh_pair_is_seven_times_slower_than_a_switch_pair() -> None:
    reduce, *_ = step_collectives(llama_8b(), gpu(), engine(2))
    on_mesh, on_switch = (seconds(reduce, profile, Part.MEMORY) for profile in (gpu(links="xgmi-mesh"), gpu()))
    assert on_mesh / on_switch == pytest.approx(450 / 64)


@pytest.mark.parametrize("expert_parallel", [False, True])
def test_dp_ranks_that_share_experts_gather_and_scatter_tokens(expert_parallel: bool) -> None:
    changes = {"data_parallel_size": 4, "enable_expert_parallel": expert_parallel}
    found = {c.name: c for c in step_collectives(moe_model(), gpu(), engine(1, **changes))}
    # no all-reduce at TP 1; each rank receives the tokens of 3 others and sends back their sums: 2 x 3 x 4096 bytes
    assert found["expert exchange"].bytes_per_unit == 48 * 2 * 3 * 4096
    assert found["expert exchange"].count == 48 * 2


def test_dp_ranks_of_two_gpus_each_exchange_side_by_side() -> None:
    # TP 2 x DP 4 without EP: each rank gathers from its 3 peers, and the two add up their slices of the experts
    found = {c.name: c for c in step_collectives(moe_model(), gpu(), engine(2, data_parallel_size=4))}
    assert (found["expert exchange"].ranks, found["expert exchange"].bytes_per_unit) == (4, 48 * 2 * 3 * 4096)
    assert found["all-reduce"].count == 48 + 48 + 1
    assert "token all-gather" not in found


def test_with_expert_parallelism_a_group_deals_its_tokens_out() -> None:
    # each of 8 ranks brings half the tokens of a DP rank and gathers those of 7 others: 7 / 2 of a DP rank's tokens
    changes = {"data_parallel_size": 4, "enable_expert_parallel": True}
    found = {c.name: c for c in step_collectives(moe_model(), gpu(), engine(2, **changes))}
    assert (found["expert exchange"].ranks, found["expert exchange"].bytes_per_unit) == (8, 48 * 2 * 3.5 * 4096)
    # mixer and embedding are reduced; after the experts each rank gets the other's half
    assert found["all-reduce"].count == 48 + 1
    assert (found["token all-gather"].ranks, found["token all-gather"].bytes_per_unit) == (2, 48 * 4096 / 2)


def exchange_us(gpu_name: str, ranks: int, kernels: str, tokens: int, **changes: object) -> float:
    """Dispatch and combine of ``tokens`` of each rank in one layer of DeepSeek-V3, in us; 50 GB/s of network."""
    profile, v3 = load_profile(gpu_name), model("deepseek-ai/DeepSeek-V3")
    links = profile.interconnect.model_copy(update={"network_bandwidth": quantity(50, "GB/s")})
    asked = {"data_parallel_size": ranks, "enable_expert_parallel": True, "all2all_backend": f"deepep_{kernels}"}
    settings = replace(config(v3.id, gpu_name, "0.32.0", **asked), weight_dtype=changes.pop("weight_dtype", "fp8"))
    moes = {id(one): replace(one, moe=one.moe and replace(one.moe, **changes)) for one in v3.layers}
    v3 = replace(v3, layers=tuple(moes[id(one)] for one in v3.layers))
    profile = profile.model_copy(update={"interconnect": links})
    (found,) = (c for c in step_collectives(v3, profile, settings) if c.name == "expert exchange")
    term, shares = collective_term(found, profile), {"network_share": 0.85, "": 1.0}
    each = [cost.seconds / shares[cost.over] * (1 if cost.part is Part.FIXED else tokens) for cost in term.costs]
    return sum(each) / 58 * 1e6


@pytest.mark.parametrize(
    ("ranks", "dispatch_us", "combine_us"),
    [(8, 77, 114), (16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369), (256, 194, 360)],
)
def test_low_latency_is_as_fast_as_deepep_publishes(ranks: int, dispatch_us: float, combine_us: float) -> None:
    """DeepEP, docs/legacy.md: H800, 128 tokens of 7,168, top-8, fp8 there and bf16 back."""
    assert exchange_us("h800", ranks, "low_latency", 128) == pytest.approx(dispatch_us + combine_us, rel=0.22)


@pytest.mark.parametrize(
    ("nodes", "dispatch_gb_s", "combine_gb_s"), [(1, 153, 158), (2, 43, 43), (4, 58, 57), (8, 51, 50)]
)
def test_high_throughput_is_as_fast_as_deepep_publishes(nodes: int, dispatch_gb_s: float, combine_gb_s: float) -> None:
    """The same page: 4,096 tokens of top-4 groups, one to a node. Its bytes count the rank's own (test_internode.py):
    over the network those of the nodes, inside one those of the ranks that a token reaches."""
    places = min(nodes, 4) if nodes > 1 else 8
    counted = 4096 * 7168 * places * (1 - (1 - 1 / places) ** 8)
    measured_us = counted * ((1 + 4 / 128) / dispatch_gb_s + 2 / combine_gb_s) / 1e3
    groups = {"groups": nodes, "top_groups": min(nodes, 4)}
    assert exchange_us("h800", 8 * nodes, "high_throughput", 4096, **groups) == pytest.approx(measured_us, rel=0.12)


@pytest.mark.parametrize(
    ("gpu_name", "kernels", "tokens", "table_us"),
    [
        ("h200-sxm", "high_throughput", 128, 252 + 126), ("h200-sxm", "high_throughput", 16384, 4249 + 4979),
        ("b200-sxm", "high_throughput", 128, 299 + 153), ("b200-sxm", "high_throughput", 16384, 5558 + 7951),
        ("h200-sxm", "low_latency", 128, 112 + 101), ("b200-sxm", "low_latency", 128, 97 + 70),
    ],
)  # fmt: skip
def test_exchanges_of_one_node_are_those_of_the_tables(
    gpu_name: str, kernels: str, tokens: int, table_us: float
) -> None:
    """aiconfigurator, vLLM 0.24: EP 8 of 7,168, top-8 of 256, bf16 both ways, experts of any group."""
    ours = exchange_us(gpu_name, 8, kernels, tokens, weight_dtype="bf16", groups=1, top_groups=1)
    assert ours == pytest.approx(table_us, rel=0.2)


@pytest.mark.parametrize(
    ("gpu_name", "kernels", "latency_us", "gb_s"),
    [
        ("h200-sxm", "low_latency", 45, 217), ("b200-sxm", "low_latency", 45, 400), ("h800", "low_latency", 45, 140),
        ("h200-sxm", "high_throughput", 170, 215), ("b200-sxm", "high_throughput", 170, 152),
    ],
)  # fmt: skip
def test_latency_and_bandwidth_of_an_exchange(gpu_name: str, kernels: str, latency_us: float, gb_s: float) -> None:
    idle_us, busy_us = (exchange_us(gpu_name, 8, kernels, tokens, groups=1, top_groups=1) for tokens in (0, 1000))
    copies = 7 if kernels == "low_latency" else 7 * (1 - (7 / 8) ** 8)
    assert idle_us == pytest.approx(2 * latency_us)
    assert busy_us - idle_us == pytest.approx(copies * 7168 * (3 + 4 / 128) / gb_s, rel=1e-6)


def test_copies_that_are_sent() -> None:
    """Of 256 experts on 16 ranks of two nodes: 8 to any rank, 7 of 16 inside; or one to the other node, mostly."""
    moe = replace(next(layer.moe for layer in model("Qwen/Qwen3-30B-A3B").layers if layer.moe), top_k=8)
    assert sent_copies(moe, 16, 2, each_expert=True) == (8 * 7 / 16, 4)
    reached = 16 * (1 - (15 / 16) ** 8), 2 * (1 - (1 / 2) ** 8)
    assert sent_copies(moe, 16, 2, each_expert=False) == pytest.approx((reached[0] * 7 / 8, reached[1] / 2))
    # the four groups of eight that DeepSeek-V3 routes a token to hold half of the ranks
    grouped = replace(moe, groups=8, top_groups=4)
    assert sent_copies(grouped, 64, 8, each_expert=False)[1] == pytest.approx(4 * (1 - (3 / 4) ** 8) * 7 / 8)


def test_pipeline_stages_hand_over_hidden_and_residual() -> None:
    (hop,) = step_collectives(llama_8b(), gpu(), engine(pipeline_parallel_size=4))
    assert (hop.count, hop.bytes_per_unit) == (3, 3 * 2 * 8192)


def test_each_rank_hands_over_its_slice_and_gathers_the_others() -> None:
    found = {c.name: c for c in step_collectives(llama_8b(), gpu(), engine(4, pipeline_parallel_size=2))}
    assert found["pipeline hop"].bytes_per_unit == 2 * 8192 / 4
    assert found["pipeline all-gather"].bytes_per_unit == 2 * 8192 * 3 / 4


@pytest.mark.parametrize(
    ("tp", "pp", "inside", "between"), [(8, 2, 0, 1), (4, 4, 2, 1), (4, 2, 1, 0), (2, 12, 9, 2), (8, 4, 0, 3)]
)
def test_stages_fill_nodes_of_eight_in_turn(tp: int, pp: int, inside: int, between: int) -> None:
    found = {c.name: c.count for c in step_collectives(llama_8b(), networked(), engine(tp, pipeline_parallel_size=pp))}
    assert (found.get("pipeline hop", 0), found.get("pipeline hop between nodes", 0)) == (inside, between)


def test_a_hop_between_nodes_takes_the_network() -> None:
    """TP 8, PP 2 on nodes of eight: 16,384 bytes of a token in eight slices, over 25 GB/s each."""
    found = {c.name: c for c in step_collectives(llama_8b(), networked(25), engine(8, pipeline_parallel_size=2))}
    hop = found["pipeline hop between nodes"]
    assert seconds(hop, networked(25), Part.MEMORY) == pytest.approx(2048 / 25e9)
    term = collective_term(hop, networked(25))
    fixed = [(cost.seconds, cost.times) for cost in term.costs if cost.part is Part.FIXED]
    assert fixed == [(1, "collective_s"), (1, "network_s")]
    assert [cost.over for cost in term.costs if cost.part is Part.MEMORY] == ["network_share"]


@pytest.mark.parametrize(("tp", "depth"), [(16, 1), (32, 2), (64, 3)])
def test_latency_grows_with_the_tree_over_the_nodes(tp: int, depth: int) -> None:
    reduce, *_ = step_collectives(llama_8b(), networked(25), engine(tp))
    term = collective_term(reduce, networked(25))
    assert sum(cost.seconds for cost in term.costs if cost.times == "network_s") == 65 * depth


def test_uncertainty_opens_where_a_network_lies_between_ranks() -> None:
    near, far = (covariates_of(llama_8b(), networked(25), engine(tp)) for tp in (8, 16))
    assert (near["nodes"], far["nodes"]) == ("", "2")
    line = Line("slowdown", ("gpu", "nodes"), 0.25)
    assert line.key(near) is None and line.key(far)
    # copies of a model without experts exchange nothing, wherever they are
    assert covariates_of(llama_8b(), networked(25), engine(8, data_parallel_size=2))["nodes"] == ""
    assert covariates_of(moe_model(), networked(25), engine(8, data_parallel_size=2))["nodes"] == "2"


def test_experts_that_are_shared_across_nodes_exchange_over_the_network() -> None:
    # TP 4 x DP 4 without EP: a rank's three peers lie 4, 8 and 12 GPUs on, so two of them on the other node
    found = {c.name: c for c in step_collectives(moe_model(), gpu(), engine(4, data_parallel_size=4))}
    exchange = found["expert exchange"]
    assert (exchange.ranks, exchange.span) == (4, 16)
    assert seconds(exchange, networked(25), Part.MEMORY) == pytest.approx(48 * 2 * 3 * 4096 / (2 * 25e9))
