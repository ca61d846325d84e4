"""Does it fit? ``planner fit`` as functions."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from planner.api.flags import EngineFlags, engine_args
from planner.api.inputs import (
    GpuName,
    ModelName,
    asked_version,
    basis_for,
    found_gpu,
    found_gpus,
    load_model,
    version_for,
)
from planner.errors import IllegalPlanError
from planner.output import Answer, FitAnswer, FitTable, RefusedFit

if TYPE_CHECKING:
    from planner.engine import EngineArgs
    from planner.hardware import GpuProfile
    from planner.memory import Basis
    from planner.model import Model, ResolvedModel
    from planner.planning import FitResult

OWN = ("weight_dtype", "engine_version", "calibration", "explain", "revision", "refresh")


def check_fit(
    model: ModelName,
    gpu: GpuName,
    *,
    weight_dtype: str | None = None,
    engine_version: str | None = None,
    startup_log: str | PathLike[str] | None = None,
    calibration: str | PathLike[str] | None = None,
    explain: bool = False,
    revision: str | None = None,
    refresh: bool = False,
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
    args = engine_args(engine, own=(*OWN, "startup_log"))
    profile, remarks = found_gpu(gpu)  # before the model: a mistyped GPU should not wait for the hub
    resolved = load_model(model, weight_dtype=weight_dtype, revision=revision, refresh=refresh)
    if startup_log is not None:
        return _with_log(Path(startup_log), resolved, profile, args, engine_version, calibration, explain, remarks)
    result = _fit(resolved, profile, args, engine_version, basis_for(calibration, args))
    return FitAnswer(result, resolved, explain, remarks)


def list_fits(
    model: ModelName,
    gpu: GpuName | Iterable[GpuName],
    *,
    weight_dtype: str | None = None,
    engine_version: str | None = None,
    calibration: str | PathLike[str] | None = None,
    explain: bool = False,
    revision: str | None = None,
    refresh: bool = False,
    **engine: Unpack[EngineFlags],
) -> FitTable:
    """``check_fit`` for several GPUs, or for ``"all"``: a row for each.

    A GPU on which vLLM does not run the settings is an answer too. Raises IllegalPlanError where that is so on all.
    """
    args = engine_args(engine, own=OWN)
    profiles, remarks = found_gpus(gpu)
    resolved = load_model(model, weight_dtype=weight_dtype, revision=revision, refresh=refresh)
    basis = basis_for(calibration, args)
    answers = tuple(_fit_or_refusal(resolved, profile, args, engine_version, basis) for profile in profiles)
    refused = [answer for answer in answers if isinstance(answer, RefusedFit)]
    if len(refused) == len(answers):
        raise refused[0].error
    return FitTable(answers, resolved, arithmetic=explain, remarks=remarks)


def sweep_fit(
    model: ModelName,
    gpu: GpuName | Iterable[GpuName],
    *,
    weight_dtype: str | None = None,
    engine_version: str | None = None,
    calibration: str | PathLike[str] | None = None,
    explain: bool = False,
    revision: str | None = None,
    refresh: bool = False,
    **engine: Unpack[EngineFlags],
) -> FitTable:
    """A table over TP x precision x KV cache dtype; combinations that vLLM refuses are left out.

    A 16-bit model is taken in the usual published precisions too; a quantised one is what it is.
    """
    from planner.planning import sweep_settings

    args = engine_args(engine, own=OWN)
    profiles, remarks = found_gpus(gpu)
    resolved = load_model(model, weight_dtype=weight_dtype, revision=revision, refresh=refresh)
    basis = basis_for(calibration, args)
    answers: list[Answer] = []
    for profile in profiles:
        version = version_for(engine_version, profile)
        dtypes = _precisions(resolved.model)
        answers += sweep_settings(resolved.model, profile, args, version, weight_dtypes=dtypes, basis=basis)
    return FitTable(tuple(answers), resolved, sweep=True, arithmetic=explain, remarks=remarks)


def _with_log(
    path: Path,
    resolved: ResolvedModel,
    profile: GpuProfile,
    args: EngineArgs,
    version: str | None,
    calibration: str | PathLike[str] | None,
    explain: bool,
    remarks: tuple[str, ...],
) -> FitAnswer:
    """The answer with the overheads of a start-up log, compared with what was fitted to other machines."""
    from planner.planning import fit_with_log

    basis = basis_for(calibration or "none", args)
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
) -> Answer:
    """The answer for one GPU among several: settings that it does not run are an answer too."""
    try:
        return _fit(resolved, profile, args, version, basis)
    except IllegalPlanError as error:
        return RefusedFit(profile, error)


def _precisions(model: Model) -> tuple[str, ...]:
    return () if model.quantization.method else (model.dtype, "fp8", "int4-awq")
