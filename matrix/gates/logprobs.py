"""Log-probabilities of a request beside those of its baseline, which has read the same tokens in one piece."""

from __future__ import annotations

from collections.abc import Sequence

from specmatrix.matrix.gates.pairing import AnswerPair, first_difference


def max_logprob_gap(pair: AnswerPair) -> tuple[int, float]:
    """Tokens whose log-probabilities both sides show, and the largest difference of them or their alternatives, in
    nats.

    Tokens behind the first one that differs follow other texts and are left out. An alternative that the baseline does
    not have may only be as likely as its last one, within the difference.
    """
    mine, theirs = pair.answer, pair.baseline
    index = first_difference(mine.output_ids, theirs.output_ids, prefix=True)
    end = len(mine.output_ids) if index is None else index
    own = list(zip(mine.logprobs[:end], theirs.logprobs[:end], strict=False))
    columns = zip(mine.top_logprobs[:end], theirs.top_logprobs[:end], strict=False)
    gaps = [abs(one - other) for one, other in own]
    gaps += [_column(one, other) for one, other in columns]
    return len(own), max(gaps, default=0.0)


def _column(mine: Sequence[tuple[int, float]], theirs: Sequence[tuple[int, float]]) -> float:
    """The largest difference among the alternatives to one token."""
    if not mine or not theirs:
        return 0.0
    known = dict(theirs)
    least = min(known.values())
    return max(abs(value - known.get(token, least)) for token, value in mine)
