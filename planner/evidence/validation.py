"""What a plan's folder measured beside its prediction: the plan's own load, and other loads that ``sweep.sh`` sent.

``plan.json`` predicts one load. For each further load the planned engine is replayed again, with the fits that the plan
names. A note says where this replay no longer gives what the plan says for its own load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from planner.errors import InputError, PlannerError
from planner.evidence.causes import Finding, find_causes
from planner.evidence.compared import ComparedLine, compare_plan, compare_results
from planner.evidence.folder import MeasuredPlan, read_measured, read_result
from planner.evidence.results import read_number
from planner.planning import SHIPPED, Deployment, Plan, local_for, redeploy, simulate_serve
from planner.workload import Load

#: Metrics that are compared at other loads than the plan's own.
SWEEP_METRICS = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")
SAME = 0.005  #: share by which the replay of the plan's own load may differ from the plan
_LINE_KEYS = ("metric", "unit", "predicted", "lo", "hi", "basis", "measured", "error", "verdict")


@dataclass(frozen=True, slots=True)
class FurtherLoad:
    """One load, by the name that ``sweep.sh`` has for it, such as ``concurrency-8``; or one class among others."""

    load: str
    result_name: str
    lines: tuple[ComparedLine, ...]


@dataclass(frozen=True)
class Validation:
    """Predicted beside measured, and what to make of it."""

    measured: MeasuredPlan
    lines: tuple[ComparedLine, ...]
    findings: tuple[Finding, ...]
    further: tuple[FurtherLoad, ...] = ()  #: other loads of the same server
    notes: tuple[str, ...] = ()

    @property
    def every_line(self) -> tuple[ComparedLine, ...]:
        """Lines of the plan's own load, then those of further loads."""
        return (*self.lines, *(line for load in self.further for line in load.lines))

    @property
    def inside(self) -> bool:
        """Whether every measurement lies within its bounds."""
        return all(line.is_inside for line in self.every_line)

    @property
    def as_planned(self) -> bool:
        """Whether the log shows the plan's version of vLLM and its settings. Without a log this is assumed.

        With another version or other settings, a measurement within its bounds says nothing about the plan.
        """
        return not any(finding.not_the_plan for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """``planner validate --format json``."""
        file, plan = self.measured.file, self.measured.plan
        return {
            "inside": self.inside,
            "as_planned": self.as_planned,
            "digest": plan.digest,
            "goal": file.goal,
            "gpu": plan.gpu,
            "num_gpus": plan.num_gpus,
            "model": plan.model,
            "engine_version": plan.engine_version,
            "calibration": plan.calibration,
            "result": f"results/{self.measured.result_name}",
            "lines": _line_objects(self.lines),
            "findings": [{"cause": f.cause, "evidence": f.evidence, "next_step": f.next_step} for f in self.findings],
            "accuracy": [asdict(accuracy) for accuracy in self.measured.accuracy],
            "further": [
                {"load": one.load, "result": f"results/{one.result_name}", "lines": _line_objects(one.lines)}
                for one in self.further
            ],
            "notes": list(self.notes),
        }


def _line_objects(lines: Iterable[ComparedLine]) -> list[dict[str, Any]]:
    return [{key: getattr(line, key) for key in _LINE_KEYS} for line in lines]


def validate(directory: Path, result_file: Path | None = None) -> Validation:
    """Compare what the plan in ``directory`` predicts with what its scripts measured, or with a result of another tool.

    Raises InputError where there is nothing to compare; see ``read_measured``.
    """
    measured = read_measured(directory, result_file)
    lines = compare_plan(measured)
    swept, remarks = _compare_sweep(measured)
    further = (*_compare_classes(measured), *swept)
    causes = find_causes(measured, lines)
    missed = [load for load in further if not all(line.is_inside for line in load.lines)]
    if missed and all(line.is_inside for line in lines):  # then the first other load that missed has to be explained
        new = (finding for finding in find_causes(measured, missed[0].lines) if finding not in causes)
        causes += tuple(replace(finding, cause=f"at {missed[0].load}: {finding.cause}") for finding in new)
    return Validation(measured, lines, causes, further, (*measured.notes, *remarks))


def _compare_classes(measured: MeasuredPlan) -> Iterator[FurtherLoad]:
    """Each class of requests beside what is predicted for it among the others."""
    plan = measured.plan
    for one, name, result in zip(plan.classes, plan.result_names, measured.of_classes, strict=False):
        yield FurtherLoad(one.name, name, tuple(compare_results(one.predicted, result)))


# --- other loads ---------------------------------------------------------------------------------------------------


def find_sweep_results(directory: Path, plan: Plan) -> list[Path]:
    """Results of ``sweep.sh`` in a plan's folder: one server of the plan at other loads."""
    return sorted((directory / "results").glob(f"sweep-*-{plan.digest}.json"))


def _compare_sweep(measured: MeasuredPlan) -> tuple[tuple[FurtherLoad, ...], tuple[str, ...]]:
    """Each further load beside its replay, and notes. Raises InputError for a result that is broken or incomplete."""
    plan = measured.plan
    paths = find_sweep_results(measured.directory, plan)
    if not paths:
        return (), ()
    try:
        named = Path(plan.calibration)
        deployment = redeploy(plan, local_for(plan.calibration) if named.is_file() else SHIPPED)
        found = tuple(_compare_load(path, plan, deployment) for path in sorted(paths, key=_by_load))
        return found, tuple(_notes(plan, deployment))
    except InputError:
        raise
    except PlannerError as error:  # such as a model that is not known here
        return (), (f"{len(paths)} results of sweep.sh are not compared: {error.cause}",)


def _compare_load(path: Path, plan: Plan, deployment: Deployment) -> FurtherLoad:
    result = read_result(path, plan)
    limit, rate = result.get("max_concurrency"), result.get("request_rate")
    load = replace(
        plan.workload.sent,
        num_prompts=int(read_number(path, result, "completed")),
        max_concurrency=int(limit) if limit else None,
        request_rate=inf if rate in (None, "inf") else read_number(path, result, "request_rate"),
    )
    lines = tuple(line for line in compare_results(_replay(deployment, load), result) if line.metric in SWEEP_METRICS)
    return FurtherLoad(_load_name(path), path.name, lines)


def _replay(deployment: Deployment, load: Load) -> dict[str, Any]:
    return simulate_serve(deployment, load, percentiles=(50, 99)).result


def _load_name(path: Path) -> str:
    return path.stem.removeprefix("sweep-").rpartition("-")[0]


def _by_load(path: Path) -> tuple[str, float]:
    kind, _, load = _load_name(path).rpartition("-")
    return kind, float(load) if load.replace(".", "", 1).isdecimal() else inf


def _notes(plan: Plan, deployment: Deployment) -> Iterator[str]:
    now = float(_replay(deployment, plan.workload.sent)["output_throughput"])
    planned = plan.predicted.get("output_throughput")
    if isinstance(planned, int | float) and planned and abs(now / planned - 1) > SAME:
        yield (
            f"the loads of sweep.sh are predicted with today's fits, which give {now:,.0f} output tokens/s for the "
            f"plan's own load; plan.json says {planned:,.0f}"
        )
