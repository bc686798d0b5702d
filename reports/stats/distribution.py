"""Samples against a known distribution: is the engine's sampler the one that it claims?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmatrix.reports.stats.check import check_count, check_same_length

# numpy takes longer to import than most comparisons take, so it is imported where samples are judged.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class FitResult:
    """`p` is the chance of a statistic at least this large if the samples follow the distribution."""

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

    check_same_length(below=len(below), at=len(at), uniform=len(uniform))
    values = np.asarray(below, dtype=np.float64) + np.asarray(uniform) * np.asarray(at)
    if values.size and (values.min() < 0 or values.max() > 1 + 1e-6):
        raise ValueError(f"values reach from {values.min():.6g} to {values.max():.6g}, allowed is 0 to 1")
    # Sums of probabilities exceed 1 by rounding.
    clipped: npt.NDArray[np.float64] = np.minimum(values, 1.0)
    return clipped


def ks_uniform(values: Sequence[float] | npt.NDArray[np.float64]) -> FitResult:
    """Kolmogorov-Smirnov test that `values` are uniform on [0, 1].

    p from the limiting distribution with the small-sample correction of Stephens (1970, J. R. Stat. Soc. B 32:115).
    ValueError below 5 values or outside [0, 1].
    """
    import numpy as np
    from scipy.special import kolmogorov

    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n = ordered.size
    check_count("number of values", n, 5)
    if ordered[0] < 0 or ordered[-1] > 1:
        raise ValueError(f"values reach from {ordered[0]:.6g} to {ordered[-1]:.6g}, allowed is 0 to 1")
    steps = np.arange(n)
    distance = float(max((ordered - steps / n).max(), ((steps + 1) / n - ordered).max()))
    root = math.sqrt(n)
    return FitResult(distance, float(kolmogorov((root + 0.12 + 0.11 / root) * distance)))
