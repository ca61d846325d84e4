"""The offline measurements of a workflow's folder: ``points.json`` and the result of each of its points."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.evidence.results import parse_result, read_number, read_text
from planner.units import LEAST_FIGURE, MOST_FIGURE


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """One measurement that the scripts make, with what is predicted and published of it, as in the result file."""

    name: str
    key: str  #: of the result file: ``avg_latency`` in seconds, else tokens per second
    predicted: float | None
    lo: float | None
    hi: float | None
    published: float | None


def read_offline(directory: Path) -> list[tuple[PlannedPoint, float]]:
    """The points that were measured, each with its figure. Raises InputError for a file that is broken."""
    table = directory / "points.json"
    known = parse_result(table, read_text(table))
    digest, points = known.get("digest"), known.get("points")
    if not isinstance(digest, str) or not isinstance(points, list) or not all(map(_is_point, points)):
        raise InputError(f"{table} is broken: it is no list of measurements", hint="write the folder again")
    measured = []
    for point in (PlannedPoint(**one) for one in points):
        path = directory / "results" / f"{point.name}-{digest}.json"
        if path.is_file():
            result = parse_result(path, read_text(path))
            measured.append((point, read_number(path, result, point.key, positive=True)))
    return measured


def _is_point(given: Any) -> bool:
    if not isinstance(given, dict) or given.keys() != {one.name for one in fields(PlannedPoint)}:
        return False
    name, key, *figures = (given[one.name] for one in fields(PlannedPoint))
    return all(isinstance(text, str) for text in (name, key)) and all(
        figure is None or (type(figure) in (int, float) and (not figure or LEAST_FIGURE <= figure <= MOST_FIGURE))
        for figure in figures
    )
