"""``docs/decisions.md`` has the values of the code, and every judgement of the planner stands there."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([A-Z][A-Z0-9_]*)` \| `(.+?)` \|", PAGE, re.MULTILINE)
_CONSTANT = re.compile(r"^([A-Z][A-Z0-9_, ]*?)(?:: [^=\n]+)? = (.+?)(?:  #.*)?$", re.MULTILINE)


@cache
def constants() -> dict[str, set[str]]:
    """Every module constant of one line, by name: its values as they are written. A tuple of names has one each."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "planner").rglob("*.py"):
        for names, value in _CONSTANT.findall(path.read_text(encoding="utf-8")):
            several = names.split(", ")
            values = value.split(", ") if len(several) > 1 else [value]
            for name, one in zip(several, values, strict=False):
                found.setdefault(name, set()).add(one)
    return found


@pytest.mark.parametrize(("name", "value"), ROWS, ids=[name for name, _ in ROWS])
def test_the_page_has_the_value_of_the_code(name: str, value: str) -> None:
    assert value in constants().get(name, set()), f"{name}: the code has {constants().get(name)}"


def test_the_page_has_most_decisions() -> None:
    assert len(ROWS) > 50 and PAGE.count("\n| 2026-") > 20
