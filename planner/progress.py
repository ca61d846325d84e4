"""How far a long computation is.

Whoever computes says so, and knows nothing of who listens: the command line shows it on a terminal, a library nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
#: Takes what is being done, and the share of all of it that is behind, from 0 to 1; None where that has not changed.
Listener = Callable[[str, float | None], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)
#: Where the work of now begins in the whole, and how much of it that is: what is counted inside takes this part.
_PART: ContextVar[tuple[float, float]] = ContextVar("part", default=(0.0, 1.0))


def say(text: str, done: float | None = None) -> None:
    """Tell whoever listens what is being done."""
    if listener := _LISTENER.get():
        listener(text, done)


def each(items: Sequence[Item], name: Callable[[Item], str]) -> Iterator[Item]:
    """The items, each announced by its name and its number."""
    start, width = _PART.get()
    try:
        for number, item in enumerate(items):
            begun = start + width * number / len(items)
            _PART.set((begun, width / len(items)))
            say(name(item) + (f" ({number + 1:,} of {len(items):,})" if len(items) > 1 else ""), begun)
            yield item
    finally:
        _PART.set((start, width))


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Within this, ``listener`` is told; None: nobody."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
