"""Whether a cell follows the rules of its run, which the header states."""

from __future__ import annotations

from typing import Any

from specmatrix.errors import ConfigError, text_of
from specmatrix.reports.gate_numbers import LIMITS
from specmatrix.reports.schema import CellRecord, GateResult, Header, StartRecord, Waiver
from specmatrix.reports.selector import recorded


def contradiction(header: Header, cell: CellRecord[Any], start: StartRecord) -> str:
    """How a cell contradicts the rules of its run, "" if it does not: a waiver that the run did not declare for it
    would take its red in silence, and a gate does not pass beyond its threshold."""
    if cell.waived is not None and (fault := _undeclared(header, cell, cell.waived)):
        return fault
    exact = (start.resolved or {}).get("dtype") == "float32"
    faults = (_beyond(header, gate, exact) for gate in cell.gates if gate.state == "PASS")
    return next(filter(None, faults), "")


def _undeclared(header: Header, cell: CellRecord[Any], waiver: Waiver) -> str:
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


def _beyond(header: Header, gate: GateResult, exact: bool) -> str:
    """The first number of a gate that is beyond the header's threshold for it."""
    limits = header.thresholds.get(gate.name, {})
    for row in LIMITS.get(gate.name, ()):
        number, limit = gate.numbers.get(row.number), limits.get(row.threshold)
        if number is None or not isinstance(limit, int | float) or (row.exact and not exact):
            continue
        if number < limit if row.least else number > limit:
            most = "least" if row.least else "most"
            return f"passes {gate.name} with {row.number} {number:.4g}, and the header allows {limit:g} at {most}"
    return ""
