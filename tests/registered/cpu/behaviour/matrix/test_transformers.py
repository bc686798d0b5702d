"""The smoke cells of transformers: exact cells pass, its known defect is red, and a waiver carries it."""

from __future__ import annotations

from pathlib import Path

from specmatrix import HOME
from specmatrix.cli import main
from specmatrix.reports.store import load

CELLS = "standalone.s3.n4 or standalone.s3.n4.stop_string or ngram.n8.stops"


def test_exact_cells_pass_and_the_waiver_carries_the_known_defect(tmp_path: Path, capsys):
    waivers = HOME / "examples" / "transformers-waivers.yaml"
    words = ("run", "--subject", "transformers", "--stage", "pr", "--cells", CELLS, "--workers", "1")
    code = main([*words, "--waivers", str(waivers), "--out", str(tmp_path / "out")])
    assert code == 0, capsys.readouterr().out
    report = load(tmp_path / "out")
    assert report.header.subject.name == "transformers"
    states = {cell.id: (cell.state, cell.waived is not None) for cell in report}
    assert states == {
        "standalone.s3.n4": ("PASS", False),
        "standalone.s3.n4.stop_string": ("FAIL", True),
        "ngram.n8.stops": ("PASS", False),
    }
    assert {gate.name for gate in report["standalone.s3.n4"].gates} >= {"oracle", "lossless", "finish", "acceptance"}
