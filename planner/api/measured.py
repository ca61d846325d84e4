"""Predictions beside measurements: ``planner evaluate``, ``calibrate`` and ``validate`` as functions."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from planner.api.flags import EngineFlags, engine_args
from planner.api.inputs import path_text

if TYPE_CHECKING:
    from planner.output import CalibrationAnswer, Evaluation, ValidationAnswer

OWN = ("output", "fresh", "gpu", "model", "engine_version", "weight_dtype", "input_len", "output_len", "batch_size")


def evaluate_runs(runs: str | PathLike[str], *, calibration: str | PathLike[str] | None = None) -> Evaluation:
    """Predict every measured run of a table (CSV), and say how far off the predictions are.

    ``answer.evaluated`` has a record for each run, ``answer.summary()`` errors by GPU, bench and metric as fractions.
    A run that cannot be predicted is counted and named, one whose figures contradict each other is named in
    ``answer.notes``. ``calibration`` as in ``check_fit``. Raises InputError, naming
    line and column, for a file that is no table of runs.
    """
    from planner.evidence import evaluate, notes_on_runs, read_runs
    from planner.output import Evaluation
    from planner.planning import local_for

    local = local_for(path_text(calibration))
    table = read_runs(Path(runs))
    return Evaluation(tuple(evaluate(table, local)), (*local.notes, *notes_on_runs(table)))


def calibrate_from(
    *sources: str | PathLike[str],
    output: str | PathLike[str] | None = None,
    fresh: bool = False,
    gpu: str | None = None,
    model: str | None = None,
    engine_version: str | None = None,
    weight_dtype: str | None = None,
    input_len: int | None = None,
    output_len: int | None = None,
    batch_size: int | None = None,
    **engine: Unpack[EngineFlags],
) -> CalibrationAnswer:
    """Learn from a user's own runs, and keep what was learned if it is better: later predictions use it.

    ``sources`` are tables of runs (CSV), results of ``vllm bench`` (JSON) or folders of plans; none: the runs that are
    kept, once more. ``output`` is the file that it is kept in (default: the user's own), ``fresh`` leaves out the runs
    of earlier calibrations. The other keywords say of a result what its file does not.

    ``answer.ok`` is false where nothing was better and so nothing was written. Raises InputError where there is no run,
    where none can be replayed, and where the file cannot be written.
    """
    from planner.evidence import Stated, calibrate, read_sources
    from planner.output import CalibrationAnswer
    from planner.planning import local_path

    args = engine_args(engine, own=OWN)
    stated = Stated(gpu, model, engine_version, weight_dtype, input_len, output_len, batch_size, args)
    path = Path(output) if output is not None else local_path()
    answer = calibrate(read_sources([Path(source) for source in sources], stated), path, fresh=fresh)
    if answer.kept:
        answer.save()
    return CalibrationAnswer(answer)


def validate_plan(directory: str | PathLike[str]) -> ValidationAnswer:
    """What the scripts of a plan measured beside its prediction, and the likeliest causes where they differ.

    ``directory`` is the folder of a plan after its ``benchmark.sh`` ran. ``answer.ok`` is whether every measurement
    lies within its bounds and the server's log, where there is one, says that the plan's vLLM ran with its settings
    (``answer.record.inside`` and ``answer.record.as_planned``). Raises InputError where there is no plan, or no result.
    """
    from planner.evidence import validate
    from planner.output import ValidationAnswer

    return ValidationAnswer(validate(Path(directory)))
