"""The run that narrows a decision most: the conditional variance by hand, and what must hold of any run."""

from dataclasses import replace
from functools import cache
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from searches import ranked, search_for

from planner.engine.settings import EngineArgs
from planner.output.tables.recommendation import predicted_lines
from planner.planning.capacity import Capacity
from planner.planning.defaults import LADDER
from planner.planning.plan import Plan
from planner.planning.search.search import Search
from planner.planning.search.servers import NextRun, left, next_run
from planner.timing import Spread
from planner.workload import Load, Slo, Targets

pytestmark = pytest.mark.usefixtures("small_searches")

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
SLOS = (Slo("ttft", 1000.0), Slo("tpot", 20.0))


def spread(**own: float) -> Spread:
    return Spread({(name, ()): value for name, value in own.items()}, np.zeros(0), np.zeros(0))


def run(factor: float) -> NextRun:
    return NextRun(Load(1, 1, 1), own=True, duration_s=60.0, figure="mean_tpot_ms", factor=factor)


def test_what_is_left_by_hand() -> None:
    """Variance 0.3^2 + 0.4^2 = 0.25. A run hangs on the first part alone, and has noise 0.4: its variance is
    0.09 + 0.16 = 0.25, the covariance 0.09, so 0.09^2 / 0.25 = 0.0324 go."""
    assert left(spread(a=0.3, b=0.4), spread(a=0.3), 0.4) == pytest.approx(0.25 - 0.0324)


def test_a_run_without_noise_of_the_same_figure_leaves_nothing() -> None:
    assert left(spread(a=0.3, b=0.4), spread(a=0.3, b=0.4), 0.0) == pytest.approx(0.0)


def test_a_run_of_something_else_tells_nothing() -> None:
    assert left(spread(a=0.3), spread(b=0.4), 0.1) == pytest.approx(0.09)
    assert left(spread(a=0.3), spread(), 0.0) == pytest.approx(0.09)


_LOADING = st.floats(-2, 2)


@given(_LOADING, _LOADING, _LOADING, _LOADING, st.floats(0, 2))
def test_a_measurement_never_widens(a: float, b: float, c: float, d: float, noise: float) -> None:
    binds = spread(a=a, b=b)
    assert 0 <= left(binds, spread(a=c, b=d), noise) <= binds.variance + 1e-12


def test_the_confidence_of_today_that_a_run_is_worth() -> None:
    """z(0.8) = 0.8416; half the deviation leaves 0.4208, which is the normal distribution at 66.3 %."""
    assert run(0.5).confidence(0.8) == pytest.approx(0.6631, abs=1e-4)
    assert run(1.0).confidence(0.8) == pytest.approx(0.8)
    assert run(0.0).confidence(0.8) == 0.5


@cache
def plan(value: float | None, gpu: str = "mi300x") -> Plan:
    search = search_for(Targets(SLOS, "rate", value), gpu, model=LLAMA, load=Load(1024, 1024), goal="max-throughput")
    (ranking,) = search.run()
    assert ranking.best
    return search.plan(ranking)


def test_the_ladder_costs_more_with_more_confidence_and_a_run_lies_on_it() -> None:
    service = plan(60.0).service
    assert service and [rung.confidence for rung in service.ladder] == [0.5, 0.8, 0.95]
    gpus = [rung.total_gpus or 0 for rung in service.ladder]
    loads = [rung.largest_load for rung in service.ladder]
    assert gpus == sorted(gpus) and loads == sorted(loads, reverse=True)
    assert gpus[1] == service.total_gpus and loads[1] == service.largest_load
    if service.measure_next:
        assert gpus[0] <= (service.measure_next.expected.total_gpus or 0) < gpus[1]


@pytest.mark.parametrize(
    ("model", "gpu", "rate", "tpot", "most"),
    [(LLAMA, "h100", 60.0, 20, 256), ("Qwen/Qwen3-8B", "l40s", 20.0, 45, 64), (LLAMA, "mi300x", 30.0, 12, 128)],
)
def test_each_size_of_the_ladder_is_what_the_same_servers_take_when_asked(
    model: str, gpu: str, rate: float, tpot: float, most: int
) -> None:
    """The only engine is given, so that a search at another confidence counts servers of the same kind."""
    args = EngineArgs(max_num_seqs=most, max_num_batched_tokens=2048, max_model_len=2048, kv_cache_dtype="fp8")

    def asked(confidence: float) -> Search:
        targets = Targets((Slo("ttft", 2000.0), Slo("tpot", float(tpot))), "rate", rate, confidence=confidence)
        alone = search_for(targets, gpu, model=model, load=Load(1024, 256), args=args, gpus_per_node=1)
        return replace(alone, space=replace(alone.space, weight_dtype="bf16"))

    sizes = [ranked(asked(confidence)).best for confidence in LADDER]
    for search in map(asked, LADDER):
        service = search.plan(ranked(search)).service
        assert service and [rung.total_gpus for rung in service.ladder] == [one and one.num_gpus for one in sizes]


def test_without_a_load_the_ladder_is_what_one_server_carries() -> None:
    made = plan(None, "l40s")  # of which few runs are known
    service = made.service
    assert service and service.measure_next
    half, asked, most = (rung.largest_load for rung in service.ladder)
    assert half > asked > most and asked == service.largest_load
    assert asked < service.measure_next.expected.largest_load <= half
    assert service.measure_next.deviation_factor < 1
    assert any(line.startswith(f"running {service.measure_next.script} at") for line in predicted_lines(made))


def test_a_run_says_more_of_a_gpu_that_was_hardly_measured() -> None:
    """The posterior of an H100 with an 8B hangs on hundreds of runs, that of an L40S on few."""
    factors = []
    for gpu in ("h100-sxm", "l40s"):
        (ranking,) = search_for(None, gpu, model=LLAMA, load=Load(1024, 1024), goal="max-throughput").run()
        assert ranking.best
        deployment = ranking.best.deployment
        load = Capacity(deployment, Load(1024, 1024), Targets((Slo("tpot", 100.0),)), exactly=False).largest()
        assert load
        found = next_run(deployment, load)
        factors.append(found.factor if found else 1.0)
    assert factors[1] < factors[0] <= 1.0
    assert sqrt(1 - factors[1] ** 2) > 0.1
