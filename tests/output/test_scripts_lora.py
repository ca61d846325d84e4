"""Plans with LoRA: the server gets adapters, and the benchmark asks for them.

vLLM skips the kernels of LoRA in a batch without adapters (``no_lora_flag_cpu`` in ``lora_expand_op.py``), so that a
benchmark of the model alone does not measure what was predicted.
"""

from pathlib import Path

import pytest
from script_machine import Machine, mounts_of, values_of
from script_plans import b200, emission, plan, serve
from shell_checks import check_scripts

from planner.output.scripts.emission import Emission, needed_by, render_scripts
from planner.planning.plan import Plan

LORA = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", "16")


def with_lora(made: Plan) -> Emission:
    return emission(made.model_copy(update={"serve_argv": (*made.serve_argv, *LORA)}))


PLANS = {
    "nvidia": with_lora(b200()),
    "amd": with_lora(plan()),
    "cpu": with_lora(
        plan(gpu="cpu", platform="cpu", docker_args=(), image="", serve_argv=serve("m", host="127.0.0.1"))
    ),
    "nodes": with_lora(b200().model_copy(update={"num_gpus": 16, "tensor_parallel_size": 16})),
}


@pytest.mark.parametrize("name", PLANS)
def test_scripts_are_clean(name: str, tmp_path: Path) -> None:
    made = {**render_scripts(PLANS[name]), **needed_by(PLANS[name])}
    check_scripts([text for file, text in made.items() if file.endswith(".sh")], tmp_path)
    assert "export LORA_MODULES=" in made["RUNBOOK.md"] and "| `LORA_MODULES` |" in made["RUNBOOK.md"]
    assert "LORA_MODULES" not in "".join(render_scripts(emission(plan())).values())


@pytest.mark.parametrize("name", ["nvidia", "amd", "nodes"])
def test_the_server_gets_adapters_and_the_benchmark_asks_for_them(name: str, tmp_path: Path) -> None:
    here = Machine(tmp_path, PLANS[name])
    adapter = here.home / "adapters" / "sql"
    adapter.mkdir(parents=True)
    done = here.run("launch.sh", LORA_MODULES="sql=adapters/sql chat=org/chat-lora")
    assert done.returncode == 0, done.stderr
    (words,) = here.docker("run")
    at = words.index("--lora-modules")
    assert words[at + 1 : at + 3] == [f"sql={adapter}", "chat=org/chat-lora"]
    assert mounts_of(words)[str(adapter)] == f"{adapter}:ro"
    assert here.run("benchmark.sh").returncode == 0
    sent = [words for words in here.docker("exec") if "--num-prompts" in words]
    assert len(sent) == 2, "the warm-up, and the measurement"
    for words in sent:
        at = words.index("--lora-modules")
        assert words[at + 1 : at + 3] == ["sql", "chat"] and (words[at + 3 :] or ["--port"])[0] == "--port"


def test_without_adapters_the_server_starts_and_is_not_measured(tmp_path: Path) -> None:
    here = Machine(tmp_path, PLANS["nvidia"])
    done = here.run("launch.sh")
    assert done.returncode == 0 and "counts on 2 LoRA adapters in a batch, and LORA_MODULES names 0" in done.stderr
    (words,) = here.docker("run")
    assert "--lora-modules" not in words
    done = here.run("benchmark.sh")
    assert done.returncode == 1 and "the server has no LoRA adapter" in done.stderr
    assert not here.docker("exec") and here.results() == []
    warned = here.run("preflight.sh", HF_TOKEN="token").stdout
    assert "already running" in warned
    here.stop()
    assert "WARN  LORA_MODULES is not set" in here.run("preflight.sh", HF_TOKEN="token").stdout


@pytest.mark.parametrize(
    ("modules", "status", "cause"),
    [("sql", 2, "write NAME=FOLDER"), ("=x", 2, "write NAME=FOLDER"), ("sql=/nowhere", 1, "no folder /nowhere")],
)
def test_wrong_adapters_are_refused(modules: str, status: int, cause: str, tmp_path: Path) -> None:
    here = Machine(tmp_path, PLANS["nvidia"])
    done = here.run("launch.sh", LORA_MODULES=modules)
    assert done.returncode == status and cause in done.stderr and not here.docker("run")


def test_all_servers_of_a_node_get_them(tmp_path: Path) -> None:
    made = PLANS["nvidia"]
    here = Machine(tmp_path, made, {**render_scripts(made), **needed_by(made)})
    here.set(completed=made.file.plan.workload.num_prompts * made.file.plan.started_on_node)
    done = here.run("instances.sh", "start", LORA_MODULES="a=org/a b=org/b")
    assert done.returncode == 0, done.stderr
    assert here.run("instances.sh", "start").returncode == 0, "with all of them running"
    servers = here.docker("run")
    assert all(values_of(words, "--lora-modules") == ["a=org/a"] for words in servers) and len(servers) > 1
    here.forget()
    done = here.run("instances.sh", "bench")
    assert done.returncode == 0, done.stderr
    assert all(words[words.index("--lora-modules") + 1 :][:2] == ["a", "b"] for words in here.docker("run"))
