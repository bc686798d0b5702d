"""Speeds of two runs: the states of a comparison, its error rates by simulation, and what cannot be compared."""

import numpy as np
import pytest

from specmatrix.reports.compare import ChangeState
from specmatrix.reports.compare.cell_state import LEAST_EFFECT
from specmatrix.reports.compare.cells import effect_text
from specmatrix.reports.compare.evidence import effects, smallest_visible
from specmatrix.reports.schema import GateResult
from specmatrix.reports.speed import speed_text
from tests.support.speeds import TURNS, numbers

pytestmark = pytest.mark.register(est_seconds=4, stage="pr")


@pytest.fixture
def change_of(make_cell, against):
    """The change of a cell between two sets of numbers; its state is SAME if nothing is said of it."""

    def change(base, head, **headers: object):
        cells = (
            make_cell("a", gates=(GateResult("ledger", "PASS", {"verbs": 9}), GateResult("speed", "PASS", one, (1, 2))))
            for one in (base, head)
        )
        found = against(*([cell] for cell in cells), **headers)
        return next(iter(found.changes), None), found.verdict

    return change


def state_of(change_of, **slower: float):
    chance = np.random.default_rng(3)
    found, verdict = change_of(numbers(chance), numbers(chance, **slower))
    return (found.state if found else ChangeState.SAME), verdict, found


def test_a_longer_round_is_a_regression(change_of):
    state, verdict, found = state_of(change_of, ours=1.05)
    assert (state, verdict) == (ChangeState.REGRESSED, "red")
    assert found.why.startswith("speed 1.") and "smallest visible loss" in found.why
    assert {effect.gate for effect in found.effects if effect.significant} == {"speed", "output_token", "own_speed"}


def test_longer_steps_of_both_sides_show_beside_the_fixed_work_only(change_of):
    state, verdict, found = state_of(change_of, ours=1.05, plain=1.05)
    assert (state, verdict) == (ChangeState.REGRESSED, "red")
    assert {effect.gate for effect in found.effects if effect.significant} == {"own_speed", "plain_speed"}
    assert "fixed work took +0.0 %" in found.why


def test_a_machine_that_drifts_a_little_is_no_change(change_of):
    state, verdict, found = state_of(change_of, machine=1.02)
    assert (state, verdict) == (ChangeState.SAME, "green")
    assert "speed loss below" in found.bound
    assert any("fixed work took +2.0 %" in effect.note for effect in found.effects)


def test_on_another_machine_only_ratios_to_plain_decoding_are_known(change_of):
    """Whatever the fixed work does not take out of the drift, and what a slow step adds to it, stays unknown."""
    assert state_of(change_of, machine=1.2)[:2] == (ChangeState.UNKNOWN, "green")
    assert state_of(change_of, machine=1.2, ours=1.05, plain=1.05)[:2] == (ChangeState.UNKNOWN, "green")
    assert state_of(change_of, machine=1.2, ours=1.05)[:2] == (ChangeState.REGRESSED, "red")


def test_quicker_plain_decoding_is_no_regression_of_the_drafter(change_of):
    state, verdict, found = state_of(change_of, plain=0.9)
    assert (state, verdict) == (ChangeState.IMPROVED, "green")
    assert found.why.startswith("plain_speed")


def test_slower_plain_decoding_is_a_regression_although_the_ratio_rises(change_of):
    state, verdict, found = state_of(change_of, plain=1.1)
    assert (state, verdict) == (ChangeState.REGRESSED, "red")
    assert found.why.startswith("plain_speed")


def test_a_shorter_round_is_an_improvement(change_of):
    assert state_of(change_of, ours=0.9)[:2] == (ChangeState.IMPROVED, "green")


def test_a_noisy_machine_leaves_it_unknown(change_of):
    state, verdict, found = state_of(change_of, noise=0.3)
    assert (state, verdict) == (ChangeState.UNKNOWN, "green")
    assert "more samples are needed" in found.why


def test_error_rates(make_cell):
    """2 % of noise in every time: 5 % are found, and two equal runs hardly ever differ."""
    chance = np.random.default_rng(0)

    def significant(**slower: float):
        old, new = (
            make_cell("a", gates=(GateResult("speed", "PASS", numbers(chance, 0.02, **more), (1, 2)),))
            for more in ({}, slower)
        )
        found = {effect.gate: effect for effect in effects(old, new, ())}
        wrong = [
            effect for effect in found.values() if effect.p_loss < 0.01 and effect.change <= -LEAST_EFFECT[effect.gate]
        ]
        return bool(wrong), smallest_visible("speed", found["speed"].interval)

    alarms = [significant()[0] for _ in range(200)]
    found = [significant(ours=1.05) for _ in range(200)]
    assert sum(alarms) <= 2
    assert sum(hit for hit, _ in found) >= 190
    assert 0.025 < np.median([visible for _, visible in found]) < 0.05


def test_what_is_visible_is_found_nearly_always():
    assert smallest_visible("speed", (-0.04, 0.04)) == pytest.approx(0.08)
    assert smallest_visible("speed", (-0.001, 0.001)) == pytest.approx(0.026)


@pytest.mark.parametrize(
    ("changes", "pairing"),
    [
        ({"clock": "cpu"}, "another clock"),
        ({"device": "A100"}, "another device"),
        ({"work_spread": 0.081}, "a busy machine"),
        ({"turns": 5}, "few turns"),
    ],
)
def test_other_settings_have_no_interval(change_of, changes, pairing):
    chance = np.random.default_rng(3)
    turns = changes.get("turns", TURNS)
    found, verdict = change_of(numbers(chance), {**numbers(chance, turns=turns), **changes})
    assert f"{pairing}: no interval" in effect_text(found.effects[0])
    assert (found.state, verdict) == (
        (ChangeState.REGRESSED, "red") if turns < TURNS else (ChangeState.UNKNOWN, "green")
    )


def test_a_spread_up_to_the_limit_is_judged(change_of):
    chance = np.random.default_rng(3)
    base, head = (numbers(chance, ours=ours) | {"work_spread": 0.08} for ours in (1.0, 1.05))
    assert change_of(base, head)[0].state is ChangeState.REGRESSED


def test_another_seed_is_not_comparable(change_of):
    chance = np.random.default_rng(3)
    found, _ = change_of(numbers(chance), numbers(chance, ours=2.0), head_header={"seed": 5})
    assert (found.state, found.why) == (ChangeState.NOT_COMPARABLE, "speed: an input differs")


def test_a_report_without_the_fixed_work_has_no_drift(change_of):
    chance = np.random.default_rng(3)
    head = {name: value for name, value in numbers(chance, ours=1.05).items() if name != "work_ms"}
    found, _ = change_of(numbers(chance), head)
    assert found.state is ChangeState.REGRESSED
    assert "fixed work took +0.0 %" in found.why


def test_a_red_cell_has_no_speed_to_compare(make_cell, against):
    gate = GateResult("speed", "PASS", numbers(np.random.default_rng(3)), (1, 2))
    found = against([make_cell("a", gates=(gate,))], [make_cell("a", state="FAIL")])
    assert found.changes[0].state is ChangeState.REGRESSED
    assert not found.changes[0].effects


def test_speed_as_a_sentence(make_cell):
    gate = GateResult("speed", "PASS", numbers(np.random.default_rng(3)), (1.25, 1.35))
    assert speed_text(make_cell("a", gates=(gate,))) == (
        "1,859 tokens/s, 1.30 times the speed without a drafter (1.25 to 1.35); first token after 2.00 ms "
        "(without 1.90), then 0.500 ms a token (0.600)"
    )
    assert speed_text(make_cell("a")) == ""
    assert speed_text(make_cell("a", gates=(GateResult("speed", "PASS", {"turns": 24}, (1.25, 1.35)),))) == ""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"turns": -1}, "turns of gate speed must be an integer from 0"),
        ({"speed_ups": [1.0, 0.0]}, "speed_ups of gate speed must be a list with for each turn a number above 0"),
        ({"work_ms": 0}, "work_ms of gate speed must be a number above 0"),
        ({"work_spread": -0.1}, "work_spread of gate speed must be a number from 0 on"),
        ({"clock": 3}, "clock of gate speed must be a text"),
    ],
)
def test_absurd_numbers_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        GateResult("speed", "PASS", wrong)
