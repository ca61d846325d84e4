"""Charts made of characters, for a terminal. They have no colours: series differ in their letter."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from math import floor, isfinite, log10

from planner.output.charts.figure import BarPanel, Chart, LinePanel, printable

TERMINAL_WIDTH, NARROWEST = 100, 40
HEIGHT = 18  #: lines of a panel
LETTERS = "ox+*#@%&"  #: of the series, in their order
PIECES = "█▓▒░▚╱"  #: of a bar, by colour


def term(chart: Chart, width: int = 0) -> str:
    """All panels of a chart, one below the other, at most ``width`` columns wide; 0: ``TERMINAL_WIDTH``."""
    chart, width = printable(chart), max(width or TERMINAL_WIDTH, NARROWEST)
    lines = [chart.title, ""]
    for panel in chart.panels:
        lines += _lines(panel, width) if isinstance(panel, LinePanel) else _bars(panel, width)
        lines.append("")
    return "\n".join(line.rstrip() for line in lines)


# --- lines -------------------------------------------------------------------------------------------------------


def _lines(panel: LinePanel, width: int) -> list[str]:
    import plotext

    figure = plotext.figure
    figure.clear()
    plotext.terminal.limit(False, False)  # the given size, not that of the window
    figure.plot_size(width, HEIGHT)
    names = list(dict.fromkeys(one.name for one in panel.series))
    letters = {name: LETTERS[at % len(LETTERS)] for at, name in enumerate(names)}
    shown = []
    for one in panel.series:
        points = [(x, y) for x, y in zip(one.x, one.y, strict=True) if _fits(x, panel.x_log) and _fits(y, panel.y_log)]
        shown += points
        x_placed, y_placed = [_placed(x, panel.x_log) for x, _ in points], [_placed(y, panel.y_log) for _, y in points]
        joined = one.style != "points"
        figure.draw(figure.signal(x_placed, y_placed, marker=letters[one.name]).lines(joined))
    if not shown:
        return [f"{panel.title}: nothing to show"]
    for axis, log, values in zip(("x", "y"), (panel.x_log, panel.y_log), zip(*shown, strict=True), strict=True):
        ticks = _log_ticks(min(values), max(values)) if log else _ticks(max(values))
        figure.ruler(axis).ticks([_placed(tick, log) for tick in ticks], [f"{tick:,g}" for tick in ticks])
    figure.title(" - ".join(filter(None, (panel.title.replace("\n", ", "), panel.y_label))))
    figure.label(panel.x_label)
    drawn = figure.build().string(colorless=True)
    figure.clear()
    legend = "   ".join(f"{letter} {name}" for name, letter in letters.items())
    return [*textwrap.wrap(legend, width), *str(drawn).rstrip("\n").split("\n")]


def _fits(value: float, log: bool) -> bool:
    """True if a value has a place on an axis: a figure may be infinite."""
    return isfinite(value) and (value > 0 or not log)


def _placed(value: float, log: bool) -> float:
    return log10(value) if log else value


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade between two values; more where these are few."""
    decades = range(floor(log10(low)), floor(log10(high)) + 1)
    for steps in ((1, 2, 5), range(1, 10)):
        ticks = [tick for d in decades for k in steps if low <= (tick := k * 10.0**d) <= high]
        if len(ticks) > 2:
            return ticks
    return [low, high]


def _ticks(high: float) -> list[float]:
    """Zero and up to five round numbers."""
    if high <= 0:
        return [0.0]
    step = 10.0 ** floor(log10(high))
    step = next(step * k for k in (0.2, 0.5, 1, 2) if high / (step * k) <= 5)
    return [step * k for k in range(int(high / step) + 1)]


# --- bars --------------------------------------------------------------------------------------------------------


def _bars(panel: BarPanel, width: int) -> list[str]:
    lines = [panel.title] if panel.title else []
    label = 0 if panel.labels_above else max((len(bar.label) for bar in panel.bars), default=0) + 1
    note = 0 if panel.labels_above else max((len(bar.note) for bar in panel.bars), default=0) + 1
    largest = max((bar.total for bar in panel.bars), default=0.0) or 1.0
    for bar in panel.bars:
        cells = "".join(
            _piece(segment.color) * round(segment.value / largest * (width - label - note)) for segment in bar.segments
        )
        if panel.labels_above:
            lines += [f"{bar.label}  {bar.note}", cells]
        else:
            lines.append(f"{bar.label:<{label}}{cells} {bar.note}")
    return [*lines, *_legend(panel), f"in {panel.x_label}"]


def _legend(panel: BarPanel) -> Iterator[str]:
    names = {segment.name: segment.color for bar in panel.bars for segment in bar.segments if segment.name}
    if names:
        yield "  ".join(f"{_piece(color)} {name}" for name, color in names.items())


def _piece(color: int | None) -> str:
    return "." if color is None else PIECES[color % len(PIECES)]
