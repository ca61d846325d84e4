"""How fast one engine is: the replay for an answer, a closed form for a ranking.

The closed form is the steady state of a closed loop of C requests: while one request lives, it decodes its
output in a batch of C and sits through the prefill of the other requests once each::

    E2EL = own prefill + (output - 1) x decode step of C + (C - 1) x what one prefill adds
    TTFT = half a step + own prefill        TPOT = (E2EL - TTFT) / (output - 1)
    throughput = C x output / E2EL

DP ranks that share experts step together, so that a prompt on one of them delays all.

The replay knows the burst at the start, the token budget, KV blocks and percentiles. The closed form does not, but it
takes a few steps instead of thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np

from planner.engine import bench_backend
from planner.planning.deployment import Deployment
from planner.planning.uncertainty import MOST_REQUESTS, Uncertainty, UncertaintyOfReplay, UncertaintyOfSteps
from planner.simulator import (
    Replay,
    class_result,
    good_requests,
    latency_result,
    serve_result,
    speculative_result,
    throughput_result,
)
from planner.timing import Batch
from planner.workload import Load


@dataclass(frozen=True)
class ClassFigures:
    """One class of requests among the others."""

    load: Load
    targets_ms: Mapping[str, float]
    result: dict[str, Any]  #: as of the whole load, with intervals


@dataclass(frozen=True)
class Prediction:
    """What the bench would write, and the replay behind it."""

    figures: dict[str, Any]  #: the keys of the bench's result file
    replay: Replay  #: of more than ``MOST_REQUESTS`` without the gaps between tokens
    uncertainty: Uncertainty
    goodput: Mapping[str, float] = field(default_factory=dict)  #: targets in ms, by metric
    classes: tuple[ClassFigures, ...] = ()  #: of a load of several
    unaided: Prediction | None = None  #: the same trace without ``--kv-offloading-size``

    @cached_property
    def result(self) -> dict[str, Any]:
        """``figures`` with their intervals."""
        return self.with_intervals(self.figures) | _good_between(self.replay, self.goodput, self.uncertainty)

    def with_intervals(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """``figures`` and, beside each predicted one, ``KEY_lo`` and ``KEY_hi``: its 90 % interval."""
        return self.uncertainty.beside(figures)


def simulate_serve(
    deployment: Deployment,
    load: Load,
    *,
    served: Replay | None = None,
    doubt: Uncertainty | None = None,
    **asked: Any,
) -> Prediction:
    """The result of ``vllm bench serve``; of a load of several classes with the figures of each.

    ``served`` is the replay and ``doubt`` that about it, where they are at hand; ``asked`` as for
    ``bench.serve_result``. Classes without targets of their own have the ``goodput``.
    """
    prediction = _simulated(deployment, load, served=served, doubt=doubt, **asked)
    return _of_classes(load, prediction, **asked) if load.classes else prediction


def _simulated(
    deployment: Deployment, load: Load, *, served: Replay | None = None, doubt: Uncertainty | None = None, **asked: Any
) -> Prediction:
    served = served or _replayed(deployment, load)
    backend = bench_backend(deployment.config.version)
    result = serve_result(served, load, model_id=deployment.model.id, backend=backend, **asked)
    if drafts := deployment.config.speculative_config:
        result |= speculative_result(served, drafts.acceptance_rates)
    if load.num_prompts > MOST_REQUESTS:
        served = served.without_gaps()  # two more replays may follow, for the intervals
    doubt = doubt or UncertaintyOfReplay(deployment, load, served)
    unaided = None
    if deployment.config.kv_offloading_size and load.reused:
        config = replace(deployment.config, kv_offloading_size=None)
        unaided = _simulated(replace(deployment, config=config), load, **asked)
    return Prediction(result, served, doubt, asked.get("goodput") or {}, unaided=unaided)


def _of_classes(load: Load, prediction: Prediction, **asked: Any) -> Prediction:
    """``prediction`` with the figures of each class."""
    served, doubt, goodput = prediction.replay, prediction.uncertainty, asked.get("goodput") or {}
    assert isinstance(doubt, UncertaintyOfReplay)
    parts = []
    for one in load.classes:
        targets_ms, among = one.limits_ms or goodput, doubt.among(one.name)
        figures = class_result(served, one.name, asked.get("percentiles", (99,)), targets_ms)
        good = _good_between(served.of(one.name), targets_ms, among, served.duration_s)
        parts.append(ClassFigures(one, targets_ms, among.beside(figures) | good))
    figures = prediction.figures
    if any(one.targets_ms for one in parts):  # of all together: those that meet the targets of their class
        keys = ("request_goodput", "request_goodput_lo", "request_goodput_hi")
        figures = {**figures, **{key: sum(one.result.get(key) or 0.0 for one in parts) for key in keys}}
    return replace(prediction, figures=figures, goodput={}, classes=tuple(parts))


def _good_between(
    served: Replay, targets_ms: Mapping[str, float], doubt: Uncertainty, duration_s: float = 0.0
) -> dict[str, float]:
    """Goodput with all latencies at the upper end of their intervals, and at the lower; nothing without targets."""
    if not targets_ms:
        return {}
    ends = {name: doubt.factors(f"mean_{name}_ms") or (1.0, 1.0) for name in targets_ms}
    low, high = (
        good_requests(served, {name: limit_ms / ends[name][end] for name, limit_ms in targets_ms.items()})
        / (duration_s or served.duration_s)
        for end in (1, 0)
    )
    return {"request_goodput_lo": low, "request_goodput_hi": high}


def compared_rates(deployment: Deployment, prediction: Prediction) -> dict[str, float]:
    """The two rates that plans are compared by: output tokens/s of a GPU, and of a user, whose request is in flight."""
    rate = float(prediction.figures["output_throughput"])
    users = prediction.figures["max_concurrency"] or prediction.replay.mean_in_flight
    return {
        "output_throughput_per_gpu": rate / deployment.config.num_gpus,
        "output_throughput_per_user": rate / users,
    }


def simulate_throughput(deployment: Deployment, load: Load) -> Prediction:
    """The result of ``vllm bench throughput``: all prompts at once."""
    return _offline(deployment, load, throughput_result)


def simulate_latency(deployment: Deployment, load: Load) -> Prediction:
    """The result of ``vllm bench latency``: one batch of ``num_prompts`` from start to end."""
    return _offline(deployment, load, latency_result)


def _offline(deployment: Deployment, load: Load, result_of: Callable[..., dict[str, Any]]) -> Prediction:
    served = _replayed(deployment, load, offline=True, keep_gaps=False)
    result = result_of(served, model_id=deployment.model.id)
    return Prediction(result, served, UncertaintyOfReplay(deployment, load, served, offline=True))


def _replayed(deployment: Deployment, load: Load, *, offline: bool = False, keep_gaps: bool = True) -> Replay:
    """With its steps, unless these are very many; without ``keep_gaps`` it has no gaps between tokens."""
    few = load.num_prompts <= MOST_REQUESTS
    return deployment.replay(load, offline=offline, keep_steps=few, keep_gaps=keep_gaps)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Steady state of a closed loop on one DP rank. Seconds, and tokens per second."""

    concurrency: int
    ttft_s: float
    tpot_s: float
    e2el_s: float
    output_tok_per_s: float

    @property
    def tok_per_s_per_user(self) -> float:
        """Output tokens per second that one request sees, prefill and queueing included."""
        return self.output_tok_per_s / self.concurrency


def estimate(
    deployment: Deployment, input_len: int, output_len: int, concurrency: int, prefix_len: int = 0
) -> Estimate:
    """Closed form of a closed loop of ``concurrency`` requests of ``input_len`` and ``output_len`` tokens.

    All begin with the same ``prefix_len`` tokens more, which the prefix cache spares where it is on.
    """
    steps = _Steps.of(deployment, input_len, output_len, concurrency, prefix_len)
    decode_s, beside_s, prefill_s = map(deployment.timer.step_s, steps.batches)
    ttft_s, tpot_s, e2el_s = (
        decodes * decode_s + besides * beside_s + prefills * prefill_s
        for decodes, besides, prefills in (steps.sums["ttft"], steps.sums["tpot"], steps.sums["e2el"])
    )
    return Estimate(concurrency, ttft_s, tpot_s, e2el_s, concurrency * output_len / e2el_s)


def estimated_uncertainty(
    deployment: Deployment, input_len: int, output_len: int, concurrency: int, prefix_len: int = 0
) -> Uncertainty:
    """How far measurements may lie from ``estimate``."""
    steps = _Steps.of(deployment, input_len, output_len, concurrency, prefix_len)
    sums = {name: np.array(weights) for name, weights in steps.sums.items()}
    return UncertaintyOfSteps(deployment, steps.batches, sums, lonely=concurrency == 1)


Weights = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class _Steps:
    """The closed form as weighted steps."""

    batches: tuple[Batch, ...]  #: a decode step of all; of all but one; and that with a prompt's chunk
    sums: dict[str, Weights]  #: of these for each latency, and for the time of a throughput

    @classmethod
    def of(cls, deployment: Deployment, input_len: int, output_len: int, concurrency: int, prefix_len: int) -> _Steps:
        others, context_tok = concurrency - 1, prefix_len + input_len + output_len / 2
        cached_tok = prefix_len if deployment.config.enable_prefix_caching else 0
        prompt_tok = prefix_len + input_len - cached_tok
        chunks = ceil(prompt_tok / max(deployment.config.max_num_batched_tokens - others, 1))
        # all chunks together attend to input x (input + 1) / 2 pairs; a step of average size stands for each
        chunk_tok, pairs_tok = ceil(prompt_tok / chunks), prompt_tok * (cached_tok + (prompt_tok + 1) / 2) / chunks
        batches = (
            Batch(concurrency, concurrency * context_tok),
            Batch(others, others * context_tok),
            Batch(others, others * context_tok, 1, chunk_tok, pairs_tok, 1),
        )
        decodes = (output_len - 1) / deployment.tokens_per_step
        waits = others * _ranks_waited_for(deployment, others * chunks / max(decodes, 1.0))
        ttft, e2el = (0.5, 0.0, float(chunks)), (decodes, -waits * chunks, (1 + waits) * chunks)
        more_tok = max(output_len - 1, 1)
        tpot = ((e2el[0] - ttft[0]) / more_tok, e2el[1] / more_tok, (e2el[2] - ttft[2]) / more_tok)
        return cls(batches, {"ttft": ttft, "tpot": tpot, "e2el": e2el, "throughput": e2el})


def _ranks_waited_for(deployment: Deployment, prompts_per_step: float) -> float:
    """Prompts of all DP ranks that hold a step up, for each of its own; those of one moment hold it up once."""
    config, share = deployment.config, min(prompts_per_step, 1.0)
    if config.data_parallel_size == 1 or not deployment.model.is_moe or share <= 0:
        return 1.0
    return float((1 - (1 - share) ** config.data_parallel_size) / share)
