"""``planner compare`` in words and rows: a table for each load, then which GPU leads where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from planner.hardware import GpuProfile
from planner.output.render import Column, table_text, wrapped
from planner.output.result import Result
from planner.output.tables.shared import calibration_note, price_notes, price_rows, with_interval
from planner.planning import (
    ComparedPoint,
    Comparison,
    Flip,
    Order,
    percent,
)
from planner.units import MS
from planner.workload import Workload

TABLE = (
    Column("servers"),
    Column("output_throughput_per_gpu", "tok/s/gpu"),
    Column("output_throughput_per_user", "per user", ",.1f"),
    Column("usd_per_million_output_tokens", "USD/1M"),
    Column("output_tokens_per_joule", "tok/J", ",.2f"),
    Column("ttft", "TTFT s, p99"),
    Column("tpot", "TPOT ms, p99"),
    Column("bound_by", "limited by", wraps=True),
)


@dataclass(frozen=True, repr=False)
class ComparisonAnswer(Result):
    """GPUs side by side: ``planner compare``. A table for each load, then which GPU leads where."""

    record: Comparison
    profiles: tuple[GpuProfile, ...]
    prices: Mapping[str, float]  #: given prices: profile id to USD per GPU and hour
    remarks: tuple[str, ...] = ()
    said: tuple[str, ...] = ()  #: notes on the model

    @property
    def ok(self) -> bool:
        """Whether any GPU holds the model."""
        return bool(self.record.points)

    def _object(self) -> dict[str, Any]:
        comparison = self.record
        return {
            "model": comparison.question.model.id,
            "per": comparison.question.per,
            "share": comparison.share,
            "rows": self._rows(),
            "orders": [_order_object(order) for order in comparison.orders()],
            "prices": price_rows(self.profiles, self.prices),
            "refused": [{"gpu": refused.gpu, "reason": refused.reason} for refused in comparison.refused],
        }

    def _rows(self) -> list[Mapping[str, Any]]:
        return [point.figures for point in self.record.points]

    def _columns(self) -> Sequence[Column]:
        rows = self._rows()
        return [Column(key) for key in (rows[0] if rows else ("gpu",))]

    def _lines(self) -> Iterator[str]:
        return _table_lines(self.record)

    def _title(self) -> str:
        return f"{self.record.question.model.id}, on {_hardware_words(self.record)}"

    def _html_rows(self) -> tuple[list[dict[str, Any]], Sequence[Column]]:
        rows = [{"load": _load_words(point.workload), **_table_row(point)} for point in self.record.points]
        return rows, (Column("load"), *TABLE)

    def _notes(self) -> Iterator[str]:
        used = ((point.gpu, point.setup.deployment.calibrated_by) for point in self.record.points)
        yield from calibration_note(used)
        yield from (f"{refused.gpu} is left out: {refused.reason}" for refused in self.record.refused)
        yield from _remarks(self.record, self.profiles, self.prices)
        yield from self.said


def _table_lines(comparison: Comparison) -> Iterator[str]:
    per_gpu = comparison.question.per == "gpu"
    for workload in comparison.workloads:
        points = [point for point in comparison.points if point.workload == workload]
        if not points:
            continue
        yield f"{_load_words(workload)}, on {_hardware_words(comparison)}\n"
        yield table_text([_table_row(point) for point in points], TABLE)
        yield ""
    orders = list(comparison.orders())
    for fixed, group in groupby(orders, key=lambda order: order.axis.fixed):
        yield f"{fixed}, figures per {'GPU' if per_gpu else 'whole GPU'}:"
        for line in _order_lines(list(group)):
            yield wrapped(line, first="  ", rest="    ")


def _table_row(point: ComparedPoint) -> dict[str, Any]:
    row = point.figures
    dollars = point.usd_per_million_tok
    return {
        **row,
        "servers": _servers_words(point),
        "output_throughput_per_gpu": with_interval(point.tok_per_s_per_gpu, ",.0f"),
        "usd_per_million_output_tokens": with_interval(dollars, ",.2f") if dollars else None,
        "ttft": _pair(row["mean_ttft_ms"], row["p99_ttft_ms"], MS, ",.3g"),
        "tpot": _pair(row["mean_tpot_ms"], row["p99_tpot_ms"], 1.0, ",.1f"),
    }


def _order_lines(orders: Sequence[Order]) -> Iterator[str]:
    """A line for each order of leaders with the metrics that have it, then the other pairs that change places."""
    for said, metrics in _by_words((order.words, order.metric) for order in orders):
        yield f"{metrics}: {said}"
    pairs = ((_flip_words(flip, order.axis.name), order.metric) for order in orders for flip in _others(order))
    for said, metrics in _by_words(pairs):
        yield f"{metrics}: {said}"


def _by_words(said: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Each sentence once, with all metrics that it holds for."""
    metrics: dict[str, list[str]] = {}
    for words, metric in said:
        metrics.setdefault(words, []).append(metric)
    return ((words, ", ".join(of)) for words, of in metrics.items())


def _others(order: Order) -> Iterator[Flip]:
    """Pairs that change places and are not both among the leaders."""
    leaders = {standing.order[0] for standing in order.standings}
    return (flip for flip in order.flips if not {flip.before, flip.after} <= leaders)


def _flip_words(flip: Flip, axis: str) -> str:
    before, since = map(percent, flip.probabilities)
    return (
        f"{flip.before} is ahead of {flip.after} up to {axis} {flip.until:,g} ({before}), "
        f"behind from {flip.since:,g} on ({since})"
    )


def _order_object(order: Order) -> dict[str, Any]:
    return {
        "metric": order.metric,
        "axis": order.axis.name,
        "fixed": order.axis.fixed,
        "words": f"{order.metric}: {order.words}",
        "standings": [
            {
                "at": s.at,
                "order": list(s.order),
                "probability": s.probability if len(s.order) > 1 else None,
                "certain": s.certain,
                "tied": s.tied,
            }
            for s in order.standings
        ],
        "flips": [
            {
                "ahead_until": f.before,
                "ahead_since": f.after,
                "until": f.until,
                "since": f.since,
                "probability_until": f.probabilities[0],
                "probability_since": f.probabilities[1],
                "certain": f.certain,
            }
            for f in order.flips
        ],
    }


def _remarks(comparison: Comparison, profiles: Sequence[GpuProfile], prices: Mapping[str, float]) -> Iterator[str]:
    taking_part = {point.gpu for point in comparison.points}
    yield from price_notes([profile for profile in profiles if profile.id in taking_part], prices)
    if comparison.points:
        yield "in brackets the 90 % interval, for USD with the range of prices; joules assume boards at their TDP"
        if len(taking_part) > 1:
            yield "behind who leads the probability that measurements have that order too, at typical prices"
    yield from _idle_remarks(comparison)
    shared = [p.id for p in profiles if p.id in taking_part and p.partition and not p.partition.isolated_bandwidth]
    if shared:
        yield f"{', '.join(shared)}: all partitions of the GPU are assumed to be busy at once"


def _idle_remarks(comparison: Comparison) -> Iterator[str]:
    """GPUs that are paid for and idle."""
    setups = (point.setup for point in comparison.points)
    found = {(s.profile.id, s.idle_gpus, s.num_gpus, s.deployment.config.num_gpus): None for s in setups if s.idle_gpus}
    for gpu, idle, num_gpus, size in found:
        verb = "is paid for and stays idle" if idle == 1 else "are paid for and stay idle"
        yield f"{gpu}: {idle} of {num_gpus} GPUs {verb}: each server takes {size}"


def _load_words(workload: Workload) -> str:
    lengths = f"{workload.input_len:,} in / {workload.output_len:,} out"
    if workload.max_concurrency is not None:
        return f"{lengths}, {workload.max_concurrency:,} request{'s' if workload.max_concurrency > 1 else ''} in flight"
    return f"{lengths}, {workload.request_rate:g} requests/s"


def _hardware_words(comparison: Comparison) -> str:
    what = {"package": "whole GPU", "gpu": "GPU", "node": "node"}[comparison.question.per]
    count = 1 if comparison.question.per == "node" else comparison.share
    return f"{count} {what}{'s' if count > 1 else ''} of each"


def _pair(mean: float | None, p99: float | None, factor: float, form: str) -> str | None:
    return f"{mean * factor:{form}}, {p99 * factor:{form}}" if mean is not None and p99 is not None else None


def _servers_words(point: ComparedPoint) -> str:
    """``8 x mi300x-cpx``, ``1 x mi300x TP 2``."""
    size = point.setup.deployment.config.tensor_parallel_size
    return f"{point.setup.servers} x {point.gpu}" + (f" TP {size}" if size > 1 else "")
