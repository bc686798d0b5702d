"""The intervals and tests of the gates and the comparison. Intervals are at 95 %, rates are fractions.

scipy.stats does the arithmetic, except where a comparison of 100,000 cells or a run's first red cell cannot afford it:
importing scipy.stats takes about a second, a call 0.1 to 1 ms. The tests check those few formulas against scipy.stats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, variance
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

# Comparing reports does not load numpy.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NORMAL: Final = NormalDist()
# Half the width of a two-sided 95 % normal interval, in standard errors.
Z95: Final = NORMAL.inv_cdf(0.975)
Alternative = Literal["loss", "gain", "two-sided"]
Columns: TypeAlias = tuple[Sequence[float], Sequence[float]]
# Relative differences up to this come from floating point.
ROUNDING: Final = 1e-12
# Minimum number of values with a known spread.
MIN_VALUES: Final = 2
# Power: the share of runs with an effect of the stated size that are red.
POWER: Final = 0.8
# Of each bin of a chi-square test (Cochran 1954).
LEAST_EXPECTED: Final = 5.0


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


def zero_count_bound(n: int) -> float:
    """95 % upper bound of a rate when none of `n` independent trials succeeded: the solution of (1 - rate)^n = 0.05.

    About 3/n (Clopper and Pearson 1934 at zero counts): 0 discordant answers in 200 bound the loss below 1.5 points.
    """
    check_count("n", n, 1)
    return -math.expm1(math.log(0.05) / n)


# Two systems on the same questions: only questions on which they differ carry evidence. `lost` counts those that the
# first system answers correctly and the second incorrectly, `won` the opposite.
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


# Ratios of sums over prompts, such as acceptance length = tokens emitted / verify rounds. Rounds of one prompt depend
# on each other, so prompts are resampled (cluster bootstrap).
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
    drawn = _drawn(prompts, resamples)
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


@lru_cache(maxsize=8)
def _drawn(prompts: int, resamples: int) -> npt.NDArray[np.float64]:
    """How often each resample draws each prompt; the seed is fixed."""
    import numpy as np

    return np.random.default_rng(0).multinomial(prompts, np.full(prompts, 1 / prompts), resamples).astype(np.float64)


class FitResult(NamedTuple):
    """`p` is the probability of a statistic at least this large if the samples follow the distribution."""

    statistic: float
    p: float


def randomised_pit(below: Sequence[float], at: Sequence[float], uniform: Sequence[float]) -> npt.NDArray[np.float64]:
    """Probability integral transform of discrete samples: below + uniform * at, in [0, 1].

    Per sample: `below` is the probability of all tokens before the drawn one, `at` that of the drawn one, `uniform` an
    independent uniform number (not the one that drew it). The results are uniform if each sample follows its own
    distribution, so samples from different contexts can be tested together (Rueschendorf 2009, J. Stat. Plan. Inf.
    139:3921). ValueError on lengths that differ or a result outside [0, 1].
    """
    import numpy as np

    starts, shares, noise = np.stack([below, at, uniform])
    values: npt.NDArray[np.float64] = starts + noise * shares
    if values.size and (values.min() < 0 or values.max() > 1 + 1e-6):
        raise ValueError(f"values must be between 0 and 1, got {values.min():.6g} to {values.max():.6g}")
    # Sums of probabilities exceed 1 by rounding.
    return np.minimum(values, 1.0)


def ks_uniform(values: npt.NDArray[np.float64], allowed: float = 0.0, groups: int | None = None) -> FitResult:
    """Kolmogorov-Smirnov test that `values` are uniform on [0, 1], or that their distribution function is at most
    `allowed` away from that. groups: number of independent groups of values, if these are not independent of each
    other. ValueError below 5 values or outside [0, 1].

    `p` is twice the exact probability of one side, which counts the two sides together twice: it is too large by less
    than 1e-4 of itself for p below 0.1, and by about a tenth at most. scipy.stats would be exact there, and its import
    takes 0.4 s of a worker's start.
    """
    import numpy as np
    from scipy.special import smirnov

    check_count("number of values", len(values), 5)
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"values must be between 0 and 1, got {values.min():.6g} to {values.max():.6g}")
    steps = np.arange(len(values) + 1) / len(values)
    ordered = np.sort(values)
    statistic = float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))
    beyond = max(0.0, statistic - allowed)
    return FitResult(statistic, min(1.0, 2 * float(smirnov(groups or len(values), beyond))))


class LawFit(NamedTuple):
    """How well counts fit a law. bins: of outcomes, each expected at least `LEAST_EXPECTED` times. variation: the total
    variation between counts and law over these bins. detectable: any law as far away as this over the bins has p below
    `alpha` with probability `POWER` or more."""

    statistic: float
    p: float
    bins: int
    variation: float
    detectable: float


def law_fit(counts: Sequence[int], law: Sequence[float], alpha: float) -> LawFit:
    """Pearson's chi-square test that outcomes follow a law. counts, law: by outcome, the likeliest first; the last one
    is every other outcome. ValueError for too few outcomes for two bins.

    Laws whose total variation is t have a chi-square distance of at least 4 t^2 (Cauchy and Schwarz), which times n is
    the noncentrality.
    """
    from scipy.special import chdtrc, chdtri, chndtrinc

    n, bins = sum(counts), [[0.0, 0.0]]
    for seen, share in zip(counts, law, strict=True):
        if bins[-1][1] * n >= LEAST_EXPECTED:
            bins.append([0.0, 0.0])
        bins[-1] = [bins[-1][0] + seen, bins[-1][1] + share]
    if len(bins) > 1 and bins[-1][1] * n < LEAST_EXPECTED:
        few, little = bins.pop()
        bins[-1] = [bins[-1][0] + few, bins[-1][1] + little]
    check_count("number of bins", len(bins), 2)
    statistic = sum((got - part * n) ** 2 / (part * n) for got, part in bins)
    variation = sum(abs(got / n - part) for got, part in bins) / 2
    far = chndtrinc(chdtri(len(bins) - 1, alpha), len(bins) - 1, 1 - POWER)
    return LawFit(statistic, float(chdtrc(len(bins) - 1, statistic)), len(bins), variation, math.sqrt(far / (4 * n)))


class LeastVariation(NamedTuple):
    """at_least: of a total variation, but for a probability `alpha`. margin: a variation that is larger than a limit by
    this is found to be above it with probability `POWER` or more, by simulation of laws with one outcome off and with
    half of them off."""

    at_least: float
    margin: float


def least_variation(first: Sequence[int], second: Sequence[int], law: Sequence[float], alpha: float) -> LeastVariation:
    """A lower bound of the total variation between a law and the distribution of two samples, their counts by outcome.

    The outcomes that one sample has too often, by half a standard error and more, are an event, whose probability the
    other sample bounds from below (Clopper and Pearson 1934, Biometrika 26:404): less its probability by the law, that
    is a bound of the total variation. Each sample is used in both ways, so each bound has half of `alpha`.
    """
    from scipy.special import betaincinv

    found = 0.0
    for chooses, counts in ((first, second), (second, first)):
        due = (share * sum(chooses) for share in law)
        event = [seen > one + math.sqrt(one) / 2 for seen, one in zip(chooses, due, strict=True)]
        n, hits = sum(counts), sum(seen for seen, inside in zip(counts, event, strict=True) if inside)
        low = float(betaincinv(hits, n - hits + 1, alpha / 2)) if hits else 0.0
        found = max(found, low - sum(share for share, inside in zip(law, event, strict=True) if inside))
    errors = NORMAL.inv_cdf(1 - alpha / 2) + NORMAL.inv_cdf(POWER)
    # Half of what an empirical law is off by on average: the outcomes are chosen by one.
    chosen = sum(math.sqrt(share * (1 - share)) for share in law) / 4
    return LeastVariation(found, (errors / 2 + chosen) / math.sqrt(min(sum(first), sum(second))))


class Shift(NamedTuple):
    """`interval` is at 95 %; `p_loss` and `p_gain` are the one-sided p values that the shift is below, above zero."""

    estimate: float
    interval: tuple[float, float]
    p_loss: float
    p_gain: float


def shift(base: Sequence[float], head: Sequence[float]) -> Shift:
    """The mean of head less that of base.

    Interval and p values are those of the t test for unequal spreads (Welch 1947, Biometrika 34:28). Without spread the
    interval is a point. ValueError for fewer than `MIN_VALUES` values on a side.
    """
    old, new = _mean_square(base), _mean_square(head)
    estimate, error = fmean(head) - fmean(base), math.sqrt(old + new)
    if not error:
        return Shift(estimate, (estimate, estimate), float(estimate >= 0), float(estimate <= 0))
    from scipy.special import stdtr

    freedom = (old + new) ** 2 / (old**2 / (len(base) - 1) + new**2 / (len(head) - 1))
    low, high = _around(estimate, error, freedom)
    p_loss, p_gain = (float(stdtr(freedom, sign * estimate / error)) for sign in (1, -1))
    return Shift(estimate, (low, high), p_loss, p_gain)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean by Student's t. ValueError for fewer than `MIN_VALUES` values."""
    return _around(fmean(values), math.sqrt(_mean_square(values)), len(values) - 1)


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


def benjamini_hochberg(values: Sequence[float], rate: float) -> list[bool]:
    """Which p values are discoveries if a fraction `rate` of the discoveries may be false.

    Step-up procedure of Benjamini and Hochberg (1995, J. R. Stat. Soc. B 57:289), in the order of `values`. The same as
    `scipy.stats.false_discovery_control(values) <= rate`.
    """
    limit = -1.0
    for rank, value in enumerate(sorted(values), start=1):
        if value <= rate * rank / len(values):
            limit = value
    return [value <= limit for value in values]
