"""One rate and two independent rates. Rates are fractions, not percent."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Final

from specmatrix.reports.stats.check import check_confidence, check_count

_NORMAL: Final = NormalDist()


@lru_cache
def normal_quantile(confidence: float) -> float:
    """Half-width, in standard errors, of a two-sided normal interval (1.96 for 0.95)."""
    check_confidence(confidence)
    return _NORMAL.inv_cdf(0.5 + confidence / 2)


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval of a rate (Wilson 1927, JASA 22:209). ValueError unless 0 <= successes <= n and n >= 1."""
    check_count("n", n, 1)
    check_count("successes", successes, 0, n)
    z = normal_quantile(confidence)
    rate = successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # At the two ends the interval touches 0 and 1 exactly; rounding must not move it inside.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def difference_interval(
    base_successes: int, base_n: int, head_successes: int, head_n: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of head rate minus base rate for independent samples (Newcombe 1998, Stat. Med. 17:873, method 10)."""
    base_low, base_high = wilson(base_successes, base_n, confidence)
    head_low, head_high = wilson(head_successes, head_n, confidence)
    base, head = base_successes / base_n, head_successes / head_n
    low = head - base - math.hypot(head - head_low, base_high - base)
    high = head - base + math.hypot(head_high - head, base - base_low)
    return low, high


def two_rate_test(base_successes: int, base_n: int, head_successes: int, head_n: int) -> float:
    """One-sided p value that the head rate is lower, for independent samples (pooled z test).

    1.0 if both samples are all right or all wrong: they carry no evidence of a loss.
    """
    check_count("base_n", base_n, 1)
    check_count("head_n", head_n, 1)
    pooled = (base_successes + head_successes) / (base_n + head_n)
    spread = math.sqrt(pooled * (1 - pooled) * (1 / base_n + 1 / head_n))
    if spread == 0:
        return 1.0
    return _NORMAL.cdf((head_successes / head_n - base_successes / base_n) / spread)


def zero_count_bound(n: int, confidence: float = 0.95) -> float:
    """Upper bound of a rate of which `n` independent trials showed no case.

    Solves (1 - rate)^n = 1 - confidence (Clopper and Pearson 1934 at zero counts; about 3/n at 0.95). With paired
    runs: 0 discordant answers in 200 bound the loss below 1.5 points.
    """
    check_count("n", n, 1)
    check_confidence(confidence)
    return -math.expm1(math.log1p(-confidence) / n)
