"""Measured runs of vLLM: a table with one row per run.

The columns are the fields of ``MeasuredRun`` (what was run) and ``MEASUREMENTS`` (what came out). Other columns are
ignored. An empty cell means "not stated". A cell that cannot be read costs its row, and the row says which cell it was.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

from planner.errors import InputError
from planner.resources import MOST_FILE_BYTES, check_file
from planner.units import LEAST_FIGURE, MS
from planner.workload import LATENCIES, METRICS, NAMED_DISTRIBUTIONS

Bench = Literal["latency", "throughput", "serve"]
#: Columns of words from a list.
CHOICES = {
    "bench": ("latency", "throughput", "serve"),
    "length_distribution": tuple(NAMED_DISTRIBUTIONS),
    "arrival": ("offline", "all-at-once", "closed-loop", "poisson"),
}
REQUIRED = ("bench", "gpu", "model")
#: Columns with measurements, in the units that their names say. No fit uses the other metrics.
MEASUREMENTS = tuple(key for key in METRICS if key != "request_throughput" and not key.startswith("p90"))


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
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel_size: int = 1
    engine_build: str = "vllm"
    engine_version: str = ""
    input_len: float | None = None
    output_len: float | None = None
    mean_input_len: float | None = None
    mean_output_len: float | None = None
    length_distribution: str = "fixed"
    arrival: str = ""
    batch_size: int | None = None
    max_concurrency: int | None = None
    request_rate: float | None = None
    num_prompts: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    async_scheduling: bool | None = None
    suspect: str = ""
    date: str = ""
    family: str = ""
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    enforce_eager: bool | None = None
    enable_prefix_caching: bool | None = None
    burstiness: float | None = None
    random_range_ratio: float | None = None
    seed: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    unread: str = ""  #: why the row cannot be read, with file, line and column; nothing else of it counts then

    @property
    def group(self) -> tuple[str, str, int, str, str]:
        """What a fit could memorise: GPU, model, TP, weight dtype, engine version."""
        return self.gpu, self.model, self.tensor_parallel_size, self.weight_dtype, self.engine_version

    def record(self) -> dict[str, Any]:
        """The cells of a table that give this run again: those that are not at their default."""
        stated = {f.name: getattr(self, f.name) for f in fields(self) if f.name in RUN_COLUMNS}
        defaults = {f.name: f.default for f in fields(self)}
        return {**{name: value for name, value in stated.items() if value != defaults[name]}, **self.metrics}


RUN_COLUMNS = tuple(f.name for f in fields(MeasuredRun) if f.name not in ("metrics", "unread"))
#: A column that is no field: independent servers that share the load. Such a row is read as the share of one of them.
REPLICAS = "replicas"


def read_runs(path: Path) -> list[MeasuredRun]:
    """The runs of a CSV file, each row one; of a row that cannot be read ``unread`` says why.

    Raises InputError for a file that is no table of runs.
    """
    try:
        check_file(path, most_bytes=MOST_FILE_BYTES)
        with path.open(newline="", encoding="utf-8-sig") as file:
            return list(_runs(path, csv.DictReader(file, strict=True)))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint="give a CSV file of measured runs") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a CSV file: {error}", hint="save it as comma-separated UTF-8") from error


def _runs(path: Path, table: csv.DictReader[str]) -> Iterator[MeasuredRun]:
    columns = table.fieldnames or []
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise InputError(
            f"{path}: column{'s' if len(missing) > 1 else ''} {', '.join(missing)} missing",
            hint=f"known columns: {', '.join((*RUN_COLUMNS, REPLICAS, *MEASUREMENTS))}",
        )
    twice = [name for name, times in Counter(columns).items() if name and times > 1]
    if twice:
        raise InputError(f"{path}: column {twice[0]} appears twice", hint="keep one of them")
    if not any(metric in columns for metric in MEASUREMENTS):
        raise InputError(f"{path}: no column with a measurement", hint=f"one of: {', '.join(MEASUREMENTS)}")
    seen = False
    for row in table:
        seen = True
        yield _Row(f"{path}, line {table.line_num}", f"line-{table.line_num}", row).run_or_reason()
    if not seen:
        raise InputError(f"{path} has no rows", hint="one row per measured run")


def runs_of(records: Iterable[Mapping[str, Any]], where: str) -> list[MeasuredRun]:
    """The runs behind ``MeasuredRun.record``. Raises InputError, naming number and field, for anything else."""
    found = []
    for number, record in enumerate(records, 1):
        cells: dict[str, str | None] = {name: str(value) for name, value in record.items()}
        found.append(_Row(f"{where}, run {number}", f"run-{number}", cells).run())
    return found


def find_disorder(figures: Mapping[str, float | None]) -> Iterator[tuple[str, str]]:
    """Pairs of metrics of which the second is the smaller one and cannot be: their units differ.

    For example a median above the 99th percentile, or a TTFT above the E2EL.
    """
    pairs = [(f"median_{latency}_ms", f"p99_{latency}_ms") for latency in LATENCIES]
    for low, high in (*pairs, ("mean_ttft_ms", "mean_e2el_ms")):
        least, most = figures.get(low), figures.get(high)
        if least and most and least > 1.001 * most:
            yield low, high


class _Row:
    """One line of the table, cell by cell."""

    def __init__(self, where: str, name: str, cells: dict[str, str | None]) -> None:
        self.where, self.name, self.cells = where, name, cells

    def run_or_reason(self) -> MeasuredRun:
        """The run, or what is known of it and why the rest cannot be read."""
        try:
            return self.run()
        except InputError as error:
            bench: Any = self.text("bench")
            return MeasuredRun(
                run_id=self.text("run_id") or self.name,
                bench=bench,
                gpu=self.text("gpu"),
                model=self.text("model"),
                unread=error.cause,
            )

    def run(self) -> MeasuredRun:
        """The run. An empty cell leaves a field at its default."""
        if None in self.cells:
            raise self._wrong("", "more cells than the header has columns")
        for name in REQUIRED:
            if not self.text(name):
                raise self._wrong(name, "is empty")
        stated = {f.name: self._value(f.name, str(f.type)) for f in fields(MeasuredRun) if f.name in RUN_COLUMNS}
        metrics = {name: value for name in MEASUREMENTS if (value := self.number(name)) is not None}
        for low, high in find_disorder(metrics):
            what = f"{metrics[high]:g} is below {low}, {metrics[low]:g}: are the units the same?"
            raise self._wrong(high, what)
        named = {"run_id": self.name} | {name: value for name, value in stated.items() if value not in (None, "")}
        return _of_one_server(MeasuredRun(**named, metrics=metrics), self.count(REPLICAS) or 1)

    def _value(self, name: str, kind: str) -> Any:
        """The cell of a column, read as the type of its field; some columns have a form of their own."""
        own: dict[str, Callable[[], Any]] = {
            "num_prompts": self.prompts,
            "request_rate": self.rate,
            "random_range_ratio": self.share,
            "max_concurrency": self.in_flight,
        }
        own["seed"] = lambda: 0 if self.text("seed") == "0" else self.count("seed")
        if name in own:
            return own[name]()
        if name in CHOICES:
            return self.choice(name, CHOICES[name])
        readers = {"str": self.text, "int": self.count, "float": self.number, "bool": self.flag}
        return readers[kind.removesuffix(" | None")](name)

    def text(self, name: str) -> str:
        return (self.cells.get(name) or "").strip()

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.text(name)
        if value and value not in choices:
            raise self._wrong(name, f"{value!r} is not one of {', '.join(choices)}")
        return value

    def flag(self, name: str) -> bool | None:
        value = self.text(name).lower()
        if value not in ("", "true", "false"):
            raise self._wrong(name, f"{value!r} is neither true nor false")
        return value == "true" if value else None

    def number(self, name: str) -> float | None:
        """A positive number, or None where the cell is empty."""
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise self._wrong(name, f"{text!r} is not a number") from None
        if not LEAST_FIGURE <= value < inf:
            raise self._wrong(name, f"{text} is not a positive number of {LEAST_FIGURE:g} or more")
        return value

    def rate(self) -> float | None:
        return None if self.text("request_rate").lower() in ("inf", "infinity") else self.number("request_rate")

    def in_flight(self) -> int | None:
        """Requests in flight. Some sources state the mean of a steady state."""
        value = self.number("max_concurrency")
        return None if value is None else max(round(value), 1)

    def prompts(self) -> int | None:
        """A sweep may state a multiple of the concurrency: ``10x conc``."""
        multiple = re.fullmatch(r"(\d+)\s*x\s*conc(urrency)?", self.text("num_prompts"))
        if not multiple:
            return self.count("num_prompts")
        concurrency = self.in_flight()
        if concurrency is None:
            raise self._wrong("num_prompts", "is a multiple of the concurrency, which is not stated")
        return int(multiple[1]) * concurrency

    def share(self) -> float | None:
        """From 0 to below 1."""
        name = "random_range_ratio"
        value = 0.0 if self.text(name) in ("0", "0.0") else self.number(name)
        if value is not None and value >= 1:
            raise self._wrong(name, f"{value:g} is not below 1")
        return value

    def count(self, name: str) -> int | None:
        value = self.number(name)
        if value is not None and value != int(value):
            raise self._wrong(name, f"{value:g} is not a whole number")
        return None if value is None else int(value)

    def _wrong(self, name: str, what: str) -> InputError:
        column = f", column {name}" if name else ""
        return InputError(f"{self.where}{column}: {what}", hint="correct the cell, or leave it empty")


def _of_one_server(run: MeasuredRun, replicas: int) -> MeasuredRun:
    """What one of ``replicas`` servers behind one address serves and measures; few requests keep few of them busy."""
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


# --- Do the metrics of a run agree with each other? Where they do not, units or runs were mixed up
#
#     E2EL  =  TTFT + (output tokens - 1) x TPOT                     of means, where requests are alike
#     requests in flight  =  throughput x E2EL / output tokens       Little's law; in a closed loop the concurrency

#: Both sums hold on average only and may be off by this factor: lengths vary, and a rate covers a run's whole time.
#: Mixed-up units are off by 60 or more.
LOOSE = 2.0
#: A run that starts and ends empty may have this many times fewer requests in flight than its concurrency.
EMPTY = 10.0


def check_run(run: MeasuredRun) -> None:
    """Raise InputError for metrics of a run that contradict each other."""
    for what in find_contradictions(run):
        raise InputError(f"{run.run_id}: {what}", hint="check that units agree and that all metrics are of one run")


def find_contradictions(run: MeasuredRun) -> Iterator[str]:
    """Each pair of metrics of ``run`` that cannot both be right, in words."""
    for low, high in find_disorder(run.metrics):
        yield f"{high}, {run.metrics[high]:g}, is below {low}, {run.metrics[low]:g}"
    output_len = run.mean_output_len or run.output_len
    if not output_len:
        return
    figures = run.metrics
    ttft, tpot, e2el = (_mean_s(figures, name) for name in ("ttft", "tpot", "e2el"))
    parts = None if ttft is None or tpot is None else ttft + (output_len - 1) * tpot
    if e2el and parts and not 1 / LOOSE < e2el / parts < LOOSE:
        yield f"an E2EL of {e2el:.4g} s is not TTFT and TPOT of {output_len:g} tokens, which add up to {parts:.4g} s"
    yield from _little(run, e2el or parts, output_len)


def _mean_s(figures: Mapping[str, float], name: str) -> float | None:
    value = figures.get(f"mean_{name}_ms") or figures.get(f"median_{name}_ms")
    return value * MS if value else None


def _little(run: MeasuredRun, e2el_s: float | None, output_len: float) -> Iterator[str]:
    rate = run.metrics.get("output_throughput")
    if not rate:
        return
    if run.bench == "latency":
        batch, seconds = run.batch_size or run.max_concurrency or run.num_prompts, run.metrics.get("avg_latency_s")
        if batch and seconds and not 1 / LOOSE < batch * output_len / seconds / rate < LOOSE:
            made = batch * output_len / seconds
            yield f"a batch of {batch} in {seconds:g} s is {made:.4g} tokens/s, but output_throughput is {rate:g}"
        return
    limit = run.max_concurrency
    if not limit or not e2el_s:
        return
    in_flight = rate * e2el_s / output_len
    closed = run.arrival == "closed-loop" or not run.request_rate
    if in_flight > LOOSE * limit or (closed and in_flight < limit / EMPTY):
        yield (
            f"output_throughput {rate:g} and an E2EL of {e2el_s:.4g} s keep {in_flight:.3g} requests in flight, "
            f"but max_concurrency is {limit}"
        )
