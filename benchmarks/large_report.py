"""Large reports for timing: the passing cells of the baseline of stage pr, repeated under other ids."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from specmatrix import HOME
from specmatrix.matrix.cells.tiers import repro
from specmatrix.reports.schema import CellResult, GateResult, Json
from specmatrix.reports.store import ReportWriter, load

BASELINE: Final = HOME / "reports" / "baselines" / "cpu-pr.jsonl.gz"


class Change(NamedTuple):
    """The difference of a head report: the acceptance length of this share of the cells, or with `version` the spec
    version that their starts resolved to."""

    share: float = 0.0
    version: str | None = None


def write(directory: Path, cells: int, seconds: float, change: Change = Change()) -> None:
    """Write a report of `cells` passing cells; `seconds` varies their durations."""
    report = load(BASELINE)
    records = cycle([record for record in report if record.state == "PASS"])
    differing = 0
    with ReportWriter(directory, report.header) as writer:
        for number in range(cells):
            record = numbered(next(records), number)
            if differing < change.share * (number + 1):
                before, record = record, changed(record, change.version)
                differing += record != before
            writer.write(replace(record, seconds=seconds + number / cells))


def numbered(record: CellResult, number: int) -> CellResult:
    """The record under a unique id, with unique numbers in some gates and counters."""
    own: dict[str, dict[str, Json]] = {"ledger": {"stamps": number}, "lossless": {"tokens": 62 + number}}
    gates = tuple(with_numbers(gate, own.get(gate.name, {})) for gate in record.gates)
    evidence = {name: value + number % 97 for name, value in record.evidence.items()}
    name = f"{record.id}#{number}"
    return replace(record, id=name, repro=repro(name, "cpu", 0), gates=gates, evidence=evidence)


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
