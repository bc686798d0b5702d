"""Waivers: which red cells they cover, when they must go, and what is wrong with a file of them."""

from datetime import date
from pathlib import Path

import pytest
from msgspec import structs

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.run.provenance import judged, lost
from specmatrix.matrix.run.waivers import file_option, load_waivers, waive
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.schema import CRASH, CellResult, Waiver, WaiverRule

TODAY = date(2030, 1, 15)
TREES = WaiverRule("algorithm=eagle3 and topk=4", "trees leak", "2030-01-31", "ledger")
FILE = """
- cells: algorithm=eagle3 and topk=4
  gate: ledger
  reason: trees leak
  expiry: 2030-01-31
- {cells: none, gate: crash, reason: slow, expiry: "2030-02-28", kind: flaky, subject: vllm, versions: ">=1,<2",
   issue: "https://example.org/1", message: 'in q[0-9]'}
"""


def cell(text: str, **gates: State) -> CellResult:
    return judged(prepare(Cell.from_id(text)), [Outcome(name, state, {}, None, "why") for name, state in gates.items()])


def applied(result: CellResult, *rules: WaiverRule, subject: str = "reference", version: str = "1.2") -> CellResult:
    return waive(result, rules, subject, version, TODAY)


def test_a_waiver_covers_the_red_of_its_gate_only():
    red = cell("eagle3.s3.k4.n8", ledger=State.FAIL, lossless=State.PASS)
    both = cell("eagle3.s3.k4.n8", ledger=State.FAIL, lossless=State.FAIL)
    leaks = Waiver("trees leak", "2030-01-31")
    lossless = structs.replace(TREES, gate="lossless", expiry="2030-01-20", reason="wrong")
    for result, rules, waived in (
        (red, (TREES,), leaks),
        (red, (structs.replace(TREES, issue="a/b#1"),), Waiver("trees leak", "2030-01-31", "a/b#1")),
        (cell("eagle3.s3.k2.n8", ledger=State.FAIL), (TREES,), None),
        (both, (TREES,), None),
        (both, (TREES, lossless), Waiver("wrong", "2030-01-20")),  # covered while both hold
        (red, (structs.replace(TREES, expiry="2030-01-02"), TREES), leaks),
        (red, (structs.replace(TREES, subject="tiny"), lossless, TREES), leaks),  # behind others of no concern
        (red, (structs.replace(TREES, message="^wh"),), leaks),
        (red, (structs.replace(TREES, message="^hy"),), None),  # another failure of the gate
    ):
        assert applied(result, *rules).waived == waived


def test_a_known_failure_that_passes_again_is_red_and_a_flaky_one_is_not():
    green = cell("eagle3.s3.k4.n8", ledger=State.PASS)
    found = applied(green, TREES)
    text = "ledger passes again, but a waiver until 2030-01-31 says that it fails: trees leak"
    assert (found.state, found.error, found.waived) == ("FAIL", text, None)
    assert applied(green, structs.replace(TREES, kind="flaky")) == green
    assert applied(green, structs.replace(TREES, expiry="2030-01-14")) == green, "an expired one says nothing"
    assert applied(green, structs.replace(TREES, expiry="2030-01-15")).state == "FAIL", "its last day"
    crash = structs.replace(TREES, gate=CRASH)
    assert str(applied(green, crash).error).startswith("crash passes again, "), "a cell that ran did not crash"
    unsupported = structs.replace(green, state="UNSUPPORTED", gates=(), error="it has no trees")
    assert applied(unsupported, TREES, crash) == unsupported
    assert applied(cell("eagle3.s3.k4.n8", lossless=State.PASS), TREES).state == "PASS", "the gate did not judge it"


def test_a_cell_that_no_gate_judged_is_waived_as_a_crash():
    gone = lost(prepare(Cell()), "the power went")
    rule = WaiverRule("none", "the machines of June are slow", "2030-06-30", CRASH)
    assert applied(gone, rule).waived == Waiver(rule.reason, rule.expiry)
    assert applied(gone, structs.replace(rule, message="power went$")).waived == Waiver(rule.reason, rule.expiry)
    for other in ({"gate": "ledger"}, {"message": "water"}):
        assert applied(gone, structs.replace(rule, **other)).waived is None


@pytest.mark.parametrize(
    ("subject", "version", "waived"),
    [("tiny", "1.5", True), ("tiny", "2.0", False), ("reference", "1.5", False), ("tiny", "1.5.dev3", True)],
)
def test_a_waiver_holds_for_its_subject_and_its_versions(subject, version, waived):
    rule = structs.replace(TREES, subject="tiny", versions=">=1,<2")
    red = cell("eagle3.s3.k4.n8", ledger=State.FAIL)
    assert (applied(red, rule, subject=subject, version=version).waived is not None) is waived


def test_a_file_of_waivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert load_waivers(None) == ()
    file = tmp_path / "specmatrix-waivers.yaml"
    file.write_text(FILE, encoding="utf-8")
    more = {"issue": "https://example.org/1", "message": "in q[0-9]"}
    flaky = WaiverRule("none", "slow", "2030-02-28", "crash", "flaky", "vllm", ">=1,<2", **more)
    assert load_waivers(None) == load_waivers(file) == (TREES, flaky)
    file.write_text("", encoding="utf-8")
    assert load_waivers(file) == ()


ENTRY = {"cells": "none", "gate": "ledger", "reason": "it leaks", "expiry": "2030-01-31"}


# Each line's list holds that of the line before nine times; Python shares them.
BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
# Each line's mapping is made of that of the line before nine times.
MERGED = BOMB.replace("[x]", "{x: 1}").replace(" [*", " {<<: [*").replace("]\n", "]}\n")
MANY = "the waivers 'w.yaml' are not YAML: 'it has more than 100,000 values, or its aliases repeat so many'"


def written(**changed: str) -> str:
    return "- " + "\n  ".join(f"{key}: {value}" for key, value in {**ENTRY, **changed}.items() if value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1", "the waivers 'w.yaml' must be a list, got a dict"),
        ("- [a, b]", "waiver 1 of w.yaml: Expected `object`, got `array`"),
        ("[" * 5000, "the waivers 'w.yaml' are not YAML: 'it nests too deeply'"),
        ("# " * 200_000, "the waivers 'w.yaml' are not YAML: 'it has 400,000 characters; allowed: at most 262,144'"),
        (BOMB, MANY),
        (MERGED, MANY),
        ("- &a [*a]", MANY),
        ("- " + "9" * 5000, "the waivers 'w.yaml' are not YAML: 'it has a number of more than 4,300 digits'"),
        (written() + "\n  cells: none", "the waivers 'w.yaml' are not YAML: 'the key cells is there twice"),
        ("- 3", "waiver 1 of w.yaml: Expected `object`, got `int`"),
        ("- [", "the waivers 'w.yaml' are not YAML: "),
        (written(gate=""), "waiver 1 of w.yaml has no gate, which it excuses"),
        (written(gates="x"), "waiver 1 of w.yaml: Object contains unknown field `gates`"),
        (written(reason="3"), "waiver 1 of w.yaml: Expected `str`, got `int` - at `$.reason`"),
        (written(reason='" "'), "waiver 1 of w.yaml: Expected `str` matching regex"),
        (written(gate="drips"), "gate of waiver 1 of w.yaml must be one of claimed_capabilities, oracle, identities, "),
        (written(kind="often"), "waiver 1 of w.yaml: Invalid enum value 'often' - at `$.kind`"),
        (written(expiry="soon"), "waiver 1 of w.yaml: Expected `str` matching regex"),
        (written(expiry="2026-02-30"), "expiry of waiver 1 of w.yaml must be a date such as 2026-12-31, got "),
        (written(subject="vlm"), "subject of waiver 1 of w.yaml must be one of reference, sglang, "),
        (written(versions="new"), "versions of waiver 1 of w.yaml must be a range such as '>=5.17,<5.20', got 'new'"),
        (written(message="'['"), "message of waiver 1 of w.yaml must be a regular expression: unterminated"),
        (written(message='""'), "message of waiver 1 of w.yaml must be a regular expression that is not blank, got ''"),
        (written(message='" \\t"'), "message of waiver 1 of w.yaml must be a regular expression that is not "),
        (written(cells="topq=4"), "cells of waiver 1 of w.yaml: axis 'topq' is unknown"),
        ("", "cannot read the waivers 'w.yaml': No such file or directory"),
        (b"- \xe9", "the waivers 'w.yaml' are not UTF-8 text"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes, message: str):
    monkeypatch.chdir(tmp_path)
    if text:
        Path("w.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as found:
        load_waivers(Path("w.yaml"))
    assert str(found.value).startswith(message) and "\n" not in str(found.value)


def test_a_file_is_named_as_a_shell_reads_it():
    names = [file_option(Path(name)) for name in ("a b.yaml", "w.yaml")]
    assert names == ["--waivers 'a b.yaml'", "--waivers w.yaml"]
