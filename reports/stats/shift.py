"""The difference of two small samples: a number of each engine start, in two runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, variance
from typing import Final, NamedTuple

from specmatrix.reports.stats.proportions import check_count

# The fewest values whose spread is known.
MIN_VALUES: Final = 2


class Shift(NamedTuple):
    """`interval` is at 95 %; `p_loss` and `p_gain` are the one-sided p values that the shift is below, above zero."""

    estimate: float
    interval: tuple[float, float]
    p_loss: float
    p_gain: float


def shift(base: Sequence[float], head: Sequence[float]) -> Shift:
    """The mean of head less that of base.

    Interval and p values are those of the t test for unequal spreads (Welch 1947, Biometrika 34:28). Without any spread
    the interval is a point. ValueError for fewer than `MIN_VALUES` values on a side.
    """
    old, new = _mean_square(base), _mean_square(head)
    estimate, error = fmean(head) - fmean(base), sqrt(old + new)
    if not error:
        return Shift(estimate, (estimate, estimate), float(estimate >= 0), float(estimate <= 0))
    from scipy.special import stdtr

    freedom = (old + new) ** 2 / (old**2 / (len(base) - 1) + new**2 / (len(head) - 1))
    low, high = _around(estimate, error, freedom)
    p_loss, p_gain = (float(stdtr(freedom, sign * estimate / error)) for sign in (1, -1))
    return Shift(estimate, (low, high), p_loss, p_gain)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean by Student's t. ValueError for fewer than `MIN_VALUES` values."""
    return _around(fmean(values), sqrt(_mean_square(values)), len(values) - 1)


def pseudo_median(values: Sequence[float]) -> float:
    """The median of the means of all pairs, each value with itself included: nearly as precise as the mean, and hardly
    moved by a few outliers (Hodges and Lehmann 1963, Ann. Math. Stat. 34:598). ValueError without values."""
    import numpy as np

    check_count("number of values", len(values), 1)
    row = np.asarray(values, dtype=np.float64)
    return float(np.median(((row[:, None] + row) / 2)[np.triu_indices(len(row))]))


def _mean_square(values: Sequence[float]) -> float:
    """The square of the standard error of the mean."""
    check_count("number of values", len(values), MIN_VALUES)
    return variance(values) / len(values)


def _around(middle: float, error: float, freedom: float) -> tuple[float, float]:
    from scipy.special import stdtrit

    half = float(stdtrit(freedom, 0.975)) * error
    return middle - half, middle + half
