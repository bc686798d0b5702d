"""A plug-in's gate: what it raises fails the cell, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from traceback import extract_tb
from typing import TypeVar

from specmatrix.errors import described, is_interrupt
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Gate, Outcome, State
from specmatrix.matrix.subjects.protocol import Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell

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
