"""The place where a plan is to run: what its user knows about it and the plan does not."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import PurePosixPath
from typing import Any, Literal

from planner.engine import EngineVersion, flag_status, parse_version
from planner.errors import IllegalPlanError, InputError
from planner.output.scripts.emission import (
    MODEL_CACHE,
    PORT,
    Emission,
    check_exposure,
    container_name,
    describe_load,
    option,
)
from planner.planning import Plan
from planner.resources import data_dir
from planner.units import GIB

LOOPBACK = "127.0.0.1"
MOST_REPLICAS = 1000
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
#: Kubernetes appends to the name of a workload: ten characters of a ReplicaSet, numbers of LeaderWorkerSet's pods.
_LONGEST_NAME = 50


@dataclass(frozen=True, slots=True)
class Site:
    """What is asked for beside the plan. Empty and None: the target's own default.

    Raises InputError for a name that the platform would not take.
    """

    replicas: int = 1  #: servers like the planned one
    nodes: int | None = None  #: machines that one server is spread over; None: as many as the plan's node needs
    name: str = ""
    namespace: str = ""
    host: str = LOOPBACK  #: address that the server is reached at, where the machine's own network is used
    port: int = 8000
    hf_secret: str = "hf-token"  # noqa: S105  (the name of a Secret, with the key HF_TOKEN)
    cache: str = "emptydir"  #: ``emptydir``, ``pvc`` (a new claim), or ``claim/NAME``
    gpu_resource: str = ""  #: as the device plugin names it
    tolerations: tuple[str, ...] = ()  #: ``KEY[=VALUE][:EFFECT]``
    node_selector: tuple[str, ...] = ()  #: ``KEY=VALUE``
    start_timeout_s: int | None = None
    container: Literal["pyxis", "apptainer"] = "pyxis"

    def __post_init__(self) -> None:
        """Names are those of DNS and of Kubernetes."""
        _known("--name", self.name, _LABEL, "lower-case letters, digits and dashes", _LONGEST_NAME)
        _known("--namespace", self.namespace, _LABEL, "lower-case letters, digits and dashes", 63)
        _known("--hf-secret", self.hf_secret, _SUBDOMAIN, "lower-case letters, digits, dashes and dots", 253)
        _known("--gpu-resource", self.gpu_resource, _QUALIFIED, "vendor.com/name", 316)
        if not 1 <= self.replicas <= MOST_REPLICAS:
            raise InputError(f"--replicas {self.replicas} is no number of servers", hint=f"from 1 to {MOST_REPLICAS}")
        if not 1 <= self.port <= 65535:
            raise InputError(f"--port {self.port} is no port", hint="from 1 to 65535")
        _address(self.host)
        if self.cache not in ("emptydir", "pvc"):
            form, _, claim = self.cache.partition("/")
            if form != "claim":
                raise InputError(
                    f"--cache {self.cache!r} is no place for models",
                    hint="emptydir, pvc, or claim/NAME for one that exists",
                )
            _known("--cache", claim or "-", _SUBDOMAIN, "claim/ and the name of a claim", 253)
        tuple(self.taints())
        self.selected()

    @property
    def claim(self) -> str:
        """The claim that exists already, empty where there is none."""
        return self.cache.partition("/")[2]

    def taints(self) -> Iterator[dict[str, str]]:
        """Tolerations as Kubernetes has them. Without ``=VALUE`` any value is tolerated, without effect each one."""
        for text in self.tolerations:
            pair, colon, effect = text.rpartition(":") if ":" in text else (text, "", "")
            key, equals, value = pair.partition("=")
            named = _QUALIFIED.fullmatch(key) and _LABEL_VALUE.fullmatch(value)
            if not named or (colon and effect not in _EFFECTS):
                raise InputError(
                    f"--toleration {text!r} is no toleration",
                    hint=f"KEY, KEY=VALUE or KEY=VALUE:EFFECT with {', '.join(_EFFECTS)}",
                )
            made = {"key": key, "operator": "Equal" if equals else "Exists"}
            yield made | ({"value": value} if equals else {}) | ({"effect": effect} if effect else {})

    def selected(self) -> dict[str, str]:
        """Labels that a node must have."""
        labels: dict[str, str] = {}
        for text in self.node_selector:
            key, equals, value = text.partition("=")
            if not (equals and _QUALIFIED.fullmatch(key) and _LABEL_VALUE.fullmatch(value)):
                raise InputError(
                    f"--node-selector {text!r} is no label", hint="KEY=VALUE, as kubectl get nodes --show-labels has it"
                )
            labels[key] = value
        return labels


def _known(flag: str, name: str, form: re.Pattern[str], what: str, longest: int) -> None:
    if name and (not form.fullmatch(name) or len(name) > longest):
        raise InputError(f"{flag} {name[:80]!r} cannot be used", hint=f"{what}, at most {longest} characters")


def _address(host: str) -> None:
    try:
        ipaddress.IPv4Address(host)
    except ValueError as error:
        raise InputError(
            f"--host {host[:80]!r} is no IPv4 address", hint="such as 127.0.0.1, or 0.0.0.0 for all"
        ) from error


# --- ``docker_args`` of a plan as facts, for platforms that have other words for them

_SWITCHES = {"--privileged": "privileged"}
_LISTS = {
    "--device": "devices",
    "--group-add": "groups",
    "--security-opt": "security_opt",
    "--cap-add": "capabilities",
}
_VALUES = {"--gpus": "gpus", "--ipc": "ipc", "--shm-size": "shm_size"}


@dataclass(frozen=True, slots=True)
class ContainerNeeds:
    """What ``docker run`` is told beside names, ports and folders."""

    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    security_opt: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    privileged: bool = False
    gpus: str = ""  #: of NVIDIA: a number, or ``all``
    ipc: str = ""
    shm_size: str = ""

    @property
    def unconfined(self) -> bool:
        """Whether system calls are not filtered."""
        return bool({"seccomp=unconfined", "seccomp:unconfined"} & set(self.security_opt))


def container_needs(docker_args: Sequence[str]) -> ContainerNeeds:
    """Read the options. Raises IllegalPlanError for one that has no counterpart elsewhere."""
    found: dict[str, Any] = {}
    for flag, value in _pairs(docker_args):
        if flag in _SWITCHES:
            found[_SWITCHES[flag]] = True
        elif flag in _LISTS:
            found[_LISTS[flag]] = (*found.get(_LISTS[flag], ()), value)
        elif flag in _VALUES:
            found[_VALUES[flag]] = value
        else:
            raise IllegalPlanError(
                f"the plan's docker option {flag} has no counterpart on other platforms",
                hint="launch.sh of the plan's folder runs it as it is",
            )
    return ContainerNeeds(**found)


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options with their values, in the form ``--flag value`` or ``--flag=value``."""
    left = iter(words)
    for word in left:
        flag, equals, value = word.partition("=")
        if flag in _SWITCHES or equals:
            yield flag, value
        else:
            yield flag, next(left, "")


# --- A plan at a site: everything that the targets have in common, decided once

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


# --- One server over several machines: what each of them runs


def several_nodes(made: Deployable) -> None:
    """Raises InputError for a server on one machine."""
    if made.nodes == 1:
        raise InputError(
            "the planned server is on one node, and this target is for several",
            hint="use --target kubernetes, compose or slurm, or spread it with --nodes",
        )


def node_script(made: Deployable) -> str:
    """The same on every node: a constant text that takes ``serve_argv`` as its arguments.

    It reads NODE_RANK (0 is the head), NODES, HEAD (the head's address), HEAD_PORT and, for Ray, NODE_GPUS and
    START_TIMEOUT_S.
    """
    return (data_dir("templates") / "deploy" / f"node_{made.executor}.sh").read_text(encoding="utf-8")
