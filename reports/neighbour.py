"""The green cell that differs least from a red one, and the counters that tell the two apart."""

from __future__ import annotations

from collections.abc import Sequence
from operator import ne
from typing import Final, NamedTuple

from specmatrix.reports.schema import CellResult

# Axes in which a green cell may differ and still tell something of the red one.
MOST_AXES: Final = 3


class OneSided(NamedTuple):
    """A counter that one of two cells hit and the other did not, with its values in the red and the green cell."""

    counter: str
    red: int
    green: int


class Neighbour(NamedTuple):
    """A green cell, the axes in which it differs (red value, green value), and the counters hit on one side only."""

    cell: CellResult
    axes: dict[str, tuple[str, str]]
    counters: tuple[OneSided, ...]


def nearest(red: CellResult, green: Sequence[CellResult]) -> Neighbour | None:
    """The green cell with the fewest other axis values, the first of several; None if a side has no counters."""
    axes, values = tuple(red.axes), tuple(red.axes.values())
    ran = [cell for cell in green if cell.evidence and tuple(cell.axes) == axes]
    if not ran or not red.evidence:
        return None
    found = min(ran, key=lambda cell: sum(map(ne, values, cell.axes.values())))
    differing = {name: (value, found.axes[name]) for name, value in red.axes.items() if value != found.axes[name]}
    names = sorted({*red.evidence, *found.evidence})
    counters = (OneSided(name, red.evidence.get(name, 0), found.evidence.get(name, 0)) for name in names)
    return Neighbour(found, differing, tuple(each for each in counters if bool(each.red) != bool(each.green)))
