"""``planner compare``: the GPUs under each load, and which one leads where."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from planner import evidence, planning
from planner.engine import without_kernels
from planner.hardware import GpuProfile
from planner.output.answer import Answer, fields_of, to_plain
from planner.output.render import Column, columns_of, command_lines, known_table, rows_of, table_text, wrapped
from planner.output.tables import shared
from planner.units import MS, counted
from planner.workload import Load

_TAKEN: dict[str, Callable[[Any], Any]] = {
    "load": lambda point: _load_in_row(point),
    "servers": lambda point: _servers_words(point),
    "output_throughput_per_gpu": lambda point: shared.with_interval(point.tok_per_s_per_gpu, ",.0f"),
    "usd_per_million_output_tokens": lambda point: shared.with_interval(point.usd_per_million_tok, ",.2f"),
    "ttft": lambda point: _mean_and_p99(point, "ttft", MS, ",.3g"),
    "tpot": lambda point: _mean_and_p99(point, "tpot", 1, ",.1f"),
}
TABLE = columns_of("comparison", **_TAKEN)
BRIEF = columns_of("comparison_brief", **_TAKEN)  #: on one screen: all loads in one table
#: A point in JSON and CSV.
FIELDS = columns_of(
    "comparison_fields",
    engine_version=lambda point: str(point.candidate.config.version),
    request_rate=lambda point: point.load if point.workload.open else None,
)
LENGTHS = (
    Column("input_len", "in", ",", of="workload.input_len"),
    Column("output_len", "out", ",", of="workload.output_len"),
)
FLIP = ("ahead_until=before", "ahead_since=after", "until", "since", "probability_until=probabilities.0",
        "probability_since=probabilities.1", "certain")  # fmt: skip
BRIEF_ROWS = 18
BRIEF_REASONS = 3
BRIEF_DOUBTS = 2
HOW_TO_READ = (
    "brackets: 90 % interval, for USD with the range of prices", "percentages: probability that the ranking is correct",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class ComparisonAnswer(Answer):
    """GPUs side by side: ``planner compare``. A table for each load, then the leaders."""

    verdict_first = True
    columns, records = FIELDS, "record.points"
    record: planning.Comparison
    orders: tuple[planning.Order, ...]  #: the leaders by each metric along each axis
    doubts: tuple[planning.Doubt, ...]  #: GPUs with answers of a suspicious size
    departures: tuple[tuple[planning.ComparedPoint, tuple[str, ...]], ...]  #: from the recipe of the model, by point
    profiles: tuple[GpuProfile, ...]
    prices: Mapping[str, float]  #: given prices: profile id to USD per GPU and hour
    said: tuple[str, ...] = ()  #: notes on the model
    stated: tuple[str, ...] = ()  #: words of the options that planner recommend takes too, without the load
    nearest: tuple["evidence.Near", ...] = ()  #: published runs like the fastest GPU's, with ``explain``

    @classmethod
    def of(cls, record: planning.Comparison, *more: Any, **shown: Any) -> "ComparisonAnswer":
        """The answer, with everything computed that it shows; ``more`` and ``shown`` are the other fields."""
        for point in record.points:
            _ = point.latencies, point.tok_per_s, point.bound_by  # cached: their intervals may take replays
        beside = tuple(planning.departures_in(record))
        doubts = tuple(planning.doubts_about_comparison(record))
        answer = cls(record, tuple(record.orders()), doubts, beside, *more, **shown)
        if not answer.explain or not record.points:
            return answer
        first, local = answer._fastest, record.question.serving.local
        near = evidence.nearest_runs(first.candidate.deployment, first.busiest.load, first.busiest.figures, local=local)
        return replace(answer, nearest=tuple(near))

    @property
    def ok(self) -> bool:
        """True if any GPU holds the model."""
        return bool(self.record.points)

    def _object(self) -> dict[str, Any]:
        return {
            **fields_of(self.record, "model=question.serving.model.id", "question.per", "share"),
            "rows": [
                {
                    **rows_of([point], FIELDS)[0],
                    **fields_of(point.candidate.deployment, *shared.EVIDENCE),
                    "departures": of,
                }
                for point, of in self.departures
            ],
            "doubts": shared.doubts_of(self.doubts),
            "orders": [
                {
                    **fields_of(order, "metric", "axis=axis.name", "axis.fixed"),
                    "words": f"{order.metric}: {order.words}",
                    "standings": [
                        fields_of(one, "at", "order", "probability", "certain", "tied")
                        | ({} if len(one.order) > 1 else {"probability": None})
                        for one in order.standings
                    ],
                    "flips": [fields_of(flip, *FLIP) for flip in order.flips],
                }
                for order in self.orders
            ],
            "prices": shared.price_rows(self.profiles, self.prices),
            "refused": to_plain(self.record.refused),
            **({"nearest_runs": rows_of(self.nearest, shared.NEAREST)} if self.explain else {}),
        }

    def sentences(self) -> Iterator[str]:
        yield wrapped(self._verdict())
        yield from shared.items("!", map(str, self.doubts if self.explain else self.doubts[:BRIEF_DOUBTS]))
        if self.explain:
            yield ""
            for workload in self.record.workloads:
                if points := [point for point in self.record.points if point.workload == workload]:
                    yield f"{_load_words(workload)}, on {self._hardware}\n\n{table_text(points, TABLE)}\n"
            for fixed, group in groupby(self.orders, key=lambda order: order.axis.fixed):
                yield f"{fixed}, figures per {self._unit}:"
                yield from (wrapped(line, first="  ", rest="    ") for line in _order_lines(list(group)))
            said = ((point.gpu, one) for point, of in self.departures for one in of)
            lines = ((gpu, planning.beside_recipe(of_gpu)) for gpu, of_gpu in shared.grouped(said).items())
            yield from shared.items("-", (f"{gpu} {line}" for gpu, (line,) in lines))
            yield from shared.nearest_lines(self.nearest)
        elif self.record.points:
            yield from self._one_screen()
        else:
            yield from shared.items("x", (f"{one.gpu}: {one.reason}" for one in self.record.refused[:BRIEF_ROWS]))

    def _verdict(self) -> str:
        model, points = self.record.question.serving.model.id, self.record.points
        if not points:
            return f"No GPU holds {model}: {self._hardware}"
        apart = [one for one in self.orders if any(len(place.equal) < len(place.order) for place in one.standings)]
        first = {order.metric: order.words.replace(" leads", "", 1) for order in reversed(apart)}
        ranked = [point for point in self._keeping if self.record.ranks_usd(point)]
        owned = any(point.rented.price and not self.record.ranks_usd(point) for point in self._keeping)
        figures = {
            "tokens/s per GPU": [(p.tok_per_s_per_gpu.mid, p.tok_per_s_per_gpu, "", p) for p in self._keeping],
            "tokens per USD": [(-d.mid, d, "USD/1M", p) for p in ranked if (d := p.usd_per_million_tok)],
            "tokens/s per user": [(u.mid, u, "", p) for p in self._keeping if (u := p.tok_per_s_per_user)],
        }
        words: list[str] = []
        for metric, known in figures.items():
            if metric in first and known and len(words) < 2:
                _, span, unit, best = max(known, key=lambda one: one[0])
                at = f" on {best.gpu} at {_load_words(best.workload).rpartition(', ')[2]}"
                at = at if len(self.record.workloads) > 1 else ""
                of = f"Most {metric} of {model}" if not words else f"Most {metric}"
                of += " of rent" * (owned and metric == "tokens per USD")
                figures_at = f"{shared.figure_between(span.mid, span.low, span.high, unit)}{at}"
                words.append(f"{of}: {first[metric]}. Best: {figures_at}")
        if words:
            return ". ".join(words)
        best, span = self._fastest, self._fastest.tok_per_s_per_gpu
        rate = shared.figure_between(span.mid, span.low, span.high, "tokens/s per GPU")
        return f"{shared.card(best.gpu)} serves {model} at {rate}, {_load_words(best.workload)}"

    @property
    def _keeping(self) -> list[planning.ComparedPoint]:
        return [point for point in self.record.points if point.keeps_up]

    @property
    def _fastest(self) -> planning.ComparedPoint:
        cheap = ((p.tok_per_usd.mid if p.tok_per_usd else 0.0, p) for p in self._keeping or self.record.points)
        return max(cheap, key=lambda one: (one[1].tok_per_s_per_gpu.mid, one[0]))[1]

    def _one_screen(self) -> Iterator[str]:
        points, loads = self.record.points, self.record.workloads
        lengths = dict.fromkeys(map(_lengths, loads))
        same = f"{next(iter(lengths))}, " if len(lengths) == 1 else ""
        yield f"\n{same}{self._hardware}; mean latencies, figures per {self._unit}:\n"
        chosen: set[int] = set()  # the fastest points of each load, as many as fit one screen
        for load in loads[:BRIEF_ROWS]:
            of_load = sorted((p for p in points if p.workload == load), key=lambda point: -point.tok_per_s_per_gpu.mid)
            chosen |= {id(point) for point in of_load[: max(BRIEF_ROWS // len(loads), 1)]}
        shown = [point for load in loads for point in points if point.workload == load and id(point) in chosen]
        lead = () if same else LENGTHS
        yield known_table(shown, (*lead, *BRIEF))
        if left_out := len(points) - len(shown):
            yield f"and {left_out} more rows"
        orders = [order for order in self.orders if order.words.replace(" leads", "", 1) not in self._verdict()]
        yield from shared.items("-", list(_order_lines(orders))[:BRIEF_REASONS])
        if self._keeping:
            # without the share of the cause, which differs from load to load
            limits = ((planning.limit_in_words(p.bound_by).partition(", ")[0], p.gpu) for p in self._keeping)
            causes = sorted(shared.grouped(limits).items(), key=lambda pair: -len(pair[1]))[:BRIEF_REASONS]
            named = {cause: gpus if len(gpus) <= BRIEF_REASONS else [counted(len(gpus))] for cause, gpus in causes}
            words = (f"{cause} on {', '.join(gpus)}" for cause, gpus in named.items())
            yield from shared.items("-", [f"bottleneck: {'; '.join(words)}"])
        if self.record.question.per == "node" and len({point.rented.num_gpus for point in points}) > 1:
            sizes = ", ".join(dict.fromkeys(f"{point.rented.num_gpus} of {point.gpu}" for point in points))
            yield from shared.items("!", [f"nodes of {sizes} get one load each: figures per GPU favour the small ones"])
        if overloaded := [point for point in points if not point.keeps_up]:
            by_load = shared.grouped((_load_in_row(point), point.gpu) for point in overloaded)
            where = "; ".join(f"at {load} on {shared.listed(gpus, BRIEF_REASONS)}" for load, gpus in by_load.items())
            yield from shared.items("!", [f"overloaded, so without latencies and not ranked: {where}"])
        fastest, load = self._fastest, self._fastest.workload
        (beside,) = (planning.beside_recipe(of) for point, of in self.departures if point is fastest)
        yield from shared.items("-", beside)
        model = self.record.question.serving.model.id
        command = [*shared.recommend_words(model, fastest.rented.profile, self.prices), *self.stated]
        sent = ["--random-input-len", str(load.input_len), "--random-output-len", str(load.output_len)]
        by = "--max-concurrency" if load.max_concurrency else "--request-rate"
        sent += [by, f"{fastest.load:g}"] * (load.open or len(loads) == 1)
        yield from command_lines({}, [*command, *sent])

    @property
    def _hardware(self) -> str:
        per = self.record.question.per
        what = {"package": "whole GPU", "gpu": "GPU", "node": "node"}[per]
        return f"{counted(1 if per == 'node' else self.record.share, what)} of each"

    @property
    def _unit(self) -> str:
        return "GPU" if self.record.question.per == "gpu" else "whole GPU"

    def _brief_notes(self) -> Iterator[str]:
        points, why = self.record.points, shared.grouped((one.reason, one.gpu) for one in self.record.refused)
        refused = [f"{shared.listed(gpus, BRIEF_DOUBTS)} ({reason})" for reason, gpus in why.items()]
        if refused and points:
            yield f"left out: {shared.listed(refused, BRIEF_DOUBTS)}"
        if self.record.share > 1 and not self.record.question.share:
            yield f"{self._hardware}: the fewest on which every GPU holds the model; --packages sets another number"
        yield from shared.price_caveats({p.gpu: p.rented.profile for p in points}.values(), self.prices)
        yield from self._engine_notes()
        yield "; ".join([*self._fits(), *(HOW_TO_READ if points else ()), shared.MORE])

    def _notes(self) -> Iterator[str]:
        yield from self._fits()
        yield from (f"{refused.gpu} is left out: {refused.reason}" for refused in self.record.refused)
        yield from self._engine_notes()
        points = self.record.points
        profiles = [profile for profile in self.profiles if profile.id in {point.gpu for point in points}]
        yield from shared.price_notes(profiles, self.prices)
        if points:
            yield "brackets: 90 % interval, for USD with the range of prices; joules assume boards at their TDP"
        if len(profiles) > 1:
            yield "percentages: probability that the ranking is correct, at typical prices"
        idle = dict.fromkeys((p.gpu, p.idle_gpus, p.rented.num_gpus, p.candidate.config.num_gpus) for p in points)
        words = "{}: paid for and idle: {} of {} GPUs, as each server takes {}"
        yield from (words.format(*one) for one in idle if one[1])
        if busy := [one.id for one in profiles if one.partition and not one.partition.isolated_bandwidth]:
            yield f"{', '.join(busy)}: all partitions of the GPU are assumed to be busy at once"
        yield from self.said

    def _fits(self) -> Iterator[str]:
        engines = [point.candidate.deployment for point in self.record.points]
        yield from shared.engine_note(str(engine.config.version) for engine in engines)
        yield from shared.calibration_note(engines)

    def _engine_notes(self) -> Iterator[str]:
        engines = [point.candidate.deployment for point in self.record.points]
        yield from dict.fromkeys(str(one) for e in engines for one in without_kernels(e.profile, e.config.version))
        yield from dict.fromkeys(words for engine in engines for words in shared.engine_remarks(engine))


def _order_lines(orders: Sequence[planning.Order]) -> Iterator[str]:
    lines = shared.grouped((order.words, order.metric) for order in orders)
    return (f"{', '.join(metrics)}: {words}" for words, metrics in lines.items())


def _lengths(workload: Load) -> str:
    return f"{workload.input_len:,} in / {workload.output_len:,} out"


def _load_in_row(point: planning.ComparedPoint) -> str:
    return f"{point.load:,g} concurrent" if point.workload.max_concurrency is not None else f"{point.load:,g}/s"


def _load_words(workload: Load) -> str:
    most = workload.max_concurrency
    load = f"{workload.request_rate:g} requests/s" if most is None else counted(most, "concurrent request")
    return f"{_lengths(workload)}, {load}"


def _mean_and_p99(point: planning.ComparedPoint, metric: str, unit: float, form: str) -> str | None:
    mean, p99 = (point.latencies[f"{statistic}_{metric}_ms"] for statistic in ("mean", "p99"))
    return f"{mean.mid * unit:{form}}, {p99.mid * unit:{form}}" if mean and p99 else None


def _servers_words(point: planning.ComparedPoint) -> str:
    """``8 x mi300x-cpx``, ``1 x mi300x TP 2``."""
    size = point.candidate.config.tensor_parallel_size
    return f"{point.candidate.servers} x {point.gpu}" + (f" TP {size}" if size > 1 else "")
