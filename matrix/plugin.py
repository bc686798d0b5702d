"""The pytest plugin: cells as test items.

A test file that holds `cells = MatrixCells()` collects one item per cell, in the order of their launches, so that
neighbours share an engine. Every pytest of an environment imports this file, so torch, the gates and the report are
imported where they are needed.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pluggy
import pytest

from specmatrix.ci.tiers import TIERS, visible_gpus
from specmatrix.ci.tiers import tier as find_tier
from specmatrix.engine.core.errors import ConfigError, EngineError
from specmatrix.matrix.cell import Cell, order
from specmatrix.matrix.lockfile import STAGES
from specmatrix.matrix.selection import PRODUCT, of_gpus, select
from specmatrix.matrix.zoo.registry import verify_cells
from specmatrix.reports.calling import as_called
from specmatrix.reports.codec import encode_cell
from specmatrix.reports.collector import paused
from specmatrix.reports.schema import CellResult
from specmatrix.reports.text import failure

if TYPE_CHECKING:
    from specmatrix.matrix.runner import Runner

# Name under which a cell's record travels with its test report, from an xdist worker to the process that writes.
RECORD: Final = "specmatrix"
CPU: Final = TIERS[0].name


@dataclass(frozen=True, slots=True)
class MatrixCells:
    """Put into a test file to have the cells of a tier collected there."""

    tier: str = CPU


class CellFailed(Exception):
    """A cell that is not green."""

    def __init__(self, record: CellResult) -> None:
        super().__init__(failure(record))
        self.record = record


class CellGroup(pytest.Collector):
    """The cells of a tier that the command line picks."""

    def __init__(self, name: str, parent: pytest.Collector, tier: str) -> None:
        super().__init__(name, parent)
        self.tier = tier
        # pytest would look for the conftests of the file once per cell.
        self.hooks: Final = super().ihook

    def collect(self) -> Iterator[CellItem]:
        """One item per cell; those of one launch follow each other."""
        config = self.config
        try:
            visible_gpus(self.tier)
            if config.getoption("--report") and self.tier != CPU:
                raise ConfigError(f"--report is of tier {CPU!r}; `specmatrix run --tier {self.tier}` writes a report")
            chosen = select(config.getoption("--stage"), config.getoption("--cells"), config.getoption("--limit"))
            cells = of_gpus(chosen, find_tier(self.tier).gpus)
            verify_cells(cells)
        except EngineError as error:
            raise pytest.UsageError(str(error)) from None
        if config.getoption("--stage") != PRODUCT:
            cells = order(cells)
        grouped = config.getoption("dist", "no") == "loadgroup"
        for cell in cells:
            item = CellItem.from_parent(self, name=cell.id, cell=cell, tier=self.tier)
            if grouped:
                item.add_marker(pytest.mark.xdist_group("-".join(cell.launch_key)))
            yield item


class CellItem(pytest.Item):
    """One cell; it fails with the sentences of its red gates and one command that runs it again."""

    def __init__(self, name: str, parent: CellGroup, cell: Cell, tier: str) -> None:
        super().__init__(name, parent)
        self.cell = cell
        self.tier = tier
        self._group = parent

    @property
    def ihook(self) -> pluggy.HookRelay:
        """The hooks of the file, conftests included."""
        return self._group.hooks

    def runtest(self) -> None:
        """Run the cell on the session that the previous item left, if it has the same launch."""
        record = _runner(self.config, self.tier).run_cell(self.cell)
        if self.config.getoption("--report"):
            self.user_properties.append((RECORD, encode_cell(record)))
        if record.state != "PASS":
            raise CellFailed(record)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        """The red gates, a sentence each, and the command; anything else as pytest shows it."""
        if not isinstance(excinfo.value, CellFailed):
            return str(super().repr_failure(excinfo))
        record = excinfo.value.record
        lines = [f"{record.state} {record.id}", *([record.error] if record.error else [])]
        lines += [f"{g.name}: {g.state}: {g.message}" for g in record.gates if g.state != "PASS"]
        return "\n".join([*lines, as_called(record.repro)])

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The file that collects the cell; a cell has no line in it."""
        return self.path, None, self.cell.id


def _runner(config: pytest.Config, tier: str) -> Runner:
    """The runner of this process for a tier, made for its first item."""
    runners = config.stash.setdefault(_RUNNERS, {})
    if tier not in runners:
        from specmatrix.ci.local import VISIBLE

        if tier == CPU:
            # A GPU of this machine is no part of the CPU tier.
            os.environ[VISIBLE] = ""
        import torch

        from specmatrix.matrix.runner import reference_runner

        torch.set_num_threads(1)
        runners[tier] = reference_runner(config.getoption("--matrix-seed"), tier, config.getoption("--stage"))
    return runners[tier]


_RUNNERS: Final = pytest.StashKey["dict[str, Runner]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("specmatrix", "cells of the matrix")
    stages = (*STAGES, PRODUCT)
    group.addoption("--stage", default="pr", choices=stages, help="which cells run: a stage, or every cell")
    group.addoption(
        "--cells", default=None, metavar="SELECTOR", help="run only cells like `algorithm=eagle3 and topk=4`"
    )
    group.addoption("--limit", default=None, type=int, metavar="N", help="collect at most N cells")
    group.addoption("--matrix-seed", default=0, type=int, metavar="N", help="rotates prompts and draws")
    group.addoption("--report", default="", metavar="DIR", help="write the report of the cells that ran")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "register(est_seconds, tier, stage): the price of a test file, as literals")
    if hasattr(config, "workerinput"):
        return
    errors = CollectionErrors()
    config.pluginmanager.register(errors, "specmatrix-collection")
    if config.getoption("--report"):
        from specmatrix.matrix.cell_reports import CellReports

        config.pluginmanager.register(CellReports(config, errors), "specmatrix-reports")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Keep the cyclic collector off cells while they become items, which it would go through again and again, and
    afterwards: they live as long as the session."""
    with paused():
        result = yield
        if any(isinstance(item, CellItem) for item in session.items):
            gc.freeze()
        return result


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> CellGroup | None:
    if isinstance(obj, MatrixCells):
        return CellGroup.from_parent(collector, name=name, tier=obj.tier)
    return None


class CollectionErrors:
    """Cells that cannot be collected end the session with status 2 under xdist too, which counts them as failures."""

    def __init__(self) -> None:
        self.found = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a collection that failed, here or in a worker."""
        self.found |= report.failed

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Set the status, unless pytest was told to go on behind such errors."""
        goes_on = session.config.getoption("continue_on_collection_errors")
        if self.found and not goes_on and exitstatus == pytest.ExitCode.TESTS_FAILED:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
