"""A subject of the user's own, found by its entry point: listed, checked, run from the command line and by pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.cli import main
from specmatrix.errors import ConfigError
from specmatrix.matrix.subjects.registry import load_subject
from specmatrix.reports.store import load

POINTS = """[specmatrix.subjects]
tiny = tests.support.tiny_subject:TinySubject
replay = tests.support.tiny_subject:ReplaySubject
missing = tests.support.no_such_module:Subject
other = tests.support.tiny_subject:TinySubject
"""
Specmatrix = Callable[..., tuple[int, str, str]]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the entry points of an installed package."""
    folder = tmp_path / "site" / "tiny-1.2.3.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.2.3\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text(POINTS, encoding="utf-8")
    return folder.parent


@pytest.fixture
def specmatrix(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Specmatrix:
    """Runs the command line in this process: its status, standard output and standard error."""
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        status = main(words)
        return status, *capsys.readouterr()

    return call


@pytest.mark.nightly
def test_a_subject_runs_cells_and_its_report_says_what_it_cannot_show(specmatrix: Specmatrix, tmp_path: Path):
    cells = "eagle3.s3.k1.pair or eagle3.s3.k1.p4.pair or eagle3.s3.k1.pair.abort_running"
    run = ("run", "--subject", "tiny", "--stage", "product", "--cells", cells, "--workers", "1", "--out", "out")
    status, out, err = specmatrix(*run)
    assert status == 0, out + err
    assert "2 passed, 0 failed, 0 not measured, 0 with infrastructure errors, 1 unsupported" in out
    report = load(tmp_path / "out")
    subject = report.header.subject
    assert (subject.name, subject.version) == ("tiny", "1.2.3") and "rounds" in subject.capabilities
    assert subject.excluded["effective"] == "the subject does not show counters"
    assert subject.excluded["ledger"] == "the subject does not show journal: its pages have no journal"
    assert report.header.counters is None
    (left_out,) = [cell for cell in report if cell.state == "UNSUPPORTED"]
    assert (left_out.id, left_out.error) == ("eagle3.s3.k1.p4.pair", "it has no page_size")
    passed = report["eagle3.s3.k1.pair"]
    names = {gate.name for gate in passed.gates}
    assert names == {"claimed_capabilities", "oracle", "lossless", "finish", "acceptance"}
    oracle, acceptance = passed.gate("oracle"), passed.gate("acceptance")
    assert oracle is not None and oracle.numbers["oracle_tokens"] > 50
    assert acceptance is not None and acceptance.numbers["ratio"] == 1
    for page in ("report.md", "report.html"):
        text = (tmp_path / "out" / page).read_text(encoding="utf-8")
        assert "its pages have no journal" in text and "it has no page" in text


@pytest.mark.nightly
def test_the_contract_holds_for_a_subject(specmatrix: Specmatrix):
    status, out, _ = specmatrix("subjects", "check", "tiny")
    assert status == 0 and "tiny: 9 of 9 parts of the contract hold" in out, out


def test_the_contract_names_the_part_that_a_subject_breaks(specmatrix: Specmatrix):
    status, out, _ = specmatrix("subjects", "check", "replay", "--json")
    checks = {check["name"]: check["fault"] for check in json.loads(out)["checks"]}
    assert status == 1 and [name for name, fault in checks.items() if fault] == ["refusals are answers"]
    assert checks["refusals are answers"].startswith("a prompt of 20000 tokens must be refused with a message, got ")


def test_subjects_are_listed_with_what_they_show(specmatrix: Specmatrix):
    status, out, _ = specmatrix("subjects", "--json")
    rows = {row["name"]: row for row in json.loads(out)["subjects"]}
    assert status == 1 and next(iter(rows)) == "reference" and rows["tiny"]["version"] == "1.2.3"
    assert rows["tiny"]["cannot"] == {"journal": "its pages have no journal"} and "abort" in rows["tiny"]["shows"]
    assert rows["missing"]["error"] == (
        "subject 'missing' cannot be loaded from tests.support.no_such_module:Subject: ModuleNotFoundError: "
        "No module named 'tests.support.no_such_module'"
    )
    assert rows["other"]["error"] == "subject 'other' of tests.support.tiny_subject:TinySubject has the name 'tiny'"
    status, out, _ = specmatrix("subjects")
    lines = [line.split(maxsplit=2) for line in out.splitlines() if line.strip()]
    table = {line[0]: line[2].strip() for line in lines[2:-1]}
    assert status == 1 and [*table] == [*rows]
    assert table["tiny"] == ", ".join(rows["tiny"]["judged_by"]) and "No module named" in table["missing"]


def test_a_version_that_looks_like_markup_is_printed_as_it_is(specmatrix: Specmatrix, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.support.tiny_subject.TinySubject.version", lambda subject: "1.0[/b]")
    assert "1.0[/b]" in specmatrix("subjects")[1] and "tiny: 1.0[/b]" in specmatrix("subjects", "show", "tiny")[1]


def test_one_subject_is_shown_with_what_does_not_judge_it_and_why(specmatrix: Specmatrix):
    status, out, _ = specmatrix("subjects", "show", "tiny")
    lines = out.splitlines()
    assert status == 0 and lines[0] == "tiny: 1.2.3" and lines[1].startswith("shows: ")
    assert "does not show journal: its pages have no journal" in lines
    assert any(line.startswith("judged by: claimed_capabilities, oracle, ") for line in lines)
    assert any(", session" in line and line.endswith(": its pages have no journal") for line in lines), out
    status, out, _ = specmatrix("subjects", "show", "tiny", "--json")
    assert status == 0 and json.loads(out)["excluded"]["ranks"] == "the subject does not show ranks"
    assert specmatrix("subjects", "show", "missing")[0] == specmatrix("subjects", "show", "none")[0] == 2


@pytest.mark.nightly
def test_pytest_runs_cells_on_a_subject_under_waivers(installed: Path, tmp_path: Path):
    (tmp_path / "test_cells.py").write_text("from specmatrix.matrix.plugin import MatrixCells\ncells = MatrixCells()\n")
    common = "expiry: 2999-12-31, subject: replay"
    waivers = (
        f"- {{cells: none, gate: lossless, reason: old, {common}}}",
        f"- {{cells: algorithm=eagle3, gate: acceptance, reason: it drafts nothing, issue: a/b#1, {common}}}\n",
    )
    (tmp_path / "specmatrix-waivers.yaml").write_text("\n".join(waivers), encoding="utf-8")
    options = ("--specmatrix-subject", "replay", "--specmatrix-stage", "product", "-p", "no:cacheprovider")
    cells = ("--specmatrix-cells", "none or none.temperature or eagle3.s3.k1.pair")
    command = [sys.executable, "-m", "pytest", "-q", "-rx", *options, *cells]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(HOME), str(installed)))}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert "1 failed, 1 skipped, 1 xfailed" in done.stdout, done.stdout + done.stderr
    assert "lossless passes again, but a waiver until 2999-12-31 says that it fails: old" in done.stdout
    assert "eagle3.s3.k1.pair - it drafts nothing (a/b#1), until 2999-12-31" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--subject", "vlmm"), "subject 'vlmm' is unknown; it must be one of reference, "),
        (("subjects", "check", "reference"), "subject 'reference' runs in this process, without asks; only others "),
        (("run", "--waivers", "no.yaml"), "cannot read the waivers 'no.yaml': No such file or directory"),
    ],
)
def test_a_wrong_name_is_one_sentence(specmatrix: Specmatrix, words: tuple[str, ...], message: str):
    status, _, err = specmatrix(*words)
    assert status == 2 and err.startswith(f"specmatrix: {message}") and err.count("\n") == 1


def test_two_packages_with_one_name_are_refused(installed: Path, monkeypatch: pytest.MonkeyPatch):
    again = installed / "again-1.dist-info"
    again.mkdir()
    (again / "METADATA").write_text("Metadata-Version: 2.1\nName: again\nVersion: 1\n", encoding="utf-8")
    (again / "entry_points.txt").write_text("[specmatrix.subjects]\ntiny = os:path\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(installed))
    with pytest.raises(
        ConfigError, match=r"^subject 'tiny' is registered twice, by .* and .*; each needs its own name$"
    ):
        load_subject("tiny")
