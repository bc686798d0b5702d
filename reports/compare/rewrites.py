"""Changes in resolved values, rewrites and automatic choices, and the defaults that no cell reaches any longer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from specmatrix.reports.compare.acknowledge import Acknowledged
from specmatrix.reports.compare.cell_state import ChoiceChange, LeftDefault, PathChange, RewriteChange
from specmatrix.reports.effective import ASKED_FIELDS, DERIVED, RESOLVED_FIELD, Value, explaining_fields, word
from specmatrix.reports.schema import UNJUDGED_STATES, CellResult, Json, ReasonRecord, RewriteRecord
from specmatrix.reports.store import Report
from specmatrix.reports.wording import most_frequent

# File locations and seeds do not affect the code path.
ABSENT: Final = "absent"
SLOTS: Final = "adaptive_slots"
_UNASKED: Final = frozenset({"model_path", "speculative_draft_model_path", "random_seed"})


class PathChanges:
    """`path_changes` for many cells, computed once per pair of engine starts."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | int, ...], tuple[object, tuple[PathChange, ...]]] = {}

    def of(self, base: CellResult, head: CellResult) -> tuple[PathChange, ...]:
        """The changes of one cell."""
        if base.start.resolved is None or head.start.resolved is None:
            return path_changes(base, head)
        # Keyed by id(); the starts are kept alive so that no id is reused.
        starts = (base.start, head.start)
        key = (base.state, head.state, *map(id, starts))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = (starts, path_changes(base, head))
        return found[1]


def path_changes(base: CellResult, head: CellResult) -> tuple[PathChange, ...]:
    """Resolved values that differ, with head's reason, preceded by requested values that differ.

    Empty if a cell was not run, since its record lacks resolved values.
    """
    if {base.state, head.state} & UNJUDGED_STATES:
        return ()
    changes = [
        PathChange(f"asked {name}", old, new, "the cell requests another value now")
        for name, old, new in _differences(base.start.requested, head.start.requested, _UNASKED)
    ]
    if base.start.resolved is None or head.start.resolved is None:
        if base.start.resolved is not head.start.resolved:
            stopped = head if head.start.resolved is None else base
            ended = "fails" if stopped.error else "refused"
            old, new = ("runs" if cell is not stopped else ended for cell in (base, head))
            changes.append(PathChange("engine start", old, new, _refusal(stopped)))
        return tuple(changes)
    differing = _differences(base.start.resolved, head.start.resolved, DERIVED)
    return (*changes, *(PathChange(name, old, new, explanation(head, name)) for name, old, new in differing))


def _refusal(cell: CellResult) -> str:
    """The sentence with which the engine refused to start, which the gate `config` expects word by word."""
    gate = cell.gate("config")
    sentence = cell.error or (None if gate is None else gate.numbers.get("predicted"))
    return str(sentence or "no error text was recorded")


def explanation(cell: CellResult, field: str) -> str:
    """The engine's reason for the value of resolved field `field`."""
    names = explaining_fields(field)
    for rewrite in cell.start.rewrites:
        if rewrite.field in names:
            return rewrite.reason
    for reason in cell.start.reasons:
        if reason.field in names:
            return reason.because
    asked = [word(cell.start.requested[name]) for name in names if name in cell.start.requested]
    as_asked = cell.start.resolved is not None and word(cell.start.resolved.get(field)) in asked
    return "as the cell requests" if as_asked else "the engine gives no reason"


def _differences(
    base: Mapping[str, Json], head: Mapping[str, Json], ignored: frozenset[str]
) -> list[tuple[str, str, str]]:
    if base == head:
        return []
    names = [name for name in (*head, *(name for name in base if name not in head)) if name not in ignored]
    found = []
    for name in names:
        old, new = base.get(name, ABSENT), head.get(name, ABSENT)
        if old != new:
            found.append((name, *(slot_texts(old, new) if name == SLOTS else (word(old), word(new)))))
    return found


def slot_texts(old: Json, new: Json) -> tuple[str, str]:
    """The slots of adaptive steps on both sides as text: draft depths and the smallest batch size of each slot, and
    those other settings that differ."""
    if not all(isinstance(value, list) and all(map(_is_slot, value)) for value in (old, new)):
        return word(old), word(new)
    sides: list[dict[Json, dict[str, Json]]] = [{slot["batch_from"]: slot for slot in value} for value in (old, new)]
    texts = []
    for own, other in (sides, sides[::-1]):
        words = []
        for batch, slot in own.items():
            there = other.get(batch, slot)
            differing = [name for name in {**slot, **there} if slot.get(name) != there.get(name)]
            settings = ", ".join(f"{name} {slot.get(name, ABSENT)}" for name in differing if name != "candidate_steps")
            depths = word(slot["candidate_steps"]).strip("[]")
            words.append(f"{depths} from {batch}" + (f" ({settings})" if settings else ""))
        texts.append("steps " + "; ".join(words).replace(" from ", " from batch ", 1) if words else "none")
    return texts[0], texts[1]


def _is_slot(value: Json) -> bool:
    return isinstance(value, dict) and {"batch_from", "candidate_steps"} <= value.keys()


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


def rewrite_changes(pairs: CellPairs, acknowledged: Acknowledged, paths: PathChanges) -> tuple[RewriteChange, ...]:
    """Changes in rewrites over (base, head) cells, one of which may be missing, sorted by status and signature.

    A new rewrite or a moved value is red until acknowledged, unless all of its cells are new and declare it by
    `expect` = "rewritten".
    """
    groups: dict[tuple[str, str], list[tuple[str, str, bool]]] = defaultdict(list)  # reason, cell, undeclared
    for base, head in _with_results(pairs):
        for status, name, reason, silent in _cell_changes(base, head, paths):
            cell = (head or base).id  # type: ignore[union-attr]  # one of the two exists
            groups[status, name].append((reason, cell, silent))
    order = ("new", "moved", "changed", "gone")
    rows = []
    for (status, name), group in sorted(groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1])):
        reasons, cells, undeclared = zip(*group, strict=True)
        silent = any(undeclared)
        excused = acknowledged.reason("rewrite", name) if silent else ""
        why = most_frequent(Counter(reasons))
        rows.append(RewriteChange(name, status, why, cells, silent, silent and not excused, excused))
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


_RESOLVED: Final = {asked: field for field, names in ASKED_FIELDS.items() for asked in names}
_AXIS: Final = {field: axis for axis, field in RESOLVED_FIELD.items()}


def left_defaults(base: Report, head: Report, choices: Iterable[ChoiceChange]) -> tuple[LeftDefault, ...]:
    """For each automatic value of `choices` that differs in head: the effective values that cells had with it."""
    moved: dict[tuple[str, str], list[str]] = {}
    for change in choices:
        if change.base and change.head and change.base != change.head:
            moved.setdefault((change.field, change.base), []).extend(change.cells)
    return tuple(row for (asked, value), cells in moved.items() for row in _left(base, head, asked, value, cells))


def _left(base: Report, head: Report, asked: str, value: str, cells: list[str]) -> Iterator[LeftDefault]:
    field = _RESOLVED.get(asked, asked)
    axis = _AXIS.get(field, field)
    relying = {
        number: any(reason.field == asked for reason in start.reasons)
        for number, start in enumerate(head.starts)
        if start.resolved and word(start.resolved.get(field)) == value
    }
    mine = [cell for cell in head.lines.values() if cell.start in relying and cell.state == "PASS"]
    by_default = [cell.id for cell in mine if relying[cell.start]]
    met = _values(base, [cell for cell in cells if base.effective(cell) is not None])
    if left := [item for item in met.keys() - _values(head, by_default).keys() if item[0] != axis]:
        explicit = tuple(cell.id for cell in mine if not relying[cell.start])
        yield LeftDefault(axis, value, tuple(sorted(left)), tuple(cells), explicit, not by_default)


def _values(report: Report, cells: Iterable[str]) -> dict[Value, None]:
    return {item: None for cell in cells for item in report.values(cell).items()}
