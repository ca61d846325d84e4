"""Loads of several turns by name: sessions whose prompts hold everything before, with pauses between the turns.

Lengths, numbers of turns and pauses are drawn from published statistics (``hardware/calibration/workload.toml``) for
one request rate. The clock goes round: at its beginning sessions are in their first turn, in their last or between."""

from dataclasses import dataclass
from functools import cache, lru_cache
from math import ceil, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.resources import calibration_tables
from planner.workload.requests import POOLED, Prefixes, Requests, answer_s, share
from planner.workload.targets import Router

KEPT = 20_000  #: requests of a load, the last ones of those that are drawn
MOST = 100_000  #: that are drawn
POOL_PROMPTS = 1000  #: of a share, all its servers together
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
    turns: Drawn
    input_tok: Drawn  #: that a turn adds
    output_tok: Drawn
    pause_s: Drawn  #: from the end of an answer to the next turn
    most_tok: int  #: of a prompt and its answer; then the next turn begins anew

    @property
    def turn_s(self) -> float:
        """Mean seconds from one request of a session to the next."""
        return self.pause_s.mean + answer_s(self.output_tok.mean)

    def requests(self, rate: float, seed: int = 0, count: int = KEPT) -> Requests:
        """``count`` requests, two or more times in a row: at every rate the same ones, in another order."""
        # each quantity has dice of its own, so that more sessions begin with the same ones
        of_turns, of_starts, of_inputs, of_outputs, of_pauses = np.random.default_rng(seed).spawn(5)
        turns = np.clip(np.rint(self.turns.draw(count, of_turns)), 1, MOST_TURNS).astype(np.int64)
        span_s = float(turns.mean()) * self.turn_s
        turns = turns[: int(np.searchsorted(np.cumsum(turns), count)) + 1]
        turns[-1] -= turns.sum() - count
        round_s = count / rate
        new_tok = np.clip(np.rint(self.input_tok.draw(count, of_inputs)), 1, self.most_tok // 2).astype(np.int64)
        answer_tok = np.clip(np.rint(self.output_tok.draw(count, of_outputs)), 1, self.most_tok // 4).astype(np.int64)
        sizes, pause_s = np.column_stack([new_tok, answer_tok]).ravel().tolist(), self.pause_s.draw(count, of_pauses)
        rows: list[tuple[float, int, int, int]] = []  # time, prompt, the first turn that it holds, its own
        for start_s, more in zip(of_starts.uniform(0, round_s, len(turns)).tolist(), turns.tolist(), strict=True):
            time_s, first, before_tok = start_s, len(rows), 0
            for turn in range(first, first + more):
                new, answer = sizes[2 * turn : 2 * turn + 2]
                if before_tok + new + answer > self.most_tok:
                    first, before_tok = turn, 0
                rows.append((time_s, before_tok + new, first, turn))
                before_tok += new + answer
                time_s += answer_s(answer) + float(pause_s[turn])
        rows.sort(key=lambda row: row[0] % round_s)
        times_s, prompt_tok, firsts, lasts = map(np.array, zip(*rows, strict=True))
        begun, past_s = np.divmod(times_s, round_s)
        laps = np.arange(max(min(ceil(ROUNDS * span_s / round_s), MOST // count), 2))[:, None]
        # what goes on at the beginning began before it, and is not what begins at the end
        shift = (laps - begun).astype(np.int64) * count
        pieces = 2 * np.tile(lasts - firsts + 1, len(laps))
        places = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        names = np.repeat(2 * (firsts + shift).ravel(), pieces) + places
        tok, every = np.array(sizes)[names % len(sizes)], np.ones_like(pieces)
        prompts, answers = (np.tile(each, len(laps)) for each in (prompt_tok, answer_tok[lasts]))
        arrival_s = (past_s + laps * round_s).ravel() - past_s[0]
        return Requests(prompts, answers, arrival_s, Prefixes.of_arrays(names, tok, pieces, every, pieces[:0]))


@lru_cache(maxsize=32)  # engines are compared by the same shares
def shares(name: str, rate: float, servers: int, router: Router, seed: int) -> Requests:
    """Load of ``POOLED`` of ``servers`` under ``rate`` requests per second, ``POOL_PROMPTS`` in all."""
    few = min(servers, POOLED)
    # such a router leaves sessions where they are, so those of a few servers can be drawn alone
    dealt = few if router == "prefix-aware" else servers
    count = min(POOL_PROMPTS * dealt // few, MOST // 2)
    return share(named_sessions()[name].requests(rate * dealt / servers, seed, count), dealt, POOL_PROMPTS, router, few)


@cache
def named_sessions() -> dict[str, Sessions]:
    return {name: _read(entry) for name, entry in calibration_tables("workload")["sessions"].items()}


def _read(entry: dict[str, Any]) -> Sessions:
    names = ("turns", "input_tok", "output_tok", "pause_s")
    drawn = {name: Drawn(entry[name]["mean"], entry[name].get("median")) for name in names}
    return Sessions(**drawn, most_tok=entry["most_tok"]["value"])
