"""Whether the evidence of a default is green: every required gate, in every cell of a complete run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from specmatrix.reports.schema import CellResult, GateResult
from specmatrix.reports.wording import count

ABSENT: Final = "missing"


class Shortfall(NamedTuple):
    """What a report lacks: the result of a gate in a cell, or with gate "" the cell. what: "missing" (the gate did not
    run) or "NOT MEASURED"."""

    cell: str
    gate: str = ""
    what: Literal["missing", "NOT MEASURED"] = "missing"

    @property
    def text(self) -> str:
        return f"if {self.gate and self.gate + ' of '}{self.cell} were {self.what}"


def refusals(required: Collection[str], evidence: Sequence[str], records: Iterable[CellResult]) -> tuple[str, ...]:
    """Why a default may not be promoted, a sentence for each reason; empty if it may.

    required: ids of all cells of the run that must be whole. evidence: names of the gates that must pass in each.
    """
    if not required:
        return ("no cell is required, so nothing would prove it",)
    if not evidence:
        return ("the default names no gate as its evidence",)
    found = {record.id: record for record in records}
    names = sorted(required)
    absent = [cell for cell in names if cell not in found]
    verb = "is" if len(absent) == 1 else "are"
    which = f"{len(absent)} of {count(len(required), 'cell')} {verb} missing, {_first(absent)}"
    reasons = [f"the run is partial: {which}"] if absent else []
    for gate in evidence:
        cells: dict[str, list[str]] = {}
        for name in names:
            if name in found and (state := _state(found[name], gate)) != "PASS":
                cells.setdefault(state, []).append(name)
        reasons += [
            f"{gate} is {state} in {len(bad)} of {count(len(required), 'cell')}, {_first(bad)}"
            for state, bad in cells.items()
        ]
    return tuple(reasons)


def without(records: Iterable[CellResult], shortfall: Shortfall) -> list[CellResult]:
    """The records of a run that lacks something."""
    cell, gate, what = shortfall
    if not gate:
        return [record for record in records if record.id != cell]
    return [_lacking(record, gate, what) if record.id == cell else record for record in records]


def _lacking(record: CellResult, gate: str, what: str) -> CellResult:
    if what == ABSENT:
        return replace(record, gates=tuple(each for each in record.gates if each.name != gate))
    unknown = GateResult(gate, "NOT MEASURED", message="nothing was measured")
    gates = tuple(unknown if each.name == gate else each for each in record.gates)
    return replace(record, state="NOT MEASURED", gates=gates)


def _state(record: CellResult, gate: str) -> str:
    """The state of a gate in a cell, or "missing" if the cell has no result for it."""
    found = record.gate(gate)
    return ABSENT if found is None else found.state


def _first(cells: Sequence[str]) -> str:
    return f"the first is {cells[0]}" if len(cells) > 1 else "".join(cells)
