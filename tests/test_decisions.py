"""``docs/decisions.md`` has the values of the code, and shares and factors of the packages that judge stand there."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([A-Z][A-Z0-9_]*)` \| `(.+?)` \|", PAGE, re.MULTILINE)
_CONSTANT = re.compile(r"^([A-Z][A-Z0-9_, ]*?)(?:: [^=\n]+)? = (.+?)(?:  #.*)?$", re.MULTILINE)
#: Where figures are judged. Profiles, vLLM's defaults, physics and formats are facts, each with a source beside it.
JUDGING = ("planning", "evidence", "workload", "output/tables")
#: A share, a factor or a threshold: a decimal point, no text, no call. A bound of what is taken is none, by its name.
_SHARE = re.compile(r"[^\"'\[]*\d\.\d[^\"'\[]*")
_BOUND = re.compile(r"(LEAST|MOST|LONGEST|LARGEST)_")


def assigned(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield every module constant of one line with its value as it is written. A tuple of names has one each."""
    for path in folder.rglob("*.py"):
        for names, value in _CONSTANT.findall(path.read_text(encoding="utf-8")):
            several = names.split(", ")
            yield from zip(several, value.split(", ") if len(several) > 1 else [value], strict=False)


@cache
def constants() -> dict[str, set[str]]:
    """The values of every module constant, by its name."""
    found: dict[str, set[str]] = {}
    for name, value in assigned(ROOT / "planner"):
        found.setdefault(name, set()).add(value)
    return found


@pytest.mark.parametrize(("name", "value"), ROWS, ids=[name for name, _ in ROWS])
def test_the_page_has_the_value_of_the_code(name: str, value: str) -> None:
    assert value in constants().get(name, set()), f"{name}: the code has {constants().get(name)}"


@pytest.mark.parametrize("package", JUDGING)
def test_every_share_and_factor_has_a_row(package: str) -> None:
    """What is a judgement is itself one; this finds those that a number with a decimal point gives away."""
    found = {(name, value) for name, value in assigned(ROOT / "planner" / package) if _SHARE.fullmatch(value)}
    judged = {(name, value) for name, value in found if not _BOUND.match(name) and not re.search(r"\w\(", value)}
    assert judged and judged - set(ROWS) == set()


def test_the_page_has_most_decisions() -> None:
    assert len(ROWS) > 150 and PAGE.count("\n| 2026-") > 20
