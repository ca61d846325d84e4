"""Answers out of proportion: what decides them is said, what would change them does, and a refuted one is a no."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from command_line import json_of

from planner import compare_gpus, recommend_plans, size_fleet
from planner.commands.recommend import script_files
from planner.output import Answer
from planner.planning import met_limits
from planner.planning.predict import Reading
from planner.planning.search import doubts
from planner.planning.search.doubts import NARROWED, TIMES, WAIT_S
from planner.workload import Load, Slo

pytestmark = pytest.mark.usefixtures("small_searches")

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
#: ms per token that a GB10 has with the request alone on it: not even as expected; so, but not with 80 % confidence;
#: with 80 %; and a little more, which even odds keep with one server and 80 % with many.
REFUTED, REFUSED, KEPT, NARROW = 22, (25, 26), 28, 29
TIGHT: dict[str, Any] = {
    "model": LLAMA, "gpu": "gb10", "input_len": 256, "output_len": 64, "request_rate": 4.0, "speculation": False,
}  # fmt: skip


def said(answer: Answer) -> str:
    """The text, its lines joined."""
    return " ".join(str(answer).split())


def gpus(**asked: Any) -> int:
    """GPUs of the best plan."""
    best = recommend_plans(**TIGHT, **asked).best
    assert best and best.service
    return best.service.total_gpus


def test_limits_that_would_be_kept_are_whole_ms_above_what_is_expected() -> None:
    broken = Reading(Slo("tpot", 30.0), predicted_ms=29.0, expected_ms=33.2)
    kept = Reading(Slo("ttft", 2000.0), predicted_ms=900.0, expected_ms=1400.0)
    assert met_limits((broken, kept)) == "--tpot 34"
    assert met_limits((kept,)) == ""


def test_a_plan_of_many_times_its_expected_value_says_what_decides_and_what_would_change_it() -> None:
    answer = recommend_plans(**TIGHT, tpot=NARROW)
    assert answer.best and answer.best.service
    rungs = {rung.confidence: rung.total_gpus for rung in answer.best.service.ladder}
    even, asked = rungs[0.5], rungs[0.8]
    assert even and asked and asked > TIMES * even
    doubt = next(doubt for doubt in answer.doubts if doubt.kind == "confidence")
    assert doubt.said.startswith(f"{asked:,} GPUs are {asked / even:,.1f} times the {even:,} of the expected value")
    assert doubt.said.endswith(f"the interval of p95 TPOT of {NARROW} ms decides")
    assert f"! gb10: {doubt.said}; {doubt.change}" in said(answer)
    assert answer.to_dict()["doubts"][0] == {
        "kind": "confidence",
        "gpu": "gb10",
        "said": doubt.said,
        "change": doubt.change,
    }
    assert answer.ok  # the expected value meets the target
    assert (
        doubt.change.endswith(f"; {NARROWED}") and "benchmark.sh" in NARROWED and "benchmark.sh" in script_files(answer)
    )
    looser = re.match(r"--tpot (\d+) or --confidence 0.5 would take about", doubt.change)
    assert looser
    assert gpus(tpot=float(looser[1])) <= even + 1  # rounding, and the queue of a slower engine
    assert gpus(tpot=NARROW, confidence=0.5) <= even + 1
    beside = recommend_plans(**TIGHT | {"gpu": ["h100", "gb10"], "price": {"gb10": 9}}, tpot=NARROW)
    assert beside.best and beside.best.gpu == "h100-sxm" and beside.doubts == (doubt,)


def test_the_same_of_a_fleet() -> None:
    answer = size_fleet(**TIGHT, tpot=NARROW)
    best = answer.record.best
    assert best and (even := best.by_confidence[0].gpus) and best.gpus > TIMES * even
    (doubt,), (of_another,) = answer.doubts, size_fleet(**TIGHT | {"gpu": ["h100", "gb10"]}, tpot=NARROW).doubts
    assert of_another == doubt
    assert doubt.said.startswith(f"{best.gpus} GPUs are ") and f"the {even} of the expected value" in doubt.said
    looser = re.match(r"--tpot (\d+) or --confidence 0.5 would take about", doubt.change)
    assert looser
    fewer = size_fleet(**TIGHT, tpot=float(looser[1])).record.best
    assert fewer and fewer.gpus <= even + 1  # where a part of a server is missing


def test_fewer_gpus_at_even_odds_are_enough_when_they_are_asked_for() -> None:
    """The ladder's number of GPUs at even odds came from an estimate to first order, and was too small."""
    words = ["fleet", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "mi300x", "--use-case", "chat"]
    words += ["--request-rate", "5", "--max-num-batched-tokens", "8192", "--kv-cache-dtype", "fp8", "--confidence"]
    first, again = (json_of(*words, confidence) for confidence in ("0.8", "0.5"))
    even = first["ladder"][0]
    assert even["confidence"] == 0.5 and again["fleets"][0]["gpus"] <= even["gpus"] < first["fleets"][0]["gpus"]


def test_servers_of_few_requests_name_a_looser_target_that_takes_half() -> None:
    """One request alone takes 24 ms per token as expected: under 28 ms each of two servers holds three or four."""
    for ask in (recommend_plans, size_fleet):
        (doubt,) = ask(**TIGHT, tpot=28, confidence=0.5).doubts
        servers, flying = map(float, re.findall(r"[\d.]+", doubt.said)[:2])
        assert doubt.kind == "idle" and servers < flying < 4 * servers
        looser = re.fullmatch(r"--tpot 56 would take (\d+) GPUs?", doubt.change)
        assert looser and 2 * int(looser[1]) <= servers
        assert gpus(tpot=56, confidence=0.5) <= int(looser[1])


def test_servers_are_called_idle_below_four_requests_each_and_above_two_for_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five servers; with a ``candidate`` looser targets are looked for, without one only the number counts."""
    monkeypatch.setattr(doubts, "_looser", lambda *_: "looser targets")
    answer = recommend_plans(**TIGHT, tpot=KEPT, confidence=0.5)
    for candidate, busy in ((answer.rankings[0].best, 4 * 5), (None, 5 / 2)):
        for flying in (0.99 * busy, busy):
            doubt = next(doubts._about_idle(answer.search, "gb10", 5, flying, candidate), None)
            assert (doubt is not None) == (flying < busy), (candidate, flying)
    assert not [*doubts._about_idle(answer.search, "gb10", 2, 0.1, None)]  # one is no server for a request each


def test_the_parts_of_a_gpu_are_called_partitions() -> None:
    """Eight of them are one GPU: the looser targets of a fleet named eight GPUs beside its own four."""
    asked: dict[str, Any] = {"input_len": 1024, "output_len": 1024, "request_rate": 5, "ttft": 1000, "tpot": 28}
    for ask in (recommend_plans, size_fleet):
        words = " ".join(map(str, ask("Qwen/Qwen3-8B", "mi300x-cpx", speculation=False, **asked).doubts))
        assert re.search(r"\d+ partitions are|would take \d+ partitions", words)
        assert not re.search(r"\d+ GPUs are|would take \d+ GPUs", words)


def test_a_lone_user_is_told_the_smallest_servers_that_looser_targets_take() -> None:
    """FP8 weights of 32 GB take two cards of 24 GB, those of 4 bits one; 20 ms per token takes eight."""
    model, asked = "Qwen/Qwen3-32B", {"gpu": "rtx-4090", "input_len": 256, "output_len": 64, "request_rate": 0.05}
    answer = recommend_plans(model, tpot=20, **asked)
    (doubt,), (of_fleet,) = answer.doubts, size_fleet(model, tpot=20, **asked).doubts
    assert (doubt.kind, doubt) == ("idle", of_fleet) and answer.best and answer.best.service
    ways = re.findall(r"(?:(\S+/\S+) )?--tpot (\d+) would take (\d+) GPU", doubt.change)
    assert [int(count) for *_, count in ways] == [2, 1]
    assert doubt.said.startswith(f"{answer.best.service.total_gpus} GPUs for ")
    for other, limit_ms, count in ways:
        looser = recommend_plans(other or model, tpot=float(limit_ms), **asked).best
        assert looser and looser.service and looser.service.total_gpus <= int(count)


def test_a_plan_in_proportion_has_no_doubts() -> None:
    for ask in (recommend_plans, size_fleet):
        answer = ask(**TIGHT, tpot=60)
        assert answer.to_dict()["doubts"] == []
        assert answer.ok


@pytest.mark.parametrize("ask", [recommend_plans, size_fleet])
def test_what_the_expected_value_refutes_is_a_no(ask: Callable[..., Any]) -> None:
    """Alone on the server a request takes longer as expected: the target is met by luck only."""
    answer = ask(**TIGHT, tpot=REFUTED, confidence=0.1)
    assert not answer.ok
    assert [doubt["kind"] for doubt in answer.to_dict()["doubts"]] == ["odds"]
    assert f"the expected value misses p95 TPOT of {REFUTED} ms; only 10% confidence" in said(answer)
    assert str(answer).startswith("Serve ")  # what was asked for is answered all the same


def test_a_refused_target_may_be_kept_by_the_expected_value() -> None:
    for limit_ms in REFUSED:
        answer = recommend_plans(**TIGHT, tpot=limit_ms)
        assert not answer.ok and answer.best is None
        assert [doubt.kind for doubt in answer.doubts] == ["odds"]
        assert f"--confidence 0.5 or --tpot {KEPT} would give a plan" in said(answer)
    assert recommend_plans(**TIGHT, tpot=KEPT).best is not None
    assert not recommend_plans(**TIGHT, tpot=20).doubts


def test_a_first_token_that_takes_minutes_is_told_with_what_holds_it_up() -> None:
    """Two H100 hold 11 requests of 2,048 tokens beside 140 GB of weights: of 128 most wait."""
    answer = compare_gpus(gpu="h100", max_concurrency=(8, 128), tensor_parallel_size=2, packages=2)
    waits = [row["mean_ttft_ms"] / 1000 for row in answer.to_dict()["rows"]]
    assert waits[0] < WAIT_S < waits[1]
    (doubt,) = answer.doubts
    assert (doubt.kind, doubt.gpu) == ("wait", "h100-sxm")
    first = f"at 128 concurrent requests the first token comes after {waits[1]:,.0f} s on average"
    assert doubt.said == f"{first} (KV capacity: holds 11 requests)"
    assert answer.ok and doubt.said in said(answer)


def test_prompts_that_wait_for_minutes_are_told_of_a_plan_too() -> None:
    """16 prompts of 60,000 tokens are 15 PFLOP for the weights of an 8B model, and as many again for attention.

    Four L4 reach 0.5 PFLOP/s in FP8, 0.97 by the specification.
    """
    asked: dict[str, Any] = {"model": LLAMA, "gpu": "l4", "input_len": 60_000, "output_len": 16}
    answer = recommend_plans(**asked, max_concurrency=16, goal="max-throughput")
    assert answer.best
    assert answer.best.predicted["mean_ttft_ms"] / 1000 > WAIT_S
    assert [doubt.kind for doubt in answer.doubts] == ["wait"]
    assert "16 prompts of 60,000 tokens wait for their prefill" in said(answer)
    alone = recommend_plans(**asked | {"input_len": 128_000}, max_concurrency=1, goal="max-throughput")
    assert "the prefill of 128,000 tokens); more GPUs per server would shorten it" in said(alone)


def test_one_pool_that_takes_more_than_a_pool_for_each_class_is_said() -> None:
    """Long prompts hold up short ones with a tight target: both commands name the same sizes, with headroom."""
    chat, long = Load.parse("chat=6:512:128,ttft=200,tpot=40"), Load.parse("long=0.5:12000:128")
    asked: dict[str, Any] = {"headroom": 1.0, "max_num_batched_tokens": 2048, "kv_cache_dtype": "fp8"}
    answer = recommend_plans("Qwen/Qwen3-8B", "l40s", classes=(chat, long), **asked)
    fleet = size_fleet("Qwen/Qwen3-8B", "l40s", classes=(chat, long), **asked)
    (doubt,) = [one for one in answer.doubts if one.kind == "pools"]
    assert answer.best and answer.best.service
    assert fleet.record.best
    one_pool, each = map(int, re.findall(r"takes (\d+)", doubt.said))
    assert one_pool == answer.best.service.total_gpus > each == fleet.record.best.gpus
    others = (chat, replace(chat, name="other"))
    alike = recommend_plans("Qwen/Qwen3-8B", "l40s", classes=others, **asked)
    assert not [one for one in alike.doubts if one.kind == "pools"]
