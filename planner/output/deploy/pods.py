"""A planned server at a site as pods, one on each of its nodes, which every platform writes in its own form."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from planner.engine import LOOPBACK, flag_status, parse_version
from planner.errors import IllegalPlanError, InputError
from planner.output.scripts import emission as scripts
from planner.output.scripts.text import option, render_template
from planner.planning import Plan
from planner.resources import package_dir, tables_of
from planner.units import GIB, MS, counted, whole_number

_TABLES = tables_of(package_dir("output") / "names.toml")
ROUTERS, _NAMES = _TABLES["routers"], _TABLES["site_names"]
#: vLLM's own example for Kubernetes gives one GPU 2 GiB of shared memory; NCCL and RCCL need more of it for each more.
SHM_GIB_PER_GPU = 2
SHM_GIB_AT_LEAST = 8
MOST_REPLICAS = 1000
HF_SECRET = "hf-token"
_QUALIFIED = _NAMES["--gpu-resource"][0]
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_VALUE = r"=(?P<value>([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?)"
_LABEL_PAIR = re.compile(rf"(?P<key>{_QUALIFIED}){_VALUE}")
_TAINT = re.compile(rf"(?P<key>{_QUALIFIED})({_VALUE})?(:(?P<effect>{'|'.join(_EFFECTS)}))?")
#: Options of ``docker run`` with a counterpart on other platforms.
_PORTABLE = ("device", "group-add", "security-opt", "gpus", "ipc")
#: Beside its share of the weights: what each GPU's process needs of the node at most. Allowances.
MEMORY_GIB_PER_GPU, CPUS_PER_GPU = 32, 8
#: Reserved of them in Kubernetes, which lets the smallest nodes with such GPUs run the pod.
RESERVED_GIB_PER_GPU, RESERVED_CPUS_PER_GPU = 8, 4
UNCONFINED = frozenset({"seccomp=unconfined", "seccomp:unconfined"})  #: values of --security-opt
DRAIN_S_AT_LEAST = 60  #: that requests in flight have when a server is stopped; more where the p99 of E2EL is longer
GRACE_S = 30  #: beyond it: 10 s in which traffic leaves a pod, and what releasing the GPUs takes (ROCm: up to 15 s)
SCRATCH_GIB = 20  #: of the container's own disk: compiled kernels and graphs, logs
IMAGE_USER_SINCE = "0.23.0"  #: vLLM's images for NVIDIA have user 2000 (its docs/deployment/docker.md)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Site:
    """Options of a deployment beside the plan. Raises InputError for a name that the platform would refuse."""

    replicas: int | None = None  #: servers like the planned one; None: as many as the plan needs
    max_replicas: int | None = None  #: to scale to under load; None: no scaling
    image: str = ""  #: instead of the plan's: a mirror's, or a digest
    prometheus: str = ""  #: its address, where it is to collect the server's metrics
    nodes: int | None = None  #: nodes of one server; None: as many as the planned node size needs
    name: str = ""
    namespace: str = ""
    host: str = LOOPBACK  #: address of the server, where containers use the network of their node
    port: int = scripts.PORT
    hf_secret: str = HF_SECRET  #: name of a Secret with the key HF_TOKEN
    cache: str = "pvc"  #: ``emptydir``, ``pvc`` (a new claim), or ``claim/NAME``
    gpu_resource: str = ""  #: as the device plugin names it
    rdma_resource: str = ""  #: as the device plugin names the adapters between nodes; ``NAME=COUNT`` for several a pod
    as_root: bool = False  #: also where the image has a user of its own
    tolerations: tuple[str, ...] = ()  #: ``KEY[=VALUE][:EFFECT]``
    node_selector: tuple[str, ...] = ()  #: ``KEY=VALUE``
    start_timeout_s: int | None = None
    container: Literal["pyxis", "apptainer"] = "pyxis"

    def __post_init__(self) -> None:
        """Check every field. Names follow the rules of DNS and of Kubernetes."""
        for flag, (form, words, longest) in _NAMES.items():
            name = getattr(self, flag[2:].replace("-", "_"))
            if (name or flag in ("--cache", "--host")) and (not re.fullmatch(form, name) or len(name) > longest):
                raise InputError(f"{flag} {name[:80]!r} cannot be used", hint=f"{words}, at most {longest} characters")
        for flag, most in {"--replicas": MOST_REPLICAS, "--max-replicas": MOST_REPLICAS, "--port": 65535}.items():
            value = getattr(self, flag[2:].replace("-", "_"))
            if value is not None and not 1 <= value <= most:
                raise InputError(f"{flag} {value} is out of range", hint=f"from 1 to {most}")
        if self.max_replicas and not self.prometheus:
            raise InputError("--max-replicas needs metrics", hint="give Prometheus's address with --prometheus")
        self.taints()
        self.node_labels()

    def taints(self) -> list[dict[str, str]]:
        """Tolerations as Kubernetes writes them. Without ``=VALUE`` any value is tolerated, without effect each one."""
        words = f"KEY, KEY=VALUE or KEY=VALUE:EFFECT with {', '.join(_EFFECTS)}"
        read = [_matched("--toleration", _TAINT, text, words) for text in self.tolerations]
        return [
            {"key": one["key"], "operator": "Exists" if one["value"] is None else "Equal"}
            | {name: one[name] for name in ("value", "effect") if one[name] is not None}
            for one in read
        ]

    def node_labels(self) -> dict[str, str]:
        words = "KEY=VALUE, as kubectl get nodes --show-labels"
        read = [_matched("--node-selector", _LABEL_PAIR, text, words) for text in self.node_selector]
        return {one["key"]: one["value"] for one in read}


def _matched(flag: str, form: re.Pattern[str], text: str, words: str) -> re.Match[str]:
    if match := form.fullmatch(text):
        return match
    raise InputError(f"{flag} {text!r} cannot be used", hint=words)


@dataclass(frozen=True)
class Pods:
    """One server of a plan: a pod for each node, all with the same image, variables, GPUs and volumes."""

    emission: scripts.Emission
    site: Site
    command: str  #: that deploys it
    name: str  #: of everything that is made
    nodes: int
    planned_nodes: int
    replicas: int  #: servers like the planned one
    gpus: int  #: logical GPUs of one pod
    join: scripts.Join | None  #: how several pods form one server
    env: Mapping[str, str]  #: the plan's variables without those that choose GPUs, and the models' folder
    docker: Mapping[str, Sequence[str]]  #: values of the options of ``docker run``
    port: int  #: in the container
    start_timeout_s: int
    shm_gib: int  #: shared memory of one pod
    cache_gib: int  #: size of the model, and a fifth more for leftovers of a download
    model_folder: str  #: empty for a model of the hub

    @property
    def plan(self) -> Plan:
        return self.emission.file.plan

    @property
    def drain_s(self) -> int:
        """Seconds that requests in flight have to finish once the server is stopped."""
        return max(DRAIN_S_AT_LEAST, ceil(float(self.plan.predicted.get("p99_e2el_ms", 0)) * MS))

    @property
    def serve_argv(self) -> tuple[str, ...]:
        """The serving line with ``--shutdown-timeout`` where the release has it; TP and PP over nodes cannot drain."""
        drains = flag_status(parse_version(self.plan.engine_version), "--shutdown-timeout") and self.nodes == 1
        return (*self.plan.serve_argv, *(("--shutdown-timeout", str(self.drain_s)) if drains else ()))

    @property
    def capabilities(self) -> list[str]:
        """Added to the container: for RDMA the right to keep memory in its place."""
        return ["IPC_LOCK"] * bool(self.site.rdma_resource)

    @property
    def as_user(self) -> bool:
        """True if the image has a user of its own. Linux gives added capabilities to root alone."""
        if self.site.as_root or self.capabilities or "vllm/vllm-openai:" not in self.plan.image:
            return False
        return parse_version(self.plan.engine_version).release >= parse_version(IMAGE_USER_SINCE).release

    @property
    def most_pods(self) -> int:
        return max(self.replicas, self.site.max_replicas or 0) * self.nodes

    @property
    def in_flight(self) -> int:
        """Requests in flight of one server at its largest load: its concurrency, else rate x mean E2EL."""
        plan, load, service = self.plan, self.plan.workload, self.plan.service
        flying = load.max_concurrency or (load.request_rate or 0) * plan.predicted.get("mean_e2el_ms", 0) * MS
        if service and service.requests_in_flight:
            share = (service.largest_load or 0) / service.load if service.load else 0
            flying = service.requests_in_flight * max(share, 1 / service.carrying)
        return ceil(flying) or plan.max_num_seqs

    @property
    def memory_gib(self) -> int:
        """Most memory of one pod: the processes, the weights as they are read, and what is shared."""
        weights = ceil(self.emission.checkpoint_bytes / GIB / self.nodes)
        return weights + self.share(MEMORY_GIB_PER_GPU) + self.shm_gib

    def share(self, per_gpu: int) -> int:
        """Return what one pod gets of ``per_gpu`` for each whole GPU, of which a partition has its part; at least 1."""
        return max(per_gpu * self.gpus // self.emission.profile.parts, 1)

    @property
    def unconfined(self) -> bool:
        """True for several GPUs of a plan that asks for no seccomp filter; AMD's documents ask for none at all."""
        return not UNCONFINED.isdisjoint(self.docker["--security-opt"]) and self.gpus > 1

    def require_one_node(self, target: str) -> None:
        """Raise IllegalPlanError for a server over several nodes."""
        if self.nodes > 1:
            cause = f"{target} runs one server on one node, and this one is spread over {self.nodes}"
            raise IllegalPlanError(cause, hint="deploy it with --target lws or slurm")

    def header(self, title: str, *remarks: str) -> list[str]:
        """Lines of comment on top of every file."""
        plan, service = self.plan, self.plan.service
        needed, router = (service.replicas, service.router) if service else (1, None)
        few = f"; start it {ceil(needed / self.replicas)} times" if self.replicas < needed else ""
        few += ", on a node each" * (self.replicas * plan.num_gpus == plan.gpus_per_node and few != "")
        few += f", the last with --replicas {left}" if few and (left := needed % self.replicas) else ""
        names = {
            "pods": self,
            "title": title,
            "load": scripts.describe_load(plan),
            "needed": counted(needed, "server") if needed > 1 or self.replicas > 1 else "",
            "started": f"{self.replicas}{few}",
            "balancers": ROUTERS[router] if router else "",
            "adapted": "--enable-lora" in plan.serve_argv,
            "spread": self.nodes != self.planned_nodes,
            "remarks": remarks,
        }
        return render_template("header.txt.j2", names, ("deploy",)).splitlines()


def describe(emission: scripts.Emission, site: Site, command: str, most: int) -> Pods:
    """The pods of a plan at a site that holds ``most`` such servers.

    Raises IllegalPlanError for a plan that cannot run in a container, InputError for impossible numbers."""
    plan = emission.file.plan
    if site.replicas is not None and site.replicas > most:
        raise InputError(
            f"--replicas {site.replicas}: a node with {plan.gpus_per_node} GPUs holds {counted(most, 'such server')}",
            hint="ask for fewer, or use --target kubernetes",
        )
    replicas = site.replicas or min(most, plan.service.replicas if plan.service else 1)
    if site.max_replicas and site.max_replicas < replicas:
        raise InputError(f"--max-replicas {site.max_replicas} is less than {replicas} servers", hint="set --replicas")
    _check_container(plan)
    planned = ceil(plan.num_gpus / plan.gpus_per_node)
    nodes = planned if site.nodes is None else site.nodes
    _check_nodes(emission, nodes, planned)
    text = option(plan.serve_argv, "--port") or str(scripts.PORT)
    port = whole_number(text)
    if port is None or not 1 <= port <= 65535:
        raise IllegalPlanError(f"--port {text!r} of the plan cannot be used", hint="from 1 to 65535")
    gpus = plan.num_gpus // nodes
    timeout_s = site.start_timeout_s or scripts.start_timeout_s(emission.checkpoint_bytes)
    own_env = {name: value for name, value in plan.env.items() if name not in scripts.PLACEMENT_VARIABLES}
    if timed := scripts.ready_timeout(parse_version(plan.engine_version), plan.serve_argv, plan.env):
        own_env[timed] = str(timeout_s)
    return Pods(
        emission,
        site,
        command,
        name=site.name or scripts.container_name(plan),
        nodes=nodes,
        planned_nodes=planned,
        replicas=replicas,
        gpus=gpus,
        join=scripts.join_of(plan, gpus) if nodes > 1 else None,
        env={**own_env, "HF_HOME": scripts.MODEL_CACHE},
        docker=_docker_options(plan.docker_args),
        port=port,
        start_timeout_s=timeout_s,
        # vLLM also has KV blocks of the host in shared memory (0.32, NVIDIA)
        shm_gib=max(SHM_GIB_AT_LEAST, SHM_GIB_PER_GPU * gpus) + scripts.host_kv_gib(plan),
        cache_gib=ceil(1.2 * emission.checkpoint_bytes / GIB) + 1,
        model_folder=scripts.local_folder(plan),
    )


def _check_container(plan: Plan) -> None:
    if not plan.image:
        raise IllegalPlanError("the plan has no container image", hint="run launch.sh, or plan for a GPU")
    if not re.fullmatch(_NAMES["--image"][0], plan.image):
        raise IllegalPlanError(f"{plan.image!r} is not the name of an image", hint="such as vllm/vllm-openai:v0.14.0")
    scripts.check_exposure(plan)
    for name in plan.env:
        if not _VARIABLE.fullmatch(name):
            raise IllegalPlanError(f"{name!r} is not the name of a variable", hint="letters, digits and underscores")


def _check_nodes(emission: scripts.Emission, nodes: int, planned: int) -> None:
    plan = emission.file.plan
    if nodes < 1 or plan.num_gpus % nodes or plan.num_gpus // nodes > plan.gpus_per_node:
        cause = f"--nodes {nodes}: {counted(plan.num_gpus)} in equal shares, and a node has {plan.gpus_per_node} GPUs"
        raise InputError(cause, hint=f"at least --nodes {planned}, and a divisor of {plan.num_gpus}")
    if nodes > 1 and emission.profile.partition:
        raise IllegalPlanError("no server uses partitions of several nodes", hint="add servers with --replicas")


def _docker_options(docker_args: Sequence[str]) -> dict[str, list[str]]:
    """Values by option. Raises IllegalPlanError for an option without a counterpart on other platforms."""
    values: dict[str, list[str]] = {f"--{name}": [] for name in _PORTABLE}
    words = iter(docker_args)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in values:
            raise IllegalPlanError(f"the plan's docker option {flag} has no counterpart", hint="use its launch.sh")
        values[flag].append(value if equals else next(words, ""))
    return values
