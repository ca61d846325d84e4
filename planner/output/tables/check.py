"""``planner check`` in words and rows."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from planner.engine import has_both_engines
from planner.output.answer import Answer, fields_of
from planner.output.render import Column, command_lines, pair_lines, table_text, wrapped
from planner.output.tables.shared import MORE, batch_in_words, items, listed
from planner.planning import Fit, LineVerdict, PlannedWorkload, Served, percent
from planner.units import format_bytes
from planner.workload import Load

if TYPE_CHECKING:
    from planner.evidence import SeenServer

COLUMNS = (
    Column("what", ""),
    Column("gpus", of="num_gpus"),
    Column("output_throughput", "tok/s", ",.0f"),
    Column("output_throughput_per_gpu", "tok/s/gpu", ",.0f"),
    Column("mean_ttft_ms", "TTFT ms", ",.0f"),
    Column("mean_tpot_ms", "TPOT ms", ",.1f"),
    Column("mean_e2el_ms", "E2EL ms", ",.0f"),
)
#: On one screen.
BRIEF = tuple(replace(c, spare=c.key in ("output_throughput", "mean_e2el_ms")) for c in COLUMNS)


BRIEF_WAYS = 8
BRIEF_PROBLEMS = 3
BRIEF_START = 8
BRIEF_CHANGES = 8
_MOST_OF_A_CONDITION = 70  #: characters that are shown


@dataclass(frozen=True)
class Way:
    """One way through a script, judged."""

    when: tuple[str, ...]  #: its conditions
    record: LineVerdict
    better: tuple[Served, ...]  #: plans that are worth a change, best first, replayed

    @property
    def condition(self) -> str:
        """The conditions, each once and on one line."""
        short = []
        for condition in self.when:
            text = " ".join(condition.replace("\\\n", " ").split())
            text = text.removeprefix("not: ! ") if text.startswith("not: ! ") else text.replace("not: ", "not ", 1)
            short.append(text if len(text) <= _MOST_OF_A_CONDITION else f"{text[:_MOST_OF_A_CONDITION]} ...")
        return f"if {' and '.join(dict.fromkeys(short))}" if short else "otherwise"

    @property
    def has_speed(self) -> bool:
        """True if there is a load, and so a speed."""
        return self.record.offline is not None or (
            not self.record.line.is_offline and bool(self.record.served or self.record.workload)
        )

    def rows(self) -> list[dict[str, Any]]:
        """The line and the better plans under its load."""
        own = self.record.model
        plans = [_row(plan.model if plan.model != own else "same model, other settings", plan) for plan in self.better]
        return [*([_row("this line", self.record.served)] if self.record.served else []), *plans]


@dataclass(frozen=True, repr=False)
class CheckAnswer(Answer):
    """A ``vllm serve`` line: whether it starts, its speed, and faster settings: ``planner check``."""

    verdict_first = True
    columns = COLUMNS
    ways: tuple[Way, ...]  #: through the script; one where it has no branches
    remarks: tuple[str, ...] = ()
    seen: SeenServer | None = None  #: the running server whose load it is
    explain: bool = False

    @classmethod
    def of(cls, judged: Sequence[tuple[tuple[str, ...], LineVerdict]], remarks: tuple[str, ...] = ()) -> CheckAnswer:
        """The answer for each way through a script, its better plans replayed.

        Ways with the same text are one, under the conditions that they share; conditions that all ways share are left
        out.
        """
        ways: dict[tuple[str, ...], Way] = {}
        for when, record in judged:
            way = Way(when, record, tuple(record.better()))
            text = (*_start(way), *_speed(way))
            first = ways.get(text, way)
            ways[text] = replace(first, when=tuple(one for one in first.when if one in when))
        everywhere = [one for one in judged[0][0] if all(one in way.when for way in ways.values())]
        shown = [replace(way, when=tuple(one for one in way.when if one not in everywhere)) for way in ways.values()]
        return cls(tuple(shown), remarks)

    @property
    def record(self) -> LineVerdict:
        """The verdict; of several ways through a script the first."""
        return self.ways[0].record

    @property
    def branches(self) -> tuple[tuple[tuple[str, ...], LineVerdict], ...]:
        """The conditions and the verdict of each way where a script has several; else empty."""
        return tuple((way.when, way.record) for way in self.ways) if len(self.ways) > 1 else ()

    @property
    def ok(self) -> bool:
        """True if it starts, in every branch."""
        return all(way.record.starts for way in self.ways)

    def _object(self) -> dict[str, Any]:
        several = self.ways if len(self.ways) > 1 else ()
        branches = [{"when": list(way.when), **_judged(way)} for way in several]
        names = ("url", "version", "model", "max_model_len", "kv_cache_tokens", "in_flight", "input_len", "output_len",
                 "window_s", "ended_in_window", "measured")  # fmt: skip
        seen = {"server": fields_of(self.seen, *names)} if self.seen else {}
        return {**_judged(self.ways[0]), "starts": self.ok, "branches": branches, **seen}

    def _records(self) -> list[dict[str, Any]]:
        if len(self.ways) > 1:
            return [_row(way.condition, way.record.served) for way in self.ways]
        measured = [{"what": "measured", **self.seen.measured}] if self.seen else []
        own = [] if self.record.served else [_row("this line", None)]
        return [*measured, *own, *self.ways[0].rows()]

    def sentences(self) -> Iterator[str]:
        """The verdict, the remarks on options, the memory, and the speed beside that of better plans."""
        yield from self._each_way() if self.explain else self._one_screen()
        if self.seen:
            yield from _seen_lines(self.seen, self.record)

    def _each_way(self) -> Iterator[str]:
        before: list[str] = []
        for way in self.ways:
            start = list(_start(way))
            if start != before:  # an engine that several loads share is shown once
                if before:
                    yield ""
                if any(other.when for other in self.ways):
                    yield wrapped(f"{way.condition}:")
                yield from start
                if way.has_speed:
                    yield ""
            before = start
            yield from _speed(way)

    def _one_screen(self) -> Iterator[str]:
        """The verdict; of several ways through a script one line each, and the first that does not start whole."""
        starting = sum(way.record.starts for way in self.ways)
        shown = next((way for way in self.ways if not way.record.starts), self.ways[0])
        line = shown.record.line
        if len(self.ways) > 1:
            where = f"{starting} of {len(self.ways)} ways through the script start"
            yield wrapped(f"{shown.record.model} on {shown.record.serving.profile.id}: {where}")
            for way in self.ways[:BRIEF_WAYS]:
                yield from items("-" if way.record.starts else "x", [f"{way.condition}: {_verdict(way.record)}"])
            if len(self.ways) > BRIEF_WAYS:
                yield f"  and {len(self.ways) - BRIEF_WAYS} more"
            yield ""
        yield wrapped(_headline(shown.record))
        for problem in sorted(line.problems, key=lambda one: not one.fatal)[:BRIEF_PROBLEMS]:
            yield from items("x" if problem.fatal else "!", [str(problem)])
        if len(line.problems) > BRIEF_PROBLEMS:
            yield f"  and {len(line.problems) - BRIEF_PROBLEMS} more remarks on options"
        yield from list(_start_lines(shown.record))[:BRIEF_START]
        if shown.has_speed:
            yield ""
            yield from _speed(shown, brief=True, with_command=len(self.ways) == 1)

    def _brief_notes(self) -> Iterator[str]:
        skipped = self.record.line.not_simulated
        yield from _about_drafts(self.record)
        yield from _about_engine(self.record)
        fits = [f"calibration: {used}"] if (used := _calibration(self.record)) else []
        yield "; ".join([*([f"not simulated: {', '.join(skipped)}"] if skipped else []), *fits, MORE])

    def _title(self) -> str:
        return _headline(self.record)

    def _notes(self) -> Iterator[str]:
        for way in self.ways:
            yield from _notes(way.record)


def _judged(way: Way) -> dict[str, Any]:
    record = way.record
    return {
        "starts": record.starts,
        "model": fields_of(record.serving.resolved, "requested", "resolved"),
        "gpu": record.serving.profile.id,
        "engine_version": str(record.serving.version),
        "calibration": _calibration(record),
        "flags": [fields_of(problem, "flag=word", "cause", "hint", "fatal") for problem in record.line.problems],
        "not_simulated": list(record.line.not_simulated),
        "refusal": fields_of(record.refusal, "cause", "hint") if record.refusal else None,
        "fit": record.fit.to_json() if record.fit else None,
        "settings": record.settings,
        "load": PlannedWorkload.of(record.workload).model_dump() if record.workload else None,
        "command": record.line.command,
        "delivers": _figures(record.served) if record.served else None,
        "offline": record.offline.result if record.offline else None,
        "goal": record.goal,
        "better": [_plan(record, plan) for plan in way.better],
        "notes": list(_notes(record)),
    }


def _plan(record: LineVerdict, plan: Served) -> dict[str, Any]:
    return {
        **fields_of(plan, "model", "env"),
        "command": shlex.join(plan.command),
        "changes": {name: {"line": own, "plan": other} for name, (own, other) in record.changes(plan).items()},
        "delivers": _figures(plan),
    }


def _figures(served: Served) -> dict[str, Any]:
    return {**served.result, "output_throughput_per_gpu": served.tok_per_s_per_gpu, "num_gpus": served.config.num_gpus}


def _row(what: str, served: Served | None) -> dict[str, Any]:
    return {"what": what, **(_figures(served) if served else {})}


def _seen_lines(seen: SeenServer, record: LineVerdict) -> Iterator[str]:
    """The server's own figures beside the prediction for the load that it has."""
    means = "of now" if seen.ended_in_window else "since it started: no request ended meanwhile"
    yield wrapped(f"\n{seen.url}, vLLM {seen.version}, watched for {seen.window_s:.1f} s; its means are {means}:")
    rows = [{"what": "measured", **seen.measured}, _row("predicted", record.served)]
    yield table_text(rows, tuple(column for column in COLUMNS if column.key in ("what", *seen.measured)))


def _headline(answer: LineVerdict) -> str:
    where = f"{answer.settings.get('tensor_parallel_size', 1)} x {answer.serving.profile.id}"
    if answer.fit:
        where = f"{answer.fit.config.num_gpus} x {answer.serving.profile.id}"
    return f"{answer.serving.resolved.resolved} on {where}, vLLM {answer.serving.version}: {_verdict(answer)}"


def _start(way: Way) -> Iterator[str]:
    """The verdict, the remarks on options, and the memory."""
    yield wrapped(_headline(way.record))
    for problem in way.record.line.problems:
        yield from items("x" if problem.fatal else "!", [str(problem)])
    yield from _start_lines(way.record)


def _speed(way: Way, *, brief: bool = False, with_command: bool = True) -> Iterator[str]:
    """The speed of the line, and the plans that are better."""
    if way.record.offline:
        yield from _offline_lines(way.record, way.record.offline.result)
    elif way.has_speed:
        yield from _load_lines(way, brief=brief, with_command=with_command)


def _offline_lines(answer: LineVerdict, result: Mapping[str, Any]) -> Iterator[str]:
    """The result of an offline benchmark, with its interval."""
    load = answer.workload
    lengths = (
        f"{load.num_prompts:,} requests of {load.input_len:,} + {load.output_len:,} tokens at once, " if load else ""
    )
    for key, name, digits in (
        ("avg_latency", "seconds", ",.3f"),
        ("tokens_per_second", "tokens/s, in and out", ",.0f"),
    ):
        if key in result:
            ends = " to ".join(format(result[end], digits) for end in (f"{key}_lo", f"{key}_hi") if end in result)
            yield f"{lengths}offline: {result[key]:{digits}} {name}{f' ({ends})' if ends else ''}"


def _verdict(answer: LineVerdict) -> str:
    if answer.refusal:
        return "vLLM refuses these settings"
    fit = answer.fit
    memory = fit.verdict if fit else "too close to call"
    odds = f"starts with {percent(fit.deployment.checked.probability_fits)} probability" if fit else "may not start"
    words = {"fits": "starts", "does not fit": "does not fit", "too close to call": odds}
    if answer.line.refused:
        return f"vLLM refuses an option; without it: {words[memory]}"
    return words[memory]


def _start_lines(answer: LineVerdict) -> Iterator[str]:
    if answer.refusal:
        yield from items("x", [f"{answer.refusal.cause} ({answer.refusal.hint})"])
    fit = answer.fit
    if not fit:
        return
    if fit.reason:
        yield from items("!" if fit.fits else "x", [fit.reason])
    on_each = " on each GPU" if fit.config.num_gpus > 1 else ""
    yield from pair_lines((
        ("weights", f"{format_bytes(fit.stage.weights.loaded_bytes)}{on_each}, {fit.config.weight_dtype}"),
        ("KV cache", f"{format_bytes(fit.kv_cache.mid)}, {fit.kv_cache_tokens:,} tokens, {fit.config.kv_cache_dtype}"),
        ("context", f"{fit.config.max_model_len:,} tokens, {fit.max_concurrency:.2f} requests of that length at once"),
        ("batch", f"{batch_in_words(fit.config)}{_engine(fit)}"),
    ))  # fmt: skip
    for option in fit.options:
        yield wrapped(f"{option.change}: {' '.join(option.flags)}", first="  would fit: ", rest="    ")


def _engine(fit: Fit) -> str:
    """The engine, for versions that have two."""
    return f", {fit.config.engine} engine" if has_both_engines(fit.config.version) else ""


def _load_lines(way: Way, *, brief: bool, with_command: bool = True) -> Iterator[str]:
    """The speed of the line beside that of better plans, their changes and commands; ``brief``: of the best."""
    record, shown = way.record, way.better[:1] if brief else way.better
    rows = replace(way, better=shown).rows()
    if record.workload:
        yield wrapped(f"{_load_words(record.workload)}:")
    if rows:
        yield table_text(rows, BRIEF if brief else COLUMNS)
    if not shown:
        yield f"no plan is better for {record.goal} on these GPUs" if rows else "no plan fits on this GPU"
    for plan, row in zip(shown, rows[len(rows) - len(shown) :], strict=True):
        changes = [f"{name}: {own} -> {other}" for name, (own, other) in record.changes(plan).items()]
        if brief:
            yield from items("-", [f"the goal {record.goal} is better served with {listed(changes, BRIEF_CHANGES)}"])
        else:
            yield f"\n{row['what']}:"
            yield from (f"  {change}" for change in changes)
        if with_command:
            yield from command_lines(plan.env, plan.command)


def _load_words(load: Load) -> str:
    requests = f"{load.num_prompts:,} requests of {load.input_len:,} + {load.output_len:,} tokens"
    varied = f", varied by {load.range_ratio:.0%}" if load.range_ratio else ""
    shared = f", after {load.prefix_len:,} shared tokens" if load.prefix_len else ""
    rate = f", {load.request_rate:g} per second" if isfinite(load.request_rate) else ""
    most = f"{load.max_concurrency:,}" if load.max_concurrency else "all"
    limit = "" if rate and not load.max_concurrency else f", {most} in flight"
    return f"{requests}{varied}{shared}{rate}{limit}"


def _calibration(answer: LineVerdict) -> str | None:
    """The fits behind the prediction; None without one."""
    if answer.offline and answer.fit:
        return answer.fit.deployment.calibrated_by
    return answer.served.deployment.calibrated_by if answer.served else None


def _about_drafts(answer: LineVerdict) -> Iterator[str]:
    drafts = answer.line.args.speculative_config
    if drafts and not drafts.acceptance_rates:
        yield "memory includes speculative decoding, speed does not: no acceptance rates are given"


def _about_engine(answer: LineVerdict) -> Iterator[str]:
    if answer.served:
        engine = answer.served.deployment
        yield from filter(None, (engine.network_remark, engine.unused_host_remark))


def _notes(answer: LineVerdict) -> Iterator[str]:
    if used := _calibration(answer):
        yield f"calibration: {used}"
    yield from answer.serving.resolved.notes
    if answer.serving.version.note:
        yield answer.serving.version.note
    if answer.line.not_simulated:
        yield f"not simulated: {', '.join(answer.line.not_simulated)}"
    yield from _about_drafts(answer)
    yield from _about_engine(answer)
    if answer.fit:
        if answer.fit.config.defaults_taken:
            yield f"defaults: {', '.join(answer.fit.config.defaults_taken)}"
        yield from answer.fit.notes
