"""Learning from a user's own runs: machines that are known to be slower, real results, and everything that is refused.

The machines are made here: runs are predicted with efficiencies that were changed by a known factor, and scattered as
repeated runs are. What is asked is whether the factor is found, and whether loads that were not among the runs come out
better. No figure of the fit is compared with itself.
"""

import csv
import json
import os
import random
import re
from collections.abc import Callable
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from command_line import refused, run
from hypothesis import given, settings
from hypothesis import strategies as st
from script_plans import plan as a_plan
from workflow_cases import OfShortRequests

from planner.errors import InputError
from planner.evidence.calibration import CalibrationOutcome, calibrate, mean_error
from planner.evidence.evaluation import case_of, evaluate, figures_in_columns, run_workload, simulate
from planner.evidence.fitting import OF_ITS_LOAD, effects_of, fit_own
from planner.evidence.runs import RUN_COLUMNS, MeasuredRun, check_run, runs_of
from planner.evidence.sources import Sources, Stated, read_sources
from planner.planning.calibration import SHIPPED as SHIPPED_FITS
from planner.planning.calibration import Local, local_for, read_local, save
from planner.planning.plan import PlanFile, PlannedWorkload, read_plan
from planner.timing.fits import Effect, LocalFits, base_digest, load_calibration
from planner.units import Interval

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
BASE = MeasuredRun(
    "", "serve", "h100-sxm", MODEL, engine_version="0.11.0", arrival="closed-loop", random_range_ratio=0.0
)
METRICS = ("output_throughput", "mean_ttft_ms", "median_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "mean_e2el_ms")
#: Concurrency, input and output tokens.
SEEN = ((1, 1024, 128), (8, 1024, 128), (32, 1024, 128), (16, 2048, 96))
UNSEEN = ((24, 512, 200), (2, 3000, 64))


def machine(**factors: float) -> Local:
    """A machine whose efficiencies are those that we ship times ``factors``."""
    effects = tuple(Effect(target=name, when={}, factor=value, sd=0) for name, value in factors.items())
    return Local(Path("truth"), efficiency=LocalFits(base=base_digest(), fitted_on="", effects=effects))


def measured(
    truth: Local, concurrency: int, input_len: int, output_len: int, noise: float = 0.03, **more: Any
) -> MeasuredRun:
    """What the machine would have measured; repeated runs scatter by about 3 %."""
    name = f"c{concurrency}-i{input_len}-o{output_len}"
    prompts = 3 * concurrency
    one = replace(BASE, run_id=name, input_len=input_len, output_len=output_len, max_concurrency=concurrency,
                  num_prompts=prompts, **more)  # fmt: skip
    found, scatter = figures_in_columns(case_of(one, truth), simulate(case_of(one, truth))), random.Random(name)
    return replace(one, metrics={metric: found[metric] * (1 + scatter.gauss(0, noise)) for metric in METRICS})


def learn(tmp_path: Path, *runs: MeasuredRun) -> CalibrationOutcome:
    return calibrate(Sources(runs), tmp_path / "calibration.toml")


def slowdown(answer: CalibrationOutcome) -> float:
    """Of the setting on this machine, all factors together."""
    found = 1.0
    for factor in answer.factors:
        found *= factor.factor if factor.target == "slowdown" else 1.0
    return found


# --- what is learned -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truth", [1.3, 0.8])
def test_a_slower_machine_is_found_and_loads_that_it_did_not_run_come_out_better(tmp_path: Path, truth: float) -> None:
    slow = machine(slowdown=truth)
    answer = learn(tmp_path, *(measured(slow, *load) for load in SEEN))
    # drawn towards 1, and not beyond the truth
    assert 0.5 < log(slowdown(answer)) / log(truth) < 1.15
    assert answer.kept and any(f.target == "slowdown" and f.determined for f in answer.factors)
    unseen = [measured(slow, *load, noise=0) for load in UNSEEN]
    after = mean_error(evaluate(unseen, Local(Path("x"), efficiency=answer.efficiency)))
    assert after < mean_error(evaluate(unseen)) / 2
    assert mean_error(answer.left_out) < mean_error(answer.before) / 2


def test_a_slower_front_end_is_not_taken_for_a_slower_gpu(tmp_path: Path) -> None:
    """Three times the delay of client and front end, in runs of few tokens where it shows."""
    slow = machine(frontend_s=3.0, request_s=3.0)
    runs = [measured(slow, c, 256, 64) for c in (1, 4, 16, 64)]
    answer = learn(tmp_path, *runs)
    delays = [f.factor for f in answer.factors if f.target in ("frontend_s", "request_s")]
    assert max(delays) > 1.2
    assert slowdown(answer) == pytest.approx(1, abs=0.12)
    unseen = [measured(slow, 8, 400, 64, noise=0), measured(slow, 32, 200, 80, noise=0)]
    assert mean_error(evaluate(unseen, Local(Path("x"), efficiency=answer.efficiency))) < mean_error(evaluate(unseen))


def test_one_run_says_how_slow_and_not_why(tmp_path: Path) -> None:
    answer = learn(tmp_path, measured(machine(slowdown=1.3), *SEEN[2]))
    assert answer.kept and 1.1 < slowdown(answer) < 1.35
    assert {f.target for f in answer.factors if not f.determined} >= {"host", "launch", "request_s"}
    assert not answer.left_out
    assert any("do not determine" in note and "host" in note for note in answer.notes)
    assert any("one setting" in note for note in answer.notes)
    assert any("one load was measured" in note for note in answer.notes)
    lone = measured(machine(slowdown=1.3), 1, 128, 32)
    assert not any("one load" in note for note in learn(tmp_path / "two", lone, measured(machine(), *SEEN[2])).notes)


def test_links_have_factors_only_where_there_are_links(tmp_path: Path) -> None:
    slow = machine(slowdown=1.2)
    alone = learn(tmp_path, measured(slow, *SEEN[1]))
    pair = learn(tmp_path, measured(slow, *SEEN[1], tensor_parallel_size=2))
    assert "link_share" not in {f.target for f in alone.factors}
    assert {"link_share", "collective_s"} <= {f.target for f in pair.factors}


def test_another_gpu_keeps_what_is_shipped(tmp_path: Path) -> None:
    answer = learn(tmp_path, *(measured(machine(slowdown=1.3), *load) for load in SEEN[:3]))
    answer.save()
    local, elsewhere = read_local(answer.path), replace(measured(machine(), *UNSEEN[0]), gpu="mi300x")
    assert evaluate([elsewhere], local)[0].figures == evaluate([elsewhere])[0].figures
    assert evaluate([elsewhere], local)[0].calibration == "shipped"
    assert evaluate([measured(machine(), *UNSEEN[0])], local)[0].calibration == str(answer.path)


@settings(max_examples=6, deadline=None)
@given(st.floats(0.7, 1.5), st.integers(2, 48))
def test_a_prediction_moves_towards_what_was_measured(truth: float, concurrency: int) -> None:
    one = measured(machine(slowdown=truth), concurrency, 600, 100, noise=0)
    before = figures_in_columns(case_of(one), simulate(case_of(one)))["mean_tpot_ms"]
    try:
        answer = calibrate(Sources((one,)), Path("nowhere.toml"))
    except InputError:  # too near to what is shipped to say anything
        assert truth == pytest.approx(1, abs=0.05)
        return
    after = answer.after[0].figures["mean_tpot_ms"].predicted
    assert min(before, one.metrics["mean_tpot_ms"]) * 0.98 <= after <= max(before, one.metrics["mean_tpot_ms"]) * 1.02


# --- the interval --------------------------------------------------------------------------------------------------


def learnt_from(*own: MeasuredRun) -> Local:
    """The fits after ``own`` runs."""
    fits, _ = fit_own(own, load_calibration())
    return Local(Path("own"), efficiency=LocalFits(base=base_digest(), fitted_on="", effects=effects_of(fits)))


def widths(runs: list[MeasuredRun], own: tuple[MeasuredRun, ...] = ()) -> dict[tuple[str, str], float]:
    """log(highest / lowest) of every figure of ``runs``, after ``own`` runs were learnt from."""
    return {
        (one.run.run_id, name): log(figure.hi / figure.lo)
        for one in evaluate(runs, learnt_from(*own) if own else SHIPPED_FITS)
        for name, figure in one.figures.items()
        if figure.hi and figure.lo
    }


def test_one_run_at_the_prediction_narrows_and_moves_nothing(tmp_path: Path) -> None:
    agrees = measured(machine(), *SEEN[1], noise=0)
    unseen = [measured(machine(), *load, noise=0) for load in UNSEEN]
    before, after = widths(unseen), widths(unseen, (agrees,))
    assert all(after[figure] < before[figure] * 1.0001 for figure in before)
    # one run takes 60 % of what it teaches away from the variance under other loads: at best to a factor 0.63.
    # The noise of measurements, which is the rest of an interval, stays
    for one in unseen:
        known, unknown = (
            simulate(case_of(one, local)).uncertainty.deviations("mean_tpot_ms")[1]
            for local in (learnt_from(agrees), SHIPPED_FITS)
        )
        assert known < 0.85 * unknown
    answer = learn(tmp_path, agrees)
    assert all(f.predicted == pytest.approx(f.measured, rel=1e-3) for f in answer.after[0].figures.values())


@settings(max_examples=5, deadline=None)
@given(st.sampled_from([1, 4, 24, 96]), st.sampled_from([128, 900, 4000]), st.sampled_from([1, 2]), st.floats(0.7, 1.5))
def test_a_run_never_makes_the_efficiencies_less_known(concurrency: int, input_len: int, tp: int, truth: float) -> None:
    """Of whatever sum of them, of the engine that ran and of others on the GPU."""
    one = measured(machine(slowdown=truth), concurrency, input_len, 80, noise=0, tensor_parallel_size=tp)
    shipped, fits = load_calibration(), fit_own([one], load_calibration())[0]
    own = shipped.with_own(effects_of(fits), "own")
    others = (one, replace(one, tensor_parallel_size=4), replace(one, model="Qwen/Qwen3-30B-A3B"))
    for covariates in (case_of(other).deployment.covariates for other in others):
        learnt = shipped.known(covariates).covariance - own.known(covariates).covariance
        assert np.linalg.eigvalsh(learnt).min() > -1e-6
    covariates = case_of(one).deployment.covariates
    assert np.trace(own.known(covariates).covariance) < np.trace(shipped.known(covariates).covariance)


def test_the_same_load_twice_says_less_than_two_loads() -> None:
    first, second = measured(machine(), *SEEN[0], noise=0), measured(machine(), 64, 4000, 100, noise=0)
    unseen = [measured(machine(), 32, 3000, 64, noise=0)]
    one, two = widths(unseen, (first,)), widths(unseen, (first, second))
    again = widths(unseen, (first, replace(first, run_id="again")))
    for name in ("mean_tpot_ms", "mean_ttft_ms", "output_throughput"):
        figure = unseen[0].run_id, name
        assert two[figure] < again[figure] <= one[figure] * 1.0001


def test_the_order_of_runs_does_not_matter() -> None:
    slow = machine(slowdown=1.3, frontend_s=1.5)
    runs = [measured(slow, *load) for load in SEEN]
    first, last = (fit_own(order, load_calibration())[0][0] for order in (runs, runs[::-1]))
    assert set(first.design.keys) == set(last.design.keys)
    again = [last.design.keys.index(key) for key in first.design.keys]
    assert first.means == pytest.approx(last.means[again], abs=2e-4)
    learnt = last.learnt[again]
    assert first.learnt @ first.learnt.T == pytest.approx(learnt @ learnt.T, abs=2e-4)


def test_the_posterior_is_that_of_kriging() -> None:
    """By the formula in the space of measurements, S - S J' (J S J' + N)^-1 J S (Rasmussen and Williams, eq. 2.26).

    Of what is taken away, the part that holds under other loads.
    """
    runs = [measured(machine(), *load, noise=0) for load in SEEN[:2]]
    fit = fit_own(runs, load_calibration())[0][0]
    problem, design = fit.problem, fit.design
    rows = problem.rows
    run_of = problem.terms.metric_run[rows]
    _, derivative = problem.terms.log_metrics(design.start)
    jacobian = np.einsum("mp,mfp->mf", derivative[rows], design.powers[run_of])
    noise = np.diag(problem.sigma[rows] ** 2 * problem.shares(rows))
    gain = design.prior @ jacobian.T @ np.linalg.inv(jacobian @ design.prior @ jacobian.T + noise)
    expected = (1 - OF_ITS_LOAD) * gain @ jacobian @ design.prior
    assert fit.learnt @ fit.learnt.T == pytest.approx(expected, abs=2e-3)
    assert np.abs(expected).max() > 0.02  # there is something to compare


# --- the file ------------------------------------------------------------------------------------------------------


def kept() -> Path:
    """The user's own calibration: ``conftest`` sets XDG_DATA_HOME."""
    return Path(os.environ["XDG_DATA_HOME"]) / "planner" / "calibration.toml"


def table(path: Path, *runs: MeasuredRun, drop: str = "", **cells: str) -> str:
    """A table of runs; ``cells`` replace those of the first."""
    rows = [{name: value for name, value in one.record().items() if name != drop} for one in runs]
    rows[0] |= cells
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def test_the_next_prediction_uses_it_and_says_so(tmp_path: Path) -> None:
    slow = machine(slowdown=1.4)
    asked = ("predict", "serve", MODEL, "--gpu", "h100", "--engine-version", "0.11.0", "--max-concurrency", "8",
             "--num-prompts", "32", "--format", "json")  # fmt: skip
    before = json.loads(run(*asked).out)
    assert before["calibration"] == "shipped"
    outcome = run("calibrate", table(tmp_path / "runs.csv", *(measured(slow, *load) for load in SEEN[:3])))
    assert outcome.status == 0 and str(kept()) in outcome.out.replace("\n", "")
    assert [path.name for path in kept().parent.iterdir()] == ["calibration.toml"]  # no temporary file is left
    after = json.loads(run(*asked).out)
    assert after["calibration"] == str(kept())
    assert 1.2 < after["mean_tpot_ms"] / before["mean_tpot_ms"] < 1.45
    assert json.loads(run(*asked, "--calibration", "none").out) == before
    moved = kept().rename(tmp_path / "mine.toml")
    assert json.loads(run(*asked).out) == before
    named = json.loads(run(*asked, "--calibration", str(moved)).out)
    assert (named["calibration"], named["mean_tpot_ms"]) == (str(moved), after["mean_tpot_ms"])
    plan = ("recommend", MODEL, "--gpu", "h100", "--gpus", "1", "--engine-version", "0.11.0", "--max-concurrency", "8")
    plans = json.loads(run(*plan, "--calibration", str(moved), "--format", "json").out)["plans"]
    assert plans[0]["calibration"] == str(moved)
    checked = run("check", "--gpu", "h100", "--engine-version", "0.11.0", "--calibration", str(moved),
                  "--max-concurrency", "4", "--format", "json", "--", "vllm", "serve", MODEL)  # fmt: skip
    assert json.loads(checked.out)["calibration"] == str(moved)


def test_scripts_of_workflows_rest_on_it_too(tmp_path: Path) -> None:
    """The offline figures, the plan's and those of a sweep; what says nothing about a GPU leaves it as shipped."""
    asked = ("workflow", "latency", MODEL, "--gpu", "h100", "--engine-version", "0.11.0", "--max-concurrency", "8")
    sweep = ("workflow", "sweep", *asked[2:])

    def written(name: str, *words: str) -> tuple[Path, str]:
        outcome = run(*words, "-o", str(tmp_path / name))
        assert outcome.status == 0, outcome.err
        return tmp_path / name, outcome.err

    def seconds(folder: Path) -> list[float]:
        return [float(text) for text in re.findall(r"predicted ([\d.]+) s", (folder / "latency.sh").read_text())]

    shipped, said = written("shipped", *asked)
    assert "note: calibration: shipped" in said
    run("calibrate", table(tmp_path / "runs.csv", *(measured(machine(slowdown=1.4), *load) for load in SEEN[:3])))
    own, said = written("own", *asked)
    assert f"calibration:{kept()}" in "".join(said.split())  # however the line was broken
    assert f"Calibration: {kept()}." in (own / "WORKFLOW.md").read_text().replace("\\", "")
    assert PlanFile.from_json((own / "plan.json").read_text()).plan.calibration == str(kept())
    assert all(after > before for before, after in zip(seconds(shipped), seconds(own), strict=True))
    assert seconds(written("none", *asked, "--calibration", "none")[0]) == seconds(shipped)
    with patch("planner.planning.Prediction", OfShortRequests):  # of each load of the sweep
        loads = [
            written(name, *sweep, *words)[0] / "sweep.sh" for name, *words in (("a",), ("b", "--calibration", "none"))
        ]
    assert loads[0].read_text() != loads[1].read_text()
    other = written("partitions", "workflow", "compare-partitions")[0]
    assert "calibration shipped:" in (other / "COMPARISON.md").read_text()


def test_a_second_calibration_adds_to_the_first_and_fresh_forgets_it(tmp_path: Path) -> None:
    slow = machine(slowdown=1.3)
    first, second = (table(tmp_path / f"{i}.csv", measured(slow, *SEEN[i])) for i in (1, 2))
    count = ("--format", "json")
    assert json.loads(run("calibrate", first, *count).out)["runs"] == 1
    both = json.loads(run("calibrate", second, *count).out)
    assert (both["runs"], both["new_runs"]) == (2, 1)
    assert any(factor["before"] != 1 for factor in both["factors"])
    content = kept().read_text()
    again = json.loads(run("calibrate", second, *count).out)
    assert (again["runs"], again["new_runs"]) == (2, 0)  # the same run again is no second witness
    assert run("calibrate").status == 0 and kept().read_text() == content  # the kept runs once more
    assert json.loads(run("calibrate", second, "--fresh", *count).out)["runs"] == 1


def test_before_is_what_the_fits_of_that_moment_predict(tmp_path: Path) -> None:
    runs = [measured(machine(slowdown=1.3), *SEEN[i]) for i in (1, 2)]
    unseen = replace(runs[0], run_id="unseen", metrics={})
    first = learn(tmp_path, *runs, unseen)
    assert first.before == tuple(evaluate(runs))
    first.save()
    again = learn(tmp_path, *runs)
    assert (
        [one.figures for one in again.before]
        == [one.figures for one in first.after]
        != [one.figures for one in first.before]
    )


def test_a_run_survives_the_file(tmp_path: Path) -> None:
    one = replace(measured(machine(), *SEEN[0]), enforce_eager=True, seed=3, suspect="", request_rate=1.5)
    assert runs_of([one.record()], "here") == [one]
    path = tmp_path / "c.toml"
    fits = LocalFits(base=base_digest(), fitted_on='a "quoted" name \x7f é 😀', effects=(), runs=(one.record(),))
    save((), fits, path)
    found = read_local(path).efficiency
    assert found == fits and runs_of(found.runs, "here") == [one]


def test_a_file_of_an_older_form_is_read_for_its_runs(tmp_path: Path) -> None:
    """Files of earlier versions held pooled spreads too, which mean nothing now."""
    run("calibrate", table(tmp_path / "runs.csv", *(measured(machine(slowdown=1.4), *load) for load in SEEN[:3])))
    text = kept().read_text().replace(base_digest(), "0123456789ab")
    kept().write_text(text + '\n[[efficiency.spreads]]\nmetric = "mean_tpot_ms"\nlow = 0.9\nhigh = 1.1\n')
    assert local_for(None).is_stale
    assert run("calibrate").status == 0 and not local_for(None).is_stale
    efficiency = local_for(None).efficiency
    assert efficiency is not None and len(efficiency.runs) == 3


def test_factors_on_other_fits_than_ours_are_not_used(tmp_path: Path) -> None:
    run("calibrate", table(tmp_path / "runs.csv", *(measured(machine(slowdown=1.4), *load) for load in SEEN[:3])))
    kept().write_text(kept().read_text().replace(base_digest(), "0123456789ab"))
    assert local_for(None).is_stale
    asked = ("predict", "latency", MODEL, "--gpu", "h100", "--engine-version", "0.11.0", "--format", "json")
    outcome = run(*asked)
    assert json.loads(outcome.out)["calibration"] == "shipped" and "are left out" in outcome.err
    assert "planner calibrate -o" in refused(*asked, "--calibration", str(kept().rename(tmp_path / "old.toml")))
    assert run("calibrate", "-o", str(tmp_path / "old.toml")).status == 0  # its runs are fitted again
    assert run(*asked, "--calibration", str(tmp_path / "old.toml")).status == 0


# --- results of vllm bench -----------------------------------------------------------------------------------------

LOAD = PlannedWorkload(input_len=1024, output_len=128, num_prompts=24, max_concurrency=8)


def result_of(one: MeasuredRun, model: str) -> dict[str, Any]:
    """The result file that ``vllm bench serve --save-result`` of 0.32.0 writes, as far as it is read."""
    rate = one.metrics["output_throughput"]
    tokens = int(one.num_prompts or 0) * int(one.output_len or 0)
    seconds = tokens / rate
    prompts = int(one.num_prompts or 0)
    return {
        "date": "20261120-201847", "endpoint_type": "vllm", "backend": "vllm", "label": None, "model_id": model,
        "tokenizer_id": model, "num_prompts": prompts, "request_rate": "inf", "burstiness": 1.0,
        "max_concurrency": one.max_concurrency, "duration": seconds, "completed": prompts, "failed": 0,
        "total_input_tokens": prompts * int(one.input_len or 0), "total_output_tokens": tokens,
        "request_throughput": prompts / seconds, "request_goodput": None, "output_throughput": rate,
        "total_token_throughput": rate * (1 + (one.input_len or 0) / (one.output_len or 1)),
        **{name: value for name, value in one.metrics.items() if name.endswith("_ms")}, "std_ttft_ms": 1.0,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """A plan's folder after its benchmark ran on a slower machine."""

    def write(load: PlannedWorkload = LOAD, **changes: Any) -> Path:
        slow = measured(machine(slowdown=1.3), 8, 1024, 128, max_num_seqs=8)
        plan = a_plan(gpu="h100-sxm", platform="cuda", model=MODEL, requested_model=MODEL, weight_dtype="bf16",
                      kv_cache_dtype="bf16", max_num_seqs=8, max_num_batched_tokens=8192, max_model_len=2048,
                      workload=load, serve_argv=("vllm", "serve", MODEL, "--host", "127.0.0.1"))  # fmt: skip
        totals = {name: value for name, value in changes.items() if name.startswith("total_")}
        plan = plan.model_copy(update={"predicted": {**plan.predicted, **totals}})
        file = PlanFile(planner_version="0.1.0", command="planner recommend", goal="balanced", plan=plan)
        directory = tmp_path / "plan"
        (directory / "results").mkdir(parents=True)
        (directory / "plan.json").write_text(file.to_json())
        path = directory / "results" / f"serve-{plan.digest}.json"
        path.write_text(json.dumps({**result_of(slow, MODEL), **changes}))
        return directory

    return write


def test_a_result_of_scattered_lengths_is_replayed_with_the_lengths_that_were_sent(folder: Callable[..., Path]) -> None:
    sent = LOAD.model_copy(update={"range_ratio": 0.5, "seed": 3})
    drawn = sent.sent.requests()
    inputs, outputs = int(drawn.input_len.sum()), int(drawn.output_len.sum())
    counted = {"total_input_tokens": inputs, "total_output_tokens": outputs, "duration": 5.0, "request_throughput": 4.8,
               "output_throughput": outputs / 5, "total_token_throughput": (inputs + outputs) / 5}  # fmt: skip
    (one,) = read_sources([folder(sent, **counted)], Stated()).runs
    assert run_workload(one) == sent.sent


def test_a_folder_and_its_result_say_the_same(folder: Callable[..., Path]) -> None:
    directory = folder()
    (result,) = (directory / "results").iterdir()
    (whole,), (alone,) = (read_sources([path], Stated()).runs for path in (directory, result))
    assert whole == alone
    assert (whole.gpu, whole.max_num_seqs, whole.max_model_len) == ("h100-sxm", 8, 2048)
    assert (whole.mean_input_len, whole.mean_output_len, whole.num_prompts, whole.date) == (1024, 128, 24, "2026-11-20")
    sweep = result.with_name(result.name.replace("serve-", "sweep-8-"))
    sweep.write_text(result.read_text())
    assert len(read_sources([directory], Stated()).runs) == 2  # of the same server
    sweep.unlink()
    outcome = run("calibrate", str(directory), "--format", "json")
    found = json.loads(outcome.out)
    assert outcome.status == 0 and found["kept"] and found["schema_version"] == 1
    assert found["error"]["after"] < found["error"]["before"]


def test_a_result_of_a_whole_node_teaches_of_one_of_its_servers(folder: Callable[..., Path]) -> None:
    (result,) = (folder() / "results").iterdir()
    (alone,) = read_sources([result], Stated()).runs
    said = json.loads(result.read_text())
    counts = ("num_prompts", "completed", "max_concurrency", "total_input_tokens", "total_output_tokens")
    many = {name: value * 8 for name, value in said.items() if name in counts or name.endswith("throughput")}
    node = result.with_name(result.name.replace("serve-", "node-"))
    node.write_text(json.dumps({**said, **many}))
    (one,) = read_sources([node], Stated()).runs
    assert replace(one, run_id=alone.run_id) == alone


def test_a_log_that_leaves_settings_out_is_read_with_those_of_the_command(folder: Callable[..., Path]) -> None:
    """Blocks of an fp8 cache have half the bytes, so what they leave for the rest depends on what was launched."""
    directory = folder()
    file = read_plan(directory)
    argv = (*file.plan.serve_argv, "--kv-cache-dtype", "fp8", "--max-num-seqs", "8", "--max-num-batched-tokens", "8192",
            "--max-model-len", "2048")  # fmt: skip
    plan = file.plan.model_copy(update={"kv_cache_dtype": "fp8", "serve_argv": argv})
    (directory / "plan.json").write_text(file.model_copy(update={"plan": plan}).to_json())
    (result,) = (directory / "results").iterdir()
    result.rename(result.with_name(f"serve-{plan.digest}.json"))
    log = directory / "logs" / "server.log"
    log.parent.mkdir()
    left_out = "INFO V1 LLM engine (v0.11.0)\nINFO Model loading took 14.99 GiB\nINFO # GPU blocks: 55000\n"

    def learned(text: str) -> list[tuple[str, Interval]]:
        log.write_text(text)
        answer = calibrate(read_sources([directory], Stated()), kept())
        return [(one.name, one.interval) for one in answer.memory]

    printed = learned(f"{left_out}INFO Initializing a V1 LLM engine (v0.11.0) with config: kv_cache_dtype=fp8\n")
    assert printed and learned(left_out) == printed


def test_results_without_a_plan_need_to_be_told_what_ran(tmp_path: Path) -> None:
    slow = measured(machine(slowdown=1.3), 8, 1024, 128)
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(result_of(slow, MODEL)))
    outcome = run("calibrate", str(path))
    assert outcome.status == 2 and "--gpu, --engine-version" in outcome.err and not kept().exists()
    told, in_folder = ("--gpu", "h100", "--engine-version", "0.11.0"), tmp_path / "results" / "bench.json"
    assert run("calibrate", str(path), *told).status == 0
    assert local_for(None).efficiency is not None
    in_folder.parent.mkdir()
    path.rename(in_folder)  # as vllm bench serve --result-dir results
    assert run("evaluate", str(in_folder.parent), *told).err.startswith("note: 1 run, 0 refused")
    in_folder.write_text(json.dumps(result_of(slow, "llama")))  # --served-model-name
    for command in ("calibrate", "evaluate"):
        outcome = run(command, str(in_folder), *told)
        assert outcome.status == 2 and "add --model" in outcome.err
        assert run(command, str(in_folder), *told, "--model", MODEL).status == 0
    in_folder.write_text("")
    assert f"error: {in_folder} is empty" in run("evaluate", str(in_folder), *told).err


def test_offline_results_need_their_lengths(tmp_path: Path) -> None:
    """Shapes of ``vllm bench latency`` and ``throughput``, 0.32.0."""
    said = Stated("h100", MODEL, "0.11.0", input_len=256, output_len=64, batch_size=4)
    path = tmp_path / "latency.json"
    path.write_text(json.dumps({"avg_latency": 0.9, "latencies": [0.9, 0.9], "percentiles": {"50": 0.9}}))
    (one,) = read_sources([path], said).runs
    assert (one.bench, one.batch_size, one.input_len, one.metrics) == ("latency", 4, 256, {"avg_latency_s": 0.9})
    path.write_text(json.dumps({"elapsed_time": 10.0, "num_requests": 100, "total_num_tokens": 32000,
                                "requests_per_second": 10.0, "tokens_per_second": 3200.0}))  # fmt: skip
    (one,) = read_sources([path], said).runs
    assert (one.bench, one.num_prompts, one.metrics) == ("throughput", 100, {"total_token_throughput": 3200.0})
    with pytest.raises(InputError, match="with the stated lengths"):
        read_sources([path], replace(said, input_len=512))
    path.write_text(path.read_text().replace("3200.0", "32.0"))
    with pytest.raises(InputError, match="tokens_per_second is 32, but 32000 in 10 s are 3200 per second"):
        read_sources([path], said)
    with pytest.raises(InputError, match="does not say its lengths"):
        read_sources([path], Stated("h100", MODEL, "0.11.0"))


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"mean_tpot_ms": "nan"}, "mean_tpot_ms is 'nan', not a finite number"),
        ({"mean_tpot_ms": "5e-324"}, "mean_tpot_ms is '5e-324', not at least 1e-06"),
        ({"mean_tpot_ms": "-3"}, "mean_tpot_ms is '-3', not at least 1e-06"),
        ({"mean_tpot_ms": "fast"}, "'fast', not a number"),
        ({"mean_tpot_ms": "0.008"}, "is not TTFT and TPOT"),  # seconds
        ({"mean_e2el_ms": "1"}, "below mean_ttft_ms"),
        ({"output_throughput": "20"}, "in flight"),  # per request, or per GPU of many
        ({"output_throughput": "99999"}, "in flight"),
        ({"bench": "online"}, "'online', not 'latency',"),
        ({"max_concurrency": ""}, "neither max_concurrency nor request_rate"),
        ({"gpu": "h900"}, "h900"),
        ({"model": "no/such-model"}, "nothing to calibrate on"),
        ({"random_range_ratio": "1.5"}, "not less than 1"),
    ],
)
def test_a_bad_cell_is_named_and_changes_nothing(tmp_path: Path, cells: dict[str, str], words: str) -> None:
    slow = machine(slowdown=1.3)
    run("calibrate", table(tmp_path / "good.csv", measured(slow, *SEEN[1])))
    before = kept().read_bytes()
    bad = table(tmp_path / "bad.csv", replace(measured(slow, *SEEN[2]), run_id="other"), **cells)
    outcome = run("calibrate", bad, "--fresh")
    assert (outcome.status, outcome.out) == (2, "")
    assert words in " ".join(outcome.err.split()) and "hint:" in outcome.err
    assert kept().read_bytes() == before and len(list(kept().parent.iterdir())) == 1


def test_a_batch_has_the_rate_of_its_latency(tmp_path: Path) -> None:
    """8 x 128 tokens in 1.2 s are 853 tokens/s. A spreadsheet may write 128 as 1.28e2."""
    head = "bench,gpu,model,input_len,output_len,batch_size,max_num_seqs,avg_latency_s,output_throughput\n"
    (tmp_path / "runs.csv").write_text(f"{head}latency,h100,{MODEL},1024,128,8,1.28e2,1.2,853\n")
    (one,) = read_sources([tmp_path / "runs.csv"], Stated()).runs
    assert one.max_num_seqs == 128
    (tmp_path / "runs.csv").write_text(f"{head}latency,h100,{MODEL},1024,128,8,128,1.2,8\n")
    with pytest.raises(InputError, match=r"a batch of 8 in 1.2 s is 853.3 tokens/s, but output_throughput is 8"):
        read_sources([tmp_path / "runs.csv"], Stated())


@pytest.mark.parametrize("column", ["gpu", "model", "bench"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    outcome = run("calibrate", table(tmp_path / "runs.csv", measured(machine(), *SEEN[0]), drop=column))
    assert outcome.status == 2 and f"columns missing: {column}" in outcome.err and not kept().exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_throughput": 5.0}, "output_throughput is 5"),
        ({"duration": 1.0}, "request_throughput is"),
        ({"total_token_throughput": 5.0}, "total_token_throughput is 5"),
        ({"failed": 3}, "24 of 27 requests completed"),
        ({"completed": 20}, "of 24 requests completed"),
        ({"model_id": "somebody/else"}, "its plan is of"),
        ({"mean_ttft_ms": None, "mean_tpot_ms": "NaN"}, "mean_tpot_ms is 'NaN'"),
        ({"mean_tpot_ms": -1}, "mean_tpot_ms is -1"),
        ({"max_concurrency": 16}, "another load was measured"),
    ],
)
def test_a_broken_result_is_named_and_changes_nothing(
    folder: Callable[..., Path], changes: dict[str, Any], words: str
) -> None:
    outcome = run("calibrate", str(folder(**changes)))
    assert (outcome.status, outcome.out) == (2, "")
    assert words in " ".join(outcome.err.split()) and not kept().exists()


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("Initializing a V1 LLM engine (v0.10.2) with config: model='m'", "the log is of vLLM 0.10.2, the plan is for"),
        ("non-default args: {'max_num_seqs': 64, 'max_model_len': 2048}", "max_num_seqs 64 instead of 8"),
    ],
)
def test_what_ran_otherwise_than_planned_teaches_nothing(
    tmp_path: Path, folder: Callable[..., Path], printed: str, words: str
) -> None:
    directory = folder()
    (result,) = (directory / "results").iterdir()
    log = directory / "logs" / "server.log"
    log.parent.mkdir()
    log.write_text("INFO V1 LLM engine (v0.11.0)\nINFO non-default args: {'max_num_seqs': 8, 'max_model_len': 2048}\n")
    assert read_sources([directory, result], Stated()).runs  # as planned
    log.write_text(f"INFO {printed}\n")
    for path in (directory, result):
        outcome = run("calibrate", str(path))
        assert (outcome.status, outcome.out) == (2, "") and not kept().exists()
        assert words in " ".join(outcome.err.split()) and "hint:" in outcome.err
    moved = result.rename(tmp_path / "bench.json")  # and is now what the caller says that it is
    stated = ("--gpu", "h100", "--engine-version", "0.10.2", "--max-num-seqs", "64", "--max-model-len", "2048")
    assert run("calibrate", str(moved), *stated).status == 0
    (learned,) = runs_of(read_local(kept()).efficiency.runs, "")  # type: ignore[union-attr]
    assert (learned.engine_version, learned.max_num_seqs) == ("0.10.2", 64)


def test_files_that_are_something_else(tmp_path: Path, folder: Callable[..., Path]) -> None:
    directory = folder()
    (result,) = (directory / "results").iterdir()
    foreign = result.rename(result.with_name("serve-0123456789ab.json"))
    assert "is a result of plan 0123456789ab" in " ".join(run("calibrate", str(foreign)).err.split())
    assert "is for results without" not in run("calibrate", str(foreign), "--gpu", "h100").err
    cut, binary, listed = tmp_path / "cut.json", tmp_path / "x.bin", tmp_path / "list.json"
    cut.write_text(foreign.read_text()[:100])
    binary.write_bytes(b"\xff\xfe\x00")
    listed.write_text("[1]")
    for path, words in (
        (cut, "is broken"),
        (binary, "is not a text file"),
        (listed, "not a result"),
        (tmp_path / "no", "No such"),
    ):
        outcome = run("calibrate", str(path))
        assert outcome.status == 2 and words in outcome.err, outcome.err
    runs = table(tmp_path / "runs.csv", measured(machine(slowdown=1.3), *SEEN[1]))
    assert "results without a plan.json" in run("calibrate", runs, "--gpu", "h100").err
    assert run("calibrate", runs, "-o", runs).status == 2  # a table is not overwritten
    assert "there is no run" in run("calibrate").err and not kept().exists()


def test_runs_that_come_out_as_shipped_are_worth_knowing(tmp_path: Path) -> None:
    """To the last digit: nothing moves, and the intervals are narrower."""
    runs = table(tmp_path / "runs.csv", *(measured(machine(), *load, noise=0) for load in SEEN))
    found = json.loads(run("calibrate", runs, "--format", "json").out)
    assert found["kept"] and kept().exists()
    assert all(factor["after"] == pytest.approx(1, abs=0.01) for factor in found["factors"])
    assert found["width"]["after"] < found["width"]["left_out"] < 0.9 * found["width"]["before"]


def test_runs_that_contradict_each_other_teach_nothing_for_the_rest(tmp_path: Path) -> None:
    """Two machines, one twice as fast as shipped and one twice as slow, under one name."""
    runs = [measured(machine(slowdown=2.0 if i % 2 else 0.5), *load) for i, load in enumerate(SEEN)]
    outcome = run("calibrate", table(tmp_path / "runs.csv", *runs), "--format", "json")
    found = json.loads(outcome.out)
    assert outcome.status == 1 and not found["kept"] and not kept().exists()
    assert "did not see worse" in found["reason"]


@given(
    st.sampled_from(["mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "output_throughput"]), st.sampled_from([1e3, 1e-3])
)
def test_a_unit_that_is_a_thousand_off_never_passes(name: str, factor: float) -> None:
    # 8 requests at once, 128 tokens each: 0.1 s + 127 x 0.02 s = 2.64 s, so 8 x 128 / 2.64 s = 388 tokens/s
    good = {"mean_ttft_ms": 100.0, "mean_tpot_ms": 20.0, "mean_e2el_ms": 2640.0, "output_throughput": 388.0}
    one = replace(BASE, run_id="x", input_len=1024, output_len=128, max_concurrency=8, num_prompts=80, metrics=good)
    check_run(one)
    if (name, factor) == ("mean_ttft_ms", 1e-3):
        return  # a tenth of a millisecond: E2EL says nothing of so small a part
    with pytest.raises(InputError):
        check_run(replace(one, metrics={**good, name: good[name] * factor}))


def test_a_client_that_got_tokens_together_teaches_by_its_e2el_alone() -> None:
    """Seen on a busy machine: TTFT 195.6 ms, TPOT 2.93 ms on average and 0.003 ms in the median, E2EL 286.5 ms."""
    slower = machine(slowdown=1.3)
    runs = [measured(slower, *load) for load in SEEN]
    last = runs[0].metrics
    together = {"mean_tpot_ms": 0.0025, "median_tpot_ms": 0.0025, "mean_ttft_ms": last["mean_e2el_ms"] - 127 * 0.0025}
    runs[0] = replace(runs[0], metrics={**last, **together, "median_ttft_ms": together["mean_ttft_ms"]})
    found = calibrate(Sources(runs=tuple(runs)), Path("calibration.toml"))
    assert any("many tokens at once" in note for note in found.notes)
    kept_metrics = next(one for one in found.runs if one.run_id == runs[0].run_id).metrics
    assert set(kept_metrics) == {"output_throughput", "mean_e2el_ms"}
    # a TPOT in seconds does not add up to the E2EL
    seconds = replace(runs[1], metrics={**runs[1].metrics, "mean_tpot_ms": 0.008, "median_tpot_ms": 0.008})
    with pytest.raises(InputError):
        calibrate(Sources(runs=(seconds,)), Path("calibration.toml"))


def test_a_unit_that_nothing_in_the_run_contradicts_is_seen_beside_the_prediction(tmp_path: Path) -> None:
    """A batch of one token takes no 700 seconds: they are milliseconds."""
    one = MeasuredRun(
        "ms", "latency", "h100-sxm", MODEL, engine_version="0.11.0", input_len=128, output_len=128, batch_size=1
    )
    outcome = run("calibrate", table(tmp_path / "runs.csv", replace(one, metrics={"avg_latency_s": 700.0})))
    assert outcome.status == 2 and "ms: avg_latency_s is 700" in outcome.err and not kept().exists()


def test_runs_that_cannot_be_replayed_are_not_kept_and_replace_nothing(tmp_path: Path) -> None:
    good = [measured(machine(slowdown=1.3), *load) for load in SEEN]
    assert run("calibrate", table(tmp_path / "good.csv", *good)).status == 0
    before = kept().read_bytes()
    same_name = replace(good[0], gpu="h9000")
    outcome = run("calibrate", table(tmp_path / "bad.csv", same_name))
    assert outcome.status == 2 and "unknown GPU 'h9000'" in outcome.err and kept().read_bytes() == before
    more = replace(measured(machine(slowdown=1.3), 4, 512, 128), run_id="more")
    assert run("calibrate", table(tmp_path / "half.csv", same_name, more)).status == 0
    efficiency = read_local(kept()).efficiency
    assert efficiency is not None
    assert {one.run_id: one.gpu for one in runs_of(efficiency.runs, "")} == {
        one.run_id: "h100-sxm" for one in (*good, more)
    }


def test_one_name_for_two_runs_is_refused(tmp_path: Path) -> None:
    runs = [replace(measured(machine(), *load), run_id="same") for load in SEEN[:2]]
    outcome = run("calibrate", table(tmp_path / "runs.csv", *runs))
    assert outcome.status == 2 and "'same' names two different runs" in outcome.err and not kept().exists()


def test_the_total_throughput_alone_is_enough(tmp_path: Path) -> None:
    """``vllm bench throughput`` writes no other rate into its file; half of what is predicted is worth learning."""
    one = MeasuredRun("t", "throughput", "h100-sxm", MODEL, engine_version="0.11.0", input_len=512, output_len=128,
              arrival="offline", num_prompts=200)  # fmt: skip
    rate = figures_in_columns(case_of(one), simulate(case_of(one)))["total_token_throughput"] / 2
    answer = learn(tmp_path, replace(one, metrics={"total_token_throughput": rate}))
    assert answer.kept and mean_error(answer.after) < mean_error(answer.before)


def test_every_column_of_a_run_is_documented_by_its_name() -> None:
    assert set(replace(BASE, run_id="x", seed=1).record()) <= set(RUN_COLUMNS)
