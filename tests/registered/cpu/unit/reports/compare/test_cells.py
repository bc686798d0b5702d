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
    assert (change.state, change.bound, change.why) == (
        ChangeState.SAME,
        "acceptance loss below 1.1 %",
        effect_text(CALM),
    )


def test_no_difference_in_words(make_cell, context):
    assert (
        compare_cell(make_cell("a"), make_cell("a"), (), context()).why
        == "no gate result and no compared number differs"
    )


def test_a_red_gate_that_is_gone_is_no_improvement(gates, context):
    """Dropping a failing gate must not make a cell pass."""
    change = compare_cell(gates(ledger="PASS", lossless="FAIL"), gates(ledger="PASS"), (), context())
    assert (change.state, change.red) == (ChangeState.REGRESSED, True)
    assert change.why == "lossless FAIL -> not run: head does not run this gate"


def test_a_gate_that_is_gone_is_gone_under_other_prompts_too(gates, context):
    change = compare_cell(gates(ledger="PASS", lossless="PASS"), gates(ledger="PASS"), (), context({"lossless"}))
    assert (change.state, change.red) == (ChangeState.REGRESSED, True)


def test_one_of_two_red_gates_turns_green(gates, context):
    change = compare_cell(gates(ledger="FAIL", finish="FAIL"), gates(ledger="FAIL", finish="PASS"), (), context())
    assert (change.state, change.why) == (ChangeState.IMPROVED, "finish FAIL -> PASS")


def test_one_gate_replaced_by_another_is_regressed(gates, context):
    change = compare_cell(gates(ledger="FAIL", finish="PASS"), gates(ledger="PASS", finish="FAIL"), (), context())
    assert (change.state, change.why) == (ChangeState.REGRESSED, "finish PASS -> FAIL")


def test_a_cell_turns_green_without_a_gate(make_cell, context):
    change = compare_cell(make_cell("a", state="FAIL", error="x"), make_cell("a"), (), context())
    assert (change.state, change.why) == (ChangeState.IMPROVED, "FAIL before, PASS now")


def test_a_different_kind_of_red_is_still_red(gates, context):
    change = compare_cell(gates(lossless="FAIL"), gates(lossless="NOT MEASURED"), (), context())
    assert (change.state, change.red, change.why) == (ChangeState.SAME, False, "FAIL in both")
    assert [each.head for each in change.gates] == ["NOT MEASURED"]


def test_a_comparable_red_gate_outweighs_one_that_is_not(gates, context):
    base, head = gates(ledger="PASS", accuracy="PASS"), gates(ledger="FAIL", accuracy="FAIL")
    change = compare_cell(base, head, (), context({"accuracy"}))
    assert (change.state, change.why) == (ChangeState.REGRESSED, "ledger PASS -> FAIL")
    change = compare_cell(base, gates(ledger="PASS", accuracy="FAIL"), (), context({"accuracy"}))
    assert (change.state, change.red) == (ChangeState.NOT_COMPARABLE, True)


def test_a_number_outweighs_a_rewrite_and_takes_a_waiver_only_while_it_holds(make_cell, context):
    head = make_cell("a", resolved={"topk": 1}, reasons=(ReasonRecord("topk", 1, "because"),))
    change = compare_cell(make_cell("a", resolved={"topk": 4}), head, (LOSS,), context())
    assert (change.state, change.red) == (ChangeState.REGRESSED, True)


def test_gates_are_listed_in_heads_order_then_removed_ones(gates):
    base = gates(a="PASS", gone="PASS", b="PASS")
    changes = gate_changes(base, gates(b="FAIL", a="FAIL", fresh="PASS", late="NOT MEASURED"))
    assert [(each.gate, each.base, each.head) for each in changes] == [
        ("b", "PASS", "FAIL"),
        ("a", "PASS", "FAIL"),
        ("late", None, "NOT MEASURED"),
        ("gone", "PASS", None),
    ]


def test_a_new_cell_lists_its_red_gates(gates, context):
    change = new_cell(gates(ledger="PASS", finish="FAIL"), context())
    assert [each.gate for each in change.gates] == ["finish"]
    assert change.why == "the cell is missing in base; it is FAIL in head"


def test_a_cell_that_crashed_says_how_instead_of_naming_the_gates_that_did_not_run(make_cell, context):
    head = make_cell("a", state="FAIL", error="LedgerError: no room", gates=())
    change = compare_cell(make_cell("a"), head, (), context())
    assert (change.state, change.why) == (ChangeState.REGRESSED, "PASS in base, FAIL in head: LedgerError: no room")
    assert [gate.head for gate in change.gates] == [None, None]
