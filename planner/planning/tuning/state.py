"""How far the tuning of a machine is: one file, enough to go on after a break without a new prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from planner.errors import InputError
from planner.planning.defaults import Goal
from planner.planning.plan import PlannedTarget
from planner.planning.search.candidate import Merit
from planner.planning.tuning.standing import Prospect, Prospects, Standing
from planner.resources import read_given, write_then_rename

SCHEMA_VERSION = 1
#: Another setting has to be better by this share to count: two runs of one setting differ by as much.
WITHIN = 0.03
#: Probability with which the best has to be known.
SURE = 0.95
#: Of a logarithm, or of its variance: no machine is e^100 times as fast as another.
MOST_LOG = 100.0


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TunedRun(_Record):
    """What became of one setting."""

    setting: int
    merit: float | None = None  #: its logarithm as measured; None: the setting does not run
    margins: tuple[float, ...] = ()  #: logarithm of limit over measured, of each target
    reason: str = ""  #: why it does not
    seconds: float = 0.0  #: start and end of the server included
    tried: bool = True  #: else another run says that it does not run


class TuningState(_Record):
    """The settings, what is known of them, and the runs. Settings are numbered; the plan that is tuned is 0."""

    schema_version: int = SCHEMA_VERSION
    planner_version: str
    digest: str  #: of the plan that is tuned
    goal: Goal
    per_user: float = 1.0  #: powers of ``Merit``
    per_gpu: float = 1.0
    folders: tuple[str, ...]  #: of each setting's plan, below that of the plan that is tuned
    targets: tuple[PlannedTarget, ...] = ()  #: that a setting has to keep as measured
    mean: tuple[float, ...]  #: of the logarithms of merit and margins, setting by setting, as predicted
    covariance: tuple[tuple[float, ...], ...]
    runs: tuple[TunedRun, ...] = ()
    running: int | None = None  #: the setting whose server may be up
    process: int | None = None  #: of the script that measures it

    @classmethod
    def begun(
        cls,
        planner_version: str,
        digest: str,
        merit: Merit,
        prospects: Sequence[Sequence[Prospect]],
        folders: Sequence[str],
        targets: Sequence[PlannedTarget] = (),
    ) -> TuningState:
        """Before any run. ``prospects``: merit and margins of each setting, whose plans lie in ``folders``."""
        known = Prospects.of(prospects)
        return cls(
            planner_version=planner_version,
            digest=digest,
            goal=merit.goal,
            per_user=merit.per_user,
            per_gpu=merit.per_gpu,
            folders=tuple(folders),
            targets=tuple(targets),
            mean=tuple(known.mean.ravel().tolist()),
            covariance=tuple(map(tuple, known.covariance.tolist())),
        )

    @property
    def merit(self) -> Merit:
        return Merit(self.goal, self.per_user, self.per_gpu)

    @property
    def measured(self) -> Mapping[int, float]:
        return {run.setting: run.merit for run in self.runs if run.merit is not None}

    @property
    def margins(self) -> Mapping[int, tuple[float, ...]]:
        return {run.setting: run.margins for run in self.runs if run.merit is not None}

    @property
    def out(self) -> Mapping[int, str]:
        return {run.setting: run.reason for run in self.runs if run.merit is None}

    @property
    def tried(self) -> tuple[TunedRun, ...]:
        return tuple(run for run in self.runs if run.tried)

    def has_spent(self, runs: int | None, minutes: float | None) -> bool:
        """Whether all runs together took as many ``runs`` or ``minutes``. None: no limit."""
        spent_s = sum(run.seconds for run in self.runs)
        return (runs is not None and len(self.tried) >= runs) or (minutes is not None and spent_s >= 60 * minutes)

    @cached_property
    def standing(self) -> Standing:
        prospects = Prospects(np.array(self.mean).reshape(len(self.folders), -1), np.array(self.covariance))
        measured = {setting: (merit, *self.margins[setting]) for setting, merit in self.measured.items()}
        return prospects.standing(measured, self.out, within=WITHIN)

    @property
    def next(self) -> int | None:
        """The setting to measure: the plan itself first, then what may gain most; None: nothing is left to gain."""
        if not self.runs:
            return 0
        return self.standing.next if self.standing.known < SURE else None

    def with_(self, **changes: object) -> Self:
        return type(self).model_validate({**self.model_dump(), **changes})

    def save(self, path: Path) -> None:
        """Write the file whole. Raises InputError where that is not possible."""
        try:
            write_then_rename(path, (self.model_dump_json(indent=1) + "\n").encode())
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}", hint="free some space there") from error


def read_state(path: Path, digest: str) -> TuningState | None:
    """The state of the tuning of the plan ``digest``; None where it has not begun.

    Raises InputError for a file that is broken, or of another plan.
    """
    again = "remove that folder to tune from the start; results in it are then measured again"
    try:
        state = TuningState.model_validate_json(read_given(path))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, ValueError) as error:
        raise InputError(f"{path} is not the state of a tuning", hint=again) from error
    rows = len(state.folders) * (1 + len(state.targets))
    sizes = {rows, len(state.mean), len(state.covariance), *map(len, state.covariance)}
    numbers = [run.setting for run in state.runs] + [state.running or 0]
    judged = all(len(run.margins) == len(state.targets) for run in state.runs if run.merit is not None)
    if len(sizes) != 1 or not judged or not all(0 <= number < len(state.folders) for number in numbers):
        raise InputError(f"{path} is not the state of a tuning: its parts do not fit", hint=again)
    known, logs = np.array(state.covariance), [*state.mean, *state.measured.values(), *chain(*state.margins.values())]
    if not np.allclose(known, known.T) or max(np.abs(known).max(), *map(abs, logs)) > MOST_LOG:
        raise InputError(f"{path} is not the state of a tuning: its numbers are of no machine", hint=again)
    if state.schema_version != SCHEMA_VERSION or state.digest != digest:
        raise InputError(f"{path} is of another plan, {state.digest}, or another planner", hint=again)
    return state
