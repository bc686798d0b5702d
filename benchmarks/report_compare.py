"""How long two large reports take to load and compare: `python -m benchmarks.report_compare`.

Writes pairs of reports of a realistic size per cell to a temporary directory, then times load + load + compare in
fresh processes, so that no cache of one run helps the next.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final

from reports.schema import GATES, CellResult, GateResult, Header, Reason
from reports.writer import ReportWriter

CELLS: Final = 100_000
GOAL_SECONDS: Final = 2.0
# Share of the cells whose numbers differ in head, and the spec version that those resolve to there.
CASES: Final = {
    "only the running time differs": (0.0, "v2"),
    "1 % of the cells differ": (0.01, "v2"),
    "10 % of the cells differ": (0.1, "v2"),
    "1 % of the cells move to v1": (0.01, "v1"),
    "10 % of the cells move to v1": (0.1, "v1"),
}
TIMER: Final = """
import gc, sys, time
start = time.perf_counter()
from reports.compare import compare
from reports.load import load_both
result = compare(*load_both(sys.argv[1], sys.argv[2]))
print(time.perf_counter() - start, sum(result.counts.values()))
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
        print(f"{row['case']:<32} {row['seconds']:.2f} s {spread}, {row['megabytes']:.0f} MB each")


def measure(cells: int = CELLS, runs: int = 3) -> list[dict[str, object]]:
    """Seconds of load + load + compare per case: median, min and max over `runs` processes."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        write(base, cells, share=0.0, seconds=0.1)
        size = (base / "report.jsonl").stat().st_size / 1e6
        for case, (share, version) in CASES.items():
            head = Path(folder) / "head"
            write(head, cells, share, seconds=0.2, version=version)
            times = sorted(_time(base, head, cells) for _ in range(runs))
            rows.append({"case": case, "seconds": median(times), "min": times[0], "max": times[-1], "megabytes": size})
    return rows


def write(directory: Path, cells: int, share: float, seconds: float, version: str = "v2") -> None:
    """A report of `cells` green cells; every `1/share`-th has another acceptance length and the given spec version."""
    header = Header(
        "cpu", "nightly", 0, "2026-09-01T10:00:00+00:00", "0" * 12, False, {"python": "3.11"}, {"cpu": "x", "gpus": []},
        "lock", "data", "zoo",
    )  # fmt: skip
    every = round(1 / share) if share else 0
    with ReportWriter(directory, header) as writer:
        for number, cell in zip(range(cells), _cells(), strict=False):
            cell = _numbered(cell, number)
            if every and number % every == 0:
                cell = _changed(cell, version)
            writer.write(replace(cell, seconds=seconds + number / cells))


def _cells() -> Iterator[CellResult]:
    axes = {
        "algorithm": ("standalone", "eagle3"), "steps": ("1", "2", "3", "5"), "topk": ("1", "2", "4", "8"),
        "draft_tokens": ("auto",), "spec_version": ("auto",), "page_size": ("1", "4", "16", "64"),
        "prefix_cache": ("on", "off"), "prefill_chunk": ("off", "7", "32"), "memory": ("ample", "tight"),
        "batch": ("single", "pair", "ragged", "burst"), "sampling": ("greedy", "temperature", "topk_topp", "mixed"),
        "finish": ("eos", "length", "stop_token", "stop_string"), "abort": ("none", "queued", "running"),
    }  # fmt: skip
    for values in product(*axes.values()):
        yield _cell(dict(zip(axes, values, strict=True)))


def _cell(axes: dict[str, str]) -> CellResult:
    name = ".".join(axes.values())
    steps, topk = int(axes["steps"]), int(axes["topk"])
    resolved = {
        "model_path": "llama-mini", "draft_path": "llama-mini-draft", "algorithm": axes["algorithm"].upper(),
        "num_steps": steps, "topk": topk, "num_draft_tokens": steps + topk, "lag": 1, "spec_version": "v2",
        "page_size": int(axes["page_size"]), "radix_cache": axes["prefix_cache"] == "on", "chunked_prefill_size": 2048,
        "max_total_tokens": 4096, "num_pages": 257, "max_running_requests": 48, "context_length": 512,
        "dtype": "float32", "device": "cpu", "random_seed": 0, "strict_memory": 2, "kv_stamps": True,
    }  # fmt: skip
    gates = tuple(GateResult(gate, "PASS", {"checked": 128, "p": 0.4217}) for gate in GATES if gate != "acceptance")
    acceptance = GateResult(
        "acceptance", "PASS", {"length": 3.1415, "reference": 3.15, "per_position": [0.8, 0.7, 0.6]}, (3.05, 3.22)
    )
    return CellResult(
        id=name, state="PASS", axes=axes, resolved=resolved, expect="runs", tier="cpu", stage="nightly",
        launch_hash="0123456789ab", requested={"speculative_algorithm": axes["algorithm"].upper(), "page_size": 1},
        repro=f"specmatrix run --tier cpu --cells id={name} --seed 0",
        reasons=(Reason("spec_version", "v2", "the overlap schedule is on and the drafter supports it"),),
        witness={"speculated": 120, "tree_compacted": 33, "prefix_hit": 12}, gates=(*gates, acceptance),
    )  # fmt: skip


def _numbered(cell: CellResult, number: int) -> CellResult:
    """The cell with numbers that no other cell has, in half of its gates, as real cells have."""
    gates = [
        gate if index % 2 else replace(gate, numbers={**gate.numbers, "tokens": number})
        for index, gate in enumerate(cell.gates[:-1])
    ]
    return replace(cell, gates=(*gates, cell.gates[-1]), witness={**cell.witness, "prefix_hit": number})


def _changed(cell: CellResult, version: str) -> CellResult:
    acceptance = replace(cell.gates[-1], numbers={**cell.gates[-1].numbers, "length": 3.1398})
    resolved = {**(cell.resolved or {}), "spec_version": version}
    return replace(cell, gates=(*cell.gates[:-1], acceptance), resolved=resolved)


def _time(base: Path, head: Path, cells: int) -> float:
    command = [sys.executable, "-c", TIMER, str(base), str(head)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, counted = done.stdout.split()
    if int(counted) != cells:
        raise RuntimeError(f"the comparison counted {counted} cells of {cells}")
    return float(seconds)


if __name__ == "__main__":
    main()
