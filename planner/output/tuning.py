"""Tune a machine: measure the plan, then what may be better, until the best is known or the budget is spent.

``tune/state.json`` is replaced whole after each step: the tuning goes on after any break, and measures nothing twice.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from operator import attrgetter, ge
from pathlib import Path
from typing import Any

from planner import __version__, planning
from planner.engine import tagged
from planner.errors import InputError
from planner.evidence import CalibrationOutcome, Stated, calibrate, read_measured, read_sources
from planner.hardware import load_profile
from planner.memory import read_startup_log
from planner.output.scripts.folder import run_script, wait_for, write_folder
from planner.output.tables.shared import batch_in_words, layout_in_words
from planner.output.workflows.render import plan_files
from planner.resources import MOST_LOG_BYTES, alone_in, read_given
from planner.units import percent

STATE, LOG, CALIBRATION = "state.json", "tune.log", "calibration.toml"
FOLDER = "tune"
MOST_FAILURES = 3  #: settings that fail one after the other before one is measured: the machine is at fault
MOST_REASON = 160  #: characters of a reason
NOT_READY = "not ready: "  #: in the last line of a preflight.sh that fails
MEMORY, UNTRIED = "does not fit", "not tried: it needs no less memory than"


class Tuner:
    def __init__(self, directory: Path, tell: Callable[[str], None]) -> None:
        """Raises InputError unless ``directory`` has a plan. ``tell`` gets a line for each step."""
        self.directory, self.tell = directory.resolve(), tell
        self.file: planning.PlanFile = planning.read_plan(self.directory)
        self.path = self.directory / FOLDER / STATE
        self._state: planning.TuningState | None = None

    @property
    def state(self) -> planning.TuningState:
        assert self._state is not None
        return self._state

    def run(self, local: planning.Local, *, runs: int | None, minutes: float | None, retry: bool = False) -> None:
        """Measure until the best is known, or ``runs`` or ``minutes`` are spent. Raises InputError if all fail."""
        self.path.parent.mkdir(exist_ok=True)
        # not tune/, which is locked while a folder is written into it
        with alone_in(self.directory, wait=False) as alone:
            if not alone:
                cause = f"another planner tune works in {self.directory}, or the folder cannot be locked"
                raise InputError(cause, hint="wait for it, or end it")
            self._state = planning.read_state(self.path, self.file.plan.digest)
            if self._state is None:
                if runs != 0:  # the search for candidates takes a minute
                    self._check(self.directory)
                self._state = self._begin(local)
            if retry:
                self._save(runs=tuple(run for run in self.state.runs if run.merit is not None))
            while (number := self.state.next) is not None and not self.state.has_spent(runs, minutes):
                self._measure(number)

    def folder(self, number: int) -> Path:
        return self.directory / self.state.folders[number]

    def plan(self, number: int) -> planning.Plan:
        return planning.read_plan(self.folder(number)).plan

    def words(self, number: int) -> str:
        plan = self.plan(number)
        return f"{plan.weight_dtype} {layout_in_words(plan)}, KV {plan.kv_cache_dtype}, {batch_in_words(plan)}"

    def result(self, number: int) -> Mapping[str, Any]:
        return read_measured(self.folder(number)).result

    def learn(self) -> CalibrationOutcome:
        """Calibrate with all runs; written beside the state if it is kept. Raises InputError if nothing is learnt."""
        folders = [self.folder(number) for number in self.state.measured]
        learnt = calibrate(read_sources(folders, Stated()), self.path.with_name(CALIBRATION), fresh=True)
        if learnt.kept:
            learnt.save()
        return learnt

    def _begin(self, local: planning.Local) -> planning.TuningState:
        self.tell("selecting candidate configurations")
        merit, settings = planning.tuned_settings(self.file, local)
        folders = [".", *(f"{FOLDER}/{_name(number, one.plan)}" for number, one in enumerate(settings) if number)]
        for folder, setting in zip(folders[1:], settings[1:], strict=True):
            file = self.file.model_copy(update={"plan": setting.plan, "planner_version": __version__})
            write_folder(self.directory / folder, plan_files(file, load_profile(setting.plan.gpu)), force=True)
        prospects = [setting.prospects for setting in settings]
        plan = self.file.plan
        state = planning.TuningState.begun(__version__, plan.digest, merit, prospects, folders, plan.targets)
        state.save(self.path)
        self.tell(f"{len(folders)} candidate configurations")
        return state

    def _save(self, **changes: object) -> None:
        self._state = self.state.with_(**changes)
        self.state.save(self.path)

    def _measure(self, number: int) -> None:
        folder, state, began_s = self.folder(number), self.state, time.monotonic()
        log = folder / "logs" / LOG
        resumed = state.running == number
        if resumed and state.process:
            wait_for(state.process, folder / "validate.sh")
        self.tell(f"run {len(state.runs) + 1}: {self.words(number)}")
        if not resumed and not self._path_of_result(number).exists():
            self._check(folder)
        self._save(running=number, process=None)
        begin = _size(log)
        try:
            run_script(
                folder / "validate.sh", log=log, started=lambda process: self._save(process=process),
                **({"STOP": "1"} if resumed else {}),
            )  # fmt: skip
        finally:  # the script has stopped its server, however it ended
            self._save(running=None, process=None)
        seconds = time.monotonic() - began_s
        if self._path_of_result(number).exists():
            targets = self.state.targets
            merit, *margins = planning.measured_merit(self.state.merit, self.plan(number), self.result(number), targets)
            self._add(planning.TunedRun(setting=number, merit=merit, margins=tuple(margins), seconds=seconds))
            reached = planning.broken_words(targets, margins) or planning.merit_words(self.state.merit, merit)
            standing = self.state.standing
            words = "no setting meets the targets" if standing.best is None else "the best measured is the best"
            self.tell(f"  {reached}; {words} with {percent(standing.known)} probability")
            return
        printed = _printed(log, begin)
        if any(line.startswith(NOT_READY) for line in printed):  # where a run goes on it was not checked before
            raise _not_ready(folder, printed)
        self._fail(number, seconds)

    def _check(self, folder: Path) -> None:
        """Raise InputError where the machine is not ready, which is no fault of the setting."""
        begin = _size(log := folder / "logs" / LOG)
        if run_script(folder / "preflight.sh", log=log):
            raise _not_ready(folder, _printed(log, begin))

    def _path_of_result(self, number: int) -> Path:
        return self.folder(number) / "results" / f"serve-{self.plan(number).digest}.json"

    def _fail(self, number: int, seconds: float) -> None:
        """Keep that a setting fails, and larger ones with it if memory ran out. Raises InputError if several fail."""
        reason, out_of_memory = _reason(self.folder(number))
        self._add(planning.TunedRun(setting=number, reason=reason, seconds=seconds))
        self.tell(f"  out: {reason}")
        if out_of_memory:
            for other in self._larger(number):
                self._add(planning.TunedRun(setting=other, reason=f"{UNTRIED} {self.words(number)}", tried=False))
            return
        failed = [run for run in self.state.tried if not run.reason.startswith(MEMORY)]
        if not self.state.measured and len(failed) >= MOST_FAILURES:
            cause = f"{len(failed)} settings failed and none was measured: {reason}"
            hint = "what fails for all is the machine: mend it, then planner tune --retry tries them again"
            raise InputError(cause, hint=hint)

    def _larger(self, number: int) -> Iterator[int]:
        one = self.plan(number)
        sizes = attrgetter(*tagged("batch"), "max_model_len")
        layout = attrgetter("model", *tagged("axes"), "kv_cache_dtype")
        for other in set(range(len(self.state.folders))) - {run.setting for run in self.state.runs}:
            plan = self.plan(other)
            if layout(plan) == layout(one) and all(map(ge, sizes(plan), sizes(one))):
                yield other

    def _add(self, run: planning.TunedRun) -> None:
        self._save(runs=(*self.state.runs, run))


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _printed(log: Path, begin: int) -> list[str]:
    """The lines after the first ``begin`` bytes."""
    return log.read_bytes()[begin:].decode(errors="replace").splitlines()


def _not_ready(folder: Path, printed: list[str]) -> InputError:
    failed = next((line.removeprefix("FAIL").strip() for line in printed if line.startswith("FAIL")), "it failed")
    cause = f"{folder / 'preflight.sh'}: {failed}"
    return InputError(cause, hint="run it and fix what it names; then run the same planner tune again")


def _name(number: int, plan: planning.Plan) -> str:
    """A folder's name: ``03-fp8-tp4-b256-t8192``."""
    layout = layout_in_words(plan).lower().replace(" + ", "-").replace(" ", "")
    return f"{number:02}-{plan.weight_dtype}-{layout}-b{plan.max_num_seqs}-t{plan.max_num_batched_tokens}"


def _reason(folder: Path) -> tuple[str, bool]:
    logs = folder / "logs"
    with suppress(OSError, InputError):
        server = read_given(logs / "server.log", most_bytes=MOST_LOG_BYTES, errors="replace")
        if refusal := read_startup_log(server).refusal:
            return f"{MEMORY}: {refusal[-MOST_REASON:]}", True
    lines = [line.strip() for line in _printed(logs / LOG, 0) if line.strip()]
    last = [line for line in lines if "server" in line or "benchmark" in line] or lines or [""]
    return f"does not run: {last[-1][:MOST_REASON]}; see {logs}", False
