"""Result files of ``vllm bench`` and of other tools, under the keys of ``vllm bench serve``; ``TOOLS`` tells which.

Sources: vLLM 0.27 (``benchmarks/sweep/serve.py``), SGLang 0.5 (``bench_serving.py``), GuideLLM 0.5
(``schemas/request_stats.py``), AIPerf 0.10 (``profile_export_aiperf.json``), inference-perf 0.6.1
(``reportgen/base.py``), InferenceX (``utils/process_result.py``). The latency between tokens of GuideLLM, AIPerf and
GenAI-Perf is vLLM's TPOT, that between chunks of AIPerf its ITL, SGLang's E2E latency its E2EL."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from planner.engine import SETTINGS, version_of_images
from planner.errors import InputError, os_errors
from planner.resources import package_dir, read_given, tables_of
from planner.units import LEAST_FIGURE, MOST_FIGURE
from planner.workload import LATENCIES

AGAIN = "measure again (in the folder of a plan: FORCE=1 ./benchmark.sh)"
#: Rates and sums of one file agree with their parts to this share: one program computed them, and printed all digits.
EXACT = 0.01
EVENLY = 1e6  #: burstiness of evenly spaced arrivals: gaps drawn with this shape vary by a thousandth
#: Share by which a TPOT may differ from what TTFT and E2EL leave for it before it is taken for something else.
SLACK = 0.1
#: Statistics of a latency, and their names in files of other tools.
STATISTICS = {"mean": ("mean", "avg"), "median": ("median", "p50"), "p90": ("p90",), "p99": ("p99",)}

#: Strategies of GuideLLM without a rate, by the key of their concurrency.
CONCURRENCY = {"synchronous": "", "concurrent": "streams", "throughput": "max_concurrency"}
SHAREGPT = {"length_distribution": "sharegpt"}
INFERENCEX = {"max_concurrency": "conc", "tensor_parallel_size": "tp", "input_len": "isl", "output_len": "osl"}


@dataclass(frozen=True)
class ReadResult:
    result: Mapping[str, Any]  #: under the keys of ``vllm bench``
    run: Mapping[str, Any] = field(default_factory=dict)  #: fields of a measured run that no such key holds
    engine: Mapping[str, Any] = field(default_factory=dict)  #: settings of the engine that the file states
    gpu: str | None = None
    engine_version: str | None = None


def read_results(path: Path, text: str) -> Iterator[ReadResult]:
    """Yield every run of a result file. Raises InputError for an unknown tool, and for a run that is not whole."""
    for record in _records(path, text):
        read = next((read for read, keys in TOOLS if all(key in record or _at(record, key) for key in keys)), None)
        if read is None:
            hint = "give what --save-result wrote, or a file of SGLang, GuideLLM, AIPerf, inference-perf or InferenceX"
            raise InputError(f"{path} is not a result of vllm bench", hint=hint)
        for one in read(path, record):
            result = one.result
            if "completed" in result:
                completed, failed = read_number(path, result, "completed"), stated_number(path, result, "failed") or 0
                sent = stated_number(path, result, "num_prompts") or 0
                if failed or completed < max(sent, 1):
                    cause = f"{path}: {completed:g} of {max(sent, completed + failed):g} requests completed"
                    raise InputError(cause, hint=f"see the server's log, then {AGAIN}")
            yield one


def read_text(path: Path) -> str:
    """Return the text of a file. Raises InputError where it cannot be read."""
    hint = "give a table of runs, a result of vllm bench, or a plan's folder"
    try:
        with os_errors(str(path), hint=hint):
            return read_given(path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file", hint=hint) from error


def is_table_of_results(text: str) -> bool:
    """True for a CSV file of ``vllm bench sweep``, False for a table of measured runs."""
    columns = text.partition("\n")[0].strip().split(",")
    return "completed" in columns and "run_number" in columns and "bench" not in columns


def read_number(path: Path, result: Any, name: str, *, positive: bool = False) -> float:
    """Return the figure below a dotted key. Raises InputError for another type, or unless it is ``positive``."""
    value, wanted = _at(result, name), "a number"
    if not isinstance(value, bool) and isinstance(value, int | float) and abs(value) <= MOST_FIGURE:  # nor NaN
        if not positive or value >= LEAST_FIGURE:
            return value
        wanted = f"a positive number of {LEAST_FIGURE:g} or more"
    raise InputError(f"{path} is broken: {name} is {value!r:.40}, not {wanted}", hint=AGAIN)


def stated_number(path: Path, result: Any, name: str) -> float | None:
    """Return the figure below a dotted key, or None where there is nothing. Raises InputError for another type."""
    return None if _at(result, name) is None else read_number(path, result, name)


def parse_result(path: Path, text: str) -> dict[str, Any]:
    """Return the object in the text of a result file. Raises InputError for anything else."""
    try:
        return _object_in(path, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is broken: {error}", hint=AGAIN) from error


def _object_in(path: Path, record: Any) -> dict[str, Any]:
    if isinstance(record, dict):
        return record
    hint = "give what --save-result (serve) or --output-json wrote"
    raise InputError(f"{path} is not a result of vllm bench: it holds no object", hint=hint)


def _records(path: Path, text: str) -> Sequence[Mapping[str, Any]]:
    if is_table_of_results(text):
        return [{name: _cell(cell) for name, cell in row.items() if cell} for row in csv.DictReader(StringIO(text))]
    try:
        records = json.loads(text)
    except (ValueError, RecursionError):
        return [parse_result(path, line) for line in text.splitlines() if line.strip()] or [parse_result(path, text)]
    return [_object_in(path, record) for record in (records if isinstance(records, list) and records else [records])]


def _cell(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _at(record: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(record, Mapping):
            return None
        record = record.get(part)
    return record


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _figures(path: Path, record: Mapping[str, Any], tool: str) -> dict[str, float]:
    figures: dict[str, float] = {}
    for key, places in tables_of(package_dir("evidence") / "tools.toml")[tool].items():
        names = places.removeprefix("?").removeprefix("s:").split("|")
        name = next((name for name in names if _at(record, name) is not None), names[0])
        if key in LATENCIES:
            to_ms, given = 1000 if places.startswith("s:") else 1, _object(_at(record, name))
            there = {**given, **_object(given.get("percentiles"))}
            for statistic, words in STATISTICS.items():
                if word := next((word for word in words if there.get(word) is not None), None):
                    figures[f"{statistic}_{key}_ms"] = read_number(path, there, word) * to_ms
        elif not places.startswith("?") or _at(record, name) is not None:
            figures[key] = read_number(path, record, name)
    return figures


def _with_totals(result: Mapping[str, Any]) -> dict[str, Any]:
    stated = {key: value for key, value in result.items() if value is not None}
    if not (completed := stated.get("completed")):
        return stated
    tokens = {f"total_{side}_tokens": stated[f"mean_{side}_len"] * completed for side in ("input", "output")}
    return {**stated, "num_prompts": completed, **tokens}


def _read_vllm(path: Path, record: Mapping[str, Any]) -> Iterator[ReadResult]:
    """``vllm bench serve``, ``throughput`` and ``latency`` as they are; a sweep adds the settings that it varied."""
    varied = {key.replace("-", "_"): value for key, value in record.items()} if "run_number" in record else {}
    engine = {name: _as_set(path, name, varied[name]) for name in SETTINGS if varied.get(name) is not None}
    yield ReadResult(record, engine=engine)


def _as_set(path: Path, name: str, value: Any) -> Any:
    """Return a cell or JSON value as the setting takes it: a table has 32.0 and "True"."""
    row = SETTINGS[name]
    if row.is_switch:
        return str(value) == "True"
    if row.value_type in (int, float):
        value = row.value_type(read_number(path, {name: value}, name))
    row.check(value)
    return value if isinstance(value, int | float) else str(value)


def _read_sglang(path: Path, record: Mapping[str, Any]) -> Iterator[ReadResult]:
    backend = str(record.get("backend", ""))
    if not backend.startswith("vllm"):
        cause = f"{path}: bench_serving measured {backend or 'an unnamed engine'}, and predictions are of vLLM"
        raise InputError(cause, hint="measure vLLM with --backend vllm")
    renamed = {key.replace("e2e_latency", "e2el"): value for key, value in record.items()}
    yield ReadResult(renamed, SHAREGPT if record.get("dataset_name") == "sharegpt" else {})


def _read_guidellm(path: Path, record: Mapping[str, Any]) -> Iterator[ReadResult]:
    """One run for each benchmark of the file: a sweep has many. Requests that its end cut off do not count."""
    benchmarks = _list(record["benchmarks"])
    if not benchmarks or not all(isinstance(_at(one, "metrics"), Mapping) for one in benchmarks):
        raise InputError(f"{path} is broken: no benchmark of GuideLLM, or one without metrics", hint=AGAIN)
    for one in benchmarks:
        model = _at(one, "config.backend.model") or _at(record, "args.model")
        yield ReadResult(_with_totals({"model_id": model, **_figures(path, one, "guidellm"), **_arrivals(path, one)}))


def _arrivals(path: Path, benchmark: Mapping[str, Any]) -> dict[str, Any]:
    strategy = _object(_at(benchmark, "config.strategy") or _at(benchmark, "args.strategy"))
    kind = str(strategy.get("type_"))
    if kind in ("constant", "poisson"):
        rate = read_number(path, strategy, "rate")
        return {"request_rate": rate, "burstiness": 1.0 if kind == "poisson" else EVENLY}
    if kind not in CONCURRENCY:
        hint = f"known: {', '.join(CONCURRENCY)}, constant, poisson"
        raise InputError(f"{path}: a benchmark of GuideLLM has the strategy {kind!r}", hint=hint)
    number = read_number if kind == "concurrent" else stated_number
    return {"max_concurrency": 1 if kind == "synchronous" else number(path, strategy, CONCURRENCY[kind])}


def _read_aiperf(path: Path, record: Mapping[str, Any]) -> Iterator[ReadResult]:
    sent = _object(record.get("input_config"))
    data = next(iter(_list(sent.get("datasets"))), None)
    names = [_at(one, "name") for one in _list(_at(sent, "models.items"))], sent.get("model")
    models = (value for one in (*names, _at(sent, "endpoint.model_names")) for value in (_list(one) or [one]))
    result = {
        "model_id": next(filter(None, models), None),
        **_figures(path, record, "aiperf"),
        **_load_of(path, sent),
        "date": str(record.get("start_time", ""))[:10].replace("-", ""),
    }
    named = _at(data, "dataset") or _at(sent, "input.public_dataset")
    yield ReadResult(_with_totals(result), SHAREGPT if named == "sharegpt" else {})


def _load_of(path: Path, sent: Mapping[str, Any]) -> dict[str, Any]:
    """The arrivals: in a phase (AIPerf 0.10), in ``loadgen`` (before it), in the stimulus or flat (GenAI-Perf)."""
    phases = [phase for phase in _list(sent.get("phases")) if not _at(phase, "exclude_from_results")]
    places = [*phases, sent.get("loadgen"), _at(sent, "perf_analyzer.stimulus"), sent]
    keys = ("concurrency", "request_rate", "rate")
    load: Mapping[str, Any] = next((place for place in places if any(_at(place, key) for key in keys)), {})
    rate = stated_number(path, load, "request_rate") or stated_number(path, load, "rate")
    constant = "constant" in str(load.get("type") or load.get("request_rate_mode"))
    paced = {"request_rate": rate, "burstiness": EVENLY if constant else 1.0} if rate else {}
    return {"max_concurrency": stated_number(path, load, "concurrency"), **paced}


def _read_inference_perf(path: Path, record: Mapping[str, Any]) -> Iterator[ReadResult]:
    """A stage. Its arrivals are evenly spaced, the default (``LoadType.CONSTANT``): the file does not say."""
    rate, flying = (stated_number(path, record, f"load_summary.{key}") for key in ("requested_rate", "concurrency"))
    if not rate and not flying:
        hint = "give the files of the stages: stage_0_lifecycle_metrics.json, ..."
        raise InputError(f"{path} does not say its load: a summary of inference-perf mixes its stages", hint=hint)
    load = {"max_concurrency": flying} if flying else {"request_rate": rate, "burstiness": EVENLY}
    figures = _figures(path, record, "inference-perf")
    # Early releases took an empty chunk for a token: then TPOT is not what TTFT and E2EL leave for later tokens.
    ttft, tpot, e2el = (figures.get(f"mean_{name}_ms", 0.0) for name in ("ttft", "tpot", "e2el"))
    left = (e2el - ttft) / max(figures["mean_output_len"] - 1, 1)
    if left and abs(tpot / left - 1) > SLACK:
        figures = {key: value for key, value in figures.items() if "_tpot_" not in key and "_itl_" not in key}
    yield ReadResult(_with_totals({**figures, **load}))


def _read_inferencex(path: Path, record: Mapping[str, Any]) -> Iterator[ReadResult]:
    """One point. Its lengths are drawn from 0.8 to 1 of the nominal ones, and each place gets ten requests."""

    def word(*keys: str) -> str:
        return next((str(record[key]).lower() for key in keys if record.get(key)), "")

    speculated = word("spec_decoding", "mtp") not in ("", "none", "false", "off")
    refused = {
        "a point with disaggregated prefill is not of one server": word("disagg") == "true",
        "a point with several nodes is not of one server": word("is_multinode") == "true",
        "a point with speculative decoding does not say what was accepted": speculated,
        f"a point of {record.get('framework')}, and predictions are of vLLM": "vllm" not in word("framework"),
    }
    if why := next((why for why, applies in refused.items() if applies), None):
        raise InputError(f"{path}: {why}", hint="leave it out")
    point = {name: read_number(path, record, key) for name, key in INFERENCEX.items()}
    gpus, flying = int(point["tensor_parallel_size"]), int(point["max_concurrency"])
    lengths = {name: point[name] for name in ("input_len", "output_len")}
    figures = {**record, **_object(record.get("metrics"))}
    latencies = [key for key in figures if key.rpartition("_")[2] in LATENCIES]  # in seconds
    sizes = ("data_parallel_size", "tensor_parallel_size")[:: 1 if word("dp_attention") == "true" else -1]
    result = {
        "model_id": record.get("model"),
        "completed": 10 * flying,
        "max_concurrency": flying,
        **{f"mean_{name}": 0.9 * length for name, length in lengths.items()},
        "output_throughput": read_number(path, figures, "output_tput_per_gpu") * gpus,
        "total_token_throughput": read_number(path, figures, "tput_per_gpu") * gpus,
        **{f"{key}_ms": read_number(path, figures, key) * 1000 for key in latencies},
        "date": str(record.get("date", ""))[:10].replace("-", ""),
    }
    version = version_of_images([word("image")])  # without a release it is stated
    yield ReadResult(
        _with_totals(result),
        {"length_distribution": "uniform-0.8-1", "random_range_ratio": None, **lengths},
        {sizes[0]: gpus, sizes[1]: 1, "enable_expert_parallel": (stated_number(path, record, "ep") or 1) > 1},
        gpu=word("hw", "device").split("-")[0].removeprefix("cluster:") or None,
        engine_version=version if version.startswith("0.") else None,
    )


#: Readers of the objects of each tool, and the keys that only they have; a dot leads into an object.
TOOLS: tuple[tuple[Callable[[Path, Mapping[str, Any]], Iterator[ReadResult]], tuple[str, ...]], ...] = (
    (_read_sglang, ("mean_e2e_latency_ms", "completed")),
    (_read_vllm, ("completed",)),
    (_read_vllm, ("avg_latency",)),
    (_read_vllm, ("num_requests", "elapsed_time")),
    (_read_guidellm, ("benchmarks",)),
    (_read_aiperf, ("request_throughput.unit", "request_latency.unit")),
    (_read_inference_perf, ("load_summary", "successes")),
    (_read_inferencex, ("conc", "isl")),
)
