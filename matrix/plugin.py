"""The pytest plugin: cells as test items.

A test file that holds `cells = MatrixCells()` collects one item per cell, in the order of their launches, so that
neighbours share an engine. Nothing here imports torch before the first item runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from ci.local import VISIBLE, Job, lost_cell
from ci.tiers import TIERS, visible_gpus
from ci.tiers import tier as find_tier
from engine.core.errors import ConfigError, EngineError
from matrix.cell import Cell, order
from matrix.gates.table import GATES
from matrix.lockfile import STAGES
from matrix.provenance import run_header
from matrix.runner import Runner, reference_runner
from matrix.selection import PRODUCT, is_id, of_gpus, select
from matrix.zoo.registry import verify_cells
from reports.calling import as_called
from reports.codec import decode_cell, encode_cell
from reports.collector import paused
from reports.load import load
from reports.probes import ProbeVerdict
from reports.render.files import write_run
from reports.schema import CellResult, ReportError
from reports.text import failure
from reports.writer import ReportWriter

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

    def __init__(self, name: str, parent: pytest.Collector, cell: Cell, tier: str) -> None:
        super().__init__(name, parent)
        self.cell = cell
        self.tier = tier

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
        if tier == CPU:
            # A GPU of this machine is no part of the CPU tier.
            os.environ[VISIBLE] = ""
        import torch

        torch.set_num_threads(1)
        runners[tier] = reference_runner(config.getoption("--matrix-seed"), tier, config.getoption("--stage"))
    return runners[tier]


_RUNNERS: Final = pytest.StashKey[dict[str, Runner]]()


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
        config.pluginmanager.register(CellReports(config, errors), "specmatrix-reports")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Stop the cyclic collector while cells become items: it would go through all of them again and again."""
    with paused():
        return (yield)


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


class CellReports:
    """Writes the records of cells as they come in; the report becomes whole when the session ends."""

    def __init__(self, config: pytest.Config, errors: CollectionErrors) -> None:
        self.errors = errors
        self.directory = Path(config.getoption("--report"))
        self.job = Job(config.getoption("--matrix-seed"), CPU, config.getoption("--stage"))
        self.probes: ProbeVerdict | None = None
        header = run_header(self.job.tier, self.job.stage, self.job.seed, GATES)
        try:
            self.writer = ReportWriter(self.directory, header)
        except ReportError as error:
            raise pytest.UsageError(str(error)) from None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the record that came with the report; a worker that died at a cell sends none."""
        phase = str(report.when)  # xdist adds a phase of its own
        if phase == "call":
            for name, value in report.user_properties:
                if name == RECORD:
                    self.writer.write(decode_cell(json.loads(str(value))))
        elif phase == "???" and is_id(text := report.nodeid.rpartition("::")[2]):
            self.writer.write(lost_cell(Cell.from_id(text), self.job, "its worker died"))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Close the report, unless cells are missing because the session was cut short; unhit probes fail it."""
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not self.errors.found:
            self.writer.close()
            self.probes = write_run(load(self.directory)).summary.probes
            if self.probes.state == "FAIL":
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        else:
            self.writer.abort()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what the cells prove together, which no item of its own shows."""
        if self.probes is not None:
            failed = self.probes.state == "FAIL"
            terminalreporter.write_line(self.probes.message, red=failed)
