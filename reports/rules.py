"""What a report must not say: a cell that contradicts itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specmatrix.reports.gate_numbers import FAULTS, LARGEST, check_numbers
from specmatrix.reports.schema import GATE_STATES, MAX_SAID, CellResult
from specmatrix.reports.wording import shorten


def check_cell(cell: CellResult) -> None:
    """ValueError if a cell's state and what explains it exclude each other, or if a gate passes although it found a
    fault, or has numbers of another kind than their readers expect."""
    if fault := next(_faults(cell), ""):
        raise ValueError(f"cell {shorten(cell.id, MAX_SAID)!r} {fault}")


def _faults(cell: CellResult) -> Iterator[str]:
    for gate in cell.gates:
        try:
            check_numbers(gate.name, gate.numbers)
        except ValueError as error:
            yield str(error)
        found = [name for name in FAULTS.get(gate.name, ()) if gate.numbers.get(name)]
        if gate.state == "PASS" and found:
            yield f"has a gate {gate.name} that is PASS and its {found[0]} is {gate.numbers[found[0]]!r:.60}"
        if gate.interval is not None and not -LARGEST <= gate.interval[0] <= gate.interval[1] <= LARGEST:
            yield f"has a gate {gate.name} whose interval does not rise, {gate.interval!r:.60}"
    if len({gate.name for gate in cell.gates}) < len(cell.gates):
        yield "has a gate twice"
    red: dict[str, str] = {gate.state: gate.name for gate in cell.gates if gate.state != "PASS"}
    if cell.state == "PASS":
        yield from _faults_of_a_pass(cell, red)
    elif "FAIL" in red and cell.state != "FAIL":
        yield f"is {cell.state} and its gate {red['FAIL']} is FAIL"
    elif not cell.error and cell.state not in red:
        yield f"is {cell.state} without an error" + f" or a gate that is {cell.state}" * (cell.state in GATE_STATES)


def _faults_of_a_pass(cell: CellResult, red: Mapping[str, str]) -> Iterator[str]:
    """How a cell that passes has an error or a red gate, or how its gates say different things of it."""
    if cell.error is not None:
        yield f"is PASS and has an error: {cell.error:.60}"
    for state, name in red.items():
        yield f"is PASS and its gate {name} is {state}"
    if not cell.gates:
        yield "is PASS without any gate"
    running = [gate.name for gate in cell.gates if gate.name != "config"]
    if cell.expect == "refused" and running:
        yield f"expects a refusal, and its gate {running[0]} judged a run"
