"""The folder of a plan: its scripts, and what they measured.

A result counts when it is of this very plan: the digest in its name, the number of requests and their lengths agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from planner.engine import SETTINGS, tagged
from planner.errors import InputError, fault_in
from planner.evidence.results import AGAIN, parse_result, read_number, read_result_file, read_text
from planner.memory import StartupLog, read_startup_log
from planner.planning import Plan, PlanFile, PlannedWorkload, read_plan
from planner.resources import MOST_LOG_BYTES, read_given
from planner.units import LEAST_FIGURE, MOST_FIGURE
from planner.workload import OF_A_REQUEST

#: Tokens that a prompt may gain or lose when random ids are turned into text and back.
PROMPT_SLACK_TOK = 8
#: And the share of a long prompt.
PROMPT_SLACK = 0.02
RECOMMENDATION = "recommendation.json"
#: Files of a plan that are shown whole, in the order in which they are run.
SCRIPTS = (
    "partition.sh", "preflight.sh", "launch.sh", "benchmark.sh", "accuracy.sh", "validate.sh", "instances.sh",
    "nginx.conf", "quantize.sh", "download.sh",
)  # fmt: skip
LARGEST_FILE = 10 * 2**20  #: bytes; files of the planner are far smaller
_WRITE_AGAIN = "write the folder again with planner recommend -o"

Figure = Annotated[float, Field(strict=True, ge=0, le=MOST_FIGURE)]  # nor NaN
Positive = Annotated[float, Field(strict=True, ge=LEAST_FIGURE, le=MOST_FIGURE)]  # a ratio to it is finite


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One figure of lm_eval, with its standard error."""

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
    of_classes: tuple[Mapping[str, Any], ...] = ()  #: results of each class, where the plan has several

    @property
    def plan(self) -> Plan:
        return self.file.plan


@dataclass(frozen=True)
class PlanFolder:
    """A plan's folder: its scripts and measurements."""

    directory: Path
    file: PlanFile
    scripts: Mapping[str, str]  #: name to content
    measured: MeasuredPlan | None = None
    not_measured: str = ""  #: why there is no measurement

    @property
    def plan(self) -> Plan:
        return self.file.plan


class Considered(BaseModel):
    """Settings in ``recommendation.json``: a GPU, and figures where ``recommend`` writes them."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Figure | bool | str | None]

    gpu: str

    @model_validator(mode="after")
    def _figures_are_numbers(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if name.startswith(("output_throughput_per_", "mean_")) and isinstance(value, str | bool):
                raise ValueError(f"{name} is {value!r:.40}, not a number")
        return self


class Recommendation(BaseModel):
    """``recommendation.json``, as far as it is read."""

    model_config = ConfigDict(extra="allow")

    plans: list[Any] = []
    pareto: list[Considered]
    rejected: list[Considered]


@dataclass(frozen=True)
class PlanFolders:
    """The plans of a folder, and what was considered besides them."""

    directory: Path
    entries: tuple[PlanFolder, ...]
    recommendation: Mapping[str, Any]  #: settings that are Pareto-optimal, or rejected; empty without the file
    notes: tuple[str, ...] = ()


def read_measured(directory: Path, result_file: Path | None = None) -> MeasuredPlan:
    """Read what was measured of the plan in ``directory``. Raises InputError for no, a broken or another result."""
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
    joined = _joined(of_classes)
    return MeasuredPlan(directory, file, path.name, joined, startup, log, accuracy, notes, of_classes)


def _joined(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Clients side by side as one: totals, rates over the longest duration, means of all requests."""
    totals: dict[str, Any] = {
        name: sum(result[name] for result in results)
        for name in ("num_prompts", "completed", "total_input_tokens", "total_output_tokens")
    }
    duration_s = max(result["duration"] for result in results)
    means = {f"mean_{name}_ms" for name in OF_A_REQUEST}.intersection(*results)
    return {
        **totals,
        "duration": duration_s,
        "request_throughput": totals["completed"] / duration_s,
        "output_throughput": totals["total_output_tokens"] / duration_s,
        "total_token_throughput": (totals["total_input_tokens"] + totals["total_output_tokens"]) / duration_s,
        **{key: sum(one[key] * one["completed"] for one in results) / totals["completed"] for key in means},
    }


def _result_path(folder: Path, plan: Plan) -> Path:
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
    for name in ("num_prompts", "completed"):
        read_number(path, result, name)
    return result


def _planned_result(path: Path, plan: Plan, load: PlannedWorkload, predicted: Mapping[str, Any]) -> dict[str, Any]:
    result = read_result(path, plan)
    count = load.num_prompts
    if plan.classes:  # their results are joined
        for name in ("duration", *result.keys() & {f"mean_{metric}_ms" for metric in OF_A_REQUEST}):
            read_number(path, result, name, positive=True)
    for name, planned in (("num_prompts", count), ("max_concurrency", load.max_concurrency)):
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
    """The last results of lm_eval for this plan: ``results/accuracy-DIGEST/**/results_*.json``."""
    files = sorted((directory / "results" / f"accuracy-{plan.digest}").rglob("results*.json"), key=lambda p: p.name)
    if not files:
        return []
    path, hint = files[-1], "run ./accuracy.sh again with FORCE=1"
    try:
        tasks = TypeAdapter(dict[str, dict[str, Any]]).validate_python(json.loads(read_text(path))["results"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is not a result of lm_eval", hint=hint) from error
    accuracy = []
    for task, figures in tasks.items():
        for metric, value in figures.items():
            if not isinstance(value, int | float) or "_stderr" in metric:
                continue
            if not abs(value) <= MOST_FIGURE:  # nor NaN
                raise InputError(f"{path}: {metric} is {value!r:.40}", hint=hint)
            name, comma, how = metric.partition(",")
            stderr = figures.get(f"{name}_stderr{comma}{how}")
            if not isinstance(stderr, int | float) or not abs(stderr) <= MOST_FIGURE:
                stderr = None  # lm_eval writes N/A
            accuracy.append(Accuracy(task, metric, value, stderr))
    return accuracy


def read_plan_folders(directory: Path) -> PlanFolders:
    """Read every plan of a folder. Raises InputError where there is none, and for a plan that is broken or changed."""
    entries = tuple(_read_plan_folder(folder) for folder in _plan_directories(directory))
    home = next((path for path in (directory, directory.parent) if (path / RECOMMENDATION).is_file()), None)
    if home is None or (home != directory and not (directory / "plan.json").is_file()):
        return PlanFolders(directory, entries, {}, (f"{RECOMMENDATION} does not exist: {_WRITE_AGAIN}",))
    recommendation = _read_recommendation(home / RECOMMENDATION)
    gpus = {entry.plan.gpu for entry in entries}
    if home != directory:  # the folder of one GPU among several
        lists = ("pareto", "rejected")
        recommendation |= {key: [row for row in recommendation[key] if row["gpu"] in gpus] for key in lists}
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
    hint = f"{_WRITE_AGAIN}, or remove the file"
    try:
        content = json.loads(_shown_text(path))
        Recommendation.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{path} is broken: {fault_in(error)}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is broken: {error}", hint=hint) from error
    return dict(content)


def _shown_text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} is larger than anything that the planner writes", hint="remove the file")
        return read_given(path, most_bytes=MOST_LOG_BYTES, errors="replace")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint="make it readable") from error


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """One measurement that the scripts make, with what is predicted and published of it, as in the result file."""

    name: str
    key: str  #: of the result file: ``avg_latency`` in seconds, else tokens per second
    predicted: Positive | None
    lo: Positive | None
    hi: Positive | None
    published: Positive | None


class _Points(BaseModel):
    digest: str
    points: list[PlannedPoint]


def read_offline(directory: Path) -> list[tuple[PlannedPoint, float]]:
    """Return the points that were measured, each with its figure. Raises InputError for a file that is broken."""
    table = directory / "points.json"
    try:
        known = _Points.model_validate(parse_result(table, read_text(table)))
    except ValidationError as error:
        raise InputError(f"{table} is broken: {fault_in(error)}", hint="write the folder again") from error
    measured = []
    for point in known.points:
        path = directory / "results" / f"{point.name}-{known.digest}.json"
        if path.is_file():
            measured.append((point, read_number(path, parse_result(path, read_text(path)), point.key, positive=True)))
    return measured


Setting = int | float | bool | str

#: Numbers and switches of a result. The start-up prints them as ``'max_model_len': 8`` among the arguments that are not
#: defaults, in older versions as ``max_model_len=8``, in the engine's summary as ``enforce_eager=False``.
_SETTINGS: dict[str, Callable[[str], Setting]] = {
    name: (lambda text: text == "True") if SETTINGS[name].is_switch else SETTINGS[name].value_type
    for name in tagged("result")
    if SETTINGS[name].value_type is not str
}
_SETTING = re.compile(rf"['\"]?\b({'|'.join(_SETTINGS)})['\"]?\s?[=:]\s?(\d+(?:\.\d+)?|True|False)\b")
#: Settings that are words. They count only on lines where a server prints its settings.
_WORD = re.compile(r"['\"]?\b(dtype|kv_cache_dtype)['\"]?\s?[=:]\s?['\"]?(?:torch\.)?(\w+)")
_PRINTS_SETTINGS = ("non-default args: ", " with config: ", "args: Namespace(")
_VERSION = re.compile(r"(?:LLM engine \(v|LLM engine \(version |API server version )(\d+\.\d+[\w.+]*)")
_PREEMPTIONS = re.compile(r"Preemptions: (\d{1,18})\b")
_PREEMPTED = re.compile(r"is preempted by PreemptionMode")
_USAGE = re.compile(r"KV cache usage: (\d{1,9}(?:\.\d+)?)%")
_HITS = re.compile(r"(?<!External )[Pp]refix cache hit rate: (?:GPU: )?(\d{1,9}(?:\.\d+)?)%")
_WAITING = re.compile(r"(?:Waiting|Pending): (\d{1,18}) reqs")


@dataclass(frozen=True, slots=True)
class ServerLog:
    """One server's log. None: the log does not say."""

    version: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))
    preemptions: int = 0
    peak_cache_usage: float | None = None  #: largest fraction of the KV blocks that was in use
    prefix_hit_rate: float | None = None  #: largest fraction of prompt tokens that were hits
    peak_waiting: int | None = None  #: requests


def read_server_log(text: str) -> ServerLog:
    """Read a log. Of several start-ups the last counts."""
    version: str | None = None
    settings: dict[str, Any] = {}
    counted, seen = 0, 0
    for line in text.splitlines():
        match = _VERSION.search(line)
        version = match[1] if match else version
        for name, value in _SETTING.findall(line):
            try:
                settings[name] = _SETTINGS[name](value)
            except ValueError:  # ``True`` for a number: not a setting of that name
                continue
        if any(words in line for words in _PRINTS_SETTINGS):
            settings.update(_WORD.findall(line))
        counted += bool(_PREEMPTED.search(line))
        seen = max([seen, *map(int, _PREEMPTIONS.findall(line))])
    waiting = _most(_WAITING, text, 1)
    return ServerLog(
        version=version,
        settings=MappingProxyType(settings),
        preemptions=max(counted, seen),
        peak_cache_usage=_most(_USAGE, text, 100),
        prefix_hit_rate=_most(_HITS, text, 100),
        peak_waiting=None if waiting is None else int(waiting),
    )


def _most(expression: re.Pattern[str], text: str, scale: float) -> float | None:
    values = [float(value) for value in expression.findall(text)]
    return max(values) / scale if values else None
