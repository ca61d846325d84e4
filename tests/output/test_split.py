"""Prefill and decode apart: what is launched on each side, by which words, on which GPUs and ports."""

import json
import re
from functools import cache
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest
from command_line import error_of, run
from deployed import Host
from shell_checks import check_scripts

from planner.engine.flags import flag_status
from planner.engine.version import parse_version
from planner.output.scripts.text import option
from planner.planning.search.disaggregated import DECODE_PORT

#: What is launched on each side is the same with fewer choices.
PINNED = ("--max-num-seqs", "128", "--max-num-batched-tokens", "8192", "--no-speculation")
LOAD = (
    *PINNED, "meta-llama/Llama-3.1-8B-Instruct", "--request-rate", "20", "--random-input-len", "4096",
    "--random-output-len", "256", "--ttft", "1000", "--tpot", "40", "--disaggregated",
)  # fmt: skip
GPUS = ("h100", "mi300x")
KEPT = TemporaryDirectory()


@cache
def answered(gpu: str) -> dict[str, Any]:
    """The division of one GPU, as JSON has it."""
    (plan,) = json.loads(run("fleet", *LOAD, "--gpu", gpu, "--format", "json").out)["disaggregated"]
    found: dict[str, Any] = plan
    return found


@pytest.mark.parametrize("gpu", GPUS)
def test_both_sides_are_counted_and_launched_alike(gpu: str) -> None:
    plan = answered(gpu)
    prefill, decode = plan["launch"]
    assert (prefill["role"], decode["role"]) == ("prefill", "decode")
    spare = plan["spare_servers"] // 2
    assert plan["least_gpus"] == sum((side["servers"] - spare) * side["num_gpus"] for side in plan["launch"])
    assert plan["num_gpus"] == sum(side["servers"] * side["num_gpus"] for side in plan["launch"])
    for side in plan["launch"]:
        words = side["serve_argv"]
        assert option(words, "--tensor-parallel-size") in (None, str(side["num_gpus"]))
        # vLLM's page "NixlConnector Usage Guide"
        assert json.loads(option(words, "--kv-transfer-config") or "") == {
            "kv_connector": "NixlConnector", "kv_role": "kv_both",
        }  # fmt: skip
        assert side["env"]["VLLM_NIXL_SIDE_CHANNEL_PORT"] == {"prefill": "5600", "decode": "5800"}[side["role"]]
        version = parse_version("0.27.1")
        assert all(flag_status(version, word) for word in words if word.startswith("--"))
    assert (option(prefill["serve_argv"], "--port"), option(decode["serve_argv"], "--port")) == ("8000", "8200")
    assert option(prefill["serve_argv"], "--kv-cache-dtype") == option(decode["serve_argv"], "--kv-cache-dtype")


#: Containers that run, with their words, are files named after them. What ``fails`` names stops before it answers.
DOCKER = """
case "$1" in
  run) [[ "$4" == "$(cat fails)" ]] || echo up >"running-$4" ;;
  ps) filter=${4#name=^}; filter=${filter%?}; if [[ -e "running-$filter" ]]; then echo 0123abcd; fi ;;
  stop) rm "running-$2" ;;
  logs) echo "a line of the log" ;;
esac
"""


def one_machine(folder: Path) -> Host:
    host = Host(folder, programs=())
    host.program("docker", DOCKER)
    host.program("curl", "[[ ! -e unhealthy ]]")
    (folder / "fails").write_text("nothing")
    return host


def gpus_and_ports(words: list[str], size: int) -> tuple[set[str], set[int]]:
    """What a server takes of its machine: GPUs, its port, and a side channel of each GPU's process.

    vLLM 0.11.0, ``nixl_connector.py``: "Each TP rank listens/queries on the base_port + tp_rank."
    """
    devices = next(word for word in words if word.startswith(('"device=', "HIP_VISIBLE_DEVICES=")))
    side = next(word for word in words if word.startswith("VLLM_NIXL_SIDE_CHANNEL_PORT="))
    first = int(side.partition("=")[2])
    return set(re.findall(r"\d+", devices)), {int(words[-1]), *range(first, first + size)}


@pytest.mark.parametrize("gpu", GPUS)
def test_servers_of_one_machine_take_nothing_from_each_other(gpu: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("fleet", *LOAD, "--gpu", gpu, "-o", str(out)).status == 0
    assert sorted(path.name for path in out.iterdir()) == ["decode.sh", "prefill.sh"]
    check_scripts([(out / f"{role}.sh").read_text() for role in ("prefill", "decode")], tmp_path)
    host, env = one_machine(tmp_path / "host"), {"HF_HOME": str(tmp_path / "models"), "VLLM_HOST_IP": "10.0.0.5"}
    taken: list[tuple[set[str], set[int]]] = []
    for side in answered(gpu)["launch"]:
        for number in range(side["servers"]):
            done = host.run("bash", str(out / f"{side['role']}.sh"), str(number), **env)
            assert done.returncode == 0 and "ready: " in done.stdout, done.stderr
            words = [call for call in host.calls("docker") if call[0] == "run"][-1]
            assert "VLLM_NIXL_SIDE_CHANNEL_HOST=10.0.0.5" in words
            first = {"prefill": 8000, "decode": DECODE_PORT}[side["role"]]
            assert words[-4:] == ["--host", "127.0.0.1", "--port", str(first + number)]
            planned = [one for one in side["serve_argv"][1:] if one not in ("--host", "0.0.0.0", "--port", str(first))]
            at = words.index("serve")
            assert words[at : at + len(planned)] == planned
            gpus, ports = gpus_and_ports(words, side["num_gpus"])
            assert all(gpus.isdisjoint(other) and ports.isdisjoint(held) for other, held in taken)
            assert len(gpus) == side["num_gpus"]
            taken.append((gpus, ports))
    assert set().union(*(gpus for gpus, _ in taken)) == set(map(str, range(answered(gpu)["num_gpus"])))


def test_a_server_is_awaited_stopped_and_started_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("fleet", *LOAD, "--gpu", "h100", "-o", str(out)).status == 0
    host, decode, env = one_machine(tmp_path / "host"), str(out / "decode.sh"), {"HF_HOME": str(tmp_path / "models")}
    assert host.run("bash", decode, "0", FIRST_GPU="4", **env).returncode == 0
    (words,) = (call for call in host.calls("docker") if call[0] == "run")
    assert min(map(int, gpus_and_ports(words, 1)[0])) == 4
    name = words[words.index("--name") + 1]
    assert re.fullmatch("planner-decode-[0-9a-f]{12}-0", name), "another plan's server is not this one"
    again = host.run("bash", decode, "0", **env)
    assert again.returncode == 0 and "already running" in again.stdout
    assert sum(call[0] == "run" for call in host.calls("docker")) == 1
    (host.folder / "unhealthy").touch()
    late = host.run("bash", decode, "0", START_TIMEOUT_S="0", **env)
    assert late.returncode == 1 and "no answer" in late.stderr
    assert ["stop", name] not in host.calls("docker"), "another run started it"
    assert host.run("bash", decode, "0", "stop").returncode == 0
    assert ["stop", name] in host.calls("docker") and ["rm", name] in host.calls("docker")
    (host.folder / "fails").write_text(name.removesuffix("0") + "1")
    dead = host.run("bash", decode, "1", **env)
    assert dead.returncode == 1 and "stopped before it answered" in dead.stderr and "a line of the log" in dead.stderr
    for wrong in (("x",), ("0", "restart"), ("0", "stop", "1")):
        assert host.run("bash", decode, *wrong, **env).returncode == 2


def test_the_answer_says_what_either_takes() -> None:
    said = run("fleet", *LOAD, "--gpu", "h100").out
    plan = answered("h100")
    either = rf"{plan['least_gpus']} GPUs \([^)]*\) vs {plan['aggregated_gpus']} aggregated"
    assert re.search(either, " ".join(said.split()))


def test_a_folder_without_a_division_is_refused() -> None:
    cause, hint = error_of(run("fleet", *LOAD[:-1], "--gpu", "h100", "-o", "somewhere"))
    assert "-o" in cause and "--disaggregated" in hint


def test_an_engine_without_the_connector_is_refused(tmp_path: Path) -> None:
    words = (*LOAD, "--gpu", "h100", "--engine-version", "0.8.5")
    cause, hint = error_of(run("fleet", *words, "-o", str(tmp_path / "out")))
    assert "NIXL" in cause and "0.9.0" in hint


# --- recommend --disaggregated

APART = (
    "recommend", *PINNED, "meta-llama/Llama-3.1-8B-Instruct", "--request-rate", "30", "--random-input-len", "8192",
    "--random-output-len", "128", "--ttft", "1500", "--tpot", "10",
)  # fmt: skip


@cache
def recommended(*words: str) -> tuple[Any, str, Path]:
    """The answer as JSON and as text, and the folder that it wrote."""
    out = Path(mkdtemp(dir=KEPT.name)) / "out"
    told = run(*words, "--disaggregated", "-o", str(out))
    assert told.status == 0, told.err
    return json.loads((out / "recommendation.json").read_text()), told.out, out


@pytest.mark.parametrize("gpu", GPUS)
def test_the_division_is_the_plan_where_it_takes_fewer_gpus(gpu: str, tmp_path: Path) -> None:
    answer, told, out = recommended(*APART, "--gpu", gpu)
    (division,), plan, found = answer["disaggregated"], answer["plans"][0], answer["answer"]
    assert (found["shape"], found["gpu"]) == ("disaggregated", plan["gpu"])
    assert found["num_gpus"] == division["least_gpus"] < plan["service"]["total_gpus"]
    # whole GPUs are rented at the price of those of the other plan
    each = plan["service"]["usd_per_hour"] / plan["service"]["total_gpus"]
    assert found["usd_per_hour"] == pytest.approx(each * division["least_gpus"])
    for side in ("prefill", "decode"):  # by hand: enough servers of each side for 30 requests/s, and not one more
        assert division[f"{side}_servers"] == ceil(30 / division[f"{side}_load"] - 1e-9)
    assert division["ttft_ms"] <= 1500 and division["tpot_ms"] <= 10
    assert f"on {division['least_gpus']} x {gpu.upper()}, disaggregated: " in " ".join(told.split())
    assert len(told.splitlines()) <= 40
    assert told.count("  $ vllm serve") == 2
    unscaled = any("without measured scales" in warning for warning in plan["warnings"])
    assert ("without measured scales" in told) is unscaled
    assert sorted(path.name for path in out.iterdir()) == ["decode.sh", "prefill.sh", "recommendation.json"]
    check_scripts([(out / f"{role}.sh").read_text() for role in ("prefill", "decode")], tmp_path)
    for role, side in zip(("prefill", "decode"), division["launch"], strict=True):
        assert f"One of {side['servers']} {role} servers" in (out / f"{role}.sh").read_text()


def test_servers_that_do_both_stay_the_plan_where_they_take_as_few() -> None:
    answer, _, out = recommended("recommend", *LOAD[:-1], "--gpu", "h100")
    (division,) = answer["disaggregated"]
    assert answer["answer"]["shape"] == "aggregated"
    assert answer["answer"]["num_gpus"] == answer["plans"][0]["service"]["total_gpus"] <= division["least_gpus"]
    assert (out / "launch.sh").exists() and not (out / "prefill.sh").exists()


def test_the_cheapest_shape_of_all_gpus_is_the_answer() -> None:
    answer, _, _ = recommended(*APART, "--gpu", "h100", "--gpu", "mi300x", "--price", "mi300x=0.01")
    assert (answer["answer"]["gpu"], answer["answer"]["shape"]) == ("mi300x", "disaggregated")
    assert len(answer["disaggregated"]) == 2


def test_of_gpus_that_cost_nothing_the_fewest_are_taken() -> None:
    answer, _, _ = recommended(*APART, "--gpu", "h100", "--price", "h100=0")
    found = answer["answer"]
    assert (found["shape"], found["usd_per_hour"]) == ("disaggregated", 0)


def test_without_the_option_the_line_names_it() -> None:
    answer = run(*APART, "--gpu", "h100")
    assert "--disaggregated makes that the plan" in " ".join(answer.out.split())
    assert "disaggregated: " not in answer.out.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--ttft", "1000"), "needs --ttft and --tpot"),
        (("--max-concurrency", "8"), "is planned for targets"),
        (("--ttft", "1000", "--tpot", "40", "--max-concurrency", "8"), "requests per second of given lengths"),
        (("--ttft", "1000", "--tpot", "40", "--workload", "multi-turn-chat", "--request-rate", "2"), "given lengths"),
        (("--ttft", "1000", "--tpot", "40", "--pick", "2"), "--pick names a plan of servers that do both"),
        (("--ttft", "1000", "--tpot", "40", "--gpu", "all"), "types of GPUs"),
        (("--ttft", "1000", "--tpot", "40", "--engine-version", "0.8.5"), "no NIXL connector"),
    ],
)
def test_what_is_not_divided_is_refused(words: tuple[str, ...], cause: str) -> None:
    gpu = () if "--gpu" in words else ("--gpu", "h100")
    said, hint = error_of(run("recommend", "meta-llama/Llama-3.1-8B-Instruct", *gpu, *words, "--disaggregated"))
    assert cause in said
    assert hint
