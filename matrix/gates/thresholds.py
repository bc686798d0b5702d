"""Thresholds, each with the reason for its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Threshold(NamedTuple):
    """One limit that a gate applies; `source` justifies the value."""

    value: float
    source: str


def values(thresholds: Mapping[str, Threshold]) -> dict[str, float]:
    """The values by name, in the form of `Gate.thresholds`."""
    return {name: threshold.value for name, threshold in thresholds.items()}
