"""The house rules: imports point one way, and each heavy library has few owners.

Modules may import from their own layer and from the layers above it in ``LAYERS``; never from a later one.
When this test fails, move the line to the layer where it belongs instead of widening the list.
"""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "planner"

LAYERS = (
    ("base", {"units", "errors"}),
    ("sources", {"resources", "hub", "local_gpus"}),
    ("facts", {"hardware", "model", "engine", "workload", "workloads", "trace", "measurements", "consistency"}),
    ("layout", {"parallelism"}),
    ("physics", {"memory", "operators", "adapters", "hostlink", "efficiency", "roofline", "collectives"}),
    ("time", {"step", "speculation", "calibration", "local"}),
    ("serving", {"scheduler", "bench", "slo"}),
    (
        "decide",
        {
            "fit",
            "plan",
            "predict",
            "capacity",
            "cost",
            "compare",
            "fleet",
            "evaluate",
            "recommend",
            "observations",
            "heldout",
            "check",
            "validate",
            "calibrate",
            "dossier",
        },
    ),
    ("out", {"scripts", "charts", "report"}),
    ("library", {"api"}),
    ("edge", {"cli"}),
)

OWNERS = {
    "typer": {"cli"},
    "jinja2": {"scripts", "report"},
    "tabulate": {"report"},
    "yaml": {"scripts"},
    "matplotlib": {"charts"},
    "plotext": {"charts"},
    "scipy": {"calibration", "fleet"},
    "huggingface_hub": {"hub"},
    "pydantic": {"hardware", "efficiency", "plan"},
    "platformdirs": {"hub", "resources"},
}

RANK = {module: rank for rank, (_, modules) in enumerate(LAYERS) for module in modules}


def module_of(path: Path) -> str:
    """The module of the house that a file belongs to: ``model`` for ``planner/model/config.py``."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, wherever the import stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


FILES = [p for p in PACKAGE.rglob("*.py") if p.name not in {"__init__.py", "__main__.py"} or p.parent != PACKAGE]


def test_every_module_has_a_place_in_the_house() -> None:
    strangers = {module_of(path) for path in FILES} - RANK.keys()
    assert not strangers, f"give these modules a layer: {sorted(strangers)}"


def test_the_documentation_draws_this_house() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| (`.*`) \|$", page, re.MULTILINE)
    assert tuple((layer, set(re.findall(r"`(\w+)`", modules))) for layer, modules in rows) == LAYERS


def test_imports_point_from_the_edge_to_the_base() -> None:
    wrong = []
    for path in FILES:
        here = module_of(path)
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] != "planner" or len(parts) < 2 or parts[1] not in RANK:
                continue
            if RANK[parts[1]] > RANK[here]:
                wrong.append(f"{path.relative_to(PACKAGE)} ({here}) imports {name}, which lives nearer to the edge")
    assert not wrong, "\n".join(wrong)


def test_modules_of_one_layer_have_no_cycle() -> None:
    edges: dict[str, set[str]] = {}
    for path in FILES:
        here = module_of(path)
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] == "planner" and len(parts) > 1 and parts[1] in RANK and parts[1] != here:
                edges.setdefault(here, set()).add(parts[1])

    def reaches(start: str, goal: str, seen: set[str]) -> bool:
        onward = edges.get(start, set()) - seen
        return goal in onward or any(reaches(step, goal, seen | onward) for step in onward)

    cycles = sorted(module for module in edges if reaches(module, module, set()))
    assert not cycles, f"these modules import each other in a circle: {cycles}"


def test_heavy_libraries_have_few_owners() -> None:
    wrong = []
    for path in FILES:
        here = module_of(path)
        for name in imports_of(path):
            owners = OWNERS.get(name.split(".")[0])
            if owners is not None and here not in owners:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}: only {sorted(owners)} may")
    assert not wrong, "\n".join(wrong)
