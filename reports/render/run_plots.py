"""The plots of one run: acceptance length, accuracy against plain decoding, acceptance by position."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from reports.effective import effective
from reports.render.plots import Point, Row, curve_plot, strip_plot
from reports.schema import CellResult, GateResult, Number
from reports.stats import paired_difference

_SIZES: Final = (("steps", "s"), ("topk", "k"), ("draft_tokens", "n"))


def shape(cell: CellResult) -> str:
    """What drafts, as a short label: `eagle3 s3 k4 n8`."""
    values = effective(cell.axes, cell.resolved)
    sizes = [f"{mark}{values[axis]}" for axis, mark in _SIZES if axis in values]
    return " ".join([values.get("algorithm", "?"), *sizes])


def acceptance_point(cell: CellResult) -> Point | None:
    """Tokens per verify round, with the gate's interval; None if the cell did not measure it."""
    gate = cell.gate("acceptance")
    length = None if gate is None else _number(gate.numbers.get("length"))
    if gate is None or length is None:
        return None
    low, high = gate.interval or (length, length)
    reference = _number(gate.numbers.get("reference"))
    against = "" if reference is None else f", reference {reference:.2f}"
    title = f"{cell.id}: {length:.3f} tokens per round [{low:.3f}, {high:.3f}]{against}"
    return Point(length, low, high, _tone(gate), title)


def accuracy_point(cell: CellResult) -> Point | None:
    """Accuracy minus that of plain decoding on the same questions, in points; None if the cell did not measure it."""
    gate = cell.gate("accuracy")
    if gate is None:
        return None
    lost, won, n = (_number(gate.numbers.get(name)) for name in ("lost", "won", "n"))
    if lost is None or won is None or not n:
        return None
    low, high = paired_difference(round(lost), round(won), round(n))
    accuracy = _number(gate.numbers.get("accuracy"))
    share = "" if accuracy is None else f", accuracy {100 * accuracy:.1f} %"
    title = f"{cell.id}: {lost:g} lost, {won:g} won of {n:g}{share}"
    return Point(100 * (won - lost) / n, 100 * low, 100 * high, _tone(gate), title)


def acceptance_plot(cells: Sequence[CellResult]) -> str:
    """Acceptance length of every cell, by what drafts; the tick is the reference."""
    rows: dict[str, list[Point]] = defaultdict(list)
    references: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        point, gate = acceptance_point(cell), cell.gate("acceptance")
        if point is not None and gate is not None:
            rows[shape(cell)].append(point)
            reference = _number(gate.numbers.get("reference"))
            references[shape(cell)] += [] if reference is None else [reference]
    ordered = [
        Row(label, tuple(points), sum(references[label]) / len(references[label]) if references[label] else None)
        for label, points in sorted(rows.items())
    ]
    return strip_plot(ordered, "")


def accuracy_plot(cells: Sequence[CellResult]) -> str:
    """Accuracy of every cell minus that of plain decoding, by what drafts, in points."""
    rows: dict[str, list[Point]] = defaultdict(list)
    for cell in cells:
        point = accuracy_point(cell)
        if point is not None:
            rows[shape(cell)].append(point)
    return strip_plot([Row(label, tuple(points)) for label, points in sorted(rows.items())], "", zero=0.0)


def position_plot(cells: Sequence[CellResult]) -> str:
    """Mean acceptance at each draft position, a line per algorithm, over the green cells with the deepest drafts."""
    deepest: dict[str, list[list[float]]] = defaultdict(list)
    for cell in cells:
        gate = cell.gate("acceptance")
        rates = None if gate is None else gate.numbers.get("per_position")
        if isinstance(rates, list) and rates and cell.state == "PASS":
            deepest[effective(cell.axes, cell.resolved).get("algorithm", "?")].append(rates)
    curves = []
    for algorithm, rows in sorted(deepest.items()):
        depth = max(len(row) for row in rows)
        full = [row for row in rows if len(row) == depth]
        curves.append((algorithm, [sum(row[i] for row in full) / len(full) for i in range(depth)]))
    return curve_plot(curves)


def _tone(gate: GateResult) -> str:
    return "good" if gate.state == "PASS" else "bad"


def _number(value: Number | None) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
