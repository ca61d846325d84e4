"""The folder of a plan: its scripts, and what they measured.

A result counts when it is of this very plan: the digest in its name, the number of requests and their lengths agree."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from planner.engine import SETTINGS, tagged
from planner.errors import InputError, fault_in, os_errors
from planner.evidence.results import AGAIN, parse_result, read_number, read_results, read_text
from planner.memory import StartupLog, read_startup_log
from planner.planning import Plan, PlanFile, PlannedWorkload, read_plan
from planner.resources import MOST_LOG_BYTES, read_given
from planner.units import LEAST_FIGURE, MOST_FIGURE
from planner.workload import OF_A_REQUEST

PROMPT_SLACK_TOK = 8  #: tokens that a prompt may gain or lose when random ids are turned into text and back
PROMPT_SLACK = 0.02  #: and the share of a long prompt
RECOMMENDATION = "recommendation.json"
#: Files of a plan that are shown whole, in the order in which they are run.
SCRIPTS = (
    "partition.sh", "preflight.sh", "launch.sh", "benchmark.sh", "accuracy.sh", "validate.sh", "instances.sh",
    "nginx.conf", "quantize.sh", "download.sh",
)  # fmt: skip
#: Figures of a result that grow with the servers behind its address.
_SHARED = re.compile(r"^(num_prompts|completed|failed|max_concurrency|total_(in|out)put_tokens|\w+_throughput)$")
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
    directory: Path
    file: PlanFile
    result_name: str
    result: Mapping[str, Any]  #: of ``vllm bench serve``
    startup: StartupLog | None = None
    log: "ServerLog | None" = None
    accuracy: tuple[Accuracy, ...] = ()
    notes: tuple[str, ...] = ()
    of_classes: tuple[Mapping[str, Any], ...] = ()  #: results of each class, where the plan has several

    @property
    def plan(self) -> Plan:
        return self.file.plan


@dataclass(frozen=True)
class PlanFolder:
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

    gpu: str
    output_throughput_per_gpu: Figure | None = None
    output_throughput_per_user: Figure | None = None
    mean_ttft_ms: Figure | None = None
    mean_tpot_ms: Figure | None = None
    mean_e2el_ms: Figure | None = None


class Recommendation(BaseModel):
    """Content of ``recommendation.json``, as far as it is read."""

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
    """Return what was measured of the plan in ``directory``. Raises InputError for no, a broken or another result."""
    file = read_plan(directory)
    plan = file.plan
    if result_file and plan.classes:
        cause = f"{result_file} is of one client, but the plan has one for each of its {len(plan.classes)} classes"
        raise InputError(cause, hint="run ./benchmark.sh, and leave --result out")
    startup, log, notes = _read_log(directory / "logs" / "server.log", plan)
    accuracy = tuple(_read_accuracy(directory, plan))
    path = result_file or _result_path(directory / "results", plan)
    if path.name == plan.node_result_name:
        notes += (f"{path.name} is of {plan.started_on_node} servers behind one address: rates are those of one",)
    if not plan.classes:
        result = planned_result(path, plan, plan.workload, plan.predicted)
        return MeasuredPlan(directory, file, path.name, result, startup, log, accuracy, notes)
    of_classes = tuple(
        planned_result(path.with_name(name), plan, one.workload, one.predicted)
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
    path, node = (folder / name for name in (plan.result_names[-1], plan.node_result_name))
    if path.is_file() or (node.is_file() and not plan.classes):
        return path if path.is_file() else node
    if others := ", ".join(sorted(other.name for other in folder.glob("serve-*.json"))):
        raise InputError(f"{folder} holds results of another plan ({others}), none of {plan.digest}", hint=AGAIN)
    raise InputError(f"{path}: nothing was measured yet", hint="run ./launch.sh and ./benchmark.sh, or ./validate.sh")


def read_result(path: Path, plan: Plan) -> dict[str, Any]:
    """Read a result of ``vllm bench serve`` for the plan's model. Raises InputError where it is not a whole one."""
    runs = tuple(read_results(path, read_text(path)))
    if len(runs) != 1:
        raise InputError(f"{path} holds {len(runs)} runs", hint="give a file with the one that is meant")
    result = dict(runs[0].result)
    if result.get("model_id", plan.model) != plan.model:
        raise InputError(f"{path} is of {result['model_id']}, its plan is of {plan.model}", hint=AGAIN)
    for name in ("num_prompts", "completed"):
        read_number(path, result, name)
    return result


def planned_result(path: Path, plan: Plan, load: PlannedWorkload, predicted: Mapping[str, Any]) -> dict[str, Any]:
    """Read a result of ``load``; of ``instances.sh``, whose servers share one address, the share of one server."""
    result = read_result(path, plan)
    if path.name == plan.node_result_name:
        shared = (name for name, value in result.items() if _SHARED.search(name) and isinstance(value, int | float))
        result |= {name: result[name] / plan.started_on_node for name in shared}
    count = load.num_prompts
    if plan.classes:  # their results are joined
        for name in ("duration", *result.keys() & {f"mean_{metric}_ms" for metric in OF_A_REQUEST}):
            read_number(path, result, name, positive=True)
    another = "another load was measured"
    for name, planned in (("num_prompts", count), ("max_concurrency", load.max_concurrency)):
        if planned and (measured := read_number(path, result, name)) != planned:
            cause = f"{path}: {name} is {measured:g}, but the plan sends {planned:g}: {another}"
            raise InputError(cause, hint=AGAIN)
    for key, nominal in (("total_input_tokens", load.input_len), ("total_output_tokens", load.output_len)):
        each = read_number(path, result, key) / count
        length = round(predicted.get(key, nominal * count) / count)  # lengths that vary are drawn from the seed
        if abs(each - length) > max(PROMPT_SLACK_TOK * (key == "total_input_tokens"), PROMPT_SLACK * length):
            cause = f"{path}: {key} is {each:g} for each request, but the plan sends {length}: {another}"
            raise InputError(cause, hint=AGAIN)
    return result


def _read_log(path: Path, plan: Plan) -> "tuple[StartupLog | None, ServerLog | None, tuple[str, ...]]":
    where = f"{path.parent.name}/{path.name}"
    if not path.is_file():
        return None, None, (f"{where} does not exist: memory is not compared",)
    text = read_given(path, most_bytes=MOST_LOG_BYTES, errors="replace")
    try:
        startup = read_startup_log(text)
    except InputError as error:
        return None, read_server_log(text), (f"{where}: {error.cause}: memory is not compared",)
    return startup.of_model(plan.model), read_server_log(text), ()


def _read_accuracy(directory: Path, plan: Plan) -> list[Accuracy]:
    """Results of lm_eval's last run: ``results/accuracy-DIGEST/**/results_*.json``."""
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
            name, comma, how = metric.partition(",")  # of the filter; without one: sizes and names
            if not comma or not isinstance(value, int | float) or "_stderr" in name:
                continue
            if not abs(value) <= MOST_FIGURE:  # nor NaN
                raise InputError(f"{path}: {metric} is {value!r:.40}", hint=hint)
            stderr = figures.get(f"{name}_stderr{comma}{how}")  # lm_eval writes N/A where there is none
            known = isinstance(stderr, int | float) and abs(stderr) <= MOST_FIGURE
            accuracy.append(Accuracy(task, metric, value, stderr if known else None))
    return accuracy


def read_plan_folders(directory: Path) -> PlanFolders:
    """Return every plan of a folder. Raises InputError where there is none, and for one that is broken or changed."""
    with os_errors(str(directory), hint="give the folder that -o named"):
        below = sorted(path.parent for path in directory.glob("*/plan.json"))
        # read_plan says what is wrong with a folder without one
        alone = not below or (directory / "plan.json").exists()
    entries = tuple(_read_plan_folder(folder) for folder in ([directory] if alone else below))
    home = next((path for path in (directory, directory.parent) if (path / RECOMMENDATION).is_file()), None)
    if home is None or (home != directory and not (directory / "plan.json").is_file()):
        return PlanFolders(directory, entries, {}, (f"{RECOMMENDATION} does not exist: {_WRITE_AGAIN}",))
    recommendation = _read_recommendation(home / RECOMMENDATION)
    gpus = {entry.plan.gpu for entry in entries}
    if home != directory:  # the folder of one GPU among several
        lists = ("pareto", "rejected")
        recommendation |= {key: [row for row in recommendation[key] if row["gpu"] in gpus] for key in lists}
    return PlanFolders(directory, entries, recommendation)


def _read_plan_folder(directory: Path) -> PlanFolder:
    file = read_plan(directory)
    scripts = {name: _shown_text(directory / name) for name in SCRIPTS if (directory / name).is_file()}
    if not any((directory / "results").glob("[sn]*e-*.json")):  # serve, node
        return PlanFolder(directory, file, scripts, None, "Nothing was measured yet: run ./benchmark.sh")
    try:
        return PlanFolder(directory, file, scripts, read_measured(directory))
    except InputError as error:  # of another plan, or broken: the prediction can still be shown
        return PlanFolder(directory, file, scripts, None, f"The measurement is left out: {error.cause}")


def _read_recommendation(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(_shown_text(path))
        Recommendation.model_validate(content)
    except (ValueError, RecursionError) as error:
        fault = fault_in(error) if isinstance(error, ValidationError) else error
        raise InputError(f"{path} is broken: {fault}", hint=f"{_WRITE_AGAIN}, or remove the file") from error
    return content


def _shown_text(path: Path) -> str:
    with os_errors(str(path), hint="make it readable, or remove it"):
        return read_given(path, most_bytes=LARGEST_FILE, errors="replace")


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """One measurement that the scripts make, predicted and published."""

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
    """Return each measured point and its figure. Raises InputError for a broken file."""
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
_PREEMPTED = "is preempted by PreemptionMode"
#: Counters that a server prints every few seconds, of which the largest counts; shares in per cent.
_COUNTERS = {
    "preemptions": re.compile(r"Preemptions: (\d{1,18})\b"),
    "peak_cache_usage": re.compile(r"KV cache usage: (\d{1,9}(?:\.\d+)?)%"),
    "prefix_hit_rate": re.compile(r"(?<!External )[Pp]refix cache hit rate: (?:GPU: )?(\d{1,9}(?:\.\d+)?)%"),
    "peak_waiting": re.compile(r"(?:Waiting|Pending): (\d{1,18}) reqs"),
}


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
    """Return what a log says. Of several start-ups the last counts."""
    versions = _VERSION.findall(text)
    settings: dict[str, Any] = {}
    for line in text.splitlines():
        for name, value in _SETTING.findall(line):
            with suppress(ValueError):  # ``True`` for a number: not a setting of that name
                settings[name] = _SETTINGS[name](value)
        if any(words in line for words in _PRINTS_SETTINGS):
            settings.update(_WORD.findall(line))
    most = {name: max(map(float, expression.findall(text)), default=None) for name, expression in _COUNTERS.items()}
    usage, hits, waiting = most["peak_cache_usage"], most["prefix_hit_rate"], most["peak_waiting"]
    return ServerLog(
        version=versions[-1] if versions else None,
        settings=MappingProxyType(settings),
        preemptions=max(text.count(_PREEMPTED), int(most["preemptions"] or 0)),
        peak_cache_usage=None if usage is None else usage / 100,
        prefix_hit_rate=None if hits is None else hits / 100,
        peak_waiting=None if waiting is None else int(waiting),
    )
