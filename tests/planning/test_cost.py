"""Dollars and watts of tokens, against arithmetic by hand; prices and power of the profiles."""

import pytest
from command_line import json_of
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputError
from planner.hardware.profiles import DollarsPerHour, GpuProfile, ListPrice, Quantity, load_all, load_profile
from planner.planning.cost import MILLION_PER_S, parse_prices, power_w, price_of
from planner.units import Interval

POSITIVE = st.floats(min_value=1e-3, max_value=1e6, allow_nan=False)
PARTITIONS = [profile for profile in load_all(partitions=True) if profile.partition]


def by_id(profile: GpuProfile) -> str:
    return profile.id


def usd_per_million_tok(usd_per_h: Interval, tok_per_s: Interval) -> Interval:
    return usd_per_h.scaled(MILLION_PER_S).over(tok_per_s)


def test_a_million_tokens_by_hand() -> None:
    """8 GPUs at 2.50 USD are 20 USD/h; 4,000 tokens/s are 14.4 million an hour: 20 / 14.4 = 1.3889 USD."""
    cost = usd_per_million_tok(Interval.exact(20.0), Interval.exact(4000.0))
    assert cost.mid == pytest.approx(1.388889, rel=1e-6)
    assert cost.low == cost.mid == cost.high


def test_the_cheapest_offer_and_the_fastest_end_make_the_low_end() -> None:
    """1 USD/h at 2,000 tokens/s: 1 / 7.2 = 0.1389; 6 USD/h at 500: 6 / 1.8 = 3.3333."""
    cost = usd_per_million_tok(Interval(2.0, 1.0, 6.0), Interval(1000.0, 500.0, 2000.0))
    assert cost.low == pytest.approx(0.138889, rel=1e-5)
    assert cost.mid == pytest.approx(2 / 3.6, rel=1e-9)
    assert cost.high == pytest.approx(3.333333, rel=1e-5)


def _interval(low: float, mid: float, high: float) -> Interval:
    return Interval(mid, low, high)


@given(st.tuples(POSITIVE, POSITIVE, POSITIVE).map(sorted), st.tuples(POSITIVE, POSITIVE, POSITIVE).map(sorted))
def test_costs_ascend(usd: list[float], rate: list[float]) -> None:
    cost = usd_per_million_tok(_interval(*usd), _interval(*rate))
    assert cost.low <= cost.mid <= cost.high


def test_an_mi300x_costs_what_the_aggregators_say() -> None:
    """TensorWave 1.50, AMD Developer Cloud 1.99, Azure and OCI about 6.00; June 2026."""
    price = price_of(load_profile("mi300x"))
    assert price is not None
    assert price.usd_per_h == Interval(1.99, 1.5, 6.0)
    assert price.origin == "2026-06"


@pytest.mark.parametrize("gpu", ["mi308x", "h20", "mi210", "w7900"])
def test_a_price_that_nobody_published_stays_unknown(gpu: str) -> None:
    assert price_of(load_profile(gpu)) is None


@pytest.mark.parametrize(("gpu", "usd_per_h", "share"), [("mi300x", 1.99, 1), ("mi300x-cpx", 1.99, 1 / 8)])
def test_predict_prices_the_server_and_its_tokens(gpu: str, usd_per_h: float, share: float) -> None:
    """A partition is rented with its package; its tokens pay for an eighth of it."""
    words = ("Qwen/Qwen3-0.6B", "--gpu", gpu, "--max-model-len", "4096", "--input-len", "64", "--output-len", "16")
    for bench, few in (("serve", "--num-prompts"), ("throughput", "--num-prompts"), ("latency", "--batch-size")):
        found = json_of("predict", bench, *words, few, "8")
        rate = found.get("output_throughput") or 8 * 16 / found["avg_latency"]
        assert found["usd_per_hour"] == usd_per_h
        assert found["usd_per_million_output_tokens"] == pytest.approx(usd_per_h * share / 3600 / rate * 1e6)
        assert sum("1.99 USD/h" in note for note in found["notes"]) == 1


def test_predict_without_a_price_prints_none() -> None:
    found = json_of("predict", "latency", "Qwen/Qwen3-0.6B", "--gpu", "h20", "--batch-size", "1")
    assert found["usd_per_hour"] is found["usd_per_million_output_tokens"] is None
    assert not any("USD" in note for note in found["notes"])


def test_an_eighth_of_a_package_costs_an_eighth() -> None:
    """16 USD/h for the package: 2 for each of 8 CPX partitions; the price of a partition itself goes before."""
    cpx = load_profile("mi355x-cpx")
    of_the_package, of_the_part = price_of(cpx, {"mi355x": 16.0}), price_of(cpx, {"mi355x": 16.0, "mi355x-cpx": 3.0})
    assert of_the_package and of_the_package.usd_per_h == Interval.exact(2.0)
    assert of_the_part and of_the_part.usd_per_h == Interval.exact(3.0)


@pytest.mark.parametrize("profile", PARTITIONS, ids=by_id)
def test_partitions_share_price_and_power_of_the_package(profile: GpuProfile) -> None:
    """MIG's own prices are rounded to four digits, so a ten-thousandth is allowed."""
    whole = load_profile(profile.whole)
    price, whole_price = price_of(profile), price_of(whole)
    assert (price is None) == (whole_price is None)
    if price and whole_price:
        for part, package in zip(_three(price.usd_per_h), _three(whole_price.usd_per_h), strict=True):
            assert part * profile.parts == pytest.approx(package, rel=2e-4)
    watts, whole_watts = power_w(profile), power_w(whole)
    assert watts and whole_watts
    assert watts * profile.parts == pytest.approx(whole_watts, rel=1e-4)


def _three(span: Interval) -> tuple[float, float, float]:
    return span.low, span.mid, span.high


def test_prices_of_the_command_line() -> None:
    profiles = [load_profile("mi355x-cpx"), load_profile("h100")]
    assert parse_prices(["mi355x=2.5", "h100=0"], profiles) == {"mi355x": 2.5, "h100-sxm": 0.0}


@pytest.mark.parametrize("word", ["h100", "h100=", "h100=-1", "h100=nan", "h100=inf", "h100=cheap", "=2", "l4=1"])
def test_what_is_no_price_is_refused_by_the_name_of_its_flag(word: str) -> None:
    with pytest.raises(InputError, match=r"--price|unknown GPU"):
        parse_prices([word], [load_profile("h100")])


def test_two_prices_of_one_gpu_are_refused() -> None:
    with pytest.raises(InputError, match="--price of h100-sxm is given twice"):
        parse_prices(["h100=2", "h100-sxm=3"], [load_profile("h100")])


def test_prices_of_a_profile_ascend() -> None:
    def usd(value: float) -> DollarsPerHour:
        return Quantity(value=value, unit="USD/h", source="mine", kind="measured")

    with pytest.raises(ValueError, match="must ascend"):
        ListPrice(low=usd(3.0), typical=usd(2.0), date="2026-05")
