"""The table of workflows in the documentation: every workflow has a row, and its files exist."""

import re
from pathlib import Path

from workflow_cases import NAMES, files_of

from planner.output.workflows.documents import find_workflow

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "workflows.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w.-]+)` \| (.+) \|$", PAGE, re.MULTILINE)


def test_every_workflow_has_a_row() -> None:
    assert [name for name, _ in ROWS] == list(NAMES)


def test_each_row_names_files_that_are_written() -> None:
    for name, files in ROWS:
        named = set(re.findall(r"`([^`]+)`", files))
        assert named <= set(files_of(name)), name
        assert named <= set(find_workflow(name).scripts), name


def test_examples_name_workflows() -> None:
    assert set(re.findall(r"^planner workflow ([\w.-]+)", PAGE, re.MULTILINE)) <= set(NAMES)
