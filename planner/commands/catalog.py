"""Look at the facts: ``planner hardware`` and ``planner models``."""

from __future__ import annotations

from typing import Annotated, Any

from planner.commands.completion import gpus, models
from planner.commands.declare import Argument, command
from planner.commands.options import Format, Refresh, Revision, Timeout

GpuArgument = Annotated[
    str, Argument(metavar="GPU", autocompletion=gpus, help="Profile id, alias or file; or 'local'.")
]
Models = Annotated[
    list[str],
    Argument(
        metavar="MODEL...", autocompletion=models, help="Hub ids, folders with a config.json, or config.json files."
    ),
]


@command("hardware list", help="Every profile with its aliases.")
def print_gpus(format: Format = "table") -> None:
    """Print the GPU profiles."""
    from planner.hardware import load_all
    from planner.output import print_hardware

    print_hardware(load_all(partitions=True), format)


@command("hardware show", help="One profile: every figure with its source.")
def print_gpu(gpu: GpuArgument, format: Format = "table") -> None:
    """Print one GPU profile."""
    from planner.commands.inputs import find_gpu
    from planner.output import print_notes, print_profile

    profile, remarks = find_gpu(gpu)
    print_notes(remarks)
    print_profile(profile, format)


@command("models list", help="The bundled catalog.")
def print_models_of_catalog(format: Format = "table") -> None:
    """Print the bundled catalog."""
    from planner.model import catalog_ids, find_entry
    from planner.output import print_catalog

    print_catalog([entry for entry in map(find_entry, catalog_ids()) if entry], format)


@command("models show", help="Architecture, parameters and bytes of models.")
def print_model_facts(
    model: Models,
    format: Format = "table",
    revision: Revision = None,
    refresh: Refresh = False,
    timeout: Timeout | None = None,
) -> int:
    """Print models. Exit status 2 or 3 if one of them cannot be shown; the others are shown all the same."""
    from planner.commands.streams import complain
    from planner.errors import PlannerError
    from planner.memory import model_facts
    from planner.model import resolve_model
    from planner.output import print_models

    rows: list[dict[str, Any]] = []
    errors: dict[str, PlannerError] = {}
    for name in model:
        try:
            rows.append(model_facts(resolve_model(name, revision=revision, refresh=refresh, timeout_s=timeout)))
        except PlannerError as error:
            rows.append({"requested": name, "error": error.cause, "hint": error.hint})
            errors[name] = error
    print_models(rows, format)
    if not errors:
        return 0
    causes = dict.fromkeys(error.cause for error in errors.values())
    hints = dict.fromkeys(error.hint for error in errors.values())
    return complain("; ".join(causes), max(e.exit_status for e in errors.values()), hint="; or ".join(hints))
