"""Kubernetes itself, and what is built on it: LeaderWorkerSet, KServe, llm-d.

The custom resources and the values of the chart are checked against schemas that are ours, made from their public
definitions (``tests/schemas``).
"""

from __future__ import annotations

from planner.errors import IllegalPlanError
from planner.output.deploy.deployable import Deployable
from planner.output.deploy.pods import (
    claims,
    container,
    gpu_remarks,
    gpu_resource,
    http_port,
    labels,
    metadata,
    mounts,
    placement,
    pod_environment,
    pod_spec,
    probes,
    resources,
    security_context,
    token_remarks,
    volumes,
)
from planner.output.deploy.yaml_text import Json, Script, commented, dump, escape_dollars, escape_words
from planner.output.scripts.emission import JOIN_WORDS, MODEL_CACHE, join_numbers, node_script

#: Of the chart llm-d-modelservice: where a model of the hub is named.
_HUB = "hf://"
_LWS_LABEL = "leaderworkerset.sigs.k8s.io"


def kubernetes(made: Deployable) -> dict[str, str]:
    """A Deployment and its Service, and the claim where one was asked for."""
    made.require_one_node("a Deployment")
    template = {"metadata": {"labels": labels(made)}, "spec": pod_spec(made, container(made))}
    spec = {
        "replicas": made.site.replicas,
        # the GPUs of the old pod are needed for the new one
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "progressDeadlineSeconds": made.start_timeout_s + 600,
        "selector": {"matchLabels": labels(made)},
        "template": template,
    }
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(made), "spec": spec}
    title = "Kubernetes: a Deployment of the planned server, and the Service in front of it."
    return {"kubernetes.yaml": _file(made, title, *claims(made), deployment, _service(made, labels(made)))}


def lws(made: Deployable) -> dict[str, str]:
    """A LeaderWorkerSet: each group of pods is one server over several nodes."""
    made.require_several_nodes()
    template = {
        "size": made.nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": {"metadata": {"labels": labels(made)}, "spec": pod_spec(made, _member(made, leader=True))},
        "workerTemplate": {"metadata": {"labels": labels(made)}, "spec": pod_spec(made, _member(made, leader=False))},
    }
    group = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata(made),
        "spec": {"replicas": made.site.replicas, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template},
    }
    leaders = {f"{_LWS_LABEL}/name": made.name, f"{_LWS_LABEL}/worker-index": "0"}
    title = f"LeaderWorkerSet: the planned server over {made.nodes} nodes, joined by {JOIN_WORDS[made.join]}."
    return {"lws.yaml": _file(made, title, *claims(made), group, _service(made, leaders))}


def kserve(made: Deployable) -> dict[str, str]:
    """An InferenceService with a container of its own: exactly the planned command, without a ServingRuntime."""
    made.require_one_node("an InferenceService")
    _no_templates(made, "KServe")
    predictor = {
        "minReplicas": made.site.replicas,
        "maxReplicas": made.site.replicas,
        **pod_spec(made, container(made, name="kserve-container")),
    }
    annotations = {"serving.kserve.io/deploymentMode": "RawDeployment"}
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": metadata(made, annotations=annotations),
        "spec": {"predictor": predictor},
    }
    title = "KServe: the planned server as an InferenceService with its own container."
    return {"kserve.yaml": _file(made, title, *claims(made), service)}


def llm_d(made: Deployable) -> dict[str, str]:
    """Values of the chart llm-d-modelservice, with the planned command as a custom one."""
    made.require_one_node("this chart with a plan's own command")
    _no_templates(made, "llm-d's chart")
    if made.local_model:
        raise IllegalPlanError(
            f"llm-d takes a model of the hub or of a volume claim, not the folder {made.local_model}",
            hint="use --target kubernetes, which mounts the folder of the node",
        )
    title = "llm-d: values for the chart llm-d-modelservice."
    remarks = (
        f"helm install {made.name} llm-d-modelservice --values llm-d-values.yaml"
        " (repository: https://llm-d-incubation.github.io/llm-d-modelservice/)",
        *token_remarks(made),
        *gpu_remarks(made),
    )
    return {"llm-d-values.yaml": commented(made.header(title, *remarks)) + dump(_values(made))}


def _values(made: Deployable) -> Json:
    plan, vendor = made.plan, made.emission.profile.vendor
    secret = made.site.hf_secret if plan.gated is not False else ""
    server = container(made)
    for name in ("name", "image", "command", "args", "volumeMounts"):
        server.pop(name)
    server["env"] = [one for one in server["env"] if one["name"] not in {"HF_TOKEN", "HF_HOME"}]  # the chart's
    cache = [mount for mount in mounts(made) if mount["mountPath"] != MODEL_CACHE]
    extra = {name: server.pop(name) for name in ("securityContext",)}
    decode = {
        "create": True,
        "replicas": made.site.replicas,
        "parallelism": {"tensor": made.gpus_each, "data": 1, "dataLocal": 1, "workers": 1},
        **placement(made),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "containers": [
            {
                "name": "vllm",
                "image": plan.image,
                "modelCommand": "custom",
                "command": escape_words(plan.serve_argv[:1]),
                "args": escape_words(plan.serve_argv[1:]),
                "mountModelVolume": True,
                "volumeMounts": cache,
                **server,
                "extraConfig": extra,
            }
        ],
        "volumes": [volume for volume in volumes(made) if volume["name"] != "models"],
    }
    return {
        "fullnameOverride": made.name,
        "multinode": False,
        "modelArtifacts": {
            "name": plan.model,
            "uri": _HUB + plan.model,
            "size": f"{made.cache_gib}Gi",
            "authSecretName": secret,
            "mountPath": MODEL_CACHE,
            "labels": {"llm-d.ai/inferenceServing": "true", "llm-d.ai/model": made.name},
        },
        "accelerator": {"type": vendor, "resources": {vendor: gpu_resource(made)}},
        "routing": {"servicePort": made.container_port, "proxy": {"enabled": False}},
        "decode": decode,
        "prefill": {"create": False},
    }


def _member(made: Deployable, *, leader: bool) -> Json:
    """One pod of a group. The script is the same in all of them; the planned command is its arguments."""
    given = "export NODE_RANK=$LWS_WORKER_INDEX NODES=$LWS_GROUP_SIZE HEAD=$LWS_LEADER_ADDRESS\n"
    own = {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    numbers = join_numbers(made.plan, made.join, made.nodes) | {"START_TIMEOUT_S": made.start_timeout_s}
    numbers.pop("NODES")  # the group says it
    return {
        "name": "vllm",
        "image": made.plan.image,
        "command": ["bash", "-c", Script(escape_dollars(given + node_script(made.join))), "planner"],
        "args": escape_words(made.plan.serve_argv),
        "env": [own, *({"name": k, "value": str(v)} for k, v in numbers.items()), *pod_environment(made)],
        **({"ports": [http_port(made)]} if leader else {}),
        "resources": resources(made),
        "securityContext": security_context(made),
        **(probes(made) if leader else {}),
        "volumeMounts": mounts(made),
    }


def _service(made: Deployable, selector: dict[str, str]) -> Json:
    """Inside the cluster only."""
    port = {"name": "http", "port": made.site.port, "targetPort": made.container_port, "protocol": "TCP"}
    spec = {"type": "ClusterIP", "selector": selector, "ports": [port]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(made), "spec": spec}


def _file(made: Deployable, title: str, *documents: Json) -> str:
    remarks = (*token_remarks(made), *gpu_remarks(made))
    texts = [dump(document) for document in documents]
    return commented(made.header(title, *remarks)) + "---\n" + "---\n".join(texts)


def _no_templates(made: Deployable, who: str) -> None:
    """Raises IllegalPlanError for what would be read as a template there."""
    plan = made.plan
    for text in (plan.model, plan.image, *plan.serve_argv, *plan.env, *plan.env.values()):
        if "{{" in text:
            raise IllegalPlanError(
                f"{text!r}: {who} would read '{{{{' as a template", hint="use --target kubernetes, which does not"
            )
