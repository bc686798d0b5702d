"""The gate protocol and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.run.prepared_cell import PreparedCell
from specmatrix.matrix.subjects.protocol import Capability, Run

Number = float | int | str | bool | list[float] | None


class State(StrEnum):
    """NOT MEASURED is red: missing evidence never passes."""

    PASS = "PASS"
    FAIL = "FAIL"
    NOT_MEASURED = "NOT MEASURED"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one gate says of one cell. `message` is one sentence where it does not pass."""

    gate: str
    state: State
    numbers: Mapping[str, Number] = field(default_factory=dict)
    interval: tuple[float, float] | None = None
    message: str = ""


class Gate(Protocol):
    """Judges a cell's run, paired with the same workload on plain decoding (`PreparedCell.baseline`).

    needs: what a subject must show of itself, else NOT MEASURED. thresholds: what numbers are held against, by name.
    """

    name: str
    needs: frozenset[Capability]
    thresholds: Mapping[str, float]

    def applies(self, cell: Cell) -> bool:
        """Whether the gate judges such cells at all."""
        ...

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """The verdict on what the cell's requests did, beside the same requests without a drafter."""
        ...
