"""Somebody's own command: ``planner check``."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

from planner.commands.declare import Argument, Option, command
from planner.commands.inputs import check_count, draft_of, find_gpu, fits_for, load_model, typed, version_for
from planner.commands.options import (
    LOAD,
    Calibration,
    EngineVersion,
    RandomInputLen,
    RandomOutputLen,
    Refresh,
    Revision,
    Timeout,
)
from planner.errors import InputError, UnknownNameError
from planner.planning import defaults
from planner.resources import read_given

if TYPE_CHECKING:
    from planner.commands.inputs import GpuName
    from planner.engine import Found
    from planner.output import CheckAnswer
    from planner.planning import Plan


def _line_of(words: list[str]) -> str | list[str]:
    """The line that was typed; ``-`` is stdin."""
    if words[0].startswith("-") and words[0] != "-":  # in front of the line it was meant for this command
        raise InputError(f"No such option: {words[0].partition('=')[0]}", hint="see planner check --help")
    if words == ["-"]:
        return sys.stdin.read() + "\n"
    return words[0] if len(words) == 1 else words


Line = Annotated[
    str | PathLike[str] | Sequence[str],
    Argument(
        kind=list[str],
        read=_line_of,
        metavar="LINE",
        help="-- vllm serve MODEL ...; or a script with such a line, the folder of a plan, '-' for stdin.",
    ),
]
OneGpu = Annotated[
    "GpuName",
    Option(kind=str, metavar="GPU", help="Profile id, alias or file; or 'local'. Default: the plan's."),
]
AsModel = Annotated[str, Option(metavar="MODEL", help="Model that a path in the line stands for.")]
InFlight = Annotated[int, Option(min=1, panel=LOAD, help="Requests in flight. Default: as many as run at once.")]
NumPrompts = Annotated[int, Option(min=1, panel=LOAD, help="Requests. Default: 5 x the concurrency.")]
Goal = Annotated[defaults.Goal, Option(help="What a better plan is better at.")]
Gpus = Annotated[int, Option(min=1, help="GPUs that a better plan may use. Default: as many as the line.")]


#: ``--`` in front of the line is not needed: what is no option of this command belongs to the line.
@command(
    "check",
    help="Would this vllm serve line start, what would it deliver, and what would deliver more?",
    settings={"ignore_unknown_options": True},
)
def check_command(
    line: Line,
    gpu: OneGpu | None = None,
    *,
    engine_version: EngineVersion = None,
    as_model: AsModel | None = None,
    input_len: RandomInputLen | None = None,
    output_len: RandomOutputLen | None = None,
    max_concurrency: InFlight | None = None,
    num_prompts: NumPrompts | None = None,
    goal: Goal = "balanced",
    gpus: Gpus | None = None,
    calibration: Calibration = None,
    revision: Revision = None,
    refresh: Refresh = False,
    timeout: Timeout | None = None,
) -> CheckAnswer:
    """Whether a ``vllm serve`` line starts on GPUs of this kind, what it delivers, and what delivers more.

    ``line`` is the command or the text of a script with it; its words; or the path of a script or of a plan's folder,
    whose plan then says the GPU and the load where nothing else does. ``as_model`` is what a path in the line stands
    for. Lengths are tokens; where no load is given it is 1024 in and out, and as many requests as run at once.
    ``goal`` is what a better plan is better at, ``gpus`` how many it may use (as many as the line).

    ``answer.ok`` is whether it starts, ``answer.record`` has the rest. Raises InputError where there is no such line,
    or several that differ, and for a load that its context does not hold.
    """
    from planner.engine import read_line
    from planner.output import CheckAnswer
    from planner.planning import LineRequest, check_line

    if goal not in get_args(defaults.Goal):
        raise UnknownNameError("goal", str(goal), get_args(defaults.Goal), see="planner check --help")
    load = {"input_len": input_len, "output_len": output_len, "max_concurrency": max_concurrency}
    for name, value in {**load, "num_prompts": num_prompts, "gpus": gpus}.items():
        check_count(name, value)
    found, plan = _read(line)
    wanted = gpu or (plan.gpu if plan else None)
    if wanted is None:
        raise InputError("no GPU is named", hint="add --gpu; planner hardware list shows the names")
    profile, remarks = find_gpu(wanted)
    version = version_for(engine_version or (plan.engine_version if plan and plan.gpu == profile.id else None), profile)
    read = read_line(found.argv, version, env=found.env, platform=profile.platform)
    model = typed("as_model", as_model, str) if as_model is not None else read.model
    if model is None:
        raise InputError("the line names no model", hint="write it behind vllm serve")
    if "$" in model:
        raise InputError(f"the model is {model}, which the script does not set", hint="name it with --as-model")
    name, renamed = _on_the_hub(model)
    resolved = load_model(name, revision=revision, refresh=refresh, timeout=timeout)
    asked = LineRequest(input_len, output_len, max_concurrency, num_prompts, gpus, goal)
    local = fits_for(calibration)
    if plan:
        asked = asked.as_planned(plan)
    answer = check_line(read, resolved, profile, version, asked, local, draft_of(read.args))
    return CheckAnswer(answer, (*remarks, *renamed, *local.notes))


def _on_the_hub(model: str) -> tuple[str, tuple[str, ...]]:
    """The model that a line means, and a remark where it is an id with a slash behind it, as recipes print them."""
    name = model.rstrip("/")
    if name == model or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) or Path(model).exists():
        return model, ()
    return name, (f"vLLM takes {model} for a folder and does not start where there is none; {name} is judged here",)


def _read(line: str | PathLike[str] | Sequence[str]) -> tuple[Found, Plan | None]:
    """The command, and the plan beside it where it is a file of a plan's folder."""
    from planner.engine import find_command

    if not isinstance(line, str | PathLike):
        return find_command(list(line)), None
    if isinstance(line, str) and (" " in line.strip() or "\n" in line) and not _is_there(line):
        return find_command(line), None  # the text itself
    path = Path(line)
    script = path / "launch.sh" if path.is_dir() else path
    try:
        text = read_given(script)
    except UnicodeDecodeError as error:
        raise InputError(f"{script} is no script: {error.reason}", hint="give a shell script") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        cause = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{script}: {cause}", hint="give a script, or a folder with a launch.sh") from error
    return find_command(text), _plan_beside(script)


def _is_there(text: str) -> bool:
    """Whether ``text`` is the path of something; a long text is none."""
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def _plan_beside(script: Path) -> Plan | None:
    """The plan that wrote a script; None where there is none. Raises InputError for one that is broken."""
    from planner.planning import read_plan

    return read_plan(script.parent).plan if (script.parent / "plan.json").is_file() else None
