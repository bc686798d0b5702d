"""Plots as inline SVG: they need no script and no network, and take their colours from the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, TypeAlias

from specmatrix.reports.wording import shorten

Scale: TypeAlias = Callable[[float], float]

WIDTH: Final = 644
MOST_LABEL: Final = 46
_CHARACTER: Final = 6.6
ROW_HEIGHT: Final = 26
HEAD: Final = 26
TICK_WIDTH: Final = 46
# More points in one row would hide each other.
MOST_POINTS: Final = 120


@dataclass(frozen=True, slots=True)
class Point:
    """One measured value with its interval; `tone` is a class of the page's style: "good", "bad" or "calm"."""

    value: float
    low: float
    high: float
    tone: str
    title: str


@dataclass(frozen=True, slots=True)
class Row:
    """The points of one label, and a short text behind them."""

    label: str
    points: tuple[Point, ...]
    note: str = ""


def strip_plot(
    rows: Sequence[Row], unit: str, zero: float | None = None, band: tuple[float, float] | None = None
) -> str:
    """Rows of points with intervals over one common scale. "" without rows.

    `zero` draws a line across all rows, `band` shades the values that are allowed.
    """
    if not rows:
        return ""
    labels = [shorten(row.label, MOST_LABEL) for row in rows]
    left = 24 + _CHARACTER * max(map(len, labels))
    right = WIDTH - 24 - _CHARACTER * max(len(row.note) for row in rows)
    low, high, ticks = _scale(rows, [*([] if zero is None else [zero]), *(band or ())], (right - left) / TICK_WIDTH)
    height = HEAD + ROW_HEIGHT * len(rows) + 24

    def x(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    parts = []
    if band is not None:
        place = f'x="{x(band[0]):.1f}" y="{HEAD}" width="{x(band[1]) - x(band[0]):.1f}" height="{height - 24 - HEAD}"'
        parts.append(f'<rect class="band" {place}/>')
    parts += [_line("grid", x(tick), HEAD, x(tick), height - 24) for tick in ticks]
    parts += [_text("tick", x(tick), height - 8, f"{tick:g}{unit}", "middle") for tick in ticks]
    if zero is not None:
        parts.append(_line("zero", x(zero), HEAD - 6, x(zero), height - 24))
    for index, (row, label) in enumerate(zip(rows, labels, strict=True)):
        middle = HEAD + ROW_HEIGHT * (index + 0.5)
        parts.append(_text("label", left - 12, middle + 4, label, "end"))
        if row.note:
            parts.append(_text("note", right + 12, middle + 4, row.note, "start"))
        parts += _points(row, middle, x)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" class="plot">{"".join(parts)}</svg>'


def glyph(point: Point, low: float, high: float, reference: float | None) -> str:
    """One value with its interval on the scale of its column, small enough for a table cell."""
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return 4 + 72 * min(1.0, max(0.0, (value - low) / span))

    tick = "" if reference is None else _line("reference", x(reference), 2, x(reference), 14)
    bar = _line(f"bar {point.tone}", x(point.low), 8, x(point.high), 8)
    dot = f'<circle class="dot {point.tone}" cx="{x(point.value):.1f}" cy="8" r="3"/>'
    return f'<svg viewBox="0 0 80 16" class="glyph">{tick}{bar}{dot}</svg>'


def curve_plot(curves: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Rates by position, one line per label, named at its end. "" without curves."""
    curves = [(label, values) for label, values in curves if values]
    if not curves:
        return ""
    depth = max(len(values) for _, values in curves)
    left, right, bottom, height = 56, 500, 190, 220
    step = (right - left) / max(1, depth - 1)

    def y(rate: float) -> float:
        return 14 + (bottom - 14) * (1 - rate)

    parts = [_line("grid", left, y(rate), right, y(rate)) for rate in (0, 0.25, 0.5, 0.75, 1)]
    parts += [_text("tick", left - 8, y(rate) + 4, f"{100 * rate:.0f} %", "end") for rate in (0, 0.25, 0.5, 0.75, 1)]
    parts += [_text("tick", left + step * i, height - 8, str(i + 1), "middle") for i in range(depth)]
    ends = _apart([y(values[-1]) for _, values in curves], 14)
    for index, ((label, values), end) in enumerate(zip(curves, ends, strict=True)):
        places = [(left + step * i, y(rate)) for i, rate in enumerate(values)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(f'<polyline class="curve series{index % 6}" points="{path}"/>')
        parts += [f'<circle class="mark series{index % 6}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in places]
        parts.append(_text(f"name series{index % 6}", right + 12, end + 4, label, "start"))
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" class="plot">{"".join(parts)}</svg>'


def _points(row: Row, middle: float, x: Scale) -> list[str]:
    points = sorted(row.points, key=lambda point: (point.tone == "bad", point.value))
    if len(points) > MOST_POINTS:
        every = math.ceil(len(points) / MOST_POINTS)
        points = [point for i, point in enumerate(points) if point.tone == "bad" or i % every == 0]
    offset = min(3.0, 16 / max(1, len(points) - 1)) if len(points) > 1 else 0.0
    parts = []
    for index, point in enumerate(points):
        at = middle + offset * (index - (len(points) - 1) / 2)
        parts.append(
            f'<g class="point {point.tone}"><title>{escape(point.title)}</title>'
            + _line("bar", x(point.low), at, x(point.high), at)
            + f'<circle class="dot" cx="{x(point.value):.1f}" cy="{at:.1f}" r="3.4"/></g>'
        )
    return parts


def _scale(rows: Sequence[Row], also: Sequence[float], most: float) -> tuple[float, float, list[float]]:
    """Low and high end of the scale, both of them round ticks that hold every point, interval and value of `also`; and
    about `most` ticks."""
    values = [end for row in rows for point in row.points for end in (point.value, point.low, point.high)]
    values += also
    low, high = min(values, default=0.0), max(values, default=1.0)
    air = 0.04 * (high - low) or 0.5
    step = _round_step((high - low + 2 * air) / max(2.0, most - 1))
    first, last = math.floor((low - air) / step), math.ceil((high + air) / step)
    return step * first, step * last, [step * i for i in range(first, last + 1)]


def _round_step(rough: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)


def _apart(places: Sequence[float], distance: float) -> list[float]:
    """The same places, moved down where two would be closer than `distance`."""
    moved = dict(enumerate(places))
    floor = -math.inf
    for index in sorted(moved, key=moved.__getitem__):
        floor = moved[index] = max(moved[index], floor + distance)
    return [moved[index] for index in range(len(places))]


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(kind: str, x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
