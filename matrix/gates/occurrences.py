"""What must have happened in a run for the PASS of a gate to mean something.

A row is required where the oracle's own text implies it, which the workload sees to (`matrix.workloads.boundaries`);
the counters of the reference engine have rows of their own (`matrix.gates.evidence`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final, NamedTuple

from specmatrix.errors import ConfigError
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run
from specmatrix.matrix.workloads.predicted import RESOLVED_SHAPE, Prediction, deepest_round, predict, splits_stop
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.request import RequestSpec


class Seen(NamedTuple):
    """A request without a retraction, its answer, and what the oracle implies, None where it implies nothing. deepest:
    tokens of a round that accepts every draft."""

    request: RequestSpec
    answer: Answer
    due: Prediction | None
    deepest: int

    @property
    def whole(self) -> Prediction | None:
        """What the oracle implies if no abort is sent."""
        return self.due if self.request.abort_after is None else None

    @property
    def rounds(self) -> Sequence[int]:
        """The oracle's whole rounds if no abort is sent; of an answer whose first round begins with the first token,
        those that begin where one of its rounds does, as the others' drafts are other ones."""
        rounds = () if self.whole is None else self.whole.rounds[:-1]
        if not self.answer.drafts_first:
            return rounds
        mine = {*self.answer.round_starts}
        return [length for length, start in zip(rounds, accumulate(rounds, initial=1), strict=False) if start in mine]


class Occurrence(NamedTuple):
    """what: a phrase. due: whether a request must have it. seen: whether a request had it. needs: what shows it."""

    what: str
    due: Callable[[Seen], bool]
    seen: Callable[[Seen], bool]
    needs: Capability = Capability.ROUNDS


def _ends_inside(one: Seen) -> bool:
    """An engine may report the last round whole, or only its tokens up to the end."""
    answer, due = one.answer, one.due
    if answer.finish not in ("stop", "length") or not answer.accept_lengths:
        return False
    if 1 + sum(answer.accept_lengths) > len(answer.output_ids):
        return True
    return due is not None and due.ends_inside and answer.accept_lengths[:-1] == due.rounds[:-1]


def _runs_on(one: Seen) -> bool:
    """By the oracle, the request has two more rounds after its abort is sent."""
    after, due = one.request.abort_after, one.due
    return after is not None and due is not None and due.end.tokens > after + 2 * due.deepest


FULL: Final = Occurrence(
    "a verify round that accepts every draft",
    lambda one: one.deepest in one.rounds,
    lambda one: one.deepest in one.answer.accept_lengths,
)
REJECTED: Final = Occurrence(
    "a verify round that rejects a draft",
    lambda one: any(length < one.deepest for length in one.rounds),
    lambda one: any(length < one.deepest for length in one.answer.accept_lengths[:-1]),
)
OCCURRENCES: Final[Mapping[str, Sequence[Occurrence]]] = {
    "finish": (
        Occurrence(
            "an end inside a verify round", lambda one: one.whole is not None and one.whole.ends_inside, _ends_inside
        ),
        Occurrence(
            "a stop string over two verify rounds",
            lambda one: one.whole is not None and one.whole.split,
            lambda one: splits_stop(one.answer.output_ids, one.answer.accept_lengths, one.answer.matched),
        ),
        Occurrence("an abort", _runs_on, lambda one: one.answer.finish == "abort", Capability.ABORT),
    ),
    "lossless": (FULL, REJECTED),
    "acceptance": (FULL, REJECTED),
}


def proven(outcome: Outcome, prepared: PreparedCell, run: Run, excluded: Mapping[str, str]) -> Outcome:
    """The outcome, NOT MEASURED in place of a PASS if something did not happen on which its meaning rests.

    excluded: the subject's excluded gates. Without `acceptance` the oracle has no rounds for it, which all rows need.
    """
    rows = [row for row in OCCURRENCES.get(outcome.gate, ()) if row.needs in run.capabilities]
    if outcome.state is not State.PASS or not rows or "acceptance" in excluded:
        return outcome
    requests = _seen(prepared, run)
    for row in rows:
        due = [one.request.name for one in requests if row.due(one)]
        if due and not any(row.seen(one) for one in requests):
            text = f"no request had {row.what}, which {due[0]} must have by the oracle's text"
            return replace(outcome, state=State.NOT_MEASURED, message=text)
    return outcome


def _seen(prepared: PreparedCell, run: Run) -> list[Seen]:
    """The requests of a cell whose rounds are as wide as resolved; in half precision texts may leave the oracle's."""
    cell, shape = prepared.cell, prepared.predicted
    if isinstance(shape, ConfigError) or cell.adapts or cell.algorithm == "none" or cell.numerics != "float32":
        return []
    if cell.own_traits is not None or cell.verify != "whole":
        return []
    answers = {answer.name: answer for answer in run.answers if not answer.moves}
    depth, topk, nodes = (int(run.resolved[name]) for name in RESOLVED_SHAPE)
    shape = replace(shape, num_steps=depth, topk=topk, num_draft_tokens=nodes)
    deepest = deepest_round(depth, topk, nodes)
    return [
        Seen(request, answers[request.name], predict(cell, shape, request), deepest)
        for request in run.requests
        if request.name in answers
    ]
