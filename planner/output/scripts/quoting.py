"""The only ways in which a value gets from a plan into a script or the runbook.

``sh``, ``argv`` and ``comment`` are for shell scripts, ``text``, ``cell`` and ``fenced`` for Markdown, ``endpoint``
for nginx. Whatever the value holds, it stays one word, one argument list, one comment line, one cell, one block.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Sequence

from planner.errors import InputError

_ENDPOINT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*:[0-9]{1,5}")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~!&])")


def sh(value: object) -> str:
    """One word of a shell command.

    Raises InputError for what no command line can hold: a NUL, or bytes that are not UTF-8.
    """
    word = str(value)
    if "\0" in word or any(unicodedata.category(character) == "Cs" for character in word):
        raise InputError(
            f"{word!a} cannot be written into a script",
            hint="it holds a NUL or bytes that are not UTF-8; rename the model, folder or option",
        )
    return shlex.quote(word)


def argv(words: Sequence[object]) -> str:
    """A command line over several lines: what comes before the first option, then each option with its values."""
    lines: list[str] = []
    for word in map(str, words):
        if lines and not word.startswith("-"):
            lines[-1] += " " + sh(word)
        else:
            lines.append(sh(word))
    return " \\\n    ".join(lines)


def comment(value: object) -> str:
    """Text on one comment line: line breaks, control and invisible formatting characters become spaces."""
    return flat(value).rstrip("\\ ")


def flat(value: object) -> str:
    """Text without line breaks, control characters and invisible formatting characters."""
    spaced = ("".join(" " if _breaks(character) else character for character in str(value))).split(" ")
    return " ".join(filter(None, spaced))


def text(value: object) -> str:
    """Plain text in Markdown."""
    return _MARKDOWN.sub(r"\\\1", flat(value))


def cell(value: object) -> str:
    """Code in a cell of a Markdown table."""
    code = flat(value).replace("|", "\\|")
    fence = "`" * (_longest_run(code) + 1)
    padding = " " if code.startswith("`") or code.endswith("`") else ""
    return f"{fence}{padding}{code}{padding}{fence}"


def fenced(value: object) -> str:
    """A block of code in Markdown, behind a fence that its content cannot close."""
    lines = ["".join(" " if _breaks(c) and c != "\t" else c for c in line).rstrip() for line in str(value).split("\n")]
    code = "\n".join(lines)
    fence = "`" * max(3, _longest_run(code) + 1)
    return f"{fence}\n{code}\n{fence}"


def endpoint(value: object) -> str:
    """``HOST:PORT`` and nothing else, for files that no shell reads. Raises ValueError for anything else."""
    address = str(value)
    if not _ENDPOINT.fullmatch(address):
        raise ValueError(f"nginx.conf takes HOST:PORT only, not {address!r}")
    return address


def _breaks(character: str) -> bool:
    """Control, format, surrogate and private characters, and the separators of lines and paragraphs."""
    category = unicodedata.category(character)
    return category.startswith("C") or category in {"Zl", "Zp"}


def _longest_run(code: str) -> int:
    return max((len(run) for run in re.findall("`+", code)), default=0)
