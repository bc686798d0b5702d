"""A gate that passes although it looked at less than in base is no pass."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from specmatrix.reports.compare import ChangeState
from specmatrix.reports.compare.comparability import CONTENT_DEPENDENT
from specmatrix.reports.schema import AMOUNTS
from tests.support.tables import table


def only(comparison):
    assert len(comparison.changes) == 1
    return comparison.changes[0]


# What each gate looks at, as the gates write it.
LOOKED = table(__file__)["looked"]
EACH = [(gate, name) for gate, names in AMOUNTS.items() for name in names if name != "n"]


def test_what_every_gate_looks_at_is_known():
    amounts = {gate: set(names) for gate, names in AMOUNTS.items()}
    assert {gate: set(numbers) - {"accuracy"} for gate, numbers in LOOKED.items()} == amounts


@pytest.mark.parametrize("state", ["PASS", "FAIL"])
@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize(("gate", "name"), EACH)
def test_a_gate_that_passes_on_nothing_is_regressed(against, gated, gate, name, state, zero):
    base = LOOKED[gate]
    head = {key: value for key, value in base.items() if key != name}
    if zero:
        head[name] = type(base[name])()
    for header in ({}, {"zoo_hash": "other"}):
        comparison = against([gated(gate, state, base)], [gated(gate, numbers=head)], head_header=header)
        text = f"{gate} passes in head without its {name}, which base has"
        assert (comparison.verdict, only(comparison).state) == ("red", ChangeState.REGRESSED)
        assert text in only(comparison).why


@pytest.mark.parametrize(("gate", "name"), table(__file__)["shared"])
def test_a_start_that_fewer_cells_share_is_no_loss(against, gated, gate, name):
    comparison = against([gated(gate, "PASS", LOOKED[gate])], [gated(gate, numbers=LOOKED[gate] | {name: 1})])
    assert (comparison.verdict, comparison.counts[ChangeState.SAME]) == ("green", 1)


@pytest.mark.parametrize("state", ["PASS", "FAIL"])
@pytest.mark.parametrize(
    ("gate", "name", "left", "text"),
    [
        ("lossless", "tokens", 1, "its tokens fell from 467 to 1"),
        ("lossless", "oracle_tokens", 126, "its oracle_tokens fell from 253 to 126"),
        ("ledger", "stamps", 9, "its stamps fell from 10,139 to 9"),
        ("effective", "required", 14, "its required fell from 30 to 14"),
        ("distribution", "draws", 299, "its draws fell from 600 to 299"),
        ("acceptance", "emitted", [39], "its emitted fell from 3 to 1"),
    ],
)
def test_a_gate_that_passes_on_less_than_half_is_regressed(against, gated, change_cell, gate, name, left, text, state):
    base = LOOKED[gate]
    head = gated(gate, numbers=base | {name: left})
    comparison = against([gated(gate, state, base)], [head])
    assert (comparison.verdict, only(comparison).state) == ("red", ChangeState.REGRESSED)
    assert f"{gate} passes in head, and {text}" in only(comparison).why
    # Other prompts or another configuration may have less to look at.
    if gate in CONTENT_DEPENDENT:
        other = against([gated(gate, state, base)], [head], head_header={"data_hash": "other"})
        assert other.counts[ChangeState.REGRESSED] == 0
    moved = against([gated(gate, state, base, resolved={"topk": 4})], [change_cell(head, resolved={"topk": 1})])
    assert only(moved).state is ChangeState.REWRITTEN


@pytest.mark.parametrize(("left", "text"), [
    ({}, "no counter of the engine is above 0 in head"),
    ({"verify.rounds": 9}, "1 counter of the engine above 0 in head, 3 in base"),
])  # fmt: skip
def test_a_cell_without_the_counters_of_base_is_regressed(against, make_cell, left, text):
    base = make_cell("a", evidence={"verify.rounds": 9, "draft.calls": 8, "tree.branched": 7})
    comparison = against([base], [replace(base, evidence=left)])
    assert (comparison.verdict, only(comparison).why) == ("red", text)
    assert against([base], [replace(base, evidence={"verify.rounds": 9, "draft.calls": 8})]).verdict == "green"


@pytest.mark.parametrize(("gate", "base", "head", "text"), table(__file__)["smaller"])
@pytest.mark.parametrize("state", ["PASS", "FAIL", "NOT MEASURED"])
def test_a_smaller_sample_is_not_the_same(against, gated, gate, base, head, text, state):
    comparison = against([gated(gate, state, base)], [gated(gate, numbers=head)])
    change = only(comparison)
    assert (change.state, change.why) == (ChangeState.UNKNOWN, f"{text}; more samples are needed")
    unknown = "no cell is known to be worse, but 1 cell UNKNOWN: more samples are needed"
    assert (comparison.verdict, comparison.outcome) == ("green", (unknown,))
    assert against([gated(gate, numbers=head)], [gated(gate, numbers=base)]).counts[ChangeState.UNKNOWN] == 0


@pytest.mark.parametrize(("abort", "states"), [("none", [ChangeState.REGRESSED]), ("running", [])])
def test_an_aborted_answer_over_http_ends_where_its_abort_arrives(against, gated, abort, states):
    base, head = (gated("identities", numbers={"rounds": rounds}, axes={"abort": abort}) for rounds in (17, 7))
    assert [one.state for one in against([base], [head]).changes] == states
