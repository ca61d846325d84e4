"""Commands for a plan's folder: ``planner report``, ``deploy``, ``validate`` and ``tune``."""

import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval

from planner import evidence, hardware, planning, progress
from planner import output as out
from planner.commands.declare import Argument, Option, command
from planner.commands.measured import TOOLS
from planner.commands.options import HELP, Calibration, Force, PathName, group_of
from planner.commands.streams import write
from planner.errors import InputError


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
        if left_out := re.search(r"the load of the plan takes (\d+) .*starts (?!\1\n).*", next(iter(each.values()))):
            out.note(f"note: {name}: {left_out[0]}")
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
