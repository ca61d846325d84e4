"""``planner check``: somebody's own ``vllm serve`` line, for a GPU and a version."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options as flag
from planner.cli.options import LOAD, Format
from planner.cli.plan import Goal

if TYPE_CHECKING:
    from planner.check import Found
    from planner.plan import Plan

#: ``--`` is not needed in front of the line: what is not an option of this command belongs to the line.
_LINE = {"ignore_unknown_options": True}


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(
        "check",
        help="Would this vllm serve line start, what would it deliver, and what would deliver more?",
        context_settings=_LINE,
    )(check)


def check(
    *,
    line: Annotated[
        list[str],
        typer.Argument(metavar="LINE", help="-- vllm serve MODEL ...; or a script with it, a plan's folder, '-'."),
    ],
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="GPU", help="Profile id, alias or file. Default: the plan's.")
    ] = None,
    engine_version: flag.EngineVersionOption = None,
    model: Annotated[
        str | None, typer.Option("--as-model", metavar="MODEL", help="What a path in the line stands for.")
    ] = None,
    input_len: Annotated[
        int | None,
        typer.Option("--random-input-len", "--input-len", min=1, rich_help_panel=LOAD, help="Default: 1024."),
    ] = None,
    output_len: Annotated[
        int | None,
        typer.Option("--random-output-len", "--output-len", min=1, rich_help_panel=LOAD, help="Default: 1024."),
    ] = None,
    max_concurrency: Annotated[
        int | None,
        typer.Option("--max-concurrency", min=1, rich_help_panel=LOAD, help="Default: as many as run at once."),
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option("--num-prompts", min=1, rich_help_panel=LOAD, help="Default: 5 x the concurrency.")
    ] = None,
    goal: Annotated[Goal, typer.Option("--goal", help="What a better plan is better at.")] = Goal.balanced,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, help="GPUs that a better plan may use. Default: as many as the line.")
    ] = None,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0 when it starts, 1 when it does not."""
    from planner.check import Asked, check_line, read_line
    from planner.cli.inputs import engine_version_for
    from planner.errors import InputError
    from planner.hardware import load_profile
    from planner.model.resolve import load_model
    from planner.report.check import print_check

    found, plan = _read(line)
    gpu = gpu or (plan.gpu if plan else None)
    if gpu is None:
        raise InputError("no GPU is named", hint="add --gpu; planner hardware list shows the names")
    profile = load_profile(gpu)
    asked_version = engine_version or (plan.engine_version if plan and plan.gpu == profile.id else None)
    version = engine_version_for(asked_version, profile)
    read = read_line(found.argv, version, env=found.env, platform=profile.platform)
    name = model or read.model
    if name is None:
        raise InputError("the line names no model", hint="write it behind vllm serve")
    if "$" in name:
        raise InputError(f"the model is {name}, which the script does not set", hint="name it with --as-model")
    resolved = load_model(name, revision=revision, refresh=refresh)
    asked = Asked(input_len, output_len, max_concurrency, num_prompts, gpus, goal.value)
    answer = check_line(read, resolved, profile, version, asked.as_planned(plan) if plan else asked)
    print_check(answer, output)
    return 0 if answer.starts else 1


def _read(words: list[str]) -> "tuple[Found, Plan | None]":
    """The line, and the plan beside it where it is a file of a plan's folder."""
    from planner.check import Found, find_command
    from planner.check.shell import found_in
    from planner.errors import InputError

    if len(words) > 1:
        found = found_in(words)
        if found is None:
            raise InputError(
                f"{' '.join(words)[:80]!r} is no vllm serve line", hint="write: planner check -- vllm serve MODEL ..."
            )
        return Found(found.argv, found.env), None
    (word,) = words
    if word == "-":
        return find_command(sys.stdin.read()), None
    path = Path(word)
    if " " in word.strip():
        return find_command(word), None  # a whole line in quotes
    script = path / "launch.sh" if path.is_dir() else path
    try:
        text = script.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{script}: {error.strerror}", hint="give a script, or a folder with a launch.sh") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{script} is no script: {error.reason}", hint="give a shell script") from error
    return find_command(text), _plan_beside(script)


def _plan_beside(script: Path) -> "Plan | None":
    """The plan that wrote a script; None where there is none, or none that can be read."""
    from planner.plan import PlanFile

    try:
        return PlanFile.from_json((script.parent / "plan.json").read_text(encoding="utf-8")).plan
    except (OSError, ValueError, TypeError, AttributeError):
        return None
