"""`specmatrix shrink`: the smallest cell, requests and tokens that stay red for the same gate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from specmatrix.ci.cell_runs import CellRuns, cell_runs
from specmatrix.ci.run_options import RunOptions
from specmatrix.ci.variants import NODES
from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cells.axes import AXES
from specmatrix.matrix.cells.cell import RANKS, Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.cells.tiers import check_parallel, check_seed, visible_gpus
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.cover.selection import chosen_cells, of_gpus
from specmatrix.matrix.gates.registry import gate_names
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.subset import Subset
from specmatrix.matrix.zoo.registry import verify_cells
from specmatrix.options import WORKERS
from specmatrix.reports.render.console import as_called
from specmatrix.reports.schema import RED_STATES, CellResult
from specmatrix.reports.wording import count, failure, shorten
from specmatrix.stopping import Stopped

STAGE: Final = "shrink"


@dataclass(slots=True)
class Shrunk:
    """The smallest red run so far. gate: the gate that must stay red, "" for an error of the same kind as the first
    run's.

    tried: number of runs.
    """

    runs: CellRuns
    cell: Cell
    record: CellResult
    gate: str
    only: Subset = field(default_factory=Subset)
    tried: int = 1

    @property
    def requests(self) -> tuple[RequestSpec, ...]:
        """The requests that run."""
        return self.only(self.cell, self.runs.job.options.seed)

    @property
    def why(self) -> str:
        """Why the smallest run is red, in a sentence."""
        found = self.record.gate(self.gate)
        return shorten(f"{self.gate}: {found.message or found.state}" if found else failure(self.record), 240)

    def holds(self, record: CellResult) -> bool:
        """Whether a run is red for the same reason."""
        if not self.gate:
            return record.state == self.record.state and _error(record) == _error(self.record)
        found, first = record.gate(self.gate), self.record.gate(self.gate)
        return found is not None and first is not None and found.state == first.state != "PASS"

    def red(self, cells: Sequence[Cell], only: Subset) -> Iterator[Cell]:
        """Yield the cells that `holds` with these requests, in order; a cell that ran alone becomes the smallest."""
        found = {record.id: record for record in self.runs(cells, only)}
        self.tried += len(found)
        for cell in cells:
            if self.holds(found[cell.id]):
                if len(cells) == 1:
                    self.cell, self.only, self.record = cell, only, found[cell.id]
                yield cell

    def takes(self, cell: Cell, only: Subset) -> bool:
        """Whether a smaller run holds; if so, it becomes the smallest."""
        return any(self.red([cell], only))


def shrink(
    cell: str,
    gate: str | None = None,
    tier: str = "cpu",
    workers: int = WORKERS,
    seed: int = 0,
    fault: str | None = None,
    plugin: list[Path] | None = None,
) -> int:
    """Print the smallest run of a red cell that is red for the same gate, and its command. ConfigError if the cell is
    not red for it, or on a bad option."""
    if gate is not None and gate not in (known := gate_names()):
        raise ConfigError(f"gate {shown(gate)} is unknown; it must be one of {', '.join(known)}")
    check_parallel("workers", workers)
    check_seed(seed)
    visible_gpus(tier)
    [red] = chosen_cells(tier, "nightly", [Cell.from_id(cell).id], None)
    verify_cells([red])
    with cell_runs(RunOptions(tier=tier, stage=STAGE, seed=seed, fault=fault, plugin=plugin), workers) as runs:
        [record] = runs([red])
        best = Shrunk(runs, red, record, _first_red(record, gate))
        print(f"{red.id}: {best.why}", flush=True)
        try:
            for line in reduced(best):
                print(line, flush=True)
        except Stopped as stop:
            raise stop.saying(f"interrupted after {count(best.tried, 'run')}; {best.record.repro}") from None
    print(f"{count(best.tried, 'run')}; the smallest that is red for {best.gate or 'the same error'}:")
    print(f"{best.cell.id}: {best.why}", flush=True)
    print(f"  {as_called(best.record.repro)}", flush=True)
    return 0


def _first_red(record: CellResult, gate: str | None) -> str:
    found = [each.name for each in record.gates if each.state != "PASS"]
    if gate is not None and gate not in found:
        raise ConfigError(f"cell {record.id} is not red for {gate}; it is {record.state}, {failure(record) or 'green'}")
    if record.state not in RED_STATES:
        raise ConfigError(f"cell {record.id} is {record.state}; there is nothing to shrink")
    return gate or (found[0] if found else "")


def _error(record: CellResult) -> str:
    """The type of an error, or the start of its text."""
    return (record.error or "").partition(":")[0]


def reduced(best: Shrunk) -> Iterator[str]:
    """Shrink axis values, then requests, then tokens; a line on each."""
    while _fewer_values(best):
        pass
    yield f"axes: {best.cell.id}"
    _fewer_requests(best)
    yield f"requests: {shorten(', '.join(request.name for request in best.requests), 120)}"
    _fewer_tokens(best)
    yield f"tokens: {best.only.tokens or 'as many as the requests allow'}"


def _fewer_values(best: Shrunk) -> bool:
    """Take smaller values on as many axes as stay red; returns whether there was one."""
    smaller = _smaller(best)
    found = list(best.red(smaller, best.only)) if smaller else []
    if not found:
        return False
    changed = [
        {name: value for name, value in cell.values.items() if value != best.cell.values[name]} for cell in found
    ]
    together = best.cell._replace(**{name: value for each in reversed(changed) for name, value in each.items()})
    if _runs(together, best) and best.takes(together, best.only):
        return True
    took = False
    for each in changed:
        cell = best.cell._replace(**each)
        took |= cell != best.cell and _runs(cell, best) and best.takes(cell, best.only)
    return took


def _smaller(best: Shrunk) -> list[Cell]:
    """For each axis off its default the cell with the smallest other value that the matrix has, those tried before
    excepted: the default, then the values listed before its own."""
    cells: dict[Cell, None] = {}
    for index, axis in enumerate(AXES):
        own = best.cell[index]
        if own == axis.default:
            continue
        before = [name for name in axis.names if RANKS[index][name] < RANKS[index][own]]
        for value in dict.fromkeys((axis.default, *before)):
            for nodes in ({}, {NODES: "auto"}):
                cell = best.cell._replace(**{axis.name: value, **nodes})
                if cell != best.cell and _runs(cell, best):
                    cells[cell] = None
    return [*cells]


def _runs(cell: Cell, best: Shrunk) -> bool:
    try:
        return expect(cell) == best.record.expect and bool(of_gpus([cell], find_tier(best.runs.job.options.tier).gpus))
    except ConfigError:
        return False


def _fewer_requests(best: Shrunk) -> None:
    """Take the blamed request alone, or else drop halves, quarters, ... of the requests while it stays red."""
    names = [request.name for request in best.requests]
    blamed = "" if best.record.first_red is None else best.record.first_red.request.partition("#")[0]
    if len(names) < 2 or (blamed in names and best.takes(best.cell, replace(best.only, requests=(blamed,)))):
        return
    size = len(names) // 2
    while size:
        start = 0
        while start < len(names) and len(names) > 1:
            left = names[:start] + names[start + size :]
            if left and best.takes(best.cell, replace(best.only, requests=tuple(left))):
                names = [request.name for request in best.requests]
            else:
                start += size
        size //= 2


def _fewer_tokens(best: Shrunk) -> None:
    """Take the fewest tokens, by doubling from the first wrong one on."""
    most = max(request.max_new_tokens for request in best.requests)
    ask = best.record.first_red
    tokens = 1 if ask is None or ask.token is None else ask.token + 1
    while tokens < most:
        if best.takes(best.cell, replace(best.only, tokens=tokens)):
            return
        tokens *= 2
