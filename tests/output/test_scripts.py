"""The emitted scripts as text: what they hold, what they may not hold, and how they get into a folder."""

import errno
import json
import re
import shlex
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import kept
import pytest
from hypothesis import given
from hypothesis import strategies as st
from script_machine import values_of
from script_plans import AMD_DOCKER, GOLDEN, MATRIX, b200, emission, mig, partition, plan, serve
from shell_checks import check_scripts

from planner.errors import IllegalPlanError, InputError
from planner.hardware.profiles import load_all
from planner.output.scripts.emission import Emission, container_name, gfx_target_version, render_scripts
from planner.output.scripts.folder import ALL_FILES, write_folder
from planner.output.scripts.text import argv, cell, comment, fenced, text, without_option
from planner.planning.plan import Goal, Plan, PlanFile, PlannedRun, PlannedRung, Service
from planner.resources import data_dir

TEMPLATES = sorted(
    path for name in ("vllm", "deploy", "workflows") for path in (data_dir("templates") / name).rglob("*.*")
)
RENDERED = {name: render_scripts(made) for name, made in MATRIX.items()}


def command_in(script: str, start: str) -> list[str]:
    """The words of the command that begins with ``start``, its continued lines joined."""
    lines = script.replace("\\\n", " ").splitlines()
    (found,) = [line for line in lines if line.strip().startswith(start)]
    return shlex.split(found)


def scripts_of(files: dict[str, str]) -> dict[str, str]:
    return {name: content for name, content in files.items() if name.endswith(".sh")}


# --- templates substitute, and nothing else ---


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_templates_substitute_filter_and_nothing_else(template: Path) -> None:
    source = re.sub(r"\{% raw %\}.*?\{% endraw %\}", "", template.read_text())
    kind = {".md.j2": "text|cell|fenced", ".conf.j2": "endpoint|comment"}
    filters = kind.get("".join(template.suffixes[-2:]), "sh|argv|comment")
    value = rf'[a-z_]+(\.[a-z_]+)*( \| length)? \| ({filters})|table\(.+\) -|"\\n" if loop\.first'
    if template.name == "_table.md.j2":  # its titles are words of templates
        value = r'titles \| join\(" \| "\)|" ---: \|" if .+|one \| cell if loop\.index <= code else one \| text'
    loose = [found for found in re.findall(r"\{\{(.*?)\}\}", source, re.DOTALL)
             if not re.fullmatch(rf" ({value}) ?", found)]  # fmt: skip
    assert not loose, "every value goes through one filter"
    statement = (
        r"(if|elif) (not )?[a-z_.]+|else|endif|endfor|for \w+(, \w+)? in [a-z_.]+(\.items\(\))?"
        r'|include (?:"[\w.]+"|join_script)|set title = "[^"]*"|set titles = \([^|]*\)'
        r'|from "_table\.md\.j2" import table|(end)?macro.*'
    )
    odd = [found for found in re.findall(r"\{%\s*(.*?)\s*%\}", source) if not re.fullmatch(statement, found)]
    assert not odd, "templates neither compute nor choose defaults"


@pytest.mark.parametrize(("version", "goal", "runs"), [
    ("0.14.0", "max-throughput", True), ("0.14.0", "balanced", False), ("0.9.0", "max-throughput", False)
])  # fmt: skip
def test_an_offline_job_runs_without_a_server(version: str, goal: Goal, runs: bool) -> None:
    """vLLM 0.14's ``make_arg_parser`` of run_batch.py has the engine's options and no parser of tool calls."""
    compiled = ("--compilation-config", '{"cudagraph_mode": "FULL"}')
    served = (*b200().serve_argv, "--tool-call-parser", "hermes", "--enable-auto-tool-choice", *compiled)
    made = b200().model_copy(update={"serve_argv": served, "engine_version": version, "env": {"A": "1 2"}})
    file = emission(made).file.model_copy(update={"goal": goal})
    book = render_scripts(replace(emission(made), file=file))["RUNBOOK.md"]
    lines = re.findall(r"\|\| (.*vllm run-batch .*); done", book)
    assert len(lines) == runs
    for line in lines:
        words = shlex.split(line)
        assert words[:7] == ["A=1 2", "vllm", "run-batch", "-i", "$part", "-o", "results-$part"]
        left = ("--host", "--port", "--tool-call-parser")
        kept = [word for word in without_option(served[3:], *left) if word != "--enable-auto-tool-choice"]
        assert words[7:] == ["--model", made.model, *kept]


def test_an_undefined_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import jinja2

    names = __import__("planner.output.scripts.emission", fromlist=["template_names"])
    complete = names.template_names
    monkeypatch.setattr(names, "template_names", lambda e: {k: v for k, v in complete(e).items() if k != "container"})
    with pytest.raises(jinja2.UndefinedError, match="container"):
        render_scripts(GOLDEN["mi355x"])


# --- what they hold ---


@pytest.mark.parametrize("case", kept.CASES)
def test_files_are_those_that_are_kept(case: str) -> None:
    """``python tests/kept.py`` writes them anew; read what changed."""
    change = kept.change_of(case)
    assert not change, change


def test_scripts_are_valid_bash_without_shellcheck_findings(tmp_path: Path) -> None:
    check_scripts([text for files in RENDERED.values() for text in scripts_of(files).values()], tmp_path)


@pytest.mark.parametrize("name", MATRIX)
def test_launch_starts_serve_argv_and_benchmark_sends_bench_argv(name: str) -> None:
    """No option in launch.sh that plan.json does not have, and none less."""
    saved = json.loads(RENDERED[name]["plan.json"])
    launched = command_in(RENDERED[name]["launch.sh"], "docker run")
    at = launched.index("$image")
    wider = ["${benchmark_line[@]}"] if saved.get("benchmark_line") else []  # empty without --benchmark
    assert launched[launched.index("--entrypoint") + 1 :][:1] + launched[at + 1 :] == saved["serve_argv"] + wider
    options = [word for word in launched[:at] if word.startswith("-")]
    assert {"--privileged", "--cap-add", "--network"}.isdisjoint(options)

    sent = command_in(RENDERED[name]["benchmark.sh"], "send ")
    length = len(saved["bench_argv"])
    assert sent[1 : 1 + length] == saved["bench_argv"]
    # a repetition on the same server sends other prompts, as many and as long
    assert sent[1 + length :] == [
        "${again[@]}", "--save-result", "--result-dir", "$results", "--result-filename",
        f".partial-serve-{saved['digest']}.json", "||", "status=$?",
    ]  # fmt: skip
    warm_up = command_in(RENDERED[name]["benchmark.sh"], "if ! send ")
    assert warm_up[warm_up.index("--num-prompts") + 1] == "8"
    assert warm_up[warm_up.index("--seed") + 1].rstrip(";") == "1000", "no prompt that is measured is in the cache then"


def test_the_recipe_is_launched_word_for_word() -> None:
    """The flags and variables of AMD's quick start recipe for Llama-3.3-70B FP8 on MI355."""
    launch = RENDERED["mi355x"]["launch.sh"]
    words = command_in(launch, "docker run")
    for recipe in (
        "--device /dev/kfd", "--device /dev/dri", "--group-add video", "--ipc host",
        "--security-opt seccomp=unconfined", "--env VLLM_ROCM_USE_AITER=1", "--env SAFETENSORS_FAST_GPU=1",
        "--max-num-batched-tokens 32768", "--kv-cache-dtype fp8", "--gpu-memory-utilization 0.9",
        "--tensor-parallel-size 1",
    ):  # fmt: skip
        flag, value = recipe.split()
        assert (flag, value) in pairwise(words), recipe
    assert {"--no-enable-prefix-caching", "--async-scheduling"} <= set(words)
    config = json.loads(words[words.index("--compilation-config") + 1])
    assert config == {
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "custom_ops": ["-rms_norm", "-quant_fp8", "-silu_and_mul"],
    }


@pytest.mark.parametrize("name", MATRIX)
def test_every_script_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    for script, content in scripts_of(RENDERED[name]).items():
        head = content.partition("set -euo pipefail\n")[0]
        assert content.startswith("#!/usr/bin/env bash\n") and head != content, script
        for line in ("written by planner 0.0.0", "by: planner recommend --goal", "TTFT mean 5,210 ms", "vLLM 0."):
            assert line in head, (script, line)


def test_nothing_is_asked_of_docker_that_the_plan_does_not_hold() -> None:
    for files in RENDERED.values():
        for content in files.values():
            assert not re.search(r"--privileged|SYS_PTRACE|trust-remote-code|--network", content)
    trusting = plan(
        docker_args=(*AMD_DOCKER, "--cap-add", "SYS_PTRACE"),
        serve_argv=serve("deepseek-ai/DeepSeek-V3", "--trust-remote-code"),
    )
    launched = command_in(render_scripts(emission(trusting))["launch.sh"], "docker run")
    assert {"SYS_PTRACE", "--trust-remote-code"} <= set(launched)


@pytest.mark.parametrize("name", MATRIX)
def test_the_server_is_published_on_loopback_only(name: str) -> None:
    launched = command_in(RENDERED[name]["launch.sh"], "docker run")
    published = values_of(launched, "--publish", "-p")
    assert published == ["${LISTEN_ADDRESS:-127.0.0.1}:$port:$container_port"]


@pytest.mark.parametrize(
    "changes",
    [
        {"docker_args": (*AMD_DOCKER, "--network", "host")},
        {"docker_args": (*AMD_DOCKER, "--network=host")},
        {"docker_args": ("--net=host",)},
        {"serve_argv": serve("m", host="127.0.0.1")},
    ],
)
def test_a_server_that_everybody_or_nobody_reaches_is_refused(changes: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(IllegalPlanError):
        render_scripts(emission(plan(**changes)))


def test_no_secret_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "s3cr3t" * 6)
    for files in (render_scripts(made) for made in MATRIX.values()):
        assert "s3cr3t" not in "".join(files.values())
        assert "--env HF_TOKEN " in files["launch.sh"]
    leaking = emission(plan(), command="planner recommend --hf-token hf_" + "s3cr3t" * 6)
    with pytest.raises(InputError, match="token"):
        render_scripts(leaking)


def test_only_a_partition_gets_a_partition_script() -> None:
    with_script = {name for name, files in RENDERED.items() if "partition.sh" in files}
    assert with_script == {"mi300x-cpx-nps4", "h100-mig", "mi355x-dpx-nps2", "mi300x-qpx"}
    for files in RENDERED.values():
        assert set(files) <= set(ALL_FILES)


def test_every_profile_of_a_gpu_can_be_emitted() -> None:
    for profile in load_all(partitions=True):
        if profile.vendor == "amd":
            made = partition(profile.id) if profile.partition else plan(gpu=profile.id)
        elif profile.vendor == "nvidia":
            made = mig(gpu=profile.id)
        else:
            continue
        files = render_scripts(Emission(emission(made).file, profile, 10**9, ("x",)))
        assert ("partition.sh" in files) == bool(profile.partition)


def test_a_node_of_partitions_holds_as_many_servers() -> None:
    # 8 packages x 8 partitions / 1; 8 GPUs / 2; 8 x 4 / 2; 8 x 2 slices / 1
    for name, count in {"mi300x-cpx-nps4": 64, "b200-x2": 4, "mi300x-qpx": 16, "h100-mig": 16}.items():
        assert f"holds {count} such servers" in RENDERED[name]["RUNBOOK.md"]


@pytest.mark.parametrize(("architecture", "number"), [("gfx942", "90402"), ("gfx950", "90500"), ("gfx90a", "90010")])
def test_kfd_numbers_of_architectures(architecture: str, number: str) -> None:
    """As /sys/class/kfd/kfd/topology prints them on MI300X, MI355X and MI250X."""
    assert gfx_target_version(architecture) == number


def test_plan_json_reads_back() -> None:
    made = GOLDEN["b200-x2"].file
    saved = json.loads(RENDERED["b200-x2"]["plan.json"])
    assert PlanFile.from_json(RENDERED["b200-x2"]["plan.json"]) == made
    assert saved["schema_version"] == 1 and saved["goal"] == "max-throughput"
    assert saved["command"].startswith("planner recommend") and saved["workload"]["num_prompts"] == 640
    assert container_name(made.plan).endswith(saved["digest"]) and saved["digest"] in made.plan.result_names[-1]


# --- filters ---

ANY = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@given(st.lists(ANY, min_size=1, max_size=6))
def test_argv_survives_the_shell(words: list[str]) -> None:
    said = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {argv(words)}"], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    assert said.stdout.decode().split("\0")[:-1] == words


@given(st.text())
def test_comments_and_cells_stay_on_their_line(value: str) -> None:
    for one_line in (comment(value), text(value), cell(value)):
        assert len(one_line.splitlines()) <= 1
    assert not comment(value).endswith("\\")
    assert not re.search(r"(?<!\\)\|", cell(value))


@given(st.text("`~x\n", max_size=30))
def test_a_fence_is_closed_by_its_end_only(value: str) -> None:
    opening, *inside, closing = fenced(value).split("\n")
    assert opening == closing and set(opening) == {"`"}
    assert opening not in [line.strip() for line in inside]


@pytest.mark.parametrize("word", ["a\0b", "bytes \udcff"])
def test_what_no_command_line_can_hold_is_refused(word: str) -> None:
    with pytest.raises(InputError, match="cannot be written into a script"):
        render_scripts(emission(plan(serve_argv=serve(word))))
    comment(word).encode()


# --- into a folder: all or nothing ---


def tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_write_makes_the_folder_and_its_parents(tmp_path: Path) -> None:
    write_folder(tmp_path / "plans" / "one", RENDERED["mi355x"], force=False)
    assert tree(tmp_path) == {f"plans/one/{name}": content for name, content in RENDERED["mi355x"].items()}
    executable = {p.name for p in (tmp_path / "plans" / "one").iterdir() if p.stat().st_mode & 0o100}
    assert executable == set(scripts_of(RENDERED["mi355x"]))


def test_an_existing_folder_is_refused_without_force(tmp_path: Path) -> None:
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="already exists") as refused:
        write_folder(tmp_path / "plan", RENDERED["mi355x"], force=False)
    assert "--force" in refused.value.hint
    assert tree(tmp_path) == {"plan/notes.txt": "mine"}


def test_force_keeps_results_and_drops_what_only_the_old_plan_needed(tmp_path: Path) -> None:
    write_folder(tmp_path / "plan", RENDERED["mi300x-cpx-nps4"], force=False)
    (tmp_path / "plan" / "results").mkdir()
    (tmp_path / "plan" / "results" / "serve-1.json").write_text("measured")
    write_folder(tmp_path / "plan", RENDERED["mi355x"], force=True)
    assert tree(tmp_path / "plan") == {**RENDERED["mi355x"], "results/serve-1.json": "measured"}
    assert [p.name for p in tmp_path.iterdir()] == ["plan"]


def test_several_gpus_are_written_as_one(tmp_path: Path) -> None:
    both = {f"{name}/{file}": content for name in ("mi355x", "b200-x2") for file, content in RENDERED[name].items()}
    write_folder(tmp_path / "plan", both, force=False)
    assert tree(tmp_path / "plan") == both
    write_folder(tmp_path / "plan", both, force=True)
    assert tree(tmp_path / "plan") == both


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("a file")
    for target in (tmp_path / "plan", tmp_path / "plan" / "below"):
        for force in (False, True):
            with pytest.raises(InputError):
                write_folder(target, RENDERED["mi355x"], force=force)
    assert tree(tmp_path) == {"plan": "a file"}


def test_an_unwritable_place_is_refused() -> None:
    with pytest.raises(InputError, match="cannot write /proc/"):  # not even root can make folders there
        write_folder(Path("/proc/planner"), RENDERED["mi355x"], force=False)


@pytest.mark.parametrize("operation", ["write_text", "rename"])
@pytest.mark.parametrize("after", range(0, 16, 3))
@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_halfway_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, after: int, existing: bool
) -> None:
    """The disk is full, or a move is refused, after some operations."""
    if existing:
        write_folder(tmp_path / "plan", RENDERED["mi300x-cpx-nps4"], force=False)
    before = tree(tmp_path)
    real, left = getattr(Path, operation), [after]

    def failing(path: Path, *args: object, **kwargs: object) -> object:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, operation, failing)
    try:
        write_folder(tmp_path / "plan", RENDERED["mi355x"], force=True)
    except InputError as error:
        assert "No space left" in error.cause
        assert tree(tmp_path) == before
    else:
        assert left[0] >= 0, "the failure was swallowed"
        assert tree(tmp_path / "plan") == RENDERED["mi355x"]


def test_a_plan_keeps_its_name_when_a_later_planner_knows_more_fields() -> None:
    """What an older planner did not write down has its default now; results are found by the plan's name."""
    made = plan()
    written = made.model_dump(exclude_defaults=True)
    assert Plan(**written).digest == Plan(**made.model_dump()).digest == made.digest
    assert plan(max_num_seqs=65).digest != made.digest


def test_another_run_to_measure_has_a_script_of_its_own(tmp_path: Path) -> None:
    """benchmark.sh at another load: its command, its number of requests and its result; nothing else differs."""
    made = GOLDEN["mi355x"].file.plan
    sent = made.workload.model_copy(update={"max_concurrency": 7, "num_prompts": 210})
    rung = PlannedRung(confidence=0.8, largest_load=2.0, total_gpus=1)
    run = PlannedRun(
        script="measure_next.sh", workload=sent, bench_argv=("vllm", "bench", "serve", "--max-concurrency", "7"),
        duration_s=600.0, figure="mean_tpot_ms", deviation_factor=0.7, expected=rung,
    )  # fmt: skip
    service = Service(
        targets=(), max_concurrency=64, replicas=1, total_gpus=1, packages=1.0, goodput=1.0, measure_next=run
    )
    files = render_scripts(emission(made.model_copy(update={"service": service})))
    check_scripts([files["measure_next.sh"]], tmp_path)
    script = files["measure_next.sh"]
    assert "num_prompts=210" in script and command_in(script, "send vllm")[:6] == ["send", *run.bench_argv]
    assert f"results/{made.result_names[-1].removesuffix('.json')}-c7.json" in script
    assert "`./measure_next.sh`" in files["RUNBOOK.md"]
    assert "measure_next.sh" in ALL_FILES
    assert "measure_next.sh" not in render_scripts(GOLDEN["mi355x"])
