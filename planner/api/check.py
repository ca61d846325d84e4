"""Somebody's own command: ``planner check`` as a function."""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from planner.api.flags import typed
from planner.api.inputs import GpuName, check_count, draft_of, found_gpu, load_model, path_text, version_for
from planner.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from planner.engine import Found
    from planner.output import CheckAnswer
    from planner.planning import Goal, Plan


def check_command(
    line: str | PathLike[str] | Sequence[str],
    gpu: GpuName | None = None,
    *,
    engine_version: str | None = None,
    as_model: str | None = None,
    input_len: int | None = None,
    output_len: int | None = None,
    max_concurrency: int | None = None,
    num_prompts: int | None = None,
    goal: Goal = "balanced",
    gpus: int | None = None,
    calibration: str | PathLike[str] | None = None,
    revision: str | None = None,
    refresh: bool = False,
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
    from planner.planning import Goal, LineRequest, check_line, local_for

    if goal not in get_args(Goal):
        raise UnknownNameError("goal", str(goal), get_args(Goal), see="planner check --help")
    load = {"input_len": input_len, "output_len": output_len, "max_concurrency": max_concurrency}
    for name, value in {**load, "num_prompts": num_prompts, "gpus": gpus}.items():
        check_count(name, value)
    found, plan = _read(line)
    wanted = gpu or (plan.gpu if plan else None)
    if wanted is None:
        raise InputError("no GPU is named", hint="add --gpu; planner hardware list shows the names")
    profile, remarks = found_gpu(wanted)
    version = version_for(engine_version or (plan.engine_version if plan and plan.gpu == profile.id else None), profile)
    read = read_line(found.argv, version, env=found.env, platform=profile.platform)
    model = typed("as_model", as_model, str) if as_model is not None else read.model
    if model is None:
        raise InputError("the line names no model", hint="write it behind vllm serve")
    if "$" in model:
        raise InputError(f"the model is {model}, which the script does not set", hint="name it with --as-model")
    name, renamed = _on_the_hub(model)
    resolved = load_model(name, revision=revision, refresh=refresh)
    asked = LineRequest(input_len, output_len, max_concurrency, num_prompts, gpus, goal)
    local = local_for(path_text(calibration))
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
    from planner.engine import Found, find_command, found_in

    if not isinstance(line, str | PathLike):
        found = found_in(list(line))
        if found is None:
            raise InputError(
                f"{' '.join(line)[:80]!r} is no vllm serve line", hint="write: planner check -- vllm serve MODEL ..."
            )
        return Found(found.argv, found.env), None
    if isinstance(line, str) and (" " in line.strip() or "\n" in line) and not _is_there(line):
        return find_command(line), None  # the text itself
    path = Path(line)
    script = path / "launch.sh" if path.is_dir() else path
    try:
        text = script.read_text(encoding="utf-8")
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
