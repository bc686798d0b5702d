"""Compares a session turn's acceptance lengths with those of the same turn when its whole history is prefilled at once.

A turn starts from inherited draft KV that was computed before the turn's own tokens were known. Errors in that KV do
not change the output, only acceptance, so the reference is the same drafter without sessions or prefix cache.
"""

from __future__ import annotations

from typing import Final

from specmatrix.engine.core.draft.algorithms import Traits
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number
from specmatrix.matrix.gates.round_alignment import first_round_mismatch
from specmatrix.matrix.subjects.protocol import Run
from specmatrix.matrix.workloads.stored_oracle import oracle_index

# Drafters with their own KV, which a turn inherits; the others have no KV that could be stale.
KEEPS_KV: Final = ("eagle", "eagle3", "nextn", "standalone", "dflash")


def has_session_baseline(cell: Cell) -> bool:
    """Cells whose turns reuse session or cached KV and draft from it at a fixed depth; and all cells of a user's
    drafter whose drafts depend on the request alone, as it has no oracle."""
    if (own := cell.own_traits) is not None:
        return own.drafts and own.rounds == "own" and not cell.adapts and cell.sampling in ("greedy", "mixed")
    found = cell.memory != "tight" and (cell.session == "streaming" or cell.prefix_cache == "on")
    drafts = cell.algorithm in KEEPS_KV and not cell.adapts and cell.sampling in ("greedy", "mixed")
    return cell.session != "none" and found and drafts


def mismatching_turns(run: Run, plain: Run, own: Traits | None = None) -> tuple[dict[str, Number], str]:
    """Greedy turns compared and mismatching, and a sentence about the first mismatch ("" for none). own: traits of a
    user's algorithm, whose other greedy requests are compared too, except where a prefix cache hid prompt tokens from a
    drafter without KV."""
    theirs = {answer.name: answer for answer in plain.answers}
    mine = {answer.name: answer for answer in run.answers}
    compared, places = 0, []
    for request in run.requests:
        answer, other = mine[request.name], theirs[request.name]
        due = oracle_index(request) is None if own is None else own.own_kv or not answer.cached_tokens
        if request.temperature == 0 and due and answer.accept_lengths:
            compared += 1
            place = first_round_mismatch(answer.accept_lengths, other.accept_lengths, answer.round_starts)
            places += [] if place is None else [f"{request.name} in verify round {place + 1}"]
    numbers: dict[str, Number] = {"turns": compared, "turns_left": len(places)}
    if not places:
        return numbers, ""
    from_ = "the default engine start" if own else "their whole history prefilled at once"
    text = f"{len(places)} of {compared} {'requests' if own else 'turns'} differ in acceptance length from {from_}"
    return numbers, f"{text}; first: {places[0]}"
