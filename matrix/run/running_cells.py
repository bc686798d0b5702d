"""The cells of each stage on an engine: those of the lock files, or, where it runs already, requests of every kind on
exactly its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from itertools import islice
from operator import ne

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cells.axes import NAMES
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import explain
from specmatrix.matrix.cells.selector import parse_selector
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.cover.lock import STRENGTHS, sweep
from specmatrix.matrix.cover.lockfile import stage_cells, subject_cells
from specmatrix.matrix.cover.selection import Listing
from specmatrix.matrix.gates.claimed_capabilities import ClaimedCapabilitiesGate
from specmatrix.matrix.gates.gate import Gate
from specmatrix.matrix.gates.registry import applied_gates
from specmatrix.matrix.subjects.protocol import Subject, Unsupported
from specmatrix.matrix.subjects.translations import translated
from specmatrix.matrix.workloads.prepared_cell import prepare


def listing(engine: Subject | None, tier: str, cells: Sequence[str] | None) -> Listing:
    """Lists the cells of a stage for an engine (None: the reference engine). cells: the run's selectors, which may name
    the drafter if the server does not. Subjects have lock files of their own for CPUs only. ConfigError if no cell has
    the configuration of a running engine, or if several have it and no selector decides."""
    known = () if engine is None else tuple(engine.running())
    if engine is not None and known:
        return cache(partial(_swept, engine, known, cells or ()))
    return stage_cells if engine is None or find_tier(tier).gpus else partial(subject_cells, subject=engine.name)


def _swept(engine: Subject, known: Sequence[Cell], cells: Sequence[str], stage: str) -> list[Cell]:
    """The smallest cell with more than one request, and cells that cover the request values as strongly as the stage
    does. A value that the engine cannot run, or that no gate judges, gets one cell that reports this."""
    asked = [parse_selector(text) for text in cells]
    here = [start for start in known if not asked or any(one.may(start.start_key) for one in asked)]
    if not here:
        runs = " or ".join(start.id for start in known)
        raise ConfigError(f"the server runs {runs}, which --cells {' --cells '.join(map(shown, cells))} leaves out")
    if len(here) > 1:
        names = ", ".join(start.algorithm for start in known)
        raise ConfigError(
            f"the server does not say which drafter it has; name it by --cells algorithm=NAME, one of {names}"
        )
    gates, lacking = applied_gates(engine.profile).gates, list[Cell]()

    def fits(cell: Cell) -> bool:
        found = translated(engine, prepare(cell, workload=engine.requests, subject=engine.name))
        if isinstance(found, Unsupported) or not judges(gates, cell):
            lacking.append(cell)
            return False
        return True

    plain = (here[0]._replace(batch=batch) for batch in ("pair", "mixed_lengths"))
    kept = [*islice((cell for cell in plain if not explain(cell) and fits(cell)), 1)]
    found = [*kept, *sweep(here[0], kept, STRENGTHS[stage], fits)]
    for cell in sorted(lacking, key=lambda cell: sum(map(ne, cell, here[0]))):
        if set(zip(NAMES, cell, strict=True)).difference(*(zip(NAMES, one, strict=True) for one in found)):
            found.append(cell)
    return found


def judges(gates: Sequence[Gate], cell: Cell) -> bool:
    """Whether any gate compares a cell's answers."""
    return any(gate.applies(cell) for gate in gates if not isinstance(gate, ClaimedCapabilitiesGate))
