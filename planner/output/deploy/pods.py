"""The pod of a planned server, as Kubernetes and everything on top of it has it."""

from __future__ import annotations

from math import ceil

from planner.errors import IllegalPlanError
from planner.output.deploy.deployable import Deployable
from planner.output.deploy.yaml_text import Json, escape_dollars, escape_words
from planner.output.scripts.emission import MODEL_CACHE

START_PERIOD_S = 10
TOKEN_KEY = "HF_TOKEN"  # a key of a Secret, and the name of the variable
MODELS, SHARED_MEMORY, MODEL_FOLDER = "models", "dshm", "model"


def labels(made: Deployable) -> dict[str, str]:
    """What selects the pods."""
    return {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": made.name}


def metadata(made: Deployable, **more: object) -> Json:
    """Name, namespace where one was asked for, and labels; the plan's digest beside them."""
    namespace = {"namespace": made.site.namespace} if made.site.namespace else {}
    return {"name": made.name, **namespace, "labels": {**labels(made), "planner/plan": made.plan.digest}, **more}


def pod_environment(made: Deployable) -> list[Json]:
    """The plan's variables, and the token by the name of its Secret."""
    variables: list[Json] = [{"name": k, "value": escape_dollars(v)} for k, v in made.given_env.items()]
    secret = {"name": made.site.hf_secret, "key": TOKEN_KEY, "optional": not made.needs_token}
    if made.site.hf_secret:
        variables.append({"name": TOKEN_KEY, "valueFrom": {"secretKeyRef": secret}})
    return variables


def gpu_resource(made: Deployable) -> str:
    """The name under which the device plugin offers these GPUs.

    For partitions the name that says which ones, of the strategy ``mixed`` of both vendors' plugins: a pod never gets
    another part of a GPU than the one that was planned for.
    """
    profile = made.emission.profile
    vendor = "amd.com" if profile.vendor == "amd" else "nvidia.com"
    if made.site.gpu_resource:
        return made.site.gpu_resource
    if profile.partition is None:
        return f"{vendor}/gpu"
    mode = profile.partition.compute_mode.lower()
    if vendor == "nvidia.com":
        return f"{vendor}/{mode.replace(' ', '-').replace('+', '.')}"
    return f"{vendor}/{mode}_{profile.partition.memory_mode.lower()}"


def resources(made: Deployable) -> Json:
    """GPUs only: a plan says nothing about processors and memory."""
    return {"limits": {gpu_resource(made): made.gpus_each}}


def security_context(made: Deployable) -> Json:
    """Nothing that the plan did not ask docker for."""
    needs = made.needs
    capabilities: Json = {"drop": ["ALL"]}
    if needs.capabilities:
        capabilities["add"] = [name.removeprefix("CAP_") for name in needs.capabilities]
    return {
        "privileged": needs.privileged,
        "allowPrivilegeEscalation": needs.privileged,
        "capabilities": capabilities,
        "seccompProfile": {"type": "Unconfined" if needs.unconfined else "RuntimeDefault"},
    }


def probes(made: Deployable) -> Json:
    """``/health`` answers once the engine runs. It may be slow under load, which is no reason to restart."""
    health = {"httpGet": {"path": "/health", "port": made.container_port}, "timeoutSeconds": 10}
    tries = ceil(made.start_timeout_s / START_PERIOD_S)
    return {
        "startupProbe": {**health, "periodSeconds": START_PERIOD_S, "failureThreshold": tries},
        "readinessProbe": {**health, "periodSeconds": 10, "failureThreshold": 3},
        "livenessProbe": {**health, "periodSeconds": 30, "failureThreshold": 6},
    }


def mounts(made: Deployable) -> list[Json]:
    """Shared memory, the cache of models, and the model where it is a folder of the node."""
    found: list[Json] = [{"name": SHARED_MEMORY, "mountPath": "/dev/shm"}]
    found.append({"name": MODELS, "mountPath": MODEL_CACHE})
    if made.local_model:
        if ":" in made.local_model:
            raise IllegalPlanError(
                f"{made.local_model!r}: Kubernetes mounts no path with a colon", hint="rename the folder"
            )
        found.append({"name": MODEL_FOLDER, "mountPath": made.local_model, "readOnly": True})
    return found


def volumes(made: Deployable) -> list[Json]:
    """What ``mounts`` names."""
    memory = {"medium": "Memory", "sizeLimit": f"{made.shm_gib}Gi"}
    found: list[Json] = [{"name": SHARED_MEMORY, "emptyDir": memory}]
    if made.site.cache == "emptydir":
        found.append({"name": MODELS, "emptyDir": {}})
    else:
        claim = made.site.claim or claim_name(made)
        found.append({"name": MODELS, "persistentVolumeClaim": {"claimName": claim}})
    if made.local_model:
        found.append({"name": MODEL_FOLDER, "hostPath": {"path": made.local_model, "type": "Directory"}})
    return found


def claim_name(made: Deployable) -> str:
    """Of the claim that is made for the models."""
    return f"{made.name}-models"


def placement(made: Deployable) -> Json:
    """Where the pod may run."""
    taints, selected = list(made.site.taints()), made.site.node_labels()
    return {**({"nodeSelector": selected} if selected else {}), **({"tolerations": taints} if taints else {})}


def http_port(made: Deployable) -> Json:
    """The server's port in its container."""
    return {"name": "http", "containerPort": made.container_port, "protocol": "TCP"}


def container(made: Deployable, *, name: str = "vllm") -> Json:
    """The planned server, whole on one node."""
    return {
        "name": name,
        "image": made.plan.image,
        "command": escape_words(made.plan.serve_argv[:1]),
        "args": escape_words(made.plan.serve_argv[1:]),
        "env": pod_environment(made),
        "ports": [http_port(made)],
        "resources": resources(made),
        "securityContext": security_context(made),
        **probes(made),
        "volumeMounts": mounts(made),
    }


def pod_spec(made: Deployable, *containers: Json) -> Json:
    """Without service links: a Service called vllm would set VLLM_PORT, which vLLM reads as its own."""
    return {
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 60,
        **placement(made),
        "containers": list(containers),
        "volumes": volumes(made),
    }


def claims(made: Deployable) -> list[Json]:
    """A new claim for the models, if the site asks for one. Pods on several nodes share it."""
    if made.site.cache != "pvc":
        return []
    several = made.site.replicas * made.nodes > 1
    spec = {
        "accessModes": ["ReadWriteMany" if several else "ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{made.cache_gib}Gi"}},
    }
    meta = {**metadata(made), "name": claim_name(made)}
    return [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}]


def token_remarks(made: Deployable) -> list[str]:
    """How to create the Secret. Its value is in none of these files."""
    if not made.site.hf_secret:
        return []
    need = "The model is gated: first" if made.needs_token else "If the hub asks for a token, first"
    space = f" --namespace {made.site.namespace}" if made.site.namespace else ""
    return [
        f"{need} create the Secret {made.site.hf_secret} from a file that holds only the token:",
        f"  kubectl{space} create secret generic {made.site.hf_secret} --from-file={TOKEN_KEY}=FILE",
    ]


def gpu_remarks(made: Deployable) -> list[str]:
    """What has to be installed."""
    profile = made.emission.profile
    plugin = "AMD's device plugin" if profile.vendor == "amd" else "NVIDIA's device plugin"
    if made.site.gpu_resource or profile.partition is None:
        return [f"Pods request GPUs as {gpu_resource(made)}, which {plugin} offers."]
    return [
        f"Pods request GPUs as {gpu_resource(made)}: {plugin} with the strategy 'mixed' offers them under this name.",
        "The strategy 'single' gives them the name of whole GPUs: use planner deploy --gpu-resource.",
    ]
