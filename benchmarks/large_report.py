"""Large reports of passing cells with realistic records: the starts of stage nightly, each with additional
workloads."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.observe.counters import COUNTERS
from specmatrix.matrix.cells.axes import START_AXES
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.cells.selection import all_cells, of_gpus
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.run.prepared_cell import prepare
from specmatrix.matrix.run.record import judged
from specmatrix.matrix.run.tiers import repro
from specmatrix.reports.schema import (
    CellRecord,
    CellResult,
    GateResult,
    Header,
    Json,
    ReasonRecord,
    RewriteRecord,
    StartRecord,
)
from specmatrix.reports.store import ReportWriter

# About a third of the counters are hit in a cell.
HIT: Final = 3
NUMBERS: Final[dict[str, dict[str, Json]]] = {
    "config": {"fields": 22, "rewrites": 0},
    "effective": {"keys": 24, "differences": 0, "required": 27, "unseen": 0},
    "ledger": {"pages": 12288, "leaked": 0, "stamps": 7257, "wrong_stamps": 0, "verbs": 308, "shared": 0},
    "lossless": {
        "tokens": 62, "divergent": 0, "ties": 0, "tied_at": "", "first_divergence": "", "scored": 0, "score_nats": 0.0,
        "oracle_tokens": 62, "oracle_nats": 1.3027305603152683e-06,
    },
    "finish": {"requests": 1, "faults": 0, "stop": 1},
    "acceptance": {"length": 1.6944444444444444, "rounds": 36, "left": 0},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """The change in a head report: the acceptance lengths of this share of the cells.

    version: instead, starts with that share of the cells resolve to this spec version.
    """

    share: float = 0.0
    version: str | None = None


def write(directory: Path, cells: int, seconds: float, change: Change | None = None) -> None:
    """Write a report of `cells` passing cells to `directory`, grouped by start; `seconds` varies their durations."""
    header = Header(
        tier="cpu", stage="nightly", seed=0, created="2026-09-01T10:00:00+00:00", commit="0" * 12, dirty=False,
        versions={"python": "3.11"}, host={"cpu": "x", "gpus": []}, lock_hash="lock", data_hash="data", zoo_hash="zoo",
    )  # fmt: skip
    change = change or Change()
    number = moved = 0
    with ReportWriter(directory, header) as writer:
        for row in starts(cells):
            start = _start(row[0])
            resolved = dict(start.resolved or {})
            moves = change.version not in (None, resolved["spec_version"]) and moved < change.share * (number + 1)
            if moves:
                moved_to = resolved | {"spec_version": change.version}
                start = replace(start, resolved=moved_to, resolved_hash="0" * 12)
            for cell in row:
                differs = moves or (change.version is None and moved < change.share * (number + 1))
                line = _record(start, cell, number, 1.6875 if differs else 1.6944444444444444)
                writer.write(replace(line, seconds=seconds + number / cells))
                number, moved = number + 1, moved + differs


@lru_cache(maxsize=1)
def starts(cells: int) -> list[list[Cell]]:
    """`cells` cells, spread evenly over the starts of stage nightly as far as each has enough.

    ValueError if they have fewer in total.
    """
    split = len(START_AXES)
    known = [cell for cell in of_gpus(stage_cells("nightly"), 0) if expect(cell) != "refused"]
    prefixes = {tuple(cell[:end]) for cell in known for end in range(1, split + 1)}
    rows: defaultdict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for cell in all_cells(prefixes.__contains__):
        rows[cell[:split]].append(cell)
    sizes = [len(row) for row in rows.values()]
    if sum(sizes) < cells:
        raise ValueError(f"cells must be at most {sum(sizes)}, the cells of stage nightly's starts, got {cells}")
    most = next(most for most in count(1) if sum(min(most, size) for size in sizes) >= cells)
    spare = cells - sum(min(most - 1, size) for size in sizes)
    taken: list[list[Cell]] = []
    for row in rows.values():
        more = min(spare, len(row) >= most)
        wanted = min(most - 1, len(row)) + more
        taken.append([row[i * len(row) // wanted] for i in range(wanted)])
        spare -= more
    return [row for row in taken if row]


def _start(cell: Cell) -> StartRecord:
    """The engine start of a cell."""
    prepared = prepare(cell)
    resolved = resolve(prepared.configuration, prepared.facts)
    fields: dict[str, Any] = resolved.as_dict()
    reasons, rewrites = fields.pop("reasons"), fields.pop("rewrites")
    return StartRecord(
        judged(prepared, ()).start.requested,
        fields,
        resolved.start_hash(),
        tuple(ReasonRecord(**reason) for reason in reasons),
        tuple(RewriteRecord(**rewrite) for rewrite in rewrites),
    )


def _record(start: StartRecord, cell: Cell, number: int, length: float) -> CellResult:
    """A passing cell, with numbers that no other cell has in half of its gates and a third of its evidence."""
    own: dict[str, dict[str, Json]] = {
        "ledger": {"stamps": 7257 + number},
        "lossless": {"tokens": 62 + number},
        "acceptance": {"length": length, "rounds": 36 + number},
    }
    return CellRecord(
        id=cell.id,
        state="PASS",
        start=start,
        axes=cell.values,
        repro=repro(cell.id, "cpu", 0),
        gates=tuple(GateResult(name, "PASS", numbers | own.get(name, {})) for name, numbers in NUMBERS.items()),
        evidence={name: number + order for order, name in enumerate(COUNTERS) if order % HIT == 0},
    )
