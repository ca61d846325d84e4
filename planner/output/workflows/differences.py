"""What a rendered command has otherwise than the document printed it, word by word, each with its reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.engine import EngineVersion, ServeLine, read_line
from planner.output.workflows.documents import Command, reasons

WRITTEN_OUT = "the default of this version, written out: what runs is what was predicted"
CHOSEN = "as asked for"
#: One option under several names.
_SAME = {"--random-input-len": "--input-len", "--random-output-len": "--output-len"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One word: as printed, as rendered (empty: not there), and why."""

    script: str
    word: str
    printed: str
    here: str
    why: str

    @property
    def was(self) -> str:
        """The word with its value, as printed."""
        return _together(self.word, self.printed)

    @property
    def now(self) -> str:
        """The word with its value, as rendered."""
        return _together(self.word, self.here)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A command as a script has it."""

    script: str
    argv: Sequence[str]
    env: Mapping[str, str]


def differences(
    printed: Command,
    rendered: Rendered,
    version: EngineVersion,
    *,
    platform: str,
    workflow: str = "",
    asked: Iterable[str] = (),
) -> Iterator[Difference]:
    """Words of ``printed`` that are missing or have another value, then words that it does not have.

    ``asked`` are words that the caller chose.
    """
    then, now = printed.read(platform=platform), printed.read(version, platform)
    here = read_line(rendered.argv, version, env=rendered.env, platform=platform)
    problems = {problem.word.split(" ")[0].split("=")[0]: str(problem).partition(": ")[2] for problem in now.problems}
    was, is_now = _said(then), _said(here)
    for word, value in was.items():
        other = is_now.get(word)
        if other is None or not _equal(value, other):
            why = (
                CHOSEN
                if word in asked
                else _reason(word, value, printed, workflow, rendered.script) or problems.get(word, "")
            )
            yield Difference(rendered.script, word, value or word, (other or word) if other is not None else "", why)
    for word, value in is_now.items():
        if word not in was:
            why = CHOSEN if word in asked else _reason(word, value, printed, workflow, rendered.script) or WRITTEN_OUT
            yield Difference(rendered.script, word, "", value or word, why)


def unexplained(found: Iterable[Difference]) -> list[Difference]:
    """Differences without a reason: there are none."""
    return [one for one in found if not one.why]


def _together(word: str, value: str) -> str:
    """A variable or an option with its value; of other words the value says it all."""
    if value and value != word and re.fullmatch(r"[A-Z][A-Z0-9_]*|--?[a-z][\w-]*", word):
        return f"{word} {value}" if word.startswith("-") else f"{word}={value}"
    return value


def _said(line: ServeLine) -> dict[str, str]:
    """Every word of a line with its value: variables, the model, options."""
    words = dict(line.env)
    if line.model and "--model" not in line.options:
        words["model"] = line.model
    return words | {_SAME.get(flag, flag): value for flag, value in line.options.items()}


def _equal(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return one.lower() == other.lower()


def _reason(word: str, value: str, printed: Command, workflow: str, script: str) -> str:
    """The reason of the table for a word; of several that hold the one that asks for most."""
    held = [
        reason
        for reason in reasons()
        if reason.word == word
        and reason.value in ("", value)
        and (not reason.documents or printed.document.id in reason.documents)
        and reason.place in ("", printed.place)
        and reason.model in " ".join(printed.argv)
        and reason.workflow in ("", workflow)
        and (not reason.scripts or script in reason.scripts)
    ]
    most = max(held, key=lambda r: sum(map(bool, (r.value, r.documents, r.place, r.model, r.workflow))), default=None)
    return most.why if most else ""
