"""The local executor: one process per shard of a plan, records streamed back as cells finish.

Workers have one compute thread each. They take the plan's groups one by one from a common queue, so that
none is idle while another has groups to spare. If a worker dies or hangs, its current cell is recorded as INFRA, or as
FAIL if it crashed; the rest of its group returns to the queue, and a new worker takes its place. One that does not
start is replaced once.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from specmatrix import HOME
from specmatrix.child_process import CRASHES, ChildProcess, start
from specmatrix.ci.planner import Group, Shard, ShardPlan
from specmatrix.ci.run_options import RunOptions
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import TIMED, VISIBLE
from specmatrix.matrix.run.explain import Explain
from specmatrix.matrix.run.provenance import lost
from specmatrix.matrix.run.waivers import waive
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.schema import REFERENCE, CellResult, WaiverRule
from specmatrix.stopping import deferred

if TYPE_CHECKING:
    from specmatrix.matrix.run.runner import Runner

# A cell takes seconds; a worker silent for this long counts as hung.
LIMIT_SECONDS: Final = 180.0
# Between two calls of `on_progress`, at most.
TICK_SECONDS: Final = 1.0
# A worker that closed its pipe may still be exiting.
EXIT_SECONDS: Final = 5.0
# Exit status of a worker that can run no further cell.
RETIRED: Final = 75
# In so many cells some are compared with networks of transformers.
MANY: Final = 40
# What a worker of the reference engine imports before its garbage collector ignores all that there is.
COMPILED: Final = "specmatrix.kernels.decoder_layer.compiled"
NETWORKS: Final = "transformers.models.auto.modeling_auto"
THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class ShardJob:
    """The settings that every worker gets. waivers: the rules of the options' file. limit: seconds per cell, including
    the worker's start. tree: a copy of the packages with a planted fault that the workers import, None for this
    process's own. explain: the cells that run a second time with a trace, see `Runner`. many: there are so many cells
    that some need transformers."""

    options: RunOptions
    waivers: tuple[WaiverRule, ...] = ()
    limit: float = LIMIT_SECONDS
    tree: Path | None = None
    explain: Explain = "none"
    many: bool = False


@dataclass(slots=True)
class Waiting:
    """The remaining work of a plan. lanes: those without a worker yet."""

    job: ShardJob
    queue: list[Group]
    lanes: list[Shard]


@dataclass(slots=True)
class Worker:
    """One process and the group that it runs.

    work: the source of its groups. lane: the shard of the plan whose GPUs it uses. second: whether it replaces a worker
    that did not start. heard: time of its last message. group: its remaining cells, None until it is ready.
    """

    work: Waiting
    lane: Shard
    process: ChildProcess
    connection: Connection[tuple[Cell, ...], CellResult | None]
    second: bool
    heard: float
    group: Group | None = None

    @property
    def current(self) -> str:
        """The id of the cell that it runs, or "starting"."""
        return self.group.cells[0].id if self.group else "starting"


def run_plan(
    plan: ShardPlan, job: ShardJob, on_progress: Callable[[list[str]], None] = lambda current: None
) -> Iterator[CellResult]:
    """The records of all cells of the plan, in the order in which they finish. The workers always end with it.

    on_progress: called with the current cell of each worker whenever they may have changed, and every TICK_SECONDS.
    """
    queue = plan.queue
    many = sum(len(group.cells) for group in queue) >= MANY
    work = Waiting(replace(job, many=many), queue, list(plan.shards))
    workers: list[Worker] = []
    try:
        while _start_lanes(workers, work) or workers:
            on_progress([worker.current for worker in workers])
            yield from _receive(workers)
    finally:
        with deferred():  # a second signal leaves no worker behind either
            for worker in workers:
                _stop(worker)


def _start_lanes(workers: list[Worker], work: Waiting) -> bool:
    """Start the workers that have something to do; returns whether there were any."""
    found = False
    while work.lanes and len(work.queue) > sum(worker.group is None for worker in workers):
        _start(workers, work, work.lanes.pop(0))
        found = True
    return found


def _receive(workers: list[Worker]) -> Iterator[CellResult]:
    """Wait for messages and receive them from every worker that sent one; replace workers that died or hang."""
    timeout = min(worker.heard + worker.work.job.limit for worker in workers) - monotonic()
    ready = wait([worker.connection for worker in workers], min(max(timeout, 0.0), TICK_SECONDS))
    for worker in [worker for worker in workers if worker.connection in ready]:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):  # OSError: it died in the middle of a message
            code = worker.process.wait(EXIT_SECONDS)
            what = "closed its pipe without ending" if code is None else f"died with exit code {code}"
            yield from _replace(workers, worker, what, code)
            continue
        worker.heard = monotonic()
        cells = worker.group.cells[1:] if worker.group else ()
        if cells and worker.group:
            worker.group = replace(worker.group, cells=cells)
        else:
            _give(workers, worker)
        if message is not None:
            yield message
    for worker in [worker for worker in workers if monotonic() - worker.heard > worker.work.job.limit]:
        yield from _replace(workers, worker, f"was silent for more than {worker.work.job.limit:g} s")


def _give(workers: list[Worker], worker: Worker) -> None:
    """Send a worker its next group, or end it if none is left."""
    queue = worker.work.queue
    if not queue:
        _stop(worker)
        workers.remove(worker)
        return
    worker.group = queue.pop(0)
    with suppress(OSError):  # it died; the next message is its end
        worker.connection.send(worker.group.cells)


def _replace(workers: list[Worker], worker: Worker, what: str, code: int | None = None) -> Iterator[CellResult]:
    """Record a worker's current cell as `lost`, return the others of its group to the queue and start another worker.
    code: its exit status, None if it has none.

    One that retired or never became ready loses no cell. If it is the second that did not, a third would not start
    either; without other workers, or GPUs for some, all cells of the queue are recorded as INFRA.
    """
    _stop(worker)
    workers.remove(worker)
    work, reason = worker.work, f"its worker {what}"
    missing: Sequence[Cell] = ()
    if worker.group:
        lost = 0 if code == RETIRED else 1
        missing, rest = worker.group.cells[:lost], worker.group.cells[lost:]
        if rest:
            work.queue.insert(0, replace(worker.group, cells=rest))
    if worker.group or not worker.second:
        if work.queue:
            _start(workers, work, worker.lane, second=worker.group is None)
    elif not work.lanes and not workers:
        reason = f"two workers in a row did not start; the second {what}"
        missing = [cell for group in work.queue for cell in group.cells]
        work.queue.clear()
    for cell in missing:
        yield lost_cell(cell, work.job, reason, worker.group is not None and code in CRASHES)


def lost_cell(cell: Cell, job: ShardJob, reason: str, crashed: bool = False) -> CellResult:
    """The record of a cell whose worker left none, as of `lost`."""
    asked = job.options
    found = lost(prepare(cell, asked.tier, asked.seed, subject=asked.subject), reason, crashed)
    return waive(found, job.waivers, asked.subject, None)


def _start(workers: list[Worker], waiting: Waiting, lane: Shard, second: bool = False) -> None:
    """Start a worker and add it to `workers`."""
    tree = waiting.job.tree
    # A cell of the CPU tier must not see a GPU, and lanes of a GPU tier must not see each other's.
    environment = dict.fromkeys(THREADS, "1") | {VISIBLE: visible(lane.gpus, os.environ.get(VISIBLE))}
    imports = sys.path if tree is None else [str(tree), *sys.path]
    with deferred():  # a signal leaves no worker behind that is in no list
        # The run's standard output is its result, which may be JSON.
        started = start(work, waiting.job, lane.gpus, environment=environment, imports=imports, shown=True)
        workers.append(Worker(waiting, lane, *started, second, monotonic()))


def _stop(worker: Worker) -> None:
    worker.process.stop()
    worker.connection.close()


def work(job: ShardJob, gpus: tuple[int, ...], connection: Connection[CellResult | None, tuple[Cell, ...]]) -> None:
    """Main function of a worker: send None when ready, then each cell's record."""
    if job.tree is not None and not HOME.is_relative_to(job.tree.resolve()):
        raise ConfigError(f"the worker imports {HOME}, not the patched packages in {job.tree}")
    runner = job_runner(job)
    if job.options.subject == REFERENCE and not gpus:
        for name in (COMPILED, NETWORKS) if job.many else (COMPILED,):
            # An import error surfaces in the first cell that needs the module.
            with suppress(Exception):
                import_module(name)
    freeze()
    connection.send(None)
    for cell in received(connection):
        connection.send(runner.run_cell(cell))
        if runner.device_lost:
            os._exit(RETIRED)
    runner.shut_down()
    connection.close()


def freeze() -> None:
    """Exclude everything imported so far from garbage collection: a pass over its 280,000 objects takes 0.14 s, on a
    GPU twice per engine start."""
    gc.freeze()


def job_runner(job: ShardJob) -> Runner:
    """The runner of a job's cells, on one compute thread."""
    from specmatrix.matrix.run.plugins import load_plugins
    from specmatrix.matrix.run.runner import subject_runner

    if find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)
    load_plugins()
    asked = job.options
    runner = subject_runner(asked.subject, asked.seed, asked.tier, job.waivers, job.explain, asked.endpoint)
    runner.workload = asked.only or runner.workload
    runner.timed, runner.starts = asked.stage == TIMED, asked.starts
    return runner


def received(connection: Connection[CellResult | None, tuple[Cell, ...]]) -> Iterator[Cell]:
    """The cells of the groups that the parent sends, until it ends."""
    with suppress(EOFError, OSError):
        while True:
            yield from connection.recv()


def visible(gpus: Sequence[int], inherited: str | None) -> str:
    """CUDA_VISIBLE_DEVICES of a worker; `inherited`: the value of this process, None if unset."""
    names = None if inherited is None else inherited.split(",")
    return ",".join(str(gpu) if names is None else names[gpu] for gpu in gpus)
