"""Ratios of sums over prompts, such as acceptance length = tokens emitted / verify rounds.

Rounds of one prompt depend on each other, so the prompt is the unit that is drawn (cluster bootstrap), and a ratio of
sums is not the mean of per-prompt ratios: long answers weigh more, as they do in the time that a user waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from specmatrix.reports.stats.check import check_confidence, check_count, check_same_length

# numpy takes longer to import than most comparisons take, so it is imported where prompts are resampled.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Sums: TypeAlias = "npt.NDArray[np.float64]"


@dataclass(frozen=True, slots=True)
class RatioChange:
    """Relative change of a ratio from base to head: -0.03 is a loss of 3 %.

    `p_loss` and `p_gain` are one-sided: the share of resamples without a loss (gain), with the count of one added that
    keeps a Monte Carlo p value above zero.
    """

    change: float
    interval: tuple[float, float]
    p_loss: float
    p_gain: float


def ratio_change(
    base: tuple[Sequence[float], Sequence[float]],
    head: tuple[Sequence[float], Sequence[float]],
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> RatioChange:
    """Paired relative change of a ratio of sums; `base` and `head` are (numerators, denominators) of the same prompts.

    Both sides are computed on the same drawn prompts, so that what is common to a prompt cancels (paired cluster
    bootstrap, Davison and Hinkley 1997, sections 3.8 and 4.4.3 for the one-sided p values); the percentile interval
    (Efron 1979, Ann. Stat. 7:1) is too narrow below some ten prompts. ValueError below two prompts or for a sum that is
    not positive.
    """
    base_top, base_bottom = _columns(*base)
    head_top, head_bottom = _columns(*head)
    check_same_length(base=len(base_top), head=len(head_top))
    drawn = _draw(len(base_top), resamples, seed)
    changes = (_resampled(head_top, drawn) / _resampled(head_bottom, drawn)) / (
        _resampled(base_top, drawn) / _resampled(base_bottom, drawn)
    ) - 1
    return RatioChange(
        change=float(head_top.sum() / head_bottom.sum() / (base_top.sum() / base_bottom.sum()) - 1),
        interval=_percentiles(changes, confidence),
        p_loss=float(((changes >= 0).sum() + 1) / (resamples + 1)),
        p_gain=float(((changes <= 0).sum() + 1) / (resamples + 1)),
    )


def _columns(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[Sums, Sums]:
    import numpy as np

    check_same_length(numerators=len(numerators), denominators=len(denominators))
    check_count("number of prompts", len(numerators), 2)
    if min(denominators) <= 0:
        raise ValueError(f"a denominator is {min(denominators)}, allowed is more than 0")
    if min(numerators) <= 0:
        raise ValueError(f"a numerator is {min(numerators)}, allowed is more than 0")
    return np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)


def _draw(prompts: int, resamples: int, seed: int) -> npt.NDArray[np.float64]:
    """How often each prompt is drawn, [resamples, prompts]."""
    import numpy as np

    check_count("resamples", resamples, 100)
    generator = np.random.default_rng(seed)
    return generator.multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples).astype(np.float64)


def _resampled(column: Sums, drawn: npt.NDArray[np.float64]) -> Sums:
    return drawn @ column


def _percentiles(values: Sums, confidence: float) -> tuple[float, float]:
    import numpy as np

    check_confidence(confidence)
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
