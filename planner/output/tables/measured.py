"""Predictions beside measurements: ``evaluate``, ``calibrate``, ``validate`` and ``tune``."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from math import exp, log
from pathlib import Path
from typing import Any

from planner import evidence
from planner.errors import InputError
from planner.evidence import summary
from planner.output.answer import Answer, fields_of, to_plain
from planner.output.charts import MARKERS, Chart, LinePanel, Mark, Series, svg
from planner.output.render import NAMES, Column, columns_of, known_table, table_text, wrapped
from planner.output.tables.shared import grouped, listed
from planner.output.tuning import Tuner
from planner.planning import SURE, WITHIN, broken_words
from planner.units import counted, percent
from planner.workload import METRICS, targets_in_words

FITS = ("before", "after", "left_out")
FACTORS = columns_of(
    "calibration_factors",
    meaning=evidence.MEANINGS.__getitem__,
    when=lambda factor: " ".join(filter(None, dict(factor.when).values())),
)
ERRORS = columns_of("calibration_errors")


@dataclass(frozen=True, repr=False)
class CalibrationAnswer(Answer):
    """Factors learnt from a user's own runs, and the errors with them: ``planner calibrate``. Rows are factors."""

    columns, records = FACTORS, "record.factors"
    record: evidence.CalibrationOutcome

    @property
    def ok(self) -> bool:
        """True if predictions are better with the calibration, which is then kept."""
        return self.record.kept

    def _object(self) -> dict[str, Any]:
        outcome = self.record
        fits = {name: runs for name in FITS if (runs := getattr(outcome, name))}
        errors = {name: evidence.mean_error(runs) for name, runs in fits.items()}
        widths = {name: evidence.mean_width(runs) for name, runs in fits.items()}
        return {
            **fields_of(outcome, "kept", "reason", "calibration=path", "base"),
            "runs": len(outcome.runs),
            "new_runs": outcome.new_runs,
            "factors": [row | {"when": dict(one.when)} for row, one in zip(self.rows(), outcome.factors, strict=True)],
            "metrics": list(_metrics(outcome)),
            "error": fields_of(errors, *FITS),
            "width": fields_of(widths, *FITS),
            "memory": list(dict.fromkeys(fit.name for fit in outcome.memory)),
            "refused": [{"run_id": run.run_id, "reason": why} for run, why in outcome.refused],
            "notes": list(outcome.notes),
        }

    def sentences(self) -> Iterator[str]:
        outcome = self.record
        yield f"{table_text(outcome.factors, FACTORS)}\n\n{table_text(_metrics(outcome), ERRORS)}\n"
        if outcome.reason:
            yield wrapped(f"not kept: {outcome.reason}")
            return
        fits = ((name.replace("_", " "), runs) for name in FITS if (runs := getattr(outcome, name)))
        errors = ", ".join(f"{evidence.mean_error(runs):.1%} {name}" for name, runs in fits)
        before, after = evidence.mean_width(outcome.before), evidence.mean_width(outcome.after)
        learned = f"error {errors}; 90 % intervals a factor of {before:.2f} wide before, {after:.2f} after"
        yield wrapped(f"kept in {outcome.path}: {counted(len(outcome.runs), 'run')}, {learned}")

    def _notes(self) -> Iterator[str]:
        outcome = self.record
        yield f"the factors multiply the shipped efficiencies, which are fitted on {outcome.base}"
        if outcome.memory and outcome.kept:
            names = ", ".join(dict.fromkeys(fit.name for fit in outcome.memory))
            yield f"memory overheads learned from the server's start-up: {names}"
        for run, why in outcome.refused:
            yield f"{run.run_id} is left out: {why}"
        yield from outcome.notes


def _metrics(outcome: evidence.CalibrationOutcome) -> Iterator[dict[str, Any]]:
    for metric in outcome.metrics:
        figures = {name: evidence.figures_of(getattr(outcome, name), metric) for name in FITS}
        errors = {
            name: fields_of(evidence.statistics(values), "median_ape", "within_20", "bias") if values else None
            for name, values in figures.items()
        }
        yield {"metric": metric, "n": len(figures["after"]), **errors}


#: A metric, its published figure, and the line.
LINES = columns_of("validation", digits=lambda value: f"{value:,.{0 if abs(value) >= 10_000 else 2}f}")
TARGETS = ("metric=slo.key", "of_class=slo.group", "limit_ms=slo.limit_ms", "predicted_ms", "measured_ms", "verdict")
OFFLINE = tuple(replace(column, of=column.key) for column in LINES if column.key != "basis")


@dataclass(frozen=True, repr=False)
class ValidationAnswer(Answer):
    """A plan's prediction beside its measurements, likeliest causes, and what to try next: ``planner validate``."""

    columns = LINES
    record: evidence.Validation

    @property
    def ok(self) -> bool:
        """True if the plan itself was measured, inside every interval, and meets its targets."""
        met = all(target.verdict != "missed" for target in self.record.targets)
        return self.record.inside and self.record.as_planned and met

    def _object(self) -> dict[str, Any]:
        record, names = self.record, ("gpu", "num_gpus", "model", "engine_version", "calibration")
        plan = ("measured.plan.digest", "goal=measured.file.goal", *(f"measured.plan.{name}" for name in names))
        keys = [column.key for column in LINES if column.key != "published"]
        published = record.measured.plan.published
        return {
            **fields_of(record, "inside", "as_planned", *plan),
            "result": f"results/{record.measured.result_name}",
            "lines": [fields_of(line, *keys) | {"published": published.get(line.metric)} for line in record.lines],
            "targets": [fields_of(one, *TARGETS) for one in record.targets],
            "findings": [fields_of(one, "cause", "evidence", "next_step") for one in record.findings],
            "accuracy": to_plain(record.measured.accuracy),
            "further": [
                {
                    "load": one.load,
                    "result": f"results/{one.result_name}",
                    "lines": [fields_of(x, *keys) for x in one.lines],
                }
                for one in record.further
            ],
            "notes": record.notes,
        }

    def _records(self) -> Iterator[tuple[str, float | None, evidence.ComparedLine]]:
        for line in self.record.lines:
            yield line.metric, self.record.measured.plan.published.get(line.metric), line
        for one in self.record.further:
            yield from ((f"{one.load} {line.metric}", None, line) for line in one.lines)

    def sentences(self) -> Iterator[str]:
        record, plan = self.record, self.record.measured.plan
        shown = LINES if plan.published else [column for column in LINES if column.key != "published"]
        yield f"{table_text(self._records(), shown)}\n"
        outside = sum(not line.is_inside for line in record.every_line)
        verdict = "inside" if record.inside else f"outside: {outside} of {len(record.every_line)} lines"
        verdict += "" if record.as_planned else ", but this is not the plan" if record.inside else ", not the plan"
        where = f"{plan.num_gpus} x {plan.gpu}, vLLM {plan.engine_version}, plan {plan.digest}"
        yield wrapped(f"{plan.model} on {where}, calibration: {plan.calibration}: {verdict}")
        yield from map(str, record.targets)
        first, others = ("mind: ", "and: ") if record.inside else ("likeliest cause: ", "or: ")
        for place, finding in enumerate(record.findings):
            mark = "not the plan: " if finding.not_the_plan else others if place else first
            yield wrapped(finding.cause, first=mark, rest="  ")
            yield wrapped(finding.evidence, first="  because ", rest="    ")
            yield wrapped(finding.next_step, first="  next: ", rest="    ")
        for accuracy in record.measured.accuracy:
            spread = f" ± {accuracy.stderr:.4f}" if accuracy.stderr is not None else ""
            yield f"accuracy {accuracy.task}, {accuracy.metric}: {accuracy.value:.4f}{spread} (not predicted)"

    def _notes(self) -> Iterable[str]:
        return self.record.notes


@dataclass(frozen=True, repr=False)
class OfflineValidation(Answer):
    """Offline measurements of a workflow's folder, each beside the published and the predicted figure."""

    columns, records = OFFLINE, "lines"
    keys = ("inside=ok", "lines")
    lines: tuple[dict[str, Any], ...]

    @property
    def ok(self) -> bool:
        """True if every measurement that has a prediction lies within its interval."""
        return all(line["verdict"] in ("inside", "not predicted") for line in self.lines)


def validate_offline(directory: Path) -> OfflineValidation | None:
    """Measurements of a folder's offline scripts; None without one. Raises InputError for a broken file."""
    table, results = directory / "points.json", directory / "results"
    if not table.is_file() or any(results.glob("serve-*.json")):
        return None
    lines = tuple(starmap(_measured, evidence.read_offline(directory)))
    return OfflineValidation(lines) if lines else None


def _measured(point: evidence.PlannedPoint, measured: float) -> dict[str, Any]:
    low, high, predicted = point.lo, point.hi, point.predicted
    outside = low is not None and high is not None and not low <= measured <= high
    slower = (measured > (high or 0)) is (point.key == "avg_latency")
    return {
        "metric": f"{point.name} {point.key}",
        "unit": "s" if point.key == "avg_latency" else "tokens/s",
        **fields_of(point, "published", "predicted", "lo", "hi"),
        "measured": measured,
        **dict.fromkeys(("error", "error_vs_predicted"), measured / predicted - 1 if predicted else None),
        "verdict": ("slower" if slower else "faster") if outside else "inside" if predicted else "not predicted",
    }


SETTINGS = columns_of("tuning")
LEAST_GAIN = 0.0005  #: that is shown: less is 0.0 %


@dataclass(frozen=True, repr=False)
class TuningAnswer(Answer):
    """Every setting with its measurement, and the best measured one: ``planner tune``."""

    columns = SETTINGS
    tuner: Tuner
    learnt: evidence.CalibrationOutcome | None = None  #: None: the runs teach nothing, ``remarks`` say why

    @property
    def ok(self) -> bool:
        """True if the best setting is known, to 3 % and with 95 % probability."""
        standing = self.tuner.state.standing
        return standing.best is not None and standing.known >= SURE

    @property
    def best(self) -> str | None:
        """The folder of the best measured plan; None where none was measured."""
        number = self.tuner.state.standing.best
        return None if number is None else str(self.tuner.folder(number))

    def _object(self) -> dict[str, Any]:
        state = self.tuner.state
        return {
            **fields_of(self, "best", "probability_best=tuner.state.standing.known"),
            "within": WITHIN,
            "targets": [fields_of(one, "metric", "limit_ms") for one in state.targets],
            "runs": len(state.tried),
            "minutes": sum(run.seconds for run in state.runs) / 60,
            "calibration": str(self.learnt.path) if self.learnt and self.learnt.kept else None,
            "settings": self._records(),
        }

    def _records(self) -> list[dict[str, Any]]:
        state, standing = self.tuner.state, self.tuner.state.standing
        best = state.measured[standing.best] if standing.best is not None else 0.0
        missed = {number: broken_words(state.targets, margins) for number, margins in state.margins.items()}
        order = sorted(state.measured, key=lambda number: (bool(missed.get(number)), -state.measured[number]))
        order += sorted(standing.gains, key=lambda number: -standing.gains[number])
        return [self._row(number, best, missed.get(number, "")) for number in (*order, *state.out)]

    def _row(self, number: int, best: float, missed: str) -> dict[str, Any]:
        tuner, state = self.tuner, self.tuner.state
        plan, result = tuner.plan(number), tuner.result(number) if number in state.measured else {}
        return {
            "setting": tuner.words(number),
            "predicted_tok_per_s_per_gpu": plan.predicted["output_throughput"] / plan.num_gpus,
            "output_throughput_per_gpu": result["output_throughput"] / plan.num_gpus if result else None,
            "mean_e2el_ms": result.get("mean_e2el_ms"),
            "behind": 1 - exp(state.measured[number] - best) if result and not missed else None,
            "gain": state.standing.gains.get(number),
            "reason": state.out.get(number, "") or missed,
            "folder": str(tuner.folder(number)),
        }

    def sentences(self) -> Iterator[str]:
        rows = self._records()
        shown = [row for row in rows if row["gain"] is None or row["gain"] >= LEAST_GAIN]
        yield known_table(shown, SETTINGS)
        if left := len(rows) - len(shown):
            yield f"and {counted(left, 'setting')} that may gain less than 0.1%"
        state = self.tuner.state
        runs, sure = counted(len(state.tried), "run"), f"with {percent(state.standing.known)} probability"
        if state.standing.best is not None:
            best = self.tuner.words(state.standing.best)
            verdict = f"best after {runs}: {best}; no other setting is better by more than {WITHIN:.0%}, {sure}"
        elif state.measured:
            targets = targets_in_words([one.slo for one in state.targets])
            verdict = f"no measured setting meets {targets} after {runs}; no other does, {sure}"
        else:
            verdict = f"nothing was measured in {runs}"
        yield wrapped(f"\n{verdict}")
        if self.best:
            yield f"the plan: {self.best}"
        if self.learnt and self.learnt.kept:
            yield f"learnt:   {self.learnt.path} (planner ... --calibration FILE)"

    def _notes(self) -> Iterable[str]:
        if not self.ok:
            yield "the best is not known yet: a larger --runs or --minutes goes on from here"
        if self.learnt and not self.learnt.kept:
            yield f"the calibration is not kept: {self.learnt.reason}"


WORST = 3  #: figures that the verdict of an evaluation names
RUN = ("run_id", "gpu", "model")
FIGURE = ("measured", "predicted", "lo", "hi", "error", "error_vs_measured")
ROWS = tuple(map(Column, (*RUN, "metric", *FIGURE[:-1], "refused", "calibration", FIGURE[-1])))


@dataclass(frozen=True, repr=False)
class Evaluation(Answer):
    """Predictions beside measurements: ``planner evaluate``. CSV has the rows, the table has the summary, JSON both."""

    columns = ROWS
    evaluated: tuple[evidence.Evaluated, ...]  #: each run with its figures, or why it was refused

    @property
    def ok(self) -> bool:
        """True if any run was predicted."""
        return any(one.figures for one in self.evaluated)

    def summary(self) -> list[dict[str, Any]]:
        """Errors by GPU, bench and metric, as fractions."""
        return summary(self.evaluated)

    def to_svg(self) -> str:
        """Predicted against measured, as an SVG file. Raises InputError where no run was predicted."""
        chart = evaluation_chart(self.evaluated)
        if chart is None:
            raise InputError("nothing to draw: no run was predicted", hint="see the notes of planner evaluate")
        return svg(chart)

    def _object(self) -> dict[str, Any]:
        rows = [
            {
                **fields_of(one, "run.run_id", "refused", "calibration"),
                "metrics": {name: fields_of(figure, *FIGURE) for name, figure in one.figures.items()},
                **fields_of(one.run, "gpu", "model"),
            }
            for one in self.evaluated
        ]
        return {"rows": rows, "summary": self.summary()}

    def _records(self) -> Iterator[dict[str, Any]]:
        for one in self.evaluated:
            run = {**fields_of(one.run, *RUN), "refused": one.refused}
            if one.refused:
                yield run
            for name, figure in one.figures.items():
                yield {**run, "metric": name, **fields_of(figure, *FIGURE), "calibration": one.calibration}

    def sentences(self) -> Iterator[str]:
        yield f"{wrapped(self._verdict())}\n"
        yield table_text(self.summary(), columns_of("evaluation"))

    def _verdict(self) -> str:
        """The share of the figures inside their intervals, and those furthest off."""
        figures = [(one.run.run_id, *named) for one in self.evaluated for named in one.figures.items()]
        if not figures:
            return "No run was predicted"
        judged = [figure for figure in figures if figure[2].covered is not None]
        outside = [figure for figure in judged if not figure[2].covered]
        worst = sorted(outside or figures, key=lambda figure: -abs(log(figure[2].predicted / figure[2].measured)))
        words = (f"{name} of {run_id} ({one.error:+.0%})" for run_id, name, one in worst[:WORST])
        inside = f"{len(judged) - len(outside)} of {len(judged):,} measured figures"
        return f"{inside} lie inside their 90 % interval; worst predictions: {', '.join(words)}"

    def _notes(self) -> Iterator[str]:
        refused = grouped((one.refused, one.run.run_id) for one in self.evaluated if one.refused)
        yield f"{counted(len(self.evaluated), 'run')}, {sum(one.refused is not None for one in self.evaluated)} refused"
        used = Counter(one.calibration for one in self.evaluated if one.calibration)
        if used:
            yield "calibration: " + ", ".join(f"{name} ({counted(times, 'run')})" for name, times in used.most_common())
        for reason, run_ids in refused.items():
            yield f"{listed(run_ids, 3)}: {reason}"


BAND = 0.2
PANELS: dict[str, list[str]] = NAMES["evaluation_panels"]
CHART_COLUMNS = columns_of("evaluation_chart")  #: table below the chart: title of the panel, GPU, statistics


def evaluation_chart(evaluated: Sequence[evidence.Evaluated]) -> Chart | None:
    """A panel for each metric, a colour and marker for each GPU; None where nothing was predicted."""
    gpus = sorted({one.run.gpu for one in evaluated if one.figures})
    panels: list[LinePanel] = []
    records: list[tuple[str, str, dict[str, Any]]] = []
    for title, keys in PANELS.items():
        by_gpu, unit = defaultdict[str, list[evidence.PredictedFigure]](list), METRICS[keys[0]].unit
        for one in evaluated:
            figure = next((one.figures[key] for key in keys if key in one.figures), None)
            if figure and figure.measured > 0 and figure.predicted > 0:
                by_gpu[one.run.gpu].append(figure)
        if not by_gpu:
            continue
        whole = evidence.statistics([figure for figures in by_gpu.values() for figure in figures])
        words = f"{title}\n{whole['within_20']:.0%} within {BAND:.0%}"
        if whole["coverage_90"] is not None:
            words += f", {whole['coverage_90']:.0%} in the interval"
        series = []
        for place, gpu in enumerate(gpus):
            x, y = (tuple(getattr(one, name) for one in by_gpu.get(gpu, ())) for name in ("measured", "predicted"))
            marker = MARKERS[(place + place // len(MARKERS)) % len(MARKERS)]
            series += [Series(gpu, x, y, place, "points", marker)] if x else []
        marks = (Mark(f"equal, and {BAND:.0%} either way", diagonal=True, spread=BAND),)
        labels = f"measured, {unit}", f"predicted, {unit}"
        panels.append(LinePanel(*labels, tuple(series), words, x_log=True, y_log=True, marks=marks, equal=True))
        records += [(title, gpu, evidence.statistics(by_gpu[gpu])) for gpu in gpus if gpu in by_gpu]
        records.append((title, "all", whole))
    if not panels:
        return None
    refused = sum(one.refused is not None for one in evaluated)
    described = f"{len(evaluated)} runs, {refused} refused. On the line: exact. Grey band: within {BAND:.0%}."
    return Chart("evaluation", "Predicted against measured", described, tuple(panels), CHART_COLUMNS, records)
