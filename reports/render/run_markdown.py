"""`report.md`: one run, for a pull-request comment."""

from __future__ import annotations

from specmatrix.reports.render.markdown import Document, code, escape
from specmatrix.reports.render.view import RunView
from specmatrix.reports.schema import GATE_STATES
from specmatrix.reports.summary import STATE_KEYS
from specmatrix.reports.wording import build, count, duration, failure, first_divergence, machine


def run_markdown(run: RunView) -> str:
    """The report as Markdown, below `markdown.LIMIT` bytes whatever the run holds."""
    document = Document()
    summary = run.summary
    mark = "✅" if run.verdict == "green" else "❌"
    tail = f"{count(len(run.red), 'cell')} red of {summary.cells:,}" if summary.ran else "no cell ran"
    document.line(f"## {mark} specmatrix {escape(run.header.tier)} / {escape(run.header.stage)}: {run.verdict}, {tail}")
    document.line()
    states = [*(f"{state} {summary.states[state]:,}" for state in STATE_KEYS), f"waived {summary.waived:,}"]
    document.line(" · ".join(states) + f" · {duration(summary.seconds)} of cell time")
    document.line()
    mark = "❌ " if summary.probes.state == "FAIL" else ""
    document.line(f"{mark}{escape(summary.probes.message, 1200)}.")
    document.line()
    document.line(f"{summary.coverage.message.capitalize()}.")
    document.line()
    for factor in run.factors:
        document.line(f"- **{escape(factor.text, 400)}** (p {factor.p:.1g})")
    document.line()
    _red_cells(document, run)
    _gates(document, run)
    _ledger(document, run)
    _waived(document, run)
    _unsupported(document, run)
    _origin(document, run)
    return document.text()


def _red_cells(document: Document, run: RunView) -> None:
    rows = [
        (cell.state, code(cell.id), escape(failure(cell), 300), escape(first_divergence(cell), 120)) for cell in run.red
    ]
    if rows:
        document.line("### Red cells")
        document.line()
        document.table(("state", "cell", "why", "first divergence"), rows, most=60)
        document.commands("Run them again, one line each", [cell.repro for cell in run.red], most=60)


def _gates(document: Document, run: RunView) -> None:
    rows = [
        (escape(gate), *(str(states.get(state, 0)) for state in GATE_STATES))
        for gate, states in run.summary.by_gate.items()
    ]
    document.line("### Gates")
    document.line()
    document.table(("gate", *GATE_STATES), rows)


def _ledger(document: Document, run: RunView) -> None:
    rows = [(code(r.signature), str(r.cells), str(r.declared), escape(r.reason)) for r in run.rewrites]
    if rows:
        document.line("### Rewrites: what ran instead of what was asked")
        document.line()
        document.table(("rewrite", "cells", "declared", "reason"), rows, most=30)
    choices = [(escape(c.field), code(c.value), str(c.cells), escape(c.because)) for c in run.choices]
    if choices:
        document.line("### Choices that were left to the engine")
        document.line()
        document.table(("field", "value", "cells", "because"), choices, most=30)


def _waived(document: Document, run: RunView) -> None:
    rows = [
        (cell.state, code(cell.id), escape(cell.waived.reason), escape(cell.waived.expiry), escape(failure(cell), 160))
        for cell in run.waived
        if cell.waived is not None
    ]
    if rows:
        document.line("### Waived: red, known, and still run")
        document.line()
        document.table(("state", "cell", "reason", "until", "why"), rows, most=30)


def _unsupported(document: Document, run: RunView) -> None:
    rows = [(code(cell.id), escape(failure(cell), 160)) for cell in run.unsupported]
    if rows:
        document.line("### Unsupported: the subject cannot run these cells")
        document.line()
        document.table(("cell", "why"), rows, most=30)


def _origin(document: Document, run: RunView) -> None:
    header = run.header
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    hashes = (("lock", header.lock_hash), ("data", header.data_hash), ("zoo", header.zoo_hash))
    document.line(
        f"Commit {code(build(header))}, {escape(header.created)}, seed {header.seed}; {escape(machine(header))}; "
        f"{escape(versions)}; {', '.join(f'{name} {code(value)}' for name, value in hashes)}."
    )
