"""Colours for light and for dark surroundings.

Text has a contrast of at least 4.5 to 1 on its ground, lines and areas at least 3 to 1 (WCAG 2.2, level AA), and the
series stay apart for people who see no red or no green; ``tests/test_charts.py`` computes all of it. The hues are
those of Okabe and Ito's palette for colour-blind readers ("Color Universal Design", 2008), darkened for paper and
lightened for the night.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Theme = Literal["light", "dark"]

#: Names in style sheets, with a colour for each theme. Light ones differ from each other: they are what is looked for
#: in a drawing when they are replaced by their names.
COLORS: Mapping[str, tuple[str, str]] = {
    "ground": ("#ffffff", "#14171c"),  # of the page and of charts
    "raised": ("#f5f6f8", "#1d2128"),  # of what lies on it: code, notes
    "ink": ("#1c2128", "#e8eaed"),
    "muted": ("#5a6472", "#a2abb8"),  # of text that steps back
    "line": ("#d9dde3", "#343b46"),  # of rules and grids, which carry nothing
    "accent": ("#0b62a8", "#7db9ee"),  # of links and of what has the focus
    "on": ("#fffffe", "#101318"),  # of text on an area
    "c0": ("#0a5fb0", "#5aa9e6"),  # blue
    "c1": ("#bf4d00", "#f08a45"),  # vermilion
    "c2": ("#007d5c", "#27b88d"),  # bluish green
    "c3": ("#b04a9a", "#d074bb"),  # reddish purple
    "c4": ("#4d3f00", "#f4d866"),  # yellow
    "c5": ("#3a4250", "#cfd6e0"),  # grey
}
SERIES = ("c0", "c1", "c2", "c3", "c4", "c5")


def color(name: str, theme: Theme = "light") -> str:
    """The colour of that name, as ``#rrggbb``."""
    return COLORS[name][0 if theme == "light" else 1]


def series(place: int) -> str:
    """The light colour of a series; they repeat after ``SERIES``."""
    return color(SERIES[place % len(SERIES)])


def variables(theme: Theme) -> str:
    """Declarations of a style sheet: ``--ink: #1c2128; ...``."""
    return " ".join(f"--{name}: {color(name, theme)};" for name in COLORS)


def style_sheet(selector: str = ":root") -> str:
    """The variables for both themes, as the reader's system prefers."""
    return (
        f"{selector} {{ color-scheme: light dark; {variables('light')} }}\n"
        f"@media (prefers-color-scheme: dark) {{ {selector} {{ {variables('dark')} }} }}\n"
    )
