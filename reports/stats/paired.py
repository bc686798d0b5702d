"""Two systems on the same questions: only the questions on which they differ carry evidence.

`lost` counts questions that the first answers rightly and the second wrongly, `won` the opposite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from reports.stats.check import check_count
from reports.stats.proportions import normal_quantile, zero_count_bound

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


def sequential_mcnemar(
    losses: Iterable[bool], share: float = 0.75, alpha: float = 0.01, beta: float = 0.05
) -> Literal["LOSS", "SAME", "UNDECIDED"]:
    """Sequential probability ratio test over discordant questions in the order in which they occur.

    `losses` yields True for a lost question and False for a won one. H0: half of the discordant questions are losses;
    H1: a share `share` is. Wald (1945, Ann. Math. Stat. 16:117): stop with LOSS above log((1-beta)/alpha), with SAME
    below log(beta/(1-alpha)). UNDECIDED if the questions end first; then report an upper bound instead. ValueError on
    a share outside (0.5, 1).
    """
    if not 0.5 < share < 1:
        raise ValueError(f"share is {share}, allowed is a fraction between 0.5 and 1")
    upper, lower = math.log((1 - beta) / alpha), math.log(beta / (1 - alpha))
    ratio = 0.0
    for loss in losses:
        ratio += math.log(share / 0.5) if loss else math.log((1 - share) / 0.5)
        if ratio >= upper:
            return "LOSS"
        if ratio <= lower:
            return "SAME"
    return "UNDECIDED"
