"""What colours mean on a terminal.

Green is a yes, red a no and what lost, yellow a warning, cyan what can be typed next; what is dim may be skipped.
The text is the same without them: in pipes, where ``NO_COLOR`` is set, and on terminals that have none.
"""

from __future__ import annotations

import os
from typing import TextIO

YES, NO = "bold green", "bold red"
#: Style -> what it is put on, in the lines of an answer, of its notes and of an error.
MEANINGS = {
    "dim": (r"^-+(  -+)*$", r"^note: (.*\n      )*.*$", r"\([\d.,]+(-| to )[\d.,]+\)"),
    "cyan": (r"^  \$ (.*\\\n)*.*$", r"^hint: .*$"),
    "red": (r"^  x (.*\n    )*.*$", r"\b(does not fit|refused)\b"),
    "yellow": (r"^  ! (.*\n    )*.*$", r"\btoo close to call\b"),
    "bold red": (r"^error: ",),
    "bold": (r"^.*(?=\n-+(  -+)*$)", r"bottleneck:"),
}


def has_colours(stream: TextIO | None) -> bool:
    """Whether ``stream`` is a terminal that shows colours, and nobody asked for none."""
    if stream is None or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return False
    return stream.isatty()


def coloured(text: str, *, verdict: str = "") -> str:
    """``text`` with the escapes of its colours; its first paragraph, the verdict, in that style."""
    from rich.console import Console
    from rich.text import Text

    shown = Text(text)
    for style, patterns in MEANINGS.items():
        for pattern in patterns:
            shown.highlight_regex(f"(?m){pattern}", style)
    if verdict:
        lines = text.splitlines(keepends=True)
        end = next((n for n, line in enumerate(lines) if not line.strip() or line.startswith("  ")), len(lines))
        shown.stylize(verdict, 0, len("".join(lines[:end])))
    console = Console(force_terminal=True, color_system="standard", no_color=False, width=10_000)
    with console.capture() as captured:
        console.print(shown, end="", soft_wrap=True)
    return captured.get()
