"""The exit status of a pytest run whose cells cannot be collected; imported by every pytest run."""

from __future__ import annotations

from typing import Final

import pytest

# Marks a collect report whose cells could not be collected; xdist transfers the attribute with the report.
FAILED: Final = "specmatrix_failed"


class CollectionErrors:
    """Ends the session with status 2 if cells cannot be collected, also under xdist, which reports them as failures."""

    def __init__(self) -> None:
        self.found = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a failed collection of cells, in this process or in a worker."""
        self.found |= hasattr(report, FAILED)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Set the exit status, unless --continue-on-collection-errors is given."""
        goes_on = session.config.getoption("continue_on_collection_errors")
        if self.found and not goes_on and exitstatus == pytest.ExitCode.TESTS_FAILED:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
