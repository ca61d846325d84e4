"""The house rules: rooms in one order, entered through the door, and few owners for each heavy library.

A room is a folder, or a module, at the top of ``planner``. It may import from the rooms before it in ``ROOMS``, and
only the names that they offer in their ``__init__.pyi``. When this test fails, move the line to the room whose
question it answers, instead of widening the list.
"""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "planner"

#: The ground first, then every room after all that it may use.
ROOMS = (
    "errors",
    "units",
    "resources",
    "secrets",
    "progress",
    "hardware",
    "model",
    "workload",
    "engine",
    "memory",
    "timing",
    "simulator",
    "planning",
    "evidence",
    "output",
    "commands",
)
GROUND = ROOMS[:5]
#: Rooms that offer names through a door of their own. ``planner/__init__.pyi`` is the door of ``commands``.
DOORS = ROOMS[5:-1]

OWNERS = {
    "typer": {"commands"},
    "rich": {"commands"},
    "jinja2": {"output"},
    "yaml": {"output", "engine"},
    "starlette": {"commands"},
    "uvicorn": {"commands"},
    "anyio": {"commands"},
    "scipy": {"planning", "evidence"},
    "huggingface_hub": {"model"},
    "pydantic": {"hardware", "timing", "planning", "evidence", "commands"},
    "platformdirs": {"model", "resources"},
}

#: What ``from planner import ...`` gives: the door of the house.
LIBRARY = PACKAGE / "__init__.pyi"
FILES = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in GROUND]


def room_of(path: Path) -> str:
    """The room of a file: ``model`` for ``planner/model/config.py``."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports_of(path: Path) -> list[tuple[str, str]]:
    """Every import of a file, wherever it stands: the module, and the name that is taken from it (or nothing)."""
    found, rooms, tree = [], dict[str, str](), ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = "planner." if node.level else ""  # only in the door of the house
            found += [(inside + node.module, alias.name) for alias in node.names]
            whole = node.names if node.module == "planner" else ()  # taken whole, used by the dot
            rooms |= {alias.asname or alias.name: alias.name for alias in whole if alias.name in DOORS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in rooms:
            found.append((f"planner.{rooms[node.value.id]}", node.attr))
        elif isinstance(node, ast.Constant) and re.fullmatch(r"[\w\[\], |.]+", str(node.value)):  # a type in quotes
            types = re.findall(r"\b(\w+)\.([A-Z]\w*)", str(node.value))
            found += [(f"planner.{rooms[room]}", name) for room, name in types if room in rooms]
    return found


@cache
def house_imports() -> list[tuple[Path, str, str, str]]:
    """Each import of one room by another: the file, the room that it reaches for, the module and the name."""
    split = [(path, module.split("."), module, name) for path in FILES for module, name in imports_of(path)]
    return [
        (path, parts[1], module, name)
        for path, parts, module, name in split
        if parts[0] == "planner" and len(parts) > 1 and parts[1] != room_of(path)
    ]


def offered(room: str) -> set[str]:
    """The names in the door of a room."""
    stub = ast.parse((PACKAGE / room / "__init__.pyi").read_text(encoding="utf-8"))
    return {alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_every_room_has_its_place() -> None:
    found = {room_of(path) for path in FILES}
    assert found == set(ROOMS), f"give these rooms a place: {sorted(found ^ set(ROOMS))}"


def test_the_documentation_draws_this_house() -> None:
    page = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(\w+)/?` \|", page, re.MULTILINE)) == ROOMS


def test_imports_point_to_earlier_rooms() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {module}, a later room"
        for path, room, module, _ in house_imports()
        if ROOMS.index(room) > ROOMS.index(room_of(path))
    ]
    assert not wrong, "\n".join(wrong)


def test_rooms_are_entered_through_the_door() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} takes {name} from {module}: let planner/{room}/__init__.pyi offer it"
        for path, room, module, name in house_imports()
        if room in DOORS and (module != f"planner.{room}" or name not in offered(room))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_library_offers_commands_and_what_doors_offer() -> None:
    for module, name in imports_of(LIBRARY):
        _, room, *below = module.split(".")
        assert room == "commands" or not below, f"planner/__init__.pyi takes {name} past the door of planner.{room}"
        assert room in ("commands", *GROUND) or name in offered(room)


@pytest.mark.parametrize("room", DOORS)
def test_a_door_offers_only_what_is_used_and_there(room: str) -> None:
    used = {name for _, other, _, name in house_imports() if other == room}
    used |= {name for module, name in imports_of(LIBRARY) if module == f"planner.{room}"}
    assert offered(room) <= used, f"nobody takes {sorted(offered(room) - used)} from planner.{room}"
    door = import_module(f"planner.{room}")
    assert door.__doc__
    assert all(getattr(door, name) is not None for name in offered(room))


@pytest.mark.parametrize("room", DOORS)
def test_no_offered_name_is_a_module_too(room: str) -> None:
    """``planner.simulator.replay`` would be the module or the function, depending on who imported what before."""
    names = {path.stem for path in (PACKAGE / room).iterdir()} & offered(room)
    assert names <= {"defaults"}, f"planner.{room} offers names that are modules too: {sorted(names)}"


def test_modules_of_a_room_import_in_one_direction() -> None:
    """A module may be read with those that it imports, wherever the import stands. Types alone may point back."""
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        types = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
        skipped = {id(node) for block in types for node in ast.walk(block)}
        taken = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and id(node) not in skipped]
        graph[name] = {str(node.module) for node in taken} & names.keys()
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle
    search = "planner.planning.search."  # it stands above the rest of its room
    above = {(name, other) for name, taken in graph.items() for other in taken if other.startswith(search)}
    assert not [pair for pair in above if not pair[0].startswith(search)]


def test_heavy_libraries_have_few_owners() -> None:
    wrong = []
    for path in FILES:
        for module, _ in imports_of(path):
            owners = OWNERS.get(module.split(".")[0])
            if owners is not None and room_of(path) not in owners:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {module}: only {sorted(owners)} may")
    assert not wrong, "\n".join(wrong)
