"""``planner hardware`` and ``planner models``: look at the facts."""

from typing import Annotated, Any

import typer

from planner.cli.options import Format, OutputFormat, Refresh, Revision


def register(app: typer.Typer) -> None:
    """Add the two groups to the command line."""
    hardware = typer.Typer(help="GPU profiles.", rich_markup_mode=None)
    hardware.command("list", help="Every profile with its aliases.")(hardware_list)
    hardware.command("show", help="One profile: every figure with its source.")(hardware_show)
    models = typer.Typer(help="Model architectures.", rich_markup_mode=None)
    models.command("list", help="The bundled catalog.")(models_list)
    models.command("show", help="Architecture, parameters and bytes of models.")(models_show)
    app.add_typer(hardware, name="hardware")
    app.add_typer(models, name="models")


def hardware_list(output: OutputFormat = Format.table) -> None:
    """List the GPU profiles."""
    from planner.hardware import load_all
    from planner.output import print_hardware

    print_hardware(load_all(), output)


def hardware_show(
    gpu: Annotated[str, typer.Argument(metavar="GPU", help="Profile id, alias or file; local: this machine's.")],
    output: OutputFormat = Format.table,
) -> None:
    """Show one GPU profile."""
    from planner.cli.inputs import gpu_profile
    from planner.output import print_profile

    print_profile(gpu_profile(gpu), output)


def models_list(output: OutputFormat = Format.table) -> None:
    """List the bundled catalog."""
    from planner.model import catalog_ids, find_entry
    from planner.output import print_catalog

    print_catalog([entry for entry in map(find_entry, catalog_ids()) if entry], output)


def models_show(
    model: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Hub ids, folders with a config.json, or such files.")
    ],
    output: OutputFormat = Format.table,
    revision: Revision = None,
    refresh: Refresh = False,
) -> int:
    """Show models. Exit status 2 or 3 when one of them could not be shown; the others are shown all the same."""
    from planner.cli.streams import complain
    from planner.errors import PlannerError
    from planner.memory import model_facts
    from planner.model import resolve_model
    from planner.output import print_models

    rows: list[dict[str, Any]] = []
    errors: dict[str, PlannerError] = {}
    for name in model:
        try:
            rows.append(model_facts(resolve_model(name, revision=revision, refresh=refresh)))
        except PlannerError as error:
            rows.append({"requested": name, "error": error.cause, "hint": error.hint})
            errors[name] = error
    print_models(rows, output)
    if not errors:
        return 0
    causes = dict.fromkeys(error.cause for error in errors.values())
    hints = dict.fromkeys(error.hint for error in errors.values())
    return complain("; ".join(causes), max(e.exit_status for e in errors.values()), hint="; or ".join(hints))
