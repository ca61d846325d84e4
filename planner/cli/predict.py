"""``planner predict``: how fast, in the words of ``vllm bench``."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    del app
