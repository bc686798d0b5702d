"""Checks that constrained outputs keep their grammars, and that masks had an effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from zlib import crc32

from specmatrix.engine.core.draft.algorithms import algorithm
from specmatrix.engine.core.schedule.grammar import KINDS
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.conformance.random_trees import first_wrong_mask
from specmatrix.matrix.gates.gate import Blame, Number, Outcome, PackageGate, State
from specmatrix.matrix.oracles.grammar import following, unreadable
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run
from specmatrix.matrix.workloads.boundaries import behind, due_places, place_of
from specmatrix.matrix.workloads.finish import text_of
from specmatrix.matrix.workloads.predicted import RESOLVED_SHAPE, deepest_round
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import oracle_of
from specmatrix.matrix.zoo.registry import eos_ids
from specmatrix.reports.schema import REFERENCE

# Counters without which a pass means nothing, and those of drafts.
EFFECTS: Final = {"grammar.changed": "no mask removed a most likely token"}
# With memory for all requests.
TOGETHER: Final = {"grammar.mixed": "no round held requests with and without a grammar"}
REFUSED: Final = {"grammar.forbade": "no grammar refused a draft"}
# Of drafts that follow their grammar.
FOLLOWED: Final = {"grammar.masked_drafts": "no mask changed a draft"}
OF_DRAFTS: Final = {
    "grammar.accepted": "no draft of a request with a grammar was accepted",
    "grammar.rejected": "no request with a grammar rejected a draft",
}
# Where the oracle predicts rounds.
ENDED: Final = {"grammar.ended_inside": "no grammar ended at a draft"}


@dataclass
class GrammarGate(PackageGate):
    """Each token of a request with a grammar is one that a fresh matcher allows after those before it, and an
    independent parser reads each whole answer: jsonschema, Python's `re`, or lark. This engine's matchers also walk
    random trees."""

    name: str = "grammar"

    def applies(self, cell: Cell) -> bool:
        """Cells whose requests have grammars."""
        return cell.grammar != "none"

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED without a whole answer, or if masks or drafts had no effect. Without token ids, texts are
        read; without counters, a mask had an effect where a greedy text is not the oracle's."""
        cell, tokens = prepared.cell, Capability.TOKEN_IDS in run.capabilities
        eos = eos_ids(cell.target)
        requests = {request.name: request for asked in run.requests for request in asked.completions()}
        kept = [(requests[one.name], one) for one in run.answers if requests[one.name].grammar and not one.refusal]
        illegal = [blame for request, one in kept if tokens for blame in _illegal(request, one, eos)]
        whole = [pair for pair in kept if pair[1].finish == "stop" and (not tokens or pair[1].output_ids[-1] in eos)]
        # Without token ids it is unknown where a grammar began.
        shown = [pair for pair in whole if tokens or not pair[0].reasoning_end_ids]
        texts = [(request, _constrained(request, one) if tokens else one.text) for request, one in shown]
        read = [(request, text, unreadable(request, text)) for request, text in texts if text is not None]
        wrong = [Blame(request.name, note=why) for request, _, why in read if why]
        needed, seen = dict(EFFECTS), run.evidence
        if Capability.COUNTERS not in run.capabilities:
            seen = {"grammar.changed": sum(_changed(cell, request, one) for request, one in kept)}
        else:
            follows = cell.constrained_drafts == "on" and algorithm(cell.algorithm).constrains
            trained = cell.algorithm != "none" and cell.own_traits is None  # a user's drafts may all be wrong
            needed |= OF_DRAFTS | (FOLLOWED if follows else REFUSED) if trained else {}
            needed |= ENDED if trained and not cell.shares_rounds else {}
            needed |= TOGETHER if cell.memory == "ample" else {}
        numbers: dict[str, Number] = {
            "tokens": sum(len(one.output_ids) for _, one in kept),
            "complete": len(read),
            "illegal": len(illegal),
            "unreadable": len(wrong),
            "begun": len(begun := _begun(run, kept)),
            **{name.partition(".")[2]: seen.get(name, 0) for name in EFFECTS | TOGETHER | OF_DRAFTS | ENDED | REFUSED},
        }
        for name, due in _counted(run, [one for _, one in kept]).items():
            if due != (got := seen.get(name, 0)):
                text = f"{name} is {got}, but by the rounds of {', '.join(one.name for _, one in kept)} {due}"
                return Outcome(self.name, State.FAIL, numbers, message=text)
        if illegal or wrong:
            blame = [*illegal, *wrong][0]
            text = (
                f"{len(illegal)} answers have an illegal token and {len(wrong)} are unreadable, first {blame.request}"
            )
            return Outcome(self.name, State.FAIL, numbers, message=f"{text}: {blame.note}", blame=blame)
        for request in {request.grammar: request for request, _ in kept if prepared.subject == REFERENCE}.values():
            if fault := first_wrong_mask(request, crc32(f"{cell.id} {prepared.seed}".encode()), eos):
                text = f"the grammar of {request.name}: {fault}"
                return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(request.name))
        without = [why for name, why in needed.items() if not seen.get(name, 0)]
        without += [f"no grammar began behind place {place} of a round" for place in _due(prepared, run) - begun]
        if not read or without:
            text = without[0] if without else "no answer ended with its grammar"
            return Outcome(self.name, State.NOT_MEASURED, numbers, message=text)
        return Outcome(self.name, State.PASS, numbers)


def _counted(run: Run, kept: Sequence[Answer]) -> dict[str, int]:
    """`OF_DRAFTS` by the rounds of constrained answers, if the engine shows both and all rounds are equally wide."""
    shown = {Capability.COUNTERS, Capability.ROUNDS} <= run.capabilities
    if not shown or run.resolved.get("adaptive_slots") or run.resolved.get("speculative_ragged_verify"):
        return {}
    deepest = deepest_round(*(int(run.resolved[name]) for name in RESOLVED_SHAPE))
    rounds = [length for one in kept for length in one.accept_lengths]
    return dict(zip(OF_DRAFTS, (sum(rounds) - len(rounds), sum(length < deepest for length in rounds)), strict=True))


def _due(prepared: PreparedCell, run: Run) -> set[int]:
    """The places of a round behind which grammars must begin; none if the engine does not show the rounds predicted, if
    its drafts may be of a request's own text only, or of a user's algorithm."""
    shape, needs = prepared.predicted, {Capability.ROUNDS}
    needs |= {Capability.JOURNAL} if prepared.cell.shares_rounds else set()
    late = any(request.reasoning_end_ids for request in run.requests) and prepared.cell.own_traits is None
    if isinstance(shape, ConfigError) or not needs <= run.capabilities or not late:
        return set()
    alike = all(run.resolved.get(name) == getattr(shape, name) for name in RESOLVED_SHAPE)
    return {*due_places(prepared.cell, shape)} if alike else set()


def _begun(run: Run, kept: Sequence[tuple[RequestSpec, Answer]]) -> set[int]:
    """The places of a round behind which grammars began. A retraction moves later rounds."""
    found = set[int]()
    for request, answer in kept:
        first = behind(request.reasoning_end_ids, answer.output_ids)
        if first and not answer.moves and Capability.ROUNDS in run.capabilities:
            deepest = deepest_round(*(int(run.resolved[name]) for name in RESOLVED_SHAPE))
            place = place_of(first - 1, answer.accept_lengths, deepest)
            found |= set() if place is None else {place}
    return found


def _changed(cell: Cell, request: RequestSpec, answer: Answer) -> bool:
    """Whether a greedy answer is another text than the oracle's, which has no grammar."""
    without: dict[str, Any] = dict.fromkeys(KINDS) | dict.fromkeys(
        ("reasoning_end_ids", "bad_words_ids", "logit_bias"), ()
    )
    free = replace(request, **without)
    oracle = oracle_of(cell.target)
    if oracle is None or request.temperature or not (known := oracle.continuation(free)):
        return False
    text = text_of(known)
    return not (text.startswith(answer.text) or answer.text.startswith(text))


def _illegal(request: RequestSpec, answer: Answer, eos: frozenset[int]) -> Iterator[Blame]:
    """The first illegal token of an answer, if any; an answer that ended with an error breaks its grammar too."""
    for index, token in enumerate(answer.output_ids):
        if not following(request, answer.output_ids[:index], eos)[token]:
            before = text_of(answer.output_ids[:index])
            yield Blame(request.name, index, note=f"token {index}, {token}, is illegal after {before!r}")
            return
    if answer.finish == "error":
        left = following(request, answer.output_ids, eos)
        for *earlier, last in request.bad_words_ids:
            left[last] &= [*answer.output_ids[len(answer.output_ids) - len(earlier) :]] != earlier
        if left.any() or not request.stuck:
            yield Blame(request.name, note="it ended with an error, although its grammar left a token")


def _constrained(request: RequestSpec, answer: Answer) -> str | None:
    """The constrained text of a whole answer; None if its reasoning did not end."""
    first = behind(request.reasoning_end_ids, answer.output_ids)
    return None if first is None else text_of(answer.output_ids[first:])
