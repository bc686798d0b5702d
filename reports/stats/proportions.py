"""One rate and two independent rates."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

NORMAL: Final = NormalDist()
# Half the width of a two-sided 95 % normal interval, in standard errors.
Z95: Final = NORMAL.inv_cdf(0.975)


def check_count(name: str, value: int, low: int, high: int | None = None) -> None:
    """ValueError unless low <= value (<= high)."""
    if value < low or (high is not None and value > high):
        allowed = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ValueError(f"{name} must be {allowed}, got {value}")


def wilson(successes: int, n: int) -> tuple[float, float]:
    """95 % score interval of a rate (Wilson 1927, JASA 22:209). ValueError unless 0 <= successes <= n and n >= 1."""
    check_count("n", n, 1)
    check_count("successes", successes, 0, n)
    rate, excess = successes / n, Z95**2 / n
    centre = rate + excess / 2
    half = math.sqrt(excess * (rate * (1 - rate) + excess / 4))
    low, high = (centre - half) / (1 + excess), (centre + half) / (1 + excess)
    return (low if successes else 0.0), (high if successes < n else 1.0)  # without rounding at the ends


def difference_interval(base_successes: int, base_n: int, head_successes: int, head_n: int) -> tuple[float, float]:
    """95 % interval of head rate minus base rate for independent samples.

    Newcombe 1998, Stat. Med. 17:873, method 10.
    """
    base_low, base_high = wilson(base_successes, base_n)
    head_low, head_high = wilson(head_successes, head_n)
    base, head = base_successes / base_n, head_successes / head_n
    low = head - base - math.hypot(head - head_low, base_high - base)
    high = head - base + math.hypot(head_high - head, base - base_low)
    return low, high


def two_rate_test(base_successes: int, base_n: int, head_successes: int, head_n: int) -> float:
    """One-sided p value that the head rate is lower, for independent samples (pooled z test).

    1.0 if both samples are all correct or all incorrect, since they carry no evidence of a loss.
    """
    check_count("base_n", base_n, 1)
    check_count("head_n", head_n, 1)
    pooled = (base_successes + head_successes) / (base_n + head_n)
    spread = math.sqrt(pooled * (1 - pooled) * (1 / base_n + 1 / head_n))
    if spread == 0:
        return 1.0
    return NORMAL.cdf((head_successes / head_n - base_successes / base_n) / spread)


def zero_count_bound(n: int) -> float:
    """95 % upper bound of a rate when none of `n` independent trials succeeded: the solution of (1 - rate)^n = 0.05.

    About 3/n (Clopper and Pearson 1934 at zero counts): 0 discordant answers in 200 bound the loss below 1.5 points.
    """
    check_count("n", n, 1)
    return -math.expm1(math.log(0.05) / n)
