"""The documents' numbers beside the predictions, and every difference of a workflow from its document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from planner.output.workflows.catalog import Workflow
from planner.output.workflows.differences import Difference, Rendered, differences
from planner.output.workflows.documents import Command, Document, other_words, scores
from planner.output.workflows.offline import OFFLINE_SCRIPTS, OfflinePoint, offline_points
from planner.output.workflows.subject import Subject

UNITS = {"avg_latency": "s", "duration": "s", "request_throughput": "req/s"}


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
    place: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over printed, minus one."""
        if not self.published or self.predicted is None:
            return None
        return self.predicted / self.published - 1

    @property
    def words(self) -> dict[str, str]:
        """The row of a table in words."""
        known = self.lo is not None and self.hi is not None
        around = f"{_text(self.lo)} to {_text(self.hi)}" if known else "–"
        error = f"{self.error:+.1%}" if self.error is not None else "–"
        figures = {
            "printed": _text(self.published),
            "predicted": _text(self.predicted),
            "interval": around,
            "error": error,
        }
        return {"run": self.run, "metric": self.metric, **figures, "unit": self.unit}


def figure_text(value: float) -> str:
    """A figure as the documents print theirs: counts whole, scores and short times to four places, the rest to two."""
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if value >= 1 else f"{value:.4f}".rstrip("0")


def _text(value: float | None) -> str:
    return "–" if value is None else figure_text(value)


def printed_beside(found: Subject) -> tuple[PrintedFigure, ...]:
    """Every figure that the document prints for this model and GPU, beside what is predicted for the same run."""
    return (*_served(found), *_measured(found), *_scored(found))


def caveats_of(found: Subject, figures: Iterable[PrintedFigure]) -> tuple[str, ...]:
    """What the documents whose commands are rendered say of the numbers in ``figures``, or that they print none."""
    measured = any(figure.published is not None and figure.predicted is not None for figure in figures)
    texts = (caveat for document in _sources(found) if document.measures == measured for caveat in document.caveats)
    return tuple(dict.fromkeys(texts))


def _sources(found: Subject) -> tuple[Document, ...]:
    """The documents whose commands are rendered; all of the workflow where it has no command."""
    workflow = found.workflow
    own = {c.document.id for c in (found.printed, found.client) if c}
    if found.documented:
        points = workflow.points(found.version, found.profile, found.resolved.resolved)
        own |= {point.command.document.id for point in points}
    if "mad" in own:  # the script that this document runs
        own |= {document.id for document in workflow.documents}
    return tuple(d for d in workflow.documents if not own or d.id in own)


def table_of(found: Subject) -> tuple[Difference, ...]:
    """Every difference of the workflow's scripts from the document, each word once for a script."""
    if not found.documented:
        return ()
    rows: dict[tuple[str, str, str], Difference] = {}
    for one in (*_commands(found), *_other_words(found)):
        rows.setdefault((one.script, one.word, one.why), one)
    written = [one for one in rows.values() if one.printed]
    return (*written, *_together([one for one in rows.values() if not one.printed]))


def _together(added: list[Difference]) -> Iterator[Difference]:
    """Words that the document does not have, those of one script and one reason in one row."""
    groups: dict[tuple[str, str], list[Difference]] = {}
    for one in added:
        groups.setdefault((one.script, one.why), []).append(one)
    for (script, why), ones in groups.items():
        words = ", ".join(one.now for one in ones)
        yield Difference(script, words, "", words, why)


def _commands(found: Subject) -> Iterator[Difference]:
    """Of the server, its client, and every offline measurement."""
    plan, asked = found.plan, found.choice.asked
    if found.printed:
        yield from _compare(found, found.printed, Rendered("launch.sh", plan.serve_argv, plan.env), asked)
    if found.client:
        inherited = {name: value for name, value in plan.env.items() if name in found.client.env}  # by docker exec
        yield from _compare(found, found.client, Rendered("benchmark.sh", plan.bench_argv, inherited), asked)
    for script, point in _points(found):
        yield from _compare(found, point.printed, Rendered(script, point.argv, point.env), asked)


def _compare(found: Subject, command: Command, rendered: Rendered, asked: frozenset[str]) -> Iterator[Difference]:
    original = next((c for c in _printed_of(found.workflow) if c.id == command.id), command)
    changed = {flag for row in found.workflow.rows for flag in row} | set(found.workflow.changes)
    compared = command if not changed else original
    platform = found.profile.platform
    for one in differences(
        compared, rendered, found.version, platform=platform, workflow=found.workflow.name, asked=asked
    ):
        if not one.why and one.word in changed:
            yield replace(one, why="the document leaves it open, or does not say it for this: chosen")
        elif not one.why and one.word in ("--model", "model") and one.here in found.workflow.models:
            yield replace(one, why="another model of the document, whose command names one")
        else:
            yield one


def _printed_of(workflow: Workflow) -> tuple[Command, ...]:
    return (*workflow.serve, *workflow.client, *workflow.offline)


def _points(found: Subject) -> Iterator[tuple[str, OfflinePoint]]:
    for script in found.workflow.scripts:
        if script in OFFLINE_SCRIPTS:
            bench = "throughput" if script == "throughput.sh" else "latency"
            yield from ((script, point) for point in offline_points(found, bench))
        elif script == "mad.sh":
            yield from ((script, point) for point in offline_points(found))


def _other_words(found: Subject) -> Iterator[Difference]:
    """Of docker, git, lm_eval and the like: one row for words with the same reason."""
    built = found.build is not None and found.build.commit
    scripts = {*found.workflow.scripts, "launch.sh", *(("accuracy.sh",) if found.workflow.accuracy else ())}
    scripts |= {"partition.sh"} if found.profile.partition else set()
    scripts |= {"build_image.sh"} if built else set()
    ids = {document.id for document in _sources(found)}
    for entry in other_words():
        if found.plan.image in entry.words:
            continue  # chosen: the image is as printed
        script = next((name for name in entry.scripts if name in scripts), None)
        if script and ids & set(entry.documents):
            words = ", ".join(entry.words)
            yield Difference(script, words, words, entry.here.replace("{image}", found.plan.image), entry.why)


def _served(found: Subject) -> Iterator[PrintedFigure]:
    """The client's printed result beside the plan's prediction."""
    predicted: dict[str, Any] = found.plan.predicted
    for key, value in found.plan.published.items():
        ours, lo, hi = (predicted.get(name) for name in (key, f"{key}_lo", f"{key}_hi"))
        yield PrintedFigure("benchmark.sh", key, _unit(key), value, ours, lo, hi)


def _measured(found: Subject) -> Iterator[PrintedFigure]:
    """Offline points: printed where they are, and predicted."""
    for script, point in _points(found):
        key, result = point.metric, point.predicted
        value, lo, hi = (result.get(name) for name in (key, f"{key}_lo", f"{key}_hi"))
        yield PrintedFigure(f"{script} {point.name}", key, _unit(key), point.published, value, lo, hi)


def _scored(found: Subject) -> Iterator[PrintedFigure]:
    task = found.plan.accuracy_task
    for score in dict.fromkeys(str(s) for s in scores() if (s.model, s.task) == (found.plan.model, task)):
        value = next(s for s in scores() if str(s) == score)
        yield PrintedFigure("accuracy.sh", f"{task}, {value.filter}", f"± {value.stderr}", value.value)


def _unit(key: str) -> str:
    return UNITS.get(key, "ms" if key.endswith("_ms") else "tokens/s" if "throughput" in key or "per_s" in key else "")
