"""The largest load that one server carries under latency targets, and the share of its requests that meet them.

A load is carried when the predicted statistic keeps every limit with the probability that is asked for::

    p99 TTFT (replay)  x  factor that a measurement stays below with that probability   <=  limit

and when the queue does not grow without end: the request rate is at most what full batches serve in the steady state,
moved by the factor of the throughput in the same way. Latencies rise with the load, so bisection over replays finds
the largest one. It begins where the closed form meets the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from math import ceil, exp, inf, log, sqrt
from typing import Literal

from planner.planning import defaults
from planner.planning.deployment import Deployment
from planner.planning.predict import Estimate, estimate, estimated_uncertainty
from planner.planning.uncertainty import MOST_REQUESTS, Uncertainty, UncertaintyOfReplay, least_upper
from planner.simulator import Replay, good_requests, hopeless_at, statistic_ms
from planner.units import MS
from planner.workload import DEFAULT_PERCENTILE, OF_A_REQUEST, Load, Slo

By = Literal["rate", "concurrency"]
#: Ratio of neighbouring loads that are told apart; a replay of so many requests scatters by as much.
TOLERANCE = 0.03
ROUNDING = 1e-9
THROUGHPUT = "the throughput of full batches"
#: Share of the time that an almost idle server is busy; an engine that misses the targets here always does.
IDLE = 0.02
NEAR_EDGE = 0.15  #: the same where loads between are read off a line
NEAR_LIMIT = 0.9  #: expected over limit of a load that is nearer to the largest than the closed form
USUALLY_KEPT = 0.9  #: of the closed form, where the queue of a slower engine is replayed too: where to begin
HALVED_EACH = 4  #: of the steps towards the largest load, that is halved whatever the targets say
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
    sent: Load  #: what was replayed
    readings: tuple[Reading, ...]
    good_share: float  #: of the requests, that meet every target of a request with that confidence
    stable: bool  #: whether the server keeps up
    replay: Replay
    bound_by: str = ""  #: what keeps it from being larger; empty where no larger one was tried
    whole: bool = True  #: whether all requests were served; else it ended as soon as a target was broken
    doubt: UncertaintyOfReplay | None = None  #: how far measurements of the replay may lie from it

    @property
    def excess(self) -> float:
        """The worst target's; infinite where the server does not keep up."""
        return max((reading.excess for reading in self.readings), default=0.0) if self.stable else inf

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


@dataclass(frozen=True)
class _Served:
    """One load that was replayed, to be read at any confidence."""

    load: Load
    replay: Replay
    whole: bool
    doubt: UncertaintyOfReplay
    margins: dict[Slo, float]  #: at the confidence at which it ended early; empty for one that is whole

    @classmethod
    def again(cls, load: ServedLoad) -> _Served:
        """What became of ``load``, which was served whole."""
        doubt = load.doubt
        assert doubt is not None and load.whole  # who calls has asked
        return cls(doubt.load, load.replay, True, doubt, {})


class Capacity:
    """What one server carries of requests of one kind. What was replayed is kept, and read at other confidences."""

    def __init__(
        self,
        deployment: Deployment,
        load: Load,
        slos: Sequence[Slo],
        *,
        by: By = "rate",
        served: Iterable[ServedLoad] = (),
    ) -> None:
        """``load`` says what is sent; how fast, and how many requests, follows from what is asked of the server.

        ``served``: loads of which it is known what becomes of them.
        """
        self.deployment, self.load, self.slos, self.by = deployment, load, tuple(slos), by
        self._served = {load.value: _Served.again(load) for load in served if load.whole}
        self._reacting = {value: served.doubt.reacting() for value, served in self._served.items()}
        self._largest: dict[tuple[float, bool], ServedLoad | None] = {}

    def largest(self, confidence: float = defaults.CONFIDENCE, *, exactly: bool = False) -> ServedLoad | None:
        """The largest request rate, or concurrency, that keeps the targets; None where none does.

        A concurrency never exceeds ``max_num_seqs``: beyond, requests only wait. ``exactly`` as in ``measure``. Raises
        InputError where a request never fits the KV cache.
        """
        exactly = exactly and self.by == "rate" and bool(self.slos)
        key = confidence, exactly
        if key not in self._largest:
            met, broken = self._between(confidence, TOLERANCE, exactly=exactly)
            limit = "max_num_seqs" if self.by == "concurrency" else THROUGHPUT
            self._largest[key] = met and replace(met, bound_by=broken.binding if broken else limit)
        return self._largest[key]

    def edge(self, confidence: float) -> float:
        """About the largest load, to first order: between two replays, where the worst target reaches its limit."""
        met, broken = self._between(confidence, NEAR_EDGE)
        if met is None or broken is None or met.value >= broken.value:
            return met.value if met else 0.0
        return min(_crossing(met, broken) or met.value, broken.value)

    def interval(self, most: float, kept: float = 1.0) -> tuple[float, float]:
        """What 95 % and 5 % of such servers carry at least, where ``most`` is what is planned for; to two digits.

        ``kept``: the share of what a server carries to first order that is left.
        """
        return min(self.edge(0.95) * kept, most), max(self.edge(0.05) * kept, most)

    def at(self, value: float, confidence: float, *, exactly: bool = False) -> ServedLoad:
        """One load, which ends as soon as a target is broken for certain, unless ``exactly``."""
        served = self._served.get(value)
        if served is None or (not served.whole and (exactly or self._ended_too_early(served, confidence))):
            sent = at_load(self.deployment, self.load, self.slos, self.by, value)
            served = self._served[value] = _serve(self.deployment, sent, self.slos, confidence, whole=exactly)
        return self._read(value, served, confidence, exactly)

    def idle(self, confidence: float, *, whole: bool = False) -> ServedLoad:
        """The load of a server that idles: a smaller one is no easier.

        It is not kept: from there the largest load is far to look for.
        """
        sent = at_load(self.deployment, self.load, self.slos, self.by, self._idle)
        return measure(self.deployment, sent, self.slos, confidence=confidence, whole=whole)

    def _read(self, value: float, served: _Served, confidence: float, exactly: bool) -> ServedLoad:
        doubt = served.doubt
        if exactly:
            doubt = self._reacting.setdefault(value, served.doubt.reacting())
        return _read(served, self.slos, confidence, doubt, lambda: self._steady)

    def _ended_too_early(self, served: _Served, confidence: float) -> bool:
        """Whether what broke a target with another confidence may keep it with this one."""
        least = {slo: least_upper(self.deployment, slo.key, confidence, open_loop=True) for slo in self.slos}
        return any(least[slo] < margin for slo, margin in served.margins.items())

    def _known(self, confidence: float, *, exactly: bool) -> Iterable[ServedLoad]:
        """What was replayed whole, at this confidence."""
        for value, served in self._served.items():
            if not served.whole:
                continue
            load = self._read(value, served, confidence, exactly=False)
            if not exactly or not load.meets:
                yield load
            elif value in self._reacting:
                yield self._read(value, served, confidence, exactly=True)

    def _between(
        self, confidence: float, tolerance: float, *, exactly: bool = False
    ) -> tuple[ServedLoad | None, ServedLoad | None]:
        """The largest load that keeps the targets, and the smallest that does not, so near to each other."""
        most = self._steady.rate(confidence) if self.by == "rate" else float(most_in_flight(self.deployment))
        least = min(self._idle, most)
        if not self.slos:  # nothing but full batches limits it
            least = most

        def probe(value: float) -> ServedLoad:
            return self.at(value, confidence, exactly=exactly)

        known = [load for load in self._known(confidence, exactly=exactly) if load.value <= most]
        guess = None
        if not known or (len(known) == 1 and known[0].meets and known[0].excess <= NEAR_LIMIT):
            guess = self._guess(confidence) * (USUALLY_KEPT if exactly else 1.0)
            if known and guess < known[0].value * (1 + TOLERANCE):
                guess = None
        return bracket(probe, guess, least, most, tolerance, whole=self.by == "concurrency", known=known)

    def _guess(self, confidence: float) -> float:
        return closed_form_load(self.deployment, self.load, self.slos, self.by, confidence=confidence)

    @cached_property
    def _idle(self) -> float:
        return idle_load(self.deployment, self.load, self.by)

    @cached_property
    def _steady(self) -> Steady:
        return Steady.of(self.deployment, self.load)


def measure(
    deployment: Deployment,
    load: Load,
    slos: Sequence[Slo],
    *,
    confidence: float = defaults.CONFIDENCE,
    whole: bool = True,
    exactly: bool = False,
) -> ServedLoad:
    """Serve ``load`` once, beside the targets.

    Not ``whole``: an open loop ends once a target is broken for certain; what is read off its requests so far breaks
    it too.
    A closed loop opens with all its places at once, which users never do: those requests load the server, but the
    targets ignore them. ``exactly``: the queue of an engine that is slower is replayed too. Raises InputError where a
    request never fits the KV cache.
    """
    served = _serve(deployment, load, slos, confidence, whole=whole)
    doubt = served.doubt.reacting() if exactly else served.doubt
    return _read(served, slos, confidence, doubt, lambda: Steady.of(deployment, load))


def idle_load(deployment: Deployment, load: Load, by: By) -> float:
    """A load so small that a smaller one is no easier: one in flight, or a server that idles between requests."""
    return 1.0 if by == "concurrency" else IDLE / at_concurrency(deployment, load, 1).e2el_s


def with_the_queue(load: ServedLoad, slos: Sequence[Slo], confidence: float) -> ServedLoad:
    """``load``, served whole to first order, as ``measure`` has it ``exactly``."""
    served = _Served.again(load)
    doubt = served.doubt.reacting()
    return _read(served, slos, confidence, doubt, lambda: Steady.of(doubt.deployment, doubt.load))


def _serve(deployment: Deployment, load: Load, slos: Sequence[Slo], confidence: float, *, whole: bool) -> _Served:
    hopeless, sent = None, load.count
    margins: dict[Slo, float] = {}
    if not whole and load.max_concurrency is None:
        margins = {slo: least_upper(deployment, slo.key, confidence, open_loop=True) for slo in slos}
        limits_s = {slo: slo.limit_ms * MS / factor for slo, factor in margins.items()}
        hopeless = hopeless_at(limits_s, sent, load.recorded.of_classes if load.recorded is not None else None)
    served = deployment.replay(load, keep_steps=sent <= MOST_REQUESTS, hopeless=hopeless)
    ended = len(served.sent_s) == sent
    doubt = UncertaintyOfReplay(deployment, load, served, queue_reacts=False)
    return _Served(load, served, ended, doubt, {} if ended else margins)


def _read(
    served: _Served, slos: Sequence[Slo], confidence: float, doubt: UncertaintyOfReplay, steady: Callable[[], Steady]
) -> ServedLoad:
    """What ended early breaks a target by the least margin already. ``steady`` is asked of an open loop."""
    load, replay = served.load, served.replay
    margins = served.margins or {slo: _doubt_of(slo, replay, doubt).upper(slo.key, confidence) for slo in slos}
    burst, readings = load.max_concurrency or 0, []
    for slo, factor in margins.items():
        predicted_ms = statistic_ms(slo, replay, after=burst if burst < len(replay.sent_s) else 0)
        readings.append(Reading(slo, predicted_ms, predicted_ms * factor))
    good = _good(replay, margins) / len(replay.sent_s)
    by: By = "rate" if load.max_concurrency is None else "concurrency"
    if load.reused:  # less is found than in a cache that forgets nothing
        load = as_found(load, replay)
    stable = by == "concurrency"
    if not stable:
        full = Steady.of(doubt.deployment, load, steady().doubt) if load.reused else steady()
        stable = load.value <= full.rate(confidence) * (1 + ROUNDING)
    return ServedLoad(
        by, load.value, load, tuple(readings), good, stable, replay, whole=served.whole, doubt=served.doubt
    )


def _doubt_of(slo: Slo, replay: Replay, doubt: UncertaintyOfReplay) -> UncertaintyOfReplay:
    return doubt.among(slo.group) if slo.group and replay.group is not None else doubt


def _good(replay: Replay, margins: Mapping[Slo, float]) -> int:
    """Requests that keep every target of their class by its margin."""
    good = 0
    for group in replay.groups or ("",):
        targets_ms: dict[str, float] = {
            slo.metric: slo.limit_ms / factor
            for slo, factor in margins.items()
            if slo.metric in OF_A_REQUEST and (slo.group in ("", group) or not group)
        }
        good += good_requests(replay.of(group) if group else replay, targets_ms)
    return good


def rarest(load: Load, slos: Sequence[Slo]) -> float:
    """Share of all requests that the smallest class with a target of its own makes up; 1 without classes."""
    requests = load.recorded
    if requests is None or requests.group is None or not any(slo.group for slo in slos):
        return 1.0
    held = {slo.group for slo in slos}
    shares = (float((requests.group == place).mean()) for place, name in enumerate(requests.groups) if name in held)
    return max(min(shares), 1 / len(requests.group))


def as_found(load: Load, served: Replay) -> Load:
    """``load`` with what a replay found in the prefix cache as tokens that all prompts begin with."""
    found_tok, prompt_tok = round(float(served.cached_tok.mean())), load.prefix_len + load.input_len
    return replace(load, prefix_len=found_tok, input_len=max(prompt_tok - found_tok, 1))


def largest_load(
    deployment: Deployment,
    load: Load,
    slos: Sequence[Slo],
    *,
    by: By = "rate",
    confidence: float = defaults.CONFIDENCE,
) -> ServedLoad | None:
    """``Capacity.largest`` to first order."""
    return Capacity(deployment, load, slos, by=by).largest(confidence)


@dataclass(frozen=True)
class Steady:
    """Full batches in the steady state."""

    request_per_s: float
    doubt: Uncertainty

    @classmethod
    def of(cls, deployment: Deployment, load: Load, doubt: Uncertainty | None = None) -> Steady:
        """With as many requests as serve fastest; ``doubt`` of a like engine, where it is at hand."""
        steady = _fastest(deployment, load, most_in_flight(deployment))
        doubt = doubt or doubt_at(deployment, load, steady.concurrency)
        return cls(steady.output_tok_per_s / load.output_len, doubt)

    def rate(self, confidence: float) -> float:
        """Requests per second, as measured with probability ``confidence``."""
        return self.request_per_s * self.doubt.upper("output_throughput", 1 - confidence)


def steady_rate(deployment: Deployment, load: Load, *, confidence: float = defaults.CONFIDENCE) -> float:
    """Requests per second that full batches serve in the steady state, as measured with probability ``confidence``."""
    return Steady.of(deployment, load).rate(confidence)


def doubt_at(deployment: Deployment, load: Load, concurrency: int) -> Uncertainty:
    """How far measurements may lie from the closed form with ``concurrency`` requests."""
    each = ceil(concurrency / deployment.config.data_parallel_size)
    return estimated_uncertainty(deployment, load.input_len, load.output_len, each, load.prefix_len)


def usual_doubt(deployment: Deployment, load: Load) -> Uncertainty:
    """That of the closed form with a usual number of requests."""
    return doubt_at(deployment, load, min(most_in_flight(deployment), USUAL_BATCH))


def at_load(deployment: Deployment, load: Load, slos: Sequence[Slo], by: By, value: float) -> Load:
    """``load`` at a request rate or concurrency, with as many requests as its figures need.

    Several for each that is in flight, and enough beyond the highest percentile, also of the rarest class with a target
    of its own.
    """
    percentile = max((DEFAULT_PERCENTILE if slo.percentile is None else slo.percentile for slo in slos), default=50.0)
    tail = defaults.PROMPTS_BEYOND / (1 - min(percentile, 99.9) / 100) / rarest(load, slos)
    if by == "concurrency":
        lasting = defaults.PROMPTS_PER_SLOT * value
    else:
        lasting = defaults.PROMPTS_PER_FLYING * in_flight(deployment, load, value)
    prompts = ceil(min(max(defaults.LEAST_SEARCH_PROMPTS, tail, lasting), defaults.MOST_SEARCH_PROMPTS))
    if by == "concurrency":
        return load.at_concurrency(round(value), max(prompts, ceil(value)))
    return load.at_rate(value, prompts)


def in_flight(deployment: Deployment, load: Load, rate: float) -> int:
    """Requests in flight at ``rate`` requests per second in the closed form; at most what the engine takes."""
    low, high = 1, most_in_flight(deployment)
    while low < high:
        middle = (low + high) // 2
        if middle / at_concurrency(deployment, load, middle).e2el_s >= rate:
            high = middle
        else:
            low = middle + 1
    return low


def largest_of(
    probe: Callable[[float], ServedLoad], guess: float, least: float, most: float, *, whole: bool = False
) -> ServedLoad | None:
    """The largest value in [least, most] whose load meets its targets, to ``TOLERANCE``; None where ``least`` fails.

    ``probe`` is assumed to be met up to some value and broken beyond it. ``whole``: values are whole numbers.
    """
    met, broken = bracket(probe, guess, least, most, TOLERANCE, whole=whole)
    limit = "max_num_seqs" if whole else THROUGHPUT
    return met and replace(met, bound_by=broken.binding if broken else limit)


def bracket(
    probe: Callable[[float], ServedLoad],
    guess: float | None,
    least: float,
    most: float,
    tolerance: float,
    *,
    whole: bool = False,
    known: Iterable[ServedLoad] = (),
) -> tuple[ServedLoad | None, ServedLoad | None]:
    """The largest value in [least, most] that is met, and the smallest that is broken, no farther apart than asked for.

    ``known`` are values that were probed before. It begins at ``guess``, if there is one.
    """
    loads = sorted(known, key=lambda load: load.value)
    value = None if guess is None else min(max(guess, least), most)
    for turn in count(1):
        met = next((load for load in reversed(loads) if load.meets), None)
        low = met.value if met else 0.0
        broken = next((load for load in loads if not load.meets and load.value > low), None)
        high = broken.value if broken else inf
        if low >= most or high <= least or high - low <= max(tolerance * low * (1 + ROUNDING), 1.0 if whole else 0.0):
            return met, broken
        if value is None:
            value = _next_value(loads, met, broken, 1 + tolerance, by_halves=not turn % HALVED_EACH)
        value = min(max(value, least), most)
        if whole:
            value = min(max(round(value), ceil(low) + 1), high - 1)
        loads = sorted((*loads, probe(value)), key=lambda load: load.value)
        value = None
    raise AssertionError("an endless loop has ended")


def _next_value(
    loads: Sequence[ServedLoad], met: ServedLoad | None, broken: ServedLoad | None, near: float, *, by_halves: bool
) -> float:
    """Where the worst target is expected to reach its limit, a little beyond it where that closes the bracket, and no
    nearer to what is known than the factor ``near``, up to which loads are not told apart.

    Unless ``by_halves``, or where nothing is known: between the bounds where there are two, else half as much again or
    half of the one there is.
    """
    if met and broken:
        crossing = None if by_halves or broken.value <= met.value * near**2 else _crossing(met, broken)
        if crossing is None:
            return sqrt(met.value * broken.value)
        return min(max(crossing, met.value * near), broken.value / near)
    one = met or broken
    assert one is not None
    finite = [load for load in loads if load.whole and 0 < load.excess < inf]
    others = finite[-2:] if met else finite[:2]
    crossing = _crossing(*others) if len(others) == 2 else None
    if crossing is None or (crossing > one.value) != bool(met):
        crossing = one.value / min(max(one.excess, 0.5), 2.0)
    if met:
        return min(max(crossing * sqrt(near), met.value * near), met.value * 1.5)
    return min(max(crossing / sqrt(near), one.value / 2), one.value / near)


def _crossing(one: ServedLoad, other: ServedLoad) -> float | None:
    """Where a line through the logarithms of two loads and of their worst targets reaches the limit; or None."""
    if not (one.whole and other.whole and 0 < one.excess < inf and 0 < other.excess < inf):
        return None
    run, rise = log(other.value / one.value), log(other.excess / one.excess)
    return one.value * exp(min(max(-log(one.excess) * run / rise, -1.0), 1.0)) if run * rise > 0 else None


def closed_form_load(
    deployment: Deployment,
    load: Load,
    slos: Sequence[Slo],
    by: By,
    *,
    confidence: float = defaults.CONFIDENCE,
    doubt: Uncertainty | None = None,
) -> float:
    """The largest load at which the means of the closed form keep the limits: where to begin.

    ``doubt`` of a like engine, where it is at hand.
    """
    doubt = doubt or usual_doubt(deployment, load)
    margins = [(slo, doubt.upper(slo.key, confidence)) for slo in slos]
    return _closed_form_load(deployment, load, margins, by)


def outlined_load(deployment: Deployment, load: Load, slos: Sequence[Slo], confidence: float) -> float:
    """At most what ``closed_form_load`` gives as a rate: with the margins that noise alone asks for."""
    margins = [(slo, least_upper(deployment, slo.key, confidence)) for slo in slos]
    return _closed_form_load(deployment, load, margins, "rate") if confidence >= 0.5 else inf


def queued_load(
    deployment: Deployment, parts: Sequence[tuple[float, Load, Sequence[Slo]]], margins: Mapping[Slo, float]
) -> float:
    """About the largest rate of all ``parts`` together at which prompts that wait for one another keep the TTFT.

    Each part is a share of the requests, their lengths and their targets, whose limits are kept with ``margins``. The
    prompts are an M/G/1 queue on each DP rank: first come, first served, a mean wait as of Pollaczek and Khinchine,
    and an exponential tail behind it (Kleinrock, "Queueing Systems", volume 1, 1975, chapter 5).
    """
    prompts_s = [at_concurrency(deployment, load, 1).ttft_s for _, load, _ in parts]
    shares = [share for share, _, _ in parts]
    mean_s = sum(share * prompt_s for share, prompt_s in zip(shares, prompts_s, strict=True))
    residual_s = sum(share * prompt_s**2 for share, prompt_s in zip(shares, prompts_s, strict=True)) / (2 * mean_s)
    busy = 1.0
    for prompt_s, (_, _, slos) in zip(prompts_s, parts, strict=True):
        for slo in slos:
            if slo.metric == "ttft":
                spare_s = max(slo.limit_ms * MS / margins.get(slo, 1.0) - prompt_s, 0.0)
                busy = min(busy, _busy(spare_s / residual_s, slo.percentile))
    return deployment.config.data_parallel_size * busy / mean_s


def _busy(spare: float, percentile: float | None) -> float:
    """Share of the time that an M/G/1 queue is busy whose wait keeps ``spare``, in mean residual service times."""
    if percentile is None:
        return spare / (1 + spare)
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        if middle * exp(-spare * (1 - middle)) <= 1 - percentile / 100:
            low = middle
        else:
            high = middle
    return low


def _closed_form_load(deployment: Deployment, load: Load, margins: Sequence[tuple[Slo, float]], by: By) -> float:
    def meets(concurrency: int) -> bool:
        figures = at_concurrency(deployment, load, concurrency)
        found_s = {"ttft": figures.ttft_s, "tpot": figures.tpot_s, "itl": figures.tpot_s, "e2el": figures.e2el_s}
        return all(found_s[slo.metric] * factor <= slo.limit_ms * MS for slo, factor in margins)

    low, high = 1, most_in_flight(deployment)
    while low < high:
        middle = (low + high + 1) // 2
        if meets(middle):
            low = middle
        else:
            high = middle - 1
    return low if by == "concurrency" else _request_per_s(_fastest(deployment, load, low))


def most_in_flight(deployment: Deployment) -> int:
    """Requests that the server computes at once, all DP ranks together."""
    return deployment.config.max_num_seqs * deployment.config.data_parallel_size


def _fastest(deployment: Deployment, load: Load, most: int) -> Estimate:
    """The closed form with as many requests, up to ``most``, as are served fastest.

    More of them than that leave too few tokens of a step to prompts.
    """
    best = found = at_concurrency(deployment, load, most)
    slower = 0
    while found.concurrency > 1 and slower < 2:  # fewer yet are slower still
        found = at_concurrency(deployment, load, found.concurrency // 2)
        slower = 0 if _request_per_s(found) > _request_per_s(best) else slower + 1
        best = found if not slower else best
    return best


def _request_per_s(found: Estimate) -> float:
    return found.concurrency / found.e2el_s


def at_concurrency(deployment: Deployment, load: Load, concurrency: int) -> Estimate:
    """The closed form with ``concurrency`` requests dealt to the DP ranks; its throughput is that of all of them."""
    ranks = deployment.config.data_parallel_size
    lengths = load.input_len, load.output_len
    each = estimate(deployment, *lengths, ceil(concurrency / ranks), load.prefix_len)
    if ranks == 1:
        return each
    busy = min(ranks, concurrency)
    return replace(each, concurrency=concurrency, output_tok_per_s=each.output_tok_per_s * busy)
