"""Changes in rewrites and in automatic choices."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from specmatrix.reports.compare.acknowledge import Acknowledged
from specmatrix.reports.compare.cell_state import ChoiceChange, RewriteChange
from specmatrix.reports.compare.paths import PathChanges
from specmatrix.reports.effective import ASKED_FIELDS, word
from specmatrix.reports.schema import UNJUDGED_STATES, CellResult, ReasonRecord, RewriteRecord
from specmatrix.reports.wording import most_frequent

CellPairs = Iterable[tuple[CellResult | None, CellResult | None]]
_RESOLVED_NAME: Final = {
    asked: field for field, names in ASKED_FIELDS.items() for asked in names if not asked.startswith("disable_")
}


def signature(rewrite: RewriteRecord) -> str:
    """The text by which a rewrite is acknowledged: `num_draft_tokens: 6 -> 4`, with the resolved field's name."""
    field = _RESOLVED_NAME.get(rewrite.field, rewrite.field)
    return f"{field}: {word(rewrite.asked)} -> {word(rewrite.got)}"


def new_rewrites(base: CellResult | None, head: CellResult) -> tuple[RewriteRecord, ...]:
    """Rewrites of head that base does not have; none if base has no result for the cell."""
    if not head.start.rewrites or (base is not None and base.state in UNJUDGED_STATES):
        return ()
    known = set() if base is None else {signature(rewrite) for rewrite in base.start.rewrites}
    return tuple(rewrite for rewrite in head.start.rewrites if signature(rewrite) not in known)


class _RewriteGroup(NamedTuple):
    """Cells with the same change, and for each whether the change is undeclared."""

    reasons: Counter[str]
    cells: list[str]
    silent: list[bool]


def rewrite_changes(pairs: CellPairs, acknowledged: Acknowledged, paths: PathChanges) -> tuple[RewriteChange, ...]:
    """Changes in rewrites over (base, head) cells, one of which may be missing, sorted by status and signature.

    A new rewrite or a moved value is red until acknowledged, unless all of its cells are new and declare it by
    `expect` = "rewritten".
    """
    groups: dict[tuple[str, str], _RewriteGroup] = {}
    for base, head in _with_results(pairs):
        for status, name, reason, silent in _cell_changes(base, head, paths):
            group = groups.setdefault((status, name), _RewriteGroup(Counter(), [], []))
            group.reasons[reason] += 1
            group.cells.append((head or base).id)  # type: ignore[union-attr]  # one of the two exists
            group.silent.append(silent)
    order = ("new", "moved", "changed", "gone")
    rows = []
    for (status, name), group in sorted(groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1])):
        silent = any(group.silent)
        excused = acknowledged.reason("rewrite", name) if silent else ""
        reason = most_frequent(group.reasons)
        rows.append(RewriteChange(name, status, reason, tuple(group.cells), silent, silent and not excused, excused))
    return tuple(rows)


def _with_results(pairs: CellPairs) -> CellPairs:
    """Drop pairs whose head has no result; replace a base without a result by None."""
    for base, head in pairs:
        if head is None or head.state not in UNJUDGED_STATES:
            yield (None if base is not None and base.state in UNJUDGED_STATES else base), head


def _cell_changes(
    base: CellResult | None, head: CellResult | None, paths: PathChanges
) -> Iterator[tuple[str, str, str, bool]]:
    """(status, signature, reason, silent) for each difference in what one cell runs."""
    old = {} if base is None else {signature(rewrite): rewrite.reason for rewrite in base.start.rewrites}
    now = {} if head is None else {signature(rewrite): rewrite.reason for rewrite in head.start.rewrites}
    declared = base is None and head is not None and head.expect == "rewritten"
    for name, reason in now.items():
        if name not in old:
            yield "new", name, reason, not declared
        elif old[name] != reason:
            yield "changed", name, f"{old[name]} -> {reason}", False
    for name in old.keys() - now.keys():
        yield "gone", name, old[name], False
    if base is not None and head is not None:
        for change in paths.of(base, head):
            if change.signature() not in now:
                yield "moved", change.signature(), change.because, True


def choice_changes(pairs: CellPairs) -> tuple[ChoiceChange, ...]:
    """Automatic choices whose value or reason differs between the reports, grouped by both."""
    groups: dict[tuple[str, str, str, str, str], list[str]] = defaultdict(list)
    for base, head in _with_results(pairs):
        if base is None or head is None or base.start.reasons == head.start.reasons:
            continue
        old, now = _reasons(base.start.reasons), _reasons(head.start.reasons)
        for field in sorted(old.keys() | now.keys()):
            before, after = old.get(field, ("", "")), now.get(field, ("", ""))
            if before != after:
                groups[(field, *before, *after)].append(head.id)
    return tuple(ChoiceChange(*key, cells=tuple(cells)) for key, cells in sorted(groups.items()))


def _reasons(reasons: Iterable[ReasonRecord]) -> dict[str, tuple[str, str]]:
    return {reason.field: (word(reason.value), reason.because) for reason in reasons}
