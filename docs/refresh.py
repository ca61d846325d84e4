"""Write the real output of every command into the documentation: ``make docs``.

In README.md and all pages below docs/, each ``$ planner ...`` in a block fenced as ``console`` is run in this process,
offline and in an empty folder. Its output, as on a terminal 120 columns wide, is written below it. Also understood: a
line continued with a backslash, ``| head -n N`` behind a command, ``| tail -n +M | head -n N``, ``echo $?`` after one,
and ``pip install . && `` before one (not run). Other commands keep the output that they have.

A line ``...`` in an output stands for lines that the page leaves out: the page keeps as many lines before and after it
as it has.

A block fenced as ``py`` is run in this process, with the names that earlier ones of the page made; what it prints is
written into the block fenced as ``text`` below it.

A block fenced as ``toml planner.toml`` (or any format and file name) is written to that file for the rest of the page.

Numbers of more than 6 decimals are rounded to 4 significant digits. An output is left as it is while it says the same:
the same words, and numbers that agree to 3 significant digits (``same``). So a refit changes only the pages on which a
reader sees another number. ``tests/test_docs.py`` fails when a page is not as this script would write it.

A figure of accuracy, such as ``14 %`` or ``14 %, 65 %``, with the comment ``<!-- source: TPOT, stock -->`` behind it is
that of the line of this name in benchmarks/results/accuracy.md, of a source (model, GPU) that was never seen, or of a
new load or combination.

``reference`` writes the lower part of docs/reference/commands.md.
"""

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from reference import with_reference

from planner.commands.main import main

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 120
BLOCK = re.compile(r"^```(?P<kind>\w+)(?: (?P<file>\S+))?\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = "$ "
NOT_RUN = "pip install . && "
HEAD = re.compile(r"(?: \| tail -n \+(?P<first>\d+))? \| head -n (?P<lines>\d+)$")
CUT = "...\n"
#: A section of the results: of what was never seen, or is new.
SECTION = re.compile(
    r"^## A (?:(\w+) never seen|[^\n]*\bnew (load|combination)\b).*?(?=^## |\Z)", re.MULTILINE | re.DOTALL
)
FIGURE = re.compile(r"\d+ %(?P<within>, \d+ %)?(?P<comment><!-- (?P<section>\w+): (?P<line>[^>]+) -->)")

#: Half a unit of the third digit of 1.00, the largest that it can be.
TOLERANCE = 0.005
#: A number that stands alone: not in a name (mi300x, 8B), a version (0.27.1) or the year of a date.
NUMBER = re.compile(r"(?<![\w.])(?!\d{4}-\d\d\b)(?:(?<!\w)-)?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?!\w|\.\d)")
LONG = re.compile(r"(?<![\w.])\d+\.\d{7,}(?!\w)")
#: What is drawn, or hangs on the last digit of everything: bars of charts, rules, digests.
DRAWN = re.compile(r"[^\w\s\x00-\x7f]+|([^\w\s])\1+|\b(?=\d*[a-f])[0-9a-f]{12,64}\b")


def pages() -> list[Path]:
    """The pages whose commands are run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def refreshed(page: str) -> str:
    """The text of a page with the output of its commands as it is now."""
    with _empty_folder():
        scripts = Scripts()
        return with_reference(FIGURE.sub(_figure, BLOCK.sub(lambda found: _block(found, scripts), page)))


@cache
def _figures() -> dict[tuple[str, str], tuple[str, str]]:
    """Median error, and share within 20 %, by what is new and the name of the line."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    results = (ROOT / "benchmarks" / "results" / "accuracy.md").read_text(encoding="utf-8")
    for section in re.finditer(SECTION, results):
        for line, error, within in re.findall(
            r"^\| ([^|]+) \| \d+ \| ([\d.]+)% \| (\d+)% \| [+-]", section[0], re.MULTILINE
        ):
            found[(section[1] or section[2]).lower(), line] = f"{float(error):.0f} %", f", {within} %"
    return found


def _figure(found: re.Match[str]) -> str:
    error, within = _figures()[found["section"], found["line"]]
    return error + (within if found["within"] else "") + found["comment"]


def same(shown: str, fresh: str) -> bool:
    """Whether two outputs say the same, numbers to 3 significant digits; how lines are broken does not count."""
    (words, numbers), (fresh_words, fresh_numbers) = _read(shown), _read(fresh)
    return words == fresh_words and all(
        abs(a - b) <= TOLERANCE * max(abs(a), abs(b)) for a, b in zip(numbers, fresh_numbers, strict=True)
    )


def _read(output: str) -> tuple[list[str], list[float]]:
    """The words of an output, with a mark for each number, and the numbers."""
    text = DRAWN.sub("~", output)
    return NUMBER.sub("#", text).split(), [float(found.replace(",", "")) for found in NUMBER.findall(text)]


class Scripts:
    """The Python of a page, block by block."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {"__name__": "page"}
        self.said: str | None = None  #: by the block before; None: that was no Python

    def run(self, body: str) -> None:
        """Run a block and keep what it prints."""
        out = StringIO()
        with redirect_stdout(out):
            exec(body, self.names)  # noqa: S102  (our own page)
        self.said = out.getvalue()

    def take(self) -> str | None:
        """What the block before printed, once."""
        said, self.said = self.said, None
        return said


def _block(found: re.Match[str], scripts: Scripts) -> str:
    if found["kind"] == "py":
        scripts.run(found["body"])
        return found[0]
    said = scripts.take()
    if found["kind"] == "text" and said is not None:
        return f"```text\n{_kept(found['body'], said)}```"
    if found["file"]:
        path = Path(found["file"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found["body"], encoding="utf-8")
    if found["kind"] != "console":
        return found[0]
    return f"```console\n{''.join(_session(found['body']))}```"


def _session(body: str) -> Iterator[str]:
    """The commands of a block, each followed by its output."""
    status = 0
    for typed, shown in _commands(body):
        yield typed
        line = " ".join(part.removesuffix("\\").strip() for part in typed.splitlines())
        line = line.removeprefix(PROMPT).removeprefix(NOT_RUN)
        if line == "echo $?":
            yield f"{status}\n"
        elif line.startswith("planner "):
            status, output = run(line)
            yield _kept(shown, _cut(shown, output))
        else:
            yield shown


def _commands(body: str) -> Iterator[tuple[str, str]]:
    """(what is typed, what is shown below it) for each command of a block."""
    lines = body.splitlines(keepends=True)
    index = 0
    while index < len(lines):
        end = index + 1
        while lines[end - 1].endswith("\\\n"):
            end += 1
        after = end
        while after < len(lines) and not lines[after].startswith(PROMPT):
            after += 1
        yield "".join(lines[index:end]), "".join(lines[end:after])
        index = after


def _cut(shown: str, output: str) -> str:
    """The output without the lines that the page leaves out."""
    before, cut, after = shown.partition(f"\n{CUT}")
    if not cut:
        return output
    lines = output.splitlines(keepends=True)
    first, last = before.count("\n") + 1, after.count("\n")
    return "".join([*lines[:first], CUT, *lines[max(first, len(lines) - last) :]])


def _kept(shown: str, fresh: str) -> str:
    """What the page shows as long as that says the same."""
    return shown if same(shown, fresh) else fresh


def run(line: str) -> tuple[int, str]:
    """Exit status of a command line, and what it shows: data, then remarks."""
    cut = HEAD.search(line)
    words = shlex.split(HEAD.sub("", line))[1:]
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(words)
    data = out.getvalue()
    if cut:
        first = int(cut["first"] or 1) - 1
        data = "".join(data.splitlines(keepends=True)[first : first + int(cut["lines"])])
    return status, LONG.sub(lambda found: f"{float(found[0]):.4g}", data + err.getvalue())


@contextmanager
def _empty_folder() -> Iterator[None]:
    """A working directory with the data of the pages alone, an empty home, no network, a terminal of fixed width."""
    with tempfile.TemporaryDirectory() as home:
        names = ("HOME", "HF_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
        settings = {**dict.fromkeys(names, f"{home}/home"), "HF_HUB_OFFLINE": "1", "COLUMNS": str(WIDTH)}
        work = Path(home) / "work"
        work.mkdir()
        shutil.copytree(ROOT / "docs" / "data", work / "docs" / "data")
        with patch.dict(os.environ, settings), chdir(work):
            yield


def refresh() -> int:
    """Rewrite the pages; say which changed."""
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = refreshed(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"rewrote {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(refresh())
