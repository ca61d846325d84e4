"""Results of other tools in the words of ``vllm bench serve``: recognised by what is in the file, whatever its name.

The keys are those of the tools' own sources:

========================  =====================================================================  =====================
written by                keys that only its files have                                          source
========================  =====================================================================  =====================
``vllm bench sweep``      a list of results, or a table of them, with ``run_number``             vLLM 0.27,
                                                                                                 benchmarks/sweep/serve.py
SGLang ``bench_serving``  ``mean_e2e_latency_ms``, a result on each line                         SGLang 0.5,
                                                                                                 bench_serving.py
GuideLLM                  ``benchmarks``, each with ``metrics`` of ``successful`` requests       GuideLLM 0.5,
                                                                                                 schemas/request_stats.py
AIPerf, GenAI-Perf        ``request_throughput`` and ``request_latency`` with a ``unit``         AIPerf 0.10,
                                                                                                 profile_export_aiperf.json
inference-perf            ``load_summary`` and ``successes``                                     inference-perf 0.6.1,
                                                                                                 reportgen/base.py
InferenceX                ``tput_per_gpu`` and ``conc``; latencies in seconds                    InferenceX,
                                                                                                 utils/process_result.py
========================  =====================================================================  =====================

The words differ. What GuideLLM, AIPerf and GenAI-Perf call the latency between tokens is (last token - first token) /
(tokens - 1) of a request: vLLM's TPOT. AIPerf's latency between chunks is vLLM's ITL, SGLang's E2E latency its E2EL.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

from planner.engine import SETTINGS, version_of_images
from planner.errors import InputError
from planner.evidence.bench_result import AGAIN, parse_result, read_number, read_text

#: Burstiness of evenly spaced arrivals: gaps drawn with this shape vary by a thousandth.
EVENLY = 1e6
#: Share by which a TPOT may differ from what TTFT and E2EL leave for it before it is taken for something else.
SLACK = 0.1
STATISTICS = {"mean": "mean", "median": "median", "p90": "p90", "p99": "p99"}
AIPERF_STATISTICS = {"mean": "avg", "median": "p50", "p90": "p90", "p99": "p99"}


@dataclass(frozen=True)
class ReadResult:
    """One run of a result file."""

    result: Mapping[str, Any]  #: under the keys of ``vllm bench``
    run: Mapping[str, Any] = field(default_factory=dict)  #: fields of a measured run that no such key says
    engine: Mapping[str, Any] = field(default_factory=dict)  #: settings of the engine that the file states
    gpu: str | None = None
    engine_version: str | None = None


@dataclass(frozen=True)
class Format:
    """A kind of result file."""

    tool: str
    keys: tuple[str, ...]  #: that its objects have; a dot leads into an object
    read: Callable[[Path, Mapping[str, Any]], Iterator[ReadResult]]

    def wrote(self, record: Mapping[str, Any]) -> bool:
        """Whether this tool wrote the object."""
        return all(key in record or _at(record, key) is not None for key in self.keys)


def read_results(path: Path, text: str) -> Iterator[ReadResult]:
    """Every run of a result file. Raises InputError for a file of no known tool, and for a run that is not whole."""
    for record in _records(path, text):
        found = next((one for one in FORMATS if one.wrote(record)), None)
        if found is None:
            tools = ", ".join(one.tool for one in FORMATS if not one.tool.startswith("vllm"))
            raise InputError(
                f"{path} is not a result of vllm bench", hint=f"give what --save-result wrote, or a file of {tools}"
            )
        for one in found.read(path, record):
            yield replace(one, result=_with_totals(one.result))


def read_result_file(path: Path) -> ReadResult:
    """The one run of a result file. Raises InputError where there are several."""
    found = tuple(read_results(path, read_text(path)))
    if len(found) != 1:
        raise InputError(f"{path} holds {len(found)} runs", hint="give a file with the one that is meant")
    return found[0]


def is_table_of_results(text: str) -> bool:
    """Whether a CSV file is one of ``vllm bench sweep``, not a table of measured runs."""
    columns = text.partition("\n")[0].strip().split(",")
    return "completed" in columns and "run_number" in columns and "bench" not in columns


# --- records of a file ---------------------------------------------------------------------------------------------


def _records(path: Path, text: str) -> Sequence[Mapping[str, Any]]:
    """The objects of a file: one, a list of them, one a line, or the rows of a table."""
    if is_table_of_results(text):
        return [{name: _cell(cell) for name, cell in row.items() if cell} for row in csv.DictReader(StringIO(text))]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return [parse_result(path, line) for line in text.splitlines() if line.strip()] or [parse_result(path, text)]
    records = found if isinstance(found, list) else [found]
    if not records or not all(isinstance(record, dict) for record in records):
        raise InputError(
            f"{path} is not a result of vllm bench: it holds no object",
            hint="give what --save-result (serve) or --output-json wrote",
        )
    return records


def _cell(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _at(record: Any, key: str) -> Any:
    """What lies below a dotted key; None where nothing does."""
    for part in key.split("."):
        if not isinstance(record, Mapping):
            return None
        record = record.get(part)
    return record


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _number(path: Path, record: Any, key: str) -> float:
    """The figure below a dotted key. Raises InputError where there is none."""
    return read_number(path, {key: _at(record, key)}, key)


def _with_totals(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the tokens of all requests, and without nothings, where the tool gives those of one."""
    if "mean_input_len" not in result:
        return result
    stated = {key: value for key, value in result.items() if value is not None}
    completed = stated.get("completed")
    if not completed:
        return stated
    tokens = {f"total_{side}_tokens": stated[f"mean_{side}_len"] * completed for side in ("input", "output")}
    return {**stated, "num_prompts": completed, **tokens}


def _stated(path: Path, record: Any, key: str) -> float | None:
    """The figure below a dotted key, if there is one. Raises InputError for what is no number."""
    return None if _at(record, key) is None else _number(path, record, key)


def _latencies(
    path: Path, record: Mapping[str, Any], names: Mapping[str, str], *, to_ms: float = 1.0
) -> dict[str, float]:
    """``mean_ttft_ms`` and the like of objects with statistics; ``names``: dotted key -> latency."""
    found = {}
    for key, latency in names.items():
        value = _object(_at(record, key))
        words = AIPERF_STATISTICS if "avg" in value else STATISTICS
        figures = {**value, **_object(value.get("percentiles"))}
        for statistic, word in words.items():
            if (figure := _stated(path, figures, word)) is not None:
                found[f"{statistic}_{latency}_ms"] = figure * to_ms
    return found


# --- vLLM and SGLang ------------------------------------------------------------------------------------------------


def _read_vllm(path: Path, record: Mapping[str, Any]) -> Iterator[ReadResult]:
    """``vllm bench serve``, ``throughput`` and ``latency`` as they are; a sweep adds the settings that it varied."""
    said = {key.replace("-", "_"): value for key, value in record.items()} if "run_number" in record else {}
    varied = {name: said[name] for name in SETTINGS if said.get(name) is not None}
    yield ReadResult(record, engine={name: _as_set(path, name, value) for name, value in varied.items()})


def _as_set(path: Path, name: str, value: Any) -> Any:
    """A cell or a JSON value as the setting takes it: a table has 32.0 and "True"."""
    kind = SETTINGS[name].kind
    if kind in (bool, bool | None):
        return str(value) == "True"
    if kind in (int, int | None, float, float | None):
        figure = read_number(path, {name: value}, name)
        value = figure if kind in (float, float | None) else int(figure)
    SETTINGS[name].check(value)
    return value if isinstance(value, int | float) else str(value)


def _read_sglang(path: Path, record: Mapping[str, Any]) -> Iterator[ReadResult]:
    backend = str(record.get("backend", ""))
    if not backend.startswith("vllm"):
        engine = backend or "an engine that it does not name"
        raise InputError(
            f"{path}: bench_serving measured {engine}, and predictions are of vLLM",
            hint="measure vLLM with --backend vllm",
        )
    renamed = {key.replace("e2e_latency", "e2el"): value for key, value in record.items()}
    conversations = {"length_distribution": "sharegpt"} if record.get("dataset_name") == "sharegpt" else {}
    yield ReadResult(renamed, conversations)


# --- GuideLLM -------------------------------------------------------------------------------------------------------


def _read_guidellm(path: Path, record: Mapping[str, Any]) -> Iterator[ReadResult]:
    """One run for each benchmark of the file: a sweep has many. Requests that its end cut off do not count."""
    benchmarks = record["benchmarks"]
    if not isinstance(benchmarks, list) or not benchmarks:
        raise InputError(f"{path} holds no benchmark of GuideLLM", hint=AGAIN)
    for number, one in enumerate(benchmarks):
        metrics = _at(one, "metrics")
        if not isinstance(metrics, Mapping):
            raise InputError(f"{path} is broken: benchmark {number} has no metrics", hint=AGAIN)
        totals = {
            "request_totals": metrics.get("request_totals") or _at(one, "request_totals")
        }  # beside them up to 0.4
        completed = _number(path, totals, "request_totals.successful")
        _refuse_failures(path, completed, _stated(path, totals, "request_totals.errored"))
        mean = {what: _number(path, metrics, f"{what}.successful.mean") for what in
                ("prompt_token_count", "output_token_count", "output_tokens_per_second")}  # fmt: skip
        names = {"time_to_first_token_ms.successful": "ttft", "inter_token_latency_ms.successful": "tpot"}
        yield ReadResult({
            "model_id": _at(one, "config.backend.model") or _at(record, "args.model"),
            "completed": completed,
            "mean_input_len": mean["prompt_token_count"],
            "mean_output_len": mean["output_token_count"],
            "output_throughput": mean["output_tokens_per_second"],
            **_arrivals(path, one),
            **_latencies(path, metrics, names),
            **_latencies(path, metrics, {"request_latency.successful": "e2el"}, to_ms=1000),
        })  # fmt: skip


def _arrivals(path: Path, benchmark: Mapping[str, Any]) -> dict[str, Any]:
    """What a GuideLLM strategy sends, under the flags of ``vllm bench serve``."""
    strategy = _object(_at(benchmark, "config.strategy") or _at(benchmark, "args.strategy"))
    kind = strategy.get("type_")
    if kind == "synchronous":
        return {"max_concurrency": 1}
    if kind == "concurrent":
        return {"max_concurrency": _number(path, strategy, "streams")}
    if kind == "throughput":
        return {"max_concurrency": _stated(path, strategy, "max_concurrency")}
    if kind in ("constant", "poisson"):
        return {"request_rate": _number(path, strategy, "rate"), "burstiness": 1.0 if kind == "poisson" else EVENLY}
    raise InputError(
        f"{path}: a benchmark of GuideLLM has the strategy {kind!r}",
        hint="known: synchronous, concurrent, throughput, constant, poisson",
    )


# --- AIPerf and GenAI-Perf -------------------------------------------------------------------------------------------


def _read_aiperf(path: Path, record: Mapping[str, Any]) -> Iterator[ReadResult]:
    asked = _object(record.get("input_config"))
    completed = _stated(path, record, "request_count.avg")
    _refuse_failures(path, completed or 1, _stated(path, record, "error_request_count.avg"))
    total = _stated(path, record, "total_token_throughput.avg")
    names = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "inter_chunk_latency": "itl",
             "request_latency": "e2el"}  # fmt: skip
    result = {
        "model_id": _first(_name_of(asked), _at(asked, "endpoint.model_names")),
        "completed": completed,
        "mean_input_len": _number(path, record, "input_sequence_length.avg"),
        "mean_output_len": _number(path, record, "output_sequence_length.avg"),
        "output_throughput": _number(path, record, "output_token_throughput.avg"),
        "total_token_throughput": total,
        **_load_of(path, asked),
        **_latencies(path, record, names),
        "date": str(record.get("start_time", ""))[:10].replace("-", ""),
    }
    data = next(iter(_list(asked.get("datasets"))), None)
    public = _at(data, "dataset") or _at(asked, "input.public_dataset")
    yield ReadResult(
        result,
        {"length_distribution": "sharegpt"} if public == "sharegpt" else {},
    )


def _name_of(asked: Mapping[str, Any]) -> Any:
    models = _at(asked, "models.items")
    return _at(models[0], "name") if isinstance(models, list) and models else asked.get("model")


def _load_of(path: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The arrivals: in a phase (AIPerf 0.10), in ``loadgen`` (before it), in the stimulus or flat (GenAI-Perf)."""
    phases = [phase for phase in _list(asked.get("phases")) if not _at(phase, "exclude_from_results")]
    places = [*phases, asked.get("loadgen"), _at(asked, "perf_analyzer.stimulus"), asked]
    said: Mapping[str, Any] = next(filter(_says_load, places), {})
    rate = _stated(path, said, "request_rate") or _stated(path, said, "rate")
    mode = str(said.get("type") or said.get("request_rate_mode") or "poisson")
    paced = {"request_rate": rate, "burstiness": EVENLY if "constant" in mode else 1.0} if rate else {}
    return {"max_concurrency": _stated(path, said, "concurrency"), **paced}


def _says_load(place: Any) -> bool:
    return any(_at(place, key) for key in ("concurrency", "request_rate", "rate"))


def _first(*values: Any) -> Any:
    """The first value, or first of a list of values, that is one."""
    for value in values:
        if isinstance(value, list) and value:
            return value[0]
        if value:
            return value
    return None


# --- inference-perf ---------------------------------------------------------------------------------------------------


def _read_inference_perf(path: Path, record: Mapping[str, Any]) -> Iterator[ReadResult]:
    """A stage. Its arrivals are evenly spaced, the default (``LoadType.CONSTANT``): the file does not say."""
    rate, flying = (_stated(path, record, f"load_summary.{key}") for key in ("requested_rate", "concurrency"))
    if not rate and not flying:
        raise InputError(
            f"{path} does not say its load: a summary of inference-perf mixes its stages",
            hint="give the files of the stages: stage_0_lifecycle_metrics.json, ...",
        )
    good = _object(record.get("successes"))
    completed = _number(path, good, "count")
    _refuse_failures(path, completed, _stated(path, record, "failures.count"))
    output_len = _stated(path, good, "output_len.mean") or _number(path, good, "output_tokens.mean")
    names = {"latency.time_to_first_token": "ttft", "latency.time_per_output_token": "tpot",
             "latency.inter_token_latency": "itl", "latency.request_latency": "e2el"}  # fmt: skip
    figures = _latencies(path, good, names, to_ms=1000)
    yield ReadResult({
        "completed": completed,
        "mean_input_len": _stated(path, good, "prompt_len.mean") or _number(path, good, "prompt_tokens.mean"),
        "mean_output_len": output_len,
        "output_throughput": _number(path, good, "throughput.output_tokens_per_sec"),
        "total_token_throughput": _number(path, good, "throughput.total_tokens_per_sec"),
        **({"max_concurrency": flying} if flying else {"request_rate": rate, "burstiness": EVENLY}),
        **_of_tokens(figures, output_len),
    })  # fmt: skip


def _of_tokens(figures: Mapping[str, float], output_len: float) -> Mapping[str, float]:
    """The figures without those between tokens where they count events: early releases took an empty chunk for a token.

    A TPOT has to be what TTFT and E2EL leave for the tokens after the first.
    """
    ttft, tpot, e2el = (figures.get(f"mean_{name}_ms", 0.0) for name in ("ttft", "tpot", "e2el"))
    left = (e2el - ttft) / max(output_len - 1, 1)
    if left and abs(tpot / left - 1) > SLACK:
        return {key: value for key, value in figures.items() if "_tpot_" not in key and "_itl_" not in key}
    return figures


# --- InferenceX -------------------------------------------------------------------------------------------------------


def _read_inferencex(path: Path, record: Mapping[str, Any]) -> Iterator[ReadResult]:
    """One point. Its lengths are drawn from 0.8 to 1 of the nominal ones, and each place gets ten requests."""
    for key, refused in (("disagg", "disaggregated prefill"), ("is_multinode", "several nodes")):
        if str(record.get(key, "")).lower() == "true":
            raise InputError(f"{path}: a point with {refused} is not of one server", hint="leave it out")
    if str(record.get("spec_decoding") or record.get("mtp") or "none").lower() not in ("none", "false", "off"):
        raise InputError(
            f"{path}: a point with speculative decoding does not say what was accepted", hint="leave it out"
        )
    if "vllm" not in str(record.get("framework", "")):
        raise InputError(
            f"{path}: a point of {record.get('framework')}, and predictions are of vLLM", hint="leave it out"
        )
    figures = {**record, **_object(record.get("metrics"))}
    gpus, flying = int(_number(path, record, "tp")), int(_number(path, record, "conc"))
    latencies = {f"{key}_ms": _number(path, figures, key) * 1000 for key in figures
                 if key.rpartition("_")[2] in ("ttft", "tpot", "itl", "e2el")}  # fmt: skip
    lengths = {name: _number(path, record, key) for name, key in (("input_len", "isl"), ("output_len", "osl"))}
    result = {
        "model_id": record.get("model"),
        "completed": 10 * flying,
        "max_concurrency": flying,
        **{f"mean_{name}": 0.9 * length for name, length in lengths.items()},
        "output_throughput": _number(path, figures, "output_tput_per_gpu") * gpus,
        "total_token_throughput": _number(path, figures, "tput_per_gpu") * gpus,
        **latencies,
        "date": str(record.get("date", ""))[:10].replace("-", ""),
    }
    attention = str(record.get("dp_attention", "false")).lower() == "true"
    engine = {
        "tensor_parallel_size": 1 if attention else gpus,
        "data_parallel_size": gpus if attention else 1,
        "enable_expert_parallel": (_stated(path, record, "ep") or 1) > 1,
    }
    yield ReadResult(
        result,
        {"length_distribution": "uniform-0.8-1", "random_range_ratio": None, **lengths},
        engine,
        gpu=str(record.get("hw") or record.get("device") or "").lower().split("-")[0].removeprefix("cluster:") or None,
        engine_version=version_of_images([str(record.get("image", ""))]) or None,
    )


def _refuse_failures(path: Path, completed: float, failed: float | None) -> None:
    if completed < 1 or failed:
        raise InputError(
            f"{path}: {completed:g} requests completed, {failed or 0:g} failed",
            hint="see the server's log, then measure again",
        )


FORMATS = (
    Format("SGLang bench_serving", ("mean_e2e_latency_ms", "completed"), _read_sglang),
    Format("vllm bench serve", ("completed",), _read_vllm),
    Format("vllm bench latency", ("avg_latency",), _read_vllm),
    Format("vllm bench throughput", ("num_requests", "elapsed_time"), _read_vllm),
    Format("GuideLLM", ("benchmarks",), _read_guidellm),
    Format("AIPerf and GenAI-Perf", ("request_throughput.unit", "request_latency.unit"), _read_aiperf),
    Format("inference-perf", ("load_summary", "successes"), _read_inference_perf),
    Format("InferenceX", ("conc", "isl"), _read_inferencex),
)
