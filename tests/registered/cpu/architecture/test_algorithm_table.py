"""The documentation's table of algorithms equals the one generated from the traits."""

from __future__ import annotations

from specmatrix import HOME
from specmatrix.engine.core.draft.algorithm_table import algorithm_table
from specmatrix.engine.core.draft.algorithms import ALGORITHMS, DFLASH, NEXTN, NGRAM, NONE

PAGE = HOME / "docs" / "engine.md"


def test_the_page_holds_the_table_of_the_traits():
    assert f"\n{algorithm_table(ALGORITHMS)}\n\n" in PAGE.read_text(encoding="utf-8"), (
        "write specmatrix.engine.core.draft.algorithm_table.algorithm_table(ALGORITHMS) into docs/engine.md"
    )


def test_a_line_agrees_with_the_traits():
    table = algorithm_table((NONE, NGRAM, DFLASH, NEXTN)).splitlines()
    assert len(table) == 2 + 4 and all(line.count("|") == 8 for line in table)
    assert table[2].endswith("| root only | none | none | v1 and v2 | no |")
    assert table[3].endswith("| trees of any shape | none | none | v1 | no |")
    assert table[4].endswith("| chain, one block | its own checkpoint | in the target's slots | v1 and v2 | no |")
    assert table[5].endswith(
        "| chains and trees | in the target's checkpoint | in the target's slots | v1 and v2 | yes |"
    )
