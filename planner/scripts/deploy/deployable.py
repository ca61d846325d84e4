"""A plan at a site: everything that the targets have in common, decided once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import PurePosixPath
from typing import Literal

from planner.engine.flags import flag_status
from planner.engine.version import EngineVersion, parse_version
from planner.errors import IllegalPlanError, InputError
from planner.plan import Plan
from planner.scripts.deploy.container import ContainerNeeds, container_needs
from planner.scripts.deploy.site import Site
from planner.scripts.emission import MODEL_CACHE, PORT, Emission, check_exposure, container_name, describe_load, option
from planner.units import GIB

#: Which GPUs of a machine are used is the platform's to say, where it hands them out.
PLACEMENT = frozenset(("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"))
PASSED_BY_NAME = ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE")
#: Start-up beside reading the weights: compiling, capturing graphs, the profile run. An allowance, not a prediction.
START_ALLOWANCE_S = 900
#: A slow link to the hub. With it a 70B model in FP8 has half an hour.
DOWNLOAD_BYTES_PER_S = 100e6
#: vLLM's own example for Kubernetes gives one GPU 2 GiB of shared memory; NCCL and RCCL need more of it for each more.
SHM_GIB_PER_GPU = 2
SHM_GIB_AT_LEAST = 8
MASTER_PORT = 29501  #: of vLLM's own processes on several nodes
RAY_PORT = 6379  #: Ray's own default
#: vLLM's images are without Ray from here on (kubernetes-sigs/lws issue 835).
IMAGES_WITHOUT_RAY = (0, 19, 0)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Deployable:
    """A plan, what is said about it, and where it is to run.

    Raises IllegalPlanError for a plan that no platform could run in a container, or not on so many nodes.
    """

    emission: Emission
    site: Site
    command: str  #: that deploys it

    def __post_init__(self) -> None:
        """Refuse before anything is written."""
        plan = self.plan
        if not plan.image:
            raise IllegalPlanError(
                "the plan has no container image: its server is the vLLM that is installed on the machine",
                hint="run launch.sh of the plan's folder, or plan for another --gpu than cpu",
            )
        if not _IMAGE.fullmatch(plan.image):
            raise IllegalPlanError(
                f"{plan.image!r} is not the name of an image", hint="such as vllm/vllm-openai:v0.14.0"
            )
        check_exposure(plan)
        for name in plan.env:
            if not _VARIABLE.fullmatch(name):
                raise IllegalPlanError(
                    f"{name!r} is not the name of a variable", hint="letters, digits and underscores"
                )
        self._check_nodes()

    def _check_nodes(self) -> None:
        plan, nodes = self.plan, self.nodes
        if nodes < 1 or plan.num_gpus % nodes:
            raise InputError(
                f"--nodes {nodes}: {plan.num_gpus} GPU(s) of one server cannot be spread evenly over as many",
                hint="name a number that divides them",
            )
        if self.gpus_each > plan.gpus_per_node:
            raise InputError(
                f"--nodes {nodes}: a node has {plan.gpus_per_node} GPUs, not {self.gpus_each}",
                hint=f"at least --nodes {ceil(plan.num_gpus / plan.gpus_per_node)}",
            )
        if nodes > 1 and self.emission.profile.partition:
            raise IllegalPlanError("partitions are not joined over nodes", hint="deploy more servers with --replicas")
        if nodes > 1 and plan.data_parallel_size > 1:
            raise IllegalPlanError(
                "a plan with --data-parallel-size is not spread over nodes",
                hint="deploy one engine on each node: plan with data parallelism 1 and add --replicas",
            )

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.emission.file.plan

    @property
    def name(self) -> str:
        """Of everything that is made."""
        return self.site.name or container_name(self.emission.file)

    @cached_property
    def version(self) -> EngineVersion:
        """The vLLM version."""
        return parse_version(self.plan.engine_version)

    @cached_property
    def needs(self) -> ContainerNeeds:
        """What docker was told."""
        return container_needs(self.plan.docker_args)

    @property
    def nodes(self) -> int:
        """Machines that one server is spread over."""
        return ceil(self.plan.num_gpus / self.plan.gpus_per_node) if self.site.nodes is None else self.site.nodes

    @property
    def gpus_each(self) -> int:
        """Logical GPUs that one server takes of each of its machines."""
        return self.plan.num_gpus // self.nodes

    @property
    def whole_nodes(self) -> bool:
        """Whether nothing is left of the machines for others."""
        return self.gpus_each == self.plan.gpus_per_node

    @property
    def executor(self) -> Literal["mp", "ray"]:
        """What joins the nodes: vLLM's own processes where the version has them, else Ray."""
        return "mp" if flag_status(self.version, "--nnodes") else "ray"

    @property
    def container_port(self) -> int:
        """Where the server listens."""
        text = option(self.plan.serve_argv, "--port") or str(PORT)
        if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535):
            raise IllegalPlanError(f"--port {text!r} of the plan is no port", hint="from 1 to 65535")
        return int(text)

    @property
    def local_model(self) -> str:
        """The folder that is served, empty for a model of the hub."""
        return self.plan.model if PurePosixPath(self.plan.model).is_absolute() else ""

    @property
    def given_env(self) -> dict[str, str]:
        """The plan's variables without those that choose GPUs, and where the models are."""
        return {**{k: v for k, v in self.plan.env.items() if k not in PLACEMENT}, "HF_HOME": MODEL_CACHE}

    @property
    def start_timeout_s(self) -> int:
        """How long a start may take, in whole minutes: longer for more weights."""
        if self.site.start_timeout_s:
            return self.site.start_timeout_s
        return 60 * ceil((START_ALLOWANCE_S + self.emission.checkpoint_bytes / DOWNLOAD_BYTES_PER_S) / 60)

    @property
    def shm_gib(self) -> int:
        """Shared memory of one container, GiB."""
        return max(SHM_GIB_AT_LEAST, SHM_GIB_PER_GPU * self.gpus_each)

    @property
    def cache_gib(self) -> int:
        """Room for the model, with a fifth more for what a download leaves beside it."""
        return ceil(1.2 * self.emission.checkpoint_bytes / GIB) + 1

    @property
    def needs_token(self) -> bool:
        """Whether nothing goes without a token; where that is not known, it may."""
        return self.plan.gated is True

    def header(self, title: str, *remarks: str) -> list[str]:
        """What stands on top of every file."""
        file, plan = self.emission.file, self.plan
        lines = [
            title,
            "",
            f"{plan.model} on {plan.num_gpus} x {self.emission.profile.name}, vLLM {plan.engine_version}",
            f"goal: {file.goal}; plan {plan.digest}; written by planner {file.planner_version}",
            f"planned by: {file.command}",
            f"deployed by: {self.command}",
            "",
            f"predicted for one server and {describe_load(plan)}:",
            *(f"  {line}" for line in self.emission.predicted_lines),
        ]
        planned = ceil(plan.num_gpus / plan.gpus_per_node)
        if self.nodes != planned:
            lines.append(f"planned for {planned} node, spread over {self.nodes}: it will be slower than predicted")
        return [*lines, *(("", *remarks) if remarks else ())]
