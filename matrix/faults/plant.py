"""Patches a copy of the packages and runs cells in a fresh process that imports the copy."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, Literal, Protocol, TypeAlias

import specmatrix
from specmatrix.child_process import ChildProcess
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import VISIBLE
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.faults.kernels import PREFIX
from specmatrix.reports.schema import REFERENCE, CellResult
from specmatrix.reports.store import cell_from_json
from specmatrix.temp_dir import TempDir

OUTPUT_TAIL: Final = 300  # characters
STOPPED: Final = "the trial was stopped"
HUNG: Final = "the process was still running"


class Processes:
    """Runs each command in the calling thread; `stop` kills the running ones and prevents new ones."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: set[ChildProcess] = set()
        self._stopped = False

    def run(
        self,
        command: list[str],
        folder: Path,
        environment: Mapping[str, str],
        seconds: float,
        results: Path | None = None,
    ) -> str | None:
        """None if the process exits with 0, else its exit status and the end of its output.

        It is killed after `seconds`, or with `results`, a file that it writes, once that has not grown for this long.
        """
        with self._lock:
            if self._stopped:
                return STOPPED
            process = ChildProcess(command, folder, environment)
            self._running.add(process)
        try:
            written = 0
            while (status := process.wait(seconds)) is None and (size := _size(results)) > written:
                written = size
        finally:
            process.stop()
            with self._lock:
                self._running.discard(process)
        if status is None:
            return f"{HUNG} after {seconds:g} s" + " without a result" * (results is not None)
        return None if status == 0 else f"exit status {status}: {process.output_end(OUTPUT_TAIL)}"

    def stop(self) -> None:
        """Kill every running process; its `run` returns."""
        with self._lock:
            self._stopped = True
            running = [*self._running]
        for process in running:
            process.stop()


def _size(file: Path | None) -> int:
    return file.stat().st_size if file is not None and file.is_file() else 0


ROOT: Final = specmatrix.HOME
PACKAGES: Final = ("engine", "kernels", "matrix", "ci", "reports")
# Makes Triton interpret its kernels without a GPU (as `kernels.backend`, which needs torch).
INTERPRETER: Final = "TRITON_INTERPRET"
# Several times the longest cell; a fault may make the engine loop forever.
SECONDS: Final = 180.0
Goldens: TypeAlias = Literal["reviewed", "blessed"]


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """One cell's gate results: name to (state, message). `error`: the crash, None if none. `record`: None for an
    operation."""

    cell: str
    gates: dict[str, tuple[str, str]]
    error: str | None
    seconds: float
    record: CellResult | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One process: the cells it completed, and how it ended if it did not complete them all."""

    verdicts: tuple[CellVerdict, ...]
    died: str | None


class Plantable(Protocol):
    """A change of the sources, such as a Patch."""

    def apply(self, root: Path) -> list[Path]:
        """Make the change in the tree at `root`; returns the changed files. ConfigError if it does not apply."""
        ...


@contextmanager
def planted(patch: Plantable | None) -> Iterator[Path]:
    """A copy of the packages, laid out as a checkout, with the patch made (None: unchanged). ConfigError if it does not
    apply."""
    with TempDir("fault") as tree:
        for package in PACKAGES:
            shutil.copytree(ROOT / package, tree / package)
        (tree / "specmatrix").mkdir()
        for path in Path(specmatrix.__file__).parent.glob("*.*"):
            shutil.copy(path, tree / "specmatrix")
        if patch is not None:
            for path in patch.apply(tree):
                # With equal size and mtime Python would load the old byte code.
                Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
        yield tree


def environment(tree: Path, gpu: bool = False) -> dict[str, str]:
    """The environment of a process that imports the copy at `tree`, on one compute thread."""
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return found if gpu else found | {VISIBLE: "", INTERPRETER: "1"}


def trial(
    patch: Plantable | None,
    cells: Sequence[Cell],
    seed: int = 0,
    seconds: float = SECONDS,
    processes: Processes | None = None,
    tier: str = "cpu",
    operations: Sequence[str] = (),
    golden: Goldens = "reviewed",
    first: bool = False,
    subject: str = REFERENCE,
) -> Trial:
    """Check cells, in this order, and operations in a fresh process with the patch applied, run by `processes`.

    seconds: the process is killed after this long without a result. first: stop at the first red cell. golden: the
    table that the gate `config` expects: that of the sources, or the patched engine's own ("blessed"), as if the patch
    included its reviewed table. subject: other than the reference engine, a server of the patched engine; cells in its
    verdicts end in ` on NAME`. ConfigError if there are no cells and operations.
    """
    if not cells and not operations:
        raise ConfigError("a trial needs at least one cell or operation")
    with planted(patch) as tree:
        file = tree / "verdicts.jsonl"
        command = [sys.executable, "-m", "specmatrix.matrix.faults.trial"]
        settings = [str(tree), tier, str(seed), golden, "red" if first else "end", subject, str(file)]
        words = [*(cell.id for cell in cells), *(PREFIX + name for name in operations)]
        around = environment(tree, gpu=bool(find_tier(tier).gpus))
        died = (processes or Processes()).run([*command, *settings, *words], tree, around, seconds, results=file)
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return Trial(tuple(_verdict(line, subject) for line in lines), died)


def _verdict(text: str, subject: str) -> CellVerdict:
    line = json.loads(text)
    if "kind" in line:
        record = cell_from_json(text)
        states = {gate.name: (str(gate.state), gate.message) for gate in record.gates}
        name = record.id if subject == REFERENCE else f"{record.id} on {subject}"
        return CellVerdict(name, states, record.error, record.seconds, record)
    gates = {name: (state, message) for name, (state, message) in line["gates"].items()}
    return CellVerdict(line["cell"], gates, line["error"], line["seconds"])
