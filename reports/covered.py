"""Counts combinations of axis values: those that the cells requested, and the effective ones of passing cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specmatrix.reports.effective import Value, effective, word
from specmatrix.reports.store import Report


@dataclass(frozen=True, slots=True)
class Coverage:
    """Distinct pairs and triples of (axis, value) that at least one cell carries.

    `requested_*`: by the axes of every cell. `passing_*`: by the effective values of cells that ran and passed: a
    rewritten value counts as what it became, and a refused or red cell does not count.
    """

    requested_pairs: int
    requested_triples: int
    passing_pairs: int
    passing_triples: int

    @property
    def message(self) -> str:
        """Both counts in one line."""
        return (
            f"requested coverage: {self.requested_pairs:,} pairs, {self.requested_triples:,} triples; "
            f"covered by passing cells: {self.passing_pairs:,} and {self.passing_triples:,}"
        )


def covered(report: Report) -> Coverage:
    """Count the pairs and triples of a report."""
    requested = [{axis: word(value) for axis, value in cell.axes.items()} for cell in report]
    ran = (cell for cell in report if cell.state == "PASS" and cell.start.resolved is not None)
    passing = [effective(cell.axes, cell.start.resolved) for cell in ran]
    return Coverage(*_counts(requested), *_counts(passing))


def _counts(cells: Sequence[Mapping[str, str]]) -> tuple[int, int]:
    held = sorted(holders(cells).items())
    pairs = triples = 0
    for index, (value, row) in enumerate(held):
        met = list(_meeting(held[index + 1 :], value, row))
        pairs += len(met)
        triples += sum(1 for at, (second, both) in enumerate(met) for _ in _meeting(met[at + 1 :], second, both))
    return pairs, triples


def _meeting(held: Sequence[tuple[Value, int]], value: Value, cells: int) -> Iterator[tuple[Value, int]]:
    """Yield the values of `held` on other axes that occur together with `value` in some of `cells`, with those
    cells."""
    for other, row in held:
        if other[0] != value[0] and (both := row & cells):
            yield other, both


def holders(cells: Sequence[Mapping[str, str]]) -> dict[Value, int]:
    """(axis, value) -> bit mask of the cells that have it, in order of first occurrence."""
    width = len(cells) // 8 + 1
    rows: dict[Value, bytearray] = {}
    for index, values in enumerate(cells):
        place, bit = index >> 3, 1 << (index & 7)
        for item in values.items():
            row = rows.get(item)
            if row is None:
                row = rows[item] = bytearray(width)
            row[place] |= bit
    return {item: int.from_bytes(row, "little") for item, row in rows.items()}
