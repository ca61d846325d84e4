"""Plans under targets: the cheapest of all there are, bounds that hold, and honest answers where nothing meets them."""

import itertools
import json
import runpy
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from command_line import answer_of, json_of, refused, run
from hypothesis import given, settings
from hypothesis import strategies as st
from searches import SMALL, aiming, choices, ranked, search_for, with_args

from planner import recommend_plans
from planner.engine.published import default_version
from planner.engine.settings import EngineArgs, tagged
from planner.engine.sharding import Layout
from planner.engine.version import parse_version
from planner.errors import PlannerError
from planner.hardware.profiles import load_profile
from planner.model.resolve import resolve_model
from planner.planning import defaults
from planner.planning.capacity import Capacity, Steady, at_load, measure
from planner.planning.defaults import TOLERANCE
from planner.planning.deployment import Deployment, resolve_deployment
from planner.planning.plan import Plan, PlanFile
from planner.planning.predict import Prediction, ServedLoad
from planner.planning.search import by_targets
from planner.planning.search.by_targets import alone, missed_for_certain
from planner.planning.search.plans import plans_in_order
from planner.planning.search.search import Search
from planner.planning.search.servers import Servers, fewest_servers, share_of
from planner.planning.search.space import Merit, Ranking
from planner.planning.uncertainty import least_upper
from planner.timing.step import Batch
from planner.workload.load import Load, mixed
from planner.workload.requests import Prefixes, Requests
from planner.workload.targets import Slo, Targets, parse_slos

pytestmark = pytest.mark.usefixtures("short_replays")

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


def cheapest_of_all(asked: Search) -> float:
    """GPUs of the cheapest plan, by trying every engine with 1, 2, 3, ... servers."""
    (profile,), args, best = asked.space.gpus, asked.space.args, inf
    version = default_version(profile)
    for size, budget in product((1, 2), (None, *defaults.TOKEN_BUDGETS)):
        args = replace(args, tensor_parallel_size=size, max_num_batched_tokens=budget, max_model_len=768)
        most = min(1024, budget or 1024)
        holds = resolve_deployment(asked.space.model.model, profile, replace(args, max_num_seqs=most), version)
        assert holds.requests_served(640, pessimistic=True) >= most
        for batch in (*defaults.TARGET_BATCHES, most):
            try:
                deployment = resolve_deployment(
                    asked.space.model.model, profile, replace(args, max_num_seqs=batch), version
                )
            except PlannerError:
                continue
            servers = 1
            while servers * size < best:
                if share_of(deployment, asked.objective, servers).meets:
                    best = servers * size
                servers += 1
    return best


@pytest.mark.parametrize(
    ("limits_ms", "value", "confidence"),
    [
        ({"ttft": 300.0, "tpot": 25.0}, 75.0, 0.8),
        ({"tpot": 18.0}, 110.0, 0.8),
        ({"e2el": 3000.0}, 205.0, 0.3),
        ({}, 75.0, 0.95),
    ],
)
def test_the_search_finds_the_cheapest_plan_of_all(
    limits_ms: dict[str, float], value: float, confidence: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # a third of the requests ends before a server that is a little too slow has a queue
    targets = Targets(parse_slos(limits_ms), "rate", value, confidence=confidence)
    asked = search_for(targets, "h100", gpus_per_node=2, args=EngineArgs(kv_cache_dtype="fp8"))
    best = ranked(asked).best
    expected = cheapest_of_all(asked)
    assert 1 < expected < inf and best is not None
    assert best.num_gpus == expected


@pytest.mark.parametrize(("rate", "ttft_ms"), [(80.0, 100.0), (120.0, 150.0)])
def test_no_engine_carries_classes_that_wait_for_one_another_with_fewer_gpus(rate: float, ttft_ms: float) -> None:
    classes = Load.of_class("chat", 0.8 * rate, 256, 32), Load.of_class("batch", 0.2 * rate, 2000, 20)
    slos = tuple(replace(slo, group="chat") for slo in parse_slos({"ttft": ttft_ms, "tpot": 25.0}, "99"))
    targets = Targets(slos, "rate", rate)
    fixed = EngineArgs(kv_cache_dtype="fp8", max_model_len=2048, max_num_seqs=256)
    asked = search_for(targets, "h100", gpus_per_node=2, args=fixed, load=Load.classes_of(classes))
    best, (profile,) = ranked(asked).best, asked.space.gpus
    assert best is not None and best.num_gpus > 2
    for size, budget in product((1, 2), (None, *defaults.TOKEN_BUDGETS)):
        args = replace(fixed, tensor_parallel_size=size, max_num_batched_tokens=budget)
        deployment = resolve_deployment(asked.space.model.model, profile, args, default_version(profile))
        fewer = (best.num_gpus - 1) // size
        assert not share_of(deployment, asked.objective, fewer, exactly=True).meets


def most_of_all(asked: Search, at_least: float) -> float:
    """Requests/s per GPU of the engine that carries most, of every checkpoint, layout, KV dtype, budget and batch."""
    (profile,), objective, best = asked.space.gpus, asked.objective, at_least
    version = default_version(profile)

    def keeps(engine: Deployment, rate: float) -> bool:
        if rate > Steady.of(engine, objective.load).rate(objective.confidence):
            return False
        sent = at_load(engine, objective.load, objective.slos, "rate", rate)
        predicted = Prediction.of(engine, sent, percentiles=(95,))
        return all(
            predicted.figures[slo.key] * predicted.uncertainty.upper(slo.key, objective.confidence) <= slo.limit_ms
            for slo in objective.slos
        )

    among = choices(asked)
    for resolved in among.checkpoints():
        model = resolved.model
        for layout, kv in product(among._layouts(model), among._kv_cache_dtypes(model)):
            for budget, batch in product((None, 1024, 16384), (64, 512)):
                args = EngineArgs(
                    **{axis: getattr(layout, axis) for axis in tagged("axes")}, kv_cache_dtype=kv,
                    max_num_batched_tokens=budget, max_num_seqs=batch,
                    max_model_len=among.launched(model, EngineArgs()).max_model_len,
                )  # fmt: skip
                try:
                    engine = resolve_deployment(model, profile, args, version)
                except PlannerError:
                    continue
                if engine.requests_of(objective.load, pessimistic=True) < batch:
                    continue
                while keeps(engine, best * engine.config.num_gpus * (1 + TOLERANCE)):
                    best *= 1 + TOLERANCE
    return best


@pytest.mark.parametrize(
    ("model", "gpu", "limits_ms"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "l40s", {"ttft": 1000.0, "tpot": 40.0}),
        ("openai/gpt-oss-20b", "h100", {"ttft": 500.0, "tpot": 6.0}),
        ("meta-llama/Llama-3.1-8B-Instruct", "mi300x", {"e2el": 4000.0}),
    ],
)
def test_nothing_that_can_be_predicted_is_better_than_what_is_recommended(
    model: str, gpu: str, limits_ms: dict[str, float]
) -> None:
    """Pipelines, whole experts, DP and fp8 caches among them; ``benchmarks/search.py`` does so for whole nodes."""
    targets = Targets(parse_slos(limits_ms), "rate", None)
    asked = search_for(targets, gpu, model=model, load=Load(1000, 50), gpus_per_node=2)
    best = ranked(asked).best
    assert best is not None and best.load is not None
    found = best.load.value / best.config.num_gpus
    assert most_of_all(asked, found) <= found * (1 + TOLERANCE)


@pytest.mark.parametrize(("gpu", "model", "budget"), [("b200", LLAMA, 8192), ("mi355x", "openai/gpt-oss-120b", 8192)])
def test_no_budget_that_is_asked_for_is_better_than_the_one_that_is_found(gpu: str, model: str, budget: int) -> None:
    """Where the TTFT binds, and where the closed form tells no budget from another."""
    long_prompts = Load(4000, 500)
    targets = Targets(parse_slos({"ttft": 3000.0, "tpot": 60.0}), "rate", None)
    asked = search_for(targets, gpu, model=model, gpus_per_node=1, load=long_prompts)
    found, given = ranked(asked).best, ranked(with_args(asked, max_num_batched_tokens=budget)).best
    assert found is not None and found.load is not None and given is not None and given.load is not None
    assert given.load.value <= found.load.value * (1 + TOLERANCE)


def test_what_a_margin_turns_down_says_so() -> None:
    """More than the closed form is proved of nothing, so that the margin is named where it decides."""
    targets = Targets(parse_slos({"ttft": 2000.0, "tpot": 20.0}), "rate", None)
    reasons = [one.reason for one in ranked(search_for(targets, "h100", gpus_per_node=4)).rejected]
    assert any("5% above the closed form, a margin by judgement" in reason for reason in reasons)


def test_what_is_left_out_is_said_with_its_reason() -> None:
    asked = search_for(
        Targets(parse_slos({"tpot": 100.0}), "rate", 1.0),
        "h200",
        model="deepseek-ai/DeepSeek-V3",
        version=parse_version("0.19.0"),
    )
    said = " ".join(one.reason for one in choices(asked).left_out())
    assert "own MTP modules" in said and "stages together with DP" in said
    many = replace(asked, space=replace(asked.space, servings=asked.space.servings * 9))
    assert "9 types of GPUs" in " ".join(one.reason for one in choices(many).left_out())


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 600), st.booleans())
def test_the_fewest_servers_are_found_from_any_start(total: int, start: int, edge: int, capped: bool) -> None:
    """A load of ``total`` in flight, of which one server takes ``edge``."""
    tried: list[int] = []

    def probe(servers: int) -> ServedLoad:
        tried.append(servers)
        share = -(-total // servers)
        return cast(ServedLoad, SimpleNamespace(by="concurrency", value=share, meets=share <= edge, excess=0.0))

    expected = -(-total // edge)
    cap = 2 * expected if capped else inf
    count, load, _ = fewest_servers(probe, 1, min(start, int(min(cap, 1e9))), cap)
    assert count is not None and load is not None
    assert -(-total // count) <= edge and (count == 1 or -(-total // (count - 1)) > edge)
    assert count <= expected
    assert len(tried) <= 25


def test_where_the_best_so_far_is_not_beaten_two_loads_tell() -> None:
    tried: list[int] = []

    def probe(servers: int) -> ServedLoad:
        tried.append(servers)
        return cast(ServedLoad, SimpleNamespace(by="rate", value=1 / servers, meets=servers >= 21, excess=1.5))

    count, load, failed = fewest_servers(probe, 1, 3, 21)
    assert (count, tried) == (21, [21, 20])
    assert load is not None and failed is not None and not failed.meets


@dataclass
class Steps:
    """A clock whose steps take any time that grows with the batch."""

    growth_s: list[float]

    def step_s(self, batch: Batch) -> float:
        return sum(self.growth_s[: batch.decode_seqs])


bound_of = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "decode_bound.py"))["decode_bound"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.0001, 0.1), min_size=64, max_size=64), st.lists(st.integers(1, 64), min_size=1))
def test_no_schedule_of_steps_decodes_faster_than_the_bound(growth_s: list[float], batches: list[int]) -> None:
    timer = Steps(growth_s)
    times_s = [timer.step_s(Batch(batch)) for batch in batches]
    # what the requests see: each step counts once for each of them
    seen_s = sum(b * t for b, t in zip(batches, times_s, strict=True)) / sum(batches)
    engine = SimpleNamespace(timer=timer, config=SimpleNamespace(max_num_seqs=64, data_parallel_size=1))
    bound = bound_of(cast(Deployment, engine), 1, seen_s)
    assert sum(batches) / sum(times_s) <= bound * (1 + 1e-9)


def axes(model: str, gpu: str, version: str = "0.19.0", types: int = 1) -> set[Layout]:
    asked = search_for(Targets(), *[gpu] * types, model=model, version=parse_version(version))
    return set(choices(asked)._layouts(resolve_model(model).model))


def test_experts_stay_whole_only_where_there_are_experts() -> None:
    assert not any(layout.enable_expert_parallel for layout in axes(LLAMA, "h200"))
    assert Layout(8, enable_expert_parallel=True) in axes("Qwen/Qwen3-235B-A22B", "h200")


def test_attention_by_copies_is_for_experts_and_releases_that_have_it() -> None:
    latent = "deepseek-ai/DeepSeek-V3"
    assert Layout(1, 1, 8, True) in axes(latent, "h200") and Layout(2, 1, 4, True) in axes(latent, "h200")
    assert Layout(2, 1, 4, True) in axes("Qwen/Qwen3-235B-A22B", "h200")
    assert all(layout.data_parallel_size == 1 for layout in axes(LLAMA, "h200"))
    assert all(layout.data_parallel_size == 1 for layout in axes(latent, "h200", "0.8.5"))


def test_stages_go_with_every_size_that_leaves_gpus_for_them() -> None:
    # 28 heads: TP 4 at most among powers of two, so the other four GPUs of a node take a second stage
    found = axes("Qwen/Qwen2.5-7B-Instruct", "h100")
    assert Layout(4, 2) in found and Layout(8) not in found
    pairs = {(layout.tensor_parallel_size, layout.pipeline_parallel_size) for layout in axes(LLAMA, "l40s")}
    assert pairs == {(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2), (1, 4), (2, 4), (1, 8)}


def test_over_fast_links_stages_are_for_where_tp_does_not_reach() -> None:
    for gpu in ("h100", "mi300x"):
        assert all(layout.pipeline_parallel_size == 1 for layout in axes(LLAMA, gpu))


def test_among_many_types_of_gpus_stages_and_copies_are_for_where_nothing_else_reaches() -> None:
    assert all(layout.pipeline_parallel_size == 1 for layout in axes(LLAMA, "h100", types=9))
    assert all(layout.data_parallel_size == 1 for layout in axes("Qwen/Qwen3-235B-A22B", "h200", types=9))
    assert Layout(1, 1, 8, True) in axes("deepseek-ai/DeepSeek-V3", "h200", types=9)


def test_a_partition_is_served_alone() -> None:
    assert axes("meta-llama/Llama-3.1-8B-Instruct", "mi300x-cpx") == {Layout(1)}


def test_a_plan_with_copies_of_attention_says_so_on_its_command_line() -> None:
    targets = Targets(parse_slos({"tpot": 200.0}, "mean"), "rate", 1.0)
    given = EngineArgs(max_num_seqs=128, max_num_batched_tokens=8192, kv_cache_dtype="fp8")
    asked = search_for(targets, "b200", model="deepseek-ai/DeepSeek-V3", load=Load(512, 32), args=given)
    ranking = ranked(asked)
    spread = [c for c in ranking.candidates if c.config.data_parallel_size > 1]
    assert spread
    plan = asked.plan(ranking, spread[0])
    words = list(plan.serve_argv)
    assert words[words.index("--data-parallel-size") + 1] == str(plan.data_parallel_size)
    assert "--enable-expert-parallel" in words and plan.num_gpus == plan.tensor_parallel_size * plan.data_parallel_size


@cache
def plan_for_twenty() -> tuple[Search, Ranking]:
    asked = search_for(Targets(parse_slos({"ttft": 2000.0, "tpot": 100.0}), "rate", 20.0), "b200", model=LLAMA)
    return asked, ranked(asked)


def test_the_benchmark_sends_the_share_of_one_server() -> None:
    asked, ranking = plan_for_twenty()
    assert ranking.best is not None
    plan = asked.plan(ranking, ranking.best)
    assert plan.service is not None and plan.service.request_rate == 20
    assert plan.workload.request_rate == pytest.approx(20 / plan.service.replicas)
    words = list(plan.bench_argv)
    assert float(words[words.index("--request-rate") + 1]) == plan.workload.request_rate
    assert int(words[words.index("--num-prompts") + 1]) == plan.workload.num_prompts
    assert "--max-concurrency" not in words
    # what is predicted for the benchmark is what the targets were held against
    for target in plan.service.targets:
        assert target.met and plan.predicted[target.metric] == pytest.approx(target.predicted_ms)
    assert plan.service.total_gpus == plan.service.replicas * plan.num_gpus


def test_a_plan_with_targets_reads_back_as_it_was_written() -> None:
    asked, ranking = plan_for_twenty()
    assert ranking.best is not None
    plan = asked.plan(ranking, ranking.best)
    file = PlanFile(planner_version="0", command="planner recommend", goal="balanced", plan=plan)
    assert PlanFile.from_json(file.to_json()) == file
    assert plan.model_copy(update={"service": None}).digest == plan.digest  # nothing else is launched or sent


def test_every_candidate_keeps_the_targets_and_the_cheapest_is_first() -> None:
    _, ranking = plan_for_twenty()
    assert all(candidate.load and candidate.load.meets for candidate in ranking.candidates)
    gpus = [candidate.num_gpus for candidate in ranking.candidates]
    assert gpus == sorted(gpus)


def test_without_a_load_the_plan_carries_most_per_gpu() -> None:
    slos = parse_slos({"ttft": 2000.0, "tpot": 100.0})
    best = ranked(search_for(Targets(slos), "b200", model=LLAMA)).best
    _, twenty = plan_for_twenty()
    assert best is not None and best.load is not None and twenty.best is not None and twenty.best.load is not None
    # no more servers than that are needed for the same load
    assert 20 / best.load.value * best.config.num_gpus <= twenty.best.num_gpus * 1.05


def test_parts_are_rented_by_the_package() -> None:
    asked = search_for(Targets(parse_slos({"tpot": 100.0}), "rate", 9.0), "h100-mig-3g.40gb")
    ranking = ranked(asked)
    assert ranking.best is not None
    service = asked.plan(ranking, replace(ranking.best, servers=7)).service
    assert service is not None
    # two slices of 3g make up one GPU of 2.99 USD/h (2026-06): seven slices are four GPUs
    assert service.packages == 4
    assert service.usd_per_hour == pytest.approx(4 * 2.99)


def test_the_burst_that_opens_a_closed_loop_is_not_held_against_the_targets() -> None:
    asked = search_for(Targets(parse_slos({"ttft": 2000.0}), "concurrency", 64.0), "b200")
    ranking = ranked(asked)
    assert ranking.best is not None and ranking.best.load is not None
    load = ranking.best.load
    opening, rest = np.split(load.replay.ttft_s * 1000, [int(load.value)])
    assert load.readings[0].predicted_ms <= rest.max() < opening.max()  # all at once wait for more prompts
    assert any("which start together, do not count" in line for line in asked.plan(ranking, ranking.best).why)


@pytest.mark.parametrize("percentile", [95.0, 99.0])
def test_the_benchmark_shows_what_the_target_promises(percentile: float) -> None:
    """Its opening burst lies beyond a p95, as it sends 20 requests for each place; a p99 counts it, and it says so."""
    slos = parse_slos({"ttft": 400.0}, f"{percentile:g}")
    asked = search_for(Targets(slos, "concurrency", 64.0), "b200")
    plan = asked.plan(ranking := ranked(asked), ranking.best)
    assert ranking.best is not None and ranking.best.load is not None and plan.workload.max_concurrency
    assert plan.workload.num_prompts == 20 * plan.workload.max_concurrency
    reading, told = ranking.best.load.readings[0], [line for line in plan.warnings if "start together" in line]
    measured_ms = plan.predicted[reading.slo.key]
    if percentile == 95.0:
        assert measured_ms < reading.slo.limit_ms and not told
    else:
        assert measured_ms > reading.slo.limit_ms and f"its p99 TTFT is {measured_ms:,.0f} ms" in told[0]


def test_plans_are_put_in_the_order_of_their_price() -> None:
    asked = search_for(Targets(parse_slos({"tpot": 100.0}), "rate", 50.0), "h100", "b200")
    plans = [asked.plan(ranking, ranking.candidates[0]) for ranking in asked.run()]
    services = [plan.service for plan in plans]
    assert all(service is not None and service.usd_per_hour for service in services)
    first, second = (plan.service for plan in plans_in_order(plans, Merit("balanced"))[0])
    assert first is not None and second is not None
    assert (first.usd_per_hour or 0) <= (second.usd_per_hour or 0)


def test_own_prices_decide_the_order() -> None:
    """By hand: each plan costs its packages times the price that is given for its GPU; a partition's is its whole's."""
    args = EngineArgs(max_num_batched_tokens=8192, max_num_seqs=32, kv_cache_dtype="fp8")
    asked = search_for(Targets(parse_slos({"tpot": 100.0}), "rate", 5.0), "mi355x", "h100", "mi300x-cpx", args=args)
    own = replace(asked, space=replace(asked.space, prices={"mi355x": 0.5, "h100-sxm": 9.0, "mi300x": 2.4}))
    plans = [own.plan(ranking) for ranking in own.run()]
    costs = {plan.gpu: (plan.service.packages, plan.service.usd_per_hour) for plan in plans if plan.service}
    for gpu, each in (("mi355x", 0.5), ("h100-sxm", 9.0), ("mi300x-cpx", 2.4)):
        packages, usd = costs[gpu]
        assert usd == pytest.approx(each * packages)
    assert [plan.gpu for plan in plans_in_order(plans, Merit("balanced"))[0]] == sorted(
        costs, key=lambda gpu: costs[gpu][1] or 0
    )
    assert plans_in_order(plans, Merit("balanced"))[0][0].gpu == "mi355x"


def test_a_gpu_without_a_price_counts_at_the_mean_of_the_others() -> None:
    """By hand: 9 USD/h for one GPU and 3 for five are 4.8 on average; two without a price are 9.6, one is 4.8."""
    asked = search_for(Targets(parse_slos({"tpot": 100.0}), "rate", 5.0), "h100")
    ranking = ranked(asked)
    plan = asked.plan(ranking, ranking.candidates[0])
    assert plan.service is not None

    def costing(name: str, usd: float | None, packages: float, rate: float) -> Plan:
        known = {"usd_per_hour": usd, "packages": packages, "largest_load_output_throughput_per_gpu": rate}
        assert plan.service is not None
        return plan.model_copy(update={"gpu": name, "service": plan.service.model_copy(update=known)})

    plans = [
        costing("two", None, 2, 50.0), costing("dear", 9.0, 1, 400.0), costing("one", None, 1, 70.0),
        costing("cheap", 3.0, 5, 100.0),
    ]  # fmt: skip
    assert [p.gpu for p in plans_in_order(plans, Merit("balanced"))[0]] == ["cheap", "one", "dear", "two"]
    assert [p.gpu for p in plans_in_order(plans, Merit("max-throughput"))[0]] == ["dear", "cheap", "one", "two"]
    assert plans_in_order(plans, Merit("balanced"))[1].endswith(
        "no price is known for two, one: counted at 4.80 USD/h each, the mean of the others"
    )
    free = [plans[0], plans[2]]
    assert [p.gpu for p in plans_in_order(free, Merit("balanced"))[0]] == ["one", "two"]
    assert plans_in_order(free, Merit("balanced"))[1] == "whole GPUs, the fewest first; no price is known"
    assert "no price" not in plans_in_order(plans[1::2], Merit("balanced"))[1]


def test_max_throughput_takes_of_equally_many_gpus_the_server_that_carries_most() -> None:
    targets = Targets(parse_slos({"tpot": 80.0}), "rate", 2.0)
    rates: dict[str, float] = {}
    for goal in ("balanced", "max-throughput"):
        asked = search_for(targets, "h100", model=LLAMA, goal=goal, args=EngineArgs(kv_cache_dtype="fp8"))
        ranking = ranked(asked)
        best = ranking.best
        assert best is not None
        most = Servers(asked.space, asked.objective, best).most
        assert most is not None
        rates[goal] = most.output_tok_per_s / best.config.num_gpus
        service = asked.plan(ranking, best).service
        assert service is not None and service.largest_load_output_throughput_per_gpu == pytest.approx(rates[goal])
    assert rates["max-throughput"] >= rates["balanced"]


def test_a_trace_is_dealt_to_the_servers_in_turn() -> None:
    arrival_s = np.arange(4000) / 100  # one hundred a second
    requests = Requests(np.full(4000, 512), np.full(4000, 128), arrival_s)
    targets, load = Targets(parse_slos({"tpot": 40.0}), "rate", 100.0), Load.of_requests(requests, 100.0)
    best = ranked(search_for(targets, "h100", load=load, gpus_per_node=1)).best
    assert best is not None and best.load is not None
    assert best.load.value == pytest.approx(100 / best.servers)
    assert np.diff(best.load.replay.arrival_s) == pytest.approx(best.servers / 100)


def rushed(count: int, early: int) -> Requests:
    """A trace with all its rush at the beginning: ``early`` requests 300 a second, the others four a second."""
    arrival_s = np.concatenate([np.arange(early) / 300, early / 300 + np.arange(count - early) / 4])
    prefixes = Prefixes.of([[at] for at in range(count)], [[512]] * count)
    return Requests(np.full(count, 512), np.full(count, 32), arrival_s, prefixes)


def test_all_of_a_recorded_trace_decides_and_not_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last requests come slowly: one server would do for them, but the rush before takes more."""
    monkeypatch.setattr(defaults, "TRACE_PROMPTS", 200)
    requests = rushed(1000, 600)
    rate = 1000 / float(requests.arrival_s[-1])
    slos = parse_slos({"ttft": 150.0})
    targets, load = Targets(slos, "rate", rate), Load.of_requests(requests, rate)
    asked = search_for(targets, "h100", load=load, gpus_per_node=1)
    best = ranked(asked).best
    assert best and best.load
    by_end, by_all = (share_of(best.deployment, asked.objective, 1, entire=entire) for entire in (False, True))
    assert by_end.meets and len(by_end.replay.sent_s) == 200 and not by_all.meets
    assert best.servers > 1 and len(best.load.replay.sent_s) == 1000  # of all its servers
    every_one = share_of(best.deployment, asked.objective, best.servers, entire=True)
    assert every_one.meets  # what is printed is that of all of them
    assert best.load.readings[0].predicted_ms == pytest.approx(every_one.readings[0].predicted_ms)


def test_more_requests_of_a_bursty_trace_never_take_fewer_servers() -> None:
    """Bursts of 25 requests, 8 a second, between lulls. A share of ten requests would be judged by its longest."""
    draw = np.random.default_rng(5)
    gaps_s = draw.exponential(np.where(np.arange(200) // 25 % 2, 1 / 8, 1.0))
    input_len, output_len = (np.rint(draw.lognormal(np.log(mean), 0.8, 200)).astype(int) for mean in (1300, 130))
    requests = Requests(input_len, output_len, np.cumsum(gaps_s))
    slos, servers = parse_slos({"ttft": 600.0, "tpot": 50.0}), []
    for rate in (1.0, 2.0, 4.0, 8.0, 16.0):
        load = Load.of_requests(requests.at_pace(200 / float(requests.arrival_s[-1]) / rate), rate)
        best = ranked(search_for(Targets(slos, "rate", rate), "l40s", load=load, gpus_per_node=1)).best
        assert best and best.load and len(best.load.replay.sent_s) == 200  # of all its servers
        servers.append(best.servers)
    assert servers == sorted(servers) and servers[-1] < 16


def test_a_miss_of_sessions_by_noise_does_not_hide_that_fewer_servers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3-30B-A3B, 8 requests/s of coding agents on H100: 12 servers meet the targets, 11 miss by 5 %, 10 meet."""
    excess = {13: 0.7, 12: 0.79, 11: 1.05, 10: 0.88, 9: 1.3, 8: 1.4}

    def share(_: object, __: object, servers: int) -> SimpleNamespace:
        times = excess.get(servers, 0.5 if servers > 13 else 2.0)
        replay = SimpleNamespace(mean_in_flight=3.0, e2el_s=np.array([1.0]))
        return SimpleNamespace(meets=times <= 1, excess=times, value=8 / servers, by="rate", replay=replay)

    monkeypatch.setattr(by_targets, "judged_share", share)
    monkeypatch.setattr(by_targets._Search, "_meets_cold", lambda *_: True)
    requests = rushed(50, 5)
    for drawn, least in ((True, 10), (False, 12)):
        load = replace(Load.of_requests(requests, 8.0), drawn=drawn)
        asked = search_for(Targets(parse_slos({"ttft": 900.0}), "rate", 8.0), "h100", load=load, gpus_per_node=1)
        search = by_targets._Search(choices(asked))
        resolved, args = next(
            (one, args) for one in search.choices.checkpoints() for args in search.choices.engines(one)
        )
        engine = by_targets.RankedEngine(resolved, args, search.choices.deployed(resolved, args), 0.9, 0.67)
        candidate, _ = search._challenge(engine)
        assert candidate and candidate.servers == least


def test_the_room_of_a_server_for_a_trace_does_not_follow_the_rate_that_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rush comes first, so the last requests alone say too much."""
    monkeypatch.setattr(defaults, "TRACE_PROMPTS", 200)
    room = []
    for rate in (1.0, 2.0):
        requests = rushed(600, 300)
        load = Load.of_requests(requests.at_pace(600 / float(requests.arrival_s[-1]) / rate), rate)
        targets = Targets(parse_slos({"ttft": 700.0}), "rate", rate)
        budget = EngineArgs(max_num_batched_tokens=2048, max_num_seqs=1024)
        asked = search_for(targets, "h100", load=load, gpus_per_node=1, args=budget)
        best = ranked(asked).best
        assert best and best.servers == 1
        most = Servers(asked.space, asked.objective, best).most
        assert most and len(most.replay.sent_s) == 600
        room.append(most.value)
    assert room[0] > 1.1 and room[1] == pytest.approx(room[0], rel=0.1)


def test_where_nothing_meets_the_targets_the_closest_is_named_with_what_binds() -> None:
    ranking = ranked(search_for(Targets(parse_slos({"ttft": 1.0, "tpot": 50.0})), "h100", model=LLAMA))
    assert ranking.best is None and ranking.closest is not None and ranking.closest.load is not None
    ttft, tpot = ranking.closest.load.readings
    assert not ttft.met and tpot.met


def test_the_closest_engine_may_miss_with_one_request_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that meets the targets for a request alone, and thrashes its cache with two, is farther off."""
    thrashing, slow = (SimpleNamespace(args=EngineArgs(), resolved=None) for _ in range(2))
    far, near = SimpleNamespace(excess=8.6, by="rate"), SimpleNamespace(excess=2.6, by="rate")
    monkeypatch.setattr(by_targets, "alone", lambda *_: near)
    found = SimpleNamespace(
        coarse=True, objective=SimpleNamespace(by="rate"), load=SimpleNamespace(unsendable=True),
        missed=[(thrashing, far)], hopeless=[(2.0, slow)], choices=SimpleNamespace(deployed=lambda *_: None),
        _candidate=lambda engine, load, _: (engine, load),
    )  # fmt: skip
    assert by_targets._Search._closest(cast(Any, found)) == (slow, near)


FIXED = ("--max-num-batched-tokens", "8192", "--kv-cache-dtype", "fp8")  # what tests of an answer's form are not about
TARGETS = ("--ttft", "2000", "--tpot", "100", *FIXED)


def test_a_plan_with_targets_is_written_and_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("recommend", SMALL, "--gpu", "h100", *TARGETS, "--request-rate", "10", "--workload", "chat")
    answer = answer_of(*words, "-o", "plan")
    printed, saved = answer.to_dict(), json.loads((tmp_path / "plan/plan.json").read_text())
    assert printed["workload"]["request_rate"] == 10 and printed["workload"]["name"] == "chat"
    assert [limit["metric"] for limit in printed["targets"]["limits"]] == ["p95_ttft_ms", "p95_tpot_ms"]
    service = printed["plans"][0]["service"]
    assert saved["service"] == service and service["confidence"] == 0.8 and service["workload"] == "chat"
    assert service["node_load"] == pytest.approx(8 * service["largest_load"])
    sent = saved["bench_argv"]
    assert sent[sent.index("--random-range-ratio") + 1] == "0.5"
    assert service["load_asked"] and service["request_rate"] == 10
    asked = " ".join(answer.to_text().split("\n\n")[0].split())
    lengths = " + ".join(f"{int(sent[sent.index(f'--random-{side}-len') + 1]):,}" for side in ("input", "output"))
    assert f": 10 requests/s of {lengths} tokens, p95 TTFT " in asked and "room for" in asked
    assert f": 10 requests/s of {lengths} tokens with p95 TTFT " in " ".join(run("fleet", *words[1:]).out.split())


@pytest.mark.parametrize(
    ("words", "limits"),
    [
        (("meta-llama/Llama-3.1-8B", "--gpu", "mi300x-cpx", "--workload", "chat"), {"--ttft": "350", "--tpot": "40"}),
        (("Qwen/Qwen3-32B", "--gpu", "a100", "--gpus", "2", "--input-len", "5000"), {"--ttft": "1000", "--tpot": "40"}),
        (("openai/gpt-oss-20b", "--gpu", "l4", "--gpus", "1", "--request-rate", "1"), {"--ttft": "200", "--tpot": "9"}),
        (("Qwen/Qwen3.6-27B", "--gpu", "rtx-5090", "--gpus", "1", "--max-concurrency", "1"), {"--ttft": "200"}),
    ],
)
def test_limits_that_are_named_as_achievable_have_a_plan(words: tuple[str, ...], limits: dict[str, str]) -> None:
    """Without the queue of a slower engine, 506 ms were named on MI300X-CPX, then 531, of a target of 500."""
    words = (*words, *FIXED)
    none = run("recommend", *words, *itertools.chain(*limits.items()))
    assert none.status == 1
    said = " ".join(none.out.split()).partition("; achievable")[2]
    assert ("by an idle server only" in said) == ("--max-concurrency" not in words)
    named = said.split()
    met = limits | {flag: ms for flag, ms in itertools.pairwise(named) if flag in limits}
    assert met != limits
    assert run("recommend", *words, *itertools.chain(*met.items())).status == 0


def test_of_equal_cost_servers_without_pipelines_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers of one GPU, and a pipeline of two with the same figures; few pipelines were measured."""
    targets = Targets(parse_slos({"ttft": 1000.0, "tpot": 30.0}), "rate", 50.0)
    asked = search_for(targets, "h100", gpus_per_node=2)
    (best, *_), among = ranked(asked).candidates, choices(asked)
    best = replace(best, servers=2)
    args = replace(among.space.args, pipeline_parallel_size=2, max_model_len=2048, max_num_seqs=64)
    piped = replace(best, deployment=among.deployed(best.resolved, args), servers=1)
    assert piped.num_gpus == best.num_gpus == 2
    search = by_targets._Search(among)
    monkeypatch.setattr(search, "run", lambda: None)
    search.plans = [piped, best]
    assert [one.config.pipeline_parallel_size for one in search.ranking().candidates] == [1, 2]


@pytest.mark.parametrize(("more", "first"), [(1 + TOLERANCE / 2, "bf16"), (1 + 2 * TOLERANCE, "fp8")])
def test_an_fp8_cache_without_scales_has_to_carry_clearly_more(
    monkeypatch: pytest.MonkeyPatch, more: float, first: str
) -> None:
    targets = Targets(parse_slos({"ttft": 1000.0, "tpot": 30.0}), "rate")
    asked = search_for(targets, "h100", model="Qwen/Qwen3-8B", gpus_per_node=1)
    (best, *_), among = ranked(asked).candidates, choices(asked)
    assert best.load
    args = replace(among.space.args, max_model_len=2048, max_num_seqs=64)
    wide, small = (among.deployed(among.space.model, replace(args, kv_cache_dtype=one)) for one in ("auto", "fp8"))
    search = by_targets._Search(among)
    monkeypatch.setattr(search, "run", lambda: None)
    carries_more = replace(best.load, value=best.load.value * more)
    search.plans = [
        replace(best, resolved=among.space.model, deployment=small, load=carries_more),
        replace(best, resolved=among.space.model, deployment=wide),
    ]
    assert search.ranking().candidates[0].config.kv_cache_dtype == first


def test_without_a_load_the_largest_is_the_answer() -> None:
    answer = answer_of("recommend", SMALL, "--gpu", "h100", *TARGETS, "--workload", "chat")
    service = answer.to_dict()["plans"][0]["service"]
    assert not service["load_asked"] and service["request_rate"] == pytest.approx(service["largest_load"])
    assert "room for" not in answer.to_text().split("\n\n")[0]


def test_of_many_gpus_the_best_is_explained_and_those_without_a_plan_are_named() -> None:
    slices = ("a100-mig-1g.10gb", "a100-mig-2g.20gb", "h100-mig-1g.10gb", "h100-mig-2g.20gb", "h200-mig-1g.18gb")
    gpus = [word for gpu in (*slices, "b200-mig-1g.23gb", "mi300x-cpx", "b200", "h200") for word in ("--gpu", gpu)]
    outcome = run("recommend", LLAMA, *gpus, *TARGETS, "--request-rate", "20")
    assert outcome.status == 0
    verdict, rows = outcome.out.split("\n\n")[:2]
    table = rows.splitlines()
    assert verdict.startswith("Serve ") and table[0].split()[:2] == ["gpu", "gpus"]
    assert int(table[2].split()[1]) < int(table[3].split()[1])  # the cheapest first
    assert "no plan on A100-MIG-1G.10GB" in outcome.out
    others = "no plan on A100-MIG-2G.20GB, H100-MIG-1G.10GB, H100-MIG-2G.20GB and 3 more either"
    assert others in " ".join(outcome.out.split())
    assert outcome.out.count("$ ") == 1


def test_no_plan_is_an_honest_no(tmp_path: Path) -> None:
    answer = answer_of("recommend", SMALL, "--gpu", "h100", "--ttft", "1")
    data, text = answer.to_dict(), answer.to_text()
    assert not answer.ok  # so the command ends with 1
    assert text.startswith("No plan meets p95 TTFT of 1 ms") and "misses p95 TTFT of 1 ms" in text
    assert data["plans"] == [] and data["closest"][0]["targets"][0]["met"] is False
    keys = {frozenset(rejected) for rejected in data["rejected"]}
    assert len(keys) == 1  # every row says the same things, unknown or not


@pytest.mark.parametrize(
    ("question", "asked", "option"),
    [
        (  # a lone prompt takes 9 s on eight H200; the pipeline stages of more nodes share it
            "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 --gpu h200 --input-len 131072 --output-len 500 --request-rate 0.1 "
            "--ttft 8000",
            (),
            "--nodes",
        ),
        (  # at random every server computes a conversation again
            f"{SMALL} --gpu h100 --gpus 2 --workload coding-agent --request-rate 3 --ttft 2500 --tpot 20",
            ("--router", "random"),
            "--router prefix-aware",
        ),
    ],
)
def test_an_option_that_meets_the_targets_is_named_where_no_plan_does(
    question: str, asked: tuple[str, ...], option: str
) -> None:
    words = ("recommend", *question.split(), *FIXED, "--no-speculation")
    answer = answer_of(*words, *asked)
    remedy = answer.to_dict()["remedy"]
    assert not answer.ok and remedy["option"].startswith(option)
    assert f"{remedy['option']} would meet the targets, with {remedy['num_gpus']} x " in answer.to_text()
    service = json_of(*words, *remedy["option"].split())["plans"][0]["service"]
    assert service["total_gpus"] == remedy["num_gpus"]
    even = service["ladder"][0]["total_gpus"]
    assert even == remedy["gpus_at_even_odds"]
    said = " ".join(answer.to_text().split())
    assert (f" at 80% confidence, {even} at even odds" in said) == (even < remedy["num_gpus"])
    if "--router" in asked:  # chance had no plan
        assert service["plain_router"]["router"] == "least-loaded" and service["plain_router"]["servers"] is None


def test_a_trace_is_planned_for_and_the_benchmark_says_what_it_cannot(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"{i / 10},{400 + i % 200},{100 + i % 50}\n" for i in range(1000)]
    path.write_text("arrival_s,input_len,output_len\n" + "".join(rows))
    data = json_of("recommend", SMALL, "--gpu", "h100", *TARGETS, "--trace", str(path))
    assert data["workload"]["trace"]["requests"] == 1000
    plan = data["plans"][0]
    assert plan["service"]["trace"]["sha256"] == data["workload"]["trace"]["sha256"]
    assert any("cannot send a trace" in warning for warning in plan["warnings"])
    assert plan["workload"]["input_len"] == 500  # the mean of 400 to 599, rounded
    assert plan["max_model_len"] >= 599 + 149


@pytest.mark.parametrize(("version", "sends"), [("0.22.0", False), ("0.27.1", True)])
def test_a_plan_says_which_vllm_sends_its_trace_with_prefixes(version: str, sends: bool, tmp_path: Path) -> None:
    """``--timed-trace-chunk-hash-size`` is an option of vllm bench serve from 0.23.0 on, by its own parser."""
    path = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 100 * i, "input_length": 600, "output_length": 20, "hash_ids": [0, i]} for i in range(1, 300)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--gpu", "h100", "--gpus", "1", "--ttft", "2000", "--trace", str(path), "--engine-version", version,
             *FIXED)  # fmt: skip
    warnings = json_of("recommend", SMALL, *words)["plans"][0]["warnings"]
    assert any("--dataset-name timed_trace --self-timed" in warning for warning in warnings) == sends


def test_sessions_are_not_told_to_be_sent_by_hash_ids(tmp_path: Path) -> None:
    """``timed_trace`` of vllm bench serve takes missing ``hash_ids`` for []: no prompt would share a prefix."""
    path = tmp_path / "turns.jsonl"
    turns = [
        {"arrival_s": i, "input_len": 100 + i // 9 * 30, "output_len": 20, "session": i % 9} for i in range(1, 300)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in turns))
    words = ("--gpu", "h100", "--gpus", "1", "--ttft", "2000", "--trace", str(path), *FIXED)
    service = json_of("recommend", SMALL, *words)["plans"][0]
    assert service["service"]["prefix_cache_share"] > 0.1
    assert not any("timed_trace" in warning for warning in service["warnings"])


WRONG = {
    "no time at all": ((*TARGETS[:1], "0"), "--ttft 0"),
    "a negative target": (("--tpot", "-5"), "--tpot -5"),
    "no number": (("--e2el", "nan"), "--e2el nan"),
    "percentile of nothing": ((*TARGETS, "--percentile", "0"), "got 0"),
    "percentile above all": ((*TARGETS, "--percentile", "101"), "got 101"),
    "percentile of words": ((*TARGETS, "--percentile", "high"), "--percentile 'high'"),
    "percentile without target": (("--percentile", "99"), "--percentile has no target"),
    "confidence in nothing": (("--confidence", "0.9"), "--confidence has no target"),
    "gaps of one token": (("--tpot", "20", "--output-len", "1"), "--tpot needs answers of at least two tokens"),
    "no requests": ((*TARGETS, "--request-rate", "0"), "--request-rate must be positive"),
    "endless requests": ((*TARGETS, "--request-rate", "inf"), "--request-rate must be a positive"),
    "two loads": ((*TARGETS, "--request-rate", "5", "--max-concurrency", "5"), "--request-rate and --max-concurrency"),
    "a trace that is not there": (("--trace", "none.csv"), "--trace none.csv"),
    "a trace and lengths": (("--trace", "none.csv", "--input-len", "5"), "--trace and --random-input-len"),
    "a name and lengths": (("--workload", "chat", "--random-output-len", "5"), "--workload and --random-output-len"),
    "an unknown name": (("--workload", "games"), "--workload"),
    "no folder": (("-o", ""), "-o names no folder"),
    "the flag that was typed": (("--random-input-len", "0"), "--random-input-len must be at least 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_targets_and_loads_are_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words, cause = WRONG[name]
    assert cause in refused("recommend", SMALL, "--gpu", "h100", *words)


def test_a_wrong_gpu_of_the_defaults_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planner.toml").write_text('[recommend]\ngpu = "h1000"\n')
    error = refused("recommend", SMALL)
    assert "planner.toml" in error and "h1000" in error


def test_a_link_to_nothing_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plans").symlink_to("nowhere")
    assert "link to nothing" in refused(
        "recommend", SMALL, "--gpu", "h100", "--goal", "min-latency", "-o", "plans", "--force"
    )
    assert not (tmp_path / "nowhere").exists()


def test_force_leaves_no_plan_of_another_shape_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = ("recommend", SMALL, "--goal", "min-latency", "-o", "plans", "--force", "--gpu", "h100")
    assert run(*one).status == 0
    (tmp_path / "plans/results").mkdir()
    assert run(*one, "--gpu", "h200").status == 0
    assert not list((tmp_path / "plans").glob("*.sh")) and not (tmp_path / "plans/plan.json").exists()
    assert sorted(path.parent.name for path in (tmp_path / "plans").glob("*/plan.json")) == ["h100-sxm", "h200-sxm"]
    assert (tmp_path / "plans/results").is_dir()
    assert run(*one).status == 0
    assert (tmp_path / "plans/plan.json").is_file()
    assert not list((tmp_path / "plans").glob("*/plan.json"))


@pytest.mark.parametrize("target", [{"ttft": 7.0}, {"tpot": 1.0}, {"e2el": 300.0}])
def test_an_impossible_target_is_told_from_lone_requests_without_a_search(
    target: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[object] = []
    monkeypatch.setattr(by_targets._Search, "_search_family", lambda self, family: searched.append(family))
    impossible = Targets(parse_slos(target), "rate", None)
    ranking = ranked(search_for(impossible, "h200", model=LLAMA, load=Load(1024, 1024)))
    assert not searched and not ranking.candidates
    assert ranking.closest and ranking.closest.load and not ranking.closest.load.meets
    assert all("misses" in gone.reason for gone in ranking.rejected if gone.max_num_seqs)


@pytest.mark.parametrize("ratio", [0.0, 0.5])
@pytest.mark.parametrize(("lengths", "rate"), [((512, 64), 0.2), ((4096, 32), 1.0), ((128, 256), 4.0)])
def test_a_pipeline_never_beats_its_bound(lengths: tuple[int, int], rate: float, ratio: float) -> None:
    profile = load_profile("h100")
    args = EngineArgs(pipeline_parallel_size=4, max_model_len=8192, max_num_seqs=64)
    engine = resolve_deployment(resolve_model(LLAMA).model, profile, args, default_version(profile))
    served = engine.replay(Load(*lengths, 60, request_rate=rate, range_ratio=ratio))
    for metric, values_s in (("ttft", served.ttft_s), ("tpot", served.tpot_s), ("e2el", served.e2el_s)):
        (slo,) = parse_slos({metric: 1.0})
        least_ms = float(values_s.min()) * 1e3 * least_upper(engine, slo.key, 0.8)
        for limit_ms, missed in ((least_ms, False), (least_ms / 50, True)):
            targets = Targets((replace(slo, limit_ms=limit_ms),), "rate", None)
            one = search_for(targets, "h100", model=LLAMA, load=Load(*lengths, range_ratio=ratio))
            assert bool(missed_for_certain(engine, one.objective)) is missed, (metric, limit_ms)


@pytest.mark.parametrize(("gpu", "size", "stages"), [("h100", 1, 1), ("l4", 4, 1), ("l4", 2, 2)])
def test_idle_servers_never_beat_the_bound_of_sessions(gpu: str, size: int, stages: int) -> None:
    """Half of the requests take no less than the bound, found wherever their prompts have been before."""
    load = Load.sessions("coding-agent", 2.0)
    args = EngineArgs(tensor_parallel_size=size, pipeline_parallel_size=stages, max_model_len=131072, max_num_seqs=8)
    engine = resolve_deployment(resolve_model(SMALL).model, load_profile(gpu), args, parse_version("0.20.0"))
    served = engine.replay(load.at_rate(0.01, 200))
    for metric, values_s in (("ttft", served.ttft_s), ("tpot", served.tpot_s)):
        (slo,) = parse_slos({metric: 1.0})
        half_ms = float(np.nanmedian(values_s)) * 1e3 * least_upper(engine, slo.key, 0.8)
        for limit_ms, missed in ((half_ms, False), (half_ms / 50, True)):
            one = search_for(Targets((replace(slo, limit_ms=limit_ms),), "rate", 2.0), gpu, load=load)
            assert bool(missed_for_certain(engine, one.objective)) is missed, (metric, limit_ms)


@pytest.mark.parametrize(("gpu", "size", "servers"), [("h100", 1, 24), ("l4", 8, 24), ("h200", 1, 12)])
def test_a_server_that_serves_its_share_of_the_sessions_serves_them_alone(gpu: str, size: int, servers: int) -> None:
    """Its cache holds three contexts: the few sessions of its share, but not those of all servers."""
    load = Load.sessions("coding-agent", 2.0)
    args = EngineArgs(
        tensor_parallel_size=size, max_model_len=122880, max_num_seqs=4, enable_prefix_caching=True,
        kv_cache_memory_bytes=3 * 122880 * 131072 // size,
    )  # fmt: skip
    engine = resolve_deployment(resolve_model(SMALL).model, load_profile(gpu), args, parse_version("0.20.0"))
    wide = search_for(Targets(parse_slos({"ttft": 1e6, "tpot": 1e6}), "rate", 2.0), gpu, load=load).objective
    served = share_of(engine, wide, servers)
    slos = tuple(replace(one.slo, limit_ms=one.expected_ms * 1.05) for one in served.readings)
    objective = replace(wide, targets=Targets(slos, "rate", 2.0))
    assert share_of(engine, objective, servers).meets
    lone = replace(engine, config=replace(engine.config, max_num_seqs=1))
    assert alone(lone, objective).meets


@pytest.mark.parametrize(("gpu", "size", "seed"), [("h100", 1, 0), ("l4", 8, 1), ("mi355x", 1, 2)])
def test_more_servers_never_make_a_share_of_the_same_sessions_miss(gpu: str, size: int, seed: int) -> None:
    """Up to servers that idle, where fewer keep up; the order of the same 1,000 requests moves a p95 by 3 %."""
    args = EngineArgs(tensor_parallel_size=size, max_model_len=122880, max_num_seqs=32, enable_prefix_caching=True)
    engine = resolve_deployment(resolve_model(SMALL).model, load_profile(gpu), args, parse_version("0.20.0"))
    targets = Targets(parse_slos({"ttft": 1e6, "tpot": 1e6}), "rate", 2.0)
    wide = search_for(targets, gpu, load=Load.sessions("coding-agent", 2.0, seed)).objective
    served = [share for count in (8, 12, 16, 24, 48) if (share := share_of(engine, wide, count)).stable]
    assert len(served) > 2
    for fewer, more in itertools.pairwise([*served, alone(engine, wide)]):
        assert more.replay.mean_in_flight < fewer.replay.mean_in_flight
        for one, two in zip(fewer.readings, more.readings, strict=True):
            assert two.expected_ms < 1.03 * one.expected_ms, (one, two)


def test_a_target_that_no_layout_meets_is_refused_before_sessions_are_dealt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each engine is looked at once, integer checkpoints after the others, and no share of the sessions is replayed."""
    outlined: list[tuple[str, EngineArgs]] = []
    outline = by_targets._Search._outline
    monkeypatch.setattr(
        by_targets._Search, "_outline",
        lambda self, resolved, args: outlined.append((resolved.resolved, args)) or outline(self, resolved, args),
    )  # fmt: skip
    monkeypatch.setattr(by_targets, "judged_share", lambda *_, **__: pytest.fail("sessions are dealt"))
    load = Load.sessions("coding-agent", 2.0)
    model = "meta-llama/Llama-3.1-8B-Instruct"
    args = EngineArgs(max_num_batched_tokens=2048)
    targets = Targets(parse_slos({"tpot": 2.0}), value=2.0)
    ranking = ranked(search_for(targets, "l4", model=model, load=load, args=args, gpus_per_node=2))
    assert not ranking.candidates and ranking.closest
    assert len({resolved for resolved, _ in outlined}) > 2 and len(set(outlined)) == len(outlined)


@pytest.mark.parametrize("longest", [512, 4096])
def test_two_requests_of_each_class_say_what_all_say_of_a_server_for_themselves(longest: int) -> None:
    limits = {"a": {"ttft": 100.0}, "b": {"tpot": 2.0, "e2el": 900.0}}
    slos = tuple(replace(slo, group=name) for name, limits_ms in limits.items() for slo in parse_slos(limits_ms, "99"))
    classes = (Load.of_class("a", 3.0, 512, 32), Load.of_class("b", 1.0, 256, 64))
    drawn = mixed(classes, 400, seed=0)
    lengths = drawn.input_len.copy()
    lengths[np.flatnonzero(drawn.group == 0)[5]] = longest  # which 4,096 tokens break, but no 1 % of a class
    targets = Targets(slos, "rate", 4.0)
    sent = Load.of_requests(replace(drawn, input_len=lengths), 4.0, classes=classes)
    args, version = EngineArgs(max_num_seqs=1), parse_version("0.11.0")
    engine = resolve_deployment(resolve_model(SMALL).model, load_profile("h100"), args, version)
    found = alone(engine, search_for(targets, "h100", load=sent).objective)
    whole = measure(engine, sent.at_concurrency(1), slos, confidence=targets.confidence)
    assert found.meets == whole.meets
    assert [one.excess for one in found.readings] == pytest.approx([one.excess for one in whole.readings], rel=1e-9)


def test_a_target_that_idle_servers_miss_by_little_is_not_searched_load_by_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lone request keeps it, the worst of many do not: no smaller load helps."""
    tried: list[float] = []
    at = Capacity.at
    monkeypatch.setattr(
        Capacity, "at", lambda self, value, *rest, **how: tried.append(value) or at(self, value, *rest, **how)
    )
    close = parse_slos({"tpot": 100.0, "e2el": 86.0})
    asked = search_for(Targets(close, "rate", None), "h100", model=SMALL, load=Load(129, 30))
    ranking = ranked(asked)
    assert not ranking.candidates and not tried
    kept = aiming(asked, targets=Targets(parse_slos({"e2el": 400.0})))
    assert ranked(kept).candidates and tried


@pytest.mark.usefixtures("short_replays")
@pytest.mark.parametrize(
    ("gpu", "model", "rate"),
    [("h200", "meta-llama/Llama-3.3-70B-Instruct", 7.0), ("h100", "Qwen/Qwen3-8B", 20.0), ("l40s", SMALL, 10.0)],
)
def test_a_row_of_many_gpus_keeps_the_targets_and_is_never_cheaper_alone(
    gpu: str, model: str, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among many types of GPUs a row is searched coarsely: the search of that GPU alone finds no dearer plan."""
    load, slos = Load(1024, 256, request_rate=rate, range_ratio=0.5), (Slo("ttft", 500), Slo("tpot", 40))
    search = search_for(Targets(slos, value=rate), gpu, model=model, load=load)
    fine = ranked(search).best
    monkeypatch.setattr(defaults, "FEW_GPUS", 0)
    coarse = ranked(search).best
    assert fine and coarse and fine.num_gpus <= coarse.num_gpus
    assert share_of(coarse.deployment, search.objective, coarse.servers, exactly=True).meets


def test_no_token_budget_that_is_given_takes_fewer_gpus_than_the_search() -> None:
    """Short answers: prompts make up most of the steps, and the load is not unimodal over the budget."""
    targets = Targets(parse_slos({"ttft": 1000.0, "tpot": 40.0}), "rate", 17.949)
    asked = search_for(targets, "mi355x", model="Qwen/Qwen3-30B-A3B", load=Load(1024, 32))
    sizes = {}
    for budget in (None, 512, 1024, 8192):
        best = ranked(with_args(asked, max_num_batched_tokens=budget, kv_cache_dtype="fp8")).best
        sizes[budget] = best.num_gpus if best else 10**9
    assert sizes[None] == min(sizes.values())


def test_servers_behind_a_router_see_every_nth_arrival() -> None:
    """By hand: the gaps of every fourth of a Poisson stream are four exponential ones, a gamma of shape four."""
    objective = search_for(Targets(value=8.0), "h100", load=Load(512, 128, request_rate=8.0)).objective
    assert objective.router == "least-loaded" and objective.dealt(4).burstiness == 4.0
    apart = objective.dealt(4).at_rate(2.0, 4000).requests().arrival_s
    together = Load(512, 128, 16000, request_rate=8.0).requests().arrival_s[::4]
    deviations = [float(np.diff(times).std() / np.diff(times).mean()) for times in (apart, together)]
    assert deviations == pytest.approx([0.5, 0.5], abs=0.02)
    for router in ("round-robin", "random"):
        other = replace(objective, targets=Targets(value=8.0, router=router))
        assert other.dealt(4).burstiness == {"round-robin": 4.0, "random": 1.0}[router]


def test_a_router_that_looks_at_the_load_never_takes_more_gpus_than_chance() -> None:
    """The cost of chance that a plan names is the plan behind a random router, where one engine alone is searched."""
    load, services = Load(2048, 64, request_rate=70.0), {}
    fixed = EngineArgs(max_num_batched_tokens=4096, max_num_seqs=384, kv_cache_dtype="fp8")
    for router in ("least-loaded", "random"):
        targets = Targets(parse_slos({"ttft": 200.0}), value=70.0, router=router)
        asked = search_for(targets, "h100", load=load, args=fixed, gpus_per_node=1)
        service = asked.plan(ranked(asked)).service
        assert service and service.router == router
        services[router] = service
    plain = services["least-loaded"].plain_router
    assert plain and services["least-loaded"].replicas < plain.servers == services["random"].replicas
    assert plain.targets[0].expected_ms > 200.0 and services["random"].plain_router is None


def test_a_precision_that_only_its_interval_rules_out_is_named() -> None:
    """Its sizes are those of searches for that precision alone, at even odds and at the asked confidence."""
    words = "recommend Qwen/Qwen3-235B-A22B --gpu h200 --input-len 4096 --output-len 1024 --request-rate 20 --tpot 20"
    asked = (*words.split(), *FIXED, "--max-num-seqs", "256", "--no-speculation")
    answer = answer_of(*asked)
    (best, *_), sizes = answer.to_dict()["plans"], {}
    for confidence in (0.5, 0.8):
        alone = json_of(*asked, "--weight-dtype", "fp8", "--confidence", str(confidence))["plans"][0]
        sizes[confidence] = alone["service"]["total_gpus"]
    rival, ladder = best["service"]["rival"], best["service"]["ladder"]
    assert (rival["model"], rival["weight_dtype"]) == ("Qwen/Qwen3-235B-A22B-FP8", "fp8")
    assert [rival["gpus_at_even_odds"], rival["total_gpus"]] == list(sizes.values())
    assert sizes[0.5] < ladder[0]["total_gpus"] and sizes[0.8] > best["service"]["total_gpus"]
    said = f"interval of fp8 decides: with such servers the load takes {sizes[0.5]} GPUs at 50%, {sizes[0.8]} GPUs at"
    assert said in " ".join(answer.to_text().split())
    assert alone["service"]["rival"] is None  # no other precision was searched


def test_a_target_that_limits_a_server_has_its_figure_and_bound() -> None:
    answer = answer_of("recommend", SMALL, "--gpu", "h100", "--tpot", "12", "--workload", "chat", *FIXED)
    (target,) = answer.to_dict()["plans"][0]["service"]["targets"]
    bound = f"{target['predicted_ms']:.2g} ms predicted, up to {target['upper_ms']:.2g} ms with 80% confidence"
    assert target["upper_ms"] == target["expected_ms"]
    assert f"bottleneck: p95 TPOT of 12 ms: {bound}; decode steps" in " ".join(answer.to_text().split())


def test_the_bottleneck_at_the_load_stands_beside_what_a_larger_load_misses() -> None:
    load = ("--max-concurrency", "64", "--input-len", "2048", "--output-len", "256", "--max-num-batched-tokens", "512")
    targets = ("--ttft", "1100", "--tpot", "25", "--gpus", "1", "--kv-cache-dtype", "fp8", "--weight-dtype", "bf16")
    answer = answer_of("recommend", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", *targets, *load)
    plan, text = answer.to_dict()["plans"][0], " ".join(answer.to_text().split())
    (why,) = (one for one in plan["why"] if one.startswith("bottleneck: p95 TPOT of 25 ms; "))  # 24.3 of 25 ms
    assert f"{why.partition('; ')[2]}; of a larger load: p95 TTFT of 1,100 ms" in text
    # 95 % of the requests have a TTFT below 1,010 ms, and 95 % a TPOT below 24.3, with the confidence of the targets
    assert plan["service"]["goodput"] >= 0.9 * plan["service"]["output_throughput_per_gpu"] / 256


@pytest.mark.parametrize(("asked", "most"), [(("--request-rate", "60"), 7), ((), 8)])
def test_a_plan_says_how_many_servers_instances_sh_starts(asked: tuple[str, ...], most: int) -> None:
    """It said all 8 that a node holds where the load takes three."""
    answer = answer_of("recommend", SMALL, "--gpu", "h100", *TARGETS, "--workload", "chat", *asked)
    plan = answer.to_dict()["plans"][0]
    started = plan["service"]["replicas"] if asked else 8
    assert started > 1 and started <= most
    assert f"launch.sh starts one server, instances.sh {started} on a node" in plan["warnings"]


@pytest.mark.parametrize(("gpu", "version"), [("mi300x", "0.6.3"), ("mi300x", "0.8.5"), ("h100", "0.7.3")])
def test_engines_that_cut_no_prompts_are_planned_with_budgets_of_their_context(gpu: str, version: str) -> None:
    """vLLM refuses a smaller --max-num-batched-tokens there, and one of 512 rejected every engine."""
    options: dict[str, Any] = {"request_rate": 3, "ttft": 2000, "tpot": 50, "engine_version": version}
    best = recommend_plans(LLAMA, gpu=gpu, **options).best
    assert best is not None and best.max_num_batched_tokens >= best.max_model_len


@pytest.mark.parametrize("gpu", ["mi300x-cpx", "h100-mig-3g.40gb"])
def test_a_server_on_a_part_costs_its_whole_gpu_whatever_is_asked(gpu: str) -> None:
    """Nobody rents a part. 1M tokens cost their share of it where the load of one server is asked for."""
    words = ("recommend", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", gpu, "--format", "json")
    asks = (("--max-concurrency", "4"), ("--ttft", "4000"), ("--ttft", "4000", "--request-rate", "0.2"))
    plans = [json.loads(run(*words, *ask).out)["plans"][0] for ask in asks]
    costs = [(plan["service"] or plan)["usd_per_hour"] for plan in plans]
    price = load_profile(gpu).price
    assert price is not None and costs == [pytest.approx(costs[0])] * 3 and plans[0]["packages"] < 1
    goal, largest, asked = (plan["service"] or plan for plan in plans)
    assert largest["packages"] == goal["packages"] == 1 / load_profile(gpu).parts and asked["packages"] == 1
    day = largest["usd_per_million_output_tokens"] * largest["output_tokens_per_day"] / 1e6
    assert day == pytest.approx(24 * costs[0] * largest["packages"])
    said = " ".join(run(*words[:-2], "--ttft", "4000").out.split())
    assert "(1 GPU)" in said and "USD/h for 1 whole GPU, " in said and "output tokens with all partitions busy" in said


def test_partitions_are_not_called_gpus_beside_the_gpus_that_they_fill() -> None:
    words = ("recommend", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "mi300x-cpx", "--request-rate", "4")
    said = " ".join(run(*words, "--ttft", "4000").out.split())
    plan = json.loads(run(*words, "--ttft", "4000", "--format", "json").out)["plans"][0]["service"]
    assert plan["packages"] == -(-plan["total_gpus"] // 8) and plan["total_gpus"] > 1
    assert f" on {plan['total_gpus']} x MI300X-CPX ({plan['packages']:.0f} GPU" in said
    assert f"the load takes {plan['ladder'][0]['total_gpus']} partitions at 50%" in said and "per GPU" not in said
