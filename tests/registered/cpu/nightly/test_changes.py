"""From a commit to the cells and lines that tell of it; mutants that cells or tests kill."""

import subprocess
import sys

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults import judges, mutants
from specmatrix.matrix.faults.command import select
from specmatrix.matrix.faults.mutants import MutantOutcome, Mutations, check_tests, red_without_mutants, run_mutants
from specmatrix.matrix.faults.plant import ROOT, environment, planted, trial
from specmatrix.matrix.faults.processes import Processes
from specmatrix.matrix.run.functions import executed_functions, record, stored_functions

pytestmark = pytest.mark.nightly

RED = "eagle3.s3.k4.n8.v2.mixed_lengths"
SELECTED = "algorithm in (eagle3, none) and adaptive=off and tp=1 and batch in (mixed_lengths, pair)"


def git(folder, words):
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *settings, *words.split()], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("fault", "touched"), [("bonus-stride", "all 3 cells"), ("path-not-compacted", "1 of 3 cells")]
)
def test_a_red_run_of_a_change_names_its_lines_that_only_failing_cells_execute(tmp_path, fault, touched):
    with planted(None) as tree:
        (tree / "pyproject.toml").touch()
        git(tree, "init -q -b main")
        git(tree, "add .")
        git(tree, "commit -qm base")
        [changed] = select([fault])[0].patch.apply(tree)
        git(tree, "commit -qam head")
        words = ["run", "--affected", "HEAD~1..HEAD", "--stage", "smoke", "--cells", SELECTED, "--workers", "1"]
        done = subprocess.run(
            [sys.executable, "-m", "specmatrix", *words, "--out", str(tmp_path / "out")],
            cwd=tree,
            env=environment(tree),
            capture_output=True,
            text=True,
        )
        name = changed.relative_to(tree)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"1 changed function in engine and kernels: {touched} execute them" in done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith(f"{name}:")]
    assert line.endswith(f": executed by {RED}, by none of 2 passing cells beside it")


def test_mutants_die_by_a_gate_a_crash_or_a_test_and_some_live():
    path = "engine/core/draft/depth.py"
    own = Mutations(path, (ROOT / path).read_text(encoding="utf-8"))
    every = {one.after.strip(): one for one in map(own.__getitem__, range(len(own)))}
    wrong = [
        every["self.adapts = width is not None"],
        every["candidates = None"],
        every["self.ema = float(self.steps - 2)"],
        every["self.trace: deque[ObservedRound] = deque(maxlen=None)"],
    ]
    cells = [Cell.from_id("none.pair"), Cell.from_id("eagle3.tiers.v2.ramp.length")]
    found = {one.id: one for one in run_mutants(wrong, cells[:1], cells, stored_functions(), 0, 2)}
    told = [(found[one.id].by, found[one.id].how, found[one.id].cell) for one in wrong]
    assert told[1] == ("smoke", "crash", "none.pair") and told[0][0] == "smoke"
    assert told[2][::2] == ("pr", "eagle3.tiers.v2.ramp.length") and "adaptive" in told[2][1].split()
    assert told[3][::2] == ("tests", "") and told[3][1].endswith("_records"), told


def test_what_is_red_without_a_mutant_kills_none(monkeypatch):
    outcome = MutantOutcome("engine/loop.py:1#0", "", "", "smoke", RED, "lossless", 1, 1.0)
    assert red_without_mutants([outcome, outcome], 0) == ()
    broken = select(["path-not-compacted"])[0].patch
    monkeypatch.setattr(mutants, "trial", lambda patch, *rest: trial(broken, *rest))
    [told] = red_without_mutants([outcome], 0)
    assert told.startswith(f"{RED}: ") and "lossless" in told
    monkeypatch.setattr(judges, "TESTS", "tests/registered/cpu/absent")
    with pytest.raises(ConfigError, match=r"^a unit test fails without any mutant, so that it would kill them all: "):
        check_tests(["engine/loop.py"], Processes())


def test_cells_execute_what_they_need_whichever_ran_before():
    cells = [Cell.from_id(name) for name in ("ngram.pair", "none.pair")]
    both, alone = executed_functions(cells), executed_functions(cells[1:])
    assert both["none.pair"] == alone["none.pair"]
    index = {name for path, name in both["ngram.pair"] if path == "engine/core/draft/ngram_index.py"}
    assert index and not [path for path, _ in both["none.pair"] if path == "engine/core/draft/ngram_index.py"]
    assert ("engine/core/config/resolve.py", "resolve") in alone["none.pair"]
    assert ("engine/device/batch.py", "_triangle") in alone["none.pair"]  # which is cached


def test_a_fresh_process_records_nothing_of_its_first_run_only(tmp_path):
    file = tmp_path / "cells.functions"
    assert record([Cell.from_id("none.pair")], 1, path=file).startswith("cells.functions: 1 cell executes ")
    stored = stored_functions(file)
    assert stored.executing(("engine/device/batch.py", "_triangle")) == {"none.pair"}
    assert not stored.executing(("engine/core/config/adaptive_file.py", "parse"))
