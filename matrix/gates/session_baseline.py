"""Do the rounds of a turn accept what they accept where its whole history is read in one piece?

A turn begins on KV that was drafted from before its own tokens were known. What such KV gets wrong costs no token, only
an accepted draft here and there: so rounds are held to those of the same drafter without sessions and caches.
"""

from __future__ import annotations

from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number
from specmatrix.matrix.gates.round_alignment import first_left
from specmatrix.matrix.oracles.transformers import oracle_index
from specmatrix.matrix.subjects.protocol import Run

# Drafters with KV of their own, which a turn inherits; the others have none that could be stale.
KEEPS_KV: Final = ("eagle", "eagle3", "nextn", "standalone", "dflash")


def twinned(cell: Cell) -> bool:
    """Cells whose turns find KV, of a session or in the cache, and draft chains or trees of one depth from it."""
    found = cell.memory != "tight" and (cell.session == "streaming" or cell.prefix_cache == "on")
    drafts = cell.algorithm in KEEPS_KV and not cell.adapts and cell.sampling in ("greedy", "mixed")
    return cell.session != "none" and found and drafts


def turns_left(run: Run, twin: Run) -> tuple[dict[str, Number], str]:
    """Greedy turns that decoded, how many of them leave the twin's rounds, and a sentence about the first of these."""
    theirs = {answer.name: answer for answer in twin.answers}
    mine = {answer.name: answer for answer in run.answers}
    compared, places = 0, []
    for ask in run.asks:
        answer, other = mine[ask.name], theirs[ask.name]
        if ask.temperature == 0 and oracle_index(ask) is None and answer.accept_lengths:
            compared += 1
            place = first_left(answer.accept_lengths, other.accept_lengths, answer.retractions)
            places += [] if place is None else [f"{ask.name} at round {place}"]
    numbers: dict[str, Number] = {"turns": compared, "turns_left": len(places)}
    if not places:
        return numbers, ""
    return numbers, f"{len(places)} of {compared} turns leave the rounds of their whole history, first {places[0]}"
