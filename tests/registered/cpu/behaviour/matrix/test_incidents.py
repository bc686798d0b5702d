"""The incidents are replayed: every verdict is the expected one, and the page shows what the command prints."""

import json
import re

import pytest
from markupsafe import escape
from msgspec.structs import replace

from specmatrix import HOME
from specmatrix.cli import main
from specmatrix.matrix.incidents import command
from specmatrix.matrix.incidents.catalogue import INCIDENTS
from specmatrix.matrix.incidents.incident import Asked, AskedStep, ComparedStep, Incident
from specmatrix.reports.store import load

PAGE = HOME / "docs" / "incidents.md"


def masked(line: str) -> str:
    """Without the commit and the seconds, which differ from run to run."""
    return re.sub(r"[0-9a-f]{12}( \+ changes)?|v0\.1\.0|(\d+ min )?\d+(\.\d+)? s$", "#", line.strip())


def shown(name: str) -> list[str]:
    """The lines that the page shows for an incident."""
    (block,) = re.findall(rf"^\$ specmatrix incident run {name}\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    return [line for line in block.splitlines() if line.strip()]


@pytest.mark.nightly
@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_the_verdicts_are_the_expected_ones_and_on_the_page(incident: Incident, capsys, tmp_path):
    assert main(["incident", "run", incident.name, "--out", str(tmp_path)]) == 0
    said = [masked(line) for line in capsys.readouterr().out.splitlines()]
    steps = len(incident.steps)
    assert said[-2] == f"{steps} of {steps} verdicts as expected"
    assert sum(line.startswith("from change to verdict: ") for line in said) == steps
    for line in map(masked, shown(incident.name)):
        start = line.removesuffix(" …")
        assert any(found.startswith(start) if line != start else found == line for found in said), line
    for step in incident.steps:
        if isinstance(step, ComparedStep):
            folder = tmp_path / incident.name / step.name
            assert {*load(folder / "base").ids()} == {*step.cells, *step.dropped}
            assert {*load(folder / "head").ids()} == {*step.cells, *step.added}
            assert (folder / "comparison.html").is_file() and f"page: {folder / 'comparison.html'}" in said
            page = (folder / "comparison.html").read_text("utf-8")
            assert f": {escape(step.base.name)} → {escape(step.head.name)}</h1>" in page
            commands = {cell.repro for cell in load(folder / "head")}
            assert (commands == {f"specmatrix incident run {incident.name}"}) == bool(step.head.edits)


FILES = Incident("files", ("x#1",), "Which?", (AskedStep("one", "It runs.", (Asked({}),)),))
WRONG = replace(FILES, steps=(AskedStep("one", "It runs.", (Asked({}, "it is refused"),)),))


@pytest.mark.parametrize(("incident", "status"), [(FILES, 0), (WRONG, 1)])
def test_the_exit_status_and_the_json_say_whether_all_is_as_expected(incident, status, capsys, monkeypatch):
    monkeypatch.setattr(command, "incidents", lambda name: (incident,))
    assert main(["incident", "run", "files", "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    (step,) = told["incidents"][0]["steps"]
    assert told["as_expected"] is step["as_expected"] is (status == 0)
    assert step["differences"] == ([] if status == 0 else [" is accepted, expected it is refused"])
    assert main(["incident", "all"]) == status
    said = capsys.readouterr().out
    assert f"{1 - status} of 1 verdict as expected" in said and ("NOT AS EXPECTED: " in said) == bool(status)


def test_an_unknown_incident_is_invalid_input(capsys):
    assert main(["incident", "run", "trees"]) == 2
    assert capsys.readouterr().err.startswith("specmatrix: incident 'trees' is unknown; it must be all or one of ")


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("notes.txt", "specmatrix: cannot write in notes.txt: File exists\n"),
        ("notes.txt/out", "specmatrix: cannot write in notes.txt/out: Not a directory\n"),
    ],
)
def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(
    place, sentence, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    monkeypatch.setattr(command, "replay", lambda *_: pytest.fail("it ran"))
    assert main(["incident", "run", "all", "--out", place]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", sentence)


def test_the_list_names_each_with_its_question(capsys):
    assert main(["incident", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{each.name}: {each.question} ({', '.join(each.origins)})" for each in INCIDENTS]
    assert main(["incident", "list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["incidents"]] == [
        each.name for each in INCIDENTS
    ]
