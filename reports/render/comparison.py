"""A comparison as JSON, as Markdown for a pull-request comment, and as one HTML file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from specmatrix.reports.compare.cell_state import CellChange, ChangeState, Comparison
from specmatrix.reports.compare.cells import effect_text
from specmatrix.reports.compare.compare import comparison_record
from specmatrix.reports.render.markup import html, markdown
from specmatrix.reports.render.plots import Point, Row, strip_plot
from specmatrix.reports.store import check_place, held, write_text

COMPARISON_NAME: Final = "comparison"
MAX_CELLS: Final = 1000
MAX_PLOTTED: Final = 60
_PLOTS: Final = {
    "acceptance": "Acceptance length, %",
    "accuracy": "Accuracy, percentage points",
    "speed": "Speed over no drafter, %",
    "own_speed": "Speed over a fixed piece of work, %",
}
_TONES: Final = {"loss": "bad", "gain": "up", "": "calm"}


def write_comparison(comparison: Comparison, directory: Path, sides: tuple[str, str] | None = None) -> None:
    """Write `comparison.json` (everything), `comparison.md` and `comparison.html` into `directory`.

    sides: display names of base and head; by default their commits.
    Raises ReportError if the directory is not writable.
    """
    texts = {
        "json": json.dumps(comparison_record(comparison), indent=1) + "\n",
        "md": comparison_markdown(comparison),
        "html": comparison_page(comparison, sides),
    }
    check_place(directory)
    with held(directory):
        for ending, text in texts.items():
            write_text(directory / f"{COMPARISON_NAME}.{ending}", text)


def comparison_markdown(comparison: Comparison) -> str:
    """The comparison as Markdown within the size of a pull-request comment; verdict and reasons first."""
    return markdown("comparison.md.j2", c=comparison, states=ChangeState, notes=_notes)


def comparison_page(comparison: Comparison, sides: tuple[str, str] | None = None) -> str:
    """The comparison as HTML. sides: as in `write_comparison`."""
    return html(
        "comparison.html.j2",
        c=comparison,
        sides=sides,
        states=ChangeState,
        notes=_notes,
        most_cells=MAX_CELLS,
        filters=[state for state in ChangeState if any(change.state is state for change in comparison.changes)],
        groups=_groups(comparison.changes[:MAX_CELLS]),
        quiet=(ChangeState.SAME, ChangeState.IMPROVED, ChangeState.NEW),
        plots=[plot for gate, title in _PLOTS.items() if (plot := _plot(comparison.changes, gate, title))],
        data=None,
    )


def _groups(changes: Sequence[CellChange]) -> list[tuple[ChangeState, str, list[CellChange]]]:
    """Groups consecutive changes with equal state and cause; a comparison is sorted by both."""
    found = groupby(changes, key=lambda change: (change.red, change.state, change.cause))
    return [(state, cause, list(group)) for (_, state, cause), group in found]


def _notes(change: CellChange) -> list[str]:
    """A row's notes beside its reason: other effects, bound, acknowledgement."""
    effects = [text for effect in change.effects if (text := effect_text(effect)) not in change.why]
    return effects + [text for text in (change.bound, change.accepted) if text]


def _plot(changes: Sequence[CellChange], gate: str, title: str) -> tuple[str, str, str] | None:
    """(title, note, SVG) of the effects on one gate, largest losses first; None without effects."""
    found = [(change.id, effect) for change in changes for effect in change.effects if effect.gate == gate]
    found.sort(key=lambda pair: pair[1].change)
    rows = []
    for cell, effect in found[:MAX_PLOTTED]:
        low, high = effect.interval or (effect.change, effect.change)
        title_text = f"{cell}: {effect_text(effect)}"
        point = Point(100 * effect.change, 100 * low, 100 * high, _TONES[effect.significant], title_text)
        rows.append(Row(cell, (point,)))
    note = f"The {MAX_PLOTTED} largest losses of {len(found)}." if len(found) > MAX_PLOTTED else ""
    return (title, note, strip_plot(rows, "", zero=0.0)) if rows else None
