"""The emitted scripts at work: real bash on a machine whose docker, GPUs and driver are stand-ins."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from script_machine import Machine, variables_of
from script_plans import GOLDEN, MATRIX, emission, plan

from planner.scripts import Emission, container_name, result_name

MakeMachine = Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path) -> MakeMachine:
    """A machine for one of the plans."""

    def make(name: str = "mi355x", **options: int) -> Machine:
        made = Machine(tmp_path, MATRIX[name], **options)
        if (made.plan / "partition.sh").exists():
            assert made.run("partition.sh", "--apply").returncode == 0
            made.forget()
        return made

    return make


def result_of(made: Emission, machine: Machine) -> Path:
    return machine.plan / "results" / result_name(made.file)


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- launch ---


@pytest.mark.parametrize("name", MATRIX)
def test_launch_runs_exactly_the_plan(machine: MakeMachine, tmp_path: Path, name: str) -> None:
    here, saved = machine(name), MATRIX[name].file.plan
    done = here.run("launch.sh", HF_TOKEN="secret-token", HF_HOME=f"{tmp_path}/with space/hf")
    assert done.returncode == 0, done.stderr
    (run,) = here.docker("run")
    at = run.index(saved.image)
    assert (run[run.index("--entrypoint") + 1], *run[at + 1 :]) == saved.serve_argv
    assert "HF_TOKEN" in variables_of(run)
    assert not any("secret-token" in word for word in run)
    for variable, value in saved.env.items():
        assert f"{variable}={value}" in variables_of(run)
    # the cache of the host is the cache in the container
    assert variables_of(run)[-1] == "HF_HOME=/huggingface"
    assert f"{tmp_path}/with space/hf:/huggingface" in run
    assert f"{here.plan}/results:/results" in run
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
    assert "HIP_VISIBLE_DEVICES=7" in variables_of(run)
    assert run[run.index("--publish") + 1] == "127.0.0.1:8007:8000"


def test_a_mig_instance_is_given_to_docker_not_to_vllm(machine: MakeMachine) -> None:
    """vLLM reads CUDA_VISIBLE_DEVICES as integers and fails on the UUID of an instance (its issue 41848)."""
    here = machine("h100-mig")
    here.run("launch.sh")
    (run,) = here.docker("run")
    assert [after for word, after in zip(run, run[1:], strict=False) if word == "--gpus"] == ["device=MIG-0-0"]
    assert not any("CUDA_VISIBLE_DEVICES" in word for word in run)
    here.set_nvidia("list", ["GPU 0: whole (UUID: GPU-0)"])
    (here.state / "running").unlink()
    none = here.run("launch.sh")
    assert none.returncode == 1 and "partition.sh --apply" in none.stderr


def test_a_local_model_is_mounted_read_only(machine: MakeMachine) -> None:
    here = machine("local-folder")
    here.run("launch.sh")
    (run,) = here.docker("run")
    assert "/models/my llama:/models/my llama:ro" in run
    assert run[run.index("--publish") + 1] == "127.0.0.1:8000:9000"


def test_a_server_that_dies_is_reported_with_its_log(machine: MakeMachine) -> None:
    here = machine()
    here.set(dies="")
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
    here.set(running="")  # somebody else's, or an earlier launch's
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
    here.set(unhealthy="")
    # with the stand-in for sleep the script polls without a pause, so the signal meets it between two commands
    returned, _ = here.interrupt("launch.sh", "running", how)
    assert returned == status
    assert here.docker("stop") == [["0123abcd-full"]] and not (here.state / "running").exists()


# --- preflight ---


@pytest.mark.parametrize("name", MATRIX)
def test_preflight_is_content_and_changes_nothing(machine: MakeMachine, name: str) -> None:
    here = machine(name)
    before = files_below(here.plan), files_below(here.home), files_below(here.fake_root)
    done = here.run("preflight.sh", HF_TOKEN="token")
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("ready\n") and "FAIL" not in done.stdout
    assert (files_below(here.plan), files_below(here.home), files_below(here.fake_root)) == before
    assert {call[0] for call in here.calls("docker")} <= {"info", "image", "ps"}
    assert not (here.home / ".cache").exists()
    assert here.calls("sudo") == here.calls("amd-smi") == here.calls("modprobe") == []


BROKEN: list[tuple[str, Callable[[Machine], object], str, str]] = [
    ("mi355x", lambda m: m.program(m.bin / "docker", "#!/bin/bash\nexit 1\n"), "docker does not answer", "install docker"),
    ("mi355x", lambda m: (m.state / "image").unlink(), "is not present", "docker pull rocm/vllm-dev:nightly"),
    ("mi355x", lambda m: (m.bin / "curl").unlink(), "curl is missing", "install curl"),
    ("mi355x", lambda m: (m.fake_root / "dev/kfd").unlink(), "kfd is missing", "modprobe amdgpu"),
    ("mi355x", lambda m: m.keep_packages(1, gfx=90402),
     "0 GPUs gfx950, 1 needed", "it has: 90402"),
    ("mi300x-x8", lambda m: m.keep_packages(3), "3 GPUs gfx942, 8 needed", "run this on a machine that has them"),
    ("mi355x", lambda m: m.fake_all("current_compute_partition", "CPX"), "partitioned as CPX/NPS1", "--compute-partition SPX"),
    ("mi355x", lambda m: m.fake_all("mem_info_vram_used", 200 * 2**30), "MiB free, the server takes", "amd-smi process"),
    ("mi355x", lambda m: m.fake_all("mem_info_vram_total", 192 * 2**30), "the plan is for", "plan again"),
    ("mi355x", lambda m: m.fake("/proc/sys/kernel/numa_balancing", "1"), "NUMA balancing is on", "kernel.numa_balancing=0"),
    ("mi300x-cpx-nps4", lambda m: m.fake_all("current_memory_partition", "NPS1"),
     "partitioned as CPX/NPS1, the plan is for CPX/NPS4", "partition.sh"),
    ("b200-x2", lambda m: m.set(nvidia_down=""), "nvidia-smi does not answer", "575 or newer"),
    ("b200-x2", lambda m: m.set(docker_info="Kernel Version: 6.8-nvidia"), "cannot reach NVIDIA GPUs", "Container Toolkit"),
    ("b200-x2", lambda m: m.set_nvidia("compute_cap", ["10.0", "9.0"]), "1 GPUs of compute capability 10.0, 2 needed",
     "run this on a machine"),
    ("b200-x2", lambda m: m.set_nvidia("mig.mode.current", ["Disabled", "Enabled"]), "MIG instances", "-mig 0"),
    ("b200-x2", lambda m: m.set_nvidia("index,memory.total,memory.free", ["0, 183359, 183000", "1, 183359, 90000"]),
     "GPU 1 has 90000 MiB free", "nvidia-smi shows"),
    ("b200-x2", lambda m: m.set_nvidia("index,memory.total,memory.free", ["0, 81559, 81000"]),
     "GPU 0 has 81559 MiB, the plan is for", "plan again"),
    ("h100-mig", lambda m: m.set_nvidia("list", ["GPU 0: H100 (UUID: GPU-0)", "  MIG 1g.10gb Device 0: (UUID: MIG-x)"]),
     "0 MIG instances 3g.40gb", "partition.sh"),
    ("h100-mig", lambda m: m.set_nvidia("compute_cap", ["8.0"]), "no GPU of compute capability 9.0", "run this on"),
    ("local-folder", lambda m: (m.fake_root / "models/my llama/config.json").unlink(), "there is no model in", "copy it"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "breaking", "cause", "fix"), BROKEN, ids=[f"{b[0]}-{b[2][:20]}" for b in BROKEN])
def test_preflight_names_what_is_broken_and_how_to_mend_it(
    machine: MakeMachine, name: str, breaking: Callable[[Machine], object], cause: str, fix: str
) -> None:
    here = machine(name)
    breaking(here)
    done = here.run("preflight.sh", HF_TOKEN="token")
    assert done.returncode == 1 and not done.stdout.endswith("ready\n")
    failed = [(line, after) for line, after in zip(done.stdout.splitlines(), done.stdout.splitlines()[1:], strict=False)
              if line.startswith("FAIL")]  # fmt: skip
    assert any(cause in line and fix in after for line, after in failed), done.stdout + done.stderr
    assert f"not ready: {len(failed)} of the checks failed" in done.stderr


def test_preflight_looks_at_disk_port_and_token(machine: MakeMachine) -> None:
    here = machine("h100-gated", free_gb=10)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = here.run("preflight.sh", PORT=port, HF_HOME="/a:b")
    for cause in ("10 GB free in /, 73 GB to download", f"port {port} is taken", "is gated and HF_TOKEN is not set",
                  "with a colon in its path"):  # fmt: skip
        assert f"FAIL  {cause}" in done.stdout or cause in done.stdout, done.stdout
    assert done.returncode == 1 and "not ready: 4 of" in done.stderr


def test_a_model_on_disk_needs_neither_space_nor_token(machine: MakeMachine) -> None:
    here = machine("h100-gated", free_gb=1)
    cache = here.home / ".cache/huggingface/hub/models--nvidia--Llama-3.3-70B-Instruct-FP4"
    cache.mkdir(parents=True)
    here.program(here.bin / "du", "#!/bin/bash\nprintf '71500000\\t.'\n")  # KiB: 73.2 GB
    done = here.run("preflight.sh")
    assert done.returncode == 0, done.stdout
    assert "none is needed: the model is on disk" in done.stdout


def test_preflight_is_ready_where_the_plan_is_being_served(machine: MakeMachine) -> None:
    here = machine()
    here.run("launch.sh")
    done = here.run("preflight.sh")
    assert done.returncode == 0 and "already running" in done.stdout


# --- benchmark ---


@pytest.mark.parametrize("name", GOLDEN)
def test_benchmark_sends_exactly_the_planned_load(machine: MakeMachine, name: str) -> None:
    here, made = machine(name), MATRIX[name]
    assert here.run("benchmark.sh").returncode == 1, "no server, no measurement"
    assert here.docker("exec") == []
    here.run("launch.sh")
    assert here.run("benchmark.sh").returncode == 0
    (sent,) = here.docker("exec")
    assert container_name(made.file) in sent
    start = sent.index("sh") + 5  # sh -c '...' sh PID_FILE
    words = sent[start:]
    assert tuple(words[: len(made.file.plan.bench_argv)]) == made.file.plan.bench_argv
    assert json.loads(result_of(made, here).read_text())["completed"] == made.file.plan.workload.num_prompts
    assert [p.name for p in (here.plan / "results").iterdir()] == [result_name(made.file)]


def test_a_result_is_kept_unless_forced(machine: MakeMachine) -> None:
    here = machine()
    here.run("launch.sh")
    here.run("benchmark.sh")
    again = here.run("benchmark.sh")
    assert again.returncode == 0 and "already measured" in again.stdout and len(here.docker("exec")) == 1
    assert here.run("benchmark.sh", FORCE="1").returncode == 0 and len(here.docker("exec")) == 2


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
    assert (here.state / "running").exists(), "the server is not the benchmark's to stop"


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
    _, ending = here.docker("exec")
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
    assert len(here.calls("pip")) == 1, "installed once"
    called = here.calls("lm_eval")[-1]
    assert called[called.index("--tasks") + 1] == "gsm8k"
    arguments = json.loads(called[called.index("--model_args") + 1])
    assert arguments["model"] == "amd/Llama-3.3-70B-Instruct-FP8-KV"
    assert arguments["base_url"] == "http://127.0.0.1:8123/v1/completions"
    here.forget()
    assert "already measured" in here.run("accuracy.sh").stdout and here.calls("lm_eval") == []


def test_accuracy_says_when_the_context_is_too_short(machine: MakeMachine) -> None:
    here = machine("short-context")
    here.run("launch.sh")
    done = here.run("accuracy.sh")
    assert done.returncode == 1 and "1024 tokens is too short for gsm8k" in done.stderr


# --- validate ---


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
    here.fake("/proc/sys/kernel/numa_balancing", "1")
    assert here.run("validate.sh").returncode == 1
    assert here.docker("run") == []
    here.fake("/proc/sys/kernel/numa_balancing", "0")
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
    assert len(here.docker("stop")) == 1 and not (here.state / "running").exists()
    assert ["/results/.client.pid"] == [call[-1] for call in here.docker("exec") if "kill" in call[-3]]


def test_nothing_is_written_outside_the_plan_and_the_model_cache(machine: MakeMachine) -> None:
    here = machine()
    before = files_below(here.home)
    for script in ("preflight.sh", "validate.sh", "launch.sh", "benchmark.sh", "accuracy.sh"):
        assert here.run(script, HF_TOKEN="secret-token").returncode == 0
    assert files_below(here.home) == before
    assert not any(b"secret-token" in content for content in files_below(here.plan).values())
