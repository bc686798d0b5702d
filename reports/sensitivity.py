"""Minimum detectable effects of passing gates, as fractions, and a run's false alarms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from specmatrix.reports.gate_numbers import NUMBERS
from specmatrix.reports.lengths import number, positives
from specmatrix.reports.schema import CellResult, GateResult, Header, Json
from specmatrix.reports.stats import NORMAL, POWER, Z95, detectable_drop, zero_count_bound

# A defect that hits compared items at random at the stated rate would have hit one in 95 % of runs.
UNITS: Final = {gate: row.unit for gate, row in NUMBERS.items() if row.unit} | {"acceptance": "lost draft token"}
# For each threshold that is a false-alarm probability, the number of tests that its gate makes per cell.
_TESTS: Final[Mapping[str, Mapping[str, int]]] = {
    "distribution": {"alpha": 2, "joint_alpha": 1},
    "rejection": {"alpha": 1},
    "accuracy": {"alpha": 2, "collapse": 1},
}


def smallest_effect(gate: GateResult, thresholds: Mapping[str, float]) -> float | None:
    """Minimum detectable effect; None if deterministic.

    thresholds: of the gate.
    """
    if gate.state != "PASS":
        return None
    if gate.name == "accuracy":
        return _drop(gate.numbers, thresholds)
    if gate.name == "distribution":
        return _shift(gate.numbers, thresholds)
    if gate.name == "acceptance":
        return _lost_rounds(gate, thresholds)
    name = NUMBERS[gate.name].compared if gate.name in NUMBERS else ""
    # Equality of answers whose drafts were all accepted, or all rejected, proves little about the drafts.
    proving = gate.numbers.get("proving") if gate.name == "lossless" else None
    return _share(gate.numbers.get(name) if proving is None else proving)


def typical(cells: Sequence[CellResult], thresholds: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The median cell's minimum detectable effect, by gate."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        for gate in cell.gates:
            effect = smallest_effect(gate, thresholds.get(gate.name, {}))
            if effect is not None:
                found.setdefault(gate.name, []).append(effect)
    return {gate: median_low(effects) for gate, effects in found.items()}


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """tests: number of the run's tests that a defect-free engine fails with a known probability. at_most: upper bound
    of the probability that it fails any of them (union bound)."""

    tests: int
    at_most: float


def false_alarms(gates: Mapping[str, int], header: Header) -> FalseAlarms:
    """gates: number of cells that each gate judged."""
    spent = [
        (cells * tests, header.thresholds.get(gate, {}).get(name))
        for gate, cells in gates.items()
        for name, tests in _TESTS.get(gate, {}).items()
    ]
    at_most = sum(tests * rate for tests, rate in spent if isinstance(rate, int | float))
    return FalseAlarms(sum(tests for tests, _ in spent), min(1.0, at_most))


def _share(value: Json) -> float | None:
    found = number(value) or 0.0
    return None if found < 1 else zero_count_bound(int(found))


def _lost_rounds(gate: GateResult, thresholds: Mapping[str, float]) -> float | None:
    """Rounds that are compared one by one, or a loss that leaves the allowed band."""
    rounds = gate.numbers.get("rounds")
    if "left" in gate.numbers:
        return _share(sum(positives(rounds)) if isinstance(rounds, list) else rounds)
    if gate.interval is None or "low" not in thresholds:
        return None
    error = (gate.interval[1] - gate.interval[0]) / (2 * Z95)
    # The interval's low end must not be below the band.
    return max(0.0, 1 - thresholds["low"] - (Z95 - NORMAL.inv_cdf(POWER)) * error)


def _drop(numbers: Mapping[str, Json], thresholds: Mapping[str, float]) -> float | None:
    baseline, won, n = number(numbers.get("baseline"), 1), number(numbers.get("won")), number(numbers.get("n"))
    if baseline is None or won is None or not n or baseline * n + won > n or "alpha" not in thresholds:
        return None
    return detectable_drop(round(baseline * n), int(won), int(n), thresholds["alpha"], POWER)


def _shift(numbers: Mapping[str, Json], thresholds: Mapping[str, float]) -> float | None:
    """The largest distance of two cumulative distributions, by the one-term bound of the Kolmogorov-Smirnov test."""
    draws = number(numbers.get("draws")) or 0.0
    if draws < 1 or "alpha" not in thresholds:
        return None
    critical = math.sqrt(math.log(2 / thresholds["alpha"]) / (2 * draws))
    return critical + NORMAL.inv_cdf(POWER) / (2 * math.sqrt(draws))
