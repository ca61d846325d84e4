"""Which setting to measure next: against closed forms of the normal and the lognormal distribution."""

from math import exp, log, sqrt
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputError
from planner.planning.search.space import Merit
from planner.planning.search.tuning import Prospects, TunedRun, TuningState, measured_merit, merit_words, read_state
from planner.planning.uncertainty import Forecast
from planner.timing.belief import Spread

PHI = NormalDist().cdf


def shared(loading: float) -> Spread:
    """Hangs on one factor that all of these settings have."""
    return Spread({("slowdown", ()): loading}, np.zeros(0), np.zeros(0))


def forecast(mean: float, spread: Spread | None = None, noise: float = 0.0) -> Forecast:
    """The forecast of a figure whose logarithm has this mean."""
    return Forecast(exp(mean), spread, noise)


def test_the_gain_is_the_price_of_a_call_option() -> None:
    """E[max(e^x - b, 0)] of a normal x is the formula of Black and Scholes (1973) without interest."""
    mean, sd, best = 0.05, 0.2, 1.0
    first = (mean + sd**2 - log(best)) / sd
    expected = exp(mean + sd**2 / 2) * PHI(first) - best * PHI(first - sd)
    found = Prospects.of([[forecast(0.0, noise=0.1)], [forecast(mean, noise=sd)]]).standing({0: [log(best)]})
    assert found.best == 0
    assert found.gains[1] == pytest.approx(expected, rel=0.03)
    assert found.known == pytest.approx(PHI(-mean / sd), abs=0.02)
    assert found.next == 1


def test_a_run_moves_what_hangs_on_the_same_factors() -> None:
    """By hand: both hang on one factor with sd 0.3 and have noise 0.1. The first comes out 0.2 lower than predicted.

    The other moves by 0.09 / (0.09 + 0.01) x -0.2 = -0.18, to 0.1 - 0.18 = -0.08, and the variance that is left of it
    is 0.1 - 0.09^2 / 0.1 = 0.019. It beats the first, at -0.2, with probability PHI(0.12 / sqrt(0.019)) = 0.808.
    """
    prospects = Prospects.of([[forecast(0.0, shared(0.3), 0.1)], [forecast(0.1, shared(0.3), 0.1)]])
    found = prospects.standing({0: [-0.2]})
    assert 1 - found.known == pytest.approx(PHI(0.12 / sqrt(0.019)), abs=0.02)
    assert 1 - found.known == pytest.approx(0.808, abs=0.02)


def test_what_is_wrong_for_all_alike_cancels() -> None:
    """A factor of e in all settings says nothing of their order: 3 % behind stays behind."""
    prospects = Prospects.of([[forecast(0.0, shared(1.0), 0.001)], [forecast(-0.03, shared(1.0), 0.001)]])
    assert prospects.standing({0: [1.0]}).known > 0.999
    assert Prospects.of([[forecast(0.0, noise=1.0)], [forecast(-0.03, noise=1.0)]]).standing({0: [1.0]}).known < 0.9


def test_a_broken_target_is_worth_nothing() -> None:
    """The first has the larger merit and breaks its target; of the other two the likelier to keep it gains more."""
    prospects = Prospects.of([
        [forecast(1.0, noise=0.1), forecast(0.5, noise=0.1)],
        [forecast(0.0, noise=0.1), forecast(0.1, noise=0.1)],
        [forecast(0.0, noise=0.1), forecast(-0.1, noise=0.1)],
    ])  # fmt: skip
    found = prospects.standing({0: [1.0, -0.2]})
    assert found.best is None and found.known < 0.2
    assert found.gains[1] == pytest.approx(PHI(1) * exp(0.005), rel=0.05)
    assert found.gains[2] == pytest.approx(PHI(-1) * exp(0.005), rel=0.2)
    assert prospects.standing({0: [1.0, -0.2], 1: [0.0, 0.1]}).best == 1


def test_what_does_not_run_is_not_waited_for() -> None:
    prospects = Prospects.of([[forecast(0.0, noise=0.1)], [forecast(5.0, noise=0.1)]])
    assert prospects.standing({0: [0.0]}).known < 0.01
    done = prospects.standing({0: [0.0]}, out=(1,))
    assert (done.best, done.known, done.next) == (0, 1.0, None)


@given(
    means=st.lists(st.floats(-2, 2), min_size=2, max_size=5),
    loadings=st.lists(st.floats(0, 1), min_size=5, max_size=5),
    noise=st.floats(0.01, 0.5),
    off=st.floats(-1, 1),
)
def test_gains_and_probabilities_are_such(means: list[float], loadings: list[float], noise: float, off: float) -> None:
    doubts = [[forecast(mean, shared(loading), noise)] for mean, loading in zip(means, loadings, strict=False)]
    prospects = Prospects.of(doubts)
    strict, lax = (prospects.standing({0: [means[0] + off]}, within=within) for within in (0.0, 0.1))
    assert 0 <= strict.known <= lax.known <= 1
    assert all(gain >= 0 for gain in strict.gains.values()) and set(strict.gains) == set(range(1, len(means)))
    assert strict.best == 0


def state(**changes: object) -> TuningState:
    doubts = [forecast(0.0, noise=0.2), forecast(0.1, noise=0.2), forecast(-2.0, noise=0.2)]
    made = TuningState.begun("0", "abc", Merit("max-throughput"), [(one,) for one in doubts], (".", "tune/1", "tune/2"))
    return made.with_(**changes)


def test_the_plan_is_first_and_the_end_is_known(tmp_path: Path) -> None:
    assert state().next == 0
    one = state(runs=(TunedRun(setting=0, merit=0.0),))
    assert one.next == 1 and one.standing.known < 0.5
    two = one.with_(runs=(*one.runs, TunedRun(setting=1, merit=0.2)))
    assert two.next is None and two.standing.best == 1 and two.standing.known > 0.99
    two.save(tmp_path / "state.json")
    assert read_state(tmp_path / "state.json", "abc") == two
    assert read_state(tmp_path / "none.json", "abc") is None


def test_a_budget_counts_all_runs_but_those_that_were_not_made() -> None:
    runs = (TunedRun(setting=0, merit=0.0, seconds=90), TunedRun(setting=1, reason="x", tried=False))
    spent = state(runs=runs)
    assert spent.has_spent(1, None) and not spent.has_spent(2, None)
    assert spent.has_spent(None, 1.5) and not spent.has_spent(None, 1.6) and not spent.has_spent(None, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [("mean", [0.0]), ("covariance", [[1.0]]), ("running", 3), ("schema_version", 2), ("digest", "other"), ("goal", 1)],
)
def test_a_state_that_does_not_fit_is_refused(tmp_path: Path, name: str, value: object) -> None:
    import json

    path = tmp_path / "state.json"
    path.write_text(json.dumps({**json.loads(state().model_dump_json()), name: value}))
    with pytest.raises(InputError, match="state"):
        read_state(path, "abc")
    path.write_text("{")
    with pytest.raises(InputError, match="is not the state"):
        read_state(path, "abc")


def test_merits_are_in_the_words_of_the_goal() -> None:
    from script_plans import plan

    result = {"output_throughput": 1600.0, "mean_e2el_ms": 500.0}
    made = plan(num_gpus=2)  # 64 in flight
    (throughput,) = measured_merit(Merit("max-throughput"), made, result)
    assert exp(throughput) == pytest.approx(800) and "800 tokens/s per GPU" in merit_words(
        Merit("max-throughput"), throughput
    )
    assert merit_words(Merit("min-latency"), *measured_merit(Merit("min-latency"), made, result)) == "500 ms mean E2EL"
    (balanced,) = measured_merit(Merit("balanced", 0.5, 1.5), made, result)
    assert balanced == pytest.approx(0.5 * log(1600 / 64) + 1.5 * log(800))


def test_in_an_open_loop_users_are_the_requests_in_flight() -> None:
    """4 requests/s of 2 s each are 8 in flight (Little), so 1,600 tokens/s are 200 for each; 25 ms is half of 50."""
    from script_plans import plan

    from planner.planning.plan import PlannedTarget, PlannedWorkload

    sent = PlannedWorkload(input_len=1024, output_len=400, num_prompts=64, request_rate=4.0)
    target = PlannedTarget(metric="p99_tpot_ms", limit_ms=50, predicted_ms=20, expected_ms=30, met=True)
    result = {"output_throughput": 1600.0, "request_throughput": 4.0, "mean_e2el_ms": 2000.0, "p99_tpot_ms": 25.0}
    found = measured_merit(Merit("balanced", 0.5, 1.5), plan(num_gpus=2, workload=sent), result, [target])
    assert found == pytest.approx((0.5 * log(200) + 1.5 * log(800), log(2)))
