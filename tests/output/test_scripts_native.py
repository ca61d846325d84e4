"""Plans without a container: real bash starts, measures and stops a stand-in for vLLM on this very machine."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from script_plans import bench, emission, plan, serve
from shell_checks import check_scripts

from planner.engine.launches import find_launches
from planner.errors import IllegalPlanError
from planner.output.scripts.emission import Emission, render_scripts
from planner.output.scripts.folder import write_folder

#: Answers /health once it has noted how it was called; ``bench`` writes a result, slowly where a file says so.
VLLM = """#!{python}
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
state = Path({state!r})
words = sys.argv[1:]
value = lambda flag: words[len(words) - 1 - words[::-1].index(flag) + 1]
warms_up = words[0] == "bench" and "--result-dir" not in words
note = state / ("warm-up" if warms_up else words[0])
note.write_text(json.dumps({{"argv": ["vllm", *words], "env": dict(os.environ), "pid": os.getpid()}}))
if (state / "dies").exists():
    sys.exit("out of memory")
if warms_up:
    sys.exit()
if words[0] == "bench":
    while (state / "slow").exists():
        time.sleep(0.05)
    result = {{"completed": int((state / "completed").read_text()), "failed": 0}}
    (Path(value("--result-dir")) / value("--result-filename")).write_text(json.dumps(result))
    sys.exit()
class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
print("a line of the server's log", flush=True)
HTTPServer((value("--host"), int(value("--port"))), Answer).serve_forever()
"""
MODEL = "org/some model"
VERSION = "0.32.0"


def native(**changes: Any) -> Emission:
    made = plan(
        gpu="cpu", platform="cpu", image="", image_source="no container", docker_args=(), engine_version=VERSION,
        env={"VLLM_CPU_OMP_THREADS_BIND": "0"}, model=MODEL, gpu_memory_utilization=0.01,
        serve_argv=serve(MODEL, "--max-num-seqs", "8", host="127.0.0.1"),
        bench_argv=bench(MODEL, concurrency=64, prompts=320, input_len=8192, output_len=1024),
    )  # fmt: skip
    return emission(made.model_copy(update=changes), checkpoint_bytes=70_000_000)


class Machine:
    """The emitted scripts in a folder, and a stand-in for ``vllm`` on the path."""

    def __init__(self, root: Path) -> None:
        self.plan, self.state, self.bin = root / "the plan", root / "state", root / "bin"
        for folder in (self.state, self.bin, root / f"vllm-{VERSION}.dist-info"):
            folder.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
        (root / f"vllm-{VERSION}.dist-info" / "METADATA").write_text(metadata)
        brief = "#!/bin/sh\nexec /bin/sleep 0.1\n"  # the scripts wait for seconds
        for name, text in {"vllm": VLLM.format(python=sys.executable, state=str(self.state)), "sleep": brief}.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        (self.state / "completed").write_text("320")
        self.emission = native()
        write_folder(self.plan, render_scripts(self.emission), force=False)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = str(listener.getsockname()[1])
        self.environment = {
            **os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHONPATH": str(root), "PORT": self.port,
            "HF_HOME": str(root), "HF_TOKEN": "secret",
        }  # fmt: skip

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", self.plan / script], env={**self.environment, **variables}, cwd="/", text=True, timeout=60,
            capture_output=True, check=False,
        )  # fmt: skip

    def called(self, command: str) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.state / command).read_text())
        return data

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + 30
        while not (self.state / name).exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    if (made.state / "serve").exists() and runs(made.called("serve")["pid"]):
        os.kill(made.called("serve")["pid"], signal.SIGTERM)


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_check_reads_the_line_back_from_the_script() -> None:
    """Its functions name vLLM in tests, and launch nothing."""
    made = native()
    (launch,) = find_launches(render_scripts(made)["launch.sh"])
    assert launch.server and sorted(launch.server.argv) == sorted(made.file.plan.serve_argv)  # the port moves last


def test_the_scripts_are_valid_bash_without_shellcheck_findings(tmp_path: Path) -> None:
    scripts = {name: text for name, text in render_scripts(native()).items() if name.endswith(".sh")}
    assert set(scripts) == {"preflight.sh", "launch.sh", "benchmark.sh", "accuracy.sh", "validate.sh"}
    assert not any("docker" in text for text in scripts.values())
    check_scripts(scripts.values(), tmp_path)


def test_what_is_launched_and_sent_is_the_plan_on_the_port_that_is_asked_for(machine: Machine) -> None:
    saved = machine.emission.file.plan
    launched = machine.run("launch.sh")
    assert launched.returncode == 0, launched.stderr
    assert f"ready: http://127.0.0.1:{machine.port}/v1" in launched.stdout
    server = machine.called("serve")
    at = saved.serve_argv.index("--port")
    assert server["argv"] == [*saved.serve_argv[:at], *saved.serve_argv[at + 2 :], "--port", machine.port]
    assert server["env"]["VLLM_CPU_OMP_THREADS_BIND"] == "0"
    assert "a line of the server's log" in (machine.plan / "logs" / "server.log").read_text()

    measured = machine.run("benchmark.sh", PORT="1", VLLM_API_KEY="key")  # the port of the running server counts
    assert measured.returncode == 0, measured.stderr
    sent = machine.called("bench")["argv"]
    assert machine.called("bench")["env"]["OPENAI_API_KEY"] == "key" and "key" not in sent
    at = saved.bench_argv.index("--port")
    own = [*saved.bench_argv[:at], *saved.bench_argv[at + 2 :]]
    assert sent[: len(own)] == own and sent[-2:] == ["--port", machine.port]
    assert (machine.plan / "results" / machine.emission.file.plan.result_names[-1]).exists()
    assert "already measured" in machine.run("benchmark.sh").stdout


def test_what_runs_is_not_started_twice_and_what_ended_is_started_again(machine: Machine) -> None:
    machine.run("launch.sh")
    first = machine.called("serve")["pid"]
    assert "already running" in machine.run("launch.sh").stdout
    assert "already running" in machine.run("preflight.sh").stdout
    assert machine.called("serve")["pid"] == first
    os.kill(first, signal.SIGTERM)
    while runs(first):
        time.sleep(0.02)
    assert "is not running" in machine.run("benchmark.sh").stderr
    assert machine.run("launch.sh").returncode == 0
    assert machine.called("serve")["pid"] != first


def test_a_number_that_another_program_has_taken_over_is_not_the_server(machine: Machine) -> None:
    (machine.plan / "logs").mkdir()
    (machine.plan / "logs" / "server.pid").write_text(f"{os.getppid()}\n")
    assert "is not running" in machine.run("benchmark.sh").stderr


def test_a_server_that_dies_is_reported_with_its_log(machine: Machine) -> None:
    (machine.state / "dies").touch()
    failed = machine.run("launch.sh")
    assert failed.returncode == 1
    assert "stopped before it answered" in failed.stderr and "out of memory" in failed.stderr


def test_the_server_outlives_its_launch_and_validate_stops_only_its_own(machine: Machine) -> None:
    done = machine.run("validate.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stopped planner-" in done.stdout and not runs(machine.called("serve")["pid"])
    machine.run("launch.sh")
    again = machine.run("validate.sh", FORCE="1")
    assert again.returncode == 0 and "stopped" not in again.stdout
    assert runs(machine.called("serve")["pid"])


@pytest.mark.parametrize("at_once", [False, True])
def test_an_interrupted_benchmark_ends_its_client_and_leaves_no_result(machine: Machine, at_once: bool) -> None:
    machine.run("launch.sh")
    (machine.state / "slow").touch()
    script = machine.plan / "benchmark.sh"
    if at_once:  # before the script has kept the number of its client
        measures = f"until [[ -s '{machine.state}/bench' ]]; do sleep 1; done"
        early = f'  if [[ -n "${{warm:-}}" ]]; then {measures}; kill -TERM $$; fi\n  warm=1\n  client=$!\n'
        script.write_text(script.read_text().replace("  client=$!\n", early))
    client = subprocess.Popen(["bash", machine.plan / "benchmark.sh"], env=machine.environment, stderr=subprocess.PIPE)
    machine.wait_for("bench")
    if not at_once:
        client.send_signal(signal.SIGTERM)
    _, said = client.communicate(timeout=30)
    assert client.returncode == 143 and b"interrupted" in said
    deadline = time.monotonic() + 10
    while runs(machine.called("bench")["pid"]):
        assert time.monotonic() < deadline, "the client goes on sending"
        time.sleep(0.02)
    assert not list((machine.plan / "results").glob("serve-*"))
    assert runs(machine.called("serve")["pid"])


def test_a_benchmark_with_failed_requests_is_no_result(machine: Machine) -> None:
    machine.run("launch.sh")
    (machine.state / "completed").write_text("319")
    failed = machine.run("benchmark.sh")
    assert failed.returncode == 1 and "319 of 320 requests completed" in failed.stderr
    assert not list((machine.plan / "results").glob("serve-*"))


def test_the_preflight_wants_the_planned_version_on_the_path(machine: Machine, tmp_path: Path) -> None:
    assert machine.run("preflight.sh").stdout.endswith("ready\n")
    (tmp_path / f"vllm-{VERSION}.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.0\n"
    )
    other = machine.run("preflight.sh")
    assert other.returncode == 1 and "vLLM 0.31.0 is installed, the plan needs 0.32.0" in other.stdout
    (machine.bin / "vllm").rename(machine.bin / "vlm")
    none = machine.run("preflight.sh", PATH=f"{machine.bin}:/usr/bin:/bin")
    assert "vllm is not on the PATH" in none.stdout


def test_what_a_given_cache_takes_is_checked_before_the_start() -> None:
    """2 GiB of weights, 0.75 and 0.25 of overheads, 4 of cache: 7 x 1024 MiB, less 1 % that machines differ by."""
    gib = 2**30
    parts = {"weights_bytes": 2 * gib, "activation_bytes": 3 * gib // 4, "non_torch_bytes": gib // 4}
    files = render_scripts(native(env={"VLLM_CPU_KVCACHE_SPACE": "4"}, memory={**parts, "kv_cache_bytes": 4 * gib}))
    assert "need_free_mib=7096\n" in files["preflight.sh"]
    assert "plan again with a smaller VLLM_CPU_KVCACHE_SPACE" in files["preflight.sh"]
    assert "| `VLLM_CPU_KVCACHE_SPACE` | `4` |" in files["RUNBOOK.md"]
    assert "gpu_memory_utilization" not in files["RUNBOOK.md"]
    assert "gpu_memory_utilization" in render_scripts(native())["RUNBOOK.md"]


def test_the_runbook_says_how_to_stop_the_server(machine: Machine) -> None:
    machine.run("launch.sh")
    line = next(line for line in (machine.plan / "RUNBOOK.md").read_text().splitlines() if "kill " in line)
    subprocess.run(["bash", "-c", line.split("`")[1]], cwd=machine.plan, check=True)
    deadline = time.monotonic() + 10
    while runs(machine.called("serve")["pid"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", None])
def test_a_server_without_a_container_listens_to_this_machine_only(host: str | None) -> None:
    words = serve(MODEL, host=host or "127.0.0.1")
    argv = words if host else tuple(word for word in words if word not in ("--host", "127.0.0.1"))
    with pytest.raises(IllegalPlanError, match="every address"):
        render_scripts(native(serve_argv=argv))


def test_hostile_words_stay_words(tmp_path: Path) -> None:
    hostile = 'org/$(touch pwned)\'; rm -rf "x"'
    files = render_scripts(native(serve_argv=serve(hostile, host="127.0.0.1"), model=hostile))
    text = files["launch.sh"]
    assert shlex.quote(hostile) in text
    (tmp_path / "launch.sh").write_text(text)
    subprocess.run(["bash", "-n", tmp_path / "launch.sh"], check=True)
