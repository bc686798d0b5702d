"""Time to draw the dashboard of many runs: `python -m specmatrix.benchmarks.history`.

Adds one large report to a history in a temporary directory, multiplies it into runs of other commits with seconds that
vary, red and flaky cells and changes of acceptance, and times `specmatrix site` in new processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from specmatrix.benchmarks.large_report import write
from specmatrix.reports.history.store import SUFFIX, add

RUNS: Final = 1000
CELLS: Final = 1000
GOAL_SECONDS: Final = 10.0
# Two runs a commit, so that a flip is one without a change.
RUNS_A_COMMIT: Final = 2


def main() -> None:
    """Print one line, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--cells", type=int, default=CELLS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="write history and site here instead, and keep them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        fill(folder / "history", options.runs, options.cells)
        times = sorted(_time(folder) for _ in range(options.repeat))
        wall = [seconds for seconds, _ in times]
        size = sum(file.stat().st_size for file in (folder / "site").rglob("*") if file.is_file()) / 1e6
    found = {"runs": options.runs, "cells": options.cells, "goal_seconds": GOAL_SECONDS}
    found |= {"seconds": median(wall), "min": wall[0], "max": wall[-1], "megabytes": size}
    found |= {"cpu_seconds": min(cpu for _, cpu in times)}
    if options.json:
        print(json.dumps(found))
        return
    spread = f"({wall[0]:.2f} to {wall[-1]:.2f}), {found['cpu_seconds']:.2f} s of CPU"
    print(f"{options.runs:,} runs of {options.cells:,} cells: {median(wall):.2f} s {spread}, {size:.1f} MB")


def fill(folder: Path, runs: int, cells: int) -> None:
    """A history of `runs` runs: 1 % of the cells flip in one run of 50, 1 % lose acceptance in the last tenth."""
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch), cells, seconds=0.1)
        run, _ = add(Path(scratch), folder)
    whole = pq.read_table(folder / f"{run}{SUFFIX}").to_pandas()
    (folder / f"{run}{SUFFIX}").unlink()
    draw = np.random.default_rng(0)
    some = np.arange(len(whole)) < max(1, len(whole) // 100)
    for number in range(runs):
        rows = whole.copy()
        rows["run"] = f"{number:06}"
        rows["created"] = (datetime.fromisoformat(whole["created"][0]) + timedelta(hours=number)).isoformat()
        rows["commit"] = f"{number // RUNS_A_COMMIT * 2654435761 % 2**32:08x}" + "0" * 32
        rows["seconds"] *= draw.normal(1.0, 0.05, len(rows)).clip(0.5)
        rows.loc[some & (number >= runs - runs // 10), "acceptance"] *= 0.9
        if number % 50 == 1:
            rows.loc[some, ["state", "red", "message"]] = ["FAIL", "lossless", "3 of 62 tokens differ"]
        pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), folder / f"{number:06}{SUFFIX}")


def _time(folder: Path) -> tuple[float, float]:
    """Wall and CPU seconds of the command."""
    command = [sys.executable, "-m", "specmatrix", "site", str(folder / "site"), "--history", str(folder / "history")]
    os.sync()
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, cpu


if __name__ == "__main__":
    main()
