"""``planner fit``: does the model fit?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options as flag
from planner.cli.engine_flags import FLAGS, takes_engine_flags
from planner.cli.options import Format
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.engine.config import EngineArgs
    from planner.hardware import GpuProfile
    from planner.memory.budget import Basis
    from planner.model.architecture import Model
    from planner.model.resolve import ResolvedModel
    from planner.report.fit import Answer


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("fit", help="Does it fit, and how many tokens will its KV cache hold?")(fit)


@takes_engine_flags(*FLAGS)
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
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", metavar="FILE|none", help="Other memory overheads than this user's own."),
    ] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Table over TP x precision x KV dtype.")] = False,
    explain: flag.Explain = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0 when it fits on every GPU asked for, 1 when it does not fit on one of them."""
    from planner.cli.inputs import gpu_profiles, model_as
    from planner.report.fit import print_fit

    profiles = gpu_profiles(gpu)  # before the model: a mistyped GPU should not wait for the hub
    resolved = model_as(model, weight_dtype, revision=revision, refresh=refresh)
    answers: list[Answer] = []
    if startup_log:
        if sweep or len(profiles) > 1:
            raise InputError("--startup-log is of one start on one GPU", hint="leave out --sweep, and name one --gpu")
        answers.append(_with_log(startup_log, resolved, profiles[0], args, engine_version, calibration))
        profiles = []
    basis = _basis(args, calibration)
    for profile in profiles:
        if sweep:
            answers += _sweep(resolved, profile, args, engine_version, basis)
        else:
            answers.append(_answer(resolved, profile, args, engine_version, basis, among_several=len(profiles) > 1))
    _refuse_if_all_do(answers)
    print_fit(answers, resolved, output, arithmetic=explain, sweep=sweep)
    return 0 if sweep or all(answer.fits for answer in answers) else 1


def _basis(args: "EngineArgs", calibration: str | None) -> "Basis":
    """The overheads that ``--calibration`` means, and the draft of ``--speculative-config``."""
    from planner.memory.budget import Basis
    from planner.memory.local import constants_for
    from planner.model.resolve import load_model

    drafts = args.speculative_config
    draft = load_model(drafts.model).model if drafts and drafts.has_draft_model and drafts.model else None
    return Basis(constants_for(calibration), draft)


def _with_log(
    path: Path,
    resolved: "ResolvedModel",
    profile: "GpuProfile",
    args: "EngineArgs",
    version: str | None,
    calibration: str | None,
) -> "Answer":
    """The answer with the overheads of a start-up log, compared with what was fitted to other machines."""
    from planner.cli.inputs import engine_version_for
    from planner.engine.version import parse_version
    from planner.fit.startup import fit_with_log, read_log, version_of

    log = read_log(path, (resolved.requested, resolved.resolved, resolved.model.id))
    engine = version_of(log, parse_version(version) if version else None) or engine_version_for(None, profile)
    return fit_with_log(
        log,
        resolved.model,
        profile,
        args,
        engine,
        _basis(args, calibration or "none"),
        requested_model=resolved.requested,
        resolved_model=resolved.resolved,
    )


def _answer(
    resolved: "ResolvedModel",
    profile: "GpuProfile",
    args: "EngineArgs",
    version: str | None,
    basis: "Basis",
    *,
    among_several: bool,
) -> "Answer":
    """The answer for one GPU. Among several, settings that this one does not run are an answer too."""
    from planner.cli.inputs import engine_version_for
    from planner.errors import IllegalPlanError
    from planner.fit import fit as fit_model
    from planner.report.fit import Refused

    try:
        engine = engine_version_for(version, profile)
        return fit_model(
            resolved.model,
            profile,
            args,
            engine,
            requested_model=resolved.requested,
            resolved_model=resolved.resolved,
            basis=basis,
        )
    except IllegalPlanError as error:
        if not among_several:
            raise
        return Refused(profile, error)


def _refuse_if_all_do(answers: "list[Answer]") -> None:
    """Settings that no GPU runs are bad input."""
    from planner.report.fit import Refused

    refused = [answer for answer in answers if isinstance(answer, Refused)]
    if refused and len(refused) == len(answers):
        raise refused[0].error


def _sweep(
    resolved: "ResolvedModel", profile: "GpuProfile", args: "EngineArgs", version: str | None, basis: "Basis"
) -> "list[Answer]":
    from planner.cli.inputs import engine_version_for
    from planner.fit import sweep

    engine = engine_version_for(version, profile)
    return [*sweep(resolved.model, profile, args, engine, weight_dtypes=_precisions(resolved.model), basis=basis)]


def _precisions(model: "Model") -> tuple[str, ...]:
    """A 16-bit model is swept over the usual published precisions too; a quantised one is what it is."""
    return () if model.quantization.method else (model.dtype, "fp8", "int4-awq")
