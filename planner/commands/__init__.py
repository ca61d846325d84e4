"""The commands: one function each, for the library and the command line. It prints nothing and never exits."""

import os
import sys

__all__ = ["run"]

INTERRUPTED = 130


def run() -> None:
    """Run the command line: the console script."""
    # pydantic looks for plugins, which takes longer than to read a GPU profile; planner has none
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # matrices here are small: threads would wait for each other for longer than they compute
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from planner.commands.main import main

        status = main()
    except KeyboardInterrupt:  # during the imports, or a second time
        print("error: interrupted", file=sys.stderr)
        status = INTERRUPTED
    if status == INTERRUPTED:  # whoever interrupts does not wait for modules to be taken down
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
