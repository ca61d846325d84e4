"""Other loads that the plan's server was measured at: what ``sweep.sh`` left, each beside a replay of its own.

``plan.json`` promises one load. The engine that it launches is replayed at each further one, with the fits that the
plan names; where the replay of the plan's own load is no longer what the plan says, that is remarked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from planner.check import redeploy
from planner.errors import InputError, PlannerError
from planner.local import SHIPPED, Local, local_for
from planner.plan import Plan
from planner.predict import Deployment, predict_serve
from planner.validate.compare import Line, compare_figures
from planner.validate.folder import Measured, read_number, read_result
from planner.workload import Workload

#: Results in a plan's folder that are of one server of the plan, beside that of its own load.
FURTHER = "sweep-*-{digest}.json"
METRICS = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")
SAME = 0.005  #: share by which the replay of the plan's own load may differ from the plan


@dataclass(frozen=True, slots=True)
class FurtherLoad:
    """One load, by the name that ``sweep.sh`` has for it, such as ``concurrency-8``."""

    load: str
    result_name: str
    lines: tuple[Line, ...]


def further_loads(measured: Measured) -> tuple[tuple[FurtherLoad, ...], tuple[str, ...]]:
    """What was measured at other loads, and remarks. Raises InputError for a result that is broken or incomplete."""
    plan = measured.plan
    paths = sorted((measured.directory / "results").glob(FURTHER.format(digest=plan.digest)))
    if not paths:
        return (), ()
    try:
        deployment = redeploy(plan, _fits_of(plan))
        found = tuple(_further(path, plan, deployment) for path in sorted(paths, key=_by_load))
        remarks = tuple(_remarks(plan, deployment))
    except InputError:
        raise
    except PlannerError as error:  # a model that is not known here, say
        return (), (f"{len(paths)} results of sweep.sh are not compared: {error.cause}",)
    return found, remarks


def _fits_of(plan: Plan) -> Local:
    named = Path(plan.calibration)
    return local_for(plan.calibration) if named.is_file() else SHIPPED


def _further(path: Path, plan: Plan, deployment: Deployment) -> FurtherLoad:
    result = read_result(path, plan)
    count, rate = int(read_number(path, result, "completed")), result.get("request_rate")
    limit = result.get("max_concurrency")
    load = replace(
        plan.workload.sent,
        num_prompts=count,
        max_concurrency=int(limit) if limit else None,
        request_rate=inf if rate in (None, "inf") else read_number(path, result, "request_rate"),
    )
    predicted = predict_serve(deployment, load, percentiles=(50, 99)).result
    lines = tuple(line for line in compare_figures(predicted, result) if line.metric in METRICS)
    return FurtherLoad(_name(path), path.name, lines)


def _name(path: Path) -> str:
    return path.stem.removeprefix("sweep-").rpartition("-")[0]


def _by_load(path: Path) -> tuple[str, float]:
    kind, _, load = _name(path).rpartition("-")
    return kind, float(load) if load.replace(".", "", 1).isdecimal() else inf


def _remarks(plan: Plan, deployment: Deployment) -> Iterator[str]:
    now = _replayed(deployment, plan.workload.sent)
    planned = plan.predicted.get("output_throughput")
    if isinstance(planned, int | float) and planned and abs(now / planned - 1) > SAME:
        yield (
            f"the loads of sweep.sh are predicted as of today: the plan's own would give {now:,.0f} output tokens/s, "
            f"plan.json says {planned:,.0f}"
        )


def _replayed(deployment: Deployment, load: Workload) -> float:
    return float(predict_serve(deployment, load, percentiles=(50, 99)).result["output_throughput"])
