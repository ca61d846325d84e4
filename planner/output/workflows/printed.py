"""A workflow beside its document: printed figures with predictions, and the options that were changed."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.engine import ServeLine, flag_status, read_line
from planner.output.render import columns_of
from planner.output.workflows.documents import Command, commands, scores
from planner.output.workflows.offline import OFFLINE_SCRIPTS, OfflinePoint, offline_points
from planner.output.workflows.subject import Subject

_OF_TOKENS = ("throughput", "per_s")
_UNITS = {"avg_latency": "s", "duration": "s", "request_throughput": "req/s"}
_SAME = {"--random-input-len": "--input-len", "--random-output-len": "--output-len"}  #: one option under several names


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


def figure_text(value: float) -> str:
    """A figure as the documents print theirs: counts whole, scores and short times to four places, the rest to two."""
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if value >= 1 else f"{value:.4f}".rstrip("0")


PRINTED = columns_of("printed", figure_text=figure_text)


def printed_beside(job: Subject) -> tuple[PrintedFigure, ...]:
    """Every figure that the document prints, beside the prediction for the version that was measured or chosen."""
    run, served = "benchmark.sh", job
    if job.plan.published and job.printed and not job.choice.engine_version:
        version = job.printed.document.version
        if version.release != job.version.release:
            choice = replace(job.choice, engine_version=str(version), image=job.plan.image)
            run, served = f"benchmark.sh, vLLM {version}", Subject(job.workflow, choice)
    rows = [(run, key, value, served.plan.predicted) for key, value in job.plan.published.items()]
    points = [(f"{script} {one.name}", one.metric, one.published, one.predicted) for script, one in _points(job)]
    figures = [
        PrintedFigure(name, key, _unit(key), value, *(predicted.get(f"{key}{end}") for end in ("", "_lo", "_hi")))
        for name, key, value, predicted in (*rows, *points)
    ]
    task = job.plan.accuracy_task
    for name, (value, stderr) in scores(job.plan.model, task).items():
        figures.append(PrintedFigure("accuracy.sh", f"{task}, {name}", f"± {stderr}", value))
    return tuple(figures)


def _unit(key: str) -> str:
    return _UNITS.get(key) or ("ms" if key.endswith("_ms") else "tokens/s" if key.endswith(_OF_TOKENS) else "")


def _points(job: Subject) -> Iterator[tuple[str, OfflinePoint]]:
    for script in job.workflow.scripts:
        if script in OFFLINE_SCRIPTS or script == "mad.sh":
            yield from ((script, point) for point in offline_points(job, script))


def caveats_of(job: Subject, figures: Iterable[PrintedFigure]) -> tuple[str, ...]:
    """Caveats of the documents on the numbers in ``figures``; or that they print none for this."""
    if any(figure.published is not None and figure.predicted is not None for figure in figures):
        return tuple(caveat for document in job.workflow.documents for caveat in document.caveats)
    return ("the document prints no performance numbers for this",) if job.documented else ()


def changed_options(job: Subject) -> tuple[dict[str, str], ...]:
    """Options of the document's commands that differ here, once for each script."""
    if not job.documented:
        return ()
    plan, rows = job.plan, list[dict[str, str]]()
    if job.printed:
        rows += _changed(job, commands()[job.printed.id], "launch.sh", plan.serve_argv, plan.env)
    if job.client:
        rows += _changed(job, commands()[job.client.id], "benchmark.sh", plan.bench_argv, plan.env)
    for script, point in _points(job):
        if script != "mad.sh":  # AMD's own script runs as it is
            rows += _changed(job, point.printed, script, point.argv, point.env)
    return tuple({(row["script"], row["word"]): row for row in reversed(rows)}.values())[::-1]


def _changed(
    job: Subject, command: Command, script: str, argv: Sequence[str], env: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    was = _words(command.read(platform=job.profile.platform))
    here = _words(read_line(argv, job.version, env=env, platform=job.profile.platform))
    for word, value in was.items():
        other = here.get(word)
        if "<" not in value and not (other is not None and _equal(value, other)):
            row = {"script": script, "word": word, "printed": value or word}
            successor = flag_status(job.version, word).replaced_by
            gone = f"replaced by {successor}" if successor in here else "left out"
            yield {**row, "here": gone if other is None else other or word}


def _words(line: ServeLine) -> dict[str, str]:
    words = dict(line.env)
    if line.model and "--model" not in line.options:
        words["model"] = line.model
    return words | {_SAME.get(flag, flag): value for flag, value in line.options.items()}


def _equal(one: str, other: str) -> bool:
    try:
        return one == other or bool(json.loads(one) == json.loads(other))
    except ValueError:
        return one.lower() == other.lower()
