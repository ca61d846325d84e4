"""``planner report``: the plans of a folder as one page, or as single charts."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options as flag

if TYPE_CHECKING:
    from planner.charts import Chart
    from planner.dossier import Dossier
    from planner.local import Local


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
    from planner.dossier import read_dossier
    from planner.errors import InputError
    from planner.report.files import write_file
    from planner.report.render import note

    drawn = form in (ReportFormat.svg, ReportFormat.png)
    if drawn and chart is None:
        raise InputError(f"--format {form.value} makes one chart", hint=f"name it: --chart {ChartName.pareto.value}")
    if form is ReportFormat.html and chart is not None:
        raise InputError("--chart: the page has all charts", hint="add --format svg, png or term for one of them")
    if width is not None and not drawn:
        raise InputError("--width is of svg and png charts", hint="leave it out: pages and terminals have their own")
    if output is not None and form is ReportFormat.term:
        raise InputError("-o: charts of characters go to stdout", hint="leave -o out, and redirect what is printed")
    dossier = read_dossier(directory)
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
    dossier: "Dossier", local: "Local", form: ReportFormat, chart: ChartName | None, width: int | None
) -> bytes:
    if chart is None:
        from planner.report.page import page

        return page(dossier, local).encode()
    from planner.charts import draw
    from planner.errors import InputError

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
    size = width or draw.WIDTH
    return draw.png(drawn[0], size) if form is ReportFormat.png else draw.svg(drawn[0], size).encode()


def _charts(dossier: "Dossier", local: "Local", chart: ChartName | None) -> "list[Chart]":
    """The charts of that name, or all; of latency and operators one for each plan."""
    from planner.dossier import Sweep, sweep
    from planner.report import figures

    plans = [entry.plan for entry in dossier.entries]
    replays = chart is not ChartName.memory
    sweeps = [sweep(plan, local) if replays else Sweep() for plan in plans]
    pairs = list(zip(dossier.entries, sweeps, strict=True))
    made: dict[ChartName, Callable[[], Sequence[Chart | None]]] = {
        ChartName.memory: lambda: [figures.memory_chart(plans)],
        ChartName.pareto: lambda: [figures.pareto_chart(dossier, sweeps)],
        ChartName.latency: lambda: [figures.latency_chart(entry, swept) for entry, swept in pairs],
        ChartName.operators: lambda: [figures.operators_chart(entry, swept) for entry, swept in pairs],
    }
    found = [one for name in ([chart] if chart else ChartName) for one in made[name]()]
    return [one for one in found if one is not None]


def _why_none(dossier: "Dossier", local: "Local") -> str:
    from planner.dossier import sweep

    return sweep(dossier.entries[0].plan, local).missing or "there is nothing to show"


def _print_charts(dossier: "Dossier", local: "Local", chart: ChartName | None) -> None:
    from planner.charts import terminal
    from planner.report.render import note, terminal_width

    drawn = _charts(dossier, local, chart)
    for one in drawn:
        print(terminal.term(one, terminal_width() or terminal.WIDTH))
    if not drawn:
        note(_why_none(dossier, local))
