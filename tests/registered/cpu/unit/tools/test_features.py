"""The README's table of engines is what lock files, waivers and stored reports say."""

from specmatrix import HOME
from specmatrix.matrix.cells.cell import Cell
from tools.features import ENGINES, table


def test_the_table_in_the_readme_is_the_one_that_the_tool_prints():
    assert table() in (HOME / "README.md").read_text(encoding="utf-8")


def test_a_cell_is_judged_by_its_waivers_and_one_of_a_report_by_its_red_gates():
    _, vllm, sglang, *_ = (engine.verdicts() for engine in ENGINES)
    assert vllm[Cell.from_id("eagle.s5.n6.gsm")] == {}
    assert set(vllm[Cell.from_id("dflash.s1")]) == {"acceptance", "finish"}
    assert (
        sglang[Cell.from_id("eagle3.s3.stop_string")]["lossless"] == "https://github.com/sgl-project/sglang/pull/23802"
    )
    assert sglang[Cell.from_id("eagle3.s3.pair.branch")]["lossless"] == ""
