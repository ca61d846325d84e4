"""Pods on Kubernetes, and on top of it: a Deployment, a LeaderWorkerSet, KServe, and llm-d's chart.

The custom resources and the values of the chart are checked against schemas of ours, made from their public
definitions (``tests/schemas``).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Any

from planner.engine import image_for
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile
from planner.memory import stored_weight_bytes
from planner.output.deploy.pods import Pods
from planner.output.deploy.site import HF_SECRET
from planner.output.deploy.yaml_text import Json, Script, commented, dump, escape_dollars, escape_words
from planner.output.scripts.emission import JOIN_WORDS, MODEL_CACHE, PLACEMENT_VARIABLES, join_numbers, node_script
from planner.output.scripts.text import option
from planner.planning import Disaggregated, SideLaunch
from planner.units import GIB

START_PERIOD_S = 10
TOKEN_KEY = "HF_TOKEN"  # a key of a Secret, and the name of the variable
#: The decode servers' port behind llm-d's sidecar, which has the port of the service (``values.yaml`` of the chart).
ROUTED_PORT = 8200
_LWS_LABEL = "leaderworkerset.sigs.k8s.io"
_OWN_ADDRESS = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def kubernetes(pods: Pods) -> dict[str, str]:
    """A Deployment and its Service."""
    pods.require_one_node("a Deployment")
    spec = {
        "replicas": pods.site.replicas,
        # the GPUs of the old pod are needed for the new one
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "progressDeadlineSeconds": pods.start_timeout_s + 600,
        "selector": {"matchLabels": _labels(pods)},
        "template": _template(pods, _container(pods)),
    }
    title = "Kubernetes: a Deployment of the planned server, and the Service in front of it."
    deployment = _object(pods, "apps/v1", "Deployment", spec)
    return {"kubernetes.yaml": _file(pods, title, deployment, _service(pods, _labels(pods)))}


def lws(pods: Pods) -> dict[str, str]:
    """A LeaderWorkerSet: each group of pods is one server over several nodes."""
    join = pods.require_several_nodes()
    template = {
        "size": pods.nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": _template(pods, _member(pods, leader=True)),
        "workerTemplate": _template(pods, _member(pods, leader=False)),
    }
    spec = {"replicas": pods.site.replicas, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template}
    group = _object(pods, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)
    leaders = {f"{_LWS_LABEL}/name": pods.name, f"{_LWS_LABEL}/worker-index": "0"}
    title = f"LeaderWorkerSet: the planned server over {pods.nodes} nodes, joined by {JOIN_WORDS[join]}."
    return {"lws.yaml": _file(pods, title, group, _service(pods, leaders))}


def kserve(pods: Pods) -> dict[str, str]:
    """An InferenceService with a container of its own: exactly the planned command, without a ServingRuntime."""
    pods.require_one_node("an InferenceService")
    _refuse_templates(pods, "KServe")
    copies = {"minReplicas": pods.site.replicas, "maxReplicas": pods.site.replicas}
    spec = {"predictor": copies | _pod_spec(pods, _container(pods) | {"name": "kserve-container"})}
    annotations = {"serving.kserve.io/deploymentMode": "RawDeployment"}
    service = _object(pods, "serving.kserve.io/v1beta1", "InferenceService", spec, annotations=annotations)
    return {"kserve.yaml": _file(pods, "KServe: the planned server as an InferenceService with its own container.",
                                 service)}  # fmt: skip


def llm_d(pods: Pods) -> dict[str, str]:
    """Values of the chart llm-d-modelservice, with the planned command as a custom one."""
    pods.require_one_node("this chart with a plan's own command")
    _refuse_templates(pods, "llm-d's chart")
    if pods.model_folder:
        raise IllegalPlanError(
            f"llm-d takes a model of the hub or of a volume claim, not the folder {pods.model_folder}",
            hint="use --target kubernetes, which mounts the folder of the node",
        )
    server, spec = _container(pods), _pod_spec(pods)
    decode = {
        "create": True,
        "replicas": pods.site.replicas,
        **_parallelism(pods.gpus),
        **_placement(pods),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "containers": [
            {
                "name": "vllm",
                "image": server["image"],
                "modelCommand": "custom",
                "command": server["command"],
                "args": server["args"],
                "mountModelVolume": True,
                "volumeMounts": [mount for mount in server["volumeMounts"] if mount["mountPath"] != MODEL_CACHE],
                "env": [one for one in server["env"] if one["name"] not in {"HF_TOKEN", "HF_HOME"}],  # the chart's
                "ports": server["ports"],
                "resources": server["resources"],
                **_probes(pods),
                "extraConfig": {"securityContext": server["securityContext"]},
            }
        ],
        "volumes": [volume for volume in spec["volumes"] if volume["name"] != "models"],
    }
    chart = _chart(
        pods.plan.model,
        pods.emission.profile,
        size_gib=pods.cache_gib,
        secret=pods.site.hf_secret if pods.plan.gated is not False else "",
        labels={"llm-d.ai/model": pods.name},
        resource=gpu_resource(pods),
        routing={"servicePort": pods.port, "proxy": {"enabled": False}},
    )
    values = {"fullnameOverride": pods.name, **chart, "decode": decode, "prefill": {"create": False}}
    remarks = (
        f"helm install {pods.name} llm-d-modelservice --values llm-d-values.yaml"
        " (repository: https://llm-d-incubation.github.io/llm-d-modelservice/)",
        *_remarks(pods),
    )
    header = pods.header("llm-d: values for the chart llm-d-modelservice.", *remarks)
    return {"llm-d-values.yaml": commented(header) + dump(values)}


def disaggregated_values(plan: Disaggregated, launches: tuple[SideLaunch, SideLaunch]) -> str:
    """Values of the chart llm-d-modelservice for both sides; its sidecar routes with the connector ``nixlv2``."""
    prefill, decode = launches
    chart = _chart(
        plan.model,
        plan.profile,
        size_gib=ceil(1.2 * stored_weight_bytes(plan.decode.deployment.model) / GIB) + 1,
        secret=HF_SECRET,
        labels={},
        resource=_whole_gpu(plan.profile),
        routing={
            "servicePort": int(option(prefill.serve_argv, "--port") or 0),
            "proxy": {"enabled": True, "connector": "nixlv2", "targetPort": ROUTED_PORT, "secure": False},
        },
    )
    return dump({**chart, "decode": _side(plan, decode), "prefill": _side(plan, prefill)})


def _side(plan: Disaggregated, side: SideLaunch) -> Json:
    """The servers of prefill or decode."""
    port = "VLLM_NIXL_SIDE_CHANNEL_PORT"
    variables = {**side_environment(side), port: side.env[port]}
    gpus = {_whole_gpu(plan.profile): str(side.num_gpus)}
    return {
        "create": True,
        "replicas": side.servers,
        **_parallelism(side.num_gpus),
        "containers": [
            {
                "name": "vllm",
                "image": image_for(plan.profile, plan.decode.deployment.config.version).name,
                "modelCommand": "custom",
                "command": escape_words(side.serve_argv[:1]),
                "args": escape_words(side.serve_argv[1:]),
                "env": [
                    {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", **_OWN_ADDRESS},
                    *({"name": name, "value": value} for name, value in variables.items()),
                ],
                "resources": {"limits": gpus, "requests": gpus},
                "mountModelVolume": True,
            }
        ],
    }


def side_environment(side: SideLaunch) -> dict[str, str]:
    """Variables of a side, without the port of its channel and without those that choose GPUs."""
    placed = {*PLACEMENT_VARIABLES, "VLLM_NIXL_SIDE_CHANNEL_PORT"}
    return {name: value for name, value in side.env.items() if name not in placed}


def _chart(
    model: str,
    profile: GpuProfile,
    *,
    size_gib: int,
    secret: str,
    labels: dict[str, str],
    resource: str,
    routing: Json,
) -> Json:
    return {
        "multinode": False,
        "modelArtifacts": {
            "name": model,
            "uri": f"hf://{model}",
            "size": f"{size_gib}Gi",
            "authSecretName": secret,
            "mountPath": MODEL_CACHE,
            "labels": {"llm-d.ai/inferenceServing": "true", **labels},
        },
        "accelerator": {"type": profile.vendor, "resources": {profile.vendor: resource}},
        "routing": routing,
    }


def _parallelism(gpus: int) -> Json:
    return {"parallelism": {"tensor": gpus, "data": 1, "dataLocal": 1, "workers": 1}}


# --- objects


def _file(pods: Pods, title: str, *objects: Json) -> str:
    documents = [dump(one) for one in (*_claims(pods), *objects)]
    return commented(pods.header(title, *_remarks(pods))) + "---\n" + "---\n".join(documents)


def _labels(pods: Pods) -> dict[str, str]:
    return {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": pods.name}


def _object(pods: Pods, version: str, kind: str, spec: Json, *, name: str = "", **metadata: object) -> Json:
    """An object with name, namespace if one was given, and labels."""
    namespace = {"namespace": pods.site.namespace} if pods.site.namespace else {}
    labels = {**_labels(pods), "planner/plan": pods.plan.digest}
    meta = {"name": name or pods.name, **namespace, "labels": labels, **metadata}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def _service(pods: Pods, selector: dict[str, str]) -> Json:
    """A Service that is reachable inside the cluster only."""
    port = {"name": "http", "port": pods.site.port, "targetPort": pods.port, "protocol": "TCP"}
    return _object(pods, "v1", "Service", {"type": "ClusterIP", "selector": selector, "ports": [port]})


def _claims(pods: Pods) -> Iterable[Json]:
    """A new claim for the models, if the site asks for one. Pods on several nodes share it."""
    if pods.site.cache == "pvc":
        mode = "ReadWriteMany" if pods.site.replicas * pods.nodes > 1 else "ReadWriteOnce"
        spec = {"accessModes": [mode], "resources": {"requests": {"storage": f"{pods.cache_gib}Gi"}}}
        yield _object(pods, "v1", "PersistentVolumeClaim", spec, name=f"{pods.name}-models")


def _remarks(pods: Pods) -> list[str]:
    """How to create the Secret (no file holds its value), and the device plugin that is needed."""
    site, profile, lines = pods.site, pods.emission.profile, []
    if site.hf_secret:
        need = "The model is gated: first" if pods.plan.gated is True else "If the hub asks for a token, first"
        space = f" --namespace {site.namespace}" if site.namespace else ""
        lines += [
            f"{need} create the Secret {site.hf_secret} from a file that holds only the token:",
            f"  kubectl{space} create secret generic {site.hf_secret} --from-file={TOKEN_KEY}=FILE",
        ]
    asked = f"Pods request GPUs as {gpu_resource(pods)}"
    plugin = "AMD's device plugin" if profile.vendor == "amd" else "NVIDIA's device plugin"
    if site.gpu_resource or profile.partition is None:
        return [*lines, f"{asked}, which {plugin} offers."]
    return [
        *lines,
        f"{asked}: {plugin} with the strategy 'mixed' offers them under this name.",
        "The strategy 'single' gives them the name of whole GPUs: use planner deploy --gpu-resource.",
    ]


def _refuse_templates(pods: Pods, reader: str) -> None:
    plan = pods.plan
    for text in (plan.model, plan.image, *plan.serve_argv, *plan.env, *plan.env.values()):
        if "{{" in text:
            raise IllegalPlanError(
                f"{text!r}: {reader} would read '{{{{' as a template", hint="use --target kubernetes, which does not"
            )


# --- the pod


def _template(pods: Pods, container: Json) -> Json:
    return {"metadata": {"labels": _labels(pods)}, "spec": _pod_spec(pods, container)}


def _pod_spec(pods: Pods, *containers: Json) -> Json:
    """A pod without service links: a Service called vllm would set VLLM_PORT, which vLLM reads as its own."""
    models: Json = {"persistentVolumeClaim": {"claimName": pods.site.cache.partition("/")[2] or f"{pods.name}-models"}}
    volumes: list[Json] = [
        {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{pods.shm_gib}Gi"}},
        {"name": "models", **({"emptyDir": {}} if pods.site.cache == "emptydir" else models)},
    ]
    if pods.model_folder:
        volumes.append({"name": "model", "hostPath": {"path": pods.model_folder, "type": "Directory"}})
    return {
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 60,
        **_placement(pods),
        "containers": list(containers),
        "volumes": volumes,
    }


def _placement(pods: Pods) -> Json:
    where = {"nodeSelector": pods.site.node_labels(), "tolerations": list(pods.site.taints())}
    return {name: value for name, value in where.items() if value}


def _container(pods: Pods) -> Json:
    """The planned server, whole on one node."""
    return {
        "name": "vllm",
        "image": pods.plan.image,
        "command": escape_words(pods.plan.serve_argv[:1]),
        "args": escape_words(pods.plan.serve_argv[1:]),
        "env": _environment(pods),
        "ports": [{"name": "http", "containerPort": pods.port, "protocol": "TCP"}],
        "resources": {"limits": {gpu_resource(pods): pods.gpus}},  # a plan has no figures for processors and memory
        "securityContext": _security(pods),
        **_probes(pods),
        "volumeMounts": _mounts(pods),
    }


def _member(pods: Pods, *, leader: bool) -> Json:
    """One pod of a group. All have the same script; the planned command is its arguments. Only the leader answers."""
    join = pods.require_several_nodes()
    given = "export NODE_RANK=$LWS_WORKER_INDEX NODES=$LWS_GROUP_SIZE HEAD=$LWS_LEADER_ADDRESS\n"
    numbers = join_numbers(pods.plan, join, pods.nodes) | {"START_TIMEOUT_S": pods.start_timeout_s}
    numbers.pop("NODES")  # a variable of the group
    member = _container(pods) | {
        "command": ["bash", "-c", Script(escape_dollars(given + node_script(join))), "planner"],
        "args": escape_words(pods.plan.serve_argv),
        "env": [
            {"name": "VLLM_HOST_IP", **_OWN_ADDRESS},
            *({"name": name, "value": str(value)} for name, value in numbers.items()),
            *_environment(pods),
        ],
    }
    return member if leader else {k: v for k, v in member.items() if k != "ports" and not k.endswith("Probe")}


def _environment(pods: Pods) -> list[Json]:
    """The plan's variables, and the token by the name of its Secret."""
    variables: list[Json] = [{"name": k, "value": escape_dollars(v)} for k, v in pods.env.items()]
    if pods.site.hf_secret:
        optional = pods.plan.gated is not True  # unless the model is known to be gated
        secret = {"name": pods.site.hf_secret, "key": TOKEN_KEY, "optional": optional}
        variables.append({"name": TOKEN_KEY, "valueFrom": {"secretKeyRef": secret}})
    return variables


def gpu_resource(pods: Pods) -> str:
    """The name under which the device plugin offers these GPUs.

    Partitions have a name for each mode, of the strategy ``mixed`` of both vendors' plugins, so that a pod gets
    exactly the planned part of a GPU.
    """
    profile = pods.emission.profile
    if pods.site.gpu_resource or profile.partition is None:
        return pods.site.gpu_resource or _whole_gpu(profile)
    mode = profile.partition.compute_mode.lower()
    if profile.vendor == "amd":
        return f"amd.com/{mode}_{profile.partition.memory_mode.lower()}"
    return f"nvidia.com/{mode.replace(' ', '-').replace('+', '.')}"


def _whole_gpu(profile: GpuProfile) -> str:
    return "amd.com/gpu" if profile.vendor == "amd" else "nvidia.com/gpu"


def _security(pods: Pods) -> Json:
    """Only the privileges in the plan's docker arguments."""
    added = [name.removeprefix("CAP_") for name in pods.docker["--cap-add"]]
    unconfined = {"seccomp=unconfined", "seccomp:unconfined"} & set(pods.docker["--security-opt"])
    return {
        "privileged": pods.privileged,
        "allowPrivilegeEscalation": pods.privileged,
        "capabilities": {"drop": ["ALL"], **({"add": added} if added else {})},
        "seccompProfile": {"type": "Unconfined" if unconfined else "RuntimeDefault"},
    }


def _probes(pods: Pods) -> Json:
    """``/health`` answers once the engine runs. Slow answers under load are no reason to restart."""
    health: Json = {"httpGet": {"path": "/health", "port": pods.port}, "timeoutSeconds": 10}
    tries = ceil(pods.start_timeout_s / START_PERIOD_S)
    return {
        "startupProbe": {**health, "periodSeconds": START_PERIOD_S, "failureThreshold": tries},
        "readinessProbe": {**health, "periodSeconds": 10, "failureThreshold": 3},
        "livenessProbe": {**health, "periodSeconds": 30, "failureThreshold": 6},
    }


def _mounts(pods: Pods) -> list[Json]:
    mounts: list[dict[str, Any]] = [
        {"name": "dshm", "mountPath": "/dev/shm"},
        {"name": "models", "mountPath": MODEL_CACHE},
    ]
    if ":" in pods.model_folder:
        raise IllegalPlanError(
            f"{pods.model_folder!r}: Kubernetes mounts no path with a colon", hint="rename the folder"
        )
    if pods.model_folder:
        mounts.append({"name": "model", "mountPath": pods.model_folder, "readOnly": True})
    return mounts
