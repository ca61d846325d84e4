"""The scripts of workflows at work: real bash on a machine whose docker, nginx, git and network are stand-ins."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from script_machine import Machine, mounts_of
from workflow_cases import machine_of

from planner.engine import default_version
from planner.hardware import load_profile

MakeMachine = Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path) -> MakeMachine:
    return partial(machine_of, tmp_path)


def test_points_are_measured_once_and_said_beside_what_is_expected(machine: MakeMachine) -> None:
    here = machine("quick-reduce")
    done = here.run("quick_reduce.sh", HF_TOKEN="secret-token")
    assert done.returncode == 0, done.stderr
    assert len(here.results()) == 5 and not list((here.plan / "results").glob(".partial*"))
    assert "avg_latency 1.5 (predicted " in done.stdout
    runs = here.docker("run")
    assert len(runs) == 5 and all("--rm" in run and "HF_TOKEN" in run for run in runs)
    assert not any("secret-token" in word for run in runs for word in run)
    here.forget()
    again = here.run("quick_reduce.sh")
    assert again.returncode == 0 and here.docker("run") == [] and again.stdout.count("already measured") == 5
    here.run("quick_reduce.sh", FORCE="1")
    assert len(here.docker("run")) == 5


def test_a_point_that_fails_is_named_and_the_others_are_measured(machine: MakeMachine) -> None:
    here = machine("latency")
    here.set(fails="--batch-size 128 --num")
    done = here.run("latency.sh")
    assert done.returncode == 1
    assert "failed: latency-in128-out2048-bs128 latency-in2048-out2048-bs128" in done.stderr
    assert len(here.results()) == 14
    assert "out of memory" in (here.plan / "logs" / "latency-in128-out2048-bs128.log").read_text()
    (here.state / "fails").unlink()
    here.forget()
    assert here.run("latency.sh").returncode == 0
    assert len(here.docker("run")) == 2, "only what is missing"


def test_an_interrupted_measurement_stops_its_own_container_only(machine: MakeMachine) -> None:
    here = machine("speculative")
    assert here.press_ctrl_c("speculative.sh") == 130
    (stopped,) = here.docker("stop")
    assert stopped[0].endswith("-speculative")
    assert here.results() == []
    assert here.run("speculative.sh").returncode == 0 and len(here.results()) == 2


def test_gpus_that_a_server_holds_are_not_measured_on(machine: MakeMachine) -> None:
    here = machine("ttft")
    here.serve()
    done = here.run("ttft.sh")
    assert done.returncode == 1 and "stop it first: docker stop planner-" in done.stderr
    assert here.docker("run") == [] and here.docker("stop") == []


def test_a_partition_is_measured_on_its_own_device(machine: MakeMachine) -> None:
    here = machine("cpx")
    here.run("throughput.sh", DEVICE="5")
    (run,) = here.docker("run")
    # of several the last counts
    assert [word for word in run if word.startswith("HIP_VISIBLE_DEVICES=")][-1] == "HIP_VISIBLE_DEVICES=5"


@pytest.mark.parametrize("script", ["request.sh", "sweep.sh", "guidellm.sh"])
def test_without_a_server_they_say_how_to_start_it(machine: MakeMachine, script: str) -> None:
    done = machine("online").run(script)
    assert done.returncode == 1 and "launch.sh" in done.stderr


def test_a_request_shows_its_answer_and_an_empty_one_is_an_error(machine: MakeMachine) -> None:
    here = machine("online")
    here.serve()
    done = here.run("request.sh")
    assert done.returncode == 0 and "city that is known" in done.stdout
    (call,) = [call for call in here.calls("curl") if call[-1].endswith("/v1/completions")]
    assert call[-1] == "http://127.0.0.1:8000/v1/completions"
    assert call[call.index("--header") + 1] == "@-", "a key is no argument, which every user sees"
    body = json.loads(call[call.index("--data") + 1])
    assert body.pop("model") == "amd/Llama-3.1-70B-Instruct-FP8-KV"
    assert body == {"prompt": "San Francisco is a", "max_tokens": 20, "temperature": 0}
    here.set(answer='{"choices":[{"text":""}]}')
    assert here.run("request.sh").returncode == 1


@pytest.mark.parametrize(("kind", "points"), [("concurrency", 6), ("rate", 6)])
def test_a_sweep_skips_what_is_done(machine: MakeMachine, kind: str, points: int) -> None:
    here = machine("sweep", model="Qwen/Qwen3-0.6B", gpu="h100-sxm", max_concurrency=32)
    here.serve()
    done = here.run("sweep.sh", kind)
    assert done.returncode == 0, done.stderr
    assert len(here.results()) == points
    sent = [call for call in here.docker("exec") if "--result-filename" in call]
    assert len(sent) == points
    assert len(here.docker("exec")) == points + 1, "one run warms up, and is not kept"
    seeds = [call[call.index("--seed") + 1] for call in here.docker("exec")]
    assert len(set(seeds)) == points + 1, "a prefix cache knows no prompt from another load"
    (table,) = (here.plan / "results").glob(f"sweep-{kind}-*.tsv")
    lines = [line.split("\t") for line in table.read_text().splitlines()]
    assert lines[0] == ["load", "output_throughput", "predicted", "mean_ttft_ms", "mean_tpot_ms"]
    assert len(lines) == points + 1 and all(line[1] == "99.5" and float(line[2]) > 0 for line in lines[1:])
    here.forget()
    assert here.run("sweep.sh", kind).returncode == 0 and here.docker("exec") == []


def test_a_sweep_goes_on_where_it_was_interrupted(machine: MakeMachine) -> None:
    here = machine("sweep", model="Qwen/Qwen3-0.6B", gpu="h100-sxm", max_concurrency=32)
    here.serve()
    here.set(fails="--num-prompts 20 ")
    assert here.run("sweep.sh").returncode == 1
    assert len(here.results()) == 2
    (here.state / "fails").unlink()
    assert here.press_ctrl_c("sweep.sh") == 130
    here.forget()
    assert here.run("sweep.sh").returncode == 0 and len(here.results()) == 6
    assert len(here.docker("exec")) == 1 + 4


def test_a_load_that_loses_requests_leaves_no_result(machine: MakeMachine) -> None:
    here = machine("sweep", model="Qwen/Qwen3-0.6B", gpu="h100-sxm", max_concurrency=32)
    here.serve()
    (here.state / "result").write_text('{"completed": 3}')
    done = here.run("sweep.sh")
    assert done.returncode == 1 and "3 of 5 requests completed" in done.stderr and here.results() == []


def test_guidellm_is_installed_once_and_measures_each_load_once(machine: MakeMachine) -> None:
    here = machine("sweep", model="Qwen/Qwen3-0.6B", gpu="h100-sxm", max_concurrency=32)
    here.serve()
    assert here.run("guidellm.sh").returncode == 0
    calls = here.calls("guidellm")
    assert len(calls) == 6 and len(here.results()) == 6
    backend = json.loads(calls[0][calls[0].index("--backend") + 1])
    assert backend == {"target": "http://127.0.0.1:8000", "kind": "openai_http", "model": "Qwen/Qwen3-0.6B"}
    assert "--disable-console-interactive" in calls[0], "no terminal, no progress"
    here.forget()
    assert here.run("guidellm.sh").returncode == 0
    assert here.calls("guidellm") == [] and here.calls("python3") == []


def test_a_comparison_changes_no_mode_without_apply(machine: MakeMachine) -> None:
    here = machine("compare-partitions")
    for layout in ("mi300x-tp1", "mi300x-tp8", "mi300x-cpx", "mi300x-cpx-nps4"):
        for script, text in {
            "partition.sh": 'echo "$(basename "$(dirname "$0")") $*" >>"$STATE/modes"\n',
            "preflight.sh": '[[ ! -e "$STATE/unfit" ]]\n',
            "instances.sh": 'echo "$1" >>"$STATE/verbs"\n'
            'if [[ "$1" == bench ]]; then\n'
            '  mkdir -p "$(dirname "$0")/results"\n'
            '  name=$(grep -o "node-[0-9a-f]*.json" "$STATE/../the plan/compare.sh" | sort -u | head -n 1)\n'
            '  for f in $(grep -o "node-[0-9a-f]*.json" "$STATE/../the plan/compare.sh" | sort -u); do '
            'cp "$STATE/result" "$(dirname "$0")/results/$f"; done\nfi\n',
        }.items():
            if (here.plan / layout / script).exists():
                (here.plan / layout / script).write_text("#!/bin/bash\nset -e\n" + text)
    here.set(unfit="")
    refused = here.run("compare.sh", STATE=str(here.state))
    assert refused.returncode == 1 and not (here.state / "verbs").exists()
    (here.state / "unfit").unlink()
    done = here.run("compare.sh", "--apply", STATE=str(here.state))
    assert done.returncode == 0, done.stderr
    modes = (here.state / "modes").read_text().splitlines()
    assert modes[0] == "mi300x-cpx --leave" or modes[0].endswith("--leave")
    assert [mode for mode in modes[1:] if "--leave" not in mode] == ["mi300x-cpx --apply", "mi300x-cpx-nps4 --apply"]
    assert (here.state / "verbs").read_text().split() == ["start", "bench", "stop"] * 4
    assert done.stdout.count("\t99.5\t") == 4


def test_pulling_writes_the_digest_down(machine: MakeMachine) -> None:
    here, newest = machine("mi355x-fp8"), default_version(load_profile("mi355x"))
    assert here.run("pull_image.sh").returncode == 0
    assert here.docker("pull") == [[f"vllm/vllm-openai-rocm:v{newest}"]]
    assert (here.plan / "results" / "image.digest").read_text().strip()


def test_the_engine_is_built_for_the_architecture_of_the_gpu(machine: MakeMachine) -> None:
    here = machine("mi355x-source")
    assert here.run("build_engine.sh", VLLM_REF="main").returncode == 0
    (build,) = here.docker("build")
    assert {"ARCHITECTURE=gfx950", "VLLM_REF=main", "AITER_REF="} <= set(build)
    recipe = (here.plan / "build" / "Dockerfile").read_text()
    for step in ("pip uninstall --yes aiter", "submodule update --init --recursive", "setup.py install",
                 "setup.py develop", "PYTORCH_ROCM_ARCH=$ARCHITECTURE"):  # fmt: skip
        assert step in recipe
    assert "already built" in here.run("build_engine.sh").stdout


def test_the_shell_takes_a_privilege_only_when_asked(machine: MakeMachine) -> None:
    here = machine("mad")
    here.run("shell.sh")
    here.run("shell.sh", "--ptrace")
    plain, debugging = here.docker("run")
    assert "SYS_PTRACE" not in plain and debugging[debugging.index("--cap-add") + 1] == "SYS_PTRACE"
    assert here.run("shell.sh", "--privileged").returncode == 2


def test_models_are_downloaded_with_hf(machine: MakeMachine, tmp_path: Path) -> None:
    here = machine("quantize")
    assert here.run("download.sh").returncode == 0
    assert here.run("download.sh", str(tmp_path / "plain")).returncode == 0
    cached, plain = here.calls("hf")
    assert cached == ["download", "meta-llama/Llama-3.1-405B-Instruct", "--exclude", "original/*"]
    assert plain[-2:] == ["--local-dir", str(tmp_path / "plain")]
    assert len(here.calls("pip")) == 2, "installed and imported once"
    assert here.run("download.sh", "--help").returncode == 2


def test_quantising_is_done_once_and_needs_a_model(machine: MakeMachine, tmp_path: Path) -> None:
    here = machine("quantize")
    model, output = tmp_path / "model", tmp_path / "out"
    assert here.run("quantize.sh", str(model), str(output)).returncode == 2, "no config.json there"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (output / "partial").mkdir(parents=True)
    # the stand-in writes nothing: there is nothing to move into its place
    assert here.run("quantize.sh", str(model), str(output), GPUS="1").returncode == 1
    install, quantise = here.docker("run")
    assert "amd-quark[cli]==0.13" in install
    for flag, value in {"--quant_scheme": "fp8", "--kv_cache_dtype": "fp8", "--num_calib_data": "128"}.items():
        assert quantise[quantise.index(flag) + 1] == value
    assert "--no_trust_remote_code" in quantise and mounts_of(quantise)[str(model)] == "/model:ro"
    assert [word for word in quantise if word.startswith("HIP_VISIBLE")][-1] == "HIP_VISIBLE_DEVICES=0"
    for named, first in (({"DEVICE": "5"}, "5"), ({"HIP_VISIBLE_DEVICES": "6,7"}, "6"), ({"DEVICE": "4,5"}, "4")):
        here.forget()
        here.run("quantize.sh", str(model), str(output), GPUS="1", **named)
        devices = [[word for word in run if word.startswith("HIP_VISIBLE")][-1] for run in here.docker("run")]
        assert set(devices) == {f"HIP_VISIBLE_DEVICES={first}"}
    (output / "complete").mkdir()
    (output / "complete" / "config.json").write_text("{}")
    here.forget()
    done = here.run("quantize.sh", str(model), str(output))
    assert done.returncode == 0 and "already quantised" in done.stdout and here.docker("run") == []


def test_mad_runs_at_its_commit_and_keeps_its_reports(machine: MakeMachine) -> None:
    here = machine("mad")
    done = here.run("mad.sh")
    assert done.returncode == 0, done.stderr
    assert "users report wrong answers" in done.stderr
    (run,) = here.docker("run")
    assert run[-3:] == ["meta-llama/Llama-3.1-8B-Instruct", "8", "float16"]
    assert [word for word in run if word.startswith("HIP_VISIBLE")][-1] == "HIP_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"
    assert "ROCR_VISIBLE_DEVICES" in run
    assert here.calls("git")[0][:2] == ["clone", "https://github.com/ROCm/MAD.git"]
    here.forget()
    assert "already measured" in here.run("mad.sh").stdout and here.docker("run") == []
    assert here.run("mad.sh", FORCE="1", DEVICE="8,9,10,11,12,13,14,15").returncode == 0
    (run,) = here.docker("run")
    assert [word for word in run if word.startswith("HIP_VISIBLE")][-1].endswith("=8,9,10,11,12,13,14,15")
