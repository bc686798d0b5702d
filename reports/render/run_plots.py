"""The plots of one run: acceptance length, accuracy against plain decoding, acceptance by position."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from specmatrix.reports.effective import effective
from specmatrix.reports.lengths import length_interval, positive
from specmatrix.reports.render.plots import Point, Row, curve_plot, strip_plot
from specmatrix.reports.schema import CellResult, GateResult, Number
from specmatrix.reports.stats import paired_difference
from specmatrix.reports.wording import count

_SIZES: Final = (("steps", "s"), ("topk", "k"), ("draft_tokens", "n"))


def shape(cell: CellResult) -> str:
    """What drafts for which model, as a short label: `eagle3 llama s3 k4 n8`."""
    values = effective(cell.axes, cell.resolved)
    sizes = [f"{mark}{values[axis]}" for axis, mark in _SIZES if axis in values]
    model = [values["model"]] if "model" in values else []
    return " ".join([values.get("algorithm", "?"), *model, *sizes])


def acceptance_point(cell: CellResult) -> Point | None:
    """Tokens per verify round with their interval; None if the cell did not measure them."""
    gate = cell.gate("acceptance")
    length = None if gate is None else positive(gate.numbers.get("length"))
    if gate is None or length is None:
        return None
    low, high = length_interval(gate) or (length, length)
    reference = positive(gate.numbers.get("reference"))
    spread = "" if gate.interval is None else f" [{low:.3f}, {high:.3f}]"
    against = "" if reference is None else f", reference {reference:.3f}"
    return Point(length, low, high, _tone(gate), f"{cell.id}: {length:.3f} tokens per round{spread}{against}")


def ratio_point(cell: CellResult) -> Point | None:
    """Acceptance length over its reference, minus one, in percent; None where the cell has no reference."""
    gate, point = cell.gate("acceptance"), acceptance_point(cell)
    reference = None if gate is None else positive(gate.numbers.get("reference"))
    if point is None or reference is None:
        return None
    value, low, high = (100 * (end / reference - 1) for end in (point.value, point.low, point.high))
    return Point(value, low, high, point.tone, point.title)


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


def acceptance_plot(cells: Sequence[CellResult], allowed: tuple[float, float] | None = None) -> str:
    """Acceptance length of every cell against its own reference, by what drafts; behind each row the lengths.

    allowed: the ratios between which the gate is green.
    """
    rows: dict[str, list[Point]] = defaultdict(list)
    lengths: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        length, ratio = acceptance_point(cell), ratio_point(cell)
        if length is not None:
            lengths[shape(cell)].append(length.value)
            rows[shape(cell)] += [] if ratio is None else [ratio]
    ordered = [Row(label, tuple(points), _lengths(lengths[label], points)) for label, points in sorted(rows.items())]
    band = None if allowed is None else (100 * (allowed[0] - 1), 100 * (allowed[1] - 1))
    return strip_plot(ordered, " %", zero=0.0, band=band)


def _lengths(values: Sequence[float], points: Sequence[Point]) -> str:
    """`2.95`, `2.95–3.10 in 4 cells`; a cell that has no reference is judged round by round."""
    low, high = min(values), max(values)
    ends = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f}–{high:.2f}"
    cells = f" in {count(len(values), 'cell')}" if len(values) > 1 else ""
    return f"{ends}{cells}" + ("" if points else ", replayed")


def accuracy_plot(cells: Sequence[CellResult]) -> str:
    """Accuracy of every cell minus that of plain decoding, by what drafts, in points."""
    rows: dict[str, list[Point]] = defaultdict(list)
    for cell in cells:
        point = accuracy_point(cell)
        if point is not None:
            rows[shape(cell)].append(point)
    return strip_plot([Row(label, tuple(points)) for label, points in sorted(rows.items())], "", zero=0.0)


def position_plot(cells: Sequence[CellResult]) -> str:
    """Mean acceptance at each draft position, a line per algorithm, over the green cells with the deepest drafts.

    Where the depth adapts, few rounds try the later positions at all, so their rate says nothing of the drafts.
    """
    deepest: dict[str, list[list[float]]] = defaultdict(list)
    for cell in cells:
        gate = cell.gate("acceptance")
        rates = None if gate is None else gate.numbers.get("per_position")
        adapts = bool((cell.resolved or {}).get("adaptive_slots"))
        if isinstance(rates, list) and rates and cell.state == "PASS" and not adapts:
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
