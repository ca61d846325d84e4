"""Constants of the user's own machines: where they are kept, and which of them count.

``planner fit --startup-log`` writes them to ``memory.toml`` in the user's data directory, in the format of our own.
The same machine is known by its GPU, the minor version of vLLM and the TP size; a later log of it replaces what an
earlier one said.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from planner.errors import InputError
from planner.memory.overheads import Constants, Fit, read_constants, shipped
from planner.resources import user_data_dir
from planner.units import FACTORS

#: Units that the constants are written in; shares and copies have none.
UNITS = {"memory": "GiB", "unexplained": "GiB", "non_torch": "GiB", "graphs": "GiB", "graph_each": "MiB"}
HEADER = "# Memory overheads of this user's machines, from start-up logs of vLLM: planner fit --startup-log.\n"


def local_path() -> Path:
    """The file of the user's own constants. It need not exist."""
    return user_data_dir() / "memory.toml"


def constants_for(calibration: str | None) -> Constants:
    """What ``--calibration`` means: a file before ours, ``none`` for ours alone, by default the user's own before ours.

    Raises InputError for a file that cannot be read.
    """
    if calibration == "none":
        return shipped()
    path = Path(calibration) if calibration else local_path()
    if calibration is None and not path.is_file():
        return shipped()
    return read_constants(path).before(shipped())


def save(learned: Iterable[Fit], path: Path | None = None) -> Path:
    """Add constants to the user's own and say where. Raises InputError when the file cannot be read or written.

    What the file says of the same name under the same circumstances is replaced. It is written whole beside the old
    one and then renamed, so that a run that reads it meanwhile sees the one or the other.
    """
    path = path or local_path()
    known = read_constants(path).fits if path.is_file() else ()
    fits = {_key(fit): fit for fit in (*known, *learned)}
    # what one model taught counts before what it says about others
    ordered = sorted(fits.values(), key=lambda fit: (fit.name, "model" not in fit.where))
    text = HEADER + "".join("\n" + "".join(f"{line}\n" for line in _lines(fit)) for fit in ordered)
    try:
        _replace(path, text)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}", hint="set XDG_DATA_HOME to a folder of your own"
        ) from error
    return path


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".memory-", delete=False, encoding="utf-8") as new:
        new.write(text)
    try:
        Path(new.name).replace(path)
    except OSError:
        Path(new.name).unlink()
        raise


def _key(fit: Fit) -> tuple[object, ...]:
    return fit.name, fit.since, fit.until, tuple(sorted(fit.where.items()))


def _lines(fit: Fit) -> Iterator[str]:
    unit = UNITS.get(fit.name, "1")
    yield f"[[{fit.name}]]"
    yield f"since = {_quoted('.'.join(map(str, fit.since)))}"
    yield f"until = {_quoted('.'.join(map(str, fit.until)))}"
    yield f"where = {{ {', '.join(f'{key} = {_quoted(value)}' for key, value in fit.where.items())} }}"
    for key, value in (("value", fit.interval.mid), ("low", fit.interval.low), ("high", fit.interval.high)):
        yield f"{key} = {value / FACTORS[unit]!r}"
    yield f"unit = {_quoted(unit)}"
    yield f"logs = [{', '.join(map(_quoted, fit.logs))}]"
    if fit.note:
        yield f"note = {_quoted(fit.note)}"


def _quoted(value: object) -> str:
    """A value of TOML: its strings and whole numbers are written as JSON's."""
    return json.dumps(value)
