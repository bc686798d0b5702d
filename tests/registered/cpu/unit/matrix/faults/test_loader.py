"""Faults as files: code is read exactly, and whatever is wrong with a file is named with its place."""

from pathlib import Path

import pytest

from specmatrix.matrix.faults import fault
from specmatrix.matrix.faults.fault import FIELDS, Edit, Fault, catalogue, delays, read_faults
from tests.support.refusals import refusal

WRITTEN = """\
- id: made-up
  why: for a test
  category: race
  origin: "rule: none"
  within: Ledger.settle
  old: |2
        left = pages - 1

        return left
  new: ""
  also:
    - within: Ledger.close
      old: |2-
            left = pages
      new: "False"
  expected: [ledger, lossless]
  cells: [none]
  tier: gpu1
"""
READ = Fault(
    id="made-up",
    category="race",
    origin="rule: none",
    within="Ledger.settle",
    old="    left = pages - 1\n\n    return left\n",
    new="",
    expected=("ledger", "lossless"),
    cells=("none",),
    why="for a test",
    also=(Edit("Ledger.close", "    left = pages", "False"),),
    tier="gpu1",
)


def test_code_is_read_as_it_is_indented(tmp_path: Path):
    file = tmp_path / "race.yaml"
    file.write_text(WRITTEN)
    assert read_faults(file) == (READ,)


def test_delays_are_no_faults_of_the_catalogue():
    assert delays() and not set(delays()) & set(catalogue())


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("  tier: gpu1\n", "  klass: race\n", f"fault 1 (made-up): Object contains unknown field `klass`; {FIELDS}"),
        ("  why: for a test\n", "", f"fault 1 (made-up): Object missing required field `why`; {FIELDS}"),
        ("- id: made-up\n  why: for a test", "- why: for a test", "fault 1: Object missing required field `id`"),
        ("race", "3", "fault 1 (made-up): Expected `str`, got `int` 3 as category"),
        ('"False"', "False", "fault 1 (made-up): Expected `str`, got `bool` False as also[0].new"),
        ("[none]", "none", "fault 1 (made-up): Expected `array`, got `str` 'none' as cells"),
        ("      old:", "      odd:", "fault 1 (made-up): Object contains unknown field `odd` {'within': 'Ledger."),
        ("  tier: gpu1\n", "  new: x\n", "not YAML: the key new is there twice"),
        ("  tier: gpu1\n", "  tier: [\n", "race.yaml is not YAML: "),
        (WRITTEN, "id: made-up\n", "race.yaml must be a list of faults, got {'id': 'made-up'}"),
        (WRITTEN, "- made-up\n", "fault 1: Expected `object`, got `str`"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, before: str, after: str, words: str):
    file = tmp_path / "race.yaml"
    assert before in WRITTEN
    file.write_text(WRITTEN.replace(before, after))
    text = refusal(read_faults, file)
    assert words in text and "\n" not in text and "race.yaml" in text


def test_a_catalogue_without_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fault, "FOLDER", tmp_path)
    assert "catalogue holds no fault files" in refusal(fault.catalogue.__wrapped__)
