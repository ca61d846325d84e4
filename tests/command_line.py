"""Running command lines: in this process, or in one of their own where the process itself is the point."""

import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from os import openpty
from pathlib import Path
from signal import SIGINT
from termios import tcsetwinsize
from time import monotonic
from typing import Any, NamedTuple
from unittest.mock import patch

from planner.commands.main import main
from planner.output import Answer


class Outcome(NamedTuple):
    """What a command printed and how it ended."""

    status: int
    out: str
    err: str


def run(*words: str) -> Outcome:
    """A command line in this process."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(words)
    return Outcome(status, out.getvalue(), err.getvalue())


def refused(*words: str) -> str:
    """The error of a command line that ends with 2; fails unless it says what to do, and prints nothing else."""
    outcome = run(*words)
    assert outcome.status == 2 and outcome.out == "" and "hint: " in outcome.err, outcome
    return outcome.err


def json_of(*words: str) -> Any:
    """What a command prints with ``--format json``; fails unless it ends with 0."""
    outcome = run(*words, "--format", "json")
    assert outcome.status == 0, outcome.err
    return json.loads(outcome.out)


def answer_of(*words: str) -> Answer:
    """What a command would print, for tests that look at it in several forms; fails where it is an error."""
    found: list[Answer] = []
    with patch("planner.output.print_answer", lambda answer, _: found.append(answer)):
        outcome = run(*words)
    assert found, outcome.err
    return found[0]


def start(*words: str, program: tuple[str, ...] = ("-m", "planner"), **environment: str) -> subprocess.Popen[bytes]:
    """A command line in a process of its own, offline, with pipes for stdout and stderr."""
    return subprocess.Popen(
        [sys.executable, *program, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": _path(), "HF_HUB_OFFLINE": "1", **environment},
    )


def spawn(*words: str, **environment: str) -> Outcome:
    """A command line in a process of its own, to its end."""
    process = start(*words, **environment)
    out, err = process.communicate(timeout=60)
    return Outcome(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def on_terminal(
    *words: str, interrupt_on: bytes = b"", columns: int = 100, **environment: str
) -> tuple[Outcome, float]:
    """A command line on a terminal of its own, where stdout and stderr are one; Ctrl-C once it shows some bytes.

    Also the seconds from Ctrl-C to the end.
    """
    master, terminal = openpty()
    tcsetwinsize(terminal, (40, columns))
    own = {"TERM": "xterm-256color", "PYTHONPATH": _path(), "HF_HUB_OFFLINE": "1", **environment}
    process = subprocess.Popen(
        [sys.executable, "-m", "planner", *words], stdin=terminal, stdout=terminal, stderr=terminal,
        env={**{name: value for name, value in os.environ.items() if name != "NO_COLOR"}, **own}, close_fds=True,
    )  # fmt: skip
    os.close(terminal)
    shown, pressed_s = b"", 0.0
    with suppress(OSError):  # the terminal is gone with its last process
        while piece := os.read(master, 65536):
            shown += piece
            if interrupt_on and interrupt_on in shown and not pressed_s:
                process.send_signal(SIGINT)
                pressed_s = monotonic()
    status, ended_s = process.wait(60), monotonic()
    os.close(master)
    return Outcome(status, shown.decode().replace("\r\n", "\n"), ""), ended_s - pressed_s


def shell(line: str) -> Outcome:
    """A line for ``bash``, in which ``planner`` is the command."""
    words = ["bash", "-c", f'planner() {{ "{sys.executable}" -m planner "$@"; }}; {line}']
    done = subprocess.run(
        words, capture_output=True, timeout=60, env={**os.environ, "PYTHONPATH": _path(), "HF_HUB_OFFLINE": "1"}
    )
    return Outcome(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def error_of(outcome: Outcome) -> tuple[str, str]:
    """Cause and hint of an error; fails unless it is told in exactly these two lines and nothing is on stdout."""
    lines = outcome.err.splitlines()
    assert outcome.out == ""
    assert len(lines) == 2, outcome.err
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("hint: ")
    return lines[0].removeprefix("error: "), lines[1].removeprefix("hint: ")


def _path() -> str:
    """Where the tested package lies, so that a process in another folder finds the same one."""
    import planner

    return str(Path(str(planner.__file__)).parent.parent)
