"""Pages without network or fonts of their own: the report on the plans of a folder, and the page of ``planner ui``."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval

from planner import __version__, progress
from planner.engine import PLANNED, tagged
from planner.evidence import PlanFolder, PlanFolders, compare
from planner.hardware import GpuProfile
from planner.output import charts
from planner.output.answer import fields_of
from planner.output.render import NAMES, SPACE, Column, columns_of, command_parts
from planner.output.scripts.text import render_template
from planner.output.tables.recommendation import Recommendation, plan_in_words
from planner.output.tables.shared import batch_in_words, card, gpus_in_words, layout_in_words, local_argv
from planner.planning import SHIPPED, LoadPoint, Local, Plan, PlanFile, PlannedWorkload, Sweep, defaults, sweep_loads
from planner.units import GIB, MOST_FIGURE, MS, US, counted, percent
from planner.workload import NAMED, OF_A_REQUEST, parse_slos, use_cases

FIGURES = NAMES["plan_figures"]
BOUNDS = {"memory": 0, "compute": 1, "launch": 3, "link": 4, "host": 5}  #: colour by what bounds an operator
SHOWN_OPERATORS = 11
SHOWN_WHOLE = 8  #: with more plans there are tables only
GPU_RATE, USER_RATE = "output_throughput_per_gpu", "output_throughput_per_user"
BATCH, TOKENS = tagged("batch")
SIZES = (*zip(tagged("axes"), ("TP", "PP", "DP"), strict=False), (BATCH, "batch"))
ChartName = Literal["memory", "pareto", "latency", "operators"]


def number(value: Any) -> str:
    """A figure with three significant digits; a dash where there is none."""
    if not isinstance(value, int | float):
        return "-"
    digits = next((digits for digits, least in enumerate((100, 10, 1)) if abs(value) >= least), None)
    return f"{value:.3g}" if digits is None else f"{value:,.{digits}f}"


def interval_of(figures: Mapping[str, Any], key: str) -> str:
    """``lo to hi``; a dash where there is none."""
    low, high = figures.get(f"{key}_lo"), figures.get(f"{key}_hi")
    return "-" if low is None or high is None else f"{number(low)} to {number(high)}"


def size_of(plan: Plan) -> str:
    """The GPUs or partitions in all and the servers: ``6 GPUs: 3 x TP 2``."""
    servers, gpus = (plan.service.replicas, plan.service.total_gpus) if plan.service else (1, plan.num_gpus)
    unit = "partition" if ((plan.service or plan).packages or gpus) < gpus else "GPU"
    return f"{counted(gpus, unit)}: {servers:,} x {layout_in_words(plan)}"


def charts_of(folder: PlanFolders, local: Local, name: ChartName) -> list[charts.Chart]:
    """The charts of that name; latency and operators have one for each plan."""
    entries = folder.entries
    if name == "memory":
        return [charts.memory_chart([entry.plan for entry in entries])]
    sweeps = _sweeps(entries, local, entries)
    if name == "pareto":
        made: Sequence[charts.Chart | None] = [pareto_chart(folder, sweeps)]
    else:
        made = list(map(latency_chart if name == "latency" else operators_chart, entries, sweeps))
    return [chart for chart in made if chart is not None]


def _sweeps(entries: Sequence[PlanFolder], local: Local, swept: Sequence[PlanFolder]) -> list[Sweep]:
    shown = progress.each(entries, lambda entry: f"loads around the plan of {entry.plan.gpu}")
    return [sweep_loads(entry.plan, local) if entry in swept else Sweep() for entry in shown]


def pareto_chart(folder: PlanFolders, sweeps: Sequence[Sweep]) -> charts.Chart | None:
    """Tokens/s per GPU against tokens/s per user. None without a search and a replay."""
    what = "Each point is a setting that no other setting of its GPU beats in both rates."
    series: list[charts.Series] = []
    records: list[tuple[str, str, Mapping[str, Any]]] = []
    for place, (entry, swept) in enumerate(zip(folder.entries, sweeps, strict=True)):
        gpu, points = entry.plan.gpu, _front(folder, entry)
        if len(points) < 2 and swept.points:  # no front: the planned server at other loads
            unit = "requests/s" if swept.by == "rate" else "at once"
            points = [(f"{p.load:,.3g} {unit}", p.figures) for p in swept.points]
            what = "Each point is the planned server at another load."
        if points:
            marker = charts.MARKERS[place % len(charts.MARKERS)]
            series.append(_rates(gpu, place, marker, [figures for _, figures in points]))
            records += [(gpu, words, figures) for words, figures in points]
        for name, marker, figures in _own_points(entry):
            series.append(_rates(name, place, marker, [figures], style="points"))
            records.append((gpu, name, figures))
    if not records:
        return None
    columns = [Column("GPU", of="0"), Column("setting", of="1")]
    for key, heading in ((USER_RATE, "tokens/s per user"), (GPU_RATE, "tokens/s per GPU")):
        between = Column("90 % interval", form=partial(interval_of, key=key), of="2")
        columns += [Column(heading, form=number, of=f"2.{key}"), between]
    axes = "output tokens/s per user", "output tokens/s per GPU"
    return charts.Chart(
        "pareto",
        "Throughput of a GPU against speed for a user",
        f"{what} Up and to the right is better. Shades and crosses: the interval that holds 90\u00a0% of measurements.",
        (charts.LinePanel(*axes, tuple(series), x_log=True, y_log=True),),
        columns,
        records,
    )


def _front(folder: PlanFolders, entry: PlanFolder) -> list[tuple[str, Mapping[str, Any]]]:
    known = folder.recommendation.get("pareto", ())
    rows = [row for row in known if row["gpu"] == entry.plan.gpu and row.get(GPU_RATE) and row.get(USER_RATE)]
    return [
        (f"{_setting_words(row)}, {row.get('weight_dtype')} weights", row)
        for row in sorted(rows, key=lambda row: float(row[USER_RATE]))
    ]


def _own_points(entry: PlanFolder) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    if entry.plan.predicted.get(GPU_RATE) and entry.plan.predicted.get(USER_RATE):
        yield "plan", "o", steady_figures(entry.plan)
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


def _rates(
    name: str, place: int, marker: str, figures: Sequence[Mapping[str, Any]], style: charts.Style = "solid"
) -> charts.Series:
    x, y, *ends = (
        tuple(float(one[key]) for one in figures if one.get(key) is not None)
        for key in (USER_RATE, GPU_RATE, *(f"{rate}_{end}" for rate in (GPU_RATE, USER_RATE) for end in ("lo", "hi")))
    )
    strong = style == "points"  # one point, whose interval is a cross
    lo, hi, x_lo, x_hi = (values if len(values) == len(x) else () for values in ends)
    bounds = (lo, hi, x_lo, x_hi) if strong or len(x) == 1 else (lo, hi, (), ())
    return charts.Series(name, x, y, place, style, marker, *bounds, strong=strong)


def latency_chart(entry: PlanFolder, swept: Sweep) -> charts.Chart | None:
    """Median latencies at several loads, and the statistic of the targets, else p99; None without a replay."""
    if not swept.points:
        return None
    limits_ms = {slo.metric: slo.limit_ms for slo in swept.slos}
    tail = swept.slos[0].statistic if swept.slos else "p99"
    axis = "requests/s" if swept.by == "rate" else "concurrent requests"
    columns = [Column(axis, of=lambda point: f"{point.load:,.4g}{' (plan)' if point.planned else ''}")]
    for metric in OF_A_REQUEST:
        for statistic in ("median", tail):
            key = f"{statistic}_{metric}_ms"
            of = partial(lambda key, point: f"{number(point.figures[key])} ({interval_of(point.figures, key)})", key)
            columns.append(Column(f"{statistic} {metric.upper()}, ms", of=of))
    return charts.Chart(
        "latency",
        f"Latency against load: {gpus_in_words(entry.plan)}",
        "Each load is a replay of this server. Shades: the interval that holds 90\u00a0% of measurements. Vertical "
        f"line: the load of the plan. At most {entry.plan.max_running:,} requests run at once; others wait."
        + (" The curve of a target leaves out the opening burst, as the target does." if limits_ms else ""),
        tuple(_latency_panel(metric, axis, entry, swept, limits_ms.get(metric)) for metric in OF_A_REQUEST),
        columns,
        swept.points,
    )


def _latency_panel(metric: str, axis: str, entry: PlanFolder, swept: Sweep, limit_ms: float | None) -> charts.LinePanel:
    planned = next((point.load for point in swept.points if point.planned), None)
    x, figures, lines = tuple(point.load for point in swept.points), [point.figures for point in swept.points], []
    tail = swept.slos[0].statistic if swept.slos else "p99"
    styles: tuple[tuple[str, charts.Style, str], ...] = (("median", "solid", "o"), (tail, "dashed", "s"))
    result = entry.measured.result if entry.measured else {}
    for color, (statistic, style, marker) in enumerate(styles):
        keys = (f"{statistic}_{metric}_ms{end}" for end in ("", "_lo", "_hi"))
        y, lo, hi = (tuple(float(one[name]) for one in figures if name in one) for name in keys)
        ends = (lo, hi) if len(lo) == len(y) else ((), ())
        lines.append(charts.Series(statistic, x, y, color, style, marker, *ends))
        value = _positive(result, f"{statistic}_{metric}_ms")
        if planned is not None and value:
            point = (planned,), (value,), color
            lines.append(charts.Series(f"measured {statistic}", *point, "points", "D", strong=True))
    marks = [charts.Mark("plan" if metric == OF_A_REQUEST[0] else "", x=planned)] if planned is not None else []
    marks += [charts.Mark("target", y=limit_ms)] if limit_ms is not None else []
    logs = {"x_log": swept.by != "rate", "y_log": all(value > 0 for line in lines for value in line.y)}
    return charts.LinePanel(axis, "ms", tuple(lines), metric.upper(), marks=tuple(marks), **logs)


def operators_chart(entry: PlanFolder, swept: Sweep) -> charts.Chart | None:
    """The time of an average step by operator; None without a replay."""
    if not swept.steps:
        return None
    panels = []
    for name, step in swept.steps.items():
        parts = sorted(((part.name, part.time_s, part.bound) for part in step.parts), key=lambda part: -part[1])
        others = sum(time_s for _, time_s, _ in parts[SHOWN_OPERATORS:])
        bars = tuple(
            charts.Bar(one, (charts.Segment(time_s / US, BOUNDS.get(bound, 5)),), f"{time_s / US:,.0f} {bound}".strip())
            for one, time_s, bound in (*parts[:SHOWN_OPERATORS], *([("others", others, "")] if others else []))
        )
        panels.append(charts.BarPanel("microseconds", bars, f"{name}: {step.total_s / MS:,.2f} ms"))
    return charts.Chart(
        "operators",
        f"Where a step spends its time: {gpus_in_words(entry.plan)}",
        "Average steps at the load of the plan. Each bar gives microseconds and the bottleneck of the operator. With "
        "asynchronous scheduling host and GPU work at once, so the parts add up to more than the whole.",
        tuple(panels),
        columns_of("report_operators"),
        [(name, part) for name, step in swept.steps.items() for part in step.parts],
    )


_NUMBER = re.compile(r"-|[-+]?\d[\d,.]*(?: ?%| to \d[\d,.]*| \(.*\))?")
MEASURED = columns_of("report_validation", number=number, bounds=lambda it: f"{number(it.lo)} to {number(it.hi)}")
REJECTED = columns_of("report_rejected", setting=lambda row: _setting_words(row))


def page(folder: PlanFolders, local: Local = SHIPPED) -> str:
    """The report as HTML. The curves are predicted with the fits of ``local``."""
    order = [plan.get("gpu") for plan in folder.recommendation.get("plans", ()) if isinstance(plan, Mapping)]
    order += [entry.plan.gpu for entry in folder.entries]  # plans that the recommendation does not name go last
    entries = tuple(sorted(folder.entries, key=lambda entry: order.index(entry.plan.gpu)))
    folder = replace(folder, entries=entries)
    sweeps = _sweeps(entries, local, entries if len(entries) <= SHOWN_WHOLE else ())
    plans = [entry.plan for entry in entries]
    context = {
        "plans": plans,
        "number": number,
        "verdict": plan_in_words(plans[0]).replace(SPACE, " ") if plans[0].predicted.get("mean_tpot_ms") else "",
        "load": "; ".join(f"{one.name}: {_lengths(one.workload)}" for one in plans[0].classes)
        or _lengths(plans[0].workload),
        "planner_version": __version__,
        "memory": picture(charts.memory_chart(plans)),
        "pareto": picture(pareto_chart(folder, sweeps)),
        "entries": [_section(entry, swept) for entry, swept in zip(entries, sweeps, strict=True)],
        "shown_whole": SHOWN_WHOLE,
        "rejected": table_of(REJECTED, folder.recommendation.get("rejected", ())),
        "notes": folder.notes,
        "palette": charts.style_sheet(),
    }
    return render_template("report.html.j2", context, ("report",), escaped=True)


def command_text(plan: Plan) -> str:
    """The launch command for the machine itself, an option to the line."""
    return " \\\n  ".join(command_parts(plan.env, local_argv(plan)))


def _lengths(sent: PlannedWorkload) -> str:
    varied = f", varied by {sent.range_ratio:.0%}" if sent.range_ratio else ""
    return f"{sent.input_len:,} input and {sent.output_len:,} output tokens{varied}"


def figures_of(figures: Mapping[str, Any]) -> list[dict[str, str]]:
    """The main figures of a plan, each with heading, unit, value and interval."""
    in_s = {key: value * MS for key, value in figures.items() if isinstance(value, int | float)}
    shown = [(in_s if unit.startswith("s,") else figures, key, heading, unit) for key, heading, unit in FIGURES]
    return [
        {"heading": heading, "unit": unit, "value": number(known.get(key)), "interval": interval_of(known, key)}
        for known, key, heading, unit in shown
    ]


def steady_figures(plan: Plan) -> Mapping[str, Any]:
    """The predicted figures, with the tokens/s per GPU that cost is counted by: without start and end of the benchmark.

    At a rate they are those that arrive, without an interval."""
    service, benched = plan.service, plan.predicted.get(GPU_RATE)
    if not (service and service.output_throughput_per_gpu and benched):
        return plan.predicted
    scale = None if service.request_rate else service.output_throughput_per_gpu / benched
    known = {key: plan.predicted.get(key) for key in (f"{GPU_RATE}_lo", f"{GPU_RATE}_hi")}
    ends = {key: value and scale and value * scale for key, value in known.items()}
    return {**plan.predicted, **ends, GPU_RATE: service.output_throughput_per_gpu}


def _section(entry: PlanFolder, swept: Sweep) -> dict[str, Any]:
    plan = entry.plan
    anchor = "plan-" + re.sub(r"[^A-Za-z0-9]", "-", plan.gpu)
    held = {key: value for key, value in plan.memory.items() if key.endswith(("_bytes", "_bytes_lo", "_bytes_hi"))}
    usd, sent = (plan.service or plan).usd_per_hour, plan.workload
    arrival = [f"{sent.request_rate:g} requests/s"] if sent.request_rate else []
    arrival += [counted(sent.max_concurrency, "concurrent request")] if sent.max_concurrency else []
    sources = {
        "engine": f"vLLM {plan.engine_version}",
        "image": f"{plan.image} ({plan.image_source})" if plan.image else "none: the installed vLLM",
        "calibration": plan.calibration,
        **({"evidence": swept.evidence} if swept.evidence else {}),
        "planner": f"{entry.file.planner_version}, plan {plan.digest}",
        "command": entry.file.command,
    }
    compared = entry.measured and compare(entry.measured)
    return {
        "plan": plan,
        "given": entry,
        "anchor": anchor,
        "layout": gpus_in_words(plan),
        "size": size_of(plan) + ("" if usd is None else f", {usd:,.2f} USD/h"),
        "figures": figures_of(steady_figures(plan)),
        "arrival": ", ".join(arrival) or "all requests sent at once",
        "command": command_text(plan),
        "settings": [
            *((name, Column(name, form=",").cell(getattr(plan, name))) for name in PLANNED),
            *((key, f"{value / GIB:,.2f} GiB") for key, value in held.items() if isinstance(value, int | float)),
        ],
        "warnings": (*plan.warnings, *swept.notes),
        "latency": picture(latency_chart(entry, swept), anchor),
        "operators": picture(operators_chart(entry, swept), anchor),
        "missing": swept.missing,
        "measured": compared and table_of(MEASURED, compared.lines),
        "compared": compared,
        "sources": list(sources.items()),
    }


def _setting_words(row: Mapping[str, Any]) -> str:
    sizes = [f"{name} {row[key]}" for key, name in SIZES if row.get(key) and (row[key] != 1 or name == "TP")]
    cache, drafts = row.get("kv_cache_dtype") or "auto", row.get("speculative_config")
    sizes += ["EP"] * bool(row.get("enable_expert_parallel")) + [f"{cache} KV cache"] * (cache != "auto")
    if isinstance(drafts, Mapping):
        sizes.append(f"{str(drafts.get('method')).upper()} {drafts.get('num_speculative_tokens')}")
    return ", ".join(sizes) or "-"


def picture(chart: charts.Chart | None, within: str = "") -> dict[str, Any] | None:
    """A chart for the template: both drawings and its words. ``within`` is the id of its section."""
    if chart is None:
        return None
    name = f"{within}-{chart.name}" if within else chart.name
    return {
        "name": name,
        "title": chart.title,
        "description": chart.description,
        "wide": charts.svg(chart, charts.CHART_WIDTH, part_of=name),
        "narrow": charts.svg(chart, charts.NARROW, part_of=name),
        "table": table_of(chart.columns, chart.records),
    }


def table_of(columns: Sequence[Column], records: Sequence[Any]) -> dict[str, Any]:
    """A table for the template; columns of numbers are right-aligned."""
    rows = [[column.cell(column.value(record)) for column in columns] for record in records]
    numeric = [all(_NUMBER.fullmatch(row[at]) for row in rows) for at in range(len(columns))]
    return {"headings": [column.title for column in columns], "rows": rows, "numeric": numeric}


PROMISE = ("ttft", "tpot", "e2el")  #: the targets that the page asks for, in ms
NOWHERE = Path()  #: plans of the page lie in no folder


#: The best plan of a search at one confidence level.
LEVELS = columns_of(
    "report_levels",
    GPU=lambda one: one.plan.gpu if one.plan else "no plan meets the targets with this confidence",
    setting=lambda one: (
        f"{layout_in_words(one.plan)}, {one.plan.weight_dtype}, {batch_in_words(one.plan)}" if one.plan else None
    ),
)
#: A plan and its main figures.
PLANS = (
    Column("GPU", of="0.gpu"),
    Column("size", of=lambda one: size_of(one[0])),
    Column("weights", of="0.weight_dtype"),
    Column("USD/h", form=",.2f", of=lambda one: (one[0].service or one[0]).usd_per_hour),
    Column("USD/1M", form=",.2f", of=lambda one: (one[0].service or one[0]).usd_per_million_output_tokens),
    *(Column(f"{heading}, {unit}", of=f"1.{at}.value") for at, (_, heading, unit) in enumerate(FIGURES)),
)


_CONFIDENCES = Interval(ge=defaults.LEAST_CONFIDENCE, le=defaults.MOST_CONFIDENCE)


@dataclass(frozen=True)
class Asked:
    """The question of the page; each field is a parameter of its address, with its bounds."""

    model: str
    gpu: tuple[str, ...]
    gpus: Annotated[int, Interval(ge=1, le=72)] = 8  #: of a node
    goal: defaults.Goal = defaults.GOAL
    by: Literal["flight", "rate"] = "flight"  #: how the load is given
    flight: Annotated[int | None, Interval(ge=1, le=4096)] = 32  #: requests in flight; None: the best, or the most
    rate: Annotated[float, Interval(ge=0.1, le=1000)] = 2.0  #: requests per second
    workload: str = ""  #: by name: its spread of lengths, and its turns
    input_len: Annotated[int, Interval(ge=1, le=1_000_000)] = 1024
    output_len: Annotated[int, Interval(ge=1, le=1_000_000)] = 1024
    ttft: Annotated[float | None, Interval(ge=1, le=60_000)] = None
    tpot: Annotated[float | None, Interval(ge=1, le=1000)] = None
    e2el: Annotated[float | None, Interval(ge=1, le=600_000)] = None
    percentile: Literal["50", "90", "95", "99", "mean"] = "95"
    confidence: Annotated[float, _CONFIDENCES] = defaults.CONFIDENCE  #: with which the targets are met

    @property
    def targets(self) -> dict[str, float]:
        return {name: value for name in PROMISE if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class Played:
    """The best plan of a search and the replays around it."""

    asked: Asked
    command: str  #: on the command line
    goal: defaults.Goal
    plan: Plan | None
    sweep: Sweep
    chances: Mapping[str, tuple[float, float]]  #: ms of each target, probability
    moved: LoadPoint | None = None  #: another load than that of the search


def front_page(asked: Asked, answer: str, *, models: Sequence[str], gpus: Iterable[GpuProfile]) -> str:
    """The whole page, with ``gpus`` to choose from by vendor."""
    groups: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for one in gpus:
        price = f"{one.price.typical.base:,.2f} USD/h, {one.price.date}" if one.price else "no price"
        facts = f"{one.memory_bytes / GIB:,.0f} GiB, {price}"
        groups[one.vendor.upper() + (" partitions" if one.partition else "")].append((one.id, one.name, facts))
    presets: dict[str, dict[str, Any]] = {}
    for name, case in use_cases().items():  # turns come at a rate, and have no lengths to fill in
        load = fields_of(NAMED[name], "input_len", "output_len") if name in NAMED else {"by": "rate"}
        rest = {**dict.fromkeys(PROMISE, ""), "percentile": "95", "goal": defaults.GOAL}
        batch = {"by": "flight", "flight": ""} if "goal" in case else {}
        presets[name] = {**load, **batch, **rest, **{field: case[field] for field in case if field != "source"}}
    context = {"asked": asked, "answer": answer, "models": models, "gpus": groups, "use_cases": presets}
    return _render("page.html.j2", {**context, "planner_version": __version__})


def style() -> str:
    """The style sheet: the report's, with the page's own rules."""
    return charts.style_sheet() + render_template("report.css", {}, ("report",)) + _render("ui.css", {})


def script() -> str:
    return _render("ui.js", {})


def refused(cause: str, hint: str) -> str:
    return _render("refused.html.j2", {"cause": cause, "hint": hint})


def _render(name: str, context: Mapping[str, Any]) -> str:
    return render_template(name, context, ("ui",), escaped=True)


def ladder(searches: Sequence[Played]) -> str:
    """The plan by confidence level, from the least to the most."""
    return _render("ladder.html.j2", {"levels": table_of(LEVELS, searches)})


def whole_answer(played: Played, search: Recommendation, query: str, *, key: str, seconds: float) -> str:
    """The answer of a search; ``query`` is the address that asks it, ``key`` names it while it is remembered."""
    answer, plan = search.to_dict(), played.plan
    plans = [(one, figures_of(steady_figures(one))) for one in search.best_first]
    folders = PlanFolders(NOWHERE, tuple(_entry(played, one) for one, _ in plans), answer)
    sweeps = [played.sweep, *[Sweep()] * (len(plans) - 1)]
    lines = "\0".join(" ".join(sentence.split()) for sentence in search.sentences())
    said = lines.replace("\\\0", "").split("\0")  # a command over several lines is one
    context = {
        "key": key,
        "seconds": f"{seconds:.1f}",
        "live": live_answer(played, said[0]) if plan else "",
        "plan": plan,
        "verdict": said[0],
        "achievable": [words[2:] for words in said[1:]],  # after the mark
        "pareto": picture(pareto_chart(folders, sweeps)) if plan else None,
        "memory": picture(charts.memory_chart([one for one, _ in plans])) if plan else None,
        "levels": f"/ladder?{query}" if plan and played.asked.targets else "",
        "rejected": table_of(REJECTED, answer["rejected"]),
        "plans": table_of(PLANS, plans) if len(plans) > 1 else None,
        "command": command_text(plan) if plan else "",
        "typed": played.command,
        "notes": [*search.notes, *played.sweep.notes],
        "scripts": f"/scripts.zip?{query}",
    }
    return _render("answer.html.j2", context)


def live_answer(played: Played, verdict: str = "") -> str:
    """The plan at the load that it is moved to, or at its own with the ``verdict``; the curve has a mark there."""
    plan, point = played.plan, played.moved
    if plan is None:
        return ""
    figures: Mapping[str, Any] = point.figures if point else steady_figures(plan)
    asked, sweep = played.asked, replace(played.sweep, slos=parse_slos(played.asked.targets, played.asked.percentile))
    if point:
        others = (replace(one, planned=False) for one in sweep.points if one.load != point.load)
        sweep = replace(sweep, points=tuple(sorted((*others, point), key=lambda one: one.load)))
    many = f"{plan.service.replicas} servers of " if plan.service and plan.service.replicas > 1 else ""
    flying = asked.flight or plan.workload.max_concurrency or 0
    load = f"{asked.rate:,.4g} requests/s" if asked.by == "rate" else counted(flying, "concurrent request")
    rate = f"{number(figures.get('output_throughput'))} output tokens/s per server"
    statistic, targets = "mean" if asked.percentile == "mean" else f"p{asked.percentile}", []
    for name, (predicted_ms, chance) in played.chances.items():  # a word: never by colour alone
        expected = f"{number(predicted_ms)} ms predicted, met with {percent(chance)} probability"
        word = "met" if chance >= asked.confidence else "open" if chance >= 0.5 else "missed"
        limit = f"{statistic} {name.upper()} at most {asked.targets[name]:,.10g} ms"
        targets.append((limit, f"{expected} (target {asked.confidence:.0%})", word))
    moved_words = (
        f"Serve {plan.model} on {many}{plan.num_gpus} x {card(plan.gpu)}, {layout_in_words(plan)}: at {load}, {rate}, "
        f"TTFT {number(figures.get('mean_ttft_ms'))} ms, TPOT {number(figures.get('mean_tpot_ms'))} ms"
    )
    context = {
        "headline": verdict or moved_words,
        "figures": figures_of(figures),
        "targets": targets,
        "burst": targets and asked.by == "flight",
        "why": plan.why[len(targets) + bool(targets) :][:3] if point is None else (),
        "latency": picture(latency_chart(_entry(played, plan), sweep)),
        "missing": sweep.missing,
        "moved": point is not None,
    }
    return _render("live.html.j2", context)


def _entry(played: Played, plan: Plan) -> PlanFolder:
    file = PlanFile(planner_version=__version__, command=played.command, goal=played.goal, plan=plan)
    return PlanFolder(NOWHERE, file, {})
