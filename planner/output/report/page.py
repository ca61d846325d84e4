"""One HTML file for the plans of a folder: no network, no script, no fonts of its own.

The template substitutes and escapes; every decision is made here. Each chart is drawn for a wide and for a narrow
window, and the style sheet shows the one that fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jinja2

from planner import __version__, progress
from planner.engine import PLANNED, tagged
from planner.evidence import PlanFolder, PlanFolders, compare_plan
from planner.output.charts.draw import CHART_WIDTH, NARROW, svg
from planner.output.charts.figure import Chart, style_sheet
from planner.output.render import command_parts
from planner.output.report.figures import (
    BATCH,
    interval_of,
    latency_chart,
    layout_of,
    memory_chart,
    number,
    operators_chart,
    pareto_chart,
)
from planner.output.tables.prediction import BASIS
from planner.output.tables.shared import local_argv
from planner.planning import SHIPPED, Local, Plan, PlannedWorkload, Sweep, sweep_loads
from planner.resources import data_dir
from planner.units import GIB, MS

SHOWN_WHOLE = 8  #: with more plans there are tables only
#: Key, heading and unit of the main figures of a plan.
FIGURES = (
    ("output_throughput_per_gpu", "Throughput", "tokens/s per GPU"),
    ("output_throughput_per_user", "Speed", "tokens/s per user"),
    ("mean_ttft_ms", "TTFT", "ms, mean"),
    ("mean_tpot_ms", "TPOT", "ms, mean"),
    ("mean_e2el_ms", "E2EL", "s, mean"),
)
SIZES = (*zip(tagged("axes"), ("TP", "PP", "DP"), strict=False), (BATCH, "batch"))
_NUMBER = re.compile(r"-|[-+]?\d[\d,.]*(?: ?%| to \d[\d,.]*| \(.*\))?")
MEASURED = ("metric", "unit", "predicted", "bounds", "measured", "difference", "verdict")


def page(folder: PlanFolders, local: Local = SHIPPED) -> str:
    """The report as HTML. The curves are predicted with the fits of ``local``."""
    entries = _best_first(folder)
    folder = replace(folder, entries=entries)
    whole = entries if len(entries) <= SHOWN_WHOLE else ()
    listed = progress.each(entries, lambda entry: f"loads around the plan of {entry.plan.gpu}")
    sweeps = [sweep_loads(entry.plan, local) if entry in whole else Sweep() for entry in listed]
    plans = [entry.plan for entry in entries]
    context = {
        "title": f"{plans[0].requested_model} on {', '.join(plan.gpu for plan in plans)}",
        "model": plans[0].requested_model,
        "goal": entries[0].file.goal,
        "load": _load(plans[0]),
        "targets": _targets(plans[0]),
        "planner_version": __version__,
        "summary": [_summary(entry) for entry in entries],
        "memory": picture(memory_chart(plans)),
        "pareto": picture(pareto_chart(folder, sweeps)),
        "entries": [_section(entry, swept) for entry, swept in zip(entries, sweeps, strict=True)],
        "too_many": len(entries) > SHOWN_WHOLE,
        "rejected": table_of(("GPU", "model", "setting", "reason"), [rejected_cells(row) for row in folder.rejected]),
        "notes": folder.notes,
        "palette": style_sheet(),
    }
    return environment("report").get_template("report.html.j2").render(context)


def command_text(plan: Plan) -> str:
    """The launch command for the machine itself, an option to the line."""
    return " \\\n  ".join(command_parts(plan.env, local_argv(plan)))


def environment(folder: str) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_dir("templates") / folder),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _best_first(folder: PlanFolders) -> tuple[PlanFolder, ...]:
    """In the order of ``recommend``, if it is known."""
    order = [plan.get("gpu") for plan in (folder.recommendation or {}).get("plans", ()) if isinstance(plan, Mapping)]
    return tuple(sorted(folder.entries, key=lambda e: order.index(e.plan.gpu) if e.plan.gpu in order else len(order)))


def _load(plan: Plan) -> str:
    classes = "; ".join(f"{one.name}: {_lengths(one.workload)}" for one in plan.classes)
    return classes or _lengths(plan.workload)


def _lengths(sent: PlannedWorkload) -> str:
    lengths = f"{sent.input_len:,} input and {sent.output_len:,} output tokens"
    varied = f", varied by {sent.range_ratio:.0%}" if sent.range_ratio else ""
    return f"{lengths}{varied}"


def _arrival(plan: Plan) -> str:
    sent = plan.workload
    rate = f"{sent.request_rate:g} requests/s" if sent.request_rate else ""
    limit = f"{sent.max_concurrency:,} requests in flight" if sent.max_concurrency else ""
    return ", ".join(filter(None, (rate, limit))) or "all requests sent at once"


def _targets(plan: Plan) -> list[str]:
    """The latency targets, and the expected latency for each."""
    return [
        f"{target.metric.removesuffix('_ms').replace('_', ' ').upper()}"
        f"{target.of_class and f' for {target.of_class}'} at most {target.limit_ms:,.5g} ms: "
        f"{number(target.expected_ms)} ms expected"
        for target in (plan.service.targets if plan.service else ())
    ]


def _summary(entry: PlanFolder) -> dict[str, Any]:
    """A row of the table of plans, and the figures at the head of its section."""
    plan = entry.plan
    return {
        "anchor": _anchor(plan),
        "gpu": plan.gpu,
        "layout": layout_of(plan),
        "weights": plan.weight_dtype,
        "cache": plan.kv_cache_dtype,
        "batch": f"{getattr(plan, BATCH):,}",
        "servers": plan.service.replicas if plan.service else 1,
        "figures": [figure_of(plan.predicted, *names) for names in FIGURES],
    }


def figure_of(figures: Mapping[str, Any], key: str, heading: str, unit: str) -> dict[str, str]:
    if unit.startswith("s,"):
        figures = {k: v * MS for k, v in figures.items() if k.startswith(key) and isinstance(v, int | float)}
    return {"heading": heading, "unit": unit, "value": number(figures.get(key)), "interval": interval_of(figures, key)}


def _anchor(plan: Plan) -> str:
    return "plan-" + "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in plan.gpu)


def _section(entry: PlanFolder, swept: Sweep) -> dict[str, Any]:
    plan = entry.plan
    return {
        **_summary(entry),
        "model": plan.model,
        "arrival": _arrival(plan),
        "command": command_text(plan),
        "settings": [(name, _plain(getattr(plan, name))) for name in PLANNED],
        "why": plan.why,
        "warnings": (*plan.warnings, *swept.notes),
        "memory": [(name, f"{value / GIB:,.2f} GiB") for name, value in _bytes(plan)],
        "latency": picture(latency_chart(entry, swept), _anchor(plan)),
        "operators": picture(operators_chart(entry, swept), _anchor(plan)),
        "missing": swept.missing,
        "measured": table_of(MEASURED, _measured(entry)) if entry.measured else None,
        "not_measured": entry.not_measured,
        "scripts": entry.scripts,
        "folder": entry.directory.name or str(entry.directory),
        "sources": list(_sources(entry, swept)),
    }


def _bytes(plan: Plan) -> Iterator[tuple[str, float]]:
    for key, value in plan.memory.items():
        if key.endswith(("_bytes", "_bytes_lo", "_bytes_hi")) and isinstance(value, int | float):
            yield key, value


def _measured(entry: PlanFolder) -> list[tuple[str, ...]]:
    """Measured beside predicted, a row for each metric."""
    return [
        (
            line.metric, line.unit, number(line.predicted), f"{number(line.lo)} to {number(line.hi)}",
            number(line.measured), f"{line.error:+.1%}", line.verdict,
        )
        for line in (compare_plan(entry.measured) if entry.measured else ())
    ]  # fmt: skip


def _sources(entry: PlanFolder, swept: Sweep) -> Iterator[tuple[str, str]]:
    file, plan = entry.file, entry.plan
    yield "engine", f"vLLM {plan.engine_version}"
    yield "image", f"{plan.image} ({plan.image_source})" if plan.image else "none: the installed vLLM"
    yield "calibration", plan.calibration
    if swept.basis:
        yield "efficiencies", BASIS.get(swept.basis, swept.basis)
    yield "planner", f"{file.planner_version}, plan {plan.digest}"
    yield "command", file.command


def rejected_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    sizes = [f"{name} {row[key]}" for key, name in SIZES if row.get(key) and (row[key] != 1 or name == "TP")]
    cache = row.get("kv_cache_dtype")
    sizes += [f"{cache} KV cache"] if cache and cache != "auto" else []
    return str(row["gpu"]), str(row.get("model", "")), ", ".join(sizes) or "-", str(row.get("reason", ""))


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def picture(chart: Chart | None, within: str = "") -> dict[str, Any] | None:
    """A chart for the template: both drawings and its words. ``within`` is the id of its section."""
    if chart is None:
        return None
    name = f"{within}-{chart.name}" if within else chart.name
    return {
        "name": name,
        "title": chart.title,
        "description": chart.description,
        "wide": svg(chart, CHART_WIDTH, part_of=name),
        "narrow": svg(chart, NARROW, part_of=name),
        "table": table_of(chart.table.headings, chart.table.rows),
    }


def table_of(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    """A table for the template; columns of numbers are right-aligned."""
    numeric = [all(_NUMBER.fullmatch(row[at]) for row in rows) for at in range(len(headings))]
    return {"headings": headings, "rows": rows, "numeric": numeric}
