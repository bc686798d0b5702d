"""Two systems on the same questions: only the questions on which they differ carry evidence.

`lost` counts questions that the first answers rightly and the second wrongly, `won` the opposite.
"""

from __future__ import annotations

import math
from typing import Literal

from specmatrix.reports.stats.check import check_confidence, check_count
from specmatrix.reports.stats.proportions import normal_quantile, zero_count_bound

Alternative = Literal["loss", "gain", "two-sided"]


def mcnemar(lost: int, won: int, alternative: Alternative = "loss") -> float:
    """Exact p value of the paired test (McNemar 1947, Psychometrika 12:153; exact form: binomial with rate 1/2).

    `loss` is the one-sided test that the second system is worse, `gain` that it is better, `two-sided` doubles the
    smaller tail. 1.0 without discordant questions.
    """
    check_count("lost", lost, 0)
    check_count("won", won, 0)
    if alternative == "loss":
        return binomial_tail(lost, lost + won)
    if alternative == "gain":
        return binomial_tail(won, lost + won)
    return min(1.0, 2 * binomial_tail(max(lost, won), lost + won))


def binomial_tail(k: int, n: int) -> float:
    """P(X >= k) for X binomial with n fair trials, exact."""
    ways = sum(math.comb(n, i) for i in range(k, n + 1))
    return ways / (1 << n)


def paired_difference(lost: int, won: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of second rate minus first rate, in fractions of `n` questions.

    Adjusted Wald interval of Bonett and Price (2012, J. Educ. Behav. Stat. 37:479), which adds one to both discordant
    counts; without any discordant question both sides are the exact bound `zero_count_bound`.
    """
    check_count("n", n, 1)
    check_count("lost + won", lost + won, 0, n)
    if lost == won == 0:
        bound = zero_count_bound(n, confidence)
        return -bound, bound
    loss, gain = (lost + 1) / (n + 2), (won + 1) / (n + 2)
    spread = math.sqrt((loss + gain - (gain - loss) ** 2) / (n + 2))
    half = normal_quantile(confidence) * spread
    return max(-1.0, gain - loss - half), min(1.0, gain - loss + half)


def detectable_drop(good: int, won: int, n: int, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """Smallest drop of the rate, in fractions of `n` questions, that `mcnemar` puts below `alpha` with this power.

    Each of the `good` questions of the first run is lost by one and the same chance, beside `won` questions that are
    won. The chance brings the fewest losses that show with probability `power`: the quantile of a beta distribution
    (Clopper and Pearson 1934, Biometrika 26:404). None if the loss of all of them would not show, or not as often.
    """
    check_count("n", n, 1)
    check_count("good + won", good + won, 0, n)
    check_confidence(1 - alpha)
    check_confidence(power)
    fewest = next((lost for lost in range(won + 1, good + 1) if mcnemar(lost, won) < alpha), None)
    if fewest is None:
        return None
    # scipy takes 0.3 s to import, and who compares reports does without it.
    from scipy.special import betaincinv

    return (good * float(betaincinv(fewest, good - fewest + 1, power)) - won) / n
