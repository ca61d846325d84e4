"""Prefill and decode on servers of their own: a script for each side, and values of llm-d's chart.

The sides find each other by NIXL's side channel. A router sends each prompt to a prefill server first, and tells the
decode server where its cache is: vLLM's ``toy_proxy_server.py`` beside the scripts, llm-d's sidecar in its chart.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from planner.engine import docker_args, image_for
from planner.errors import IllegalPlanError
from planner.memory import stored_weight_bytes
from planner.output.deploy.site import HF_SECRET
from planner.output.deploy.yaml_text import Json, dump, escape_words
from planner.output.scripts.emission import MODEL_CACHE, PLACEMENT_VARIABLES
from planner.output.scripts.text import option, refuse_tokens, render_template, without_option
from planner.planning import Disaggregated, SideLaunch
from planner.units import GIB

#: Where decode servers listen behind llm-d's sidecar, which has the port of the service (``values.yaml`` of the chart).
ROUTED_PORT = 8200
#: Of the vendor's plugin.
GPU_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}


def split_files(plan: Disaggregated, command: str) -> dict[str, str]:
    """``prefill.sh``, ``decode.sh`` and ``llm-d-values.yaml``.

    Raises IllegalPlanError where no image or no connector of the version is known for the GPU.
    """
    if plan.model.startswith("/"):
        raise IllegalPlanError(
            f"{plan.model} is a folder, which servers on several machines do not share",
            hint="name a model of the hub, or start the commands of --format json yourself",
        )
    launches = plan.launches(ROUTED_PORT)
    files = {f"{side.role}.sh": _script(plan, side, command) for side in launches}
    files["llm-d-values.yaml"] = dump(_values(plan, launches))
    refuse_tokens(files)
    return files


def _image(plan: Disaggregated) -> str:
    return image_for(plan.profile, plan.decode.deployment.config.version).name


def _environment(side: SideLaunch) -> dict[str, str]:
    """Without what chooses GPUs, and what the script says itself."""
    own = {*PLACEMENT_VARIABLES, "VLLM_NIXL_SIDE_CHANNEL_PORT"}
    return {name: value for name, value in side.env.items() if name not in own}


def _script(plan: Disaggregated, side: SideLaunch, command: str) -> str:
    nvidia = plan.profile.vendor == "nvidia"
    words = docker_args(plan.profile, side.num_gpus)
    lines = (
        "",
        f"{plan.model} on {plan.profile.name}, {side.num_gpus} GPUs to a server",
        f"planned by: {command}",
        "",
        f"prefill {plan.prefill_servers}, decode {plan.decode_servers} servers, and {plan.spares} spare of each",
    )
    return render_template(
        "split.sh.j2",
        {
            "title": f"One of {side.servers} {side.role} servers; the argument is its number on this machine.",
            "header_lines": lines,
            "role": side.role,
            "image": _image(plan),
            "nvidia": nvidia,
            "docker_args": without_option(words, "--gpus") if nvidia else words,
            "gpus_each": side.num_gpus,
            "first_port": option(side.serve_argv, "--port"),
            "side_port": side.env["VLLM_NIXL_SIDE_CHANNEL_PORT"],
            "env_words": [f"{name}={value}" for name, value in _environment(side).items()],
            "model_cache": MODEL_CACHE,
            "entrypoint": side.serve_argv[0],
            "serve_args": without_option(without_option(side.serve_argv[1:], "--port"), "--host"),
        },
        ("deploy", "vllm"),
    )


def _values(plan: Disaggregated, launches: tuple[SideLaunch, SideLaunch]) -> Json:
    """Values of the chart llm-d-modelservice; its sidecar routes with the connector ``nixlv2``."""
    vendor = plan.profile.vendor
    prefill, decode = launches
    return {
        "multinode": False,
        "modelArtifacts": {
            "name": plan.model,
            "uri": f"hf://{plan.model}",
            "size": f"{ceil(1.2 * stored_weight_bytes(plan.decode.deployment.model) / GIB) + 1}Gi",
            "authSecretName": HF_SECRET,
            "mountPath": MODEL_CACHE,
            "labels": {"llm-d.ai/inferenceServing": "true"},
        },
        "accelerator": {"type": vendor, "resources": {vendor: GPU_RESOURCES[vendor]}},
        "routing": {
            "servicePort": int(option(prefill.serve_argv, "--port") or 0),
            "proxy": {"enabled": True, "connector": "nixlv2", "targetPort": ROUTED_PORT, "secure": False},
        },
        "decode": _side(plan, decode),
        "prefill": _side(plan, prefill),
    }


def _side(plan: Disaggregated, side: SideLaunch) -> Json:
    address = {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    names = {**_environment(side), "VLLM_NIXL_SIDE_CHANNEL_PORT": side.env["VLLM_NIXL_SIDE_CHANNEL_PORT"]}
    gpus: dict[str, Any] = {GPU_RESOURCES[plan.profile.vendor]: str(side.num_gpus)}
    return {
        "create": True,
        "replicas": side.servers,
        "parallelism": {"tensor": side.num_gpus, "data": 1, "dataLocal": 1, "workers": 1},
        "containers": [
            {
                "name": "vllm",
                "image": _image(plan),
                "modelCommand": "custom",
                "command": escape_words(side.serve_argv[:1]),
                "args": escape_words(side.serve_argv[1:]),
                "env": [address, *({"name": name, "value": value} for name, value in names.items())],
                "resources": {"limits": gpus, "requests": gpus},
                "mountModelVolume": True,
            }
        ],
    }
