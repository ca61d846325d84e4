"""How many tokens decode steps make: one each, or with speculative decoding more, and not always as many."""

from __future__ import annotations

from math import ceil, floor


class Pace:
    """Tokens that each decoding request gets in a row of steps.

    The first n steps make floor(n x ``tokens_per_step``) tokens, so that 2.5 means 2, 3, 2, 3, ... and a row of steps
    needs no walk over its steps.

    >>> pace = Pace(2.5)
    >>> pace.ticks(1), pace.ticks(2), pace.steps_for(6)
    (2, 5, 3)
    """

    __slots__ = ("_steps", "_tokens_per_step")

    def __init__(self, tokens_per_step: float) -> None:
        self._tokens_per_step = tokens_per_step
        self._steps = 0  # taken so far

    def ticks(self, steps: int) -> int:
        """Tokens of the next ``steps`` steps."""
        each, taken = self._tokens_per_step, self._steps
        if each == 1:
            return steps
        return floor((taken + steps) * each) - floor(taken * each)

    def steps_for(self, ticks: int) -> int:
        """The fewest steps, at least one, that make ``ticks`` tokens or more."""
        if self._tokens_per_step == 1:
            return max(ticks, 1)
        steps = max(ceil(ticks / self._tokens_per_step) - 1, 1)
        while self.ticks(steps) < ticks:
            steps += 1
        return steps

    def take(self, steps: int) -> None:
        """Go on by ``steps`` steps."""
        self._steps += steps
