"""Folders of scripts and measured runs: ``report``, ``deploy``, ``validate``, ``tune``, ``workflow``, ``evaluate`` and
``calibrate``."""

import re
import sys
from contextlib import suppress
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval

from planner import evidence, hardware, planning, progress
from planner import output as out
from planner.commands import options as opt
from planner.commands.declare import Argument, Option, command, taken
from planner.commands.options import HELP, Calibration, Force, PathName, group_of
from planner.commands.streams import write
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


def _folder(text: str) -> Any:
    return Argument(kind=Path, metavar="DIR", help=text)


ChartName = Literal["memory", "pareto", "latency", "operators"]


@command("report", help="HTML report on the plans of a folder: charts, reasons, scripts.")
def report(
    directory: Annotated[Path, _folder("Folder that planner recommend -o wrote.")],
    *,
    output: Annotated[Path | None, Option("-o", "--output", metavar="FILE", help=HELP["report"])] = None,
    format: Annotated[Literal["html", "svg"], Option(help="HTML page, or one chart as SVG.")] = "html",
    chart: Annotated[ChartName | None, Option(help="The chart of --format svg.")] = None,
    width: Annotated[int | None, Interval(ge=240, le=2000), Option(help=HELP["width"])] = None,
    calibration: Calibration = None,
) -> None:
    """Write the page or the chart. Only the loads around each plan's own are computed again."""
    for wrong, cause, hint in (
        (format == "svg" and chart is None, "--format svg makes one chart", "name it: --chart pareto"),
        (format == "html" and chart, "--chart: the page has all charts", "add --format svg for one of them"),
        (format == "html" and width, "--width is of svg charts", "leave it out: the page has its own"),
    ):
        if wrong:
            raise InputError(cause, hint=hint)
    folders, local = evidence.read_plan_folders(directory), planning.local_for(calibration)
    out.print_notes(local.notes)
    drawn = out.charts_of(folders, local, chart) if chart else []
    if chart and not drawn:
        missing = planning.sweep_loads(folders.entries[0].plan, local).missing or "there is nothing to show"
        raise InputError(f"--chart {chart}: {missing}", hint="planner report DIR shows the rest")
    if len(drawn) > 1:
        below = ", ".join(entry.directory.name for entry in folders.entries)
        cause = f"--chart {chart} is of one plan, and {directory} holds {len(drawn)}"
        raise InputError(cause, hint=f"give one of the folders in it: {below}")
    path = output or directory / (f"{chart}.{format}" if chart else "report.html")
    out.write_file(path, (out.svg(drawn[0], width) if drawn else out.page(folders, local)).encode())
    out.note(f"wrote {path}")


class Target(StrEnum):
    """The platforms. The parser takes a list of an enumeration, and none of a ``Literal``."""

    compose, kubernetes, lws, slurm = "compose", "kubernetes", "lws", "slurm"


@command("deploy", help="Files for docker compose, Kubernetes and Slurm.", groups=(group_of("site", "Where it runs"),))
def deploy(
    directory: Annotated[Path, _folder("Folder of a plan, as recommend -o wrote it.")],
    *,
    target: Annotated[list[Target], Option("--target", help="Platform. Repeatable.")],
    output: Annotated[Path | None, Option("-o", "--output", metavar="OUT", help=HELP["deployable"])] = None,
    force: Force = False,
    command_line: str,
    **site: Any,
) -> None:
    """Print the file that deploys a plan, or write the files. A plan that cannot be deployed is refused first."""
    if output:
        if (output / "plan.json").exists():
            cause = f"-o {output} is the folder of a plan, whose scripts have the same names"
            raise InputError(cause, hint=f"name another one, such as {output / 'deploy'}")
        out.check_folder(output, force=force)
    lists: dict[str, Any] = {name: tuple(value) for name, value in site.items() if isinstance(value, list)}
    where = out.Site(**(site | lists))
    emission = _emission(directory)
    targets = list(dict.fromkeys(one.value for one in target))
    made = {name: out.render_deployable(emission, name, where, command=command_line) for name in targets}
    for name, each in made.items():
        for left_out in (r"the load of the plan takes (\d+) .*starts (?!\1\n).*", "planned with a [a-z-]+ router: .*"):
            if found := re.search(left_out, next(iter(each.values()))):
                out.note(f"note: {name}: {found[0]}")
    files = made[targets[0]]
    if len(targets) > 1:
        files = {f"{name}/{file}": content for name in targets for file, content in made[name].items()}
    if output is None:
        if len(files) > 1:
            raise InputError(f"these are {len(files)} files: {', '.join(files)}", hint="add -o OUT to write them")
        print(*files.values(), end="")
        return
    out.write_folder(output, files, force=force, replaces=out.FILES)
    out.note(f"wrote {', '.join(files)} into {output}")


def _emission(directory: Path) -> "out.Emission":
    file = planning.read_plan(directory)
    plan = file.plan
    try:
        lines, checkpoint_bytes = tuple(out.predicted_lines(plan)), int(plan.memory["checkpoint_bytes"])
    except (KeyError, TypeError, ValueError) as error:
        wrong = f"does not say {error.args[0]}" if isinstance(error, KeyError) else "has figures that are no numbers"
        cause = f"{directory / 'plan.json'} {wrong}"
        raise InputError(cause, hint="write the plan again with planner recommend") from error
    return out.Emission(file, hardware.load_profile(plan.gpu), checkpoint_bytes, lines)


_RESULT = Option("--result", kind=Path, metavar="FILE", help=HELP["result"].format(tools=TOOLS))


@command("validate", help=HELP["validate"])
def validate_plan(
    directory: Annotated[PathName, _folder("Folder of a plan, after ./benchmark.sh ran in it.")],
    *,
    result: Annotated[PathName | None, _RESULT] = None,
) -> "out.ValidationAnswer | out.OfflineValidation":
    """Compare the measurements of a plan's scripts with its prediction, with the likeliest causes of differences.

    ``result`` is the file of another tool that measured it. ``answer.ok`` is true if every measurement lies within its
    bounds and meets its target, and the log shows the plan's vLLM and settings. Raises InputError without a result."""
    if result is None and (offline := out.validate_offline(Path(directory))):
        return offline
    return out.ValidationAnswer(evidence.validate(Path(directory), None if result is None else Path(result)))


@command("tune", help="Measure a plan and its alternatives on this machine. Exit status 1 if the budget ends first.")
def tune_plan(
    directory: Annotated[PathName, _folder("Folder of a plan, on the machine that it is for.")],
    *,
    runs: Annotated[int | None, Interval(ge=1), Option(help=HELP["runs"])] = None,
    minutes: Annotated[float | None, Interval(gt=0), Option(help=HELP["minutes"])] = None,
    retry: Annotated[bool, Option("--retry", help="Retry settings that failed to start.")] = False,
    calibration: Calibration = None,
    command_line: str = "",
) -> "out.TuningAnswer":
    """Measure the plan of ``directory`` and what may be better, until the best settings are known.

    The end is where no other setting is better by 3 % with 95 % probability, or after ``runs`` or ``minutes``. All is
    kept below ``directory/tune``: the same call goes on after a break. ``answer.best`` is the folder of the best
    measured plan. Raises InputError without a plan, where the machine is not ready, and where several settings fail."""
    # on the command line each step is reported on stderr as it happens: a run takes minutes
    tell = (lambda line: write(f"{line}\n", sys.__stderr__)) if command_line else progress.say
    tuner = out.Tuner(Path(directory), tell)
    tuner.run(planning.local_for(calibration), runs=runs, minutes=minutes, retry=retry)
    try:
        return out.TuningAnswer(tuner, tuner.learn())
    except InputError as error:
        return out.TuningAnswer(tuner, remarks=(f"no calibration: {error.cause}",))


def complete_workflow(incomplete: str) -> list[str]:
    return opt.beginning(incomplete, ("list", *out.list_workflows()))


Name = Annotated[str, Argument(metavar="list|NAME", autocompletion=complete_workflow, help="Name of the workflow.")]
Gpu = Annotated[str, opt.gpu_option("Profile id, alias or file; or 'local'. Default: the document's.")]
OutputDir = Annotated[Path, Option("-o", "--output", metavar="DIR", help="Write the files into this folder.")]
CHOICE = group_of("choice")
Model = Annotated[str, opt.model_argument("[MODEL]", "Default: the document's.")]


@command("workflow", help="Scripts of published recipes: 'list', or a NAME.", groups=(CHOICE, opt.HUB))
def workflow(
    name: Name, model: Model | None = None, *, gpu: Gpu | None = None, output: OutputDir | None = None,
    force: Force = False, calibration: Calibration = None, format: opt.Format = "table", command_line: str,
    **choices: Any,
) -> None:  # fmt: skip
    """Print the files of a workflow, or write them. Settings that do not fit are refused before that."""
    if name == "list":
        out.print_workflows(list(out.list_workflows().values()), format)
        return
    chosen = out.find_workflow(name)
    if output:
        out.check_folder(output, force=force)
    profile, remarks = planning.find_gpu(gpu) if gpu else (None, ())
    local = planning.local_for(calibration)
    out.print_notes((*remarks, *local.notes))
    choice = out.Choice(model, profile, local=local, **choices)
    files = out.plan_workflow(chosen, choice, command=command_line)
    if output:
        out.write_folder(output, files, force=force)
        out.note(f"wrote {len(files)} files into {output}; start with WORKFLOW.md")
    out.print_files({file: out.purpose_of(file) for file in files}, format)
    out.print_notes([out.calibration_of(files)])
    if not output:
        out.note(f"write them with: {command_line} -o {name}")
