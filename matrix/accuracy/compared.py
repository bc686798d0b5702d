"""What an accuracy run compares: an engine with a drafter and one without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from specmatrix.engine.core.config.asked import AUTO, EngineConfig
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import AXES, describe
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.zoo.published.pairs import ModelPair
from specmatrix.matrix.zoo.registry import resolve_path, verify_cells

# Axes that the task decides: it has its own questions, sampling parameters and stop strings.
FIXED: Final = ("sampling", "finish", "abort")


@dataclass(frozen=True, slots=True)
class ComparedEngine:
    """An engine of the comparison: its name in the report and its configuration."""

    name: str
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class Compared:
    """algorithm: the cell's, in lower case. folders: of each model that either engine loads, the target first."""

    algorithm: str
    baseline: ComparedEngine
    cell: ComparedEngine
    folders: Mapping[str, Path]

    def locate(self, name: str) -> Path:
        """The folder of a model, or the file of the zoo's corpus."""
        return self.folders[name] if name in self.folders else resolve_path(name)


def of_cell(text: str) -> Compared:
    """A zoo cell by its id. ConfigError if it is unknown or sets an axis that the task decides."""
    cell = Cell.from_id(text)
    asked = [(axis.name, cell.values[axis.name]) for axis in AXES if axis.name in FIXED]
    own = [(name, value) for name, value in asked if value != Cell._field_defaults[name]]
    if own:
        raise ConfigError(f"cell {text} sets {describe(own)}, which the task decides; omit it")
    if cell.ranks > 1:
        raise ConfigError(f"cell {text} must have 1 rank for accuracy, got {cell.ranks}; omit tp{cell.tp}")
    names = [name for name in (cell.target, cell.draft) if name is not None]
    baseline, start = (ComparedEngine(each.id, _ample(each)) for each in (cell.canonical, cell))
    verify_cells([cell])
    return Compared(cell.algorithm, baseline, start, {name: resolve_path(name) for name in names})


def of_pair(pair: ModelPair, folders: Mapping[str, Path]) -> Compared:
    """A pair of published checkpoints in `folders`."""
    baseline = ComparedEngine(f"{pair.target}.none", _deterministic(pair.baseline))
    return Compared(pair.algorithm.lower(), baseline, ComparedEngine(pair.name, _deterministic(pair.config)), folders)


def _ample(cell: Cell) -> EngineConfig:
    """The cell's configuration, with ample memory sized for the task's questions instead of the cell's workload."""
    config = _deterministic(cell.config())
    return config if cell.memory != "ample" else replace(config, max_total_tokens=AUTO)


def _deterministic(config: EngineConfig) -> EngineConfig:
    """Deterministic inference, so that a difference between the runs is a fault and not rounding."""
    return replace(config, enable_deterministic_inference=True)
