"""A small table in which every two levels of every two factors meet at least once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

Row = dict[str, str]


def pairwise(factors: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Rows that cover all pairs: of the full table, each time the row with the most pairs that are still missing.

    >>> len(list(pairwise({"a": "12", "b": "12", "c": "12"})))
    4
    """
    names = list(factors)
    rows = [dict(zip(names, levels, strict=True)) for levels in product(*factors.values())]
    covers = [frozenset(combinations(row.items(), 2)) for row in rows]
    missing = set().union(*covers)
    while missing:
        best = max(range(len(rows)), key=lambda index: len(covers[index] & missing))
        missing -= covers[best]
        yield rows[best]
