"""vLLM versions: their order, and the era that a date or an unknown build falls to.

>>> parse_version("v0.11.0").release
(0, 11, 0)
>>> str(parse_version("2025-10"))
'0.11.0'
>>> parse_version("0.10.0") < parse_version("0.10.1.1") < parse_version("0.33.0")
True
"""

from __future__ import annotations

import calendar
import datetime
import re
from dataclasses import dataclass, field
from typing import Literal

from planner.engine.releases import (
    NEWEST,
    OLDEST,
    RELEASES,
    Release,
    newest_by,
    newest_of_minor,
    release_of,
    release_text,
)
from planner.errors import InputError

Build = Literal["vllm", "vllm+atom-plugin"]

_NUMBERED = re.compile(r"v?(\d+(?:\.\d+)+)((?:\.?(?:a|b|rc|post|dev)\d*)*)(?:\+[\w.]+)?")
_INSIDE = re.compile(r"(?<![\d.])v?(0\.\d+(?:\.\d+)*)(\.x)?(?![\d.]*\d)")
_DAY = re.compile(r"(?<!\d)(20\d\d)-?(0[1-9]|1[0-2])(?:-?(0[1-9]|[12]\d|3[01]))?(?!\d)")
_MONTH = re.compile(r"\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]* (20\d\d)\b")
_YEARS = re.compile(r"(20\d\d)(?:-(20\d\d))?")
_LOOSE = re.compile(r"\.x|-ish|\d\.?(?:dev|rc|post)\d")
_PLAIN = re.compile(r"[\w\s.,:+/()#-]*")
_BUILD_WORDS = re.compile(r"\b(nightly|latest|main|atom|image|fork|dashboard|rocm)\b")
_MONTHS = tuple(month.lower() for month in calendar.month_abbr)

#: Images that are named after a model: the day on which somebody published a run of it.
_NAMED_BUILDS = {"minimax-m3": datetime.date(2026, 6, 13)}  # InferenceX's blog on MiniMax-M3


@dataclass(frozen=True, slots=True, order=True)
class EngineVersion:
    """One vLLM version. Ordered and compared by release and build; how it was written does not count."""

    release: Release
    build: Build = "vllm"
    text: str = field(default="", compare=False)  #: as given
    note: str = field(default="", compare=False)  #: what was assumed, where the text does not name a release
    #: V0 or V1, where somebody decided it; empty: as the release does by itself
    engine: Literal["", "V0", "V1"] = field(default="", compare=False)

    def __str__(self) -> str:
        """The release: ``0.11.0``."""
        return release_text(self.release)


def parse_version(text: str, *, date: str = "") -> EngineVersion:
    """The version that ``text`` names: a release, a development build, a date, a build of unknown number.

    Dates and unnumbered builds fall to the newest release that was out on that day (the 15th of a month, the
    middle of a year); ``date`` (``2026-03-22``, ``2025-2026``) is used where the text itself tells none. What was
    assumed is in ``note``. Raises InputError for anything else.
    """
    text = text.strip()
    if not _PLAIN.fullmatch(text):
        raise _unreadable(text)
    build: Build = "vllm+atom-plugin" if re.search(r"\batom\b", text.lower()) else "vllm"
    release, note = _numbered(text) or _mentioned(text) or _dated(text, date)
    return EngineVersion(release, build, text, note or _strangeness(release), "V0" if "V0 engine" in text else "")


def known_version(name: str) -> EngineVersion:
    """A release by its number, for tables in this package: ``known_version("0.20.0")``."""
    return EngineVersion(release_of(name), text=name)


def _numbered(text: str) -> tuple[Release, str] | None:
    """A version number and nothing else: ``0.9.1``, ``v0.11.0``, ``0.26.1rc1.dev156+g0eec856cc``."""
    match = _NUMBERED.fullmatch(text)
    if not match or not match[1].startswith("0."):
        return None
    release = release_of(match[1])
    return release, f"{text} follows the rules of vLLM {release_text(release)}" if match[2] else ""


def _mentioned(text: str) -> tuple[Release, str] | None:
    """A version number among other words: ``0.8.x``, ``0.12/0.13``, ``rocm/atom-dev:vllm-v0.25.1-nightly``."""
    found = [
        newest_of_minor(*release_of(number)[:2]) if anything else release_of(number)
        for number, anything in _INSIDE.findall(text)
    ]
    if not found:
        return None
    exact = len(set(found)) == 1 and not _LOOSE.search(text)
    return found[0], "" if exact else f"{text!r} is taken as vLLM {release_text(found[0])}"


def _dated(text: str, date: str) -> tuple[Release, str]:
    """A date, or a build that only a date can place."""
    lowered = text.lower()
    day = _day_in(lowered) or next((d for name, d in _NAMED_BUILDS.items() if name in lowered), None)
    if day is None and text and not _BUILD_WORDS.search(lowered):
        raise _unreadable(text)
    day = day or _day_in(date.lower())
    what = repr(text) if text else "no version"
    if day is None:
        return NEWEST, f"{what} tells neither number nor date; taken as vLLM {release_text(NEWEST)}, the newest known"
    release = newest_by(day)
    return release, f"{what} is taken as vLLM {release_text(release)}, the newest release by {day}"


def _unreadable(text: str) -> InputError:
    return InputError(
        f"--engine-version {text!r} is neither a vLLM version nor a date",
        hint="give a release such as 0.11.0, or the month of a build such as 2025-10",
    )


def _day_in(text: str) -> datetime.date | None:
    if match := _DAY.search(text):
        year, month, day = match.groups()
        last = calendar.monthrange(int(year), int(month))[1]
        return datetime.date(int(year), int(month), min(int(day or 15), last))
    if match := _MONTH.search(text):
        return datetime.date(int(match[2]), _MONTHS.index(match[1]), 15)
    if match := _YEARS.fullmatch(text.strip()):
        start, end = datetime.date(int(match[1]), 1, 1), datetime.date(int(match[2] or match[1]), 12, 31)
        return start + (end - start) / 2
    return None


def _strangeness(release: Release) -> str:
    """What to say of a release that is not in the table."""
    if release > NEWEST:
        return f"newer than vLLM {release_text(NEWEST)}, the newest known; its rules are taken"
    if release < OLDEST:
        return f"older than vLLM {release_text(OLDEST)}, the oldest known; its rules are taken"
    if release not in RELEASES:
        before = max(known for known in RELEASES if known < release)
        return f"not a known release; the rules of vLLM {release_text(before)} are taken"
    return ""
