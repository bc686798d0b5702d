"""The gate protocol and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.thresholds import thresholds
from specmatrix.matrix.subjects.protocol import Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell

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
