"""Ratios of sums over prompts, such as acceptance length = tokens emitted / verify rounds.

Rounds of one prompt depend on each other, so prompts are resampled (cluster bootstrap). A ratio of sums is not the mean
of per-prompt ratios: long answers weigh more, as they do in the running time.
scipy.stats.bootstrap would do the same, but importing it adds a second to every run and comparison with a drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from specmatrix.reports.stats.proportions import check_count

Columns: TypeAlias = tuple[Sequence[float], Sequence[float]]
# Relative differences up to this come from floating point.
ROUNDING: Final = 1e-12


@dataclass(frozen=True, slots=True)
class RatioChange:
    """Relative change of a ratio from base to head: -0.03 is a loss of 3 %.

    `interval` is at 95 %, None if all prompts changed alike: the spread of a constant sample is unknown. It
    includes 0 where fewer than six prompts changed, too few for a paired test at 2.5 % to distinguish loss from gain.
    `p_loss` and `p_gain` are one-sided: the fraction of resamples without a loss (gain), with one added to both counts
    so that a Monte Carlo p value is never zero, and at least 0.5 ** n for n prompts that changed, below which no paired
    test can go.
    """

    change: float
    interval: tuple[float, float] | None
    p_loss: float
    p_gain: float


def ratio_change(base: Columns, head: Columns, resamples: int = 2000) -> RatioChange:
    """Paired relative change of a ratio of sums; `base` and `head` are (numerators, denominators) of the same prompts.

    Both sides are computed on the same resampled prompts, so that what a prompt contributes to both cancels (paired
    cluster bootstrap with a percentile interval, Davison and Hinkley 1997, sections 3.8 and 4.4.3); below some ten
    prompts the interval is too narrow. The seed is fixed: equal samples give equal intervals. ValueError below two
    prompts, for lengths that differ or for a number that is not positive.
    """
    import numpy as np

    check_count("number of prompts", min(map(len, (*base, *head))), 2)
    base_top, base_bottom, head_top, head_bottom = sums = np.stack([*base, *head])
    if sums.min() <= 0:
        raise ValueError(f"all numbers must be above 0, got {sums.min():g}")
    prompts = len(base_top)
    # How often each resample draws each prompt.
    drawn = np.random.default_rng(0).multinomial(prompts, np.full(prompts, 1 / prompts), resamples)
    changes = (drawn @ head_top) / (drawn @ head_bottom) / ((drawn @ base_top) / (drawn @ base_bottom)) - 1
    low, high = np.quantile(changes, [0.025, 0.975])
    moves = head_top / head_bottom / (base_top / base_bottom) - 1
    alike = np.abs(moves).max() > ROUNDING and np.ptp(moves) <= ROUNDING
    least = 0.5 ** int((np.abs(moves) > ROUNDING).sum())
    if least > 0.025:
        low, high = min(low, 0.0), max(high, 0.0)
    return RatioChange(
        change=float(head_top.sum() / head_bottom.sum() / (base_top.sum() / base_bottom.sum()) - 1),
        interval=None if alike else (float(low), float(high)),
        p_loss=max(least, float(((changes >= 0).sum() + 1) / (resamples + 1))),
        p_gain=max(least, float(((changes <= 0).sum() + 1) / (resamples + 1))),
    )
