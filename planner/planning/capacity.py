"""The largest load that one server carries under latency targets, with its interval.

The p99 TTFT of the replay is multiplied by the factor that a measurement stays below with the asked probability. The
product must meet the limit. The queue must not grow either: the rate is at most that of full batches in the steady
state, moved by the factor of the throughput in the same way. The search begins where the closed form meets the targets.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil, inf

from planner.planning import defaults
from planner.planning.defaults import IDLE, NEAR_EDGE, NEAR_LIMIT, TOLERANCE, USUALLY_KEPT
from planner.planning.deployment import Deployment
from planner.planning.largest import ROUNDING, bracket, crossing, largest, smallest
from planner.planning.predict import THROUGHPUT, Estimate, Prediction, ServedLoad, doubt_at, estimate
from planner.planning.uncertainty import Uncertainty, least_upper
from planner.units import MS
from planner.workload import DEFAULT_PERCENTILE, By, Load, Slo, Targets


class Capacity:
    """The largest load of one server. Replays are kept, and read at other confidences."""

    def __init__(
        self, deployment: Deployment, load: Load, targets: Targets, *, exactly: bool = True,
        known: Iterable[ServedLoad] = (),
    ) -> None:  # fmt: skip
        """Replays send what ``load`` says; ``exactly`` replays the queue of a slower engine too, twice more."""
        self.deployment, self.load, self.slos, self.by = deployment, load, targets.slos, targets.by
        self.confidence = targets.confidence
        self.exactly = exactly and self.by == "rate" and bool(self.slos)
        self._served = {one.prediction.load.value: one.prediction for one in known if one.whole}
        self._reacting = set(self._served)
        self._largest: dict[tuple[float, bool], ServedLoad | None] = {}

    def __repr__(self) -> str:
        found = self._largest.get((self.confidence, self.exactly))
        loads = "concurrent requests" if self.by == "concurrency" else "requests/s"
        return f"Capacity({self.deployment!r}: {f'{found.value:,.4g} {loads}' if found else 'call largest()'})"

    def largest(self, confidence: float | None = None, *, exactly: bool | None = None) -> ServedLoad | None:
        """The largest request rate, or concurrency (at most ``max_num_seqs``), that meets the targets; None: none does.

        Raises InputError where a request never fits the KV cache."""
        confidence = self.confidence if confidence is None else confidence
        exactly = self.exactly if exactly is None else exactly and self.exactly
        key = confidence, exactly
        if key not in self._largest:
            met, missed = self._between(confidence, TOLERANCE, exactly=exactly)
            limit = "max_num_seqs" if self.by == "concurrency" else THROUGHPUT
            self._largest[key] = met and replace(met, bound_by=missed.binding if missed else limit)
        return self._largest[key]

    def interval(self, most: float | None = None) -> tuple[float, float]:
        """Loads that 95 % and 5 % of such servers carry at least, around ``most``, by default the largest."""
        most = self._most(most)
        return min(self.carried(0.95, most), most), max(self.carried(0.05, most), most)

    def carried(self, confidence: float, most: float | None = None) -> float:
        """About the largest load with ``confidence``, where ``most`` is that with the confidence that is asked for.

        To first order, less the share that the queue of a slower engine takes of ``most``."""
        most = self._most(most)  # before the edges: each load that is replayed moves the next estimate
        first = self._edge(self.confidence)
        return self._edge(confidence) * (min(most / first, 1.0) if first else 1.0)

    def closed_form(self, confidence: float) -> float:
        """About the largest load by the closed form, without any replay."""
        load = closed_form_load(self.deployment, self.load, self.slos, self.by, confidence=confidence)
        return min(load, self._steady.rate(confidence)) if self.by == "rate" else load

    def _most(self, given: float | None) -> float:
        largest = self.largest() if given is None else None
        return largest.value if largest else given or 0.0

    def _edge(self, confidence: float) -> float:
        """About the largest load, to first order: between two replays, where the worst target reaches its limit."""
        met, missed = self._between(confidence, NEAR_EDGE, exactly=False)
        if met is None or missed is None or met.value >= missed.value:
            return met.value if met else 0.0
        return min(crossing(met, missed) or met.value, missed.value)

    def at(self, value: float, confidence: float | None = None, *, exactly: bool | None = None) -> ServedLoad:
        """One load, which ends as soon as a target is missed for certain, unless ``exactly``."""
        confidence = self.confidence if confidence is None else confidence
        exactly = self.exactly if exactly is None else exactly
        served = self._served.get(value)
        if served and not served.whole and not exactly:  # it may meet with this confidence what it missed with another
            least = {slo: least_upper(self.deployment, slo.key, confidence, open_loop=True) for slo in self.slos}
            served = None if any(least[slo] < margin for slo, margin in served.margins.items()) else served
        if served is None or (exactly and not served.whole):
            sent = at_load(self.deployment, self.load, self.slos, self.by, value)
            served = Prediction.until_missed(self.deployment, sent, self.slos, confidence, whole=exactly)
            self._served[value] = served
        if exactly:
            self._reacting.add(value)
        return against(served, self.slos, confidence, exactly=exactly, steady=self._steady)

    def idle(self, *, whole: bool = False) -> ServedLoad:
        """The load of a server that idles, below which none is easier. Far from the largest, so it is not kept."""
        sent = at_load(self.deployment, self.load, self.slos, self.by, idle_load(self.deployment, self.load, self.by))
        return measure(self.deployment, sent, self.slos, confidence=self.confidence, whole=whole, exactly=whole)

    def _known(self, confidence: float, *, exactly: bool) -> Iterable[ServedLoad]:
        """The whole replays, at this confidence."""
        for value, served in self._served.items():
            if served.whole:
                load = against(served, self.slos, confidence, exactly=False, steady=self._steady)
                if not exactly or not load.meets:
                    yield load
                elif value in self._reacting:
                    yield against(served, self.slos, confidence, exactly=True, steady=self._steady)

    def _between(
        self, confidence: float, tolerance: float, *, exactly: bool
    ) -> tuple[ServedLoad | None, ServedLoad | None]:
        """The largest load that meets the targets, and the smallest that does not, so near to each other."""
        most = self._steady.rate(confidence) if self.by == "rate" else float(self.deployment.config.max_running)
        # without targets nothing but full batches limits it
        least = min(idle_load(self.deployment, self.load, self.by), most) if self.slos else most
        known = [load for load in self._known(confidence, exactly=exactly) if load.value <= most]
        guess = None
        if not known or (len(known) == 1 and known[0].meets and known[0].excess <= NEAR_LIMIT):
            guess = closed_form_load(self.deployment, self.load, self.slos, self.by, confidence=confidence)
            guess *= USUALLY_KEPT if exactly else 1.0
            if known and guess < known[0].value * (1 + TOLERANCE):
                guess = None
        probe = partial(self.at, confidence=confidence, exactly=exactly)
        return bracket(probe, guess, least, most, tolerance, whole=self.by == "concurrency", known=known)

    @cached_property
    def _steady(self) -> "Steady":
        return Steady.of(self.deployment, self.load)


def measure(
    deployment: Deployment, load: Load, slos: Sequence[Slo], *, confidence: float = defaults.CONFIDENCE,
    whole: bool = True, exactly: bool = False,
) -> ServedLoad:  # fmt: skip
    """Serve ``load`` once, beside the targets; ``whole`` and ``exactly`` as for ``Prediction``."""
    served = Prediction.until_missed(deployment, load, slos, confidence, whole=whole)
    return against(served, slos, confidence, exactly=exactly)


def against(
    prediction: Prediction, slos: Sequence[Slo], confidence: float, exactly: bool = True, steady: "Steady | None" = None
) -> ServedLoad:
    """A prediction beside targets. ``steady``: full batches of a like load, where they are at hand."""
    load, stable = prediction.as_found, True
    if prediction.by == "rate":
        steady = steady or Steady.of(prediction.deployment, load)
        if load.reused:  # less is found than in a cache that forgets nothing
            steady = Steady.of(prediction.deployment, load, steady.doubt)
        stable = load.value <= steady.rate(confidence) * (1 + ROUNDING)
    readings = prediction.readings(slos, confidence, exactly=exactly)
    good_share = prediction.good_share(slos, confidence, exactly=exactly)
    return ServedLoad(prediction, readings, good_share, stable, load.value)


def idle_load(deployment: Deployment, load: Load, by: By) -> float:
    """A load so small that a smaller one is no easier: one in flight, or a server that idles between requests."""
    return 1.0 if by == "concurrency" else IDLE / at_concurrency(deployment, load, 1).e2el_s


def rarest(load: Load, slos: Sequence[Slo]) -> float:
    """Share of all requests that the smallest class with a target of its own makes up; 1 without classes."""
    requests = load.recorded
    if requests is None or requests.group is None or not any(slo.group for slo in slos):
        return 1.0
    held = {slo.group for slo in slos}
    shares = (float((requests.group == place).mean()) for place, name in enumerate(requests.groups) if name in held)
    return max(min(shares), 1 / len(requests.group))


@dataclass(frozen=True)
class Steady:
    request_per_s: float
    doubt: Uncertainty

    @classmethod
    def of(cls, deployment: Deployment, load: Load, doubt: Uncertainty | None = None) -> "Steady":
        """With as many requests as serve fastest; ``doubt`` of a like engine, where it is at hand."""
        steady = _fastest(deployment, load, most_held(deployment, load))
        return cls(steady.request_per_s, doubt or doubt_at(deployment, load, steady.concurrency))

    def rate(self, confidence: float) -> float:
        """Requests per second, as measured with probability ``confidence``."""
        return self.request_per_s * self.doubt.upper("output_throughput", 1 - confidence)


def at_load(deployment: Deployment, load: Load, slos: Sequence[Slo], by: By, value: float) -> Load:
    """``load`` at a request rate or concurrency, with enough requests for those in flight and for the percentiles."""
    percentile = max((DEFAULT_PERCENTILE if slo.percentile is None else slo.percentile for slo in slos), default=50.0)
    tail = defaults.PROMPTS_BEYOND / (1 - min(percentile, 99.9) / 100) / rarest(load, slos)
    if by == "concurrency":
        lasting = defaults.PROMPTS_PER_SLOT * value
    else:
        lasting = defaults.PROMPTS_PER_FLYING * in_flight(deployment, load, value)
    pool = min(load.count, defaults.TRACE_PROMPTS) if load.unsendable else 0  # that a share is judged by
    prompts = ceil(min(max(defaults.LEAST_SEARCH_PROMPTS, tail, lasting, pool), defaults.MOST_SEARCH_PROMPTS))
    if by == "concurrency":
        return load.at_concurrency(round(value), max(prompts, ceil(value)))
    return load.at_rate(value, prompts)


def in_flight(deployment: Deployment, load: Load, rate: float) -> int:
    """Requests in flight at ``rate`` requests per second in the closed form; at most what the engine takes."""
    most = deployment.config.max_running
    return smallest(lambda places: places / at_concurrency(deployment, load, places).e2el_s >= rate, 1, most)


def closed_form_load(
    deployment: Deployment, load: Load, slos: Sequence[Slo], by: By, *, confidence: float = defaults.CONFIDENCE,
    doubt: Uncertainty | None = None, by_noise: bool = False,
) -> float:  # fmt: skip
    """The largest load at which the means of the closed form meet the limits, with the ``doubt`` of a like engine.

    ``by_noise``: with the margins that noise alone asks for, which no doubt is below."""
    if by_noise and confidence < 0.5:
        return inf
    upper = partial(least_upper, deployment) if by_noise else (doubt or doubt_at(deployment, load)).upper
    margins = [(slo, upper(slo.key, confidence)) for slo in slos]

    def excess(concurrency: int) -> float:
        figures = at_concurrency(deployment, load, concurrency)
        found_s = {"ttft": figures.ttft_s, "tpot": figures.tpot_s, "itl": figures.tpot_s, "e2el": figures.e2el_s}
        return max((found_s[slo.metric] * factor / (slo.limit_ms * MS) for slo, factor in margins), default=0.0)

    low = largest(lambda concurrency: excess(concurrency) <= 1, 1, most := deployment.config.max_running)
    if by == "concurrency":
        return low
    rate, met = _fastest(deployment, load, low).request_per_s, excess(low)
    if low == most or met > 1:
        return rate
    more = at_concurrency(deployment, load, low + 1).request_per_s - rate  # on average in flight between the two
    return rate + max(more, 0.0) * (1 - met) / (excess(low + 1) - met)


def most_held(deployment: Deployment, load: Load) -> int:
    """Requests of a usual length that the server computes at once, as far as its KV cache holds them; at least one."""
    usual = deployment.requests_served(load.total_len, load.common_len)
    held = usual if load.recorded is None else deployment.requests_of(load)
    return max(int(min(held * deployment.config.data_parallel_size, deployment.config.max_running)), 1)


def steady_per_s(deployment: Deployment, load: Load) -> float:
    """Requests per second that full batches serve in the steady state."""
    return _fastest(deployment, load, most_held(deployment, load)).request_per_s


def _fastest(deployment: Deployment, load: Load, most: int) -> Estimate:
    """The closed form with as many requests, up to ``most``, as are served fastest: more leave prompts few tokens."""
    best = current = at_concurrency(deployment, load, most)
    slower = 0
    while current.concurrency > 1 and slower < 2:  # fewer yet are slower still
        current = at_concurrency(deployment, load, current.concurrency // 2)
        slower = 0 if current.request_per_s > best.request_per_s else slower + 1
        best = best if slower else current
    return best


def at_concurrency(deployment: Deployment, load: Load, concurrency: int) -> Estimate:
    """The closed form with ``concurrency`` requests dealt to the DP ranks; its throughput is that of all of them."""
    ranks = deployment.config.data_parallel_size
    cached_tok = min(round(load.prefix_cache_hit_rate * load.input_len), load.input_len - 1)
    lengths = load.input_len - cached_tok, load.output_len
    each = estimate(deployment, *lengths, ceil(concurrency / ranks), load.prefix_len + cached_tok)
    if ranks == 1:
        return each
    return replace(each, concurrency=concurrency, output_tok_per_s=each.output_tok_per_s * min(ranks, concurrency))
