"""The process of one trial: checks cells and operations in a patched tree.

`python -m specmatrix.matrix.faults.trial TREE TIER SEED GOLDEN UNTIL FILE CELL...`, with TREE first on the import path;
an operation is named `kernel:NAME`. UNTIL is `end`, or `red` to stop at the first red cell. Each
result is appended to FILE as a line of JSON at once, so a process that hangs leaves the results before it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import specmatrix.engine
from specmatrix.engine.exit_with_parent import exit_with_parent
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults.kernels import PREFIX, check_operations
from specmatrix.matrix.gates.config import ConfigGate
from specmatrix.matrix.golden.review import blessed_table
from specmatrix.reports.schema import RED_STATES
from specmatrix.reports.store import cell_to_json


def main(arguments: list[str]) -> None:
    """Check the cells and operations. ConfigError if the imported engine is not the one in TREE."""
    tree, tier, seed, golden, until, file, *ids = arguments
    imported = Path(str(specmatrix.engine.__file__)).resolve()
    if not imported.is_relative_to(Path(tree).resolve()):
        raise ConfigError(f"the imported engine is {imported}, not the one in {tree}; put {tree} first on PYTHONPATH")
    operations = [text for text in ids if text.startswith(PREFIX)]
    cells = [Cell.from_id(text) for text in ids if text not in operations]
    with Path(file).open("a", encoding="utf-8") as out:
        laws = map(json.dumps, check_operations(operations, tier))
        for line in chain(_cells(cells, tier, int(seed), golden == "blessed", until == "red"), laws):
            out.write(line + "\n")
            out.flush()


def _cells(cells: Sequence[Cell], tier: str, seed: int, blessed: bool, first: bool) -> Iterator[str]:
    import torch

    from specmatrix.matrix.run.runner import reference_runner

    torch.set_num_threads(1)
    runner = reference_runner(seed, tier)
    if blessed:
        gate = ConfigGate(golden=blessed_table(cells))
        runner.refusal = gate.judge_refusal
        runner.gates = [gate if each.name == gate.name else each for each in runner.gates]
    for cell in cells:
        record = runner.run_cell(cell)
        yield cell_to_json(record)
        if first and record.state in RED_STATES:
            break


if __name__ == "__main__":
    # A fault may make the engine loop forever, so the process must end with its parent.
    exit_with_parent()
    main(sys.argv[1:])
