"""Compares a request's log-probabilities with its baseline's."""

from __future__ import annotations

from collections.abc import Sequence

from specmatrix.matrix.gates.pairing import AnswerPair, first_difference


def max_logprob_gap(pair: AnswerPair) -> tuple[int, float]:
    """Number of tokens with log-probabilities on both sides, and the largest difference in nats, alternatives included.

    Tokens after the first differing one have different contexts and are left out. An alternative that the baseline
    lacks is compared with the baseline's least likely one.
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
    """The largest difference in nats among one token's alternatives."""
    if not mine or not theirs:
        return 0.0
    known = dict(theirs)
    least = min(known.values())
    return max(abs(value - known.get(token, least)) for token, value in mine)
