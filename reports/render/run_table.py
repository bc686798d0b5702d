"""The searchable table of all cells: a row per cell, and what a row shows when it is opened."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from msgspec.structs import asdict

from specmatrix.reports.compare.rewrites import signature
from specmatrix.reports.effective import effective
from specmatrix.reports.lengths import positive
from specmatrix.reports.render.page import badge, identity, tone
from specmatrix.reports.render.plots import Point, glyph
from specmatrix.reports.render.run_plots import acceptance_point, accuracy_point
from specmatrix.reports.render.view import RunView
from specmatrix.reports.schema import GATES, RED_STATES, CellResult, Json, is_waived
from specmatrix.reports.summary import STATE_KEYS
from specmatrix.reports.wording import failure, shorten

_MARKS: Final = {"PASS": "●", "FAIL": "✕", "NOT MEASURED": "?"}
_MOST_NOTE: Final = 300


class _Scale(NamedTuple):
    """Low and high end of a column of measured values."""

    low: float
    high: float


def cells_table(run: RunView, shown: Sequence[CellResult]) -> str:
    """Filters and rows of the cells in `shown`, "" without cells."""
    if not shown:
        return ""
    gates = [gate for gate in dict.fromkeys((*GATES, *run.summary.by_gate)) if gate in run.summary.by_gate]
    points = [acceptance_point(cell) for cell in shown]
    notes = [_note(cell) for cell in shown]
    columns = [("state", "text"), ("cell", "text"), ("gates", "number")]
    # A column that would be empty takes no room.
    columns += [("tokens per round", "number")] if any(points) else []
    columns += [("notes", "text")] if any(notes) else []
    head = "".join(f'<th data-sort="{kind}">{name}</th>' for name, kind in [*columns, ("seconds", "number")])
    scale = _scale(points)
    body = ""
    for index, (cell, point, note) in enumerate(zip(shown, points, notes, strict=True)):
        cells = [_measured(cell, point, scale)] if any(points) else []
        cells += [_noted(note)] if any(notes) else []
        body += _row(index, cell, gates, run.header.created, "".join(cells))
    legend = f"Gates from left to right: {', '.join(gates)}."
    return (
        f'{_filters(shown)}<p class="note"><b id="shown">{len(shown)} cells</b>. {escape(legend)}</p>'
        f'<table id="cells" class="stack"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def row_details(cell: CellResult) -> Json:
    """What the script reads about a cell: its record, its start, and its effective values."""
    return {
        **{name: getattr(cell, name) for name in ("id", "axes", "repro", "evidence", "error", "requested", "resolved")},
        "waived": None if cell.waived is None else asdict(cell.waived),
        **{name: [asdict(row) for row in getattr(cell, name)] for name in ("gates", "reasons", "rewrites")},
        "effective": effective(cell.axes, cell.resolved),
    }


def _filters(shown: Sequence[CellResult]) -> str:
    """A search box, a chip per state, and a choice per axis with more than one effective value."""
    states = [state for state in STATE_KEYS if any(cell.state == state for cell in shown)]
    chips = "".join(
        f'<label class="chip {tone(state)}"><input type="checkbox" data-state="{state}" checked>{state.lower()}</label>'
        for state in states
    )
    values: dict[str, set[str]] = {}
    for cell in shown:
        for axis, value in effective(cell.axes, cell.resolved).items():
            values.setdefault(axis, set()).add(value)
    choices = "".join(_choice(axis, found) for axis, found in values.items() if len(found) > 1)
    hint = "search: id, axis=value, reason, gate message"
    return (
        f'<div class="filters"><input type="search" id="search" placeholder="{hint}">'
        f'{chips}{choices}<button type="button" id="clear">clear</button></div>'
    )


def _choice(axis: str, values: set[str]) -> str:
    ordered = sorted(values, key=lambda value: (not value.isdigit(), value.zfill(8)))
    options = "".join(f"<option>{escape(value)}</option>" for value in ordered)
    name = escape(axis)
    return f'<label>{name}<select data-axis="{name}"><option value="">any</option>{options}</select></label>'


def _row(index: int, cell: CellResult, gates: Sequence[str], today: str, between: str) -> str:
    axes = " ".join(f"{axis}={value}" for axis, value in effective(cell.axes, cell.resolved).items())
    name = escape(cell.id)
    return (
        f'<tr data-row="{index}" data-state="{cell.state}" data-axes="{escape(axes)}" tabindex="0">'
        f'<td data-key="{cell.state}">{badge(cell.state)} {_waiver(cell, today)}</td>'
        f'<td data-key="{name}">{identity(cell.id)}</td>'
        f'<td data-key="{sum(gate.state != "PASS" for gate in cell.gates)}" class="marks">{_marks(cell, gates)}</td>'
        f'{between}<td data-key="{cell.seconds}" class="number">{cell.seconds:.2f} s</td></tr>'
    )


def _note(cell: CellResult) -> str:
    """What a row says in words: why it is red, what was rewritten, what the accuracy was."""
    accuracy = accuracy_point(cell)
    texts = [] if cell.state == "PASS" else [shorten(failure(cell), _MOST_NOTE)]
    texts += [f"rewritten {signature(rewrite)}" for rewrite in cell.rewrites]
    texts += [] if accuracy is None else [accuracy.title.removeprefix(f"{cell.id}: ")]
    return "; ".join(texts)


def _noted(note: str) -> str:
    return f'<td data-key="{escape(note)}" class="noted">{escape(note)}</td>'


def _waiver(cell: CellResult, today: str) -> str:
    if cell.state not in RED_STATES or cell.waived is None:
        return ""
    return "waived" if is_waived(cell, today) else "waiver expired"


def _marks(cell: CellResult, gates: Sequence[str]) -> str:
    """One sign per gate of the report, always at the same place."""
    marks = []
    for name in gates:
        gate = cell.gate(name)
        state = "did not run" if gate is None else gate.state
        sign = "·" if gate is None else _MARKS[gate.state]
        marks.append(f'<i class="{tone(state)}" title="{escape(name)}: {state}">{sign}</i>')
    return "".join(marks)


def _measured(cell: CellResult, point: Point | None, scale: _Scale) -> str:
    if point is None:
        return '<td data-key="-1e9" class="measured"></td>'
    gate = cell.gate("acceptance")
    reference = None if gate is None else positive(gate.numbers.get("reference"))
    return (
        f'<td data-key="{point.value}" class="measured" title="{escape(point.title)}">'
        f"{glyph(point, scale.low, scale.high, reference)}<span>{point.value:.2f}</span></td>"
    )


def _scale(points: Sequence[Point | None]) -> _Scale:
    real = [point for point in points if point is not None]
    return _Scale(min((p.low for p in real), default=0.0), max((p.high for p in real), default=1.0))
