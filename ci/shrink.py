"""Other cells around a red one: variants with one axis changed, which show whether that axis matters to the failure,
and `specmatrix shrink`, which finds the smallest cell, requests and tokens that stay red for the same gate."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path
from time import monotonic
from typing import Final, TypeAlias

from specmatrix.ci.cell_runs import CellRuns, cell_runs
from specmatrix.ci.run_options import RunOptions
from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cells.axes import AXES, Axis
from specmatrix.matrix.cells.cell import RANKS, Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.cells.tiers import check_parallel, check_seed, visible_gpus
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.cover.selection import chosen_cells, of_gpus
from specmatrix.matrix.gates.registry import gate_names
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.subset import Subset
from specmatrix.matrix.zoo.registry import verify_cells
from specmatrix.options import WORKERS
from specmatrix.reports.effective import effective
from specmatrix.reports.groups import MAX_FACTORED, Conditions, RedGroup, axis_of, meets, red_groups
from specmatrix.reports.render.console import as_called
from specmatrix.reports.schema import RED_STATES, Cause, CellResult, is_red
from specmatrix.reports.wording import count, failure, shorten
from specmatrix.stopping import Stopped

# Maximum number of rounds of choosing cells from the results so far, of cells that run, and of seconds.
PASSES: Final = 4
MAX_BESIDE: Final = 12
MAX_SECONDS: Final = 20.0
NODES: Final = "draft_tokens"
# Maximum cells per group and round, and candidates that they distinguish.
MAX_CELLS: Final = 10
MAX_CANDIDATES: Final = 32

Change: TypeAlias = tuple[str, str]


def causes(runs: CellRuns, found: Sequence[CellResult], today: str) -> dict[str, Cause]:
    """Run a few cells beside the red ones of a run, and return what is left of each group's candidate causes, by the id
    of its first cell. found: the run's records; those that are waived on `today` have no cause to find, and INFRA no
    axis to blame.
    """
    judged = [cell for cell in found if cell.state == "PASS" or (is_red(cell, today) and cell.state != "INFRA")]
    beside = [cell for cell in decided(runs, judged) if cell.state != "INFRA"]
    if not beside:
        return {}
    every, own = (*judged, *beside), {cell.id for cell in judged}
    groups = red_groups([cell for cell in every if is_red(cell, today)], [c for c in every if c.state == "PASS"])
    ran = len(beside), sum(cell.state == "PASS" for cell in beside)
    return {group.cells[0].id: Cause(group.factors, *ran) for group in groups if group.cells[0].id in own}


def decided(
    runs: CellRuns, found: Sequence[CellResult], most: int = MAX_BESIDE, seconds: float = MAX_SECONDS
) -> Generator[CellResult]:
    """The records of the cells that tell the candidate causes of each group of red cells apart, as they finish: at most
    `most`, none of which is estimated to take long, and after `seconds` no more.

    One or two axes of a group's first cell take other values, so that some candidates hold and others do not; where
    there is none yet, every axis off its default takes another value. Where one candidate is left, every axis that it
    does not name takes its default: if that cell is green, the candidate alone is not the cause. Ends when no such cell
    is left, or after `PASSES` times.
    """
    records, end = list(found), monotonic() + seconds
    for _ in range(PASSES):
        green = [cell for cell in records if cell.state == "PASS"]
        groups = red_groups([cell for cell in records if cell.state in RED_STATES], green)
        tried = {cell.id for cell in records}
        new: dict[str, Cell] = {}
        for group in groups[:MAX_FACTORED]:
            if group.factors or not green:
                for cell in variants(group, {*tried, *new}, find_tier(runs.job.options.tier).gpus):
                    new |= {cell.id: cell} if cell.seconds < seconds / 4 else {}
        left = most + len(found) - len(records)
        if not new or left <= 0 or monotonic() >= end:
            return
        with closing(runs(list(new.values())[:left])) as ran:
            for record in ran:
                records.append(record)
                yield record
                if monotonic() >= end:
                    return


def variants(group: RedGroup, tried: Collection[str], gpus: int = 0) -> list[Cell]:
    """Cells near the group's first one that tell its candidate causes apart, or test its only one, none already tried.

    Of several candidates each cell meets some and not others. Of one, it meets it with another axis at its default, or
    does not meet it on one axis. Without any, it has another value on one axis off its default. gpus: of the tier.
    """
    first = Cell.of(group.cells[0].axes)
    named = {axis_of(condition) for conditions in group.factors for condition in conditions}
    if len(group.factors) > 1:
        return _separating(first, named, group.factors[:MAX_CANDIDATES], tried, gpus)
    cells = []
    for axis in AXES:
        if axis.name in named:
            near = _near(first, [(change,) for change in _values(axis)], tried, gpus)
            cells += [cell for cell in near if not all(_met(cell, group.factors))][:1]
        elif first.values[axis.name] != axis.default:
            values = _values(axis)[:1] if named else _values(axis)
            cells += _near(first, [(change,) for change in values], tried, gpus)[:1]
    return cells


def _separating(
    first: Cell, named: Collection[str], factors: Sequence[Conditions], tried: Collection[str], gpus: int
) -> list[Cell]:
    """At most `MAX_CELLS` cells, each of which distinguishes candidates that no earlier cell does: with one of the
    `named` axes changed, plus another axis where one is not enough."""
    own = [change for axis in AXES if axis.name in named for change in _values(axis)]
    other = [change for axis in AXES for change in _values(axis)]
    found: list[Cell] = []
    alike = [list(range(len(factors)))]  # candidates that the cells found so far do not distinguish
    for changes in (zip(own), product(own, other)):
        if len(found) == MAX_CELLS or max(map(len, alike)) == 1:
            break
        met = {cell: _met(cell, factors) for cell in _near(first, changes, tried, gpus)}
        while met and len(found) < MAX_CELLS:
            best = max(met, key=lambda cell: sum(_apart(group, met[cell]) for group in alike))
            if not any(_apart(group, met[best]) for group in alike):
                break
            found.append(best)
            alike = [[i for i in group if met[best][i] is side] for group in alike for side in (True, False)]
    return found


def _met(cell: Cell, factors: Sequence[Conditions]) -> list[bool]:
    """Which of the candidates a cell meets."""
    predicted = prepare(cell).predicted
    values = effective(cell.values, None if isinstance(predicted, ConfigError) else predicted.as_dict())
    return [all(meets(condition, values) for condition in conditions) for conditions in factors]


def _apart(group: Sequence[int], met: Sequence[bool]) -> int:
    """The number of pairs in a group of candidates of which a cell meets exactly one."""
    some = sum(met[i] for i in group)
    return some * (len(group) - some)


def _values(axis: Axis) -> list[Change]:
    """The values of an axis, its default first."""
    return [(axis.name, value) for value in axis.names]


def _near(first: Cell, changes: Iterable[tuple[Change, ...]], tried: Collection[str], gpus: int) -> list[Cell]:
    """The cells of a tier with some axes changed that run and were not tried. A draft's number of nodes follows from
    its depth and width, so it is left to the engine where it does not fit another value."""
    found: dict[Cell, None] = {}
    for change in changes:
        cell = first._replace(**dict(change))
        found |= dict.fromkeys(islice(runnable((cell, cell._replace(**{NODES: "auto"}))), 1))
    return [cell for cell in of_gpus(list(found), gpus) if cell != first and cell.id not in tried]


def runnable(cells: Iterable[Cell]) -> Generator[Cell]:
    """Yield the cells that are in the matrix and must run as requested."""
    for cell in cells:
        try:
            expected = expect(cell)
        except ConfigError:
            continue
        if expected == "runs":
            yield cell


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
    old = best.cell.values
    changed = [{name: value for name, value in cell.values.items() if value != old[name]} for cell in found]
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
