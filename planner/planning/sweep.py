"""A plan's server at other loads: its replay, repeated below and above its own load."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planner.errors import PlannerError
from planner.planning import defaults
from planner.planning.calibration import SHIPPED, Local
from planner.planning.defaults import BELOW, BEYOND, SAME_REPLAY
from planner.planning.deployment import Deployment
from planner.planning.plan import Plan, PlannedTarget
from planner.planning.predict import Prediction, Reading
from planner.planning.serving import redeploy
from planner.timing import StepBreakdown
from planner.workload import Load, Slo


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """The keys of ``vllm bench serve`` at one load, with their intervals, and the two rates that plans compare by."""

    load: float  #: requests in flight, or requests per second
    figures: Mapping[str, Any]
    planned: bool = False  #: the load of the plan

    @classmethod
    def of(cls, point: Prediction, readings: Iterable[Reading | PlannedTarget], *, planned: bool = True) -> "LoadPoint":
        """The figures of targets are those of ``readings``, which leave out the opening burst."""
        counted = {one.slo.key: one.predicted_ms for one in readings}
        figures = {**point.result, **point.with_intervals({**point.rates, **counted})}
        return cls(point.load.value, figures, planned)


@dataclass(frozen=True)
class Sweep:
    """One server at several loads, lowest first; the average steps at the plan's own; or why there is nothing."""

    by: str = "concurrency"  #: or ``rate``
    points: tuple[LoadPoint, ...] = ()
    slos: tuple[Slo, ...] = ()  #: targets of all requests
    steps: Mapping[str, StepBreakdown] = field(default_factory=dict)  #: decode step, prefill step
    evidence: str = ""  #: the note of ``Deployment.evidence``
    missing: str = ""
    notes: tuple[str, ...] = ()


def sweep_loads(plan: Plan, local: Local = SHIPPED) -> Sweep:
    """Replay ``plan`` at loads around its own. Never raises for a plan that cannot be: ``missing`` says why."""
    by, points = "rate" if plan.workload.request_rate else "concurrency", list[LoadPoint]()
    targets = [one for one in plan.targets if not one.of_class]
    slos = tuple(one.slo for one in targets)
    percentiles = sorted({*defaults.PERCENTILES, *(slo.percentile or 50 for slo in slos)})
    try:
        load, deployment = plan.load, redeploy(plan, local)
        planned = Prediction.of(deployment, load, percentiles=percentiles)
        for sent in _loads(load, by):
            point = planned if sent is load else Prediction.of(deployment, sent, percentiles=percentiles)
            readings = targets if sent is load else point.readings(slos, defaults.CONFIDENCE)
            points.append(LoadPoint.of(point, readings, planned=sent is load))
    except PlannerError as error:
        return Sweep(missing=f"{error.cause}; {error.hint}")
    notes, steps = _notes(plan, deployment, planned.figures), deployment.typical_steps(planned.replay)
    return Sweep(by, tuple(points), slos, steps, deployment.evidence.note, notes=tuple(notes))


def _loads(workload: Load, by: str) -> Iterator[Load]:
    """The load of the plan among smaller and larger ones, the smallest first."""
    if by == "rate":
        for share in (*BELOW, 1.0, *BEYOND):
            paced = replace(workload.at_rate(workload.request_rate * share), max_concurrency=workload.max_concurrency)
            yield workload if share == 1 else paced
        return
    planned = workload.max_concurrency or workload.num_prompts
    below = [2**power for power in range(planned.bit_length()) if 2**power < planned]
    for places in sorted({*below[-8:], planned, *(round(planned * share) for share in BEYOND)}):
        steady = max(defaults.PROMPTS_PER_SLOT * places, defaults.LEAST_SWEEP_PROMPTS)
        prompts = min(steady, max(defaults.MOST_SWEEP_PROMPTS, places))
        same = places == workload.max_concurrency
        yield workload if same else replace(workload, max_concurrency=places, num_prompts=prompts)


def _notes(plan: Plan, deployment: Deployment, replayed: Mapping[str, Any]) -> Iterator[str]:
    planned, now = plan.predicted.get("output_throughput"), replayed["output_throughput"]
    if isinstance(planned, int | float) and planned > 0 and abs(now / planned - 1) > SAME_REPLAY:
        yield (
            f"a replay of the plan's own load gives {now:,.0f} output tokens/s, plan.json says {planned:,.0f}: "
            "the plan was made by another version or calibration of the planner, or with settings that its command "
            "line does not show"
        )
    if deployment.calibrated_by != plan.calibration:
        yield f"plan.json was predicted with calibration {plan.calibration}, the curves with {deployment.calibrated_by}"
