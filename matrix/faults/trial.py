"""The process of one trial: checks cells and operations in a patched tree.

`python -m specmatrix.matrix.faults.trial TREE TIER SEED GOLDEN UNTIL SUBJECT FILE CELL...`, with TREE first on the path
of imports; an operation is named `kernel:NAME`. UNTIL is `end`, or `red` to stop at the first red cell. Each result is
appended to FILE as a line of JSON at once, so a process that hangs leaves the results before it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import specmatrix.engine
from specmatrix.errors import ConfigError
from specmatrix.exit_with_parent import exit_with_parent
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults.kernels import PREFIX, check_operations
from specmatrix.matrix.gates.config import ConfigGate
from specmatrix.matrix.golden.outcomes import blessed_table
from specmatrix.matrix.run.plugins import load_plugins
from specmatrix.matrix.subjects.http.endpoint import FLAGS, Endpoint
from specmatrix.matrix.subjects.http.sglang import SglangSubject
from specmatrix.matrix.subjects.http.sglang_engine import SglangEngine
from specmatrix.matrix.subjects.protocol import Unsupported
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.schema import RED_STATES, REFERENCE
from specmatrix.reports.store import cell_to_json

if TYPE_CHECKING:
    from specmatrix.matrix.run.runner import Runner


def main(arguments: list[str]) -> None:
    """Check the cells and operations. ConfigError if the imported engine is not the one in TREE."""
    tree, tier, seed, golden, until, subject, file, *ids = arguments
    imported = Path(str(specmatrix.engine.__file__)).resolve()
    if not imported.is_relative_to(Path(tree).resolve()):
        raise ConfigError(f"the imported engine is {imported}, not the one in {tree}; put {tree} first on PYTHONPATH")
    load_plugins()
    operations = [text for text in ids if text.startswith(PREFIX)]
    cells = [Cell.from_id(text) for text in ids if text not in operations]
    with Path(file).open("a", encoding="utf-8") as out:
        laws = map(json.dumps, check_operations(operations, tier))
        made = _cells(cells, tier, int(seed), golden == "blessed", until == "red", subject)
        for line in chain(made, laws):
            out.write(line + "\n")
            out.flush()


def _cells(cells: Sequence[Cell], tier: str, seed: int, blessed: bool, first: bool, subject: str) -> Iterator[str]:
    import torch

    from specmatrix.matrix.run.runner import reference_runner, subject_runner

    torch.set_num_threads(1)
    with ExitStack() as servers:
        if subject == REFERENCE:
            runner = reference_runner(seed, tier)
        else:
            runner = subject_runner(subject, seed, tier, endpoint=_endpoint(subject, cells[0], servers))
            servers.callback(runner.shut_down)
        yield from _records(runner, cells, blessed, first)


def _endpoint(subject: str, cell: Cell, servers: ExitStack) -> Endpoint:
    """Servers of this engine: one for each cell where the subject can start it, else a running one, for the cell."""
    launch = Endpoint(launch=f"{sys.executable} -m specmatrix serve {FLAGS}")
    if subject == SglangSubject.name:
        return launch
    starter = SglangSubject(endpoint=launch)
    command = starter.translate(prepare(cell))
    if isinstance(command, Unsupported):
        raise ConfigError(f"{cell.id} cannot be served: {command.reason}")
    running = starter.start(command)
    servers.callback(running.close)
    assert isinstance(running, SglangEngine)
    return Endpoint(url=running.url)


def _records(runner: Runner, cells: Sequence[Cell], blessed: bool, first: bool) -> Iterator[str]:
    if blessed:
        gate = ConfigGate(golden=blessed_table(cells), flags={})
        runner.refusal = gate.judge_refusal
        runner.gates = [gate if each.name == gate.name else each for each in runner.gates]
    for cell in cells:
        record = runner.run_cell(cell)
        yield cell_to_json(record)
        if runner.device_lost or (first and record.state in RED_STATES):
            break


if __name__ == "__main__":
    # A fault may make the engine loop forever, so the process must end with its parent.
    exit_with_parent()
    main(sys.argv[1:])
