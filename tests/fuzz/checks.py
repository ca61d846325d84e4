"""What a command may leave behind: on its streams, in its folder and in its home."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from kinds import Case

CANARY = "canary-of-the-fuzz"  #: a file of this name exists where a value was run by a shell
#: Exit statuses that the documentation has for what a user can cause.
STATUSES = (0, 1, 2, 3)
MOST_WRITTEN_BYTES = 150_000_000
_UNFINISHED = re.compile(r"\.(part|tmp)$")
#: What a reader of Markdown makes of a value that is more than text: a script, a picture, a link that runs one.
_LIVE = re.compile(r"<script|<img|<a [^>]*href=\"(javascript|data|vbscript):[^>]*>", re.IGNORECASE)
_MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")
_MARKDOWN.validateLink = lambda _: True  # type: ignore[method-assign]


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    status: int | str
    out: str
    err: str
    seconds: float  #: of CPU time
    bytes: int


@dataclass(frozen=True)
class Finding:
    """Something that must not be."""

    what: str
    detail: str


def find_faults(case: Case, done: Done, home: Path, secrets: list[str]) -> list[Finding]:
    """Everything that is wrong with a case."""
    return [*_ending(done), *_streams(case, done), *_left(case, home), *_secrets(done, home, [*secrets, *case.secrets])]


def _ending(done: Done) -> Iterator[Finding]:
    if done.status == "hang":
        yield Finding("hang", f"{done.seconds:.1f} s of CPU time")
    elif done.status == 70 or "Traceback (most recent call last)" in done.err + done.out:
        last = [line for line in done.err.splitlines() if line and not line.startswith(("error: ", "hint: ", " "))]
        yield Finding("trace", (last or [""])[-1][:200])
    elif done.status not in STATUSES:
        yield Finding("exit status", f"{done.status}: {done.err[-200:]!r}")
    elif done.status in (2, 3):
        steps = ("note: ", "      ", "run ", "  out: ")
        lines = [line for line in done.err.splitlines() if not line.startswith(steps)]
        told = len(lines) == 2 and lines[0].startswith("error: ") and lines[1].startswith("hint: ")
        if not told:
            yield Finding("error text", repr(done.err[-300:]))
    if done.bytes > 10**9:
        yield Finding("memory", f"{done.bytes / 1e9:.2f} GB")


def _streams(case: Case, done: Done) -> Iterator[Finding]:
    if "RuntimeWarning" in done.err:
        yield Finding("warning of a library", done.err[done.err.find("RuntimeWarning") :][:150])
    if case.json and done.status in (0, 1) and case.call is None:
        try:
            answer = json.loads(done.out, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
        except ValueError as error:
            yield Finding("JSON", f"{error}: {done.out[:100]!r}")
        else:
            yield from _absurd(answer)


def _absurd(answer: Any, where: str = "") -> Iterator[Finding]:
    """Figures that no server has."""
    if isinstance(answer, list):
        for one in answer[:50]:
            yield from _absurd(one, where)
        return
    if not isinstance(answer, dict):
        return
    for key, value in answer.items():
        if isinstance(value, dict | list):
            yield from _absurd(value, f"{where}.{key}")
        elif isinstance(value, float) and not isfinite(value):
            yield Finding("absurd", f"{where}.{key} is {value}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            named = key.endswith(("_ms", "_throughput", "_bytes", "_params")) and "overhead" not in key
            if named and value < 0 and "margin" not in key and "kv_cache_bytes" not in key:
                yield Finding("absurd", f"{where}.{key} is {value}")
            low, high = answer.get(f"{key}_lo"), answer.get(f"{key}_hi")
            if (
                isinstance(low, float)
                and isinstance(high, float)
                and not low <= value * (1 + 1e-9) <= high * (1 + 1e-8)
            ):
                yield Finding("absurd", f"{where}.{key} is {value}, outside {low} to {high}")


def _left(case: Case, home: Path) -> Iterator[Finding]:
    total = 0
    for path in _files(home):
        size = path.stat().st_size
        total += size if path not in case.own else 0
        if _UNFINISHED.search(path.name) and path not in case.own:
            yield Finding("half-written", str(path.relative_to(home)))
        if path.name == CANARY:
            yield Finding("a value was run", str(path.relative_to(home)))
        if path not in case.own and path.parent != home and size < 5_000_000:
            yield from _content(path)
    if total > MOST_WRITTEN_BYTES:
        yield Finding("disk", f"{total / 1e6:.0f} MB")


def _content(path: Path) -> Iterator[Finding]:
    text = path.read_bytes().decode("utf-8", "replace")
    try:
        if path.suffix == ".json" and "home" not in path.parts:
            json.loads(text)
        elif path.suffix in (".yaml", ".yml"):
            list(yaml.safe_load_all(text))
    except (ValueError, yaml.YAMLError) as error:
        yield Finding("a written file cannot be read", f"{path.name}: {str(error)[:150]}")
    if path.suffix == ".md" and (found := _LIVE.search(_MARKDOWN.render(text))):
        yield Finding("a value became a link", f"{path.name}: {found.group()!r}")
    if path.suffix == ".sh":
        checked = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
        if checked.returncode:
            yield Finding("a script is no script", f"{path.name}: {checked.stderr[:150]}")


def _secrets(done: Done, home: Path, secrets: list[str]) -> Iterator[Finding]:
    shown = {"stdout": done.out, "stderr": done.err}
    for secret in secrets:
        for stream, text in shown.items():
            if secret in text:
                yield Finding("a secret is shown", f"{stream}: {secret[:6]}...")
        for path in _files(home):
            if path.parent != home and path.stat().st_size < 5_000_000 and secret.encode() in path.read_bytes():
                yield Finding("a secret is written", str(path.relative_to(home)))


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
