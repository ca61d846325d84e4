"""Collectives: bytes by formula, bandwidth by topology."""

from __future__ import annotations

import pytest
from physics_cases import engine, gpu, llama_8b, moe_model

from planner.errors import IllegalPlanError
from planner.timing.links import bus_bytes_per_s, collective_rates, latency_s, step_collectives


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_all_reduce_moves_two_n_minus_one_over_n(tp: int) -> None:
    # one after the embedding, two per layer, each of one hidden vector of 4096 in 16 bits
    found = {c.name: c for c in step_collectives(llama_8b(), engine(tp))}
    assert found["all-reduce"].count == 65
    assert found["all-reduce"].bytes_per_unit == 65 * 8192 * 2 * (tp - 1) / tp
    assert found["logits all-gather"].bytes_per_unit == 128_256 * 2 * (tp - 1) / tp


def test_one_gpu_exchanges_nothing() -> None:
    assert step_collectives(llama_8b(), engine()) == ()


@pytest.mark.parametrize(("ranks", "gb_s"), [(2, 64), (4, 192), (8, 448)])
def test_in_a_mesh_each_pair_has_one_link(ranks: int, gb_s: float) -> None:
    assert bus_bytes_per_s(gpu(links="xgmi-mesh"), ranks) == gb_s * 1e9


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_behind_a_switch_the_number_of_ranks_does_not_matter(ranks: int) -> None:
    assert bus_bytes_per_s(gpu(), ranks) == 450e9


def test_beyond_the_node_the_network_adapter_limits() -> None:
    assert bus_bytes_per_s(gpu(), 16) == 50e9


def test_without_links_there_is_no_tensor_parallelism() -> None:
    with pytest.raises(IllegalPlanError, match="no links"):
        bus_bytes_per_s(gpu(links="none"), 2)


def test_latency_of_the_published_tables() -> None:
    # vLLM custom all-reduce of 16 KB under graphs: H100 4.5 us (2 GPUs) and 5.3 us (8); PCIe RTX PRO 6000 5.1 and 27.5
    assert latency_s(gpu(), 8, 4.5e-6) == pytest.approx(5.3e-6, rel=0.1)
    assert latency_s(gpu(links="pcie"), 8, 5.1e-6) == pytest.approx(27.5e-6, rel=0.1)


def test_a_mesh_pair_is_seven_times_slower_than_a_switch_pair() -> None:
    (mesh, *_), (switch, *_) = (step_collectives(llama_8b(), engine(2)) for _ in range(2))
    _, on_mesh = collective_rates(mesh, gpu(links="xgmi-mesh"), 0.0, 1.0)
    _, on_switch = collective_rates(switch, gpu(), 0.0, 1.0)
    assert on_mesh / on_switch == pytest.approx(450 / 64)


@pytest.mark.parametrize("expert_parallel", [False, True])
def test_replicas_that_share_experts_gather_and_scatter_tokens(expert_parallel: bool) -> None:
    changes = {"data_parallel_size": 4, "enable_expert_parallel": expert_parallel}
    found = {c.name: c for c in step_collectives(moe_model(), engine(1, **changes))}
    # no all-reduce at TP 1; each rank receives the tokens of 3 others and sends back their sums: 2 x 3 x 4096 bytes
    assert found["expert exchange"].bytes_per_unit == 48 * 2 * 3 * 4096
    assert found["expert exchange"].count == 48 * 2


def test_replicas_of_two_ranks_each_exchange_side_by_side() -> None:
    # TP 2 x DP 4 without EP: each rank gathers from its 3 peers, and the two add up their slices of the experts
    found = {c.name: c for c in step_collectives(moe_model(), engine(2, data_parallel_size=4))}
    assert (found["expert exchange"].ranks, found["expert exchange"].bytes_per_unit) == (4, 48 * 2 * 3 * 4096)
    assert found["all-reduce"].count == 48 + 48 + 1
    assert "token all-gather" not in found


def test_with_expert_parallelism_a_group_deals_its_tokens_out() -> None:
    # each of 8 ranks brings half the tokens of a replica and gathers those of 7 others: 7 / 2 of a replica's tokens
    changes = {"data_parallel_size": 4, "enable_expert_parallel": True}
    found = {c.name: c for c in step_collectives(moe_model(), engine(2, **changes))}
    assert (found["expert exchange"].ranks, found["expert exchange"].bytes_per_unit) == (8, 48 * 2 * 3.5 * 4096)
    # mixer and embedding are reduced; after the experts each rank gets the other's half
    assert found["all-reduce"].count == 48 + 1
    assert (found["token all-gather"].ranks, found["token all-gather"].bytes_per_unit) == (2, 48 * 4096 / 2)


def test_pipeline_stages_hand_over_hidden_and_residual() -> None:
    (hop,) = step_collectives(llama_8b(), engine(pipeline_parallel_size=4))
    assert (hop.count, hop.bytes_per_unit) == (3, 3 * 2 * 8192)
