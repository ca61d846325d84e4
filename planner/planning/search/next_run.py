"""The single run of a benchmark that narrows a decision most, and what it is expected to be worth.

A run tells the logarithm of a figure up to its noise. What is then left of the variance of the figure that binds::

    var(binds | run) = var(binds) - cov(run, binds)^2 / (var(run) + noise(run)^2)

With a deviation smaller by a factor f, confidence c takes what today takes the confidence Phi(f z(c)), as expected.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

from planner.planning.capacity import at_load, doubt_at, most_in_flight
from planner.planning.deployment import Deployment
from planner.planning.predict import THROUGHPUT, ServedLoad, estimate
from planner.planning.uncertainty import Uncertainty, UncertaintyOfReplay
from planner.timing import Spread
from planner.workload import Load

#: Figures of a run, without the throughput where that is the rate at which requests are sent.
LATENCIES = ("mean_tpot_ms", "mean_ttft_ms")
FIGURES = (*LATENCIES, "output_throughput")
SAME = 1.02  #: a run of the plan's own benchmark is taken where no other leaves a deviation smaller by this
WORTH = 0.98  #: factor on the deviation above which a run tells too little


@dataclass(frozen=True, slots=True)
class NextRun:
    """One run of ``vllm bench serve``."""

    workload: Load
    own: bool  #: the plan's own benchmark
    duration_s: float
    figure: str  #: of its result, that tells most
    factor: float  #: on the standard deviation of the bottleneck

    def confidence(self, asked: float) -> float:
        """At which today's answer is the one that is expected with ``asked`` after the run."""
        normal = NormalDist()
        return normal.cdf(normal.inv_cdf(asked) * self.factor)


def next_run(deployment: Deployment, load: ServedLoad) -> NextRun | None:
    """The run that narrows the bottleneck of ``load`` most, at its own load or another; None: none tells enough."""
    served = UncertaintyOfReplay(deployment, load.sent, load.replay, queue_reacts=False)
    worst = max(load.readings, key=lambda reading: reading.excess, default=None)
    key = "output_throughput" if worst is None or load.bound_by == THROUGHPUT else worst.slo.key
    of_class = worst.slo.group if worst and key == worst.slo.key else ""
    doubt = served.among(of_class) if of_class else served
    binds, noise = doubt.spread(key), doubt.noise(key)
    before, found = sqrt(binds.variance + noise**2), list[NextRun]()
    for sent, own, duration_s, figures, of_run in _runs(deployment, load, served) if before else ():
        for figure in figures:
            after = sqrt(left(binds, of_run.spread(figure), of_run.noise(figure)) + noise**2)
            found.append(NextRun(sent, own, duration_s, figure, after / before))
    best = min(found, key=lambda run: run.factor * (1.0 if run.own else SAME), default=None)
    return best if best and best.factor < WORTH else None


def left(binds: Spread, run: Spread, noise: float) -> float:
    """Variance of the logarithm of one figure once another was measured with ``noise``."""
    told = run.variance + noise**2
    return max(binds.variance - (binds.covariance(run) ** 2 / told if told else 0.0), 0.0)


def _runs(
    deployment: Deployment, load: ServedLoad, served: Uncertainty
) -> Iterator[tuple[Load, bool, float, tuple[str, ...], Uncertainty]]:
    """Each run, whether it is the plan's own, its seconds, its figures, and the doubt about these."""
    yield load.sent, True, load.replay.duration_s, LATENCIES if load.by == "rate" else FIGURES, served
    for concurrency in dict.fromkeys((1, most_in_flight(deployment))):
        sent = at_load(deployment, load.sent.as_drawn(), (), "concurrency", concurrency)
        ranks = deployment.config.data_parallel_size
        each = estimate(deployment, sent.input_len, sent.output_len, -(-concurrency // ranks), sent.prefix_len)
        duration_s = sent.num_prompts / concurrency * each.e2el_s
        yield sent, False, duration_s, FIGURES, doubt_at(deployment, sent, concurrency)
