"""The whole comparison of one folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.validate.causes import Finding, findings
from planner.validate.compare import Line, compare
from planner.validate.folder import Measured, read_folder
from planner.validate.further import FurtherLoad, further_loads


@dataclass(frozen=True)
class Validation:
    """Predicted beside measured, and what to make of it."""

    measured: Measured
    lines: tuple[Line, ...]
    findings: tuple[Finding, ...]
    further: tuple[FurtherLoad, ...] = ()  #: other loads of the same server
    notes: tuple[str, ...] = ()

    @property
    def every_line(self) -> tuple[Line, ...]:
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
    lines = compare(measured)
    further, remarks = further_loads(measured)
    found = findings(measured, lines)
    if all(map(_inside, lines)):  # then the first of the others that is outside has to be explained
        for one in [load for load in further if not all(map(_inside, load.lines))][:1]:
            new = (finding for finding in findings(measured, one.lines) if finding not in found)
            found += tuple(replace(finding, cause=f"at {one.load}: {finding.cause}") for finding in new)
    return Validation(measured, lines, found, further, (*measured.notes, *remarks))


def _inside(line: Line) -> bool:
    return line.verdict == "inside"


def _line(line: Line) -> dict[str, Any]:
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
