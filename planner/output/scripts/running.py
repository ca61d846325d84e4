"""Run an emitted script to its end, and no longer than this program lives."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from planner.errors import InputError

_PR_SET_PDEATHSIG = 1  #: of <sys/prctl.h>
#: Variables that change what the scripts leave behind.
_UNSET = ("FORCE", "KEEP", "STOP")
LEAST_WAIT_S = 120  #: that a script gets to stop its server: docker stop alone waits 10 s before it kills


def run_script(
    script: Path, *words: str, log: Path, started: Callable[[int], None] = lambda _: None, **variables: str
) -> int:
    """Run ``script`` and append what it prints to ``log``; gives its exit status. ``started`` is told its process.

    Whatever ends this program, kill -9 included, ends the script with SIGTERM, upon which it stops what it started.
    Raises InputError where it cannot be started, or its log not be written.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _UNSET}
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as printed:
            process = subprocess.Popen(  # a script that we wrote
                [str(script), *words], stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
                env={**environment, **variables}, start_new_session=True, preexec_fn=_end_with_parent,
            )  # fmt: skip
    except OSError as error:
        raise InputError(
            f"{error.filename or script}: {error.strerror}",
            hint="the folder has to be writable, and its scripts executable (chmod +x *.sh)",
        ) from error
    try:
        started(process.pid)
        return process.wait()
    except BaseException:  # Ctrl-C: the script has a session of its own, so it is told here
        process.terminate()
        process.wait()
        raise


def wait_for(process: int, script: Path) -> None:
    """Until ``process`` of an earlier run, which ended before its script did, has stopped what it started."""
    command, deadline = Path(f"/proc/{process}/cmdline"), time.monotonic() + LEAST_WAIT_S
    while time.monotonic() < deadline:
        try:
            if str(script).encode() not in command.read_bytes():
                return
        except OSError:
            return
        time.sleep(0.2)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
