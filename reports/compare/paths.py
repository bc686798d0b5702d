"""Resolved values that differ between two records of a cell, with the engine's reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from specmatrix.reports.compare.cell_state import PathChange
from specmatrix.reports.effective import DERIVED, explaining_fields, word
from specmatrix.reports.schema import UNJUDGED_STATES, CellResult, Json

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
