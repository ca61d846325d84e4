"""``planner hardware`` and ``planner models``: look at the facts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from planner.cli.options import Format, OutputFormat, Refresh, Revision


def register(app: typer.Typer) -> None:
    """Add the two groups to the command line."""
    hardware = typer.Typer(help="GPU profiles.", no_args_is_help=True, rich_markup_mode=None)
    hardware.command("list", help="Every profile with its aliases.")(hardware_list)
    hardware.command("show", help="One profile: every figure with its source.")(hardware_show)
    models = typer.Typer(help="Model architectures.", no_args_is_help=True, rich_markup_mode=None)
    models.command("list", help="The bundled catalog.")(models_list)
    models.command("show", help="Architecture, parameters and bytes of models.")(models_show)
    app.add_typer(hardware, name="hardware")
    app.add_typer(models, name="models")


def hardware_list(output: OutputFormat = Format.table) -> None:
    """List the GPU profiles."""
    from planner import report
    from planner.hardware import load_all

    report.print_hardware(load_all(), output)


def hardware_show(gpu: Annotated[str, typer.Argument(metavar="GPU")], output: OutputFormat = Format.table) -> None:
    """Show one GPU profile."""
    from planner import report
    from planner.hardware import load_profile

    report.print_profile(load_profile(gpu), output)


def models_list(output: OutputFormat = Format.table) -> None:
    """List the bundled catalog."""
    from planner import report
    from planner.model import catalog

    report.print_rows([{"model": name} for name in catalog.ids()], output)


def models_show(
    model: Annotated[list[str], typer.Argument(metavar="MODEL...")],
    output: OutputFormat = Format.table,
    revision: Revision = None,
    refresh: Refresh = False,
) -> int:
    """Show models. Exit status 2 or 3 when one of them could not be shown."""
    from planner import report
    from planner.errors import PlannerError
    from planner.memory import model_facts
    from planner.model.resolve import load_model

    rows: list[dict[str, Any]] = []
    status = 0
    for name in model:
        try:
            rows.append(model_facts(load_model(name, revision=revision, refresh=refresh)))
        except PlannerError as error:
            rows.append({"requested": name, "error": error.cause, "hint": error.hint})
            status = max(status, error.exit_status)
    report.print_models(rows, output)
    return status
