"""A chart as data: what is drawn, in which units, and the same in a table for those who do not see it.

Colours are places in ``palette.SERIES``. Nothing is told by colour alone: series differ in marker and dash too, bars
carry their text.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

Style = Literal["solid", "dashed", "points"]


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one name, joined unless they are ``points``. ``lo`` and ``hi`` bound y, ``x_lo`` and ``x_hi`` x."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    color: int = 0
    style: Style = "solid"
    marker: str = "o"  #: as matplotlib names it
    lo: tuple[float, ...] = ()
    hi: tuple[float, ...] = ()
    x_lo: tuple[float, ...] = ()
    x_hi: tuple[float, ...] = ()
    strong: bool = False  #: stands out: the plan itself, a measurement


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across the panel: upright at ``x``, level at ``y``, or both coordinates equal (``diagonal``)."""

    label: str
    x: float | None = None
    y: float | None = None
    diagonal: bool = False
    spread: float = 0.0  #: of a diagonal: share on either side that is shaded


@dataclass(frozen=True, slots=True)
class LinePanel:
    """Series over common axes."""

    x_label: str
    y_label: str
    series: tuple[Series, ...]
    title: str = ""
    x_log: bool = False
    y_log: bool = False
    marks: tuple[Mark, ...] = ()
    equal: bool = False  #: both axes have the same limits


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a bar."""

    value: float
    color: int | None  #: None: what is left over
    name: str = ""  #: in the legend; empty where the text says it
    text: str = ""  #: inside the piece, where there is room


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of pieces, with words before and after it."""

    label: str
    segments: tuple[Segment, ...]
    note: str = ""

    @property
    def total(self) -> float:
        """Sum of the pieces."""
        return sum(segment.value for segment in self.segments)


@dataclass(frozen=True, slots=True)
class BarPanel:
    """Bars that lie over one another and share their scale."""

    x_label: str
    bars: tuple[Bar, ...]
    title: str = ""
    labels_above: bool = False  #: where they are long and the bars few


@dataclass(frozen=True, slots=True)
class Table:
    """The same figures as text. The first column names the row."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn as one picture."""

    name: str
    title: str
    description: str  #: one or two sentences: what to read from it
    panels: tuple[LinePanel, ...] | tuple[BarPanel, ...]
    table: Table


def printable(value: Any) -> Any:
    """A chart, or a part of one, without letters that no drawing can hold: control characters, halves of pairs."""
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() or letter in "\n\u00a0" else "\ufffd" for letter in value)
    if isinstance(value, tuple):
        return tuple(map(printable, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: printable(getattr(value, field.name)) for field in fields(value)})
    return value
