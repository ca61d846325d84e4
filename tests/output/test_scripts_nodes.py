"""The scripts of a server over several nodes: every node starts its share, and only the first one is measured."""

import socket
from pathlib import Path

import pytest
from deployed import AMD_X16, NVIDIA_X16, SPREAD_X16
from script_machine import Machine, variables_of
from script_plans import DRAFTED, MATRIX, emission
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
    words, said = started(Machine(tmp_path, made), START_TIMEOUT_S="5000")
    # beside the engines of DP ranks start API servers, which wait 600 s if this is unset (vLLM 0.32, core_client.py)
    assert ("VLLM_ENGINE_READY_TIMEOUT_S=5000" in variables_of(words)) is (name == "spread")
    assert "--publish" not in words and option(words, "--network") == "host"
    at = words.index("planner")
    planned = [word if word != "0.0.0.0" else "127.0.0.1" for word in made.file.plan.serve_argv]
    assert words[-4:] == ["--host", "127.0.0.1", "--port", "8000"]
    assert sorted(words[at + 1 :]) == sorted(planned)
    assert "HEAD=10.0.0.1" in variables_of(words) and "NODE_RANK=0" in variables_of(words)
    assert {"NODES=2", "NODE_GPUS=8"} <= set(variables_of(words))
    assert "ready: http://127.0.0.1:8000/v1" in said and "HEAD_ADDRESS=10.0.0.1 NODE_RANK=1 ./launch.sh" in said


@pytest.mark.parametrize(("argv", "line"), [([], "./launch.sh ("), (["--benchmark"], "./launch.sh --benchmark (")])
def test_the_other_nodes_start_the_line_of_the_first(argv: list[str], line: str, tmp_path: Path) -> None:
    """Ranks of one engine have to agree in --max-model-len, --max-num-seqs and drafts."""
    made = emission(SPREAD_X16.file.plan.model_copy(update={"benchmark_line": DRAFTED}))
    assert (
        f"HEAD_ADDRESS=10.0.0.1 NODE_RANK=1 {line}"
        in Machine(tmp_path, made).run("launch.sh", *argv, VLLM_HOST_IP="10.0.0.1").stdout
    )


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
        ({"LISTEN_ADDRESS": "10.0.0.1"}, "or 0.0.0.0 for all addresses"),  # the scripts use 127.0.0.1
    ],
)
def test_a_node_that_cannot_join_is_told_what_it_lacks(environment: dict[str, str], cause: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, SPREAD_X16)
    done = machine.run("launch.sh", VLLM_HOST_IP="10.0.0.1", **environment)
    assert done.returncode == 1 and cause in done.stderr
    assert not machine.docker("run")


def test_a_first_node_that_gives_up_stops_its_container(tmp_path: Path) -> None:
    machine = Machine(tmp_path, SPREAD_X16)
    machine.set(unhealthy="")
    done = machine.run("launch.sh", VLLM_HOST_IP="10.0.0.1", START_TIMEOUT_S="0")
    assert done.returncode == 1 and machine.containers == [] and "on every other node: docker stop" in done.stderr


def test_another_port_is_the_servers_and_the_clients(tmp_path: Path) -> None:
    machine = Machine(tmp_path, NVIDIA_X16)
    machine.set(image="")
    words, said = started(machine, PORT="8123", LISTEN_ADDRESS="0.0.0.0")
    assert words[-4:] == ["--host", "0.0.0.0", "--port", "8123"] and "ready: http://127.0.0.1:8123/v1" in said
    assert machine.run("benchmark.sh").returncode == 0
    assert all(words[-2:] == ["--port", "8123"] for words in machine.docker("exec")) and machine.docker("exec")
    assert machine.run("preflight.sh", PORT="8123", HF_TOKEN="token").returncode == 0


def test_the_runbook_is_that_of_several_nodes(tmp_path: Path) -> None:
    """vLLM 0.14 joins two nodes by --nnodes, --node-rank and --master-addr (its page "Parallelism and Scaling")."""
    book = render_scripts(NVIDIA_X16)["RUNBOOK.md"]
    assert "takes 2 nodes of 8 GPUs" in book and "such servers" not in book
    assert "--nnodes 2 --node-rank 0 --master-addr HEAD" in book and "--host 0.0.0.0" not in book
    for name in ("HEAD_ADDRESS", "NODE_RANK", "VLLM_HOST_IP", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "PORT"):
        assert f"| `{name}`" in book
    assert "`, on every node |" in book
    single = render_scripts(MATRIX["b200-x2"])["RUNBOOK.md"]
    assert "HEAD" not in single and "NCCL" not in single and "on every node" not in single


def checked(machine: Machine, **environment: str) -> tuple[int, str]:
    """The status of preflight.sh, and what it says of the nodes."""
    done = machine.run("preflight.sh", HF_TOKEN="token", **environment)
    return done.returncode, done.stdout


@pytest.mark.parametrize("name", OVER_NODES)
def test_preflight_looks_at_the_network_of_the_nodes(name: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, OVER_NODES[name])
    status, said = checked(machine)
    assert status == 0 and "this is node 0 of 0 to 1; the others reach it at 10.0.0.7" in said
    warned = [line for line in said.splitlines() if line.startswith("WARN")]
    assert len(warned) == 1 and "dev/infiniband: the nodes talk over TCP" in warned[0]
    assert ("the plan counts on 50.0 GB/s for each GPU" in warned[0]) is (name == "spread")
    machine.fake("/dev/infiniband/uverbs0", "")
    status, said = checked(machine, VLLM_HOST_IP="10.9.9.9")
    assert status == 0 and "WARN" not in said and "reach it at 10.9.9.9" in said


def test_preflight_of_another_node_needs_the_first_ones_address(tmp_path: Path) -> None:
    machine = Machine(tmp_path, NVIDIA_X16)
    status, said = checked(machine, NODE_RANK="1")
    assert status == 1 and "HEAD_ADDRESS is not set" in said
    status, said = checked(machine, NODE_RANK="2", HEAD_ADDRESS="127.0.0.1")
    assert status == 1 and "NODE_RANK is 2: this server has the nodes 0 to 1" in said
    status, said = checked(machine, NODE_RANK="1", HEAD_ADDRESS="127.0.0.1")
    assert status == 0 and "nothing answers at 127.0.0.1:29501 yet" in said
    with socket.create_server(("127.0.0.1", 29501)):
        status, said = checked(machine, NODE_RANK="1", HEAD_ADDRESS="127.0.0.1")
    assert status == 0 and "the first node answers at 127.0.0.1:29501" in said


def test_preflight_asks_each_node_for_its_own_gpus(tmp_path: Path) -> None:
    made = render_scripts(NVIDIA_X16)
    assert "need_gpus=8\n" in made["preflight.sh"] and "need_gpus=16" not in made["preflight.sh"]
