"""What a contributor relies on beside the code: the fast tests cover every package, forms and hooks can be read."""

import runpy
import tarfile
import tomllib
from pathlib import Path

import yaml
from hatchling.builders.sdist import SdistBuilder
from packaging.requirements import Requirement
from packaging.version import Version
from shell_checks import check_scripts
from test_layers import DOORS

ROOT = Path(__file__).parent.parent
SLOW: set[str] = runpy.run_path(str(ROOT / "tests" / "conftest.py"))["SLOW"]


def test_every_package_has_fast_tests_and_each_slow_module_exists() -> None:
    modules = {path for path in (ROOT / "tests").rglob("test_*.py")}
    names = {path.stem.removeprefix("test_") for path in modules}
    assert names >= SLOW, f"no such modules: {sorted(SLOW - names)}"
    fast = {path.parent.name for path in modules if path.stem.removeprefix("test_") not in SLOW}
    assert fast >= {*DOORS, "commands"}


def test_a_report_of_a_wrong_prediction_asks_for_the_plan_and_the_result() -> None:
    forms = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")}
    needed = {
        name: {field["id"] for field in form["body"] if field.get("validations", {}).get("required")}
        for name, form in forms.items()
        if name != "config"
    }
    assert needed["wrong_prediction"] >= {"plan", "result", "version"}
    assert needed["bug"] >= {"command", "output"} and "sources" in needed["new_gpu_or_model"]
    for form in forms.values():
        ids = [field["id"] for field in form.get("body", []) if "id" in field]
        assert len(ids) == len(set(ids))


def test_the_source_distribution_has_all_that_make_test_needs(tmp_path: Path) -> None:
    with tarfile.open(next(SdistBuilder(str(ROOT)).build(directory=str(tmp_path)))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "requirements-dev.txt",
        ".pre-commit-config.yaml",
        "SECURITY.md",
        "tests/conftest.py",
        "Makefile",
        ".ci/run",
    ):
        assert needed in packed
    for folder in (".github", "benchmarks", "docs", "examples", "hardware", "planner", "templates", "tests"):
        files = [path for path in (ROOT / folder).rglob("*.*") if path.is_file() and "__pycache__" not in path.parts]
        assert files and {f"{path.relative_to(ROOT)}" for path in files} <= packed, folder


#: The newest advisory of each dependency, and the release that fixed it; None where none is known. Looked up on
#: 2026-11-26 in the advisory database of the Python Packaging Authority and in reports of pip-audit since.
FIXED_IN: dict[str, tuple[str, str] | None] = {
    "annotated-types": None,
    "anyio": ("CVE-2026-64847", "4.14.2"),  # workers block on a full stderr, and ours are processes of anyio
    "h11": ("CVE-2025-43859", "0.16.0"),
    "huggingface_hub": None,
    "jinja2": ("CVE-2025-27516", "3.1.6"),
    "lazy_loader": None,
    "numpy": ("CVE-2021-41495", "1.22.2"),
    "platformdirs": None,
    "pydantic": ("CVE-2024-3772", "2.4.0"),
    "pyyaml": ("CVE-2020-14343", "5.4"),
    "rich": None,
    "scipy": ("CVE-2023-25399", "1.11.0"),
    "starlette": ("CVE-2026-54283", "1.3.1"),
    "typer": None,
    "uvicorn": ("CVE-2020-7695", "0.11.7"),
}


def test_no_dependency_may_be_older_than_its_advisories() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    floors = {
        one.name: min(Version(part.version) for part in one.specifier if part.operator == ">=")
        for one in map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["ui"]])
    }
    assert floors.keys() == FIXED_IN.keys(), "look up the advisories of what is new"
    assert all(floors[name] >= Version(advisory[1]) for name, advisory in FIXED_IN.items() if advisory), floors


def test_own_scripts_have_no_shellcheck_findings(tmp_path: Path) -> None:
    check_scripts([(ROOT / name).read_text() for name in (".ci/run", "tests/e2e/install.sh")], tmp_path)


def test_hooks_are_local() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repo["repo"] for repo in hooks["repos"]] == ["local"]
    assert {hook["id"] for repo in hooks["repos"] for hook in repo["hooks"]} >= {"ruff", "mypy", "layers"}
