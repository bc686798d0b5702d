"""The clock around model forwards and around the subject: what it leaves is the overhead."""

import time

import pytest

from specmatrix.benchmarks.overhead import CallTimer, share_of_cell
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.gates.registry import GATES


def cells(count):
    return [cell for cell in stage_cells("smoke") if cell.ranks == 1 and cell.session == "none"][:count]


def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_nested_calls_count_once_and_results_pass_through():
    clock = CallTimer()
    inner = clock.wrap(lambda x: burn(1e-3) or x + 1)
    outer = clock.wrap(lambda x: inner(x) * 2)
    assert outer(3) == 8
    once = clock.seconds
    assert once > 0
    failing = clock.wrap(lambda: burn(1e-3) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failing()
    assert clock.seconds > once, "a call that fails is counted and leaves the clock usable"
    assert inner(1) == 2


@pytest.mark.nightly
def test_a_slow_gate_is_the_harness_s_and_a_red_cell_has_no_share(monkeypatch):
    chosen = cells(1)
    calm = share_of_cell(chosen, 1)
    assert 0 < calm.median < 1 and len(share_of_cell(cells(2), 2).figures) == 2
    gate = next(gate for gate in GATES if gate.applies(chosen[0]))
    judge = type(gate).judge
    monkeypatch.setattr(type(gate), "judge", lambda *args: (burn(0.5), judge(*args))[1])
    assert share_of_cell(chosen, 1).median > calm.median + 0.2
    monkeypatch.setattr(type(gate), "judge", lambda *args: 1 / 0)
    assert share_of_cell(chosen, 1).state == "red"
