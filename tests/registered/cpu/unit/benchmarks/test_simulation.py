"""The rate of the simulation counts passing schedules only."""

import re

from specmatrix.benchmarks.simulation import GOAL, NAME, SEEDS, schedules_per_minute
from specmatrix.engine.core.memory.session_kv import SessionKV


def test_the_rate_is_of_every_sweep():
    metric = schedules_per_minute(20)
    assert (metric.name, metric.goal, metric.better, metric.pairs) == (NAME, GOAL, "higher", len(SEEDS))
    note = re.fullmatch(r"5 seeds of 20 schedules, (.*) s of one core", metric.note)
    # The rate of all sweeps together lies between the slowest and the fastest; the note rounds its seconds.
    seconds = float(note[1])
    assert metric.low <= metric.ratio <= metric.high
    assert metric.low <= 60 * 100 / (seconds - 0.005) and 60 * 100 / (seconds + 0.005) <= metric.high


def test_a_schedule_that_fails_leaves_no_rate(monkeypatch):
    hold = SessionKV.hold
    monkeypatch.setattr(SessionKV, "hold", lambda self, account, keep: hold(self, account, max(1, keep - 1)))
    metric = schedules_per_minute(3000)
    assert (metric.state, metric.ratio, metric.goal) == ("red", None, GOAL)
    assert metric.note.startswith("schedule 20000000") and "its session keeps" in metric.note
