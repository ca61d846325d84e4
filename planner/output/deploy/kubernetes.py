"""Pods on Kubernetes: a Deployment or a LeaderWorkerSet, from the objects in ``templates/deploy/kubernetes.yaml``."""

from __future__ import annotations

from math import ceil
from typing import Any

from planner.errors import IllegalPlanError
from planner.output.deploy.pods import RESERVED_CPUS_PER_GPU, RESERVED_GIB_PER_GPU, SCRATCH_GIB, Pods
from planner.output.deploy.yaml_text import Json, Script, commented, dump, escape_dollars, escape_words, fill
from planner.output.scripts.emission import (
    JOIN_WORDS,
    MODEL_CACHE,
    host_kv_gib,
    join_numbers,
    node_script,
)

TOKEN_KEY = "HF_TOKEN"  # a key of a Secret, and the name of the variable
_LWS_LABEL = "leaderworkerset.sigs.k8s.io"
_OWN_ADDRESS = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def kubernetes(pods: Pods) -> dict[str, str]:
    """A Deployment and the Service in front of it."""
    pods.require_one_node("a Deployment")
    names = {"labels": _labels(pods), "deadline_s": pods.start_timeout_s + 600, "pod": _pod(pods, _container(pods))}
    title = "Kubernetes: a Deployment of the planned server, and the Service in front of it."
    deployment = _object(pods, "apps/v1", "Deployment", _fill("deployment", replicas=pods.replicas, **names))
    return {"kubernetes.yaml": _file(pods, title, deployment, _service(pods, _labels(pods)))}


def lws(pods: Pods) -> dict[str, str]:
    """A LeaderWorkerSet: each group of pods is one server over several nodes."""
    join = pods.require_several_nodes()
    leader = _member(pods)
    worker = {key: value for key, value in leader.items() if key != "ports" and not key.endswith("Probe")}
    spec = _fill(
        "leader_worker_set", replicas=pods.replicas, nodes=pods.nodes, labels=_labels(pods),
        leader=_pod(pods, leader), worker=_pod(pods, worker),
    )  # fmt: skip
    group = _object(pods, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)
    leaders = {f"{_LWS_LABEL}/name": pods.name, f"{_LWS_LABEL}/worker-index": "0"}
    title = f"LeaderWorkerSet: the planned server over {pods.nodes} nodes, joined by {JOIN_WORDS[join]}."
    return {"lws.yaml": _file(pods, title, group, _service(pods, leaders))}


# --- objects


def _fill(template: str, **names: Any) -> Json:
    return fill("kubernetes.yaml", template, names)


def _file(pods: Pods, title: str, *objects: Json) -> str:
    claims = []
    if pods.site.cache == "pvc":
        mode = "ReadWriteMany" if pods.replicas * pods.nodes > 1 else "ReadWriteOnce"  # pods on nodes share it
        spec = _fill("claim", access_mode=mode, size=f"{pods.cache_gib}Gi")
        claims = [_object(pods, "v1", "PersistentVolumeClaim", spec, name=f"{pods.name}-models")]
    documents = [dump(one) for one in (*claims, *objects)]
    return commented(pods.header(title, *_remarks(pods))) + "---\n" + "---\n".join(documents)


def _labels(pods: Pods) -> dict[str, str]:
    return {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": pods.name}


def _object(pods: Pods, version: str, kind: str, spec: Json, *, name: str = "", **metadata: object) -> Json:
    namespace = {"namespace": pods.site.namespace} if pods.site.namespace else {}
    labels = {**_labels(pods), "planner/plan": pods.plan.digest}
    meta = {"name": name or pods.name, **namespace, "labels": labels, **metadata}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def _service(pods: Pods, selector: dict[str, str]) -> Json:
    spec = _fill("service", selector=selector, service_port=pods.site.port, port=pods.port)
    return _object(pods, "v1", "Service", spec)


def _remarks(pods: Pods) -> list[str]:
    site, profile, lines = pods.site, pods.emission.profile, []
    if site.hf_secret:
        need = "The model is gated: first" if pods.plan.gated is True else "If the hub asks for a token, first"
        space = f" --namespace {site.namespace}" if site.namespace else ""
        lines += [
            f"{need} create the Secret {site.hf_secret} from a file that holds only the token:",
            f"  kubectl{space} create secret generic {site.hf_secret} --from-file={TOKEN_KEY}=FILE",
        ]
    lines.append("The image runs as root and writes into itself, which Pod Security 'restricted' refuses.")
    if pods.unconfined:
        lines.append(
            "For several GPUs AMD's documents switch seccomp off (Unconfined), which Pod Security 'baseline' refuses."
        )
    if site.cache == "pvc" and pods.replicas * pods.nodes > 1:
        lines.append("Pods share the volume of the models: the storage class has to offer ReadWriteMany.")
    if pods.nodes > 1 and not site.rdma_resource:
        lines.append("Pods reach each other by TCP; for RDMA name its resource with planner deploy --rdma-resource.")
    asked = f"Pods request GPUs as {gpu_resource(pods)}"
    plugin = "AMD's device plugin" if profile.vendor == "amd" else "NVIDIA's device plugin"
    if site.gpu_resource or profile.partition is None:
        return [*lines, f"{asked}, which {plugin} offers."]
    return [
        *lines,
        f"{asked}: {plugin} with the strategy 'mixed' offers them under this name.",
        "The strategy 'single' gives them the name of whole GPUs: use planner deploy --gpu-resource.",
    ]


# --- the pod


def _pod(pods: Pods, container: Json) -> Json:
    claim = pods.site.cache.partition("/")[2] or f"{pods.name}-models"
    claimed: Json = {"persistentVolumeClaim": {"claimName": claim}}
    on_disk: Json = {"emptyDir": {"sizeLimit": f"{pods.cache_gib}Gi"}}
    volumes: list[Json] = [
        {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{pods.shm_gib}Gi"}},
        {"name": "models", **(on_disk if pods.site.cache == "emptydir" else claimed)},
    ]
    if pods.model_folder:
        volumes.append({"name": "model", "hostPath": {"path": pods.model_folder, "type": "Directory"}})
    where = {"node_selector": pods.site.node_labels() or None, "tolerations": list(pods.site.taints()) or None}
    return _fill("pod", **where, container=container, volumes=volumes)


def _container(pods: Pods) -> Json:
    if ":" in pods.model_folder:
        raise IllegalPlanError(
            f"{pods.model_folder!r}: Kubernetes mounts no path with a colon", hint="rename the folder"
        )
    locked = ["IPC_LOCK"] if pods.site.rdma_resource else []  # adapters read and write memory that stays in its place
    folder = [{"name": "model", "mountPath": pods.model_folder, "readOnly": True}] if pods.model_folder else []
    return _fill(
        "container",
        image=pods.plan.image,
        command=escape_words(pods.plan.serve_argv[:1]),
        args=escape_words(pods.plan.serve_argv[1:]),
        env=_environment(pods),
        port=pods.port,
        **_resources(pods, on_disk=pods.site.cache == "emptydir"),
        privileged=pods.privileged,
        capabilities=[*(name.removeprefix("CAP_") for name in pods.docker["--cap-add"]), *locked] or None,
        seccomp="Unconfined" if pods.unconfined else "RuntimeDefault",
        start_tries=ceil(pods.start_timeout_s / 10),
        mounts=[{"name": "dshm", "mountPath": "/dev/shm"}, {"name": "models", "mountPath": MODEL_CACHE}, *folder],
    )


def _resources(pods: Pods, *, on_disk: bool) -> Json:
    disk = {"ephemeral-storage": f"{SCRATCH_GIB + (pods.cache_gib if on_disk else 0)}Gi"}
    devices = {gpu_resource(pods): pods.gpus} | ({pods.site.rdma_resource: 1} if pods.site.rdma_resource else {})
    reserved = RESERVED_GIB_PER_GPU * pods.gpus + host_kv_gib(pods.plan)
    return {
        "limits": {**devices, "memory": f"{pods.memory_gib}Gi", **disk},
        "requests": {"cpu": str(RESERVED_CPUS_PER_GPU * pods.gpus), "memory": f"{reserved}Gi", **disk},
    }


def _member(pods: Pods) -> Json:
    join = pods.require_several_nodes()
    given = "export NODE_RANK=$LWS_WORKER_INDEX NODES=$LWS_GROUP_SIZE HEAD=$LWS_LEADER_ADDRESS\n"
    numbers = join_numbers(pods.plan, join, pods.nodes) | {"START_TIMEOUT_S": pods.start_timeout_s}
    numbers.pop("NODES")  # a variable of the group
    variables = [{"name": name, "value": str(value)} for name, value in numbers.items()]
    return _container(pods) | {
        "command": ["bash", "-c", Script(escape_dollars(given + node_script(join))), "planner"],
        "args": escape_words(pods.plan.serve_argv),
        "env": [{"name": "VLLM_HOST_IP", **_OWN_ADDRESS}, *variables, *_environment(pods)],
    }


def _environment(pods: Pods) -> list[Json]:
    variables: list[Json] = [{"name": k, "value": escape_dollars(v)} for k, v in pods.env.items()]
    if pods.site.hf_secret:
        optional = pods.plan.gated is not True  # unless the model is known to be gated
        secret = {"name": pods.site.hf_secret, "key": TOKEN_KEY, "optional": optional}
        variables.append({"name": TOKEN_KEY, "valueFrom": {"secretKeyRef": secret}})
    return variables


def gpu_resource(pods: Pods) -> str:
    """The GPUs' name in the device plugin; partitions by mode, as both plugins' strategy ``mixed``."""
    profile = pods.emission.profile
    if pods.site.gpu_resource or profile.partition is None:
        return pods.site.gpu_resource or ("amd.com/gpu" if profile.vendor == "amd" else "nvidia.com/gpu")
    mode = profile.partition.compute_mode.lower()
    if profile.vendor == "amd":
        return f"amd.com/{mode}_{profile.partition.memory_mode.lower()}"
    return f"nvidia.com/{mode.replace(' ', '-').replace('+', '.')}"
