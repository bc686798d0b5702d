"""A comparison as one HTML file."""

from __future__ import annotations

from html import escape
from typing import Final

from specmatrix.reports.compare.cell_state import CellChange, Comparison, LostPairs, State
from specmatrix.reports.compare.cells import effect_text
from specmatrix.reports.effective import pair_text
from specmatrix.reports.render.comparison_markdown import cell_notes, drift_text
from specmatrix.reports.render.page import badge, banner, command, identity, origin, page, section, table, tiles, tone
from specmatrix.reports.render.plots import Point, Row, strip_plot
from specmatrix.reports.wording import build, count, shorten

MOST_CELLS: Final = 1000
MOST_PLOTTED: Final = 60
MOST_PAIRS: Final = 60


def comparison_page(comparison: Comparison) -> str:
    """The comparison as HTML."""
    sides = f"{build(comparison.base.header)} → {build(comparison.head.header)}"
    lines = [*comparison.reasons, *(factor.text for factor in comparison.factors)]
    counts = [(state.lower(), f"{comparison.counts[state]:,}", tone(state)) for state in State]
    body = "".join(
        (
            banner(comparison.verdict, f"compare {comparison.verdict}: {sides}", lines),
            tiles(counts),
            section("Effective coverage", _coverage(comparison), "Pairs of values that green cells really ran."),
            section(
                "Probes",
                _names(comparison.probes.sentences()),
                "What some cell of one report did and none of the other.",
            ),
            section("Rewrite ledger", _rewrites(comparison), "What runs instead of what was asked or chosen before."),
            section("Changed cells", _cells(comparison), "The line at the end of a row runs its cell again."),
            section("Effects", _effects(comparison), "Change from base to head with its 95 % interval."),
            section("Drifts", _drifts(comparison), "Small changes in one direction: hints, no verdicts."),
            section("Default choices that changed", _choices(comparison)),
            section("Thresholds and waivers that changed", _rules(comparison)),
            section("Inputs that differ", _mismatches(comparison)),
            section("Red in base too", _names(comparison.still_red)),
            section("Acknowledged, but did not happen", _names(comparison.unused)),
            section("Origin", _origin(comparison)),
        )
    )
    return page(f"specmatrix compare {comparison.verdict}", body)


def _cells(comparison: Comparison) -> str:
    rows = "".join(_cell(change) for change in comparison.changes[:MOST_CELLS])
    if not rows:
        return ""
    left_out = len(comparison.changes) - MOST_CELLS
    more = f'<p class="note">{count(left_out, "more cell")} in comparison.json.</p>' if left_out > 0 else ""
    head = "<thead><tr><th>state</th><th>cell</th><th>what changed</th><th>run it again</th></tr></thead>"
    return f'<table class="stack verdicts">{head}<tbody>{rows}</tbody></table>{more}'


def _cell(change: CellChange) -> str:
    small = "".join(f"<br><small>{escape(note)}</small>" for note in cell_notes(change))
    mark = "" if change.red or change.state in (State.SAME, State.IMPROVED, State.NEW) else "<br><small>not red</small>"
    return (
        f"<tr><td>{badge(change.state)}{mark}</td><td>{identity(change.id)}</td>"
        f"<td>{escape(shorten(change.why, 600))}{small}</td><td>{command(change.repro)}</td></tr>"
    )


def _effects(comparison: Comparison) -> str:
    figures = ""
    for gate, title in (("acceptance", "Acceptance length, %"), ("accuracy", "Accuracy, points")):
        found = [(change, effect) for change in comparison.changes for effect in change.effects if effect.gate == gate]
        found.sort(key=lambda pair: pair[1].change)
        rows = [
            Row(
                change.id,
                (
                    Point(
                        100 * effect.change,
                        100 * effect.interval[0],
                        100 * effect.interval[1],
                        {"loss": "bad", "gain": "up", "": "calm"}[effect.significant],
                        f"{change.id}: {effect_text(effect)}",
                    ),
                ),
            )
            for change, effect in found[:MOST_PLOTTED]
        ]
        more = f" The {MOST_PLOTTED} largest losses of {len(found)}." if len(found) > MOST_PLOTTED else ""
        if rows:
            plot = strip_plot(rows, "", zero=0.0)
            figures += f"<figure><figcaption><b>{escape(title)}</b>{more}</figcaption>{plot}</figure>"
    return f'<div class="figures">{figures}</div>' if figures else ""


def _drifts(comparison: Comparison) -> str:
    items = "".join(f"<li>{escape(drift_text(drift))}</li>" for drift in comparison.drifts)
    return f"<ul>{items}</ul>" if items else ""


def _coverage(comparison: Comparison) -> str:
    lost = "".join(_pairs(row, "lost") for row in comparison.coverage.lost)
    gained = "".join(_pairs(row, "gained") for row in comparison.coverage.gained)
    return lost + gained


def _pairs(row: LostPairs, word: str) -> str:
    only = set(row.only_carrier)
    shown = "".join(
        f"<code>{escape(pair_text(pair))}{' · only carrier' if pair in only else ''}</code>"
        for pair in row.pairs[:MOST_PAIRS]
    )
    more = f" and {count(len(row.pairs) - MOST_PAIRS, 'more pair')}" if len(row.pairs) > MOST_PAIRS else ""
    state = badge_word(word, len(row.pairs))
    return f'<p>{state} {escape(row.cause)}</p><p class="pairs">{shown}{more}</p>'


def badge_word(word: str, pairs: int) -> str:
    """`3 pairs lost`, in the colour of its meaning."""
    kind = "bad" if word == "lost" else "good"
    return f'<span class="badge {kind}">{count(pairs, "pair")} {word}</span>'


def _rewrites(comparison: Comparison) -> str:
    rows = [
        (
            r.status, r.signature, str(len(r.cells)), r.reason,
            "not acknowledged" if r.red else r.excused or ("declared" if r.status == "new" else ""),
        )
        for r in comparison.rewrites
    ]  # fmt: skip
    return table(("status", "rewrite*", "cells", "reason", "accepted"), rows)


def _choices(comparison: Comparison) -> str:
    rows = [(c.field, c.base, c.base_because, c.head, c.head_because, str(len(c.cells))) for c in comparison.choices]
    return table(("field*", "base*", "because", "head*", "because", "cells"), rows)


def _rules(comparison: Comparison) -> str:
    rules = [("threshold", rule) for rule in comparison.thresholds] + [("waiver", rule) for rule in comparison.waivers]
    return table(
        ("kind", "rule*", "base", "head"), [(kind, r.name, r.base or "none", r.head or "none") for kind, r in rules]
    )


def _mismatches(comparison: Comparison) -> str:
    rows = [(m.name, m.base, m.head, ", ".join(m.gates) or "nothing", m.why) for m in comparison.mismatches]
    return table(("input", "base*", "head*", "not comparable", "because"), rows)


def _names(names: tuple[str, ...]) -> str:
    shown = "".join(f"<code>{escape(name)}</code>" for name in names[:200])
    more = f" and {count(len(names) - 200, 'more')}" if len(names) > 200 else ""
    return f'<p class="pairs">{shown}{more}</p>' if names else ""


def _origin(comparison: Comparison) -> str:
    base, head = origin(comparison.base.header), origin(comparison.head.header)
    rows = [(name, before, after) for (name, before), (_, after) in zip(base, head, strict=True)]
    rows.append(("cells", f"{comparison.base.cells:,}", f"{comparison.head.cells:,}"))
    return table(("what", "base", "head"), rows)
