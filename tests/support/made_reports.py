"""A small made-up report on disk, for tests of commands that read some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from specmatrix.reports.schema import CellRecord, GateResult, Header, StartRecord
from specmatrix.reports.store import ReportWriter


def made_header(**changes: object) -> Header:
    whole: dict[str, object] = {
        "tier": "cpu",
        "stage": "pr",
        "seed": 0,
        "created": "2026-09-01T00:00:00+00:00",
        "commit": "a" * 40,
        "dirty": False,
        "versions": {"python": "3.11"},
        "host": {"cpu": "x", "cores": 2, "gpus": []},
        "lock_hash": "l",
        "data_hash": "d",
        "zoo_hash": "z",
    }
    return Header(**(whole | changes))


def write_report(
    folder: Path, cells: Mapping[str, Mapping[str, str]], red: Sequence[str] = (), length: float = 3.0, **header: object
) -> Path:
    """Cells by their axes' values; gate lossless fails in those that are red."""
    with ReportWriter(folder, made_header(**header)) as writer:
        for cell, axes in cells.items():
            state = "FAIL" if cell in red else "PASS"
            lossless = GateResult("lossless", state, message="3 tokens differ" * (cell in red))
            gates = (GateResult("acceptance", "PASS", {"length": length}), lossless)
            writer.write(CellRecord(cell, state, StartRecord({}), axes, "x", gates, {}))
    return folder
