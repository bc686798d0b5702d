"""Planted faults: a copy of the packages, a child process, verdicts by the gates inside the copy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults.command import select
from specmatrix.matrix.faults.fault import Fault, sources
from specmatrix.matrix.faults.plant import ROOT, planted, trial
from specmatrix.matrix.faults.trial import main

PAIR = Cell.from_id("standalone.s2.k2.n6.v2.p4.pair")


def test_the_copy_holds_the_fault_and_the_sources_do_not():
    (fault,) = select(["path-not-compacted"])
    with planted(None) as clean, planted(fault.patch) as tree:
        changes = fault.patch.changes(sources(clean))
        assert len(changes) == 1
        for path, text in changes.items():
            source = ROOT / path.relative_to(clean)
            assert source.read_text(encoding="utf-8") == path.read_text(encoding="utf-8") != text
            assert (tree / path.relative_to(clean)).read_text(encoding="utf-8") == text
        assert list(clean.rglob("cells.lock"))
    assert not tree.exists()


HANGING = """
from specmatrix.matrix.faults.fault import catalogue
from specmatrix.matrix.faults.plant import planted
with planted(catalogue()[0].patch) as tree:
    print(tree, flush=True)
    input()
"""


@pytest.mark.nightly
def test_a_killed_command_leaves_its_copy_until_the_next_one():
    with subprocess.Popen(
        [sys.executable, "-c", HANGING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        left = Path(killed.stdout.readline().strip())
        killed.kill()
    assert (left / "engine").is_dir()
    with planted(None) as tree:
        assert tree != left and not left.exists()


def test_a_trial_ends_with_its_parent():
    """A killed command leaves a standard input at its end."""
    words = [str(ROOT), "cpu", "0", "reviewed", "end", "reference", os.devnull, *[PAIR.id] * 99]
    command = [sys.executable, "-m", "specmatrix.matrix.faults.trial", *words]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "gate"), [("completion-text-stripped", "text"), ("metrics-withheld", "claimed_capabilities")]
)
def test_a_server_of_the_patched_engine_is_judged_over_http(name: str, gate: str):
    (fault,) = select([name])
    (verdict,) = (result := trial(fault.patch, fault.chosen([]), subject=fault.subject)).verdicts
    assert result.died is None and verdict.cell == f"{fault.cells[0]} on {fault.subject}"
    assert verdict.gates[gate][0] == "FAIL" and "ledger" not in verdict.gates


@pytest.mark.nightly
def test_a_crash_is_not_a_verdict():
    crash = Fault(
        "crash", "c", "o", "Scheduler.plan", "    def plan(self) -> StepPlan | None:\n",
        "    def scheme(self) -> StepPlan | None:\n", ("ledger",), (PAIR.id,), "w",
    )  # fmt: skip
    (verdict,) = trial(crash.patch, [PAIR]).verdicts
    assert verdict.gates == {}
    assert verdict.error is not None
    assert "'Scheduler' object has no attribute 'plan'" in verdict.error


@pytest.mark.nightly
def test_a_tree_that_does_not_import_dies_with_its_last_words():
    broken = Fault("broken", "c", "o", "LedgerError", "class LedgerError(", "class Other(", (), (), "w")
    result = trial(broken.patch, [PAIR])
    assert result.verdicts == ()
    assert result.died is not None
    assert "LedgerError" in result.died


def test_a_process_that_never_ends_is_stopped():
    result = trial(None, [PAIR], seconds=0.2)
    assert result.died == "the process was still running after 0.2 s without a result"


def test_a_trial_of_the_wrong_engine_is_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        main([str(tmp_path), "cpu", "0", "reviewed", "end", str(tmp_path / "out"), PAIR.id])
    assert "is " + str(ROOT / "engine" / "__init__.py") in str(caught.value)
    assert str(caught.value).endswith(f"not the one in {tmp_path}; put {tmp_path} first on PYTHONPATH")


def test_a_trial_without_cells_is_refused():
    with pytest.raises(ConfigError, match="a trial needs at least one cell or operation"):
        trial(None, [])
