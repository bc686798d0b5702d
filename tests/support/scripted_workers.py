"""Main functions of workers that start quickly, pass every cell, and break in one way. They replace `ci.local.work`."""

from __future__ import annotations

import gc
import os
import signal
import struct
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from specmatrix.ci.local import RETIRED, ShardJob, received
from specmatrix.ci.run_options import RunOptions
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.run.provenance import record
from specmatrix.matrix.run.waivers import waive
from specmatrix.matrix.workloads.build import workload
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.reports.schema import CellResult

# Names a folder in which each worker leaves a file, so that it knows how many came before it.
STARTS = "SCRIPTED_WORKER_STARTS"


def notes_frozen_objects(cell: Cell, seed: int) -> tuple[RequestSpec, ...]:
    """A cell's requests; how many objects of its process no search for garbage visits is left in a file."""
    Path(os.environ[STARTS], "frozen").write_text(str(gc.get_freeze_count()), encoding="utf-8")
    return workload(cell, seed)


class NotingOptions(RunOptions):
    """Options whose requests are those of `notes_frozen_objects`."""

    only = property(lambda self: notes_frozen_objects)


def judged(cell: Cell, job: ShardJob, red: bool = False) -> CellResult:
    """The record of a cell with one gate."""
    gate = Outcome("config", State.FAIL if red else State.PASS, message="wrong" * red)
    return record(prepare(cell, job.options.tier, job.options.seed), "FAIL" if red else "PASS", outcomes=(gate,))


def passes(job: ShardJob, gpus: Sequence[int], connection: Connection, red_drafts: bool = False) -> None:
    """A worker without a defect."""
    connection.send(None)
    for cell in received(connection):
        found = judged(cell, job, red=red_drafts and cell.algorithm != "none")
        connection.send(waive(found, job.waivers, job.options.subject, None))


def fails_drafts(job: ShardJob, gpus: Sequence[int], connection: Connection) -> None:
    """Every cell with a drafter is red, or waived."""
    passes(job, gpus, connection, red_drafts=True)


def dies_at_its_first_start(job: ShardJob, gpus: Sequence[int], connection: Connection) -> None:
    """SIGKILL before it is ready; the second worker passes."""
    if first():
        os.kill(os.getpid(), signal.SIGKILL)
    passes(job, gpus, connection)


def never_starts(job: ShardJob, gpus: Sequence[int], connection: Connection) -> None:
    """Exit status 3 before it is ready."""
    first()
    os._exit(3)


def dies_in_a_message(job: ShardJob, gpus: Sequence[int], connection: Connection) -> None:
    """SIGKILL after a part of its first record; the second worker passes."""
    if first():
        connection.send(None)
        os.write(connection.fileno(), struct.pack("!i", 1000) + b"half a record")
        os.kill(os.getpid(), signal.SIGKILL)
    passes(job, gpus, connection)


def is_terminated(job: ShardJob, gpus: Sequence[int], connection: Connection) -> None:
    """SIGTERM when it is ready; the second worker passes."""
    if first():
        connection.send(None)
        os.kill(os.getpid(), signal.SIGTERM)
    passes(job, gpus, connection)


def loses_its_context(job: ShardJob, gpus: Sequence[int], connection: Connection) -> None:
    """Retires after its first record; the second worker passes."""
    if first():
        connection.send(None)
        connection.send(judged(next(received(connection)), job))
        os._exit(RETIRED)
    passes(job, gpus, connection)


def aborts(job: ShardJob, gpus: Sequence[int], connection: Connection) -> None:
    """SIGABRT when it is ready; the second worker passes."""
    if first():
        connection.send(None)
        os.abort()
    passes(job, gpus, connection)


def closes_its_pipe(job: ShardJob, gpus: Sequence[int], connection: Connection) -> None:
    """The pipe is closed and the process stays; the second worker passes."""
    if first():
        connection.send(None)
        connection.close()
        signal.pause()
    passes(job, gpus, connection)


def falls_silent(job: ShardJob, gpus: Sequence[int], connection: Connection) -> None:
    """Nothing comes after it was ready; the second worker passes."""
    if first():
        connection.send(None)
        signal.pause()
    passes(job, gpus, connection)


def prints(job: ShardJob, gpus: Sequence[int], connection: Connection) -> None:
    """Half a megabyte on each standard stream and on descriptor 1."""
    for _ in range(1000):
        os.write(1, b"noise" * 100 + b"\n")
        print("noise" * 100, flush=True)
        print("noise" * 100, file=sys.stderr, flush=True)
    passes(job, gpus, connection)


def first() -> bool:
    """Whether no worker was started before this one."""
    folder = Path(os.environ[STARTS])
    (folder / str(os.getpid())).touch()
    return len(list(folder.iterdir())) == 1
