"""Inline SVG plots: no script, no network, colours from the page's style."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from specmatrix.reports.effective import effective
from specmatrix.reports.lengths import length_interval, positive
from specmatrix.reports.render.markup import macro
from specmatrix.reports.schema import CellResult, GateResult
from specmatrix.reports.wording import count, shorten

WIDTH: Final = 644
MAX_LABEL: Final = 46
_CHARACTER: Final = 6.6
ROW_HEIGHT: Final = 26
HEAD: Final = 26
TICK_WIDTH: Final = 46
# More points in one row would overlap.
MAX_POINTS: Final = 120
_SIZES: Final = (("steps", "s"), ("topk", "k"), ("draft_tokens", "n"))


@dataclass(frozen=True, slots=True)
class Point:
    """A measured value with its interval; `tone` is a CSS class: "good", "bad" or "calm"."""

    value: float
    low: float
    high: float
    tone: str
    title: str


@dataclass(frozen=True, slots=True)
class Row:
    """Points of one label, followed by a short text."""

    label: str
    points: tuple[Point, ...]
    note: str = ""


def strip_plot(
    rows: Sequence[Row], unit: str, zero: float | None = None, band: tuple[float, float] | None = None
) -> str:
    """Rows of points with intervals on a common scale; "" without rows.

    `zero` draws a line across all rows, `band` shades the allowed values.
    """
    if not rows:
        return ""
    labels = [shorten(row.label, MAX_LABEL) for row in rows]
    left = 24 + _CHARACTER * max(map(len, labels))
    right = WIDTH - 24 - _CHARACTER * max(len(row.note) for row in rows)
    low, high, ticks = _scale(rows, [*([] if zero is None else [zero]), *(band or ())], (right - left) / TICK_WIDTH)
    height = HEAD + ROW_HEIGHT * len(rows) + 24

    def x(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    drawn = [
        (label, row.note, middle := HEAD + ROW_HEIGHT * (index + 0.5), _spread(row, middle))
        for index, (row, label) in enumerate(zip(rows, labels, strict=True))
    ]
    return macro("plots.svg.j2", "strip")(drawn, x, left, right, WIDTH, HEAD, height, ticks, unit, zero, band)


def glyph(point: Point, low: float, high: float, reference: float | None) -> str:
    """A value with its interval on its column's scale, sized for a table cell."""
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return 4 + 72 * min(1.0, max(0.0, (value - low) / span))

    return macro("plots.svg.j2", "glyph")(point, x, reference)


def _spread(row: Row, middle: float) -> list[tuple[Point, float]]:
    """A row's points and their heights, the failing ones last."""
    points = sorted(row.points, key=lambda point: (point.tone == "bad", point.value))
    if len(points) > MAX_POINTS:
        every = math.ceil(len(points) / MAX_POINTS)
        points = [point for i, point in enumerate(points) if point.tone == "bad" or i % every == 0]
    offset = min(3.0, 16 / max(1, len(points) - 1))
    return [(point, middle + offset * (index - (len(points) - 1) / 2)) for index, point in enumerate(points)]


def _scale(rows: Sequence[Row], also: Sequence[float], most: float) -> tuple[float, float, list[float]]:
    """Ends of a scale at round ticks that contain all points, intervals and `also`, and about `most` ticks."""
    values = [end for row in rows for point in row.points for end in (point.value, point.low, point.high)]
    values += also
    low, high = min(values, default=0.0), max(values, default=1.0)
    air = 0.04 * (high - low) or 0.5
    step = _round_step((high - low + 2 * air) / max(2.0, most - 1))
    first, last = math.floor((low - air) / step), math.ceil((high + air) / step)
    return step * first, step * last, [step * i for i in range(first, last + 1)]


def _round_step(rough: float) -> float:
    """The next larger 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)


def shape(cell: CellResult) -> str:
    """A short label of drafter, model and draft shape: `eagle3 llama s3 k4 n8`."""
    values = effective(cell.axes, cell.start.resolved)
    drafts = values.get("algorithm") != "none"
    sizes = [f"{mark}{values[axis]}" for axis, mark in _SIZES if axis in values and drafts]
    model = [values["model"]] if "model" in values else []
    return " ".join([values.get("algorithm", "?"), *model, *sizes])


def acceptance_point(cell: CellResult) -> Point | None:
    """Acceptance length with its interval; None if not measured."""
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
    """Acceptance length relative to its reference, in percent of difference; None without a reference."""
    gate, point = cell.gate("acceptance"), acceptance_point(cell)
    reference = None if gate is None else positive(gate.numbers.get("reference"))
    if point is None or reference is None:
        return None
    value, low, high = (100 * (end / reference - 1) for end in (point.value, point.low, point.high))
    return Point(value, low, high, point.tone, point.title)


def acceptance_plot(cells: Sequence[CellResult], allowed: tuple[float, float] | None = None) -> str:
    """Acceptance length of every cell relative to its own reference, by drafter, with the lengths after each row.

    allowed: the gate's lower and upper ratio.
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


def _tone(gate: GateResult) -> str:
    return "good" if gate.state == "PASS" else "bad"
