"""Charts as data, drawn as SVG (one unit is one CSS pixel), with a table. No chart relies on colour alone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain
from math import ceil, floor, isfinite, log10
from typing import Any, Literal
from xml.etree.ElementTree import Element, SubElement, register_namespace, tostring

from planner.output.render import NAMES, Column
from planner.output.tables.shared import gpus_in_words
from planner.planning import Plan
from planner.resources import package_dir, tables_of
from planner.units import GIB, LEAST_FIGURE

Style = Literal["solid", "dashed", "points"]


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one name, joined unless they are ``points``. ``lo`` and ``hi`` bound y, ``x_lo`` and ``x_hi`` x."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    color: int = 0  #: place in ``SERIES``
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
        return sum(segment.value for segment in self.segments)


@dataclass(frozen=True, slots=True)
class BarPanel:
    """Bars one above the other, on one scale."""

    x_label: str
    bars: tuple[Bar, ...]
    title: str = ""
    labels_above: bool = False  #: for long labels and few bars


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of one or several panels, with its words."""

    name: str
    title: str
    description: str  #: what to read from it, in one or two sentences
    panels: tuple[LinePanel, ...] | tuple[BarPanel, ...]
    columns: Sequence[Column] = ()  #: of the table for readers who do not see it; the first names the row
    records: Sequence[Any] = ()


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() or letter in "\n\u00a0" else "\ufffd" for letter in value)
    if isinstance(value, tuple):
        return tuple(map(_printable, value))
    if isinstance(value, Chart):
        value = replace(value, columns=(), records=())
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _printable(getattr(value, field.name)) for field in fields(value)})
    return value


#: Names in style sheets, with a colour for the light and the dark theme.
COLORS: Mapping[str, tuple[str, str]] = tables_of(package_dir("output") / "colors.toml")
MARGIN = 0.04  #: share of the values beyond their ends
SERIES = ("c0", "c1", "c2", "c3", "c4", "c5")
MARKERS = "osD^vP"  #: of series, in the same order


def style_sheet(selector: str = ":root") -> str:
    """The colours as variables (``--ink: #1c2128; ...``), of the theme that the reader's system prefers."""
    light, dark = (" ".join(f"--{name}: {both[at]};" for name, both in COLORS.items()) for at in (0, 1))
    return (
        f"{selector} {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ {selector} {{ {dark} }} }}\n"
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """A map of values from ``low`` to ``high`` to pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float = 0.0
    end: float = 1.0
    log: bool = False

    def at(self, value: float) -> float:
        """Pixels; what a logarithmic axis cannot show lies on its lower end."""
        low, high, here = self.low, self.high, max(value, self.low) if self.log else value
        share = (log10(here) - log10(low)) / (log10(high) - log10(low)) if self.log else (here - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers; at a logarithmic axis of a decade or more 1, 2 and 5 of each, fewer of many."""
        if self.log and self.high > 5 * self.low:
            decades, ticks = range(floor(log10(self.low)), ceil(log10(self.high)) + 1), list[float]()
            for heads in ((1, 2, 5), (1, 3), (1,)):
                every = [head * 10.0**power for power in decades for head in heads]
                ticks = [tick for tick in every if self.low <= tick <= self.high]
                if len(ticks) <= most + 2:
                    break
            if ticks:
                return ticks[:: ceil(len(ticks) / (most + 2))]
        rough = (self.high - self.low) / most
        size = 10.0 ** floor(log10(rough))
        step = next(size * head for head in (1, 2, 2.5, 5, 10) if size * head >= rough * 0.999)
        return [step * at for at in range(ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9) + 1)]


def _limits(values: Sequence[float], *, log: bool, from_zero: bool = False) -> tuple[float, float]:
    shown = [value for value in values if isfinite(value) and (value >= LEAST_FIGURE or not log)] or [1.0]
    low, high = min(shown), max(shown)
    if log:
        room = max((high / low) ** MARGIN, 1.08)
        return low / room, high * room
    if from_zero:
        return min(low, 0.0), max(high * (1 + MARGIN), low + 1e-9, 1e-9)
    room = (high - low) * MARGIN or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _number(value: float) -> str:
    return f"{value:,.10g}" if abs(value) >= 1 or not value else f"{value:.3g}"


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
THIN: Mapping[str, Any] = {"fill": "none", "stroke": "var(--muted)", "stroke_width": 1, "stroke_dasharray": "2 3"}


def svg(chart: Chart, width: int | None = None, *, part_of: str = "") -> str:
    """An SVG file with style sheet and title, or with ``part_of`` the element of that id for an HTML page."""
    chart, width, alone = _printable(chart), width or CHART_WIDTH, not part_of
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


class _Drawing:
    """Draws the elements of a chart below one root."""

    def __init__(self, root: Element, key: str) -> None:
        self.root, self.key, self.clips = root, key, 0

    def chart(self, chart: Chart, width: int, *, titled: bool) -> float:
        panels: Sequence[LinePanel | BarPanel] = chart.panels
        top = 0.0
        if titled:
            self.text(2, 17, chart.title, size=13, ink="ink", bold=True)
            top = TITLE_HEIGHT
        entries: dict[str, Series | Segment | Mark] = {}
        for what in chain.from_iterable(map(_named, panels)):
            entries.setdefault(what.label if isinstance(what, Mark) else what.name, what)
        top = self.legend(entries, width, top)
        least = max(EQUAL_WIDTH if isinstance(one, LinePanel) and one.equal else PANEL_WIDTH for one in panels)
        rows = -(-len(panels) // max(1, width // least))
        columns = -(-len(panels) // rows)
        each = (width - GAP * (columns - 1)) / columns
        for row in range(rows):
            shown = panels[row * columns : (row + 1) * columns]
            height = max(_height(panel, each, alone=len(panels) == 1) for panel in shown)
            for at, panel in enumerate(shown):
                if isinstance(panel, LinePanel):
                    self.lines(panel, at * (each + GAP), top, each, height)
                else:
                    self.bars(panel, at * (each + GAP), top, each)
            top += height
        return ceil(top)

    def path(self, d: str, into: Element | None = None, **style: Any) -> None:
        words = "; ".join(f"{name.replace('_', '-')}: {value}" for name, value in style.items() if value != "")
        SubElement(self.root if into is None else into, f"{{{_SVG}}}path", d=d, style=words)

    def text(
        self, x: float, y: float, words: str, *, size: float = 10.5, ink: str = "muted", anchor: str = "start",
        bold: bool = False, upright: bool = False,
    ) -> None:  # fmt: skip
        weight = " bold" if bold else ""
        for at, line in enumerate(words.split("\n")):
            place = {"x": f"{x:g}", "y": f"{y + 16 * at:g}"}
            if upright:
                place["transform"] = f"rotate(-90 {x:g} {y:g})"
            style = f"font:{weight} {size:g}px {FONT}; text-anchor: {anchor}; fill: var(--{ink})"
            SubElement(self.root, f"{{{_SVG}}}text", place, style=style).text = line

    def clipped(self, x: float, y: float, width: float, height: float) -> Element:
        self.clips += 1
        name = f"{self.key}-clip{self.clips}"
        clip = SubElement(SubElement(self.root, f"{{{_SVG}}}defs"), f"{{{_SVG}}}clipPath", id=name)
        box = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{height:g}"}
        SubElement(clip, f"{{{_SVG}}}rect", box)
        return SubElement(self.root, f"{{{_SVG}}}g", {"clip-path": f"url(#{name})"})

    def legend(self, entries: Mapping[str, Series | Segment | Mark], width: int, top: float) -> float:
        if not entries:
            return top
        widest = max(map(len, entries)) * 7 + 40
        columns = max(1, min(len(entries), width // widest))
        each = min(width / columns, widest)
        for at, (name, what) in enumerate(entries.items()):
            x, y = 2 + at % columns * each, top + at // columns * LEGEND_HEIGHT + 10
            self.swatch(what, x, y)
            self.text(x + 26, y + 4, name, size=11, ink="ink")
        return top + -(-len(entries) // columns) * LEGEND_HEIGHT + 6

    def swatch(self, what: Series | Segment | Mark, x: float, y: float) -> None:
        thick: dict[str, Any] = {"stroke_width": 1.8, "fill": "none"}
        line = _line([(x, y), (x + 18, y)])
        if isinstance(what, Segment):
            self.path(_box(x, y - 5, 18, 10), **_paint(what))
        elif isinstance(what, Mark):
            self.path(line, stroke="var(--muted)", stroke_dasharray=THIN["stroke_dasharray"], **thick)
        else:
            hue = "var(--muted)" if what.strong else _hue(what.color)
            if what.style != "points":
                self.path(line, stroke=hue, stroke_dasharray=DASHES[what.style], **thick)
            self.path(_marker(what.marker, x + 9, y, 4 if what.strong else 2.6), fill=hue)

    # panels of lines

    def lines(self, panel: LinePanel, left: float, top: float, width: float, height: float) -> None:
        x_scale, y_scale = _scales(panel, left, top, width, height)
        (x0, x1), (y1, y0) = (x_scale.start, x_scale.end), (y_scale.start, y_scale.end)
        if panel.title:
            self.text(x0, top + 16, panel.title, size=11.5, ink="ink", bold=True)
        for value in y_scale.ticks():
            y = y_scale.at(value)
            self.path(_line([(x0, y), (x1, y)]), stroke="var(--line)", stroke_width=0.8)
            self.text(x0 - 6, y + 4, _number(value), anchor="end")
        self.axis(x_scale, y1, x_scale.ticks(max(3, int((x1 - x0) // 44))), panel.x_label, gap=16)
        self.text(left + 11, (y0 + y1) / 2, panel.y_label, anchor="middle", upright=True)
        inside = self.clipped(x0 - 6, y0 - 6, x1 - x0 + 12, y1 - y0 + 12)
        for one in panel.series:
            self.series(inside, one, x_scale, y_scale)
        for mark in panel.marks:
            self.mark(inside, mark, x_scale, y_scale)

    def axis(self, scale: Scale, y: float, ticks: Sequence[float], label: str, *, gap: int) -> None:
        for value in ticks:
            self.text(scale.at(value), y + gap, _number(value), anchor="middle")
        if ticks:
            self.path(_line([(scale.start, y), (scale.end, y)]), stroke="var(--muted)", stroke_width=0.8)
        self.text((scale.start + scale.end) / 2, y + gap + 18, label, anchor="middle")

    def series(self, inside: Element, one: Series, x_scale: Scale, y_scale: Scale) -> None:
        def places(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
            return [(x_scale.at(x), y_scale.at(y)) for x, y in zip(xs, ys, strict=True)]

        hue, points = _hue(one.color), one.style == "points"
        if points:
            ends = [(places(one.x, one.lo), places(one.x, one.hi))] if one.lo else []
            ends += [(places(one.x_lo, one.y), places(one.x_hi, one.y))] if one.x_lo else []
            for pair in chain.from_iterable(zip(*both, strict=True) for both in ends):
                self.path(_line(pair), inside, stroke=hue, stroke_width=1.2, stroke_opacity=0.55)
        else:
            if one.lo:
                band = [*places(one.x, one.hi), *reversed(places(one.x, one.lo))]
                self.path(f"{_line(band)} Z", inside, fill=hue, fill_opacity=0.16)
            line = {"fill": "none", "stroke": hue, "stroke_width": 1.8, "stroke_dasharray": DASHES[one.style]}
            self.path(_line(places(one.x, one.y)), inside, **line)
        looks: dict[str, Any] = {"fill": hue, "fill_opacity": 0.75 if points and not one.strong else 1}
        if one.strong:
            looks |= {"stroke": "var(--ground)", "stroke_width": 1.2}
        for x, y in places(one.x, one.y):
            self.path(_marker(one.marker, x, y, 5 if one.strong else 2.3), inside, **looks)

    def mark(self, inside: Element, mark: Mark, x_scale: Scale, y_scale: Scale) -> None:
        (x0, x1), (y1, y0) = (x_scale.start, x_scale.end), (y_scale.start, y_scale.end)
        if mark.diagonal:
            ends = (x_scale.low, x_scale.high)
            below, line, above = (
                [(x_scale.at(end), y_scale.at(end * share)) for end in ends]
                for share in (1 - mark.spread, 1, 1 + mark.spread)
            )
            self.path(f"{_line([*below, *reversed(above)])} Z", inside, fill="var(--muted)", fill_opacity=0.14)
            self.path(_line(line), inside, **THIN)
        elif mark.x is not None:
            x = x_scale.at(mark.x)
            self.path(_line([(x, y0), (x, y1)]), inside, **THIN)
            if mark.label:
                near = x - x0 < LETTER * 10 * len(mark.label) + 6
                self.text(x + (4 if near else -4), y1 - 5, mark.label, size=10, anchor="start" if near else "end")
        elif mark.y is not None:
            y = y_scale.at(mark.y)
            self.path(_line([(x0, y), (x1, y)]), inside, **THIN)

    # panels of bars

    def bars(self, panel: BarPanel, left: float, top: float, width: float) -> None:
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
                self.text(left + 2, y + 13, f"{bar.label}  {bar.note}", size=11, ink="ink")
                self.bar(bar, x_scale, y + 20, 23)
            else:
                self.text(left + names - 6, y + 15, bar.label, size=11, ink="ink", anchor="end")
                self.bar(bar, x_scale, y + 4, 14)
                self.text(x_scale.at(bar.total) + 5, y + 15, bar.note, size=10)
        ticks = x_scale.ticks(6) if above else ()  # elsewhere the words say how long each bar is
        self.axis(x_scale, top + len(panel.bars) * size + 4, ticks, panel.x_label, gap=15)

    def bar(self, bar: Bar, x_scale: Scale, y: float, height: float) -> None:
        start = 0.0
        for segment in bar.segments:
            x, end = x_scale.at(start), x_scale.at(start + segment.value)
            self.path(_box(x, y, end - x, height), **_paint(segment))
            if segment.text and end - x > 11 * LETTER * len(segment.text) + 6:
                ink = "muted" if segment.color is None else "on"
                self.text((x + end) / 2, y + height / 2 + 4, segment.text, ink=ink, anchor="middle")
            start += segment.value


def _height(panel: LinePanel | BarPanel, width: float, *, alone: bool) -> float:
    title = TITLE_HEIGHT + 16 * panel.title.count("\n") if panel.title else 0
    if isinstance(panel, BarPanel):
        return len(panel.bars) * (BAR_ABOVE if panel.labels_above else BAR) + AXIS_HEIGHT + title
    if panel.equal:
        return round(0.9 * width) + title
    return min(round(width), SINGLE_HEIGHT) if alone else LINE_HEIGHT + title


def _scales(panel: LinePanel, left: float, top: float, width: float, height: float) -> tuple[Scale, Scale]:
    xs = [value for one in panel.series for value in (*one.x, *one.x_lo, *one.x_hi)]
    ys = [value for one in panel.series for value in (*one.y, *one.lo, *one.hi)]
    xs += [mark.x for mark in panel.marks if mark.x is not None]
    ys += [mark.y for mark in panel.marks if mark.y is not None]
    x_ends, y_ends = _limits(xs, log=panel.x_log), _limits(ys, log=panel.y_log, from_zero=not panel.y_log)
    if panel.equal:
        values = [value for one in panel.series for value in (*one.x, *one.y)]
        x_ends = y_ends = (min(values) / 1.3, max(values) * 1.3)
    upper = top + (TITLE_HEIGHT if panel.title else 8)
    y_scale = Scale(*y_ends, top + height - AXIS_HEIGHT, upper, panel.y_log)
    letters = max((len(_number(value)) for value in y_scale.ticks()), default=1)
    return Scale(*x_ends, left + 26 + letters * 10.5 * LETTER, left + width - 8, panel.x_log), y_scale


def _line(places: Sequence[tuple[float, float]]) -> str:
    return "M " + " L ".join(f"{x:g} {y:g}" for x, y in places) if places else "M 0 0"


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"{_line([(x, y), (x + width, y), (x + width, y + height), (x, y + height)])} Z"


def _marker(kind: str, x: float, y: float, r: float) -> str:
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
    return f"var(--{SERIES[place % len(SERIES)]})"


def _paint(segment: Segment) -> dict[str, Any]:
    if segment.color is None:
        return {"fill": "var(--raised)", "stroke": "var(--muted)", "stroke_width": 0.8}
    return {"fill": _hue(segment.color), "stroke": "var(--ground)", "stroke_width": 1}


def _named(panel: LinePanel | BarPanel) -> Iterator[Series | Segment | Mark]:
    if isinstance(panel, BarPanel):
        yield from (segment for bar in panel.bars for segment in bar.segments if segment.name)
    else:
        yield from sorted(panel.series, key=lambda one: one.strong)
        yield from (mark for mark in panel.marks if mark.diagonal or mark.y is not None)


def memory_chart(plans: Sequence[Plan]) -> Chart:
    hues = {Column(name, form=",.2f", of=f"memory.{key}", unit=GIB): hue for key, name, hue in NAMES["memory_parts"]}
    whole = Column("memory", form=",.2f", of="memory.memory_bytes", unit=GIB)
    rest = Column("unused", form=",.2f", of=lambda plan: max(sum_of(plan, [whole]) - sum_of(plan, hues), 0.0))

    def sum_of(plan: Plan, columns: Iterable[Column]) -> float:
        return sum(column.value(plan) or 0.0 for column in columns)

    def bar(plan: Plan) -> Bar:
        sizes = [(column.key, hue, sum_of(plan, [column])) for column, hue in (*hues.items(), (rest, None))]
        segments = tuple(Segment(size, hue, name, f"{size:,.1f}") for name, hue, size in sizes if size > 0)
        return Bar(gpus_in_words(plan), segments, f"{sum_of(plan, [whole]):,.1f} GiB each")

    return Chart(
        "memory",
        "Memory of each GPU",
        "The KV cache gets the rest of vLLM's budget. A server holds as many tokens at once as fit there.",
        (BarPanel("GiB", tuple(map(bar, plans)), labels_above=True),),
        (
            Column("GiB per GPU", of=gpus_in_words), *hues, rest, whole,
            Column("KV cache, tokens", form=",", of="memory.kv_cache_tokens"),
        ),
        plans,
    )  # fmt: skip
