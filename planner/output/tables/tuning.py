"""``planner tune`` in words and rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

from planner.evidence import CalibrationOutcome
from planner.output.render import Column, table_text, wrapped
from planner.output.result import Result
from planner.output.tuning import Tuner
from planner.planning import SURE, WITHIN, broken_words, percent
from planner.workload import targets_in_words

COLUMNS = (
    Column("setting"),
    Column("predicted_tok_per_s_per_gpu", "predicted tok/s/gpu", ",.0f"),
    Column("output_throughput_per_gpu", "tok/s/gpu", ",.0f"),
    Column("mean_e2el_ms", "E2EL ms", ",.0f"),
    Column("behind", "behind", ".1%"),
    Column("gain", "may gain", ".1%"),
    Column("reason", "", wraps=True),
    Column("folder", aside=True),
)
LEAST_GAIN = 0.0005  #: that is shown: less is 0.0 %


@dataclass(frozen=True, repr=False)
class TuningAnswer(Result):
    """Every setting with what was measured of it, and the best measured one: ``planner tune``."""

    tuner: Tuner
    learnt: CalibrationOutcome | None = None  #: None: the runs teach nothing, ``remarks`` say why
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the best setting is known, to 3 % and with 95 % probability."""
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
            "best": self.best,
            "probability_best": state.standing.known,
            "within": WITHIN,
            "targets": [{"metric": one.metric, "limit_ms": one.limit_ms} for one in state.targets],
            "runs": len(state.tried),
            "minutes": sum(run.seconds for run in state.runs) / 60,
            "calibration": self._calibration,
            "settings": self._rows(),
        }

    @property
    def _calibration(self) -> str | None:
        return str(self.learnt.path) if self.learnt and self.learnt.kept else None

    def _rows(self) -> list[dict[str, Any]]:
        state = self.tuner.state
        standing = state.standing
        best = state.measured[standing.best] if standing.best is not None else 0.0
        order = sorted(state.measured, key=lambda number: (bool(self._broken(number)), -state.measured[number]))
        order += sorted(standing.gains, key=lambda number: -standing.gains[number])
        return [self._row(number, best) for number in (*order, *state.out)]

    def _row(self, number: int, best: float) -> dict[str, Any]:
        tuner, state = self.tuner, self.tuner.state
        plan, result = tuner.plan(number), tuner.result(number) if number in state.measured else {}
        return {
            "setting": tuner.words(number),
            "predicted_tok_per_s_per_gpu": plan.predicted["output_throughput"] / plan.num_gpus,
            "output_throughput_per_gpu": result["output_throughput"] / plan.num_gpus if result else None,
            "mean_e2el_ms": result.get("mean_e2el_ms"),
            "behind": 1 - exp(state.measured[number] - best) if result and not self._broken(number) else None,
            "gain": state.standing.gains.get(number),
            "reason": state.out.get(number, "") or self._broken(number),
            "folder": str(tuner.folder(number)),
        }

    def _broken(self, number: int) -> str:
        state = self.tuner.state
        return broken_words(state.targets, state.margins[number]) if number in state.margins else ""

    def _columns(self) -> Sequence[Column]:
        return COLUMNS

    def _lines(self) -> Iterator[str]:
        rows = self._rows()
        shown = [row for row in rows if row["gain"] is None or row["gain"] >= LEAST_GAIN]
        empty = {column.key for column in COLUMNS if all(row[column.key] in (None, "") for row in shown)}
        yield table_text(shown, [column for column in COLUMNS if not column.aside and column.key not in empty])
        if len(shown) < len(rows):
            left = len(rows) - len(shown)
            yield f"and {left} setting{'s' if left != 1 else ''} that may gain less than 0.1%"
        yield ""
        yield wrapped(self._title())
        if self.best:
            yield f"the plan: {self.best}"
        if self._calibration:
            yield f"learnt:   {self._calibration} (planner ... --calibration FILE)"

    def _title(self) -> str:
        state = self.tuner.state
        runs = f"{len(state.tried)} run{'s' if len(state.tried) != 1 else ''}"
        if self.best is None and state.measured:
            none = f"no other does, with {percent(state.standing.known)} probability"
            return (
                f"no measured setting keeps {targets_in_words([one.slo for one in state.targets])} after {runs}; {none}"
            )
        if self.best is None:
            return f"nothing was measured in {runs}"
        sure = f"no other setting is better by more than {WITHIN:.0%}, with {percent(state.standing.known)} probability"
        return f"best after {runs}: {self.tuner.words(state.standing.best or 0)}; {sure}"

    def _notes(self) -> Iterable[str]:
        if not self.ok:
            yield "the best is not known yet: a larger --runs or --minutes goes on from here"
        if self.learnt and not self.learnt.kept:
            yield f"the calibration is not kept: {self.learnt.reason}"
