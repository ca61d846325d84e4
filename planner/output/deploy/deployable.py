"""A plan at a site: everything that the targets have in common, decided once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from planner.engine import EngineVersion, parse_version
from planner.errors import IllegalPlanError, InputError
from planner.output.deploy.container import ContainerNeeds, read_docker_args
from planner.output.deploy.site import Site
from planner.output.scripts.emission import (
    MODEL_CACHE,
    PLACEMENT_VARIABLES,
    PORT,
    Emission,
    Join,
    check_exposure,
    container_name,
    describe_load,
    host_kv_gib,
    join_of,
    local_folder,
    servers_per_node,
)
from planner.output.scripts.text import option
from planner.planning import Plan
from planner.units import GIB, whole_number

#: Start-up beside reading the weights: compiling, capturing graphs, the profile run. An allowance, not a prediction.
START_ALLOWANCE_S = 900
#: A slow link to the hub. At this rate the weights of a 70B model in FP8 take 12 minutes.
DOWNLOAD_BYTES_PER_S = 100e6
#: vLLM's own example for Kubernetes gives one GPU 2 GiB of shared memory; NCCL and RCCL need more of it for each more.
SHM_GIB_PER_GPU = 2
SHM_GIB_AT_LEAST = 8
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
                "the plan has no container image: it uses the vLLM that is installed on the machine",
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
                hint=f"at least --nodes {self._planned_nodes}",
            )
        if nodes > 1 and self.emission.profile.partition:
            raise IllegalPlanError(
                "one server cannot use partitions of several nodes", hint="deploy more servers with --replicas"
            )
        if nodes > 1:
            join_of(plan, self.gpus_each)

    def require_one_node(self, target: str, hint: str = "deploy it with --target lws, slurm or ray") -> None:
        """Raises IllegalPlanError for a server over several nodes."""
        if self.nodes > 1:
            raise IllegalPlanError(
                f"{target} runs one server on one node, and this one is spread over {self.nodes}", hint=hint
            )

    def require_several_nodes(self) -> None:
        """Raises InputError for a server on one node."""
        if self.nodes == 1:
            raise InputError(
                "the planned server is on one node, and this target is for several",
                hint="use --target kubernetes, compose or slurm, or spread it with --nodes",
            )

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.emission.file.plan

    @property
    def name(self) -> str:
        """The name of everything that is made."""
        return self.site.name or container_name(self.plan)

    @cached_property
    def version(self) -> EngineVersion:
        """The vLLM version."""
        return parse_version(self.plan.engine_version)

    @cached_property
    def needs(self) -> ContainerNeeds:
        """What docker is told."""
        return read_docker_args(self.plan.docker_args)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What whoever runs it should know before."""
        asked = "the container is privileged, as the plan's docker arguments ask: it may do anything on its node"
        return (asked,) if self.needs.privileged else ()

    @property
    def _planned_nodes(self) -> int:
        return ceil(self.plan.num_gpus / self.plan.gpus_per_node)

    @property
    def nodes(self) -> int:
        """Nodes that one server is spread over."""
        return self._planned_nodes if self.site.nodes is None else self.site.nodes

    @property
    def gpus_each(self) -> int:
        """Logical GPUs that one server takes of each of its nodes."""
        return self.plan.num_gpus // self.nodes

    @property
    def whole_nodes(self) -> bool:
        """Whether nothing is left of the nodes for others."""
        return self.gpus_each == self.plan.gpus_per_node

    @property
    def servers_per_node(self) -> int:
        """How many servers like the planned one a node has room for."""
        return servers_per_node(self.plan)

    @property
    def join(self) -> Join:
        """What joins the nodes."""
        return join_of(self.plan, self.gpus_each)

    @property
    def container_port(self) -> int:
        """Where the server listens."""
        text = option(self.plan.serve_argv, "--port") or str(PORT)
        number = whole_number(text)
        if number is None or not 1 <= number <= 65535:
            raise IllegalPlanError(f"--port {text!r} of the plan is no port", hint="from 1 to 65535")
        return number

    @property
    def local_model(self) -> str:
        """The folder that is served, empty for a model of the hub."""
        return local_folder(self.plan)

    @property
    def given_env(self) -> dict[str, str]:
        """The plan's variables without those that choose GPUs, and where the models are."""
        kept = {name: value for name, value in self.plan.env.items() if name not in PLACEMENT_VARIABLES}
        return {**kept, "HF_HOME": MODEL_CACHE}

    @property
    def start_timeout_s(self) -> int:
        """How long a start may take, in whole minutes: longer for more weights."""
        if self.site.start_timeout_s:
            return self.site.start_timeout_s
        return 60 * ceil((START_ALLOWANCE_S + self.emission.checkpoint_bytes / DOWNLOAD_BYTES_PER_S) / 60)

    @property
    def shm_gib(self) -> int:
        """Shared memory of one container, GiB: vLLM keeps KV blocks of the host there too (0.32, NVIDIA)."""
        return max(SHM_GIB_AT_LEAST, SHM_GIB_PER_GPU * self.gpus_each) + host_kv_gib(self.plan)

    @property
    def cache_gib(self) -> int:
        """Room for the model, with a fifth more for what a download leaves beside it."""
        return ceil(1.2 * self.emission.checkpoint_bytes / GIB) + 1

    @property
    def needs_token(self) -> bool:
        """Whether a token is required. Where that is not known, a token stays optional."""
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
        planned = self._planned_nodes
        if self.nodes != planned:
            lines.append(f"planned for {planned} node, spread over {self.nodes}: it will be slower than predicted")
        remarks = (*self.warnings, *remarks)
        return [*lines, *(("", *remarks) if remarks else ())]
