"""Pairs of effective values that passing cells of only one report cover, grouped by cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, compress
from typing import Final, NamedTuple, TypeAlias

from specmatrix.reports.compare.cell_state import CoverageChange, LostPairs
from specmatrix.reports.compare.rewrites import explanation
from specmatrix.reports.effective import RESOLVED_FIELD, Pair, Value
from specmatrix.reports.schema import RED_STATES, CellResult
from specmatrix.reports.store import Report
from specmatrix.reports.summary import holders
from specmatrix.reports.wording import count

_Records: TypeAlias = Mapping[str, tuple[CellResult | None, CellResult | None]]
MOVED: Final = "resolve now to "
# Cells searched per batch; the search ends once all pairs are found.
PART: Final = 1_000
SINGULAR: Final = {"are": "is", "resolve": "resolves"}


def coverage_change(base: Report, head: Report, unchanged: Iterable[str], changed: _Records) -> CoverageChange:
    """Pairs lost and gained. unchanged: cells that are the same in both reports. changed: all other cells, each with
    its records in base and head."""
    steady = list(unchanged)
    old: dict[str, dict[str, str]] = {}
    new: dict[str, dict[str, str]] = {}
    for cell in changed:
        before, after = (report.effective(cell) if cell in report else None for report in (base, head))
        if before != after:
            old.update({cell: before} if before is not None else {})
            new.update({cell: after} if after is not None else {})
        elif after is not None:
            steady.append(cell)
    was, now = carried(list(old.values())), carried(list(new.values()))
    moved = was.keys() ^ now.keys()
    begin = 0
    while moved and begin < len(steady):
        needed = _one_of_each(moved)
        part = (values for cell in steady[begin : begin + PART] if (values := head.effective(cell)) is not None)
        held = holders([values for values in part if any(values.get(axis) == value for axis, value in needed)])
        moved = {pair for pair in moved if not held.get(pair[0], 0) & held.get(pair[1], 0)}
        begin += PART
    lost = {pair: _members(list(old), was[pair]) for pair in moved & was.keys()}
    gained = {pair: _members(list(new), now[pair]) for pair in moved & now.keys()}
    return CoverageChange(
        lost=_by_cause(lost, lambda cell: _fate_of_loss(*changed[cell], old[cell], new.get(cell))),
        gained=_by_cause(gained, lambda cell: _fate_of_gain(*changed[cell], old.get(cell), new[cell])),
    )


def carried(cells: Sequence[Mapping[str, str]]) -> dict[Pair, int]:
    """The pairs of (axis, value), sorted by axis, that at least one cell covers, and the cells that do, as bits."""
    held = sorted(holders(cells).items())
    return {(a, b): both for (a, own), (b, other) in combinations(held, 2) if a[0] != b[0] and (both := own & other)}


def _one_of_each(pairs: Iterable[Pair]) -> list[Value]:
    """A small set of values that meets every pair, chosen greedily by frequency."""
    found, left = [], set(pairs)
    while left:
        ((value, _),) = Counter(value for pair in left for value in pair).most_common(1)
        found.append(value)
        left = {pair for pair in left if value not in pair}
    return found


def _members(names: Sequence[str], bits: int) -> list[str]:
    """The names at the set bits, the lowest first."""
    return list(compress(names, map("1".__eq__, f"{bits:b}"[::-1])))


def _by_cause(lost: Mapping[Pair, list[str]], change_of: Callable[[str], _Reason]) -> tuple[LostPairs, ...]:
    """Group pairs by the change of the cells that covered them. Causes not explained by red cells come first, then
    those with most pairs."""
    numbers: dict[_Reason, int] = {}
    carriers = dict.fromkeys(cell for cells in lost.values() for cell in cells)
    index_of = {cell: numbers.setdefault(change_of(cell), len(numbers)) for cell in carriers}
    changes = list(numbers)
    groups: dict[tuple[tuple[_Cause, ...], bool], tuple[list[Pair], dict[str, None]]] = defaultdict(lambda: ([], {}))
    for pair, cells in sorted(lost.items()):
        met = [changes[each] for each in set(map(index_of.__getitem__, cells))]
        key = tuple(sorted({cause for each in met for cause in each.of(pair)})), all(each.red for each in met)
        found, seen = groups[key]
        found.append(pair)
        seen.update(dict.fromkeys(cells))
    rows = [
        LostPairs(
            cause=_sentence(len(seen), causes),
            cells=tuple(seen),
            pairs=tuple(found),
            only_carrier=tuple(pair for pair in found if len(lost[pair]) == 1),
            explained=explained,
        )
        for (causes, explained), (found, seen) in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (row.explained, -len(row.pairs), row.cause)))


def _sentence(cells: int, causes: Sequence[_Cause]) -> str:
    """Describe the change of `cells` cells, with the first reason and the number of others. Several causes are listed
    without reasons, which the rewrites and cells give."""
    if len({cause.what for cause in causes}) == 1:
        others = f", and {count(len(causes) - 1, 'other reason')}" if len(causes) > 1 else ""
        texts = [causes[0].what + (f": {causes[0].reason}{others}" if causes[0].reason else "")]
    else:
        moved = dict.fromkeys(cause.what.removeprefix(MOVED) for cause in causes if cause.what.startswith(MOVED))
        texts = list(dict.fromkeys(cause.what for cause in causes if not cause.what.startswith(MOVED)))
        texts += [MOVED + " or ".join(moved)] * bool(moved)
    if cells == 1:
        texts = [f"{SINGULAR[verb]} {rest}" for verb, _, rest in (text.partition(" ") for text in texts)]
    return f"{count(cells, 'cell')} {' or '.join(texts)}"


class _Cause(NamedTuple):
    """Why cells cover other pairs, as the rest of a sentence about them, with the engine's reason if it has one."""

    what: str
    reason: str = ""


class _Reason(NamedTuple):
    """The change of a cell that covers pairs in one report only: one cause, or one for each axis whose value changed.
    red: the cell is red in head."""

    cause: str
    moves: tuple[tuple[str, _Cause], ...] = ()
    red: bool = False

    def of(self, pair: Pair) -> list[_Cause]:
        causes = [cause for axis, cause in self.moves if axis in (pair[0][0], pair[1][0])]
        return causes or [_Cause(self.cause)]


def _fate_of_loss(
    was: CellResult | None, now: CellResult | None, before: Mapping[str, str], after: Mapping[str, str] | None
) -> _Reason:
    if now is None:
        return _Reason("are not in head")
    if now.state != "PASS":
        return _Reason(f"are {now.state} in head", red=now.state in RED_STATES)
    return _Reason("are refused in head", _moves(now, before, after))


def _fate_of_gain(
    was: CellResult | None, now: CellResult | None, before: Mapping[str, str] | None, after: Mapping[str, str]
) -> _Reason:
    if was is None:
        return _Reason("are new in head")
    if was.state != "PASS":
        return _Reason(f"are PASS in head and {was.state} in base")
    return _Reason("are refused in base", _moves(now, before, after))


def _moves(
    now: CellResult | None, before: Mapping[str, str] | None, after: Mapping[str, str] | None
) -> tuple[tuple[str, _Cause], ...]:
    """A cell's effective values that changed in head, sorted by axis; empty if it does not run in both reports."""
    if now is None or before is None or after is None:
        return ()
    moved = sorted(item for item in after.items() - before.items() if item[0] in before)
    return tuple(
        (axis, _Cause(f"{MOVED}{axis}={value}", explanation(now, RESOLVED_FIELD.get(axis, axis))))
        for axis, value in moved
    )
