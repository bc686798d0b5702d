"""A subject's translation of cells, also as text, of which golden files hold those of the stage `pr`, the matrix's and
its own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.protocol import Capability, EngineCommand, Subject, SubjectRequest, Unsupported
from specmatrix.matrix.workloads.prepared_cell import PreparedCell, prepare
from specmatrix.reports.wording import count

# Of a cell's asks, and each other one with fields of its own; the rest differ from these in prompt, seed and length.
SHOWN: Final = 3
NOT_REFUSED: Final = "a combination that the reference engine must refuse, by its own rules"


def translated(subject: Subject, prepared: PreparedCell) -> EngineCommand | Unsupported:
    """What a subject makes of a cell; a cell that must be refused is unsupported wherever other rules hold."""
    if prepared.expectation == "refused" and Capability.RESOLUTION not in subject.profile.capabilities:
        return Unsupported(NOT_REFUSED)
    return subject.translate(prepared)


def translation_table(subject: Subject, cells: Iterable[Cell]) -> str:
    """Each start once with the cells that share it and their asks, then the unsupported cells by reason."""
    starts: dict[str, list[str]] = {}
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        command = translated(subject, prepare(cell, workload=subject.requests, subject=subject.name))
        if isinstance(command, Unsupported):
            reasons.setdefault(command.reason, []).append(cell.id)
            continue
        models = {**command.checkpoints, **({"variant": command.variant} if command.variant else {})}
        words = [dict(command.flags), models, dict(command.environment)]
        lines = starts.setdefault(" ".join(json.dumps(word, sort_keys=True) for word in words if word), [])
        lines.append(f"  {cell.id}: {count(len(command.asks), 'ask')}")
        lines += [
            f"    {_ask_text(ask)}" for ask in _shown([ask for ask in command.asks if isinstance(ask, SubjectRequest)])
        ]
    rows = [line for start, lines in starts.items() for line in (start, *lines)]
    rows += [line for reason, ids in reasons.items() for line in (f"UNSUPPORTED: {reason}", *(f"  {id}" for id in ids))]
    return "\n".join(rows) + "\n"


def _shown(asks: Sequence[SubjectRequest]) -> list[SubjectRequest]:
    """The first asks, and the first of those after them with other fields."""
    others = {frozenset(ask.fields): ask for ask in reversed(asks)}
    return [ask for place, ask in enumerate(asks) if place < SHOWN or others[frozenset(ask.fields)] is ask]


def _ask_text(ask: SubjectRequest) -> str:
    """An ask in one line: tokens of its prompt, fields, and what else it has."""
    plain = replace(ask, id="", input_ids=(), fields={})
    more = {} if plain == SubjectRequest("", (), {}) else {"after": ask.after, "abort_after": ask.abort_after}
    text = f"{ask.id} after {count(len(ask.input_ids), 'token')}: {json.dumps(dict(ask.fields), sort_keys=True)}"
    return text + (f" {json.dumps(more)}" if more else "")
