"""The wording and the rarer branches of the comparison of one cell."""

import pytest

from specmatrix.reports.compare.acknowledge import Acknowledged
from specmatrix.reports.compare.cell_state import ChangeState, Effect
from specmatrix.reports.compare.cells import Context, compare_cell
from specmatrix.reports.schema import GateResult, ReasonRecord

LOSS = Effect("accuracy", 0.9, 0.85, -0.05, (-0.081, -0.019), 0.001, 0.9999, "prompts", "loss")


@pytest.fixture
def context():
    return lambda incomparable=(): Context(frozenset(incomparable), Acknowledged(), "2026-09-01")


@pytest.fixture
def gates(make_cell):
    """A cell with these gates, red if one of them is."""

    def make(**states: str):
        state = "PASS" if set(states.values()) <= {"PASS"} else "FAIL"
        return make_cell("a", state=state, gates=tuple(GateResult(name, each) for name, each in states.items()))

    return make


# Gates of base and head, those that cannot be compared, state, whether it is red, why.
GONE = "lossless FAIL -> not run: head does not run this gate"
TWO = {"ledger": "PASS", "accuracy": "PASS"}
STATES = [
    ({"ledger": "PASS", "lossless": "FAIL"}, {"ledger": "PASS"}, "", "REGRESSED", True, GONE),
    ({"ledger": "PASS", "lossless": "PASS"}, {"ledger": "PASS"}, "lossless", "REGRESSED", True, "lossless PASS -> not"),
    ({"a": "FAIL", "finish": "FAIL"}, {"a": "FAIL", "finish": "PASS"}, "", "IMPROVED", False, "finish FAIL -> PASS"),
    ({"a": "FAIL", "finish": "PASS"}, {"a": "PASS", "finish": "FAIL"}, "", "REGRESSED", True, "finish PASS -> FAIL"),
    ({"lossless": "FAIL"}, {"lossless": "NOT MEASURED"}, "", "SAME", False, "FAIL in both"),
    (TWO, {"ledger": "FAIL", "accuracy": "FAIL"}, "accuracy", "REGRESSED", True, "ledger PASS -> FAIL"),
    (TWO, {"ledger": "PASS", "accuracy": "FAIL"}, "accuracy", "NOT COMPARABLE", True, "accuracy PASS -> FAIL"),
]


@pytest.mark.parametrize(("base", "head", "other", "state", "red", "why"), STATES)
def test_gates_that_changed_decide_the_state(gates, context, base, head, other, state, red, why):
    change = compare_cell(gates(**base), gates(**head), (), context({other}))
    assert (change.state, change.red) == (state, red) and change.why.startswith(why)


def test_a_number_outweighs_a_rewrite_and_takes_a_waiver_only_while_it_holds(make_cell, context):
    head = make_cell("a", resolved={"topk": 1}, reasons=(ReasonRecord("topk", 1, "because"),))
    change = compare_cell(make_cell("a", resolved={"topk": 4}), head, (LOSS,), context())
    assert (change.state, change.red) == (ChangeState.REGRESSED, True)


def test_a_cell_that_crashed_says_how_instead_of_naming_the_gates_that_did_not_run(make_cell, context):
    head = make_cell("a", state="FAIL", error="LedgerError: no room", gates=())
    change = compare_cell(make_cell("a"), head, (), context())
    assert (change.state, change.why) == (ChangeState.REGRESSED, "PASS in base, FAIL in head: LedgerError: no room")
    assert [gate.head for gate in change.gates] == [None, None]
