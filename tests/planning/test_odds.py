"""The odds that one figure beats another: by hand, and what must hold whatever the figures are."""

from collections.abc import Iterable
from math import exp, log
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.planning import uncertainty
from planner.planning.uncertainty import Forecast, UncertaintyOfSteps
from planner.timing import PARAMETERS, Batch, Known, Spread
from planner.units import percent

_SCALES = st.floats(0.0, 2.0)
_POWERS = st.sampled_from([-1.0, 1.0, 2.0])


def spread(own: dict[str, float], known: float = 0.0, sign: float = -1.0) -> Spread:
    """A loading on factors that are independent, and on one column of what runs taught."""
    return Spread({(name, ()): value for name, value in own.items()}, np.array([known]), np.array([sign]))


@st.composite
def forecasts(draw: st.DrawFn) -> Forecast:
    own = {name: draw(_SCALES) for name in "ab"}
    return Forecast(
        draw(st.floats(0.1, 100)), spread(own), draw(st.floats(0.01, 1)), draw(st.sampled_from([-1.0, 1.0, 2.0]))
    )


def test_by_hand() -> None:
    """ln 1.1 = 0.0953. Both hang on a alike, which cancels; 0.3 and 0.4 of their own make 0.5: 0.191 deviations."""
    one, other = Forecast(110.0, spread({"a": 1.0, "b": 0.3})), Forecast(100.0, spread({"a": 1.0, "c": 0.4}))
    assert one.beats(other) == pytest.approx(0.5756, abs=1e-4)  # of a table of the normal distribution: 0.19 -> 0.5753


def test_noise_is_each_measurement_s_own() -> None:
    """Shared errors alone leave no doubt about 110 against 100; noise of 0.06 and 0.08 is 0.1: 0.953 deviations."""
    shared = spread({"a": 1.0})
    assert Forecast(110.0, shared).beats(Forecast(100.0, shared)) == 1.0
    assert Forecast(110.0, shared, 0.06).beats(Forecast(100.0, shared, 0.08)) == pytest.approx(0.8297, abs=1e-4)


def test_what_runs_taught_narrows() -> None:
    """A factor with variance 1, of which runs took 0.75: a deviation of 0.5."""
    found = Forecast(2.0, spread({"a": 1.0}, known=0.75**0.5)).beats(Forecast(1.0, spread({})))
    assert found == pytest.approx(0.9172, abs=1e-4)  # ln 2 / 0.5 = 1.386


@given(forecasts(), forecasts())
def test_one_of_both_is_larger(one: Forecast, other: Forecast) -> None:
    assert one.beats(other) + other.beats(one) == pytest.approx(1.0)


@given(forecasts())
def test_a_thing_beats_itself_at_even_odds(one: Forecast) -> None:
    assert one.beats(one) == 0.5


@given(forecasts(), forecasts(), forecasts())
def test_more_of_the_same_never_beats_less_often(one: Forecast, other: Forecast, more: Forecast) -> None:
    larger = Forecast(one.value + more.value, one.spread, one.noise, one.power)
    assert larger.beats(other) >= one.beats(other)


def test_no_prediction_is_certain() -> None:
    assert [percent(odds) for odds in (0.001, 0.5, 0.934, 0.9999)] == ["under 1%", "50%", "93%", "over 99%"]


@pytest.mark.parametrize("host", [0.1, 0.5, 0.9, 0.99, 1.01, 1.2, 1.6, 3.0])
def test_with_asynchronous_scheduling_the_larger_of_two_lognormal_times_counts(
    host: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P(max(gpu, host) < t) is the product of both. The GPU takes 1, known to 13 %, and the host is known to 59 %."""
    places = [PARAMETERS.index(name) for name in ("weight_bandwidth_16", "host_seq_s")]

    def steps(_timer: object, _batches: object, moves: Iterable[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        times = [np.array([1.0, host]) * np.exp(move[places]) for move in moves]
        counts = [np.eye(len(PARAMETERS))[places[np.argmax(both)]] for both in times]
        return [(both[[both.argmax()]], both.max() * one[None]) for both, one in zip(times, counts, strict=True)]

    def probability(factor: float) -> float:
        normal = NormalDist()
        late_s = factor * max(1.0, host)
        return normal.cdf(log(late_s) / 0.13) * normal.cdf(log(late_s / host) / 0.59)

    monkeypatch.setattr(uncertainty, "step_gradients", steps)
    powers = np.eye(len(PARAMETERS))[places]
    engine = SimpleNamespace(
        config=SimpleNamespace(async_scheduling=True, speculative_config=None),
        timer=SimpleNamespace(efficiency=SimpleNamespace(host_step_s=0.0, host_seq_s=host)),
        known=Known((("gpu", ()), ("host", ())), np.array([0.13, 0.59]), powers, np.zeros((2, 0)), np.zeros(0)),
    )
    below, above = UncertaintyOfSteps(engine, [Batch(1, 1.0)], {"tpot": np.ones(1)}).deviations("mean_tpot_ms")
    assert 0.015 < probability(exp(-1.645 * below)) < 0.075
    if host > 1:  # a host that hides behind the GPU counts as hidden
        assert 0.93 < probability(exp(1.645 * above)) < 0.97
