"""Intervals and tests behind the gates and the comparison; every function names the source of its formula.

- `proportions`: one rate and two independent rates
- `paired`: outcomes on the same questions (McNemar, difference interval, and what they can see)
- `bootstrap`: ratios of sums over prompts (acceptance length)
- `distribution`: samples against a known distribution
- `association`: over-representation, signs, and many tests at once
"""

from specmatrix.reports.stats.association import benjamini_hochberg, fisher_exact, fisher_log, sign_test
from specmatrix.reports.stats.bootstrap import RatioChange, ratio_change
from specmatrix.reports.stats.distribution import FitResult, ks_uniform, randomised_pit
from specmatrix.reports.stats.paired import detectable_drop, mcnemar, paired_difference
from specmatrix.reports.stats.proportions import (
    difference_interval,
    normal_quantile,
    two_rate_test,
    wilson,
    zero_count_bound,
)

__all__ = [
    "FitResult",
    "RatioChange",
    "benjamini_hochberg",
    "detectable_drop",
    "difference_interval",
    "fisher_exact",
    "fisher_log",
    "ks_uniform",
    "mcnemar",
    "normal_quantile",
    "paired_difference",
    "randomised_pit",
    "ratio_change",
    "sign_test",
    "two_rate_test",
    "wilson",
    "zero_count_bound",
]
