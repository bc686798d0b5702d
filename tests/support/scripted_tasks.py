"""Main functions of Ray tasks that replace `ci.ray.work`: they run quickly, pass every cell, and break in one way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import sleep

import ray
from ray.util.queue import Queue

from specmatrix.ci import ray as executor
from specmatrix.ci.local import ShardJob
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import VISIBLE
from specmatrix.reports.schema import CellResult, Json
from tests.support.scripted_workers import judged

# What `ci.ray.work` is given.
Task = tuple[ShardJob, int, Sequence[Cell], Queue, Mapping[str, str]]
# Names a folder, in which a file stands for an attempt at a cell.
ATTEMPTS = "SCRIPTED_TASK_ATTEMPTS"
# Pipes in the folder: in one a task asks for the end of its node, in the other it says that it runs.
DOOMED = "doomed"
STARTED = "started"


def head() -> str:
    """The id of the head node."""
    return next(row["NodeID"] for row in ray.nodes() if executor.HEAD in row["Resources"])


def passes(*task: *Task) -> None:
    """A task without a defect, whose records name its GPUs."""
    _run(task, lambda cell: None)


def kills_its_worker_once(*task: *Task) -> None:
    """SIGKILL at the first attempt at each cell."""
    _run(task, lambda cell: _die(_attempt(cell) == 1))


def kills_its_worker_at_drafts(*task: *Task) -> None:
    """SIGKILL at every attempt at a cell with a drafter."""
    _run(task, lambda cell: _die(cell.algorithm != "none" and _attempt(cell) > 0))


def dies_before_it_starts(*task: *Task) -> None:
    """SIGKILL before its first message."""
    _attempt(task[2][0])
    _die()


def fails_drafts(*task: *Task) -> None:
    """Every cell with a drafter is red."""
    _run(task, lambda cell: None, lambda cell, job: judged(cell, job, red=cell.algorithm != "none"))


def falls_silent(*task: *Task) -> None:
    """Nothing comes of a cell with a drafter."""
    _run(task, lambda cell: sleep(600 * (cell.algorithm != "none")))


def never_ends(*task: *Task) -> None:
    """Nothing comes of any cell; the first task says that it runs."""
    job, _, cells, *_ = task

    def wait(cell: Cell) -> None:
        if _attempt(cells[0]) == 1 and job.options.seed == 0:
            (Path(os.environ[ATTEMPTS]) / STARTED).write_text(cell.id)
        sleep(600)

    _run(task, wait)


def is_of_another_version(*task: *Task) -> None:
    """As `ci.ray.work` on a node with another torch."""
    job, number, cells, queue, versions = task
    executor.work(job, number, cells, queue, {**versions, "torch": "0.1"})


def loses_its_node(*task: *Task) -> None:
    """The real work; but the first node that is not the head is doomed at its first record, which does not arrive."""
    doomed = Path(os.environ[ATTEMPTS]) / DOOMED
    job, number, cells, queue, versions = task

    class Fatal:
        def put(self, message: tuple[int, str, CellResult | None]) -> None:
            if message[2] is not None and message[1] != head() and doomed.exists():
                doomed.write_text(message[1])
                signal.pause()
            queue.put(message)

    executor.work(job, number, cells, Fatal(), versions)  # type: ignore[arg-type]


def probe_of_a_machine_with_three_gpus(gpus: int) -> tuple[dict[str, str], dict[str, Json]]:
    """As `ci.ray.probe` on nodes that are part of a larger machine."""
    versions, host = executor.probe(0)
    return versions, host | {"gpus": ["H100", "H100", "H200"] if gpus else []}


def probe_of_another_torch(gpus: int) -> tuple[dict[str, str], dict[str, Json]]:
    """As `ci.ray.probe` on nodes with another torch."""
    versions, host = executor.probe(gpus)
    return versions | {"torch": "0.1"}, host


def probe_that_fails(gpus: int) -> tuple[dict[str, str], dict[str, Json]]:
    """As `ci.ray.probe` on nodes without msgspec."""
    raise ModuleNotFoundError("No module named 'msgspec'")


def probe_of_other_sources(gpus: int) -> tuple[dict[str, str], dict[str, Json]]:
    """As `ci.ray.probe` on nodes that import other sources first."""
    return executor.versions_with(Path(__file__).parent), {}


def _run(task: Task, before: Callable[[Cell], None], judge: Callable[[Cell, ShardJob], CellResult] = judged) -> None:
    job, number, cells, queue, _ = task
    node = ray.get_runtime_context().get_node_id()
    queue.put((number, node, None))
    for cell in cells:
        before(cell)
        # How a test sees where a cell ran, and on which GPUs.
        (Path(os.environ[ATTEMPTS]) / f"{cell.id}@{node}@{os.environ.get(VISIBLE, '')}").touch()
        queue.put((number, node, judge(cell, job)))


def _attempt(cell: Cell) -> int:
    """The number of this attempt at a cell."""
    folder = Path(os.environ[ATTEMPTS])
    number = 1 + len(list(folder.glob(f"{cell.id}#*")))
    (folder / f"{cell.id}#{number}").touch()
    return number


def _die(condition: bool = True) -> None:
    if condition:
        os.kill(os.getpid(), signal.SIGKILL)
