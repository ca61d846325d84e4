"""Measured runs of vLLM: a table with one row per run.

Columns are the fields of ``MeasuredRun`` and ``MEASUREMENTS``; others are ignored. An empty cell is "not stated"."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from planner.errors import InputError, fault_in, os_errors
from planner.resources import MOST_FILE_BYTES, check_file
from planner.units import LEAST_FIGURE, MS
from planner.workload import LATENCIES, METRICS, NAMED_DISTRIBUTIONS

REQUIRED = ("bench", "gpu", "model")
#: Columns with measurements, in the units that their names say. No fit uses the other metrics.
MEASUREMENTS = tuple(key for key in METRICS if key != "request_throughput" and not key.startswith(("p90", "p95")))


def _rounded(cell: Any) -> Any:
    """Some sources state the mean concurrency of a steady state."""
    try:
        return max(round(float(cell)), 1)
    except (ValueError, OverflowError):
        return cell


def _whole(cell: Any) -> Any:
    with suppress(ValueError):  # spreadsheets write 1e+05 for 100000
        return int(float(cell)) if float(cell).is_integer() else cell
    return cell


Bench = Literal["latency", "throughput", "serve"]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
Figure = Annotated[float, Field(ge=LEAST_FIGURE, allow_inf_nan=False)]
if TYPE_CHECKING:
    Distribution = str
else:
    Distribution = Literal[tuple(NAMED_DISTRIBUTIONS)]


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One measured run. None: not stated."""

    run_id: str
    bench: Bench
    gpu: str
    model: str
    base_model: str = ""
    weight_dtype: str = ""
    kv_cache_dtype: str = ""
    tensor_parallel_size: Count = 1
    pipeline_parallel_size: Count = 1
    data_parallel_size: Count = 1
    expert_parallel_size: Count = 1
    engine_build: str = "vllm"
    engine_version: str = ""
    input_len: Figure | None = None
    output_len: Figure | None = None
    mean_input_len: Figure | None = None
    mean_output_len: Figure | None = None
    length_distribution: Distribution = "fixed"
    arrival: Literal["", "offline", "all-at-once", "closed-loop", "poisson"] = ""
    batch_size: Count | None = None
    max_concurrency: Annotated[Count | None, BeforeValidator(_rounded)] = None
    request_rate: Figure | None = None
    num_prompts: Count | None = None
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    async_scheduling: bool | None = None
    speculative_config: str = ""  #: JSON as vLLM takes it, ``synthetic_acceptance_rates`` with what was accepted
    suspect: str = ""
    date: str = ""
    family: str = ""
    max_model_len: Count | None = None
    gpu_memory_utilization: Figure | None = None
    enforce_eager: bool | None = None
    enable_prefix_caching: bool | None = None
    burstiness: Figure | None = None
    random_range_ratio: Annotated[float, Field(ge=0, lt=1)] | None = None
    seed: Annotated[int, BeforeValidator(_whole), Field(ge=0)] | None = None
    source: str = ""  #: where it was published
    metrics: dict[str, Figure] = field(default_factory=dict)
    unread: str = ""  #: why the row cannot be read, with file, line and column; nothing else of it counts then

    @property
    def group(self) -> tuple[str, str, int, str, str]:
        """Facts that a fit could memorise: GPU, model, TP, weight dtype, engine version."""
        return self.gpu, self.model, self.tensor_parallel_size, self.weight_dtype, self.engine_version

    def record(self) -> dict[str, Any]:
        """The cells of a table that give this run again: those that are not at their default."""
        stated = {f.name: getattr(self, f.name) for f in fields(self) if f.name in RUN_COLUMNS}
        defaults = {f.name: f.default for f in fields(self)}
        return {**{name: value for name, value in stated.items() if value != defaults[name]}, **self.metrics}


RUN_COLUMNS = tuple(f.name for f in fields(MeasuredRun) if f.name not in ("metrics", "unread"))
#: A column that is no field: independent servers that share the load. Such a row is read as the share of one of them.
REPLICAS = "replicas"
_RUN, _COUNT = TypeAdapter(MeasuredRun), TypeAdapter(Count)


def read_runs(path: Path) -> list[MeasuredRun]:
    """Return the runs of a CSV file; ``unread`` names a faulty cell. Raises InputError for a file that is no table."""
    try:
        with os_errors(str(path), hint="give a CSV file of measured runs"):
            check_file(path, most_bytes=MOST_FILE_BYTES)
            with path.open(newline="", encoding="utf-8-sig") as file:
                return list(_runs(path, csv.DictReader(file, strict=True)))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a CSV file: {error}", hint="save it as comma-separated UTF-8") from error


def _runs(path: Path, table: "csv.DictReader[str]") -> Iterator[MeasuredRun]:
    if not (columns := table.fieldnames or []):
        raise InputError(f"{path} is empty", hint="measure again, or give a table of measured runs")
    if missing := [name for name in REQUIRED if name not in columns]:
        known = ", ".join((*RUN_COLUMNS, REPLICAS, *MEASUREMENTS))
        raise InputError(f"{path}: columns missing: {', '.join(missing)}", hint=f"known columns: {known}")
    if twice := [name for name, times in Counter(columns).items() if name and times > 1]:
        raise InputError(f"{path}: column {twice[0]} appears twice", hint="keep one of them")
    if not any(metric in columns for metric in MEASUREMENTS):
        raise InputError(f"{path}: no column with a measurement", hint=f"one of: {', '.join(MEASUREMENTS)}")
    row = None
    for row in table:
        name = f"line-{table.line_num}"
        try:
            yield run_of(row, f"{path}, line {table.line_num}", name)
        except InputError as error:
            stated: dict[str, Any] = {column: (row.get(column) or "").strip() for column in ("run_id", *REQUIRED)}
            yield MeasuredRun(**{**stated, "run_id": stated["run_id"] or name}, unread=error.cause)
    if row is None:
        raise InputError(f"{path} has no rows", hint="one row per measured run")


def runs_of(records: Iterable[Mapping[str, Any]], where: str) -> list[MeasuredRun]:
    """Return the runs behind ``MeasuredRun.record``. Raises InputError, naming number and field, for anything else."""
    return [run_of(record, f"{where}, run {number}", f"run-{number}") for number, record in enumerate(records, 1)]


def run_of(row: Mapping[str, Any], where: str, name: str) -> MeasuredRun:
    """Return the run of one row, ``name`` without ``run_id``. Raises InputError naming the column."""
    hint = "correct the cell, or leave it empty"
    if None in row:
        raise InputError(f"{where}: more cells than the header has columns", hint=hint)
    cells = {column: text for column, cell in row.items() if (text := str(cell if cell is not None else "").strip())}
    if empty := next((column for column in REQUIRED if column not in cells), None):
        raise InputError(f"{where}, column {empty} is empty", hint=hint)
    try:
        return _validated(cells, name)
    except (ValidationError, InputError) as error:
        fault = error.cause if isinstance(error, InputError) else str(fault_in(error)).removeprefix("metrics.")
        raise InputError(f"{where}, column {fault}", hint=hint) from None


def _validated(cells: dict[str, str], name: str) -> MeasuredRun:
    stated: dict[str, Any] = {column: cells[column] for column in RUN_COLUMNS if column in cells}
    if cells.get("request_rate", "").lower() in ("inf", "infinity"):
        del stated["request_rate"]
    if multiple := re.fullmatch(r"(\d+)\s*x\s*conc(urrency)?", cells.get("num_prompts", "")):  # so sweeps may say it
        if "max_concurrency" not in cells:
            raise InputError("num_prompts is a multiple of the concurrency, which is not stated", hint="")
        stated["num_prompts"] = int(multiple[1]) * _rounded(cells["max_concurrency"])
    metrics = {column: cells[column] for column in MEASUREMENTS if column in cells}
    run = _RUN.validate_python({"run_id": name, **stated, "metrics": metrics})
    for low, high in find_disorder(run.metrics):
        figures = f"is {run.metrics[high]:g}, below {low}, {run.metrics[low]:g}"
        raise InputError(f"{high} {figures}: are the units the same?", hint="")
    return of_one_server(run, _COUNT.validate_python(cells.get(REPLICAS, 1)))


def find_disorder(figures: Mapping[str, float | None]) -> Iterator[tuple[str, str]]:
    """Yield pairs of metrics of which the second is smaller than the first and cannot be: their units differ."""
    pairs = [(f"median_{latency}_ms", f"p99_{latency}_ms") for latency in LATENCIES]
    for low, high in (*pairs, ("mean_ttft_ms", "mean_e2el_ms")):
        least, most = figures.get(low), figures.get(high)
        if least and most and least > 1.001 * most:
            yield low, high


def of_one_server(run: MeasuredRun, replicas: int) -> MeasuredRun:
    """The load and figures of one of ``replicas`` servers behind one address; few requests keep few of them busy."""
    busy = min(replicas, run.max_concurrency or replicas)
    if busy == 1:
        return run
    return replace(
        run,
        max_concurrency=run.max_concurrency and round(run.max_concurrency / busy),
        num_prompts=run.num_prompts and max(round(run.num_prompts / busy), 1),
        request_rate=run.request_rate and run.request_rate / busy,
        metrics={name: value / (busy if name.endswith("throughput") else 1) for name, value in run.metrics.items()},
    )


#: Factor by which means may miss E2EL = TTFT + (output tokens - 1) x TPOT, and Little's law: requests in flight =
#: throughput x E2EL / output tokens. Lengths vary, and a rate covers a run's whole time; mixed-up units are off by 60.
LOOSE = 2.0
EMPTY = 10.0  #: a run that starts and ends empty may have this many times fewer requests in flight than its concurrency


def check_run(run: MeasuredRun) -> None:
    """Raise InputError for metrics of a run that contradict each other."""
    if what := next(find_contradictions(run), None):
        raise InputError(f"{run.run_id}: {what}", hint="check that units agree and that all metrics are of one run")


def find_contradictions(run: MeasuredRun) -> Iterator[str]:
    """Yield each pair of metrics of ``run`` that cannot both be right, in words."""
    for low, high in find_disorder(run.metrics):
        yield f"{high}, {run.metrics[high]:g}, is below {low}, {run.metrics[low]:g}"
    output_len = run.mean_output_len or run.output_len
    if not output_len:
        return
    figures = run.metrics
    ttft, tpot, e2el = (
        (figures.get(f"mean_{name}_ms") or figures.get(f"median_{name}_ms") or 0.0) * MS
        for name in ("ttft", "tpot", "e2el")
    )
    parts = ttft + (output_len - 1) * tpot if ttft and tpot else 0.0
    if e2el and parts and not 1 / LOOSE < e2el / parts < LOOSE:
        yield f"an E2EL of {e2el:.4g} s is not TTFT and TPOT of {output_len:g} tokens, which add up to {parts:.4g} s"
    rate, limit, seconds = figures.get("output_throughput", 0.0), run.max_concurrency, e2el or parts
    if run.bench == "latency":
        batch, seconds = run.batch_size or limit or run.num_prompts or 0, figures.get("avg_latency_s", 0.0)
        made = batch * output_len / seconds if seconds else 0.0
        if made and rate and not 1 / LOOSE < made / rate < LOOSE:
            yield f"a batch of {batch} in {seconds:g} s is {made:.4g} tokens/s, but output_throughput is {rate:g}"
        return
    in_flight = rate * seconds / output_len
    closed = run.arrival == "closed-loop" or not run.request_rate
    if limit and in_flight and (in_flight > LOOSE * limit or (closed and in_flight < limit / EMPTY)):
        yield (
            f"output_throughput {rate:g} and an E2EL of {seconds:.4g} s keep {in_flight:.3g} requests in flight, "
            f"but max_concurrency is {limit}"
        )
