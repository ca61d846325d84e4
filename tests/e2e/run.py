"""``make e2e``: a real vLLM judges the commands, then runs the whole loop on the CPU.

::

    python tests/e2e/run.py VENV FOLDER [--without-tuning]

VENV has vLLM, FOLDER the trees of older versions (``install.sh`` makes both); the model and the plan go there too.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import balancer
import commands
import engines
import loop
import tuning


def main(venv: Path, folder: Path, *, tuned: bool) -> int:
    """0 when the commands are accepted and the loop closes."""
    start_s = time.monotonic()
    status = balancer.main() | commands.main(venv, folder) | engines.main(venv, folder)
    status |= loop.main(venv, folder / "loop")
    if tuned:
        status |= tuning.main(venv, folder / "tune")
    print(f"e2e: {'failed' if status else 'passed'} in {time.monotonic() - start_s:.0f} s")
    return status


if __name__ == "__main__":
    places = (Path(word).absolute() for word in sys.argv[1:3])
    sys.exit(main(*places, tuned="--without-tuning" not in sys.argv[3:]))
