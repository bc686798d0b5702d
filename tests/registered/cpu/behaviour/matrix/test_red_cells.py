"""What a red cell tells, from a fault planted by the command line to the report."""

from pathlib import Path

import pytest

from specmatrix.cli import main
from specmatrix.reports.schema import CellResult
from specmatrix.reports.store import load

pytestmark = pytest.mark.register(est_seconds=6, stage="pr")

CELL = "eagle3.s3.k4.n8.v2.ragged"


@pytest.fixture(scope="module")
def red(tmp_path_factory) -> tuple[Path, CellResult]:
    out = tmp_path_factory.mktemp("red")
    words = ["run", "--cells", CELL, "--fault", "bonus-stride", "--workers", "1", "--out", str(out)]
    assert main(words) == 1
    [cell] = load(out)
    return out, cell


def test_a_planted_fault_makes_its_cell_red_and_the_report_names_it(red):
    out, cell = red
    header = load(out).header
    assert (header.fault, header.dirty) == ("bonus-stride", True)
    assert cell.first_red.gate == "lossless" and cell.first_red.token == 2
    assert "planted fault" in (out / "report.html").read_text()


def test_the_command_of_a_red_cell_plants_its_fault_and_writes_elsewhere(red):
    out, cell = red
    assert cell.repro == f"specmatrix run --fault bonus-stride --cells '{CELL}' --seed 0 --out \"$(mktemp -d)\""
    assert str(out) not in cell.repro


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--fault", "bonus-strid"], "fault 'bonus-strid' is unknown in tier cpu; the closest is bonus-stride"),
        (
            ["--fault", "bonus-stride", "--subject", "transformers"],
            "a fault is planted in the reference engine only; subject 'transformers' is another one",
        ),
    ],
)
def test_a_fault_that_cannot_be_planted_is_refused(words: list[str], sentence: str, tmp_path, capsys):
    assert main(["run", "--cells", CELL, "--out", str(tmp_path / "out"), *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_failed_cells_of_a_planted_fault_rerun_with_the_same_fault_only(red, tmp_path, capsys):
    words = ["run", "--out", str(tmp_path / "out"), "--rerun-failed", str(red[0])]
    assert main(words) == 2
    assert "is of fault bonus-stride, not none; add --fault bonus-stride" in capsys.readouterr().err
    assert main([*words, "--fault", "path-not-compacted"]) == 2
    assert not (tmp_path / "out").exists()
