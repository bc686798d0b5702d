"""`specmatrix shrink` and `run --requests --tokens` as a user calls them."""

import re
import signal

import pytest

from specmatrix.ci import local, shrink
from specmatrix.cli import main
from specmatrix.reports.schema import Header
from specmatrix.reports.store import load
from specmatrix.stopping import Stopped
from tests.support.scripted_workers import fails_drafts, passes


@pytest.fixture
def red_drafts(monkeypatch):
    monkeypatch.setattr(local, "work", fails_drafts)


def test_an_interrupt_names_the_smallest_run_so_far(red_drafts, monkeypatch, capsys):
    def interrupted(best):
        assert best.takes(best.cell, best.only)
        yield "axes: eagle3.s3"
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(shrink, "reduced", interrupted)
    assert main(["shrink", "eagle3.s3", "--workers", "1"]) == 128 + signal.SIGTERM
    last = capsys.readouterr().err.rstrip().splitlines()[-1]
    assert last.startswith("interrupted after 2 runs; ") and "run --cells 'eagle3.s3' --seed 0" in last


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["none"], "cell none is PASS; there is nothing to shrink"),
        (["eagle3", "--gate", "lossless"], "cell eagle3 is not red for lossless; it is FAIL, config: wrong"),
    ],
)
def test_what_is_not_red_is_refused(words: list[str], sentence: str, red_drafts, capsys):
    assert main(["shrink", *words, "--workers", "1"]) == 2
    assert capsys.readouterr().err.rstrip().endswith(sentence)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--requests", "q99"], "cell eagle3.pair has no request 'q99'; it has q5, q6"),
        (["--tokens", "0"], "tokens must be at least 1, got 0"),
    ],
)
def test_requests_that_a_cell_does_not_have_are_refused(words: list[str], sentence: str, tmp_path, capsys):
    assert main(["run", "--cells", "eagle3.pair", "--out", str(tmp_path / "out"), *words]) == 2
    assert sentence in capsys.readouterr().err and not (tmp_path / "out").exists()


def header(folder) -> Header:
    return load(folder).header


def test_a_run_of_some_requests_says_so_in_its_data_and_its_commands(monkeypatch, tmp_path):
    monkeypatch.setattr(local, "work", passes)
    words = ["run", "--cells", "eagle3.pair", "--workers", "1", "--out"]
    assert main([*words, str(tmp_path / "whole")]) == 0
    assert main([*words, str(tmp_path / "part"), "--requests", "q6", "--tokens", "4"]) == 0
    whole, part = header(tmp_path / "whole").data_hash, header(tmp_path / "part").data_hash
    assert part == f"{whole} --requests q6 --tokens 4"
    [cell] = load(tmp_path / "part")
    assert "--cells 'eagle3.pair' --requests q6 --tokens 4 --seed 0" in cell.repro


@pytest.mark.nightly
def test_a_planted_fault_shrinks_and_its_command_is_red(tmp_path, capsys):
    assert main(["shrink", "eagle3.s3.k4.n8.v2.mixed_lengths", "--fault", "bonus-stride", "--workers", "1"]) == 0
    command = capsys.readouterr().out.rstrip().splitlines()[-1]
    found = re.search(r"--fault (\S+) --cells '(\S+)'(?: --requests (\S+))?(?: --tokens (\d+))?", command)
    fault, cell, requests, tokens = found.groups()
    assert fault == "bonus-stride" and cell == "standalone.s1.k2.pair" and tokens
    words = ["run", "--cells", cell, "--fault", fault, "--tokens", tokens, "--out", str(tmp_path)]
    assert main([*words, *(["--requests", requests] if requests else [])]) == 1
    [again] = load(tmp_path)
    assert again.gate("lossless").state == "FAIL"
