"""Thresholds, each with the reason for its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

# By stage: the allowed false-positive rate of a run on a defect-free engine, over all tests of all its cells.
# `reports.sensitivity` states the share of a run, and a test holds that the locked cells keep to it.
FALSE_ALARMS: Final = {"smoke": 0.01, "pr": 0.01, "nightly": 0.05}


class Threshold(NamedTuple):
    """One limit that a gate applies; `source` justifies the value."""

    value: float
    source: str


def values(thresholds: Mapping[str, Threshold]) -> dict[str, float]:
    """The values by name, in the form of `Gate.thresholds`."""
    return {name: threshold.value for name, threshold in thresholds.items()}
