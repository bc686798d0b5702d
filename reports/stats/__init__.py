"""The intervals and tests of the gates and the comparison. Intervals are at 95 %, rates are fractions.

- `proportions`: one rate and two independent rates
- `paired`: outcomes on the same questions (McNemar, difference interval, smallest detectable drop)
- `sequential`: the same, readable after every question
- `bootstrap`: ratios of sums over prompts (acceptance length)
- `uniformity`: samples against the distribution that they should follow
- `shift`: means of two small samples (speed, by engine start)
- `association`: over-representation, and many tests at once

scipy.stats does the arithmetic, except where a comparison of 100,000 cells or a run's first red cell cannot afford it:
importing scipy.stats takes about a second, a call 0.1 to 1 ms. The tests check those few formulas against scipy.stats.
"""

from specmatrix.reports.stats.association import benjamini_hochberg, fisher_log
from specmatrix.reports.stats.bootstrap import RatioChange, ratio_change
from specmatrix.reports.stats.paired import detectable_drop, mcnemar, paired_difference
from specmatrix.reports.stats.proportions import (
    NORMAL,
    Z95,
    difference_interval,
    two_rate_test,
    wilson,
    zero_count_bound,
)
from specmatrix.reports.stats.sequential import loss_evidence, sequential_mcnemar
from specmatrix.reports.stats.shift import Shift, mean_interval, pseudo_median, shift
from specmatrix.reports.stats.uniformity import ks_uniform, randomised_pit

__all__ = [
    "NORMAL",
    "Z95",
    "RatioChange",
    "Shift",
    "benjamini_hochberg",
    "detectable_drop",
    "difference_interval",
    "fisher_log",
    "ks_uniform",
    "loss_evidence",
    "mcnemar",
    "mean_interval",
    "paired_difference",
    "pseudo_median",
    "randomised_pit",
    "ratio_change",
    "sequential_mcnemar",
    "shift",
    "two_rate_test",
    "wilson",
    "zero_count_bound",
]
