"""Charts as SVG: colours and fonts are those of the reader's system, and no other file is needed. A few milliseconds.

One unit is one CSS pixel at full size. Panels are side by side while each has ``PANEL_WIDTH``. Words stay words, and
colours have names (``var(--ink)``), so that a drawing follows the reader's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil, floor, isfinite, log10
from typing import Any, Literal
from xml.etree.ElementTree import Element, SubElement, register_namespace, tostring

from planner.output.charts.figure import (
    SERIES,
    Bar,
    BarPanel,
    Chart,
    LinePanel,
    Mark,
    Segment,
    Series,
    printable,
    style_sheet,
)
from planner.units import LEAST_FIGURE

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"
_SVG = "http://www.w3.org/2000/svg"
CHART_WIDTH, NARROW = 720, 340  #: width of a chart in pixels; on a phone
PANEL_WIDTH, EQUAL_WIDTH = 220, 320  #: least width of a panel; with equal axes
LINE_HEIGHT, SINGLE_HEIGHT = 230, 400  #: height of a panel of lines, among several and alone
BAR, BAR_ABOVE = 22, 50  #: height of a bar; with its label above
AXIS_HEIGHT, LEGEND_HEIGHT, TITLE_HEIGHT = 46, 19, 26
GAP = 12  #: between panels
LETTER = 0.58  #: width of a letter over the size of the font; digits and capitals of most fonts have that
DASHES = {"solid": "", "dashed": "4 3", "points": ""}
THIN = "2 3"
Anchor = Literal["start", "middle", "end"]


def svg(chart: Chart, width: int | None = None, *, part_of: str = "") -> str:
    """An SVG file with style sheet and title, or with ``part_of`` the element of that id for an HTML page."""
    chart, width, alone = printable(chart), width or CHART_WIDTH, not part_of
    register_namespace("", _SVG)
    key = f"{part_of or chart.name}-{width}"
    root = Element(f"{{{_SVG}}}svg")
    for name, words in (("title", chart.title), ("desc", chart.description)):
        SubElement(root, f"{{{_SVG}}}{name}", id=f"{key}-{name}").text = words
    if alone:
        sheet = SubElement(root, f"{{{_SVG}}}style")
        sheet.text = f"{style_sheet('svg')}svg {{ background: var(--ground); }}"
    height = _Drawing(root, key).chart(chart, width, titled=alone)
    root.attrib = {
        "viewBox": f"0 0 {width} {height:g}",
        "role": "img",
        "aria-labelledby": f"{key}-title {key}-desc",
        "class": "chart",
        "style": f"width: 100%; max-width: {width}px; height: auto; display: block",
    }
    text = tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n' if alone else text.replace(f' xmlns="{_SVG}"', "", 1)


# --- scales ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """A map of values from ``low`` to ``high`` to pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Pixels; what a logarithmic axis cannot show lies on its lower end."""
        low, high, here = self.low, self.high, max(value, self.low) if self.log else value
        share = (log10(here) - log10(low)) / (log10(high) - log10(low)) if self.log else (here - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers; at a logarithmic axis of a decade or more 1, 2 and 5 of each, fewer of many."""
        return (self._decades(most) if self.log and self.high > 5 * self.low else []) or self._steps(most)

    def _decades(self, most: int) -> list[float]:
        decades = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        found: list[float] = []
        for heads in ((1, 2, 5), (1, 3), (1,)):
            found = [head * 10.0**at for at in decades for head in heads if self.low <= head * 10.0**at <= self.high]
            if len(found) <= most + 2:
                break
        return found[:: max(ceil(len(found) / (most + 2)), 1)]

    def _steps(self, most: int) -> list[float]:
        rough = (self.high - self.low) / most
        size = 10.0 ** floor(log10(rough))
        step = next(size * head for head in (1, 2, 2.5, 5, 10) if size * head >= rough * 0.999)
        return [step * at for at in range(ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9) + 1)]


def _limits(
    values: Sequence[float], *, log: bool, from_zero: bool = False, margin: float = 0.04
) -> tuple[float, float]:
    """The ends of an axis, a little beyond the values."""
    shown = [value for value in values if isfinite(value) and (value >= LEAST_FIGURE or not log)] or [1.0]
    low, high = min(shown), max(shown)
    if log:
        room = max((high / low) ** margin, 1.08)
        return low / room, high * room
    if from_zero:
        return min(low, 0.0), max(high * (1 + margin), low + 1e-9, 1e-9)
    room = (high - low) * margin or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _number(value: float) -> str:
    return f"{value:,.10g}" if abs(value) >= 1 or not value else f"{value:.3g}"


# --- drawing ---------------------------------------------------------------------------------------------------------


class _Drawing:
    """Draws the elements of a chart below one root."""

    def __init__(self, root: Element, key: str) -> None:
        self.root, self.key, self.clips = root, key, 0

    def chart(self, chart: Chart, width: int, *, titled: bool) -> float:
        """Draw all of it; gives the height."""
        panels: Sequence[LinePanel | BarPanel] = chart.panels
        top = 0.0
        if titled:
            self.text(2, 17, chart.title, size=13, ink="ink", bold=True)
            top = TITLE_HEIGHT
        top = self.legend(_legend_entries(chart), width, top)
        least = max(EQUAL_WIDTH if isinstance(one, LinePanel) and one.equal else PANEL_WIDTH for one in panels)
        rows = -(-len(panels) // max(1, width // least))
        columns = -(-len(panels) // rows)
        each = (width - GAP * (columns - 1)) / columns
        for row in range(rows):
            shown = panels[row * columns : (row + 1) * columns]
            height = max(_height(panel, each, alone=len(panels) == 1) for panel in shown)
            for at, panel in enumerate(shown):
                box = (at * (each + GAP), top, each, height)
                if isinstance(panel, LinePanel):
                    self.lines(panel, *box)
                else:
                    self.bars(panel, *box)
            top += height
        return ceil(top)

    def path(self, d: str, into: Element | None = None, **style: Any) -> None:
        """A path; the style has underscores for dashes."""
        parent = self.root if into is None else into
        words = "; ".join(f"{name.replace('_', '-')}: {value}" for name, value in style.items() if value != "")
        SubElement(parent, f"{{{_SVG}}}path", d=d, style=words)

    def text(
        self, x: float, y: float, words: str, *, size: float = 11, ink: str = "muted", anchor: Anchor = "start",
        bold: bool = False, upright: bool = False,
    ) -> None:  # fmt: skip
        """Words with their baseline at ``y``; ``upright`` turns them to the left."""
        weight = " bold" if bold else ""
        for at, line in enumerate(words.split("\n")):
            place = {"x": f"{x:g}", "y": f"{y + 16 * at:g}"}
            if upright:
                place["transform"] = f"rotate(-90 {x:g} {y:g})"
            style = f"font:{weight} {size:g}px {FONT}; text-anchor: {anchor}; fill: var(--{ink})"
            SubElement(self.root, f"{{{_SVG}}}text", place, style=style).text = line

    def clipped(self, x: float, y: float, width: float, height: float) -> Element:
        """A group of which nothing shows beyond a rectangle."""
        self.clips += 1
        name = f"{self.key}-clip{self.clips}"
        clip = SubElement(SubElement(self.root, f"{{{_SVG}}}defs"), f"{{{_SVG}}}clipPath", id=name)
        box = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{height:g}"}
        SubElement(clip, f"{{{_SVG}}}rect", box)
        return SubElement(self.root, f"{{{_SVG}}}g", {"clip-path": f"url(#{name})"})

    def legend(self, entries: Mapping[str, Series | Segment | Mark], width: int, top: float) -> float:
        """Names in columns; gives where the panels begin."""
        if not entries:
            return top
        columns = max(1, min(len(entries), int(width // (max(map(len, entries)) * 7 + 40))))
        each = width / columns if columns * (max(map(len, entries)) * 7 + 40) > width * 0.8 else None
        x, row = 2.0, 0
        for at, (name, what) in enumerate(entries.items()):
            if at and at % columns == 0:
                x, row = 2.0, row + 1
            y = top + row * LEGEND_HEIGHT + 10
            self.swatch(what, x, y)
            self.text(x + 26, y + 4, name, ink="ink")
            x += each or len(name) * 7 + 46
        return top + (row + 1) * LEGEND_HEIGHT + 6

    def swatch(self, what: Series | Segment | Mark, x: float, y: float) -> None:
        if isinstance(what, Segment):
            self.path(_box(x, y - 5, 18, 10), **_paint(what))
            return
        line: dict[str, Any] = {"stroke_width": 1.8, "fill": "none"}
        if isinstance(what, Mark):
            self.path(f"M {x:g} {y:g} L {x + 18:g} {y:g}", stroke="var(--muted)", stroke_dasharray=THIN, **line)
            return
        hue = "var(--muted)" if what.strong else _hue(what.color)
        if what.style != "points":
            dash = DASHES[what.style]
            self.path(f"M {x:g} {y:g} L {x + 18:g} {y:g}", stroke=hue, stroke_dasharray=dash, **line)
        self.path(_marker(what.marker, x + 9, y, 4 if what.strong else 2.6), fill=hue)

    # --- panels of lines

    def lines(self, panel: LinePanel, left: float, top: float, width: float, height: float) -> None:
        x_scale, y_scale = _scales(panel, left, top, width, height)
        self.dress(panel, x_scale, y_scale, left, top)
        (x0, x1), (y1, y0) = (x_scale.start, x_scale.end), (y_scale.start, y_scale.end)
        inside = self.clipped(x0 - 6, y0 - 6, x1 - x0 + 12, y1 - y0 + 12)
        for one in panel.series:
            self.series(inside, one, x_scale, y_scale)
        for mark in panel.marks:
            self.mark(inside, mark, x_scale, y_scale)

    def dress(self, panel: LinePanel, x_scale: Scale, y_scale: Scale, left: float, top: float) -> None:
        """Draw thin level lines, quiet numbers, and the labels of the axes."""
        (x0, x1), (y1, y0) = (x_scale.start, x_scale.end), (y_scale.start, y_scale.end)
        if panel.title:
            self.text(x0, top + 16, panel.title, size=11.5, ink="ink", bold=True)
        for value in y_scale.ticks():
            y = y_scale.at(value)
            self.path(f"M {x0:g} {y:g} L {x1:g} {y:g}", stroke="var(--line)", stroke_width=0.8)
            self.text(x0 - 6, y + 4, _number(value), size=10.5, anchor="end")
        ticks = x_scale.ticks(max(3, int((x1 - x0) // 44)))
        for value in ticks:
            self.text(x_scale.at(value), y1 + 16, _number(value), size=10.5, anchor="middle")
        self.path(f"M {x0:g} {y1:g} L {x1:g} {y1:g}", stroke="var(--muted)", stroke_width=0.8)
        self.text((x0 + x1) / 2, y1 + 34, panel.x_label, size=10.5, anchor="middle")
        self.text(left + 11, (y0 + y1) / 2, panel.y_label, size=10.5, anchor="middle", upright=True)

    def series(self, inside: Element, one: Series, x_scale: Scale, y_scale: Scale) -> None:
        """Draw the band or the crosses, the line, the points."""
        hue, points = _hue(one.color), one.style == "points"
        places = [(x_scale.at(x), y_scale.at(y)) for x, y in zip(one.x, one.y, strict=True)]
        if one.lo and not points:
            upper = [(x_scale.at(x), y_scale.at(y)) for x, y in zip(one.x, one.hi, strict=True)]
            lower = [(x_scale.at(x), y_scale.at(y)) for x, y in zip(one.x, one.lo, strict=True)]
            self.path(f"{_line([*upper, *reversed(lower)])} Z", inside, fill=hue, fill_opacity=0.16)
        for at, (x, y) in enumerate(places if points else []):
            cross: dict[str, Any] = {"stroke": hue, "stroke_width": 1.2, "stroke_opacity": 0.55}
            if one.lo:
                ends = (y_scale.at(one.lo[at]), y_scale.at(one.hi[at]))
                self.path(f"M {x:g} {ends[0]:g} L {x:g} {ends[1]:g}", inside, **cross)
            if one.x_lo:
                ends = (x_scale.at(one.x_lo[at]), x_scale.at(one.x_hi[at]))
                self.path(f"M {ends[0]:g} {y:g} L {ends[1]:g} {y:g}", inside, **cross)
        if not points:
            dash = DASHES[one.style]
            self.path(_line(places), inside, fill="none", stroke=hue, stroke_width=1.8, stroke_dasharray=dash)
        looks: dict[str, Any] = {"fill": hue, "fill_opacity": 0.75 if points and not one.strong else 1}
        if one.strong:
            looks |= {"stroke": "var(--ground)", "stroke_width": 1.2}
        for x, y in places:
            self.path(_marker(one.marker, x, y, 5 if one.strong else 2.3), inside, **looks)

    def mark(self, inside: Element, mark: Mark, x_scale: Scale, y_scale: Scale) -> None:
        (x0, x1), (y1, y0) = (x_scale.start, x_scale.end), (y_scale.start, y_scale.end)
        thin: dict[str, Any] = {"fill": "none", "stroke": "var(--muted)", "stroke_width": 1, "stroke_dasharray": THIN}
        if mark.diagonal:
            ends = (x_scale.low, x_scale.high)
            below, above = (
                [(x_scale.at(end), y_scale.at(end * (1 + way * mark.spread))) for end in ends] for way in (-1, 1)
            )
            self.path(f"{_line([*below, *reversed(above)])} Z", inside, fill="var(--muted)", fill_opacity=0.14)
            self.path(_line([(x_scale.at(end), y_scale.at(end)) for end in ends]), inside, **thin)
        elif mark.x is not None:
            x = x_scale.at(mark.x)
            self.path(f"M {x:g} {y0:g} L {x:g} {y1:g}", inside, **thin)
            if mark.label:
                near = x - x0 < LETTER * 10 * len(mark.label) + 6
                self.text(x + (4 if near else -4), y1 - 5, mark.label, size=10, anchor="start" if near else "end")
        elif mark.y is not None:
            y = y_scale.at(mark.y)
            self.path(f"M {x0:g} {y:g} L {x1:g} {y:g}", inside, **thin)

    # --- panels of bars

    def bars(self, panel: BarPanel, left: float, top: float, width: float, _: float) -> None:
        above = panel.labels_above
        if panel.title:
            self.text(left + 2, top + 16, panel.title, size=11.5, ink="ink", bold=True)
            top += TITLE_HEIGHT + 16 * panel.title.count("\n")
        largest = max((bar.total for bar in panel.bars), default=1.0) or 1.0
        label = max((len(bar.label) for bar in panel.bars), default=0)
        note = max((len(bar.note) for bar in panel.bars), default=0)
        names, notes = (0.0, 0.0) if above else (min(label * 11 * LETTER + 8, width / 2), note * 10 * LETTER + 8)
        x_scale = Scale(0, largest, left + names + 4, max(left + width - notes - 4, left + names + 30))
        size = BAR_ABOVE if above else BAR
        for place, bar in enumerate(panel.bars):
            y = top + place * size
            if above:
                self.text(left + 2, y + 13, f"{bar.label}  {bar.note}", ink="ink")
                self.bar(bar, x_scale, y + 20, 23)
            else:
                self.text(left + names - 6, y + 15, bar.label, ink="ink", anchor="end")
                self.bar(bar, x_scale, y + 4, 14)
                self.text(x_scale.at(bar.total) + 5, y + 15, bar.note, size=10)
        bottom = top + len(panel.bars) * size + 4
        if above:  # elsewhere the words say how long each bar is
            line = f"M {x_scale.start:g} {bottom:g} L {x_scale.end:g} {bottom:g}"
            self.path(line, stroke="var(--muted)", stroke_width=0.8)
            for value in x_scale.ticks(6):
                self.text(x_scale.at(value), bottom + 15, _number(value), size=10.5, anchor="middle")
        self.text((x_scale.start + x_scale.end) / 2, bottom + 32, panel.x_label, size=10.5, anchor="middle")

    def bar(self, bar: Bar, x_scale: Scale, y: float, height: float) -> None:
        """The pieces of a bar, with a gap of the ground's colour between them."""
        start = 0.0
        for segment in bar.segments:
            x, end = x_scale.at(start), x_scale.at(start + segment.value)
            self.path(_box(x, y, end - x, height), **_paint(segment))
            if segment.text and end - x > 11 * LETTER * len(segment.text) + 6:
                ink = "muted" if segment.color is None else "on"
                self.text((x + end) / 2, y + height / 2 + 4, segment.text, size=10.5, ink=ink, anchor="middle")
            start += segment.value


def _scales(panel: LinePanel, left: float, top: float, width: float, height: float) -> tuple[Scale, Scale]:
    """The axes, inside of the numbers at the left, the title above, and the label below."""
    xs = [value for one in panel.series for value in (*one.x, *one.x_lo, *one.x_hi)]
    ys = [value for one in panel.series for value in (*one.y, *one.lo, *one.hi)]
    x_ends = _limits([*xs, *(mark.x for mark in panel.marks if mark.x is not None)], log=panel.x_log)
    y_marks = [mark.y for mark in panel.marks if mark.y is not None]
    y_ends = _limits([*ys, *y_marks], log=panel.y_log, from_zero=not panel.y_log)
    if panel.equal:
        values = [value for one in panel.series for value in (*one.x, *one.y)]
        x_ends = y_ends = (min(values) / 1.3, max(values) * 1.3)
    upper = top + (TITLE_HEIGHT if panel.title else 8)
    y_scale = Scale(*y_ends, top + height - AXIS_HEIGHT, upper, panel.y_log)
    letters = max((len(_number(value)) for value in y_scale.ticks()), default=1)
    return Scale(*x_ends, left + 26 + letters * 10.5 * LETTER, left + width - 8, panel.x_log), y_scale


def _height(panel: LinePanel | BarPanel, width: float, *, alone: bool) -> float:
    title = TITLE_HEIGHT + 16 * panel.title.count("\n") if panel.title else 0
    if isinstance(panel, LinePanel) and panel.equal:
        return round(0.9 * width) + title
    if isinstance(panel, LinePanel):
        return min(round(width), SINGLE_HEIGHT) if alone else LINE_HEIGHT + title
    return len(panel.bars) * (BAR_ABOVE if panel.labels_above else BAR) + AXIS_HEIGHT + title


def _line(places: Sequence[tuple[float, float]]) -> str:
    return "M " + " L ".join(f"{x:g} {y:g}" for x, y in places) if places else "M 0 0"


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"{_line([(x, y), (x + width, y), (x + width, y + height), (x, y + height)])} Z"


def _marker(kind: str, x: float, y: float, r: float) -> str:
    """A shape around a point; the kinds are circle, square, diamond, triangles and plus."""
    if kind == "o":
        return f"M {x - r:g} {y:g} a {r:g} {r:g} 0 1 0 {2 * r:g} 0 a {r:g} {r:g} 0 1 0 {-2 * r:g} 0 Z"
    d, t = r * 1.2, r * 0.4
    corners = {
        "s": ((-r, -r), (r, -r), (r, r), (-r, r)),
        "D": ((0, -d), (d, 0), (0, d), (-d, 0)),
        "^": ((0, -d), (d, r), (-d, r)),
        "v": ((0, d), (d, -r), (-d, -r)),
        "P": ((-t, -d), (t, -d), (t, -t), (d, -t), (d, t), (t, t),
              (t, d), (-t, d), (-t, t), (-d, t), (-d, -t), (-t, -t)),
    }[kind]  # fmt: skip
    return f"{_line([(round(x + dx, 2), round(y + dy, 2)) for dx, dy in corners])} Z"


def _hue(place: int) -> str:
    """The colour of a series; they repeat after ``SERIES``."""
    return f"var(--{SERIES[place % len(SERIES)]})"


def _paint(segment: Segment) -> dict[str, Any]:
    """Parts are filled; what is left over has an outline only."""
    if segment.color is None:
        return {"fill": "var(--raised)", "stroke": "var(--muted)", "stroke_width": 0.8}
    return {"fill": _hue(segment.color), "stroke": "var(--ground)", "stroke_width": 1}


def _legend_entries(chart: Chart) -> dict[str, Series | Segment | Mark]:
    """Each name of a chart once, with the first that has it."""
    entries: dict[str, Series | Segment | Mark] = {}
    for what in chain.from_iterable(map(_named, chart.panels)):
        entries.setdefault(what.label if isinstance(what, Mark) else what.name, what)
    return entries


def _named(panel: LinePanel | BarPanel) -> Iterator[Series | Segment | Mark]:
    if isinstance(panel, BarPanel):
        yield from (segment for bar in panel.bars for segment in bar.segments if segment.name)
    else:
        yield from sorted(panel.series, key=lambda one: one.strong)
        yield from (mark for mark in panel.marks if mark.diagonal or mark.y is not None)
