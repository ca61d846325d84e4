"""Remember what was worked out for a model, as long as the model itself lives.

Models are large and are compared by value; a search asks for the same one hundreds of times. So results are kept
by identity: a look-up costs a microsecond, and nothing outlives its model.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from planner.model.architecture import Model

T = TypeVar("T")


class PerModel(Generic[T]):
    """Results of ``work`` by model and further arguments."""

    def __init__(self, work: Callable[..., T]) -> None:
        self.work = work
        self._found: dict[int, dict[Hashable, T]] = {}

    def __call__(self, model: Model, *arguments: Any) -> T:
        """``work(model, *arguments)``, worked out once."""
        known = self._found.get(id(model))
        if known is None:
            known = self._found[id(model)] = {}
            weakref.finalize(model, self._found.pop, id(model), None)
        if arguments not in known:
            known[arguments] = self.work(model, *arguments)
        return known[arguments]
