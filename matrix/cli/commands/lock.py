"""`specmatrix lock`: verify the lock file, or append missing cells."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.tiers import check_parallel
from specmatrix.matrix.cover.lock import check, extend
from specmatrix.matrix.cover.lockfile import STAGES, stage_cells
from specmatrix.matrix.cover.order import renew
from specmatrix.matrix.cover.selection import of_gpus
from specmatrix.matrix.faults.command import select
from specmatrix.matrix.run.functions import record
from specmatrix.matrix.subjects.subject_lock import check_own, extend_own, limited_subjects
from specmatrix.reports.render.console import print_text
from specmatrix.reports.render.progress import counting, waiting
from specmatrix.reports.schema import REFERENCE

# The stage whose cells' functions are recorded.
RECORDED: Final = "pr"


def lock(
    check_only: bool,
    extend_it: bool,
    full: bool,
    order: Path | None = None,
    durations: Path | None = None,
    functions: bool = False,
    workers: int = 1,
) -> int:
    """Print the result and return the exit status: 0 if the lock files are complete.

    ConfigError if two of the options are given, or if the kill matrix `order` cannot be read.
    """
    if sum((check_only, extend_it, functions, order is not None)) > 1:
        raise ConfigError("--check, --extend, --functions and --order are mutually exclusive")
    if durations is not None and order is None:
        raise ConfigError("--durations is for --order")
    if order is not None:
        print(renew(order, declared(), durations))
        return 0
    if functions:
        check_parallel("workers", workers)
        cells = of_gpus(stage_cells(RECORDED), 0)
        with counting(len(cells), "cell") as advance:
            print(record(cells, workers, lambda ran: advance(None, ran)))
        return 0
    if extend_it:
        with waiting("covering every pair and triple"):
            changes = [extend(), *map(extend_own, limited_subjects())]
        dropped, added = map(sum, zip(*changes, strict=True))
        print(f"dropped {dropped} cells, added {added}")
    with waiting("verifying the cover"):
        reports = [check(full=full), *map(check_own, limited_subjects())]
    print_text("\n".join(report.text() for report in reports))
    return int(not all(report.ok for report in reports))


def declared() -> dict[str, list[str]]:
    """The faults that cells of the CPU tier find, with the cells that the catalogue names for each. Others are found by
    laws of kernels, or on servers of the engine."""
    cells, faults = stage_cells(STAGES[-1]), [one for one in select(()) if one.cells]
    own = (fault for fault in faults if not fault.operations and fault.subject == REFERENCE)
    return {fault.id: [cell.id for cell in fault.chosen(cells)] for fault in own}
