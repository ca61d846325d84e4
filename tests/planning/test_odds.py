"""The odds that one figure beats another: by hand, and what must hold whatever the figures are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.planning.uncertainty import Forecast
from planner.timing import Spread
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
