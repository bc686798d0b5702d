"""The counters that a stage demands, and that a run without them fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.engine.core.observe.counters import COUNTERS, GPU, RANKS, ZERO
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.faults.plant import planted
from specmatrix.matrix.run.coverage_demand import demanded

MAIN = "import sys; from specmatrix.cli import main; sys.exit(main())"
RUN = ("-c", MAIN, "run", "--stage", "nightly", "--workers", "1")

ROOT = HOME
TWO = ["none.length", "none.v1.length"]
FILE = "tests/registered/cpu/test_matrix.py"


def test_only_the_whole_stage_demands_counters():
    assert demanded("pr", 0) is None
    demand = demanded("nightly", 0)
    assert demand is not None
    assert demand.cells == len([cell for cell in stage_cells("nightly") if not cell.gpus])
    on_gpu = demanded("nightly", 1)
    assert on_gpu is not None and set(on_gpu.hit) - set(demand.hit) == set(GPU) - set(ZERO)
    assert set(on_gpu.hit) | set(demand.zero) == set(COUNTERS) - {*RANKS}
    assert set(demand.hit) - set(on_gpu.hit) == set(RANKS)
    assert demanded("nightly", 2) is None, "a few cells hit few counters"
    assert set(demand.zero) == set(ZERO) == {"graph.waited", "grammar.stuck", "stamp.wrong"}


@pytest.fixture(scope="module")
def tree():
    """A copy of the packages whose nightly stage holds two plain cells, which draft nothing."""
    with planted(None) as copy:
        lock = copy / "matrix" / "cover" / "cells.lock"
        head = lock.read_text(encoding="utf-8").partition("stage smoke")[0]
        lock.write_text(head + "stage smoke\n\nstage pr\n\nstage nightly\n" + "\n".join(TWO) + "\n", encoding="utf-8")
        (copy / FILE).parent.mkdir(parents=True)
        (copy / FILE).write_text((ROOT / FILE).read_text(encoding="utf-8"), encoding="utf-8")
        yield copy


def inside(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = [sys.executable, *command]
    return subprocess.run(words, cwd=tree, env={**os.environ, **own}, capture_output=True, text=True, check=False)


def counters(out: Path) -> dict[str, object]:
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))["counters"]


@pytest.mark.nightly
def test_an_unhit_counter_fails_the_run_and_a_selection_judges_none(tree, tmp_path):
    done = inside(tree, *RUN, "--out", str(tmp_path / "whole"))
    # First, and with the whole output: a machine without memory loses the cells.
    assert "red: 2 of 2 cells passed, but counter coverage failed" in done.stdout, done.stdout + done.stderr
    found = counters(tmp_path / "whole")
    assert (done.returncode, found["state"]) == (1, "FAIL") and "prefill.step" not in found["unhit"]
    assert {"spec.drafted", "retract.done", "session.opened"} <= set(found["unhit"])
    assert "counters: prefill.chunked, decode.batched" in done.stdout
    done = inside(tree, *RUN, "--limit", "1", "--out", str(tmp_path / "one"))
    assert done.returncode == 0, done.stdout
    assert "counter coverage is not checked: only 1 of the stage's 2 cells ran" in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_unhit_counter_fails_pytest(tree, tmp_path, workers):
    plugins = ("-p", "specmatrix.matrix.plugin", "-p", "xdist.plugin", "-p", "no:cacheprovider")
    words = ("--specmatrix-stage", "nightly", "--specmatrix-report", str(tmp_path))
    done = inside(tree, "-m", "pytest", FILE, "-q", "-n", workers, *plugins, *words)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1
    assert "counters: prefill.chunked, decode.batched" in done.stdout
    assert counters(tmp_path)["state"] == "FAIL"
