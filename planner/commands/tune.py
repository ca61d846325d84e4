"""Which settings, by measuring? ``planner tune``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from planner import progress
from planner.commands.declare import Argument, Option, command
from planner.commands.inputs import check_count, fits_for, typed
from planner.commands.options import Calibration, PathName
from planner.commands.streams import write
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.output import TuningAnswer

TunedDir = Annotated[
    PathName, Argument(kind=Path, metavar="DIR", help="Folder of a plan, on the machine that it is for.")
]
Runs = Annotated[int, Option(min=1, help="Runs after which no other begins, earlier ones counted. Default: no limit.")]
Minutes = Annotated[float, Option(help="Minutes of all runs after which no other begins. Default: no limit.")]
Retry = Annotated[bool, Option("--retry", help="Try settings once more that failed to start.")]


def tune_plan(
    directory: TunedDir,
    *,
    runs: Runs | None = None,
    minutes: Minutes | None = None,
    retry: Retry = False,
    calibration: Calibration = None,
) -> TuningAnswer:
    """Measure the plan of ``directory`` and what may be better, until the best settings are known.

    Each run launches a server with the emitted scripts, measures and stops it. Next comes what gains most by what the
    runs so far say; the end is where no other setting is better by 3 % with 95 % probability, or after ``runs`` or
    ``minutes``. Of a plan with targets one server gets its share of the load, and a setting that breaks a target as
    measured is not the best. All is kept below ``directory/tune``: the same call goes on after a break, and measures
    nothing twice. ``retry`` tries settings again that did not start. ``calibration`` as in ``check_fit``; it counts
    when a tuning begins.

    ``answer.best`` is the folder of the best measured plan, ``answer.ok`` whether it is known to be the best. Raises
    InputError where there is no plan, or one of a recorded load, where the machine does not pass ``preflight.sh``,
    where several settings fail and none was measured, and where the state is broken.
    """
    return _tuned(progress.say, directory, runs, minutes, retry, calibration)


def _tuned(
    tell: Callable[[str], None],
    directory: PathName,
    runs: int | None = None,
    minutes: float | None = None,
    retry: bool = False,
    calibration: PathName | None = None,
) -> TuningAnswer:
    """The same; ``tell`` gets a line for each step."""
    from planner.output import Tuner, TuningAnswer

    check_count("runs", runs)
    if minutes is not None and not typed("minutes", minutes, float) > 0:
        raise InputError(f"--minutes must be above 0, got {minutes}", hint="give minutes, or leave it out")
    tuner = Tuner(Path(directory), tell)
    tuner.run(fits_for(calibration), runs=runs, minutes=minutes, retry=retry)
    try:
        return TuningAnswer(tuner, tuner.learn())
    except InputError as error:
        return TuningAnswer(tuner, remarks=(f"no calibration: {error.cause}",))


@command(
    "tune",
    help="Measure the plan and what may be better on this machine, until the best settings are known. Exit status 1 "
    "where the budget ends first.",
    extends=tune_plan,
)
def tune(**options: Any) -> TuningAnswer:
    """The tuning, each step told on stderr as it happens: a run takes minutes."""
    return _tuned(lambda line: write(f"{line}\n", sys.__stderr__), **options)
