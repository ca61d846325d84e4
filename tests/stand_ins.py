"""A machine on which scripts run for real: bash is real, the programs that reach beyond it are stand-ins.

Stand-ins on PATH record their argument lists and keep their state in files, so that a test reads what was called and
breaks one thing at a time.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_RECORD = """#!/bin/bash
state={state}
printf '%s\\0' "$(($# + 1))" {name} "$@" >>"$state/calls"
"""


class StandIns:
    """A folder with scripts (``plan``), the state of the stand-ins (``state``), a home and the programs (``bin``)."""

    def __init__(self, root: Path, tools: Sequence[str], stubs: Mapping[str, str]) -> None:
        self.plan, self.state, self.home, self.bin = (root / name for name in ("the plan", "state", "home", "bin"))
        for folder in (self.state, self.home, self.bin):
            folder.mkdir(parents=True)
        for name in tools:
            found = shutil.which(name)
            assert found, f"{name} is needed to run the scripts"
            (self.bin / name).symlink_to(found)
        for name, body in stubs.items():
            self.stub(self.bin / name, body)

    @staticmethod
    def program(path: Path, text: str) -> None:
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def stub(self, path: Path, body: str = "", name: str = "") -> None:
        """A program that records how it was called."""
        self.program(path, _RECORD.format(state=self.state, name=name or path.name) + body)

    def set(self, **files: object) -> None:
        """Write files of the state; their presence or content is what the stand-ins look at."""
        for name, value in files.items():
            (self.state / name.replace("__", "-")).write_text(f"{value}\n")

    def environment(self, **variables: str) -> dict[str, str]:
        return {"PATH": str(self.bin), "HOME": str(self.home), "LC_ALL": "C.UTF-8", **variables}

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a script to its end."""
        return subprocess.run(
            ["bash", self.plan / script, *arguments], env=self.environment(**variables), cwd=self.home,
            capture_output=True, text=True, errors="surrogateescape", timeout=120, check=False,
        )  # fmt: skip

    def interrupt(
        self, script: str, when: str, how: signal.Signals, *arguments: str, **variables: str
    ) -> tuple[int, str]:
        """Start a script, wait for a file of the state, send a signal as Ctrl-C in a terminal or ``kill`` would.

        Returns the exit status and what was printed.
        """
        process = subprocess.Popen(
            [self.bin / "bash", self.plan / script, *arguments], env=self.environment(**variables), cwd=self.home,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 120  # other work may hold both cores
        while not (self.state / when).exists():
            if time.monotonic() > deadline or process.poll() is not None:
                process.kill()
                raise AssertionError(process.communicate()[0])
            time.sleep(0.02)
        if how == signal.SIGINT:
            os.killpg(process.pid, how)
        else:
            process.send_signal(how)
        printed, _ = process.communicate(timeout=60)
        return process.returncode, printed

    def all_calls(self) -> list[list[str]]:
        """The command lines with which stand-ins were called, in order."""
        try:
            fields = (self.state / "calls").read_bytes().decode(errors="surrogateescape").split("\0")
        except FileNotFoundError:
            return []
        calls, at = [], 0
        while fields[at]:
            length = int(fields[at])
            calls.append(fields[at + 1 : at + 1 + length])
            at += 1 + length
        return calls

    def calls(self, program: str) -> list[list[str]]:
        """The argument lists with which one stand-in was called, in order."""
        return [call[1:] for call in self.all_calls() if call[0] == program]

    def docker(self, verb: str) -> list[list[str]]:
        """The argument lists of one docker command."""
        return [call[1:] for call in self.calls("docker") if call[0] == verb]

    def forget(self) -> None:
        (self.state / "calls").unlink(missing_ok=True)
