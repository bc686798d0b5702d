"""The pytest plugin: cells as test items.

A test file that holds `cells = MatrixCells()` collects one item per cell, in the order of their engine starts, so that
neighbours share an engine. Every pytest of an environment imports this file, whatever it tests: the rest of the package
is imported where cells are collected or a report is asked for, and nothing else here does anything before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from specmatrix.matrix.plugin.items import CellGroup

# An attribute of the report of cells that could not be collected; it crosses processes with the report.
FAILED: Final = "specmatrix_failed"
OPTIONS: Final[dict[str, dict[str, object]]] = {
    "stage": {"default": "pr", "help": "which cells run: smoke, pr or nightly; product is every cell"},
    "cells": {"default": None, "metavar": "SELECTOR", "help": "run only cells like `algorithm=eagle3 and topk=4`"},
    "limit": {"default": None, "type": int, "metavar": "N", "help": "collect at most N cells"},
    "seed": {"default": 0, "type": int, "metavar": "N", "help": "rotates prompts and draws"},
    "report": {"default": "", "metavar": "DIR", "help": "write the report of the cells that ran"},
}


@dataclass(frozen=True, slots=True)
class MatrixCells:
    """Put into a test file to have the cells of a tier collected there."""

    tier: str = "cpu"


def add_options(parser: pytest.Parser, prefix: str) -> None:
    """Add the options as `--PREFIX...`; under every prefix they are the same settings."""
    group = parser.getgroup("specmatrix", "cells of the matrix")
    for name, settings in OPTIONS.items():
        group.addoption(f"--{prefix}{name}", dest=f"specmatrix_{name}", **settings)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser, "specmatrix-")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    config.pluginmanager.register(CollectionErrors(), "specmatrix-collection")
    if config.option.specmatrix_report:
        from specmatrix.matrix.plugin.report import CellReports

        config.pluginmanager.register(CellReports(config), "specmatrix-reports")


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> CellGroup | None:
    if not isinstance(obj, MatrixCells):
        return None
    from specmatrix.matrix.plugin import items as cell_items

    manager = collector.config.pluginmanager
    if not manager.is_registered(cell_items):
        manager.register(cell_items, "specmatrix-cells")
    return cell_items.CellGroup.from_parent(collector, name=name, tier=obj.tier)


class CollectionErrors:
    """Cells that cannot be collected end the session with status 2 under xdist too, which counts them as failures."""

    def __init__(self) -> None:
        self.found = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a collection of cells that failed, here or in a worker."""
        self.found |= hasattr(report, FAILED)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Set the status, unless pytest was told to go on behind such errors."""
        goes_on = session.config.getoption("continue_on_collection_errors")
        if self.found and not goes_on and exitstatus == pytest.ExitCode.TESTS_FAILED:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
