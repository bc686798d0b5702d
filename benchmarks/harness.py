"""Cost of the harness: wall times of new processes, including startup, and its share of a cell's time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final, NamedTuple

from specmatrix import HOME
from specmatrix.benchmarks import cell_overhead, report_compare
from specmatrix.benchmarks.metric import Metric, of, red, spread_of, unmeasured
from specmatrix.benchmarks.pairs import seconds

CELLS: Final = 100_000
RUNS: Final = 10
SLOW_RUNS: Final = 3
ROOT: Final = HOME
MATRIX: Final = ROOT / "tests" / "registered" / "cpu" / "test_matrix.py"
ENUMERATE: Final = f"""
import json, sys
from itertools import islice
from specmatrix.matrix.cover.generate import enumerate_cells
from specmatrix.matrix.cells.selector import parse_selector
wanted = parse_selector("sampling != greedy and not (memory = tight and batch = pair)")
cells = list(islice(enumerate_cells(), {CELLS}))
names = [cell.id for cell in cells if wanted(cell)]
print(json.dumps([len(cells), len(names), len(set(names)), "torch" in sys.modules]))
"""
# Each setting is the default half of the time, so that both refusals and complete resolutions are measured.
RESOLVE: Final = f"""
import json, random, sys, time
from specmatrix.errors import ConfigError
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.matrix.golden.knobs import KNOBS, configured
chance = random.Random(0)
sizes = [len(knob.settings) for knob in KNOBS]
starts = [configured(KNOBS, [chance.choice((0, chance.randrange(n))) for n in sizes]) for _ in range({CELLS})]
ran, start = 0, time.perf_counter()
for config, facts in starts:
    try:
        resolve(config, facts)
    except ConfigError:
        continue
    ran += 1
print(json.dumps([ran, time.perf_counter() - start, "torch" in sys.modules]))
"""
CHECK: Final = (
    "import sys; from specmatrix.matrix.cover.lock import check; r = check(); print(r.text()); sys.exit(not r.ok)"
)
# 1,260 cells of 180 starts: five drafters, four page sizes, three chunk sizes, each timing. Every request runs to its
# limit of at least 37 tokens, greedy and sampled.
LOSSLESS: Final = (
    "model=llama and tp=1 and algorithm in (standalone, eagle3, eagle, ngram, dflash) and "
    "steps=auto and topk=auto and draft_tokens=auto and adaptive=off and overlap=on and "
    "page_size in (1, 4, 16, 64) and prefix_cache=on and context=model and memory=ample and slots=auto and "
    "batch in (single, pair) and session=none and finish=length and abort=none"
)
LOSSLESS_RATE: Final = "lossless_cells_per_minute"
LOSSLESS_LEAST: Final = 1000
LOSSLESS_GOAL: Final = 1000.0
LOSSLESS_RUNS: Final = 2


def measure() -> list[Metric]:
    """Enumeration, resolution, lock check, collection, report comparison, cells per minute, overhead per cell."""
    return [
        enumeration(),
        resolution(),
        lock_check(),
        collection(),
        *comparisons(),
        lossless_rate(),
        cell_overhead.measure(),
    ]


def enumeration() -> Metric:
    """Seconds to enumerate, filter and name CELLS cells, without torch."""
    name, goal = "enumerate_100k_cells_seconds", 1.0
    done, times = _repeat([sys.executable, "-c", ENUMERATE], RUNS)
    if done.returncode:
        return unmeasured(name, goal, _last(done.stderr))
    cells, kept, distinct, torch = json.loads(done.stdout)
    if cells != CELLS or kept != distinct or not 0 < kept < cells or torch:
        return red(name, goal, f"{cells} cells, {kept} kept, {distinct} names, torch imported: {torch}")
    return of(name, times, goal, spread_of(times), "lower", f"{kept:,} of {cells:,} cells pass the filter")


def resolution() -> Metric:
    """Seconds to resolve CELLS start configurations, without torch; their construction is not timed."""
    name, goal = "resolve_100k_configurations_seconds", 10.0
    times: list[float] = []
    ran = 0
    for _ in range(SLOW_RUNS):
        done, _wall = _repeat([sys.executable, "-c", RESOLVE], 1)
        if done.returncode:
            return unmeasured(name, goal, _last(done.stderr))
        ran, taken, torch = json.loads(done.stdout)
        if not 0 < ran < CELLS or torch:
            return red(name, goal, f"{ran} of {CELLS} run, torch imported: {torch}")
        times.append(taken)
    return of(name, times, goal, spread_of(times), "lower", f"{ran:,} of {CELLS:,} run, the others are refused")


def lock_check() -> Metric:
    """Seconds to verify the lock file."""
    name, goal = "lock_check_seconds", 2.0
    done, times = _repeat([sys.executable, "-c", CHECK], RUNS)
    if done.returncode:
        return red(name, goal, _last(done.stdout + done.stderr))
    return of(name, times, goal, spread_of(times), "lower", _last(done.stdout))


def collection() -> Metric:
    """Seconds of `pytest --collect-only` over CELLS cells."""
    name, goal = "collect_100k_cells_seconds", 5.0
    if missing := _missing():
        return unmeasured(name, goal, missing)
    options = ["--collect-only", "-q", "--specmatrix-stage", "product", "--specmatrix-limit", str(CELLS)]
    done, times = _repeat(_pytest(*options), SLOW_RUNS)
    if done.returncode:
        return unmeasured(name, goal, _last(done.stdout + done.stderr))
    found = re.search(r"(\d+) tests collected", done.stdout)
    if found is None or int(found[1]) != CELLS:
        return red(name, goal, f"pytest: {_last(done.stdout)!r}")
    return of(name, times, goal, spread_of(times), "lower")


def comparisons() -> list[Metric]:
    """Seconds to load and compare two reports of CELLS cells, for each case of `report_compare`."""
    found = []
    for number, row in enumerate(report_compare.measure(CELLS, SLOW_RUNS), 1):
        middle, low, high = (float(str(row[key])) for key in ("seconds", "min", "max"))
        name = f"compare_100k_cell_reports_{number}_seconds"
        width, note = (high - low) / middle, str(row["case"])
        found.append(Metric(name, middle, low, high, 2.0, SLOW_RUNS, "lower", width, note=note))
    return found


class PytestRun(NamedTuple):
    """One pytest session: cells that passed, whether any failed, wall time including startup, and its last line."""

    passed: int
    failed: bool
    seconds: float
    last: str


def lossless_rate() -> Metric:
    """Cells per minute through `pytest -n 2`, including the session's startup.

    Every cell compares its tokens with its baseline, which each process runs once per workload, and passes all gates.
    """
    if missing := _missing():
        return unmeasured(LOSSLESS_RATE, LOSSLESS_GOAL, missing)
    return cells_per_minute([_session(LOSSLESS) for _ in range(LOSSLESS_RUNS)])


def cells_per_minute(sessions: Sequence[PytestRun]) -> Metric:
    """The rate of sessions of at least LOSSLESS_LEAST passing cells each; red if any cell is red."""
    name = LOSSLESS_RATE
    for session in sessions:
        if session.failed or session.passed < LOSSLESS_LEAST:
            return red(name, LOSSLESS_GOAL, session.last)
    rates = [60 * session.passed / session.seconds for session in sessions]
    note = f"{sessions[-1].passed} cells with all their gates in {sessions[-1].seconds:.1f} s, including startup"
    return of(name, rates, LOSSLESS_GOAL, 0.0, note=note)


def _session(cells: str) -> PytestRun:
    done, times = _repeat(_pytest("-q", "-n", "2", "--specmatrix-stage", "product", "--specmatrix-cells", cells), 1)
    found = re.search(r"(\d+) passed", done.stdout)
    return PytestRun(int(found[1]) if found else 0, bool(done.returncode), times[0], _last(done.stdout + done.stderr))


def _missing() -> str:
    """The missing requirement for measuring through pytest, "" if none."""
    absent = [name for name in ("pytest", "xdist") if find_spec(name) is None]
    if absent:
        return f"{absent[0]} is not installed; install specmatrix with the extra `pytest`"
    return "" if MATRIX.is_file() else f"{MATRIX} is missing; run this in a checkout"


def _pytest(*options: str) -> list[str]:
    return [sys.executable, "-m", "pytest", str(MATRIX), "-p", "no:cacheprovider", *options]


def _repeat(command: Sequence[str], runs: int) -> tuple[subprocess.CompletedProcess[str], list[float]]:
    """A command's last run and all wall times; stops at the first failure."""
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    times: list[float] = []
    done: list[subprocess.CompletedProcess[str]] = []

    def call() -> None:
        run = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=ROOT, env=one_thread, check=False)
        done.append(run)

    while len(times) < runs and not (done and done[-1].returncode):
        times.append(seconds(call))
    return done[-1], times


def _last(text: str) -> str:
    """The last non-empty line."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
