"""Checks a comparison, and the evidence of a promoted default, against the expected results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from msgspec.structs import replace

from specmatrix.reports.compare import CellChange, ChangeState, Comparison
from specmatrix.reports.compare.cell_state import LostPairs, RewriteChange
from specmatrix.reports.schema import CellResult, GateResult
from specmatrix.reports.wording import count
from tools.incidents.incident import Expected, Shortfall


def differences(expected: Expected, found: Comparison) -> Iterator[str]:
    """How a comparison differs from the expected one, a sentence for each difference."""
    factor = " x ".join(found.factors[0].conditions[0]) if found.factors else ""
    for what, word, said in (("verdict", expected.verdict, found.verdict), ("factor", expected.factor, factor)):
        if word != said:
            yield f"the {what} is {said or 'missing'}, expected {word or 'none'}"
    cells = {change.id: cell_text(change) for change in found.changes if change.state is not ChangeState.SAME}
    rewrites = {_known(f"{row.status} {row.signature}", expected.rewrites): _accepted(row) for row in found.rewrites}
    for wanted, got in ((expected.cells, cells), (expected.rewrites, rewrites)):
        for name in sorted(wanted.keys() | got.keys()):
            if wanted.get(name) != got.get(name):
                yield f"{name} is {got.get(name, 'unchanged')}, expected {wanted.get(name, 'no change')}"
    left = {f"{row.axis}={row.value} x {axis}={value}" for row in found.left for axis, value in row.values}
    for where, pairs, there in (
        ("the lost pairs", expected.lost_pairs, _pairs(found.coverage.lost)),
        ("the gained pairs", expected.gained_pairs, _pairs(found.coverage.gained)),
        ("the pairs that no default reaches any longer", expected.by_default, left),
    ):
        yield from (f"{pair} is not among {where}" for pair in pairs if pair not in there)
    why = "\n".join(change.why for change in found.changes)
    yield from (f"no cell says {part!r}" for part in expected.says if part not in why)


def cell_text(change: CellChange) -> str:
    """`REGRESSED: lossless, ledger`, or the state alone where no gate turned red."""
    red = [gate.gate for gate in change.gates if gate.head != "PASS"]
    return f"{change.state}: {', '.join(red)}" if red else str(change.state)


def _known(signature: str, patterns: Iterable[str]) -> str:
    """The pattern that a signature matches, or itself."""
    return next((pattern for pattern in patterns if fnmatchcase(signature, pattern)), signature)


def _accepted(row: RewriteChange) -> str:
    if row.red:
        return "red"
    return "acknowledged" if row.excused else "declared" if row.status in ("new", "moved") else "noted"


def _pairs(rows: Sequence[LostPairs]) -> set[str]:
    return {" x ".join(f"{axis}={value}" for axis, value in pair) for row in rows for pair in row.pairs}


def refusals(required: Collection[str], evidence: Sequence[str], records: Iterable[CellResult]) -> tuple[str, ...]:
    """Why a default may not be promoted, a sentence for each reason; empty if it may.

    required: ids of all cells of the run, at least one, that must be whole. evidence: names of the gates that must pass
    in each.
    """
    found, names, total = {record.id: record for record in records}, sorted(required), count(len(required), "cell")
    absent = [cell for cell in names if cell not in found]
    verb = "is" if len(absent) == 1 else "are"
    reasons = [f"the run is partial: {len(absent)} of {total} {verb} missing, {_first(absent)}"] if absent else []
    for gate in evidence:
        cells: dict[str, list[str]] = {}
        for name in names:
            if name in found and (state := _state(found[name], gate)) != "PASS":
                cells.setdefault(state, []).append(name)
        reasons += [f"{gate} is {state} in {len(bad)} of {total}, {_first(bad)}" for state, bad in cells.items()]
    return tuple(reasons)


def without(records: Iterable[CellResult], lacks: Shortfall) -> list[CellResult]:
    """The records of a run without the shortfall."""
    if not lacks.gate:
        return [record for record in records if record.id != lacks.cell]
    unknown = (GateResult(lacks.gate, "NOT MEASURED"),) if lacks.what == "NOT MEASURED" else ()
    return [
        replace(record, gates=(*(each for each in record.gates if each.name != lacks.gate), *unknown))
        if record.id == lacks.cell
        else record
        for record in records
    ]


def _state(record: CellResult, gate: str) -> str:
    found = record.gate(gate)
    return "missing" if found is None else found.state


def _first(cells: Sequence[str]) -> str:
    return f"the first is {cells[0]}" if len(cells) > 1 else "".join(cells)
