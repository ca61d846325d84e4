"""From what a user has to measured runs: tables of runs, results of ``vllm bench``, folders of emitted plans.

A result says what was sent and what came out, not which engine served it. That is in the ``plan.json`` of the folder
that it lies in, or in one above; else the caller has to state it. Where the server's log there says that another engine
ran than the plan's, the result is refused: it would teach the plan's settings what others did.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from planner.engine import EngineArgs
from planner.errors import InputError
from planner.evidence.causes import findings
from planner.evidence.folder import Measured, read_folder, read_server_log
from planner.evidence.runs import MEASUREMENTS, MeasuredRun, check_result, check_run, read_runs
from planner.evidence.validation import FURTHER
from planner.planning import Plan, read_plan

#: How far up from a result its plan is looked for.
LEVELS_UP = 3


@dataclass(frozen=True)
class Stated:
    """What the caller says of results that have no plan. None: not said."""

    gpu: str | None = None
    model: str | None = None
    engine_version: str | None = None
    weight_dtype: str | None = None
    input_len: int | None = None
    output_len: int | None = None
    batch_size: int | None = None
    args: EngineArgs = field(default_factory=EngineArgs)

    @property
    def anything(self) -> bool:
        """Whether the caller said anything."""
        return self != Stated()


@dataclass(frozen=True)
class Sources:
    """Runs, and the folders of plans with what their servers logged."""

    runs: tuple[MeasuredRun, ...] = ()
    folders: tuple[Measured, ...] = ()


def read_sources(paths: Sequence[Path], stated: Stated) -> Sources:
    """Every run of ``paths``. Raises InputError naming file and field for what is not one, or contradicts itself."""
    runs: list[MeasuredRun] = []
    folders: list[Measured] = []
    used = False  # whether what was stated served for anything
    for path in paths:
        if path.is_dir():
            folder = read_folder(path)
            _refuse_another_engine(folder)
            folders.append(folder)
            runs += _runs_of_folder(path, folder.plan)
            continue
        content = _json(path)
        if content is None:
            runs += _rows(path)
            continue
        plan = _plan_of(path)
        used = used or plan is None
        runs.append(_result(path, content, plan, stated))
    if paths and stated.anything and not used:
        raise InputError(
            "--gpu, --model and flags of the engine are for results without a plan.json",
            hint="leave them out: what is given says what was run",
        )
    for run in runs:
        check_run(run)
    _refuse_namesakes(runs)
    return Sources(tuple(runs), tuple(folders))


def _refuse_namesakes(runs: Sequence[MeasuredRun]) -> None:
    """Two runs of one name would be taken for one. The same result may be given twice, such as with its folder."""
    named: dict[str, MeasuredRun] = {}
    for run in runs:
        if named.setdefault(run.run_id, run) != run:
            raise InputError(f"run_id {run.run_id!r} names two different runs", hint="give each run a name of its own")


def _rows(path: Path) -> Iterator[MeasuredRun]:
    """Rows without a name go by their file and line."""
    for run in read_runs(path):
        named = not run.run_id.startswith("line-")
        yield run if named else replace(run, run_id=f"{path.name}:{run.run_id}")


def _runs_of_folder(directory: Path, plan: Plan) -> Iterator[MeasuredRun]:
    further = sorted((directory / "results").glob(FURTHER.format(digest=plan.digest)))
    for path in (directory / "results" / f"serve-{plan.digest}.json", *further):
        yield _result(path, _json(path) or {}, plan, Stated())


def _plan_of(path: Path) -> Plan | None:
    """The plan whose folder a result lies in. Raises InputError for a result of another plan than that."""
    for folder in path.absolute().parents[:LEVELS_UP]:
        if (folder / "plan.json").is_file():
            file = read_plan(folder)
            plan = file.plan
            named = path.stem.rpartition("-")[2]
            if len(named) == len(plan.digest) and set(named) <= set("0123456789abcdef") and named != plan.digest:
                raise InputError(
                    f"{path} is a result of plan {named}, {folder / 'plan.json'} is plan {plan.digest}",
                    hint="measure again with ./benchmark.sh, or move the result elsewhere and state what was run",
                )
            log = folder / "logs" / "server.log"
            said = read_server_log(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else None
            _refuse_another_engine(Measured(folder, file, path.name, {}, log=said))
            return plan
    return None


def _refuse_another_engine(folder: Measured) -> None:
    """Raise InputError where the server's log says that it ran another vLLM or other settings than the plan's."""
    for finding in findings(folder, ()):
        if finding.not_the_plan:
            raise InputError(
                f"{folder.directory}: {finding.cause}: {finding.evidence}",
                hint="measure the plan again (./launch.sh, ./benchmark.sh), or move the result elsewhere and state "
                "what ran: --gpu, --engine-version and flags of vllm serve",
            )


def _json(path: Path) -> dict[str, Any] | None:
    """The object of a JSON file; None for a file that is none, such as a table."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}", hint="give a table of runs, a result or a plan's folder"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text", hint="give a table of runs, or a result of vllm bench") from error
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path} is broken: {error}", hint="measure again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a result of vllm bench", hint="give what --save-result or --output-json wrote")
    return content


# --- one result ----------------------------------------------------------------------------------------------------


def _result(path: Path, content: Mapping[str, Any], plan: Plan | None, stated: Stated) -> MeasuredRun:
    digest = sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    settings = _settings_of_plan(path, content, plan) if plan else _settings_stated(path, content, stated)
    common = {**settings, "run_id": f"{path.stem}-{digest}", "date": _date(content)}
    if "completed" in content:
        return _serve(path, content, common, seed=plan.workload.seed if plan else 0)
    lengths = _lengths(path, stated)
    if "avg_latency" in content:
        if not stated.batch_size:
            raise InputError(f"{path}: a result of vllm bench latency does not say its batch", hint="add --batch-size")
        seconds = _number(path, content, "avg_latency")
        return MeasuredRun(
            bench="latency", **common, **lengths, batch_size=stated.batch_size, metrics={"avg_latency_s": seconds}
        )
    if "num_requests" in content:
        return _throughput(path, content, common, lengths)
    raise InputError(
        f"{path} is not a result of vllm bench", hint="give what --save-result (serve) or --output-json wrote"
    )


def _serve(path: Path, content: Mapping[str, Any], common: Mapping[str, Any], *, seed: int) -> MeasuredRun:
    completed = _number(path, content, "completed")
    sent = _number(path, content, "num_prompts") if content.get("num_prompts") is not None else completed
    if completed < sent or content.get("failed"):
        raise InputError(f"{path}: {completed:g} of {sent:g} requests completed", hint="measure again")
    check_result(path, content)
    limit = _number(path, content, "max_concurrency") if content.get("max_concurrency") is not None else None
    rate = content.get("request_rate")
    paced = rate not in (None, "inf") and rate != float("inf")
    return MeasuredRun(
        bench="serve",
        **common,
        mean_input_len=_number(path, content, "total_input_tokens") / completed,
        mean_output_len=_number(path, content, "total_output_tokens") / completed,
        arrival="poisson" if paced else "closed-loop" if limit else "all-at-once",
        num_prompts=int(completed),
        max_concurrency=int(limit) if limit else None,
        request_rate=_number(path, content, "request_rate") if paced else None,
        burstiness=_number(path, content, "burstiness") if paced and content.get("burstiness") else None,
        random_range_ratio=0.0,
        seed=seed,
        metrics={name: _number(path, content, name) for name in MEASUREMENTS if content.get(name) is not None},
    )


def _throughput(
    path: Path, content: Mapping[str, Any], common: Mapping[str, Any], lengths: Mapping[str, Any]
) -> MeasuredRun:
    requests, tokens = _number(path, content, "num_requests"), _number(path, content, "total_num_tokens")
    stated_tok = requests * sum(lengths.values())
    if abs(tokens / stated_tok - 1) > 0.02:
        raise InputError(
            f"{path}: {tokens:g} tokens of {requests:g} requests are not {stated_tok:g}, as the stated lengths make",
            hint="correct --input-len and --output-len",
        )
    rate, seconds = _number(path, content, "tokens_per_second"), _number(path, content, "elapsed_time")
    if abs(rate * seconds / tokens - 1) > 0.02:
        raise InputError(
            f"{path}: tokens_per_second is {rate:g}, {tokens:g} tokens in {seconds:g} s are {tokens / seconds:g}",
            hint="is it the file that vllm bench throughput wrote?",
        )
    metrics = {"total_token_throughput": rate}
    return MeasuredRun(
        bench="throughput", **common, **lengths, num_prompts=int(requests), arrival="offline", metrics=metrics
    )


def _settings_of_plan(path: Path, content: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    if content.get("model_id", plan.model) != plan.model:
        raise InputError(
            f"{path} is of {content['model_id']}, its plan of {plan.model}", hint="measure the plan with ./benchmark.sh"
        )
    if "--speculative-config" in plan.serve_argv:
        raise InputError(
            f"{path}: runs with speculative decoding do not calibrate: what was accepted is not in the result",
            hint="measure without --speculative-config",
        )
    argv = plan.serve_argv
    cache = argv[argv.index("--kv-cache-dtype") + 1] if "--kv-cache-dtype" in argv else "auto"
    ranks = plan.tensor_parallel_size * plan.data_parallel_size
    return {
        "gpu": plan.gpu,
        "model": plan.model,
        "weight_dtype": plan.weight_dtype,
        "kv_cache_dtype": cache,
        "tensor_parallel_size": plan.tensor_parallel_size,
        "pipeline_parallel_size": plan.pipeline_parallel_size,
        "data_parallel_size": plan.data_parallel_size,
        "expert_parallel_size": ranks if plan.enable_expert_parallel else 1,
        "engine_version": plan.engine_version,
        "max_num_seqs": plan.max_num_seqs,
        "max_num_batched_tokens": plan.max_num_batched_tokens,
        "max_model_len": plan.max_model_len,
        "gpu_memory_utilization": plan.gpu_memory_utilization,
        "enforce_eager": plan.enforce_eager,
        "enable_prefix_caching": plan.enable_prefix_caching,
        "async_scheduling": plan.async_scheduling,
    }


def _settings_stated(path: Path, content: Mapping[str, Any], stated: Stated) -> dict[str, Any]:
    model = stated.model or content.get("model_id")
    named = {"--gpu": stated.gpu, "--engine-version": stated.engine_version, "--model": model}
    missing = [flag for flag, value in named.items() if not value]
    if missing:
        raise InputError(
            f"{path}: no plan.json says what was run, and {', '.join(missing)} not either",
            hint=f"add {' and '.join(missing)}, or give the folder of the plan",
        )
    args = stated.args
    ranks = args.tensor_parallel_size * args.data_parallel_size
    return {
        "gpu": stated.gpu,
        "model": str(model),
        "weight_dtype": stated.weight_dtype or "",
        "kv_cache_dtype": args.kv_cache_dtype,
        "tensor_parallel_size": args.tensor_parallel_size,
        "pipeline_parallel_size": args.pipeline_parallel_size,
        "data_parallel_size": args.data_parallel_size,
        "expert_parallel_size": ranks if args.enable_expert_parallel else 1,
        "engine_version": stated.engine_version,
        "max_num_seqs": args.max_num_seqs,
        "max_num_batched_tokens": args.max_num_batched_tokens,
        "max_model_len": args.max_model_len,
        "gpu_memory_utilization": args.gpu_memory_utilization,
        "enforce_eager": args.enforce_eager or None,
        "enable_prefix_caching": args.enable_prefix_caching,
        "async_scheduling": args.async_scheduling,
    }


def _lengths(path: Path, stated: Stated) -> dict[str, Any]:
    if not stated.input_len or not stated.output_len:
        raise InputError(
            f"{path}: a result of this bench does not say its lengths", hint="add --input-len and --output-len"
        )
    return {"input_len": float(stated.input_len), "output_len": float(stated.output_len)}


def _date(content: Mapping[str, Any]) -> str:
    """vLLM writes ``20261120-201847``; only the day is kept."""
    day = str(content.get("date") or "")[:8]
    return f"{day[:4]}-{day[4:6]}-{day[6:]}" if len(day) == 8 and day.isdigit() else ""


def _number(path: Path, content: Mapping[str, Any], name: str) -> float:
    value = content.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise InputError(f"{path}: {name} is {value!r}, not a positive number", hint="measure again")
    return float(value)
