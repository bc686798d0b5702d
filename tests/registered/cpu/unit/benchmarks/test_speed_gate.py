"""`bench speed` and `bench stored-reference`: their verdicts on made-up runs."""

from itertools import count

import numpy as np
import pytest

from specmatrix.benchmarks import speed_gate, stored_reference
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults.loader import catalogue, delays
from specmatrix.matrix.faults.patch import sources
from specmatrix.matrix.faults.plant import planted
from specmatrix.matrix.run.prepared_cell import prepare
from specmatrix.matrix.run.record import record
from specmatrix.reports.schema import GateResult
from tests.support.speeds import numbers


def cell_of(gate, state="PASS"):
    made = record(prepare(speed_gate.CELL), "NOT MEASURED", error="none")
    return type(made)(
        id=made.id, state=state, start=made.start, axes=made.axes, repro=made.repro, gates=(gate,),
    )  # fmt: skip


@pytest.fixture
def made_up(monkeypatch):
    """The figures of `bench speed` by name; slower: the changes of the numbers by fault, or by the number of the run
    without one, which for the base is 0."""

    def measure(slower):
        chance = np.random.default_rng(4)
        asked, plain = [], count()

        def runs(tier, times, starts, fault=None):
            asked.append((times, fault))
            for _ in range(times):
                yield cell_of(
                    GateResult("speed", "PASS", numbers(chance, shared=0.005, **slower.get(fault or next(plain), {})))
                )

        monkeypatch.setattr(speed_gate, "runs", runs)
        found = {metric.name: metric for metric in speed_gate.measure()}
        assert asked == [(1, None), (1, "slow-round"), (5, None), (1, "slow-step"), (5, None)]
        return found

    return measure


def test_both_delays_are_seen_and_no_repetition(made_up):
    found = made_up({"slow-round": {"ours": 1.05}, "slow-step": {"ours": 1.05, "plain": 1.05}})
    assert [name for name in found if name.startswith("repetition_")][:2] == ["repetition_1", "repetition_2"]
    assert (found["repetitions_worse"].ratio, found["repetitions_worse"].pairs) == (0, 10)
    assert (found["delays_missed"].ratio, found["delays_missed"].pairs) == (0, 2)
    assert {found[name].state for name in ("repetitions_worse", "delays_missed")} == {"met"}
    assert found["slow_round"].note.startswith("REGRESSED: speed 1.")
    assert found["slow_round"].low < found["slow_round"].ratio == pytest.approx(0.95, abs=0.01)
    assert (found["spread_of_starts"].ratio, found["spread_of_starts"].pairs) == (pytest.approx(0.011, rel=0.2), 11)


def test_a_repetition_that_is_worse_and_a_delay_that_is_missed_miss_the_goals(made_up):
    found = made_up({3: {"ours": 1.05}, "slow-step": {"ours": 1.05}})
    assert found["repetition_3"].note.startswith("REGRESSED")
    assert [found[name].ratio for name in ("repetitions_worse", "delays_missed")] == [1, 1]
    assert [found[name].state for name in ("repetitions_worse", "delays_missed")] == ["missed", "missed"]


def test_a_red_run_has_no_figure_and_meets_no_goal():
    good = cell_of(GateResult("speed", "PASS", numbers(np.random.default_rng(1)), (1, 2)))
    broken = cell_of(GateResult("lossless", "FAIL", {}, message="other tokens"), "FAIL")
    found = speed_gate.figure("repetition_1", good, broken, "cpu")
    assert (found.state, found.note) == ("red", "FAIL: ['other tokens']")
    assert speed_gate.wrong("repetitions_worse", [found]).note == "a run is red"
    assert speed_gate.wrong("repetitions_worse", [found]).state != "met"


def test_every_delay_applies():
    with planted(None) as tree:
        texts = sources(tree)
    for delay in delays():
        (text,) = delay.patch.changes(texts).values()
        compile(text, delay.id, "exec")
        assert all(delay.runs_on(tier) for tier in ("cpu", "gpu1", "gpu2", "gpu4", "gpu8"))


def acceptance(length, state="PASS"):
    return cell_of(GateResult("acceptance", state, {"length": length}, message="" if state == "PASS" else "red"), state)


@pytest.mark.parametrize(
    ("base", "head", "state", "said"),
    [
        (3.0, 2.84, "FAIL", "stored reference: fails (3.000 to 2.840); gates: fail (acceptance)"),
        (3.0, 2.86, "FAIL", "stored reference: passes (3.000 to 2.860); gates: fail (acceptance)"),
        (3.0, 2.99, "PASS", "stored reference: passes (3.000 to 2.990); gates: pass"),
        (1.02, 1.0, "PASS", "stored reference: fails (1.020 to 1.000); gates: pass"),
    ],
)
def test_the_rule_of_the_stored_reference(base, head, state, said):
    (fault,) = (fault for fault in catalogue() if fault.id == "draft-kv-frozen")
    found = stored_reference.row(fault, acceptance(base), acceptance(head, state))
    assert found.note == f"{speed_gate.CELL.id}; {said}"
    assert found.ratio == pytest.approx(head / base)


def test_a_fault_without_a_length_is_not_measured():
    (fault,) = (fault for fault in catalogue() if fault.id == "draft-kv-frozen")
    base = acceptance(3.0)
    assert stored_reference.row(fault, base, None).note.endswith("the process died")
    crashed = cell_of(GateResult("ledger", "FAIL", message="leak"), "FAIL")
    found = stored_reference.row(fault, base, crashed)
    assert (found.state, found.note) == (
        "not measured", f"{speed_gate.CELL.id}; stored reference: no length; gates: fail (ledger)"
    )  # fmt: skip


def test_every_fault_of_the_table_is_one_that_acceptance_must_see(monkeypatch):
    asked = []

    def records(fault, cells):
        asked.append((fault and fault.id, [cell.id for cell in cells]))
        return {cell.id: acceptance(3.0) for cell in cells}

    monkeypatch.setattr(stored_reference, "records", records)
    *rows, theirs, ours = stored_reference.measure()
    assert len(rows) >= 50 and (theirs.ratio, ours.ratio) == (0, 0)
    assert asked[0][0] is None and {name for name, _ in asked[1:]} == {row.name for row in rows}
    assert all(Cell.from_id(cells[0]).id in asked[0][1] for _, cells in asked[1:])
