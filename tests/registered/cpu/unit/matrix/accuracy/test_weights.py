"""The stage `weights`: what becomes of each pair's run, and that its report is one like any other."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.accuracy.command import command, in_process, main_weights
from specmatrix.matrix.accuracy.paired_run import Asking
from specmatrix.matrix.accuracy.paired_run import pair as paired
from specmatrix.matrix.accuracy.task import EXTRACTORS, Sample
from specmatrix.matrix.zoo.published.pairs import ACCURACY, PAIRS, ModelPair, collapsed
from specmatrix.reports.compare.compare import compare
from specmatrix.reports.store import load

N = 60


@pytest.fixture
def asking(tmp_path):
    data = tmp_path / "it's.jsonl"
    data.write_text("".join(json.dumps({"question": f"{n}?", "answer": f"#### {n}"}) + "\n" for n in range(N)))
    return Asking("gsm8k", data, num_fewshot=0)


def samples(right: int, rounds: int = 10):
    """`right` right answers first."""
    yes = dict.fromkeys(EXTRACTORS, True)
    return [Sample(n + 1, "h", dict.fromkeys(EXTRACTORS, n < right), yes, "x", False, 31, rounds, 0) for n in range(N)]


def measured(right: int, base: int = 50, doubt: str = "", rounds: int = 10) -> dict[str, Any]:
    """The part of accuracy.json that a cell is made of."""
    sides = samples(base), samples(right, rounds)
    start = {"resolved": {"algorithm": "EAGLE3", "reasons": [], "rewrites": []}, "seconds": 2.5}
    return {
        "doubt": doubt,
        "weights": {"a": "0123"},
        "different_texts": 0,
        "tests": [test.as_dict() for test in paired(*sides)],
        "starts": {"baseline": start | {"evidence": {}}, "cell": start | {"evidence": {"spec.drafted": 3}}},
        "answers": [
            {
                "line": c.line,
                "right": {name: [b.right[name], c.right[name]] for name in EXTRACTORS},
                "emitted": [30, 30],
                "rounds": [b.rounds, c.rounds],
            }
            for b, c in zip(*sides, strict=True)
        ],
    }


def writes(found: dict[str, Any], code: int = 0):
    """A runner that leaves this accuracy.json."""

    def run(pair: ModelPair, folder: Path):
        folder.mkdir(parents=True)
        (folder / "accuracy.json").write_text(json.dumps(found))
        return code, ""

    return run


def cells(asking: Asking, out: Path, run, names=("mistral-7b.ngram",)):
    """Exit status and cells of a stage."""
    status = main_weights(asking, names, None, out, True, run)
    return status, [*load(out)]


def test_a_report_like_any_other(asking, tmp_path, capsys):
    status, [cell] = cells(asking, tmp_path / "out", writes(measured(50)))
    assert (status, cell.state, cell.id) == (0, "PASS", "mistral-7b.ngram")
    assert cell.axes == {"algorithm": "ngram", "target": "mistral-7b-instruct", "draft": "none"}
    accuracy, acceptance = cell.gates
    assert (accuracy.name, accuracy.numbers["accuracy"], accuracy.numbers["n"]) == ("accuracy", 50 / N, N)
    assert accuracy.numbers["outcomes"] == "1" * 50 + "0" * 10 and accuracy.interval[0] < 50 / N < accuracy.interval[1]
    assert acceptance.numbers["length"] == 3.0 and len(acceptance.numbers["emitted"]) == N
    assert (cell.seconds, cell.engine_starts, cell.evidence) == (5.0, 2, {"spec.drafted": 3})
    assert cell.start.resolved == {"algorithm": "EAGLE3"}
    header = load(tmp_path / "out").header
    assert (header.tier, header.stage, header.data_hash) == ("gpu1", "weights", asking.questions().digest)
    words = shlex.split(cell.repro.replace("$(mktemp -d)", "X"))
    assert words[:2] == ["specmatrix", "accuracy"] and words[words.index("--data") + 1] == str(asking.data)
    assert words[-2:] == ["--out", "X"]
    assert json.loads(capsys.readouterr().out)["pass"] == 1
    assert "mistral-7b.ngram" in (tmp_path / "out" / "report.html").read_text()


def test_two_reports_compare_accuracy_and_acceptance(asking, tmp_path):
    for name, found in (("base", measured(50)), ("head", measured(50, rounds=12))):
        cells(asking, tmp_path / name, writes(found))
    assert len(compare(load(tmp_path / "base"), load(tmp_path / "head")).changes) == 1


@pytest.mark.parametrize(
    ("found", "pair", "state", "why"),
    [
        (measured(38), "mistral-7b.ngram", "FAIL", "right by strict-match: the cell loses 12 questions of 60 and"),
        (measured(5, base=5), "mistral-7b.ngram", "NOT MEASURED", "right by strict-match: the baseline answers 5 of"),
        (measured(50, doubt="nothing was drafted"), "mistral-7b.ngram", "NOT MEASURED", "nothing was drafted"),
        (measured(50, rounds=0), "mistral-7b.ngram", "NOT MEASURED", "no answer had a verify round"),
        (measured(20, base=20), "qwen3-8b.eagle3", "FAIL", "where NVIDIA/TensorRT-LLM"),
    ],
)
def test_what_turns_a_cell_red(asking, tmp_path, found, pair, state, why):
    status, [cell] = cells(asking, tmp_path / "out", writes(found, 1), [pair])
    assert (status, cell.state) == (1, state)
    assert why in "; ".join(gate.message for gate in cell.gates)


@pytest.mark.parametrize(
    ("ending", "state", "error"),
    [
        ((2, "noise\nspecmatrix: no GPU\n"), "INFRA", "no GPU"),
        ((2, "usage: x"), "FAIL", "the run ended with status 2: usage: x"),
        ((-9, "a\nb"), "FAIL", "the run ended with status -9: b"),
        ((0, "done"), "FAIL", "the run ended with status 0: done"),
        ((None, ""), "FAIL", "the run did not end within 7200 s: "),
    ],
)
def test_a_run_without_a_result(asking, tmp_path, ending, state, error):
    status, [cell] = cells(asking, tmp_path / "out", lambda pair, folder: ending)
    assert (status, cell.state, cell.error) == (1, state, error)


def test_a_result_of_an_earlier_run_is_not_taken(asking, tmp_path):
    folder = tmp_path / "out" / "mistral-7b.ngram"
    writes(measured(50))(PAIRS["mistral-7b.ngram"], folder)
    status, [cell] = cells(asking, tmp_path / "out", lambda pair, folder: (1, "it broke"))
    assert (status, cell.state) == (1, "FAIL")


def test_all_pairs_without_names_and_an_unknown_one_is_refused(asking, tmp_path):
    _, found = cells(asking, tmp_path / "out", lambda pair, folder: (2, "specmatrix: nothing here"), ())
    assert {cell.id for cell in found} == {*PAIRS}
    with pytest.raises(ConfigError, match=r"^checkpoint 'x' is unknown; it must be one of "):
        main_weights(asking, ["x"], None, tmp_path / "new", False)
    assert not (tmp_path / "new").exists()


def test_a_process_of_its_own_says_what_the_machine_lacks(asking, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pair = PAIRS["qwen3-8b.dflash"]
    code, output = in_process(command(asking, pair, None, tmp_path / "out"))
    assert code == 2 and output.startswith("specmatrix: checkpoint qwen3-8b.dflash needs a GPU but ")


def test_a_process_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr("specmatrix.matrix.accuracy.command.PAIR_SECONDS", 0.0)
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    # `sh -m specmatrix` would not run: a sleep stands for the command.
    monkeypatch.setattr("specmatrix.matrix.accuracy.command.PROGRAM", ("-c", "sleep 60"))
    assert in_process([]) == (None, "")


def test_a_collapse_of_both_sides_is_seen_where_a_figure_is_known():
    """TensorRT-LLM has 74.2 % for Llama: 3.7 standard errors lower is too low."""
    assert collapsed("llama-3.1-8b-instruct", 0.70 * 1319, 1319) == collapsed("gigachat3-10b", 0, 1319) == ""
    said = collapsed("llama-3.1-8b-instruct", 0.69 * 1319, 1319)
    assert said.startswith("plain decoding answers 910.11 of 1,319 questions correctly (69.0%), where NVIDIA/TensorRT")
    assert {*ACCURACY} <= {pair.target for pair in PAIRS.values()}


def test_the_options_reach_the_process(asking):
    words = command(replace(asking, limit=9, num_fewshot=3), PAIRS["qwen3-8b.eagle3"], Path("m"), Path("o"))
    for option, value in (("--limit", "9"), ("--num-fewshot", "3"), ("--models", "m"), ("--out", "o")):
        assert words[words.index(option) + 1] == value
