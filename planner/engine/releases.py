"""Release dates of vLLM, so that a date or an unnumbered build can be placed.

Source: the day on which the first file of each release was uploaded to the Python package index, read 2026-11-20.
"""

from __future__ import annotations

import datetime

Release = tuple[int, ...]

_DATES = """
0.2.0 2023-09-28   0.2.7 2024-01-04   0.3.0 2024-01-31   0.3.3 2024-03-01   0.4.0 2024-03-31   0.4.1 2024-04-24
0.4.2 2024-05-05   0.4.3 2024-06-01   0.5.0 2024-06-11   0.5.1 2024-07-06   0.5.2 2024-07-15   0.5.3 2024-07-23
0.5.4 2024-08-05   0.5.5 2024-08-23   0.6.0 2024-09-05   0.6.1 2024-09-11   0.6.2 2024-09-25   0.6.3 2024-10-14
0.6.4 2024-11-15   0.6.5 2024-12-18   0.6.6 2024-12-27   0.7.0 2025-01-27   0.7.1 2025-02-01   0.7.2 2025-02-06
0.7.3 2025-02-20   0.8.0 2025-03-18   0.8.1 2025-03-19   0.8.2 2025-03-25   0.8.3 2025-04-06   0.8.4 2025-04-15
0.8.5 2025-04-28   0.9.0 2025-05-28   0.9.0.1 2025-05-30 0.9.1 2025-06-10   0.9.2 2025-07-08   0.10.0 2025-07-25
0.10.1 2025-08-19  0.10.1.1 2025-08-20 0.10.2 2025-09-13 0.11.0 2025-10-04  0.11.1 2025-11-19  0.11.2 2025-11-20
0.12.0 2025-12-03  0.13.0 2025-12-19  0.14.0 2026-01-20  0.14.1 2026-01-24  0.15.0 2026-01-29  0.15.1 2026-02-05
0.16.0 2026-02-26  0.17.0 2026-03-07  0.17.1 2026-03-11  0.18.0 2026-03-20  0.18.1 2026-03-31  0.19.0 2026-04-03
0.19.1 2026-04-18  0.20.0 2026-04-27  0.20.1 2026-05-03  0.20.2 2026-05-10  0.21.0 2026-05-15  0.22.0 2026-05-29
0.22.1 2026-06-05  0.23.0 2026-06-13  0.24.0 2026-06-30  0.25.0 2026-07-11  0.25.1 2026-07-14  0.26.0 2026-07-25
0.27.0 2026-08-10  0.27.1 2026-08-11  0.28.0 2026-08-26  0.29.0 2026-09-09  0.30.0 2026-09-22  0.31.0 2026-10-05
0.32.0 2026-10-18  0.33.0 2026-11-02
"""
_DAYS = _DATES.split()


def release_of(text: str) -> Release:
    """``0.9.0.1`` as numbers; at least three of them, so that 0.22 and 0.22.0 are one."""
    numbers = tuple(int(part) for part in text.split("."))
    return numbers + (0,) * (3 - len(numbers))


#: Upload date of every release from 0.4.0 on, and of a few before; post-releases count as their release.
RELEASES: dict[Release, datetime.date] = {
    release_of(name): datetime.date.fromisoformat(day) for name, day in zip(_DAYS[::2], _DAYS[1::2], strict=True)
}

NEWEST: Release = max(RELEASES)
#: First release with measured runs to compare with; what is older is treated like it.
OLDEST: Release = (0, 4, 2)


def release_text(release: Release) -> str:
    """Numbers as text: ``0.11.0``."""
    return ".".join(map(str, release))


def newest_by(day: datetime.date) -> Release:
    """The newest release that was out on ``day``; the oldest known one for a day before all of them."""
    return max((release for release, out in RELEASES.items() if out <= day), default=min(RELEASES))


def newest_of_minor(major: int, minor: int) -> Release:
    """The newest release of ``0.8.x``; ``0.8.0`` itself where none is known."""
    return max((r for r in RELEASES if r[:2] == (major, minor)), default=(major, minor, 0))
