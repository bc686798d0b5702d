"""The gate protocol and its outcome.

A plug-in's gate: what it raises fails the cell, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from traceback import extract_tb
from typing import Any, Final, Protocol, TypeVar

import msgspec

from specmatrix.errors import described, is_interrupt
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.protocol import Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell

# By stage: the allowed false-positive rate of a run on a defect-free engine, over all tests of all its cells.
# `reports.summary` states the share of a run, and a test holds that the locked cells keep to it.
FALSE_ALARMS: Final = {"smoke": 0.01, "pr": 0.01, "nightly": 0.05}
_TABLE: Final = msgspec.yaml.decode(
    Path(__file__).with_name("thresholds.yaml").read_bytes(), type=dict[str, dict[str, int | float]]
)


def thresholds(gate: str) -> dict[str, float]:
    """The limits that a gate applies, by name, from thresholds.yaml."""
    return dict(_TABLE[gate])


Number = float | int | str | bool | list[Any] | None


class State(StrEnum):
    """NOT MEASURED is red: missing evidence never passes."""

    PASS = "PASS"
    FAIL = "FAIL"
    NOT_MEASURED = "NOT MEASURED"


# Fields of an outcome, their type, and the type in words.
HELD: Final = (
    ("gate", str, "a text"),
    ("state", State, "a state"),
    ("numbers", Mapping, "a mapping of names"),
    ("message", str, "a text"),
    ("accept", str, "a text"),
)


@dataclass(frozen=True, slots=True)
class Blame:
    """The request that a red outcome is about.

    token: index of its first wrong output token, None if its tokens are not at fault. got, expected: output tokens, if
    they are not those of the run and of the baseline. note: one sentence on what is wrong there.
    """

    request: str
    token: int | None = None
    got: tuple[int, ...] | None = None
    expected: tuple[int, ...] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One gate's result for one cell. `message` is one sentence, empty on PASS. blame: the first request at fault, None
    if the cell as a whole is. accept: the command that accepts the finding if it is intended; "" for none."""

    gate: str
    state: State
    numbers: Mapping[str, Number] = field(default_factory=dict)
    interval: tuple[float, float] | None = None
    message: str = ""
    blame: Blame | None = None
    accept: str = ""

    def __post_init__(self) -> None:
        """TypeError on a value that a report cannot hold."""
        for name, kind, allowed in HELD:
            if not isinstance(found := getattr(self, name), kind):
                raise TypeError(f"{name} of an outcome is {found!r}; allowed: {allowed}")


class Gate(Protocol):
    """Checks a cell's run against the same workload under plain decoding (`PreparedCell.baseline`).

    needs: capabilities that the subject must have, else NOT MEASURED. thresholds: limits by name.
    """

    name: str
    needs: frozenset[Capability]
    thresholds: Mapping[str, float]

    def applies(self, cell: Cell) -> bool:
        """Whether the gate checks this cell; by default every cell."""
        return True

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """Compare the cell's run with the same requests decoded without a drafter."""
        ...


@dataclass
class PackageGate(Gate):
    """A gate of this package; its thresholds are those of thresholds.yaml under its name, unless it is given others."""

    name: str = ""
    needs: frozenset[Capability] = frozenset()
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.thresholds = self.thresholds or thresholds(self.name)

    def not_measured(self, why: str, numbers: Mapping[str, Number] | None = None, accept: str = "") -> Outcome:
        """The outcome without evidence."""
        return Outcome(self.name, State.NOT_MEASURED, numbers or {}, message=why, accept=accept)

    def verdict(
        self, numbers: Mapping[str, Number], fault: str = "", missing: str = "", blame: Blame | None = None
    ) -> Outcome:
        """FAIL with a fault, else NOT MEASURED with evidence that is missing, else PASS."""
        if missing and not fault:
            return self.not_measured(missing, numbers)
        return Outcome(self.name, State.FAIL if fault else State.PASS, numbers, message=fault, blame=blame)


T = TypeVar("T")


class OwnGate:
    """Wraps a plug-in's gate and catches its exceptions."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.name = gate, gate.name
        self.needs: frozenset[Capability] = gate.needs
        self.thresholds: Mapping[str, float] = gate.thresholds

    def applies(self, cell: Cell) -> bool:
        """Whether the gate applies; also true if it raises, which `judge` then reports."""
        return self._outcome(lambda: self.gate.applies(cell)) is not False

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """The gate's outcome, or FAIL with what it raised or returned instead."""
        applies = self._outcome(lambda: self.gate.applies(prepared.cell))
        found = (
            applies if isinstance(applies, Outcome) else self._outcome(lambda: self.gate.judge(prepared, run, baseline))
        )
        if isinstance(found, Outcome) and found.gate == self.name:
            return found
        return Outcome(
            self.name, State.FAIL, message=f"the gate must return an Outcome under its name, got {found!r:.80}"
        )

    def _outcome(self, call: Callable[[], T]) -> T | Outcome:
        try:
            return call()
        except Exception as error:  # a user's own code
            if is_interrupt(error):
                raise
            last = extract_tb(error.__traceback__)[-1]
            text = f"the gate raised {described(error)} ({last.filename}, line {last.lineno})"
            return Outcome(self.name, State.FAIL, message=text)
