"""A threshold is data: its value, and where the value comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Threshold(NamedTuple):
    """One number that a gate compares with; `source` says why this one."""

    value: float
    source: str


def values(thresholds: Mapping[str, Threshold]) -> dict[str, float]:
    """Names to numbers, as `Gate.thresholds` holds them."""
    return {name: threshold.value for name, threshold in thresholds.items()}
