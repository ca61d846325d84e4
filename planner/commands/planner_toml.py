"""``planner.toml`` in the working directory sets other defaults: a table for each command, a key for each flag.

::

    [recommend]
    gpu = ["mi300x", "h100"]
    random-input-len = 512

    [predict.serve]
    max-concurrency = 32
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.resources import read_given

if TYPE_CHECKING:
    import typer

FILE = "planner.toml"
#: Sources of a value, as the parser calls them.
TYPED, FROM_FILE, UNSAID = "COMMANDLINE", "DEFAULT_MAP", "DEFAULT"


def read_defaults(root: Any, path: Path = Path(FILE)) -> dict[str, Any]:
    """Defaults of all commands below ``root``, in the form that the parser takes; empty where there is no file.

    Raises InputError, naming the table or the key, for anything that is not a flag of a command.
    """
    if not path.exists():
        return {}
    try:
        tables = tomllib.loads(read_given(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}", hint="fix the file, or move it away") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint="make it readable, or move it away") from error
    return _of_group(root, tables, str(path), ())


def source_of(context: typer.Context, name: str) -> str:
    """Where a value is from: ``TYPED``, ``FROM_FILE``, ``UNSAID`` or the environment."""
    return str(getattr(context.get_parameter_source(name), "name", UNSAID))


def _of_group(group: Any, tables: dict[str, Any], file: str, names: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, table in tables.items():
        command, path = group.commands.get(name), (*names, name)
        if command is None or not isinstance(table, dict):
            known = ", ".join(f"[{'.'.join((*names, other))}]" for other in group.commands)
            raise InputError(f"{file}: {'.'.join(path)} is no table of a command", hint=f"tables are named {known}")
        below = _of_group if hasattr(command, "commands") else _of_command
        found[name] = below(command, table, file, path)
    return found


def _of_command(command: Any, table: dict[str, Any], file: str, names: tuple[str, ...]) -> dict[str, Any]:
    flags = {_key(spelling): p for p in command.params for spelling in p.opts if p.name != "help"}
    opposites = {_key(spelling): p for p in command.params for spelling in p.secondary_opts}
    defaults: dict[str, Any] = {}
    for key, given in table.items():
        where = f"{file}: [{'.'.join(names)}] {key}"
        parameter = flags.get(_key(key)) or opposites.get(_key(key))
        if parameter is None:
            near = get_close_matches(_key(key), [*flags, *opposites], n=3)
            nearest = f"nearest: {', '.join(near)}; " if near else ""
            raise InputError(f"{where} is not a flag", hint=f"{nearest}keys are flags without their dashes")
        value = _value(parameter, given, where)
        defaults[parameter.name] = not value if _key(key) in opposites else value
    return defaults


def _key(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _value(parameter: Any, value: Any, where: str) -> Any:
    """The value as the parser takes it: a list for a flag that may be repeated."""
    repeatable = getattr(parameter, "multiple", False) or parameter.nargs == -1
    switch = bool(getattr(parameter, "is_flag", False))
    values = value if isinstance(value, list) and repeatable else [value]
    if any(isinstance(one, bool) is not switch or not isinstance(one, str | int | float) for one in values):
        wanted = "true or false" if switch else "a string or a number" + (", or a list of them" if repeatable else "")
        raise InputError(f"{where} is not {wanted}", hint="write it as after the flag on the command line")
    return values if repeatable else value
