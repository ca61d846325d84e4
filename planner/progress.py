"""How far a long computation is.

Whoever computes says so, and knows nothing of who listens: the command line shows it on a terminal, a library nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


def say(text: str) -> None:
    """Tell whoever listens what is being done."""
    if listener := _LISTENER.get():
        listener(text)


def each(items: Sequence[Item], name: Callable[[Item], str]) -> Iterator[Item]:
    """The items, each announced by its name and its number."""
    for number, item in enumerate(items, 1):
        if len(items) > 1:
            say(f"{name(item)} ({number} of {len(items)})")
        yield item


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Within this, ``listener`` is told."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
