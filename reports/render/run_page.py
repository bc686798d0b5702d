"""`report.html`: one run, to be looked at and searched."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from specmatrix.reports.lengths import positive
from specmatrix.reports.render.page import (
    badge,
    banner,
    command,
    identity,
    origin,
    page,
    reasons,
    section,
    table,
    tiles,
)
from specmatrix.reports.render.run_plots import acceptance_plot, accuracy_plot, position_plot
from specmatrix.reports.render.run_table import cells_table, row_details
from specmatrix.reports.render.view import RunView
from specmatrix.reports.schema import GATE_STATES, CellResult
from specmatrix.reports.summary import STATE_KEYS
from specmatrix.reports.wording import count, duration, failure, first_divergence

# A page with more rows opens too slowly; red cells are never left out before green ones.
MOST_ROWS: Final = 4000
MOST_RED: Final = 200


def run_page(run: RunView) -> str:
    """The report as one HTML file."""
    shown = run.cells[:MOST_ROWS]
    head = f"{run.header.tier} / {run.header.stage}: {run.verdict}"
    red = count(len(run.red), "red cell") + f" of {run.summary.cells:,}" if run.summary.ran else "no cell ran"
    body = "".join(
        (
            banner(run.verdict, f"{head}, {red}", _common(run)),
            _tiles(run),
            section("Gates", _gates(run)),
            section(
                "Red cells",
                _red(run),
                "The command of a row runs its cell again, with the environment of the checkout active.",
            ),
            _plots(run),
            section("All cells", cells_table(run, shown), _cells_note(run, shown)),
            section("Probes", _probes(run), "Every demanded probe was hit in some cell, or the run is red."),
            section(
                "Coverage", _coverage(run), "Combinations of axis values: what was asked for, and what green cells ran."
            ),
            section("Rewrites", _rewrites(run), "What ran instead of what was asked."),
            section("Choices", _choices(run), "What was left to the engine, and why it chose so."),
            section("Waivers", _waivers(run), "Red, known, and still run."),
            section("Unsupported", _unsupported(run), "Cells that the subject cannot run: neither red nor green."),
            section("Origin", table(("what", "value"), origin(run.header))),
        )
    )
    return page(f"specmatrix {head}", body, {"cells": [row_details(cell) for cell in shown]})


def _common(run: RunView) -> list[str]:
    """What the banner says of the run as a whole: unhit probes, then what red cells have in common."""
    probes = run.summary.probes
    return [*([probes.message] if probes.state == "FAIL" else []), *(factor.text for factor in run.factors)]


def _probes(run: RunView) -> str:
    return f'<p class="note">{escape(run.summary.probes.message)}.</p>'


def _coverage(run: RunView) -> str:
    found = run.summary.coverage
    rows = [
        ("pairs", f"{found.asked_pairs:,}", f"{found.green_pairs:,}"),
        ("triples", f"{found.asked_triples:,}", f"{found.green_triples:,}"),
    ]
    return table(("combinations", "asked for", "ran in green cells"), rows)


def _tiles(run: RunView) -> str:
    tones = {"PASS": "good", "FAIL": "bad"}
    rows = [(state.lower(), f"{run.summary.states[state]:,}", tones.get(state, "warn")) for state in STATE_KEYS]
    rows += [("waived", f"{run.summary.waived:,}", "calm"), ("cell time", duration(run.summary.seconds), "calm")]
    return tiles(rows)


def _red(run: RunView) -> str:
    rows = [
        f"<tr><td>{badge(cell.state)}</td><td>{identity(cell.id)}</td>"
        f"<td>{reasons(cell)}<small>{escape(first_divergence(cell))}</small></td>"
        f"<td>{command(cell.repro)}</td></tr>"
        for cell in run.red[:MOST_RED]
    ]
    if not rows:
        return ""
    more = f'<p class="note">{count(len(run.red) - MOST_RED, "more")} in the table below.</p>'
    head = "<thead><tr><th>state</th><th>cell</th><th>why</th><th>run it again</th></tr></thead>"
    return (
        f'<table class="stack verdicts">{head}<tbody>{"".join(rows)}</tbody></table>'
        f"{more if len(run.red) > MOST_RED else ''}"
    )


def _plots(run: RunView) -> str:
    panels = (
        (
            "Acceptance length against its reference",
            "A point per cell: tokens per verify round over the oracle's, with the 95 % interval; the band is allowed. "
            "Behind each row the tokens per round. Where an index is replayed there is no reference, and the gate "
            "compares every round.",
            acceptance_plot(run.cells, _allowed(run)),
        ),
        (
            "Accuracy against plain decoding",
            "Points lost or won on the same questions, with the 95 % interval.",
            accuracy_plot(run.cells),
        ),
        (
            "Acceptance by position",
            "Mean over the green cells with the deepest drafts of a fixed depth.",
            position_plot(run.cells),
        ),
    )
    figures = [
        f"<figure><figcaption><b>{escape(title)}</b> {escape(note)}</figcaption>{plot}</figure>"
        for title, note, plot in panels
        if plot
    ]
    return section("Measurements", f'<div class="figures">{"".join(figures)}</div>' if figures else "")


def _allowed(run: RunView) -> tuple[float, float] | None:
    """The ratios to the reference between which the acceptance gate of this run is green."""
    thresholds = run.header.thresholds.get("acceptance", {})
    low, high = positive(thresholds.get("low")), positive(thresholds.get("high"))
    return None if low is None or high is None else (low, high)


def _cells_note(run: RunView, shown: Sequence[CellResult]) -> str:
    left_out = len(run.cells) - len(shown)
    more = f" Left out of this page, not of report.jsonl: {count(left_out, 'green cell')}." if left_out else ""
    return "Filters take effective values: what ran, not what was asked. A row opens on a click." + more


def _gates(run: RunView) -> str:
    """A chip per gate: cells that it passed, and those that it did not."""
    chips = ""
    for gate, states in run.summary.by_gate.items():
        red = [f"{states[state]:,} {state}" for state in GATE_STATES if state != "PASS" and states.get(state)]
        words = ", ".join([f"{states.get('PASS', 0):,} PASS", *red])
        chips += f'<span class="gate {"bad" if red else "good"}"><b>{escape(gate)}</b> {words}</span>'
    return f'<div class="gates">{chips}</div>' if chips else ""


def _rewrites(run: RunView) -> str:
    rows = [(r.signature, str(r.cells), str(r.declared), r.reason) for r in run.rewrites]
    return table(("rewrite*", "cells", "declared", "reason"), rows)


def _choices(run: RunView) -> str:
    rows = [(c.field, c.value, str(c.cells), c.because) for c in run.choices]
    return table(("field*", "value*", "cells", "because"), rows)


def _unsupported(run: RunView) -> str:
    return table(("cell*", "why"), [(cell.id, failure(cell)) for cell in run.unsupported[:MOST_RED]])


def _waivers(run: RunView) -> str:
    rules = [(rule.cells, rule.reason, rule.expiry) for rule in run.header.waivers]
    cells = [
        (cell.id, cell.waived.reason, cell.waived.expiry, failure(cell))
        for cell in run.waived
        if cell.waived is not None
    ]
    return table(("cells*", "reason", "until"), rules) + table(("cell*", "reason", "until", "why red"), cells)
