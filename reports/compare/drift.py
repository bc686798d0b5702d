"""Detects small changes in one direction over many cells: all of them, or those with one axis value."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final

from specmatrix.reports.compare.cell_state import FALSE_DISCOVERY_RATE, Drift, Effect
from specmatrix.reports.stats import benjamini_hochberg, fisher_log, mcnemar

LEAST_CELLS: Final = 8


def drifts(changes: Iterable[tuple[Mapping[str, str], Effect]]) -> tuple[Drift, ...]:
    """Groups of cells whose numbers changed mostly in one direction although no single cell is significant.

    changes: (effective values, effect) of every changed number. Per gate: a sign test over all cells, and per axis
    value Fisher's exact test that its cells changed in that direction more often than the others, with
    Benjamini-Hochberg over all. Cells share prompts, so p values are optimistic: drifts do not affect the verdict.
    """
    rows: list[Drift] = []
    quiet = [(values, effect) for values, effect in changes if effect.change and not effect.significant]
    for gate in dict.fromkeys(effect.gate for _, effect in quiet):
        moves = [(values, effect.change) for values, effect in quiet if effect.gate == gate]
        if len(moves) >= LEAST_CELLS:
            rows.append(_overall(gate, [change for _, change in moves]))
            rows += _by_value(gate, moves)
    found = benjamini_hochberg([row.p for row in rows], FALSE_DISCOVERY_RATE)
    return tuple(sorted((row for row, hit in zip(rows, found, strict=True) if hit), key=lambda row: row.p))


def _overall(gate: str, moves: list[float]) -> Drift:
    down = sum(move < 0 for move in moves)
    return Drift(gate, "", "", down, len(moves) - down, median(moves), mcnemar(down, len(moves) - down, "two-sided"))


def _by_value(gate: str, moves: list[tuple[Mapping[str, str], float]]) -> list[Drift]:
    by_value: dict[tuple[str, str], list[float]] = defaultdict(list)
    for values, change in moves:
        for item in values.items():
            by_value[item].append(change)
    rows = []
    falling = sum(change < 0 for _, change in moves)
    for (axis, value), inside in by_value.items():
        down = sum(change < 0 for change in inside)
        up = len(inside) - down
        if LEAST_CELLS <= len(inside) < len(moves):
            hits, total = (down, falling) if down >= up else (up, len(moves) - falling)
            p = math.exp(fisher_log(hits, total, len(inside), len(moves)))
            rows.append(Drift(gate, axis, value, down, up, median(inside), p))
    return rows
