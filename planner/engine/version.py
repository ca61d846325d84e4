"""Versions of vLLM: their order, and the release whose rules a date or a build of unknown number follows.

>>> str(parse_version("2025-10"))
'0.11.0'
>>> parse_version("0.10.0") < parse_version("0.10.1.1") < parse_version("0.33.0")
True
"""

import calendar
import datetime
import re
from dataclasses import dataclass, field
from typing import Literal

from planner.errors import InputError
from planner.resources import package_dir, tables_of

Release = tuple[int, ...]


def release_of(text: str) -> Release:
    """``0.9.0.1`` as numbers; at least three of them, so that 0.22 and 0.22.0 are one."""
    numbers = tuple(int(part) for part in text.split("."))
    return numbers + (0,) * (3 - len(numbers))


#: Upload date of every release from 0.4.0 on, and of a few before; post-releases count as their release.
RELEASES: dict[Release, datetime.date] = {
    release_of(name): day for name, day in tables_of(package_dir("engine") / "releases.toml").items()
}
NEWEST: Release = max(RELEASES)
READ_ON = datetime.date(2026, 11, 20)  #: the day on which these dates were read
OLDEST: Release = (0, 4, 2)  #: first release with measured runs to compare with; older ones follow its rules


def release_text(release: Release) -> str:
    return ".".join(map(str, release))


def newest_by(day: datetime.date) -> Release:
    """The newest release that was out on ``day``; the oldest known one for a day before all of them."""
    return max((release for release, out in RELEASES.items() if out <= day), default=min(RELEASES))


Build = Literal["vllm", "vllm+atom-plugin"]
_NUMBERED = re.compile(r"v?(\d{1,9}(?:\.\d{1,9})+)((?:\.?(?:a|b|rc|post|dev)\d*)*)(?:\+[\w.]+)?")
_INSIDE = re.compile(r"(?<![\d.])v?(0\.\d{1,9}(?:\.\d{1,9})*)(\.x)?(?![\d.]*\d)")
_DAY = re.compile(r"(?<!\d)(20\d\d)-?(0[1-9]|1[0-2])(?:-?(0[1-9]|[12]\d|3[01]))?(?!\d)")
_MONTH = re.compile(r"\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]* (20\d\d)\b")
_YEARS = re.compile(r"(20\d\d)(?:-(20\d\d))?")
_LOOSE = re.compile(r"\.x|-ish|\d\.?(?:dev|rc|post)\d")
_PLAIN = re.compile(r"[\w\s.,:+/()#-]*")
_BUILD_WORDS = re.compile(r"\b(nightly|latest|main|atom|image|fork|dashboard|rocm)\b")
_MONTHS = tuple(month.lower() for month in calendar.month_abbr)
#: Images that are named after a model: the day on which a run of it was published.
_NAMED_BUILDS = {"minimax-m3": datetime.date(2026, 6, 13)}  # InferenceX's blog on MiniMax-M3


@dataclass(frozen=True, slots=True, order=True)
class EngineVersion:
    release: Release
    build: Build = "vllm"
    text: str = field(default="", compare=False)  #: as given
    note: str = field(default="", compare=False)  #: what was assumed, where the text does not name a release
    #: V0 or V1, where it is asked for; empty: the release's own choice
    engine: Literal["", "V0", "V1"] = field(default="", compare=False)

    def __str__(self) -> str:
        return release_text(self.release)


def parse_version(text: str, *, date: str = "") -> EngineVersion:
    """The version that ``text`` names: a release, a development build, a date, or a build of unknown number.

    A build of unknown number follows the newest release of that day (the 15th of a month, the middle of a year).
    ``date`` counts where the text has none; ``note`` says what was assumed. Raises InputError for anything else."""
    text = text.strip()
    build: Build = "vllm+atom-plugin" if re.search(r"\batom\b", text.lower()) else "vllm"
    numbered = _numbered(text) or _mentioned(text) if _PLAIN.fullmatch(text) else None
    release, note = numbered or _dated(text, date)
    return EngineVersion(release, build, text, note or _unknown_note(release), "V0" if "V0 engine" in text else "")


def existing_version(text: str) -> EngineVersion:
    """The version that ``--engine-version`` asks for. Raises InputError for a number that no release has."""
    version = parse_version(text)
    numbered = _NUMBERED.fullmatch(version.text)
    is_release = numbered and not re.search(r"a|b|rc|dev", numbered[2])
    if is_release and version.release >= (0, 4) and version.release not in RELEASES:
        nearest = max(known for known in RELEASES if known < version.release)
        others = f"{release_text(nearest)} is the release before it, " if nearest != NEWEST else ""
        cause = f"--engine-version {text[:40]}: there is no such release of vLLM"
        raise InputError(cause, hint=f"{others}{release_text(NEWEST)} is the newest known")
    return version


def known_version(name: str) -> EngineVersion:
    """A release by its number, for tables in this package: ``known_version("0.20.0")``."""
    return EngineVersion(release_of(name), text=name)


def _numbered(text: str) -> tuple[Release, str] | None:
    """A version number and nothing else: ``0.9.1``, ``v0.11.0``, ``0.26.1rc1.dev156+g0eec856cc``."""
    match = _NUMBERED.fullmatch(text)
    if not match or not match[1].startswith("0."):
        return None
    release = release_of(match[1])
    note = f"{text} follows the rules of vLLM {release_text(release)}"
    return release, note if match[2] and release <= NEWEST else ""


def _mentioned(text: str) -> tuple[Release, str] | None:
    """A version number among other words: ``0.8.x``, ``0.12/0.13``, ``rocm/atom-dev:vllm-v0.25.1-nightly``."""
    named = [(release_of(number), anything) for number, anything in _INSIDE.findall(text)]
    releases = [max((k for k in RELEASES if anything and k[:2] == one[:2]), default=one) for one, anything in named]
    if not releases:
        return None
    exact = len(set(releases)) == 1 and not _LOOSE.search(text)
    return releases[0], "" if exact else f"{text!r} is taken as vLLM {release_text(releases[0])}"


def _dated(text: str, date: str) -> tuple[Release, str]:
    lowered = text.lower()
    day = _day_in(lowered) or next((d for name, d in _NAMED_BUILDS.items() if name in lowered), None)
    if not _PLAIN.fullmatch(text) or (day is None and text and not _BUILD_WORDS.search(lowered)):
        hint = "give a release such as 0.11.0, or the month of a build such as 2025-10"
        raise InputError(f"--engine-version {text[:40]!r} is neither a vLLM version nor a date", hint=hint)
    day = day or _day_in(date.lower())
    what = repr(text) if text else "no version"
    if day is None:
        return NEWEST, f"{what} has neither number nor date; taken as vLLM {release_text(NEWEST)}, the newest known"
    release = newest_by(day)
    return release, f"{what} is taken as vLLM {release_text(release)}, the newest release by {day}"


def _day_in(text: str) -> datetime.date | None:
    if match := _DAY.search(text):
        year, month, day = (int(part or 15) for part in match.groups())
        return datetime.date(year, month, min(day, calendar.monthrange(year, month)[1]))
    if match := _MONTH.search(text):
        return datetime.date(int(match[2]), _MONTHS.index(match[1]), 15)
    if match := _YEARS.fullmatch(text.strip()):
        start, end = datetime.date(int(match[1]), 1, 1), datetime.date(int(match[2] or match[1]), 12, 31)
        return start + (end - start) / 2
    return None


def _unknown_note(release: Release) -> str:
    if release in RELEASES and release >= OLDEST:
        return ""
    nearest = max((known for known in RELEASES if OLDEST <= known < release), default=OLDEST)
    return f"the rules of vLLM {release_text(release)} are not known; those of {release_text(nearest)} are taken"
