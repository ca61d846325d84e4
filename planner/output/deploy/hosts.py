"""Deployables of a plan: docker compose, Slurm and disaggregated servers; Kubernetes from ``kubernetes``."""

import hashlib
from collections.abc import Callable
from dataclasses import fields
from math import ceil
from typing import NamedTuple

from planner.engine import EVERYWHERE, LOOPBACK, docker_args, flag_of, image_for
from planner.errors import IllegalPlanError, InputError, UnknownNameError
from planner.output.deploy.kubernetes import kubernetes, lws
from planner.output.deploy.pods import CPUS_PER_GPU, GRACE_S, MOST_REPLICAS, UNCONFINED, Pods, Site, describe
from planner.output.deploy.yaml_text import Json, commented, dump, escape_dollars, escape_words, fill
from planner.output.scripts import emission as scripts
from planner.output.scripts.text import option, refuse_tokens, render_template, without_option
from planner.planning import Disaggregated, SideLaunch

#: Compose takes these from the environment that it is started in.
PASSED_BY_NAME = ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "VLLM_API_KEY")
BALANCER_IMAGE = "nginx:1.28.0"
_HEALTH = (
    "import urllib.request as r;r.build_opener(r.ProxyHandler({{}})).open('http://127.0.0.1:{port}/health', timeout=5)"
)
_MODELS = "${HF_HOME:-${HOME}/.cache/huggingface}/hub"  # not the folder above it, in which hf keeps the token
#: Variables of a side that its script sets itself.
_SIDE_PLACED = {*scripts.PLACEMENT_VARIABLES, "VLLM_NIXL_SIDE_CHANNEL_PORT"}


def compose(pods: Pods) -> dict[str, str]:
    """``compose.yaml``, and ``nginx.conf`` for several servers. Compose interpolates: every ``$`` is doubled."""
    pods.require_one_node("compose")
    copies = pods.replicas
    names = [f"vllm-{index}" for index in range(copies)] if copies > 1 else ["vllm"]
    services = {name: _service(pods, index) for index, name in enumerate(names)}
    title = "Docker compose: the planned server."
    files = {}
    if copies > 1:
        healthy = {name: {"condition": "service_healthy", "restart": True} for name in names}
        own = {"image": BALANCER_IMAGE, "ports": [_published(pods, scripts.PORT)], "servers": healthy}
        own["grace"] = services["vllm-0"]["stop_grace_period"]
        services["balancer"] = fill("compose.yaml", "balancer", own)
        title = f"Docker compose: {copies} servers like the planned one, behind nginx."
        balanced = {
            "balancer_of": "compose.yaml",
            **scripts.dealt_by(pods.plan),
            "balanced_addresses": [f"{name}:{pods.port}" for name in names],
            "balancer_address": f"{EVERYWHERE}:{scripts.PORT}",
        }
        files["nginx.conf"] = render_template("nginx.conf.j2", balanced, ("vllm",))
    by_mig = pods.emission.profile.partition and pods.plan.platform == "cuda"
    instances = [_mig(server, gpu) for server in range(copies) for gpu in range(pods.plan.num_gpus)] if by_mig else []
    remarks = render_template("compose.txt.j2", {"site": pods.site, "instances": ", ".join(instances)}, ("deploy",))
    text = commented(pods.header(title, *remarks.splitlines())) + dump({"name": pods.name, "services": services})
    return {"compose.yaml": text, **files}


def _service(pods: Pods, index: int) -> Json:
    plan, docker, copies = pods.plan, pods.docker, pods.replicas
    folder = escape_dollars(pods.model_folder)
    models = fill("compose.yaml", "models", {"source": _MODELS, "target": f"{scripts.MODEL_CACHE}/hub"})
    model = [fill("compose.yaml", "folder", {"folder": folder})] if folder else []
    devices = [device if ":" in device else f"{device}:{device}" for device in docker["--device"]]
    security = [one for one in docker["--security-opt"] if one not in UNCONFINED or pods.unconfined]
    # the GPUs of a server: MIG instances by UUID, those of several servers by number, else a count
    gpus: Json = {"driver": "nvidia", "capabilities": ["gpu"]}
    if pods.emission.profile.partition:
        unset = ":?UUID of a MIG instance, see nvidia-smi -L"
        gpus["device_ids"] = [f"${{{_mig(index, gpu)}{unset}}}" for gpu in range(plan.num_gpus)]
    elif copies > 1:
        gpus["device_ids"] = scripts.gpus_of_server(plan, index).split(",")
    else:
        gpus["count"] = plan.num_gpus
    names = {
        "image": pods.site.image or pods.plan.image,
        "entrypoint": escape_words(plan.serve_argv[:1]),
        "command": escape_words(pods.serve_argv[1:]),
        "environment": _environment(pods, index),
        "volumes": [models, *model],
        "devices": escape_words(devices) or None,
        "groups": escape_words(docker["--group-add"]) or None,
        "security": escape_words([*security, "no-new-privileges:true"]),
        "shm_size": f"{pods.shm_gib}g",
        "health": _HEALTH.format(port=pods.port),
        "start_period": f"{pods.start_timeout_s}s",
        "grace": f"{pods.drain_s + GRACE_S}s",
        "gpus": {"resources": {"reservations": {"devices": [gpus]}}} if plan.platform == "cuda" else None,
        "ports": [_published(pods, pods.port)] if copies == 1 else None,
        # the first server downloads the model for all
        "after": {"vllm-0": {"condition": "service_healthy"}} if copies > 1 and index else None,
    }
    return fill("compose.yaml", "server", names)


def _environment(pods: Pods, index: int) -> dict[str, str | None]:
    """Variables; None: taken from the environment by its name."""
    plan, given = pods.plan, dict(pods.env)
    if pods.replicas > 1 and plan.platform == "rocm":
        given["HIP_VISIBLE_DEVICES"] = scripts.gpus_of_server(plan, index)
    elif pods.replicas == 1 and not (pods.emission.profile.partition and plan.platform == "cuda"):
        given = {**plan.env, **pods.env}  # a MIG instance is passed by its UUID instead
    variables: dict[str, str | None] = {name: escape_dollars(value) for name, value in given.items()}
    return variables | {name: None for name in PASSED_BY_NAME if name not in given}


def _mig(server: int, gpu: int) -> str:
    return f"MIG_{server}_{gpu}"


def _published(pods: Pods, port: int) -> Json:
    return {"target": port, "published": str(pods.site.port), "host_ip": pods.site.host, "protocol": "tcp"}


def slurm(pods: Pods) -> dict[str, str]:
    """One batch script, for a server on one node or over several."""
    plan, pyxis, folder = pods.plan, pods.site.container == "pyxis", pods.model_folder
    if any(sign in folder for sign in ",:"):
        raise IllegalPlanError(f"{folder!r}: a comma or a colon cannot be mounted", hint="rename the folder")
    first, slash, rest = plan.image.partition("/")  # enroot separates a registry other than Docker Hub by #
    enroot = f"{first}#{rest}" if slash and ("." in first or ":" in first) else plan.image
    reached_at = LOOPBACK if pods.site.host == EVERYWHERE else pods.site.host
    names = {
        "pods": pods,
        "header": pods.header("Slurm: the planned server in a container, as a batch job."),
        "serve_argv": (*without_option(plan.serve_argv, "--host", "--port"), "--host", pods.site.host),
        "reached_at": reached_at,
        "loopback": reached_at == LOOPBACK,
        "model_cache": scripts.MODEL_CACHE,
        "model_mount": f"{folder}:{folder}:ro" if folder else "",
        "pyxis": pyxis,
        "several": pods.nodes > 1,
        **(scripts.join_names(plan, pods.join, pods.nodes) if pods.join else {}),
        "mem_per_gpu": f"{ceil(pods.memory_gib / pods.gpus)}G",
        "whole_nodes": pods.gpus == plan.gpus_per_node,
        "image_uri": enroot if pyxis else f"docker://{plan.image}",
        "gpu_flag": "--rocm" if plan.platform == "rocm" else "--nv",
        "env_argv": ["env", *(f"{name}={value}" for name, value in pods.env.items())],
        "cpus_each": pods.share(CPUS_PER_GPU),
    }
    return {"server.sbatch": render_template("slurm.sbatch.j2", names, ("deploy", "vllm"))}


def split_files(plan: Disaggregated, command: str) -> dict[str, str]:
    """``prefill.sh`` and ``decode.sh``, joined by NIXL's side channel and a router (vLLM's ``toy_proxy_server.py``).

    Raises IllegalPlanError if no image or no connector of the version is known for the GPU."""
    if plan.model.startswith("/"):
        raise IllegalPlanError(f"{plan.model} is a folder, which machines do not share", hint="name a model of the hub")
    files = {f"{side.role}.sh": _side_script(plan, side, command) for side in plan.launches()}
    refuse_tokens(files)
    return files


def _side_script(plan: Disaggregated, side: SideLaunch, command: str) -> str:
    nvidia, version = plan.profile.vendor == "nvidia", plan.decode.deployment.config.version
    words, others = docker_args(plan.profile, side.num_gpus), plan.num_gpus - side.servers * side.num_gpus
    launched = " ".join((side.role, *side.serve_argv))
    names = {
        "plan": plan,
        "side": side,
        "digest": hashlib.sha256(launched.encode()).hexdigest()[:12],
        "command": command,
        "image": image_for(plan.profile, version).name,
        "ready_timeout": scripts.ready_timeout(version, side.serve_argv, side.env),
        "nvidia": nvidia,
        "docker_args": without_option(words, "--gpus") if nvidia else words,
        "first_gpu": others if side.role == "decode" and plan.num_gpus <= plan.profile.gpus_per_node else 0,
        "first_port": option(side.serve_argv, "--port"),
        "side_port": side.env["VLLM_NIXL_SIDE_CHANNEL_PORT"],
        "env_words": [f"{name}={value}" for name, value in side.env.items() if name not in _SIDE_PLACED],
        "model_cache": scripts.MODEL_CACHE,
        "entrypoint": side.serve_argv[0],
        "serve_args": without_option(side.serve_argv[1:], "--port", "--host"),
    }
    return render_template("split.sh.j2", names, ("deploy", "vllm"))


_SERVER = ("name", "start_timeout_s", "replicas", "port", "image")
_LABELS = "max_replicas prometheus hf_secret gpu_resource tolerations node_selector namespace cache"
_CLUSTER = (*_SERVER, *_LABELS.split(), "as_root")
#: Fields of ``Site`` whose option is not just their name with dashes.
FLAGS = {"tolerations": "--toleration", "start_timeout_s": "--start-timeout"}


class Target(NamedTuple):
    """A platform: what it makes of pods, and the fields of ``Site`` that it reads."""

    make: Callable[[Pods], dict[str, str]]
    takes: tuple[str, ...]
    most: int | None = MOST_REPLICAS  #: servers of one deployment; None: those that fit on a node


TARGETS = {
    "compose": Target(compose, (*_SERVER, "host"), None),
    "kubernetes": Target(kubernetes, _CLUSTER),
    "lws": Target(lws, (*_CLUSTER, "nodes", "rdma_resource")),
    "slurm": Target(slurm, ("name", "start_timeout_s", "host", "nodes", "container"), 1),
}
FILES = ("compose.yaml", "nginx.conf", "kubernetes.yaml", "lws.yaml", "server.sbatch")  #: every file of any target


def render_deployable(
    emission: scripts.Emission, target: str, site: Site | None = None, *, command: str = "planner deploy"
) -> dict[str, str]:
    """File name to content for one target. Raises PlannerError for what the target does not know or cannot run."""
    if target not in TARGETS:
        raise UnknownNameError("target", target, TARGETS, see=f"--target: {', '.join(TARGETS)}")
    platform, asked = TARGETS[target], site or Site()
    for field in fields(Site):
        if field.name not in platform.takes and getattr(asked, field.name) != field.default:
            flag = FLAGS.get(field.name, flag_of(field.name))
            raise InputError(f"{flag} has no effect with --target {target}", hint="name another target")
    most = emission.file.plan.servers_per_node if platform.most is None else platform.most
    files = platform.make(describe(emission, asked, command, most))
    refuse_tokens(files)
    return files
