"""``make e2e``: a real vLLM judges the commands, then runs the whole loop on the CPU.

::

    python tests/e2e/run.py VENV FOLDER [PART ...]

VENV has vLLM, FOLDER the trees of older versions (``install.sh`` makes both); the model and the plan go there too.
Without a PART all run. ``server`` leaves the server running that ``loop`` measures and stops. ``loop`` and ``tuning``
measure: nothing else may keep the machine busy meanwhile.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import balancer
import commands
import engines
import loop
import tuning

PARTS: dict[str, Callable[[Path, Path], int]] = {
    "balancer": lambda venv, folder: balancer.main(),
    "commands": commands.main,
    "engines": engines.main,
    "server": lambda venv, folder: loop.start(venv, folder / "loop"),
    "loop": lambda venv, folder: loop.main(venv, folder / "loop"),
    "tuning": lambda venv, folder: tuning.main(venv, folder / "tune"),
}


def main(venv: Path, folder: Path, parts: Sequence[str]) -> int:
    """0 when the commands are accepted and the loop closes."""
    start_s, status = time.monotonic(), 0
    for part in parts:
        status |= PARTS[part](venv, folder)
    print(f"e2e, {', '.join(parts)}: {'failed' if status else 'passed'} in {time.monotonic() - start_s:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute(), sys.argv[3:] or tuple(PARTS)))
