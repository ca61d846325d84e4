"""``planner fit``: does the model fit?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from planner.cli import options as flag
from planner.cli.engine_flags import FLAGS, TIME_ONLY, takes_engine_flags
from planner.cli.options import Format
from planner.cli.streams import show
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.engine import EngineArgs
    from planner.output import Result


class _Asked(TypedDict):
    """What all ways of asking take."""

    weight_dtype: str | None
    engine_version: str | None
    calibration: str | None
    explain: bool
    revision: str | None
    refresh: bool


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("fit", help="Does it fit, and how many tokens will its KV cache hold?")(fit)


@takes_engine_flags(*(name for name in FLAGS if name not in TIME_ONLY))
def fit(
    *,
    model: flag.ModelArgument,
    gpu: flag.Gpus,
    args: "EngineArgs",
    weight_dtype: flag.WeightDtype = None,
    engine_version: flag.EngineVersionOption = None,
    startup_log: Annotated[
        Path | None,
        typer.Option(
            "--startup-log",
            metavar="FILE",
            help="vLLM's own start-up log: predicted beside logged, and its overheads kept for this machine.",
        ),
    ] = None,
    calibration: flag.Calibration = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Table over TP x precision x KV dtype.")] = False,
    explain: flag.Explain = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0 when it fits on every GPU asked for, 1 when it does not fit on one of them."""
    from planner.api.fit import check_fit, list_fits, sweep_fit
    from planner.api.flags import flags_of
    from planner.cli.inputs import gpu_profiles

    profiles = gpu_profiles(gpu)
    if startup_log and (sweep or len(profiles) > 1):
        raise InputError("--startup-log is of one start on one GPU", hint="leave out --sweep, and name one --gpu")
    asked = _Asked(
        weight_dtype=weight_dtype,
        engine_version=engine_version,
        calibration=calibration,
        explain=explain,
        revision=revision,
        refresh=refresh,
    )
    engine = flags_of(args)
    answer: Result
    if sweep:
        answer = sweep_fit(model, profiles, **asked, **engine)
    elif len(profiles) == 1:
        answer = check_fit(model, profiles[0], startup_log=startup_log, **asked, **engine)
    else:
        answer = list_fits(model, profiles, **asked, **engine)
    return show(answer, output)
