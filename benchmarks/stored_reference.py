"""The rule of TensorRT-LLM beside the gates: an acceptance length below 95 % of a stored reference fails.

The rule gets the best reference that it can have: the length of the same cell and prompts without the fault. It is at
least `FLOOR`, as TensorRT-LLM's references of weak drafters are, whose 95 % would lie below a draft that is never
accepted. Both judge every fault of the CPU tier that the gate `acceptance` is expected to see, on its first cell.
"""

from __future__ import annotations

from typing import Final

from specmatrix.benchmarks.metric import Metric, unmeasured
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.faults.fault import Fault
from specmatrix.matrix.faults.loader import catalogue
from specmatrix.matrix.faults.plant import trial
from specmatrix.reports.schema import REFERENCE, CellResult

SHARE: Final = 0.95
FLOOR: Final = 1.001
GATE: Final = "acceptance"
OURS, THEIRS = "found_by_the_gates", "found_by_the_stored_reference"


def measure() -> list[Metric]:
    """For each fault its acceptance length over the reference, and as the note both verdicts; then how many of all
    faults each finds."""
    locked = stage_cells("pr")
    faults = [fault for fault in catalogue() if GATE in fault.expected and fault.runs_on("cpu")]
    faults = [fault for fault in faults if fault.subject == REFERENCE]
    cells = {fault.id: fault.chosen(locked)[0] for fault in faults}
    plain = records(None, sorted(set(cells.values())))
    rows = [row(fault, plain[cell.id], records(fault, [cell]).get(cell.id)) for fault, cell in zip(
        faults, cells.values(), strict=True
    )]  # fmt: skip
    totals = [
        Metric(name, float(sum(says in metric.note for metric in rows)), None, None, None, len(rows))
        for name, says in ((THEIRS, "stored reference: fails"), (OURS, "gates: fail"))
    ]
    return [*rows, *totals]


def records(fault: Fault | None, cells: list[Cell]) -> dict[str, CellResult]:
    """The records of cells by id, in a process of their own."""
    found = trial(None if fault is None else fault.patch, cells)
    return {verdict.cell: verdict.record for verdict in found.verdicts if verdict.record is not None}


def row(fault: Fault, base: CellResult, head: CellResult | None) -> Metric:
    """Both verdicts on a fault. head: None if its process ended without a record."""
    if head is None:
        return unmeasured(fault.id, None, f"{base.id}; the process died")
    before, after = length(base), length(head)
    red = ", ".join(gate.name for gate in head.gates if gate.state != "PASS") or ("crash" if head.error else "")
    ours = f"gates: fail ({red})" if red else "gates: pass"
    if before is None or after is None:
        return unmeasured(fault.id, None, f"{base.id}; stored reference: no length; {ours}")
    fails = after < max(FLOOR, SHARE * before)
    said = f"stored reference: {'fails' if fails else 'passes'} ({before:.3f} to {after:.3f})"
    return Metric(fault.id, after / before, None, None, None, 1, note=f"{base.id}; {said}; {ours}")


def length(record: CellResult) -> float | None:
    """The cell's tokens per verify round; None if it was not measured."""
    gate = record.gate(GATE)
    value = None if gate is None else gate.numbers.get("length")
    return float(value) if isinstance(value, int | float) else None
