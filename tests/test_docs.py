"""The documentation cannot drift: every output in it is what the command prints now."""

import re
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from planner.cli.app import COMMANDS

ROOT = Path(__file__).parent.parent


def _refresh() -> ModuleType:
    """``docs/refresh.py``, which is a script and no package."""
    spec = spec_from_file_location("refresh", ROOT / "docs/refresh.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


refresh = _refresh()


@pytest.mark.parametrize("page", refresh.pages(), ids=lambda page: page.name)
def test_outputs_are_those_of_today(page: Path) -> None:
    """Run ``make docs`` when this fails, and look at what changed."""
    text = page.read_text(encoding="utf-8")
    assert refresh.refreshed(text).splitlines() == text.splitlines()


def test_outputs_are_written_below_what_is_typed() -> None:
    page = """
```console
$ planner hardware show h10
stale
$ echo $?
$ planner hardware list \\
    --format csv | head -n 1
$ make coffee
is not ours
```

```toml planner.toml
[hardware.list]
format = "csv"
```

```console
$ planner hardware list | head -n 1
```

    $ planner --version
"""
    head = "id,memory_gib,"
    lines = refresh.refreshed(page).splitlines()
    assert "stale" not in lines
    assert lines[2:6] == [
        "$ planner hardware show h10",
        "error: unknown GPU 'h10'",
        "hint: nearest: h100, h20, h200; see `planner hardware list`, or give the path of a .toml file",
        "$ echo $?",
    ]
    assert lines[6:9] == ["2", "$ planner hardware list \\", "    --format csv | head -n 1"]
    assert lines[9].startswith(head)
    assert lines[10:12] == ["$ make coffee", "is not ours"]
    assert sum(line.startswith(head) for line in lines) == 2  # the second without --format: the file was written
    assert lines[-1] == "    $ planner --version"
    assert not Path("planner.toml").exists()  # it lay in a folder of the page's own


def test_the_two_commands_of_the_readme_are_enough() -> None:
    """One installs and plans, one tests; the names in them are those of the project."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    start = readme[readme.index("## Start") : readme.index("## Questions")]
    assert re.findall(r"^\$ (.*)$", start, re.MULTILINE) == [
        "pip install . && planner recommend --goal min-latency",
        "make test",
    ]
    assert re.search(r"^test:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"`{project['name']}`" in readme
    assert list(project["scripts"]) == ["planner"]


def test_every_command_has_a_section() -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## planner (\w+)$", page, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("page", refresh.pages(), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
