"""Charts drawn by matplotlib. An SVG takes colours and fonts from the reader's system, and needs no other file."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from planner.output.charts.figure import (
    COLORS,
    Bar,
    BarPanel,
    Chart,
    LinePanel,
    Mark,
    Segment,
    Series,
    color,
    printable,
    series,
    style_sheet,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_HREF = f"{{{_XLINK}}}href"


def themed(text: str, chart: Chart, *, alone: bool, key: str) -> str:
    """matplotlib's SVG with our colours and fonts, and with words for screen readers. Each id starts with ``key``."""
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(text)  # noqa: S314  (matplotlib wrote it a moment ago)
    for parent in list(root.iter()):
        for child in [c for c in parent if c.tag.endswith(("metadata", "}style"))]:
            parent.remove(child)
    _rename(root, key)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-labelledby": f"{key}-title {key}-desc",
        "class": "chart",
        "style": f"width: 100%; max-width: {root.attrib['viewBox'].split()[2]}px; height: auto; display: block",
    }
    title = ElementTree.Element(f"{{{_SVG}}}title", id=f"{key}-title")
    described = ElementTree.Element(f"{{{_SVG}}}desc", id=f"{key}-desc")
    title.text, described.text = chart.title, chart.description
    root[:0] = [title, described]
    if alone:
        style = ElementTree.Element(f"{{{_SVG}}}style")
        style.text = f"{style_sheet('svg')}svg {{ background: var(--ground); }}"
        root.insert(2, style)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
    return ElementTree.tostring(root, encoding="unicode").replace(f' xmlns="{_SVG}"', "", 1)


_NAMED = {light: name for name, (light, _) in COLORS.items()}
_COLOR = re.compile("|".join(_NAMED))
_FAMILY = re.compile(r"'DejaVu Sans'(?:, [^;]*)?")
_REFERENCE = re.compile(r"url\(#([\w-]+)\)")


def _rename(root: ElementTree.Element, key: str) -> None:
    """Name the colours, take the reader's font, and make each id unique on a page."""
    wanted = set(_references(root))
    for element in root.iter():
        style = element.get("style")
        if style:
            style = _COLOR.sub(lambda found: f"var(--{_NAMED[found[0]]})", style)
            element.set("style", _FAMILY.sub(FONT, style))
        if element.get("id") in wanted:
            element.set("id", f"{key}-{element.get('id')}")
        else:
            element.attrib.pop("id", None)
        if _HREF in element.attrib:
            element.set("href", f"#{key}-{element.attrib.pop(_HREF).removeprefix('#')}")
        if "clip-path" in element.attrib:
            element.set("clip-path", _REFERENCE.sub(rf"url(#{key}-\1)", element.attrib["clip-path"]))


def _references(root: ElementTree.Element) -> Iterator[str]:
    for element in root.iter():
        yield element.get(_HREF, "").removeprefix("#")
        yield from _REFERENCE.findall(element.get("clip-path", ""))


# --- Drawing
#
# An SVG keeps its words as text and names its colours (``var(--ink)``): it follows the reader's light or dark theme.
# One unit is one CSS pixel at full size. Panels are side by side while each has ``PANEL_WIDTH``.

CHART_WIDTH, NARROW = 720, 340  #: width of a chart in pixels; on a phone
PANEL_WIDTH, EQUAL_WIDTH = 220, 320  #: least width of a panel; with equal axes
LINE_HEIGHT, SINGLE_HEIGHT = 230, 400  #: height of a panel of lines, among several and alone
BAR, BAR_ABOVE = 22, 50  #: height of a bar; with its label above
AXIS_HEIGHT, LEGEND_HEIGHT, TITLE_HEIGHT = 56, 19, 26
PNG_SCALE = 2
DASHES: dict[str, Any] = {"solid": "-", "dashed": (0, (4, 3)), "points": ""}
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "planner",  # the same drawing has the same bytes
    "font.family": "DejaVu Sans",  # comes with matplotlib; letters as wide as any that a reader's system has
    "font.size": 11,
    "text.parse_math": False,  # a $ in a model's name is a $
    "axes.unicode_minus": False,
}


def svg(chart: Chart, width: int = CHART_WIDTH, *, part_of: str = "") -> str:
    """An SVG file with style sheet and title, or with ``part_of`` the element of that id for an HTML page."""
    chart, alone = printable(chart), not part_of
    drawn = _saved(chart, width, "svg", titled=alone).decode()
    return themed(drawn, chart, alone=alone, key=f"{part_of or chart.name}-{width}")


def draw_chart(chart: Chart, form: str, width: int | None = None) -> bytes:
    """The file of a chart: ``svg``, or ``png`` in the light colours with ``PNG_SCALE`` dots to the pixel."""
    width = width or CHART_WIDTH
    return _saved(printable(chart), width, "png", titled=True) if form == "png" else svg(chart, width).encode()


def _saved(chart: Chart, width: int, form: str, *, titled: bool) -> bytes:
    import matplotlib as mpl

    written = BytesIO()
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # in an SVG the reader's own font has it
        figure = _drawn(chart, width, titled=titled)
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        ground = "none" if form == "svg" else color("ground")
        figure.savefig(written, format=form, dpi=72 * PNG_SCALE, facecolor=ground, metadata=metadata)
    return written.getvalue()


def _drawn(chart: Chart, width: int, *, titled: bool) -> Figure:
    from matplotlib.figure import Figure  # never pyplot: nothing global, no window
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    least = max(EQUAL_WIDTH if isinstance(one, LinePanel) and one.equal else PANEL_WIDTH for one in chart.panels)
    rows = -(-len(chart.panels) // max(1, width // least))
    columns = -(-len(chart.panels) // rows)
    heights = [_height(panel, width // columns, alone=len(chart.panels) == 1) for panel in chart.panels]
    by_row = [max(heights[at * columns : (at + 1) * columns]) for at in range(rows)]
    legend = _legend_entries(chart)
    legend_columns = _columns(list(legend), width)
    title_px = TITLE_HEIGHT if titled else 0
    above_px = title_px + (-(-len(legend) // legend_columns) * LEGEND_HEIGHT + 6 if legend else 0)
    height = sum(by_row) + above_px
    room = ConstrainedLayoutEngine(
        w_pad=4 / 72, h_pad=5 / 72, wspace=0.03, hspace=0.04, rect=(0, 0, 1, 1 - above_px / height)
    )  # fmt: skip
    figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout=room)
    grid = figure.subplots(rows, columns, squeeze=False, gridspec_kw={"height_ratios": by_row})
    for axes in grid.flat[len(chart.panels) :]:
        axes.set_visible(False)
    panels: tuple[LinePanel | BarPanel, ...] = chart.panels
    for axes, panel in zip(grid.flat, panels, strict=False):
        _dress(axes, panel)
        if isinstance(panel, LinePanel):
            _draw_lines(axes, panel)
        else:
            _draw_bars(axes, panel, width / columns)
    if legend:
        placed = figure.legend(
            legend.values(), legend.keys(), loc="upper left", bbox_to_anchor=(0, 1 - title_px / height), frameon=False,
            ncols=legend_columns, labelcolor=color("ink"), handlelength=1.6, columnspacing=1.6, borderpad=0.3,
        )  # fmt: skip
        placed.set_in_layout(False)
    if titled:
        figure.text(
            4 / width, 1 - 5 / height, chart.title, va="top", fontsize=13, fontweight="bold", color=color("ink")
        ).set_in_layout(False)
    return figure


def _height(panel: LinePanel | BarPanel, width: int, *, alone: bool) -> int:
    title = TITLE_HEIGHT + 16 * panel.title.count("\n") if panel.title else 0
    if isinstance(panel, LinePanel) and panel.equal:
        return round(0.9 * width) + title
    if isinstance(panel, LinePanel):
        return min(width, SINGLE_HEIGHT) if alone else LINE_HEIGHT + title
    return len(panel.bars) * (BAR_ABOVE if panel.labels_above else BAR) + AXIS_HEIGHT + title


def _columns(names: Sequence[str], width: int) -> int:
    """Columns of a legend: as many of the longest name as fit, at 7 pixels to the letter."""
    return max(1, min(len(names), width // (max(map(len, names)) * 7 + 40))) if names else 1


def _dress(axes: Axes, panel: LinePanel | BarPanel) -> None:
    """Only thin level lines and quiet numbers."""
    axes.set_facecolor("none")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(color("line"))
    axes.tick_params(which="both", colors=color("muted"), length=0, labelsize=10.5)
    axes.set_axisbelow(True)
    axes.grid(axis="y" if isinstance(panel, LinePanel) else "x", color=color("line"), linewidth=0.8)
    axes.set_xlabel(panel.x_label, color=color("muted"), fontsize=10.5)
    if panel.title:
        axes.set_title(panel.title, loc="left", color=color("ink"), fontsize=11.5, fontweight="bold", pad=8)


# --- lines -------------------------------------------------------------------------------------------------------


def _draw_lines(axes: Axes, panel: LinePanel) -> None:
    axes.set_ylabel(panel.y_label, color=color("muted"), fontsize=10.5)
    for log, name in ((panel.x_log, "x"), (panel.y_log, "y")):
        if log:
            getattr(axes, f"set_{name}scale")("log")
    for one in panel.series:
        _draw_series(axes, one)
    if panel.equal:
        _same_limits(axes, panel)
    for mark in panel.marks:
        _draw_mark(axes, mark)
    if not panel.y_log:
        axes.set_ylim(bottom=0)
    axes.margins(x=0.04)
    _tick(axes, panel)


def _draw_series(axes: Axes, one: Series) -> None:
    hue, points = series(one.color), one.style == "points"
    if one.lo and not points:
        axes.fill_between(one.x, one.lo, one.hi, color=hue, alpha=0.16, linewidth=0, zorder=1)
    if points and (one.lo or one.x_lo):
        axes.errorbar(
            one.x, one.y, yerr=_reach(one.y, one.lo, one.hi), xerr=_reach(one.x, one.x_lo, one.x_hi), fmt="none",
            ecolor=hue, elinewidth=1.2, alpha=0.55, zorder=2,
        )  # fmt: skip
    looks: dict[str, Any] = {"markersize": 4.5, "markeredgewidth": 0, "alpha": 0.75 if points else None, "zorder": 3}
    if one.strong:
        looks = {"markersize": 10, "markeredgewidth": 1.2, "markeredgecolor": color("ground"), "zorder": 4}
    dash = DASHES[one.style]
    axes.plot(one.x, one.y, color=hue, marker=one.marker, linestyle=dash, linewidth=1.8, **looks)


def _reach(middle: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[list[float]] | None:
    """How far bounds are away from the points, as matplotlib wants it."""
    if not low:
        return None
    below = [max(m - at, 0.0) for m, at in zip(middle, low, strict=True)]
    return [below, [max(at - m, 0.0) for m, at in zip(middle, high, strict=True)]]


def _same_limits(axes: Axes, panel: LinePanel) -> None:
    values = [value for one in panel.series for value in (*one.x, *one.y)]
    limits = (min(values) / 1.3, max(values) * 1.3)
    axes.set_xlim(*limits)
    axes.set_ylim(*limits)


def _draw_mark(axes: Axes, mark: Mark) -> None:
    thin: dict[str, Any] = {"color": color("muted"), "linewidth": 1.0, "linestyle": (0, (2, 3)), "zorder": 1}
    if mark.diagonal:
        low, high = axes.get_xlim()
        ends = (low, high)
        below, above = ([end * (1 + way * mark.spread) for end in ends] for way in (-1, 1))
        axes.plot(ends, ends, **thin)
        axes.fill_between(ends, below, above, color=color("muted"), alpha=0.14, linewidth=0, zorder=0)
    elif mark.x is not None:
        axes.axvline(mark.x, **thin)
        if mark.label:
            axes.annotate(
                mark.label, (mark.x, 0), xycoords=("data", "axes fraction"), xytext=(-4, 3), ha="right", va="bottom",
                textcoords="offset points", color=color("muted"), fontsize=10,
            )  # fmt: skip
    elif mark.y is not None:
        axes.axhline(mark.y, **thin)


def _tick(axes: Axes, panel: LinePanel) -> None:
    """Numbers as people write them; at a logarithmic axis 1, 2 and 5 of each decade while there are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    plain = FuncFormatter(lambda value, _: f"{value:,.10g}" if abs(value) >= 1 or not value else f"{value:.3g}")
    for axis, log, limits in ((axes.xaxis, panel.x_log, axes.get_xlim()), (axes.yaxis, panel.y_log, axes.get_ylim())):
        if log:
            decades = limits[1] / limits[0]
            subs = (1, 2, 5) if decades < 60 else (1, 3) if decades < 300 else (1,)
            axis.set_major_locator(LogLocator(subs=subs, numticks=12))
            axis.set_minor_locator(NullLocator())
        else:
            axis.set_major_locator(MaxNLocator(5))
        axis.set_major_formatter(plain)


# --- bars --------------------------------------------------------------------------------------------------------


def _draw_bars(axes: Axes, panel: BarPanel, width: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    largest = max((bar.total for bar in panel.bars), default=1.0) or 1.0
    room = 1.0 if panel.labels_above else 1.42  # for the words after a bar
    for place, bar in enumerate(panel.bars):
        _draw_bar(axes, bar, place, 0.46 if panel.labels_above else 0.62, width / (largest * room))
        if panel.labels_above:
            words = f"{bar.label}  {bar.note}"
            label = axes.annotate(words, (0, place - 0.32), va="bottom", color=color("ink"), fontsize=11)
            label.set_in_layout(False)  # a long name runs on, and does not push the bars aside
        elif bar.note:
            axes.annotate(
                bar.note, (bar.total, place), xytext=(5, 0), textcoords="offset points", va="center",
                color=color("muted"), fontsize=10,
            )  # fmt: skip
    axes.set_xlim(0, largest * room)
    axes.set_ylim(len(panel.bars) - 0.5, -0.75 if panel.labels_above else -0.5)
    axes.set_yticks([] if panel.labels_above else range(len(panel.bars)))
    if not panel.labels_above:
        axes.set_yticklabels([bar.label for bar in panel.bars], color=color("ink"))
    if panel.labels_above:
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    else:  # the words say how long each bar is
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)


def _draw_bar(axes: Axes, bar: Bar, place: int, thickness: float, pixels: float) -> None:
    """The pieces of a bar, with a gap of the ground's colour between them; ``pixels`` to the unit, roughly."""
    start = 0.0
    for segment in bar.segments:
        axes.barh(place, segment.value, thickness, left=start, **_paint(segment))
        if segment.text and segment.value * pixels > 8 * len(segment.text) + 8:
            middle = start + segment.value / 2
            ink = color("muted" if segment.color is None else "on")
            axes.annotate(segment.text, (middle, place), ha="center", va="center", color=ink, fontsize=10.5)
        start += segment.value


def _paint(segment: Segment) -> dict[str, Any]:
    """Parts are filled; what is left over has an outline only."""
    if segment.color is None:
        return {"facecolor": color("raised"), "edgecolor": color("muted"), "linewidth": 0.8}
    return {"facecolor": series(segment.color), "edgecolor": color("ground"), "linewidth": 1}


def _legend_entries(chart: Chart) -> dict[str, Any]:
    """Name to what stands before it, each name once; none where there is one series to a panel."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: dict[str, Any] = {}
    for panel in chart.panels:
        if isinstance(panel, BarPanel):
            for segment in (s for bar in panel.bars for s in bar.segments if s.name):
                found.setdefault(segment.name, Patch(**_paint(segment)))
        else:
            for one in sorted(panel.series, key=lambda one: one.strong):
                size, hue = (8, color("muted")) if one.strong else (5, series(one.color))
                found.setdefault(
                    one.name, Line2D([], [], color=hue, marker=one.marker, linestyle=DASHES[one.style], markersize=size)
                )
            for mark in (m for m in panel.marks if m.diagonal or m.y is not None):
                found.setdefault(mark.label, Line2D([], [], color=color("muted"), linestyle=(0, (2, 3))))
    return found
