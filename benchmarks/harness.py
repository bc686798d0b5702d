"""Cost of the harness: wall times of new processes, including startup, and its share of a cell's time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from specmatrix import HOME
from specmatrix.benchmarks.large_report import BASELINE, Change, write
from specmatrix.benchmarks.metric import Metric, seconds, spread_of, unmeasured, wrong
from specmatrix.benchmarks.overhead import measured_cells, share_of_cell

CELLS: Final = 100_000
# Minimum number of cells; with fewer, the goal does not apply.
MIN_CELLS: Final = 95_000
RUNS: Final = 3
COLLECTION: Final = "collect_100k_cells_seconds"
COLLECTION_GOAL: Final = 5.0
COMPARISON_GOAL: Final = 3.0
MATRIX: Final = HOME / "tests" / "registered" / "cpu" / "test_matrix.py"
CASES: Final = {
    "only the running time differs": Change(),
    "1 % of the cells differ": Change(0.01),
    "10 % of the cells move to v1": Change(0.1, "v1"),
}
# Both reports are loaded in the timed process.
COMPARE: Final = """
import sys
from specmatrix.reports.compare import compare
from specmatrix.reports.store import gc_paused, load
with gc_paused():
    print(sum(compare(load(sys.argv[1]), load(sys.argv[2])).counts.values()))
"""


def measure() -> Iterator[Metric]:
    """Collection by pytest, comparison of reports, and the harness's share of a cell."""
    yield collection()
    yield from comparisons()
    yield share_of_cell(measured_cells())


def collection() -> Metric:
    """Seconds of `pytest --collect-only` over as many cells as the stage `product` has, CELLS at most."""
    missing = missing_for_pytest()
    if missing:
        return unmeasured(COLLECTION, COLLECTION_GOAL, missing)
    options = ["--collect-only", "-q", "--specmatrix-stage", "product", "--specmatrix-limit", str(CELLS)]
    done, times = repeated([sys.executable, "-m", "pytest", str(MATRIX), "-p", "no:cacheprovider", *options])
    if done.returncode:
        return unmeasured(COLLECTION, COLLECTION_GOAL, last_line(done.stdout + done.stderr))
    found = re.search(r"(\d+) tests collected", done.stdout)
    if found is None or not MIN_CELLS <= int(found[1]) <= CELLS:
        return wrong(COLLECTION, COLLECTION_GOAL, f"pytest: {last_line(done.stdout)!r}")
    return Metric(COLLECTION, times, COLLECTION_GOAL, spread_of(times), "lower", f"{int(found[1]):,} cells")


def missing_for_pytest() -> str:
    """The missing requirement for collection by pytest, "" if there is none."""
    if find_spec("pytest") is None:
        return "pytest is not installed; install specmatrix with the extra `pytest`"
    return "" if MATRIX.is_file() else f"{MATRIX} is missing; run this in a checkout"


def comparisons(cells: int = CELLS) -> Iterator[Metric]:
    """Seconds to load and compare two reports of `cells` cells in new processes, for each case."""
    names = {case: f"compare_reports_{number}_seconds" for number, case in enumerate(CASES, 1)}
    if not BASELINE.is_file():
        yield from (
            unmeasured(name, COMPARISON_GOAL, f"{BASELINE} is missing; run this in a checkout")
            for name in names.values()
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        base, head = Path(folder) / "base", Path(folder) / "head"
        write(base, cells, seconds=0.1)
        for case, change in CASES.items():
            write(head, cells, seconds=0.2, change=change)
            # Otherwise the disk would still be writing while the reports are read.
            os.sync()
            done, times = repeated([sys.executable, "-c", COMPARE, str(base), str(head)])
            if done.stdout.strip() != str(cells):
                yield wrong(names[case], COMPARISON_GOAL, last_line(done.stdout + done.stderr))
                continue
            note = f"{cells:,} cells each, {case}"
            yield Metric(names[case], times, COMPARISON_GOAL, spread_of(times), "lower", note)


def repeated(command: Sequence[str]) -> tuple[subprocess.CompletedProcess[str], list[float]]:
    """A command's last run and the wall times of RUNS runs; stops at the first that fails."""
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    times: list[float] = []
    done: list[subprocess.CompletedProcess[str]] = []

    def call() -> None:
        run = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=HOME, env=one_thread, check=False)
        done.append(run)

    while len(times) < RUNS and not (done and done[-1].returncode):
        times.append(seconds(call))
    return done[-1], times


def last_line(text: str) -> str:
    """The last non-empty line."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
