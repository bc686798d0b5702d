"""The local executor: one process per shard of a plan, records streamed back as they come.

Workers are spawned with one compute thread each. A worker that dies or hangs costs the cell it was at, which is
recorded as INFRA; a fresh worker goes on with the rest of its shard.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from time import monotonic
from typing import Final

from specmatrix.ci.planner import ShardPlan
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.run.prepared_cell import prepare
from specmatrix.matrix.run.record import lost
from specmatrix.matrix.run.tiers import VISIBLE
from specmatrix.reports.schema import CellResult

# A cell takes seconds; a silence of this length means that its engine hangs.
LIMIT_SECONDS: Final = 180.0
THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class ShardJob:
    """What every worker must know. limit: seconds that one cell may take, the start of the worker included."""

    seed: int
    tier: str
    stage: str
    limit: float = LIMIT_SECONDS


@dataclass(slots=True)
class Worker:
    """One process and what it still owes: cells, in the order in which it runs them. ready: it has started up.

    gpus: the devices of this machine that it sees.
    """

    process: BaseProcess
    connection: Connection
    owed: list[Cell]
    gpus: tuple[int, ...]
    ready: bool = False
    heard: float = field(default_factory=monotonic)

    @property
    def at(self) -> str:
        """The cell that it runs, if it has started up."""
        return self.owed[0].id if self.ready else "starting"


def run_plan(
    plan: ShardPlan, job: ShardJob, tell: Callable[[list[str]], None] = lambda at: None
) -> Iterator[CellResult]:
    """The records of every cell of the plan, in the order in which they end. However it ends, the workers end too.

    tell: called whenever that may have changed with what each worker is at.
    """
    shards = [([cell for group in shard.groups for cell in group.cells], shard.gpus) for shard in plan.shards]
    workers: list[Worker] = []
    try:
        for cells, gpus in shards:
            if cells:
                workers.append(_start(cells, job, gpus))
        while workers:
            tell([worker.at for worker in workers])
            yield from _turn(workers, job)
    finally:
        for worker in workers:
            _stop(worker)


def _turn(workers: list[Worker], job: ShardJob) -> Iterator[CellResult]:
    """Wait for news, and take it from every worker that has some; replace workers that died or hang."""
    patience = min(worker.heard for worker in workers) + job.limit - monotonic()
    ready = wait([worker.connection for worker in workers], max(patience, 0.0))
    for worker in [worker for worker in workers if worker.connection in ready]:
        try:
            news: CellResult | None = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            yield from _replace(workers, worker, job, f"its worker died with exit code {worker.process.exitcode}")
            continue
        worker.heard = monotonic()
        if news is None:
            worker.ready = True
            continue
        worker.owed = [cell for cell in worker.owed if cell.id != news.id]
        if not worker.owed:
            workers.remove(worker)
            _stop(worker)
        yield news
    for worker in [worker for worker in workers if monotonic() - worker.heard > job.limit]:
        yield from _replace(workers, worker, job, f"it took more than {job.limit:g} s")


def _replace(workers: list[Worker], worker: Worker, job: ShardJob, what: str) -> Iterator[CellResult]:
    """Record the cell that a worker was at as lost, and start another worker for what is left.

    A worker that never started up takes all its cells with it: another one would not start up either.
    """
    _stop(worker)
    workers.remove(worker)
    missing = worker.owed[:1] if worker.ready else worker.owed
    rest = worker.owed[len(missing) :]
    if rest:
        workers.append(_start(rest, job, worker.gpus))
    yield from [lost(prepare(cell, job.tier, job.seed), what) for cell in missing]


def _start(cells: Sequence[Cell], job: ShardJob, gpus: tuple[int, ...]) -> Worker:
    ours, theirs = get_context("spawn").Pipe(duplex=False)
    process = get_context("spawn").Process(target=work, args=(tuple(cells), job, gpus, theirs), daemon=True)
    # Ctrl-C reaches every process of the terminal; a worker inherits that it does not take it, from its first line on.
    # The tracker that all workers share unblocks signals when it starts, so it starts before.
    resource_tracker.ensure_running()
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
    # Without this the pipe would stay open here, and the death of the worker would go unheard.
    theirs.close()
    return Worker(process, ours, list(cells), gpus)


def _stop(worker: Worker) -> None:
    worker.process.kill()
    worker.process.join()
    worker.connection.close()


def work(cells: tuple[Cell, ...], job: ShardJob, gpus: tuple[int, ...], connection: Connection) -> None:
    """The life of a worker: send None when it is ready, then the record of each cell. The parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    for name in THREADS:
        os.environ[name] = "1"
    # A cell of the CPU tier must not find a GPU, and lanes of a GPU tier must not find each other's.
    os.environ[VISIBLE] = visible(gpus, os.environ.get(VISIBLE))
    import torch

    from specmatrix.matrix.run.runner import reference_runner

    torch.set_num_threads(1)
    runner = reference_runner(job.seed, job.tier)
    connection.send(None)
    for cell in cells:
        connection.send(runner.run_cell(cell))
    connection.close()


def visible(gpus: Sequence[int], inherited: str | None) -> str:
    """What the environment of a worker says of its GPUs; `inherited`: what this process was given, None for all."""
    names = None if inherited is None else inherited.split(",")
    return ",".join(str(gpu) if names is None else names[gpu] for gpu in gpus)


def _end_with_parent() -> None:
    """End this worker at once when the process that started it is gone: nobody waits for its cells."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
