"""Scripts for nodes without an orchestrator of containers: Slurm, and Ray over nodes that have docker.

Containers share the network of their node here, so the server listens on 127.0.0.1 unless ``--host`` says otherwise:
``--host`` of the plan is the one option that is replaced.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from planner.engine import EVERYWHERE, LOOPBACK
from planner.errors import IllegalPlanError, InputError
from planner.output.deploy.deployable import Deployable
from planner.output.scripts.emission import JOIN_PORTS, MODEL_CACHE, join_names
from planner.output.scripts.text import render_template, without_option
from planner.units import GIB

#: Beside its share of the weights: what each GPU's process needs of the node. An allowance.
MEMORY_GIB_PER_GPU = 32
#: vLLM's images are without Ray from here on (kubernetes-sigs/lws issue 835).
IMAGES_WITHOUT_RAY = (0, 19, 0)
#: What vLLM required before its images came without it (vllm-project/vllm pull request 33351).
RAY_REQUIREMENT = {"cuda": "ray[cgraph]>=2.48.0", "rocm": "ray>=2.48.0"}
#: Tokenising and scheduling want several cores beside one for each GPU's process. An allowance.
CPUS_PER_GPU = 8
_UNMOUNTABLE = ",:"
#: The scripts of a Ray cluster, in the order in which they are run.
RAY_SCRIPTS = {
    "build.sh": "On every node: add Ray to the planned image, which comes without it.",
    "head.sh": "On the first node: start the head of the Ray cluster in a container.",
    "worker.sh": "On every other node: start a container that joins the head.",
    "check.sh": "On the first node: check that all nodes and GPUs have joined.",
    "launch.sh": "On the first node: launch the planned server on the cluster and wait until it answers.",
    "stop.sh": "On any of the nodes: stop its container.",
}


def slurm(made: Deployable) -> dict[str, str]:
    """One batch script: a server on one node, or one over several."""
    if made.site.replicas > 1:
        raise InputError("--replicas: a Slurm job is one server", hint="submit the script as often as you need it")
    pyxis = made.site.container == "pyxis"
    names = {
        **_common(made, "Slurm: the planned server in a container, as a batch job."),
        "pyxis": pyxis,
        "several": made.nodes > 1,
        **(join_names(made.plan, made.join, made.nodes) if made.nodes > 1 else {}),
        "mem_per_gpu": f"{ceil(made.emission.checkpoint_bytes / GIB / made.plan.num_gpus) + MEMORY_GIB_PER_GPU}G",
        "whole_nodes": made.whole_nodes,
        "image_uri": _pyxis_image(made.plan.image) if pyxis else f"docker://{made.plan.image}",
        "gpu_flag": "--rocm" if made.plan.platform == "rocm" else "--nv",
        "env_argv": ["env", *(f"{name}={value}" for name, value in made.given_env.items())],
        "cpus_each": CPUS_PER_GPU * made.gpus_each,
    }
    return {"server.sbatch": _render("slurm.sbatch.j2", names)}


def ray(made: Deployable) -> dict[str, str]:
    """Head, workers, a check that all joined, the launch, and the end of it. An image without Ray is built upon."""
    if made.site.replicas > 1:
        raise InputError("--replicas: these scripts make one server", hint="use other nodes for the next one")
    made.require_several_nodes()
    if made.join == "dp":
        raise IllegalPlanError(
            "these scripts do not join data-parallel ranks", hint="use --target lws or slurm, or launch.sh of the plan"
        )
    bare = made.version.release >= IMAGES_WITHOUT_RAY
    names = {
        **_common(made, ""),
        "ray_name": f"{made.name}-ray",
        "image": f"planner-ray:{made.plan.digest}" if bare else made.plan.image,
        "base_image": made.plan.image,
        "builds": bare,
        "ray_requirement": RAY_REQUIREMENT["rocm" if made.plan.platform == "rocm" else "cuda"],
        "ray_port": JOIN_PORTS["ray"],
        "gpus_total": made.plan.num_gpus,
        "docker_args": _docker_args(made),
        "env_words": [f"{name}={value}" for name, value in made.given_env.items()],
    }
    scripts = [name for name in RAY_SCRIPTS if bare or name != "build.sh"]
    return {name: _render(f"ray_{name}.j2", names | {"title": RAY_SCRIPTS[name]}) for name in scripts}


def host_argv(made: Deployable) -> tuple[str, ...]:
    """``serve_argv`` for a server in the network of its node: another ``--host``, all else as planned."""
    return (*without_option(made.plan.serve_argv, "--host"), "--host", made.site.host)


def _docker_args(made: Deployable) -> tuple[str, ...]:
    """Those of the plan, for the GPUs that one node gives."""
    if made.plan.platform != "rocm":
        return ("--gpus", str(made.gpus_each), *without_option(made.plan.docker_args, "--gpus"))
    devices = ",".join(map(str, range(made.gpus_each)))
    return (*made.plan.docker_args, *(() if made.whole_nodes else ("--env", f"HIP_VISIBLE_DEVICES={devices}")))


def _common(made: Deployable, title: str) -> dict[str, Any]:
    folder = made.local_model
    if any(sign in folder for sign in _UNMOUNTABLE):
        raise IllegalPlanError(
            f"{folder!r}: no folder with a comma or a colon can be mounted", hint="rename the folder"
        )
    reached_at = LOOPBACK if made.site.host == EVERYWHERE else made.site.host
    return {
        "title": title,
        "header_lines": made.header(title)[1:],
        "name": made.name,
        "nodes": made.nodes,
        "gpus_each": made.gpus_each,
        "serve_argv": host_argv(made),
        "container_port": made.container_port,
        "reached_at": reached_at,
        "loopback": reached_at == LOOPBACK,
        "url": f"http://{reached_at}:{made.container_port}",
        "model_cache": MODEL_CACHE,
        "model_mount": f"{folder}:{folder}:ro" if folder else "",
        "start_timeout_s": made.start_timeout_s,
    }


def _pyxis_image(image: str) -> str:
    """``REGISTRY#IMAGE``, the form of enroot; without a registry it is Docker Hub's."""
    first, slash, rest = image.partition("/")
    return f"{first}#{rest}" if slash and ("." in first or ":" in first) else image


def _render(template: str, names: dict[str, Any]) -> str:
    return render_template(template, names, ("deploy", "vllm"))
