"""The folder of a plan: its scripts, and what they measured.

``planner recommend -o DIR`` writes one folder, or one for each GPU below ``DIR``, and ``recommendation.json``, which
lists what was considered. The scripts add ``results/`` and ``logs/server.log``. A result counts when it is of this very
plan: the digest in its name, the number of requests and their lengths must agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.evidence.results import AGAIN, check_complete, read_number, read_result_file, read_text
from planner.evidence.server_log import ServerLog, read_server_log
from planner.memory import StartupLog, read_startup_log
from planner.planning import Plan, PlanFile, PlannedWorkload, read_plan
from planner.resources import MOST_LOG_BYTES, read_given
from planner.units import MOST_FIGURE
from planner.workload import OF_A_REQUEST

#: Tokens that a prompt may gain or lose when random ids are turned into text and back.
PROMPT_SLACK_TOK = 8
#: And the share of a long prompt.
PROMPT_SLACK = 0.02
RECOMMENDATION = "recommendation.json"
LISTS = ("pareto", "rejected")  #: that the planner reads in it
FIGURES = ("output_throughput_per_", "mean_")  #: how the names of figures in them begin
#: Files of a plan that are shown whole, in the order in which they are run.
SCRIPTS = (
    "partition.sh", "preflight.sh", "launch.sh", "benchmark.sh", "accuracy.sh", "validate.sh", "instances.sh",
    "nginx.conf", "quantize.sh", "download.sh",
)  # fmt: skip
LARGEST_FILE = 10 * 2**20  #: bytes; nothing that the planner writes comes near
_WRITE_AGAIN = "write the folder again with planner recommend -o"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One figure of lm_eval."""

    task: str
    metric: str
    value: float
    stderr: float | None = None


@dataclass(frozen=True)
class MeasuredPlan:
    """A plan, and what was measured of it."""

    directory: Path
    file: PlanFile
    result_name: str
    result: Mapping[str, Any]  #: of ``vllm bench serve``
    startup: StartupLog | None = None
    log: ServerLog | None = None
    accuracy: tuple[Accuracy, ...] = ()
    notes: tuple[str, ...] = ()
    of_classes: tuple[Mapping[str, Any], ...] = ()  #: the same of each class, where the plan has several

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.file.plan


@dataclass(frozen=True)
class PlanFolder:
    """One plan's folder."""

    directory: Path
    file: PlanFile
    scripts: Mapping[str, str]  #: name to content
    measured: MeasuredPlan | None = None
    not_measured: str = ""  #: why there is no measurement

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.file.plan


@dataclass(frozen=True)
class PlanFolders:
    """The plans of a folder, and what was considered besides them."""

    directory: Path
    entries: tuple[PlanFolder, ...]
    recommendation: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()

    @property
    def pareto(self) -> tuple[Mapping[str, Any], ...]:
        """Settings of all GPUs that no other setting beats in both rates."""
        return tuple((self.recommendation or {}).get("pareto", ()))

    @property
    def rejected(self) -> tuple[Mapping[str, Any], ...]:
        """What was rejected, with the reason."""
        return tuple((self.recommendation or {}).get("rejected", ()))


# --- what was measured ---------------------------------------------------------------------------------------------


def read_measured(directory: Path, result_file: Path | None = None) -> MeasuredPlan:
    """Read everything that was measured of the plan in ``directory``, or ``result_file`` and what else is there.

    Raises InputError where there is no plan or no measurement, where a file is broken, and where the result is of
    another plan or another load.
    """
    file = read_plan(directory)
    plan = file.plan
    if result_file and plan.classes:
        raise InputError(
            f"{result_file} is of one client, but the plan has one for each of its {len(plan.classes)} classes",
            hint="run ./benchmark.sh, and leave --result out",
        )
    startup, log, notes = _read_log(directory / "logs" / "server.log", plan)
    accuracy = tuple(_read_accuracy(directory, plan))
    path = result_file or _result_path(directory / "results", plan)
    if not plan.classes:
        result = _planned_result(path, plan, plan.workload, plan.predicted)
        return MeasuredPlan(directory, file, path.name, result, startup, log, accuracy, notes)
    of_classes = tuple(
        _planned_result(path.with_name(name), plan, one.workload, one.predicted)
        for one, name in zip(plan.classes, plan.result_names, strict=True)
    )
    return MeasuredPlan(
        directory, file, path.name, _together(of_classes), startup, log, accuracy, notes, of_classes
    )  # fmt: skip


def _together(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What clients side by side measured, as one: totals, rates over the longest duration, means of all requests."""
    found: dict[str, Any] = {
        name: sum(result[name] for result in results)
        for name in ("num_prompts", "completed", "total_input_tokens", "total_output_tokens")
    }
    duration_s = max(result["duration"] for result in results)
    means = {f"mean_{name}_ms" for name in OF_A_REQUEST}.intersection(*results)
    return {
        **found,
        "duration": duration_s,
        "request_throughput": found["completed"] / duration_s,
        "output_throughput": found["total_output_tokens"] / duration_s,
        "total_token_throughput": (found["total_input_tokens"] + found["total_output_tokens"]) / duration_s,
        **{key: sum(one[key] * one["completed"] for one in results) / found["completed"] for key in means},
    }


def _result_path(folder: Path, plan: Plan) -> Path:
    """The result of the plan's benchmark, of several the one that is written last."""
    path = folder / plan.result_names[-1]
    if path.is_file():
        return path
    others = sorted(p.name for p in folder.glob("serve-*.json")) if folder.is_dir() else []
    if others:
        raise InputError(
            f"{folder} holds results of another plan ({', '.join(others)}) and none of plan {plan.digest}", hint=AGAIN
        )
    raise InputError(f"{path}: nothing was measured yet", hint="run ./launch.sh and ./benchmark.sh, or ./validate.sh")


def read_result(path: Path, plan: Plan) -> dict[str, Any]:
    """Read a result of ``vllm bench serve`` for the plan's model. Raises InputError where it is not a whole one."""
    result = dict(read_result_file(path).result)
    if result.get("model_id", plan.model) != plan.model:
        raise InputError(f"{path} is of {result['model_id']}, its plan is of {plan.model}", hint=AGAIN)
    read_number(path, result, "num_prompts")
    check_complete(path, result)
    return result


def _planned_result(
    path: Path, plan: Plan, load: PlannedWorkload, predicted: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """The result, if it is of this load of the plan."""
    result = read_result(path, plan)
    count = load.num_prompts
    if plan.classes:  # their results are joined
        for name in ("duration", *result.keys() & {f"mean_{metric}_ms" for metric in OF_A_REQUEST}):
            read_number(path, result, name, positive=True)
    sent = {"num_prompts": count, "max_concurrency": load.max_concurrency}
    for name, planned in sent.items():
        if planned and (measured := read_number(path, result, name)) != planned:
            raise InputError(
                f"{path}: {name} is {measured:g}, but the plan sends {planned:g}: another load was measured", hint=AGAIN
            )
    for key, nominal in (("total_input_tokens", load.input_len), ("total_output_tokens", load.output_len)):
        each = read_number(path, result, key) / count
        length = round(predicted.get(key, nominal * count) / count)  # lengths that vary are drawn from the seed
        slack = max(PROMPT_SLACK_TOK, PROMPT_SLACK * length) if key == "total_input_tokens" else PROMPT_SLACK * length
        if abs(each - length) > slack:
            raise InputError(
                f"{path}: {key} is {each:g} for each request, but the plan sends {length}: another load was measured",
                hint=AGAIN,
            )
    return result


def _read_log(path: Path, plan: Plan) -> tuple[StartupLog | None, ServerLog | None, tuple[str, ...]]:
    """The server's log, if there is one. Raises InputError where it is of another model."""
    where = f"{path.parent.name}/{path.name}"
    if not path.is_file():
        return None, None, (f"{where} does not exist: memory is not compared",)
    text = read_given(path, most_bytes=MOST_LOG_BYTES, errors="replace")
    try:
        read_startup_log(text)
    except InputError as error:
        return None, read_server_log(text), (f"{where}: {error.cause}: memory is not compared",)
    return read_startup_log(text, model=plan.model), read_server_log(text), ()


def _read_accuracy(directory: Path, plan: Plan) -> list[Accuracy]:
    """What lm_eval wrote last for this plan: ``results/accuracy-DIGEST/**/results_*.json``."""
    files = sorted((directory / "results" / f"accuracy-{plan.digest}").rglob("results*.json"), key=lambda p: p.name)
    if not files:
        return []
    try:
        tasks = json.loads(read_text(files[-1]))["results"]
        return [
            Accuracy(task, metric, _figure(metric, value), _stderr(figures, metric))
            for task, figures in tasks.items()
            for metric, value in figures.items()
            if isinstance(value, int | float) and "_stderr" not in metric
        ]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{files[-1]} is not a result of lm_eval: {reason}", hint="run ./accuracy.sh again with FORCE=1"
        ) from error


def _figure(metric: str, value: float) -> float:
    if not abs(value) <= MOST_FIGURE:  # nor NaN
        raise ValueError(f"{metric} is {value!r:.40}")
    return float(value)


def _stderr(figures: Mapping[str, Any], metric: str) -> float | None:
    name, comma, how = metric.partition(",")
    value = figures.get(f"{name}_stderr{comma}{how}")
    return float(value) if isinstance(value, int | float) and abs(value) <= MOST_FIGURE else None


# --- all plans of a folder -----------------------------------------------------------------------------------------


def read_plan_folders(directory: Path) -> PlanFolders:
    """Read every plan of a folder. Raises InputError where there is none, and for a plan that is broken or changed."""
    folders = _plan_directories(directory)
    entries = tuple(_read_plan_folder(folder) for folder in folders)
    found = next((path for path in (directory, directory.parent) if (path / RECOMMENDATION).is_file()), None)
    if found is None or (found != directory and not (directory / "plan.json").is_file()):
        return PlanFolders(directory, entries, None, (f"{RECOMMENDATION} does not exist: {_WRITE_AGAIN}",))
    recommendation = _read_recommendation(found / RECOMMENDATION)
    gpus = {entry.plan.gpu for entry in entries}
    if found != directory:  # the folder of one GPU among several
        recommendation |= {key: [row for row in recommendation[key] if row["gpu"] in gpus] for key in LISTS}
    return PlanFolders(directory, entries, recommendation)


def _plan_directories(directory: Path) -> list[Path]:
    try:
        if not directory.is_dir() or (directory / "plan.json").exists():
            return [directory]
        below = sorted(path.parent for path in directory.glob("*/plan.json"))
    except OSError as error:
        raise InputError(f"{directory}: {error.strerror}", hint="give the folder that -o named") from error
    return below or [directory]  # read_plan says what is wrong with it


def _read_plan_folder(directory: Path) -> PlanFolder:
    file = read_plan(directory)
    scripts = {name: _shown_text(directory / name) for name in SCRIPTS if (directory / name).is_file()}
    results = directory / "results"
    if not (results.is_dir() and any(results.glob("serve-*.json"))):
        return PlanFolder(directory, file, scripts, None, "Nothing was measured yet: run ./benchmark.sh")
    try:
        return PlanFolder(directory, file, scripts, read_measured(directory))
    except InputError as error:  # of another plan, or broken: the prediction can still be shown
        return PlanFolder(directory, file, scripts, None, f"The measurement is left out: {error.cause}")


def _read_recommendation(path: Path) -> dict[str, Any]:
    """Raises InputError where it is not what ``recommend`` wrote."""
    try:
        found = json.loads(_shown_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is broken: {error}", hint=f"{_WRITE_AGAIN}, or remove the file") from error
    whole = (
        isinstance(found, dict)
        and isinstance(found.get("plans", []), list)
        and all(isinstance(found.get(key), list) and all(map(_is_setting, found[key])) for key in LISTS)
    )
    if not whole:
        raise InputError(
            f"{path} has no lists {' and '.join(LISTS)} of settings", hint=f"{_WRITE_AGAIN}, or remove the file"
        )
    return dict(found)


def _is_setting(row: Any) -> bool:
    """Whether a row of ``LISTS`` has a GPU, and figures where ``recommend`` writes them."""
    return (
        isinstance(row, dict)
        and isinstance(row.get("gpu"), str)
        and all(
            value is None
            or (type(value) in (int, float) and 0 <= value <= MOST_FIGURE)  # not NaN
            or (isinstance(value, str | bool) and not name.startswith(FIGURES))
            for name, value in row.items()
        )
    )


def _shown_text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} is larger than anything that the planner writes", hint="remove the file")
        return read_given(path, most_bytes=MOST_LOG_BYTES, errors="replace")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint="make it readable") from error
