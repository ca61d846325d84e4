"""Other loads that the plan's server was measured at: what ``sweep.sh`` left, each beside a replay of its own.

``plan.json`` promises one load. The engine that it launches is replayed at each further one, with the fits that the
plan names; where the replay of the plan's own load is no longer what the plan says, that is remarked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from planner.errors import InputError, PlannerError
from planner.evidence.causes import ComparedLine, Finding, compare_figures, compare_lines, findings
from planner.evidence.folder import Measured, read_folder, read_number, read_result
from planner.planning import SHIPPED, Deployment, Local, Plan, local_for, redeploy, simulate_serve
from planner.workload import Workload

#: Results in a plan's folder that are of one server of the plan, beside that of its own load.
FURTHER = "sweep-*-{digest}.json"
#: Metrics that are compared at other loads than the plan's own.
HEADLINE = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")
SAME = 0.005  #: share by which the replay of the plan's own load may differ from the plan


@dataclass(frozen=True, slots=True)
class FurtherLoad:
    """One load, by the name that ``sweep.sh`` has for it, such as ``concurrency-8``."""

    load: str
    result_name: str
    lines: tuple[ComparedLine, ...]


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
    predicted = simulate_serve(deployment, load, percentiles=(50, 99)).result
    lines = tuple(line for line in compare_figures(predicted, result) if line.metric in HEADLINE)
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
    return float(simulate_serve(deployment, load, percentiles=(50, 99)).result["output_throughput"])


# --- The whole comparison of one folder


@dataclass(frozen=True)
class Validation:
    """Predicted beside measured, and what to make of it."""

    measured: Measured
    lines: tuple[ComparedLine, ...]
    findings: tuple[Finding, ...]
    further: tuple[FurtherLoad, ...] = ()  #: other loads of the same server
    notes: tuple[str, ...] = ()

    @property
    def every_line(self) -> tuple[ComparedLine, ...]:
        """Those of the plan's own load, and those of further ones."""
        return (*self.lines, *(line for load in self.further for line in load.lines))

    @property
    def inside(self) -> bool:
        """Whether every measurement lies within its bounds."""
        return all(map(_inside, self.every_line))

    @property
    def as_planned(self) -> bool:
        """Whether the log says that the plan ran: its version of vLLM with its settings. Without a log it is taken so.

        What is inside of another version or of other settings is inside by chance, and proves nothing of the plan.
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
            "lines": [_line(line) for line in self.lines],
            "findings": [{"cause": f.cause, "evidence": f.evidence, "next_step": f.next_step} for f in self.findings],
            "accuracy": [
                {"task": a.task, "metric": a.metric, "value": a.value, "stderr": a.stderr}
                for a in self.measured.accuracy
            ],
            "further": [
                {"load": one.load, "result": f"results/{one.result_name}", "lines": [_line(line) for line in one.lines]}
                for one in self.further
            ],
            "notes": list(self.notes),
        }


def validate(directory: Path) -> Validation:
    """Compare what the plan in ``directory`` promised with what its scripts measured.

    Raises InputError where there is nothing to compare with; see ``planner.validate.read_folder``.
    """
    measured = read_folder(directory)
    lines = compare_lines(measured)
    further, remarks = further_loads(measured)
    found = findings(measured, lines)
    if all(map(_inside, lines)):  # then the first of the others that is outside has to be explained
        for one in [load for load in further if not all(map(_inside, load.lines))][:1]:
            new = (finding for finding in findings(measured, one.lines) if finding not in found)
            found += tuple(replace(finding, cause=f"at {one.load}: {finding.cause}") for finding in new)
    return Validation(measured, lines, found, further, (*measured.notes, *remarks))


def _inside(line: ComparedLine) -> bool:
    return line.verdict == "inside"


def _line(line: ComparedLine) -> dict[str, Any]:
    return {
        "metric": line.metric,
        "unit": line.unit,
        "predicted": line.predicted,
        "lo": line.lo,
        "hi": line.hi,
        "basis": line.basis,
        "measured": line.measured,
        "error": line.error,
        "verdict": line.verdict,
    }
