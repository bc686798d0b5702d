"""The reference of rotary."""

from torch import Tensor


def rotary(rows: Tensor, rotation: Tensor, heads: int) -> None:
    """One pair at a time, in float64."""
    pairs = rotation.shape[1]
    for m in range(len(rows)):
        for pair in range(heads * pairs):
            factor = complex(rotation[m, pair % pairs])
            value = complex(float(rows[m, 2 * pair]), float(rows[m, 2 * pair + 1])) * factor
            rows[m, 2 * pair], rows[m, 2 * pair + 1] = value.real, value.imag
