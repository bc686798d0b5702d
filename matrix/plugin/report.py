"""The report of a pytest session over cells: `pytest --specmatrix-report DIR`."""

from __future__ import annotations

from pathlib import Path

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.selection import is_id
from specmatrix.matrix.gates.registry import all_gates, applied_gates
from specmatrix.matrix.plugin.items import CPU, RECORD, endpoint_from, waivers_of
from specmatrix.matrix.run.provenance import run_header
from specmatrix.matrix.run.record import lost
from specmatrix.matrix.subjects.registry import foreign_subject
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.render.run import write_run
from specmatrix.reports.schema import ReportError
from specmatrix.reports.store import ReportWriter, cell_from_json
from specmatrix.reports.summary import CounterVerdict


class CellReports:
    """Writes the records of cells as they arrive; the report is complete when the session ends."""

    def __init__(self, config: pytest.Config) -> None:
        self.uncollected = False
        self.directory = Path(config.option.specmatrix_report)
        self.stage, self.seed = config.option.specmatrix_stage, config.option.specmatrix_seed
        self.counters: CounterVerdict | None = None
        self.subject = config.option.specmatrix_subject
        try:
            subject, rules = foreign_subject(self.subject, endpoint_from(config)), waivers_of(config)
            gates = all_gates() if subject is None else applied_gates(subject.profile).gates
            header = run_header(CPU, self.stage, self.seed, gates, subject, rules)
            self.writer = ReportWriter(self.directory, header)
        except (ConfigError, ReportError) as error:
            raise pytest.UsageError(str(error)) from None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a failed collection, in this process or in a worker."""
        self.uncollected |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the record attached to the test report, or an INFRA record if the worker died."""
        phase = str(report.when)  # xdist adds its own phase
        if phase == "call":
            for name, value in report.user_properties:
                if name == RECORD:
                    self.writer.write(cell_from_json(str(value)))
        elif phase == "???" and is_id(text := report.nodeid.rpartition("::")[2]):
            cell = prepare(Cell.from_id(text), CPU, self.seed, subject=self.subject)
            self.writer.write(lost(cell, "its worker died"))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Complete the report unless the session was interrupted; counters that were never hit fail the session."""
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not self.uncollected:
            self.writer.close()
            with self.writer.read() as report:
                self.counters = write_run(report).summary.counters
            if self.counters.state == "FAIL":
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        else:
            self.writer.abort()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary over all cells."""
        if self.counters is not None:
            failed = self.counters.state == "FAIL"
            terminalreporter.write_line(self.counters.message, red=failed)
