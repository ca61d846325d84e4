"""``make e2e``: a real vLLM judges the commands, then runs the whole loop on the CPU.

::

    python tests/e2e/run.py VENV FOLDER

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


def main(venv: Path, folder: Path) -> int:
    """0 when the commands are accepted and the loop closes."""
    start_s = time.monotonic()
    status = balancer.main() | commands.main(venv, folder) | engines.main(venv, folder)
    status |= loop.main(venv, folder / "loop") | tuning.main(venv, folder / "tune")
    print(f"e2e: {'failed' if status else 'passed'} in {time.monotonic() - start_s:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()))
