"""The pytest plugin: collection, selection, one command per red cell."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from specmatrix import HOME
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.plugin import items as cell_items
from specmatrix.matrix.plugin.items import CellFailed, CellItem
from specmatrix.matrix.run.provenance import record as record_of
from specmatrix.matrix.run.runner import reference_runner
from specmatrix.matrix.workloads.prepared_cell import prepare

ROOT = HOME
FILE = "tests/registered/cpu/test_matrix.py"


def pytest_on(*words: str, file: str = FILE, **environment: str) -> subprocess.CompletedProcess[str]:
    """Without other installed plugins, whose import takes longer than the command."""
    command = [sys.executable, "-m", "pytest", file, "-p", "no:cacheprovider", *words]
    own = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)


def collected(*words: str) -> list[str]:
    done = pytest_on("--collect-only", "-q", *words)
    assert done.returncode == 0, done.stdout
    return [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::cells::" in line]


def test_collects_the_stage_start_by_start():
    ids = collected("--stage", "smoke")
    assert len(ids) == len(set(ids)) >= 7
    starts = [Cell.from_id(text).start_key for text in ids]
    assert len([a for a, b in pairwise(starts) if a != b]) == len(set(starts)) - 1


def test_selector_and_limit():
    assert collected("--cells", "eagle3.p16.pair.length") == ["eagle3.p16.pair.length"]
    assert len(collected("--stage", "product", "--cells", "algorithm=eagle3", "--limit", "40")) == 40


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--cells", "topk=3"), "topk has no value '3'; it must be one of auto, 1, 2, 4"),
        (("--stage", "weekly"), "stage 'weekly' is unknown; it must be one of smoke, pr, nightly, product"),
        (("--seed", "9223372036854775808"), "seed must be between 0 and 2147483647, got 9223372036854775808"),
    ],
)
def test_wrong_option_is_a_usage_error(words: tuple[str, ...], sentence: str):
    done = pytest_on("--collect-only", "-q", *words)
    assert done.returncode in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERRUPTED)
    assert sentence in done.stdout + done.stderr


def test_collection_imports_nothing_heavy():
    collect = f"pytest.main([{FILE!r}, '--collect-only', '-q'])"
    heavy = {"torch", "numpy", "specmatrix.matrix.run.runner"}
    code = f"import sys, pytest; sys.exit({collect} or bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True).returncode == 0


@pytest.mark.nightly
def test_cells_of_a_gpu_need_one():
    done = pytest_on(file="tests/registered/gpu1/test_matrix.py", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert "tier 'gpu1' needs 1 GPU but this machine has none; use 'cpu'" in done.stdout


def test_a_cell_that_is_not_supported_is_skipped_with_its_reason(monkeypatch):
    record = record_of(prepare(Cell()), "UNSUPPORTED", error="vLLM has no tree drafts")
    runner = SimpleNamespace(run_cell=lambda cell: record)
    monkeypatch.setattr(cell_items, "runner_for", lambda config, tier: runner)
    monkeypatch.setattr(cell_items, "endpoint_from", lambda config: None)
    config = SimpleNamespace(option=SimpleNamespace(specmatrix_waivers=None, specmatrix_plugin=[]))
    with pytest.raises(pytest.skip.Exception, match="vLLM has no tree drafts"):
        CellItem.runtest(SimpleNamespace(config=config, tier="cpu", cell=Cell()))


def test_red_cell_fails_with_its_sentences():
    runner = reference_runner(0)
    runner.gates = ()
    record = runner.run_cell(Cell.from_id("none.length"))
    assert str(CellFailed(record)) == "no gate applied to this cell"
    failed = CellFailed(replace(record, error="\x1b[2J\n::error::x"))
    assert str(failed) == "\\x1b[2J\n::error::x"
    assert CellItem.repr_failure(None, SimpleNamespace(value=failed)).splitlines()[1:3] == [
        "\\x1b[2J",
        ":\\x3aerror::x",
    ]


def test_a_cell_has_the_hooks_of_its_own_folder(tmp_path: Path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        hook = f"def pytest_itemcollected(item):\n    print('{folder} saw', item.nodeid)\n"
        (tmp_path / folder / "conftest.py").write_text(hook)
        cells = "from specmatrix.matrix.plugin import MatrixCells\ncells = MatrixCells()\n"
        (tmp_path / folder / f"test_{folder}.py").write_text(cells)
    words = ["--collect-only", "-q", "-s", "-p", "no:cacheprovider", "--specmatrix-cells", "eagle3.p16.pair.length"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", *words, "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    seen = sorted(line for line in done.stdout.splitlines() if " saw " in line)
    cell = "cells::eagle3.p16.pair.length"
    assert seen == [f"{folder} saw {folder}/test_{folder}.py::{cell}" for folder in ("one", "two")]
