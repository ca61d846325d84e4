"""Predictions of one engine under a load: a replay (``Prediction``), and a closed form for a ranking.

The closed form is the steady state of a closed loop of C requests. While one request lives, it decodes its output in a
batch of C. It sits through the prefill of the other requests once each::

    E2EL = own prefill + (output - 1) x decode step of C + (C - 1) x what one prefill adds
    TTFT = half a step + own prefill        TPOT = (E2EL - TTFT) / (output - 1)
    throughput = C x output / E2EL

DP ranks that share experts step together, so that a prompt on one of them delays all. The bottleneck of a server is a
full KV cache, a queue, a target, or the part of a step that takes most."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, inf
from typing import Any

import numpy as np

from planner import simulator
from planner.engine import bench_backend
from planner.planning import defaults
from planner.planning.cost import Paid
from planner.planning.defaults import USUAL_BATCH, Bench
from planner.planning.deployment import Deployment
from planner.planning.uncertainty import MOST_PROMPTS, Uncertainty, UncertaintyOfReplay, UncertaintyOfSteps, least_upper
from planner.simulator import Replay
from planner.timing import Batch, OperatorKind, StepBreakdown, step_collectives, step_operators
from planner.units import MS, counted
from planner.workload import OF_A_REQUEST, By, Load, Slo

THROUGHPUT = "the throughput of full batches"


@dataclass(frozen=True)
class ClassFigures:
    """One class of requests among the others."""

    load: Load
    targets_ms: Mapping[str, float]
    result: dict[str, Any]  #: as of the whole load, with intervals


@dataclass(frozen=True)
class Prediction:
    """A replay of a load on an engine, the figures of the benchmark, and how far measurements may lie from them."""

    deployment: Deployment
    load: Load
    replay: simulator.Replay  #: of more than ``MOST_PROMPTS`` without the gaps between tokens; of many alike the first
    bench: Bench = "serve"
    percentiles: Sequence[float] = (99,)  #: that the benchmark reports
    goodput: Mapping[str, float] = field(default_factory=dict)  #: targets in ms, by metric
    margins: Mapping[Slo, float] = field(default_factory=dict)  #: with which it ended early; empty: it did not

    @classmethod
    def of(
        cls, deployment: Deployment, load: Load, *, bench: Bench = "serve", percentiles: Sequence[float] = (99,),
        goodput: Mapping[str, float] | None = None,
    ) -> "Prediction":  # fmt: skip
        """Replay ``load`` as ``bench`` sends it: a client to a server, all prompts at once, or one batch.

        Raises InputError where a request never fits the KV cache."""
        varied = (
            load.recorded is not None
            or load.length_distribution == "conversation"
            or any(least < most for least, most in map(load.bounds, (load.input_len, load.output_len)))
        )
        sent = load if varied or bench != "throughput" else load.first(MOST_PROMPTS)
        offline, few = bench != "serve", sent.num_prompts <= MOST_PROMPTS
        served = deployment.replay(sent, offline=offline, keep_steps=few, keep_gaps=not offline)
        made = cls(deployment, load, served, bench, tuple(percentiles), goodput or {})
        if few or offline:
            return made
        figures, made = made.figures, replace(made, replay=served.without_gaps())  # more replays may follow
        vars(made)["figures"] = figures
        return made

    @classmethod
    def until_missed(
        cls, deployment: Deployment, load: Load, slos: Sequence[Slo], confidence: float, *, whole: bool
    ) -> "Prediction":
        """Replay ``load`` beside ``slos``; unless ``whole``, an open loop ends once one is missed for certain.

        Raises InputError where a request never fits the KV cache."""
        hopeless, margins = None, {}
        if not whole and load.max_concurrency is None:
            margins = {slo: least_upper(deployment, slo.key, confidence, open_loop=True) for slo in slos}
            limits_s = {slo: slo.limit_ms * MS / factor for slo, factor in margins.items()}
            hopeless = simulator.hopeless_at(limits_s, load.count, load.recorded.of_classes if load.recorded else None)
        served = deployment.replay(load, keep_steps=load.count <= MOST_PROMPTS, hopeless=hopeless)
        return cls(deployment, load, served, margins=margins if len(served.sent_s) < load.count else {})

    def __repr__(self) -> str:
        shown = ("output_throughput", "tokens_per_second", "mean_ttft_ms", "mean_tpot_ms", "avg_latency")
        known = ", ".join(f"{key} {self.figures[key]:,.4g}" for key in shown if self.figures.get(key))
        return f"Prediction({self.deployment.model.id} on {self.deployment.profile.id}: {known})"

    @property
    def whole(self) -> bool:
        return not self.margins

    @cached_property
    def first_order(self) -> UncertaintyOfReplay:
        """Uncertainty to first order: the queue of a slower engine is not replayed."""
        return UncertaintyOfReplay(
            self.deployment, self.load, self.replay, offline=self.bench != "serve", queue_reacts=False
        )

    @cached_property
    def uncertainty(self) -> UncertaintyOfReplay:
        """Uncertainty of the figures; in an open loop the queue of a slower engine is replayed."""
        return self.first_order.reacting()

    def reported(self, percentiles: Sequence[float], goodput: Mapping[str, float] | None = None) -> "Prediction":
        """A copy with other percentiles and targets in its result."""
        made = replace(self, percentiles=tuple(percentiles), goodput=goodput or {})
        vars(made)["uncertainty"] = self.uncertainty
        return made

    @cached_property
    def figures(self) -> dict[str, Any]:
        """The keys of the benchmark's result file."""
        config, model_id = self.deployment.config, self.deployment.model.id
        if self.bench != "serve":
            if self.bench == "latency":
                return simulator.latency_result(self.replay, model_id=model_id)
            return simulator.throughput_result(self.replay, model_id=model_id, count=self.load.num_prompts)
        result = simulator.serve_result(
            self.replay, self.load, model_id=model_id, backend=bench_backend(config.version),
            percentiles=self.percentiles, goodput=self.goodput,
        )  # fmt: skip
        if config.speculative_config:
            result |= simulator.speculative_result(self.replay, config.speculative_config.acceptance_rates)
        if any(one.targets_ms for one in self.classes):  # of all together: those that meet the targets of their class
            for key in ("request_goodput", "request_goodput_lo", "request_goodput_hi"):
                result[key] = sum(one.result.get(key) or 0.0 for one in self.classes)
        return result

    @cached_property
    def result(self) -> dict[str, Any]:
        good = {} if self.classes else _good_between(self.replay, self.goodput, self.uncertainty)
        return self.with_intervals(self.figures) | good

    def with_intervals(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """``figures`` and, beside each predicted one, ``KEY_lo`` and ``KEY_hi``: its 90 % interval."""
        return self.uncertainty.beside(figures)

    @property
    def paid(self) -> Paid:
        """The cost of the engine, and of its output tokens at the rate of the replay."""
        served = self.figures if self.bench == "throughput" else {}
        rate = served.get("output_throughput") or float(self.replay.output_len.sum()) / self.replay.duration_s
        return Paid.of(self.deployment.profile, self.deployment.config.num_gpus, rate)

    @cached_property
    def rates(self) -> dict[str, float]:
        """Output tokens/s of a GPU, and of a user, whose request is in flight: what plans are compared by."""
        rate = float(self.figures["output_throughput"])
        users = self.figures["max_concurrency"] or self.replay.mean_in_flight
        return {
            "output_throughput_per_gpu": rate / self.deployment.config.num_gpus,
            "output_throughput_per_user": rate / users,
        }

    @cached_property
    def classes(self) -> tuple[ClassFigures, ...]:
        """The figures of each class of a load of several; those without targets have the ``goodput``."""
        parts = []
        for one in self.load.classes:
            targets_ms, among = one.limits_ms or self.goodput, self.uncertainty.among(one.name)
            figures = simulator.class_result(self.replay, one.name, self.percentiles, targets_ms)
            good = _good_between(self.replay.of(one.name), targets_ms, among, self.replay.duration_s)
            parts.append(ClassFigures(one, targets_ms, among.beside(figures) | good))
        return tuple(parts)

    @cached_property
    def unaided(self) -> "Prediction | None":
        """The prediction without ``--kv-offloading-size``, where host memory keeps blocks of the load."""
        if self.bench != "serve" or not self.deployment.config.kv_offloading_size or not self.load.reused:
            return None
        bare = self.deployment.with_settings(kv_offloading_size=None)
        return Prediction.of(bare, self.load, percentiles=self.percentiles, goodput=self.goodput)

    @property
    def by(self) -> By:
        return "rate" if self.load.max_concurrency is None else "concurrency"

    def readings(self, slos: Sequence[Slo], confidence: float, *, exactly: bool = True) -> "tuple[Reading, ...]":
        """Each target, what is predicted for it, and what a measurement stays below with ``confidence``.

        A closed loop opens with all its places at once, which users never do: the targets ignore those requests."""
        return tuple(
            Reading(slo, predicted_ms, predicted_ms * factor)
            for slo, factor in self._margins(slos, confidence, exactly=exactly).items()
            for predicted_ms in [simulator.statistic_ms(slo, self.replay, after=self._burst)]
        )

    @property
    def _burst(self) -> int:
        """The first requests, which start together in a closed loop; 0 where no others follow."""
        burst = self.load.max_concurrency or 0
        return burst if burst < len(self.replay.sent_s) else 0

    def _margins(self, slos: Sequence[Slo], confidence: float, *, exactly: bool) -> Mapping[Slo, float]:
        """The factor on each target; one that ended early misses a target by the least margin already."""
        if self.margins:
            return self.margins
        doubt = self.uncertainty if exactly else self.first_order
        of_class = {slo: slo.group and self.replay.group is not None for slo in slos}
        return {slo: (doubt.among(slo.group) if of_class[slo] else doubt).upper(slo.key, confidence) for slo in slos}

    def good_share(self, slos: Sequence[Slo], confidence: float, *, exactly: bool = True) -> float:
        """Share of the requests, without the opening burst, that meet every target of their class."""
        good, margins, after = 0, self._margins(slos, confidence, exactly=exactly), self._burst
        for group in self.replay.groups or ("",):
            targets_ms: dict[str, float] = {
                slo.metric: slo.limit_ms / factor
                for slo, factor in margins.items()
                if slo.metric in OF_A_REQUEST and (slo.group in ("", group) or not group)
            }
            good += simulator.good_requests(self.replay.of(group) if group else self.replay, targets_ms, after)
        return good / (len(self.replay.sent_s) - after)

    @cached_property
    def as_found(self) -> Load:
        """The load, with what the replay found in the prefix cache as tokens that all prompts begin with."""
        load = self.load
        if not load.reused:
            return load
        found_tok, prompt_tok = round(float(self.replay.cached_tok.mean())), load.prefix_len + load.input_len
        return replace(load, prefix_len=found_tok, input_len=max(prompt_tok - found_tok, 1))


@dataclass(frozen=True, slots=True)
class Reading:
    """One target beside what is predicted for it."""

    slo: Slo
    predicted_ms: float
    expected_ms: float  #: that a measurement stays below with the confidence that is asked for

    @property
    def met(self) -> bool:
        return self.expected_ms <= self.slo.limit_ms

    @property
    def excess(self) -> float:
        """Expected over limit: above 1 where the target is missed."""
        return self.expected_ms / self.slo.limit_ms


@dataclass(frozen=True)
class ServedLoad:
    """A prediction beside targets: the load of one server, and whether it carries it."""

    prediction: Prediction
    readings: tuple[Reading, ...]
    good_share: float  #: of the requests, that meet every target of a request with that confidence
    stable: bool  #: whether the server keeps up
    value: float  #: requests per second, or requests in flight
    bound_by: str = ""  #: what keeps it from being larger; empty where no larger one was tried

    @property
    def by(self) -> By:
        return self.prediction.by

    @property
    def sent(self) -> Load:
        """The load, with what was found in the prefix cache."""
        return self.prediction.as_found

    @property
    def replay(self) -> simulator.Replay:
        return self.prediction.replay

    @property
    def whole(self) -> bool:
        """True if all requests were served; else it ended as soon as a target was missed."""
        return self.prediction.whole

    @property
    def excess(self) -> float:
        """The worst target's; infinite where the server does not keep up."""
        return max((reading.excess for reading in self.readings), default=0.0) if self.stable else inf

    @property
    def meets(self) -> bool:
        return self.stable and all(reading.met for reading in self.readings)

    @property
    def request_per_s(self) -> float:
        """Requests served per second: those sent, of an open loop that the server keeps up with."""
        return self.value if self.by == "rate" else len(self.replay.sent_s) / self.replay.duration_s

    @property
    def in_flight(self) -> float:
        """Requests in flight on average, by Little's law: a replay's own average has its first and last ones in it."""
        return self.value * (float(self.replay.e2el_s.mean()) if self.by == "rate" else 1)

    @property
    def goodput_per_s(self) -> float:
        return self.good_share * self.request_per_s

    @cached_property
    def output_tok_per_s(self) -> float:
        return self.request_per_s * float(self.replay.output_len.mean())

    @property
    def worst(self) -> Reading | None:
        """The target that is missed most, or nearest to it."""
        return max(self.readings, key=lambda reading: reading.excess, default=None)

    @property
    def binding(self) -> str:
        return str(self.worst.slo) if self.stable and self.worst else THROUGHPUT


def _good_between(
    served: simulator.Replay, targets_ms: Mapping[str, float], doubt: Uncertainty, duration_s: float = 0.0
) -> dict[str, float]:
    """Goodput with all latencies at the upper end of their intervals, and at the lower; nothing without targets."""
    if not targets_ms:
        return {}
    ends = {name: doubt.factors(f"mean_{name}_ms") or (1.0, 1.0) for name in targets_ms}
    low, high = (
        simulator.good_requests(served, {name: limit_ms / ends[name][end] for name, limit_ms in targets_ms.items()})
        / (duration_s or served.duration_s)
        for end in (1, 0)
    )
    return {"request_goodput_lo": low, "request_goodput_hi": high}


@dataclass(frozen=True, slots=True)
class Estimate:
    """Steady state of a closed loop on one DP rank. Seconds, and tokens per second."""

    concurrency: int
    ttft_s: float
    tpot_s: float
    e2el_s: float
    output_tok_per_s: float

    @property
    def request_per_s(self) -> float:
        return self.concurrency / self.e2el_s

    @property
    def tok_per_s_per_user(self) -> float:
        """Output tokens per second that one request sees, prefill and queueing included."""
        return self.output_tok_per_s / self.concurrency


def estimate(
    deployment: Deployment, input_len: int, output_len: int, concurrency: int, prefix_len: int = 0
) -> Estimate:
    """Closed form of a closed loop of requests that share ``prefix_len`` tokens before their ``input_len``.

    The engine keeps it: a search asks for the same concurrency under several bounds."""
    key = (input_len, output_len, concurrency, prefix_len)
    if key not in deployment.estimates:
        steps = _Steps.of(deployment, *key)
        times_s = [deployment.timer.step_s(batch) for batch in steps.batches]
        ttft_s, tpot_s, e2el_s = (
            sum(weight * time_s for weight, time_s in zip(steps.sums[name], times_s, strict=True))
            for name in ("ttft", "tpot", "e2el")
        )
        deployment.estimates[key] = Estimate(concurrency, ttft_s, tpot_s, e2el_s, concurrency * output_len / e2el_s)
    return deployment.estimates[key]


def doubt_at(deployment: Deployment, load: Load, concurrency: int = USUAL_BATCH) -> Uncertainty:
    """Uncertainty of the closed form with ``concurrency`` requests on all DP ranks, as far as they run at once."""
    each = ceil(min(concurrency, deployment.config.max_running) / deployment.config.data_parallel_size)
    steps = _Steps.of(deployment, load.input_len, load.output_len, each, load.prefix_len)
    sums = {name: np.array(weights) for name, weights in steps.sums.items()}
    return UncertaintyOfSteps(deployment, steps.batches, sums, lonely=each == 1)


@dataclass(frozen=True, slots=True)
class _Steps:
    batches: tuple[Batch, ...]  #: a decode step of all; of all but one; and that with a prompt's chunk
    sums: dict[str, tuple[float, float, float]]  #: of these for each latency, and for the time of a throughput

    @classmethod
    def of(cls, deployment: Deployment, input_len: int, output_len: int, concurrency: int, prefix_len: int) -> "_Steps":
        others, context_tok = concurrency - 1, prefix_len + input_len + output_len / 2
        cached_tok = prefix_len if deployment.config.enable_prefix_caching else 0
        prompt_tok = prefix_len + input_len - cached_tok
        chunks = ceil(prompt_tok / max(deployment.config.max_num_batched_tokens - others, 1))
        # all chunks together attend to input x (input + 1) / 2 pairs; a step of average size stands for each
        chunk_tok, pairs_tok = ceil(prompt_tok / chunks), prompt_tok * (cached_tok + (prompt_tok + 1) / 2) / chunks
        decodes = (output_len - 1) / deployment.tokens_per_step
        # steps of a request's decoding that hold a prompt: one for each of its own rank, and those of ranks beside it
        here, ranks = others * chunks, deployment.config.data_parallel_size if deployment.model.is_moe else 1
        share = min(concurrency * chunks / max(decodes, 1.0), 1.0)  # of the steps of each other rank
        peer_tok = round((ranks - 1) * (concurrency + share * chunk_tok))  # of the others beside a prompt
        batches = (
            Batch(concurrency, concurrency * context_tok),
            Batch(others, others * context_tok),
            Batch(others, others * context_tok, 1, chunk_tok, pairs_tok, 1, peer_tok=peer_tok if ranks > 1 else None),
        )
        waits = here + max(decodes - here, 0.0) * (1 - (1 - share) ** (ranks - 1))
        ttft, e2el = (0.5, 0.0, float(chunks)), (decodes, -waits, waits + chunks)
        more_tok = max(output_len - 1, 1)
        tpot = ((e2el[0] - ttft[0]) / more_tok, e2el[1] / more_tok, (e2el[2] - ttft[2]) / more_tok)
        return cls(batches, {"ttft": ttft, "tpot": tpot, "e2el": e2el, "throughput": e2el})


#: Kinds of operators whose memory traffic is the KV cache's, or a recurrent state's, and not the weights'.
CACHE_READERS = (OperatorKind.ATTENTION, OperatorKind.STATE)
#: Causes whose word alone says too little in a sentence.
SAID = {"launches": "kernel launches", "links": "collectives over links", "host": "work of the host"}
SAID |= {"launch": "kernel launches", "link": "collectives over links", "memory": "memory bandwidth"}
SAID["host link"] = "weights read from host memory"


def find_limit(deployment: Deployment, served: Replay, load: Load) -> str:
    """The cause that keeps one server from serving more of ``load``.

    Else the largest share of the engine's time, of the average steps of the replay ``served``."""
    config, in_flight = deployment.config, load.max_concurrency or served.mean_in_flight
    held = deployment.requests_served(load.max_total_len, load.common_len) * config.data_parallel_size
    if min(in_flight, config.max_running) > held and served.kv_cache_usage_peak > defaults.ROOMY:
        return f"KV capacity: holds {counted(int(held), 'request')}"
    if in_flight > config.max_running:
        return f"queueing: max_num_seqs {config.max_num_seqs}"
    spent_s = {"decode step": served.decode.time_s, "prefill step": served.prefill.time_s}
    total: dict[str, float] = defaultdict(float)
    for name, step in deployment.typical_steps(served).items():
        for cause, time_s in _causes(deployment, step).items():
            total[cause] += time_s / step.total_s * spent_s[name]
    cause = max(total, key=lambda one: total[one], default="nothing")
    return f"{cause} {total[cause] / (sum(total.values()) or 1.0):.0%}"


def cache_remark(record: Prediction) -> str:
    """Return a note on a KV cache too small for the load, with its preemptions; empty where it is no bottleneck."""
    limit, replayed = find_limit(record.deployment, record.replay, record.load), record.replay.preemptions
    preempted = round(replayed.sum() * record.load.count / len(replayed))  # of many equal prompts a part was replayed
    return f"bottleneck: {limit} at once; {counted(preempted, 'preemption')}" if limit.startswith("KV") else ""


def limit_in_words(limit: str) -> str:
    """The answer of ``find_limit`` for a sentence: ``weights bandwidth, 61% of the engine's time``."""
    cause, _, share = limit.rpartition(" ")
    return f"{SAID.get(cause, cause)}, {share} of the engine's time" if share.endswith("%") else limit


def _causes(deployment: Deployment, step: StepBreakdown) -> dict[str, float]:
    """Seconds of one step by cause, which add up to its time."""
    operators = step_operators(deployment.model, deployment.config, sorts=True)
    kinds = {operator.name: operator.kind for operator in operators}
    exchanges = step_collectives(deployment.model, deployment.profile, deployment.config)
    collectives = {collective.name for collective in exchanges}
    causes: dict[str, float] = defaultdict(float)
    causes["host"] = step.total_s - max(step.gpu_s, step.launch_s)
    if step.launch_s > step.gpu_s:
        causes["launches"] += step.launch_s
        return causes
    for part in step.parts:
        if part.name != "host":
            reads = "KV bandwidth" if kinds.get(part.name) in CACHE_READERS else "weights bandwidth"
            named = {"launch": "launches", "compute": "compute", "host link": "host link"}
            for bound, time_s in part.shares.items():
                causes["links" if part.name in collectives else named.get(bound, reads)] += time_s
    return causes


def what_limits(deployment: Deployment, load: ServedLoad) -> str:
    """The tightest target, and the bound of the steps behind it."""
    steps = {"prefill": load.replay.prefill.batch, "decode": load.replay.decode.batch}
    worst = load.worst
    if worst is None or not load.stable:
        return THROUGHPUT
    behind = {"ttft": ("prefill",), "e2el": ("decode", "prefill")}.get(worst.slo.metric, ("decode",))
    for kind in behind:
        if (batch := steps[kind]) is not None:
            bounds: dict[str, float] = defaultdict(float)
            for part in deployment.timer.breakdown(batch).parts:
                for bound, time_s in part.shares.items():
                    bounds[bound] += time_s
            most = max(bounds, key=lambda b: bounds[b])
            return f"{worst.slo}; {kind} steps are limited by {SAID.get(most, most)}"
    return str(worst.slo)
