"""Somebody's own line: found in scripts, read as the version's parser reads it, judged, and compared with a plan."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from command_line import error_of, run
from deployed import CASES as DEPLOYED
from deployed import files_of as deployed_files
from hypothesis import assume, example, given
from hypothesis import strategies as st
from script_plans import GOLDEN
from workflow_cases import commands_in, files_of, in_container

from planner.engine.flags import table_versions
from planner.engine.found import Found
from planner.engine.manifests import read_manifest
from planner.engine.parse import ServeLine, read_line
from planner.engine.resolution import resolve
from planner.engine.settings import EngineArgs
from planner.engine.shell import Launch, find_launches
from planner.engine.version import parse_version
from planner.errors import InputError
from planner.hardware.profiles import load_profile
from planner.model.resolve import resolve_model
from planner.output.scripts.emission import render_scripts
from planner.planning import engine_args
from planner.planning.plan import PlannedWorkload

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
NEW = parse_version("0.32.0")
#: Scripts of a Ray cluster and a balancer: they launch no server.
NO_SERVER = ("build.sh", "head.sh", "worker.sh", "check.sh", "stop.sh", "nginx.conf")


def server_of(script: str | list[str]) -> Found:
    (launch,) = find_launches(script)
    assert launch.server
    return launch.server


def words_of(script: str) -> list[str]:
    return list(server_of(script).argv)


# --- finding the line in a script ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_our_own_launch_script_gives_the_plans_command(name: str) -> None:
    files = render_scripts(GOLDEN[name])
    saved, found = json.loads(files["plan.json"]), server_of(files["launch.sh"])
    assert list(found.argv) == saved["serve_argv"]
    assert all(found.env[name] == value for name, value in saved["env"].items() if name.startswith("VLLM_"))


SCRIPT = r"""#!/bin/bash
# vllm serve is what this starts, don't be surprised
set -euo pipefail
MODEL=${1:-org/model}          # a default
ARGS=(--max-num-seqs 8
  --kv-cache-dtype "fp8")
ARGS+=(--seed 1)
EXTRA="--max-model-len 4096 --trust-remote-code"
export VLLM_USE_V1=1
cat <<EOF > notes.txt
vllm serve nothing of this ' counts
EOF
if [[ $# -gt 1 ]]; then echo "hi (there"; fi
nohup env FOO=bar vllm serve "$MODEL" \
    "${ARGS[@]}" $EXTRA --port ${PORT:-8000} \
    --compilation-config '{"cudagraph_mode": "FULL"}' \
    --served-model-name "two words" --seed "$(date +%s)" 2>&1 >server.log &
"""


def test_what_a_launch_script_does_with_its_line_is_followed() -> None:
    found = server_of(SCRIPT)
    assert found.argv == (
        "vllm", "serve", "org/model", "--max-num-seqs", "8", "--kv-cache-dtype", "fp8", "--seed", "1",
        "--max-model-len", "4096", "--trust-remote-code", "--port", "8000",
        "--compilation-config", '{"cudagraph_mode": "FULL"}', "--served-model-name", "two words",
        "--seed", "$(date +%s)",
    )  # fmt: skip
    assert found.env == {"VLLM_USE_V1": "1", "FOO": "bar"}


@pytest.mark.parametrize(
    "script",
    [
        "vllm serve org/model -tp 2",
        "CUDA_VISIBLE_DEVICES=0,1 /opt/venv/bin/vllm serve org/model -tp 2 # mine",
        "exec vllm serve 'org/model' -tp 2;",
        "cd /models && numactl -N 0 vllm serve org/model -tp 2 | tee log",
        "(vllm serve org/model -tp 2) &",
        'bash -lc "vllm serve org/model -tp 2"',
        "kubectl exec pod -- sh -c 'ulimit -n 65536; vllm serve org/model -tp 2'",
        "docker run --gpus all -p 8000:8000 --entrypoint vllm some/image:tag serve org/model -tp 2",
        "docker run --gpus all -v ~/.cache:/root/.cache --ipc=host vllm/vllm-openai:v0.11.0 org/model -tp 2",
        "M=org/model\nN=2\nvllm serve ${M} -tp $N",
        "vllm \\\n  serve org/model \\\n -tp 2\n",
        "vllm serve org/model -tp 2\r\n",
    ],
)
def test_a_line_is_found_wherever_it_stands(script: str) -> None:
    assert words_of(script)[1:] == ["serve", "org/model", "-tp", "2"]


def test_the_older_way_to_start_the_server_is_found() -> None:
    script = "python3 -u -m vllm.entrypoints.openai.api_server --model org/model --tensor-parallel-size=2"
    line = read_line(server_of(script).argv, NEW)
    assert (line.model, line.args.tensor_parallel_size, line.problems) == ("org/model", 2, ())
    image = "docker run vllm/vllm-openai:v0.6.3 --model org/model --tensor-parallel-size 2"
    assert read_line(server_of(image).argv, NEW).model == "org/model"


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("vllm/vllm-openai:v0.11.0", "0.11.0"),
        ("registry.example:5000/vllm/vllm-openai:v0.10.1.1@sha256:0a", "0.10.1.1"),
        ("rocm/vllm:rocm6.3.1_instinct_vllm0.8.3_20250410", "0.8.3"),
        ("rocm/vllm:rocm7.0.0_vllm_0.10.2_20251006", "0.10.2"),
        ("vllm/vllm-openai:v0.26.1rc1.dev156", "0.26.1rc1"),
        ("rocm/vllm-dev:v0.9.2.dev364-x86", "0.9.2"),
        ("vllm/vllm-openai:latest", ""),
        ("vllm/vllm-openai", ""),
        ("nvcr.io/nvidia/vllm:25.09-py3", ""),
        ("nvcr.io/nvidia/pytorch:0.9.1", ""),
    ],
)
def test_the_tag_of_an_image_says_the_version(image: str, release: str) -> None:
    mounts = "-v /opt/vllm:/srv/vllm/0.9.1 -e PATH=/bin:/opt/vllm/0.8.5/bin"
    for line in (f"docker run {mounts} {image} vllm serve m", f"docker run {image} bash -c 'cd /; vllm serve m'"):
        assert server_of(line).image_version == release


def test_a_line_in_an_image_is_judged_by_the_rules_of_its_version() -> None:
    """--swap-space is an option of vLLM up to 0.17."""
    line = ["docker", "run", "--gpus=all", "vllm/vllm-openai:v0.11.0", LLAMA, "--swap-space", "4"]
    assert answer("--gpu", "h100", "--", *line)["engine_version"] == "0.11.0"
    asked = answer("--gpu", "h100", "--engine-version", "0.27.1", "--", *line, status=1)
    assert asked["engine_version"] == "0.27.1" and not asked["starts"]


# --- branches, functions, loops, and what stands beside the server ---------------------------------------------------

#: The NVIDIA recipe's launch script in its shape: the capability decides the checkpoint and the options.
BRANCHED = """
CC=$(nvidia-smi -i 0 --query-gpu=compute_cap --format=csv,noheader)
if [ "$CC" = "10.0" ]; then
    export VLLM_USE_TRTLLM_ATTENTION=1
    ASYNC="--async-scheduling"
    FUSION='{"full_cuda_graph":true}'
    DTYPE="FP4"
else
    ASYNC=""
    FUSION="{}"
    DTYPE="FP8"
fi
vllm serve org/model-$DTYPE --compilation-config $FUSION $ASYNC --max-num-seqs 512 &
"""


@pytest.mark.parametrize(
    ("gpu", "model", "fusion", "is_async", "env"),
    [
        ("b200", "org/model-FP4", '{"full_cuda_graph":true}', True, {"VLLM_USE_TRTLLM_ATTENTION": "1"}),
        ("h200", "org/model-FP8", "{}", False, {}),
    ],
)
def test_a_branch_is_decided_by_the_gpu(gpu: str, model: str, fusion: str, is_async: bool, env: dict[str, str]) -> None:
    (launch,) = find_launches(BRANCHED, gpu=load_profile(gpu))
    assert launch.server and launch.when == ()
    argv = launch.server.argv
    assert argv[2] == model and argv[argv.index("--compilation-config") + 1] == fusion
    assert ("--async-scheduling" in argv) is is_async and launch.server.env == env


def test_what_nothing_decides_is_followed_both_ways_and_set_by_the_caller() -> None:
    both = find_launches(BRANCHED)
    assert [launch.server and launch.server.argv[2] for launch in both] == ["org/model-FP4", "org/model-FP8"]
    assert both[0].when == ('[ "$CC" = "10.0" ]',) and both[1].when == ('not: [ "$CC" = "10.0" ]',)
    (chosen,) = find_launches(BRANCHED, given={"CC": "9.0"})
    assert chosen.server and chosen.server.argv[2] == "org/model-FP8" and chosen.when == ()


def test_each_branch_is_judged_and_all_have_to_start() -> None:
    script = f'if [ "$BIG" = 1 ]; then L=400000; else L=8192; fi; vllm serve {LLAMA} --max-model-len $L'
    said = answer("--gpu", "h100", script, status=1)
    assert [branch["starts"] for branch in said["branches"]] == [False, True]
    assert said["branches"][1]["when"] == ['not: [ "$BIG" = 1 ]']
    assert answer("--gpu", "h100", "--set", "BIG=0", script)["branches"] == []


@pytest.mark.parametrize(
    ("script", "argvs"),
    [
        ("start() { vllm serve m --port $1; }; start 8001", [["vllm", "serve", "m", "--port", "8001"]]),
        ("N=2; if [ $N -gt 1 ]; then vllm serve a; else vllm serve b; fi", [["vllm", "serve", "a"]]),
        ('if [[ -n "$X" && "$X" == a* ]]; then vllm serve a; fi; X=abc', [["vllm", "serve", "a"]]),
        ('X=abc; if [[ -n "$X" && "$X" == a* ]]; then vllm serve a; else vllm serve b; fi', [["vllm", "serve", "a"]]),
        ("if ! true; then vllm serve a; elif false; then :; else vllm serve c; fi", [["vllm", "serve", "c"]]),
        ("X=2; if ((X > 1)); then vllm serve a; else vllm serve b; fi", [["vllm", "serve", "a"]]),
        ("M=b; case $M in a) vllm serve a;; b|c) vllm serve b;; *) vllm serve z;; esac", [["vllm", "serve", "b"]]),
        ('if [ -z "$HF_TOKEN" ]; then echo no; exit 1; fi; vllm serve m', [["vllm", "serve", "m"]]),
        ("if command -v rocm-smi >/dev/null; then M=a; else M=b; fi; vllm serve $M", [["vllm", "serve", "b"]]),
        ("vllm serve m || { echo failed; exit 1; }", [["vllm", "serve", "m"]]),
        ('run() { shift 2; "$@" --port 1; }; run a b vllm serve m', [["vllm", "serve", "m", "--port", "1"]]),
        ('run() { docker run img "${@:2:3}"; }; run x vllm serve m y', [["vllm", "serve", "m"]]),
        (
            'in() { o=(); while [[ "$1" != -- ]]; do o+=("$1"); shift; done; shift; env "${o[@]}" "$@"; }; '
            'out() { in A=1 -- "$@" -tp 2; echo $1; }; out vllm serve m',
            [["vllm", "serve", "m", "-tp", "2"]],
        ),
        ('f() { local X=a; }; X=m; f b; vllm serve $X$1', [["vllm", "serve", "m$1"]]),
        ('f() { while (($# > 0)); do case $1 in -n) N=$2; shift;; esac; shift; done; }; f -n 4; vllm serve m -tp $N',
         [["vllm", "serve", "m", "-tp", "4"]]),
        ("while true; do vllm serve m; sleep 1; done", [["vllm", "serve", "m"]]),
        ("""bash -c 'vllm serve "$1" -tp $2' bash m 2""", [["vllm", "serve", "m", "-tp", "2"]]),
    ],
)  # fmt: skip
def test_conditions_functions_and_exits_are_followed_as_bash_does(script: str, argvs: list[list[str]]) -> None:
    found = find_launches(script, gpu=load_profile("h100"))
    assert [list(launch.server.argv) for launch in found if launch.server] == argvs


def test_a_loop_over_written_words_is_unrolled() -> None:
    script = (
        "for bs in 1 2; do for n in 128; do vllm bench latency --model m --batch-size $bs --input-len $n; done; done"
    )
    batches = [launch.server.argv[-3] for launch in find_launches(script) if launch.server]
    assert batches == ["1", "2"]
    (open_ended,) = find_launches("for m in $(cat models); do vllm serve $m; done")
    assert open_ended.server and open_ended.server.argv == ("vllm", "serve", "$m")


def test_too_many_ways_through_a_script_are_refused_with_what_helps() -> None:
    script = "".join(f'if [ "$A{n}" = 1 ]; then X{n}=1; fi\n' for n in range(9))
    with pytest.raises(InputError, match="more than 32 ways") as error:
        find_launches(f"{script}vllm serve m {' '.join(f'$X{n}' for n in range(9))}")
    assert "--set" in error.value.hint


@pytest.mark.parametrize(
    "script",
    [
        "X=a; while true; do X=$X$X; done",
        'a=(x y); while true; do a+=("${a[@]}"); done',
        'set -- x y; while true; do set -- "$@" "$@"; done',
        "while true; do X=a$X; while true; do Y=a$Y; while true; do Z=a$Z; done; done; done",
        "f() { X=a$X; g; g; }; g() { Y=a$Y; h; h; }; h() { Z=a$Z; f; f; }; while true; do f; g; h; done",
        "".join(f"for i{n} in {' '.join(map(str, range(60)))}; do X=$X$i{n}; " for n in range(4)) + "done; " * 4,
        'while true; do set -- a "$@" \'``` # title\'; while true; do set -- a "$@" b; done; shift; done',
        'while true; do if [[ -n $A ]]; then a+=(w "$A"); else f; fi; done',
    ],
    ids=["text", "array", "words", "loops", "functions", "for", "words in loops", "ways"],
)
def test_a_script_that_grows_without_end_is_refused_soon(script: str) -> None:
    began_s = process_time()
    with pytest.raises(InputError, match=r"grows beyond|steps to follow|more than 32 ways"):
        find_launches(f"{script}\nvllm serve m -tp $X $Y $Z ${{a[@]}} $@")
    assert process_time() - began_s < 3


def test_a_text_that_another_shell_is_given_often_is_read_once() -> None:
    turn = "(while [[ $1 != -- ]]; do if [[ -n $X ]]; then X=1; else bash -c 'vllm serve m' bash m; fi; shift; done)\n"
    began_s = process_time()
    (launch,) = find_launches(turn * 400)
    assert launch.server and launch.server.argv == ("vllm", "serve", "m")
    assert process_time() - began_s < 3


def test_ways_that_only_print_or_count_differently_are_one() -> None:
    point = 'if [ -s "$r/{n}" ]; then echo done; else vllm bench latency --model m --input-len {n}; bad+=({n}); fi\n'
    script = "".join(point.format(n=n) for n in range(1, 41)) + "if ((${#bad[@]})); then echo ${bad[*]}; exit 1; fi"
    assert [launch.server.argv[-1] for launch in find_launches(script) if launch.server] == [
        str(n) for n in range(1, 41)
    ]


@pytest.mark.parametrize(
    ("workflow", "script"),
    [("latency", "latency.sh"), ("throughput", "throughput.sh"), ("speculative", "speculative.sh"),
     ("ttft", "ttft.sh"), ("aiter", "aiter.sh"), ("quick-reduce", "quick_reduce.sh"), ("cpx", "throughput.sh"),
     ("build-rocm-0.6.3", "throughput.sh")],
)  # fmt: skip
def test_every_point_of_our_own_offline_scripts_is_found_with_its_words(workflow: str, script: str) -> None:
    text = files_of(workflow)[script]
    points = [in_container(words[words.index("--") + 1 :]) for words in commands_in(text) if words[0] == "measure"]
    found = [list(launch.server.argv) for launch in find_launches(text) if launch.server]
    points = [words[words[0] == "python3" :] for words in points]
    assert points and [words[: words.index("--output-json")] for words in found] == points


def test_an_offline_script_of_ours_gets_the_prediction_that_stands_in_it(tmp_path: Path) -> None:
    for name, text in files_of("latency").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    saved = json.loads(files_of("latency")["points.json"])["points"]
    said = answer(str(tmp_path / "latency.sh"))
    assert [way["offline"]["avg_latency"] for way in said["branches"]] == pytest.approx(
        [point["predicted"] for point in saved]
    )
    assert len(run("check", str(tmp_path / "latency.sh")).out.splitlines()) < 40


def test_branches_of_which_the_same_is_said_are_one_and_what_differs_is_told_shortly(tmp_path: Path) -> None:
    for name, text in files_of("latency").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert answer(str(tmp_path / "benchmark.sh"))["branches"] == []
    lines = (
        f'if test "{"x" * 200}"; then L=4096; else L=8192; fi',
        "if a; then N=1; else N=2; fi",
        f"vllm serve {LLAMA} --max-model-len $L --seed $N",
    )
    shown = run("check", "--explain", "--gpu", "h100", "\n".join(lines)).out.splitlines()
    assert [line for line in shown if line.startswith("if ")] == [
        f'if test "{"x" * 64} ...:',
        f'if not test "{"x" * 60} ...:',
    ]


def test_the_client_beside_the_server_says_the_load() -> None:
    script = f"""
    vllm serve {LLAMA} --max-model-len 8192 --max-num-seqs 64 &
    until curl -s localhost:8000/health; do sleep 1; done
    vllm bench serve --model {LLAMA} --dataset-name random --random-input-len 300 --random-output-len 100 \\
        --max-concurrency 16 --num-prompts 48 --ignore-eos
    """
    said = answer("--gpu", "h100", script)
    assert (
        said["load"] == PlannedWorkload(input_len=300, output_len=100, max_concurrency=16, num_prompts=48).model_dump()
    )
    assert said["delivers"]["completed"] == 48
    asked = answer("--gpu", "h100", "--max-concurrency", "4", script)
    assert asked["load"]["max_concurrency"] == 4 and asked["load"]["input_len"] == 300


def test_a_rate_and_a_burst_without_a_limit_are_sent_as_they_are() -> None:
    line = f"vllm serve {LLAMA} --max-model-len 8192\npython3 benchmarks/benchmark_serving.py --model {LLAMA} "
    rate = answer("--gpu", "h100", "--engine-version", "0.9.1", line + "--request-rate 1 --num-prompts 20")
    assert rate["load"]["request_rate"] == 1.0 and rate["load"]["max_concurrency"] is None
    burst = answer("--gpu", "h100", line + "--num-prompts 20", "--engine-version", "0.9.1")
    assert burst["load"]["max_concurrency"] is None and burst["delivers"]["completed"] == 20


@pytest.mark.parametrize(
    ("words", "key", "same"),
    [
        (
            "vllm bench latency --model {m} --batch-size 4 --input-len 256 --output-len 64",
            "avg_latency",
            "latency {m} --input-len 256 --output-len 64 --batch-size 4",
        ),
        (
            "python3 benchmark_throughput.py --model {m} --input-len 256 --output-len 64 --num-prompts 32",
            "tokens_per_second",
            "throughput {m} --input-len 256 --output-len 64 --num-prompts 32",
        ),
    ],
)  # fmt: skip
def test_offline_benchmarks_are_judged_and_predicted_like_planner_predict(words: str, key: str, same: str) -> None:
    version = ("--engine-version", "0.9.1")
    said = answer("--gpu", "h100", *version, words.format(m=LLAMA))
    assert said["starts"] and said["delivers"] is None
    predicted = run("predict", *same.format(m=LLAMA).split(), "--gpu", "h100", *version, "--format", "json")
    assert said["offline"][key] == pytest.approx(json.loads(predicted.out)[key])
    assert f"{key}_lo" in said["offline"]


def test_what_an_offline_benchmark_does_not_take_is_named() -> None:
    said = answer("--gpu", "h100", f"vllm bench latency --model {LLAMA} --max-concurrency 4", status=1)
    assert said["flags"][0]["flag"] == "--max-concurrency"


COMPOSE = """
services:
  server:
    image: vllm/vllm-openai:v0.27.1
    command: --model org/model --tensor-parallel-size 2
    environment: [VLLM_LOGGING_LEVEL=INFO, HF_TOKEN]
"""
POD = """
apiVersion: v1
kind: Pod
spec:
  containers:
  - name: server
    image: vllm/vllm-openai:v0.27.1
    command: ["/bin/sh", "-c"]
    args: ["exec vllm serve org/model --tensor-parallel-size $TP"]
    env: [{name: TP, value: "2"}, {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}]
"""
SLURM = """#!/bin/bash
#SBATCH --gres=gpu:2
MODEL=org/model
srun --container-image=vllm/vllm-openai:v0.27.1 bash -c "vllm serve $MODEL --tensor-parallel-size 2"
"""


def test_compose_files_manifests_and_slurm_scripts_are_read() -> None:
    for launches in (read_manifest(COMPOSE), read_manifest(POD), find_launches(SLURM)):
        (launch,) = launches
        assert launch.server
        line = read_line(launch.server.argv, NEW)
        assert (line.model, line.args.tensor_parallel_size) == ("org/model", 2)
        assert launch.server.image_version == "0.27.1"
    assert read_manifest(COMPOSE)[0].server.env == {"VLLM_LOGGING_LEVEL": "INFO"}  # type: ignore[union-attr]


@pytest.mark.parametrize("case", DEPLOYED)
def test_our_own_deployables_are_read_back(case: str) -> None:
    """The files of `planner deploy` launch the plan's own settings."""
    files = {name: text for name, text in deployed_files(case).items() if name not in NO_SERVER}
    assert files
    for name, text in files.items():
        launches: tuple[Launch, ...] = read_manifest(text) if name.endswith(".yaml") else find_launches(text)
        servers = [launch.server for launch in launches if launch.server]
        assert servers, name
        for server in servers:
            line = read_line(server.argv, parse_version("0.27.1"))
            assert not line.refused and line.model, name


@pytest.mark.parametrize("text", ["services: [", "kind: Pod\nspec: {}", "services: {a: {command: nginx}}"])
def test_a_manifest_without_vllm_is_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        read_manifest(text)
    assert error.value.hint


def test_drafts_and_several_steps_of_the_scheduler_are_refused_together() -> None:
    """arg_utils.py of 0.6.4: "Speculative decoding is not supported with multi-step (--num-scheduler-steps > 1)"."""
    words = "vllm serve m --speculative-model d --num-speculative-tokens 5"
    for steps, refused in (("", False), (" --num-scheduler-steps 10", True)):
        line = read_line(shlex.split(words + steps), parse_version("0.6.4"))
        assert line.refused is refused and line.args.speculative_config
        assert line.args.speculative_config.num_speculative_tokens == 5


def test_a_share_of_the_memory_that_only_later_versions_refuse() -> None:
    """gpu_worker.py of V1 compares it with the free memory from 0.9.1 on; V0 never does."""
    line = f"vllm serve {LLAMA} --max-model-len 4608 --gpu-memory-utilization 0.999"
    assert answer("--gpu", "h100", "--engine-version", "0.6.3", line)["starts"]
    said = answer("--gpu", "h100", "--engine-version", "0.10.0", line, status=1)
    assert "Free memory on device" in said["fit"]["reason"]


def test_a_form_of_quick_reduce_that_is_none_is_named() -> None:
    for mode, refused in (("INT4", False), ("INT5", True)):
        env = {"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": mode}
        line = read_line(["vllm", "serve", "m"], parse_version("0.10.1"), env=env, platform="rocm")
        assert line.refused is refused


def test_what_nvidia_says_of_hopper_is_warned_of_before_it_was_lifted() -> None:
    fusion = '{"pass_config":{"enable_fi_allreduce_fusion":true}}'
    words = ("vllm", "serve", LLAMA, "--async-scheduling", "--compilation-config", fusion, "--max-model-len", "8192")
    said = answer("--gpu", "h100", "--engine-version", "0.10.1", "--", *words)
    assert [flag["flag"] for flag in said["flags"] if "Hopper" in flag["cause"]] == [
        "--async-scheduling", "--compilation-config enable_fi_allreduce_fusion",
    ]  # fmt: skip
    assert not answer("--gpu", "b200", "--engine-version", "0.10.1", "--", *words)["flags"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("", "no vllm serve command"),
        ("# vllm serve org/model", "no vllm serve command"),
        ("echo vllm is served elsewhere", "no vllm serve command"),
        ("vllm serve a\nvllm serve b", "2 different vllm serve commands"),
        ("echo a\nvllm serve 'a", "line 2 of this cannot be read"),
        ('vllm serve "a', "may not be closed"),
        ("vllm serve ${a", "may not be closed"),
    ],
)
def test_a_script_without_one_line_is_refused(script: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        find_launches(script)
    assert error.value.hint


def test_the_same_line_twice_is_one() -> None:
    assert words_of("vllm serve a || vllm serve a") == ["vllm", "serve", "a"]


#: What every shell passes on unchanged when it is quoted.
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r", exclude_categories=("Cs",)), min_size=1)


@given(values=st.lists(WORDS, max_size=5))
@example(values=["==", "0"])
@example(values=["a", "==", "=="])
def test_whatever_is_quoted_comes_back_as_it_was(values: list[str]) -> None:
    assume(values[-1:] != ["=="])  # the grammar wants a word behind it: such a line is refused, not misread
    words = ["vllm", "serve", "org/model", *values]
    assert words_of(shlex.join(words)) == words


def test_letters_beyond_latin_1_are_read_where_the_scanner_asks_for_letters() -> None:
    # in a process of its own: isalpha of the C library reads foreign memory there, and may end it
    code = (
        "from contextlib import suppress\n"
        "from planner.engine.shell import find_launches\n"
        "from planner.errors import InputError\n"
        "for letter in range(0x100, 0x110000, 211):\n"
        "    if not 0xd800 <= letter < 0xe000:\n"
        "        with suppress(InputError):\n"
        "            find_launches('{' + chr(letter))\n"
        "        (found,) = find_launches('vllm serve é' + chr(letter))\n"
        "        assert found.server.argv[2] == 'é' + chr(letter), hex(letter)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@given(st.text(max_size=200))
def test_no_script_is_too_strange_to_be_read_or_refused(script: str) -> None:
    try:
        launches = find_launches(script + "\nvllm serve org/model")
    except InputError as error:
        assert error.hint
    else:
        assert all(launch.server and launch.server.argv[1] == "serve" for launch in launches)


def line_of(text: str) -> ServeLine:
    return read_line(shlex.split(text), NEW)


# --- reading the line ----------------------------------------------------------------------------------------------


def settings(line: str, version: str = "0.32.0") -> dict[str, Any]:
    """What a line sets, beside the defaults."""
    args = read_line(shlex.split(f"vllm serve org/model {line}"), parse_version(version)).args
    plain = EngineArgs()
    return {name: getattr(args, name) for name in EngineArgs.__slots__ if getattr(args, name) != getattr(plain, name)}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--tensor-parallel 2", {"tensor_parallel_size": 2}),
        ("--gpu-memory-util=0.5", {"gpu_memory_utilization": 0.5}),
        ("--max_num_seqs 8", {"max_num_seqs": 8}),
        ("-tp=4 -ep", {"tensor_parallel_size": 4, "enable_expert_parallel": True}),
        ("-pp 2 -dp 2", {"pipeline_parallel_size": 2, "data_parallel_size": 2}),
        ("--max-model-len 32k --max-num-batched-tokens 8K", {"max_model_len": 32_000, "max_num_batched_tokens": 8192}),
        ("--max-model-len 25.6k", {"max_model_len": 25_600}),
        ("--no-enable-prefix", {"enable_prefix_caching": False}),
        ("--enforce-eager --async-scheduling", {"enforce_eager": True, "async_scheduling": True}),
        ("--max-num-seqs 8 --max-num-seqs 16", {"max_num_seqs": 16}),
        ("-q awq --kv-cache-dtype=fp8", {"quantization": "awq", "kv_cache_dtype": "fp8"}),
        ("--served-model-name a b --block-size 32", {"block_size": 32}),
        ("--compilation-config '{\"cudagraph_mode\": \"FULL\"}' --dtype half", {"dtype": "half"}),
    ],
)  # fmt: skip
def test_options_are_read_as_argparse_reads_them(line: str, expected: dict[str, Any]) -> None:
    """The real parser of 0.32.0 takes each of these lines so."""
    assert settings(line) == expected
    assert not read_line(shlex.split(f"vllm serve org/model {line}"), NEW).problems


@pytest.mark.parametrize(
    ("version", "line", "words", "fatal"),
    [
        ("0.32.0", "--max-num 8", "could mean", True),
        ("0.32.0", "--tp 2", "nearest: -tp", True),
        ("0.18.0", "--swap-space 16", "gone in 0.18.0", True),
        ("0.11.0", "--num-scheduler-steps 10", "--async-scheduling", True),
        ("0.9.1", "--async-scheduling", "not before 0.10.0", True),
        ("0.32.0", "--dtype bf16", "takes no 'bf16'", True),
        ("0.32.0", "--max-num-seqs two", "'two' is not a number", True),
        ("0.32.0", "--max-num-seqs 1k", "'1k' is not a number", True),
        ("0.32.0", "--max-num-seqs $N", "does not set $N", True),
        ("0.32.0", "--tensor-parallel-size --enforce-eager", "needs a value", True),
        ("0.32.0", "--enforce-eager=true", "takes no value", True),
        ("0.32.0", "--enforce-eager true", "takes no value", True),
        ("0.32.0", "another/model", "neither an option nor the model", True),
        ("0.32.0", "--quantization nosuch", "never known", True),
        ("0.32.0", "-cc '{\"full_cuda_graph\": true}'", "cudagraph_mode", True),
        ("0.32.0", "--speculative-config '{}'", "num_speculative_tokens", True),
        # the replacement itself comes only one version later
        ("0.11.0", "--max-seq-len-to-capture 8192", "from 0.11.1 on", True),
    ],
)
def test_what_the_version_does_not_take_is_named_with_what_to_use(
    version: str, line: str, words: str, fatal: bool
) -> None:
    read = read_line(shlex.split(f"vllm serve org/model {line}"), parse_version(version))
    (problem,) = read.problems
    assert words in str(problem) and problem.fatal is fatal
    assert read.model == "org/model"


def test_a_variable_that_nobody_reads_is_no_reason_not_to_start() -> None:
    line = read_line(["vllm", "serve", "m"], NEW, env={"VLLM_NO_SUCH_THING": "1", "HF_TOKEN": "secret"})
    (problem,) = line.problems
    assert not problem.fatal and not line.refused and "secret" not in str(problem)


def test_a_positional_model_overrules_a_named_one() -> None:
    assert line_of("vllm serve --model a b").model == "b"
    assert line_of("vllm serve --tensor-parallel-size 2 b").model == "b"
    assert line_of("vllm serve").model is None


def test_options_in_a_file_are_not_guessed_at() -> None:
    with pytest.raises(InputError, match="--config"):
        line_of("vllm serve m --config serve.yaml")


def test_what_is_left_out_of_account_is_said() -> None:
    line = line_of("vllm serve m --num-gpu-blocks-override 400 --enable-eplb")
    assert line.not_simulated == ("--num-gpu-blocks-override", "--enable-eplb")
    for backend, said in (("native", ()), ("lmcache", ("--kv-offloading-backend",))):
        line = line_of(f"vllm serve m --kv-offloading-size 4 --kv-offloading-backend {backend}")
        assert line.not_simulated == said
    known = line_of("vllm serve m --cpu-offload-gb 4 --enable-lora --max-lora-rank 64")
    assert not known.not_simulated
    assert (known.args.cpu_offload_gb, known.args.enable_lora, known.args.max_lora_rank) == (4.0, True, 64)


@given(version=st.sampled_from(table_versions()).map(parse_version), words=st.lists(WORDS, max_size=6))
def test_no_line_is_too_strange_to_be_read_or_refused(version: Any, words: list[str]) -> None:
    try:
        line = read_line(["vllm", "serve", "m", *words], version)
    except InputError as error:
        assert error.hint
    else:
        assert line.model is not None


# --- two engines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "line", "only_v0"),
    [
        # vLLM's own oracle says so of each (arg_utils.py of that version, _is_v1_supported_oracle)
        ("0.9.1", "--num-scheduler-steps 8", ("--num-scheduler-steps 8",)),
        ("0.9.1", "--num-scheduler-steps 1", ()),
        ("0.8.5", "--num_scheduler_steps=10", ("--num-scheduler-steps 10",)),
        ("0.7.3", "--num-scheduler-steps 10", ()),  # V0 is the only default
        ("0.10.0", "--num-scheduler-steps 10", ("--num-scheduler-steps 10",)),
        ("0.9.1", "--scheduling-policy priority --preemption-mode swap", None),
        ("0.10.2", "--scheduling-policy priority", ()),
        ("0.10.2", "--preemption-mode swap", ("--preemption-mode swap",)),
        ("0.10.2", "--scheduler-delay-factor 0.5", ("--scheduler-delay-factor 0.5",)),
        ("0.10.2", "--scheduler-delay-factor 0", ()),
        ("0.10.2", "--disable-async-output-proc", ("--disable-async-output-proc",)),
        ("0.9.1", "--guided-decoding-backend outlines", ("--guided-decoding-backend outlines",)),
        ("0.10.0", "--guided-decoding-backend outlines", ()),
        ("0.8.5", "--guided-decoding-backend xgrammar:disable-any-whitespace", ()),
        ("0.9.1", "--otlp-traces-endpoint http://a:4317", ("--otlp-traces-endpoint http://a:4317",)),
        ("0.10.2", "--otlp-traces-endpoint http://a:4317", ()),
        ("0.11.0", "--max-num-partial-prefills 2", ("--max-num-partial-prefills 2",)),
        ("0.12.0", "--max-num-partial-prefills 2", ()),
    ],
)
def test_options_that_bring_the_old_engine_back_are_known(
    version: str, line: str, only_v0: tuple[str, ...] | None
) -> None:
    read = read_line(shlex.split(f"vllm serve org/model {line}"), parse_version(version))
    assert not read.problems
    if only_v0 is None:
        assert len(read.only_v0) == 2
    else:
        assert read.only_v0 == only_v0


def test_an_attention_backend_of_the_old_engine_brings_it_back() -> None:
    words, version = ["vllm", "serve", "m"], parse_version("0.9.1")
    assert read_line(words, version, env={"VLLM_ATTENTION_BACKEND": "XFORMERS"}).only_v0
    assert not read_line(words, version, env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}).only_v0


NGRAM = '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 4}'


@pytest.mark.parametrize(
    ("args", "version", "engine"),
    [
        # the same oracle on what a plan may ask for: 0.8 drafts by its old engine and has pipelines with Ray alone
        ({"pipeline_parallel_size": 2}, "0.8.5", "V0"),
        ({"pipeline_parallel_size": 2}, "0.9.1", "V1"),
        ({"dtype": "float32"}, "0.9.1", "V0"),
        ({"dtype": "float32"}, "0.9.2", "V1"),
        ({"speculative_config": NGRAM}, "0.8.5", "V0"),
        ({"speculative_config": NGRAM}, "0.9.1", "V1"),
    ],
)  # fmt: skip
def test_plans_get_the_engine_that_the_version_would_take(args: dict[str, Any], version: str, engine: str) -> None:
    asked = engine_args(args)
    resolved = resolve_model(LLAMA)
    assert resolve(asked, resolved.model, load_profile("h100"), parse_version(version)).engine == engine


# --- the answer ----------------------------------------------------------------------------------------------------


def answer(*words: str, status: int = 0) -> dict[str, Any]:
    outcome = run("check", "--format", "json", *words)
    assert outcome.status == status, outcome.err
    data: dict[str, Any] = json.loads(outcome.out)
    return data


def test_a_good_line_starts_and_is_predicted_like_planner_predict() -> None:
    said = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA, "--max-num-seqs", "64", "--max-model-len", "8192")
    assert said["starts"] and said["flags"] == []
    sent = PlannedWorkload(input_len=1024, output_len=1024, max_concurrency=64, num_prompts=320)
    assert said["load"] == sent.model_dump()
    predicted = run(
        "predict", "serve", LLAMA, "--gpu", "h100", "--max-num-seqs", "64", "--max-model-len", "8192",
        "--random-input-len", "1024", "--random-output-len", "1024", "--max-concurrency", "64",
        "--num-prompts", "320", "--format", "json",
    )  # fmt: skip
    same = json.loads(predicted.out)
    for key in ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms"):
        assert said["delivers"][key] == pytest.approx(same[key])


def test_without_an_asked_load_as_many_requests_are_sent_as_run_at_once() -> None:
    """A context of 131,072 tokens, 1024 sequences by default: the cache holds fewer requests of 2048 tokens."""
    said = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA)
    held = said["fit"]["kv_cache_tokens"] // 2048
    assert 1 < held < said["settings"]["max_num_seqs"]
    assert abs(said["load"]["max_concurrency"] - held) <= 1


def test_what_does_not_fit_is_answered_with_no_and_a_plan_that_does() -> None:
    said = answer("--gpu", "h100", "--", "vllm", "serve", "meta-llama/Llama-3.3-70B-Instruct", status=1)
    assert not said["starts"] and said["fit"]["verdict"] == "does not fit"
    assert said["delivers"] is None and said["fit"]["options"]
    for plan in said["better"]:
        again = answer("--gpu", "h100", "--gpus", "8", "--", *shlex.split(plan["command"]))
        assert again["starts"], plan["command"]


def test_where_no_load_is_asked_for_a_line_that_does_not_start_gets_what_recommend_gives() -> None:
    """Batch and all: it is chosen with as many requests as show it, not with a handful."""
    said = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA, "--max-model-len", "400000", status=1)
    (best, *_) = json.loads(run("recommend", LLAMA, "--gpu", "h100", "--format", "json").out)["plans"]
    assert said["load"] == best["workload"]
    found = said["better"][0]["delivers"]
    assert found["num_gpus"] == best["num_gpus"]
    assert found["output_throughput"] == pytest.approx(best["predicted"]["output_throughput"])


def test_a_refused_option_is_no_but_the_rest_is_answered() -> None:
    said = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA, "--swap-space", "4", status=1)
    assert [flag["flag"] for flag in said["flags"]] == ["--swap-space"]
    assert said["fit"]["fits"] and said["delivers"]


def test_settings_that_vllm_refuses_are_told_with_the_reason() -> None:
    said = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA, "-tp", "3", status=1)
    assert "32 attention heads" in said["refusal"]["cause"] and said["refusal"]["hint"]


OLD = ("--gpu", "h100", "--engine-version", "0.9.1", "--")
DRAFT = '{"model":"meta-llama/Llama-3.2-1B-Instruct","num_speculative_tokens":5}'
SHORT = ("vllm", "serve", LLAMA, "--max-num-seqs", "64", "--max-model-len", "4096")


def test_a_line_that_falls_back_to_the_old_engine_is_predicted_with_it() -> None:
    """By V0's own rules: a whole context in a step (no chunks below 32,768 tokens), and no prefix cache by default."""
    plain, many = answer(*OLD, *SHORT), answer(*OLD, *SHORT, "--num-scheduler-steps", "8")
    asked, policy = (
        answer(*OLD, "VLLM_USE_V1=0 " + shlex.join(SHORT)),
        answer(*OLD, *SHORT, "--preemption-mode", "swap"),
    )
    assert plain["settings"]["engine"] == "V1" and plain["flags"] == []
    for said in (many, asked, policy):
        assert said["starts"] and said["not_simulated"] == []
        assert said["settings"]["engine"] == "V0" and said["engine_version"] == "0.9.1"
        assert said["settings"]["max_num_batched_tokens"] == 4096 and not said["settings"]["enable_prefix_caching"]
    (flag,) = many["flags"]
    assert flag["flag"] == "--num-scheduler-steps 8" and "falls back to V0" in flag["cause"] and not flag["fatal"]
    assert asked["flags"] == []  # it was asked for
    assert policy["delivers"]["mean_tpot_ms"] == asked["delivers"]["mean_tpot_ms"]
    # one visit of the scheduler for eight steps: the host's time shrinks, and nothing else changes
    assert many["delivers"]["mean_tpot_ms"] < asked["delivers"]["mean_tpot_ms"]
    assert many["better"][-1]["changes"]["engine"] == {"line": "V0", "plan": "V1"}


@pytest.mark.parametrize(
    ("gpu", "version", "words", "engine"),
    [
        # FlashAttention 3 reads an fp8 cache, FlashAttention 2 of an A100 does not (arg_utils.py of 0.8.5)
        ("a100", "0.8.5", "--kv-cache-dtype fp8", "V0"),
        ("h100", "0.8.5", "--kv-cache-dtype fp8", "V1"),
        ("h100", "0.9.1", f"--speculative-config {DRAFT}", "V0"),
    ],
)  # fmt: skip
def test_a_setting_that_costs_the_new_engine_is_named(gpu: str, version: str, words: str, engine: str) -> None:
    said = answer("--gpu", gpu, "--engine-version", version, "--", *SHORT, *words.split())
    assert said["settings"]["engine"] == engine and said["load"]["max_concurrency"] <= 64
    assert [flag["flag"] for flag in said["flags"]] == ([words.split(" {")[0]] if engine == "V0" else [])


def test_what_amd_names_as_an_issue_is_remarked_where_it_holds() -> None:
    """ "AITER does not support fp8 kv cache"; DeepSeek-V3: "--max-model-len cannot be greater than 32768"."""

    def flags(version: str, *line: str) -> list[str]:
        said = answer("--gpu", "mi300x", "--engine-version", version, "--", *line)
        return [flag["flag"] for flag in said["flags"] if not flag["fatal"]]

    mixtral = ("vllm", "serve", "amd/Mixtral-8x7B-Instruct-v0.1-FP8-KV", "-tp", "8", "--kv-cache-dtype")
    aiter = "VLLM_ROCM_USE_AITER"
    assert flags("0.9.1", f"{aiter}=1", *mixtral, "fp8") == [aiter]
    assert flags("0.9.1", f"{aiter}=0", *mixtral, "fp8") == flags("0.9.1", f"{aiter}=1", *mixtral, "auto") == []
    assert flags("0.27.1", f"{aiter}=1", *mixtral, "fp8") == [], "said of the image of 0.9.1 only"
    deepseek = ("vllm", "serve", "deepseek-ai/DeepSeek-V3", "-tp", "8", "--block-size=1", "--max-model-len")
    assert flags("0.9.1", *deepseek, "131072") == ["--max-model-len"] and flags("0.9.1", *deepseek, "32768") == []


@pytest.mark.parametrize(
    ("version", "backend", "engine"),
    [
        ("0.8.5", "", "V0"),
        ("0.8.5", "--distributed-executor-backend mp", "V0"),
        ("0.8.5", "--distributed-executor-backend ray", "V1"),
        ("0.8.5", "--distributed-executor-backend ray --dtype float32", "V0"),  # for another reason
        ("0.9.0", "", "V0"),
        ("0.9.0", "--distributed-executor-backend mp", "V1"),
        ("0.9.1", "", "V1"),
    ],
)
def test_a_pipeline_has_the_engine_that_its_backend_allows(version: str, backend: str, engine: str) -> None:
    words = (*SHORT, "--pipeline-parallel-size", "2", *backend.split())
    said = answer("--gpu", "h100", "--engine-version", version, "--", *words)
    assert said["settings"]["engine"] == engine and said["settings"]["pipeline_parallel_size"] == 2


def test_engines_that_a_version_does_not_have_are_refused() -> None:
    both = answer(*OLD, "VLLM_USE_V1=1 " + shlex.join((*SHORT, "--num-scheduler-steps", "8")), status=1)
    assert both["refusal"]["cause"].startswith("VLLM_USE_V1=1 is not supported with --num-scheduler-steps 8")
    gone = answer("--gpu", "h100", "--engine-version", "0.11.0", "--", "VLLM_USE_V1=0 " + shlex.join(SHORT), status=1)
    assert "V0 engine, which vLLM 0.11.0 does not have" in gone["refusal"]["cause"]
    amd = answer("--gpu", "mi300x", "--engine-version", "0.8.5", "--", "VLLM_USE_V1=1 " + shlex.join(SHORT))
    assert amd["settings"]["engine"] == "V1"  # the default there is V0


def test_a_better_plan_is_better_at_the_same_load_and_with_as_many_gpus() -> None:
    line = ("vllm", "serve", LLAMA, "--max-num-seqs", "64", "--enforce-eager", "--max-model-len", "8192")
    said = answer("--gpu", "h100", "--goal", "max-throughput", "--", *line)
    assert said["better"]
    for plan in said["better"]:
        assert plan["delivers"]["num_gpus"] == 1
        assert plan["delivers"]["output_throughput_per_gpu"] > said["delivers"]["output_throughput_per_gpu"]
        assert plan["changes"]["enforce_eager"] == {"line": True, "plan": False}
        assert "max_model_len" not in plan["changes"], "the context that the line asks for is kept"
        assert plan["delivers"]["max_concurrency"] == said["load"]["max_concurrency"]


def test_the_line_of_a_plan_cannot_be_improved_much(tmp_path: Path) -> None:
    """What recommend writes is checked with the load that it was made for, and is what recommend would write."""
    made = run("recommend", LLAMA, "--gpu", "h100", "--goal", "max-throughput", "-o", str(tmp_path / "plan"))
    assert made.status == 0
    said = answer(str(tmp_path / "plan"), "--goal", "max-throughput")
    saved = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert said["starts"] and said["gpu"] == "h100-sxm" and said["engine_version"] == saved["engine_version"]
    assert said["load"] == saved["workload"]
    assert said["delivers"]["output_throughput"] == pytest.approx(saved["predicted"]["output_throughput"], rel=1e-6)
    assert said["better"] == []
    client = run("check", str(tmp_path / "plan" / "benchmark.sh"))  # asks the plan's server
    assert client.status == 0 and "there is no server" not in client.err


def test_a_plan_for_targets_at_a_rate_is_checked_with_just_that(tmp_path: Path) -> None:
    """Lengths that vary, a prefix, arrivals in bursts: a load that differs in any of them has other latencies."""
    load = ("--request-rate", "3", "--random-input-len", "700", "--random-output-len", "150", "--burstiness", "0.5",
            "--random-range-ratio", "0.4", "--random-prefix-len", "256", "--num-prompts", "200",
            "--seed", "7")  # fmt: skip
    where = tmp_path / "plan"
    made = run("recommend", LLAMA, "--gpu", "h100", *load, "--ttft", "600", "--tpot", "60", "-o", str(where))
    assert made.status == 0, made.err
    saved = json.loads((where / "plan.json").read_text())
    assert saved["workload"]["request_rate"] and saved["workload"]["burstiness"] == 0.5
    said = answer(str(where))
    assert said["load"] == saved["workload"]
    for name in ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_e2el_ms"):
        assert said["delivers"][name] == pytest.approx(saved["predicted"][name], rel=1e-6)
    assert said["better"] == []
    assert "200 requests of 700 + 150 tokens, varied by 40%, after 256 shared tokens, 3 per second:" in " ".join(
        run("check", str(where)).out.split()
    )
    closed = answer(str(where), "--max-concurrency", "4")["load"]
    assert closed == {**saved["workload"], "request_rate": None, "max_concurrency": 4}


def test_a_short_context_is_filled_half_with_the_prompt() -> None:
    said = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA, "--max-model-len", "512")
    assert (said["load"]["input_len"], said["load"]["output_len"]) == (256, 256)
    outcome = run(
        "check", "--gpu", "h100", "--input-len", "600", "--", "vllm", "serve", LLAMA, "--max-model-len", "512"
    )
    assert outcome.status == 2 and "longer than the 512" in error_of(outcome)[0]


def test_a_context_of_auto_is_as_long_as_the_memory_allows() -> None:
    """Llama-3.3-70B at TP 2 on H100: the weights leave room for a part of its 131,072 tokens."""
    line = ("vllm", "serve", "meta-llama/Llama-3.3-70B-Instruct", "-tp", "2", "--max-num-seqs", "32")
    assert not answer("--gpu", "h100", "--", *line, status=1)["starts"]
    auto = answer("--gpu", "h100", "--", *line, "--max-model-len", "auto")
    assert auto["starts"] and 2048 < auto["settings"]["max_model_len"] < 131_072


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("vllm serve m",), "no GPU is named"),
        (("--gpu", "h100"), "LINE"),
        (("--gpu", "h100", "--", "vllm", "serve"), "names no model"),
        (("--gpu", "h100", "--", "vllm", "bench", "serve"), "names no model"),
        (("--gpu", "h100", "--", "vllm", "complete"), "is no vllm serve line"),
        (("--gpu", "h100", "nowhere.sh"), "nowhere.sh"),
        (("--gpu", "h1000", "vllm serve m"), "h1000"),
        (("--gpu", "h100", "M=$1; vllm serve $M"), "the script does not set"),
        (("--gpu", "h100", "--engine-version", "banana", "vllm serve m"), "banana"),
        (("--gpu", "h100", "--request-rate", "1", "--", "vllm", "serve", LLAMA), "No such option: --request-rate"),
    ],
)
def test_bad_input_is_told_in_two_lines(words: tuple[str, ...], cause: str) -> None:
    outcome = run("check", *words)
    assert outcome.status == 2
    assert cause in error_of(outcome)[0]


def test_a_line_needs_no_dashes_before_it() -> None:
    with_dashes = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA, "--max-num-seqs", "8", "-tp", "2")
    assert answer("--gpu", "h100", "vllm", "serve", LLAMA, "--max-num-seqs", "8", "-tp", "2") == with_dashes
    assert answer("--gpu", "h100", f"vllm serve {LLAMA} --max-num-seqs 8 -tp 2") == with_dashes


def test_a_path_of_another_machine_can_be_named(tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text("vllm serve /models/llama --max-num-seqs 8 --max-model-len 4096\n")
    assert run("check", str(script), "--gpu", "h100").status == 2
    assert answer(str(script), "--gpu", "h100", "--as-model", LLAMA)["model"]["resolved"] == LLAMA


def test_a_path_may_have_blanks(tmp_path: Path) -> None:
    script = tmp_path / "my plan" / "start.sh"
    script.parent.mkdir()
    script.write_text(f"vllm serve {LLAMA} --max-num-seqs 8 --max-model-len 4096\n")
    assert answer(str(script), "--gpu", "h100")["model"]["resolved"] == LLAMA


def test_an_id_with_a_slash_behind_it_is_judged_by_its_facts_on_the_hub() -> None:
    """AMD's recipe for MI355X prints its checkpoint so; vLLM looks for a folder of that name."""
    said = answer("--gpu", "h100", "--", "vllm", "serve", f"{LLAMA}/", "--max-model-len", "4096")
    assert said["model"]["resolved"] == LLAMA and said["starts"]
    assert "for a folder" in run("check", "--gpu", "h100", "--", "vllm", "serve", f"{LLAMA}/").err


def test_a_context_that_the_model_does_not_have_is_not_asked_of_the_plan() -> None:
    said = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA, "--max-model-len", "1000000", status=1)
    assert "1000000 is more than the 131072" in said["refusal"]["cause"]
    assert said["better"], "a context of 2,048 serves the load"


def test_the_text_says_what_to_change() -> None:
    outcome = run("check", "--gpu", "mi300x", "--", "vllm", "serve", LLAMA, "--swap-space", "4", "--enforce-eager")
    assert outcome.status == 1
    assert "x --swap-space: gone in" in outcome.out
    assert "enforce_eager: True -> False" in " ".join(outcome.out.split())
    assert "$ " in outcome.out and "vllm serve" in outcome.out.split("$ ")[-1]


def test_what_a_document_leaves_to_its_reader_swallows_no_option() -> None:
    """AMD's line for a CPX partition, as printed: a shell would read two redirections in its placeholder."""
    (launch,) = find_launches(
        "python3 /app/vllm/benchmarks/benchmark_throughput.py --model org/model --input-len <> \\\n"
        "    --output-json <path/to/output.json> \\\n    --quantization fp8 \\\n    --gpu-memory-utilization 0.99"
    )
    assert launch.server is not None
    assert launch.server.argv[-5:] == (
        "{path/to/output.json}", "--quantization", "fp8", "--gpu-memory-utilization", "0.99",
    )  # fmt: skip
    (launch,) = find_launches("vllm serve org/model --port 8 < /dev/null > log 2>&1")
    assert launch.server is not None and launch.server.argv[-2:] == ("--port", "8")


def test_what_a_document_calls_0_6_3_takes_the_options_of_its_commit() -> None:
    """AMD's document of 0.6.3 prints both options; its commit has them, the release of vLLM has not."""
    line = ["benchmark_throughput.py", "--model", "m", "--max-num-seqs", "2000", "--max-seq-len-to-capture", "131072"]
    named = parse_version("0.6.3")
    assert not read_line(line, named, platform="rocm").problems
    refused = {problem.word for problem in read_line(line, named, platform="cuda").problems}
    assert refused == {"--max-num-seqs", "--max-seq-len-to-capture"}


def test_a_client_of_an_old_version_may_send_requests_of_equal_length() -> None:
    """Lengths between r L and L, to 0.8.3: with r = 1 all are L (``benchmarks/benchmark_serving.py`` of 0.6.3)."""
    client = read_line(["benchmark_serving.py", "--model", "m", "--random-range-ratio", "1.0"], parse_version("0.6.4"))
    load = client.workload(parse_version("0.6.4"))
    assert (load.range_ratio, load.length_distribution) == (0.0, "symmetric")


def test_a_seed_that_a_run_decides_is_no_fault() -> None:
    """``benchmark.sh`` of a plan warms up with a seed of its own."""
    assert not read_line(["vllm", "bench", "serve", "--model", "m", "--seed", "$((seed + 5))"], NEW).problems
