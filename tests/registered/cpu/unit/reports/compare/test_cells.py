"""The wording and the rarer branches of the comparison of one cell."""

import pytest

from specmatrix.reports.compare.acknowledge import Acknowledged
from specmatrix.reports.compare.cell_state import ChangeState, Effect
from specmatrix.reports.compare.cells import Context, compare_cell, effect_text, gate_changes, new_cell
from specmatrix.reports.schema import GateResult, ReasonRecord

LOSS = Effect("accuracy", 0.9, 0.85, -0.05, (-0.081, -0.019), 0.001, 0.9999, "prompts", "loss")
OPEN = Effect("acceptance", 3.0, 2.99, -0.0033, (-0.0412, 0.03), 0.4, 0.6, "intervals")
CALM = Effect("acceptance", 3.0, 2.99, -0.0033, (-0.0112, 0.004), 0.4, 0.6, "prompts")


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


def test_an_effect_in_words():
    assert effect_text(LOSS) == "accuracy 0.900 -> 0.850 (-5.0 pt [-8.1, -1.9], p 0.001)"
    assert effect_text(OPEN) == "acceptance 3.000 -> 2.990 (-0.3 % [-4.1, +3.0], p 0.4)"


def test_the_bound_is_the_largest_loss_left(make_cell, context):
    change = compare_cell(make_cell("a"), make_cell("a"), (OPEN,), context())
    assert (change.state, change.bound) == (ChangeState.UNKNOWN, "acceptance loss below 4.1 %")
    change = compare_cell(make_cell("a"), make_cell("a"), (CALM,), context())
    assert (change.state, change.bound) == (ChangeState.SAME, "acceptance loss below 1.1 %")
    assert change.why == effect_text(CALM)
    change = compare_cell(make_cell("a"), make_cell("a"), (), context())
    assert change.why == "no gate result and no compared number differs"


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


def test_a_cell_turns_green_without_a_gate(make_cell, context):
    change = compare_cell(make_cell("a", state="FAIL", error="x"), make_cell("a"), (), context())
    assert (change.state, change.why) == (ChangeState.IMPROVED, "FAIL before, PASS now")


def test_a_number_outweighs_a_rewrite_and_takes_a_waiver_only_while_it_holds(make_cell, context):
    head = make_cell("a", resolved={"topk": 1}, reasons=(ReasonRecord("topk", 1, "because"),))
    change = compare_cell(make_cell("a", resolved={"topk": 4}), head, (LOSS,), context())
    assert (change.state, change.red) == (ChangeState.REGRESSED, True)


def test_gates_are_listed_in_heads_order_then_removed_ones(gates):
    base = gates(a="PASS", gone="PASS", b="PASS")
    changes = gate_changes(base, gates(b="FAIL", a="FAIL", fresh="PASS", late="NOT MEASURED"))
    new = [("b", "PASS", "FAIL"), ("a", "PASS", "FAIL"), ("late", None, "NOT MEASURED")]
    assert [(each.gate, each.base, each.head) for each in changes] == [*new, ("gone", "PASS", None)]


def test_a_new_cell_lists_its_red_gates(gates, context):
    change = new_cell(gates(ledger="PASS", finish="FAIL"), context())
    assert [each.gate for each in change.gates] == ["finish"]
    assert change.why == "the cell is missing in base; it is FAIL in head"


def test_a_cell_that_crashed_says_how_instead_of_naming_the_gates_that_did_not_run(make_cell, context):
    head = make_cell("a", state="FAIL", error="LedgerError: no room", gates=())
    change = compare_cell(make_cell("a"), head, (), context())
    assert (change.state, change.why) == (ChangeState.REGRESSED, "PASS in base, FAIL in head: LedgerError: no room")
    assert [gate.head for gate in change.gates] == [None, None]
