"""Servers over several nodes: which layouts are searched, on how many nodes, and over which network."""

import json
import re
from typing import Any

import pytest
from command_line import answer_of, refused, run
from searches import SMALL, choices, search_for

from planner import recommend_plans
from planner.engine import Layout, parse_version
from planner.planning.search.search import Search
from planner.workload.load import Load

pytestmark = pytest.mark.usefixtures("best_plans", "short_replays")

DEEPSEEK, KIMI = "deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K2-Instruct"


def answered(*words: str) -> dict[str, Any]:
    """What a command answers as JSON."""
    found: dict[str, Any] = json.loads(run(*words, "--format", "json").out)
    return found


def request(model: str, *gpus: str, **changes: Any) -> Search:
    """Plans of 1024 tokens in and 128 out for the most throughput, in nodes of eight."""
    changes = {"goal": "max-throughput", "gpus_per_node": 8, "version": parse_version("0.27.1"), **changes}
    return search_for(None, *gpus, model=model, load=Load(1024, 128), **changes)


def layouts_of(model: str, gpu: str, nodes: int, **changes: Any) -> list[Layout]:
    asked = request(model, gpu, **changes)
    return list(choices(asked)._layouts_over(asked.space.model.model, nodes))


@pytest.mark.parametrize("nodes", [2, 4])
def test_tensor_parallelism_stays_inside_or_fills_every_node(nodes: int) -> None:
    found = layouts_of(DEEPSEEK, "h100", nodes)
    assert all(layout.num_gpus == 8 * nodes for layout in found)
    assert Layout(8, nodes) in found
    # the dense layers' 18,432 columns in blocks of 128: 1,152 for each of 16 ranks are nine, 576 for each of 32 are not
    assert (Layout(16, 1, 1, True) in found, Layout(32, 1, 1, True) in found) == (nodes == 2, False)
    # attention by DP, whole experts on each of all the ranks
    assert {Layout(size, 1, 8 * nodes // size, True) for size in (1, 2, 4, 8)} <= set(found)
    assert all(8 % layout.tensor_parallel_size == 0 or layout.tensor_parallel_size == 16 for layout in found)


def test_a_model_without_experts_has_no_ranks_that_share_them() -> None:
    assert layouts_of("meta-llama/Llama-3.1-405B", "h100", 2) == [Layout(8, 2), Layout(16)]


def test_three_nodes_are_three_stages() -> None:
    # 128 heads are not divisible by 24
    found = layouts_of(DEEPSEEK, "h100", 3)
    assert Layout(8, 3) in found and not any(layout.tensor_parallel_size == 24 for layout in found)


@pytest.mark.parametrize(
    ("model", "gpu", "gpus"),
    [
        # bytes of the checkpoint in GB over those of a node: 671 over 8 x 80, 1,029 over 8 x 80 (16 H800 in its own
        # guide) and 8 x 141; MI300X has 8 x 192
        (DEEPSEEK, "h100", 16),
        (KIMI, "h100", 16),
        (KIMI, "h200", 8),
        (DEEPSEEK, "mi300x", 8),
        (KIMI, "mi300x", 8),
    ],
)
def test_what_does_not_fit_one_node_gets_as_many_as_it_needs(model: str, gpu: str, gpus: int) -> None:
    (ranking,) = request(model, gpu).run()
    assert ranking.best is not None and ranking.best.config.num_gpus == gpus


def test_amd_nodes_are_joined_alike() -> None:
    (ranking,) = request(DEEPSEEK, "mi300x", gpus_per_node=2).run()  # two nodes of two hold 4 x 192 GB
    assert ranking.best is not None and ranking.best.config.num_gpus == 4
    assert ranking.best.deployment.covariates["nodes"] == "2"
    assert "2 nodes" in ranking.best.deployment.network_remark


def test_more_nodes_where_they_are_asked_for() -> None:
    one, two = (request("meta-llama/Llama-3.1-8B", "h100", nodes=nodes).run()[0] for nodes in (None, 2))
    assert {c.config.num_gpus for c in one.candidates} == {1, 2, 4, 8}
    assert {c.config.num_gpus for c in two.candidates} == {1, 2, 4, 8, 16}


def test_two_nodes_where_the_cache_of_one_holds_few_requests() -> None:
    """Kimi-K2 leaves room for 178,640 tokens on 8 H200, 357,280 in fp8: three agents, whose prefixes are forgotten."""
    targets: dict[str, Any] = {"request_rate": 0.3, "ttft": 8000, "tpot": 50}
    fixed: dict[str, Any] = {"max_num_seqs": 32, "max_num_batched_tokens": 8192, "kv_cache_dtype": "fp8"}
    best = recommend_plans(KIMI, "h200", workload="coding-agent", **targets, **fixed).best
    assert best and best.service and best.num_gpus == 16
    assert best.service.total_gpus <= 32  # servers of one node would take 64


def test_a_network_that_nobody_stated_is_asked_for() -> None:
    (ranking,) = request(DEEPSEEK, "h100-pcie").run()
    assert not ranking.candidates
    assert "--network-gb-per-s" in ranking.rejected[-1].reason
    assert ranking.ways_out
    error = refused("predict", "serve", DEEPSEEK, "--gpu", "h100-pcie", "-tp", "16")
    assert "network bandwidth" in error and "--network-gb-per-s" in error


def test_two_dgx_sparks_hold_what_one_does_not() -> None:
    """NVIDIA serves Qwen3-235B on two, in 4 bits. Each has one GPU and a ConnectX-7 of 200 Gbit/s, by its guide."""
    asked = ("Qwen/Qwen3-235B-A22B", "--gpu", "gb10")
    plan = answered("recommend", *asked, "--max-concurrency", "1")["plans"][0]
    figures = plan["model"], plan["tensor_parallel_size"], plan["gpus_per_node"], plan["network_gb_per_s"]
    assert figures == ("nvidia/Qwen3-235B-A22B-NVFP4", 2, 1, 25)
    assert "fits on GB10, 1 GPU per node" in run("recommend", *asked, "--nodes", "1").out
    first = [answered("fit", *asked, *size)["options"][0] for size in ((), ("-tp", "2"))]
    assert [(one["settings"]["model"], one["num_gpus"]) for one in first] == [(plan["model"], 2)] * 2


def test_nodes_that_are_left_out_are_named() -> None:
    """A 70B model in 8 bits takes two nodes of two RTX 4090s, whose network nobody stated; or one of four."""
    asked = ("recommend", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "rtx-4090", "--gpus", "2", "--nodes", "2")
    said = run(*asked, "--max-concurrency", "1")
    assert "rtx-4090: its nodes are planned one by one" in said.err and "--gpus 4" in said.out
    assert "one by one" not in run(*asked, "--max-concurrency", "1", "--network-gb-per-s", "25").err


def test_a_stated_network_is_the_one_that_is_timed() -> None:
    words = ("predict", "serve", DEEPSEEK, "-tp", "16", "--num-prompts", "8", "--max-concurrency", "8")
    stated = [answered(*words, "--gpu", "h100", "--network-gb-per-s", rate) for rate in ("12.5", "50", "400")]
    assert answered(*words, "--gpu", "h100")["mean_ttft_ms"] == stated[1]["mean_ttft_ms"]  # the profile's own
    slow, usual, fast = (answer["mean_ttft_ms"] for answer in stated)
    assert slow > usual > fast
    assert any("12.5 GB/s" in note and "12 runs" in note for note in stated[0]["notes"])
    assert run(*words, "--gpu", "h100-pcie", "--network-gb-per-s", "25").status == 0


@pytest.mark.parametrize("rate", ["1e-9", "1e40", "0", "-1", "nan", "inf"])
def test_what_is_no_rate_is_refused(rate: str) -> None:
    assert "--network-gb-per-s" in refused("recommend", DEEPSEEK, "--gpu", "h100", "--network-gb-per-s", rate)


def test_intervals_over_nodes_are_wider() -> None:
    words = ("predict", "serve", DEEPSEEK, "--gpu", "h200", "--num-prompts", "8", "--max-concurrency", "8")
    inside, over = (answered(*words, "-tp", tp) for tp in ("8", "16"))
    ratios = [one["mean_tpot_ms_hi"] / one["mean_tpot_ms_lo"] for one in (inside, over)]
    assert ratios[1] > 1.3 * ratios[0]


def test_the_plan_carries_its_network() -> None:
    words = ("recommend", DEEPSEEK, "--goal", "min-latency", "--no-speculation", *FIXED, "--gpu")
    plan = answered(*words, "h100", "--network-gb-per-s", "25")["plans"][0]
    assert (plan["num_gpus"], plan["gpus_per_node"], plan["network_gb_per_s"]) == (16, 8, 25)
    assert any("2 nodes" in warning for warning in plan["warnings"])
    inside = answered(*words, "mi300x")["plans"][0]
    assert inside["network_gb_per_s"] is None


FIXED = ("--max-num-batched-tokens", "8192", "--kv-cache-dtype", "fp8")
CHAT = ("recommend", SMALL, "--ttft", "2000", "--tpot", "60", "--random-output-len", "128", *FIXED)


def test_a_plan_of_several_servers_is_compared_with_prefill_and_decode_apart() -> None:
    printed = answer_of(*CHAT, "--gpu", "h100", "--request-rate", "150", "--disaggregated")
    answer = printed.to_dict()
    service, (apart,) = answer["plans"][0]["service"], answer["disaggregated"]
    assert service["replicas"] > 1 and apart["aggregated_gpus"] == service["total_gpus"]
    assert apart["aggregated_rate"] == pytest.approx(service["replicas"] * service["largest_load"])
    assert apart["prefill_servers"] * apart["prefill_load"] >= 150 * (1 - 1e-9)
    assert apart["decode_servers"] * apart["decode_load"] >= 150 * (1 - 1e-9)
    split, both = apart["disaggregated_rate"], apart["aggregated_rate"]
    said = " ".join(printed.to_text().split())
    better = {"disaggregated": f"disaggregated {split / both - 1:.0%} better on ", None: "equal on "}.get(
        apart["wins"], f"aggregated {both / split - 1:.0%} better on "
    )
    assert f"disaggregated on h100-sxm: {apart['least_gpus']} GPUs (" in said
    assert f"vs {service['total_gpus']} aggregated at the same confidence" in said
    assert better in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("deepseek-ai/DeepSeek-V3.1 --gpu h200 --request-rate 50 --input-len 3000 --output-len 500 --ttft 3000 "
         "--tpot 50", r"(TP 8.*, MTP \d) prefill, \d+ x \1 decode\) vs"),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2 --gpu gb200 --request-rate 100 --input-len 2000 --output-len 2000 "
         "--ttft 5000 --tpot 60 --max-num-batched-tokens 8192 --kv-cache-dtype fp8 --max-num-seqs 256 --no-speculation",
         "not compared: both sides are planned with TP alone, aggregated servers with DP 4"),
    ],
)  # fmt: skip
def test_sides_draft_as_servers_that_do_both_and_have_no_ranks(words: str, told: str) -> None:
    """Drafts on both or neither. vLLM's blog of 2026-02-03 divides GB200 with DP + EP on about 30 GPUs, not on 180."""
    assert re.search(told, " ".join(run("fleet", *words.split(), "--disaggregated").out.split()))


def test_what_bounds_refuse_is_no_better_where_it_is_asked_for() -> None:
    load = (*CHAT, "--gpu", "h100", "--request-rate", "60")
    ((refused,), answer) = answered(*load)["disaggregated"], answered(*load, "--disaggregated")
    (apart,), planned = answer["disaggregated"], answer["plans"][0]["service"]["total_gpus"]
    least = re.match(r"(\d+) GPUs? at best", refused["refused"])
    assert least and planned <= int(least[1]) <= apart["least_gpus"]
    assert apart["disaggregated_rate"] <= apart["aggregated_rate"] and answer["answer"]["shape"] == "aggregated"


def test_one_server_is_compared_on_the_gpus_that_somebody_names() -> None:
    assert answered(*CHAT, "--gpu", "h100")["disaggregated"] == []
    (refused,) = answered(*CHAT, "--gpu", "h100", "--gpus", "3")["disaggregated"]
    assert refused["refused"].endswith("against 3 GPUs")
    answer = answered(*CHAT, "--gpu", "h100", "--gpus", "4", "--disaggregated")
    (apart,) = answer["disaggregated"]
    each = answer["plans"][0]["num_gpus"]
    assert apart["equal_gpus"] == 4 // each * each
    assert apart["aggregated_rate"] == pytest.approx(4 // each * answer["plans"][0]["service"]["largest_load"])


def test_what_leaves_a_node_needs_its_network() -> None:
    load = (*CHAT, "--gpu", "l40s", "--request-rate", "120")
    answer = answer_of(*load, "--disaggregated")
    (refused,) = answer.to_dict()["disaggregated"]
    assert "the bandwidth of the network between nodes of l40s is unknown" in refused["refused"]
    said = " ".join(answer.to_text().split())
    assert "disaggregated serving is not compared: " in said and "pass --network-gb-per-s" in said
    (apart,) = answered(*load, "--disaggregated", "--network-gb-per-s", "12.5")["disaggregated"]
    assert (apart["kv_transfer_over"], apart["kv_transfer_bytes_per_s"]) == ("network", 12.5e9)


def test_loads_and_targets_of_another_kind_are_not_divided() -> None:
    (refused,) = answered(*CHAT, "--gpu", "h100", "--request-rate", "60", "--e2el", "60000")["disaggregated"]
    assert "--ttft and --tpot" in refused["refused"]


@pytest.mark.parametrize(
    "words",
    [
        ("compare", DEEPSEEK, "--gpu", "h100-pcie", "--tensor-parallel-size", "16", "--packages", "16",
         "--max-concurrency", "8"),
        ("check", "--gpu", "h100-pcie", "--max-concurrency", "8", "--", "vllm", "serve", DEEPSEEK,
         "--tensor-parallel-size", "16", "--nnodes", "2"),
    ],
)  # fmt: skip
def test_compare_and_check_take_a_network_that_is_stated(words: tuple[str, ...]) -> None:
    assert "--network-gb-per-s" in refused(*words)
    found = run(words[0], "--network-gb-per-s", "25", *words[1:])
    assert found.status == 0 and "each GPU with 25 GB/s of the network" in " ".join(found.err.split())
    assert run(words[0], "--network-gb-per-s", "0", *words[1:]).status == 2


def test_memory_does_not_hang_on_the_network() -> None:
    words = ("fit", DEEPSEEK, "--gpu", "h100-pcie", "--tensor-parallel-size", "16")
    assert answered(*words) == answered(*words, "--network-gb-per-s", "25")
