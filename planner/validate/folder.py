"""The folder of a plan after its scripts ran: ``plan.json``, ``results/``, ``logs/server.log``.

Only what this very plan measured counts: the digest in the file's name, the number of requests and their lengths must
agree. Anything else is refused, because a comparison with it would mean nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.memory.startup_log import StartupLog, read_startup_log
from planner.plan import Plan, PlanFile, read_plan
from planner.validate.server_log import ServerLog, read_server_log

#: Tokens that a tokeniser may add to a prompt or lose from it when random ids are turned into text and back.
PROMPT_SLACK_TOK = 8
#: and the share of a long prompt that it may move by.
PROMPT_SLACK = 0.02

_AGAIN = "run ./benchmark.sh of this folder again (FORCE=1 measures anew)"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One figure of lm_eval."""

    task: str
    metric: str
    value: float
    stderr: float | None = None


@dataclass(frozen=True)
class Measured:
    """What a plan's folder holds."""

    directory: Path
    file: PlanFile
    result_name: str
    result: Mapping[str, Any]  #: of ``vllm bench serve``
    startup: StartupLog | None = None
    log: ServerLog | None = None
    accuracy: tuple[Accuracy, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan that was measured."""
        return self.file.plan


def read_folder(directory: Path) -> Measured:
    """Everything that was measured of the plan in ``directory``.

    Raises InputError when there is no plan, when nothing was measured, when a file is broken, and when the result is
    of another plan or another load.
    """
    file = read_plan(directory)
    path = _result_path(directory / "results", file.plan)
    result = _result(path, file.plan)
    startup, log, notes = _log(directory / "logs" / "server.log", file.plan)
    return Measured(directory, file, path.name, result, startup, log, tuple(_accuracy(directory, file.plan)), notes)


def _result_path(folder: Path, plan: Plan) -> Path:
    path = folder / f"serve-{plan.digest}.json"
    if path.is_file():
        return path
    others = sorted(p.name for p in folder.glob("serve-*.json")) if folder.is_dir() else []
    if others:
        raise InputError(
            f"{folder} holds results of another plan: {', '.join(others)}, and none of plan {plan.digest}", hint=_AGAIN
        )
    raise InputError(f"{path}: nothing was measured yet", hint="run ./launch.sh and ./benchmark.sh, or ./validate.sh")


def read_result(path: Path, plan: Plan) -> dict[str, Any]:
    """A result of ``vllm bench serve`` for the plan's model, when it is whole and every request was answered."""
    try:
        result = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is broken: {error}", hint=_AGAIN) from error
    if not isinstance(result, dict):
        raise InputError(f"{path} is not a result of vllm bench serve", hint=_AGAIN)
    if result.get("model_id", plan.model) != plan.model:
        raise InputError(f"{path} is of {result['model_id']}, its plan of {plan.model}", hint=_AGAIN)
    count = read_number(path, result, "num_prompts")
    completed = read_number(path, result, "completed")
    if completed < count or result.get("failed"):
        raise InputError(
            f"{path}: {completed:g} of {count:g} requests completed", hint="see logs/server.log, then measure again"
        )
    return result


def _result(path: Path, plan: Plan) -> dict[str, Any]:
    """The result, when it is of the plan's load."""
    result = read_result(path, plan)
    load, count = plan.workload, plan.workload.num_prompts
    _same(path, "num_prompts", read_number(path, result, "num_prompts"), count)
    if load.max_concurrency:
        _same(path, "max_concurrency", read_number(path, result, "max_concurrency"), load.max_concurrency)
    for key, nominal in (("total_input_tokens", load.input_len), ("total_output_tokens", load.output_len)):
        each = read_number(path, result, key) / count
        length = round(plan.predicted.get(key, nominal * count) / count)  # lengths that vary are drawn from the seed
        slack = max(PROMPT_SLACK_TOK, PROMPT_SLACK * length) if key == "total_input_tokens" else PROMPT_SLACK * length
        if abs(each - length) > slack:
            raise InputError(
                f"{path}: {each:g} tokens per request in {key}, the plan sends {length}: another load was measured",
                hint=_AGAIN,
            )
    return result


def _same(path: Path, name: str, measured: float, planned: float) -> None:
    if measured != planned:
        raise InputError(
            f"{path}: {name} is {measured:g}, the plan sends {planned:g}: another load was measured", hint=_AGAIN
        )


def read_number(path: Path, result: Mapping[str, Any], name: str) -> float:
    """A figure of a result. Raises InputError where it is none."""
    value = result.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        raise InputError(f"{path} is broken: {name} is {value!r}", hint=_AGAIN)
    return value


def _log(path: Path, plan: Plan) -> tuple[StartupLog | None, ServerLog | None, tuple[str, ...]]:
    """The server's log where there is one. Raises InputError when it is of another model."""
    where = f"{path.parent.name}/{path.name}"
    if not path.is_file():
        return None, None, (f"{where} is not there: memory is not compared",)
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        read_startup_log(text)
    except InputError as error:
        return None, read_server_log(text), (f"{where}: {error.cause}: memory is not compared",)
    return read_startup_log(text, model=plan.model), read_server_log(text), ()


def _accuracy(directory: Path, plan: Plan) -> list[Accuracy]:
    """What lm_eval wrote for this plan: ``results/accuracy-DIGEST/**/results_*.json``, the newest."""
    files = sorted((directory / "results" / f"accuracy-{plan.digest}").rglob("results*.json"), key=lambda p: p.name)
    if not files:
        return []
    try:
        tasks = json.loads(_text(files[-1]))["results"]
        return [
            Accuracy(task, metric, float(value), _stderr(figures, metric))
            for task, figures in tasks.items()
            for metric, value in figures.items()
            if isinstance(value, int | float) and "_stderr" not in metric
        ]
    except (ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"{files[-1]} is not a result of lm_eval: {_first_line(error)}", hint="run ./accuracy.sh again with FORCE=1"
        ) from error


def _stderr(figures: Mapping[str, Any], metric: str) -> float | None:
    name, comma, how = metric.partition(",")
    value = figures.get(f"{name}_stderr{comma}{how}")
    return float(value) if isinstance(value, int | float) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint="make it readable") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text", hint="is it the file that the scripts wrote?") from error


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
