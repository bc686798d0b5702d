"""compare(base, head): the differences between two reports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final, TypeAlias

import msgspec

from specmatrix.reports.compare import cell_state
from specmatrix.reports.compare.acknowledge import Acknowledged, Acknowledgement
from specmatrix.reports.compare.cell_state import CellChange, ChangeState, ComparedReport, Comparison, Effect, Factor
from specmatrix.reports.compare.cells import Context, compare_cell, lost_cell, new_cell
from specmatrix.reports.compare.comparability import incomparable_gates, mismatches, threshold_changes, waiver_changes
from specmatrix.reports.compare.coverage import coverage_change
from specmatrix.reports.compare.evidence import effects, mark_significant
from specmatrix.reports.compare.rewrites import choice_changes, left_defaults, rewrite_changes
from specmatrix.reports.groups import common_factors, shared
from specmatrix.reports.schema import RED_STATES, SCHEMA, UNJUDGED_STATES, CellResult, Header, Json, ReportError
from specmatrix.reports.store import Report, gc_paused
from specmatrix.reports.summary import compare_counters, worse_counters
from specmatrix.reports.wording import count, shorten, shorten_rewrite

Pair: TypeAlias = tuple[CellResult, CellResult]  # a cell in base and in head

# The most urgent first.
_URGENT: Final = tuple(ChangeState(word) for word in ("REGRESSED", "INFRA", "LOST", "REWRITTEN", "NOT COMPARABLE"))
_COMPARED: Final = tuple(ChangeState(word) for word in ("REGRESSED", "IMPROVED", "SAME", "UNKNOWN", "REWRITTEN"))
# A hash of git, not all zeros, or the version of a release.
_COMMIT: Final = re.compile(r"(?!0+$)[0-9a-f]{7,64}|v\d+\.[\w.+-]{1,40}", re.ASCII)
# Causes whose common factors are searched, the most frequent first.
_MAX_FACTORED: Final = 4
_FAILURES = (ChangeState.REGRESSED, ChangeState.NEW, ChangeState.NOT_COMPARABLE)


@gc_paused()
def compare(base: Report, head: Report, acknowledgements: Sequence[Acknowledgement] = ()) -> Comparison:
    """What changed from `base` to `head`; `cell_state` defines every state and the verdict.

    Acknowledgements and waivers apply as of the day of the head run. Raises ReportError if no cell was compared.
    """
    found = mismatches(base.header, head.header)
    blocked = incomparable_gates(found)
    today = head.header.created[:10]
    acknowledged = Acknowledged(tuple(acknowledgements), today)
    context = Context(blocked, acknowledged, today)
    # If an input differs, equal records may mean different results.
    same = [] if blocked else base.same(head)
    equal, before, after = set(same), base.lines, head.lines
    pairs = {cell: (base[cell], head[cell]) for cell in before if cell not in equal and cell in after}
    lost = [base[cell] for cell in before if cell not in after]
    new = [head[cell] for cell in after if cell not in before]
    measured = _measure(pairs, blocked)
    changes = [
        *(lost_cell(cell, None, context) for cell in lost),
        *(compare_cell(*pair, measured[cell], context) for cell, pair in pairs.items()),
        *(new_cell(cell, context) for cell in new),
    ]
    touched: dict[str, tuple[CellResult | None, CellResult | None]] = {
        **{cell.id: (cell, None) for cell in lost},
        **pairs,
        **{cell.id: (None, cell) for cell in new},
    }
    rewrites = rewrite_changes(touched.values(), acknowledged, context.paths)
    counts = dict.fromkeys(ChangeState, 0) | Counter(change.state for change in changes)
    counts[ChangeState.SAME] += len(same)
    reasons = (*_reasons(changes, rewrites), *worse_counters(base, head))
    reasons = (*(_other_cells(found) if reasons else ()), *reasons, *_unknown_commits(base.header, head.header))
    _check_compared(base, head, reasons)
    if not reasons and sum(counts[state] for state in _COMPARED) == 0:
        reasons = (f"no cell could be compared: {', '.join(m.name for m in found if m.gates)} differ",)
    return Comparison(
        base=ComparedReport(str(base.path), base.header, len(base)),
        head=ComparedReport(str(head.path), head.header, len(head)),
        verdict="red" if reasons else "green",
        reasons=reasons,
        counts=counts,
        changes=tuple(sorted(filter(_is_news, changes), key=_urgency)),
        still_red=tuple(cell for cell in base.red() if cell in head and head[cell].state in RED_STATES),
        mismatches=found,
        coverage=coverage_change(base, head, same, touched),
        counters=compare_counters(*_completed(base, head, pairs.values())),
        rewrites=rewrites,
        choices=(choices := choice_changes(touched.values())),
        left=left_defaults(base, head, choices),
        factors=_factors(changes, head),
        thresholds=threshold_changes(base.header, head.header),
        waivers=waiver_changes(base.header, head.header),
        unused=acknowledged.unused(),
    )


def comparison_json(comparison: Comparison) -> dict[str, Json]:
    """The stable machine-readable form: schema, verdict, reasons, and number of cells per state."""
    return {
        "schema": SCHEMA,
        "verdict": comparison.verdict,
        "reasons": list(comparison.reasons),
        "states": {state.value: comparison.counts[state] for state in ChangeState},
    }


def comparison_record(comparison: Comparison) -> dict[str, Json]:
    """`comparison_json` followed by all other fields of the comparison."""
    brief = comparison_json(comparison)
    whole: dict[str, Json] = msgspec.to_builtins(asdict(comparison))
    return brief | {name: value for name, value in whole.items() if name not in (*brief, "counts")}


def _completed(base: Report, head: Report, pairs: Iterable[Pair]) -> tuple[Counter[str], Counter[str]]:
    """The counters of both sides, without those of cells that crashed on either side."""
    old, new = Counter(base.evidence), Counter(head.evidence)
    for before, after in pairs:
        if any(cell.error and cell.state in RED_STATES for cell in (before, after)):
            old.subtract(before.evidence)
            new.subtract(after.evidence)
    return old, new


def _measure(pairs: Mapping[str, Pair], blocked: frozenset[str]) -> dict[str, tuple[Effect, ...]]:
    """The effects of every cell, tested for significance all together."""
    raw = {cell: effects(before, after, blocked) for cell, (before, after) in pairs.items()}
    marked = iter(mark_significant([effect for row in raw.values() for effect in row]))
    return {cell: tuple(next(marked) for _ in row) for cell, row in raw.items()}


def _check_compared(base: Report, head: Report, reasons: Sequence[str]) -> None:
    """ReportError if a report has no cells, or if a green comparison had no verdicts to compare."""
    for report in (base, head):
        if not len(report):
            raise ReportError(f"{report.path} has no cells, so nothing was compared")
    judged = (not {base[cell].state, head[cell].state} & UNJUDGED_STATES for cell in base.lines if cell in head)
    if not reasons and not any(judged):
        raise ReportError(f"no cell has a verdict in both {base.path} and {head.path}, so nothing was compared")


def _is_news(change: CellChange) -> bool:
    """False for cells without any difference."""
    return change.state is not ChangeState.SAME or bool(change.effects or change.gates)


def _urgency(change: CellChange) -> tuple[bool, int, str, str]:
    rank = _URGENT.index(change.state) if change.state in _URGENT else len(_URGENT)
    return not change.red, rank, change.cause, change.id


def _reasons(changes: Iterable[CellChange], rewrites: Iterable[cell_state.RewriteChange]) -> tuple[str, ...]:
    """Why the comparison is red, one sentence per state."""
    red = Counter(change.state for change in changes if change.red)
    words = {
        ChangeState.REGRESSED: "regressed",
        ChangeState.INFRA: "not measured because the machine failed",
        ChangeState.LOST: "lost without an acknowledgement",
        ChangeState.REWRITTEN: "rewritten without an acknowledgement",
        ChangeState.NEW: "new and red",
        ChangeState.NOT_COMPARABLE: "red in head and not comparable with base",
    }
    moved = ((shorten_rewrite(one.signature), count(len(one.cells), "cell")) for one in rewrites if one.red)
    return (
        *(f"{count(red[state], 'cell')} {text}" for state, text in words.items() if state in red),
        *(f"{what} in {cells} is not acknowledged" for what, cells in moved),
    )


def _other_cells(found: tuple[cell_state.Mismatch, ...]) -> list[str]:
    """The reason for which two runs have different cells, if tier or stage differ."""
    return [f"the {m.name}s differ, base ran {m.base} and head {m.head}" for m in found if m.name in ("tier", "stage")]


def _unknown_commits(base: Header, head: Header) -> list[str]:
    """A reason if a commit names no code, as a difference between unknown versions is meaningless."""
    sides = (("base", base.commit), ("head", head.commit))
    return [
        f"the commit of {name} is {shorten(commit, 40)!r}, neither a commit's hash nor a release such as v1.2; run it "
        "in a git checkout or from an installed release"
        for name, commit in sides
        if not _COMMIT.fullmatch(commit)
    ]


def _factors(changes: Iterable[CellChange], head: Report) -> tuple[Factor, ...]:
    """What all failing cells have in common, or if that is nothing, those of each cause."""
    failing = [change for change in changes if change.red and change.state in _FAILURES]
    failed = {change.id for change in failing}
    greens = [values for cell in head.lines if cell not in failed and (values := head.effective(cell)) is not None]

    def factor(named: str, cells: Sequence[CellChange]) -> Iterator[Factor]:
        if found := common_factors([head.values(cell.id) for cell in cells], greens):
            what = f"{count(len(cells), 'red cell')}{named}"
            yield Factor(f"{what}{shared(found, len(cells), len(greens))}", found)

    if whole := tuple(factor("", failing)):
        return whole
    causes: dict[str, list[CellChange]] = {}
    for change in failing:
        causes.setdefault(change.cause, []).append(change)
    largest = sorted(causes.items(), key=lambda cause: -len(cause[1]))[:_MAX_FACTORED]
    return tuple(found for cause, cells in largest for found in factor(f" with {shorten(cause, 80)}", cells))
