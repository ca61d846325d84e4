"""One list of rows, four ways to print it."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA_VERSION = 1


def print_json(data: Mapping[str, Any] | Sequence[Any]) -> None:
    """JSON on stdout. An object carries ``schema_version``; the schema only grows."""
    if isinstance(data, Mapping):
        data = {"schema_version": SCHEMA_VERSION, **data}
    json.dump(data, sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    print()


def print_rows(rows: Sequence[Mapping[str, Any]], output: str, *, columns: Sequence[str] | None = None) -> None:
    """Rows with the same keys, in the order of ``columns`` (default: of the first row).

    ``output`` is table, json, csv or markdown. JSON prints every key, the others only ``columns``.
    """
    if output == "json":
        print_json(list(rows))
        return
    names = list(columns or (rows[0] if rows else ()))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    if output == "csv":
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(cells)
        print(buffer.getvalue(), end="")
        return
    from tabulate import tabulate

    style = "github" if output == "markdown" else "simple"
    print(tabulate(cells, headers=names, tablefmt=style, disable_numparse=True))


def note(text: str) -> None:
    """A remark for people, on stderr."""
    print(text, file=sys.stderr)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
