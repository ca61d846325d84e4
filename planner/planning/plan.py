"""A plan: the one object that is simulated, launched, benchmarked and validated."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf, isinf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from planner.engine import SpeculativeConfig
from planner.errors import InputError, fault_in, shown
from planner.planning import defaults
from planner.planning.defaults import Goal
from planner.resources import read_given
from planner.secrets import is_secret
from planner.units import LEAST_FIGURE, MOST_FIGURE
from planner.workload import Latency, Load, Slo, joined, parse_percentile

if TYPE_CHECKING:
    from planner.planning.predict import Reading

SCHEMA_VERSION = 1

Gpus = Annotated[int, Field(ge=1, le=2**15)]  #: of one server
#: Keys of a prediction that are text; all others are figures in the units of ``vllm bench``.
_WORDS = frozenset(("date", "endpoint_type", "backend", "model_id", "tokenizer_id", "request_rate"))
#: Keys that are null without a bound on the concurrency, or without a goodput target.
_AT_TIMES = frozenset(("label", "max_concurrency", "request_goodput", "request_goodput_lo", "request_goodput_hi"))


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)
    checked: ClassVar[tuple[str, ...]] = ()  #: properties that raise InputError for what no command would have written

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        for name, value in self:
            if isinstance(value, int | float) and abs(value) > MOST_FIGURE:
                raise ValueError(f"{name} is {shown(value)}, which is too large")
        try:
            _ = [getattr(self, name) for name in self.checked]
        except InputError as error:
            raise ValueError(error.cause) from error
        return self


class PlannedWorkload(_Record):
    """The load of the benchmark script."""

    checked = ("sent",)

    input_len: int
    output_len: int
    num_prompts: int
    max_concurrency: int | None = None
    request_rate: float | None = None  #: requests per second; None: as fast as the concurrency allows
    seed: int = 0
    burstiness: float = 1.0  #: of the arrivals at a rate; 1 is Poisson
    range_ratio: float = 0.0  #: share by which lengths vary around those above
    prefix_len: int = 0  #: tokens that all prompts begin with, before those of ``input_len``

    @classmethod
    def of(cls, load: Load) -> "PlannedWorkload":
        """The part of a load that a benchmark sends."""
        fields = {name: getattr(load, name) for name in cls.model_fields}
        rate, burstiness = load.request_rate, min(load.burstiness, MOST_FIGURE)  # JSON has no infinity
        return cls(**{**fields, "request_rate": None if isinf(rate) else rate, "burstiness": burstiness})

    @property
    def sent(self) -> Load:
        return Load(**{**self.model_dump(), "request_rate": self.request_rate or inf})


class PlannedTarget(_Record):
    """A latency target, and what is predicted for it."""

    checked = ("slo",)

    metric: str  #: as in the result of the benchmark: ``p99_ttft_ms``
    limit_ms: float
    predicted_ms: float
    expected_ms: float  #: the old name of ``upper_ms``
    upper_ms: float | None = None  #: at the end of the interval that has to meet the limit
    met: bool
    of_class: str = ""  #: the class of requests that it is a target of; empty: all

    @classmethod
    def of(cls, reading: "Reading") -> "PlannedTarget":
        values = {name: getattr(reading, name) for name in ("predicted_ms", "expected_ms", "met")}
        slo, upper_ms = reading.slo, reading.expected_ms
        return cls(metric=slo.key, limit_ms=slo.limit_ms, of_class=slo.group, upper_ms=upper_ms, **values)

    @property
    def slo(self) -> Slo:
        statistic, metric, _ = self.metric.split("_")
        return Slo(cast(Latency, metric), self.limit_ms, parse_percentile(statistic), self.of_class)


class PlannedClass(_Record):
    """One class of requests among those that the benchmark sends, each with a client of its own."""

    checked = ("load",)

    name: str
    request_rate: float  #: requests per second of all servers
    priority: int = 0  #: lower is sooner
    targets_ms: dict[str, float] = Field(default_factory=dict)
    workload: PlannedWorkload  #: what the one server gets that is measured
    bench_argv: tuple[str, ...]
    predicted: dict[str, Any]  #: beside the other classes

    @property
    def load(self) -> Load:
        """The class as the replay takes it, of that one server."""
        if self.workload.request_rate is None:
            raise InputError(f"class {self.name} has no request rate", hint="give requests per second")
        return replace(self.workload.sent, name=self.name, limits_ms=self.targets_ms, priority=self.priority)


class PlannedTrace(_Record):
    """The recorded load that was planned for."""

    path: str
    sha256: str
    requests: int
    mean_rate: float  #: requests per second over the whole file
    busiest_rate: float  #: of the stretch that was planned for

    @classmethod
    def of(cls, load: Load) -> "PlannedTrace | None":
        """The file that a load is from; None for others."""
        trace = load.origin
        if trace is None:
            return None
        names = ("path", "sha256", "mean_rate", "busiest_rate")
        return cls(requests=trace.rows, **{name: getattr(trace, name) for name in names})


class PlannedRung(_Record):
    """Largest load of a server, and GPUs for the planned load, at one confidence."""

    confidence: float
    largest_load: float  #: of one server; 0: it misses the targets under any
    total_gpus: int | None  #: None: any number of servers misses them; beyond four times the plan's, a lower bound


class PlannedRun(_Record):
    """The most informative benchmark, and the plan that is expected after it."""

    script: Literal["benchmark.sh", "measure_next.sh"]
    workload: PlannedWorkload
    bench_argv: tuple[str, ...] = ()
    duration_s: float
    figure: str  #: the most informative one of its result
    deviation_factor: float  #: on the standard deviation of the bottleneck
    expected: PlannedRung


class PlannedRouter(_Record):
    """The planned servers behind a plainer router, and how many the load takes there."""

    router: str
    targets: tuple[PlannedTarget, ...]
    servers: int | None  #: without spares. None: no number is enough; beyond four times the plan's, a lower bound


class PlannedRival(_Record):
    """A checkpoint of another precision that takes fewer GPUs at even odds, and more at the asked confidence."""

    model: str
    weight_dtype: str
    gpus_at_even_odds: int
    total_gpus: int | None  #: as in ``PlannedRung``


class Unaided(_Record):
    """Figures without ``--kv-offloading-size``."""

    gpu_share: float  #: of the prompt tokens, found on the GPU
    targets: tuple[PlannedTarget, ...]
    total_gpus: int | None  #: that the load takes of the same engine; None: no number up to four times as many


class PlannedOffloading(_Record):
    """Gain by ``--kv-offloading-size``: shares of the prompt tokens with it, and figures without."""

    host_share: float
    gpu_share: float
    without: Unaided


class Service(_Record):
    """Targets, the load of all servers together, and the number of servers that meets them."""

    confidence: float = defaults.CONFIDENCE  #: with which the limits are met
    interval: str | None = None  #: of plans by older versions: the end of it that met the limits
    targets: tuple[PlannedTarget, ...]
    request_rate: float | None = None  #: requests per second of all servers
    burstiness: float | None = None  #: of the arrivals at all servers together; None in plans by older versions
    max_concurrency: int | None = None  #: requests in flight of all servers
    load_asked: bool = True  #: else the load is the largest that one server, or all of a stock, carries
    stock: int | None = None  #: whole GPUs that there are, where the largest load on them is asked for
    workload: str | None = None  #: its name, where it has one
    trace: PlannedTrace | None = None
    headroom: float = 0.0  #: share of the load that is carried on top of it
    spares: int = 0  #: servers beside those that carry the load
    replicas: int  #: servers like the one that is launched, spares included; a key of plan.json: the old word stays
    total_gpus: int  #: of all servers; partitions count one by one
    packages: float  #: whole GPUs that these are, or are partitions of; likewise
    goodput: float  #: requests per second of all servers that meet every target
    largest_load: float | None = None  #: of one server, in the unit of the load; None: not looked for
    largest_load_lo: float | None = None  #: 95 % of measurements carry more; of the best plan
    largest_load_hi: float | None = None  #: 5 % carry more
    largest_load_output_throughput_per_gpu: float | None = None  #: tokens/s
    node_load: float | None = None  #: of all servers of one node
    bound_by: str = ""  #: the target that a larger load misses
    output_throughput_per_gpu: float | None = None  #: tokens/s at the load; of older plans at ``largest_load``
    usd_per_hour: float | None = None  #: of the whole GPUs of all servers, where the GPU's profile has a price
    usd_per_million_output_tokens: float | None = None  #: at that load, with the rest of a part's GPU as busy
    output_tokens_per_day: float | None = None
    requests_in_flight: float | None = None  #: on average: users who wait for an answer
    sessions_at_once: float | None = None  #: of agents and chats in turns: those that pause too
    router: str | None = None  #: between requests and servers; of older plans those of a trace alone
    rival: PlannedRival | None = None  #: of the best plan, where the width of an interval decides between precisions
    plain_router: PlannedRouter | None = None  #: of the best plan, where several servers share a request rate
    prefix_cache_share: float | None = None  #: of the prompt tokens, found in the prefix cache; None: not known
    kv_offloading: PlannedOffloading | None = None  #: of the best plan, where host memory keeps blocks of a trace
    gpus_with_margin: int | None = None  #: with 20 % headroom and one spare; of the best plan without a margin
    ladder: tuple[PlannedRung, ...] = ()  #: of the best plan; empty for others, and where many GPUs are compared
    measure_next: PlannedRun | None = None  #: None: no run would change the plan

    @property
    def carrying(self) -> int:
        return self.replicas - self.spares

    @property
    def load(self) -> float | None:
        """Load of all servers together, in ``load_unit``."""
        return self.request_rate if self.request_rate is not None else self.max_concurrency

    @property
    def load_unit(self) -> str:
        return "requests/s" if self.request_rate is not None else "concurrent requests"


class BenchmarkLine(_Record):
    """The launch that the search compared, as narrow as the benchmark; ``./launch.sh --benchmark`` starts it."""

    max_model_len: int
    max_num_seqs: int
    enable_prefix_caching: bool
    serve_argv: tuple[str, ...]
    output_throughput_per_gpu: float  #: predicted, tokens/s
    mean_e2el_ms: float  #: predicted


class Plan(_Record):
    """Settings, prediction and reasons for one GPU type. Field names are vLLM's flags.

    ``serve_argv`` is the serving line: the launch that users get, and that the figures are of."""

    gpu: str
    num_gpus: Gpus
    tensor_parallel_size: Gpus
    pipeline_parallel_size: Gpus
    data_parallel_size: Gpus
    decode_context_parallel_size: Gpus = 1
    enable_expert_parallel: bool
    requested_model: str
    model: str  #: the checkpoint to serve: an id on the hub, or the absolute path of a folder
    gated: bool | None = None
    weight_dtype: str
    kv_cache_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    gpu_memory_utilization: float
    block_size: int
    enforce_eager: bool
    enable_prefix_caching: bool
    async_scheduling: bool
    speculative_config: SpeculativeConfig | None = None  #: with the acceptance that was predicted with
    engine_version: str
    gpus_per_node: Gpus = 1  #: logical GPUs of the node that was planned for
    #: of one GPU, between the nodes of a server; None: it is on one node
    network_gb_per_s: Annotated[float, Field(ge=LEAST_FIGURE)] | None = None
    platform: Literal["rocm", "cuda", "cpu"]
    image: str  #: empty: no container, the server is the vLLM that is installed on the machine
    image_source: str
    env: dict[str, str] = Field(default_factory=dict)
    docker_args: tuple[str, ...] = ()  #: devices, groups, shared memory; names, ports and folders are added
    serve_argv: tuple[str, ...]  #: run in the container, so ``--host 0.0.0.0``: the port is published on 127.0.0.1
    benchmark_line: BenchmarkLine | None = None  #: None: the serving line is as narrow
    bench_argv: tuple[str, ...]  #: run in the container; benchmark.sh adds where the result is saved
    classes: tuple[PlannedClass, ...] = ()  #: with a client each, in place of ``bench_argv``
    accuracy_task: str = "gsm8k"
    workload: PlannedWorkload  #: of several classes the means
    service: Service | None = None  #: where there are targets
    packages: float | None = None  #: whole GPUs that those of this server are, or are partitions of
    usd_per_hour: float | None = None  #: of this server alone, on whole GPUs, where the GPU's profile has a price
    usd_per_million_output_tokens: float | None = None  #: of ``service``, without one as predicted; a part's likewise
    predicted: dict[str, Any]
    job: dict[str, Any] = Field(default_factory=dict)  #: of ``--num-prompts`` at the planned load: seconds, cost
    memory: dict[str, Any]
    #: a document's result of this run, by the keys of the bench
    published: dict[str, Annotated[float, Field(ge=0, le=MOST_FIGURE)]] = Field(default_factory=dict)
    calibration: str = "shipped"  #: whose fits predicted: ours, or the files of the user's own that had a say
    efficiency_basis: Literal["gpu", "architecture", "global"] | None = None  #: where the efficiencies were measured
    evidence: Literal["", "measured", "interpolated", "extrapolated"] = ""  #: what was measured near it
    evidence_runs: int = 0  #: as ``Evidence``
    evidence_note: str = ""
    why: tuple[str, ...]
    departures: tuple[str, ...] = ()  #: from the recipe of the model, each with the reason
    warnings: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[PlannedTarget, ...]:
        return self.service.targets if self.service else ()

    @property
    def result_names(self) -> tuple[str, ...]:
        """Files below ``results/`` that its benchmark leaves: one, or one for each class."""
        plain = (re.sub(r"[^A-Za-z0-9_-]+", "-", one.name)[:40] for one in self.classes)
        of_classes = tuple(f"serve-{self.digest}-{place}-{name}.json" for place, name in enumerate(plain, 1))
        return of_classes or (f"serve-{self.digest}.json",)

    @property
    def node_result_name(self) -> str:
        """The file below ``results/`` that the benchmark of ``instances.sh`` leaves: of all servers on a node."""
        return f"node-{self.digest}.json"

    @property
    def servers_per_node(self) -> int:
        return self.gpus_per_node // self.num_gpus

    @property
    def planned_servers(self) -> int:
        """Servers for the load on all nodes; without a load, as many as one node holds."""
        return self.service.replicas if self.service and self.service.load_asked else self.servers_per_node

    @property
    def started_on_node(self) -> int:
        """Servers that ``instances.sh`` starts on the first node."""
        return min(self.servers_per_node, self.planned_servers)

    @property
    def load(self) -> Load:
        """The load of the one server that is measured, as the replay takes it."""
        if not self.classes:
            return self.workload.sent
        classes = tuple(one.load for one in self.classes)
        sent = joined(classes, [one.requests() for one in classes])
        return replace(self.workload.sent, recorded=sent, classes=classes)

    @property
    def max_running(self) -> int:
        """Requests that run at once at most, all DP ranks together."""
        return self.max_num_seqs * self.data_parallel_size

    @property
    def nodes(self) -> int:
        return -(-self.num_gpus // self.gpus_per_node)

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change when anything that is launched or sent changes.

        Fields at their defaults do not count, so that a plan keeps its digest when a later planner knows more fields.
        """
        reasons = {"predicted", "published", "memory", "calibration", "service", "why", "departures", "warnings"}
        reasons |= {"efficiency_basis", "evidence", "evidence_runs", "evidence_note", "job"}
        said: dict[str, Any] = dict.fromkeys(reasons, True)
        said["classes"] = {"__all__": {"predicted", "targets_ms"}}
        said["benchmark_line"] = {"output_throughput_per_gpu", "mean_e2el_ms"}
        launched = self.model_dump(mode="json", exclude=said, exclude_defaults=True)
        return hashlib.sha256(json.dumps(launched, sort_keys=True).encode()).hexdigest()[:12]


class PlanFile(_Record):
    """``plan.json``: a plan and how it came about."""

    schema_version: int = SCHEMA_VERSION
    planner_version: str
    command: str
    goal: Goal
    plan: Plan

    @property
    def purpose(self) -> str:
        """The goal, or what a plan of servers is best in: its cost, or the load that they carry."""
        service = self.plan.service
        return self.goal if service is None else "lowest cost" if service.load_asked else "largest load"

    def to_json(self) -> str:
        """The plan's object beside ``schema_version``, ``command``, ``goal`` and ``digest``."""
        refuse_secrets(self.plan)
        outer = self.model_dump(mode="json", exclude={"plan"})
        return json.dumps({**outer, "digest": self.plan.digest, **self.plan.model_dump(mode="json")}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "PlanFile":
        """Read what ``to_json`` wrote. Raises ValueError with the first thing that is wrong, when it is not a plan."""
        try:
            data = json.loads(text)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        if not isinstance(data, dict):
            raise ValueError("it is not a JSON object")
        if data.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
            raise ValueError(f"its schema_version is {shown(data['schema_version'])}; planner reads {SCHEMA_VERSION}")
        digest = data.pop("digest", None)
        outer = {key: data.pop(key) for key in ("schema_version", "planner_version", "command", "goal") if key in data}
        try:
            file = cls.model_validate({**outer, "plan": data})
        except ValidationError as error:
            raise ValueError(str(fault_in(error)).removeprefix("plan.")) from error
        _check_figures(file.plan)
        load, context = file.plan.workload, file.plan.max_model_len
        if load.prefix_len + load.input_len + load.output_len > context:
            raise ValueError(f"its requests are longer than its context of {context:,} tokens")
        if digest != file.plan.digest:
            raise ValueError(f"it was changed after it was written: its digest is {file.plan.digest}, not {digest}")
        return file


def _check_figures(plan: Plan) -> None:
    """Raise ValueError for what is no figure, and for an interval without an end or the figure between them."""
    tables = {"predicted": plan.predicted, "memory": plan.memory, **{one.name: one.predicted for one in plan.classes}}
    rows = ((where, figures, name, value) for where, figures in tables.items() for name, value in figures.items())
    for where, figures, name, value in rows:
        if name in _WORDS or (name in _AT_TIMES and value is None):
            continue
        numbers = value if isinstance(value, list) else [value]  # acceptance, by position
        if not all(type(one) in (int, float) and 0 <= one <= MOST_FIGURE for one in numbers):  # nor NaN
            raise ValueError(f"{where}.{name} is {shown(value)}, not a number of 0 or more")
        key = name.removesuffix("_lo").removesuffix("_hi")
        if key != name and (missing := {key, f"{key}_lo", f"{key}_hi"} - figures.keys()):
            raise ValueError(f"{where}.{min(missing)} is missing")


def refuse_secrets(plan: Plan) -> None:
    """Raise InputError for a variable or an option of a plan whose value looks like a token or a key."""
    lines = (plan.docker_args, plan.serve_argv, plan.bench_argv, *(one.bench_argv for one in plan.classes))
    for name, value in [*plan.env.items(), *(pair for line in lines for pair in _assigned(line))]:
        if is_secret(value, name):
            cause = f"the value of {name.lstrip('-') or 'it'} looks like a secret, and would be written down"
            raise InputError(cause, hint="give it by name and leave the value in your environment: --env HF_TOKEN")


def _assigned(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and values of ``--option value``, ``--option=value`` and ``--env NAME=value``."""
    for before, word in pairwise(("", *words)):
        name, equals, value = word.partition("=")
        if equals:
            yield name, value
            yield from _assigned((value,)) if name.startswith("-") and "=" in value else ()
        else:
            yield before if before.startswith("-") and not word.startswith("-") else "", word


def read_plan(directory: Path) -> PlanFile:
    """The plan of a folder. Raises InputError where there is none, or one that is broken, changed or holds a token."""
    path = directory / "plan.json"
    try:
        file = PlanFile.from_json(read_given(path))
        refuse_secrets(file.plan)
        return file
    except FileNotFoundError as error:
        below = sorted(p.parent.name for p in directory.glob("*/plan.json")) if directory.is_dir() else []
        hint = f"give one of the folders in it: {', '.join(below)}" if below else "give the folder that -o named"
        if (directory / "prefill.sh").is_file():
            hint = "a disaggregated plan has scripts only: run prefill.sh and decode.sh"
        raise InputError(f"{path}: no such file", hint=hint) from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint="make it readable, or give another folder") from error
    except ValueError as error:  # no text, no JSON, no plan
        cause = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is not a plan of this planner: {cause}", hint="write the scripts again") from error
