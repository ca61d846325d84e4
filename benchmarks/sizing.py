"""Sizes and speeds that people stated in public, beside what planner answers.

    python benchmarks/sizing.py [--write FILE.md]

``sizing.toml`` has the stories: the question as a command line, the figure of its JSON, and the interval that is right.
The ratio of a figure is answer / right, to the nearer end of the interval, and 1 inside. A story is as good as its
worst figure. The aim is 85 % of the stories within 25 %, and none off by more than a factor of 2.
"""

import argparse
import datetime
import json
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache, cached_property
from io import StringIO
from math import inf
from pathlib import Path
from time import process_time
from typing import Any

from planner.commands.main import main as command_line

STORIES = Path(__file__).with_suffix(".toml")
WITHIN = 0.25
MOST = 2.0
WORST = 5


@dataclass(frozen=True)
class Figure:
    """One number of an answer, and the interval in which it should lie."""

    what: str
    ask: str
    key: str  #: path in the JSON of the answer
    right: tuple[float, float]
    over: str = ""  #: a second question, whose answer divides the first
    cause: str = "not known"  #: likely, of a miss

    @cached_property
    def answer(self) -> float | None:
        """Return the predicted figure; None where planner has no plan."""
        first, second = (figure_of(asked(ask)[0], self.key) if ask else 1.0 for ask in (self.ask, self.over))
        return first / second if first and second else None

    @property
    def ratio(self) -> float:
        """Return answer / right: 1 inside the interval, infinite without an answer."""
        low, high = self.right
        return inf if self.answer is None else self.answer / min(max(self.answer, low), high)

    @property
    def off(self) -> float:
        """Return the factor by which the answer is too large or too small."""
        return max(self.ratio, 1 / self.ratio)

    @property
    def within(self) -> bool:
        return abs(self.ratio - 1) <= WITHIN


@dataclass(frozen=True)
class Story:
    """A load that somebody stated, and its figures."""

    name: str
    source: str
    figures: tuple[Figure, ...]


def stories(path: Path = STORIES) -> list[Story]:
    """Return the stories of a file."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["story"]
    return [Story(row["name"], row["source"], tuple(Figure(**one) for one in row["figure"])) for row in rows]


@cache
def asked(line: str) -> tuple[Any, float]:
    """Return the JSON that a command prints, and its CPU seconds."""
    out, begun_s = StringIO(), process_time()
    with redirect_stdout(out), redirect_stderr(StringIO()):
        command_line([*line.split(), "--format", "json"])
    return json.loads(out.getvalue() or "null"), process_time() - begun_s


def figure_of(answer: Any, path: str) -> float | None:
    """Return the number at a path such as ``plans.0.service.total_gpus``; None where the answer lacks it."""
    for name in path.split("."):
        try:
            answer = answer[int(name) if name.isdigit() else name]
        except (IndexError, KeyError, TypeError):
            return None
    return None if answer is None else float(answer)


def number(value: float | None) -> str:
    """Return a figure in digits."""
    return "none" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def lines(told: Sequence[Story]) -> Iterator[str]:
    """Return the page: the count, each figure, and the worst."""
    figures = [figure for story in told for figure in story.figures]
    met = sum(all(figure.within for figure in story.figures) for story in told)
    far = sum(any(figure.off > MOST for figure in story.figures) for story in told)
    yield "# Sizes\n"
    yield (
        f"{datetime.date.today()}; `python benchmarks/sizing.py`. {met} of {len(told)} stories ({met / len(told):.0%}) "
        f"are within {WITHIN:.0%}, and {far} have a figure that is off by more than a factor of {MOST:g}. The aim is "
        f"85 % and none. {sum(figure.within for figure in figures)} of {len(figures)} figures are within {WITHIN:.0%}. "
        "Ratio: answer / right.\n"
    )
    yield "| story | figure | right | answer | ratio | CPU s |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for story in told:
        for figure in story.figures:
            right, answer = " to ".join(dict.fromkeys(map(number, figure.right))), number(figure.answer)
            cpu_s = asked(figure.ask)[1]
            yield f"| {story.name} | {figure.what} | {right} | {answer} | {figure.ratio:.2f} | {cpu_s:.1f} |"
    yield f"\n## The {WORST} worst\n\n| figure | off by | likely cause |\n| --- | ---: | --- |"
    worst = sorted(((figure, story) for story in told for figure in story.figures), key=lambda pair: -pair[0].off)
    for figure, story in worst[:WORST]:
        yield f"| {story.name}: {figure.what} | {figure.off:.1f} | {figure.cause} |"
    yield "\n## Sources\n"
    for story in told:
        yield f"- {story.name}: {story.source}."


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    written = parser.parse_args().write
    text = "\n".join(lines(stories())) + "\n"
    print(text)
    if written:
        written.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
