"""What others measured with the published checkpoints on GSM8K."""

from __future__ import annotations

from typing import Final

import msgspec

from specmatrix.matrix.zoo.published.models import TABLE

# The probability of a share as low as measured, if the figure is true, below which it is a collapse. At 74 % and 1,319
# questions that is a share 4.5 points lower; other examples move it by less.
COLLAPSE: Final = 1e-4


class ExpectedAccuracy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Share of right answers of plain decoding, the mean over both extractors of lm-eval, of `questions`."""

    share: float
    questions: int
    source: str


ACCURACY: Final = msgspec.convert(TABLE["accuracy"], dict[str, ExpectedAccuracy])


def collapsed(target: str, right: float, questions: int) -> str:
    """A sentence if so few right answers contradict the published figure, "" if not or without one.

    right: of plain decoding, the mean over both extractors.
    """
    expected = ACCURACY.get(target)
    if expected is None:
        return ""
    from scipy.special import bdtr

    if float(bdtr(int(right), questions, expected.share)) >= COLLAPSE:
        return ""
    return (
        f"plain decoding answers {right:g} of {questions:,} questions correctly ({right / questions:.1%}), where "
        f"{expected.source} has {expected.share:.1%}"
    )
