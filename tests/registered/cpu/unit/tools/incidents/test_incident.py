"""Each patch of an incident applies to the current sources, and an unexpected verdict is reported."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from specmatrix import HOME
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults.fault import Patch, sources
from specmatrix.reports.compare import CellChange, ChangeState, cell_state
from tests.support.tables import table
from tools.incidents.incident import NAMES, ComparedStep, ContractStep, Expected, incident
from tools.incidents.replay import ALGORITHMS
from tools.incidents.verdict import differences

INCIDENTS = tuple(map(incident, NAMES))
STEPS = [step for one in INCIDENTS for step in one.steps]
# The changes of the five incidents.
ORIGINS = {21062, 26866, 26981, 26997, 24055, 24999, 22651, 28754}


def test_every_change_has_its_replay_under_a_name_of_its_own():
    assert {
        int(number) for one in INCIDENTS for origin in one.origins for number in re.findall(r"\d+", origin)
    } == ORIGINS
    assert len(INCIDENTS) == len({one.name for one in INCIDENTS}) == 5
    for one in INCIDENTS:
        assert len(one.steps) == len({step.name for step in one.steps})
        assert one.question.endswith("?") and all(step.story.endswith(".") for step in one.steps)


def changed(edits) -> set[Path]:
    found: set[Path] = set()
    for edit in edits:
        hits = []
        for folder in ("engine", "matrix/cells"):
            try:
                hits += Patch("x", (edit,)).changes(sources(HOME / folder))
            except ConfigError:
                continue
        assert len(hits) == 1, edit
        found.update(hits)
    return found


def test_every_state_applies_to_todays_sources():
    states = {s for step in STEPS if isinstance(step, ComparedStep) for s in (step.base, step.head)}
    states |= {step.state for step in STEPS if isinstance(step, ContractStep)}
    for state in states:
        touched = changed(state.edits)
        assert bool(touched) == bool(state.edits), state.name


def test_every_cell_exists_and_every_expected_one_runs():
    for step in STEPS:
        if isinstance(step, ComparedStep):
            ran = {*step.cells, *step.dropped, *step.added}
            assert all(Cell.from_id(cell).id == cell for cell in ran)
            assert set(step.expected.cells) <= ran, step.name
            assert not {*step.cells} & {*step.dropped, *step.added}
        elif isinstance(step, ContractStep):
            assert (HOME / ALGORITHMS / step.file).is_file()


def test_a_step_is_excused_by_its_own_change_and_not_by_a_later_one():
    trees = incident("trees-on-overlap")
    excuses = {step.name: [each.reason for each in step.acknowledged] for step in trees.steps}
    first, second = (f"sglang#{number}: trees run on v2" for number in (26866, 26997))
    assert excuses == {"merge": [first], "amended": [first], "revert": [], "reland": [second]}


@pytest.fixture
def found():
    """What a verdict is read from, of a comparison in which everything that can be expected is there."""
    gates = (
        cell_state.GateChange("lossless", "PASS", "FAIL", "b differs"),
        cell_state.GateChange("finish", "FAIL", "PASS", ""),
    )
    pair = (("spec_version", "v1"), ("topk", "1"))
    return SimpleNamespace(
        verdict="red",
        changes=(
            CellChange("b", ChangeState.REGRESSED, "lossless PASS -> FAIL: b differs", True, "run", gates=gates),
            CellChange("c", ChangeState.LOST, "gone", True, "run"),
            CellChange("d", ChangeState.SAME, "", False, "run"),
        ),
        factors=(cell_state.Factor("red at", (("topk > 1", "spec_version=v2"),)),),
        rewrites=(cell_state.RewriteChange("topk: [4] -> 1", "new", "a chain", ("b",), True, True),),
        coverage=cell_state.CoverageChange((cell_state.LostPairs("gone", ("b",), (pair,), ()),), ()),
        left=(cell_state.LeftDefault("spec_version", "v1", (("topk", "1"),), ("b",), (), True),),
    )


RIGHT = Expected(
    "red",
    cells={"b": "REGRESSED: lossless", "c": "LOST"},
    factor="topk > 1 x spec_version=v2",
    rewrites={"new topk: *": "red"},
    lost_pairs=("spec_version=v1 x topk=1",),
    by_default=("spec_version=v1 x topk=1",),
    says=("b differs",),
)


def test_the_expected_verdict_has_no_difference(found):
    assert [*differences(RIGHT, found)] == []


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        *table(__file__)["differences"],
        ({"cells": {**RIGHT.cells, "d": "LOST"}}, "d is unchanged, expected LOST"),
        ({"cells": {**RIGHT.cells, "b": "REGRESSED: ledger"}}, "b is REGRESSED: lossless, expected REGRESSED: ledger"),
    ],
)
def test_each_difference_is_a_sentence(found, wrong, sentence):
    assert [*differences(replace(RIGHT, **wrong), found)] == [sentence]
