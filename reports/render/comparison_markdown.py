"""A comparison as Markdown, for a pull-request comment."""

from __future__ import annotations

from specmatrix.reports.compare.cell_state import CellChange, Comparison, Drift, LostPairs, State
from specmatrix.reports.compare.cells import effect_text
from specmatrix.reports.effective import pair_text
from specmatrix.reports.render.markdown import Document, code, escape
from specmatrix.reports.wording import build, count

MOST_PAIRS = 12


def comparison_markdown(comparison: Comparison) -> str:
    """The comparison as Markdown, below `markdown.LIMIT` bytes whatever it holds; the verdict and its reasons
    first."""
    document = Document()
    mark = "✅" if comparison.verdict == "green" else "❌"
    sides = f"{code(build(comparison.base.header))} → {code(build(comparison.head.header))}"
    document.line(f"## {mark} specmatrix compare: {comparison.verdict}, {sides}")
    document.line()
    for reason in comparison.reasons:
        document.line(f"- **{escape(reason)}**")
    document.line()
    document.line(" · ".join(f"{state} {comparison.counts[state]:,}" for state in State))
    document.line()
    _factors(document, comparison)
    _comparability(document, comparison)
    for sentence in comparison.probes.sentences():
        document.line(f"- {escape(sentence, 1200)}")
    _coverage(document, comparison)
    _rewrites(document, comparison)
    _cells(document, comparison)
    _choices(document, comparison)
    _rules(document, comparison)
    _rest(document, comparison)
    return document.text()


def _title(document: Document, title: str) -> None:
    document.line(f"### {title}")
    document.line()


def _factors(document: Document, comparison: Comparison) -> None:
    if comparison.factors or comparison.drifts:
        _title(document, "What the changes have in common")
        for factor in comparison.factors:
            document.line(f"- **{escape(factor.text, 400)}** (p {factor.p:.1g})")
        for drift in comparison.drifts[:10]:
            document.line(f"- {escape(drift_text(drift))}")
        document.line()


def _comparability(document: Document, comparison: Comparison) -> None:
    if comparison.mismatches:
        _title(document, "Inputs that differ")
        rows = [
            (escape(m.name), code(m.base), code(m.head), escape(", ".join(m.gates) or "nothing"), escape(m.why))
            for m in comparison.mismatches
        ]
        document.table(("input", "base", "head", "not comparable", "because"), rows)


def _coverage(document: Document, comparison: Comparison) -> None:
    if comparison.coverage.lost or comparison.coverage.gained:
        _title(document, "Effective coverage: pairs of values that green cells exercised")
        for word, rows in (("lost", comparison.coverage.lost), ("gained", comparison.coverage.gained)):
            for row in rows[:20]:
                document.line(f"- {pairs_text(row, word)}")
        document.line()


def pairs_text(row: LostPairs, word: str) -> str:
    """`**3 pairs lost**: 1 cell resolves now to ...: (spec_version=v2, topk=4), ...` in Markdown."""
    shown = ", ".join(code(pair_text(pair)) for pair in row.pairs[:MOST_PAIRS])
    more = f" and {count(len(row.pairs) - MOST_PAIRS, 'more pair')}" if len(row.pairs) > MOST_PAIRS else ""
    only = f" {count(len(row.only_carrier), 'pair')} had one carrier only." if row.only_carrier else ""
    return f"**{count(len(row.pairs), 'pair')} {word}**: {escape(row.cause, 400)}: {shown}{more}.{only}"


def _rewrites(document: Document, comparison: Comparison) -> None:
    if comparison.rewrites:
        _title(document, "Rewrite ledger")
        rows = [
            (
                r.status, code(r.signature), str(len(r.cells)), escape(r.reason),
                "❌ not acknowledged" if r.red else escape(r.excused or ("declared" if r.status == "new" else "")),
            )
            for r in comparison.rewrites
        ]  # fmt: skip
        document.table(("status", "rewrite", "cells", "reason", "accepted"), rows)


def _cells(document: Document, comparison: Comparison) -> None:
    rows = [
        (
            f"{'❌ ' if change.red else ''}{change.state}",
            code(change.id),
            escape(change.why, 300),
            escape("; ".join(cell_notes(change)), 300),
        )
        for change in comparison.changes
    ]
    if rows:
        _title(document, "Changed cells")
        document.table(("state", "cell", "why", "effect, first divergence, bound, waiver"), rows, most=60)
        repros = [change.repro for change in comparison.changes]
        document.commands("Run them again, one line each", repros, most=60)


def cell_notes(change: CellChange) -> list[str]:
    """What a row says beside its reason: effects that the reason does not name, first divergence, bound, excuse."""
    effects = [text for effect in change.effects if (text := effect_text(effect)) not in change.why]
    return effects + [text for text in (change.first_divergence, change.bound, change.excused) if text]


def _choices(document: Document, comparison: Comparison) -> None:
    if comparison.choices:
        _title(document, "Default choices that changed")
        rows = [
            (
                escape(c.field), code(c.base), escape(c.base_because), code(c.head), escape(c.head_because),
                str(len(c.cells)),
            )
            for c in comparison.choices
        ]  # fmt: skip
        document.table(("field", "base", "because", "head", "because", "cells"), rows)


def _rules(document: Document, comparison: Comparison) -> None:
    for title, rules in (("Thresholds", comparison.thresholds), ("Waivers", comparison.waivers)):
        if rules:
            _title(document, f"{title} that changed")
            rows = [(code(rule.name), escape(rule.base or "none"), escape(rule.head or "none")) for rule in rules]
            document.table(("rule", "base", "head"), rows)


def _rest(document: Document, comparison: Comparison) -> None:
    if comparison.still_red:
        shown = ", ".join(code(cell) for cell in comparison.still_red[:10])
        document.line(f"Red in base too: {count(len(comparison.still_red), 'cell')}, such as {shown}.")
    if comparison.unused:
        document.line(f"Acknowledged, but did not happen: {', '.join(code(name) for name in comparison.unused[:20])}.")


def drift_text(drift: Drift) -> str:
    """`acceptance moved by -0.8 % (median) at page_size=64: down in 19 of 20 cells (p 4e-05)`."""
    place = f"at {drift.axis}={drift.value}" if drift.axis else "over all cells"
    moved = f"down in {drift.down} of {drift.down + drift.up} changed cells"
    return f"{drift.gate} moved by {100 * drift.median:+.1f} % (median) {place}: {moved} (p {drift.p:.1g})"
