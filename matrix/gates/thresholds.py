"""The limits of the gates, and of a run's false alarms."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

# By stage: the allowed false-positive rate of a run on a defect-free engine, over all tests of all its cells.
# `reports.summary` states the share of a run, and a test holds that the locked cells keep to it.
FALSE_ALARMS: Final = {"smoke": 0.01, "pr": 0.01, "nightly": 0.05}
_TABLE: Final = msgspec.yaml.decode(
    Path(__file__).with_suffix(".yaml").read_bytes(), type=dict[str, dict[str, int | float]]
)


def thresholds(gate: str) -> dict[str, float]:
    """The limits that a gate applies, by name, from thresholds.yaml."""
    return dict(_TABLE[gate])
