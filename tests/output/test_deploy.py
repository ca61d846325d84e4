"""Deployables: valid for their platforms, exactly the plan, reachable from here only, without a secret."""

import json
import re
import subprocess
import sys
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import refused, run
from deployed import (
    AMD_X16,
    CASES,
    MORE,
    NEW_IMAGE,
    NVIDIA_X16,
    PROMETHEUS,
    SPREAD_X16,
    Host,
    Json,
    composed,
    container_of,
    documents,
    expanded,
    files_of,
    over_two_nodes,
    run_container,
    workload_of,
)
from script_plans import GOLDEN, b200, emission, mig, partition, plan
from shell_checks import check_scripts

from planner.engine.flags import flag_status
from planner.engine.version import parse_version
from planner.errors import IllegalPlanError, InputError, PlannerError
from planner.output.deploy.hosts import FILES, render_deployable
from planner.output.deploy.pods import Site
from planner.output.deploy.yaml_text import dump
from planner.output.scripts.emission import PLACEMENT_VARIABLES, render_scripts
from planner.output.scripts.folder import write_folder
from planner.planning.plan import Plan, PlanFile, Service

HERE = Path(__file__).parents[1]
ALL = {**CASES, **MORE}
BIN = Path(sys.executable).parent
WATCHED = {"ServiceMonitor", "ScaledObject"}
#: Options of sbatch, of its manual page (Slurm 25.05).
SBATCH = {
    "job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "mem-per-gpu", "exclusive", "output",
}  # fmt: skip


def cases(*targets: str) -> list[str]:
    return [case for case, (_, target, _) in ALL.items() if target in targets]


# --- what platforms say of them


@pytest.mark.parametrize("case", ALL)
def test_force_removes_what_another_deployment_left(case: str) -> None:
    assert files_of(case).keys() <= set(FILES)


def test_compose_files_follow_the_specification(tmp_path: Path) -> None:
    paths = []
    for case in cases("compose"):
        paths.append(tmp_path / f"{case.replace('/', '-')}.yaml")
        paths[-1].write_text(files_of(case)["compose.yaml"])
    judged = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", *paths]
    done = subprocess.run(judged, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def pods_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods inside a LeaderWorkerSet, as pods of Kubernetes."""
    template = document["spec"]["leaderWorkerTemplate"]
    specs = [template["leaderTemplate"]["spec"], template["workerTemplate"]["spec"]]
    return [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec} for spec in specs]


@cache
def objects() -> list[dict[str, Any]]:
    """Every object of Kubernetes' own that is rendered, each once; pods for a LeaderWorkerSet."""
    parts = []
    for case in cases("kubernetes", "lws"):
        for document in documents(*files_of(case).values()):
            if document["kind"] not in WATCHED:
                parts += pods_of(document) if document["kind"] == "LeaderWorkerSet" else [document]
    return list({json.dumps(part): part for part in parts}.values())


def test_every_version_of_kubernetes_takes_the_objects_and_no_unknown_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own schemas, from the oldest version that clouds still run to the newest with published schemas."""
    from kubernetes_validate import ValidationError, latest_version, utils, validate  # a second of CPU

    monkeypatch.setattr(utils, "schema_contents", cache(utils.schema_contents))  # else it is read for each object
    service = next(part for part in objects() if part["kind"] == "Service")
    unknown = {**service, "spec": {**service["spec"], "selectors": {}}}
    for minor in range(28, int(latest_version().split(".")[1]) + 1):
        for part in objects():
            validate(part, f"1.{minor}.0", strict=True)
        with pytest.raises(ValidationError):
            validate(unknown, f"1.{minor}.0", strict=True)


def as_read(document: dict[str, Any]) -> Any:
    """The document as the definition of its operator has it; a model drops a field that the definition lacks."""
    from cloudcoil.models.keda.v1alpha1 import ScaledObject  # models of whole operators: seconds of CPU
    from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor

    model = {"ServiceMonitor": ServiceMonitor, "ScaledObject": ScaledObject}[document["kind"]]
    read = model.model_validate(document)
    return read.model_dump(by_alias=True, exclude_unset=True, mode="json")


def watched(case: str) -> dict[str, dict[str, Any]]:
    return {d["kind"]: d for d in documents(*files_of(case).values()) if d["kind"] in WATCHED}


@pytest.mark.parametrize("case", ["b200-x2/scaled", "b200-x16/scaled", "mi355x/monitored"])
def test_operators_take_what_watches_and_scales(case: str) -> None:
    """By models made from the custom resource definitions of KEDA and of the Prometheus operator."""
    found = watched(case)
    assert set(found) == WATCHED - ({"ScaledObject"} if "monitored" in case else set())
    for document in found.values():
        assert as_read(document) == document
        document["spec"]["unknown"] = 1
        assert as_read(document) != document, "a field of no definition is noticed"


def test_servers_are_added_above_the_planned_load() -> None:
    """The B200 plan has 128 requests in flight on a server: the third of them starts at 257."""
    text = files_of("b200-x2/scaled")["kubernetes.yaml"]
    workload, scaled = workload_of(text), watched("b200-x2/scaled")["ScaledObject"]["spec"]
    assert scaled["scaleTargetRef"] == {name: workload[name] for name in ("apiVersion", "kind")} | {
        "name": workload["metadata"]["name"]
    }
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (2, 6)
    assert "replicas" not in workload["spec"], "kubectl apply would undo the scaling"
    (trigger,) = scaled["triggers"]
    assert trigger["metricType"] == "AverageValue" and trigger["metadata"]["threshold"] == "128"
    for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        assert f'{gauge}{{service="{workload["metadata"]["name"]}",namespace="llm"}}' in trigger["metadata"]["query"]
    claim, *_, service, monitor, _ = documents(text)
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    down = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    probe = container_of(workload)["startupProbe"]
    assert down["stabilizationWindowSeconds"] == probe["periodSeconds"] * probe["failureThreshold"]


@pytest.mark.parametrize(
    ("load", "service", "threshold"),
    [
        ({"max_concurrency": 40}, {}, "40"),
        ({"max_concurrency": None, "request_rate": 3.0}, {}, "8"),  # 3 requests/s of 2.5 s each: 7.5 by Little's law
        ({"max_concurrency": None, "request_rate": 3.0}, {"replicas": 5, "spares": 1, "requests_in_flight": 30.5}, "8"),
        (  # 12 requests/s of 4 servers, each of which carries 4: a third more
            {"request_rate": 3.0},
            {"replicas": 5, "spares": 1, "requests_in_flight": 30.0, "request_rate": 12.0, "largest_load": 4.0},
            "10",
        ),
        ({"max_concurrency": None}, {}, "64"),  # as many as the engine takes
    ],
)
def test_the_threshold_is_one_servers_share(load: dict[str, Any], service: dict[str, Any], threshold: str) -> None:
    made, needed = plan(), Service(targets=(), total_gpus=5, packages=5, goodput=1, **{"replicas": 1, **service})
    changed = {"workload": made.workload.model_copy(update=load), "predicted": {"mean_e2el_ms": 2500.0}}
    made = emission(made.model_copy(update=changed | ({"service": needed} if service else {})))
    (text,) = render_deployable(made, "kubernetes", Site(max_replicas=9, prometheus=PROMETHEUS)).values()
    assert documents(text)[-1]["spec"]["triggers"][0]["metadata"]["threshold"] == threshold


@pytest.mark.parametrize("case", cases("lws"))
def test_leader_worker_sets_follow_their_definition(case: str) -> None:
    from jsonschema import Draft202012Validator  # a second of CPU

    (text,) = files_of(case).values()
    for document in documents(text):
        if document["kind"] != "LeaderWorkerSet":
            continue
        found = json.loads((HERE / "schemas" / "leaderworkerset.schema.json").read_text())
        Draft202012Validator.check_schema(found)
        Draft202012Validator(found).validate(document)
        names = {volume["name"] for volume in pods_of(document)[0]["spec"]["volumes"]}
        assert {mount["name"] for mount in container_of(document)["volumeMounts"]} <= names


def test_scripts_are_valid_bash_without_shellcheck_findings(tmp_path: Path) -> None:
    scripts = [text for case in cases("slurm") for text in files_of(case).values()]
    for case in cases("lws"):
        container = container_of(workload_of(files_of(case)["lws.yaml"]))
        scripts.append("#!/usr/bin/env bash\n" + expanded(container["command"][2], {}))
    check_scripts(scripts, tmp_path)


@pytest.mark.parametrize("case", cases("slurm"))
def test_batch_scripts_use_options_of_sbatch(case: str) -> None:
    """They stand before the first command: sbatch reads no further."""
    script = files_of(case)["server.sbatch"]
    lines = script.splitlines()
    asked = [line.removeprefix("#SBATCH --").partition("=")[0] for line in lines if line.startswith("#SBATCH")]
    assert set(asked) <= SBATCH and len(asked) == len(set(asked))
    first_command = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    assert max(n for n, line in enumerate(lines) if line.startswith("#SBATCH")) < first_command


# --- what is started is the plan


ADDED = {
    "mp": [
        "--distributed-executor-backend", "mp", "--nnodes", "2", "--node-rank", "0", "--master-addr", "head.svc",
        "--master-port", "29501",
    ],
    "ray": ["--distributed-executor-backend", "ray"],
    "dp": [
        "--data-parallel-size-local", "8", "--data-parallel-address", "head.svc", "--data-parallel-rpc-port", "13345",
    ],
}  # fmt: skip


def test_exactly_the_planned_server_is_started(tmp_path: Path) -> None:
    """From ``plan.json`` on the disk, through the command, to the words that ``vllm`` gets on each platform."""
    host = Host(tmp_path / "host", programs=("vllm", "ray", "python3", "srun"))
    for made, executor in ((GOLDEN["mi355x"], ""), (GOLDEN["b200-x2"], ""), (AMD_X16, "ray"), (NVIDIA_X16, "mp")):
        folder = tmp_path / made.file.plan.digest
        write_folder(folder, {"plan.json": written(made)}, force=False)
        planned = json.loads((folder / "plan.json").read_text())["serve_argv"]
        own_network = [*without(without(planned, "--host"), "--port"), "--host", "127.0.0.1", "--port"]
        for target in ("compose", "kubernetes") if not executor else ("lws",):
            text = run("deploy", str(folder), "--target", target).out
            if target == "compose":
                (service,) = documents(text)[0]["services"].values()
                assert [composed(word) for word in (*service["entrypoint"], *service["command"])] == planned
            elif executor:
                env = {"LWS_WORKER_INDEX": "0", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "head.svc"}
                started = run_container(host, container_of(workload_of(text)), **env)
                assert started == planned + ADDED[executor]
            else:
                assert run_container(host, container_of(workload_of(text))) == planned
        script = tmp_path / "host" / "server.sbatch"
        script.write_text(run("deploy", str(folder), "--target", "slurm").out)
        host.clean()
        done = host.run("bash", str(script), SLURM_JOB_ID="4711")
        assert done.returncode == 0, done.stderr
        (step,) = host.calls("srun")
        # jobs on parts of a node share its ports; --exclusive ones do not
        assert step[step.index("vllm") :] == [*own_network, "8000" if "--exclusive" in script.read_text() else "8711"]


@pytest.mark.parametrize(
    ("version", "p99_s", "timeout"), [("0.17.1", 10, []), ("0.18.0", 10, ["60"]), ("0.32.0", 200.2, ["201"])]
)
def test_a_stopped_server_finishes_requests_in_flight(version: str, p99_s: float, timeout: list[str]) -> None:
    """vLLM has ``--shutdown-timeout`` from 0.18.0 on (pull request 36666). Its default, 0, aborts the requests."""
    changed = {"engine_version": version, "predicted": b200().predicted | {"p99_e2el_ms": p99_s * 1e3}}
    made = emission(b200().model_copy(update=changed))
    pod = workload_of(render_deployable(made, "kubernetes")["kubernetes.yaml"])["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (composed_file,) = documents(render_deployable(made, "compose", Site(replicas=2))["compose.yaml"])
    server, *others = composed_file["services"].values()
    grace_s = pod["terminationGracePeriodSeconds"]
    for words in (container["args"], server["command"]):
        assert words[len(b200().serve_argv) - 1 :] == ["--shutdown-timeout", *timeout] * bool(timeout)
    assert {one["stop_grace_period"] for one in (server, *others)} == {f"{grace_s}s"}
    assert grace_s > int(container["lifecycle"]["preStop"]["exec"]["command"][1]) + int((*timeout, "60")[0])


def without(argv: list[str], flag: str) -> list[str]:
    at = argv.index(flag)
    return argv[:at] + argv[at + 2 :]


def written(made: Any) -> str:
    """``plan.json`` with the figures that the headers name."""
    figures = {f"{how}_{name}_ms": 1.0 for how in ("mean", "p99") for name in ("ttft", "tpot", "itl", "e2el")}
    predicted = {"output_throughput": 1000.0, "output_throughput_per_gpu": 500.0, **figures}
    changed = made.file.plan.model_copy(
        update={"predicted": predicted, "memory": {"checkpoint_bytes": made.checkpoint_bytes}}
    )
    return made.file.model_copy(update={"plan": changed}).to_json()


def test_each_node_starts_its_data_parallel_ranks(tmp_path: Path) -> None:
    """As vLLM's page on data-parallel deployment starts 8 of 16 ranks on each of two nodes."""
    host = Host(tmp_path, programs=("vllm",))
    groups = workload_of(render_deployable(SPREAD_X16, "lws")["lws.yaml"])["spec"]["leaderWorkerTemplate"]
    planned = list(SPREAD_X16.file.plan.serve_argv)
    for rank, (member, more) in enumerate(
        (("leaderTemplate", []), ("workerTemplate", ["--headless", "--data-parallel-start-rank", "8"]))
    ):
        (container,) = groups[member]["spec"]["containers"]
        env = {"LWS_WORKER_INDEX": str(rank), "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "head.svc"}
        assert run_container(host, container, **env) == [*planned, *ADDED["dp"], *more]


@pytest.mark.parametrize(("made", "executor"), [(AMD_X16, "ray"), (NVIDIA_X16, "mp"), (SPREAD_X16, "dp")])
def test_what_joins_the_nodes_is_known_to_the_version(made: Any, executor: str) -> None:
    version = parse_version(made.file.plan.engine_version)
    for word in [*ADDED[executor], *(["--headless"] if executor != "ray" else [])]:
        assert not word.startswith("--") or flag_status(version, word)


def test_the_other_nodes_join_the_head(tmp_path: Path) -> None:
    host = Host(tmp_path, programs=("vllm", "ray", "python3"))
    env = {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "head.svc", "VLLM_HOST_IP": "10.1.2.3"}
    worker = workload_of(render_deployable(NVIDIA_X16, "lws")["lws.yaml"])["spec"]["leaderWorkerTemplate"][
        "workerTemplate"
    ]
    (container,) = worker["spec"]["containers"]
    started = run_container(host, container, **env)
    at = started.index("--node-rank")
    assert started[at : at + 2] == ["--node-rank", "1"] and started[-1] == "--headless"
    worker = workload_of(render_deployable(AMD_X16, "lws")["lws.yaml"])["spec"]["leaderWorkerTemplate"][
        "workerTemplate"
    ]
    (container,) = worker["spec"]["containers"]
    variables = {v["name"]: v["value"] for v in container["env"] if "value" in v}
    host.clean()
    done = host.run(*(expanded(w, {}) for w in (*container["command"], *container["args"])), **variables, **env)
    assert done.returncode == 0, done.stderr
    assert host.calls("ray") == [
        ["start", "--address", "head.svc:6379", "--block", "--num-gpus", "8", "--disable-usage-stats",
         "--node-ip-address", "10.1.2.3"],
    ]  # fmt: skip
    assert host.calls("vllm") == []


@pytest.mark.parametrize("case", cases("compose", "kubernetes", "lws"))
def test_image_and_variables_are_the_plans(case: str) -> None:
    """Which GPUs are used is the platform's to say; all else of ``env`` is there and unchanged."""
    made = ALL[case][0].file.plan
    text = next(content for name, content in files_of(case).items() if name.endswith(".yaml"))
    planned = {name: value for name, value in made.env.items() if name not in PLACEMENT_VARIABLES}
    if "compose" in case:
        services = {k: v for k, v in documents(text)[0]["services"].items() if k != "balancer"}
        variables = [
            (s["image"], {k: v for k, v in s["environment"].items() if v is not None}) for s in services.values()
        ]
    else:
        container = container_of(workload_of(text))
        variables = [(container["image"], {v["name"]: v["value"] for v in container["env"] if "value" in v})]
    for image, given in variables:
        assert image == made.image
        ours = {"HF_HOME", *PLACEMENT_VARIABLES, "HEAD_PORT", "NODE_GPUS", "LOCAL_RANKS", "START_TIMEOUT_S"}
        # API servers wait 600 s for DP ranks (vLLM 0.14.0, envs.py), and the first start downloads 72.6 GB
        limit = {"VLLM_ENGINE_READY_TIMEOUT_S": "1680"} if "dp16" in case else {}
        assert {k: v for k, v in given.items() if k not in ours} == planned | limit


@pytest.mark.parametrize(("made", "target"), [(b200(), "compose"), (b200(), "kubernetes"), (NVIDIA_X16, "lws")])
def test_an_image_is_pinned_by_its_digest(made: Any, target: str) -> None:
    digest = "mirror.example:5000/vllm/vllm-openai@sha256:" + "0123456789abcdef" * 4
    made = made if target == "lws" else emission(made)
    text = next(iter(render_deployable(made, target, Site(image=digest)).values()))
    assert f'image: "{digest}"' in text and f'image: "{made.file.plan.image}"' not in text


# --- GPUs


@pytest.mark.parametrize(
    ("case", "resource", "count"),
    [
        ("mi355x/kubernetes", "amd.com/gpu", 1),
        ("b200-x2/kubernetes", "nvidia.com/gpu", 2),
        ("mi355x-x16/lws", "amd.com/gpu", 8),
        ("b200-x16/lws", "nvidia.com/gpu", 8),
        ("cpx/kubernetes", "amd.com/cpx_nps4", 1),  # as AMD's device plugin prints it, strategy mixed
        ("mig/kubernetes", "nvidia.com/mig-3g.40gb", 1),  # as NVIDIA's does
    ],
)
def test_gpus_are_asked_for_by_the_names_of_the_device_plugins(case: str, resource: str, count: int) -> None:
    (text,) = files_of(case).values()
    limits = container_of(workload_of(text))["resources"]["limits"]
    assert limits[resource] == count and set(limits) == {resource, "memory", "ephemeral-storage"}


def test_a_cluster_may_call_them_otherwise() -> None:
    text = render_deployable(GOLDEN["h100-mig"], "kubernetes", Site(gpu_resource="nvidia.com/gpu"))["kubernetes.yaml"]
    assert container_of(workload_of(text))["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_copies_under_compose_share_no_gpu() -> None:
    services = documents(files_of("cpx/compose")["compose.yaml"])[0]["services"]
    assert [services[f"vllm-{n}"]["environment"]["HIP_VISIBLE_DEVICES"] for n in range(64)] == list(map(str, range(64)))
    services = documents(files_of("b200-x2/compose-x4")["compose.yaml"])[0]["services"]
    ids = [services[f"vllm-{n}"]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for n in range(4)]
    assert ids == [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]
    services = documents(files_of("mig/compose")["compose.yaml"])[0]["services"]
    (first,) = services["vllm-0"]["deploy"]["resources"]["reservations"]["devices"]
    assert first["device_ids"] == ["${MIG_0_0:?UUID of a MIG instance, see nvidia-smi -L}"]


def test_the_balancer_knows_every_copy() -> None:
    files = files_of("mi355x/compose-x8")
    servers = re.findall(r"^ +server (\S+) max_fails", files["nginx.conf"], re.MULTILINE)
    document = documents(files["compose.yaml"])[0]["services"]
    assert servers == [f"vllm-{n}:8000" for n in range(8)]
    # vLLM closes an idle connection after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE): nginx has to do so first
    assert [int(s) < 5 for s in re.findall(r"keepalive_timeout (\d+)s;", files["nginx.conf"])] == [True]
    assert set(document["balancer"]["depends_on"]) == {f"vllm-{n}" for n in range(8)}
    assert [name for name, service in document.items() if "ports" in service] == ["balancer"]


# --- safety


@pytest.mark.parametrize("case", ALL)
def test_nothing_is_privileged_public_or_secret(case: str) -> None:
    _, target, site = ALL[case]
    files = files_of(case)
    text = "".join(files.values())
    assert "privileged: true" not in text and "--privileged" not in text and "hostNetwork" not in text
    if site.host == "127.0.0.1":
        composed_files = documents(files["compose.yaml"]) if "compose.yaml" in files else []
        services = [service for document in composed_files for service in document["services"].values()]
        published = [port for service in services for port in service.get("ports", ())]
        assert all(port["host_ip"] == "127.0.0.1" for port in published)
        if target == "slurm":
            assert "--host 0.0.0.0" not in text and "--host 127.0.0.1" in text
    for line in text.splitlines():
        if "HF_TOKEN" in line and not line.startswith("#"):
            assert not re.search(r"HF_TOKEN=(?!FILE)", line), line


@pytest.mark.parametrize("case", cases("kubernetes", "lws"))
def test_the_token_is_a_reference(case: str) -> None:
    container = container_of(workload_of(*files_of(case).values()))
    (token,) = [v for v in container["env"] if v["name"] == "HF_TOKEN"] or [None]
    if not ALL[case][2].hf_secret:
        assert token is None
        return
    assert set(token) == {"name", "valueFrom"}
    reference = token["valueFrom"]["secretKeyRef"]
    (key,) = [v["valueFrom"]["secretKeyRef"] for v in container["env"] if v["name"] == "VLLM_API_KEY"]
    assert key == {"name": "hf-token", "key": "VLLM_API_KEY", "optional": True}
    assert reference["name"] == "hf-token" and reference["optional"] is (ALL[case][0].file.plan.gated is not True)


def test_a_token_in_the_plan_is_refused() -> None:
    leak = emission(plan(env={"HF_TOKEN": "hf_" + "a" * 30}))
    for target in ("compose", "kubernetes", "slurm"):
        with pytest.raises(InputError, match="token"):
            render_deployable(leak, target)


def test_what_the_plan_asks_of_docker_is_asked_for_elsewhere() -> None:
    args = (
        "--gpus",
        "2",
        "--device=/dev/fuse",
        "--group-add",
        "44",
        "--security-opt",
        "seccomp=unconfined",
        "--ipc=host",
    )
    made = emission(b200().model_copy(update={"docker_args": args}))
    security = container_of(workload_of(render_deployable(made, "kubernetes")["kubernetes.yaml"]))["securityContext"]
    assert "seccompProfile" not in security
    (service,) = documents(render_deployable(made, "compose")["compose.yaml"])[0]["services"].values()
    assert service["devices"] == ["/dev/fuse:/dev/fuse"] and service["group_add"] == ["44"]
    assert "seccomp=unconfined" in service["security_opt"] and service["shm_size"] == "8g"


def test_no_more_is_lifted_than_several_amd_gpus_need() -> None:
    """AMD's documents switch seccomp off for RCCL; for one GPU, and elsewhere, the runtime's filter stays."""
    for made, target, seccomp in (
        (GOLDEN["mi355x"], "kubernetes", {"type": "RuntimeDefault"}),
        (GOLDEN["b200-x2"], "kubernetes", {"type": "RuntimeDefault"}),
        (AMD_X16, "lws", None),
    ):
        (text,) = render_deployable(made, target).values()
        security = container_of(workload_of(text))["securityContext"]
        assert security.get("seccompProfile") == seccomp and ("left to the node" in text) == (seccomp is None)
        assert security["allowPrivilegeEscalation"] is False and security["capabilities"] == {"drop": ["ALL"]}
    (service,) = documents(files_of("mi355x/compose")["compose.yaml"])[0]["services"].values()
    assert service["security_opt"] == ["no-new-privileges:true"] and service["shm_size"] == "8g"
    assert "ipc" not in service and service["volumes"][0]["target"] == "/huggingface/hub", "not the token beside it"


#: Capabilities that may be added under 'baseline' (Kubernetes, Pod Security Standards).
BASELINE = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip


def admitted_by(pod: Json) -> str:
    """The strictest Pod Security Standard that admits a pod, by the tables of Kubernetes's documentation."""
    (container,) = pod["containers"]
    own, all_of = container["securityContext"], pod.get("securityContext", {})
    seccomp = own.get("seccompProfile", all_of.get("seccompProfile", {})).get("type")
    added = set(own["capabilities"].get("add", ()))
    folders = any("hostPath" in volume for volume in pod["volumes"])
    if own["privileged"] or added - BASELINE or folders or seccomp == "Unconfined":
        return "privileged"
    restricted = (
        own["allowPrivilegeEscalation"] is False
        and own["capabilities"]["drop"] == ["ALL"]
        and added <= {"NET_BIND_SERVICE"}
        and all_of.get("runAsNonRoot") is True
        and all_of.get("runAsUser") != 0
        and seccomp in ("RuntimeDefault", "Localhost")
    )
    return "restricted" if restricted else "baseline"


FOLDER = NEW_IMAGE.file.plan.model_copy(
    update={"model": "/m", "serve_argv": ("vllm", "serve", "/m", "--host", "0.0.0.0")}
)


@pytest.mark.parametrize(
    ("made", "target", "site", "standard"),
    [
        (NEW_IMAGE, "kubernetes", Site(), "restricted"),
        (NEW_IMAGE, "kubernetes", Site(image=f"mirror.example/vllm@sha256:{'0' * 64}"), "restricted"),
        (NEW_IMAGE, "kubernetes", Site(as_root=True), "baseline"),
        (over_two_nodes(NEW_IMAGE.file.plan), "lws", Site(), "restricted"),
        (over_two_nodes(NEW_IMAGE.file.plan), "lws", Site(rdma_resource="rdma/hca"), "privileged"),
        (emission(FOLDER), "kubernetes", Site(), "privileged"),
        (GOLDEN["b200-x2"], "kubernetes", Site(), "baseline"),
        (GOLDEN["mi355x"], "kubernetes", Site(), "baseline"),
        (AMD_X16, "lws", Site(), "baseline"),
    ],
)
def test_pods_are_admitted_by_the_pod_security_standard_that_the_file_names(
    made: Any, target: str, site: Site, standard: str
) -> None:
    """vLLM's images for NVIDIA have a user from 0.23 on; it writes into volumes alone."""
    (text,) = render_deployable(made, target, site).values()
    spec = workload_of(text)["spec"]
    templates = spec.get("leaderWorkerTemplate", {"one": spec.get("template")})
    pods = [part["spec"] for part in templates.values() if isinstance(part, dict)]
    assert {admitted_by(pod) for pod in pods} == {standard}
    said = "'baseline' refuses" if standard == "privileged" else f"'{standard}' admits"
    assert said in text
    for pod in pods if standard == "restricted" else ():
        assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
        assert {"/tmp", "/home/vllm", "/dev/shm"} < {one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
        assert pod["securityContext"]["fsGroup"] == 0 == pod["securityContext"]["runAsGroup"]


def test_pods_reserve_what_they_need_and_weights_lie_on_a_claim() -> None:
    """72.6 GB are 67.6 GiB: 68 of weights, 32 for a GPU and 8 shared; the claim has a fifth more and 1 GiB."""
    claim, deployment, _ = documents(files_of("mi355x/kubernetes")["kubernetes.yaml"])
    assert claim["spec"]["resources"] == {"requests": {"storage": "83Gi"}}
    resources = container_of(deployment)["resources"]
    assert resources["limits"] == {"amd.com/gpu": 1, "memory": "108Gi", "ephemeral-storage": "20Gi"}
    assert resources["requests"] == {"cpu": "4", "memory": "8Gi", "ephemeral-storage": "20Gi"}
    (text,) = render_deployable(GOLDEN["mi355x"], "kubernetes", Site(cache="emptydir")).values()
    assert 'sizeLimit: "83Gi"' in text and 'ephemeral-storage: "103Gi"' in text


@pytest.mark.parametrize("made", [partition(), b200(), mig("h100-mig-1g.10gb")], ids=["cpx", "whole", "mig"])
def test_partitions_ask_for_their_part_of_a_node(made: Plan) -> None:
    """64 CPX partitions on the 96 CPUs and 1,850 GiB of a node (Azure ND MI300X v5), 56 MIG instances on ND H100 v5."""
    offloading = made.model_copy(update={"serve_argv": (*made.serve_argv, "--cpu-offload-gb", "10")})
    manifests = (render_deployable(emission(one), "kubernetes")["kubernetes.yaml"] for one in (made, offloading))
    plain, pinned = (container_of(workload_of(text))["resources"]["requests"] for text in manifests)
    parts = 1 if made.gpu == "b200-sxm" else made.gpus_per_node // 8
    assert plain["cpu"] == str(max(4 * made.num_gpus // parts, 1)) and int(plain["cpu"]) * 8 * parts <= 96
    assert pinned["memory"] == f"{(8 + 10) * made.num_gpus}Gi"  # vLLM pins what it offloads of each GPU
    job = render_deployable(emission(made, checkpoint_bytes=16_000_000_000), "slurm")["server.sbatch"]
    words = dict(re.findall(r"#SBATCH --([a-z-]+)=(\d+)", job))
    assert int(words["cpus-per-task"]) * made.gpus_per_node <= 96 * made.num_gpus
    assert int(words["mem-per-gpu"]) * made.gpus_per_node <= 1850


def test_nodes_get_their_network_adapters() -> None:
    (text,) = render_deployable(NVIDIA_X16, "lws", Site(rdma_resource="rdma/hca")).values()
    container = container_of(workload_of(text))
    assert container["resources"]["limits"]["rdma/hca"] == 1
    (text,) = render_deployable(NVIDIA_X16, "lws", Site(rdma_resource="rdma/hca=8")).values()
    assert container_of(workload_of(text))["resources"]["limits"]["rdma/hca"] == 8
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert "--rdma-resource" in "".join(files_of("b200-x16/lws").values())


@pytest.mark.parametrize(("target", "servers"), [("kubernetes", 5), ("compose", 4), ("slurm", 1)])
def test_as_many_servers_are_deployed_as_the_plan_needs(target: str, servers: int) -> None:
    needed = Service(targets=(), replicas=5, total_gpus=10, packages=10, goodput=1)
    made = emission(b200().model_copy(update={"service": needed}))
    text = next(iter(render_deployable(made, target).values()))
    assert f"takes 5 servers, this starts {servers}" in text
    if target == "kubernetes":
        assert workload_of(text)["spec"]["replicas"] == 5
    if target == "compose":
        assert len(documents(text)[0]["services"]) == 5, "one of them the balancer"
        assert "; start it 2 times, on a node each, the last with --replicas 1" in text


def test_a_deployment_of_fewer_servers_than_needed_says_so(tmp_path: Path) -> None:
    router = {"router": "least-loaded"}
    needed = Service(targets=(), request_rate=5, replicas=5, total_gpus=10, packages=10, goodput=1, **router)
    made = emission(b200().model_copy(update={"service": needed}))
    write_folder(tmp_path / "plan", {"plan.json": written(made)}, force=False)
    told = run("deploy", f"{tmp_path / 'plan'}", "--target", "slurm")
    said = " ".join(told.err.split())
    assert "note: slurm: the load of the plan takes 5 servers, this starts 1" in said
    assert "note: slurm: planned with a least-loaded router: least_conn of nginx" in said


def test_start_up_time_follows_the_weights() -> None:
    """900 s, and 10 s for each GB: 72.6 GB take 1626 s, in whole minutes 1680; 13.5 GB take 1035, that is 1080."""
    for name, seconds in (("mi355x", 1680), ("mi300x-cpx-nps4", 1080)):
        probe = container_of(workload_of(render_deployable(GOLDEN[name], "kubernetes")["kubernetes.yaml"]))[
            "startupProbe"
        ]
        assert probe["periodSeconds"] * probe["failureThreshold"] == seconds
        (service,) = documents(render_deployable(GOLDEN[name], "compose")["compose.yaml"])[0]["services"].values()
        assert service["healthcheck"]["start_period"] == f"{seconds}s"


# --- refusals


@pytest.mark.parametrize(
    ("made", "target", "site", "said"),
    [
        (GOLDEN["mi355x"], "nomad", Site(), "unknown target"),
        (GOLDEN["mi355x"], "lws", Site(), "on one node"),
        (GOLDEN["mi355x"], "compose", Site(replicas=9), "holds 8"),
        (GOLDEN["mi355x"], "compose", Site(namespace="llm"), "--namespace has no effect"),
        (GOLDEN["mi355x"], "kubernetes", Site(host="0.0.0.0"), "--host has no effect"),
        (GOLDEN["mi355x"], "slurm", Site(nodes=3), "--nodes 3"),
        (GOLDEN["mi355x"], "slurm", Site(image="a/b"), "--image has no effect"),
        (GOLDEN["mi355x"], "compose", Site(prometheus=PROMETHEUS), "--prometheus has no effect"),
        (GOLDEN["mi355x"], "kubernetes", Site(replicas=3, max_replicas=2, prometheus=PROMETHEUS), "less than 3"),
        (GOLDEN["mi355x"], "slurm", Site(tolerations=("a",)), "--toleration has no effect"),
        (AMD_X16, "compose", Site(), "spread over 2"),
        (AMD_X16, "kubernetes", Site(), "spread over 2"),
        (AMD_X16, "slurm", Site(nodes=1), "a node has 8 GPUs"),
        (over_two_nodes(plan(), data_parallel_size=2), "lws", Site(), "a rank of 8 x 2 GPUs"),
        (emission(plan(docker_args=("--mount", "a"))), "compose", Site(), "--mount"),
        (emission(plan(docker_args=("--network", "host"))), "kubernetes", Site(), "--network host"),
        (emission(plan(image="a b")), "compose", Site(), "name of an image"),
        (emission(plan(env={"A B": "1"})), "compose", Site(), "name of a variable"),
        (emission(plan(gpu="cpu", platform="cpu", image="", docker_args=())), "compose", Site(), "no container image"),
        (emission(plan(model="/a:b", serve_argv=("vllm", "serve", "/a:b"))), "slurm", Site(), "colon"),
        (emission(plan(model="/a:b", serve_argv=("vllm", "serve", "/a:b"))), "kubernetes", Site(), "colon"),
        (emission(partition(num_gpus=2)), "slurm", Site(nodes=2), "partitions"),
    ],
)
def test_what_cannot_be_deployed_is_refused(made: Any, target: str, site: Site, said: str) -> None:
    with pytest.raises(PlannerError, match=re.escape(said)) as refused:
        render_deployable(made, target, site)
    assert refused.value.hint


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "Upper"}, {"name": "a" * 51}, {"namespace": "a.b"}, {"replicas": 0}, {"port": 0}, {"port": 65536},
        {"host": "localhost"}, {"host": "127.0.0.1:80"}, {"host": ""}, {"host": "256.0.0.1"},
        {"host": "1.2.3.04"}, {"host": "1.2.3"}, {"hf_secret": "A"}, {"cache": "disk"}, {"cache": "claim/"},
        {"gpu_resource": "a b"}, {"tolerations": ("a:Never",)}, {"tolerations": ("a b",)}, {"node_selector": ("a",)},
        {"name": "a\nb: c"}, {"max_replicas": 2}, {"max_replicas": 0, "prometheus": PROMETHEUS},
        {"prometheus": "prometheus:9090"}, {"image": "a b"}, {"image": "-v"}, {"rdma_resource": "rdma/hca=0"},
    ],
)  # fmt: skip
def test_a_site_is_refused_before_anything_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        Site(**wrong)
    assert refused.value.cause.startswith("--") and refused.value.hint


def test_tolerations_and_labels_are_those_of_kubernetes() -> None:
    site = Site(tolerations=("a.b/c", "team=llm", "k=v:NoSchedule", "x:NoExecute"), node_selector=("a.b/c=d", "e="))
    assert list(site.taints()) == [
        {"key": "a.b/c", "operator": "Exists"},
        {"key": "team", "operator": "Equal", "value": "llm"},
        {"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"},
        {"key": "x", "operator": "Exists", "effect": "NoExecute"},
    ]
    assert site.node_labels() == {"a.b/c": "d", "e": ""}


# --- the command


def folder_of(tmp_path: Path, name: str = "mi355x") -> Path:
    write_folder(tmp_path / "plan", {"plan.json": written(GOLDEN[name])}, force=False)
    return tmp_path / "plan"


def test_a_single_file_is_printed_and_several_are_written(tmp_path: Path) -> None:
    plan_folder, out = folder_of(tmp_path), tmp_path / "out"
    printed = run("deploy", str(plan_folder), "--target", "kubernetes", "--replicas", "3")
    assert printed.status == 0 and workload_of(printed.out)["spec"]["replicas"] == 3
    assert "-o OUT" in refused("deploy", str(plan_folder), "--target", "compose", "--replicas", "8")
    both = ("deploy", str(plan_folder), "--target", "compose", "--target", "slurm", "-o", str(out))
    assert run(*both).status == 0
    assert {str(p.relative_to(out)) for p in out.rglob("*.*")} == {"compose/compose.yaml", "slurm/server.sbatch"}
    assert run(*both).status == 2
    assert run(*both, "--force").status == 0


def test_the_folder_of_a_plan_stays_as_it_is(tmp_path: Path) -> None:
    plan_folder = folder_of(tmp_path)
    assert "folder of a plan" in refused(
        "deploy", str(plan_folder), "--target", "compose", "-o", str(plan_folder), "--force"
    )
    assert [p.name for p in plan_folder.iterdir()] == ["plan.json"]


def test_bad_input_has_a_cause_and_a_hint(tmp_path: Path) -> None:
    plan_folder = folder_of(tmp_path)
    for words in (
        (str(tmp_path / "none"), "--target", "compose"),
        (str(plan_folder), "--target", "compose", "--namespace", "a"),
        (str(plan_folder), "--target", "kubernetes", "--name", "A"),
    ):
        done = run("deploy", *words)
        assert done.status == 2 and "hint:" in done.err and not done.out
    assert run("deploy", str(plan_folder), "--target", "nomad").status == 2
    changed = plan_folder / "plan.json"
    as_it_was = changed.read_text()
    for broken, cause in (
        (
            as_it_was.replace('"output_throughput": ', '"output_throughput": "fast", "was": '),
            "predicted.output_throughput is 'fast', not a number",
        ),
        ('{"a": 1}', "planner_version is missing"),
    ):
        assert broken != as_it_was
        changed.write_text(broken)
        done = run("deploy", str(plan_folder), "--target", "compose")
        assert done.status == 2 and cause in done.err and "pydantic" not in done.err
    changed.write_text(as_it_was)
    changed.write_text(changed.read_text().replace('"--max-num-seqs",\n    "64"', '"--max-num-seqs",\n    "65"'))
    assert "digest" in refused("deploy", str(plan_folder), "--target", "compose")


def test_plans_are_read_as_they_were_written() -> None:
    file = GOLDEN["mi355x"].file
    assert PlanFile.from_json(file.to_json()) == file


# --- YAML


@pytest.mark.parametrize(
    "word", ["1e3", "0o7", "0x1F", "no", "Y", "n", "null", "~", "12:30", "1_000", ".inf", "=", "<<", ""]
)
def test_words_that_readers_take_for_something_else_are_quoted(word: str) -> None:
    (line,) = dump([word]).splitlines()
    assert line == f'- "{word}"'


def test_yaml_is_dumped_for_every_kind_of_value() -> None:
    value = {"a": [1, True, None, "x", {"b": []}], "c": {"d": {}}}
    assert yaml.safe_load(dump(value)) == value


@pytest.mark.parametrize("target", ["compose", "kubernetes", "slurm"])
def test_a_deployment_without_adapters_says_so(target: str) -> None:
    """``vllm serve --enable-lora`` starts without one; its requests then skip the kernels that were predicted."""
    adapted = emission(b200().model_copy(update={"serve_argv": (*b200().serve_argv, "--enable-lora")}))
    for made, told in ((adapted, True), (emission(b200()), False)):
        text = "".join(render_deployable(made, target).values())
        assert ("# no LoRA adapter is served: add --lora-modules NAME=PLACE ..." in text) is told


def test_an_illegal_port_of_the_plan_is_refused() -> None:
    made = emission(plan(serve_argv=("vllm", "serve", "m", "--host", "0.0.0.0", "--port", "80 80")))
    with pytest.raises(IllegalPlanError, match="port"):
        render_deployable(made, "compose")


@pytest.mark.parametrize("made", [b200(), plan()])
def test_host_memory_for_kv_blocks_is_looked_for_and_given_to_pods(made: Plan, tmp_path: Path) -> None:
    asked = emission(made.model_copy(update={"serve_argv": (*made.serve_argv, "--kv-offloading-size", "100")}))
    manifest = render_deployable(asked, "kubernetes")["kubernetes.yaml"]
    assert 'sizeLimit: "108Gi"' in manifest  # 8 as for any server, and what the blocks take
    limit = re.search(r'memory: "(\d+)Gi"', manifest)
    job = render_deployable(asked, "slurm")["server.sbatch"]
    per_gpu = re.search(r"--mem-per-gpu=(\d+)G", job)  # Slurm counts in GiB
    assert limit and per_gpu and int(per_gpu[1]) == ceil(int(limit[1]) / asked.file.plan.num_gpus)
    scripts = render_scripts(asked)
    assert "host_kv_mib=102400" in scripts["preflight.sh"]
    assert ("/dev/shm" in scripts["preflight.sh"]) == (made.platform == "cuda")
    assert "--kv-offloading-size 100" in scripts["launch.sh"]
    check_scripts([scripts["preflight.sh"]], tmp_path)
