"""What a red cell tells, from a fault planted by the command line to the report."""

import json
import re
from pathlib import Path

import pytest

from specmatrix.cli import main
from specmatrix.matrix.run.provenance import run_header
from specmatrix.reports.schema import CellResult
from specmatrix.reports.store import load
from specmatrix.reports.wording import build

CELL = "eagle3.s3.k4.n8.v2.mixed_lengths"


@pytest.fixture(scope="module")
def red(tmp_path_factory) -> tuple[Path, CellResult]:
    out = tmp_path_factory.mktemp("red")
    (out / "explain").mkdir()
    (out / "explain" / "eagle.html").write_text("of an earlier run")
    words = ["run", "--cells", CELL, "--fault", "bonus-stride", "--explain", "--workers", "1", "--out", str(out)]
    assert main(words) == 1
    [cell] = load(out)
    return out, cell


def test_a_planted_fault_makes_its_cell_red_and_the_report_names_it(red):
    out, cell = red
    header = load(out).header
    assert header.fault == "bonus-stride" and header.dirty is run_header("cpu", "pr", 0, ()).dirty
    assert f"{build(header)}<" in (out / "report.html").read_text() and build(header).endswith(" + fault bonus-stride")
    assert cell.first_red.gate == "lossless" and cell.first_red.token == 2
    assert "planted fault" in (out / "report.html").read_text()


def test_the_command_of_a_red_cell_plants_its_fault_and_writes_elsewhere(red):
    out, cell = red
    assert cell.repro == f"specmatrix run --fault bonus-stride --cells '{CELL}' --seed 0 --out \"$(mktemp -d)\""
    assert str(out) not in cell.repro


def test_an_explained_cell_shows_the_draft_of_the_broken_round_and_what_contradicts_it(red):
    found = red[1].first_red
    assert len(found.tree) == 8 and found.tree[0].draw.id == found.got_tokens[2].id
    assert found.note == "the draft's root is ' k' (456); the step before ended with 'irst' (379)"
    assert {event.event for event in red[1].timeline.events} == {"schedule", "launch", "resolve"}


def test_an_explained_cell_has_a_page_of_its_own_that_needs_no_network(red):
    pages = {page.name: page.read_text() for page in (red[0] / "explain").iterdir()}
    assert [*pages] == [f"{CELL}.html"]
    [page] = pages.values()
    assert "verify round 2, lag 1" in page and "the draft&#39;s root is &#39; k&#39; (456)" in page
    assert re.findall(r'href="[^"]*"', page) == [f'href="../report.html#cell={CELL}"']
    assert not re.findall(r"""src=|https?://|@import|url\(""", page)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["at"] == {"request": "q6", "token": 2} and len(data["events"]) > 50


def test_the_failed_cells_of_a_planted_fault_rerun_with_the_same_fault_only(red, tmp_path, capsys):
    words = ["run", "--out", str(tmp_path / "out"), "--rerun-failed", str(red[0])]
    assert main(words) == 2
    assert "is of fault bonus-stride, not none; add --fault bonus-stride" in capsys.readouterr().err
    assert main([*words, "--fault", "path-not-compacted"]) == 2
    assert not (tmp_path / "out").exists()


def test_an_ordinary_run_shows_the_draft_of_the_broken_round_too(tmp_path):
    words = ["run", "--cells", "standalone.s1.k2.pair", "--fault", "bonus-stride", "--workers", "1"]
    assert main([*words, "--out", str(tmp_path)]) == 1
    [cell] = load(tmp_path)
    assert len(cell.first_red.tree) == 3 and cell.timeline is None
    assert "draft of this round" in (tmp_path / "report.html").read_text()
