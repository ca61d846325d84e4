"""Look at the facts: ``planner hardware`` and ``planner models``."""

from typing import Annotated, Any

from planner import hardware, model, output, planning
from planner.commands.declare import Argument, Option, command
from planner.commands.options import HUB, Format, complete_gpu, complete_model
from planner.commands.streams import complain
from planner.errors import PlannerError

_GPU = "Profile id, alias or file; or 'local'."
_MODELS = "Hub ids, folders with a config.json, or config.json files."


@command("hardware list", help="GPU profiles with their aliases.")
def print_gpus(
    *,
    every: Annotated[bool, Option("--all", help="Also partitions and MIG profiles.")] = False,
    format: Format = "table",
) -> None:
    output.print_hardware(hardware.load_all(partitions=every), format)


@command("hardware show", help="One profile: every figure with its source.")
def print_gpu(
    gpu: Annotated[str, Argument(metavar="GPU", autocompletion=complete_gpu, help=_GPU)], *, format: Format = "table"
) -> None:
    profile, remarks = planning.find_gpu(gpu)
    output.print_notes(remarks)
    output.print_profile(profile, format)


@command("models list", help="The bundled catalog.")
def print_models_of_catalog(*, format: Format = "table") -> None:
    output.print_catalog([entry for entry in map(model.find_entry, model.catalog_ids()) if entry], format)


@command("models show", help="Architecture, parameters and bytes of models.", groups=(HUB,))
def print_model_facts(
    model: Annotated[list[str], Argument(metavar="MODEL...", autocompletion=complete_model, help=_MODELS)], *,
    format: Format = "table", **hub: Any,
) -> int:  # fmt: skip
    """Print models. Exit status 2 or 3 if one of them cannot be shown; the others are shown all the same."""
    rows: list[dict[str, Any]] = []
    errors: list[PlannerError] = []
    for name in model:
        try:
            rows.append(output.model_facts(planning.load_model(name, **hub)))
        except PlannerError as error:
            rows.append({"requested": name, "error": error.cause, "hint": error.hint})
            errors.append(error)
    output.print_models(rows, format)
    if not errors:
        return 0
    causes = dict.fromkeys(error.cause for error in errors)
    hints = dict.fromkeys(error.hint for error in errors)
    return complain("; ".join(causes), max(e.exit_status for e in errors), hint="; or ".join(hints))
