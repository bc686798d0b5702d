"""The process of one trial: checks a fault's cells and operations in the tree where the fault is planted.

`python -m specmatrix.matrix.faults.trial TREE TIER SEED FILE CELL...`, with TREE first on the import path; an
operation is named `kernel:NAME`. Each result is appended to FILE as a line of JSON at once, so a process that hangs
leaves the results before it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import specmatrix.engine
from specmatrix.engine.exit_with_parent import exit_with_parent
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell, order
from specmatrix.matrix.faults.kernels import PREFIX, check_operations


def main(arguments: list[str]) -> None:
    """Check the cells and operations. ConfigError if the imported engine is not the one in TREE."""
    tree, tier, seed, file, *ids = arguments
    imported = Path(str(specmatrix.engine.__file__)).resolve()
    if not imported.is_relative_to(Path(tree).resolve()):
        raise ConfigError(f"the imported engine is {imported}, not the one in {tree}; put {tree} first on PYTHONPATH")
    operations = [text for text in ids if text.startswith(PREFIX)]
    cells = order(Cell.from_id(text) for text in ids if text not in operations)
    with Path(file).open("a", encoding="utf-8") as out:
        for line in chain(_cells(cells, tier, int(seed)), check_operations(operations, tier)):
            out.write(json.dumps(line) + "\n")
            out.flush()


def _cells(cells: Sequence[Cell], tier: str, seed: int) -> Iterator[dict[str, Any]]:
    import torch

    from specmatrix.matrix.run.runner import reference_runner

    torch.set_num_threads(1)
    runner = reference_runner(seed, tier)
    for cell in cells:
        record = runner.run_cell(cell)
        gates = {gate.name: [gate.state, gate.message] for gate in record.gates}
        yield {"cell": record.id, "gates": gates, "error": record.error, "seconds": record.seconds}


if __name__ == "__main__":
    # A fault may make the engine loop forever, so the process must end with its parent.
    exit_with_parent()
    main(sys.argv[1:])
