"""Detects small changes in one direction over many cells: all of them, or those with one axis value.

Cells share prompts, so a prompt's effect on all of them is one observation: the tests are over prompts. The mean move
of a group's cells on each prompt is compared with that of all other cells on the same prompt, and a t test over prompts
asks whether the difference is zero. Where other cells cannot measure a prompt's noise (over all cells, and for the axes
`SOURCES`, which decide what is drafted), the move itself is tested.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Final, NamedTuple

from specmatrix.reports.compare.cell_state import FALSE_DISCOVERY_RATE, Drift
from specmatrix.reports.stats import benjamini_hochberg

MIN_CELLS: Final = 8
MIN_PROMPTS: Final = 6
SOURCES: Final = ("algorithm", "model")


class Moves(NamedTuple):
    """One gate's changes on one cell from base to head, by prompt, as in `Effect`. values: effective values of the
    cell."""

    gate: str
    values: Mapping[str, str]
    by_prompt: Mapping[int, float]


def drifts(cells: Iterable[Moves]) -> tuple[Drift, ...]:
    """Groups of cells whose numbers moved together although none of them did significantly.

    Per gate: over all cells, and per axis value, with Benjamini-Hochberg over all at `FALSE_DISCOVERY_RATE`. A group
    needs `MIN_CELLS` cells and `MIN_PROMPTS` prompts on which it moved. Drifts do not affect the verdict.
    """
    by_gate: dict[str, list[Moves]] = defaultdict(list)
    for cell in cells:
        if any(cell.by_prompt.values()):
            by_gate[cell.gate].append(cell)
    rows = [row for gate, found in by_gate.items() for row in _of_gate(gate, found)]
    found = benjamini_hochberg([row.p for row in rows], FALSE_DISCOVERY_RATE)
    return tuple(sorted((row for row, hit in zip(rows, found, strict=True) if hit), key=lambda row: row.p))


def _of_gate(gate: str, cells: Sequence[Moves]) -> list[Drift]:
    groups: dict[tuple[str, str], list[Moves]] = defaultdict(list)
    for cell in cells:
        for item in cell.values.items():
            groups[item].append(cell)
    sizes = {("", ""): list(cells)} | {item: inside for item, inside in groups.items() if len(inside) < len(cells)}
    rows = []
    for (axis, value), inside in sizes.items():
        if len(inside) < MIN_CELLS:
            continue
        moves = _by_prompt(inside)
        if axis not in ("", *SOURCES):
            around = _by_prompt([cell for cell in cells if cell.values.get(axis) != value])
            moves = {prompt: move - around[prompt] for prompt, move in moves.items() if prompt in around}
        changed = [move for move in moves.values() if move]
        if len(changed) >= MIN_PROMPTS:
            down = sum(move < 0 for move in changed)
            rows.append(Drift(gate, axis, value, down, len(changed) - down, median(changed), _p_value(changed)))
    return rows


def _by_prompt(cells: Iterable[Moves]) -> dict[int, float]:
    """The mean move on each prompt."""
    found: dict[int, list[float]] = defaultdict(list)
    for cell in cells:
        for prompt, move in cell.by_prompt.items():
            found[prompt].append(move)
    return {prompt: fmean(moves) for prompt, moves in found.items()}


def _p_value(moves: Sequence[float]) -> float:
    """Two-sided t test that the mean is zero; if all moves are equal, whose spread is unknown, that of a sign test."""
    from scipy.special import stdtr

    spread = stdev(moves)
    if spread <= 1e-12 * abs(moves[0]):
        return float(min(1.0, 2 * 0.5 ** len(moves)))
    return float(2 * stdtr(len(moves) - 1, -abs(fmean(moves)) / spread * math.sqrt(len(moves))))
