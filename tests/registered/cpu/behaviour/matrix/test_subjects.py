"""A subject of the user's own, found by its entry point: listed, checked, run from the command line and by pytest."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.cli import main
from specmatrix.errors import ConfigError
from specmatrix.matrix.subjects.contract import check_contract
from specmatrix.matrix.subjects.registry import load_subject
from specmatrix.reports.store import load

POINTS = """[specmatrix.subjects]
tiny = tests.support.tiny_subject:TinySubject
replay = tests.support.tiny_subject:ReplaySubject
missing = tests.support.no_such_module:Subject
other = tests.support.tiny_subject:TinySubject
"""
Specmatrix = Callable[..., tuple[int, str, str]]
VARYING = re.compile("; total cell time .*")


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
    assert status == 0 and "tiny: 9 of 9 checks of the contract pass" in out, out


def test_the_contract_says_of_a_broken_law_what_was_asked_expected_and_got(specmatrix: Specmatrix):
    status, out, _ = specmatrix("subjects", "check", "replay", "--json")
    broken = {check["name"]: check["broken"] for check in json.loads(out)["checks"]}
    assert status == 1 and [name for name in broken if broken[name]] == ["refusals are answers"]
    assert broken["refusals are answers"] == {
        "asked": "a prompt of 20,000 tokens",
        "expected": "finish 'refused', and a message as `refusal`",
        "got": "finish 'length'",
    }


# Of a user's file: a subject that replays the oracle, and an engine that changes its answers.
MINE = """
from dataclasses import replace
from specmatrix.matrix.subjects.protocol import EngineCommand, SubjectRequest, Unsupported
from tests.support.tiny_subject import ReplayEngine, ReplaySubject

class Mine(ReplaySubject):
    name = "mine"
    def __init__(self):
        super().__init__(name="mine")
    def start(self, command):
        return MyEngine(command, "")
{subject}

class MyEngine(ReplayEngine):
    def generate(self, asks):
        return [self.changed(answer, len(asks)) for answer in super().generate(asks)]
    def changed(self, answer, asks):
        return answer
{engine}
"""
SLOW = (
    "    def translate(self, prepared):\n        print('translating', flush=True)\n        __import__('time').sleep(60)"
)


def mine(folder: Path, subject: str = "", engine: str = "") -> str:
    """Write the file; what names the subject in it."""
    (folder / "mine.py").write_text(MINE.format(subject=subject, engine=engine), encoding="utf-8")
    return f"{folder / 'mine.py'}:Mine"


@pytest.mark.parametrize(
    ("law", "subject", "engine", "asked", "expected", "got"),
    [
        ("translations are pure data", "translate = lambda self, cell: Unsupported('')", "", "of ", "a reason", "''"),
        ("translations are pure data", "translate = lambda self, cell: 1 / 0", "", "a tr", "a command", "ZeroDivision"),
        (
            "translations are pure data",
            "translate = lambda self, cell: EngineCommand({1: {2}}, {})",
            "",
            "of",
            "JSON",
            "set",
        ),
        (
            "translations are pure data",
            "translate = lambda self, cell: EngineCommand({}, {})",
            "",
            "of",
            "an ask",
            "[]",
        ),
        (
            "translations are pure data",
            "translate = lambda self, cell, count=[]: count.append(1) or Unsupported(f'{count}')",
            *("", "of", "the same", "two"),
        ),
        (
            "no request field is ignored",
            "translate = lambda self, cell: EngineCommand({}, {}, (SubjectRequest('q0', (1,), {}),))",
            *("", "max_new_tokens 7", "another command", "the same"),
        ),
        (
            "ids come back",
            "",
            "changed = lambda self, one, asks: replace(one, prompt_ids=(7,))",
            "input_ids (0",
            "them",
            "(7,)",
        ),
        (
            "ids come back",
            "",
            "changed = lambda self, one, asks: replace(one, finish='abort')",
            "tokens",
            "'length'",
            "'abort'",
        ),
        ("ids come back", "", "changed = lambda self, one, asks: 1 / 0", "at once", "goes on", "ZeroDivision"),
        (
            "answers depend on no other ask",
            "",
            "changed = lambda self, one, asks: replace(one, text=f'{asks}')",
            *(" alone", "'2'", "'1'"),
        ),
        ("flags are read back", "", "readback = lambda self: {'depth': 1}", "runs", "flag drafter", "{'depth': 1}"),
        ("an engine can be closed twice", "", "close = lambda self: 1 / 0", "two calls", "goes on", "ZeroDivision"),
    ],
)
def test_each_law_says_what_was_asked_expected_and_got(
    tmp_path: Path, law: str, subject: str, engine: str, asked: str, expected: str, got: str
):
    loaded = load_subject(mine(tmp_path, f"    {subject}", f"    {engine}"))
    with closing(check_contract(loaded)) as laws:
        broken = next(found for name, found in ((one.name, one.check()) for one in laws) if name == law)
    assert broken is not None
    assert asked in broken.asked and expected in broken.expected and got in broken.got, broken


def test_a_law_is_printed_while_it_runs_and_ctrl_c_ends_the_check(tmp_path: Path):
    words = [sys.executable, "-u", "-m", "specmatrix", "subjects", "check", mine(tmp_path, SLOW)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HOME) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert line.startswith("  translations are pure data") and "translating" in line and not out
    assert (process.returncode, err) == (130, "interrupted after 0 checks of the contract\n")


def test_a_file_is_enough_for_a_run_and_for_the_rerun_of_its_red_cells(specmatrix: Specmatrix, tmp_path: Path):
    place = mine(tmp_path, engine="    def _accepted(self, due, place):\n        return 1")
    cells = ("--stage", "product", "--workers", "1", "--subject", place)
    status, out, err = specmatrix("run", *cells, "--cells", "none or eagle3.s3.k1.pair", "--out", "first")
    assert status == 1 and "1 passed, 1 failed" in out, out + err
    red = load(tmp_path / "first")["eagle3.s3.k1.pair"]
    assert load(tmp_path / "first").header.subject.name == "mine" and f"--subject {place}" in red.repro
    status, out, err = specmatrix("run", *cells, "--rerun-failed", "first", "--out", "again")
    assert status == 1 and "0 passed, 1 failed" in out, out + err


@pytest.mark.nightly
def test_the_pages_commands_lead_from_a_skeleton_to_a_verdict(specmatrix: Specmatrix, tmp_path: Path):
    page = (HOME / "docs" / "your-engine.md").read_text(encoding="utf-8").partition("\n## One class\n")[2]
    blocks = [block.splitlines()[1:] for block in page.split("```")[1:4:2]]
    (new, check, run), due = [shlex.split(line)[1:] for line in blocks[0]], [VARYING.sub("", one) for one in blocks[1]]
    status, out, _ = specmatrix(*new)
    assert status == 0 and "subjects check mine.py:MySubject" in out
    status, _, err = specmatrix(*new)
    assert status == 2 and err == "specmatrix: mine.py exists; name a new file\n"
    status, out, _ = specmatrix(*check)
    assert status == 1 and "TODO: start the engine" in out and "2 of 3 checks of the contract pass" in out
    text = (tmp_path / "mine.py").read_text(encoding="utf-8")
    for old, new in FILLED.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    (checked, checks, _), (ran, cells, err) = specmatrix(*check), specmatrix(*run)
    said = [VARYING.sub("", line) for line in (checks + cells).splitlines()]
    assert checked == ran == 0 and len(due) == 3, checks + cells + err
    assert [line for line in due if line not in said] == []


# What the author of an engine writes in place of the skeleton's TODOs; the engine is this package's.
FILLED = {
    'raise NotImplementedError("TODO: start the engine with these flags and model folders")': (
        "from specmatrix.engine import LLM, EngineConfig\n"
        "        draft = str(self.models.get('draft'))\n"
        "        drafts = {'speculative_algorithm': 'EAGLE3', 'speculative_draft_model_path': draft}\n"
        "        self.llm = LLM(EngineConfig(str(self.models['target']), **drafts if self.flags['mode'] else {}))"
    ),
    'return [Answer(ask.id, ask.input_ids, (), "", "stop", None, 0, ()) for ask in asks]': (
        "return [self.answer(ask) for ask in asks]\n\n"
        "    def answer(self, ask: SubjectRequest) -> Answer:\n"
        "        from specmatrix.engine import SamplingParams\n"
        "        from specmatrix.errors import RequestError\n"
        "        given = SamplingParams(ask.fields['max_tokens'], ignore_eos=ask.fields['ignore_eos'])\n"
        "        try:\n"
        "            (found,) = self.llm.generate([list(ask.input_ids)], given)\n"
        "        except RequestError as error:\n"
        "            return Answer(ask.id, ask.input_ids, (), '', 'refused', None, 0, (), refusal=str(error))\n"
        "        ids, end = tuple(found.output_ids), (str(found.finish.reason), found.finish.matched)\n"
        "        return Answer(ask.id, ask.input_ids, ids, found.text, *end, 0, found.accept_lengths)"
    ),
}


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
    assert any(", schedule" in line and line.endswith(": its pages have no journal") for line in lines), out
    status, out, _ = specmatrix("subjects", "show", "tiny", "--json")
    assert status == 0 and json.loads(out)["excluded"]["ranks"] == "the subject does not show ranks"
    assert specmatrix("subjects", "show", "missing")[0] == specmatrix("subjects", "show", "none")[0] == 2


@pytest.mark.nightly
def test_pytest_runs_cells_on_a_subject_under_waivers(installed: Path, tmp_path: Path):
    (tmp_path / "test_cells.py").write_text("from specmatrix.matrix.plugin import MatrixCells\ncells = MatrixCells()\n")
    ruined = "def ruined(): return ReplaySubject('never accepts', 'ruined')\n"
    (tmp_path / "mine.py").write_text(f"from tests.support.tiny_subject import ReplaySubject\n{ruined}")
    common = "expiry: 2999-12-31, subject: ruined"
    known = f"cells: algorithm=eagle3, reason: it accepts nothing, issue: a/b#1, {common}"
    waivers = [f"- {{gate: {gate}, {known}}}" for gate in ("acceptance", "lossless", "finish")]
    waivers.append(f"- {{cells: none, gate: lossless, reason: old, {common}}}\n")
    (tmp_path / "specmatrix-waivers.yaml").write_text("\n".join(waivers), encoding="utf-8")
    options = ("--specmatrix-subject", "mine.py:ruined", "--specmatrix-stage", "product", "-p", "no:cacheprovider")
    cells = ("--specmatrix-cells", "none or none.temperature or eagle3.s3.k1.pair")
    command = [sys.executable, "-m", "pytest", "-q", "-rx", *options, *cells]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(HOME), str(installed)))}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert "1 failed, 1 skipped, 1 xfailed" in done.stdout, done.stdout + done.stderr
    assert "lossless passes again, but a waiver until 2999-12-31 says that it fails: old" in done.stdout
    assert "eagle3.s3.k1.pair - it accepts nothing (a/b#1), until 2999-12-31" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--subject", "vlmm"), "subject 'vlmm' is unknown; it must be FILE.py:CLASS or one of reference, "),
        (("run", "--subject", "no.py:Mine"), "subject file no.py does not exist; pass a Python file that must define "),
        (("run", "--subject", "tiny.py:Mine"), "subject file tiny.py has no Mine; it must define the class of a "),
        (
            ("run", "--subject", "tiny.py:Vllm"),
            "subject 'vllm' is registered twice, by specmatrix.matrix.subjects.vllm.",
        ),
        (("run", "--subject", "tiny.py:Nameless"), "subject 'tiny.py:Nameless' of tiny.py:Nameless has the name None"),
        (("run", "--subject", "tiny.py:os"), "subject 'tiny.py:os' cannot be loaded from tiny.py:os: TypeError: "),
        (("subjects", "check", "reference"), "subject 'reference' runs in this process, without asks; only others "),
        (("run", "--waivers", "no.yaml"), "cannot read the waivers 'no.yaml': No such file or directory"),
    ],
)
def test_a_wrong_name_is_one_sentence(specmatrix: Specmatrix, tmp_path: Path, words: tuple[str, ...], message: str):
    text = "import os\nclass Nameless: ...\nclass Vllm:\n    name = 'vllm'\n"
    (tmp_path / "tiny.py").write_text(text, encoding="utf-8")
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
