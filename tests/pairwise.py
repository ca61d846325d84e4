"""A small table in which every two levels of every two factors meet at least once."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import TypeVar

Row = dict[str, str]
Made = TypeVar("Made")


def pairwise(factors: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Rows that cover all pairs: of the full table, each time the row with the most pairs that are still missing.

    >>> len(list(pairwise({"a": "12", "b": "12", "c": "12"})))
    4
    """
    return (row for row, _ in covering(factors, lambda row: row))


def covering(
    factors: Mapping[str, Sequence[str]], make: Callable[[Row], Made | None], *, attempts: int = 3
) -> Iterator[tuple[Row, Made]]:
    """Such rows with what ``make`` makes of them; a pair is given up after so many rows of which it makes nothing."""
    names = list(factors)
    rows = [dict(zip(names, levels, strict=True)) for levels in product(*factors.values())]
    covers = [frozenset(combinations(row.items(), 2)) for row in rows]
    missing = set().union(*covers)
    failed: Counter[object] = Counter()
    while missing:
        best = max(range(len(rows)), key=lambda index: len(covers[index] & missing))
        made, new = make(rows[best]), covers[best] & missing
        if made is not None:
            missing -= new
            yield rows[best], made
            continue
        covers[best] = frozenset()
        failed.update(new)
        missing -= {pair for pair in new if failed[pair] >= attempts}
