"""Speeds of two runs: the states of a comparison, its error rates by simulation, and what cannot be compared."""

import numpy as np
import pytest

from specmatrix.reports.compare import ChangeState
from specmatrix.reports.compare.cells import effect_text
from specmatrix.reports.compare.evidence import effects, mark_significant, smallest_visible
from specmatrix.reports.schema import GateResult
from specmatrix.reports.speed import ratio_shift, speed_text
from tests.support.speeds import STARTS, TURNS, numbers


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


def state_of(change_of, gpus=1, **slower: float):
    chance = np.random.default_rng(3)
    quiet = {"gpus": gpus, "noise": 0.01, "spread": 0.005, "shared": 0.005}
    found, verdict = change_of(numbers(chance, **quiet), numbers(chance, **{**quiet, **slower}))
    return (found.state if found else ChangeState.SAME), verdict, found


BOTH = {"ours": 1.05, "plain": 1.05}
# What is slower in head, on a host with a GPU or without, the state, and the numbers that changed significantly.
STATES = {
    "a longer round": (1, {"ours": 1.05}, "REGRESSED", {"speed", "output_token", "own_speed"}),
    "a shorter round": (1, {"ours": 0.9}, "IMPROVED", None),
    "longer steps of both sides show beside the fixed work only": (1, BOTH, "REGRESSED", {"own_speed", "plain_speed"}),
    "quicker plain decoding is no regression of the drafter": (1, {"plain": 0.9}, "IMPROVED", None),
    "slower plain decoding is one although the ratio rises": (1, {"plain": 1.1}, "REGRESSED", None),
    "a machine that drifts a little": (1, {"machine": 1.02}, "SAME", set()),
    # Whatever is not taken out of the drift, and what a slow round or step adds to it, stays unknown.
    "another machine": (0, {"machine": 1.2}, "UNKNOWN", set()),
    "another machine and slow steps": (0, {"machine": 1.2, **BOTH}, "UNKNOWN", None),
    "another machine and a slow round": (0, {"machine": 1.2, "ours": 1.05}, "UNKNOWN", None),
    "another machine and a very slow round": (0, {"machine": 1.2, "ours": 1.15}, "REGRESSED", None),
    # As on a CPU with eight processes a core, of which half ended: 7 % of the fixed work, and 3.5 % of the ratio.
    "a busy machine slows the drafter more": (0, {"machine": 1.07, "ours": 1.035}, "UNKNOWN", None),
    "a quiet machine does not": (0, {"machine": 1.02, "ours": 1.05}, "REGRESSED", None),
    "on a GPU the host moves the ratio less": (1, {"machine": 1.2, "ours": 1.05}, "REGRESSED", None),
    "on a GPU it moves it a little": (1, {"machine": 1.2, "ours": 1.018}, "UNKNOWN", None),
    # As on an H100 host where the ratio of an equal engine doubled while the fixed work took 54 % more.
    "far drift says nothing": (1, {"machine": 1.3, "ours": 1.5}, "UNKNOWN", None),
    "far drift back says nothing": (1, {"machine": 1 / 1.3, "ours": 1.5}, "UNKNOWN", None),
    "less drift does": (1, {"machine": 1.3**0.8, "ours": 1.5}, "REGRESSED", None),
    "less drift back does": (1, {"machine": 1.3**-0.8, "ours": 1.5}, "REGRESSED", None),
    # A quarter of what the fixed work gained is missing from the speed of both engines.
    "a host became quieter": (1, {"machine": 1 / 1.5, "ours": 1.1, "plain": 1.1}, "UNKNOWN", None),
}


@pytest.mark.parametrize("case", STATES)
def test_speeds_have_the_state_of_what_became_slower(change_of, case):
    gpus, slower, due, moved = STATES[case]
    state, verdict, found = state_of(change_of, gpus, **slower)
    assert (state, verdict) == (due, "red" if due == "REGRESSED" else "green")
    if moved is not None:
        assert {effect.gate for effect in found.effects if effect.significant} == moved


def test_the_words_of_a_change_say_what_was_visible_and_how_the_machine_moved(change_of):
    _, _, slower = state_of(change_of, ours=1.05)
    assert slower.why.startswith("speed 1.") and "smallest visible loss" in slower.why
    _, _, drifted = state_of(change_of, machine=1.02)
    assert "speed loss below" in drifted.bound
    assert any("fixed work took +2.0 %" in effect.note for effect in drifted.effects)
    _, _, far = state_of(change_of, machine=1.3, ours=1.5)
    assert "fixed work took +30.0 %: no interval" in effect_text(far.effects[0])


def test_a_noisy_machine_leaves_it_unknown(change_of):
    chance = np.random.default_rng(5)
    base, head = (numbers(chance, spread=0.05, ours=ours) for ours in (1.0, 1.02))
    found, verdict = change_of(base, head)
    assert (found.state, verdict) == (ChangeState.UNKNOWN, "green")
    assert "more samples are needed" in found.why


def alarms(make_cell, chance, runs, cells=1, **slower: float):
    """How many of so many comparisons are red, and the median smallest visible loss. The first cell is slower; all
    cells are tested together."""
    red, visible = 0, []
    for _ in range(runs):
        found = []
        for place in range(cells):
            old, new = (
                make_cell(f"c{place}", gates=(GateResult("speed", "PASS", numbers(chance, **more), (1, 2)),))
                for more in ({}, {} if place else slower)
            )
            found += effects(old, new, ())
        marked = mark_significant(found)
        red += any(effect.significant == "loss" for effect in marked)
        visible += [smallest_visible("speed", each.interval) for each in marked if each.gate == "speed"]
    return red, np.median(visible)


@pytest.mark.parametrize("cells", [1, 8])
def test_equal_runs_are_red_in_one_of_a_hundred(make_cell, cells):
    red, _ = alarms(make_cell, np.random.default_rng(0), 200 // cells, cells)
    assert red <= 2


@pytest.mark.parametrize("cells", [1, 8])
def test_a_round_that_takes_5_percent_longer_is_found(make_cell, cells):
    runs = 96 // cells
    red, visible = alarms(make_cell, np.random.default_rng(1), runs, cells, ours=1.05)
    assert red >= 0.98 * runs
    assert 0.03 < visible < 0.04


def test_turns_of_a_start_are_no_starts(make_cell):
    """An interval from the turns would exclude 0 in most of these equal runs."""
    chance = np.random.default_rng(2)
    base, head = (numbers(chance, 0.002, spread=0.03) for _ in range(2))
    found = ratio_shift(base, head, "speed")
    assert found.interval[1] - found.interval[0] > 0.03
    base, head = (numbers(chance, 0.002, spread=0.0) for _ in range(2))
    assert np.ptp(ratio_shift(base, head, "speed").interval) < 0.003


def test_a_start_that_was_disturbed_widens_the_interval_and_a_turn_does_not():
    chance = np.random.default_rng(3)
    base, head = numbers(chance), numbers(chance)
    calm = np.ptp(ratio_shift(base, head, "speed").interval)
    rows = np.array(head["speed_ups"]).reshape(STARTS, TURNS)
    one_turn, one_start = rows.copy(), rows.copy()
    one_turn[3, 5] /= 2
    one_start[3] *= 0.8
    found = [ratio_shift(base, head | {"speed_ups": list(each.ravel())}, "speed") for each in (one_turn, one_start)]
    assert np.ptp(found[0].interval) < 1.1 * calm < 3 * calm < np.ptp(found[1].interval)


def test_starts_with_other_numbers_of_turns_compare_those_that_both_have():
    chance = np.random.default_rng(3)
    base, head = numbers(chance, 0.0, spread=0.0), numbers(chance, 0.0, spread=0.0, turns=6, ours=1.05)
    head["speed_ups"] = list(np.array(base["speed_ups"]).reshape(STARTS, TURNS)[:, :6].ravel() / 1.05)
    assert ratio_shift(base, head, "speed").estimate == pytest.approx(-np.log(1.05))


@pytest.mark.parametrize("starts", [0, -1, 10**6, "8", 1.5])
def test_absurd_starts_are_no_measurement(starts):
    made = numbers(np.random.default_rng(3))
    assert ratio_shift(made, made | {"starts": starts}, "speed") is None


def test_what_is_visible_is_found_nearly_always():
    assert smallest_visible("speed", (-0.04, 0.04)) == pytest.approx(0.08)
    assert smallest_visible("speed", (-0.001, 0.001)) == pytest.approx(0.026)


@pytest.mark.parametrize(
    ("changes", "pairing"),
    [({"clock": "cpu"}, "another clock"), ({"device": "A100"}, "another device"), ({"starts": 1}, "few engine starts")],
)
def test_other_settings_have_no_interval(change_of, changes, pairing):
    chance = np.random.default_rng(3)
    starts = changes.get("starts", STARTS)
    found, verdict = change_of(numbers(chance), {**numbers(chance, starts=starts), **changes})
    assert f"{pairing}: no interval" in effect_text(found.effects[0])
    assert (found.state, verdict) == (
        (ChangeState.REGRESSED, "red") if starts < STARTS else (ChangeState.UNKNOWN, "green")
    )


def test_one_start_on_both_sides_is_unknown(change_of):
    chance = np.random.default_rng(3)
    found, verdict = change_of(numbers(chance, starts=1), numbers(chance, starts=1, ours=1.3))
    assert (found.state, verdict) == (ChangeState.UNKNOWN, "green")


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
        "1,974 tokens/s, 1.30 times the speed without a drafter (1.25 to 1.35); first token after 2.00 ms "
        "(without 1.90), then 0.500 ms a token (0.600)"
    )
    alone = GateResult("speed", "PASS", numbers(np.random.default_rng(3), starts=1))
    assert "1.30 times the speed without a drafter (one engine start); first" in speed_text(
        make_cell("a", gates=(alone,))
    )
    assert speed_text(make_cell("a")) == ""
    assert speed_text(make_cell("a", gates=(GateResult("speed", "PASS", {"turns": 24}, (1.25, 1.35)),))) == ""
