"""Comparisons: equal hardware and load, what limits, who leads. Against arithmetic by hand and published runs."""

import csv
import io
import json
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest
from command_line import json_of, refused, run
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.engine import EngineArgs, default_version
from planner.hardware.profiles import load_profile
from planner.output.render import rows_of
from planner.output.tables.comparison import FIELDS
from planner.planning.deployment import Deployment, resolve_deployment
from planner.planning.predict import Prediction
from planner.planning.search.comparison import (
    ComparedPoint,
    Comparison,
    Question,
    compare_hardware,
    dealt,
    describe_order,
    find_engines,
    flips,
    standings,
)
from planner.planning.serving import Serving
from planner.planning.uncertainty import Forecast
from planner.workload.load import Load
from planner.workload.requests import Requests

pytestmark = pytest.mark.usefixtures("small_searches")

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def question(per: str = "package", model: str = LLAMA, **settings: Any) -> Question:
    return Question(Serving(model, "h100"), per, **settings)  # type: ignore[arg-type]


@cache
def compared(*gpus: str, concurrency: tuple[int, ...] = (8,), per: str = "package", model: str = LLAMA) -> Comparison:
    workloads = [Load(1024, 1024, 1, max_concurrency=places) for places in concurrency]
    return compare_hardware(question(per, model), [load_profile(gpu) for gpu in gpus], workloads)


def point(comparison: Comparison, gpu: str, load: float) -> ComparedPoint:
    (found,) = (p for p in comparison.points if p.gpu == gpu and p.load == load)
    return found


def engine(gpu: str) -> Deployment:
    found = find_engines(asked := question(sizes=(1,)), asked.rented(load_profile(gpu)), 2048)
    assert isinstance(found, list)
    return found[0]


def test_a_package_equals_a_package() -> None:
    """One MI300X in SPX mode against all eight of its CPX partitions, each a server of its own."""
    comparison = compared("mi300x", "mi300x-cpx", "h100-mig-1g.20gb")
    shapes = {p.gpu: (p.rented.num_gpus, p.candidate.servers, p.counted_gpus) for p in comparison.points}
    assert shapes == {"mi300x": (1, 1, 1.0), "mi300x-cpx": (8, 8, 1.0), "h100-mig-1g.20gb": (4, 4, 1.0)}


def test_a_node_equals_a_node() -> None:
    comparison = compared("mi300x", "mi300x-cpx", per="node")
    assert {p.gpu: p.rented.num_gpus for p in comparison.points} == {"mi300x": 8, "mi300x-cpx": 64}


def test_a_partition_may_stand_for_itself() -> None:
    comparison = compared("mi300x", "mi300x-cpx", per="gpu")
    assert {p.gpu: (p.rented.num_gpus, p.counted_gpus) for p in comparison.points} == {
        "mi300x": (1, 1),
        "mi300x-cpx": (1, 1),
    }


def test_all_get_the_fewest_packages_on_which_the_model_fits_everywhere() -> None:
    """70 billion parameters in bf16 are 141 GB: one MI300X (192 GiB) would do, an H100 (80 GB) takes two."""
    comparison = compared("mi300x", "h100-sxm", model="meta-llama/Llama-3.3-70B-Instruct")
    assert comparison.share == 2
    assert {p.rented.num_gpus for p in comparison.points} == {2}


def test_what_cannot_hold_the_model_says_why_and_stops_nobody() -> None:
    comparison = compared("mi300x-cpx", "mi300x", model="meta-llama/Llama-3.3-70B-Instruct")
    assert [refused.gpu for refused in comparison.refused] == ["mi300x-cpx"]
    assert "GiB of weights" in comparison.refused[0].reason
    assert comparison.share == 1


@given(st.integers(1, 300), st.integers(1, 64))
@settings(max_examples=60)
def test_requests_are_dealt_evenly_and_all_of_them(places: int, servers: int) -> None:
    shares = dealt(engine("h100-sxm"), Load(8, 8, 1, max_concurrency=places), servers)
    sizes = [share.max_concurrency or 0 for _, share in shares]
    assert sum(size * count for size, (count, _) in zip(sizes, shares, strict=True)) == places
    assert sum(count for count, _ in shares) == min(servers, places)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_one_server_is_predicted_as_predict_serve_does() -> None:
    found = point(compared("h100-sxm"), "h100-sxm", 8)
    profile, asked = load_profile("h100-sxm"), question()
    deployment = resolve_deployment(asked.serving.model, profile, EngineArgs(), default_version(profile))
    expected = Prediction.of(deployment, found.busiest.load).result
    (row,) = rows_of([found], FIELDS)
    for key in ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "mean_e2el_ms"):
        for ending in ("", "_lo", "_hi"):
            assert row[key + ending] == pytest.approx(expected[key + ending]), key + ending


def test_each_server_gets_every_nth_arrival() -> None:
    """Four servers, and the fourth arrivals of the client's own draw: at random TTFT would be 57 ms, not 52."""
    load = Load(1024, 1024, 4000, request_rate=40.0)
    found = point(compare_hardware(question(sizes=(2,), share=8), [load_profile("h100")], [load]), "h100-sxm", 40)
    every, fourth = load.requests(), slice(None, None, 4)
    sent = Requests(every.input_len[fourth], every.output_len[fourth], every.arrival_s[fourth])
    expected = Prediction.of(found.candidate.deployment, Load.of_requests(sent, 10.0)).figures
    assert found.candidate.servers == 4 and found.busiest.load.num_prompts == len(sent.arrival_s)
    mean = found.latency_ms("mean_ttft_ms")
    assert mean and mean.mid == pytest.approx(expected["mean_ttft_ms"], rel=0.05)


def test_two_servers_of_half_the_load_put_out_twice_what_one_does() -> None:
    half = dealt(engine("h100-sxm"), Load(1024, 1024, 1, max_concurrency=8), 1)[0][1]
    two = point(compare_hardware(question(sizes=(1,), share=2), [load_profile("h100")], [_closed(16)]), "h100-sxm", 16)
    alone = Prediction.of(engine("h100-sxm"), half).figures
    assert two.tok_per_s.mid == pytest.approx(2 * alone["output_throughput"])
    assert two.tok_per_s_per_user and two.tok_per_s_per_user.mid == pytest.approx(alone["output_throughput"] / 8)


def _closed(places: int, input_len: int = 1024, output_len: int = 1024) -> Load:
    return Load(input_len, output_len, 1, max_concurrency=places)


def test_cost_and_power_by_hand() -> None:
    """H100 at 3 USD/h and 700 W: the dollars and joules of its own tokens per second."""
    comparison = compare_hardware(question(), [load_profile("h100")], [_closed(8)], {"h100-sxm": 3.0})
    (row,) = rows_of(comparison.points, FIELDS)
    rate = row["output_throughput"]
    assert row["usd_per_hour"] == 3.0 and row["power_w"] == 700.0
    assert row["usd_per_million_output_tokens"] == pytest.approx(3.0 / (rate * 3600) * 1e6)
    assert row["output_tokens_per_usd"] == pytest.approx(rate * 3600 / 3.0)
    assert row["output_tokens_per_joule"] == pytest.approx(rate / 700)


def test_at_a_price_of_zero_nothing_is_divided_by_it() -> None:
    comparison = compare_hardware(question(), [load_profile("h100")], [_closed(8)], {"h100-sxm": 0.0})
    (row,) = rows_of(comparison.points, FIELDS)
    assert row["usd_per_hour"] == 0.0
    assert row["output_tokens_per_usd"] is None and row["usd_per_million_output_tokens"] is None
    assert row["output_throughput"] > 0


def test_eight_cpx_servers_lose_to_one_spx_server() -> None:
    """dstack, July 2025: Llama-3.1-8B on 8 CPX partitions was slower than on the whole MI300X, more so under load:
    16 GB of weights in each 24 GB leave little KV cache."""
    comparison = compared("mi300x", "mi300x-cpx-nps4", concurrency=(8, 64, 512))
    for load in (8, 64, 512):
        assert (
            point(comparison, "mi300x-cpx-nps4", load).tok_per_s.mid < point(comparison, "mi300x", load).tok_per_s.mid
        )
    assert "KV capacity" in point(comparison, "mi300x-cpx-nps4", 512).bound_by


def test_two_dpx_servers_win_only_where_latency_is_long() -> None:
    """ROCm blog, January 2026: two servers on DPX/NPS2 gave about 1.2x at high latency, SPX was better below ~4 s."""
    comparison = compared("mi300x", "mi300x-dpx-nps2", concurrency=(8, 64, 512))
    gain = {
        load: point(comparison, "mi300x-dpx-nps2", load).tok_per_s.mid / point(comparison, "mi300x", load).tok_per_s.mid
        for load in (8, 64, 512)
    }
    assert gain[8] < gain[64] < 1 < gain[512] < 1.3


def bound(workload: Load, gpu: str = "h100-sxm") -> str:
    return compare_hardware(question(), [load_profile(gpu)], [workload]).points[0].bound_by


def test_a_single_request_waits_for_weights() -> None:
    """16 GB of weights are read for each token of one request, and 0.1 GB of cache."""
    assert bound(_closed(1, 128, 512)).startswith("weights bandwidth")


def test_many_long_contexts_wait_for_the_cache() -> None:
    """64 requests of 6,144 tokens on average x 131,072 bytes are 52 GB of cache against 16 GB of weights."""
    assert bound(_closed(64, 2048, 8192), "mi300x").startswith("KV bandwidth")


def test_prompts_without_answers_wait_for_arithmetic() -> None:
    assert bound(_closed(16, 4096, 1)).startswith("compute")


def test_more_requests_than_the_cache_holds_wait_for_its_capacity() -> None:
    """An H100 has about 50 GB for the cache: 24 requests of 2.1 GB, not 100."""
    assert bound(_closed(100, 16000, 512)).startswith("KV capacity: holds 2")


def test_what_arrives_faster_than_it_is_served_queues_without_end() -> None:
    found = compare_hardware(question(), [load_profile("h100")], [Load(1024, 1024, 1, request_rate=1000.0)]).points[0]
    assert not found.keeps_up
    assert found.bound_by.startswith("queueing")
    assert found.latency_ms("mean_ttft_ms") is None and found.tok_per_s_per_user is None


def stub(gpu: str, load: float, value: float, noise: float = 0.0) -> ComparedPoint:
    return cast("ComparedPoint", SimpleNamespace(gpu=gpu, load=load, forecast=Forecast(value, noise=noise)))


def _at(p: Any) -> float:
    return float(p.load)


def _figure(p: Any) -> Forecast:
    return cast("Forecast", p.forecast)


CROSSING = [
    stub("a", 8, 10, 0.1), stub("b", 8, 5, 0.1),
    stub("a", 32, 20, 0.1), stub("b", 32, 19, 0.1),
    stub("a", 128, 30, 0.1), stub("b", 128, 60, 0.1),
]  # fmt: skip


def test_where_the_order_flips() -> None:
    (flip,) = flips(CROSSING, _at, _figure)
    assert (flip.before, flip.after, flip.until, flip.since) == ("a", "b", 32, 128)
    # ln (20 / 19) = 0.0513 over sqrt(2) x 0.1 = 0.363 deviations; ln 2 = 0.693 over it are 4.9
    assert flip.probabilities == (pytest.approx(0.6416, abs=1e-4), pytest.approx(1.0, abs=1e-5))
    assert not flip.certain


def test_the_order_in_words_says_how_likely_it_is() -> None:
    words = describe_order("concurrency", standings(CROSSING, _at, _figure))
    assert words == "a up to concurrency 32 (64% to over 99%), b from 128 on (over 99%)"


def test_figures_that_no_prediction_tells_apart_are_alike_and_no_flip() -> None:
    close = [stub("a", 1, 100, 0.1), stub("b", 1, 100.5, 0.1), stub("a", 2, 2), stub("b", 2, 5)]
    assert standings(close, _at, _figure)[0].tied
    tied = [standing for standing in standings(close, _at, _figure) if standing.tied]
    assert describe_order("concurrency", tied) == "b and a are equal"
    every = standings([*close[:2], stub("c", 1, 100)], _at, _figure)
    assert describe_order("concurrency", every) == "all GPUs are equal"
    assert describe_order("concurrency", standings([*close[:2], stub("c", 1, 9)], _at, _figure)) == "b and a are equal"
    assert not list(flips(close, _at, _figure))


def test_who_does_not_keep_up_has_no_place() -> None:
    rates = Load(1024, 1024, 1, request_rate=30.0)  # an H100 serves about 6 of these in a second
    comparison = compare_hardware(question(), [load_profile("l4"), load_profile("h100")], [rates])
    assert not list(comparison.orders())
    assert all(point.forecast(point.tok_per_s_per_gpu) is None for point in comparison.points)


def test_what_two_settings_share_cancels() -> None:
    """One GPU with TP 1 and with TP 2: the variance of the ratio is less than the sum of both."""
    workload = Load(1024, 1024, 1, max_concurrency=64)
    one, other = (
        compare_hardware(question(share=2, sizes=(size,)), [load_profile("h100-sxm")], [workload]).points[0]
        for size in (1, 2)
    )
    first, second = (p.forecast(p.tok_per_s) for p in (one, other))
    assert first and second and first.spread and second.spread
    alone = first.spread.variance + second.spread.variance
    assert first.spread.difference_sd(second.spread) ** 2 < 0.7 * alone


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.floats(1, 100)), min_size=1, unique_by=lambda t: t[:2]
    )
)
def test_a_flip_joins_two_places_with_opposite_order(drawn: list[tuple[str, int, float]]) -> None:
    points = [stub(gpu, load, value) for gpu, load, value in drawn]
    value = {(gpu, load): figure for gpu, load, figure in drawn}
    for flip in flips(points, _at, _figure):
        assert value[flip.before, int(flip.until)] > value[flip.after, int(flip.until)]
        assert value[flip.before, int(flip.since)] < value[flip.after, int(flip.since)]


def test_lengths_are_an_axis_of_their_own() -> None:
    workloads = [_closed(places, length) for length in (512, 8192) for places in (4, 32)]
    comparison = compare_hardware(question(), [load_profile("h100"), load_profile("mi300x")], workloads)
    axes = {(order.axis.name, order.axis.fixed) for order in comparison.orders()}
    assert axes == {
        ("concurrency", "512 in / 1,024 out"),
        ("concurrency", "8,192 in / 1,024 out"),
        ("input length", "concurrency 4"),
        ("input length", "concurrency 32"),
    }
    for order in comparison.orders():
        assert [standing.at for standing in order.standings] in ([4, 32], [512, 8192])


def test_gpus_that_are_paid_for_and_idle_are_told() -> None:
    """A 70B in bf16 takes two H100: of three one is left over, of four none."""
    words = ("compare", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "h100", "--max-concurrency", "8")
    three, four = (run(*words, "--packages", packages, "--explain") for packages in "34")
    assert "h100-sxm: paid for and idle: 1 of 3 GPUs, as each server takes 2" in " ".join(three.err.split())
    assert "idle" not in four.err
    (row,) = json.loads(run(*words, "--packages", "3", "--format", "json").out)["rows"]
    assert (row["num_gpus"], row["servers"], row["tensor_parallel_size"], row["idle_gpus"]) == (3, 1, 2, 1)


def test_the_table_names_whose_fits_predicted() -> None:
    from planner.output.tables.shared import calibration_note

    outcome = run("compare", LLAMA, "--gpu", "mi355x", "--max-concurrency", "8")
    assert "calibration: shipped" in outcome.err
    assert "brackets: 90 % interval, for USD with the range of prices" in " ".join(outcome.err.split())
    pairs = [("h100-sxm", "shipped"), ("mi300x", "mine.toml"), ("b200-sxm", "shipped"), ("h100-sxm", "shipped")]
    kinds = ["measured", "interpolated", "interpolated", "extrapolated"]
    said, measured = calibration_note((*pair, f"{kind}: {pair}") for pair, kind in zip(pairs, kinds, strict=True))
    assert said == "calibration: shipped (h100-sxm, b200-sxm), mine.toml (mi300x)"
    assert measured == "speeds: measured (h100-sxm), interpolated (mi300x, b200-sxm), extrapolated (h100-sxm)"


@pytest.mark.parametrize("form", ["csv", "markdown"])
def test_rows_for_other_programs(form: str) -> None:
    outcome = run("compare", LLAMA, "--gpu", "h100", "--max-concurrency", "1,2", "--format", form)
    assert outcome.status == 0
    assert len(outcome.out.splitlines()) == {"csv": 3, "markdown": 4}[form]
    assert "usd_per_million_output_tokens_hi" in outcome.out.splitlines()[0]


def test_json_carries_rows_orders_and_prices() -> None:
    answer = json_of("compare", LLAMA, "--gpu", "mi300x", "--gpu", "mi355x", "--max-concurrency", "1,64")
    assert answer["schema_version"] == 1
    assert [(row["gpu"], row["max_concurrency"]) for row in answer["rows"]] == [
        ("mi300x", 1), ("mi300x", 64), ("mi355x", 1), ("mi355x", 64),
    ]  # fmt: skip
    assert {order["metric"] for order in answer["orders"]} == {
        "tokens/s per user", "tokens/s per GPU", "tokens per joule", "tokens per USD",
    }  # fmt: skip
    assert {price["gpu"]: price["usd_per_gpu_hour"] for price in answer["prices"]} == {"mi300x": 1.99, "mi355x": 2.65}


def test_lengths_are_pairs_in_which_one_may_come_again() -> None:
    words = ("--input-len", "100,200,100", "--output-len", "16,16,32", "--max-concurrency", "2,2", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(run("compare", LLAMA, "--gpu", "h100", *words).out)))
    pairs = [(row["input_len"], row["output_len"], row["max_concurrency"]) for row in rows]
    assert pairs == [("100", "16", "2"), ("200", "16", "2"), ("100", "32", "2")]


@pytest.mark.parametrize(("price", "first"), [((), "rtx-5090"), (("--price", "r9700=0.06"), "r9700")])
def test_a_card_of_ones_own_is_not_ranked_with_rents(price: tuple[str, ...], first: str) -> None:
    """A 5090 that is bought too, for 3,000 USD over three years, costs 0.11 USD/h: it was said to lose, over 99%."""
    gpus = ("--gpu", "r9700", "--gpu", "rtx-5090", "--gpu", "rtx-4090")
    said = run("compare", "Qwen/Qwen3-8B", *gpus, "--max-concurrency", "8", *price).out
    assert f"Most tokens per USD{' of rent' * (not price)}: {first}" in " ".join(said.split())


def test_the_table_names_the_price_that_is_missing() -> None:
    outcome = run("compare", LLAMA, "--gpu", "mi308x", "--max-concurrency", "8", "--explain")
    assert outcome.status == 0
    assert "no price is known for mi308x: give one with --price GPU=USD" in outcome.err


def test_the_next_command_repeats_lengths_and_settings() -> None:
    load = ("--random-input-len", "8192", "--random-output-len", "64", "--max-concurrency", "4")
    answer = run("compare", LLAMA, "--gpu", "h100", *load, "--kv-cache-dtype", "fp8", "--engine-version", "0.20.0")
    command = " ".join(answer.out.replace("\\\n", " ").split()).partition("$ ")[2]
    assert command == (
        f"planner recommend {LLAMA} --gpu h100-sxm --engine-version 0.20.0 --kv-cache-dtype fp8 "
        "--random-input-len 8192 --random-output-len 64 --max-concurrency 4"
    )


def test_the_next_command_repeats_the_rate_and_its_scatter() -> None:
    rates = ("--request-rate", "1,2", "--burstiness", "0.5", "--random-range-ratio", "0.3")
    command = " ".join(run("compare", LLAMA, "--gpu", "h100", *rates).out.replace("\\\n", " ").split())
    assert "--random-range-ratio 0.3 --burstiness 0.5 " in command and command.endswith(" --request-rate 2")


def test_a_model_that_nobody_holds_is_an_honest_no() -> None:
    outcome = run("compare", "meta-llama/Llama-3.1-405B-Instruct", "--gpu", "l4")
    assert outcome.status == 1
    assert outcome.out.startswith("No GPU holds meta-llama/Llama-3.1-405B-Instruct")
    assert "x l4: TP 1: 756.0 GiB of weights" in outcome.out  # 405.9e9 parameters of 2 bytes are 756.0 GiB


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--max-concurrency", "8,x"), "--max-concurrency '8,x' is not a list of numbers"),
        (("--max-concurrency", "1.5"), "--max-concurrency must be an integer, at least 1, got 1.5"),
        (("--request-rate", "0"), "--request-rate must be greater than 0, got 0"),
        (("--request-rate", "1", "--max-concurrency", "1"), "--request-rate and --max-concurrency are both given"),
        (("--input-len", "1,2,3", "--output-len", "1,2"), "--random-input-len names 3 lengths, --random-output-len 2"),
        (("--input-len", "200000"), "--input-len 200000"),
        (("--price", "mi300x=1"), "mi300x is not among the GPUs"),
        (("--gpu", "h10"), "unknown GPU 'h10'"),
    ],
)
def test_bad_input_is_named(words: tuple[str, ...], cause: str) -> None:
    assert cause in refused("compare", LLAMA, "--gpu", "h100", *words)


def test_rates_that_all_keep_up_with_are_the_throughput_of_all() -> None:
    """One request/s of 1,024 tokens is 1,024 tokens/s wherever no queue grows: only cost and latency differ."""
    answer = json_of("compare", LLAMA, "--gpu", "h100,mi300x,l4", "--request-rate", "1,40")
    rows = {(row["gpu"], row["request_rate"]): row for row in answer["rows"]}
    for gpu in ("h100-sxm", "mi300x"):
        figures = [rows[gpu, 1][f"output_throughput{end}"] for end in ("", "_lo", "_hi")]
        assert figures == [1024.0] * 3 and rows[gpu, 1]["keeps_up"]
    assert not rows["l4", 40]["keeps_up"] and rows["l4", 40]["output_throughput"] < 40 * 1024
    for gpu in ("h100-sxm", "mi300x"):  # Little's law: as many in flight as rate x E2EL
        row = rows[gpu, 1]
        for end, other in ("", ""), ("_lo", "_hi"), ("_hi", "_lo"):
            assert row[f"output_throughput_per_user{end}"] == pytest.approx(1024e3 / row[f"mean_e2el_ms{other}"])
    (order,) = (one for one in answer["orders"] if one["metric"] == "tokens/s per GPU")
    assert order["standings"][0]["tied"]
    output = run("compare", LLAMA, "--gpu", "h200,mi300x,l4", "--request-rate", "1").out
    assert output.startswith(f"Most tokens per USD of {LLAMA}: ") and ". Most tokens/s per user: " in output
    assert "tokens/s per GPU: h200-sxm and mi300x are equal" in output and "--gpu mi300x" in output


def test_the_next_command_is_for_a_gpu_that_keeps_up() -> None:
    """The queue of 16-bit weights on two MI300X of TP 2 grows at 5 requests/s."""
    words = "compare meta-llama/Llama-3.3-70B-Instruct --gpu mi300x,h200 --packages 4 --request-rate 5"
    output = run(*words.split()).out
    assert "overloaded, so without latencies and not ranked: at 5/s on mi300x" in output
    assert "planner recommend meta-llama/Llama-3.3-70B-Instruct --gpu h200-sxm" in output
