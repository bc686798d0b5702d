"""One trial in a process of its own: the cells of one fault, judged inside the tree that holds the fault.

`python -m matrix.faults.trial TREE TIER SEED FILE CELL...`, with TREE first on the import path. A line of JSON per
cell is appended to FILE as soon as it is judged, so a process that hangs still tells what came before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import engine
from engine.core.errors import ConfigError
from matrix.cell import Cell, order


def main(arguments: list[str]) -> None:
    """Judge the cells. ConfigError if the engine on the import path is not the one in TREE."""
    tree, tier, seed, file, *ids = arguments
    imported = Path(str(engine.__file__)).resolve()
    if not imported.is_relative_to(Path(tree).resolve()):
        raise ConfigError(f"the engine under trial is {imported}, not the one in {tree}; clear the import path")
    _judge(ids, tier, int(seed), Path(file))


def _judge(ids: list[str], tier: str, seed: int, file: Path) -> None:
    import torch

    from matrix.runner import reference_runner

    torch.set_num_threads(1)
    runner = reference_runner(seed, tier)
    with file.open("a", encoding="utf-8") as out:
        for cell in order(Cell.from_id(text) for text in ids):
            record = runner.run_cell(cell)
            gates = {gate.name: [gate.state, gate.message] for gate in record.gates}
            line = {"cell": record.id, "gates": gates, "error": record.error, "seconds": record.seconds}
            out.write(json.dumps(line) + "\n")
            out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
