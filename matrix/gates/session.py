"""Checks the prompts of session turns, and what a session must refuse. The KV that a turn inherits and leaves is
predicted by `schedule`.

Checks that sessions refuse exactly the requests they must, each with the expected error message.

Compares a session turn's acceptance lengths with those of the same turn when its whole history is prefilled at once.

A turn starts from inherited draft KV that was computed before the turn's own tokens were known. Errors in that KV do
not change the output, only acceptance, so the reference is the same drafter without sessions or prefix cache.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgspec

from specmatrix.engine.core.draft.algorithms import Traits
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, Number, Outcome, PackageGate
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.request import Refusal
from specmatrix.matrix.workloads.stored_oracle import oracle_index

MESSAGES: Final = msgspec.yaml.decode(Path(__file__).with_name("refusals.yaml").read_bytes(), type=dict[Refusal, str])


def refusal_fault(run: Run) -> str:
    """A sentence on the first wrong or missing refusal, or ""."""
    for answer in run.answers:
        if answer.refusal:
            return f"{answer.name} was refused: {answer.refusal}"
    for request, message in run.attempts:
        assert request.session is not None and request.refused is not None
        if not message:
            return f"{request.name} was answered, but must be refused ({request.refused})"
        if not re.fullmatch(MESSAGES[request.refused].format(id=re.escape(request.session.id)), message):
            return f"{request.name} must be refused ({request.refused}), but was refused for another reason: {message}"
    refused = run.evidence.get("session.refused", 0)
    if refused != len(run.attempts):
        return f"the engine counts {refused} refused requests; expected {len(run.attempts)}"
    return ""


@dataclass
class SessionGate(PackageGate):
    """Compares each turn's prompt with its history and its own tokens, and refusals with those that are due; only an
    engine with a journal is sent what it must refuse."""

    name: str = "session"
    needs: frozenset[Capability] = frozenset({Capability.SESSIONS, Capability.TOKEN_IDS})

    def applies(self, cell: Cell) -> bool:
        """Cells whose requests are turns or branches of sessions."""
        return cell.session != "none"

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED if no turn continued another."""
        apart = list(_apart(run, baseline))
        numbers: dict[str, Number] = {
            "sessions": len({request.session.id for request in run.requests if request.session is not None}),
            "apart": len(apart),
            "attempts": len(run.attempts),
        }
        if Capability.JOURNAL in run.capabilities and (fault := refusal_fault(run)):
            return self.verdict(numbers, fault)
        if apart:
            text = f"the prompt of {apart[0]} is not its history followed by its own tokens"
            return self.verdict(numbers, text, blame=Blame(apart[0]))
        continued = any(one.session is not None and one.session.follows is not None for one in run.requests)
        return self.verdict(numbers, missing="" if continued else "no session request continued another")


def _apart(run: Run, baseline: Run) -> Iterator[str]:
    """Yield the turns whose prompt differs from the baseline's. After an answer that deviates from the baseline's (fast
    kernels may at a tie), a turn must instead contain its own session's history, followed by the same new tokens."""
    mine, theirs = ({answer.name: answer for answer in each.answers} for each in (run, baseline))
    parted: set[str] = set()
    for request in run.requests:
        name, before = request.name, (request.session and request.session.follows) or ""
        if name not in mine or name not in theirs:
            continue
        if before in parted or mine[name].output_ids != theirs[name].output_ids:
            parted.add(name)
        got: tuple[int, ...] | None = mine[name].prompt_ids
        due = theirs[name].prompt_ids
        if before in parted and (own := _own(theirs[name], theirs[before])) is not None:
            got, due = _own(mine[name], mine[before]), own
        elif before in parted and Capability.JOURNAL not in run.capabilities:
            got = due  # a branch of an answer that the baseline has not
        counted = mine[name].meta_info.get("prompt_tokens", len(mine[name].prompt_ids))
        if got != due or counted != len(mine[name].prompt_ids):
            yield name


def _own(turn: Answer, before: Answer) -> tuple[int, ...] | None:
    """A turn's prompt without its history, None if it does not begin with the whole previous turn."""
    history = before.prompt_ids + before.output_ids
    return turn.prompt_ids[len(history) :] if turn.prompt_ids[: len(history)] == history else None


def oracle_rounds(reach: Sequence[int], widths: Sequence[int], emitted: int) -> tuple[int, ...]:
    """Expected tokens per round (bonus included) up to `emitted` tokens for these widths; the last width repeats.

    Stops where the oracle's data ends.
    """
    rounds: list[int] = []
    start = 0
    while start < min(emitted, len(reach)) and widths:
        width = widths[min(len(rounds), len(widths) - 1)]
        rounds.append(min(reach[start], width - 1) + 1)
        start += rounds[-1]
    return tuple(rounds)


def first_reach_mismatch(
    mine: Sequence[int], widths: Sequence[int], reach: Sequence[int], starts: Sequence[int]
) -> int | None:
    """Index of the first round whose length differs from the oracle's at the same position and width; None if none.

    starts: index of each round's first token in the output. Rounds past the oracle's data are accepted.
    """
    for index, (length, width, start) in enumerate(zip(mine, widths, starts[: len(mine)], strict=True)):
        if due_tokens(reach, start - 1, width) not in (None, length):
            return index
    return None


def due_tokens(reach: Sequence[int], start: int, width: int) -> int | None:
    """Tokens of a round of this width that starts at a position; None past the oracle's data."""
    return min(reach[start], width - 1) + 1 if start < len(reach) else None


def from_a_start(mine: Sequence[int], theirs: Sequence[int], first: bool) -> tuple[Sequence[int], Sequence[int]]:
    """Both sides' rounds from the first token on at which both begin one; theirs begin behind the first token, and mine
    with it if `first`. Without one, all of them."""
    starts = [list(accumulate(mine, initial=1 - first)), list(accumulate(theirs, initial=1))]
    both = min({*starts[0]}.intersection(starts[1]), default=None)
    mine_at, theirs_at = (0, 0) if both is None else (one.index(both) for one in starts)
    return mine[mine_at:], theirs[theirs_at:]


def first_round_mismatch(
    mine: Sequence[int], theirs: Sequence[int], starts: Sequence[int], caps: Sequence[int] = ()
) -> int | None:
    """Index of the first round that starts at the same token as a reference round but has another length.

    What a round accepts depends only on its start position, and at most `caps` of it if it verified a part of its
    draft. The last round of either side may be truncated and is not compared. starts: as in `first_reach_mismatch`.
    """
    known = dict(zip(accumulate(theirs, initial=1), theirs[:-1], strict=False))
    for index, (length, start) in enumerate(zip(mine[:-1], starts, strict=False)):
        if min(known.get(start, length), caps[index] if caps else sys.maxsize) != length:
            return index
    return None


# Drafters with their own KV, which a turn inherits; the others have no KV that could be stale.
KEEPS_KV: Final = ("eagle", "eagle3", "nextn", "standalone", "dflash", "dspark")


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
