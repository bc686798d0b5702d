"""Time to load and compare two large reports: `python -m specmatrix.benchmarks.report_compare`.

Writes pairs of reports to a temporary directory, then times load + load + compare in new processes, so that no run
benefits from another's cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

from specmatrix.benchmarks.large_report import Change, write

CELLS: Final = 100_000
GOAL_SECONDS: Final = 2.0
CASES: Final = {
    "only the running time differs": Change(),
    "1 % of the cells differ": Change(0.01),
    "10 % of the cells differ": Change(0.1),
    "1 % of the cells move to v1": Change(0.01, "v1"),
    "10 % of the cells move to v1": Change(0.1, "v1"),
}
TIMER: Final = """
import resource, sys, time
start = time.perf_counter()
from specmatrix.reports.compare import compare
from specmatrix.reports.store import load
result = compare(load(sys.argv[1]), load(sys.argv[2]))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(time.perf_counter() - start, time.process_time(), peak, sum(result.counts.values()))
"""


def main() -> None:
    """Print a line for each case, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=CELLS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(options.cells, options.runs)
    if options.json:
        print(json.dumps({"cells": options.cells, "goal_seconds": GOAL_SECONDS, "cases": rows}))
        return
    for row in rows:
        spread = f"({row['min']:.2f} to {row['max']:.2f})"
        rest = f"{row['cpu_seconds']:.2f} s of CPU, {row['megabytes']:.0f} MB each, peak {row['peak_megabytes']:.0f} MB"
        print(f"{row['case']:<32} {row['seconds']:.2f} s {spread}, {rest}")


def measure(cells: int = CELLS, runs: int = 3) -> list[dict[str, object]]:
    """Per case, of load + load + compare in `runs` processes: median, min and max wall seconds, the least CPU seconds
    (imports included), and the peak memory in megabytes, mapped files included."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        write(base, cells, seconds=0.1)
        size = (base / "report.jsonl").stat().st_size / 1e6
        for case, change in CASES.items():
            head = Path(folder) / "head"
            write(head, cells, seconds=0.2, change=change)
            # Otherwise the disk would still be writing while the reports are read.
            os.sync()
            found = [_time(base, head, cells) for _ in range(runs)]
            times = sorted(seconds for seconds, _, _ in found)
            rows.append(
                {
                    "case": case, "seconds": median(times), "min": times[0], "max": times[-1], "megabytes": size,
                    "cpu_seconds": min(cpu for _, cpu, _ in found), "peak_megabytes": max(peak for _, _, peak in found),
                }
            )  # fmt: skip
    return rows


def _time(base: Path, head: Path, cells: int) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds, and peak megabytes."""
    command = [sys.executable, "-c", TIMER, str(base), str(head)]
    done = subprocess.run(command, check=True, capture_output=True, encoding="utf-8")
    seconds, cpu, peak, counted = done.stdout.split()
    if int(counted) != cells:
        raise RuntimeError(f"the comparison must count {cells} cells, got {counted}")
    return float(seconds), float(cpu), float(peak) / 1e3


if __name__ == "__main__":
    main()
