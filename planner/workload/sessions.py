"""Loads of several turns by name: sessions whose prompts hold everything before, with pauses between the turns.

Lengths, numbers of turns and pauses are drawn from published statistics (``hardware/calibration/workload.toml``) for
one request rate. The clock goes round: at its beginning sessions are in their first turn, in their last or between."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import log, sqrt
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from planner.resources import calibration_tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.workload.requests import Requests

KEPT = 20_000  #: requests of a load, the last ones of those that are drawn
MOST = 100_000  #: that are drawn
ROUNDS = 2.0  #: mean sessions in a row for which the clock runs, at least
MOST_TURNS = 1000


@dataclass(frozen=True, slots=True)
class Drawn:
    """A quantity that scatters: lognormal where the median is known, else exponential."""

    mean: float
    median: float | None = None

    def draw(self, count: int, dice: np.random.Generator) -> NDArray[np.float64]:
        if self.median is None:
            return dice.exponential(self.mean, count)
        return dice.lognormal(log(self.median), sqrt(2 * log(self.mean / self.median)), count)


@dataclass(frozen=True, slots=True)
class Sessions:
    about: str
    turns: Drawn
    input_tok: Drawn  #: that a turn adds
    output_tok: Drawn
    pause_s: Drawn  #: from the end of an answer to the next turn
    most_tok: int  #: of a prompt and its answer; then the next turn begins anew

    def requests(self, rate: float, seed: int = 0) -> Requests:
        import numpy as np

        from planner.workload.requests import answer_s

        dice = np.random.default_rng(seed)
        turns = np.clip(np.rint(self.turns.draw(MOST, dice)), 1, MOST_TURNS).astype(np.int64)
        span_s = float(turns.mean()) * (self.pause_s.mean + answer_s(self.output_tok.mean))
        count = int(min(max(KEPT, ROUNDS * span_s * rate), MOST))
        turns = turns[: int(np.searchsorted(np.cumsum(turns), count)) + 1]
        total = int(turns.sum())
        round_s = total / rate
        new_tok = np.maximum(np.rint(self.input_tok.draw(total, dice)), 1).astype(np.int64).tolist()
        answer_tok = np.maximum(np.rint(self.output_tok.draw(total, dice)), 1).astype(np.int64).tolist()
        pause_s = self.pause_s.draw(total, dice).tolist()
        rows: list[tuple[float, int, int, list[int], list[int]]] = []
        for start_s, count in zip(dice.uniform(0, round_s, len(turns)).tolist(), turns.tolist(), strict=True):
            rows += self._session(start_s, range(len(rows), len(rows) + count), new_tok, answer_tok, pause_s)
        # what goes on at the beginning began before it, and is not what begins at the end
        laps = [
            (time_s % round_s, prompt, answer, [name + int(time_s // round_s) * 2 * total for name in names], sizes)
            for time_s, prompt, answer, names, sizes in rows
        ]
        laps.sort(key=itemgetter(0))
        return _requests(laps, max(len(laps) - KEPT, 0))

    def _session(
        self, time_s: float, turns: range, new_tok: list[int], answer_tok: list[int], pause_s: list[float]
    ) -> list[tuple[float, int, int, list[int], list[int]]]:
        from planner.workload.requests import answer_s

        sent = []
        names: list[int] = []
        sizes: list[int] = []
        before_tok = 0
        for turn in turns:
            new, answer = min(new_tok[turn], self.most_tok // 2), min(answer_tok[turn], self.most_tok // 4)
            if before_tok + new + answer > self.most_tok:
                names, sizes, before_tok = [], [], 0
            names, sizes = [*names, 2 * turn, 2 * turn + 1], [*sizes, new, answer]
            sent.append((time_s, before_tok + new, answer, names, sizes))
            before_tok += new + answer
            time_s += answer_s(answer) + pause_s[turn]
        return sent


def _requests(rows: list[tuple[float, int, int, list[int], list[int]]], earlier: int) -> Requests:
    import numpy as np

    from planner.workload.requests import Prefixes, Requests

    prefixes = Prefixes.of(
        [names for _, _, _, names, _ in rows], [sizes for _, _, _, _, sizes in rows], [1] * len(rows),
        [prompt + answer for _, prompt, answer, _, _ in rows[:earlier]],
    )  # fmt: skip
    arrivals, prompts, answers = (np.array([row[at] for row in rows[earlier:]]) for at in range(3))
    return Requests(prompts, answers, arrivals - arrivals[0], prefixes)


@cache
def named_sessions() -> dict[str, Sessions]:
    return {name: _read(entry) for name, entry in calibration_tables("workload")["sessions"].items()}


def _read(entry: dict[str, Any]) -> Sessions:
    names = ("turns", "input_tok", "output_tok", "pause_s")
    drawn = {name: Drawn(entry[name]["mean"], entry[name].get("median")) for name in names}
    return Sessions(entry["about"], **drawn, most_tok=entry["most_tok"]["value"])
