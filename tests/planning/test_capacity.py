"""The largest load of a server: at the edge of its targets, and monotone where physics is."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searches import ranked, search_for

from planner.engine.published import default_version
from planner.engine.settings import EngineArgs
from planner.hardware.profiles import load_profile
from planner.model.resolve import resolve_model
from planner.planning.capacity import Capacity, Steady, at_load, measure
from planner.planning.defaults import LADDER, TOLERANCE
from planner.planning.deployment import Deployment, resolve_deployment
from planner.planning.largest import bracket, largest, smallest
from planner.planning.predict import ServedLoad, doubt_at, estimate
from planner.planning.uncertainty import UncertaintyOfReplay
from planner.simulator.bench import hopeless_at
from planner.workload.load import Load
from planner.workload.requests import Requests
from planner.workload.targets import By, Slo, Targets, parse_slos

LOAD = Load(512, 128, 1)
TIGHT = parse_slos({"ttft": 400.0, "tpot": 40.0})


@cache
def server(gpu: str = "h100", tensor_parallel_size: int = 1) -> Deployment:
    profile = load_profile(gpu)
    args = EngineArgs(max_model_len=1024, max_num_seqs=128, tensor_parallel_size=tensor_parallel_size)
    return resolve_deployment(
        resolve_model("meta-llama/Llama-3.1-8B-Instruct").model, profile, args, default_version(profile)
    )


def largest_load(slos: tuple[Slo, ...], *, by: By = "rate", confidence: float = 0.8) -> ServedLoad | None:
    """To first order, as ``at`` reads a load."""
    return Capacity(server(), LOAD, Targets(slos, by, confidence=confidence), exactly=False).largest()


def at(value: float, slos: tuple[Slo, ...], by: By) -> ServedLoad:
    return measure(server(), at_load(server(), LOAD, slos, by, value), slos)


@pytest.mark.parametrize("by", ["rate", "concurrency"])
def test_the_largest_load_keeps_the_targets_and_a_larger_one_breaks_them(by: By) -> None:
    found = largest_load(TIGHT, by=by)
    assert found is not None and found.meets and found.bound_by
    again = at(found.value, TIGHT, by)
    assert [reading.expected_ms for reading in again.readings] == [r.expected_ms for r in found.readings]
    larger = found.value * 1.1 if by == "rate" else max(found.value + 2, round(found.value * 1.1))
    assert not at(larger, TIGHT, by).meets


def test_full_batches_are_those_that_the_cache_holds() -> None:
    """Twelve times as many places as the cache has room for contexts serve no more."""
    long = Load(100_000, 500, 1)
    few, many = (
        replace(server(), config=replace(server().config, max_num_seqs=seqs, max_model_len=120_000)) for seqs in (4, 50)
    )
    assert few.requests_served(long.total_len) < 5
    assert Steady.of(many, long).rate(0.8) == pytest.approx(Steady.of(few, long).rate(0.8), rel=0.02)


@given(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=60), st.floats(1.0, 100.0), st.floats(0.5, 1.5))
def test_requests_are_called_hopeless_only_where_numpys_percentile_of_all_is_above(
    values: list[float], percentile: float, limit_s: float
) -> None:
    hopeless = hopeless_at({Slo("ttft", 1.0, percentile): limit_s}, len(values))
    gone = any([hopeless({"ttft": value, "tpot": 0.0, "e2el": value}) for value in values])
    above = sum(value > limit_s * (1 + 1e-9) for value in values)
    assert not gone or np.percentile(values, percentile) > limit_s
    assert gone == (above > len(values) - 1 - np.floor((len(values) - 1) * percentile / 100))


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.sampled_from("ab")), min_size=1, max_size=60), st.floats(1.0, 100.0))
def test_a_class_is_called_hopeless_by_its_own_requests(ended: list[tuple[float, str]], percentile: float) -> None:
    own = [value for value, name in ended if name == "a"]
    count = {"a": len(own), "b": len(ended) - len(own)}
    hopeless = hopeless_at({Slo("ttft", 1.0, percentile, "a"): 1.0}, len(ended), count)
    gone = any([hopeless({"ttft": value, "tpot": 0.0, "e2el": value}, name) for value, name in ended])
    above = sum(value > 1 + 1e-9 for value in own)
    assert gone == (bool(own) and above > len(own) - 1 - np.floor((len(own) - 1) * percentile / 100))


@pytest.mark.parametrize("rate", [2.0, 8.0, 40.0])
def test_classes_that_end_early_say_the_same_of_their_targets(rate: float) -> None:
    demands = Load.parse(f"a={rate}:512:64,ttft=300"), Load.parse(f"b={rate / 4}:900:64")
    slos = (Slo("ttft", 300.0, 99.0, "a"), Slo("e2el", 9000.0, 90.0, "b"))
    sent = Load.classes_of(demands, 600)
    whole, cut = (measure(server(), sent, slos, whole=each) for each in (True, False))
    assert cut.meets == whole.meets
    assert len(cut.replay.sent_s) <= len(whole.replay.sent_s)
    if not cut.meets:
        assert any(not reading.met for reading in cut.readings) or not cut.stable


@pytest.mark.parametrize("rate", [0.5, 4.0, 16.0, 64.0])
@pytest.mark.parametrize("slos", [TIGHT, parse_slos({"e2el": 2000.0}, "90"), parse_slos({"ttft": 200.0}, "mean")])
def test_a_replay_that_ends_early_says_the_same_of_the_targets(rate: float, slos: tuple[Slo, ...]) -> None:
    sent = at_load(server(), LOAD, slos, "rate", rate)
    whole, cut = measure(server(), sent, slos), measure(server(), sent, slos, whole=False)
    assert cut.meets == whole.meets
    assert len(cut.replay.sent_s) <= len(whole.replay.sent_s)
    if cut.meets:
        assert cut.readings == whole.readings
    else:
        assert any(not reading.met for reading in cut.readings) or not cut.stable


def test_a_concurrency_found_by_bisection_is_the_one_that_trying_all_finds() -> None:
    slos = parse_slos({"tpot": 25.0}, "mean")
    found = largest_load(slos, by="concurrency")
    tried = [n for n in range(1, 129) if at(n, slos, "concurrency").meets]
    assert found is not None and tried
    assert max(tried) * 0.96 <= found.value <= max(tried)


def test_what_is_expected_is_the_quantile_that_is_asked_for() -> None:
    (slo,) = parse_slos({"ttft": 400.0})
    found = {
        p: measure(server(), at_load(server(), LOAD, (slo,), "concurrency", 4), (slo,), confidence=p) for p in LADDER
    }
    even, usual, sure = (found[p].readings[0] for p in LADDER)
    assert even.expected_ms == pytest.approx(even.predicted_ms)
    assert even.predicted_ms < usual.expected_ms < sure.expected_ms
    # twenty of a hundred lie above the quantile of 0.8, and so above the upper end of the 60 % interval
    doubt = UncertaintyOfReplay(server(), found[0.8].sent, found[0.8].replay)
    assert usual.expected_ms == pytest.approx(usual.predicted_ms * doubt.factors("p99_ttft_ms", 0.6)[1])
    assert doubt.probability("p99_ttft_ms", usual.expected_ms / usual.predicted_ms) == pytest.approx(0.8, abs=0.005)


def test_less_confidence_and_looser_targets_allow_more() -> None:
    usual = largest_load(TIGHT)
    even = largest_load(TIGHT, confidence=0.5)
    loose = largest_load(parse_slos({"ttft": 800.0, "tpot": 80.0}))
    assert usual and even and loose
    assert even.value > usual.value
    assert loose.value >= usual.value


def test_a_target_below_a_step_is_never_met() -> None:
    # 16 GB of weights at 3.35 TB/s take 4.8 ms
    assert largest_load(parse_slos({"tpot": 4.0})) is None


def test_without_targets_the_rate_is_what_full_batches_serve() -> None:
    found = largest_load(())
    steady = estimate(server(), 512, 128, 128)  # the closed form at max_num_seqs
    slow = doubt_at(server(), LOAD, 128).upper("output_throughput", 0.2)
    assert found is not None and 0.7 < slow < 1
    assert found.value == pytest.approx(steady.output_tok_per_s / 128 * slow, rel=0.03)
    assert found.value <= Steady.of(server(), LOAD).rate(0.8) * 1.000001
    assert not at(found.value * 1.1, (), "rate").stable


def test_no_load_below_one_that_is_kept_is_tried() -> None:
    slos = parse_slos({"tpot": 9.0})  # a p99 of TTFT rises and falls by a tenth from load to load
    kept = largest_load(slos)
    assert kept is not None
    afresh = Capacity(server(), LOAD, Targets(slos), exactly=False, known=[kept])
    found = afresh.largest()
    assert found is not None and kept.value <= found.value <= kept.value * 1.03
    assert min(afresh._served) == kept.value
    assert 1 < len(afresh._served) <= 3


def test_goodput_counts_the_requests_that_keep_every_target() -> None:
    load = at(64, parse_slos({"ttft": 700.0, "tpot": 40.0}), "concurrency")
    factors = {one.slo.metric: one.expected_ms / one.predicted_ms for one in load.readings}
    good = (load.replay.ttft_s * factors["ttft"] <= 0.7) & (load.replay.tpot_s * factors["tpot"] <= 0.04)
    # the burst of 64, of which most miss the TTFT, does not count, as it does not for the targets
    assert load.goodput_per_s == pytest.approx(good[64:].mean() * len(good) / load.replay.duration_s)
    assert load.good_share > good.mean()
    assert load.goodput_per_s < load.request_per_s


def test_enough_requests_are_sent_for_a_high_percentile() -> None:
    (slo,) = parse_slos({"ttft": 400.0}, "99.9")
    assert at_load(server(), LOAD, (slo,), "concurrency", 1).num_prompts >= 1000


def test_a_trace_keeps_its_rhythm_at_another_rate() -> None:
    requests = Requests(np.array([5, 6, 7]), np.array([1, 1, 1]), np.array([10.0, 11.0, 16.0]))
    load = replace(LOAD, recorded=requests)
    assert load.at_rate(1.0, 3).requests().arrival_s.tolist() == [0.0, 0.5, 3.0]  # three requests over three seconds
    assert load.at_concurrency(2, 2).requests().arrival_s.tolist() == [0.0, 0.0]


@given(st.integers(-9, 9), st.integers(0, 40), st.integers(-20, 60))
def test_cheap_bisection_finds_the_edge(least: int, more: int, edge: int) -> None:
    most = least + more
    assert largest(lambda n: n <= edge, least, most) == min(max(edge, least), most)
    assert smallest(lambda n: n >= edge, least, most) == min(max(edge, least), most)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 400), st.floats(1, 400), st.integers(0, 450))
def test_bisection_finds_the_edge_wherever_it_begins(most: int, guess: float, edge: int) -> None:
    template = at(1, (), "concurrency")

    def probe(value: float) -> ServedLoad:
        return replace(template, value=value, stable=value <= edge)

    found, _ = bracket(probe, guess, 1, most, TOLERANCE, whole=True)
    best = min(edge, most)
    if best < 1:
        assert found is None
    else:
        assert found is not None and best - max(1, 0.04 * best) <= found.value <= best


def test_sessions_are_judged_by_all_turns_of_a_share_at_any_rate() -> None:
    """200 of its turns gave a server 0.32 requests/s where nine servers with 0.22 each miss the target under 1,000."""
    share = Load.sessions("coding-agent", 2.0).share_of(10, "prefix-aware")
    sent = at_load(server(), share, TIGHT, "rate", 0.3)  # a round of the same turns, in less time
    assert share.count == 1000 and sent.count >= 900


@pytest.mark.parametrize(("rate", "servers"), [(2.0, 10), (0.5, 2)])
def test_a_share_of_sessions_at_another_rate_is_the_share_of_that_rate(rate: float, servers: int) -> None:
    """What turns find in the cache depends on how many sessions a server has at once."""
    for router in ("prefix-aware", "least-loaded"):
        targets = replace(Targets.of(ttft_ms=2000), router=router)
        asked_for = search_for(targets, "h100", load=Load.sessions("coding-agent", 1.0)).objective
        found = asked_for.dealt(servers).at_rate(rate / servers)
        asked = Load.sessions("coding-agent", rate).share_of(servers, router)  # type: ignore[arg-type]
        assert found.recorded and asked.recorded and found.request_rate == asked.request_rate
        assert np.array_equal(found.recorded.arrival_s, asked.recorded.arrival_s)
        assert np.array_equal(found.recorded.input_len, asked.recorded.input_len)


def test_among_plans_of_one_cost_and_slack_the_layout_is_simple() -> None:
    """DP 2 + EP was planned for 0.7 % of slack in its p95 TPOT."""
    load = replace(Load.open_loop(30.0, 1024, 256), range_ratio=0.5)
    targets = Targets.of(ttft_ms=500, tpot_ms=40, value=30.0)
    best = ranked(search_for(targets, "mi300x", model="openai/gpt-oss-120b", load=load)).best
    assert best is not None and best.num_gpus > 1 and best.config.data_parallel_size == 1
