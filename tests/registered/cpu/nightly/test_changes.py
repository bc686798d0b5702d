"""From a commit to the cells and lines that tell of it; mutants that cells or tests kill."""

import subprocess
import sys

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults.command import select
from specmatrix.matrix.faults.plant import environment, planted, trial
from tools.mutants import judging
from tools.mutants.judging import Judge, Outcome
from tools.mutants.mutations import mutations

RED = "eagle3.s3.k4.n8.v2.mixed_lengths"
SELECTED = "algorithm in (eagle3, none) and adaptive=off and tp=1 and grammar=none and batch in (mixed_lengths, pair)"


def git(folder, words):
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *settings, *words.split()], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize(("fault", "named"), [("bonus-stride", True), ("path-not-compacted", False)])
def test_a_red_run_of_a_change_names_its_lines_that_only_failing_cells_execute(tmp_path, fault, named):
    with planted(None) as tree:
        (tree / "pyproject.toml").touch()
        git(tree, "init -q -b main")
        git(tree, "add .")
        git(tree, "commit -qm base")
        git(tree, "checkout -qb topic")
        [changed] = select([fault])[0].patch.apply(tree)
        git(tree, "commit -qam head")
        words = ["run", "--stage", "smoke", "--cells", SELECTED, "--workers", "1"]
        command = [sys.executable, "-m", "specmatrix", *words, "--out", str(tmp_path / "out")]
        done = subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, text=True)
        name = changed.relative_to(tree)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(f"{name}:")]
    # The line before a deletion is one that every cell executes.
    assert [line.endswith(f": executed by {RED}, by none of 2 passing cells beside it") for line in lines] == [
        True
    ] * named


def test_mutants_die_by_a_gate_a_crash_or_a_test():
    own = mutations("engine/core/draft/depth.py")
    every = {one.after.strip(): one for one in map(own.__getitem__, range(len(own)))}
    wrong = [
        every["self.adapts = width is not None"],
        every["candidates = None"],
        every["self.ema = float(self.steps - 2)"],
        every["self.trace: deque[ObservedRound] = deque(maxlen=None)"],
    ]
    cells = [Cell.from_id("none.pair"), Cell.from_id("eagle3.tiers.v2.ramp.length")]
    found = {one.id: one for one in Judge(0, cells).outcomes(wrong, 2)}
    told = [found[one.id] for one in wrong]
    assert told[1] == Outcome(wrong[1].id, "cells", "crash", cells[1].id) and told[0].by == "cells"
    assert (told[2].by, told[2].cell) == ("cells", "eagle3.tiers.v2.ramp.length") and "adaptive" in told[2].how
    assert told[3].by == "tests" and told[3].how.endswith("_records"), told


def test_a_cell_that_is_red_without_a_mutant_kills_none(monkeypatch):
    [mutant] = [mutations("engine/core/draft/depth.py")[0]]
    monkeypatch.setattr(Judge, "failed_test", lambda self, mutant, places: "")
    monkeypatch.setattr(Judge, "killed_by_cell", lambda self, mutant: Outcome(mutant.id, "cells", "lossless", RED))
    assert len([*Judge(0, cells=()).outcomes([mutant], 1)]) == 1
    broken = select(["path-not-compacted"])[0].patch
    monkeypatch.setattr(judging, "trial", lambda patch, *rest: trial(broken, *rest))
    with pytest.raises(ConfigError, match=f"red without any mutant: {RED}"):
        [*Judge(0, cells=()).outcomes([mutant], 1)]
