"""A chart as data: series or bars, their units, and a table of the same figures for readers who do not see it.

A colour is a place in ``SERIES``. No chart relies on colour alone: series also differ in marker and dash, and bars have
text.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    marker: str = "o"  #: o circle, s square, D diamond, ^ and v triangles, P plus
    lo: tuple[float, ...] = ()
    hi: tuple[float, ...] = ()
    x_lo: tuple[float, ...] = ()
    x_hi: tuple[float, ...] = ()
    strong: bool = False  #: drawn larger: the plan itself, a measurement


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
    """Series over common axes, each linear or logarithmic."""

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
    """A part of a bar: its length, colour and words."""

    value: float
    color: int | None  #: None: unused
    name: str = ""  #: in the legend; empty where the text is enough
    text: str = ""  #: inside the piece, if it is wide enough


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of pieces, with words before and after it."""

    label: str
    segments: tuple[Segment, ...]
    note: str = ""

    @property
    def total(self) -> float:
        """The length of all pieces together."""
        return sum(segment.value for segment in self.segments)


@dataclass(frozen=True, slots=True)
class BarPanel:
    """Bars one above the other, on one scale."""

    x_label: str
    bars: tuple[Bar, ...]
    title: str = ""
    labels_above: bool = False  #: for long labels and few bars


@dataclass(frozen=True, slots=True)
class Table:
    """The figures as text. The first column names the row."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of one or several panels, with its words."""

    name: str
    title: str
    description: str  #: what to read from it, in one or two sentences
    panels: tuple[LinePanel, ...] | tuple[BarPanel, ...]
    table: Table


def printable(value: Any) -> Any:
    """Replace what cannot be drawn in a chart, or in a part of one: control characters, half surrogate pairs."""
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() or letter in "\n\u00a0" else "\ufffd" for letter in value)
    if isinstance(value, tuple):
        return tuple(map(printable, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: printable(getattr(value, field.name)) for field in fields(value)})
    return value


# --- Colours for light and for dark surroundings
#
# Text has a contrast of at least 4.5 to 1 on its ground, lines and areas at least 3 to 1 (WCAG 2.2, level AA), and the
# series differ for people who do not see red or green; ``tests/output/test_charts.py`` computes all of it. The hues are
# those of Okabe and Ito's palette for colour-blind readers ("Color Universal Design", 2008), darker in the light theme
# and lighter in the dark one.

Theme = Literal["light", "dark"]

#: Names in style sheets, with a colour for each theme. No two light colours are equal: a drawing's light colours are
#: replaced by their names.
COLORS: Mapping[str, tuple[str, str]] = {
    "ground": ("#ffffff", "#14171c"),  # of the page and of charts
    "raised": ("#f5f6f8", "#1d2128"),  # of what lies on it: code, notes
    "ink": ("#1c2128", "#e8eaed"),
    "muted": ("#5a6472", "#a2abb8"),  # of text that steps back
    "line": ("#d9dde3", "#343b46"),  # of rules and grids, which carry nothing
    "accent": ("#0b62a8", "#7db9ee"),  # of links and of what has the focus
    "on": ("#fffffe", "#101318"),  # of text on an area
    "c0": ("#0a5fb0", "#5aa9e6"),  # blue
    "c1": ("#bf4d00", "#f08a45"),  # vermilion
    "c2": ("#007d5c", "#27b88d"),  # bluish green
    "c3": ("#b04a9a", "#d074bb"),  # reddish purple
    "c4": ("#4d3f00", "#f4d866"),  # yellow
    "c5": ("#3a4250", "#cfd6e0"),  # grey
}
SERIES = ("c0", "c1", "c2", "c3", "c4", "c5")


def color(name: str, theme: Theme = "light") -> str:
    """The colour of that name, as ``#rrggbb``."""
    return COLORS[name][0 if theme == "light" else 1]


def style_sheet(selector: str = ":root") -> str:
    """The colours as variables (``--ink: #1c2128; ...``), of the theme that the reader's system prefers."""
    light, dark = (" ".join(f"--{name}: {both[at]};" for name, both in COLORS.items()) for at in (0, 1))
    return (
        f"{selector} {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ {selector} {{ {dark} }} }}\n"
    )
