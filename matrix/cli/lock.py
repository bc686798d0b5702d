"""`specmatrix lock`: verify the lock file, or append missing cells."""

from __future__ import annotations

from pathlib import Path

from specmatrix.errors import ConfigError
from specmatrix.matrix.cover.lock import check as check_lock
from specmatrix.matrix.cover.lock import extend as extend_lock
from specmatrix.matrix.cover.lockfile import STAGES, stage_cells
from specmatrix.matrix.cover.order import renew
from specmatrix.matrix.faults.command import select
from specmatrix.matrix.subjects.subject_lock import check_own, extend_own, limited_subjects
from specmatrix.reports.render.console import print_text
from specmatrix.reports.render.progress import waiting
from specmatrix.reports.schema import REFERENCE


def lock(
    check: bool = False,
    extend: bool = False,
    full: bool = False,
    order: Path | None = None,
    durations: Path | None = None,
) -> int:
    """Print the result and return the exit status: 0 if the lock files are complete.

    ConfigError if two of the options are given, or if the kill matrix `order` cannot be read.
    """
    if sum((check, extend, order is not None)) > 1:
        raise ConfigError("--check, --extend and --order are mutually exclusive")
    if durations is not None and order is None:
        raise ConfigError("--durations is for --order")
    if order is not None:
        print(renew(order, declared(), durations))
        return 0
    if extend:
        with waiting("covering every pair and triple"):
            changes = [extend_lock(), *map(extend_own, limited_subjects())]
        dropped, added = map(sum, zip(*changes, strict=True))
        print(f"dropped {dropped} cells, added {added}")
    with waiting("verifying the cover"):
        reports = [check_lock(full=full), *map(check_own, limited_subjects())]
    print_text("\n".join(report.text() for report in reports))
    return int(not all(report.ok for report in reports))


def declared() -> dict[str, list[str]]:
    """The faults that cells of the CPU tier find, with the cells that the catalogue names for each. Other faults are
    found by kernel laws, or on servers of the engine."""
    cells, faults = stage_cells(STAGES[-1]), [one for one in select(()) if one.cells]
    own = (fault for fault in faults if not fault.operations and fault.subject == REFERENCE)
    return {fault.id: [cell.id for cell in fault.chosen(cells)] for fault in own}
