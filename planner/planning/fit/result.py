"""The answer to "does it fit": every figure of the arithmetic, the verdict with its interval, and the ways out."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, lcm
from typing import Any

from planner.engine import EngineConfig
from planner.memory import SHIPPED, Interval, MemoryBudget, StageBudget, host_kv_tokens
from planner.planning.deployment import Deployment
from planner.planning.fit.check import Condition, Verdict
from planner.planning.odds import percent

Setting = str | int | float | bool


@dataclass(frozen=True, slots=True)
class WayOut:
    """One change after which it fits, checked by asking again."""

    change: str
    settings: dict[str, Setting]  #: what to change: flags of vLLM, ``gpu`` (a profile id), ``weight_dtype``
    verdict: Verdict
    max_model_len: int
    kv_cache_tokens: int
    max_concurrency: float

    @property
    def flags(self) -> tuple[str, ...]:
        """The settings as flags of ``planner fit``; all but ``--gpu`` and ``--weight-dtype`` are vLLM's own."""
        return tuple(
            "--" + name.replace("_", "-") + ("" if value is True else f" {value}")
            for name, value in self.settings.items()
        )

    def to_json(self) -> dict[str, Any]:
        """The option as it stands in ``options[]``."""
        return {
            "change": self.change,
            "settings": dict(self.settings),
            "flags": list(self.flags),
            "verdict": self.verdict,
            "max_model_len": self.max_model_len,
            "kv_cache_tokens": self.kv_cache_tokens,
            "max_concurrency": round(self.max_concurrency, 2),
        }


@dataclass(frozen=True, slots=True)
class LogLine:
    """One figure that vLLM logged when it started, beside its prediction."""

    line: str
    unit: str  #: bytes per GPU, tokens, blocks or requests of the engine
    predicted: Interval
    logged: float
    inside: bool  #: whether the logged figure is in the interval, its own rounding allowed for

    def to_json(self) -> dict[str, Any]:
        """The line as it stands in ``startup_log[]``."""
        digits = 2 if self.unit == "requests" else None
        low, mid, high = (round(v, digits) for v in (self.predicted.low, self.predicted.mid, self.predicted.high))
        return {
            "line": self.line,
            "unit": self.unit,
            "predicted": mid,
            "lo": low,
            "hi": high,
            "logged": round(self.logged, digits),
            "inside": self.inside,
        }


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Whether a model starts on a GPU with these settings. Bytes per GPU, tokens and concurrency per engine."""

    requested_model: str
    resolved_model: str
    deployment: Deployment
    min_tensor_parallel_size: int | None
    options: tuple[WayOut, ...] = ()  #: changes after which it fits
    notes: tuple[str, ...] = ()
    startup_log: tuple[LogLine, ...] = ()  #: where one was given

    @property
    def fits(self) -> bool:
        """The best estimate; ``verdict`` says how sure it is."""
        return self.deployment.checked.fits

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all conditions."""
        return self.deployment.checked.verdict

    @property
    def verdict_words(self) -> str:
        """The verdict; where it is too close to call, with the probability that it starts."""
        odds = f": starts with {percent(self.deployment.checked.probability_fits)} probability"
        return self.verdict + (odds if self.verdict == "too close to call" else "")

    @property
    def budget(self) -> MemoryBudget:
        """How the memory is divided."""
        return self.deployment.budget

    @property
    def gpu_id(self) -> str:
        """Profile id of the GPU."""
        return self.deployment.profile.id

    @cached_property
    def largest_max_model_len(self) -> int:
        """The longest request that the cache holds, up to the model's own context; 0 when none fits."""
        limit = max(self.config.max_model_len, self.budget.model.max_position_embeddings)
        if not self.budget.pool.groups:
            return limit
        return self.budget.pool.longest(int(self.budget.num_blocks.mid) - 1, limit)

    @cached_property
    def largest_max_num_seqs(self) -> int:
        """The largest ``max_num_seqs`` with which the engine still starts, up to ``max_num_batched_tokens``."""
        low, high = 0, self.config.max_num_batched_tokens
        if self._fits_with(max_num_seqs=high):
            return high
        while high - low > max(1, low // 64):
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits_with(max_num_seqs=middle) else (low, middle)
        return low

    @cached_property
    def smallest_gpu_memory_utilization(self) -> float | None:
        """The smallest ``gpu_memory_utilization``, in steps of 0.01, that still fits.

        None where not even 1 is enough, and where the size of the cache is given: the share then bounds nothing.
        """
        if self.config.given_kv_cache_bytes:
            return None
        conditions = self.deployment.checked.conditions
        lacking = min(c.margin.mid for c in conditions if c.name != "free memory below budget")
        wanted = self.stage.requested_bytes - lacking
        smallest = max(0.01, ceil(100 * wanted / self.budget.memory_bytes) / 100)
        return smallest if smallest <= 1 and self._fits_with(gpu_memory_utilization=smallest) else None

    def _fits_with(self, **settings: Any) -> bool:
        return replace(self.deployment, config=replace(self.config, **settings)).checked.fits

    @property
    def calibration(self) -> str:
        """Where the overheads of this GPU, version and TP size come from: ``shipped``, or a file of the user's."""
        own = self.budget.overheads.own
        return own[0].origin if own else SHIPPED

    @property
    def config(self) -> EngineConfig:
        """The engine's settings, defaults filled in."""
        return self.deployment.config

    @property
    def stage(self) -> StageBudget:
        """The pipeline stage that binds."""
        return self.budget.binding

    @property
    def binding_condition(self) -> Condition:
        """The first condition that fails, else the one with the least to spare."""
        conditions = self.deployment.checked.conditions
        failing = (condition for condition in conditions if condition.margin.mid < 0)
        return next(failing, min(conditions, key=lambda c: c.margin.mid))

    @property
    def reason(self) -> str:
        """Why it does not fit, or might not; empty when it fits."""
        return "" if self.verdict == "fits" else self.binding_condition.message

    @property
    def kv_cache(self) -> Interval:
        """For the KV cache on a GPU of the binding stage."""
        return self.stage.available

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of one token in every layer that keeps it, on a GPU of the binding stage."""
        layers = self.stage.weights.layers
        return sum(
            spec.bytes_per_token
            for group in self.budget.pool.groups
            for layer, spec in group.members
            if layer in layers
        )

    @property
    def kv_bytes_per_next_token(self) -> float:
        """What one more token of a request of ``max_model_len`` takes, bytes: nothing where windows are full.

        The mean over as many tokens as all groups of layers allot blocks for together.
        """
        pool, length = self.budget.pool, self.config.max_model_len
        sizes = {spec.block_size for group in pool.groups for spec in group.specs if spec.kind != "state"}
        span = lcm(*sizes) * pool.context_shards
        span *= ceil(length / 4 / span) if span <= length else 1
        blocks = pool.blocks_per_request(length + span) - pool.blocks_per_request(length)
        return blocks * self.stage.block_bytes / span

    @property
    def kv_bytes_per_request(self) -> int:
        """KV cache of one request of ``max_model_len``, as vLLM counts it in blocks."""
        blocks = self.budget.pool.blocks_per_request(self.config.max_model_len)
        return blocks * self.stage.block_bytes

    @property
    def kv_cache_tokens(self) -> int:
        """What vLLM would log as "GPU KV cache size"."""
        return self.budget.logged_tokens(self.budget.num_blocks.mid)

    @property
    def kv_cache_capacity_tokens(self) -> int:
        """Tokens that requests of ``max_model_len`` can hold at once, whatever the version prints."""
        return self.budget.capacity_tokens(self.budget.num_blocks.mid)

    @property
    def host_kv_cache_tokens(self) -> int:
        """Tokens that host memory holds beside the GPU (``--kv-offloading-size``)."""
        return host_kv_tokens(self.config, self.kv_bytes_per_token)

    @property
    def max_concurrency(self) -> float:
        """Requests of ``max_model_len`` that the cache holds at once."""
        return self.budget.concurrency(self.budget.num_blocks.mid)

    def to_json(self) -> dict[str, Any]:
        """``planner fit --format json``."""
        model, config, stage, budget = self.budget.model, self.config, self.stage, self.budget
        blocks, margin = budget.num_blocks, self.binding_condition.margin
        return {
            "schema_version": 1,
            "fits": self.fits,
            "verdict": self.verdict,
            "probability_fits": round(self.deployment.checked.probability_fits, 3),
            "reason": self.reason,
            "margin_bytes": round(margin.mid),
            "margin_bytes_lo": round(margin.low),
            "margin_bytes_hi": round(margin.high),
            "model": {
                "requested": self.requested_model,
                "resolved": self.resolved_model,
                "total_params": model.total_params,
                "active_params": model.active_params,
            },
            "gpu": {"id": self.gpu_id, "memory_bytes": budget.memory_bytes},
            "engine_version": str(config.version),
            **config.layout,
            "max_model_len": config.max_model_len,
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "block_size": budget.pool.block_size,
            "gpu_memory_utilization": config.gpu_memory_utilization,
            "env": config.env,
            "decode_context_parallel_size": config.decode_context_parallel_size,
            "speculative_config": json.loads(config.speculative_config.text) if config.speculative_config else None,
            "calibration": self.calibration,
            "budget_bytes": stage.requested_bytes,
            "weights_bytes": stage.weights.weight_bytes,
            "weights_bytes_by_component": dict(stage.weights.by_component),
            "weights_bytes_by_dtype": dict(stage.weights.by_dtype),
            "draft_bytes": stage.weights.draft_bytes,
            "lora_bytes": stage.weights.lora_bytes,
            "offloaded_bytes": stage.weights.offloaded_bytes,
            "host_kv_cache_tokens": self.host_kv_cache_tokens,
            "rotary_bytes": stage.weights.rotary_bytes,
            **_interval("activation_bytes", stage.activation),
            **_interval("cuda_graph_bytes", stage.graphs),
            "cuda_graph_in_budget": stage.graphs_in_budget,
            **_interval("non_torch_bytes", stage.non_torch),
            **_interval("unexplained_bytes", stage.unexplained),
            **_interval("kv_cache_bytes", self.kv_cache),
            "kv_bytes_per_token": _whole(self.kv_bytes_per_token),
            "kv_bytes_per_next_token": _whole(round(self.kv_bytes_per_next_token, 2)),
            "kv_bytes_per_request": self.kv_bytes_per_request,
            "num_gpu_blocks": int(blocks.mid),
            "kv_cache_tokens": self.kv_cache_tokens,
            "kv_cache_tokens_lo": budget.logged_tokens(blocks.low),
            "kv_cache_tokens_hi": budget.logged_tokens(blocks.high),
            "kv_cache_capacity_tokens": self.kv_cache_capacity_tokens,
            "max_concurrency": round(self.max_concurrency, 2),
            "largest_max_model_len": self.largest_max_model_len,
            "largest_max_num_seqs": self.largest_max_num_seqs,
            "smallest_gpu_memory_utilization": self.smallest_gpu_memory_utilization,
            "min_tensor_parallel_size": self.min_tensor_parallel_size,
            "startup_log": [line.to_json() for line in self.startup_log],
            "options": [option.to_json() for option in self.options],
            "defaults_taken": list(config.defaults_taken),
            "notes": list(self.notes),
        }


def _interval(name: str, interval: Interval) -> dict[str, int]:
    return {name: round(interval.mid), f"{name}_lo": round(interval.low), f"{name}_hi": round(interval.high)}


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value
