"""``planner compare`` in words and rows: a table for each load, then which GPU leads where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from planner.hardware import GpuProfile
from planner.output.answer import Answer
from planner.output.render import Column, command_lines, known_table, table_text, wrapped
from planner.output.tables.shared import (
    MORE,
    calibration_note,
    card,
    doubt_object,
    engine_note,
    figure_between,
    items,
    listed,
    price_notes,
    price_rows,
    with_interval,
)
from planner.planning import (
    ComparedPoint,
    Comparison,
    Doubt,
    Flip,
    Order,
    Span,
    doubts_about_comparison,
    limit_in_words,
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
#: On one screen: all loads in one table.
BRIEF = (
    Column("load"),
    *TABLE[:3],
    Column("usd_per_million_output_tokens", "USD/1M", ",.2f"),
    Column("output_tokens_per_joule", "tok/J", ",.2f", spare=True),
    Column("mean_ttft_ms", "TTFT ms", ",.0f"),
    Column("mean_tpot_ms", "TPOT ms", ",.1f"),
)
BRIEF_ROWS = 18
BRIEF_REASONS = 3
BRIEF_DOUBTS = 2


@dataclass(frozen=True, repr=False)
class ComparisonAnswer(Answer):
    """GPUs side by side: ``planner compare``. A table for each load, then which GPU leads where."""

    verdict_first = True
    record: Comparison
    profiles: tuple[GpuProfile, ...]
    prices: Mapping[str, float]  #: given prices: profile id to USD per GPU and hour
    remarks: tuple[str, ...] = ()
    said: tuple[str, ...] = ()  #: notes on the model
    explain: bool = False

    @property
    def ok(self) -> bool:
        """Whether any GPU holds the model."""
        return bool(self.record.points)

    @cached_property
    def doubts(self) -> tuple[Doubt, ...]:
        """GPUs whose answers are out of proportion."""
        return tuple(doubts_about_comparison(self.record))

    def _object(self) -> dict[str, Any]:
        comparison = self.record
        return {
            "model": comparison.question.model.id,
            "per": comparison.question.per,
            "share": comparison.share,
            "rows": self._records(),
            "doubts": [doubt_object(doubt) for doubt in self.doubts],
            "orders": [_order_object(order) for order in comparison.orders()],
            "prices": price_rows(self.profiles, self.prices),
            "refused": [{"gpu": refused.gpu, "reason": refused.reason} for refused in comparison.refused],
        }

    def _records(self) -> list[Mapping[str, Any]]:
        return [point.figures for point in self.record.points]

    def _columns(self) -> Sequence[Column]:
        rows = self._records()
        return [Column(key) for key in (rows[0] if rows else ("gpu",))]

    def _lines(self) -> Iterator[str]:
        yield wrapped(_verdict(self.record))
        yield from items("!", map(str, self.doubts))
        yield ""
        yield from _table_lines(self.record)

    def _brief_lines(self) -> Iterator[str]:
        comparison = self.record
        yield wrapped(_verdict(comparison))
        yield from items("!", map(str, self.doubts[:BRIEF_DOUBTS]))
        if not comparison.points:
            yield from items("x", (f"{refused.gpu}: {refused.reason}" for refused in comparison.refused[:BRIEF_ROWS]))
            return
        lengths = dict.fromkeys(_lengths(workload) for workload in comparison.workloads)
        same = f"{next(iter(lengths))}, " if len(lengths) == 1 else ""
        yield f"\n{same}{_hardware_words(comparison)}; mean latencies, figures per {_unit(comparison)}:\n"
        points, left_out = _first_of_each_load(comparison)
        yield known_table([_brief_row(comparison, point) for point in points], BRIEF)
        if left_out:
            yield f"and {left_out} more rows"
        for line in list(_order_lines(list(comparison.orders())))[:BRIEF_REASONS]:
            yield from items("-", [line])
        keeping = [point for point in comparison.points if point.keeps_up]
        if keeping:
            yield from items("-", [f"what binds: {_binding(keeping)}"])
        if len(keeping) < len(comparison.points):
            yield from items("!", [_overloaded([point for point in comparison.points if not point.keeps_up])])
        leader = max(comparison.points, key=lambda point: point.tok_per_s_per_gpu.mid)
        network = leader.setup.profile.stated_network_gb_per_s
        stated = [f"--network-gb-per-s={network:g}"] if network else []
        words = ["planner", "recommend", comparison.question.model.id, "--gpu", leader.gpu, *stated]
        yield from command_lines({}, words)

    def _title(self) -> str:
        return f"{self.record.question.model.id}, on {_hardware_words(self.record)}"

    def _html(self) -> tuple[list[dict[str, Any]], Sequence[Column]]:
        rows = [{"load": _load_words(point.workload), **_table_row(point)} for point in self.record.points]
        return rows, (Column("load"), *TABLE)

    def _brief_notes(self) -> Iterator[str]:
        points, refused = self.record.points, [one.gpu for one in self.record.refused]
        if refused and points:
            yield f"left out: {listed(refused, BRIEF_REASONS)}"
        yield from _engine_remarks(self.record)
        fits = calibration_note((point.gpu, point.setup.deployment.calibrated_by) for point in points)
        versions = engine_note(str(point.setup.deployment.config.version) for point in points)
        read = ["in brackets the 90 % interval, behind who leads the odds"] if points else []
        yield "; ".join([*versions, *fits, *read, MORE])

    def _notes(self) -> Iterator[str]:
        used = ((point.gpu, point.setup.deployment.calibrated_by) for point in self.record.points)
        yield from calibration_note(used)
        yield from (f"{refused.gpu} is left out: {refused.reason}" for refused in self.record.refused)
        yield from _engine_remarks(self.record)
        yield from _remarks(self.record, self.profiles, self.prices)
        yield from self.said


def _verdict(comparison: Comparison) -> str:
    """Who is fastest and who is cheapest, in a sentence; of one GPU alone what it delivers."""
    model, points = comparison.question.model.id, comparison.points
    if not points:
        return f"No GPU holds {model}: {_hardware_words(comparison)}"
    first = {order.metric: order.words.replace(" leads", "", 1) for order in reversed(list(comparison.orders()))}
    if not first:
        best = max(points, key=lambda point: point.tok_per_s_per_gpu.mid)
        rate = _span_words(best.tok_per_s_per_gpu, "tokens/s per GPU")
        return f"{card(best.gpu)} serves {model} at {rate}, {_load_words(best.workload)}"
    figures = {
        "tokens/s per GPU": [(p.tok_per_s_per_gpu.mid, p.tok_per_s_per_gpu, "", p) for p in points if p.keeps_up],
        "tokens per USD": [(-d.mid, d, "USD/1M", p) for p in points if p.keeps_up and (d := p.usd_per_million_tok)],
    }
    words: list[str] = []
    for metric, known in figures.items():
        if metric in first and known:
            _, span, unit, best = max(known, key=lambda one: one[0])
            at = f" on {best.gpu} at {_load_in_row(best)}" if len(comparison.workloads) > 1 else ""
            of = f"Most {metric} of {model}" if not words else f"most {metric}"
            words.append(f"{of}: {first[metric]}, {_span_words(span, unit)}{at}")
    return "; ".join(words or [f"{metric}: {said}" for metric, said in first.items()])


def _span_words(span: Span, unit: str) -> str:
    return figure_between(span.mid, span.low, span.high, unit)


def _load_in_row(point: ComparedPoint) -> str:
    return f"{point.load:,g} in flight" if point.workload.max_concurrency is not None else f"{point.load:,g}/s"


def _first_of_each_load(comparison: Comparison) -> tuple[list[ComparedPoint], int]:
    """As many rows as fit one screen, of each load the fastest; in their own order. And how many are left out."""
    points, loads = comparison.points, comparison.workloads
    chosen: set[int] = set()
    for load in loads[:BRIEF_ROWS]:
        of_load = sorted((p for p in points if p.workload == load), key=lambda point: -point.tok_per_s_per_gpu.mid)
        chosen |= {id(point) for point in of_load[: max(BRIEF_ROWS // len(loads), 1)]}
    shown = [point for load in loads for point in points if point.workload == load and id(point) in chosen]
    return shown, len(points) - len(shown)


def _brief_row(comparison: Comparison, point: ComparedPoint) -> dict[str, Any]:
    workload, dollars = point.workload, point.usd_per_million_tok
    load = _load_in_row(point)
    if len({(w.input_len, w.output_len) for w in comparison.workloads}) > 1:
        load = f"{workload.input_len:,}/{workload.output_len:,} {load}"
    return {
        **_table_row(point),
        "load": load,
        "usd_per_million_output_tokens": dollars.mid if dollars else None,
    }


def _binding(points: Sequence[ComparedPoint]) -> str:
    """What limits which GPUs: each cause once."""
    by_cause: dict[str, dict[str, None]] = {}
    for point in points:
        cause = limit_in_words(point.bound_by).partition(", ")[0]  # its share differs from load to load
        by_cause.setdefault(cause, {})[point.gpu] = None
    gpus = list(dict.fromkeys(point.gpu for point in points))
    words = [
        cause if len(of) == len(gpus) else f"{cause} on {listed(list(of), BRIEF_REASONS)}"
        for cause, of in sorted(by_cause.items(), key=lambda pair: -len(pair[1]))
    ]
    return "; ".join(words[: BRIEF_REASONS + 1])


def _overloaded(points: Sequence[ComparedPoint]) -> str:
    """Where more arrives than is served, so that there are no latencies."""
    by_load: dict[str, list[str]] = {}
    for point in points:
        by_load.setdefault(_load_in_row(point), []).append(point.gpu)
    where = "; ".join(f"at {load} on {listed(gpus, BRIEF_REASONS)}" for load, gpus in by_load.items())
    return f"more arrives than is served, so no latency is told and no lead counted: {where}"


def _table_lines(comparison: Comparison) -> Iterator[str]:
    for workload in comparison.workloads:
        points = [point for point in comparison.points if point.workload == workload]
        if not points:
            continue
        yield f"{_load_words(workload)}, on {_hardware_words(comparison)}\n"
        yield table_text([_table_row(point) for point in points], TABLE)
        yield ""
    orders = list(comparison.orders())
    for fixed, group in groupby(orders, key=lambda order: order.axis.fixed):
        yield f"{fixed}, figures per {_unit(comparison)}:"
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


def _engine_remarks(comparison: Comparison) -> Iterator[str]:
    """What to know of servers over several nodes, and of blocks in host memory."""
    engines = [point.setup.deployment for point in comparison.points]
    remarks = (words for engine in engines for words in (engine.network_remark, engine.unused_host_remark))
    yield from dict.fromkeys(filter(None, remarks))


def _idle_remarks(comparison: Comparison) -> Iterator[str]:
    """GPUs that are paid for and idle."""
    setups = (point.setup for point in comparison.points)
    found = {(s.profile.id, s.idle_gpus, s.num_gpus, s.deployment.config.num_gpus): None for s in setups if s.idle_gpus}
    for gpu, idle, num_gpus, size in found:
        verb = "is paid for and stays idle" if idle == 1 else "are paid for and stay idle"
        yield f"{gpu}: {idle} of {num_gpus} GPUs {verb}: each server takes {size}"


def _lengths(workload: Workload) -> str:
    return f"{workload.input_len:,} in / {workload.output_len:,} out"


def _load_words(workload: Workload) -> str:
    lengths = _lengths(workload)
    if workload.max_concurrency is not None:
        return f"{lengths}, {workload.max_concurrency:,} request{'s' if workload.max_concurrency > 1 else ''} in flight"
    return f"{lengths}, {workload.request_rate:g} requests/s"


def _hardware_words(comparison: Comparison) -> str:
    what = {"package": "whole GPU", "gpu": "GPU", "node": "node"}[comparison.question.per]
    count = 1 if comparison.question.per == "node" else comparison.share
    return f"{count} {what}{'s' if count > 1 else ''} of each"


def _unit(comparison: Comparison) -> str:
    return "GPU" if comparison.question.per == "gpu" else "whole GPU"


def _pair(mean: float | None, p99: float | None, factor: float, form: str) -> str | None:
    return f"{mean * factor:{form}}, {p99 * factor:{form}}" if mean is not None and p99 is not None else None


def _servers_words(point: ComparedPoint) -> str:
    """``8 x mi300x-cpx``, ``1 x mi300x TP 2``."""
    size = point.setup.deployment.config.tensor_parallel_size
    return f"{point.setup.servers} x {point.gpu}" + (f" TP {size}" if size > 1 else "")
