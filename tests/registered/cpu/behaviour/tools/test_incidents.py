"""The incidents are replayed: every verdict is the expected one, and the page shows what the command prints."""

import re

import pytest
from markupsafe import escape
from msgspec.structs import replace

from specmatrix import HOME
from specmatrix.reports.store import load
from tools.incidents import __main__ as command
from tools.incidents.__main__ import main
from tools.incidents.incident import NAMES, Asked, AskedStep, ComparedStep, Incident, incident

PAGE = HOME / "docs" / "incidents.md"


def masked(line: str) -> str:
    """Without the commit and the seconds, which differ from run to run."""
    return re.sub(r"[0-9a-f]{12}( \+ changes)?|v0\.1\.0|(\d+ min )?\d+(\.\d+)? s$", "#", line.strip())


def shown(command: str) -> list[str]:
    """The lines that the page shows for a command."""
    (block,) = re.findall(rf"^\$ {re.escape(command)}\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    return [line for line in block.splitlines() if line.strip()]


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_the_verdicts_are_the_expected_ones_and_on_the_page(name: str, capsys, tmp_path):
    assert main([name, "--out", str(tmp_path)]) == 0
    said = [masked(line) for line in capsys.readouterr().out.splitlines()]
    replayed, command = incident(name), f"python -m tools.incidents {name}"
    steps = len(replayed.steps)
    assert said[-1] == f"{steps} of {steps} verdicts as expected"
    assert sum(line.startswith("from change to verdict: ") for line in said) == steps
    for line in map(masked, shown(command)):
        start = line.removesuffix(" …")
        assert any(found.startswith(start) if line != start else found == line for found in said), line
    for step in replayed.steps:
        if isinstance(step, ComparedStep):
            folder = tmp_path / name / step.name
            assert {*load(folder / "base").lines} == {*step.cells, *step.dropped}
            assert {*load(folder / "head").lines} == {*step.cells, *step.added}
            assert (folder / "comparison.html").is_file() and f"page: {folder / 'comparison.html'}" in said
            page = (folder / "comparison.html").read_text("utf-8")
            assert f": {escape(step.base.name)} → {escape(step.head.name)}</h1>" in page
            commands = {cell.repro for cell in load(folder / "head")}
            assert (commands == {command}) == bool(step.head.edits)


FILES = Incident("files", ("x#1",), "Which?", (AskedStep("one", "It runs.", (Asked({}),)),))
WRONG = replace(FILES, steps=(AskedStep("one", "It runs.", (Asked({}, "it is refused"),)),))


@pytest.mark.parametrize(("given", "status"), [(FILES, 0), (WRONG, 1)])
def test_the_exit_status_says_whether_all_is_as_expected(given, status, capsys, monkeypatch):
    monkeypatch.setattr(command, "incident", lambda name: given)
    assert main([NAMES[0]]) == status
    said = capsys.readouterr().out
    assert f"{1 - status} of 1 verdict as expected" in said
    assert ("NOT AS EXPECTED:  is accepted, expected it is refused" in said) == bool(status)


def test_the_list_is_that_of_the_page_and_an_unknown_name_is_refused(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.splitlines() == shown("python -m tools.incidents")
    with pytest.raises(SystemExit) as ended:
        main(["trees"])
    assert ended.value.code == 2 and "trees: must be all or one of session-inheritance" in capsys.readouterr().err
