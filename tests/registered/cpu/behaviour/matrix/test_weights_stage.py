"""The stage `weights` over every published layout with random weights, and the sequential test on a planted fault."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from specmatrix import HOME
from specmatrix.matrix.faults.fault import catalogue
from specmatrix.matrix.faults.plant import planted
from specmatrix.matrix.zoo.published.pairs import PAIRS
from specmatrix.reports.store import load

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("lm_eval") is None, reason="the extra `accuracy` is not installed"),
]
QUESTIONS = HOME / "matrix" / "zoo" / "data" / "test.jsonl"
EXAMPLES = HOME / "matrix" / "zoo" / "data" / "heldout.jsonl"
STAGE = """
import gc, sys
from pathlib import Path
from specmatrix.engine.api import LLM
from specmatrix.matrix.accuracy.command import measure, write_record
from specmatrix.matrix.accuracy.paired_run import Asking, of_pair
from specmatrix.matrix.accuracy.command import main_weights
from tests.support.published_layouts import writer

data, train, out = map(Path, sys.argv[1:])
folder = writer(out / "weights")
asking = Asking("gsm8k", data, train, limit=4, num_fewshot=5, max_new_tokens=12)

class Folders(dict):
    def __getitem__(self, name):
        # Whoever asks is an engine in the making: a GPU has no room for the first engine beside the second.
        assert sum(type(part) is LLM for part in gc.get_objects()) <= 1
        return super().__getitem__(name)

def run(pair, into):
    compared = of_pair(pair, Folders({name: folder(name) for name in pair.models}))
    write_record(into, measure(asking, asking.questions(), compared))
    return 1, ""

sys.exit(main_weights(asking, (), None, out / "stage", True, run))
"""


def test_every_layout_runs_at_five_examples_and_is_one_cell(tmp_path):
    """Random weights answer nothing, so that no cell passes; but each drafts, and changes no answer."""
    command = [sys.executable, "-c", STAGE, str(QUESTIONS), str(EXAMPLES), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HOME)
    assert done.returncode == 1, done.stderr
    cells = load(tmp_path / "stage")
    assert {*cells.lines} == {*PAIRS}
    for name in cells.lines:
        cell = cells[name]
        assert cell.state == "NOT MEASURED", (name, cell)
        accuracy, acceptance = cell.gates
        assert "of 4 questions correctly; with fewer than 12 even losing all of them" in accuracy.message, name
        assert (accuracy.numbers["n"], accuracy.numbers["different_texts"]) == (4, 0), name
        assert acceptance.numbers["length"] >= 1 and cell.evidence["spec.drafted"] > 0, name
        record = json.loads((tmp_path / "stage" / name / "accuracy.json").read_text())
        resolved = record["starts"]["cell"]["resolved"]
        assert record["task"]["num_fewshot"] == 5 and resolved["dtype"] == "bfloat16"
        assert resolved["enable_deterministic_inference"] and resolved["context_length"] >= 4096
    assert (tmp_path / "stage" / "report.html").is_file()


def test_a_planted_fault_ends_the_run_on_gsm_mini_early(tmp_path):
    [fault] = [fault for fault in catalogue() if fault.id == "bonus-stride"]
    words = ("--cell", "eagle3.s3.k4.n8.v2", "--data", str(QUESTIONS), "--limit", "200", "--max-new-tokens", "160")
    with planted(fault.patch) as tree:
        command = [sys.executable, "-m", "specmatrix", "accuracy", *words, "--out", str(tmp_path)]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}
        )
    assert done.returncode == 1, done.stderr
    record = json.loads((tmp_path / "accuracy.json").read_text())
    assert (record["state"], record["task"]["questions"], record["task"]["asked"]) == ("FAIL", 64, 200)
