"""vLLM's commands found in scripts, compose files and manifests."""

import json
import os
import shlex
import subprocess
from time import process_time

import pytest
from deployed import CASES as DEPLOYED
from deployed import files_of as deployed_files
from hypothesis import given
from hypothesis import strategies as st
from script_plans import GOLDEN
from workflow_cases import commands_in, files_of, in_container

from planner.engine.launches import Found, Launch, find_launches, read_manifest, shell_word
from planner.engine.parse import read_line
from planner.engine.version import parse_version
from planner.errors import InputError
from planner.hardware.profiles import load_profile
from planner.output.scripts.emission import render_scripts

NEW = parse_version("0.32.0")
#: Scripts of a Ray cluster and a balancer: they launch no server.
NO_SERVER = ("build.sh", "head.sh", "worker.sh", "check.sh", "stop.sh", "nginx.conf")
#: What every shell passes on unchanged when it is quoted.
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r", exclude_categories=("Cs",)), min_size=1)


def server_of(script: str | list[str]) -> Found:
    (launch,) = find_launches(script)
    assert launch.server
    return launch.server


def words_of(script: str) -> list[str]:
    return list(server_of(script).argv)


def served(script: str) -> list[str]:
    """The models that a script serves on H100s."""
    return [" ".join(one.server.argv[2:]) for one in find_launches(script, gpu=load_profile("h100")) if one.server]


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


@pytest.mark.parametrize(
    ("script", "env"),
    [
        ("A=1 srun --x=2 env C=4 vllm serve m", {"A": "1", "C": "4"}),
        ("docker run --ulimit memlock=-1 --security-opt seccomp=unconfined -e A=1 -eB=2 vllm/vllm-openai m",
         {"A": "1", "B": "2"}),
        ("export HF=x A=3; docker run -e A --env=B=4 image bash -lc 'export C=5; D=6 exec vllm serve m'",
         {"A": "3", "B": "4", "C": "5", "D": "6"}),
        ("docker run --gpus '\"device=2,3\"' vllm/vllm-openai m", {"CUDA_VISIBLE_DEVICES": "2,3"}),
        ("docker run --gpus=all vllm/vllm-openai m", {}),
    ],
)  # fmt: skip
def test_a_container_gets_the_variables_of_its_options(script: str, env: dict[str, str]) -> None:
    """``docker run --help``: -e, --env sets a variable, without a value that of the host; no other option does."""
    assert server_of(script).env == env


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
        ("vllm/vllm-openai:latest", "latest"),
        ("vllm/vllm-openai", "latest"),
        ("registry.example:5000/vllm/vllm-openai", "latest"),
        ("vllm/vllm-openai@sha256:0a", "vllm/vllm-openai"),
        ("vllm/vllm-openai:gptoss", "gptoss"),
        ("ghcr.io/acme/vllm:2025-07-15", "2025-07-15"),
        ("lmcache/vllm-openai:v0.3.6", "lmcache/vllm-openai"),  # a version of LMCache
        ("nvcr.io/nvidia/vllm:25.09-py3", "25.09-py3"),
        ("nvcr.io/nvidia/pytorch:0.9.1", ""),
    ],
)
def test_the_tag_of_an_image_says_the_version(image: str, release: str) -> None:
    mounts = "-v /opt/vllm:/srv/vllm/0.9.1 -e OTEL=http://vllm-otel:4317 -e PATH=/bin:/opt/vllm/0.8.5/bin"
    for line in (f"docker run {mounts} {image} vllm serve m", f"docker run {image} bash -c 'cd /; vllm serve m'"):
        assert server_of(line).image_version == release


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
    assert launch.server
    argv = launch.server.argv
    assert argv[2] == model and argv[argv.index("--compilation-config") + 1] == fusion
    assert ("--async-scheduling" in argv) is is_async and launch.server.env == env


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


@given(values=st.lists(WORDS, max_size=5))
def test_whatever_is_quoted_comes_back_as_it_was(values: list[str]) -> None:
    words = ["vllm", "serve", "org/model", *values]
    assert words_of(shlex.join(words)) == words


@pytest.mark.parametrize(
    ("word", "printed"),
    [
        ("$KEY", "k e*y"),
        ('{"a":"${KEY}\\n`","b":[$(seq -s, 1 "3")]}', '{"a":"k e*y\\n`","b":[1,2,3]}'),
        ("a b'$ \"", "a b'$ \""),
        ("`echo $KEY` 5$", "k e*y 5$"),
    ],
)
def test_bash_puts_in_what_a_script_leaves_open(word: str, printed: str) -> None:
    done = subprocess.run(["bash", "-c", f"printf %s {shell_word(word)}"], env={"KEY": "k e*y", "PATH": os.defpath},
                          capture_output=True, text=True)  # fmt: skip
    assert done.stdout == printed


@given(st.text(max_size=200))
def test_no_script_is_too_strange_to_be_read_or_refused(script: str) -> None:
    try:
        launches = find_launches(script + "\nvllm serve org/model")
    except InputError as error:
        assert error.hint
    else:
        begins = [launch.server and launch.server.argv[1:2] for launch in launches]
        assert all(words in (("serve",), ()) for words in begins)  # a benchmark's script may stand alone


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


@pytest.mark.parametrize(
    ("script", "model"),
    [
        ("N=2; if [ $N -gt 1 ]; then vllm serve a; else vllm serve b; fi", "a"),
        ("X=abc; if [[ $X == a* ]]; then vllm serve a; else vllm serve b; fi", "a"),
        ("if false; then vllm serve a; elif true; then vllm serve b; else vllm serve c; fi", "b"),
        ('if [ -z "$HF_TOKEN" ]; then echo no; exit 1; fi; vllm serve m', "m"),
        ("if command -v rocm-smi >/dev/null; then M=a; else M=b; fi; vllm serve $M", "b"),
        ("if running; then echo there; else vllm serve m; fi", "m"),
        ("M=a; if running; then M=b; fi; vllm serve $M", "$M"),
        ("M=a; if [ $M = a ]; then if true; then M=b; fi; fi; vllm serve $M", "b"),
        ("M=a; if [ $M = b ]; then if huh; then M=b; fi; fi; vllm serve $M", "a"),
        ("vllm serve m || { echo failed; exit 1; }", "m"),
        ("until curl -s x; do sleep 1; done; wait() { A=(1 2); for i in 1; do :; done; }; vllm serve m", "m"),
        ("M=a; while read M; do :; done; while x; do M=b; done; vllm serve ${M:-c}", "${M:-c}"),
        ("cat <<'E'\nvllm serve 'a\nE\nvllm serve m", "m"),
        ('M=(a "b c"); vllm serve "${M[@]}"', "a b c"),
        ('M=(a); X=(); vllm serve "${M[@]}" ${X[@]+"${X[@]}"} "$@" "${@:2}" $*', "a"),
        ("A=$(echo \"$(echo ')')\"); B=`x`; vllm serve m # ' (", "m"),
        ("docker stop $(docker ps -q --filter name=vllm); (( $(pgrep -c vllm serve) > 0 )); vllm serve m", "m"),
    ],
)
def test_conditions_and_variables_are_followed_as_bash_does(script: str, model: str) -> None:
    assert served(script) == [model]


def test_the_gpu_answers_what_a_script_asks_of_its_machine() -> None:
    script = "if which amd-smi; then M=a; else M=b; fi; ARCH=$(rocminfo | grep -m1 gfx); vllm serve $M-$ARCH"
    (amd,), (nvidia,) = (find_launches(script, gpu=load_profile(gpu)) for gpu in ("mi355x", "h100"))
    assert amd.server and amd.server.argv[2] == "a-gfx950"
    assert nvidia.server and nvidia.server.argv[2].startswith("b-$(rocminfo")


def test_a_script_that_runs_itself_is_refused() -> None:
    with pytest.raises(InputError, match="nested too deeply"):
        find_launches("""A='bash -c "$B" vllm'; B='bash -c "$A" vllm '; bash -c "$A"; vllm serve m""")


def test_the_caller_decides_what_the_gpu_does_not() -> None:
    (chosen,) = find_launches(BRANCHED, given={"CC": "9.0"})
    assert chosen.server and chosen.server.argv[2] == "org/model-FP8"
    (undecided,) = find_launches(BRANCHED)
    assert undecided.server
    line = read_line(undecided.server.argv, NEW)
    assert line.model == "org/model-$DTYPE" and "give it by --set" in str(line.problems)


@pytest.mark.parametrize(
    ("word", "hint", "fatal"),
    [
        ("--max-num-seqs $SEQS", "give it by --set", True),
        ("--max-num-seqs $(( N * 2 ))", "write the value out", True),
        ('--compilation-config "{\\"cudagraph_capture_sizes\\":[$(seq -s, 1 60)]}"', "write the value out", True),
        ('"${MORE[@]}"', "write the value out", False),
    ],
)
def test_what_a_script_leaves_open_has_a_hint_that_can_be_followed(word: str, hint: str, fatal: bool) -> None:
    """``--set`` takes names of variables, not expressions."""
    (problem,) = read_line(server_of(f"vllm serve m {word}").argv, NEW).problems
    assert problem.hint.endswith(hint) and (problem.fatal, problem.modelled) == (fatal, False)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("echo\nwhile true; do vllm serve m; sleep 1; done", "`while` in line 2"),
        ("for b in 1 2; do vllm bench latency --batch-size $b; done", "`for` in line 1"),
        ("case $M in a) vllm serve a;; *) vllm serve b;; esac", "`case` in line 1"),
        ("start() {\n  bash -c 'vllm serve m'\n}\nstart", "the function start in line 1"),
        ("function start { if a; then vllm serve m; fi; }\nstart", "the function start in line 1"),
    ],
)
def test_a_launch_that_cannot_be_followed_is_refused(script: str, name: str) -> None:
    with pytest.raises(InputError, match=f"cannot follow {name}") as error:
        find_launches(script)
    assert "vllm serve MODEL" in error.value.hint


@pytest.mark.parametrize(
    ("workflow", "script"),
    [("latency", "latency.sh"), ("throughput", "throughput.sh"), ("speculative", "speculative.sh"),
     ("ttft", "ttft.sh"), ("aiter", "aiter.sh"), ("quick-reduce", "quick_reduce.sh"), ("cpx", "throughput.sh"),
     ("build-rocm-0.6.3", "throughput.sh")],
)  # fmt: skip
def test_every_point_of_our_own_offline_scripts_is_found_with_its_words(workflow: str, script: str) -> None:
    text = files_of(workflow)[script]
    points = [in_container(words[words.index("--") + 1 :]) for words in commands_in(text) if words[0] == "measure"]
    points = [words[words[0] == "python3" :] for words in points]
    assert points and [list(one.server.argv) for one in find_launches(text) if one.server] == points


@pytest.mark.parametrize(
    "script", ["X=a; " + "X=$X$X; " * 99, "a=(x y); " + 'a+=("${a[@]}"); ' * 99, "$(" * 2000, '"$(' * 2000]
)
def test_a_script_that_grows_without_end_is_refused_soon(script: str) -> None:
    began_s = process_time()
    with pytest.raises(InputError):
        find_launches(f"{script}\nvllm serve m -tp $X ${{a[@]}}")
    assert process_time() - began_s < 3
