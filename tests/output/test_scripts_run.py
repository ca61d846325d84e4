"""The emitted scripts at work: real bash on a machine whose docker, GPUs and driver are stand-ins."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from script_machine import Machine, files_below, mounts_of, prepared, values_of, variables_of
from script_plans import GOLDEN, MATRIX, emission, plan, serve

from planner.output.scripts.emission import Emission, container_name

MakeMachine = Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path) -> MakeMachine:
    """A machine for one of the plans."""
    return partial(prepared, tmp_path)


def result_of(made: Emission, machine: Machine) -> Path:
    return machine.plan / "results" / made.file.plan.result_names[-1]


# --- launch ---


@pytest.mark.parametrize("name", MATRIX)
def test_launch_runs_exactly_the_plan(machine: MakeMachine, tmp_path: Path, name: str) -> None:
    here, saved = machine(name), MATRIX[name].file.plan
    done = here.run("launch.sh", HF_TOKEN="secret", VLLM_API_KEY="secret", HF_HOME=f"{tmp_path}/with space/hf")
    assert done.returncode == 0, done.stderr
    (run,) = here.docker("run")
    at = run.index(saved.image)
    assert (run[run.index("--entrypoint") + 1], *run[at + 1 :]) == saved.serve_argv
    assert {"HF_TOKEN", "VLLM_API_KEY"} <= set(variables_of(run))
    assert not any("secret" in word for word in run)
    chosen_at_start = {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}
    for variable, value in saved.env.items():
        assert f"{variable}={value}" in variables_of(run) or variable in chosen_at_start
    # the cache of the host is the cache in the container
    assert variables_of(run)[-1] == "HF_HOME=/huggingface"
    mounts = {f"{tmp_path}/with space/hf": "/huggingface", f"{here.plan}/results": "/results"}
    folder = {saved.model: f"{saved.model}:ro"} if saved.model.startswith("/") else {}
    assert mounts_of(run) == mounts | folder
    assert "ready: http://127.0.0.1:8000/v1" in done.stdout


def test_each_platform_gets_its_devices(machine: MakeMachine) -> None:
    here = machine("mi300x-cpx-nps4")
    here.run("launch.sh")
    here.run("launch.sh")
    assert len(here.docker("run")) == 1, "what runs already is not started again"
    (run,) = here.docker("run")
    assert {"/dev/kfd", "/dev/dri", "video"} <= set(run)
    assert "HIP_VISIBLE_DEVICES=0" in variables_of(run)


def test_a_partition_can_be_chosen(machine: MakeMachine) -> None:
    here = machine("mi300x-cpx-nps4")
    here.run("launch.sh", DEVICE="7", PORT="8007")
    (run,) = here.docker("run")
    assert [word for word in variables_of(run) if word.startswith("HIP_")] == ["HIP_VISIBLE_DEVICES=7"]
    assert run[run.index("--publish") + 1] == "127.0.0.1:8007:8000"


@pytest.mark.parametrize(
    ("name", "variables", "devices"),
    [
        ("b200-x2", {}, ["2"]),  # docker takes the first two
        ("b200-x2", {"CUDA_VISIBLE_DEVICES": "2,3"}, ['"device=2,3"']),
        ("b200-x2", {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, ['"device=4,5"']),  # as CUDA would
        ("b200-x2", {"CUDA_VISIBLE_DEVICES": "4,5", "DEVICE": "GPU-1a,GPU-2b"}, ['"device=GPU-1a,GPU-2b"']),
        ("b200-x2", {"CUDA_VISIBLE_DEVICES": ""}, ["2"]),
        ("mi355x", {}, ["HIP_VISIBLE_DEVICES=0"]),
        ("mi355x", {"HIP_VISIBLE_DEVICES": "5,6"}, ["HIP_VISIBLE_DEVICES=5"]),
        ("mi355x", {"CUDA_VISIBLE_DEVICES": "3"}, ["HIP_VISIBLE_DEVICES=3"]),  # ROCm reads it too
        ("mi355x", {"ROCR_VISIBLE_DEVICES": "6"}, ["HIP_VISIBLE_DEVICES=0"]),  # HIP counts from there
        ("mi355x", {"DEVICE": "2", "HIP_VISIBLE_DEVICES": "5"}, ["HIP_VISIBLE_DEVICES=2"]),
        ("mi300x-cpx-nps4", {"HIP_VISIBLE_DEVICES": "9"}, ["HIP_VISIBLE_DEVICES=9"]),
        ("h100-mig", {"CUDA_VISIBLE_DEVICES": "MIG-ab,MIG-cd"}, ["device=MIG-ab"]),
        ("h100-mig", {"CUDA_VISIBLE_DEVICES": "0"}, ["device=MIG-0-0"]),  # the GPU that is cut is no instance
    ],
)
def test_the_gpus_that_somebody_chose_are_taken(
    machine: MakeMachine, name: str, variables: dict[str, str], devices: list[str]
) -> None:
    here = machine(name)
    done = here.run("launch.sh", **variables)
    assert done.returncode == 0, done.stderr
    (run,) = here.docker("run")
    given = values_of(run, "--gpus") or [word for word in variables_of(run) if word.startswith("HIP_")]
    assert given == devices
    assert ("ROCR_VISIBLE_DEVICES" in variables_of(run)) is (name.startswith("mi"))  # by name: where it is set


@pytest.mark.parametrize("variable", ["DEVICE", "CUDA_VISIBLE_DEVICES"])
def test_fewer_gpus_than_the_plan_takes_are_refused(machine: MakeMachine, variable: str) -> None:
    here = machine("b200-x2")
    done = here.run("launch.sh", **{variable: "3"})
    assert (
        done.returncode == 1
        and "the plan needs 2 GPUs, but DEVICE or a VISIBLE_DEVICES variable names only 3" in done.stderr
    )
    assert here.docker("run") == []
    checked = here.run("preflight.sh", **{variable: "3"})
    assert checked.returncode == 1 and "names 3, 2 GPUs needed" in checked.stdout


def test_a_mig_instance_is_given_to_docker_not_to_vllm(machine: MakeMachine) -> None:
    """vLLM reads CUDA_VISIBLE_DEVICES as integers and fails on the UUID of an instance (its issue 41848)."""
    here = machine("h100-mig")
    here.run("launch.sh")
    (run,) = here.docker("run")
    assert values_of(run, "--gpus") == ["device=MIG-0-0"]
    assert not any("CUDA_VISIBLE_DEVICES" in word for word in run)
    here.set_nvidia("list", ["GPU 0: whole (UUID: GPU-0)"])
    here.stop()
    none = here.run("launch.sh")
    assert none.returncode == 1 and "partition.sh --apply" in none.stderr


def test_a_local_model_is_mounted_read_only(machine: MakeMachine) -> None:
    here = machine("local-folder")
    here.run("launch.sh")
    (run,) = here.docker("run")
    assert mounts_of(run)["/models/my llama"] == "/models/my llama:ro"
    assert run[run.index("--publish") + 1] == "127.0.0.1:8000:9000"


def test_a_relative_model_cache_is_mounted_by_its_full_path(machine: MakeMachine) -> None:
    """docker takes a relative path for the name of a volume."""
    here = machine()
    here.run("launch.sh", HF_HOME="models")
    (run,) = here.docker("run")
    assert mounts_of(run)[f"{here.home}/models"] == "/huggingface"


def test_paths_with_colons_commas_and_quotes_are_mounted(tmp_path: Path) -> None:
    """``--volume`` splits at a colon: docker then refuses it, or mounts another folder."""
    folder = '/models/a:b, "c"'
    made = plan(model=folder, requested_model=folder, serve_argv=serve(folder, port="9000"))
    here = Machine(tmp_path / "host,1", emission(made))  # a colon would end a folder of PATH
    home = f'{here.home}/hf:ro,"x"'
    assert here.run("launch.sh", HF_HOME=home).returncode == 0
    (run,) = here.docker("run")
    assert mounts_of(run) == {home: "/huggingface", f"{here.plan}/results": "/results", folder: f"{folder}:ro"}


def test_a_server_that_dies_is_reported_with_its_log(machine: MakeMachine) -> None:
    here = machine()
    here.set(fails="")
    failed = here.run("launch.sh")
    assert failed.returncode == 1
    assert "stopped before it answered" in failed.stderr and "a line of the server's log" in failed.stderr
    assert here.docker("stop") == [["0123abcd-full"]], "what this run created, by its id"


def test_a_server_that_never_answers_is_stopped_only_by_who_started_it(machine: MakeMachine) -> None:
    here = machine()
    here.set(unhealthy="")
    failed = here.run("launch.sh", START_TIMEOUT_S="0")
    assert failed.returncode == 1 and "START_TIMEOUT_S" in failed.stderr
    assert here.docker("stop") == [["0123abcd-full"]]
    here.forget()
    here.serve()  # somebody else's, or an earlier launch's
    assert here.run("launch.sh", START_TIMEOUT_S="0").returncode == 1
    assert here.docker("stop") == []


def test_a_container_that_does_not_start_leaves_nothing_running(machine: MakeMachine) -> None:
    here = machine()
    here.set(run_fails="")
    failed = here.run("launch.sh")
    assert failed.returncode == 125 and "port is already allocated" in failed.stderr
    (here.state / "run_fails").unlink()
    assert here.run("launch.sh").returncode == 0, "the same command goes on"


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_launch_stops_its_container(machine: MakeMachine, how: signal.Signals, status: int) -> None:
    here = machine()
    here.set(unhealthy="", waiting_is_real="")
    # bash drops a SIGINT when the command it waits for ends by itself, so Ctrl-C meets the script in its pause
    returned, _ = here.interrupt("launch.sh", "asleep", how)
    assert returned == status
    assert here.docker("stop") == [["0123abcd-full"]] and not here.containers


# --- benchmark ---


@pytest.mark.parametrize("name", GOLDEN)
def test_benchmark_sends_exactly_the_planned_load(machine: MakeMachine, name: str) -> None:
    here, made = machine(name), MATRIX[name]
    assert here.run("benchmark.sh").returncode == 1, "no server, no measurement"
    assert here.docker("exec") == []
    here.run("launch.sh")
    assert here.run("benchmark.sh").returncode == 0
    warm_up, sent = here.docker("exec")
    # with the key of the server in the container, `vllm bench serve` sends it as OPENAI_API_KEY
    inside = [*sent[sent.index("sh") :][:4], str(here.state / "pid"), "printenv", "OPENAI_API_KEY"]
    assert subprocess.check_output(inside, env={**os.environ, "VLLM_API_KEY": "key"}) == b"key\n"
    assert container_name(made.file.plan) in sent
    start = sent.index("sh") + 5  # sh -c '...' sh PID_FILE
    words = sent[start:]
    assert values_of(warm_up, "--num-prompts") == ["8"] and "--save-result" not in warm_up
    assert tuple(words[: len(made.file.plan.bench_argv)]) == made.file.plan.bench_argv
    assert json.loads(result_of(made, here).read_text())["completed"] == made.file.plan.workload.num_prompts
    assert [p.name for p in (here.plan / "results").iterdir()] == [made.file.plan.result_names[-1]]


def test_the_log_of_the_load_lies_beside_its_result(machine: MakeMachine) -> None:
    """``launch.sh`` kept the start-up only; preemptions and hits in the cache come under the load."""
    here = machine()
    here.run("launch.sh")
    (here.plan / "logs" / "server.log").unlink()
    assert here.run("benchmark.sh").returncode == 0
    assert "a line of the server's log" in (here.plan / "logs" / "server.log").read_text()


def test_a_result_is_kept_unless_forced(machine: MakeMachine) -> None:
    here = machine()
    here.run("launch.sh")
    here.run("benchmark.sh")
    again = here.run("benchmark.sh")
    assert again.returncode == 0 and "already measured" in again.stdout and len(here.docker("exec")) == 2
    assert here.run("benchmark.sh", FORCE="1").returncode == 0 and len(here.docker("exec")) == 4


def test_a_server_is_never_measured_with_prompts_that_it_has_seen(machine: MakeMachine) -> None:
    """Its prefix cache would answer for it. A repetition, after an interruption too, takes the next seed."""
    here = machine()

    def measured() -> list[str]:
        assert here.run("benchmark.sh", FORCE="1").returncode == 0
        return values_of(here.docker("exec")[-1], "--seed")[-1:]

    here.run("launch.sh")
    assert [measured(), measured(), measured()] == [["0"], ["1"], ["2"]]
    here.run("launch.sh")
    assert measured() == ["3"], "the same server"
    here.stop()
    here.run("launch.sh")
    assert measured() == ["0"], "a new server has seen nothing"


@pytest.mark.parametrize(
    ("broken", "status", "said"),
    [({"bench_fails": ""}, 7, "ended with status 7"), ({"completed": 319}, 1, "319 of 320 requests completed")],
)
def test_a_failed_measurement_leaves_no_result(
    machine: MakeMachine, broken: dict[str, object], status: int, said: str
) -> None:
    here = machine()
    here.run("launch.sh")
    here.set(**broken)
    failed = here.run("benchmark.sh")
    assert failed.returncode == status and said in failed.stderr
    assert not result_of(MATRIX["mi355x"], here).exists()
    assert here.containers, "the server is not the benchmark's to stop"


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_measurement_stops_its_client_and_can_be_repeated(
    machine: MakeMachine, how: signal.Signals, status: int
) -> None:
    here = machine()
    here.run("launch.sh")
    here.set(slow="")
    returned, said = here.interrupt("benchmark.sh", "benchmarking", how)
    assert returned == status and "same command" in said
    # docker exec passes no signal on, so the client inside is ended through its process id
    *_, ending = here.docker("exec")
    assert ending[-1] == "/results/.client.pid" and "kill" in ending[-3]
    assert here.docker("stop") == []
    assert not result_of(MATRIX["mi355x"], here).exists()
    (here.state / "slow").unlink()
    assert here.run("benchmark.sh").returncode == 0


# --- accuracy ---


def test_accuracy_asks_the_server_of_the_plan(machine: MakeMachine) -> None:
    here = machine()
    here.run("launch.sh", PORT="8123")
    here.set(lm_eval_fails="")
    assert here.run("accuracy.sh").returncode != 0
    assert not list((here.plan / "results").glob("accuracy-*[!l]")), "a failed run leaves no result"
    (here.state / "lm_eval_fails").unlink()
    done = here.run("accuracy.sh")
    assert done.returncode == 0 and "0.9052" in done.stdout
    assert len(here.calls("pip")) == 2, "installed and imported once"
    called = here.calls("lm_eval")[-1]
    assert called[called.index("--tasks") + 1] == "gsm8k"
    arguments = json.loads(called[called.index("--model_args") + 1])
    assert arguments["model"] == "amd/Llama-3.3-70B-Instruct-FP8-KV"
    assert arguments["base_url"] == "http://127.0.0.1:8123/v1/completions"
    here.forget()
    assert "already measured" in here.run("accuracy.sh").stdout and here.calls("lm_eval") == []


def test_accuracy_uses_no_environment_that_cannot_be_imported(machine: MakeMachine) -> None:
    here = machine()
    here.run("launch.sh")
    here.set(import_fails="")
    assert here.run("accuracy.sh").returncode != 0 and here.calls("lm_eval") == []
    assert not (here.plan / ".lm_eval/complete").exists()
    (here.state / "import_fails").unlink()
    (here.plan / ".lm_eval/complete").touch()  # as an earlier version left it
    (here.plan / ".lm_eval/old").touch()
    here.forget()
    assert here.run("accuracy.sh").returncode == 0
    install, imports = here.calls("pip")
    assert {"lm-eval[api]==0.4.13", "transformers==5.19.0"} <= set(install) and "lm_eval" in imports[-1]
    assert not (here.plan / ".lm_eval/old").exists(), "made anew"
    here.forget()
    assert here.run("accuracy.sh", FORCE="1").returncode == 0 and here.calls("pip") == []


def test_accuracy_names_the_package_that_is_missing(machine: MakeMachine) -> None:
    here = machine()
    here.run("launch.sh")
    here.set(no_venv="")
    done = here.run("accuracy.sh")
    assert done.returncode == 1 and "apt-get install python3-venv" in done.stderr


def test_accuracy_says_when_the_context_is_too_short(machine: MakeMachine) -> None:
    here = machine("short-context")
    here.run("launch.sh")
    done = here.run("accuracy.sh")
    assert done.returncode == 1 and "1024 tokens is too short for gsm8k" in done.stderr


# --- validate ---


def test_a_server_of_the_other_line_is_not_taken_for_the_planned_one(machine: MakeMachine) -> None:
    """Drafts of the benchmark line are accepted at random: the texts of its server are worthless."""
    here = machine("benchmark-line")
    assert here.run("launch.sh", "--benchmark").returncode == 0
    for script in ("launch.sh", "accuracy.sh"):
        done = here.run(script)
        assert done.returncode == 1 and "benchmark line" in done.stderr and "docker stop" in done.stderr
    assert here.run("launch.sh", "--benchmark").returncode == here.run("validate.sh").returncode == 0
    assert len(here.docker("run")) == 1
    here.run("validate.sh", FORCE="1", STOP="1")
    assert here.run("launch.sh").returncode == 0
    for script, *options in (("launch.sh", "--benchmark"), ("validate.sh",)):
        done = here.run(script, *options, FORCE="1")
        assert done.returncode == 1 and "serving line" in done.stderr
    assert len(here.docker("run")) == 2


def test_validate_starts_measures_and_stops(machine: MakeMachine) -> None:
    here = machine()
    done = here.run("validate.sh")
    assert done.returncode == 0, done.stderr
    assert result_of(MATRIX["mi355x"], here).exists() and str(here.plan / "plan.json") in done.stdout
    assert len(here.docker("run")) == len(here.docker("stop")) == 1
    here.forget()
    assert here.run("validate.sh").returncode == 0 and here.docker("run") == [], "what is done is not done twice"


def test_validate_leaves_a_server_that_it_has_not_started(machine: MakeMachine) -> None:
    here = machine()
    here.run("launch.sh")
    here.forget()
    assert here.run("validate.sh").returncode == 0
    assert here.docker("run") == here.docker("stop") == []
    assert here.run("validate.sh", FORCE="1", KEEP="1").returncode == 0


def test_validate_keeps_its_server_when_asked_to(machine: MakeMachine) -> None:
    here = machine()
    assert here.run("validate.sh", KEEP="1").returncode == 0
    assert len(here.docker("run")) == 1 and here.docker("stop") == []


def test_validate_stops_at_the_first_failure(machine: MakeMachine) -> None:
    here = machine()
    (here.fake_root / "dev/kfd").unlink()
    assert here.run("validate.sh").returncode == 1
    assert here.docker("run") == []
    (here.fake_root / "dev/kfd").touch()
    here.set(bench_fails="")
    assert here.run("validate.sh").returncode == 7
    assert len(here.docker("stop")) == 1, "a failed measurement does not leave the server behind"


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_validation_stops_what_it_started(
    machine: MakeMachine, how: signal.Signals, status: int
) -> None:
    here = machine()
    here.set(slow="")
    returned, _ = here.interrupt("validate.sh", "benchmarking", how)
    assert returned == status
    assert len(here.docker("stop")) == 1 and not here.containers
    assert [call[-1] for call in here.docker("exec") if "kill" in call[-3]] == ["/results/.client.pid"]


def test_nothing_is_written_outside_the_plan_and_the_model_cache(machine: MakeMachine) -> None:
    here = machine()
    before = files_below(here.home)
    for script in ("preflight.sh", "validate.sh", "launch.sh", "benchmark.sh", "accuracy.sh"):
        assert here.run(script, HF_TOKEN="secret-token").returncode == 0
    assert files_below(here.home) == before
    assert not any(b"secret-token" in content for content in files_below(here.plan).values())
