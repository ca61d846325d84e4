"""Uncertainty of a prediction: the distribution of measurements around it.

::

    log measured = log predicted + error of the efficiencies + noise

The error follows from the distribution of the efficiencies (``planner.timing.Belief``). The steps of the replay carry
it to first order. Where the GPU waits for an asynchronous host, a fast host is timed as well: then the GPU counts. In
an open loop the queue reacts. There the direction in which the whole engine is slower or faster is replayed at both
ends (sigma points: Julier and Uhlmann, Proceedings of the IEEE 92(3), 2004). The noise, and how many deviations hold
which share of the measurements, are those of published runs that the fit did not see (split conformal prediction: Lei
et al., JASA 113(523), 2018)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import exp, hypot, inf, log, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.planning.deployment import Deployment
from planner.simulator import Client, Replay, StepSum, Timeline, statistic_ms
from planner.timing import LEVELS, PARAMETERS, SHARES, Batch, Scatter, Spread, load_calibration, step_gradients
from planner.workload import OF_A_REQUEST, Load, Slo

Floats = NDArray[np.float64]
Outcome = dict[str, float]  # s: ``duration``, and each latency by its statistic, such as ``p99_ttft``
LEVEL = 0.9  #: of the intervals that are printed
#: Figures that scale with the output throughput, and those that are its inverse.
RATES = frozenset(
    {
        "output_throughput", "total_token_throughput", "request_throughput", "requests_per_second",
        "tokens_per_second", "output_throughput_per_gpu", "output_throughput_per_user",
    }
)  # fmt: skip
TIMES = frozenset({"duration", "elapsed_time"})
#: Statistic whose uncertainty a percentile takes: runs were published with means, medians and 99th percentiles.
STATISTICS = {"mean": "mean", "median": "median", "p50": "median", "p90": "p99", "p95": "p99", "p99": "p99"}
MOST_PROMPTS = 20_000  #: requests of a longer load whose steps stand for all
#: One standard deviation of the logarithm of the share of gaps beyond a percentile of ITL. Which prompts share a step
#: depends on milliseconds of the client: where a percentile lies near the edge of gaps with a prompt, it is either.
GAP_SHARE = 0.3
_LONE_PROMPTS = 9  #: that tell how fast an idle server answers
LEAST_FACTOR = 0.01  #: between a prediction and a measurement: below even odds nothing better is certain
_NORMAL = NormalDist()
_HOST = [PARAMETERS.index(name) for name in ("host_step_s", "host_seq_s")]
_AWAY = _NORMAL.inv_cdf((1 + LEVEL) / 2)  #: standard deviations from the middle of an interval to its end
_DEVIATIONS = np.array([0.0, *(_NORMAL.inv_cdf((1 + level) / 2) for level in LEVELS)])


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a result: ``throughput``, ``latency`` (of a batch) or one of a request's latencies, by statistic."""

    of: str
    statistic: str = "mean"
    inverse: bool = False  #: a throughput where the steps give the time

    @classmethod
    def of_key(cls, key: str) -> "Figure | None":
        """The figure under ``key`` in a result; None for what is no prediction."""
        if key in RATES or key in TIMES:
            return cls("throughput", inverse=key in RATES)
        if key in ("avg_latency", "avg_latency_s"):
            return cls("latency")
        statistic, _, metric = key.partition("_")
        of = {"ttft_ms": "ttft", "tpot_ms": "tpot", "itl_ms": "tpot", "e2el_ms": "e2el"}.get(metric)
        text = statistic.removeprefix("p")
        percentile = float(text) if text.replace(".", "", 1).isdigit() else None
        if of is None or (percentile is None and statistic not in STATISTICS):
            return None
        return cls(of, STATISTICS.get(statistic) or ("p99" if (percentile or 0) > 75 else "median"))


def _as_sure_as_its_parts(shown: dict[str, Any]) -> None:
    """Narrow E2EL, times and rates of lone requests to what TTFT and TPOT allow: their tokens follow one another."""
    for key in [key for key in shown if key.endswith("_e2el_ms") and f"{key}_hi" in shown]:
        first, token = key.replace("e2el", "ttft"), key.replace("e2el", "tpot")
        if not {f"{first}_hi", f"{token}_hi"} <= shown.keys():
            continue
        tokens = (shown[key] - shown[first]) / shown[token] if shown[token] else 0.0
        low, high = (shown[f"{first}_{end}"] + tokens * shown[f"{token}_{end}"] for end in ("lo", "hi"))
        shown |= {f"{key}_lo": max(shown[f"{key}_lo"], low), f"{key}_hi": min(shown[f"{key}_hi"], high)}
        if key == "mean_e2el_ms":
            fast, slow = shown[f"{key}_lo"] / shown[key], shown[f"{key}_hi"] / shown[key]
            for name in [name for name in RATES | TIMES if f"{name}_hi" in shown]:
                least, most = (1 / slow, 1 / fast) if name in RATES else (fast, slow)
                low, high = max(shown[f"{name}_lo"], shown[name] * least), min(shown[f"{name}_hi"], shown[name] * most)
                shown |= {f"{name}_lo": low, f"{name}_hi": high}


class Uncertainty(ABC):
    """Uncertainty of the figures of one load on one engine."""

    _served: Replay | None = None  #: where there is one

    def __init__(self, deployment: Deployment, *, lonely: bool, open_loop: bool) -> None:
        """``lonely``: one request at a time. ``open_loop``: requests arrive at a rate."""
        self.deployment, self.lonely, self.open_loop = deployment, lonely, open_loop
        self._sds: dict[tuple[Figure, bool], float] = {}

    def factors(self, key: str, level: float = LEVEL) -> tuple[float, float] | None:
        """Factors around the figure ``key`` between which the share ``level`` of measurements lies."""
        if key == "output_throughput_per_user" and self.open_loop:  # Little's law: tokens of a request over its E2EL
            of_e2el = self.factors("mean_e2el_ms", level)
            return of_e2el and (1 / of_e2el[1], 1 / of_e2el[0])
        if self.scatter(Figure.of_key(key)) is None:
            return None
        return self.upper(key, (1 - level) / 2), self.upper(key, (1 + level) / 2)

    def deviations(self, key: str) -> tuple[float, float]:
        """Standard deviations of the logarithm of the figure ``key``, downwards and upwards, without noise."""
        figure = Figure.of_key(key)
        return (self._found_sd(figure, 0.0, False), self._found_sd(figure, 0.0, True)) if figure else (0.0, 0.0)

    def beside(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """``figures`` and, beside each predicted one, ``KEY_lo`` and ``KEY_hi``: its 90 % interval."""
        shown: dict[str, Any] = {}
        for key, value in figures.items():
            shown[key] = value
            if isinstance(value, float) and (bounds := self.factors(key)):
                shown |= {f"{key}_lo": value * bounds[0], f"{key}_hi": value * bounds[1]}
        if self.lonely:
            _as_sure_as_its_parts(shown)
        most_ms = shown.get("duration_hi", inf) * 1e3
        for key in [key for key in figures if key.endswith("_ttft_ms")]:  # no request waits longer than it is served
            whole = key.replace("_ttft_", "_e2el_")
            for name in (whole, key):
                bound_ms = min(most_ms, shown.get(f"{whole}_hi", inf))
                if f"{name}_hi" in shown and shown[name] <= bound_ms:
                    shown[f"{name}_hi"] = min(shown[f"{name}_hi"], bound_ms)
        decode_ms = shown.get("mean_e2el_ms", 0.0) - shown.get("mean_ttft_ms", 0.0)
        if decode_ms > 0:  # and decodes no longer
            bound_ms = shown.get("mean_tpot_ms", inf) * most_ms / decode_ms
            for key in [key for key in figures if key.endswith("_tpot_ms") and f"{key}_hi" in shown]:
                shown[f"{key}_hi"] = min(shown[f"{key}_hi"], max(shown[key], bound_ms))
        return shown

    def upper(self, key: str, probability: float) -> float:
        """The factor on the figure ``key`` that a measurement stays below with ``probability``; 1 where unknown."""
        if not 0 < probability < 1:
            raise InputError("a confidence must be above 0 and below 1", hint="for example 0.8")
        figure = Figure.of_key(key)
        scatter = self.scatter(figure)
        level = 2 * probability - 1
        if figure is None or scatter is None or not level:
            return 1.0
        reach = _reach(scatter, abs(level))
        factor = exp((reach if level > 0 else -reach) * self._sd(figure, above=level > 0))
        if (level > 0) == figure.inverse and (self.lonely or figure.of in ("throughput", "latency")):
            here_s, peak_s = (self._time(figure, steps)[0] for steps in (self._steps[0], self._at_peak))
            least = min(peak_s / here_s, 1.0) if here_s else 0.0  # nothing is faster than the roofline
            factor = min(factor, 1 / least) if figure.inverse else max(factor, least)
        return factor * self._gap_factor(key, _NORMAL.inv_cdf(probability))

    def probability(self, key: str, limit_over_predicted: float) -> float:
        """Probability that a measurement of ``key`` is at most so many times the prediction; 0 or 1 if unknown."""
        figure = Figure.of_key(key)
        scatter = self.scatter(figure)
        away = log(limit_over_predicted) if limit_over_predicted > 0 else -inf
        sd = self._sd(figure, above=away > 0) if figure and scatter else 0.0
        if scatter is None or not sd:
            return float(away >= 0)
        grid = np.linspace(0.0, 5.0, 501)
        reach = grid * np.interp(grid, _DEVIATIONS, _ratios(scatter))
        normal = float(np.interp(abs(away / sd), np.maximum.accumulate(reach), grid))
        return _NORMAL.cdf(normal if away > 0 else -normal)

    def _gap_factor(self, key: str, deviations: float) -> float:
        """Factor on a percentile of ITL where more, or fewer, gaps are long by so many deviations of their share."""
        statistic, _, metric = key.partition("_")
        text = statistic.removeprefix("p")
        percentile = float(text) if metric == "itl_ms" and text.replace(".", "", 1).isdigit() else 0.0
        served = self._served  # a closed form has no gaps
        if not served or not 75 < percentile < 100 or not len(served.token_runs.steps):
            return 1.0
        moved = max(100 - (100 - percentile) * exp(-GAP_SHARE * deviations), 1.0)
        here_ms, moved_ms = (statistic_ms(Slo("itl", 1.0, one), served) for one in (percentile, moved))
        return moved_ms / here_ms if here_ms else 1.0

    def spread(self, key: str) -> Spread:
        """Sensitivity of the figure ``key`` to the efficiencies, to compare it with that of another engine."""
        figure = Figure.of_key(key)
        if figure is None:
            raise ValueError(f"{key} is no prediction")
        return self.deployment.known.spread(self._gradient(figure))

    def noise(self, key: str) -> float:
        """Standard deviation of the logarithm of one measurement of the figure ``key``; 0 where it is not known."""
        scatter = self.scatter(Figure.of_key(key))
        return scatter.noise if scatter else 0.0

    def scatter(self, figure: Figure | None) -> Scatter | None:
        """Scatter of measurements of such a figure around predictions."""
        if figure is None:
            return None
        scatters = (self.deployment.calibration or load_calibration()).scatters
        return scatter_of(scatters, figure, lonely=self.lonely, open_loop=self.open_loop)

    def _sd(self, figure: Figure, *, above: bool) -> float:
        """Standard deviation of the logarithm of the figure, upwards or downwards."""
        if (figure, above) not in self._sds:
            scatter = self.scatter(figure)
            sd = self._found_sd(figure, scatter.noise if scatter else 0.0, above)
            if scatter and above != figure.inverse and (slow := self.deployment.slow_steps):
                batch = self._served and self._served.decode.batch
                context_tok = batch.decode_context_tok / max(batch.decode_seqs, 1) if batch else inf
                sd += log(np.interp(context_tok, slow["context_tok"], slow["factors"])) / _reach(scatter, LEVEL)
            self._sds[figure, above] = sd
        return self._sds[figure, above]

    def _found_sd(self, figure: Figure, noise: float, above: bool) -> float:
        here, fast = (self._time(figure, steps) for steps in self._steps)
        move = log(here[0] / fast[0]) / _AWAY if above == figure.inverse and here[0] else 0.0
        end_s, slope = fast if move else here  # with a fast host the GPU counts
        gradient = _relative(slope, end_s)
        along = float(gradient @ self._slower_host) if move else 0.0
        rest = max(self.deployment.known.variance(gradient) - along**2, 0.0)
        drafts = self.deployment.config.speculative_config
        accepted = drafts.acceptance_deviation if drafts and figure.of != "ttft" else 0.0  # as if all steps decoded
        return sqrt(move**2 + rest + accepted**2 + noise**2)

    def _gradient(self, figure: Figure) -> Floats:
        """Derivative of the logarithm of the figure by those of the efficiencies, (parameters,)."""
        total_s, slope = self._time(figure, self._steps[0])
        return _relative(slope, -total_s if figure.inverse else total_s)

    @abstractmethod
    def _time(self, figure: Figure, steps: tuple[Floats, Floats]) -> tuple[float, Floats]:
        """Seconds of the figure, of a throughput those of the run, and their derivatives, from those of the steps."""

    @abstractmethod
    def _batches(self) -> Sequence[Batch]: ...

    @cached_property
    def _steps(self) -> Sequence[tuple[Floats, Floats]]:
        """Seconds of the steps, and derivatives: as predicted, and where the GPU waits for the host with a fast one."""
        away = _AWAY * self._slower_host
        here, fast = step_gradients(self.deployment.timer, self._batches(), (0 * away, -away))
        waits = here[1][:, _HOST].sum(axis=1) > here[0] / 2
        return (here, fast) if self.deployment.config.async_scheduling and waits.any() else (here, here)

    @cached_property
    def _at_peak(self) -> tuple[Floats, Floats]:
        """Seconds of the steps at the peaks of GPU and links, without launches and host; and derivatives."""
        timer = self.deployment.timer
        moves = np.zeros(len(PARAMETERS))
        for at, name in enumerate(PARAMETERS):
            if name in SHARES and name != "coverage_exponent":
                moves[at] = -log(getattr(timer.efficiency, name))
            elif name.endswith("_s"):
                moves[at] = -inf
        return step_gradients(timer, self._batches(), (np.zeros_like(moves), moves))[1]

    @cached_property
    def _slower_host(self) -> Floats:
        """One standard deviation of the host's time at the most requests."""
        seqs = max((batch.decode_seqs + batch.prefill_seqs for batch in self._batches()), default=0)
        efficiency, gradient = self.deployment.timer.efficiency, np.zeros(len(PARAMETERS))
        gradient[_HOST] = efficiency.host_step_s, efficiency.host_seq_s * seqs
        return self._deviation(gradient / gradient.sum())

    def _deviation(self, gradient: Floats) -> Floats:
        """One standard deviation of what has this gradient: how the efficiencies move together with it."""
        moved: Floats = self.deployment.known.covariance @ gradient
        sd = sqrt(max(float(gradient @ moved), 0.0))
        return moved / sd if sd else moved


class UncertaintyOfReplay(Uncertainty):
    """Uncertainty from the steps of a replay, and from two more replays where the queue reacts."""

    _served: Replay

    def __init__(
        self, deployment: Deployment, load: Load, served: Replay, *, offline: bool = False, queue_reacts: bool = True
    ) -> None:
        """``served`` is the replay of ``load``, with its steps where they are at hand.

        Without ``queue_reacts`` everything is to first order, as in a search."""
        super().__init__(
            deployment, lonely=not offline and load.max_concurrency == 1, open_loop=not offline and load.open
        )
        self.load, self.offline = load, offline
        self._replays = self.open_loop and queue_reacts
        self._ends: dict[tuple[str, bool], dict[str, Outcome]] = {}  # one standard deviation away, by class
        self._served = served
        self._all: UncertaintyOfReplay | None = None  # of a class: that of all of them
        self._group = ""
        self._parts: dict[str, UncertaintyOfReplay] = {}

    def reacting(self) -> "UncertaintyOfReplay":
        """A copy that replays the queue of a slower engine, in an open loop."""
        made = copy(self)
        made._sds, made._parts, made._replays = {}, {}, self.open_loop
        if self._all:
            made._all = self._all.reacting()
        return made

    def among(self, group: str) -> "UncertaintyOfReplay":
        """Uncertainty of the figures of one class of the requests."""
        if group in self._parts:
            return self._parts[group]
        made = self._parts[group] = copy(self)
        made._sds, made._parts, made._all, made._group, made._served = {}, {}, self, group, self._served.of(group)
        for kept in ("_timeline", "_steps", "_slower_host", "_slower", "_outcome"):
            made.__dict__.pop(kept, None)
        return made

    def beside(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        shown = super().beside(figures)
        if not self._replays or self.load.recorded is not None:
            return shown
        # a busy server is no faster than an idle one, whose queue needs no guess
        lone = self.load.at_concurrency(1, _LONE_PROMPTS)
        served = self.deployment.replay(lone, keep_steps=True)
        idle, idle_ms = UncertaintyOfReplay(self.deployment, lone, served, queue_reacts=False), _outcome(served)
        for key in [key for key in figures if f"{key}_lo" in shown]:
            if (figure := Figure.of_key(key)) and figure.of in OF_A_REQUEST and (factors := idle.factors(key)):
                least_ms = 1e3 * idle_ms[f"median_{figure.of}"] * factors[0]
                shown[f"{key}_lo"] = max(shown[f"{key}_lo"], min(least_ms, shown[key]))
        return shown

    def _found_sd(self, figure: Figure, noise: float, above: bool) -> float:
        # the link to the host has no part in the steps
        copies = self.load.prefix_cache_hit_rate and self.deployment.config.kv_offloading_size
        link = self._move(figure, above, "link") if copies or self._served.host_tok.any() else 0.0
        first_order = super()._found_sd(figure, noise, above)
        if not self._replays:
            return hypot(first_order, link)
        along = float(self._gradient(figure) @ self._slower)
        rest = max(first_order**2 - along**2, noise**2)
        return sqrt(self._move(figure, above, "engine") ** 2 + link**2 + rest)

    def _move(self, figure: Figure, above: bool, slower: str) -> float:
        """Move of the figure's logarithm, up or down, where ``engine`` or ``link`` is slower or faster."""
        key = "duration" if figure.of in ("throughput", "latency") else f"{figure.statistic}_{figure.of}"
        move = log(self._end(slower, above != figure.inverse)[key] / self._outcome[key])
        return max(move if above != figure.inverse else -move, 0.0)

    @cached_property
    def _outcome(self) -> Outcome:
        return _outcome(self._served)

    def _end(self, what: str, slower: bool) -> Outcome:
        """Figures where ``what`` is one standard deviation slower, or faster. The replay itself is not kept."""
        every = self._all or self
        if (what, slower) not in every._ends:
            by = every._slower
            if what == "link":  # no run has tied what the link to the host reaches to anything else
                by = -self._deviation(np.array([float(name == "offload_share") for name in PARAMETERS]))
            moved = self.deployment.with_efficiencies_moved(by if slower else -by)
            served = moved.replay(self.load, offline=self.offline, keep_gaps=False)
            groups = {group: _outcome(served.of(group)) for group in served.groups}
            every._ends[what, slower] = {"": _outcome(served), **groups}
        return every._ends[what, slower][self._group]

    def _time(self, figure: Figure, steps: tuple[Floats, Floats]) -> tuple[float, Floats]:
        if figure.of == "latency":
            weighted: StepSum | None = self._timeline.every_step()
        elif figure.of == "throughput":
            weighted = self._timeline.duration(self._client)
        else:
            weighted = self._timeline.latency(figure.of, (figure.statistic,)).get(figure.statistic)
        if weighted is None:
            return 0.0, np.zeros(len(PARAMETERS))
        total_s, slope = weighted.fixed_s + float(weighted.weights @ steps[0]), weighted.weights @ steps[1]
        for name, times in weighted.delays.items():
            delay_s = times * getattr(self._client, name)
            total_s += delay_s
            slope[PARAMETERS.index(name)] += delay_s
        return total_s, slope

    @cached_property
    def _timeline(self) -> Timeline:
        if self._served.step_runs:
            return Timeline(self._served)
        served = self.deployment.replay(self.load.first(MOST_PROMPTS), offline=self.offline, keep_steps=True)
        return Timeline(served.of(self._group) if self._group else served)

    @cached_property
    def _client(self) -> Client:
        return Client() if self.offline else self.deployment.client

    def _batches(self) -> Sequence[Batch]:
        return self._timeline.batches

    @cached_property
    def _slower(self) -> Floats:
        """One standard deviation of the time of all steps: how the efficiencies move together with it."""
        seconds, derivative = self._steps[0]
        weights = self._timeline.every_step().weights
        return self._deviation(_relative(weights @ derivative, float(weights @ seconds)))


class UncertaintyOfSteps(Uncertainty):
    """Uncertainty from sums of the steps of a closed form: of ``batches``, weighted by figure."""

    def __init__(
        self, deployment: Deployment, batches: Sequence[Batch], sums: Mapping[str, Floats], *, lonely: bool = False
    ) -> None:
        """``sums``: for ``ttft``, ``tpot``, ``e2el`` and ``throughput`` (its time), the weights of the batches."""
        super().__init__(deployment, lonely=lonely, open_loop=False)
        self._sums, self._every = sums, batches

    def _batches(self) -> Sequence[Batch]:
        return self._every

    def _time(self, figure: Figure, steps: tuple[Floats, Floats]) -> tuple[float, Floats]:
        weights = self._sums[figure.of]
        return float(weights @ steps[0]), weights @ steps[1]


def _relative(slope: Floats, total: float) -> Floats:
    return slope / total if total else np.zeros_like(slope)


def _outcome(served: Replay) -> Outcome:
    figures = {"duration": served.duration_s if len(served.end_s) else 1.0}
    for of in OF_A_REQUEST:
        values_s = getattr(served, f"{of}_s")
        median_s, p99_s = np.percentile(values_s, [50, 99]) if len(values_s) else (1.0, 1.0)
        mean_s = values_s.mean() if len(values_s) else 1.0
        for statistic, value_s in (("mean", mean_s), ("median", median_s), ("p99", p99_s)):
            figures[f"{statistic}_{of}"] = max(float(value_s), 1e-9)
    return figures


def least_upper(deployment: Deployment, key: str, probability: float, *, open_loop: bool = False) -> float:
    """Lower bound of ``Uncertainty.upper``, whatever the load: what the noise alone asks for."""
    figure = Figure.of_key(key)
    scatters = (deployment.calibration or load_calibration()).scatters
    lonely = figure and scatter_of(scatters, figure, lonely=True)
    entries = [figure and scatter_of(scatters, figure, open_loop=open_loop), lonely]
    if probability <= 0.5:
        return LEAST_FACTOR
    return min((exp(_reach(one, 2 * probability - 1) * one.noise) for one in entries if one), default=1.0)


def scatter_of(
    scatters: Mapping[str, Scatter], figure: Figure, *, lonely: bool = False, open_loop: bool = False
) -> Scatter | None:
    """The entry of a file of fits for a figure; a request alone has no tail, and random arrivals scatter more."""
    if figure.of in ("throughput", "latency"):
        return scatters.get({"throughput": "output_throughput", "latency": "avg_latency_s"}[figure.of])
    name = f"{'mean' if lonely else figure.statistic}_{figure.of}_ms"
    special = scatters.get(f"poisson_{name}") if open_loop and figure.of == "ttft" else None
    return special or scatters.get(name)


def _reach(scatter: Scatter, level: float) -> float:
    """Standard deviations within which the share ``level`` of measurements lies."""
    deviations = _NORMAL.inv_cdf((1 + min(level, 0.9999)) / 2)
    return float(deviations * np.interp(deviations, _DEVIATIONS, _ratios(scatter)))


def _ratios(scatter: Scatter) -> Floats:
    """Reach over that of a normal distribution, at each of ``_DEVIATIONS``."""
    ratios = np.array(scatter.reach) / _DEVIATIONS[1:]
    return np.concatenate([ratios[:1], ratios])


@dataclass(frozen=True)
class Forecast:
    """A figure, the sensitivity of its logarithm, and the noise of a measurement.

    log (measured a / measured b) is normal. Its mean is log (a / b), its variance var(a) + var(b) - 2 cov(a, b) + the
    noise of each. Errors of efficiencies that both figures depend on cancel."""

    value: float
    spread: Spread | None = None  #: None: nothing is known of it
    noise: float = 0.0  #: standard deviation of the logarithm
    power: float = 1.0  #: of the uncertain figure in ``value``: -1 for its inverse, 2 for its square

    @classmethod
    def of(cls, value: float, doubt: Uncertainty, key: str, power: float = 1.0) -> "Forecast":
        return cls(value, doubt.spread(key), doubt.noise(key), power)

    def beats(self, other: "Forecast") -> float:
        """Probability that a measurement of this is larger than one of ``other``."""
        ratio, sd = log(self.value / other.value), hypot(self.power * self.noise, other.power * other.noise)
        if self.spread is not None and other.spread is not None:
            sd = hypot(self.spread.times(self.power).difference_sd(other.spread.times(other.power)), sd)
        return NormalDist().cdf(ratio / sd) if sd else (1 + (ratio > 0) - (ratio < 0)) / 2
