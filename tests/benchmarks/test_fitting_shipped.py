"""The fit: its arithmetic is that of the step, its derivatives are right, and it finds what was put in."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from physics_cases import engine, gpu, llama_8b, mla_model, moe_model

from fit.design import Design, Structure, StructureLine, effects_of
from fit.deviations import learn_deviations, to_toml
from fit.files import to_text
from fit.leave_out import leave_out, optimum, thinned
from planner.evidence.fitting import FitProblem, load_structure
from planner.evidence.observations import Observed, ObservedMetric, Terms
from planner.evidence.runs import MeasuredRun
from planner.hardware.profiles import GpuProfile
from planner.model.architecture import Model
from planner.resources import data_dir
from planner.simulator import StepSum
from planner.timing.efficiencies import PARAMETERS, Efficiency, covariates_of, load_priors, prior_values, targets
from planner.timing.fits import Calibration, Effect
from planner.timing.step import Batch, StepModel

BATCHES = (
    Batch(1, 2000.0),
    Batch(64, 64 * 3000.0),
    Batch(300, 300 * 500.0, 4, 4000, 4000 * 600.0, 3),
    Batch(0, 0.0, 1, 2048, 2048 * 1024.0, 1),
)
MODELS = {"dense": llama_8b(), "moe": moe_model(), "mla": mla_model()}


def observed(
    model: Model,
    profile: GpuProfile,
    measured_s: float,
    *,
    tp: int = 1,
    weights: tuple[float, ...] = (1, 1, 1, 1),
    name: str = "avg_latency_s",
    group: str = "a",
    requests: float = 0.0,
) -> Observed:
    config = engine(tp)
    metric = ObservedMetric(name, measured_s, StepSum(np.array(weights, dtype=float), delays={"request_s": requests}))
    seen = covariates_of(model, profile, config)
    return Observed(f"{group}-{name}", group, model, profile, config, seen, BATCHES, (metric,))


def priors_of(model: Model, profile: GpuProfile, tp: int = 1) -> Efficiency:
    seen = covariates_of(model, profile, engine(tp))
    return Calibration(name="none", fitted_on="nothing").efficiency({}, prior_values(profile, seen))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [1, 8])
def test_the_terms_of_a_fit_are_the_times_of_the_steps(name: str, tp: int) -> None:
    model, profile = MODELS[name], gpu()
    step = StepModel(model, profile, engine(tp), priors_of(model, profile, tp))
    for i, batch in enumerate(BATCHES):
        only = tuple(float(i == j) for j in range(len(BATCHES)))
        one = observed(model, profile, 1.0, tp=tp, weights=only)
        predicted, _ = Terms([one]).log_metrics(Design([one], ()).start)
        assert exp(predicted[0]) == pytest.approx(step.step_s(batch), rel=1e-9)


def test_delays_outside_the_engine_are_added() -> None:
    alone, waiting = (observed(llama_8b(), gpu(), 1.0, requests=r) for r in (0.0, 2.0))
    terms, design = Terms([alone, waiting]), Design([alone, waiting], ())
    without, delayed = np.exp(terms.log_metrics(design.start)[0])
    assert delayed - without == pytest.approx(2 * load_priors()["request_s"].value)


@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000))
def test_derivatives_are_those_of_finite_differences(name: str, seed: int) -> None:
    one = observed(MODELS[name], gpu(), 1.0, tp=2, requests=1.0)
    terms, start = Terms([one]), Design([one], ()).start
    start = start + np.random.default_rng(seed).normal(0, 0.2, start.shape)
    value, derivative = terms.log_metrics(start)
    for parameter in range(len(PARAMETERS)):
        moved = start.copy()
        moved[:, parameter] += 1e-6
        slope = (terms.log_metrics(moved)[0] - value) / 1e-6
        assert derivative[0, parameter] == pytest.approx(slope[0], abs=1e-3)


def made_up(slow: float, *, seed: int = 0) -> list[Observed]:
    """Runs of two GPUs, of which one takes ``slow`` times what the priors say; 2 % of noise."""
    noise = np.random.default_rng(seed).normal(0, 0.02, 200)
    runs = []
    for g, (name, factor) in enumerate((("fast", 1.0), ("slow", slow))):
        profile = gpu().model_copy(update={"id": name})
        for i in range(40):
            one = observed(llama_8b(), profile, 1.0, group=f"{name}{i % 8}")
            step = StepModel(one.model, profile, one.config, priors_of(one.model, profile))
            busy = sum(step.step_s(batch) for batch in BATCHES) * factor * exp(noise[40 * g + i])
            runs.append(replace(one, metrics=(replace(one.metrics[0], measured_s=busy),)))
    return runs


def fitted_to(runs: list[Observed], structure: Sequence[StructureLine]) -> tuple[Effect, ...]:
    design = Design(runs, structure)
    problem = FitProblem(Terms(runs), design)
    return effects_of(design, problem.solve(np.ones(problem.terms.num_metrics, dtype=bool)))


def test_a_slow_gpu_is_found_slow_and_the_other_is_not() -> None:
    fitted = fitted_to(made_up(1.5), (("slowdown", ("gpu",), 0.5),))
    found = {effect.when["gpu"]: effect for effect in fitted if effect.target == "slowdown" and effect.when}
    fast = found["fast"].factor if "fast" in found else 1.0
    # what both have in common may go elsewhere; not all of a step is GPU time, and the host was slowed down too
    assert found["slow"].factor / fast == pytest.approx(1.5, rel=0.15)
    assert found["slow"].rows == 40


@pytest.mark.parametrize("special", ["experts", "untabled", "bus", "partition"])
def test_a_run_has_the_factors_that_its_prediction_has(special: str) -> None:
    """Runs on NVIDIA had the factors of AMD's experts, under an empty name, and no prediction used them."""
    one = observed(moe_model(), gpu(), 1.0)
    without, having = (replace(one, covariates=one.covariates | {special: value}) for value in ("", "some"))
    design = Design([without, having], (("expert_flop", (special,), 0.5),))
    found = [(part.when, column.runs.tolist()) for column in design.columns for part in column.parts if part.when]
    assert found == [({special: "some"}, [False, True])]


def test_one_absurd_row_does_not_move_the_fit() -> None:
    runs = made_up(1.0)
    absurd = replace(runs[0], metrics=(replace(runs[0].metrics[0], measured_s=1e4),))
    structure = (("slowdown", ("gpu",), 0.5),)
    for with_it in (fitted_to(runs, structure), fitted_to([absurd, *runs[1:]], structure)):
        factors = {e.when.get("gpu"): e.factor for e in with_it if e.target == "slowdown"}
        assert factors.get("fast", 1.0) == pytest.approx(1.0, abs=0.06)


def test_few_runs_are_drawn_towards_one() -> None:
    many, few = made_up(1.5), [run for i, run in enumerate(made_up(1.5)) if i < 40 or i == 40]
    structure = (("slowdown", ("gpu",), 0.1),)
    of_many, of_few = (
        next(e.factor for e in fitted_to(runs, structure) if e.when.get("gpu") == "slow") for runs in (many, few)
    )
    assert 1.0 < of_few < of_many


def test_factors_that_no_run_tells_apart_share_what_was_found_by_their_variance() -> None:
    both = (("slowdown", ("gpu",), 0.3), ("slowdown", ("gpu", "shape"), 0.1))
    runs = [run for run in made_up(1.5) if run.covariates["gpu"] == "slow"]
    effects = [e for e in fitted_to(runs, both) if e.target == "slowdown"]
    logs = {len(e.when): log(e.factor) for e in effects}
    # one GPU and one shape: the two, and the global factor, differ only in what is believed of them
    assert logs[1] / logs[2] == pytest.approx(0.3**2 / 0.1**2, rel=0.02)


def test_what_is_left_out_is_not_remembered() -> None:
    """Left out GPU by GPU, the slow one is predicted too fast by all that makes it slow."""
    structure = (("slowdown", ("gpu",), 0.5),)
    runs = made_up(1.5)
    without = leave_out(runs, structure)
    seen = without.errors([one.group for one in runs])
    unseen = without.errors([one.covariates["gpu"] for one in runs])
    assert np.abs(seen).max() < 0.15
    assert np.median(unseen[40:]) < -0.25


def test_an_optimum_does_not_depend_on_where_it_is_looked_for() -> None:
    runs = made_up(1.5)
    design = Design(runs, (("slowdown", ("gpu",), 0.5), ("launch", ("gpu",), 0.5)))
    problem, draw = FitProblem(Terms(runs), design), np.random.default_rng(3)
    starts = (np.zeros_like(design.sd), 2 * design.sd, draw.normal(0, design.sd))
    ends = [optimum(problem, start) for start in starts]
    assert [end.cost for end in ends] == pytest.approx([ends[0].cost] * 3, rel=1e-3)
    predicted = [problem.terms.log_metrics(design.log_values(end.factors))[0] for end in ends]
    assert np.abs(np.ptp(predicted, axis=0)).max() < 0.005


def test_a_large_source_is_thinned_evenly() -> None:
    runs = [MeasuredRun(str(i), "serve", "h100-sxm", "m", family="large") for i in range(1000)]
    few = [MeasuredRun("few", "serve", "h100-sxm", "m", family="small")]
    kept = thinned([*runs, *few])
    assert [run.run_id for run in kept[:2]] == ["0", "7"] and kept[-2].run_id == "999" and kept[-1].run_id == "few"
    assert len(kept) == load_structure()["source"]["runs"] + 1


def test_an_effect_multiplies_every_parameter_of_its_group() -> None:
    in_graphs = {name: 1 for name in PARAMETERS if "launch" in name and name != "eager_launch_s"}
    assert targets("launch") == in_graphs and targets("eager_launch_s") == {"eager_launch_s": 1}
    effect = Effect(target="launch", when={"gpu": "x"}, factor=2.0, sd=0.1)
    calibration = Calibration(name="test", fitted_on="nothing", effects=(effect,))
    priors = prior_values(gpu(), {})
    there, elsewhere = (calibration.efficiency({"gpu": name}, priors) for name in ("x", "y"))
    assert there.gemm_launch_s == 2 * elsewhere.gemm_launch_s


def test_a_slowdown_costs_more_and_reaches_less() -> None:
    effect = Effect(target="slowdown", when={}, factor=2.0, sd=0.1)
    priors = prior_values(gpu(), {})
    slow = Calibration(name="test", fitted_on="nothing", effects=(effect,)).efficiency({}, priors)
    assert slow.gemm_launch_s == 2 * priors["gemm_launch_s"]
    assert slow.gemm_flop_16 == priors["gemm_flop_16"] / 2
    assert slow.host_step_s == priors["host_step_s"]  # the host is no part of the GPU


def test_shares_never_pass_one() -> None:
    effect = Effect(target="bandwidth", when={}, factor=10.0, sd=0.1)
    found = Calibration(name="test", fitted_on="nothing", effects=(effect,)).efficiency({}, prior_values(gpu(), {}))
    assert found.weight_bandwidth_16 == found.kv_bandwidth_8 == 1.0


def test_problem_counts_a_run_once_however_many_metrics_it_has() -> None:
    """Ten metrics of one run weigh as much as one of another."""
    one, other = observed(llama_8b(), gpu(), 2.0, group="a"), observed(llama_8b(), gpu(), 1.0, group="b")
    many = replace(one, metrics=one.metrics * 10)
    costs = [FitProblem(Terms(runs), Design(runs, ())) for runs in ([one, other], [many, other])]
    used = [np.ones(problem.terms.num_metrics, dtype=bool) for problem in costs]
    assert costs[0].solve(used[0]).cost == pytest.approx(costs[1].solve(used[1]).cost, rel=1e-6)


# --- deviations by marginal likelihood: what made-up GPUs differ by is found again, from either side

GPUS, RUNS = 16, 6


def fleet(sd: float, noise: float = 0.03) -> list[Observed]:
    """Runs of GPUs whose slowness scatters by ``sd``, of the logarithm."""
    draw = np.random.default_rng(1)
    runs = []
    for number, slow in enumerate(draw.normal(0, sd, GPUS)):
        profile = gpu().model_copy(update={"id": f"gpu{number}"})
        one = observed(llama_8b(), profile, 1.0, group=f"g{number}")
        step = StepModel(one.model, profile, one.config, priors_of(one.model, profile))
        busy_s = sum(step.device_s(batch) * exp(slow) + step.step_s(batch) - step.device_s(batch) for batch in BATCHES)
        for error in draw.normal(0, noise, RUNS):
            metric = replace(one.metrics[0], measured_s=busy_s * exp(error))
            runs.append(replace(one, metrics=(metric,)))
    return runs


def structure(assumed: float) -> Structure:
    return Structure((("slowdown", ("gpu",), assumed),), {"avg_latency_s": 0.05}, (assumed,))


@pytest.mark.parametrize("assumed", [0.1, 0.6])
def test_what_gpus_differ_by_is_found_from_either_side(assumed: float) -> None:
    learnt = learn_deviations(Terms(fleet(0.25)), structure(assumed))
    assert learnt.lines[0][2] == pytest.approx(0.25, rel=0.45)
    assert learnt.sigma["avg_latency_s"] == pytest.approx(0.03, rel=0.5)


def test_a_line_that_is_held_stays() -> None:
    held = replace(structure(0.4), assumed=(None,))
    assert learn_deviations(Terms(fleet(0.0)), held).lines == held.lines


def test_gpus_that_are_alike_leave_little() -> None:
    learnt = learn_deviations(Terms(fleet(0.0)), structure(0.2))
    assert learnt.lines[0][2] < 0.1


def test_the_file_is_written_with_what_was_learnt() -> None:
    path = data_dir("hardware") / "calibration" / "structure.toml"
    text, shipped = path.read_text(encoding="utf-8"), Structure.shipped()
    assert to_toml(shipped, text).count("\n") == text.count("\n")
    lines = tuple((target, scope, 0.123) for target, scope, _ in shipped.lines)
    changed = to_toml(replace(shipped, lines=lines, sigma=dict.fromkeys(shipped.sigma, 0.077)), text)
    assert changed.count(", 0.123],") == sum(sd is not None for sd in shipped.assumed) > 0
    assert changed.count("= 0.077") == len(shipped.sigma)


def test_a_calibration_survives_being_written() -> None:
    effect = Effect(target="launch", when={"gpu": "a"}, factor=1.1, sd=0.1, rows=3)
    before = Calibration(name="test", fitted_on="three runs", effects=(effect,))
    assert Calibration.model_validate_json(to_text(before)) == before
