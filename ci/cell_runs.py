"""Execution of a command's cells: the engine, the planted fault, and the number of workers."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from specmatrix import HOME
from specmatrix.ci.local import LIMIT_SECONDS, ShardJob, run_plan
from specmatrix.ci.planner import Host, plan
from specmatrix.ci.run_options import RunOptions
from specmatrix.errors import ConfigError, shown
from specmatrix.extras import require
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import STARTS, TIMED, Tier, repro, visible_gpus
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.cover.selection import stored_ranks
from specmatrix.matrix.faults.command import select as select_faults
from specmatrix.matrix.faults.fault import delays
from specmatrix.matrix.faults.plant import planted
from specmatrix.matrix.gates.same_texts import SameTexts
from specmatrix.matrix.run.explain import Explain
from specmatrix.matrix.run.waivers import file_option
from specmatrix.matrix.subjects.registry import foreign_subject
from specmatrix.matrix.workloads.subset import Subset
from specmatrix.reports.render.console import counting
from specmatrix.reports.schema import REFERENCE, CellResult, WaiverRule, is_red
from specmatrix.reports.wording import shorten
from specmatrix.user_file import named_files

if TYPE_CHECKING:
    from specmatrix.ci.ray import Cluster

# Characters shown of each worker's cell id in the progress bar.
SHOWN: Final = 32
NO_SECONDS: Final[Mapping[str, float]] = MappingProxyType({})
COMPILING: Final = "compiling CPU kernels, once"
# A run of one shard; the merged report of several compares their rounds again.
WHOLE: Final = "1/1"


@dataclass(frozen=True, slots=True)
class CellRuns:
    """Runs the cells of a job on `workers` workers; the fault is planted in the job's tree. durations: seconds by cell
    id, estimates by default. cluster: where the cells run, None for this machine. noun: a cell, on the progress bar."""

    job: ShardJob
    workers: int
    durations: Mapping[str, float] = field(default_factory=dict)
    cluster: Cluster | None = None
    noun: str = "cell"

    def __call__(self, cells: Sequence[Cell], only: Subset | None = None) -> Generator[CellResult]:
        """The cells' records as they finish, with a progress bar that counts them and the red ones and shows each
        worker's cell. only: the requests that run instead of the options' own."""
        runs = self
        if only is not None:
            names = ",".join(only.requests) or None
            runs = self._with(options=dataclasses.replace(self.job.options, requests=names, tokens=only.tokens))
        tier = find_tier(self.job.options.tier)
        hosts: Sequence[Host] = [Host("local", visible_gpus(tier.name), self.workers)]
        execute: Callable[..., Iterator[CellResult]] = run_plan
        if self.cluster is not None:
            hosts, execute = self.cluster.hosts, self.cluster.run_plan
        work = plan(cells, self.durations, hosts, tier.gpus, ranks=stored_ranks())
        texts = SameTexts()  # of all workers
        red, today = 0, datetime.now(UTC).date().isoformat()
        ours = self.cluster is None and (self.job.options.subject, tier.name) == (REFERENCE, "cpu")
        first = COMPILING if ours and compiles_kernels(self.job.tree or HOME) else ""
        with counting(len(cells), self.noun, first=first) as update:

            def show(current: list[str]) -> None:
                update(" · ".join(shorten(at, SHOWN) for at in current), 0, red)

            for record in execute(work, runs.job, show):
                record = texts.judged(record, last=self.job.options.shard == WHOLE)
                red += is_red(record, today)
                update(None, 1, red)
                yield runs.with_command(record)

    def explained(self, which: Explain) -> CellRuns:
        """The same runs, but rerunning these cells with a trace."""
        return self._with(explain=which, limit=self.job.limit * (2 if which in ("red", "every") else 1))

    def beside(self, seconds: float) -> CellRuns:
        """The same runs for cells beside red ones, which may take this long each."""
        return dataclasses.replace(self._with(limit=seconds), noun="neighbouring cell")

    def _with(self, **changes: Any) -> CellRuns:  # noqa: ANN401 - fields of the job
        return dataclasses.replace(self, job=dataclasses.replace(self.job, **changes))

    def with_command(self, record: CellResult) -> CellResult:
        """The record with the command that reruns its cell exactly: it plants the fault, selects the requests and names
        the waivers, without which a cell that passes a known failure would be green."""
        asked = self.job.options
        given = [f"--stage {TIMED}"] if asked.stage == TIMED else []
        given += [f"--starts {asked.starts}"] if asked.starts else []
        given += [one.options for one in (asked.endpoint, asked.only) if one is not None]
        given += filter(None, [asked.files])
        given += [file_option(asked.waivers)] if asked.waivers else []
        again = repro(record.id, asked.tier, asked.seed, asked.subject, asked.fault or "", " ".join(given))
        return replace(record, repro=again)


def compiles_kernels(root: Path) -> bool:
    """Whether numba's cache has none of the decoder layer's loops, as the packages at `root` have them now, for this
    Python: they compile before the first cell ends."""
    source = root / "kernels" / "decoder_layer" / "compiled.py"
    cache = Path(os.environ.get("NUMBA_CACHE_DIR") or source.parent / "__pycache__")
    indices = cache.rglob(f"compiled.*.py{sys.version_info[0]}{sys.version_info[1]}.nbi")
    return all(index.stat().st_mtime < source.stat().st_mtime for index in indices)


@contextmanager
def cell_runs(
    options: RunOptions, workers: int, durations: Mapping[str, float] = NO_SECONDS, waivers: tuple[WaiverRule, ...] = ()
) -> Iterator[CellRuns]:
    """Runs of one tier's cells while their fault is planted. waivers: the rules of the options' file. A Ray cluster
    gets the packages as they are here; `workers` of its tasks share a GPU.

    ConfigError on a fault that is unknown in the tier or cannot be planted in the subject, on a cluster that cannot run
    the tier, or on a subject whose speed cannot be compared.
    """
    engine, subject, timed = foreign_subject(options.subject, options.endpoint), options.subject, options.stage == TIMED
    if options.fault is not None and engine is not None:
        raise ConfigError(f"a fault is planted in the reference engine only; subject {shown(subject)} is another one")
    if timed and engine is not None and not engine.profile.has_baseline:
        raise ConfigError(
            f"stage {TIMED!r} compares with the same engine without drafts, and subject {shown(subject)} has none; "
            "give --baseline-url"
        )
    patch = None if options.fault is None else select_faults([options.fault], options.tier, delays())[0].patch
    seconds = LIMIT_SECONDS
    if engine is not None:  # A cell may start its engine and the baseline's.
        seconds += 2 * (engine.profile.start_seconds + engine.profile.answer_seconds)
    if timed:
        seconds *= 1 + (options.starts or STARTS)
    if options.on is not None and named_files():
        raise ConfigError("--on sends no file of yours to the cluster; install it there and name it as a package")
    connect = None if options.on is None else _reached(options.on)
    with ExitStack() as stack:
        tree: Path | None = None
        cluster: Cluster | None = None
        if patch is not None or connect is not None:
            tree = stack.enter_context(planted(patch))
            cluster = None if connect is None else stack.enter_context(connect(find_tier(options.tier), tree, workers))
        yield CellRuns(ShardJob(options, waivers, seconds, tree), workers, durations, cluster=cluster)


def _reached(address: str) -> Callable[[Tier, Path, int], AbstractContextManager[Cluster]]:
    """A connection to a cluster. ConfigError if nothing listens there, or without Ray."""
    require("ray")
    from specmatrix.ci.ray import connected, knock

    knock(address)
    return partial(connected, address)
