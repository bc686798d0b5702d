"""What a gate that passes would have shown, and what its tests cost in false alarms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final, NamedTuple

from specmatrix.reports.schema import CellResult, GateResult, Header, Json, Number
from specmatrix.reports.stats import NORMAL, Z95, detectable_drop, zero_count_bound
from specmatrix.reports.wording import count

# The share of runs with an effect of the stated size that are red.
POWER: Final = 0.8
# What is compared exactly: a gate's number of those things, and its noun. A defect that strikes them at random with the
# stated share would have struck one of them in 95 % of runs.
_COMPARED: Final[Mapping[str, tuple[str, str]]] = {
    "lossless": ("tokens", "token"),
    "precision": ("tokens", "token"),
    "oracle": ("oracle_tokens", "token"),
    "finish": ("requests", "request"),
    "identities": ("rounds", "round"),
    "text": ("characters", "character"),
    "ledger": ("stamps", "KV position"),
    "work": ("steps", "step"),
    "resources": ("rounds", "round"),
    "ranks": ("planned", "step"),
    "session": ("sessions", "session"),
    "adaptive": ("observations", "round"),
}
# How many tests a gate makes of a cell by each threshold that is the probability of a false alarm.
_TESTS: Final[Mapping[str, Mapping[str, int]]] = {
    "distribution": {"alpha": 2},
    "accuracy": {"alpha": 2, "collapse": 1},
}


class SmallestEffect(NamedTuple):
    """size: a fraction. text: in words, such as `a defect in 0.56 % of 537 tokens`."""

    size: float
    text: str


def smallest_effect(gate: GateResult, thresholds: Mapping[str, float]) -> SmallestEffect | None:
    """The smallest effect that a passing gate would have shown; None if nothing of it is a sample.

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
    name, noun = _COMPARED.get(gate.name, ("", ""))
    # Equality of answers whose drafts were all accepted, or all rejected, proves little of them.
    proving = gate.numbers.get("proving") if gate.name == "lossless" else None
    return _share(gate.numbers.get(name) if proving is None else proving, noun)


def typical(cells: Sequence[CellResult], thresholds: Mapping[str, Mapping[str, float]]) -> dict[str, SmallestEffect]:
    """By gate, the smallest effect of the median cell."""
    found: dict[str, list[SmallestEffect]] = {}
    for cell in cells:
        for gate in cell.gates:
            effect = smallest_effect(gate, thresholds.get(gate.name, {}))
            if effect is not None:
                found.setdefault(gate.name, []).append(effect)
    return {gate: median_low(effects) for gate, effects in found.items()}


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """tests: of the run's gates that an engine without a defect fails with a known probability. at_most: that it fails
    any of them (union bound)."""

    tests: int
    at_most: float

    @property
    def message(self) -> str:
        """`56 tests of random outcomes: at most 1.1 % of runs without a defect are red by chance`."""
        if not self.tests:
            return "no gate of this run tests a random outcome"
        rate = f"{100 * self.at_most:.2g} %"
        return (
            f"{count(self.tests, 'test')} of random outcomes: at most {rate} of runs without a defect are red by chance"
        )

    def to_json(self) -> Json:
        """The form of `summary.json`."""
        return {"tests": self.tests, "at_most": self.at_most}


def false_alarms(gates: Mapping[str, int], header: Header) -> FalseAlarms:
    """gates: number of cells that each gate judged."""
    spent = [
        (cells * tests, header.thresholds.get(gate, {}).get(name))
        for gate, cells in gates.items()
        for name, tests in _TESTS.get(gate, {}).items()
    ]
    at_most = sum(tests * rate for tests, rate in spent if isinstance(rate, int | float))
    return FalseAlarms(sum(tests for tests, _ in spent), min(1.0, at_most))


def _share(number: Number | None, noun: str) -> SmallestEffect | None:
    if not isinstance(number, int | float) or number < 1:
        return None
    size = zero_count_bound(int(number))
    return SmallestEffect(size, f"a defect in {_percent(size)} of {count(int(number), noun)}")


def _lost_rounds(gate: GateResult, thresholds: Mapping[str, float]) -> SmallestEffect | None:
    """Rounds that are compared one by one, or a loss that leaves the allowed band."""
    rounds = gate.numbers.get("rounds")
    if "left" in gate.numbers:
        return _share(sum(rounds) if isinstance(rounds, list) else rounds, "round")
    if gate.interval is None or "low" not in thresholds:
        return None
    error = (gate.interval[1] - gate.interval[0]) / (2 * Z95)
    # The interval's low end must not be below the band.
    size = max(0.0, 1 - thresholds["low"] - (Z95 - NORMAL.inv_cdf(POWER)) * error)
    return SmallestEffect(size, f"a loss of {_percent(size)}")


def _drop(numbers: Mapping[str, Number], thresholds: Mapping[str, float]) -> SmallestEffect | None:
    baseline, won, n = numbers.get("baseline"), numbers.get("won"), numbers.get("n")
    if (
        not isinstance(baseline, float)
        or not isinstance(won, int)
        or not isinstance(n, int)
        or "alpha" not in thresholds
    ):
        return None
    size = detectable_drop(round(baseline * n), won, n, thresholds["alpha"], POWER)
    return (
        None if size is None else SmallestEffect(size, f"a drop of {100 * size:.2g} points of {count(n, 'question')}")
    )


def _shift(numbers: Mapping[str, Number], thresholds: Mapping[str, float]) -> SmallestEffect | None:
    """The largest distance of two cumulative distributions, by the one-term bound of the Kolmogorov-Smirnov test."""
    draws = numbers.get("draws")
    if not isinstance(draws, int) or draws < 1 or "alpha" not in thresholds:
        return None
    critical = math.sqrt(math.log(2 / thresholds["alpha"]) / (2 * draws))
    size = critical + NORMAL.inv_cdf(POWER) / (2 * math.sqrt(draws))
    return SmallestEffect(size, f"a shift of {_percent(size)} of the probability in {count(draws, 'draw')}")


def _percent(size: float) -> str:
    return f"{100 * size:.2g} %"
