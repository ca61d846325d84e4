"""Does it fit? ``planner fit``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from planner.commands.declare import Option, command
from planner.commands.engine_options import MEMORY
from planner.commands.inputs import find_gpus
from planner.commands.options import (
    Calibration,
    EngineVersion,
    Explain,
    Gpu,
    Gpus,
    Model,
    NetworkGbPerS,
    PathName,
    Refresh,
    Revision,
    Timeout,
    WeightDtype,
)
from planner.errors import IllegalPlanError, InputError

if TYPE_CHECKING:
    from planner.output import FitAnswer, FitTable, GpuFit

StartupLog = Annotated[
    PathName | None,
    Option(
        kind=Path,
        metavar="FILE",
        help="vLLM's own start-up log. It is compared with the prediction, and its overheads are kept for this user.",
    ),
]
Sweep = Annotated[bool, Option(help="Table over TP x precision x KV cache dtype.")]


def check_fit(
    model: Model,
    gpu: Gpu,
    *,
    network_gb_per_s: NetworkGbPerS = None,
    weight_dtype: WeightDtype = None,
    engine_version: EngineVersion = None,
    startup_log: StartupLog = None,
    calibration: Calibration = None,
    explain: Explain = False,
    revision: Revision = None,
    refresh: Refresh = False,
    timeout: Timeout | None = None,
    **engine: Any,
) -> FitAnswer:
    """Whether vLLM starts with ``model`` on ``gpu``, and how many tokens its KV cache holds.

    ``engine`` are flags of ``vllm serve`` (``tensor_parallel_size=8``, ``max_model_len=32768``, ...; tokens, GiB, or
    shares of the memory, as vLLM has them). ``engine_version`` is a version of vLLM or the date of a build; by default
    the newest with an image for the GPU. ``startup_log`` is a file with vLLM's own start-up messages: it is compared,
    and the overheads that it shows count and are kept for this user. ``calibration`` is a file of
    ``calibrate_from``, ``"none"`` for the fits as shipped, by default the user's own.

    In the answer, bytes are per GPU, tokens and concurrency per engine; ``answer.fits`` is the best estimate,
    ``answer.record`` has every figure. Raises IllegalPlanError for settings that vLLM refuses whatever the memory,
    and what ``load_model`` and ``load_gpu`` raise.
    """
    from planner.output import FitAnswer
    from planner.planning import Serving

    if startup_log is not None:
        calibration = calibration or "none"
    serving = Serving(
        model, gpu, network_gb_per_s=network_gb_per_s, weight_dtype=weight_dtype, engine_version=engine_version,
        calibration=calibration, revision=revision, refresh=refresh, timeout=timeout, **engine,
    )  # fmt: skip
    return FitAnswer(serving.fit(startup_log=startup_log), serving.resolved, explain, serving.remarks)


def list_fits(
    model: Model,
    gpu: Gpus,
    *,
    network_gb_per_s: NetworkGbPerS = None,
    weight_dtype: WeightDtype = None,
    engine_version: EngineVersion = None,
    calibration: Calibration = None,
    explain: Explain = False,
    revision: Revision = None,
    refresh: Refresh = False,
    timeout: Timeout | None = None,
    **engine: Any,
) -> FitTable:
    """``check_fit`` for several GPUs, or for ``"all"``: a row for each.

    A GPU on which vLLM does not run the settings is an answer too. Raises IllegalPlanError where that is so on all.
    """
    from planner.output import FitTable, RefusedFit
    from planner.planning import Serving

    servings = Serving.on_each(
        model, gpu, network_gb_per_s=network_gb_per_s, weight_dtype=weight_dtype, engine_version=engine_version,
        calibration=calibration, revision=revision, refresh=refresh, timeout=timeout, **engine,
    )  # fmt: skip
    answers: list[GpuFit] = []
    for serving in servings:
        try:
            answers.append(serving.fit())
        except IllegalPlanError as error:
            answers.append(RefusedFit(serving.profile, error))
    refused = [answer for answer in answers if isinstance(answer, RefusedFit)]
    if len(refused) == len(answers):
        raise refused[0].error
    return FitTable(tuple(answers), servings[0].resolved, explain=explain, remarks=servings[0].remarks)


def sweep_fit(
    model: Model,
    gpu: Gpus,
    *,
    network_gb_per_s: NetworkGbPerS = None,
    weight_dtype: WeightDtype = None,
    engine_version: EngineVersion = None,
    calibration: Calibration = None,
    explain: Explain = False,
    revision: Revision = None,
    refresh: Refresh = False,
    timeout: Timeout | None = None,
    **engine: Any,
) -> FitTable:
    """A table over TP x precision x KV cache dtype; combinations that vLLM refuses are left out.

    A 16-bit model is taken in the usual published precisions too; a quantised one is what it is.
    """
    from planner.output import FitTable
    from planner.planning import Serving, sweep_settings

    servings = Serving.on_each(
        model, gpu, network_gb_per_s=network_gb_per_s, weight_dtype=weight_dtype, engine_version=engine_version,
        calibration=calibration, revision=revision, refresh=refresh, timeout=timeout, **engine,
    )  # fmt: skip
    answers = [answer for serving in servings for answer in sweep_settings(serving)]
    return FitTable(tuple(answers), servings[0].resolved, sweep=True, explain=explain, remarks=servings[0].remarks)


@command("fit", help="Does it fit, and how many tokens does its KV cache hold?", extends=check_fit, engine=MEMORY)
def fit(gpu: Gpus, *, sweep: Sweep = False, startup_log: StartupLog = None, **options: Any) -> FitAnswer | FitTable:
    """The answer for one GPU, a row for each of several, or the sweep."""
    profiles, remarks = find_gpus(gpu)
    answer: FitAnswer | FitTable
    if startup_log and (sweep or len(profiles) > 1):
        raise InputError("--startup-log is of one start on one GPU", hint="leave out --sweep, and name one --gpu")
    if sweep:
        answer = sweep_fit(gpu=profiles, **options)
    elif len(profiles) == 1:
        answer = check_fit(gpu=profiles[0], startup_log=startup_log, **options)
    else:
        answer = list_fits(gpu=profiles, **options)
    return replace(answer, remarks=(*remarks, *answer.remarks))
