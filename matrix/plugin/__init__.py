"""The pytest plugin: cells as test items.

A test file with `cells = MatrixCells()` collects one item per cell, ordered so that consecutive cells share an engine
start. Every pytest run in the environment imports this module, so the rest of the package is imported only when cells
are collected, and the plugin has no effect before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from specmatrix.matrix.plugin.items import CellGroup

OPTIONS: Final[dict[str, dict[str, object]]] = {
    "stage": {"default": "smoke", "help": "cells to run: smoke, pr or nightly; product: all possible cells"},
    "cells": {"default": None, "metavar": "SELECTOR", "help": "select cells: `algorithm=eagle3 and topk=4`, or an id"},
    "limit": {"default": None, "type": int, "metavar": "N", "help": "collect at most N cells"},
    "subject": {"default": "reference", "metavar": "NAME", "help": "the engine under test"},
    "url": {"default": None, "metavar": "URL", "help": "a running server, for the subjects over HTTP"},
    "baseline-url": {"default": None, "metavar": "URL", "help": "the same server without speculation"},
    "launch": {"default": None, "metavar": "COMMAND", "help": "instead of a URL: starts a server, with {flags}"},
    "api-key": {"default": None, "metavar": "KEY", "help": "key of these servers"},
    "plugin": {"action": "append", "default": [], "metavar": "FILE", "help": "a Python file that registers values"},
    "waivers": {"default": None, "metavar": "FILE", "help": "YAML file of known failures"},
    "seed": {"default": 0, "type": int, "metavar": "N", "help": "seed for prompts and sampling"},
}


@dataclass(frozen=True, slots=True)
class MatrixCells:
    """Assign it to a name in a test file to collect a tier's cells there."""

    tier: str = "cpu"


def add_options(parser: pytest.Parser, prefix: str) -> None:
    """Add the options as `--PREFIX...`; options with different prefixes set the same values."""
    group = parser.getgroup("specmatrix", "cells of the matrix")
    for name, settings in OPTIONS.items():
        group.addoption(f"--{prefix}{name}", dest=f"specmatrix_{name.replace('-', '_')}", **settings)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser, "specmatrix-")


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> CellGroup | None:
    if not isinstance(obj, MatrixCells):
        return None
    from specmatrix.matrix.plugin import items as cell_items

    manager = collector.config.pluginmanager
    if not manager.is_registered(cell_items):
        manager.register(cell_items, "specmatrix-cells")
    return cell_items.CellGroup.from_parent(collector, name=name, tier=obj.tier)
