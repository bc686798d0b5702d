"""Pairs each request of a run with the same request of the baseline, and names the phase of a position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.subjects.protocol import Answer, Run
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.reports.wording import count

TIE_NATS = 1e-3


class AnswerPair(NamedTuple):
    """One request with its answers from the run and from the baseline."""

    request: RequestSpec
    answer: Answer
    baseline: Answer


def pairs(run: Run, baseline: Run) -> list[AnswerPair]:
    """Requests answered on both sides, in submission order; `unpaired` reports the others."""
    base = {answer.name: answer for answer in baseline.answers}
    mine = {answer.name: answer for answer in run.answers}
    return [
        AnswerPair(request, mine[request.name], base[request.name])
        for request in run.requests
        if request.name in mine and request.name in base
    ]


def unpaired(gate: str, run: Run, baseline: Run) -> Outcome | None:
    """NOT MEASURED if there are no requests or one lacks an answer on either side; else None."""
    if not run.requests:
        return Outcome(gate, State.NOT_MEASURED, message="the cell has no requests")
    for side, answers in (("the run", run.answers), ("the baseline", baseline.answers)):
        if missing := {request.name for request in run.requests} - {answer.name for answer in answers}:
            return Outcome(gate, State.NOT_MEASURED, message=f"{side} has no answer for request {min(missing)}")
    return None


def first_difference(left: Sequence[int], right: Sequence[int], prefix: bool = False) -> int | None:
    """Index of the first differing token; with `prefix`, one side may end early."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if prefix or len(left) == len(right) else min(len(left), len(right))


def is_tie(request: RequestSpec, answer: Answer, index: int) -> bool:
    """True if the greedy `answer`'s two best tokens at `index` are less than TIE_NATS apart."""
    if request.temperature > 0 or index >= len(answer.top_logprobs) or len(answer.top_logprobs[index]) < 2:
        return False
    best, second = sorted((value for _, value in answer.top_logprobs[index]), reverse=True)[:2]
    return best - second < TIE_NATS


def phase_of(request: RequestSpec, answer: Answer, index: int, chunk: int | None = None) -> str:
    """The phase that decided output token `index`, with the logit rules of the request: `, in verify round 3 under
    min_p`; "" if the answer does not show it.

    chunk: largest number of prompt tokens of one prefill step, None without a limit.
    """
    under = f"under {', '.join(request.rules)}" if request.rules else ""
    known = [part for part in (_where(answer, index, chunk), under) if part]
    return f", {' '.join(known)}" if known else ""


def _where(answer: Answer, index: int, chunk: int | None) -> str:
    if answer.retractions:  # an answer does not tell where its prefills began again
        return f"in a request with {count(answer.retractions, 'retraction')}"
    if index == 0:
        split = chunk is not None and len(answer.prompt_ids) - answer.cached_tokens > chunk
        hit = f" after a prefix hit of {count(answer.cached_tokens, 'token')}" if answer.cached_tokens else ""
        return f"in {'the last chunk of ' if split else ''}the prefill{hit}"
    rounds = enumerate(zip(answer.round_starts, answer.accept_lengths, strict=True), 1)
    verify_round = next((number for number, (start, length) in rounds if start <= index < start + length), None)
    return "" if verify_round is None else f"in verify round {verify_round}"
