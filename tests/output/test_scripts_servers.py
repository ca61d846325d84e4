"""Files that some plans need: several servers on one node behind nginx, and an image that is built."""

import json
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from script_machine import Machine
from shell_checks import check_scripts
from workflow_cases import commands_in, files_of, machine_of, saved_plan

from planner.commands.main import main
from planner.engine.published import builds
from planner.hardware.profiles import load_profile
from planner.output.scripts.emission import Emission, needed_by, render_scripts
from planner.planning.plan import PlanFile, Service

MakeMachine = Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path) -> MakeMachine:
    return partial(machine_of, tmp_path)


def test_each_partition_has_its_server_its_device_and_its_port() -> None:
    files = files_of("cpx")
    assert "copies=64\n" in files["instances.sh"]
    ports = [int(port) for port in re.findall(r"server 127\.0\.0\.1:(\d+) ", files["nginx.conf"])]
    assert ports == list(range(8001, 8065))
    assert "listen 127.0.0.1:8000;" in files["nginx.conf"]
    assert '--env "HIP_VISIBLE_DEVICES=${devices[$1]}"' in files["instances.sh"]
    assert "HIP_VISIBLE_DEVICES=0" not in files["instances.sh"]
    assert "compute=CPX" in files["partition.sh"]


@pytest.mark.parametrize(
    ("gpu", "model", "copies"),
    [("mi300x", "meta-llama/Llama-3.1-8B-Instruct", 8), ("mi300x-cpx", "meta-llama/Llama-3.2-1B-Instruct", 64)],
)
def test_recommend_writes_them_where_a_node_holds_several(tmp_path: Path, gpu: str, model: str, copies: int) -> None:
    assert main(["recommend", model, "--gpu", gpu, "--goal", "max-throughput", "-o", str(tmp_path / "plan")]) == 0
    script = (tmp_path / "plan" / "instances.sh").read_text()
    assert f"copies={copies}\n" in script
    assert (tmp_path / "plan" / "instances.sh").stat().st_mode & 0o100


def test_a_plan_that_fills_its_node_needs_no_balancer() -> None:
    files = files_of("online")
    file = PlanFile.from_json(files["plan.json"])
    emission = Emission(file, load_profile("mi300x"), 1, ("x",))
    assert file.plan.num_gpus == 8 and needed_by(emission) == {}
    assert "instances.sh" not in render_scripts(emission)


def test_two_gpus_for_each_copy() -> None:
    file = PlanFile.from_json(files_of("online")["plan.json"])
    plan = file.plan.model_copy(update={"num_gpus": 2, "tensor_parallel_size": 2})
    made = needed_by(Emission(file.model_copy(update={"plan": plan}), load_profile("mi300x"), 1, ("x",)))
    assert "<<<'0,1\n2,3\n4,5\n6,7'" in made["instances.sh"]


def emission_of(servers: int, *, gpus_each: int = 1, asked: bool = True) -> Emission:
    """A plan of ``servers`` servers on nodes of eight GPUs."""
    file = PlanFile.from_json(files_of("copies")["plan.json"])
    total = servers * gpus_each
    service = Service(targets=(), load_asked=asked, replicas=servers, total_gpus=total, packages=total, goodput=1.0)
    changes = {"service": service, "num_gpus": gpus_each, "tensor_parallel_size": gpus_each}
    plan = file.plan.model_copy(update=changes)
    return Emission(file.model_copy(update={"plan": plan}), load_profile("mi300x"), 1, ("x",))


@pytest.mark.parametrize(
    ("asked", "replicas", "copies"), [(True, 2, 2), (True, 8, 8), (True, 12, 8), (True, 1, 0), (False, 1, 8)]
)
def test_a_node_starts_the_servers_that_the_load_takes(asked: bool, replicas: int, copies: int) -> None:
    """Eight fit; a load that was not asked for is what one server carries, and the node is filled."""
    emission = emission_of(replicas, asked=asked)
    file = emission.file
    runbook, files = render_scripts(emission)["RUNBOOK.md"], needed_by(emission)
    assert "holds 8 such servers" in runbook and ("`instances.sh` start" in runbook) == (copies > 0)
    if not copies:
        assert files == {}
        return
    assert f"copies={copies}\n" in files["instances.sh"]
    assert len(re.findall(r"server 127\.0\.0\.1:\d+ ", files["nginx.conf"])) == copies
    assert f"prompts={copies * file.plan.workload.num_prompts} " in files["instances.sh"]
    assert (f"the {copies} that the load takes" in runbook) == (copies < 8)


def test_instances_start_are_watched_and_stop(machine: MakeMachine) -> None:
    here = machine("copies")
    done = here.run("instances.sh", "start", HF_TOKEN="secret-token")
    assert done.returncode == 0, done.stderr
    assert len(here.containers) == 8 and "ready: http://127.0.0.1:8000/v1" in done.stdout
    runs = here.docker("run")
    published = [run[run.index("--publish") + 1] for run in runs]
    assert published == [f"127.0.0.1:{8001 + copy}:8000" for copy in range(8)]
    devices = [word for run in runs for word in run if word.startswith("HIP_VISIBLE_DEVICES=")]
    assert devices == [f"HIP_VISIBLE_DEVICES={copy}" for copy in range(8)]
    assert not any("secret-token" in word for run in runs for word in run)
    tested, started = [call for call in here.calls("nginx") if call[0] == "-p"]
    assert "-t" in tested and "-t" not in started, "the configuration is judged before it is used"
    assert here.run("instances.sh", "status").returncode == 0
    here.forget()
    assert here.run("instances.sh", "start").returncode == 0
    assert here.docker("run") == [], "what runs is not started again"
    here.set(sick__8003="")
    sick = here.run("instances.sh", "status")
    assert sick.returncode == 1 and "does not answer on port 8003" in sick.stdout
    (here.state / "containers" / "someone-elses").write_text("9\n")
    assert here.run("instances.sh", "stop").returncode == 0
    assert here.containers == ["someone-elses"] and not (here.state / "balancer").exists()
    assert here.run("instances.sh", "status").returncode == 1


def test_preflight_of_a_node_looks_at_all_its_servers(machine: MakeMachine) -> None:
    here = machine("copies")
    assert "`./preflight.sh --node`, then `./instances.sh start`" in (here.plan / "RUNBOOK.md").read_text()
    assert "2 GPUs gfx942, 8 needed" in here.run("preflight.sh", "--node", HF_TOKEN="token").stdout
    amdgpu = here.fake_root / "sys/bus/pci/drivers/amdgpu"
    for bus in range(2, 8):
        shutil.copytree(amdgpu / "0000:00:00.0", amdgpu / f"0000:{bus:02}:00.0")
    here.keep_packages(8)
    done = here.run("preflight.sh", "--node", HF_TOKEN="token")
    assert done.returncode == 0, done.stdout
    assert "8 needed" in done.stdout and all(f"port {8000 + copy} is free" in done.stdout for copy in range(9))
    here.fake("/sys/bus/pci/drivers/amdgpu/0000:05:00.0/mem_info_vram_used", 190 * 2**30)
    with socket.create_server(("127.0.0.1", 8003)):
        done = here.run("preflight.sh", "--node", HF_TOKEN="token", DEVICE="0")
    assert done.returncode == 1 and "FAIL  GPU 5 has" in done.stdout and "FAIL  port 8003 is taken" in done.stdout
    (here.bin / "nginx").unlink()
    assert "FAIL  nginx is missing" in here.run("preflight.sh", "--node").stdout
    alone = here.run("preflight.sh", HF_TOKEN="token")
    assert alone.returncode == 0 and "1 needed" in alone.stdout, "one server needs neither"
    here.serve()
    assert "docker stop" in here.run("preflight.sh", "--node").stdout
    assert here.run("preflight.sh", "--nodes").returncode == 2


def test_without_an_image_no_script_starts_several_servers(tmp_path: Path) -> None:
    made = emission_of(8)
    changed = {"image": "", "serve_argv": ("vllm", "serve", "m", "--host", "127.0.0.1", "--port", "8000")}
    plan = made.file.plan.model_copy(update=changed)
    alone = Emission(made.file.model_copy(update={"plan": plan}), made.profile, 1, ("x",))
    files = render_scripts(alone)
    assert needed_by(alone) == {} and "./instances.sh" not in files["RUNBOOK.md"]
    check_scripts([text for name, text in files.items() if name.endswith(".sh")], tmp_path)


def test_preflight_of_a_node_that_serves_is_content(machine: MakeMachine) -> None:
    here = machine("copies")
    assert here.run("instances.sh", "start").returncode == 0
    done = here.run("preflight.sh", "--node")
    assert done.returncode == 0 and "all 8 servers are already running" in done.stdout
    (here.state / "containers" / here.containers[-1]).unlink()
    done = here.run("preflight.sh", "--node")
    assert done.returncode == 1 and "FAIL  7 of 8 servers run" in done.stdout and "ready" not in done.stdout


@pytest.mark.parametrize("rank", [0, 1])
def test_preflight_of_the_last_node_counts_the_servers_that_are_left(rank: int, tmp_path: Path) -> None:
    """Twelve servers on nodes of eight GPUs: eight on the first, four on the last."""
    here = Machine(tmp_path, emission_of(12))
    here.run("preflight.sh")
    said = here.run("preflight.sh", "--node", NODE_RANK=str(rank)).stdout
    assert f"{(8, 4)[rank]} needed" in said and f"port {8000 + (8, 4)[rank]} is free" in said
    assert f"port {8001 + (8, 4)[rank]}" not in said


def test_a_copy_that_dies_stops_those_that_were_started_with_it(machine: MakeMachine) -> None:
    here = machine("copies")
    here.set(fails="-5")
    done = here.run("instances.sh", "start")
    assert done.returncode == 1 and "server 5 stopped before it answered" in done.stderr
    assert here.containers == [] and not (here.state / "balancer").exists()
    (here.state / "fails").unlink()
    assert here.run("instances.sh", "start", WAVE="3").returncode == 0 and len(here.containers) == 8
    here.run("instances.sh", "stop")


def test_without_nginx_nothing_is_started(machine: MakeMachine) -> None:
    here = machine("copies")
    (here.bin / "nginx").unlink()
    done = here.run("instances.sh", "start")
    assert done.returncode == 1 and "sudo apt install nginx" in done.stderr and here.containers == []


def test_the_node_is_measured_through_the_balancer(machine: MakeMachine) -> None:
    here = machine("copies")
    refused = here.run("instances.sh", "bench")
    assert refused.returncode == 1 and here.results() == []
    here.run("instances.sh", "start")
    here.forget()
    done = here.run("instances.sh", "bench")
    assert done.returncode == 0, done.stderr
    warm_up, client = here.docker("run")
    assert warm_up[warm_up.index("--num-prompts") + 1] == "64" and "--save-result" not in warm_up  # 8 for each copy
    assert client[client.index("--port") + 1] == "8000" and client[client.index("--host") + 1] == "127.0.0.1"
    # 8 copies of 64 requests in flight, 320 prompts each
    assert (
        client[client.index("--max-concurrency") + 1] == "512" and client[client.index("--num-prompts") + 1] == "2560"
    )
    assert len(here.results()) == 1 and here.results()[0].startswith("node-")
    assert here.run("instances.sh", "bench").stdout.startswith("already measured")
    assert here.run("instances.sh", "bench", FORCE="1").returncode == 0
    assert here.docker("run")[-1].count("--seed") == 2, "other prompts: the servers have seen the first ones"
    here.run("instances.sh", "stop")


def test_a_node_serves_behind_another_port_and_address(machine: MakeMachine) -> None:
    """nginx keeps 127.0.0.1 and listens on LISTEN_ADDRESS too; its servers have the ports after PORT."""
    here = machine("copies")
    assert here.run("instances.sh", "start", PORT="9000", LISTEN_ADDRESS="10.0.0.2").returncode == 0
    published = [run[run.index("--publish") + 1] for run in here.docker("run")]
    assert published == [f"127.0.0.1:{9001 + copy}:8000" for copy in range(8)]
    balanced = (here.plan / "instances" / "nginx" / "nginx.conf").read_text()
    assert re.findall(r"listen (.*);", balanced) == ["127.0.0.1:9000", "10.0.0.2:9000"]
    assert re.findall(r"server 127\.0\.0\.1:(\d+) ", balanced) == [str(9001 + copy) for copy in range(8)]
    here.forget()
    assert here.run("instances.sh", "bench").returncode == 0, "the port is known"
    assert all(client[client.index("--port") + 1] == "9000" for client in here.docker("run"))
    # a socket on all addresses cannot be bound beside one on 127.0.0.1: nginx starts anew
    assert here.run("instances.sh", "start", LISTEN_ADDRESS="0.0.0.0").returncode == 0
    balanced = (here.plan / "instances" / "nginx" / "nginx.conf").read_text()
    assert re.findall(r"listen (.*);", balanced) == ["0.0.0.0:9000"]
    assert [call[-1] for call in here.calls("nginx") if "-s" in call] == ["quit"]
    refused = here.run("instances.sh", "start", PORT="8000")
    assert refused.returncode == 1 and "behind port 9000" in refused.stderr
    here.run("instances.sh", "stop")
    assert "port 9008 is free" in here.run("preflight.sh", "--node", PORT="9000").stdout


@pytest.mark.parametrize(
    ("servers", "router", "words"),
    [(8, "least-loaded", ""), (12, "least-loaded", "have 2 such nodes"), (8, "prefix-aware", "--policy cache_aware")],
)
def test_the_runbook_names_the_router_that_the_scripts_lack(servers: int, router: str, words: str) -> None:
    emission = emission_of(servers)
    plan = emission.file.plan
    service = plan.service and plan.service.model_copy(update={"router": router})
    file = emission.file.model_copy(update={"plan": plan.model_copy(update={"service": service})})
    steps = render_scripts(replace(emission, file=file))["RUNBOOK.md"].split("## Run it")[0]
    assert words in steps if words else "router" not in steps


def test_the_node_gets_the_load_of_its_servers_with_lengths_prefix_and_percentiles(tmp_path: Path) -> None:
    load = ("--random-range-ratio", "0.3", "--random-prefix-len", "512", "--request-rate", "20", "--ttft", "2000")
    asked = ("recommend", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "l40s", *load, "-o", str(tmp_path / "plan"))
    assert main(asked) == 0
    sent = {}
    for name in ("benchmark.sh", "instances.sh"):
        lines = commands_in((tmp_path / "plan" / name).read_text())
        line = [words for words in lines if "--random-input-len" in words][-1]
        sent[name] = dict(pairwise(line))
    one, all_of_them = sent.values()
    scaled = {"--num-prompts", "--request-rate", "--burstiness", "--max-concurrency", "--port"}
    alike = {name for name in one if name.startswith("--") and name not in scaled | {"--result-filename"}}
    assert {"--random-prefix-len", "--random-range-ratio", "--metric-percentiles"} <= alike
    assert all(all_of_them.get(name) == one[name] for name in alike if name != "--save-result")
    servers = float(all_of_them["--num-prompts"]) / float(one["--num-prompts"])
    assert servers > 1 and float(all_of_them["--request-rate"]) == pytest.approx(servers * float(one["--request-rate"]))
    # every n-th arrival of a stream has n times its shape, so all of them have one n-th of that
    shape = float(all_of_them.get("--burstiness", 1.0))
    assert float(one["--burstiness"]) > 1 and shape == pytest.approx(float(one["--burstiness"]) / servers)


@pytest.mark.parametrize(
    ("servers", "gpus_each", "nodes"), [(12, 1, [8, 4]), (12, 2, [4, 4, 4]), (9, 4, [2] * 4 + [1])]
)
def test_the_nodes_of_a_plan_start_its_servers_together(
    tmp_path: Path, servers: int, gpus_each: int, nodes: list[int]
) -> None:
    emission = emission_of(servers, gpus_each=gpus_each)
    for rank, count in enumerate(nodes):
        here = Machine(tmp_path / str(rank), emission, {**render_scripts(emission), **needed_by(emission)})
        done = here.run("instances.sh", "start", NODE_RANK=str(rank))
        assert done.returncode == 0, done.stderr
        assert len(here.containers) == count and f"{count} of {count} servers answer" in done.stdout
        balanced = (here.plan / "instances" / "nginx" / "nginx.conf").read_text()
        assert re.findall(r"server 127\.0\.0\.1:(\d+) ", balanced) == [str(8001 + copy) for copy in range(count)]
        assert len(balanced.splitlines()) == len(needed_by(emission)["nginx.conf"].splitlines()) - nodes[0] + count
        if count < nodes[0]:
            assert "run it on the first node" in here.run("instances.sh", "bench", NODE_RANK=str(rank)).stderr
        here.run("instances.sh", "stop", NODE_RANK=str(rank))
        assert not here.containers
    for wrong in (str(len(nodes)), "first", ""):
        refused = here.run("instances.sh", "start", NODE_RANK=wrong)
        assert (refused.returncode == 2) == bool(wrong), refused.stderr
        assert not wrong or f"nodes 0 to {len(nodes) - 1}" in refused.stderr


def test_mig_instances_take_their_devices_by_uuid(machine: MakeMachine) -> None:
    here = machine("copies", model="Qwen/Qwen3-0.6B", gpu="h100-mig-3g.40gb")
    instances = [f"  MIG 3g.40gb     Device  {place}: (UUID: MIG-{name})" for place, name in enumerate("ab")]
    here.set_nvidia("list", ["GPU 0: H100 (UUID: GPU-0)", *instances])
    assert here.run("instances.sh", "start").returncode == 0
    devices = [run[run.index("--gpus") + 1] for run in here.docker("run")]
    assert devices == ['"device=MIG-a"', '"device=MIG-b"']
    here.run("instances.sh", "stop")


# --- an image without a registry ---


def test_a_recommended_plan_for_a_version_without_an_image_builds_one(tmp_path: Path) -> None:
    words = ["recommend", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "mi300x", "--engine-version", "0.6.3"]
    assert main([*words, "-o", str(tmp_path / "plan")]) == 0
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert plan["image"] == "planner/vllm-rocm:0.6.3-2c60adc83981"
    assert "commit=2c60adc83981ada77a77b2adda78ef109d2e2e2b" in (tmp_path / "plan" / "build_image.sh").read_text()
    assert "build_image.sh" in (tmp_path / "plan" / "preflight.sh").read_text()


@pytest.mark.parametrize(
    ("name", "commit", "dockerfile", "arguments"),
    [
        ("nvidia-source", "dc5e4a653c859573dfcca99f1b0141c2db9f94cc", "docker/Dockerfile",
         {"CUDA_VERSION=12.8.1", "nvcc_threads=2", "RUN_WHEEL_CHECK=false", "torch_cuda_arch_list=9.0+PTX 10.0+PTX"}),
        ("build-rocm-0.6.3", "2c60adc83981ada77a77b2adda78ef109d2e2e2b", "Dockerfile.rocm",
         {"BUILD_HIPBLASLT=1", "USE_CYTHON=1"}),
        ("build-rocm-0.9.1", "b432b7a285aa0dcb9677380936ffa74931bb6d6f", "docker/Dockerfile.rocm", set()),
        ("build-rocm-aiter", "913dbc298a50aaa6dd4d5562ffd32562bbad7098", "Dockerfile.rocm", {"USE_CYTHON=1"}),
    ],
)  # fmt: skip
def test_images_are_built_at_the_documents_commit(name: str, commit: str, dockerfile: str, arguments: set[str]) -> None:
    script = files_of(name)["build_image.sh"]
    assert f"commit={commit}\n" in script and f"dockerfile={dockerfile}\n" in script
    (build,) = [words for words in commands_in(script) if words[:2] == ["DOCKER_BUILDKIT=1", "docker"]]
    given = {after for word, after in pairwise(build) if word == "--build-arg"}
    assert given == arguments
    assert saved_plan(name)["image"] == next(b.image for b in builds().values() if b.commit == commit)


def test_an_image_is_built_once_at_its_commit(machine: MakeMachine) -> None:
    here = machine("nvidia-source")
    assert here.run("build_image.sh", MAX_JOBS="4").returncode == 0
    (build,) = here.docker("build")
    assert "max_jobs=4" in build and "vllm-openai" in build
    assert here.calls("git")[-1][2:] == ["checkout", "--quiet", "--detach", "dc5e4a653c859573dfcca99f1b0141c2db9f94cc"]
    here.forget()
    done = here.run("build_image.sh")
    assert "already built" in done.stdout and here.docker("build") == []
    here.run("build_image.sh", FORCE="1")
    assert "--no-cache" in here.docker("build")[0]
