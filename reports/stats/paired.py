"""Two systems on the same questions: only questions on which they differ carry evidence.

`lost` counts questions that the first system answers correctly and the second incorrectly, `won` the opposite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from specmatrix.reports.stats.proportions import Z95, check_count, zero_count_bound

Alternative = Literal["loss", "gain", "two-sided"]


def mcnemar(lost: int, won: int, alternative: Alternative = "loss") -> float:
    """Exact p value of the paired test (McNemar 1947, Psychometrika 12:153; exact form: binomial with rate 1/2).

    `loss` is the one-sided test that the second system is worse, `gain` that it is better, `two-sided` doubles the
    smaller tail. 1.0 without discordant questions.
    """
    check_count("lost", lost, 0)
    check_count("won", won, 0)
    tail = {"loss": lost, "gain": won, "two-sided": max(lost, won)}[alternative]
    # P(X >= tail) in exact integers: the same as scipy.stats.binomtest, in a hundredth of the time.
    p = sum(math.comb(lost + won, k) for k in range(tail, lost + won + 1)) / (1 << (lost + won))
    return min(1.0, 2 * p) if alternative == "two-sided" else p


def paired_difference(lost: int, won: int, n: int) -> tuple[float, float]:
    """95 % interval of second rate minus first rate over `n` questions.

    Adjusted Wald interval of Bonett and Price (2012, J. Educ. Behav. Stat. 37:479), which adds one to both discordant
    counts; without any discordant question both sides are the exact bound `zero_count_bound`.
    """
    check_count("n", n, 1)
    check_count("lost + won", lost + won, 0, n)
    if lost == won == 0:
        bound = zero_count_bound(n)
        return -bound, bound
    loss, gain = (lost + 1) / (n + 2), (won + 1) / (n + 2)
    half = Z95 * math.sqrt((loss + gain - (gain - loss) ** 2) / (n + 2))
    return max(-1.0, gain - loss - half), min(1.0, gain - loss + half)


def detectable_drop(
    good: int, won: int, n: int, alpha: float, power: float, test: Callable[[int, int], float] = mcnemar
) -> float | None:
    """Smallest drop of the rate over `n` questions that `test` puts below `alpha` with probability `power`.

    Each of the first run's `good` questions is lost with the same probability, while `won` questions are won. The
    smallest such probability is a quantile of a beta distribution (Clopper and Pearson 1934, Biometrika 26:404). None
    if losing every good question would not be significant. test: a p value of lost and won questions.
    """
    from scipy.special import betaincinv

    check_count("n", n, 1)
    check_count("good + won", good + won, 0, n)
    fewest = next((lost for lost in range(won + 1, good + 1) if test(lost, won) < alpha), None)
    if fewest is None:
        return None
    return (good * float(betaincinv(fewest, good - fewest + 1, power)) - won) / n
