"""Intervals and tests behind the gates and the comparison; every function names the source of its formula.

- `proportions`: one rate, two independent rates, and what a sample of a given size can see
- `paired`: outcomes on the same questions (McNemar, difference interval, sequential test)
- `bootstrap`: ratios of sums over prompts (acceptance length)
- `distribution`: samples against a known distribution
- `association`: over-representation, signs, and many tests at once
"""

from reports.stats.association import benjamini_hochberg, fisher_exact, fisher_log, sign_test
from reports.stats.bootstrap import RatioChange, ratio_change, ratio_interval
from reports.stats.distribution import FitResult, chi_square, ks_uniform, randomised_pit
from reports.stats.paired import mcnemar, paired_difference, sequential_mcnemar
from reports.stats.proportions import (
    difference_interval,
    minimum_detectable_drop,
    normal_quantile,
    questions_needed,
    two_rate_test,
    wilson,
    zero_count_bound,
)

__all__ = [
    "FitResult",
    "RatioChange",
    "benjamini_hochberg",
    "chi_square",
    "difference_interval",
    "fisher_exact",
    "fisher_log",
    "ks_uniform",
    "mcnemar",
    "minimum_detectable_drop",
    "normal_quantile",
    "paired_difference",
    "questions_needed",
    "randomised_pit",
    "ratio_change",
    "ratio_interval",
    "sequential_mcnemar",
    "sign_test",
    "two_rate_test",
    "wilson",
    "zero_count_bound",
]
