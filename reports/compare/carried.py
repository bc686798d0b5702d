"""Pairs of values and the cells that cover them, as bit masks of cells, so that work grows with pairs, not cells."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from itertools import combinations, compress
from typing import Final

from specmatrix.reports.covered import holders
from specmatrix.reports.effective import Pair, Value

_SWITCHES: Final = bytes.maketrans(b"01", b"\0\1")


class CarriedPairs:
    """The pairs of (axis, value), sorted by axis within a pair, that at least one of `cells` covers.

    `cells`: cell id -> axis -> value.
    """

    def __init__(self, cells: Mapping[str, Mapping[str, str]]) -> None:
        self._names = list(cells)
        self._cells = dict(_meetings(holders(list(cells.values()))))

    def pairs(self) -> KeysView[Pair]:
        """All pairs."""
        return self._cells.keys()

    def cells(self, pair: Pair) -> list[str]:
        """The cells that cover a pair, in the given order. KeyError for a pair that none covers."""
        bits = f"{self._cells[pair]:b}".encode()[::-1]
        return list(compress(self._names, bits.translate(_SWITCHES)))


def _meetings(held: Mapping[Value, int]) -> Iterator[tuple[Pair, int]]:
    """(pair of values of two axes, bit mask of the cells with both), for pairs that occur."""
    for (a, cells), (b, others) in combinations(sorted(held.items()), 2):
        if a[0] != b[0] and (both := cells & others):
            yield (a, b), both
