"""``planner compare``: several GPUs and modes under equal load."""

from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options as flag
from planner.cli.defaults import source_of
from planner.cli.engine_flags import takes_engine_flags
from planner.cli.options import LOAD, Format
from planner.cli.streams import show
from planner.errors import InputError
from planner.planning import defaults

if TYPE_CHECKING:
    from planner.engine import EngineArgs

_CONCURRENCY = ",".join(map(str, defaults.COMPARED_CONCURRENCY))


class Per(StrEnum):
    """What is equal."""

    package = "package"
    node = "node"
    gpu = "gpu"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("compare", help="GPUs and modes side by side, on equal hardware under equal load.")(compare)


@takes_engine_flags()
def compare(
    *,
    context: typer.Context,
    model: flag.ModelOrDefault = defaults.MODEL,
    gpu: flag.GpusOrDefault = None,
    per: Annotated[
        Per,
        typer.Option(
            "--per", help="Equal are packages (all partitions of one GPU together), nodes, or logical GPUs as they are."
        ),
    ] = Per.package,
    packages: Annotated[
        int | None,
        typer.Option("--packages", min=1, help="How many each gets. Default: the fewest on which all hold the model."),
    ] = None,
    input_len: Annotated[
        str,
        typer.Option(
            "--random-input-len", "--input-len", metavar="N,N", rich_help_panel=LOAD, help="Prompt tokens, several too."
        ),
    ] = str(defaults.LEN),
    output_len: Annotated[
        str,
        typer.Option(
            "--random-output-len",
            "--output-len",
            metavar="N,N",
            rich_help_panel=LOAD,
            help="Output tokens; as many as input lengths, or one.",
        ),
    ] = str(defaults.LEN),
    max_concurrency: Annotated[
        str | None,
        typer.Option(
            "--max-concurrency",
            metavar="N,N",
            rich_help_panel=LOAD,
            help=f"Requests in flight on all servers of a GPU type together. Default: {_CONCURRENCY}.",
        ),
    ] = None,
    request_rate: Annotated[
        str | None,
        typer.Option(
            "--request-rate", metavar="R,R", rich_help_panel=LOAD, help="Instead: requests per second, likewise."
        ),
    ] = None,
    burstiness: flag.Burstiness = 1.0,
    range_ratio: flag.RangeRatio = 0.0,
    seed: flag.Seed = 0,
    price: flag.Price = None,
    args: "EngineArgs",
    weight_dtype: flag.WeightDtype = None,
    engine_version: flag.EngineVersionOption = None,
    calibration: flag.Calibration = None,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0, or 1 when no GPU holds the model."""
    from planner.api.compare import compare_gpus
    from planner.api.flags import flags_of

    if max_concurrency is not None and request_rate is not None:
        raise InputError("--max-concurrency and --request-rate name two loads", hint="give one of them")
    engine = flags_of(args)
    if source_of(context, "tensor_parallel_size") == "DEFAULT":
        del engine["tensor_parallel_size"]  # it is searched
    answer = compare_gpus(
        model,
        gpu or defaults.GPUS,
        per=per.value,
        packages=packages,
        input_len=_integers("--random-input-len", input_len),
        output_len=_integers("--random-output-len", output_len),
        max_concurrency=None if max_concurrency is None else _integers("--max-concurrency", max_concurrency),
        request_rate=None if request_rate is None else _numbers("--request-rate", request_rate),
        burstiness=burstiness,
        random_range_ratio=range_ratio,
        seed=seed,
        price=price or (),
        weight_dtype=weight_dtype,
        engine_version=engine_version,
        calibration=calibration,
        revision=revision,
        refresh=refresh,
        **engine,
    )
    return show(answer, output)


def _integers(name: str, text: str) -> list[int]:
    values = _numbers(name, text)
    if any(value != int(value) for value in values):
        raise InputError(f"{name} {text!r} is not a list of whole numbers", hint=f"for example {name} 8,32,128")
    return [int(value) for value in values]


def _numbers(name: str, text: str) -> list[float]:
    """Positive numbers, in their order: lengths are pairs, so they may come again."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(isfinite(value) and value > 0 for value in values):
        raise InputError(f"{name} {text!r} is not a list of positive numbers", hint=f"for example {name} 8,32,128")
    return values
