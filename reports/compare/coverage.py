"""Which pairs of effective values are exercised in green by one report and not by the other, and by what cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import combinations
from typing import Final

from reports.compare.ledger import explanation
from reports.compare.states import CoverageChange, LostPairs
from reports.effective import RESOLVED_FIELD, Pair, Value, effective, pairs
from reports.load import Report
from reports.text import count

Carriers = dict[Pair, list[str]]
SINGULAR: Final = {"are": "is", "resolve": "resolves"}


def coverage_change(base: Report, head: Report, unchanged: Collection[str], changed: Iterable[str]) -> CoverageChange:
    """Pairs lost and gained. `unchanged` cells have the same line in both reports; `changed` are all others of
    either."""
    touched = list(changed)
    old, new = _carriers(base, touched), _carriers(head, touched)
    still = _carried(head, unchanged, (old.keys() | new.keys()) - (old.keys() & new.keys()))
    lost = {pair: cells for pair, cells in old.items() if pair not in new and pair not in still}
    gained = {pair: cells for pair, cells in new.items() if pair not in old and pair not in still}
    return CoverageChange(
        lost=_by_cause(lost, lambda cell, pair: _loss_cause(cell, pair, head)),
        gained=_by_cause(gained, lambda cell, pair: _gain_cause(cell, pair, base, head)),
    )


def _carriers(report: Report, cells: Iterable[str]) -> Carriers:
    """Pair -> green cells that carry it."""
    carriers: Carriers = defaultdict(list)
    for cell in cells:
        values = report.effective(cell) if cell in report else None
        for pair in pairs(values or {}):
            carriers[pair].append(cell)
    return carriers


def _carried(report: Report, cells: Iterable[str], candidates: Collection[Pair]) -> set[Pair]:
    """Those of `candidates` that at least one of `cells` carries."""
    missing = set(candidates)
    wanted = {value for pair in missing for value in pair}
    for cell in cells:
        if not missing:
            break
        values = report.effective(cell) or {}
        hits = missing.intersection(combinations(sorted(value for value in values.items() if value in wanted), 2))
        if hits:
            missing -= hits
            wanted = {value for pair in missing for value in pair}
    return set(candidates) - missing


def _by_cause(lost: Mapping[Pair, list[str]], cause: Callable[[str, Pair], str]) -> tuple[LostPairs, ...]:
    """Group pairs by what happened to the cells that carried them; the cause that explains most pairs comes first."""
    groups: dict[tuple[str, ...], tuple[list[Pair], dict[str, None]]] = defaultdict(lambda: ([], {}))
    for pair, cells in sorted(lost.items()):
        found, seen = groups[tuple(sorted({cause(cell, pair) for cell in cells}))]
        found.append(pair)
        seen.update(dict.fromkeys(cells))
    rows = [
        LostPairs(
            cause=_sentence(len(seen), causes),
            cells=tuple(seen),
            pairs=tuple(found),
            only_carrier=tuple(pair for pair in found if len(lost[pair]) == 1),
        )
        for causes, (found, seen) in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-len(row.pairs), row.cause)))


def _sentence(cells: int, causes: Iterable[str]) -> str:
    if cells > 1:
        return f"{count(cells, 'cell')} {' or '.join(causes)}"
    words = [cause.split(" ", 1) for cause in causes]
    return "1 cell " + " or ".join(f"{SINGULAR[verb]} {rest}" for verb, rest in words)


def _loss_cause(cell: str, pair: Pair, head: Report) -> str:
    if cell not in head:
        return "are not in head"
    if head.state(cell) != "PASS":
        return f"are {head.state(cell)} in head"
    return _moved(cell, pair, head) or "are refused in head"


def _gain_cause(cell: str, pair: Pair, base: Report, head: Report) -> str:
    if cell not in base:
        return "are new in head"
    if base.state(cell) != "PASS":
        return f"are PASS in head and {base.state(cell)} in base"
    before = effective(base[cell].axes, base[cell].resolved)
    moved = _moved(cell, [(axis, before[axis]) for axis, _ in pair if axis in before], head)
    return moved or "are refused in base"


def _moved(cell: str, values: Iterable[Value], head: Report) -> str:
    """How the cell's effective values differ in head from `values`, with the engine's reason; "" if it does not
    run."""
    record = head[cell]
    if record.resolved is None:
        return ""
    now = effective(record.axes, record.resolved)
    moved = [(axis, now[axis]) for axis, value in values if now.get(axis, value) != value]
    texts = [f"{axis}={value}: {explanation(record, RESOLVED_FIELD.get(axis, axis))}" for axis, value in moved]
    return "resolve now to " + "; ".join(texts) if texts else ""
