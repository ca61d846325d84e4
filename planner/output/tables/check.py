"""``planner check`` in words and rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from planner import evidence
from planner.engine import Layout, has_both_engines, shell_word
from planner.errors import UnmodelledError
from planner.output.answer import Answer, fields_of
from planner.output.render import at, columns_of, pair_lines, rows_of, table_text, wrapped
from planner.output.tables import shared
from planner.output.tables.fit import fit_object
from planner.planning import Deployment, LineVerdict, PlannedWorkload, Served, cache_remark
from planner.units import counted, figure, format_bytes, percent, rounded

COLUMNS = columns_of("check")
BRIEF = tuple(replace(c, spare=c.key in ("output_throughput", "mean_e2el_ms")) for c in COLUMNS)  #: on one screen
BRIEF_PROBLEMS = 3
BRIEF_ITEMS = 8  #: launches, lines of memory, changes
NOTED_TTFT = 1.5  #: times the TTFT of the line from which a better plan says so


@dataclass(frozen=True)
class JudgedLaunch:
    """One engine that a script or a manifest starts, and better plans."""

    record: LineVerdict
    better: tuple[Served, ...]  #: plans that are worth a change, best first, replayed
    copies: tuple[int, Served] | None = None  #: smaller servers on the same GPUs, and one of them
    advice: tuple[str, ...] = ()  #: of documents, where the line differs
    nearest: tuple["evidence.Near", ...] = ()  #: published runs like it, with ``explain``

    @property
    def has_speed(self) -> bool:
        """True if there is a load, and so a speed."""
        record = self.record
        return record.offline is not None or bool(not record.line.is_offline and (record.served or record.workload))

    def rows(self, most: int | None = None) -> list[dict[str, Any]]:
        """The line, and ``most`` of the better plans, under its load."""
        line = self.record
        shown = [plan for plan in self.better[:most] if not line.served or plan is not line.mended]
        plans = [_row("same model, other settings" if p.model == line.model else p.model, line, p) for p in shown]
        return [*([_row(f"this line{_kernels(line)}", line, line.served)] if line.served else []), *plans]


@dataclass(frozen=True, repr=False)
class CheckAnswer(Answer):
    """A ``vllm serve`` line: whether it starts, its speed, and faster settings: ``planner check``."""

    verdict_first = True
    columns = COLUMNS
    launches: tuple[JudgedLaunch, ...]  #: the engines that the text starts, mostly one

    @classmethod
    def of(cls, judged: Sequence[LineVerdict], **shown: Any) -> "CheckAnswer":
        """The answer, its better plans replayed, launches with the same text once; ``shown`` are the other fields."""
        launches: dict[tuple[str, ...], JudgedLaunch] = {}
        for record in judged:
            launch = JudgedLaunch(record, tuple(record.better()), record.copies(), tuple(record.advice()))
            launches.setdefault((*_start(launch), *_speed(launch)), launch)
        distinct = list(launches.values())
        if shown.get("explain"):
            distinct = [replace(launch, nearest=tuple(_nearest(launch.record))) for launch in distinct]
        return cls(tuple(distinct), **shown)

    @property
    def record(self) -> LineVerdict:
        """The verdict; of several launches the first."""
        return self.launches[0].record

    @property
    def branches(self) -> tuple[LineVerdict, ...]:
        """The verdict on each launch where there are several; else empty."""
        return tuple(launch.record for launch in self.launches) if len(self.launches) > 1 else ()

    @property
    def ok(self) -> bool:
        """True if all launches start, so the command exits with 0."""
        return all(launch.record.starts for launch in self.launches)

    def _object(self) -> dict[str, Any]:
        branches = [{"when": [], **_judged(launch)} for launch in (self.launches if self.branches else ())]
        return {**_judged(self.launches[0]), "starts": self.ok, "branches": branches}

    def _records(self) -> list[dict[str, Any]]:
        if self.branches:
            return [_row(f"{one.line.command}{_kernels(one)}", one, one.served) for one in self.branches]
        unserved = [] if self.record.served else [_row("this line", self.record)]
        return [*unserved, *self.launches[0].rows()]

    def sentences(self) -> Iterator[str]:
        before: list[str] = []
        for launch in self.launches if self.explain else ():
            start = list(_start(launch))
            if start != before:  # an engine that several loads share is shown once
                yield from ([""] if before else [])
                yield from (*start, *([""] if launch.has_speed else []))
            before = start
            yield from _speed(launch)
            yield from shared.nearest_lines(launch.nearest)
        if not self.explain:
            yield from self._one_screen()

    def _one_screen(self) -> Iterator[str]:
        """The verdict; of several launches one line each, and the first that does not start whole."""
        starting = sum(launch.record.starts for launch in self.launches)
        shown = next((launch for launch in self.launches if not launch.record.starts), self.launches[0])
        if self.branches:
            gpu = shown.record.serving.profile.id
            yield wrapped(f"{shown.record.model} on {gpu}: {starting} of {len(self.launches)} launches start")
            for record in self.branches[:BRIEF_ITEMS]:
                yield from shared.items("-" if record.starts else "x", [f"{record.line.command}: {_verdict(record)}"])
            if len(self.launches) > BRIEF_ITEMS:
                yield f"  and {len(self.launches) - BRIEF_ITEMS} more"
            yield ""
        yield wrapped(_headline(shown.record))
        yield from _problem_lines(shown.record, BRIEF_PROBLEMS)
        yield from list(_memory_lines(shown.record))[:BRIEF_ITEMS]
        if shown.has_speed:
            yield ""
            yield from _speed(shown, brief=True, with_command=not self.branches)

    def _brief_notes(self) -> Iterator[str]:
        yield from _caveats(self.record)
        yield "; ".join([*_basis(self.record), shared.MORE])

    def _notes(self) -> Iterator[str]:
        for launch in self.launches:
            yield from _notes(launch.record)


def _nearest(record: LineVerdict) -> Iterator["evidence.Near"]:
    """Published runs like a launch under its load."""
    timed, bench = record.served or record.offline, record.offline.bench if record.offline else "serve"
    if timed and record.workload:
        local = record.serving.local
        yield from evidence.nearest_runs(timed.deployment, record.workload, timed.result, bench, local)


def _judged(launch: JudgedLaunch) -> dict[str, Any]:
    record = launch.record
    refusals = [fields_of(refusal, "cause", "hint") for refusal in record.refusals]
    return {
        "starts": record.starts,
        "model": fields_of(record.serving.resolved, "requested", "resolved"),
        **fields_of(record.serving, "gpu=profile.id", "engine_version=version"),
        **fields_of(_timed(record), *shared.EVIDENCE),
        "flags": [fields_of(problem, "flag=word", "cause", "hint", "fatal") for problem in record.line.problems],
        "not_simulated": list(record.line.not_simulated),
        "refusal": refusals[0] if refusals else None,
        "refusals": refusals,
        "fit": fit_object(record.fit) if record.fit else None,
        "settings": record.settings,
        "load": PlannedWorkload.of(record.workload).model_dump() if record.workload else None,
        "command": record.line.command,
        "delivers": _figures(record.served) if record.served else None,
        "offline": record.offline.result if record.offline else None,
        "goal": record.goal,
        "better": [_plan(record, plan) for plan in launch.better],
        "copies": {"servers": launch.copies[0], **_plan(record, launch.copies[1])} if launch.copies else None,
        "advice": list(launch.advice),
        "notes": list(_notes(record)),
        **({"nearest_runs": rows_of(launch.nearest, shared.NEAREST)} if launch.nearest else {}),
    }


def _plan(record: LineVerdict, plan: Served) -> dict[str, Any]:
    return {
        **fields_of(plan, "model", "env", "from_recipe"),
        "command": " ".join(map(shell_word, plan.command)),
        "changes": {name: {"line": line, "plan": other} for name, (line, other) in record.changes(plan).items()},
        "delivers": _figures(plan),
    }


def _figures(served: Served) -> dict[str, Any]:
    per_gpu = served.prediction.rates["output_throughput_per_gpu"]
    return {**served.result, "output_throughput_per_gpu": per_gpu, "num_gpus": served.config.num_gpus}


def _row(what: str, line: LineVerdict, served: Served | None = None) -> dict[str, Any]:
    known = {"what": what, **fields_of(line.serving, "gpu=profile.id", "engine_version=version")}
    known |= {"model": served.model if served else line.model, "config": at(served or line.fit, "config")}
    return known | (_figures(served) if served else {})


def _headline(record: LineVerdict) -> str:
    size = record.fit.config.num_gpus if record.fit else Layout.of(record.line.args).num_gpus
    where = shared.gpus_on_nodes(size, record.serving.profile)
    return f"{record.model} on {where}, vLLM {record.serving.version}: {_verdict(record)}"


def _start(launch: JudgedLaunch) -> Iterator[str]:
    record = launch.record
    yield from (wrapped(_headline(record)), *_problem_lines(record), *_memory_lines(record))


def _problem_lines(record: LineVerdict, most: int | None = None) -> Iterator[str]:
    refused = tuple(refusal.cause for refusal in record.refusals)  # of a value, which they explain
    problems = [one for one in record.line.problems if not any(cause.startswith(one.word) for cause in refused)]
    problems = sorted(problems, key=lambda one: not one.fatal)
    for problem in problems[:most]:
        yield from shared.items("x" if problem.fatal else "!", [str(problem)])
    if more := len(problems[most:]) if most else 0:
        yield f"  and {counted(more, 'more remark')} on options"


def _speed(launch: JudgedLaunch, *, brief: bool = False, with_command: bool = True) -> Iterator[str]:
    if launch.record.offline:
        load, result = launch.record.workload, launch.record.offline.result
        key, unit = ("avg_latency", "s") if "avg_latency" in result else ("tokens_per_second", "tokens/s, in and out")
        rate = shared.figure_between(result[key], result.get(f"{key}_lo"), result.get(f"{key}_hi"), unit)
        yield wrapped(f"{f'{shared.sent_words(load)}, ' if load else ''}offline: {rate}{_kernels(launch.record)}")
    elif launch.has_speed:
        yield from _load_lines(launch, brief=brief, with_command=with_command)
    yield from shared.items("i", launch.advice)


def _verdict(record: LineVerdict) -> str:
    if record.refusals:
        unknown = all(isinstance(refusal, UnmodelledError) for refusal in record.refusals)
        return "planner cannot tell: it does not model these settings" if unknown else "vLLM refuses these settings"
    fit = record.fit
    if fit is None:
        words = "may not start"
    elif fit.verdict == "too close to call":
        words = f"starts with {percent(fit.deployment.probability_fits)} probability"
    else:
        words = "starts" if fit.fits else "does not fit"
    fatal = [problem for problem in record.line.problems if problem.fatal]
    who = "vLLM refuses" if any(problem.modelled for problem in fatal) else "planner does not model"
    several = f"{len(fatal)} options; without them" if len(fatal) > 1 else "an option; without it"
    return f"{who} {several}: {words}" if fatal else words


def _memory_lines(record: LineVerdict) -> Iterator[str]:
    yield from shared.items("x", [f"{refusal.cause} ({refusal.hint})" for refusal in record.refusals])
    if not (fit := record.fit):
        return
    if fit.reason:
        yield from shared.items("!" if fit.fits else "x", [fit.reason])
    engine = f", {fit.config.engine} engine" if has_both_engines(fit.config.version) else ""
    on_each = " on each GPU" if fit.config.num_gpus > 1 else ""
    given = " (before --num-gpu-blocks-override)" if "--num-gpu-blocks-override" in record.line.others else ""
    cache = f"{rounded(fit.kv_cache_tokens)} tokens, {fit.config.kv_cache_dtype}{given}"
    short, held = fit.kv_cache.mid < 0, f", {fit.max_concurrency:.2f} requests of that length at once"
    if fit.budget.any_length:
        held = " ({:,} to {:,} as the memory turns out)".format(*fit.budget.length_ends)
    left = f"nothing: {format_bytes(-fit.kv_cache.mid)} too little" if short else format_bytes(fit.kv_cache.mid)
    yield from pair_lines((
        ("weights", f"{format_bytes(fit.stage.weights.weight_bytes)}{on_each}, {fit.config.weight_dtype}"),
        ("KV cache", left if short else f"{left}, {cache}"),
        ("context", f"{fit.config.max_model_len:,} tokens{'' if short else held}"),
        ("batch", f"{shared.batch_in_words(fit.config)}{engine}"),
    ))  # fmt: skip
    for option in fit.options:
        yield wrapped(str(option), first="  would fit: ", rest="    ")


def _load_lines(launch: JudgedLaunch, *, brief: bool, with_command: bool) -> Iterator[str]:
    record = launch.record
    most = 1 + bool(record.served and record.mended) if brief else None
    rows, shown = launch.rows(most), launch.better[:most]
    if record.workload:
        yield wrapped(f"{shared.sent_words(record.workload)}:")
    if rows:
        yield table_text(rows, BRIEF if brief else COLUMNS)
    if launch.copies:
        servers, one = launch.copies
        rate, tpot_ms = one.result["output_throughput"] * servers, one.result["mean_tpot_ms"]
        layout = shared.layout_in_words(one.config)
        behind = f"{servers} servers of {layout} on the same GPUs, behind a router"
        yield from shared.items("-", [f"{behind}: {rate:,.0f} tok/s in all, TPOT {tpot_ms:.1f} ms{_kernels(record)}"])
    elif not shown:
        none = "no plan fits on these GPUs" + " but with a change named above" * bool(record.fit and record.fit.options)
        yield f"no settings are better for --goal {record.goal} on these GPUs" if rows else none
    for plan, row in zip(shown, rows[len(rows) - len(shown) :], strict=True):
        changes = [
            f"{name}: {' -> '.join('default' if one is None else str(one) for one in pair)}"
            for name, pair in record.changes(plan).items()
        ]
        if brief:
            what = f"better for --goal {record.goal}{_slower_start(record, plan)}" if record.served else "starts with"
            yield from shared.items("-", [f"{what}: {shared.listed(changes, BRIEF_ITEMS)}"])
        else:
            yield from (f"\n{row['what']}:", *(f"  {change}" for change in changes))
        if plan.deployment.verdict != "fits":
            yield from shared.items("!", [f"starts with {percent(plan.deployment.probability_fits)} probability"])
        if (added := plan.from_recipe) and not (brief and plan is record.mended):
            words = shared.listed(added, BRIEF_ITEMS if brief else len(added))
            yield from shared.items("-", [f"adds from the recipe: {words}"])
        if with_command:
            yield from shared.launch_lines(plan.env, plan.command, shell_word)


def _slower_start(record: LineVerdict, plan: Served) -> str:
    """Warning that first tokens come later than by the line, and how many requests wait for a place; or empty."""
    old, new = (one.result["mean_ttft_ms"] / 1e3 if one else inf for one in (record.served, plan))
    if new <= NOTED_TTFT * old or not (load := record.workload):
        return ""
    waiting = (load.max_concurrency or 0) - plan.config.max_num_seqs * plan.config.data_parallel_size
    why = f" ({waiting:,} requests wait for a place)" if waiting > 0 else ""
    return f", with TTFT {figure(new)} s, not {figure(old)} s{why}"


def _kernels(record: LineVerdict) -> str:
    """Mark of figures that are those with kernels of AMD, which the line lacks; empty for others."""
    return f", with {record.assumed_kernels}" if record.assumed_kernels else ""


def _timed(record: LineVerdict) -> Deployment | None:
    """The engine whose figures are shown; None without figures."""
    timed = record.fit if record.offline and record.fit else record.served
    return timed.deployment if timed else None


def _basis(record: LineVerdict) -> Iterator[str]:
    if engine := _timed(record):
        yield from shared.calibration_note([engine])
    if record.line.not_simulated:
        yield f"not simulated: {', '.join(record.line.not_simulated)}"


def _caveats(record: LineVerdict) -> Iterator[str]:
    yield from (*filter(None, [record.serving.version.note]), *record.serving.resolved.notes)
    drafts = record.line.args.speculative_config
    if drafts and record.fit and not drafts.acceptance_rates:
        one = record.served or next(record.better(), None)
        timed = one and one.config.speculative_config
        accepted = timed and f"with {timed.words}, accepting {timed.accepted_words}"
        yield accepted or "memory includes speculative decoding, speed does not: no acceptance rates are given"
    if record.served:
        yield from shared.engine_remarks(record.served.deployment)
        yield from filter(None, [cache_remark(record.served.prediction)])


def _notes(record: LineVerdict) -> Iterator[str]:
    yield from (*_basis(record), *_caveats(record))
    if record.fit:
        if record.fit.config.defaults_taken:
            yield f"defaults: {', '.join(record.fit.config.defaults_taken)}"
        yield from record.fit.notes
