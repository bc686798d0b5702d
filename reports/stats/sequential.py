"""A paired test that may be read after every question."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specmatrix.reports.stats.proportions import check_count


def loss_evidence(lost: int, won: int) -> float:
    """How many times more likely these discordant questions are if losses are the more frequent kind (an e value).

    The likelihood ratio of a rate of losses that is uniform between 1/2 and 1 to a rate of 1/2:
    2^(n+1) times the integral of p^lost (1-p)^won over that range, n = lost + won, which is a sum of binomials.
    """
    check_count("lost", lost, 0)
    check_count("won", won, 0)
    n = lost + won
    return sum(math.comb(n + 1, k) for k in range(lost + 1)) / ((n + 1) * math.comb(n, lost))


def sequential_mcnemar(losses: Sequence[bool]) -> float:
    """p value of the one-sided paired test after every discordant question so far, True for a lost one.

    The inverse of the largest `loss_evidence` yet: without a loss it ever falls to `alpha` with a probability of at
    most `alpha`, however often it is read (Ville's inequality; Robbins 1970, Ann. Math. Stat. 41:1397). So a run may
    end as soon as it is small enough. The price is power: 9 losses and no win reach 0.01, where `mcnemar` needs 7. 1.0
    without discordant questions.
    """
    most, lost = 1.0, 0
    for n, each in enumerate(losses, start=1):
        lost += each
        most = max(most, loss_evidence(lost, n - lost))
    return 1 / most
