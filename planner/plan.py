"""A plan: the one object that is simulated, launched, benchmarked and validated.

``launch.sh`` starts ``serve_argv`` and nothing else; the simulation ran with the same settings. So nothing
that reaches a script is computed anywhere but here and in ``planner.engine``.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1

Goal = Literal["min-latency", "max-throughput", "balanced"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class PlannedWorkload(_Record):
    """What the benchmark script sends."""

    input_len: int
    output_len: int
    num_prompts: int
    max_concurrency: int | None = None
    request_rate: float | None = None  #: requests per second; None: as fast as the concurrency allows
    seed: int = 0


class Plan(_Record):
    """Settings, prediction and reasons for one GPU type. Field names are vLLM's flags."""

    gpu: str
    num_gpus: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
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
    engine_version: str
    gpus_per_node: int = 1  #: logical GPUs of the node that was planned for
    platform: Literal["rocm", "cuda", "cpu"]
    image: str  #: empty: no container, the server is the vLLM that is installed on the machine
    image_source: str
    env: dict[str, str] = Field(default_factory=dict)
    docker_args: tuple[str, ...] = ()  #: devices, groups, shared memory; names, ports and folders are added
    serve_argv: tuple[str, ...]  #: run in the container, so ``--host 0.0.0.0``: the port is published on 127.0.0.1
    bench_argv: tuple[str, ...]  #: run in the container; benchmark.sh adds where the result is saved
    accuracy_task: str = "gsm8k"
    workload: PlannedWorkload
    predicted: dict[str, Any]
    memory: dict[str, Any]
    why: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change when anything that is launched or sent changes."""
        launched = self.model_dump(mode="json", exclude={"predicted", "memory", "why", "warnings"})
        return hashlib.sha256(json.dumps(launched, sort_keys=True).encode()).hexdigest()[:12]


class PlanFile(_Record):
    """``plan.json``: a plan and how it came about."""

    schema_version: int = SCHEMA_VERSION
    planner_version: str
    command: str
    goal: Goal
    plan: Plan

    def to_json(self) -> str:
        """The plan's object with ``schema_version``, ``command``, ``goal`` and ``digest`` beside its fields."""
        outer = self.model_dump(mode="json", exclude={"plan"})
        return json.dumps({**outer, "digest": self.plan.digest, **self.plan.model_dump(mode="json")}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> PlanFile:
        """Read what ``to_json`` wrote. Raises pydantic's ValidationError when it is not a plan."""
        data = json.loads(text)
        data.pop("digest", None)
        outer = {key: data.pop(key) for key in ("schema_version", "planner_version", "command", "goal") if key in data}
        return cls.model_validate({**outer, "plan": data})
