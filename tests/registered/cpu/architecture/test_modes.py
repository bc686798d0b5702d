"""The documentation's tables of modes and gates equal those generated from traits, axes and gates."""

from __future__ import annotations

from specmatrix import HOME
from specmatrix.engine.core.draft.algorithms import ALGORITHMS
from specmatrix.matrix.cells.axes import axis
from specmatrix.matrix.cells.mode_table import HEAD, MODES, mode_table
from specmatrix.matrix.gates.registry import GATES

DOCS = HOME / "docs"


def test_the_page_holds_the_table_of_modes():
    text = (DOCS / "engine.md").read_text(encoding="utf-8")
    assert f"\n{mode_table()}\n\n" in text, "write specmatrix.matrix.cells.mode_table.mode_table() into docs/engine.md"


def test_the_page_says_what_each_gate_proves():
    text = (DOCS / "matrix.md").read_text(encoding="utf-8")
    rows = text.partition("| gate | what it proves |\n|---|---|\n")[2].splitlines()
    shown = [row.split(" | ")[0].removeprefix("| ") for row in rows[: rows.index("")]]
    assert sorted(shown) == sorted(gate.name for gate in GATES)


def test_every_mode_names_values_and_gates_that_exist():
    known = {gate.name for gate in GATES}
    for mode in MODES:
        assert set(mode.values) <= set(axis(mode.axis).names) and mode.values
        assert set(mode.gates) <= known and mode.gates
    for name in ("session", "adaptive", "spec_version", "tp"):
        shown = {value for mode in MODES if mode.axis == name for value in mode.values}
        assert shown == set(axis(name).names) - {axis(name).default}


def test_a_line_lists_the_algorithms_of_its_mode():
    lines = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in mode_table().splitlines()}
    column = HEAD.index("algorithms")
    adaptive = [traits.name for traits in ALGORITHMS if traits.adaptive]
    assert lines["adaptive steps"][column] == ", ".join(adaptive)
    assert lines["spec v2"][column] == "all but NGRAM"
    assert lines["streaming session"][column] == "all"
    assert {len(line) for line in lines.values()} == {len(HEAD)}
