"""Predictions beside measurements: ``planner evaluate``, ``calibrate`` and ``validate``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from planner.commands.completion import gpus, models
from planner.commands.declare import Argument, Option, command, keywords
from planner.commands.engine_options import engine_args
from planner.commands.inputs import fits_for
from planner.commands.options import LOAD, Calibration, PathName
from planner.engine import tagged
from planner.resources import alone_in

if TYPE_CHECKING:
    from planner.output import CalibrationAnswer, Evaluation, OfflineValidation, ValidationAnswer

RESULTS = "Results without a plan.json"

TOOLS = "vllm bench, GuideLLM, AIPerf, GenAI-Perf, inference-perf, SGLang's bench_serving or InferenceX"

Runs = Annotated[
    PathName,
    Argument(kind=Path, metavar="RUNS.csv|RESULT.json", help=f"Table of measured runs, or a result of {TOOLS}."),
]
Chart = Annotated[Path, Option(metavar="FILE", help="SVG file to draw predicted against measured in.")]
Sources = Annotated[
    PathName,
    Argument(
        kind=list[Path],
        metavar="[RUNS.csv|RESULT.json|DIR]...",
        help=f"Tables of runs, results of {TOOLS}, folders of plans. Default: the runs that were kept before.",
    ),
]
Output = Annotated[
    PathName, Option("-o", "--output", kind=Path, metavar="FILE", help="Default: this user's own calibration.")
]
Fresh = Annotated[bool, Option(help="Leave out the runs of earlier calibrations.")]
ResultGpu = Annotated[
    str, Option("--gpu", metavar="GPU", autocompletion=gpus, panel=RESULTS, help="Profile id or alias.")
]
ResultModel = Annotated[
    str, Option("--model", metavar="MODEL", autocompletion=models, panel=RESULTS, help="Default: the result's.")
]
ResultVersion = Annotated[
    str, Option("--engine-version", metavar="VERSION", panel=RESULTS, help="Version of vLLM that ran.")
]
ResultDtype = Annotated[
    str, Option("--weight-dtype", panel=RESULTS, help="Precision of the weights. Default: the checkpoint's.")
]
ResultInputLen = Annotated[
    int, Option("--input-len", min=1, panel=LOAD, help="Prompt tokens of a latency or throughput result.")
]
ResultOutputLen = Annotated[
    int, Option("--output-len", min=1, panel=LOAD, help="Output tokens of a latency or throughput result.")
]
ResultBatchSize = Annotated[int, Option("--batch-size", min=1, panel=LOAD, help="Prompts of a latency result.")]
PlanDir = Annotated[
    PathName, Argument(kind=Path, metavar="DIR", help="Folder of a plan, after ./benchmark.sh ran in it.")
]
ResultFile = Annotated[
    PathName, Option("--result", kind=Path, metavar="FILE", help=f"A result of {TOOLS}, instead of the scripts' own.")
]
#: Settings of the engine that a result without a plan.json does not say.
ENGINE_OF_RESULTS = tagged("result")


def evaluate_runs(
    runs: Runs,
    *,
    gpu: ResultGpu | None = None,
    model: ResultModel | None = None,
    engine_version: ResultVersion | None = None,
    weight_dtype: ResultDtype | None = None,
    input_len: ResultInputLen | None = None,
    output_len: ResultOutputLen | None = None,
    batch_size: ResultBatchSize | None = None,
    calibration: Calibration = None,
    **engine: Any,
) -> Evaluation:
    """Predict every measured run of a table (CSV) or of a result file, and say how far off the predictions are.

    The keywords but ``calibration`` say of a result what its file does not.

    ``answer.evaluated`` has a record for each run, ``answer.summary()`` errors by GPU, bench and metric as fractions.
    A run that cannot be predicted is counted and named, one whose figures contradict each other is named in
    ``answer.notes``. ``calibration`` as in ``check_fit``. Raises InputError, naming
    line and column, for a file that is no table of runs.
    """
    from planner.evidence import Stated, evaluate, notes_on_runs, read_measurements
    from planner.output import Evaluation

    local = fits_for(calibration)
    args = engine_args(engine, own=keywords(evaluate_runs))
    stated = Stated(gpu, model, engine_version, weight_dtype, input_len, output_len, batch_size, args)
    table = read_measurements(Path(runs), stated)
    return Evaluation(tuple(evaluate(table, local)), (*local.notes, *notes_on_runs(table)))


@command(
    "evaluate",
    help="Predicted beside measured, run by run, and a summary.",
    engine=ENGINE_OF_RESULTS,
    extends=evaluate_runs,
)
def evaluate(*, chart: Chart | None = None, **options: Any) -> Evaluation:
    """The evaluation, and its chart where a file is named."""
    from planner.output import chart_writer

    draw = chart_writer(chart) if chart else None
    answer = evaluate_runs(**options)
    if draw:
        draw(answer.evaluated)
    return answer


@command(
    "calibrate",
    help="Learn from your own runs: later predictions for this user rest on them.",
    engine=ENGINE_OF_RESULTS,
)
def calibrate_from(
    *sources: Sources,
    output: Output | None = None,
    fresh: Fresh = False,
    gpu: ResultGpu | None = None,
    model: ResultModel | None = None,
    engine_version: ResultVersion | None = None,
    weight_dtype: ResultDtype | None = None,
    input_len: ResultInputLen | None = None,
    output_len: ResultOutputLen | None = None,
    batch_size: ResultBatchSize | None = None,
    **engine: Any,
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

    args = engine_args(engine, own=keywords(calibrate_from))
    stated = Stated(gpu, model, engine_version, weight_dtype, input_len, output_len, batch_size, args)
    path = Path(output) if output is not None else local_path()
    read = read_sources([Path(source) for source in sources], stated)
    with suppress(OSError):  # told when the file is written
        path.parent.mkdir(parents=True, exist_ok=True)
    with alone_in(path.parent):  # from reading the runs that are kept to writing them again
        answer = calibrate(read, path, fresh=fresh)
        if answer.kept:
            answer.save()
    return CalibrationAnswer(answer)


@command(
    "validate",
    help="What the scripts of a plan measured beside its prediction, and why they differ. Exit status 1 if a figure is "
    "outside its bounds, or if the server's log shows another vLLM or other settings than planned.",
)
def validate_plan(directory: PlanDir, *, result: ResultFile | None = None) -> ValidationAnswer | OfflineValidation:
    """What the scripts of a plan measured beside its prediction, and the likeliest causes where they differ.

    ``directory`` is the folder of a plan after its ``benchmark.sh`` ran, or ``result`` is a file in which another tool
    says what it measured of it. ``answer.ok`` is whether every measurement
    lies within its bounds and the server's log, where there is one, says that the plan's vLLM ran with its settings
    (``answer.record.inside`` and ``answer.record.as_planned``). Where the folder is that of a workflow and only its
    offline scripts ran, ``answer.lines`` has their measurements beside what is predicted and printed. Raises InputError
    where there is no plan, or no result.
    """
    from planner.evidence import validate
    from planner.output import ValidationAnswer, validate_offline

    if result is None and (offline := validate_offline(Path(directory))):
        return offline
    return ValidationAnswer(validate(Path(directory), None if result is None else Path(result)))
