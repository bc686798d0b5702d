"""The shift of a sample from zero, robust against outliers: differences of two systems, turn by turn.

scipy.stats.wilcoxon gives the same p values, but has no interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import sqrt
from typing import NamedTuple

from specmatrix.reports.stats.proportions import NORMAL, Z95, check_count

# The fewest values of which an exact 95 % interval exists: 2 / 2**6 is below 5 %.
LEAST_VALUES = 6
# Up to this many values the distribution of the ranks' sum is exact, as scipy's is, and normal beyond.
MOST_EXACT = 50


class Shift(NamedTuple):
    """`interval` is at 95 %; `p_loss` and `p_gain` are the one-sided p values that the shift is below, above zero."""

    estimate: float
    interval: tuple[float, float]
    p_loss: float
    p_gain: float


def shift(values: Sequence[float]) -> Shift:
    """The Hodges-Lehmann estimate: the median of the means of all pairs, each value with itself included.

    Interval and p values are those of Wilcoxon's signed-rank test, which holds for any symmetric distribution (Hodges
    and Lehmann 1963, Ann. Math. Stat. 34:598). A pair whose mean is zero counts against the test. ValueError for fewer
    than `LEAST_VALUES` values.
    """
    import numpy as np

    n = len(values)
    check_count("number of values", n, LEAST_VALUES)
    row = np.asarray(values, dtype=np.float64)
    means = np.sort(((row[:, None] + row) / 2)[np.triu_indices(n)])
    above, below = int((means > 0).sum()), int((means < 0).sum())
    cut = _cut(n)
    return Shift(
        float(np.median(means)),
        (float(means[cut]), float(means[-1 - cut])),
        _tail(n, len(means) - below),
        _tail(n, len(means) - above),
    )


@cache
def _cut(n: int) -> int:
    """The largest sum of ranks with a tail of at most 2.5 %."""
    if n > MOST_EXACT:
        return int(_mean(n) - Z95 * _deviation(n))
    return max(place for place, tail in enumerate(_tails(n)) if tail <= 0.025)


def _tail(n: int, ranks: int) -> float:
    """P(W <= ranks) for the sum W of the ranks 1 to n that each count with probability 1/2."""
    if n > MOST_EXACT:
        return NORMAL.cdf((ranks + 0.5 - _mean(n)) / _deviation(n))
    return _tails(n)[ranks]


def _mean(n: int) -> float:
    return n * (n + 1) / 4


def _deviation(n: int) -> float:
    return sqrt(n * (n + 1) * (2 * n + 1) / 24)


@cache
def _tails(n: int) -> tuple[float, ...]:
    """The exact P(W <= w) for every w."""
    ways = [1]
    for rank in range(1, n + 1):
        longer = ways + [0] * rank
        for place, found in enumerate(ways):
            longer[place + rank] += found
        ways = longer
    total, tails = 0, []
    for found in ways:
        total += found
        tails.append(total / (1 << n))
    return tuple(tails)
