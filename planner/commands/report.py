"""The plans of a folder as one page, or as single charts: ``planner report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from planner.commands.declare import Argument, Option, command
from planner.commands.inputs import fits_for
from planner.commands.options import Calibration
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.evidence import PlanFolders
    from planner.planning import Local

ChartName = Literal["memory", "pareto", "latency", "operators"]

PlansDir = Annotated[Path, Argument(metavar="DIR", help="Folder that planner recommend -o wrote.")]
ReportFile = Annotated[
    Path, Option("-o", "--output", metavar="FILE", help="Default: report.html in DIR; of a chart, its name there.")
]
ReportFormat = Annotated[
    Literal["html", "svg", "term"],
    Option(help="HTML page, one chart as SVG, or charts of characters on stdout."),
]
Chart = Annotated[ChartName, Option(help="One chart. Without it, term prints all.")]
Width = Annotated[int, Option(min=240, max=2000, help="Width of an SVG chart in pixels. Default: 720.")]


@command("report", help="One page on the plans of a folder: charts, reasons, scripts.")
def report(
    directory: PlansDir,
    *,
    output: ReportFile | None = None,
    format: ReportFormat = "html",
    chart: Chart | None = None,
    width: Width | None = None,
    calibration: Calibration = None,
) -> None:
    """Write the page or the chart, or print charts. Only the loads around each plan's own are computed again."""
    from planner.evidence import read_plan_folders
    from planner.output import note, print_notes, write_file

    if format == "svg" and chart is None:
        raise InputError("--format svg makes one chart", hint="name it: --chart pareto")
    if format == "html" and chart is not None:
        raise InputError("--chart: the page has all charts", hint="add --format svg or term for one of them")
    if width is not None and format != "svg":
        raise InputError("--width is of svg charts", hint="leave it out: pages and terminals have their own")
    if output is not None and format == "term":
        raise InputError("-o: charts of characters go to stdout", hint="leave -o out, and redirect what is printed")
    folders = read_plan_folders(directory)
    local = fits_for(calibration)
    print_notes(local.notes)
    if format == "term":
        _print_charts(folders, local, chart)
        return
    suffix = f"{chart}.{format}" if chart else "report.html"
    path = output or directory / suffix
    write_file(path, _content(folders, local, chart, width))
    note(f"wrote {path}")


def _content(folders: PlanFolders, local: Local, chart: ChartName | None, width: int | None) -> bytes:
    if chart is None:
        from planner.output import page

        return page(folders, local).encode()
    from planner.output import charts_of, svg

    drawn = charts_of(folders, local, chart)
    if not drawn:
        raise InputError(f"--chart {chart}: {_why_none(folders, local)}", hint="planner report DIR shows the rest")
    if len(drawn) > 1:
        below = ", ".join(entry.directory.name for entry in folders.entries)
        raise InputError(
            f"--chart {chart} is of one plan, and {folders.directory} holds {len(drawn)}",
            hint=f"give one of the folders in it: {below}",
        )
    return svg(drawn[0], width).encode()


def _why_none(folders: PlanFolders, local: Local) -> str:
    from planner.planning import sweep_loads

    return sweep_loads(folders.entries[0].plan, local).missing or "there is nothing to show"


def _print_charts(folders: PlanFolders, local: Local, chart: ChartName | None) -> None:
    from planner.output import charts_of, note, term, terminal_width

    drawn = charts_of(folders, local, chart)
    for one in drawn:
        print(term(one, terminal_width()))
    if not drawn:
        note(_why_none(folders, local))
