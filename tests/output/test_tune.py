"""``planner tune`` on a machine whose docker is a stand-in: to its end, broken off in every way, and out of memory."""

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from script_plans import emission, plan
from tuned_machine import TunedMachine

from planner.errors import InputError
from planner.output.scripts.emission import render_scripts
from planner.output.scripts.folder import write_folder
from planner.output.tuning import Tuner
from planner.planning import SHIPPED
from planner.resources import alone_in


@pytest.fixture
def machine(tmp_path: Path) -> TunedMachine:
    return TunedMachine(tmp_path)


def tuned(machine: TunedMachine, said: list[str] | None = None, **budget: Any) -> Tuner:
    """The tuning inside this program."""
    tuner = Tuner(machine.plan, (said if said is not None else []).append)
    with machine.here():
        tuner.run(SHIPPED, **{"runs": None, "minutes": None, **budget})
    return tuner


def state_of(machine: TunedMachine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((machine.plan / "tune" / "state.json").read_text())
    return found


def each_once(machine: TunedMachine) -> bool:
    """Whether no setting was measured twice: its warm-up and its measurement name one result each."""
    return all(times == 1 for times in Counter(machine.results).values())


def test_it_ends_with_the_best_measured_plan(machine: TunedMachine) -> None:
    machine.set(best=16384)  # the plan itself has 8192
    done = machine.tune("--format", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    rates = [row["output_throughput_per_gpu"] for row in answer["settings"] if row["output_throughput_per_gpu"]]
    assert rates == sorted(rates, reverse=True) and answer["runs"] == len(rates) >= 2
    assert answer["probability_best"] >= 0.95
    best = Path(answer["best"])
    saved = json.loads((best / "plan.json").read_text())
    assert (saved["max_num_seqs"], saved["max_num_batched_tokens"]) == (1024, 16384), "what the machine is best at"
    assert (best / "launch.sh").exists() and (best / "results" / f"serve-{saved['digest']}.json").exists()
    assert each_once(machine) and not machine.serves
    assert "run 1: " in done.stderr and "tokens/s per GPU" in done.stderr
    if answer["calibration"]:
        assert Path(answer["calibration"]).read_text().startswith("# Calibration")
    machine.forget()
    again = machine.tune("--format", "json")
    assert json.loads(again.stdout) == answer and machine.docker("run") == [] and machine.results == []


def test_a_budget_ends_it_and_a_larger_one_goes_on(machine: TunedMachine) -> None:
    tuner = tuned(machine, runs=1)
    assert len(machine.results) == 1 and tuner.state.folders[tuner.state.runs[0].setting] == "."
    tuned(machine, runs=1)
    assert len(machine.results) == 1, "the budget counts earlier runs"
    done = machine.tune("--runs", "1")
    assert done.returncode == 1 and "the best is not known yet" in done.stderr
    tuned(machine, runs=2)
    assert len(machine.results) == 2 and each_once(machine)
    tuned(machine, minutes=1e-9)
    assert len(machine.results) == 2


def test_what_the_folder_has_measured_is_not_measured_again(machine: TunedMachine) -> None:
    assert machine.run("validate.sh").returncode == 0
    assert tuned(machine, runs=1).state.measured
    assert len(machine.results) == 1


def test_out_of_memory_is_a_result(machine: TunedMachine) -> None:
    machine.set(largest_batch=300)
    said: list[str] = []
    tuner = tuned(machine, said)
    out = tuner.state.out
    assert out and tuner.state.measured and all(tuner.plan(number).max_num_seqs > 300 for number in out)
    assert all(tuner.plan(number).max_num_seqs <= 300 for number in tuner.state.measured)
    assert any("CUDA out of memory" in reason for reason in out.values())
    assert any(reason.startswith("not tried: it needs no less memory") for reason in out.values())
    assert any(line.startswith("  out: does not fit: ") for line in said)
    assert tuner.state.standing.known >= 0.95 and not machine.serves


def test_where_nothing_fits_there_is_no_best(machine: TunedMachine) -> None:
    """The end of it: of all settings but the plan itself that is known."""
    machine.set(largest_batch=0)
    state = state_of(machine)
    out = [{"setting": number, "reason": "does not fit"} for number in range(1, len(state["folders"]))]
    (machine.plan / "tune" / "state.json").write_text(json.dumps({**state, "runs": out}))
    done = machine.tune()
    assert done.returncode == 1 and "nothing was measured in" in done.stdout and "Traceback" not in done.stderr


def test_a_machine_on_which_nothing_starts_is_said_so(machine: TunedMachine) -> None:
    machine.set(run_fails="")
    with pytest.raises(InputError, match="3 settings failed and none was measured"):
        tuned(machine)
    assert len(machine.docker("run")) == 3
    (machine.state / "run_fails").unlink()
    assert tuned(machine, retry=True, runs=1).state.measured


def test_a_machine_that_is_not_ready_is_no_result(machine: TunedMachine) -> None:
    machine.set(nvidia_down="")
    with pytest.raises(InputError, match=r"preflight\.sh"):
        tuned(machine)
    assert state_of(machine)["runs"] == [] and machine.docker("run") == []
    path = machine.plan / "tune" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "running": 1}))  # nor where a run goes on
    with pytest.raises(InputError, match=r"preflight\.sh"):
        tuned(machine)
    assert state_of(machine)["runs"] == [] and machine.docker("run") == []
    (machine.state / "nvidia_down").unlink()
    assert tuned(machine, runs=1).state.measured


def test_a_machine_is_checked_before_the_candidates_are_searched(machine: TunedMachine) -> None:
    machine.set(nvidia_down="")
    (machine.plan / "tune" / "state.json").unlink()
    said: list[str] = []
    with patch("planner.planning.tuned_settings") as search, pytest.raises(InputError, match=r"preflight\.sh"):
        tuned(machine, said)
    assert not search.called and said == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_break_stops_the_server_and_is_gone_on_from(machine: TunedMachine, how: signal.Signals) -> None:
    machine.set(slow="")
    status, printed = machine.killed(how)
    assert machine.idle(), "the server is stopped, whatever ended planner"
    if how == signal.SIGINT:
        assert status == 130 and "Traceback" not in printed and "error: interrupted" in printed
    assert state_of(machine)["runs"] == []
    (machine.state / "slow").unlink()
    machine.forget()
    tuned(machine, runs=1)
    assert len(machine.results) == 1 and not machine.serves and len(state_of(machine)["runs"]) == 1


def test_a_server_that_a_dead_script_left_is_measured_and_stopped(machine: TunedMachine) -> None:
    """kill -9 of everything: planner, its script, and the client."""
    machine.set(slow="")
    tuner = Tuner(machine.plan, lambda _: None)
    child = os.fork()
    if not child:
        try:
            os.setsid()
            with machine.here():
                tuner.run(SHIPPED, runs=1, minutes=None)
        finally:
            os._exit(0)
    script = machine.wait_for_process()
    os.kill(child, signal.SIGSTOP)  # planner can neither tell the script anything nor note its end
    os.killpg(script, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert machine.serves, "docker holds it, and nobody is left to stop it"
    (machine.state / "slow").unlink()
    machine.forget()
    tuned(machine, runs=1)
    assert machine.docker("run") == [], "the server that runs is the one to measure"
    assert len(machine.results) == 1 and not machine.serves


def test_scripts_that_lost_their_permissions_are_said_so(machine: TunedMachine) -> None:
    (machine.plan / "preflight.sh").chmod(0o644)
    with pytest.raises(InputError, match=r"preflight\.sh: Permission denied") as error:
        tuned(machine)
    assert "chmod" in error.value.hint


@pytest.mark.parametrize("changed", [{"mean": 1e5}, {"covariance": 2.0**53}])
def test_a_state_with_numbers_of_no_machine_is_refused(machine: TunedMachine, changed: dict[str, float]) -> None:
    path = machine.plan / "tune/state.json"
    state = json.loads(path.read_text())
    for name, value in changed.items():
        row = state[name][-1] if name == "covariance" else state[name]
        row[-1] = value
    path.write_text(json.dumps(state))
    with pytest.raises(InputError, match="its numbers are of no machine") as error:
        tuned(machine)
    assert "remove that folder" in error.value.hint


def test_two_do_not_tune_one_folder(machine: TunedMachine) -> None:
    with alone_in(machine.plan), pytest.raises(InputError, match="another planner tune works in"):
        tuned(machine)


def test_what_breaks_a_target_as_measured_is_not_the_best(tmp_path: Path) -> None:
    """The token budget of the plan is fastest on this machine, and its p95 TPOT more than twice what it may be."""
    machine = TunedMachine(tmp_path, targets=True)
    budget = json.loads((machine.plan / "plan.json").read_text())["max_num_batched_tokens"]
    machine.set(late=str(budget))
    done = machine.tune("--format", "json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and answer["targets"] == [{"metric": "p95_tpot_ms", "limit_ms": 50.0}]
    best = json.loads((Path(answer["best"]) / "plan.json").read_text())
    assert best["max_num_batched_tokens"] != budget
    assert best["workload"]["max_concurrency"] == 64, "every setting gets the load of the plan"
    rows = {row["folder"]: row for row in answer["settings"]}
    own = rows[str(machine.plan.resolve())]
    assert own["reason"].startswith("breaks p95 TPOT of 50 ms by ") and own["behind"] is None
    kept = [row for row in rows.values() if row["output_throughput_per_gpu"] and not row["reason"]]
    assert max(row["output_throughput_per_gpu"] for row in kept) == rows[answer["best"]]["output_throughput_per_gpu"]
    assert own["output_throughput_per_gpu"] > rows[answer["best"]]["output_throughput_per_gpu"]
    assert each_once(machine) and "breaks p95 TPOT" in done.stderr


def test_where_no_setting_keeps_the_targets_there_is_no_best(tmp_path: Path) -> None:
    machine = TunedMachine(tmp_path, targets=True)
    machine.set(late="all")
    done = machine.tune("--runs", "2")
    assert done.returncode == 1
    assert "no measured setting meets p95 TPOT of 50 ms after 2 runs" in " ".join(done.stdout.split())


def test_targets_that_the_benchmark_cannot_tell_are_refused(tmp_path: Path) -> None:
    from planner.planning.plan import PlannedTarget, Service

    service = Service(targets=(), request_rate=1.0, replicas=1, total_gpus=1, packages=1, goodput=1.0)
    of_80 = PlannedTarget(metric="p80_ttft_ms", limit_ms=1000, predicted_ms=100, expected_ms=200, met=True)
    for name, changes, cause in (
        ("routed", {"router": "prefix-aware", "prefix_cache_share": 0.3}, "its benchmark sends random ones"),
        ("p80", {"targets": (of_80,)}, "the benchmark does not measure p80_ttft_ms"),
    ):
        made = plan(service=service.model_copy(update=changes))
        write_folder(tmp_path / name, render_scripts(emission(made)), force=False)
        with pytest.raises(InputError, match=cause), patch.object(Tuner, "_check"):
            Tuner(tmp_path / name, lambda _: None).run(SHIPPED, runs=None, minutes=None)


def test_a_folder_without_a_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"plan\.json: no such file"):
        Tuner(tmp_path, lambda _: None)
