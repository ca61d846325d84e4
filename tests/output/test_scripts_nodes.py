"""The scripts of a server over several nodes: every node starts its share, and only the first one is measured."""

from pathlib import Path

import pytest
from deployed import AMD_X16, NVIDIA_X16, SPREAD_X16
from script_machine import Machine, variables_of
from shell_checks import check_scripts

from planner.output.scripts.emission import Emission, render_scripts
from planner.output.scripts.text import option

OVER_NODES = {"amd": AMD_X16, "nvidia": NVIDIA_X16, "spread": SPREAD_X16}


@pytest.mark.parametrize("name", OVER_NODES)
def test_scripts_are_clean(name: str, tmp_path: Path) -> None:
    made = render_scripts(OVER_NODES[name])
    check_scripts([text for file, text in made.items() if file.endswith(".sh")], tmp_path)
    assert "HEAD_ADDRESS and NODE_RANK=1" in made["RUNBOOK.md"]


def started(machine: Machine, **environment: str) -> tuple[list[str], str]:
    """What docker is told on one node, and what launch.sh says."""
    done = machine.run("launch.sh", VLLM_HOST_IP="10.0.0.1", **environment)
    assert done.returncode == 0, done.stderr
    (words,) = machine.docker("run")
    return words, done.stdout


@pytest.mark.parametrize("name", OVER_NODES)
def test_the_first_node_serves_on_its_own_address_only(name: str, tmp_path: Path) -> None:
    made: Emission = OVER_NODES[name]
    words, said = started(Machine(tmp_path, made))
    assert "--publish" not in words and option(words, "--network") == "host"
    at = words.index("planner")
    planned = [word if word != "0.0.0.0" else "127.0.0.1" for word in made.file.plan.serve_argv]
    assert sorted(words[at + 1 :]) == sorted(planned)
    assert "HEAD=10.0.0.1" in variables_of(words) and "NODE_RANK=0" in variables_of(words)
    assert {"NODES=2", "NODE_GPUS=8"} <= set(variables_of(words))
    assert "ready: http://127.0.0.1:8000/v1" in said and "HEAD_ADDRESS=10.0.0.1 NODE_RANK=1 ./launch.sh" in said


def test_another_node_joins_and_waits_for_nobody(tmp_path: Path) -> None:
    words, said = started(Machine(tmp_path, SPREAD_X16), HEAD_ADDRESS="10.0.0.9", NODE_RANK="1")
    assert {"HEAD=10.0.0.9", "NODE_RANK=1", "LOCAL_RANKS=8"} <= set(variables_of(words))
    assert "ready" not in said


@pytest.mark.parametrize(
    ("environment", "cause"),
    [
        ({"NODE_RANK": "1"}, "set HEAD_ADDRESS"),
        ({"NODE_RANK": "2", "HEAD_ADDRESS": "10.0.0.9"}, "nodes 0 to 1"),
        ({"NODE_RANK": "first"}, "nodes 0 to 1"),
    ],
)
def test_a_node_that_cannot_join_is_told_what_it_lacks(environment: dict[str, str], cause: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, SPREAD_X16)
    done = machine.run("launch.sh", VLLM_HOST_IP="10.0.0.1", **environment)
    assert done.returncode == 1 and cause in done.stderr
    assert not machine.docker("run")


def test_preflight_asks_each_node_for_its_own_gpus(tmp_path: Path) -> None:
    made = render_scripts(NVIDIA_X16)
    assert "need_gpus=8\n" in made["preflight.sh"] and "need_gpus=16" not in made["preflight.sh"]
