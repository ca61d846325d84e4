"""The largest load that one server carries under latency targets, and the share of its requests that meet them.

A load is carried when the predicted statistic keeps every limit with the probability that is asked for::

    p99 TTFT (replay)  x  factor that a measurement stays below with that probability   <=  limit

and when the queue does not grow without end: the request rate is at most what full batches serve in the steady state,
moved by the factor of the throughput in the same way. Latencies rise with the load, so bisection over replays finds
the largest one. It begins where the closed form meets the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf
from typing import Literal

from planner.planning import defaults
from planner.planning.deployment import Deployment
from planner.planning.predict import Estimate, estimate, estimated_uncertainty
from planner.planning.uncertainty import MOST_REQUESTS, Uncertainty, UncertaintyOfReplay, least_upper
from planner.simulator import Replay, good_requests, hopeless_at, statistic_ms
from planner.units import MS
from planner.workload import DEFAULT_PERCENTILE, OF_A_REQUEST, Requests, Slo, Workload

By = Literal["rate", "concurrency"]
#: Ratio of neighbouring loads that are told apart; a replay of so many requests scatters by as much.
TOLERANCE = 0.03
ROUNDING = 1e-9
THROUGHPUT = "the throughput of full batches"
#: Share of the time that an almost idle server is busy; an engine that misses the targets here always does.
IDLE = 0.02
LEAST_CONFIRMED = 8.0  #: by how much a load is lowered at most until the queue keeps it
USUAL_BATCH = 32  #: requests in flight at which the doubt about the closed form is worked out


@dataclass(frozen=True, slots=True)
class Reading:
    """One target beside what is predicted for it."""

    slo: Slo
    predicted_ms: float
    expected_ms: float  #: that a measurement stays below with the confidence that is asked for

    @property
    def met(self) -> bool:
        """Whether the target is kept with that confidence."""
        return self.expected_ms <= self.slo.limit_ms

    @property
    def excess(self) -> float:
        """Expected over limit: above 1 where the target is broken."""
        return self.expected_ms / self.slo.limit_ms


@dataclass(frozen=True)
class ServedLoad:
    """One load on one server, and what became of it."""

    by: By
    value: float  #: requests per second, or requests in flight
    workload: Workload  #: what was replayed
    readings: tuple[Reading, ...]
    good_share: float  #: of the requests, that meet every target of a request with that confidence
    stable: bool  #: whether the server keeps up
    replay: Replay
    bound_by: str = ""  #: what keeps it from being larger; empty where no larger one was tried

    @property
    def meets(self) -> bool:
        """Whether the server keeps up, and keeps every target."""
        return self.stable and all(reading.met for reading in self.readings)

    @property
    def request_per_s(self) -> float:
        """Requests served per second: those sent, of an open loop that the server keeps up with."""
        return self.value if self.by == "rate" else len(self.replay.sent_s) / self.replay.duration_s

    @property
    def goodput_per_s(self) -> float:
        """Requests per second that meet every target."""
        return self.good_share * self.request_per_s

    @cached_property
    def output_tok_per_s(self) -> float:
        """Output tokens per second."""
        return self.request_per_s * float(self.replay.output_len.mean())

    @property
    def binding(self) -> str:
        """What breaks, or is nearest to breaking."""
        if not self.stable:
            return THROUGHPUT
        worst = max(self.readings, key=lambda reading: reading.excess, default=None)
        return str(worst.slo) if worst else THROUGHPUT


def measure(
    deployment: Deployment,
    workload: Workload,
    slos: Sequence[Slo],
    *,
    confidence: float = defaults.CONFIDENCE,
    requests: Requests | None = None,
    whole: bool = True,
    exactly: bool = False,
) -> ServedLoad:
    """Serve ``workload`` (or ``requests``, at the rate or concurrency of ``workload``) once, beside the targets.

    Not ``whole``: an open loop ends once a target is broken for certain; what is read off its requests so far breaks
    it too.
    A closed loop opens with all its places at once, which users never do: those requests load the server, but the
    targets ignore them. ``exactly``: the queue of an engine that is slower is replayed too. Raises InputError where a
    request never fits the KV cache.
    """
    hopeless, sent = None, workload.num_prompts if requests is None else len(requests.arrival_s)
    margins: dict[Slo, float] = {}
    if not whole and workload.max_concurrency is None:
        margins = {slo: least_upper(deployment, slo.key, confidence, open_loop=True) for slo in slos}
        hopeless = hopeless_at({slo: slo.limit_ms * MS / factor for slo, factor in margins.items()}, sent)
    served = deployment.replay(workload, requests, keep_steps=sent <= MOST_REQUESTS, hopeless=hopeless)
    if not margins or len(served.sent_s) == sent:  # what ended early breaks a target by the least margin already
        doubt = UncertaintyOfReplay(deployment, workload, served, requests, queue_reacts=exactly)
        margins = {slo: doubt.upper(slo.key, confidence) for slo in slos}
    burst, readings = workload.max_concurrency or 0, []
    for slo, factor in margins.items():
        predicted_ms = statistic_ms(slo, served, after=burst if burst < len(served.sent_s) else 0)
        readings.append(Reading(slo, predicted_ms, predicted_ms * factor))
    targets_ms: dict[str, float] = {
        slo.metric: slo.limit_ms / factor for slo, factor in margins.items() if slo.metric in OF_A_REQUEST
    }
    good = good_requests(served, targets_ms) / len(served.sent_s)
    if workload.max_concurrency is None:
        most = steady_rate(deployment, workload, confidence=confidence)
        rate = workload.request_rate
        return ServedLoad("rate", rate, workload, tuple(readings), good, rate <= most * (1 + ROUNDING), served)
    return ServedLoad("concurrency", workload.max_concurrency, workload, tuple(readings), good, True, served)


def largest_load(
    deployment: Deployment,
    workload: Workload,
    slos: Sequence[Slo],
    *,
    by: By = "rate",
    confidence: float = defaults.CONFIDENCE,
    requests: Requests | None = None,
) -> ServedLoad | None:
    """The largest request rate, or concurrency, that one server carries under ``slos``; None where none is.

    ``workload`` gives lengths, burstiness and seed; how many requests are sent follows from the load. With
    ``requests``, of a trace, their lengths are sent, in their own rhythm made faster or slower. A concurrency never
    exceeds ``max_num_seqs``: beyond, requests only wait. Raises InputError where a request never fits the KV cache.
    """

    def probe(value: float) -> ServedLoad:
        sent = at_load(deployment, workload, slos, by, value)
        return measure(deployment, sent, slos, confidence=confidence, requests=paced(requests, sent), whole=False)

    most = most_in_flight(deployment)
    if by == "concurrency":
        start = closed_form_load(deployment, workload, slos, by, confidence=confidence)
        return bisected(probe, start, 1, most, whole=True)
    least = IDLE / _at_concurrency(deployment, workload, 1).e2el_s
    ceiling = steady_rate(deployment, workload, confidence=confidence)
    if not slos:  # nothing but full batches limits it
        return bisected(probe, ceiling, ceiling, ceiling)
    guess = closed_form_load(deployment, workload, slos, by, confidence=confidence)
    return bisected(probe, min(guess, ceiling), min(least, ceiling), ceiling)


def confirmed(
    deployment: Deployment,
    workload: Workload,
    slos: Sequence[Slo],
    load: ServedLoad,
    *,
    confidence: float,
    requests: Requests | None = None,
) -> ServedLoad:
    """The largest rate up to ``load`` that keeps the targets where the queue of a slower engine is replayed too.

    A search goes by first order; near the end of what a server carries its queue grows faster. ``load`` itself where
    nothing is found.
    """
    if load.by != "rate":
        return load

    def probe(value: float) -> ServedLoad:
        sent = at_load(deployment, workload, slos, "rate", value)
        given = paced(requests, sent)
        return measure(deployment, sent, slos, confidence=confidence, requests=given, exactly=True)

    found = bisected(probe, load.value, load.value / LEAST_CONFIRMED, load.value)
    return replace(found, bound_by=found.bound_by if found.value < load.value else load.bound_by) if found else load


def steady_rate(deployment: Deployment, workload: Workload, *, confidence: float = defaults.CONFIDENCE) -> float:
    """Requests per second that full batches serve in the steady state, as measured with probability ``confidence``."""
    most = most_in_flight(deployment)
    steady = _at_concurrency(deployment, workload, most)
    doubt = doubt_at(deployment, workload, most)
    return steady.output_tok_per_s / workload.output_len * doubt.upper("output_throughput", 1 - confidence)


def doubt_at(deployment: Deployment, workload: Workload, concurrency: int) -> Uncertainty:
    """How far measurements may lie from the closed form with ``concurrency`` requests."""
    each = ceil(concurrency / deployment.config.data_parallel_size)
    return estimated_uncertainty(deployment, workload.input_len, workload.output_len, each, workload.prefix_len)


def at_load(deployment: Deployment, workload: Workload, slos: Sequence[Slo], by: By, value: float) -> Workload:
    """``workload`` at a request rate or concurrency, with as many requests as its figures need.

    Several for each that is in flight, and enough beyond the highest percentile.
    """
    percentile = max((DEFAULT_PERCENTILE if slo.percentile is None else slo.percentile for slo in slos), default=50.0)
    tail = defaults.PROMPTS_BEYOND / (1 - min(percentile, 99.9) / 100)
    if by == "concurrency":
        lasting = defaults.PROMPTS_PER_SLOT * value
    else:
        lasting = defaults.PROMPTS_PER_FLYING * in_flight(deployment, workload, value)
    prompts = ceil(min(max(defaults.LEAST_SEARCH_PROMPTS, tail, lasting), defaults.MOST_SEARCH_PROMPTS))
    if by == "concurrency":
        return replace(workload, num_prompts=max(prompts, ceil(value)), max_concurrency=round(value), request_rate=inf)
    return replace(workload, num_prompts=prompts, max_concurrency=None, request_rate=value)


def paced(requests: Requests | None, workload: Workload) -> Requests | None:
    """The first requests of a trace at the load of ``workload``: its rhythm at that rate, or all at once."""
    if requests is None:
        return None
    count = min(workload.num_prompts, len(requests.arrival_s))
    arrival_s = requests.arrival_s[:count] - requests.arrival_s[0]
    if workload.request_rate == inf:
        arrival_s = arrival_s * 0.0
    elif arrival_s[-1] > 0:
        arrival_s = arrival_s * (count / workload.request_rate / arrival_s[-1])
    return Requests(requests.input_len[:count], requests.output_len[:count], arrival_s)


def in_flight(deployment: Deployment, workload: Workload, rate: float) -> int:
    """Requests in flight at ``rate`` requests per second in the closed form; at most what the engine takes."""
    low, high = 1, most_in_flight(deployment)
    while low < high:
        middle = (low + high) // 2
        if middle / _at_concurrency(deployment, workload, middle).e2el_s >= rate:
            high = middle
        else:
            low = middle + 1
    return low


def bisected(
    probe: Callable[[float], ServedLoad], guess: float, least: float, most: float, *, whole: bool = False
) -> ServedLoad | None:
    """The largest value in [least, most] whose load meets its targets, to ``TOLERANCE``; None where ``least`` fails.

    ``probe`` is assumed to be met up to some value and broken beyond it. ``whole``: values are whole numbers.
    """
    met: ServedLoad | None = None
    broken: ServedLoad | None = None
    low, high = 0.0, inf  # the largest value that is met, the smallest that is broken
    value = min(max(guess, least), most)
    value = round(value) if whole else value
    while True:
        load = probe(value)
        if load.meets:
            met, low = load, value
        else:
            broken, high = load, value
        if low >= most or high <= least or high - low <= max(TOLERANCE * low, 1.0 if whole else 0.0):
            break
        value = _next_value(low, high, least, most)
        value = min(max(round(value), ceil(low) + 1), high - 1) if whole else value
    limit = "max_num_seqs" if whole else THROUGHPUT
    return replace(met, bound_by=broken.binding if broken else limit) if met else None


def _next_value(low: float, high: float, least: float, most: float) -> float:
    """Between the bounds where there are two, else half as much again or half of the one there is."""
    if high == inf:
        return min(low * 1.5, most)
    if not low:
        return max(high / 2, least)
    return float((low * high) ** 0.5)


def closed_form_load(
    deployment: Deployment, workload: Workload, slos: Sequence[Slo], by: By, *, confidence: float = defaults.CONFIDENCE
) -> float:
    """The largest load at which the means of the closed form keep the limits: where to begin."""
    doubt = doubt_at(deployment, workload, min(most_in_flight(deployment), USUAL_BATCH))
    margins: list[tuple[Slo, float]] = [(slo, doubt.upper(slo.key, confidence)) for slo in slos]

    def meets(concurrency: int) -> bool:
        figures = _at_concurrency(deployment, workload, concurrency)
        found_s = {"ttft": figures.ttft_s, "tpot": figures.tpot_s, "itl": figures.tpot_s, "e2el": figures.e2el_s}
        return all(found_s[slo.metric] * factor <= slo.limit_ms * MS for slo, factor in margins)

    low, high = 1, most_in_flight(deployment)
    while low < high:
        middle = (low + high + 1) // 2
        if meets(middle):
            low = middle
        else:
            high = middle - 1
    return low if by == "concurrency" else low / _at_concurrency(deployment, workload, low).e2el_s


def most_in_flight(deployment: Deployment) -> int:
    """Requests that the server computes at once, all DP ranks together."""
    return deployment.config.max_num_seqs * deployment.config.data_parallel_size


def _at_concurrency(deployment: Deployment, workload: Workload, concurrency: int) -> Estimate:
    """The closed form with ``concurrency`` requests dealt to the DP ranks; its throughput is that of all of them."""
    ranks = deployment.config.data_parallel_size
    lengths = workload.input_len, workload.output_len
    each = estimate(deployment, *lengths, ceil(concurrency / ranks), workload.prefix_len)
    busy = min(ranks, concurrency)
    return replace(each, concurrency=concurrency, output_tok_per_s=each.output_tok_per_s * busy)
