"""Names where in a request's life an output token was decided."""

from __future__ import annotations

from specmatrix.matrix.subjects.protocol import Answer
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.reports.wording import count


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
