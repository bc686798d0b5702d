"""Which cells carry which pairs of values, by sets of cells as bits: as many steps as there are pairs, not cells."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from itertools import combinations, compress
from typing import Final

from specmatrix.reports.covered import holders
from specmatrix.reports.effective import Pair, Value

_SWITCHES: Final = bytes.maketrans(b"01", b"\0\1")


class CarriedPairs:
    """The pairs of (axis, value), each in the order of the axis names, that at least one of `cells` carries.

    `cells`: cell id -> axis -> value.
    """

    def __init__(self, cells: Mapping[str, Mapping[str, str]]) -> None:
        self._names = list(cells)
        self._cells = dict(_meetings(holders(list(cells.values()))))

    def pairs(self) -> KeysView[Pair]:
        """The pairs."""
        return self._cells.keys()

    def cells(self, pair: Pair) -> list[str]:
        """The cells that carry a pair, in the order in which they were given. KeyError for a pair that none carries."""
        bits = f"{self._cells[pair]:b}".encode()[::-1]
        return list(compress(self._names, bits.translate(_SWITCHES)))


def _meetings(held: Mapping[Value, int]) -> Iterator[tuple[Pair, int]]:
    """The pairs of values of two axes that meet in some cell, and the cells."""
    for (a, cells), (b, others) in combinations(sorted(held.items()), 2):
        if a[0] != b[0] and (both := cells & others):
            yield (a, b), both
