"""Plants a fault in a copy of the packages and runs its cells in a fresh process that imports the copy."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import specmatrix
from specmatrix.engine.temp_dir import TempDir
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults.fault import Fault
from specmatrix.matrix.faults.kernels import PREFIX
from specmatrix.matrix.faults.processes import Processes
from specmatrix.matrix.run.tiers import VISIBLE
from specmatrix.matrix.run.tiers import tier as find_tier

ROOT: Final = specmatrix.HOME
PACKAGES: Final = ("engine", "kernels", "matrix", "ci", "reports")
# Makes Triton interpret its kernels without a GPU (as `kernels.backend`, which needs torch).
INTERPRETER: Final = "TRITON_INTERPRET"
# Several times the longest trial; a fault may make the engine loop forever.
SECONDS: Final = 180.0


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """One cell's gate results: name to (state, message). `error`: the crash, None if none."""

    cell: str
    gates: dict[str, tuple[str, str]]
    error: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One process: the cells it completed, and how it ended if it did not complete them all."""

    verdicts: tuple[CellVerdict, ...]
    died: str | None


@contextmanager
def planted(fault: Fault | None) -> Iterator[Path]:
    """A copy of the packages, laid out as a checkout, with the fault planted (None: unchanged). ConfigError if the
    fault does not apply."""
    with TempDir("fault") as tree:
        for package in PACKAGES:
            shutil.copytree(ROOT / package, tree / package)
        (tree / "specmatrix").mkdir()
        for path in Path(specmatrix.__file__).parent.glob("*.py"):
            shutil.copy(path, tree / "specmatrix")
        if fault is not None:
            for path in fault.apply(tree):
                # With equal size and mtime Python would load the old byte code.
                Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
        yield tree


def trial(
    fault: Fault | None,
    cells: Sequence[Cell],
    seed: int = 0,
    seconds: float = SECONDS,
    processes: Processes | None = None,
    tier: str = "cpu",
    operations: Sequence[str] = (),
) -> Trial:
    """Check cells and operations in a fresh process with the fault planted, run by `processes`.

    ConfigError if there are none.
    """
    if not cells and not operations:
        raise ConfigError("a trial needs at least one cell or operation")
    with planted(fault) as tree:
        file = tree / "verdicts.jsonl"
        command = [sys.executable, "-m", "specmatrix.matrix.faults.trial", str(tree), tier, str(seed), str(file)]
        path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        if not find_tier(tier).gpus:
            environment |= {VISIBLE: "", INTERPRETER: "1"}
        words = [*command, *(cell.id for cell in cells), *(PREFIX + name for name in operations)]
        died = (processes or Processes()).run(words, tree, environment, seconds)
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return Trial(tuple(_verdict(json.loads(line)) for line in lines), died)


def _verdict(line: dict[str, Any]) -> CellVerdict:
    gates = {name: (state, message) for name, (state, message) in line["gates"].items()}
    return CellVerdict(line["cell"], gates, line["error"], line["seconds"])
