"""The command line: parse, call, print. No arithmetic, and nothing heavy imported before it is needed."""

import os
import sys

__all__ = ["run"]


def run() -> None:
    """The console script."""
    # looking for plugins of pydantic takes longer than reading a GPU profile, and none of them is wanted here
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        from planner.cli.main import main

        status = main()
    except KeyboardInterrupt:  # while modules were imported, or a second time
        print("error: interrupted", file=sys.stderr)
        status = 130
    sys.exit(status)
