"""Progress of long computations.

The code that computes reports to a listener, if there is one: the command line on a terminal has one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
#: Takes a description of the work, and the share that is done, from 0 to 1; None where that has not changed.
Listener = Callable[[str, float | None], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)
#: Start of the current work in the whole, and its share: what is counted inside takes this part.
_PART: ContextVar[tuple[float, float]] = ContextVar("part", default=(0.0, 1.0))


def say(text: str, done: float | None = None) -> None:
    """Report the current work to the listener."""
    if listener := _LISTENER.get():
        listener(text, done)


def each(items: Sequence[Item], name: Callable[[Item], str]) -> Iterator[Item]:
    """Yield the items, each announced by its name and number."""
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
    """Report to ``listener`` within this block; None for no listener."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
