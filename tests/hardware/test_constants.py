"""Assumed numbers: each has a unit and a basis, and each is read somewhere."""

from pathlib import Path

import planner
from planner.hardware.profiles import constant, constant_of, load_constants


def test_each_constant_is_read_and_says_what_it_rests_on() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in Path(planner.__file__).parent.rglob("*.py"))
    for name, entry in load_constants().items():
        group = name.partition(".")[0]
        assert f'"{group}"' in code or f'"{group}.' in code, name
        assert len(entry.basis) > 20 and constant(name) > 0, name


def test_a_group_has_a_value_for_what_it_does_not_name() -> None:
    assert constant_of("latency_growth", "pcie") > constant_of("latency_growth", "nvswitch")
    assert constant_of("latency_growth", "on-package") == constant("latency_growth.other")


def test_units_are_those_used_inside() -> None:
    assert constant("beyond_links") == 50e9
