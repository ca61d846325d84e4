"""Measured runs from tables, results of ``vllm bench`` and other tools, and folders of plans.

The ``plan.json`` in a result's folder, or above it, says which engine ran; else the caller does."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from planner.engine import EngineArgs, tagged
from planner.errors import InputError
from planner.evidence import results as tools
from planner.evidence.folder import MeasuredPlan, read_measured, read_server_log
from planner.evidence.runs import MEASUREMENTS, RUN_COLUMNS, MeasuredRun, check_run, of_one_server, read_runs
from planner.evidence.validation import find_causes, find_sweep_results
from planner.model import resolve_model
from planner.planning import Plan, read_plan
from planner.resources import MOST_LOG_BYTES, read_given

LEVELS_UP = 3  #: a result's plan lies in one of so many folders above it
ACCEPTED = "spec_decode_per_position_acceptance_rates"  #: of a result of vllm bench serve with drafts
SWEPT = "summary.csv"  #: that vllm bench sweep writes into its folder
SLACK = 0.02  #: share by which tokens of a throughput result may differ from what the lengths make


@dataclass(frozen=True)
class Stated:
    """Settings that the caller states for results without a plan. None: not stated."""

    gpu: str | None = None
    model: str | None = None
    engine_version: str | None = None
    weight_dtype: str | None = None
    input_len: int | None = None
    output_len: int | None = None
    batch_size: int | None = None
    args: EngineArgs = field(default_factory=EngineArgs)


@dataclass(frozen=True)
class Sources:
    """Runs, and the plans whose folders were given."""

    runs: tuple[MeasuredRun, ...] = ()
    folders: tuple[MeasuredPlan, ...] = ()


def read_sources(paths: Sequence[Path], stated: Stated) -> Sources:
    """Read every run of ``paths``. Raises InputError, naming file and field, for anything that is not one."""
    runs: list[MeasuredRun] = []
    folders: list[MeasuredPlan] = []
    used = False  # whether any result needed what was stated
    for path in chain.from_iterable(map(_files, paths)):
        if path.is_dir():
            folder = read_measured(path)
            _refuse_another_engine(folder)
            folders.append(folder)
            _refuse_classes(path, folder.plan)
            for file in (path / "results" / folder.result_name, *find_sweep_results(path, folder.plan)):
                runs += (
                    _run_of(file, one, folder.plan, Stated()) for one in tools.read_results(file, tools.read_text(file))
                )
            continue
        text = tools.read_text(path)
        if not _holds_results(text):
            for run in read_runs(path):
                if run.unread:
                    raise InputError(run.unread, hint="correct the cell, or leave it empty")
                unnamed = run.run_id.startswith("line-")
                runs.append(replace(run, run_id=f"{path.name}:{run.run_id}") if unnamed else run)
            continue
        plan = _find_plan(path)
        used = used or plan is None
        runs += (_run_of(path, one, plan, stated) for one in tools.read_results(path, text))
    if paths and stated != Stated() and not used:
        cause = "--gpu, --model and flags of the engine are for results without a plan.json"
        raise InputError(cause, hint="leave them out: plans and tables say what was run")
    named: dict[str, MeasuredRun] = {}
    for run in runs:
        check_run(run)
        if named.setdefault(run.run_id, run) != run:  # runs replace each other by name; one may be given twice
            raise InputError(f"run_id {run.run_id!r} names two different runs", hint="give each run a name of its own")
    return Sources(tuple(runs), tuple(folders))


def _files(path: Path) -> Sequence[Path]:
    """Return the results in a folder without a plan; else the path itself."""
    if not path.is_dir() or (path / "plan.json").exists():
        return [path]
    table = path / SWEPT
    return [table] if table.is_file() else sorted(path.glob("*.json")) or [path]


def read_measurements(path: Path, stated: Stated) -> list[MeasuredRun]:
    """Return the runs of a table or of a result file; ``unread`` says why a row cannot be read."""
    try:
        results = path.is_dir() or _holds_results(read_given(path))
    except (OSError, UnicodeDecodeError):  # ``read_runs`` says so
        results = False
    return list(read_sources([path], stated).runs) if results else read_runs(path)


def _holds_results(text: str) -> bool:
    return text.lstrip().startswith(("{", "[")) or tools.is_table_of_results(text)


def _refuse_classes(path: Path, plan: Plan) -> None:
    if plan.classes:
        cause = f"{path}: the plan's clients send {len(plan.classes)} classes side by side, none is a run alone"
        raise InputError(cause, hint="compare each class with its prediction: planner validate DIR")


def _find_plan(path: Path) -> Plan | None:
    for folder in path.absolute().parents[:LEVELS_UP]:
        if not (folder / "plan.json").is_file():
            continue
        file = read_plan(folder)
        named, digest = path.stem.rpartition("-")[2], file.plan.digest
        if len(named) == len(digest) and set(named) <= set("0123456789abcdef") and named != digest:
            hint = "measure again with ./benchmark.sh, or move the result elsewhere and state what was run"
            cause = f"{path} is a result of plan {named}, but {folder / 'plan.json'} is plan {digest}"
            raise InputError(cause, hint=hint)
        log = folder / "logs" / "server.log"
        text = read_given(log, most_bytes=MOST_LOG_BYTES, errors="replace") if log.is_file() else None
        _refuse_another_engine(MeasuredPlan(folder, file, path.name, {}, log=read_server_log(text) if text else None))
        if path.name in file.plan.result_names:
            _refuse_classes(path, file.plan)
        return file.plan
    return None


def _refuse_another_engine(folder: MeasuredPlan) -> None:
    for finding in find_causes(folder, ()):
        if finding.not_the_plan:
            hint = "measure the plan again, or move the result and state what ran: --gpu, --engine-version, ..."
            raise InputError(f"{folder.directory}: {finding.cause}: {finding.evidence}", hint=hint)


def _run_of(path: Path, one: tools.ReadResult, plan: Plan | None, stated: Stated) -> MeasuredRun:
    result = one.result
    digest = sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()[:8]
    gpu, version = stated.gpu or one.gpu, stated.engine_version or one.engine_version
    stated = replace(stated, gpu=gpu, engine_version=version, args=replace(stated.args, **one.engine))
    day = str(result.get("date") or "")[:8]  # vLLM writes 20261120-201847; only the day is kept
    run = {
        **(_settings_of_plan(path, result, plan) if plan else _settings_stated(path, result, stated)),
        "run_id": f"{path.stem}-{digest}",
        "date": f"{day[:4]}-{day[4:6]}-{day[6:]}" if len(day) == 8 and day.isdigit() else "",
    }
    if "avg_latency" in result:
        if not stated.batch_size:
            raise InputError(f"{path}: a result of vllm bench latency does not say its batch", hint="add --batch-size")
        figures = {"avg_latency_s": tools.read_number(path, result, "avg_latency", positive=True)}
        run |= {"bench": "latency", **_lengths(path, stated), "batch_size": stated.batch_size, "metrics": figures}
    elif "elapsed_time" in result:
        run |= _throughput_run(path, result, stated)
    else:
        sent = plan.workload if plan else None
        drawn = {"seed": sent.seed if sent else 0, "random_range_ratio": sent.range_ratio if sent else 0.0}
        run |= _serve_run(path, result) | drawn
    servers = plan.started_on_node if plan and path.name == plan.node_result_name else 1
    return of_one_server(MeasuredRun(**{**run, **one.run}), servers)


def _serve_run(path: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    def number(name: str) -> float:
        return tools.read_number(path, result, name, positive=True)

    names = ("completed", "total_input_tokens", "total_output_tokens")
    requests, given, made = (tools.stated_number(path, result, name) or 0.0 for name in names)
    totals = {"request_throughput": requests, "output_throughput": made, "total_token_throughput": given + made}
    _check_rates(path, result, "duration", totals)
    completed = int(number("completed")) if "completed" in result else None
    limit = None if result.get("max_concurrency") is None else int(number("max_concurrency"))
    paced = result.get("request_rate") not in (None, "inf", float("inf"))
    length = {
        f"mean_{side}_len": number(f"total_{side}_tokens") / completed if completed else number(f"mean_{side}_len")
        for side in ("input", "output")
    }
    return {
        "bench": "serve",
        **length,
        "arrival": "poisson" if paced else "closed-loop" if limit else "all-at-once",
        "num_prompts": completed,
        "max_concurrency": limit,
        "request_rate": number("request_rate") if paced else None,
        "burstiness": number("burstiness") if paced and result.get("burstiness") else None,
        "metrics": {name: number(name) for name in MEASUREMENTS if result.get(name) is not None},
    }


def _check_rates(path: Path, result: Mapping[str, Any], duration: str, totals: Mapping[str, float]) -> None:
    """Raise InputError for a rate that is not its total over the duration."""
    seconds = tools.stated_number(path, result, duration)
    for name, total in totals.items():
        rate = tools.stated_number(path, result, name)
        if rate and seconds and total and abs(rate * seconds / total - 1) > tools.EXACT:
            counted = f"{total:g} in {seconds:g} s are {total / seconds:g} per second"
            raise InputError(f"{path}: {name} is {rate:g}, but {counted}", hint="give the file that vllm bench wrote")


def _throughput_run(path: Path, result: Mapping[str, Any], stated: Stated) -> dict[str, Any]:
    lengths = _lengths(path, stated)
    requests, tokens, rate = (
        tools.read_number(path, result, name, positive=True)
        for name in ("num_requests", "total_num_tokens", "tokens_per_second")
    )
    stated_tok = requests * sum(lengths.values())
    if abs(tokens / stated_tok - 1) > SLACK:
        cause = f"{path}: {requests:g} requests have {tokens:g} tokens, but {stated_tok:g} with the stated lengths"
        raise InputError(cause, hint="correct --input-len and --output-len")
    _check_rates(path, result, "elapsed_time", {"requests_per_second": requests, "tokens_per_second": tokens})
    run = {"bench": "throughput", "num_prompts": int(requests), "arrival": "offline"}
    return {**run, **lengths, "metrics": {"total_token_throughput": rate}}


def _lengths(path: Path, stated: Stated) -> dict[str, float]:
    if not stated.input_len or not stated.output_len:
        cause = f"{path}: a result of this bench does not say its lengths"
        raise InputError(cause, hint="add --input-len and --output-len")
    return {"input_len": float(stated.input_len), "output_len": float(stated.output_len)}


def _settings(of: Plan | EngineArgs) -> dict[str, Any]:
    spread = of.enable_expert_parallel and of.tensor_parallel_size * of.data_parallel_size
    named = {name: getattr(of, name) for name in tagged("result") if name in RUN_COLUMNS}
    return {**named, "expert_parallel_size": spread or 1}


def _settings_of_plan(path: Path, result: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    if result.get("model_id", plan.model) != plan.model:
        cause = f"{path} is of {result['model_id']}, its plan is of {plan.model}"
        raise InputError(cause, hint="measure the plan with ./benchmark.sh")
    argv, drafts = plan.serve_argv, plan.speculative_config
    named = {name: getattr(plan, name) for name in ("gpu", "model", "weight_dtype", "engine_version")}
    if drafts:
        rates = result.get(ACCEPTED)
        if not isinstance(rates, list):
            cause = f"{path}: with speculative decoding, the result does not say what was accepted ({ACCEPTED})"
            hint = "measure with a newer vllm bench serve, or a plan made with --no-speculation"
            raise InputError(cause, hint=hint)
        named["speculative_config"] = json.dumps(json.loads(drafts.text) | {"synthetic_acceptance_rates": rates})
    cache = argv[argv.index("--kv-cache-dtype") + 1] if "--kv-cache-dtype" in argv else "auto"
    return {**_settings(plan), **named, "kv_cache_dtype": cache}


def _settings_stated(path: Path, result: Mapping[str, Any], stated: Stated) -> dict[str, Any]:
    model = stated.model or str(result.get("model_id") or "")
    needed = {"--gpu": stated.gpu, "--engine-version": stated.engine_version, "--model": model}
    missing = [flag for flag, value in needed.items() if not value]
    if model and not stated.model and ("/" not in model or model.startswith(("/", "."))):  # a served name, or a path
        try:
            resolve_model(model)
        except InputError as error:
            hint = "add --model with the hub id of what was served"
            raise InputError(f"{path}: model_id: {error.cause}", hint=hint) from error
    if missing:
        cause = f"{path}: neither a plan.json nor {', '.join(missing)} says what was run"
        raise InputError(cause, hint=f"add {' and '.join(missing)}, or give the folder of the plan")
    named = {"gpu": stated.gpu, "model": model, "engine_version": stated.engine_version}
    eager = stated.args.enforce_eager or None
    return {**_settings(stated.args), **named, "weight_dtype": stated.weight_dtype or "", "enforce_eager": eager}
