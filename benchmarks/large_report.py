"""Large reports for timing: the records of the baseline of stage pr, repeated for other cells of the same starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain, count, islice
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from specmatrix import HOME
from specmatrix.matrix.cells.axes import START_AXES
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import repro
from specmatrix.matrix.cover.selection import all_cells
from specmatrix.reports.schema import CellResult, GateResult, Json
from specmatrix.reports.store import ReportWriter, load

BASELINE: Final = HOME / "reports" / "baselines" / "cpu-pr.jsonl.gz"

StartKey = tuple[str, ...]


class Change(NamedTuple):
    """What differs in a head report: the acceptance length of this share of the cells, or with `version` the spec
    version that their starts resolved to."""

    share: float = 0.0
    version: str | None = None


def write(directory: Path, cells: int, seconds: float, change: Change = Change()) -> None:
    """Write a report of `cells` passing cells, grouped by start; `seconds` varies their durations."""
    report = load(BASELINE)
    records = {start_key(Cell.from_id(record.id)): record for record in report if record.state == "PASS"}
    differing = 0
    with ReportWriter(directory, report.header) as writer:
        for number, cell in enumerate(cells_of(frozenset(records), cells)):
            record = numbered(records[start_key(cell)], cell, number)
            if differing < change.share * (number + 1):
                before, record = record, changed(record, change.version)
                differing += record != before
            writer.write(replace(record, seconds=seconds + number / cells))


def start_key(cell: Cell) -> StartKey:
    """The axes of the engine start that a cell runs on."""
    return tuple(cell[: len(START_AXES)])


@lru_cache(maxsize=1)
def cells_of(starts: frozenset[StartKey], total: int) -> list[Cell]:
    """`total` cells of these starts, grouped by start and as evenly as each has enough. ValueError if they have
    fewer."""
    prefixes = {start[:end] for start in starts for end in range(1, len(START_AXES) + 1)}
    groups: defaultdict[StartKey, list[Cell]] = defaultdict(list)
    for cell in all_cells(prefixes.__contains__):
        groups[start_key(cell)].append(cell)
    available = sum(map(len, groups.values()))
    if available < total:
        raise ValueError(f"cells must be at most {available}, the cells of these starts, got {total}")
    share = next(share for share in count(1) if sum(min(share, len(group)) for group in groups.values()) >= total)
    return list(islice(chain.from_iterable(group[:share] for group in groups.values()), total))


def numbered(record: CellResult, cell: Cell, number: int) -> CellResult:
    """The record for another cell, with numbers that no other cell has in some gates and counters."""
    own: dict[str, dict[str, Json]] = {"ledger": {"stamps": number}, "lossless": {"tokens": 62 + number}}
    gates = tuple(with_numbers(gate, own.get(gate.name, {})) for gate in record.gates)
    evidence = {name: value + number % 97 for name, value in record.evidence.items()}
    identity = {"id": cell.id, "axes": cell.values, "repro": repro(cell.id, "cpu", 0)}
    return replace(record, **identity, gates=gates, evidence=evidence)


def changed(record: CellResult, version: str | None) -> CellResult:
    """The record with another acceptance length, or of a start that resolved to `version`."""
    if version is None:
        return replace(record, gates=tuple(shortened(gate) for gate in record.gates))
    resolved = {**(record.start.resolved or {}), "spec_version": version}
    if resolved == record.start.resolved:
        return record
    return replace(record, start=replace(record.start, resolved=resolved, resolved_hash="0" * 12))


def shortened(gate: GateResult) -> GateResult:
    """The gate `acceptance` with 0.7 % fewer tokens a round; any other as it is."""
    length = gate.numbers.get("length")
    return with_numbers(gate, {"length": 0.993 * length}) if isinstance(length, float) else gate


def with_numbers(gate: GateResult, numbers: Mapping[str, Json]) -> GateResult:
    return replace(gate, numbers={**gate.numbers, **numbers})
