"""The smallest effects are held against simulated runs of the gates' own tests."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import kstest

from specmatrix.matrix.cover.selection import select
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.gates.thresholds import FALSE_ALARMS
from specmatrix.reports.schema import GateResult
from specmatrix.reports.sensitivity import FalseAlarms, false_alarms, smallest_effect
from specmatrix.reports.stats import ks_uniform, mcnemar, randomised_pit, ratio_change


def effect(name, numbers, thresholds=None, interval=None):
    return smallest_effect(GateResult(name, "PASS", numbers, interval), thresholds or {})


@pytest.mark.parametrize(
    ("gate", "numbers", "number"),
    [
        ("lossless", {"tokens": 537, "divergent": 0}, 537),
        ("lossless", {"tokens": 900, "proving": 537}, 537),
        ("finish", {"requests": 1, "faults": 0}, 1),
        ("acceptance", {"rounds": [16.0, 16.0], "left": 0}, 32),
        ("acceptance", {"rounds": 32, "left": 0}, 32),
        ("schedule", {"steps": 53}, 53),
    ],
)
def test_a_defect_that_strikes_at_random(gate, numbers, number):
    found = effect(gate, numbers)
    draw = np.random.default_rng(1)
    assert (draw.binomial(number, found, 2000) > 0).mean() == pytest.approx(0.95, abs=0.02)


def test_what_is_no_sample_and_what_fails_have_no_effect():
    assert effect("config", {"fields": 22}) is None
    assert effect("lossless", {"tokens": 0}) is effect("acceptance", {"length": 3.0}) is None
    assert effect("accuracy", {"baseline": 0.1, "won": 0, "n": 48}, {"alpha": 2e-4}) is None, "5 losses are no evidence"
    assert smallest_effect(GateResult("lossless", "FAIL", {"tokens": 90}, None, "wrong"), {}) is None


def test_a_shift_of_the_distribution_is_seen_as_often_as_promised():
    draws = 200
    found = effect("distribution", {"draws": draws, "outside": 0}, {"alpha": 1e-4})
    draw = np.random.default_rng(2)
    shifted = 0.5 + found
    seen = known = 0
    for _ in range(120):
        second = (draw.random(draws) > shifted).astype(float)
        places = randomised_pit(second / 2, np.full(draws, 0.5), draw.random(draws))
        seen += ks_uniform(places).p < 1e-4
        known += kstest(places, "uniform").pvalue < 1e-4
    assert seen == known
    assert 0.75 <= seen / 120 <= 0.97


def test_a_loss_beyond_the_band_is_seen_as_often_as_promised():
    """60 prompts with 6 % of noise each; the gate allows intervals that end at 0.97 or above."""
    draw = np.random.default_rng(3)
    emitted = np.full(60, 90.0)
    base = emitted / 3.0

    def interval(loss):
        change = ratio_change((emitted, base), (emitted, base / (1 - loss) * draw.normal(1, 0.06, 60)), 300)
        return 1 + change.interval[0], 1 + change.interval[1]

    found = effect("acceptance", {"length": 3.0}, {"low": 0.97}, interval(0.0))
    seen = [interval(found)[0] < 0.97 for _ in range(200)]
    assert sum(seen) / 200 == pytest.approx(0.8, abs=0.12)


def test_a_drop_of_accuracy_is_seen_as_often_as_promised():
    found = effect("accuracy", {"baseline": 0.75, "won": 1, "lost": 1, "n": 48}, {"alpha": 2e-4})
    assert found == pytest.approx(0.35, abs=0.005)
    draw = np.random.default_rng(4)
    lost = draw.binomial(36, (found * 48 + 1) / 36, 2000)
    assert np.mean([mcnemar(int(one), 1) < 2e-4 for one in lost]) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("stage", list(FALSE_ALARMS))
def test_the_locked_cells_keep_to_the_budget_of_false_alarms(stage):
    """Whatever else a gate measures is exact on an engine without a defect."""
    header = SimpleNamespace(thresholds={gate.name: dict(gate.thresholds) for gate in GATES})
    cells = select(stage)
    judged = {gate.name: sum(gate.applies(cell) for cell in cells) for gate in GATES}
    found = false_alarms(judged, header)
    assert found.tests > 0 and 0 < found.at_most <= FALSE_ALARMS[stage]
    damaged = {gate: {name: [0.1] for name in own} for gate, own in header.thresholds.items()}
    assert false_alarms(judged, SimpleNamespace(thresholds=damaged)) == FalseAlarms(found.tests, 0)
