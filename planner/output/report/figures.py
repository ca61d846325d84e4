"""Charts of plans: memory, Pareto front, latency against load, operators of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from planner import progress
from planner.engine import tagged
from planner.evidence import PlanFolder, PlanFolders
from planner.output.charts.figure import Bar, BarPanel, Chart, LinePanel, Mark, Segment, Series, Style, Table
from planner.planning import LoadPoint, Local, Plan, Sweep, sweep_loads
from planner.timing import OperatorTime, StepBreakdown
from planner.units import GFLOP, GIB, MB, MOST_FIGURE, MS, US
from planner.workload import OF_A_REQUEST

#: Key in the plan's ``memory``, name, colour.
PIECES = (
    ("weights_bytes", "weights", 0),
    ("kv_cache_bytes", "KV cache", 2),
    ("activation_bytes", "activations", 1),
    ("cuda_graph_bytes", "graphs", 3),
    ("non_torch_bytes", "runtime", 4),
)
FREE = "unused"
BOUNDS = {"memory": 0, "compute": 1, "launch": 3, "link": 4, "host": 5}  #: colour by what bounds an operator
SHOWN_OPERATORS = 11
GPU_RATE, USER_RATE = "output_throughput_per_gpu", "output_throughput_per_user"
BATCH, TOKENS = tagged("batch")
MARKERS = "osD^vP"


ChartName = Literal["memory", "pareto", "latency", "operators"]


def charts_of(folder: PlanFolders, local: Local, name: ChartName | None = None) -> list[Chart]:
    """The charts of that name, or all; latency and operators have one for each plan."""
    plans = [entry.plan for entry in folder.entries]
    listed = progress.each(plans, lambda plan: f"loads around the plan of {plan.gpu}")
    sweeps = [Sweep() if name == "memory" else sweep_loads(plan, local) for plan in listed]
    pairs = list(zip(folder.entries, sweeps, strict=True))
    made: dict[ChartName, Callable[[], Sequence[Chart | None]]] = {
        "memory": lambda: [memory_chart(plans)],
        "pareto": lambda: [pareto_chart(folder, sweeps)],
        "latency": lambda: [latency_chart(entry, swept) for entry, swept in pairs],
        "operators": lambda: [operators_chart(entry, swept) for entry, swept in pairs],
    }
    return [chart for one in ([name] if name else made) for chart in made[one]() if chart is not None]


def layout_of(plan: Plan) -> str:
    """The GPUs of one server: ``8 x mi300x``."""
    return f"{plan.num_gpus} x {plan.gpu}"


# --- memory ------------------------------------------------------------------------------------------------------


def memory_chart(plans: Sequence[Plan]) -> Chart:
    """The memory of each GPU, a bar for each plan."""
    bars = tuple(_memory_bar(plan) for plan in plans)
    headings = ("GiB per GPU", *(name for _, name, _ in PIECES), FREE, "memory", "KV cache, tokens")
    rows = tuple(_memory_row(plan) for plan in plans)
    return Chart(
        "memory",
        "Memory of each GPU",
        "Memory of one GPU while the server runs. The KV cache gets the rest of vLLM's budget; the tokens that fit "
        "there are the most that a server holds at once.",
        (BarPanel("GiB", bars, labels_above=True),),
        Table(headings, rows),
    )


def _pieces(plan: Plan) -> list[tuple[str, int | None, float]]:
    """Name, colour and bytes of each part, unused memory last."""
    held = [(name, hue, float(plan.memory.get(key, 0))) for key, name, hue in PIECES]
    left = float(plan.memory.get("memory_bytes", 0)) - sum(num_bytes for _, _, num_bytes in held)
    return [*held, (FREE, None, max(left, 0.0))]


def _memory_bar(plan: Plan) -> Bar:
    segments = tuple(
        Segment(held / GIB, hue, name, f"{held / GIB:,.1f}") for name, hue, held in _pieces(plan) if held > 0
    )
    return Bar(layout_of(plan), segments, f"{plan.memory.get('memory_bytes', 0) / GIB:,.1f} GiB each")


def _memory_row(plan: Plan) -> tuple[str, ...]:
    cells = [f"{held / GIB:,.2f}" for _, _, held in _pieces(plan)]
    total, tokens = plan.memory.get("memory_bytes", 0) / GIB, plan.memory.get("kv_cache_tokens")
    return layout_of(plan), *cells, f"{total:,.2f}", "-" if tokens is None else f"{tokens:,}"


# --- Pareto front ------------------------------------------------------------------------------------------------


def pareto_chart(folder: PlanFolders, sweeps: Sequence[Sweep]) -> Chart | None:
    """Tokens/s per GPU against tokens/s per user. None without a search and a replay."""
    searched = True
    series: list[Series] = []
    rows: list[tuple[str, ...]] = []
    for place, (entry, swept) in enumerate(zip(folder.entries, sweeps, strict=True)):
        points = _front(folder, entry)
        if len(points) < 2 and swept.points:  # no front: the planned server at other loads
            points, searched = [(f"load {p.load:,.3g}", p.figures) for p in swept.points], False
        if points:
            series.append(_rates(entry.plan.gpu, place, [figures for _, figures in points]))
            rows += [_rate_row(entry.plan.gpu, words, figures) for words, figures in points]
        for name, marker, figures in _own_points(entry):
            series.append(_rates(name, place, [figures], style="points", marker=marker))
            rows.append(_rate_row(entry.plan.gpu, name, figures))
    if not rows:
        return None
    what = (
        "Each point is a setting that no other setting of its GPU beats in both rates."
        if searched
        else "Each point is the planned server at another load."
    )
    panel = LinePanel("output tokens/s per user", "output tokens/s per GPU", tuple(series), x_log=True, y_log=True)
    return Chart(
        "pareto",
        "Throughput of a GPU against speed for a user",
        f"{what} Up and to the right is better. Shades and crosses: the interval that holds 90\u00a0% of measurements.",
        (panel,),
        Table(
            ("GPU", "setting", "tokens/s per user", "90 % interval", "tokens/s per GPU", "90 % interval"), tuple(rows)
        ),
    )


def _front(folder: PlanFolders, entry: PlanFolder) -> list[tuple[str, Mapping[str, Any]]]:
    rows = [row for row in folder.pareto if row["gpu"] == entry.plan.gpu and row.get(GPU_RATE) and row.get(USER_RATE)]
    return [
        (f"TP {row.get('tensor_parallel_size')}, batch {row.get(BATCH)}, {row.get('weight_dtype')}", row)
        for row in sorted(rows, key=lambda row: float(row[USER_RATE]))
    ]


def _own_points(entry: PlanFolder) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """The plan itself, and its measurement."""
    if entry.plan.predicted.get(GPU_RATE) and entry.plan.predicted.get(USER_RATE):
        yield "plan", "o", entry.plan.predicted
    if entry.measured:
        keys = "output_throughput", "request_throughput", "mean_e2el_ms"
        total, rate, e2el_ms = (_positive(entry.measured.result, key) for key in keys)
        # Little's law where the load is a rate
        users = entry.plan.workload.max_concurrency or rate * e2el_ms * MS
        if total and users:
            yield "measured", "D", {GPU_RATE: total / entry.plan.num_gpus, USER_RATE: total / users}


def _positive(result: Mapping[str, Any], key: str) -> float:
    """A measured figure; 0 for what is none."""
    value = result.get(key)
    return float(value) if isinstance(value, int | float) and 0 < value <= MOST_FIGURE else 0.0


def _rates(name: str, place: int, figures: Sequence[Mapping[str, Any]], **looks: Any) -> Series:
    def all_of(key: str) -> tuple[float, ...]:
        return tuple(float(one[key]) for one in figures) if all(one.get(key) is not None for one in figures) else ()

    def ends_of(key: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        low, high = all_of(f"{key}_lo"), all_of(f"{key}_hi")
        return (low, high) if low and high else ((), ())

    strong = looks.get("style") == "points"
    lo, hi = ends_of(GPU_RATE)
    x_lo, x_hi = ends_of(USER_RATE) if strong else ((), ())
    return Series(
        name, all_of(USER_RATE), all_of(GPU_RATE), place, strong=strong, lo=lo, hi=hi, x_lo=x_lo, x_hi=x_hi,
        **{"marker": MARKERS[place % len(MARKERS)], **looks},
    )  # fmt: skip


def _rate_row(gpu: str, words: str, figures: Mapping[str, Any]) -> tuple[str, ...]:
    rates = (cell for key in (USER_RATE, GPU_RATE) for cell in (number(figures.get(key)), interval_of(figures, key)))
    return gpu, words, *rates


def interval_of(figures: Mapping[str, Any], key: str) -> str:
    """``lo to hi``; a dash where there is none."""
    low, high = figures.get(f"{key}_lo"), figures.get(f"{key}_hi")
    return "-" if low is None or high is None else f"{number(low)} to {number(high)}"


def number(value: Any) -> str:
    """A figure with three significant digits; a dash where there is none."""
    if not isinstance(value, int | float):
        return "-"
    digits = next((digits for digits, least in enumerate((100, 10, 1)) if abs(value) >= least), None)
    return f"{value:.3g}" if digits is None else f"{value:,.{digits}f}"


# --- latency against load ----------------------------------------------------------------------------------------


def latency_chart(entry: PlanFolder, swept: Sweep, limits_ms: Mapping[str, float] | None = None) -> Chart | None:
    """Median and 99th percentile of TTFT, TPOT and E2EL at several loads; None without a replay.

    ``limits_ms`` are targets by latency, instead of the plan's own.
    """
    if not swept.points:
        return None
    if limits_ms is None:
        own = entry.plan.service.targets if entry.plan.service else ()
        limits_ms = {one.metric.split("_")[-2]: one.limit_ms for one in own if not one.of_class}
    axis = "requests/s" if swept.by == "rate" else "requests in flight"
    most_in_flight = entry.plan.max_running
    planned = next((point.load for point in swept.points if point.planned), None)
    panels = tuple(
        _latency_panel(metric, axis, planned, entry, swept, limits_ms.get(metric)) for metric in OF_A_REQUEST
    )
    keys = [f"{statistic}_{metric}_ms" for metric in OF_A_REQUEST for statistic in ("median", "p99")]
    headings = (axis, *(f"{key.split('_')[0]} {key.split('_')[1].upper()}, ms" for key in keys))
    rows = tuple(
        (_load_words(point), *(f"{number(point.figures[key])} ({interval_of(point.figures, key)})" for key in keys))
        for point in swept.points
    )
    return Chart(
        "latency",
        f"Latency against load: {layout_of(entry.plan)}",
        "Each load is a replay of this server. Shades: the interval that holds 90\u00a0% of measurements. The vertical "
        f"line is the load of the plan. The server computes at most {most_in_flight:,} requests at once; others wait.",
        panels,
        Table(headings, rows),
    )


def _load_words(point: LoadPoint) -> str:
    return f"{point.load:,.3g} (plan)" if point.planned else f"{point.load:,.4g}"


def _latency_panel(
    metric: str, axis: str, planned: float | None, entry: PlanFolder, swept: Sweep, limit_ms: float | None
) -> LinePanel:
    lines = [_latency_line(metric, statistic, swept) for statistic in ("median", "p99")]
    result = entry.measured.result if entry.measured else {}
    for line, statistic in zip(tuple(lines), ("median", "p99"), strict=True):
        value = _positive(result, f"{statistic}_{metric}_ms")
        if planned is not None and value:
            lines.append(Series(f"measured {statistic}", (planned,), (value,), line.color, "points", "D", strong=True))
    marks = [Mark("plan" if metric == OF_A_REQUEST[0] else "", x=planned)] if planned is not None else []
    marks += [Mark("target", y=limit_ms)] if limit_ms is not None else []
    positive = all(value > 0 for line in lines for value in line.y)
    logs = {"x_log": swept.by != "rate", "y_log": positive}
    return LinePanel(axis, "ms", tuple(lines), metric.upper(), marks=tuple(marks), **logs)


def _latency_line(metric: str, statistic: str, swept: Sweep) -> Series:
    key = f"{statistic}_{metric}_ms"
    figures = [point.figures for point in swept.points]
    y, lo, hi = (tuple(float(one[name]) for one in figures if name in one) for name in (key, f"{key}_lo", f"{key}_hi"))
    lo, hi = (lo, hi) if len(lo) == len(y) else ((), ())
    looks: tuple[int, Style, str] = (0, "solid", "o") if statistic == "median" else (1, "dashed", "s")
    return Series(statistic, tuple(point.load for point in swept.points), y, *looks, lo=lo, hi=hi)


# --- operators of a step -----------------------------------------------------------------------------------------


def operators_chart(entry: PlanFolder, swept: Sweep) -> Chart | None:
    """The time of an average step by operator; None without a replay."""
    if not swept.steps:
        return None
    rows = tuple(_operator_row(name, part) for name, step in swept.steps.items() for part in step.parts)
    return Chart(
        "operators",
        f"Where a step spends its time: {layout_of(entry.plan)}",
        "The average decode step and the average step with prompt tokens, at the load of the plan. Each bar gives "
        "microseconds and the bottleneck of the operator. With asynchronous scheduling the host works while the GPU "
        "does, so the parts add up to more than the whole.",
        tuple(_step_panel(name, step) for name, step in swept.steps.items()),
        Table(("step", "operator", "kernels", "time, us", "GFLOP", "MB", "bound by"), rows),
    )


def _step_panel(name: str, step: StepBreakdown) -> BarPanel:
    parts = sorted(step.parts, key=lambda part: -part.time_s)
    bars = [_operator_bar(part.name, part.time_s, part.bound) for part in parts[:SHOWN_OPERATORS]]
    others = sum(part.time_s for part in parts[SHOWN_OPERATORS:])
    if others:
        bars.append(_operator_bar("others", others, ""))
    return BarPanel("microseconds", tuple(bars), f"{name}: {step.total_s / MS:,.2f} ms")


def _operator_bar(name: str, time_s: float, bound: str) -> Bar:
    words = f"{time_s / US:,.0f}{f' {bound}' if bound else ''}"
    return Bar(name, (Segment(time_s / US, BOUNDS.get(bound, 5)),), words)


def _operator_row(step: str, part: OperatorTime) -> tuple[str, ...]:
    return (
        step, part.name, f"{part.count:,}", f"{part.time_s / US:,.1f}", f"{part.flop / GFLOP:,.2f}",
        f"{part.bytes / MB:,.2f}", part.bound,
    )  # fmt: skip
