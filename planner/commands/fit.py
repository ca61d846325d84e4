"""Does it fit? ``planner fit``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from planner.commands.declare import Option, command, keywords
from planner.commands.engine_options import MEMORY, engine_args
from planner.commands.inputs import asked_version, basis_for, find_gpu, find_gpus, fits_for, load_model, version_for
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
    from planner.engine import EngineArgs, EngineFlags
    from planner.hardware import GpuProfile
    from planner.memory import Basis
    from planner.model import ResolvedModel
    from planner.output import FitAnswer, FitTable, GpuFit
    from planner.planning import FitResult

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
    **engine: Unpack[EngineFlags],
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

    args = engine_args(engine, own=keywords(check_fit))
    profile, remarks = find_gpu(gpu, network_gb_per_s)  # before the model: a mistyped GPU should not wait for the hub
    resolved = load_model(model, weight_dtype=weight_dtype, revision=revision, refresh=refresh, timeout=timeout)
    if startup_log is not None:
        return _with_log(Path(startup_log), resolved, profile, args, engine_version, calibration, explain, remarks)
    result = _fit(resolved, profile, args, engine_version, basis_for(fits_for(calibration), args))
    return FitAnswer(result, resolved, explain, remarks)


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
    **engine: Unpack[EngineFlags],
) -> FitTable:
    """``check_fit`` for several GPUs, or for ``"all"``: a row for each.

    A GPU on which vLLM does not run the settings is an answer too. Raises IllegalPlanError where that is so on all.
    """
    from planner.output import FitTable, RefusedFit

    args = engine_args(engine, own=keywords(list_fits))
    profiles, remarks = find_gpus(gpu, network_gb_per_s)
    resolved = load_model(model, weight_dtype=weight_dtype, revision=revision, refresh=refresh, timeout=timeout)
    basis = basis_for(fits_for(calibration), args)
    answers = tuple(_fit_or_refusal(resolved, profile, args, engine_version, basis) for profile in profiles)
    refused = [answer for answer in answers if isinstance(answer, RefusedFit)]
    if len(refused) == len(answers):
        raise refused[0].error
    return FitTable(answers, resolved, explain=explain, remarks=remarks)


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
    **engine: Unpack[EngineFlags],
) -> FitTable:
    """A table over TP x precision x KV cache dtype; combinations that vLLM refuses are left out.

    A 16-bit model is taken in the usual published precisions too; a quantised one is what it is.
    """
    from planner.output import FitTable
    from planner.planning import sweep_settings

    args = engine_args(engine, own=keywords(sweep_fit))
    profiles, remarks = find_gpus(gpu, network_gb_per_s)
    resolved = load_model(model, weight_dtype=weight_dtype, revision=revision, refresh=refresh, timeout=timeout)
    basis = basis_for(fits_for(calibration), args)
    answers: list[GpuFit] = []
    for profile in profiles:
        version = version_for(engine_version, profile)
        dtypes = _precisions(resolved)
        answers += sweep_settings(resolved.model, profile, args, version, weight_dtypes=dtypes, basis=basis)
    return FitTable(tuple(answers), resolved, sweep=True, explain=explain, remarks=remarks)


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


def _with_log(
    path: Path,
    resolved: ResolvedModel,
    profile: GpuProfile,
    args: EngineArgs,
    version: str | None,
    calibration: PathName | None,
    explain: bool,
    remarks: tuple[str, ...],
) -> FitAnswer:
    """The answer with the overheads of a start-up log, compared with what was fitted to other machines."""
    from planner.output import FitAnswer
    from planner.planning import fit_with_log

    basis = basis_for(fits_for(calibration or "none"), args)
    result = fit_with_log(path, resolved, profile, args, asked_version(version), basis)
    return FitAnswer(result, resolved, explain, remarks)


def _fit(
    resolved: ResolvedModel, profile: GpuProfile, args: EngineArgs, version: str | None, basis: Basis
) -> FitResult:
    from planner.planning import fit_model

    return fit_model(
        resolved.model,
        profile,
        args,
        version_for(version, profile),
        requested_model=resolved.requested,
        resolved_model=resolved.resolved,
        basis=basis,
    )


def _fit_or_refusal(
    resolved: ResolvedModel, profile: GpuProfile, args: EngineArgs, version: str | None, basis: Basis
) -> GpuFit:
    """The answer for one GPU among several: settings that it does not run are an answer too."""
    from planner.output import RefusedFit

    try:
        return _fit(resolved, profile, args, version, basis)
    except IllegalPlanError as error:
        return RefusedFit(profile, error)


def _precisions(resolved: ResolvedModel) -> tuple[str, ...]:
    model = resolved.model
    return () if model.quantization.method else (model.dtype, "fp8", "int4-awq")
