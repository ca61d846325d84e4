"""``planner check`` in words and rows."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from planner.engine import FlagProblem, has_both_engines
from planner.output.render import Column, command_lines, pair_lines, table_text, wrapped
from planner.output.result import Result
from planner.output.tables.shared import MORE, items, listed
from planner.planning import Fit, LineVerdict, PlannedWorkload, Served, percent
from planner.units import format_bytes
from planner.workload import Workload

if TYPE_CHECKING:
    from planner.evidence import SeenServer

COLUMNS = (
    Column("what", ""),
    Column("gpus"),
    Column("output_throughput", "tok/s", ",.0f"),
    Column("output_throughput_per_gpu", "tok/s/gpu", ",.0f"),
    Column("mean_ttft_ms", "TTFT ms", ",.0f"),
    Column("mean_tpot_ms", "TPOT ms", ",.1f"),
    Column("mean_e2el_ms", "E2EL ms", ",.0f"),
)
#: On one screen.
BRIEF = tuple(replace(c, spare=c.key in ("output_throughput", "mean_e2el_ms")) for c in COLUMNS)


@dataclass(frozen=True, repr=False)
class CheckAnswer(Result):
    """Whether a ``vllm serve`` line starts, what it delivers, and what delivers more: ``planner check``."""

    verdict_first = True
    record: LineVerdict
    remarks: tuple[str, ...] = ()
    #: Where a script has several ways through it: the conditions of each, and what is said about it; else empty
    branches: tuple[tuple[tuple[str, ...], LineVerdict], ...] = ()
    seen: SeenServer | None = None  #: the running server whose load it is
    explain: bool = False

    @classmethod
    def of(cls, judged: Sequence[tuple[tuple[str, ...], LineVerdict]], remarks: tuple[str, ...] = ()) -> CheckAnswer:
        """The answer for each way through a script. Ways of which the same is said are one, under what they share;
        what all ways share does not tell them apart and is left out.
        """
        ways: dict[tuple[str, ...], tuple[tuple[str, ...], LineVerdict]] = {}
        for when, record in judged:
            said = (*_start(record), *_speed(record))
            shared, first = ways.get(said, (when, record))
            ways[said] = tuple(one for one in shared if one in when), first
        everywhere = [one for one in judged[0][0] if all(one in when for when, _ in ways.values())]
        branches = tuple(
            (tuple(one for one in when if one not in everywhere), record) for when, record in ways.values()
        )
        return cls(judged[0][1], remarks, branches if len(branches) > 1 else ())

    @property
    def ok(self) -> bool:
        """Whether it starts, in every branch."""
        return all(record.starts for _, record in self.branches or (((), self.record),))

    def _object(self) -> dict[str, Any]:
        branches = [{"when": list(when), **self._judged(record)} for when, record in self.branches]
        seen = {"server": _seen(self.seen)} if self.seen else {}
        return {**self._judged(self.record), "starts": self.ok, "branches": branches, **seen}

    def _judged(self, answer: LineVerdict) -> dict[str, Any]:
        load = answer.workload
        return {
            "starts": answer.starts,
            "model": {"requested": answer.resolved.requested, "resolved": answer.resolved.resolved},
            "gpu": answer.profile.id,
            "engine_version": str(answer.version),
            "calibration": _calibration(answer),
            "flags": [_problem(problem) for problem in answer.line.problems],
            "not_simulated": list(answer.line.not_simulated),
            "refusal": {"cause": answer.refusal.cause, "hint": answer.refusal.hint} if answer.refusal else None,
            "fit": answer.fit.to_json() if answer.fit else None,
            "settings": answer.settings,
            "load": PlannedWorkload.of(load).model_dump() if load else None,
            "command": answer.line.command,
            "delivers": _figures(answer.served) if answer.served else None,
            "offline": answer.offline.result if answer.offline else None,
            "goal": answer.goal,
            "better": [_plan(answer, plan) for plan in answer.better()],
            "notes": list(_notes(answer)),
        }

    def _rows(self) -> list[dict[str, Any]]:
        if self.branches:
            return [_row(_condition(when), record.served) for when, record in self.branches]
        measured = [{"what": "measured", **self.seen.measured}] if self.seen else []
        return [*measured, _row("this line", self.record.served), *_plan_rows(self.record)]

    def _columns(self) -> Sequence[Column]:
        return COLUMNS

    def _lines(self) -> Iterator[str]:
        before: list[str] = []
        for when, record in self.branches or (((), self.record),):
            start = list(_start(record))
            if start != before:  # an engine that several loads share is shown once
                if before:
                    yield ""
                if any(conditions for conditions, _ in self.branches):
                    yield wrapped(f"{_condition(when)}:")
                yield from start
                if _has_speed(record):
                    yield ""
            before = start
            yield from _speed(record)
        if self.seen:
            yield from _seen_lines(self.seen, self.record)

    def _brief_lines(self) -> Iterator[str]:
        """The verdict; of several ways through a script one line each, and the first that does not start whole."""
        ways = self.branches or (((), self.record),)
        starting = sum(record.starts for _, record in ways)
        _, shown = next((way for way in ways if not way[1].starts), ways[0])
        if len(ways) > 1:
            where = f"{starting} of {len(ways)} ways through the script start"
            yield wrapped(f"{shown.resolved.resolved} on {shown.profile.id}: {where}")
            for when, record in ways[:BRIEF_WAYS]:
                yield from items("-" if record.starts else "x", [f"{_condition(when)}: {_verdict(record)}"])
            if len(ways) > BRIEF_WAYS:
                yield f"  and {len(ways) - BRIEF_WAYS} more"
            yield ""
        yield wrapped(_headline(shown))
        for problem in sorted(shown.line.problems, key=lambda one: not one.fatal)[:BRIEF_PROBLEMS]:
            yield from items("x" if problem.fatal else "!", [str(problem)])
        if len(shown.line.problems) > BRIEF_PROBLEMS:
            yield f"  and {len(shown.line.problems) - BRIEF_PROBLEMS} more remarks on options"
        yield from list(_start_lines(shown))[:BRIEF_START]
        if _has_speed(shown):
            yield ""
            yield from _brief_speed(shown, len(ways))
        if self.seen:
            yield from _seen_lines(self.seen, self.record)

    def _brief_notes(self) -> Iterator[str]:
        line = self.record.line
        yield from _about_drafts(self.record)
        yield from _about_engine(self.record)
        fits = [f"calibration: {used}"] if (used := _calibration(self.record)) else []
        unknown = [f"not simulated: {', '.join(line.not_simulated)}"] if line.not_simulated else []
        yield "; ".join([*unknown, *fits, MORE])

    def _title(self) -> str:
        return _headline(self.record)

    def _notes(self) -> Iterator[str]:
        for _, record in self.branches or (((), self.record),):
            yield from _notes(record)


BRIEF_WAYS = 8
BRIEF_PROBLEMS = 3
BRIEF_START = 8
BRIEF_CHANGES = 8
_MOST_OF_A_CONDITION = 70  #: characters that are shown


def _seen(seen: SeenServer) -> dict[str, Any]:
    names = ("url", "version", "model", "max_model_len", "kv_cache_tokens", "in_flight", "input_len", "output_len",
             "window_s", "ended_in_window", "measured")  # fmt: skip
    return {name: getattr(seen, name) for name in names}


def _seen_lines(seen: SeenServer, record: LineVerdict) -> Iterator[str]:
    """What the server measured of itself beside what is predicted for the load that it has."""
    means = "of now" if seen.ended_in_window else "since it started: no request ended meanwhile"
    yield wrapped(f"\n{seen.url}, vLLM {seen.version}, watched for {seen.window_s:.1f} s; its means are {means}:")
    rows = [{"what": "measured", **seen.measured}, {**_row("predicted", record.served), "gpus": None}]
    yield table_text(rows, tuple(column for column in COLUMNS if column.key in ("what", *seen.measured)))


def _condition(when: Sequence[str]) -> str:
    """Which way through the script it is: what tells it from the others, each condition once and on one line."""
    short = []
    for condition in when:
        text = " ".join(condition.replace("\\\n", " ").split())
        text = text.removeprefix("not: ! ") if text.startswith("not: ! ") else text.replace("not: ", "not ", 1)
        short.append(text if len(text) <= _MOST_OF_A_CONDITION else f"{text[:_MOST_OF_A_CONDITION]} ...")
    return f"if {' and '.join(dict.fromkeys(short))}" if short else "otherwise"


def _problem(problem: FlagProblem) -> dict[str, Any]:
    return {"flag": problem.word, "cause": problem.cause, "hint": problem.hint, "fatal": problem.fatal}


def _figures(served: Served) -> dict[str, Any]:
    return {**served.result, "output_throughput_per_gpu": served.tok_per_s_per_gpu, "num_gpus": served.config.num_gpus}


def _plan(answer: LineVerdict, plan: Served) -> dict[str, Any]:
    return {
        "model": plan.model,
        "env": plan.env,
        "command": shlex.join(plan.command),
        "changes": {name: {"line": own, "plan": other} for name, (own, other) in answer.changes(plan).items()},
        "delivers": _figures(plan),
    }


def _row(what: str, served: Served | None) -> dict[str, Any]:
    if served is None:
        return {"what": what}
    figures = _figures(served)
    return {"what": what, "gpus": served.config.num_gpus, **{column.key: figures[column.key] for column in COLUMNS[2:]}}


def _plan_rows(answer: LineVerdict) -> Iterator[dict[str, Any]]:
    for plan in answer.better():
        yield _row(plan.model if plan.model != answer.resolved.resolved else "same model, other settings", plan)


def _headline(answer: LineVerdict) -> str:
    where = f"{answer.settings.get('tensor_parallel_size', 1)} x {answer.profile.id}"
    if answer.fit:
        where = f"{answer.fit.config.num_gpus} x {answer.profile.id}"
    return f"{answer.resolved.resolved} on {where}, vLLM {answer.version}: {_verdict(answer)}"


def _start(answer: LineVerdict) -> Iterator[str]:
    """What starts, or why it does not."""
    yield wrapped(_headline(answer))
    for problem in answer.line.problems:
        yield wrapped(str(problem), first="  x " if problem.fatal else "  ! ", rest="    ")
    yield from _start_lines(answer)


def _has_speed(answer: LineVerdict) -> bool:
    return answer.offline is not None or bool(not answer.line.is_offline and (answer.served or answer.workload))


def _speed(answer: LineVerdict) -> Iterator[str]:
    """What it delivers, and what delivers more."""
    if answer.offline:
        yield from _offline_lines(answer, answer.offline.result)
    elif _has_speed(answer):
        yield from _load_lines(answer)


def _offline_lines(answer: LineVerdict, result: Mapping[str, Any]) -> Iterator[str]:
    """What an offline benchmark would write, with its interval."""
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
        yield wrapped(f"{answer.refusal.cause} ({answer.refusal.hint})", first="  x ", rest="    ")
    fit = answer.fit
    if not fit:
        return
    if fit.reason:
        yield wrapped(fit.reason, first="  x " if not fit.fits else "  ! ", rest="    ")
    on_each = " on each GPU" if fit.config.num_gpus > 1 else ""
    yield from pair_lines((
        ("weights", f"{format_bytes(fit.stage.weights.loaded_bytes)}{on_each}, {fit.config.weight_dtype}"),
        ("KV cache", f"{format_bytes(fit.kv_cache.mid)}, {fit.kv_cache_tokens:,} tokens, {fit.config.kv_cache_dtype}"),
        ("context", f"{fit.config.max_model_len:,} tokens, {fit.max_concurrency:.2f} requests of that length at once"),
        ("batch", f"{fit.config.max_num_seqs:,} requests, {fit.config.max_num_batched_tokens:,} tokens{_engine(fit)}"),
    ))  # fmt: skip
    for option in fit.options:
        yield wrapped(f"{option.change}: {' '.join(option.flags)}", first="  would fit: ", rest="    ")


def _engine(fit: Fit) -> str:
    """The engine, for versions that have two."""
    return f", {fit.config.engine} engine" if has_both_engines(fit.config.version) else ""


def _load_lines(answer: LineVerdict) -> Iterator[str]:
    load = answer.workload
    plans = list(_plan_rows(answer))
    if load:
        yield f"{_load_words(load)}:"
    rows = [*([_row("this line", answer.served)] if answer.served else []), *plans]
    if rows:
        yield table_text(rows, COLUMNS)
    if not plans:
        yield f"no plan is better for {answer.goal} on these GPUs" if rows else "no plan fits on this GPU"
    for row, plan in zip(plans, answer.better(), strict=True):
        yield f"\n{row['what']}:"
        for name, (own, other) in answer.changes(plan).items():
            yield f"  {name}: {own} -> {other}"
        yield from command_lines(plan.env, plan.command)


def _brief_speed(answer: LineVerdict, ways: int) -> Iterator[str]:
    """What the line delivers, and the one plan that is best: what it changes, and its command."""
    if answer.offline:
        yield from _offline_lines(answer, answer.offline.result)
        return
    plans = list(_plan_rows(answer))[:1]
    rows = [*([_row("this line", answer.served)] if answer.served else []), *plans]
    if answer.workload:
        yield wrapped(f"{_load_words(answer.workload)}:")
    if rows:
        yield table_text(rows, BRIEF)
    if not plans:
        yield f"no plan is better for {answer.goal} on these GPUs" if rows else "no plan fits on this GPU"
        return
    plan = next(iter(answer.better()))
    changes = [f"{name}: {own} -> {other}" for name, (own, other) in answer.changes(plan).items()]
    yield from items("-", [f"the goal {answer.goal} is better served with {listed(changes, BRIEF_CHANGES)}"])
    if ways == 1:
        yield from command_lines(plan.env, plan.command)


def _load_words(load: Workload) -> str:
    requests = f"{load.num_prompts:,} requests of {load.input_len:,} + {load.output_len:,} tokens"
    varied = f", varied by {load.range_ratio:.0%}" if load.range_ratio else ""
    shared = f", after {load.prefix_len:,} shared tokens" if load.prefix_len else ""
    rate = f", {load.request_rate:g} per second" if isfinite(load.request_rate) else ""
    most = f"{load.max_concurrency:,}" if load.max_concurrency else "all"
    limit = "" if rate and not load.max_concurrency else f", {most} in flight"
    return f"{requests}{varied}{shared}{rate}{limit}"


def _calibration(answer: LineVerdict) -> str | None:
    """Which fits predicted; None where nothing was predicted."""
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
    yield from answer.resolved.notes
    if answer.version.note:
        yield answer.version.note
    if answer.line.not_simulated:
        yield f"not simulated: {', '.join(answer.line.not_simulated)}"
    yield from _about_drafts(answer)
    yield from _about_engine(answer)
    if answer.fit:
        if answer.fit.config.defaults_taken:
            yield f"defaults: {', '.join(answer.fit.config.defaults_taken)}"
        yield from answer.fit.notes
