"""What a server logged beside its memory: the settings that it took, and what its cache went through.

>>> log = read_server_log("Engine 000: Running: 4 reqs, Waiting: 2 reqs, Preemptions: 3, GPU KV cache usage: 99.5%")
>>> log.preemptions, log.peak_cache_usage
(3, 0.995)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

from planner.errors import InputError
from planner.memory import StartupLog, read_startup_log
from planner.planning import Plan, PlanFile, read_plan

Setting = int | float | bool | str

#: Settings that change what is measured, as the start-up prints them: ``'max_num_seqs': 8`` among the arguments that
#: are not defaults, ``max_num_seqs=8`` before that list was there, ``enforce_eager=False`` in the engine's summary.
_SETTINGS: dict[str, Callable[[str], Setting]] = {
    "tensor_parallel_size": int,
    "pipeline_parallel_size": int,
    "data_parallel_size": int,
    "max_num_seqs": int,
    "max_num_batched_tokens": int,
    "max_model_len": int,
    "gpu_memory_utilization": float,
    "enforce_eager": lambda text: text == "True",
    "enable_prefix_caching": lambda text: text == "True",
    "enable_expert_parallel": lambda text: text == "True",
}
_SETTING = re.compile(rf"['\"]?\b({'|'.join(_SETTINGS)})['\"]?\s?[=:]\s?(\d+(?:\.\d+)?|True|False)\b")
#: Those that are words, where a server prints its settings and nowhere else.
_WORD = re.compile(r"['\"]?\b(dtype|kv_cache_dtype)['\"]?\s?[=:]\s?['\"]?(?:torch\.)?(\w+)")
_PRINTS_SETTINGS = ("non-default args: ", " with config: ", "args: Namespace(")
_VERSION = re.compile(r"(?:LLM engine \(v|LLM engine \(version |API server version )(\d+\.\d+[\w.+]*)")
_PREEMPTIONS = re.compile(r"Preemptions: (\d+)")
_PREEMPTED = re.compile(r"is preempted by PreemptionMode")
_USAGE = re.compile(r"KV cache usage: ([\d.]+)%")
_HITS = re.compile(r"(?<!External )[Pp]refix cache hit rate: (?:GPU: )?([\d.]+)%")
_WAITING = re.compile(r"(?:Waiting|Pending): (\d+) reqs")


@dataclass(frozen=True, slots=True)
class ServerLog:
    """One server's log. None: nothing was printed about it."""

    version: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))
    preemptions: int = 0
    peak_cache_usage: float | None = None  #: fraction of the KV blocks, the most that was printed
    prefix_hit_rate: float | None = None  #: fraction of prompt tokens, the most that was printed
    peak_waiting: int | None = None  #: requests


def read_server_log(text: str) -> ServerLog:
    """Whatever ``text`` says; empty where it says nothing. Of several start-ups the last counts."""
    version: str | None = None
    settings: dict[str, Any] = {}
    counted, seen = 0, 0
    for line in text.splitlines():
        match = _VERSION.search(line)
        version = match[1] if match else version
        for name, value in _SETTING.findall(line):
            try:
                settings[name] = _SETTINGS[name](value)
            except ValueError:  # True where a number is meant: not a setting of that name
                continue
        if any(words in line for words in _PRINTS_SETTINGS):
            settings.update(_WORD.findall(line))
        counted += bool(_PREEMPTED.search(line))
        seen = max([seen, *map(int, _PREEMPTIONS.findall(line))])
    return ServerLog(
        version=version,
        settings=MappingProxyType(settings),
        preemptions=max(counted, seen),
        peak_cache_usage=_most(_USAGE, text, 100),
        prefix_hit_rate=_most(_HITS, text, 100),
        peak_waiting=_count(_WAITING, text),
    )


def _most(expression: re.Pattern[str], text: str, scale: float) -> float | None:
    found = [float(value) for value in expression.findall(text)]
    return max(found) / scale if found else None


def _count(expression: re.Pattern[str], text: str) -> int | None:
    found = _most(expression, text, 1)
    return None if found is None else int(found)


# --- The folder of a plan after its scripts ran: ``plan.json``, ``results/``, ``logs/server.log``
#
# Only what this very plan measured counts: the digest in the file's name, the number of requests and their lengths must
# agree. Anything else is refused, because a comparison with it would mean nothing.

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


# --- What ``planner recommend -o DIR`` left: a plan, or a folder below for the plan of each GPU; and what was measured
#
# ``recommendation.json`` lies beside them and says what was considered. A folder of an older planner has none: then
# the reader is told what is missing.

RECOMMENDATION = "recommendation.json"
#: Files of a plan that are shown whole, in the order in which they are run.
SCRIPTS = (
    "partition.sh", "preflight.sh", "launch.sh", "benchmark.sh", "accuracy.sh", "validate.sh", "instances.sh",
    "nginx.conf", "quantize.sh", "download.sh",
)  # fmt: skip
LARGEST_FILE = 10 * 2**20  #: bytes; nothing that the planner writes comes near
_WRITE_AGAIN = "write the folder again with planner recommend -o"


@dataclass(frozen=True)
class PlanFolder:
    """One plan's folder."""

    directory: Path
    file: PlanFile
    scripts: Mapping[str, str]  #: name to content
    measured: Measured | None = None
    not_measured: str = ""  #: why there is no measurement

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.file.plan


@dataclass(frozen=True)
class PlanFolders:
    """The plans of a folder, and what was considered beside them."""

    directory: Path
    entries: tuple[PlanFolder, ...]
    recommendation: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()

    @property
    def pareto(self) -> tuple[Mapping[str, Any], ...]:
        """The settings that no other beat in both rates, of all GPUs."""
        return tuple((self.recommendation or {}).get("pareto", ()))

    @property
    def rejected(self) -> tuple[Mapping[str, Any], ...]:
        """What was turned down, with the reason."""
        return tuple((self.recommendation or {}).get("rejected", ()))


def read_plan_folders(directory: Path) -> PlanFolders:
    """Raises InputError where there is no plan, and for plans that are broken, changed, or of another schema."""
    folders = _folders(directory)
    entries = tuple(_entry(folder) for folder in folders)
    found = next((path for path in (directory, directory.parent) if (path / RECOMMENDATION).is_file()), None)
    if found is None or (found != directory and not (directory / "plan.json").is_file()):
        return PlanFolders(directory, entries, None, (f"{RECOMMENDATION} is not there: {_WRITE_AGAIN}",))
    recommendation = _recommendation(found / RECOMMENDATION)
    gpus = {entry.plan.gpu for entry in entries}
    if found != directory:  # the folder of one GPU among several
        recommendation |= {key: [row for row in recommendation[key] if row["gpu"] in gpus] for key in _LISTS}
    return PlanFolders(directory, entries, recommendation)


def _folders(directory: Path) -> list[Path]:
    try:
        if not directory.is_dir() or (directory / "plan.json").exists():
            return [directory]
        below = sorted(path.parent for path in directory.glob("*/plan.json"))
    except OSError as error:
        raise InputError(f"{directory}: {error.strerror}", hint="give the folder that -o named") from error
    return below or [directory]  # read_plan says what is wrong with it


def _entry(directory: Path) -> PlanFolder:
    file = read_plan(directory)
    scripts = {name: _folder_text(directory / name) for name in SCRIPTS if (directory / name).is_file()}
    results = directory / "results"
    if not (results.is_dir() and any(results.glob("serve-*.json"))):
        return PlanFolder(directory, file, scripts, None, "Nothing was measured yet: ./benchmark.sh does that")
    try:
        return PlanFolder(directory, file, scripts, read_folder(directory))
    except InputError as error:  # of another plan, or broken: the prediction can still be shown
        return PlanFolder(directory, file, scripts, None, f"The measurement is left out: {error.cause}")


_LISTS = ("pareto", "rejected")


def _recommendation(path: Path) -> dict[str, Any]:
    """Raises InputError where it is not what ``recommend`` wrote."""
    try:
        found = json.loads(_folder_text(path))
    except ValueError as error:
        raise InputError(f"{path} is broken: {error}", hint=f"{_WRITE_AGAIN}, or remove the file") from error
    whole = isinstance(found, dict) and all(
        isinstance(found.get(key), list) and all(isinstance(row, dict) and "gpu" in row for row in found[key])
        for key in _LISTS
    )
    if not whole:
        raise InputError(
            f"{path} has no lists {' and '.join(_LISTS)} of settings", hint=f"{_WRITE_AGAIN}, or remove the file"
        )
    return dict(found)


def _folder_text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} is larger than anything that the planner writes", hint="remove the file")
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint="make it readable") from error
