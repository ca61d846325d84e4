"""Targets: what they mean for numbers that are counted by hand, and what is refused."""

import math

import numpy as np
import pytest

from planner.errors import InputError
from planner.simulator.bench import statistic_ms
from planner.simulator.client import replay
from planner.simulator.limits import SchedulerLimits
from planner.simulator.record import Replay
from planner.timing.step import Batch
from planner.workload.load import Load
from planner.workload.requests import Requests
from planner.workload.targets import Slo, parse_percentile, parse_slos


class Constant:
    """Every step takes 10 ms."""

    def step_s(self, batch: Batch, besides_s: float = 0.0) -> float:
        return 0.01 + besides_s


def served() -> Replay:
    """Two requests of 10 tokens, both at once; the first answers with 3 tokens, the second with 5."""
    requests = Requests(np.array([10, 10]), np.array([3, 5]), np.zeros(2))
    return replay(Constant(), Load(10, 4, 2, recorded=requests), SchedulerLimits(8, 64, 1000))


def test_figures_are_those_that_a_hand_counts() -> None:
    # one step of 10 ms for both prompts, then 2 and 4 steps of 10 ms: E2EL 30 and 50 ms
    assert statistic_ms(Slo("ttft", 1, None), served()) == pytest.approx(10)
    assert statistic_ms(Slo("tpot", 1, None), served()) == pytest.approx(10)
    assert statistic_ms(Slo("e2el", 1, None), served()) == pytest.approx(40)
    assert statistic_ms(Slo("e2el", 1, 50), served()) == pytest.approx(40)  # halfway between 30 and 50
    assert statistic_ms(Slo("e2el", 1, 75), served()) == pytest.approx(45)
    assert statistic_ms(Slo("e2el", 1, 100), served()) == pytest.approx(50)
    assert statistic_ms(Slo("itl", 1, 99), served()) == pytest.approx(10)
    assert statistic_ms(Slo("e2el", 1, None), served(), after=1) == pytest.approx(50)  # the second alone


def test_a_request_of_one_token_has_no_time_per_output_token() -> None:
    requests = Requests(np.array([10]), np.array([1]), np.zeros(1))
    alone = replay(Constant(), Load(10, 1, 1, recorded=requests), SchedulerLimits(8, 64, 1000))
    assert statistic_ms(Slo("tpot", 1, 99), alone) == 0  # as vllm bench serve prints


def test_names_are_those_of_the_result_file() -> None:
    assert [slo.key for slo in parse_slos({"e2el": 5.0, "ttft": 1.0}, "95")] == ["p95_ttft_ms", "p95_e2el_ms"]
    assert [slo.key for slo in parse_slos({"tpot": 5.0}, "mean")] == ["mean_tpot_ms"]
    assert Slo("ttft", 1, 99.9).key == "p99.9_ttft_ms"


@pytest.mark.parametrize("text, value", [("99", 99.0), ("p95", 95.0), ("99.9", 99.9), ("mean", None), ("median", 50.0)])
def test_percentiles_are_read_as_people_write_them(text: str, value: float | None) -> None:
    assert parse_percentile(text) == value


@pytest.mark.parametrize("limit_ms", [0, -1, math.nan, math.inf])
def test_a_target_is_a_positive_time(limit_ms: float) -> None:
    with pytest.raises(InputError, match="--ttft") as refused:
        Slo("ttft", limit_ms)
    assert refused.value.hint


@pytest.mark.parametrize("percentile", ["0", "-5", "100.5", "nan", "high"])
def test_a_percentile_lies_above_0_and_at_most_at_100(percentile: str) -> None:
    with pytest.raises(InputError, match="--percentile"):
        parse_slos({"ttft": 100.0}, percentile)


def test_another_metric_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="'speed'"):
        parse_slos({"speed": 1.0})
