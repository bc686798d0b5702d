"""What a report must not say: a cell that contradicts itself or the rules of its run, which the header states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from specmatrix.errors import ConfigError, text_of
from specmatrix.reports.gate_numbers import FAULTS, LARGEST, LIMITS, check_numbers
from specmatrix.reports.schema import GATE_STATES, MAX_SAID, CellResult, Header, Waiver
from specmatrix.reports.selector import recorded
from specmatrix.reports.wording import shorten


def check_cell(cell: CellResult, header: Header | None = None) -> None:
    """ValueError if a cell's state and what explains it exclude each other, or if a gate passes although it found a
    fault, or has numbers of another kind than their readers expect. With the header of its run also if it has a waiver
    that the run did not declare for it, which would take its red in silence, or a gate that passes beyond its
    threshold."""
    faults = chain(_faults(cell), () if header is None else _broken_rules(header, cell))
    if fault := next(faults, ""):
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
    numbers = {gate.name: gate.numbers for gate in cell.gates}
    if not numbers:
        yield "is PASS without any gate"
    running = [name for name in numbers if name != "config"]
    if cell.expect == "refused" and running:
        yield f"expects a refusal, and its gate {running[0]} judged a run"
    ties, requests = numbers.get("lossless", {}).get("ties", 0), numbers.get("finish", {}).get("requests", LARGEST)
    if ties > requests:
        yield f"has {ties} ties in {requests} requests, each of which has one at most"


def _broken_rules(header: Header, cell: CellResult) -> Iterator[str]:
    """A waiver that the header does not declare, and numbers of passing gates beyond its thresholds for them."""
    if cell.waived is not None and (fault := _undeclared(header, cell, cell.waived)):
        yield fault
    exact = (cell.resolved or {}).get("dtype") == "float32"
    for gate in cell.gates:
        limits = header.thresholds.get(gate.name, {})
        for row in LIMITS.get(gate.name, ()) if gate.state == "PASS" else ():
            number, limit = gate.numbers.get(row.number), limits.get(row.threshold)
            if number is None or not isinstance(limit, int | float) or (row.exact and not exact):
                continue
            if number < limit if row.least else number > limit:
                most = "least" if row.least else "most"
                yield f"passes {gate.name} with {row.number} {number:.4g}, and the header allows {limit:g} at {most}"


def _undeclared(header: Header, cell: CellResult, waiver: Waiver) -> str:
    rules = [rule for rule in header.waivers if (rule.reason, rule.expiry) == (waiver.reason, waiver.expiry)]
    rules = [rule for rule in rules if waiver.issue in ("", rule.issue)]
    if not rules:
        return f"is waived until {waiver.expiry} for a reason that no waiver of the header gives"
    try:
        if any(recorded(rule.cells)(cell.id, cell.axes) for rule in rules):
            return ""
    except ConfigError as error:
        return f"is waived by a rule that cannot be read: {text_of(error)}"
    return f"is waived until {waiver.expiry} by a waiver of the header that selects other cells, {rules[0].cells:.60}"
