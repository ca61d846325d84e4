"""Options of a command line: read, left out, given another value."""

from __future__ import annotations

from collections.abc import Sequence


def option(words: Sequence[str], flag: str) -> str | None:
    """The value of an option in the form ``--flag value`` or ``--flag=value``; the last wins."""
    value = None
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            value = words[index + 1]
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return value


def without_option(words: Sequence[str], flag: str) -> tuple[str, ...]:
    """A command line without an option and its value."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or word.startswith(f"{flag}="):
            skip = False
        elif word == flag:
            skip = True
        else:
            kept.append(word)
    return tuple(kept)


def with_option(words: Sequence[str], flag: str, value: object) -> tuple[str, ...]:
    """A command line with another value of an option that it has in the form ``--flag value``."""
    previous = ("", *words)
    return tuple(str(value) if before == flag else word for before, word in zip(previous, words, strict=False))
