"""``planner report``: the plans of a folder as one page, or as single charts."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options as flag

if TYPE_CHECKING:
    from planner.evidence import PlanFolders
    from planner.output import Chart
    from planner.planning import Local


class ReportFormat(StrEnum):
    """What is made."""

    html = "html"
    svg = "svg"
    png = "png"
    term = "term"


class ChartName(StrEnum):
    """Which chart."""

    memory = "memory"
    pareto = "pareto"
    latency = "latency"
    operators = "operators"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("report", help="One page on the plans of a folder: charts, reasons, scripts.")(report)


def report(
    *,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that planner recommend -o wrote.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Default: report.html in DIR; of a chart, its name there."),
    ] = None,
    form: Annotated[
        ReportFormat, typer.Option("--format", help="A page, one chart, or charts of characters on stdout.")
    ] = ReportFormat.html,
    chart: Annotated[
        ChartName | None, typer.Option("--chart", help="One chart. term prints all where none is named.")
    ] = None,
    width: Annotated[
        int | None, typer.Option("--width", min=240, max=2000, help="Pixels of an svg or png chart. Default: 720.")
    ] = None,
    calibration: flag.Calibration = None,
) -> int:
    """Exit status 0. Nothing is computed again but the loads around each plan's own."""
    from planner.cli.inputs import local_fits
    from planner.errors import InputError
    from planner.evidence import read_plan_folders
    from planner.output import note, write_file

    drawn = form in (ReportFormat.svg, ReportFormat.png)
    if drawn and chart is None:
        raise InputError(f"--format {form.value} makes one chart", hint=f"name it: --chart {ChartName.pareto.value}")
    if form is ReportFormat.html and chart is not None:
        raise InputError("--chart: the page has all charts", hint="add --format svg, png or term for one of them")
    if width is not None and not drawn:
        raise InputError("--width is of svg and png charts", hint="leave it out: pages and terminals have their own")
    if output is not None and form is ReportFormat.term:
        raise InputError("-o: charts of characters go to stdout", hint="leave -o out, and redirect what is printed")
    dossier = read_plan_folders(directory)
    local = local_fits(calibration)
    if form is ReportFormat.term:
        _print_charts(dossier, local, chart)
        return 0
    suffix = f"{chart.value}.{form.value}" if chart else "report.html"
    path = output or directory / suffix
    write_file(path, _content(dossier, local, form, chart, width))
    note(f"wrote {path}")
    return 0


def _content(
    dossier: "PlanFolders", local: "Local", form: ReportFormat, chart: ChartName | None, width: int | None
) -> bytes:
    if chart is None:
        from planner.output import page

        return page(dossier, local).encode()
    from planner.errors import InputError
    from planner.output import CHART_WIDTH, png, svg

    drawn = _charts(dossier, local, chart)
    if not drawn:
        raise InputError(
            f"--chart {chart.value}: {_why_none(dossier, local)}", hint="planner report DIR shows the rest"
        )
    if len(drawn) > 1:
        below = ", ".join(entry.directory.name for entry in dossier.entries)
        raise InputError(
            f"--chart {chart.value} is of one plan, and {dossier.directory} holds {len(drawn)}",
            hint=f"give one of the folders in it: {below}",
        )
    size = width or CHART_WIDTH
    return png(drawn[0], size) if form is ReportFormat.png else svg(drawn[0], size).encode()


def _charts(dossier: "PlanFolders", local: "Local", chart: ChartName | None) -> "list[Chart]":
    """The charts of that name, or all; of latency and operators one for each plan."""
    from planner.output import latency_chart, memory_chart, operators_chart, pareto_chart
    from planner.planning import Sweep, sweep_loads

    plans = [entry.plan for entry in dossier.entries]
    replays = chart is not ChartName.memory
    sweeps = [sweep_loads(plan, local) if replays else Sweep() for plan in plans]
    pairs = list(zip(dossier.entries, sweeps, strict=True))
    made: dict[ChartName, Callable[[], Sequence[Chart | None]]] = {
        ChartName.memory: lambda: [memory_chart(plans)],
        ChartName.pareto: lambda: [pareto_chart(dossier, sweeps)],
        ChartName.latency: lambda: [latency_chart(entry, swept) for entry, swept in pairs],
        ChartName.operators: lambda: [operators_chart(entry, swept) for entry, swept in pairs],
    }
    found = [one for name in ([chart] if chart else ChartName) for one in made[name]()]
    return [one for one in found if one is not None]


def _why_none(dossier: "PlanFolders", local: "Local") -> str:
    from planner.planning import sweep_loads

    return sweep_loads(dossier.entries[0].plan, local).missing or "there is nothing to show"


def _print_charts(dossier: "PlanFolders", local: "Local", chart: ChartName | None) -> None:
    from planner.output import TERMINAL_WIDTH, note, term, terminal_width

    drawn = _charts(dossier, local, chart)
    for one in drawn:
        print(term(one, terminal_width() or TERMINAL_WIDTH))
    if not drawn:
        note(_why_none(dossier, local))
