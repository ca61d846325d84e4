"""Memory of one engine, or of several: ``planner fit``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from planner import output, planning
from planner.commands.declare import Option, command
from planner.commands.options import HELP, MEMORY, SERVING, Explain, Gpus, Model, Partitions, PathName
from planner.errors import IllegalPlanError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from planner.output import FitAnswer, FitTable, GpuFit
    from planner.planning import GpuName, ModelName, Serving

StartupLog = Annotated[PathName | None, Option(kind=Path, metavar="FILE", help=HELP["startup_log"])]
Sweep = Annotated[bool, Option(help="Table over TP x precision x KV cache dtype.")]


@command("fit", help="Does it fit, and how many tokens does its KV cache hold?", groups=SERVING, engine=MEMORY)
def fit(
    model: Model, gpu: Gpus, *, partitions: Partitions = False, sweep: Sweep = False, startup_log: StartupLog = None,
    explain: Explain = False, **options: Any,
) -> FitAnswer | FitTable:  # fmt: skip
    """Check one GPU, several GPUs (a row for each) or, with ``sweep``, many settings.

    Raises IllegalPlanError where vLLM refuses the settings on all GPUs, and what ``Serving`` raises."""
    if startup_log is not None and (sweep or len(planning.find_gpus(gpu)[0]) > 1):
        raise InputError("--startup-log is of one start on one GPU", hint="leave out --sweep, and name one --gpu")
    if startup_log is not None:
        options.setdefault("calibration", "none")
    servings = planning.Serving.on_each(model, gpu, partitions=partitions, **options)
    if sweep:
        swept = tuple(result for serving in servings for result in planning.sweep_settings(serving))
        first = servings[0]
        return output.FitTable(swept, first.resolved, sweep=True, explain=explain, remarks=first.remarks)
    return _one(servings[0], startup_log, explain) if len(servings) == 1 else _several(servings, explain)


def check_fit(
    model: ModelName, gpu: GpuName, *, startup_log: PathName | None = None, explain: bool = False, **options: Any
) -> FitAnswer:
    """``Serving(model, gpu, **options).fit()`` as an answer to print."""
    if startup_log is not None:
        options.setdefault("calibration", "none")
    return _one(planning.Serving(model, gpu, **options), startup_log, explain)


def list_fits(model: ModelName, gpu: GpuName | Iterable[GpuName], *, explain: bool = False, **options: Any) -> FitTable:
    """``check_fit`` for several GPUs, a row for each."""
    return _several(planning.Serving.on_each(model, gpu, **options), explain)


def sweep_fit(model: ModelName, gpu: GpuName | Iterable[GpuName], **options: Any) -> FitTable:
    """``planner fit --sweep``: a table over TP x precision x KV cache dtype."""
    return cast("FitTable", fit(model, gpu, sweep=True, **options))


def _one(serving: Serving, startup_log: PathName | None, explain: bool) -> FitAnswer:
    fit = serving.fit(startup_log=startup_log)
    return output.FitAnswer(fit, serving.resolved, explain=explain, remarks=serving.remarks)


def _several(servings: Sequence[Serving], explain: bool) -> FitTable:
    answers: list[GpuFit] = []
    for serving in servings:
        try:
            answers.append(serving.fit())
        except IllegalPlanError as error:
            answers.append(output.RefusedFit(serving.profile, error))
    refused = [answer for answer in answers if isinstance(answer, output.RefusedFit)]
    if len(refused) == len(answers):
        raise refused[0].error
    return output.FitTable(tuple(answers), servings[0].resolved, explain=explain, remarks=servings[0].remarks)
