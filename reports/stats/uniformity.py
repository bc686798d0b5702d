"""Tests whether samples follow the distribution that they should be drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from specmatrix.reports.stats.proportions import check_count

# Comparing reports does not load numpy.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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


def ks_uniform(values: npt.NDArray[np.float64]) -> FitResult:
    """Kolmogorov-Smirnov test that `values` are uniform on [0, 1]. ValueError below 5 values or outside [0, 1].

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
    return FitResult(statistic, min(1.0, 2 * float(smirnov(len(values), statistic))))
