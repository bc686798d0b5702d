"""The rate of the simulation counts passing schedules only."""

from specmatrix.benchmarks.simulation import GOAL, SEEDS, measure
from specmatrix.engine.core.memory.session_kv import SessionKV


def test_the_rate_is_of_every_sweep():
    (metric,) = measure(20)
    assert (metric.goal, metric.better, len(metric.figures)) == (GOAL, "higher", len(SEEDS))
    assert metric.note.startswith("5 seeds of 20 schedules, ") and metric.median > 0


def test_a_schedule_that_fails_leaves_no_rate(monkeypatch):
    hold = SessionKV.hold
    monkeypatch.setattr(SessionKV, "hold", lambda self, account, keep: hold(self, account, max(1, keep - 1)))
    (metric,) = measure(3000)
    assert (metric.state, metric.median, metric.goal) == ("red", None, GOAL)
    assert metric.note.startswith("schedule 20000000") and "its session keeps" in metric.note
