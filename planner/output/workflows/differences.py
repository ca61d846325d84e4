"""A workflow beside its document: printed figures with predictions, and each changed word with its reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from planner.engine import ServeLine, read_line
from planner.output.workflows.documents import Command, Document, entries, scores
from planner.output.workflows.offline import OFFLINE_SCRIPTS, OfflinePoint, offline_points
from planner.output.workflows.subject import Subject, subject

WRITTEN_OUT = "the default of this version, written out: what runs is what was predicted"
CHOSEN = "as asked for"
LEFT_OUT = "the document leaves it out for models in FP16"
_UNITS = {"avg_latency": "s", "duration": "s", "request_throughput": "req/s"}
#: One option under several names.
_SAME = {"--random-input-len": "--input-len", "--random-output-len": "--output-len"}


@dataclass(frozen=True, slots=True)
class PrintedFigure:
    """One printed figure beside its prediction; None: not printed, or not predicted."""

    run: str
    metric: str
    unit: str
    published: float | None
    predicted: float | None = None
    lo: float | None = None
    hi: float | None = None

    @property
    def error(self) -> float | None:
        return self.predicted / self.published - 1 if self.published and self.predicted is not None else None

    @property
    def words(self) -> dict[str, str]:
        own = {"run": self.run, "metric": self.metric, "unit": self.unit}
        own |= {"printed": _text(self.published), "predicted": _text(self.predicted)}
        known = self.lo is not None and self.hi is not None
        error = f"{self.error:+.1%}" if self.error is not None else "–"
        return {**own, "interval": f"{_text(self.lo)} to {_text(self.hi)}" if known else "–", "error": error}


def figure_text(value: float) -> str:
    """A figure as the documents print theirs: counts whole, scores and short times to four places, the rest to two."""
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if value >= 1 else f"{value:.4f}".rstrip("0")


def _text(value: float | None) -> str:
    return "–" if value is None else figure_text(value)


def printed_beside(job: Subject) -> tuple[PrintedFigure, ...]:
    """Every figure that the document prints for this model and GPU, beside the prediction of the same run.

    A served result is compared with the prediction for the version that its document measured, unless the caller chose
    a version.
    """
    run, served = "benchmark.sh", job
    if job.plan.published and job.printed and not job.choice.engine_version:
        version = job.printed.document.version
        if version.release != job.version.release:
            choice = replace(job.choice, engine_version=str(version), image=job.plan.image)
            run, served = f"benchmark.sh, vLLM {version}", subject(job.workflow, choice)
    figures = [
        PrintedFigure(run, key, _unit(key), value, *_interval(served.plan.predicted, key))
        for key, value in job.plan.published.items()
    ]
    for script, point in _points(job):
        key = point.metric
        interval = _interval(point.predicted, key)
        figures.append(PrintedFigure(f"{script} {point.name}", key, _unit(key), point.published, *interval))
    task = job.plan.accuracy_task
    printed = {str(one): one for one in scores() if (one.model, one.task) == (job.plan.model, task)}
    figures += [
        PrintedFigure("accuracy.sh", f"{task}, {one.filter}", f"± {one.stderr}", one.value) for one in printed.values()
    ]
    return tuple(figures)


def _interval(predicted: Mapping[str, Any], key: str) -> Iterator[float | None]:
    return (predicted.get(name) for name in (key, f"{key}_lo", f"{key}_hi"))


def _unit(key: str) -> str:
    return _UNITS.get(key, "ms" if key.endswith("_ms") else "tokens/s" if "throughput" in key or "per_s" in key else "")


def _points(job: Subject) -> Iterator[tuple[str, OfflinePoint]]:
    for script in job.workflow.scripts:
        if script in OFFLINE_SCRIPTS or script == "mad.sh":
            bench = "" if script == "mad.sh" else "throughput" if script == "throughput.sh" else "latency"
            yield from ((script, point) for point in offline_points(job, bench))


def caveats_of(job: Subject, figures: Iterable[PrintedFigure]) -> tuple[str, ...]:
    """Caveats of the rendered documents on the numbers in ``figures``, or that they print none."""
    measured = any(figure.published is not None and figure.predicted is not None for figure in figures)
    texts = (caveat for document in _sources(job) if document.measures == measured for caveat in document.caveats)
    return tuple(dict.fromkeys(texts))


def _sources(job: Subject) -> tuple[Document, ...]:
    """The documents whose commands are rendered; all of the workflow if it has no command."""
    workflow = job.workflow
    own = {c.document.id for c in (job.printed, job.client) if c}
    if job.documented:
        points = workflow.points(job.version, job.profile, job.resolved.resolved)
        own |= {point.command.document.id for point in points}
    if "mad" in own:  # the script that this document runs
        own |= {document.id for document in workflow.documents}
    return tuple(d for d in workflow.documents if not own or d.id in own)


# --- words


@dataclass(frozen=True, slots=True)
class Difference:
    """One word: as printed, as rendered (empty: not there), and why."""

    script: str
    word: str
    printed: str
    here: str
    why: str

    @property
    def was(self) -> str:
        return _together(self.word, self.printed)

    @property
    def now(self) -> str:
        return _together(self.word, self.here)


def _together(word: str, value: str) -> str:
    """``--flag value`` or ``NAME=value``; other words are their own value."""
    if value and value != word and re.fullmatch(r"[A-Z][A-Z0-9_]*|--?[a-z][\w-]*", word):
        return f"{word} {value}" if word.startswith("-") else f"{word}={value}"
    return value


def table_of(job: Subject) -> tuple[Difference, ...]:
    """Every difference of the workflow's scripts from the document, each word once for a script.

    Added words of one script with the same reason share a row.
    """
    if not job.documented:
        return ()
    rows: dict[tuple[str, str, str], Difference] = {}
    for one in (*_commands(job), *_other_words(job)):
        rows.setdefault((one.script, one.word, one.why), one)
    added: dict[tuple[str, str], list[str]] = {}
    for one in rows.values():
        if not one.printed:
            added.setdefault((one.script, one.why), []).append(one.now)
    together = [Difference(script, ", ".join(w), "", ", ".join(w), why) for (script, why), w in added.items()]
    return (*(one for one in rows.values() if one.printed), *together)


def _commands(job: Subject) -> Iterator[Difference]:
    plan = job.plan
    if job.printed:
        yield from _compare(job, job.printed, "launch.sh", plan.serve_argv, plan.env)
    if job.client:
        inherited = {name: value for name, value in plan.env.items() if name in job.client.env}  # by docker exec
        yield from _compare(job, job.client, "benchmark.sh", plan.bench_argv, inherited)
    for script, point in _points(job):
        if script != "mad.sh":  # AMD's own script runs as it is
            yield from _compare(job, point.printed, script, point.argv, point.env)


def _compare(
    job: Subject, command: Command, script: str, argv: Sequence[str], env: Mapping[str, str]
) -> Iterator[Difference]:
    """Words of a printed command that are missing or have another value here, then words that it does not have."""
    workflow, asked, platform = job.workflow, job.choice.asked, job.profile.platform
    changed = {flag for row in workflow.rows for flag in row} | set(workflow.changes)
    left_out = command.fp16_without if job.resolved.resolved in workflow.fp16 else ()
    if changed or left_out:  # by us, or by the document: its own command is the one to compare with
        printed = (*workflow.serve, *workflow.client, *workflow.offline)
        command = next((one for one in printed if one.id == command.id), command)
    problems = command.read(job.version, platform).problems
    refused = {one.word.split(" ")[0].split("=")[0]: str(one).partition(": ")[2] for one in problems}
    was = _words(command.read(platform=platform))
    here = _words(read_line(argv, job.version, env=env, platform=platform))
    for word in (*was, *(word for word in here if word not in was)):
        value, other = was.get(word), here.get(word)
        if value is not None and other is not None and _equal(value, other):
            continue
        why = _reason(word, other or "" if value is None else value, command, workflow.name, script)
        if word in left_out:
            why = LEFT_OUT
        elif word in asked:
            why = CHOSEN
        if value is None:
            yield Difference(script, word, "", other or word, why or WRITTEN_OUT)
            continue
        one = Difference(
            script, word, value or word, "" if other is None else other or word, why or refused.get(word, "")
        )
        if not one.why and word in changed:
            one = replace(one, why="the document leaves it open, or does not say it for this: chosen")
        elif not one.why and word in ("--model", "model") and one.here in workflow.models:
            one = replace(one, why="another model of the document, whose command names one")
        yield one


def _words(line: ServeLine) -> dict[str, str]:
    words = dict(line.env)
    if line.model and "--model" not in line.options:
        words["model"] = line.model
    return words | {_SAME.get(flag, flag): value for flag, value in line.options.items()}


def _equal(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return one.lower() == other.lower()


@lru_cache
def _reasons(word: str) -> tuple[dict[str, Any], ...]:
    return tuple(entry for entry in entries("reason") if entry["word"] == word)


def _reason(word: str, value: str, printed: Command, workflow: str, script: str) -> str:
    matching = [
        entry
        for entry in _reasons(word)
        if entry.get("value", value) == value
        and printed.document.id in entry.get("documents", (printed.document.id,))
        and entry.get("place", printed.place) == printed.place
        and entry.get("model", "") in " ".join(printed.argv)
        and entry.get("workflow", workflow) == workflow
        and script in entry.get("scripts", (script,))
    ]
    narrow = ("value", "documents", "place", "model", "workflow")
    most = max(matching, key=lambda entry: sum(name in entry for name in narrow), default=None)
    return str(most["why"]) if most else ""


def _other_words(job: Subject) -> Iterator[Difference]:
    """Words of docker, git, lm_eval and other programs: one row for words with the same reason."""
    scripts = {*job.workflow.scripts, "launch.sh"}
    scripts |= {"accuracy.sh"} if job.workflow.accuracy else set()
    scripts |= {"partition.sh"} if job.profile.partition else set()
    scripts |= {"build_image.sh"} if job.build is not None and job.build.commit else set()
    ids = {document.id for document in _sources(job)}
    for entry in entries("words"):
        if job.plan.image in entry["words"]:
            continue  # chosen: the image is as printed
        script = next((name for name in entry["scripts"] if name in scripts), None)
        if script and ids & set(entry["documents"]):
            words, here = ", ".join(entry["words"]), entry.get("here", "").replace("{image}", job.plan.image)
            yield Difference(script, words, words, here, entry["why"])
