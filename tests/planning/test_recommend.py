"""Plans: the shape of the published recipe, nothing that does not fit, and reasons for what lost."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import inf, log, sqrt
from typing import Any

import pytest
from command_line import answer_of, json_of, run
from hypothesis import given, settings
from hypothesis import strategies as st
from searches import choices, search_for

from planner import load_model, recommend_plans, size_fleet
from planner.engine.settings import EngineArgs
from planner.engine.sharding import Layout
from planner.engine.version import parse_version
from planner.errors import InputError
from planner.output.scripts.text import option
from planner.output.tables.recommendation import predicted_lines
from planner.planning import defaults
from planner.planning.deployment import resolve_deployment
from planner.planning.plan import Goal, PlanFile
from planner.planning.predict import Prediction
from planner.planning.search.search import Search
from planner.planning.search.space import Candidate, Merit, Ranking, pareto
from planner.planning.serving import Serving
from planner.units import percent
from planner.workload.load import Load

pytestmark = pytest.mark.usefixtures("short_loops")

PROMPTS_PER_SLOT = defaults.PROMPTS_PER_SLOT  #: as shipped
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
PER_GPU = "output_throughput_per_gpu"


def request(goal: Goal, *gpus: str, model: str = LLAMA, load: Load | None = None, **asked: Any) -> Search:
    return search_for(None, *gpus, model=model, load=load or Load(1024, 1024), goal=goal, **asked)


@cache
def ranked(goal: Goal, gpu: str, model: str = LLAMA, load: Load | None = None) -> Ranking:
    (ranking,) = request(goal, gpu, model=model, load=load).run()
    return ranking


class TestTheRecipeForB200:
    """NVIDIA's recipe for Llama-3.3-70B on B200: TP 1 and the largest batch for throughput, TP 4 or 8 and a small
    batch for latency, TP 2 and a batch of 128 between them."""

    def test_throughput_takes_one_gpu_and_the_largest_batch(self) -> None:
        best = ranked("max-throughput", "b200-sxm").best
        assert best is not None
        assert best.config.tensor_parallel_size
        assert best.config.weight_dtype == "nvfp4" and best.config.kv_cache_dtype == "fp8"
        searched = best.searched
        assert searched and searched.config.max_num_seqs == int(
            searched.deployment.requests_served(2048, pessimistic=True)
        )
        assert best.config.max_num_seqs == 384 and best.config.max_model_len == 131072  # for users

    def test_latency_takes_many_gpus_and_a_small_batch(self) -> None:
        best = ranked("min-latency", "b200-sxm").best
        assert best is not None
        assert best.config.tensor_parallel_size in (4, 8)
        assert best.searched is not None and best.searched.config.max_num_seqs == 8
        assert best.config.max_num_seqs == 16  # head room

    def test_balanced_lies_between(self) -> None:
        throughput, balanced, latency = (
            ranked(goal, "b200-sxm").best for goal in ("max-throughput", "balanced", "min-latency")
        )
        assert throughput and balanced and latency
        sizes = [best.config.tensor_parallel_size for best in (throughput, balanced, latency)]
        batches = [best.config.max_num_seqs for best in (throughput, balanced, latency)]
        assert sizes[0] < sizes[1] < sizes[2]
        assert batches[0] > batches[1] > batches[2]


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "length"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "mi300x-cpx", "0.11.0", 2048),  # at 1024 rows nothing is left
        ("meta-llama/Llama-3.1-8B-Instruct", "cpu", "0.11.0", 3072),
        ("meta-llama/Llama-3.1-8B-Instruct", "h100-sxm", "0.10.0", 2048),
        ("Qwen/Qwen3-30B-A3B", "h100-sxm", "0.9.1", 2048),
        ("meta-llama/Llama-3.1-8B-Instruct", "l4", "0.11.0", 16),  # a row of logits takes more than a request
        ("meta-llama/Llama-3.1-405B-Instruct", "h100-sxm", "0.11.0", 2048),
    ],
)
def test_the_largest_batch_is_the_largest_that_is_held(model: str, gpu: str, engine: str, length: int) -> None:
    load = Load(length // 2, length // 2)
    asked = request("max-throughput", gpu, model=model, load=load, version=parse_version(engine))
    among, resolved, args = choices(asked), asked.space.model, EngineArgs(max_model_len=length)

    def held(batch: int) -> bool:
        deployment = among.deployed(resolved, replace(args, max_num_seqs=batch))
        return deployment.requests_served(length, pessimistic=True) >= batch

    largest = among.largest_batch(resolved, args)
    assert largest == 0 or held(largest)
    assert not any(map(held, (largest + 1, *range(largest + 2, defaults.MAX_NUM_SEQS, 64))))


@pytest.mark.parametrize("gpu", ["mi300x", "mi355x", "b200-sxm", "h100-sxm", "mi300x-cpx"])
@pytest.mark.parametrize("goal", ["min-latency", "max-throughput", "balanced"])
def test_whatever_is_recommended_starts(goal: Goal, gpu: str) -> None:
    model = "meta-llama/Llama-3.1-8B-Instruct" if gpu == "mi300x-cpx" else LLAMA
    for candidate in ranked(goal, gpu, model).candidates:
        config = candidate.config
        args = EngineArgs(
            tensor_parallel_size=config.tensor_parallel_size,
            kv_cache_dtype=config.kv_cache_dtype_flag or "auto",
            max_model_len=config.max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            gpu_memory_utilization=config.gpu_memory_utilization,
        )
        deployment = candidate.deployment
        assert resolve_deployment(deployment.model, deployment.profile, args, config.version).fits


def test_copies_of_latent_attention_serve_more_and_are_asked_for_what_they_take_together() -> None:
    """vLLM's guide to DeepSeek-R1 on 8 x H200 names TP 8 + EP, "usually better for low-latency", and DP 8 + EP, which
    "works better for high-load workloads" (docs.vllm.ai/projects/recipes, DeepSeek-V3)."""
    ranking = ranked("max-throughput", "h200", "deepseek-ai/DeepSeek-R1")
    best, fastest = ranking.best, ranked("min-latency", "h200", "deepseek-ai/DeepSeek-R1").best
    assert fastest is not None and Layout.of(fastest.config) == Layout(8, enable_expert_parallel=True)
    assert best is not None and Layout.of(best.config) == Layout(data_parallel_size=8, enable_expert_parallel=True)
    assert best.searched and best.estimate.concurrency == 8 * best.searched.config.max_num_seqs
    assert best.figures is not None and best.figures["max_concurrency"] == best.estimate.concurrency
    said = " ".join(rejected.reason for rejected in ranking.rejected)
    assert "left out: token budgets beside" in said and "own MTP modules" in said


def test_each_rank_takes_as_many_requests_as_an_engine_may() -> None:
    """--max-num-seqs is of one rank: eight hold 8,192 requests at vLLM's default of 1,024."""
    load = Load(256, 32, max_concurrency=4096)
    args = EngineArgs(tensor_parallel_size=1, data_parallel_size=8, enable_expert_parallel=True)
    asked = search_for(None, "h100", model="openai/gpt-oss-20b", goal="min-latency", load=load, args=args)
    best = asked.run()[0].best
    assert best is not None and best.searched and best.searched.config.max_num_seqs == 512
    assert best.figures is not None and best.figures["max_concurrency"] == 4096


@pytest.mark.parametrize(("clients", "flying"), [(64, 64), (4, 4), (None, 8)])
def test_clients_are_as_many_as_asked_whatever_the_places(clients: int | None, flying: int) -> None:
    """64 clients of a server with 8 places were answered as 8."""
    load = Load(512, 64, max_concurrency=clients)
    asked = search_for(None, "h100", load=load, args=EngineArgs(max_num_seqs=8), gpus_per_node=1)
    best = asked.run()[0].best
    assert best is not None and best.figures is not None and best.config.max_num_seqs == 8
    assert best.figures["max_concurrency"] == flying


@pytest.mark.parametrize(("asked", "flying"), [({}, 16), ({"max_concurrency": 100}, 100), ({"goal": "min-latency"}, 8)])
def test_places_are_no_load_and_cut_no_context(asked: dict[str, Any], flying: int) -> None:
    """vLLM pages the cache by the tokens that requests have: 53 of 2,048 fit beside a context of 40,960 as well."""
    plan = recommend_plans("Qwen/Qwen3-8B-AWQ", "rtx-4090", gpus=1, max_num_seqs=100, **asked).best
    assert plan is not None and (plan.max_num_seqs, plan.max_model_len) == (100, 40960)
    assert plan.workload.max_concurrency == flying and not any("so that the KV cache" in word for word in plan.warnings)


def test_a_single_card_gets_the_batch_that_its_owner_gets() -> None:
    """TP sizes of seven more cards, which the plan does not take, gave 8 requests at once instead of 64."""
    whole, own = (recommend_plans("openai/gpt-oss-20b", "rtx-3090", **gpus).best for gpus in ({}, {"gpus": 1}))
    assert whole and own and whole.num_gpus == 1
    assert whole.workload == own.workload and whole.serve_argv == own.serve_argv


def test_a_fleet_in_integers_does_not_stand_for_formats_that_fit() -> None:
    """GPTQ-Int4 of Qwen3-235B took 440 MI300X, because the interval of bf16 misses 25 ms by a little."""
    asked: dict[str, Any] = {"gpu": "mi300x", "request_rate": 10, "input_len": 2048, "output_len": 512, "ttft": 2000}
    assert recommend_plans("Qwen/Qwen3-235B-A22B", tpot=25, **asked).best is None
    best = recommend_plans("Qwen/Qwen3-235B-A22B", tpot=25, confidence=0.5, **asked).best
    assert best is not None and best.weight_dtype in ("bf16", "fp8")


def test_a_4_bit_checkpoint_that_is_passed_over_is_named() -> None:
    """The 4090 gets FP8, and with AWQ twice the tokens/s: a 3090, which has no FP8, was ahead of it in one table."""
    cards = ("--gpu", "3090", "--gpu", "4090", "--gpus", "1")
    said = " ".join(run("recommend", "Qwen/Qwen3-14B", *cards).out.split())
    left_out = "was left out on RTX-4090, where more bits fit, but not on RTX-3090, without FP8: give it as MODEL"
    assert f"i Qwen/Qwen3-14B-AWQ {left_out}" in said
    assert "was left out" not in run("recommend", "Qwen/Qwen3-14B-AWQ", *cards).out


def test_a_4_bit_checkpoint_for_one_card_is_named_where_the_plan_takes_several() -> None:
    """31 GB of FP8 leave nothing on a 5090 (vLLM issue 41695): 17 GB of 4 bits are what people run on one."""
    said = " ".join(run("recommend", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "--gpu", "5090").out.split())
    assert "on 2 x RTX-5090" in said
    assert "one RTX-5090 holds a 4-bit checkpoint (int4-awq): QuantTrio/Qwen3-Coder-30B-A3B-Instruct-AWQ" in said


@pytest.mark.parametrize("output", ["csv", "markdown"])
def test_a_table_without_rows_has_its_reasons_on_stderr(output: str) -> None:
    outcome = run("recommend", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "4090", "--gpus", "1", "--format", output)
    notes = " ".join(outcome.err.split())
    assert outcome.status == 1 and "note: No setting of meta-llama" in notes and "fits: 4 GPUs" in notes


def test_a_long_job_is_judged_by_few_of_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "MOST_SEARCH_PROMPTS", 100)
    answer = recommend_plans(LLAMA, "h100", gpus=1, max_concurrency=16, num_prompts=360_000)
    best, job = answer.to_dict()["plans"][0], answer.to_dict()["job"]
    assert best["workload"]["num_prompts"] == 100
    for key, rate in ("", ""), ("_lo", "_hi"), ("_hi", "_lo"):
        hours = 100 / best["predicted"][f"request_throughput{rate}"]
        assert job[f"duration{key}"] == pytest.approx(3600 * hours)
    assert job["usd"] == pytest.approx(best["usd_per_hour"] * job["duration"] / 3600)
    assert "; 360,000 requests take " in next(answer.sentences()).replace("\n", " ")


@pytest.mark.parametrize("size", [{"have": ["h100=2"]}, {"request_rate": 20.0, "spares": 1}])
def test_a_job_takes_as_long_as_all_servers_need(size: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """7,200,000 requests at 20 a second are 100 hours."""
    monkeypatch.setattr(defaults, "MOST_SEARCH_PROMPTS", 100)
    answer = recommend_plans("Qwen/Qwen3-0.6B", "h100", gpus=1, num_prompts=7_200_000, **size)
    plan, service = answer.best, answer.best and answer.best.service
    assert plan and service and service.request_rate and service.usd_per_hour
    hours = 100 if "request_rate" in size else 2000 / service.request_rate
    wanted = {"duration": 3600 * hours, "gpu_hours": service.total_gpus * hours, "usd": service.usd_per_hour * hours}
    assert {name: plan.job[name] for name in wanted} == pytest.approx(wanted)
    assert answer.to_dict()["job"] == answer.to_dict()["plans"][0]["job"] == plan.job
    assert any("7,200,000 requests take" in line for line in predicted_lines(plan))


@pytest.mark.parametrize("cheap", ["h100", "b200"])
def test_the_gpu_of_the_cheapest_tokens_is_named_beside_the_fastest(cheap: str) -> None:
    """A B200 has 2.3 times the FLOP/s and 2.4 times the bandwidth of an H100: at 9 times the price it costs more."""
    gpus, prices = ("--gpu", "h100", "--gpu", "b200", "--gpus", "1"), {"h100": 3.0, "b200": 4.5} | {cheap: 0.5}
    priced = [word for gpu, usd in prices.items() for word in ("--price", f"{gpu}={usd}")]
    said = run("recommend", "Qwen/Qwen3-0.6B", *gpus, *priced, "--goal", "max-throughput").out
    assert "USD/1M\n" in said and ("i cheapest: H100, " in said) is (cheap == "h100")


def test_lengths_that_vary_rank_data_parallel_ranks() -> None:
    """Ranks read prompts of one length in the same steps: 126 tokens/s per GPU with DP 8, 115 with TP 8."""
    load = Load.closed_loop(64, 8000, 1000)
    best = ranked("balanced", "h200", "deepseek-ai/DeepSeek-R1", load).best
    assert best is not None
    layouts: tuple[dict[str, Any], ...] = (best.config.settings("axes"), {"data_parallel_size": 8})
    varied = replace(load, num_prompts=320, range_ratio=0.2)
    servings = (Serving("deepseek-ai/DeepSeek-R1", "h200", **axes, max_num_seqs=64) for axes in layouts)
    chosen, copies = (one.predict(varied).figures["output_throughput"] for one in servings)
    assert chosen > copies


def test_windows_are_held_as_a_published_run_held_them() -> None:
    """vLLM counts a whole step of tokens in flight for each window; 256 requests ran on 8 B200 (InferenceX)."""
    load = Load.closed_loop(256, 8192, 1024)
    best = ranked("balanced", "b200-sxm", "deepseek-ai/DeepSeek-V4-Pro", load).best
    assert best is not None and best.config.num_gpus == 8


@pytest.mark.parametrize(
    ("model", "gpu", "load"),
    [
        ("Qwen/Qwen2.5-14B-Instruct-AWQ", "rtx-4090", Load.closed_loop(31, 1024, 1024)),  # 25 fit the KV cache
        ("openai/gpt-oss-120b", "h100-sxm", Load.closed_loop(128, 8000, 500)),  # 19
    ],
)
def test_clients_that_the_cache_does_not_hold_wait(model: str, gpu: str, load: Load) -> None:
    """A scheduler queues them: two nodes, or no plan at all, were the answer."""
    (ranking,) = search_for(None, gpu, model=model, load=load, goal="balanced", gpus_per_node=1).run()
    assert ranking.best is not None and ranking.best.config.num_gpus == 1
    served = int(ranking.best.deployment.requests_served(load.total_len))
    assert ranking.best.figures is not None and served < (load.max_concurrency or 0)
    few = replace(load, max_concurrency=served, num_prompts=5 * served)
    alone = Prediction.of(ranking.best.deployment, few).figures["output_throughput"]
    assert ranking.best.figures["output_throughput"] == pytest.approx(alone, rel=0.15)


@pytest.mark.parametrize(("clients", "most_s"), [(4, 2), (20, 30)])  # 26,000 tokens: 4 of 4 at once, 12 of 20
def test_clients_that_the_expected_cache_holds_have_places(clients: int, most_s: float) -> None:
    """The low end of an L4's cache holds 3 requests of 2,048 tokens: the fourth waited for a whole answer of 56 s."""
    plan = recommend_plans("Qwen/Qwen2.5-VL-7B-Instruct", "l4", gpus=1, max_concurrency=clients).best
    assert plan is not None and plan.predicted["mean_ttft_ms"] < most_s * 1000
    assert any("vLLM preempts the others" in warning for warning in plan.warnings)


def test_a_partition_gets_one_gpu_and_a_word_on_its_siblings() -> None:
    asked = request("max-throughput", "mi300x-cpx", model="meta-llama/Llama-3.1-8B-Instruct")
    (ranking,) = asked.run()
    assert ranking.best is not None
    assert {candidate.config.tensor_parallel_size for candidate in ranking.candidates} == {1}
    plan = asked.plan(ranking)
    assert any("share its memory bandwidth" in warning for warning in plan.warnings)
    assert plan.env["HIP_VISIBLE_DEVICES"] == "0"


@pytest.mark.parametrize(
    ("version", "length", "warned"), [("0.9.1", 65536, 1), ("0.9.1", 32768, 0), ("0.19.0", 65536, 0)]
)
def test_what_amd_says_does_not_work_is_said_of_a_plan_that_was_asked_for_it(
    version: str, length: int, warned: int
) -> None:
    """DeepSeek-V3 in AMD's 0.9.1 image: "--max-model-len cannot be greater than 32768"."""
    asked = request("min-latency", "mi300x", model="deepseek-ai/DeepSeek-V3", version=parse_version(version),
                    args=EngineArgs(max_model_len=length))  # fmt: skip
    (ranking,) = asked.run()
    assert ranking.best is not None
    plan = asked.plan(ranking)
    assert sum(warning.startswith("--max-model-len: 65,536") for warning in plan.warnings) == warned


def test_a_model_that_fits_nowhere_has_no_plan_and_a_reason_for_each_size() -> None:
    (ranking,) = request("balanced", "l4", model="meta-llama/Llama-3.1-405B-Instruct").run()
    assert ranking.best is None
    sizes = {rejected.tensor_parallel_size for rejected in ranking.rejected if rejected.tensor_parallel_size}
    assert sizes == {1, 2, 4, 8}
    assert all(rejected.reason for rejected in ranking.rejected)


def test_emulated_and_foreign_checkpoints_are_turned_down_by_name() -> None:
    reasons = {rejected.model: rejected.reason for rejected in ranked("balanced", "mi300x").rejected}
    assert "published for nvidia GPUs" in reasons["nvidia/Llama-3.3-70B-Instruct-FP8"]
    emulated = reasons["amd/Llama-3.3-70B-Instruct-MXFP4-Preview"]
    assert "bf16" in emulated and "ask for the checkpoint by name" in emulated


def test_a_quantised_checkpoint_is_planned_as_it_is() -> None:
    ranking = ranked("balanced", "h100-sxm", "nvidia/Llama-3.3-70B-Instruct-FP8")
    assert {candidate.resolved.resolved for candidate in ranking.candidates} == {"nvidia/Llama-3.3-70B-Instruct-FP8"}


@pytest.mark.parametrize("revision", [None, "v1.0"])
def test_the_revision_that_was_read_is_launched(revision: str | None) -> None:
    """The tokenizer, and the code of --trust-remote-code, follow vLLM's --revision (its config/model.py)."""
    model = replace(load_model("Qwen/Qwen3-0.6B"), revision=revision)
    plan = recommend_plans(model, gpu="l4", gpus=1, max_concurrency=8).best
    assert plan and plan.benchmark_line
    assert [option(line.serve_argv, "--revision") for line in (plan, plan.benchmark_line)] == [revision, revision]


def test_what_the_user_gives_is_not_searched() -> None:
    asked = request("max-throughput", "b200-sxm", args=EngineArgs(max_num_seqs=16, max_num_batched_tokens=4096))
    (ranking,) = asked.run()
    assert {candidate.config.max_num_seqs for candidate in ranking.candidates} == {16}
    assert {candidate.config.max_num_batched_tokens for candidate in ranking.candidates} == {4096}


def test_fewer_gpus_in_a_node_mean_smaller_sizes() -> None:
    (ranking,) = request("min-latency", "b200-sxm", gpus_per_node=2).run()
    assert max(candidate.config.tensor_parallel_size for candidate in ranking.candidates) == 2


def test_no_point_of_the_front_is_beaten_in_both_rates() -> None:
    candidates = ranked("balanced", "mi355x").candidates
    front = pareto(candidates)
    assert front
    for point in front:
        assert not any(
            other.tok_per_s_per_gpu > point.tok_per_s_per_gpu and other.tok_per_s_per_user > point.tok_per_s_per_user
            for other in candidates
        )


def fewest_of_equals(candidates: Sequence[Candidate], goal: Goal) -> Candidate:
    """The best of those on the fewest GPUs among all whose merit is that of the best, within the tolerance."""
    merit = Merit.among(candidates, goal)
    least = max(map(merit.of_candidate, candidates)) - merit.tie
    equals = [one for one in candidates if merit.of_candidate(one) >= least]
    fewest = min(one.num_gpus for one in equals)
    return max((one for one in equals if one.num_gpus == fewest), key=merit.of_candidate)


@pytest.mark.parametrize(("concurrency", "most"), [(8, 4), (64, 1)])
def test_both_ends_of_a_front_are_no_reason_to_take_eight_gpus(concurrency: int, most: int) -> None:
    """Llama-3.1-8B on MI300X: TP 8 and TP 1 scored 12.2204 and 12.2203, so 8 GPUs were planned for 64 requests."""
    load = Load.closed_loop(concurrency, 1024, 1024)
    (ranking,) = request("balanced", "mi300x", model="meta-llama/Llama-3.1-8B-Instruct", load=load).run()
    assert ranking.best is not None and ranking.best.num_gpus <= most


@settings(max_examples=5, deadline=None)
@given(st.integers(64, 4096), st.integers(16, 1024), st.sampled_from(["min-latency", "max-throughput", "balanced"]))
def test_the_winner_is_the_best_of_all_by_its_own_measure(input_len: int, output_len: int, goal: Goal) -> None:
    asked = request(goal, "h200-sxm", load=Load(input_len, output_len))
    (ranking,) = asked.run()
    assert ranking.best is not None
    assert ranking.best is fewest_of_equals(ranking.candidates, goal)


@pytest.mark.parametrize(
    ("gpu", "model"),
    [
        ("mi355x", "Qwen/Qwen3-30B-A3B"),
        ("h100-sxm", "zai-org/GLM-4.6"),
    ],
)
def test_layouts_within_the_tolerance_go_to_the_recipe(gpu: str, model: str) -> None:
    """EP makes them up to 3 % faster by the replay, and their recipes have none."""
    ranking = ranked("min-latency", gpu, model)
    assert ranking.best is not None and not ranking.best.config.enable_expert_parallel
    merit = Merit.among(ranking.candidates, "min-latency")
    behind = max(map(merit.of_candidate, ranking.candidates)) - merit.of_candidate(ranking.best)
    assert 0 < behind <= log(1 + defaults.TOLERANCE)
    assert any("faster; within 3% the recipe's layout" in one.reason for one in ranking.rejected)


@pytest.mark.parametrize("gpu", ["l40s", "rtx-4090", "l4"])
@pytest.mark.parametrize("model", ["openai/gpt-oss-20b", "Qwen/Qwen3-8B", "google/gemma-3-12b-it"])
def test_no_pipeline_is_better_by_less_than_the_tolerance_than_fewer_gpus(gpu: str, model: str) -> None:
    (ranking,) = request("max-throughput", gpu, model=model, load=Load(2000, 500)).run()
    assert ranking.best is not None
    merit, gpus = Merit.among(ranking.candidates, "max-throughput"), ranking.best.config.num_gpus
    fewer = [
        merit.of_candidate(one)
        for one in ranking.candidates
        if one.config.num_gpus < gpus and one.figures and one.resolved.resolved == ranking.best.resolved.resolved
    ]
    least = merit.of_candidate(ranking.best) - log(1 + 0.8 * defaults.TOLERANCE)  # of the serving line: less exact
    assert ranking.best.config.pipeline_parallel_size == 1 or max(fewer, default=-inf) < least


def test_what_an_fp8_kv_cache_would_give_is_said_and_given_when_asked_for() -> None:
    """KV reads take 59 % of a step: half of them, and 291 requests at once instead of 192, give 52 % more."""
    words = ["recommend", "Qwen/Qwen3-32B", "--workload", "offline", "--goal", "max-throughput", "--gpu", "b200"]
    said = " ".join(run(*words).out.split())
    named = re.search(r"--kv-cache-dtype fp8 would give ([\d,]+) output tokens/s per GPU, (\d+)% more", said)
    assert named and int(named[2]) > 40
    plan, *_ = json_of(*words, "--kv-cache-dtype", "fp8")["plans"]
    assert plan["predicted"][PER_GPU] == pytest.approx(float(named[1].replace(",", "")), rel=0.01)


def test_a_cache_that_is_too_small_for_the_load_is_told_of_fp8_whatever_the_goal() -> None:
    """Two H100 keep about 120 GB beside weights of 33: 26 requests of 16,884 tokens x 262,144 bytes = 4.4 GB, in fp8
    twice as many. 64 prompts of 500 tokens are no work; they wait for room."""
    load = ["--input-len", "500", "--output-len", "16384", "--max-concurrency", "64"]
    said = " ".join(run("recommend", "Qwen/Qwen3-32B", "--gpu", "h100", "--gpus", "2", *load).out.split())
    named = re.search(r"--kv-cache-dtype fp8 would give [\d,]+ output tokens/s per GPU, (\d+)% more", said)
    assert named and int(named[1]) > 40
    assert "64 prompts of 500 tokens wait for the KV cache, which holds 26" in said
    assert "KV capacity: holds 26 requests" in said


def test_ranks_that_share_the_tokens_of_latent_attention_are_named_with_their_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM's recipe, eight H200: 1.25 requests/s with TP 8, 1.57 with DCP 8; 715,072 and 5,721,088 tokens of cache."""
    monkeypatch.setattr(defaults, "PROMPTS_PER_SLOT", PROMPTS_PER_SLOT)
    asked = ("moonshotai/Kimi-K2-Thinking", "--gpu", "h200", "--engine-version", "0.11.1")
    load = ("--goal", "max-throughput", "--input-len", "8000", "--output-len", "415")
    said = " ".join(run("recommend", *asked, *load, "--kv-cache-dtype", "bf16").out.split())
    named = re.search(r"--decode-context-parallel-size 8 would give [\d,]+ output tokens/s per GPU, (\d+)% more", said)
    assert named and float(named[1]) == pytest.approx(100 * (1.57 / 1.25 - 1), abs=8)
    for ranks, tokens in ((1, 715_072), (8, 5_721_088)):
        held = json_of("fit", *asked, "-tp", "8", "-dcp", str(ranks), "--gpu-memory-utilization", "0.9")
        assert held["kv_cache_tokens"] == pytest.approx(tokens, rel=0.02)
    shared = json_of("recommend", *asked, *load, "-dcp", "8")["plans"][0]
    assert shared["decode_context_parallel_size"] == 8 and "--decode-context-parallel-size" in shared["serve_argv"]


def test_an_answer_for_throughput_names_what_two_nodes_give_where_one_holds_few_requests() -> None:
    """A terabyte of weights leaves 1,128 GB on eight H200 room for 72,800 tokens: 21 requests of 2,048 for sure."""
    words = ["recommend", "moonshotai/Kimi-K2-Instruct", "--gpu", "h200", "--goal", "max-throughput"]
    answer = json_of(*words)
    remedy, (one, *_) = answer["remedy"], answer["plans"]
    two, *_ = json_of(*words, *remedy["option"].split())["plans"]
    assert remedy["num_gpus"] == two["num_gpus"] == 2 * one["num_gpus"]
    assert remedy["requests_held"] == one["max_num_seqs"]
    assert (
        remedy[PER_GPU] == pytest.approx(two["predicted"][PER_GPU]) and remedy[PER_GPU] > 2 * one["predicted"][PER_GPU]
    )
    assert remedy["usd_per_million_output_tokens"] == pytest.approx(two["usd_per_million_output_tokens"])
    assert "--nodes 2 would give " in run(*words).out
    assert json_of(*words, "--nodes", "1")["remedy"] is None  # as asked
    assert json_of(*words, "--gpu", "b200")["remedy"] is None  # a node of B200 gives more


def test_the_knee_is_on_the_front_and_farthest_from_its_chord() -> None:
    candidates = ranked("balanced", "b200-sxm").candidates
    front = pareto(candidates)
    best = ranked("balanced", "b200-sxm").best
    assert best is not None and best.config == fewest_of_equals(candidates, "balanced").config

    # distance from the chord between the ends, axes logarithmic, each scaled to the length of the front
    def height(c: Candidate) -> float:
        x = log(c.tok_per_s_per_user / front[-1].tok_per_s_per_user) / log(
            front[0].tok_per_s_per_user / front[-1].tok_per_s_per_user
        )
        y = log(c.tok_per_s_per_gpu / front[0].tok_per_s_per_gpu) / log(
            front[-1].tok_per_s_per_gpu / front[0].tok_per_s_per_gpu
        )
        return (x + y - 1) / sqrt(2)

    knee = max(front, key=height)
    assert height(knee) - height(best) <= log(1 + defaults.TOLERANCE)
    assert best.config == knee.config or best.num_gpus < knee.num_gpus


def test_one_definition_orders_candidates_and_plans() -> None:
    """8B on an H100: TP 2 by the knee of its front, TP 1 by the product of both rates, which once ordered the plans."""
    model = "meta-llama/Llama-3.1-8B-Instruct"
    answer = json.loads(run("recommend", model, "--gpu", "h100", "--format", "json").out)
    best = ranked("balanced", "h100-sxm", model=model).best
    assert best is not None and answer["plans"][0]["tensor_parallel_size"] == best.config.tensor_parallel_size
    assert answer["probability_behind"][0] is None
    assert all(0.5 <= odds <= 1 for odds in answer["probability_behind"][1:])


def test_who_lost_says_how_likely() -> None:
    """An order of two settings is a coin at worst, and the sentence has the number that JSON has."""
    ranking = ranked("max-throughput", "h100-sxm")
    behind = [rejected for rejected in ranking.rejected if rejected.probability_behind is not None]
    assert behind
    for rejected in behind:
        assert rejected.probability_behind is not None and 0.5 <= rejected.probability_behind <= 1
        assert rejected.reason.endswith(f"{percent(rejected.probability_behind)} likely to be slower")
    balanced = [one.reason for one in ranked("balanced", "h100-sxm").rejected if one.probability_behind is not None]
    assert balanced and all("likely to be worse" in reason for reason in balanced)  # one of its two rates is larger


@pytest.mark.parametrize(("gpu", "goal"), [("h200", "max-throughput"), ("b200", "min-latency")])
def test_plans_are_compared_under_one_load_and_listed_as_they_are_picked(gpu: str, goal: Goal) -> None:
    """DeepSeek-R1's best had 1,000 tokens/s under equal lengths, the next 883 where lengths vary: 1,081 under equal."""
    answer = answer_of("recommend", "deepseek-ai/DeepSeek-R1", "--gpu", gpu, "--goal", goal)
    (ranking,), plans, values = answer.rankings, answer.to_dict()["plans"], []
    for plan, one in zip(plans, ranking.candidates[:3], strict=True):
        assert plan["serve_argv"] == list(answer.search.plan(ranking, one).serve_argv)
        varied = defaults.USUAL_RANGE_RATIO if plan["data_parallel_size"] > 1 else 0.0
        sent = replace(answer.objective.closed_loop(one.estimate.concurrency), range_ratio=varied)
        replayed = Prediction.of((one.searched or one).deployment, sent)
        truth = replayed.figures["mean_e2el_ms"] / 1e3 if goal == "min-latency" else 1 / replayed.rates[PER_GPU]
        value = float(re.findall(r"([\d,.]+) (?:s\b|output)", plan["why"][0])[0].replace(",", ""))
        values.append(value if goal == "min-latency" else 1 / value)
        assert values[-1] == pytest.approx(truth, rel=0.02)
        assert (" where lengths vary by 20%" in plan["why"][0]) is (varied > 0)
    tied = "; within 3% the recipe's layout and fewer GPUs go first"
    assert min(values) == values[0] or ", the first of " in plans[0]["why"][0]
    for value, plan in zip(values[1:], plans[1:], strict=True):
        assert value > values[0] / (1 + defaults.TOLERANCE) and plan["why"][0].endswith(tied * (value < values[0]))


def test_a_picked_plan_is_not_its_own_next_best() -> None:
    """Each of ``--pick 1``, 2, 3 printed number 2 as the next best."""
    asked = ("recommend", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", "--max-concurrency", "20")
    first, second = (" ".join(run(*asked, "--pick", pick).out.split()) for pick in "12")
    after = re.search(r"next best: .*?: ([\d,]+ tokens/s per GPU at [\d,]+ per user)", first)
    assert after and f"balanced: {after[1]}, number 2, behind" in second and "next best" not in second


def test_a_plan_says_everything_that_was_simulated_in_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "PROMPTS_PER_SLOT", PROMPTS_PER_SLOT)
    asked = request("min-latency", "mi300x", version=parse_version("0.9.1"))
    (ranking,) = asked.run()
    assert ranking.best is not None
    plan = asked.plan(ranking)
    words = list(plan.serve_argv)

    def value(flag: str) -> str:
        return words[words.index(flag) + 1]

    assert value("--tensor-parallel-size") == str(plan.tensor_parallel_size)
    assert value("--max-model-len") == str(plan.max_model_len)
    assert value("--max-num-seqs") == str(plan.max_num_seqs)
    assert value("--max-num-batched-tokens") == str(plan.max_num_batched_tokens)
    assert float(value("--gpu-memory-utilization")) == plan.gpu_memory_utilization
    assert words[:3] == ["vllm", "serve", plan.model]
    sent = list(plan.bench_argv)
    assert plan.benchmark_line is not None
    in_flight = plan.benchmark_line.max_num_seqs
    assert sent[sent.index("--max-concurrency") + 1] == str(in_flight)
    assert int(sent[sent.index("--num-prompts") + 1]) >= 5 * in_flight  # as both recipes advise


def test_a_plan_file_reads_back_as_it_was_written() -> None:
    asked = request("min-latency", "h100-sxm")
    (ranking,) = asked.run()
    assert ranking.best is not None
    plan = asked.plan(ranking)
    file = PlanFile(planner_version="0.1.0", command="planner recommend", goal="min-latency", plan=plan)
    assert PlanFile.from_json(file.to_json()) == file


@pytest.mark.parametrize(("gpu", "native"), [("h100", True), ("a10g", True), ("a100", False)])
def test_integers_give_way_to_the_native_format_of_their_width(gpu: str, native: bool) -> None:
    """An H100 computes fp8, an A100 does not. Runs of int8 for calibration are of the A100's architecture alone."""
    (ranking,) = search_for(None, gpu, model="meta-llama/Llama-3.1-8B-Instruct", goal="max-throughput").run()
    planned = {candidate.config.weight_dtype for candidate in ranking.candidates}
    assert ("int8-gptq" in planned) != native
    assert any("int8-gptq is planned on NVIDIA" in one.reason for one in ranking.rejected) == native


@pytest.mark.parametrize(
    ("words", "found"),
    [
        # public questions: the answer is the 4-bit checkpoint of the publisher, or what fit finds
        (("Qwen/Qwen3-30B-A3B", "--gpu", "rtx-4090"), "Qwen3-30B-A3B-GPTQ-Int4 (asked: bf16) on 1 x RTX-4090"),
        (("Qwen/Qwen3-8B", "--gpu", "t4"), "Qwen3-8B-AWQ (asked: bf16) on 1 x T4"),
        # of another publisher: named, in a command that plans it
        (
            ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "--gpu", "rtx-4090"),
            "planner recommend QuantTrio/Qwen3-Coder-30B-A3B-Instruct-AWQ --gpu rtx-4090 --gpus 1",
        ),
        (
            ("google/gemma-3-27b-it", "--gpu", "rtx-4090"),
            "gemma-3-27b-it-quantized.w4a16 (asked: bf16) on 1 x RTX-4090",
        ),
        (
            ("meta-llama/Llama-3.3-70B-Instruct", "--gpu", "rtx-4090", "--max-concurrency", "4"),
            "fits: 4 GPUs, tensor parallel, an fp8 checkpoint: nvidia/Llama-3.3-70B-Instruct-FP8 --gpus 4",
        ),
        (("meta-llama/Llama-2-13b-hf", "--gpu", "mi300x-cpx"), "fits: fp8 weights, quantised while they load"),
        # a precision that is asked for by name may be of any publisher
        (
            ("meta-llama/Llama-3.1-8B-Instruct", "--gpu", "rtx-4090", "--weight-dtype", "int4-awq"),
            "Serve hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4 (asked: bf16) on 1 x RTX-4090",
        ),
        # 671 GB on 640: the next larger GPU as fast
        (("deepseek-ai/DeepSeek-R1", "--have", "h100=8"), "fits: NVIDIA H200 SXM 141GB: --gpu h200-sxm"),
    ],
)
def test_what_does_not_fit_is_answered_by_what_does(words: tuple[str, ...], found: str) -> None:
    one = () if "--have" in words else ("--gpus", "1")
    answer = run("recommend", *words, *one)
    assert found in " ".join(answer.out.split())
    assert "network" not in answer.out
    if "fits:" in found:  # the printed command runs, and shows that it fits
        command = " ".join(answer.out.replace("\\\n", " ").split()).partition("$ planner ")[2]
        assert run(*command.split()).status == 0


@pytest.mark.parametrize(("version", "least"), [("0.8.5", 1024 + 1024 + 82), ("0.10.2", 1024 + 1024)])
def test_prompts_that_an_old_client_only_decodes_have_room(version: str, least: int) -> None:
    """``sample_random_requests`` of 0.8.5 sends decoded tokens. Of 800 prompts of 1,024, by Tekken and a SentencePiece
    tokenizer, the longest had 1,105 when encoded."""
    plan = recommend_plans(LLAMA, "mi300x", engine_version=version, max_concurrency=32).best
    assert plan and least <= (plan.benchmark_line or plan).max_model_len < least + 256


def test_a_model_without_an_fp8_checkpoint_may_be_quantised_while_it_loads() -> None:
    asked = ("recommend", "allenai/OLMo-2-1124-13B-Instruct", "--gpu", "h100", "--max-concurrency", "32")
    assert "no FP8 checkpoint of it is known: --quantization fp8" in " ".join(run(*asked).out.split())
    said = run(*asked, "--quantization", "fp8", "--format", "json")
    plan = json.loads(said.out)["plans"][0]
    assert plan["weight_dtype"] == "fp8" and "--quantization fp8" in " ".join(plan["serve_argv"])
    assert "no FP8 checkpoint" not in run(*asked, "--quantization", "fp8").out


def test_the_command_of_a_way_out_keeps_the_settings_that_were_asked_for() -> None:
    """Without them 7 GiB of weights in a slice of 10 start with 66 % probability alone."""
    asked = ("--max-num-seqs", "16", "--max-num-batched-tokens", "512")
    said = run("recommend", "microsoft/Phi-4-mini-instruct", "--gpu", "a100-mig-1g.10gb", *asked).out
    command = " ".join(said.replace("\\\n", " ").split()).partition("$ planner ")[2]
    assert "--max-num-seqs 16 --max-num-batched-tokens 512" in command
    assert run(*command.split()).status == 0


def test_a_refusal_of_every_setting_comes_with_its_hint() -> None:
    said = " ".join(run("recommend", "MiniMaxAI/MiniMax-M1-80k", "--gpu", "h200").out.split())
    assert "no longer knows MiniMaxM1ForCausalLM" in said and "(choose --engine-version" in said


@pytest.mark.parametrize(
    ("model", "dtype"), [("meta-llama/Llama-3.3-70B-Instruct", "fp8"), ("Qwen/Qwen2.5-3B-Instruct", "bf16")]
)
def test_integer_weights_stay_behind_on_hopper_where_others_fit(model: str, dtype: str) -> None:
    plan = recommend_plans(model, "h100", goal="min-latency").best
    assert plan is not None and plan.weight_dtype == dtype


def test_types_of_gpu_beyond_the_table_are_counted() -> None:
    gpus = [word for gpu in ("l40s", "a100", "h100", "h200", "b200", "b300", "mi300x", "mi325x", "mi355x", "rtx-4090")
            for word in ("--gpu", gpu)]  # fmt: skip
    pinned = ("--max-concurrency", "8", "--input-len", "64", "--output-len", "16", "--gpus", "1")
    said = run("recommend", "nvidia/Llama-3.1-8B-Instruct-FP8", *gpus, *pinned).out
    table = said.split("\n\n")[1].splitlines()
    assert sum(" TP 1 " in line for line in table) == 8
    assert "2 more types of GPU in --format csv; name up to 8 with --gpu to search" in " ".join(said.split())


@pytest.mark.parametrize(
    ("goal", "first", "words"),
    [
        ("min-latency", "rtx-5090", "--goal min-latency with targets: it decides at equal cost only"),
        ("max-throughput", "h100-sxm", "--goal max-throughput with targets: tokens/s per GPU, not cost, ranks GPUs"),
    ],
)
def test_what_a_goal_does_beside_targets_is_said(goal: str, first: str, words: str) -> None:
    answer = recommend_plans(
        "meta-llama/Llama-3.1-8B-Instruct", ("h100", "rtx-5090"), ttft=500, goal=goal, max_num_batched_tokens=8192
    )
    assert answer.best and answer.best.gpu == first and words in answer.notes
    silent = recommend_plans("meta-llama/Llama-3.1-8B-Instruct", "h100", ttft=500, max_num_batched_tokens=8192)
    assert not any("--goal" in note for note in silent.notes)


@pytest.mark.parametrize(("dtype", "targets"), [("bf16", {"ttft": 500}), ("bf16", {}), ("fp8", {}), ("nvfp4", {})])
def test_the_precision_of_the_checkpoints_can_be_asked_for(dtype: str, targets: dict[str, float]) -> None:
    """That of the model itself keeps the checkpoint that was named; all others are left out."""
    named = "meta-llama/Llama-3.1-8B-Instruct"
    answer = recommend_plans(
        named,
        "b200",
        weight_dtype=dtype,
        max_num_batched_tokens=8192,
        max_concurrency=None if targets else 8,
        **targets,
    )
    every = [one for ranking in answer.rankings for one in ranking.candidates]
    assert every and {one.resolved.model.quantization.weight_dtype for one in every} == {dtype}
    assert answer.best and (answer.best.model == named) is (dtype == "bf16")
    assert f"--weight-dtype {dtype}" in answer.command
    with pytest.raises(InputError, match="no such checkpoint") as refused:
        recommend_plans(named, "b200", weight_dtype="mxfp8")
    assert "known are bf16, fp8" in str(refused.value.hint)


def test_a_fleet_keeps_the_precision_that_was_asked_for() -> None:
    load = {"request_rate": 10, "ttft": 500, "max_num_batched_tokens": 8192}
    answer = size_fleet("meta-llama/Llama-3.1-8B-Instruct", "h100", weight_dtype="bf16", **load)
    assert {kind.candidate.config.weight_dtype for fleet in answer.fleets for kind in fleet.kinds} == {"bf16"}


def test_a_precision_that_is_asked_for_gets_no_word_on_fp8_checkpoints() -> None:
    """There is one: amd/Llama-3.3-70B-Instruct-FP8-KV."""
    asked = run("recommend", "meta-llama/Llama-3.3-70B-Instruct", "--weight-dtype", "bf16", "--gpu", "mi300x")
    assert asked.status == 0 and "no FP8 checkpoint" not in asked.out


def test_int8_that_was_not_asked_for_is_warned_of() -> None:
    (ranking,) = (
        search := search_for(None, "a100", model="meta-llama/Llama-3.1-8B-Instruct", goal="max-throughput")
    ).run()
    narrow = next(one for one in ranking.candidates if one.config.weight_dtype == "int8-gptq")
    assert any("int8-gptq weights may cost accuracy" in words for words in search.plan(ranking, narrow).warnings)
