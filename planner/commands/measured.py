"""Predictions beside measurements: ``planner evaluate`` and ``calibrate``."""

from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from planner import evidence, planning
from planner import output as out
from planner.commands.declare import Argument, Option, command, taken
from planner.commands.options import HELP, Calibration, PathName, group_of
from planner.engine import tagged
from planner.errors import InputError
from planner.resources import alone_in

TOOLS = "vllm bench, GuideLLM, AIPerf, GenAI-Perf, inference-perf, SGLang's bench_serving or InferenceX"
_RUNS = f"Table of measured runs, or a result of {TOOLS}."
_SOURCES = f"Tables of runs, results of {TOOLS}, folders of plans. Default: the runs that were kept before."
_OUTPUT = Option("-o", "--output", kind=Path, metavar="FILE", help=HELP["calibration_file"])
RESULTS = group_of("results", "Results without a plan.json")


def _stated(facts: dict[str, Any]) -> "evidence.Stated":
    return evidence.Stated(**taken(facts, RESULTS), args=planning.engine_args(facts))


@command("evaluate", help=HELP["evaluate"], groups=(RESULTS,), engine=tagged("result"))
def evaluate_runs(
    runs: Annotated[PathName, Argument(kind=Path, metavar="RUNS.csv|RESULT.json", help=_RUNS)],
    *,
    calibration: Calibration = None,
    chart: Annotated[Path | None, Option(metavar="FILE", help=HELP["evaluation_chart"])] = None,
    **facts: Any,
) -> "out.Evaluation":
    """Predict every measured run of a table (CSV) or of a result file, and compare.

    ``facts`` are those that a result does not hold: ``gpu``, ``model``, ``input_len``, settings of the engine, ...
    ``answer.evaluated`` has a record for each run, ``answer.summary()`` errors by GPU, bench and metric as fractions.
    Raises InputError, naming line and column, for a file that is no table of runs."""
    if chart and chart.suffix != ".svg":
        raise InputError(f"--chart {chart} does not end in .svg", hint="for example --chart evaluation.svg")
    local = planning.local_for(calibration)
    table = evidence.read_measurements(Path(runs), _stated(facts))
    answer = out.Evaluation(
        tuple(evidence.evaluate(table, local)), remarks=(*local.notes, *evidence.notes_on_runs(table))
    )
    if chart:
        out.write_file(chart, answer.to_svg().encode(), flag="--chart")
        out.note(f"wrote {chart}")
    return answer


@command("calibrate", help=HELP["calibrate"], groups=(RESULTS,), engine=tagged("result"))
def calibrate_from(
    *sources: Annotated[PathName, Argument(kind=list[Path], metavar="[RUNS.csv|RESULT.json|DIR]...", help=_SOURCES)],
    output: Annotated[PathName | None, _OUTPUT] = None,
    fresh: Annotated[bool, Option(help="Leave out the runs of earlier calibrations.")] = False,
    **facts: Any,
) -> "out.CalibrationAnswer":
    """Calibrate with a user's own runs; later predictions use it if it is better.

    ``sources`` are tables of runs, results of ``vllm bench`` or folders of plans; ``fresh`` leaves out earlier runs.
    ``answer.ok`` is false where nothing was better and so nothing was written. Raises InputError where no run can be
    replayed, and where the file cannot be written."""
    path = Path(output) if output is not None else planning.local_path()
    paths = [Path(one) for given in sources for one in ([given] if isinstance(given, str | PathLike) else given)]
    read = evidence.read_sources(paths, _stated(facts))
    with suppress(OSError):  # reported when the file is written
        path.parent.mkdir(parents=True, exist_ok=True)
    with alone_in(path.parent):  # from reading the runs that are kept to writing them again
        answer = evidence.calibrate(read, path, fresh=fresh)
        if answer.kept:
            answer.save()
    return out.CalibrationAnswer(answer)
