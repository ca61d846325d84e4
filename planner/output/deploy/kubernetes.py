"""Pods on Kubernetes: a Deployment or a LeaderWorkerSet, from the objects in ``templates/deploy/kubernetes.yaml``."""

from collections.abc import Iterator
from math import ceil
from typing import Any

from planner.errors import IllegalPlanError, InputError
from planner.output.deploy.pods import GRACE_S, RESERVED_CPUS_PER_GPU, RESERVED_GIB_PER_GPU, SCRATCH_GIB, Pods
from planner.output.deploy.yaml_text import Json, Script, commented, dump, escape_dollars, escape_words, fill
from planner.output.scripts.emission import JOIN_WORDS, MODEL_CACHE, host_kv_gib, join_numbers, node_script
from planner.output.scripts.text import option, render_template

TOKEN_KEY = "HF_TOKEN"  # a key of a Secret, and the name of the variable
_STATES = ("running", "waiting")  #: of vLLM's gauges
_LWS_LABEL = "leaderworkerset.sigs.k8s.io"


def kubernetes(pods: Pods) -> dict[str, str]:
    pods.require_one_node("a Deployment")
    title = "Kubernetes: a Deployment of the planned server, and the Service in front of it."
    deadline, pod = pods.start_timeout_s + 600, _pod(pods, _container(pods))
    spec = _fill("deployment", replicas=pods.replicas, labels=_labels(pods), deadline_s=deadline, pod=pod)
    deployment = _object(pods, "apps/v1", "Deployment", spec)
    return {"kubernetes.yaml": _file(pods, title, deployment, _service(pods, _labels(pods)))}


def lws(pods: Pods) -> dict[str, str]:
    """A LeaderWorkerSet: each group of pods is one server over several nodes."""
    join = pods.join
    if join is None:
        raise InputError("the planned server is on one node", hint="use another --target, or spread it with --nodes")
    given = "export NODE_RANK=$LWS_WORKER_INDEX NODES=$LWS_GROUP_SIZE HEAD=$LWS_LEADER_ADDRESS\n"
    numbers = join_numbers(pods.plan, join, pods.nodes) | {"START_TIMEOUT_S": pods.start_timeout_s}
    numbers.pop("NODES")  # a variable of the group
    own_address = {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    variables = [{"name": name, "value": str(value)} for name, value in numbers.items()]
    leader = _container(pods) | {
        "command": ["bash", "-c", Script(escape_dollars(given + node_script(join))), "planner"],
        "args": escape_words(pods.plan.serve_argv),
        "env": [own_address, *variables, *_environment(pods)],
    }
    worker = {key: value for key, value in leader.items() if key != "ports" and not key.endswith("Probe")}
    spec = _fill(
        "leader_worker_set", replicas=pods.replicas, nodes=pods.nodes, labels=_labels(pods),
        leader=_pod(pods, leader), worker=_pod(pods, worker),
    )  # fmt: skip
    group = _object(pods, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)
    leaders = {f"{_LWS_LABEL}/name": pods.name, f"{_LWS_LABEL}/worker-index": "0"}
    title = f"LeaderWorkerSet: the server over {pods.nodes} nodes of a trusted network, joined by {JOIN_WORDS[join]}."
    return {"lws.yaml": _file(pods, title, group, _service(pods, leaders))}


def _fill(template: str, **names: Any) -> Json:
    return fill("kubernetes.yaml", template, names)


def _file(pods: Pods, title: str, *objects: Json) -> str:
    claims = []
    if pods.site.cache == "pvc":
        mode = "ReadWriteMany" if pods.most_pods > 1 else "ReadWriteOnce"
        spec = _fill("claim", access_mode=mode, size=f"{pods.cache_gib}Gi")
        claims = [_object(pods, "v1", "PersistentVolumeClaim", spec, name=f"{pods.name}-models")]
    documents = [dump(one) for one in (*claims, *objects, *_watched(pods, objects[0]))]
    return commented(pods.header(title, *_remarks(pods))) + "---\n" + "---\n".join(documents)


def _watched(pods: Pods, workload: Json) -> Iterator[Json]:
    """A ServiceMonitor for Prometheus, and a ScaledObject of KEDA that adds servers above the planned load of each."""
    if pods.site.prometheus:
        monitor = _fill("service_monitor", labels=_labels(pods))
        yield _object(pods, "monitoring.coreos.com/v1", "ServiceMonitor", monitor)
    if pods.site.max_replicas:
        del workload["spec"]["replicas"]  # applying the file again must not undo the scaling
        namespace = f',namespace="{pods.site.namespace}"' if pods.site.namespace else ""
        states = (f'sum(vllm:num_requests_{state}{{service="{pods.name}"{namespace}}})' for state in _STATES)
        scaled = _fill(
            "scaled_object", version=workload["apiVersion"], kind=workload["kind"], name=pods.name,
            least=pods.replicas, most=pods.site.max_replicas, calm_s=min(pods.start_timeout_s, 3600),
            prometheus=pods.site.prometheus, query=" + ".join(states), in_flight=str(pods.in_flight),
        )  # fmt: skip
        yield _object(pods, "keda.sh/v1alpha1", "ScaledObject", scaled)


def _labels(pods: Pods) -> dict[str, str]:
    return {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": pods.name}


def _object(pods: Pods, version: str, kind: str, spec: Json, *, name: str = "") -> Json:
    namespace = {"namespace": pods.site.namespace} if pods.site.namespace else {}
    labels = {**_labels(pods), "planner/plan": pods.plan.digest}
    meta = {"name": name or pods.name, **namespace, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def _service(pods: Pods, selector: dict[str, str]) -> Json:
    spec = _fill("service", selector=selector, service_port=pods.site.port, port=pods.port)
    return _object(pods, "v1", "Service", spec)


def _remarks(pods: Pods) -> list[str]:
    """Return the preparations, and the Pod Security Standard that admits the pods or refuses some of them."""
    site, profile = pods.site, pods.emission.profile
    names = {
        "site": site, "gated": pods.plan.gated is True, "as_user": pods.as_user, "unconfined": pods.unconfined,
        "refused": ", ".join([*pods.capabilities, *["hostPath"] * bool(pods.model_folder)]),
        "shared": site.cache == "pvc" and pods.most_pods > 1, "by_tcp": pods.nodes > 1 and not site.rdma_resource,
        "in_flight": pods.in_flight, "vendor": "AMD" if profile.vendor == "amd" else "NVIDIA",
        "gpu_resource": gpu_resource(pods), "mixed": profile.partition and not site.gpu_resource,
    }  # fmt: skip
    return render_template("kubernetes.txt.j2", names, ("deploy",)).splitlines()


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
    where = {"node_selector": pods.site.node_labels() or None, "tolerations": pods.site.taints() or None}
    own = _fill("as_user") if pods.as_user else {"pod": None, "volumes": []}
    seconds, volumes = pods.drain_s + GRACE_S, [*volumes, *own["volumes"]]
    return _fill("pod", **where, grace_s=seconds, security=own["pod"], container=container, volumes=volumes)


def _container(pods: Pods) -> Json:
    if ":" in pods.model_folder:
        raise IllegalPlanError(f"{pods.model_folder!r}: Kubernetes mounts no colon", hint="rename the folder")
    adapter, _, adapters = pods.site.rdma_resource.partition("=")
    devices = {gpu_resource(pods): pods.gpus} | ({adapter: int(adapters or 1)} if adapter else {})
    disk = {"ephemeral-storage": f"{SCRATCH_GIB + (pods.cache_gib if pods.site.cache == 'emptydir' else 0)}Gi"}
    offloaded = ceil(float(option(pods.plan.serve_argv, "--cpu-offload-gb") or 0) * pods.gpus)  # pinned
    reserved = RESERVED_GIB_PER_GPU * pods.gpus + host_kv_gib(pods.plan) + offloaded
    written = _fill("as_user")["mounts"] if pods.as_user else []
    mounts = [{"name": "dshm", "mountPath": "/dev/shm"}, {"name": "models", "mountPath": MODEL_CACHE}, *written]
    folder = [{"name": "model", "mountPath": pods.model_folder, "readOnly": True}] if pods.model_folder else []
    return _fill(
        "container",
        image=pods.site.image or pods.plan.image,
        command=escape_words(pods.serve_argv[:1]),
        args=escape_words(pods.serve_argv[1:]),
        env=_environment(pods),
        port=pods.port,
        limits={**devices, "memory": f"{pods.memory_gib}Gi", **disk},
        requests={"cpu": str(pods.share(RESERVED_CPUS_PER_GPU)), "memory": f"{reserved}Gi", **disk},
        read_only=pods.as_user or None,
        capabilities=pods.capabilities or None,
        seccomp=None if pods.unconfined else {"type": "RuntimeDefault"},
        start_tries=ceil(pods.start_timeout_s / 10),
        mounts=[*mounts, *folder],
    )


def _environment(pods: Pods) -> list[Json]:
    variables: list[Json] = [{"name": k, "value": escape_dollars(v)} for k, v in pods.env.items()]
    if pods.site.hf_secret:
        # the token is required if the model is known to be gated
        for key, optional in {TOKEN_KEY: pods.plan.gated is not True, "VLLM_API_KEY": True}.items():
            secret = {"name": pods.site.hf_secret, "key": key, "optional": optional}
            variables.append({"name": key, "valueFrom": {"secretKeyRef": secret}})
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
