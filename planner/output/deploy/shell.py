"""Scripts for machines without an orchestrator of containers: Slurm, and Ray over machines that have docker.

Containers share the network of their machine here, so the server listens on 127.0.0.1 unless ``--host`` says otherwise:
``--host`` of the plan is the one option that is replaced.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import jinja2

from planner.errors import IllegalPlanError, InputError
from planner.output.deploy.deployable import (
    IMAGES_WITHOUT_RAY,
    LOOPBACK,
    MASTER_PORT,
    RAY_PORT,
    Deployable,
    several_nodes,
)
from planner.output.scripts.emission import MODEL_CACHE, without_option
from planner.output.scripts.render import jinja_environment
from planner.resources import data_dir
from planner.units import GIB

#: Beside its share of the weights: what each GPU's process needs of the machine. An allowance.
MEMORY_GIB_PER_GPU = 32
#: What vLLM required before its images came without it (vllm-project/vllm pull request 33351).
RAY_REQUIREMENT = {"cuda": "ray[cgraph]>=2.48.0", "rocm": "ray>=2.48.0"}
#: Tokenising and scheduling want several cores beside one for each GPU's process. An allowance.
CPUS_PER_GPU = 8
EVERYWHERE = "0.0.0.0"  # noqa: S104  (only where the user asks for it)
_UNMOUNTABLE = ",:"
#: The scripts of a Ray cluster, in the order in which they are run.
RAY_SCRIPTS = {
    "build.sh": "Put Ray on top of the planned image, which comes without it. On every machine.",
    "head.sh": "On the first machine: start the head of the Ray cluster in a container.",
    "worker.sh": "On every other machine: start a container that joins the head.",
    "check.sh": "On the first machine: have all machines and GPUs joined?",
    "launch.sh": "On the first machine: launch the planned server on the cluster and wait until it answers.",
    "stop.sh": "On any of the machines: stop its container.",
}


def slurm(made: Deployable) -> dict[str, str]:
    """One batch script: a server on one node, or one over several."""
    if made.site.replicas > 1:
        raise InputError("--replicas: a Slurm job is one server", hint="submit the script as often as you need it")
    _mountable(made)
    names = {
        **_common(made, "Slurm: the planned server in a container, as a batch job."),
        "pyxis": made.site.container == "pyxis",
        "several": made.nodes > 1,
        "by_ray": made.executor == "ray",
        "local_mount": f"{made.local_model}:{made.local_model}:ro",
        "mem_per_gpu": f"{_memory_gib(made)}G",
        "whole_nodes": made.whole_nodes,
        "image_uri": _pyxis_image(made.plan.image) if made.site.container == "pyxis" else f"docker://{made.plan.image}",
        "gpu_flag": "--rocm" if made.plan.platform == "rocm" else "--nv",
        "env_argv": ["env", *(f"{name}={value}" for name, value in made.given_env.items())],
        "cpus_each": CPUS_PER_GPU * made.gpus_each,
        "head_port": MASTER_PORT if made.executor == "mp" else RAY_PORT,
    }
    return {"server.sbatch": _render("slurm.sbatch.j2", names)}


def ray(made: Deployable) -> dict[str, str]:
    """Head, workers, a check that all joined, the launch, and the end of it. An image without Ray is built upon."""
    if made.site.replicas > 1:
        raise InputError("--replicas: these scripts make one server", hint="use other machines for the next one")
    several_nodes(made)
    _mountable(made)
    bare = made.version.release >= IMAGES_WITHOUT_RAY
    names = {
        **_common(made, ""),
        "ray_name": f"{made.name}-ray",
        "image": f"planner-ray:{made.plan.digest}" if bare else made.plan.image,
        "base_image": made.plan.image,
        "builds": bare,
        "ray_requirement": RAY_REQUIREMENT["rocm" if made.plan.platform == "rocm" else "cuda"],
        "ray_port": RAY_PORT,
        "gpus_total": made.plan.num_gpus,
        "docker_args": _docker_args(made),
        "env_words": [f"{name}={value}" for name, value in made.given_env.items()],
        "model_mount": f"{made.local_model}:{made.local_model}:ro" if made.local_model else "",
    }
    scripts = [name for name in RAY_SCRIPTS if bare or name != "build.sh"]
    return {name: _render(f"ray_{name}.j2", names | {"title": RAY_SCRIPTS[name]}) for name in scripts}


def host_argv(made: Deployable) -> tuple[str, ...]:
    """``serve_argv`` for a server in the machine's own network: another ``--host``, all else as planned."""
    return (*without_option(made.plan.serve_argv, "--host"), "--host", made.site.host)


def _mountable(made: Deployable) -> None:
    if any(sign in made.local_model for sign in _UNMOUNTABLE):
        raise IllegalPlanError(
            f"{made.local_model!r}: no folder with a comma or a colon can be mounted", hint="rename the folder"
        )


def _docker_args(made: Deployable) -> tuple[str, ...]:
    """Those of the plan, for the GPUs that one machine gives."""
    if made.plan.platform != "rocm":
        return ("--gpus", str(made.gpus_each), *without_option(made.plan.docker_args, "--gpus"))
    devices = ",".join(map(str, range(made.gpus_each)))
    return (*made.plan.docker_args, *(() if made.whole_nodes else ("--env", f"HIP_VISIBLE_DEVICES={devices}")))


def _common(made: Deployable, title: str) -> dict[str, Any]:
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
        "local_model": made.local_model,
        "start_timeout_s": made.start_timeout_s,
    }


def _memory_gib(made: Deployable) -> int:
    return ceil(made.emission.checkpoint_bytes / GIB / made.plan.num_gpus) + MEMORY_GIB_PER_GPU


def _pyxis_image(image: str) -> str:
    """``REGISTRY#IMAGE``, the form of enroot; without a registry it is Docker Hub's."""
    first, slash, rest = image.partition("/")
    return f"{first}#{rest}" if slash and ("." in first or ":" in first) else image


def _render(template: str, names: dict[str, Any]) -> str:
    folder = data_dir("templates")
    templates: jinja2.Environment = jinja_environment([folder / "deploy", folder / "vllm"])
    return templates.get_template(template).render(names)
