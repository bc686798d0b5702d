"""Effects of single cells, the thresholds of their rules, and the resulting states."""

from dataclasses import replace as replace_fields

import pytest
from msgspec.structs import replace

from specmatrix.reports.compare import ChangeState
from specmatrix.reports.compare.cell_state import Effect
from specmatrix.reports.compare.cells import effect_text
from specmatrix.reports.compare.evidence import effects, is_bounded, mark_significant
from specmatrix.reports.schema import GateResult


@pytest.fixture
def effect_of(make_cell):
    """The only effect between two sets of numbers of one gate, or None."""

    def find(gate, base, head, base_interval=None, head_interval=None, states=("PASS", "PASS")):
        old = make_cell("a", gates=(GateResult(gate, states[0], base, base_interval),))
        new = make_cell("a", gates=(GateResult(gate, states[1], head, head_interval),))
        found = effects(old, new, ())
        assert len(found) <= 1
        return found[0] if found else None

    return find


def made(change, p_loss=0.5, p_gain=0.5, low=0.0, gate="acceptance"):
    return Effect(gate, 3.0, 3.0, change, (low, 0.1), p_loss, p_gain, "prompts")


def test_two_intervals_make_one_effect(effect_of):
    """Standard errors 0.1 and 0.1 of a base of 2.0: the change of 0.1 has a standard error of 7.07 %."""
    half = 0.1 * 1.959964
    effect = effect_of("acceptance", {"length": 2.0}, {"length": 2.1}, (2 - half, 2 + half), (2.1 - half, 2.1 + half))
    assert effect.change == pytest.approx(0.05)
    assert effect.interval == pytest.approx((0.05 - 0.13859, 0.05 + 0.13859), abs=1e-4)
    assert (effect.p_loss, effect.p_gain) == pytest.approx((0.76025, 0.23975), abs=1e-4)


def test_an_interval_of_a_ratio_counts_in_units_of_its_reference(effect_of):
    half = 0.1 * 1.959964
    lengths = effect_of("acceptance", {"length": 2.0}, {"length": 2.1}, (2 - half, 2 + half), (2.1 - half, 2.1 + half))
    base, head = ({"length": n, "reference": 4.0, "ratio": n / 4} for n in (2.0, 2.1))
    ratios = [((n - half) / 4, (n + half) / 4) for n in (2.0, 2.1)]
    assert effect_of("acceptance", base, head, *ratios).interval == pytest.approx(lengths.interval)


@pytest.mark.parametrize("intervals", [(None, (1.9, 2.0)), ((1.9, 2.0), None), (None, None), ((2, 2), (1.5, 1.5))])
def test_numbers_without_spread_are_reported_and_prove_nothing(effect_of, intervals):
    effect = effect_of("acceptance", {"length": 2.0}, {"length": 1.5}, *intervals)
    assert effect_text(effect) == "acceptance 2.000 -> 1.500 (-25.0 %, no spread: no interval)"
    assert (effect.interval, effect.p_loss, effect.p_gain) == (None, None, None)
    assert effect_of("acceptance", {"length": 2.0}, {"length": 1.981}, *intervals) is None


@pytest.mark.parametrize(
    ("rounds", "pairing"), [([40.0, 31.0], "prompts"), ([40.0], "intervals"), ([40.0, 31.0, 22.0], "intervals")]
)
def test_prompts_pair_only_if_both_sides_list_them(effect_of, rounds, pairing):
    base = {"length": 3.0, "emitted": [120.0, 90.0], "rounds": [40.0, 30.0]}
    head = {"length": 2.9, "emitted": [120.0, 90.0], "rounds": rounds}
    assert effect_of("acceptance", base, head, (2.9, 3.1), (2.8, 3.0)).pairing == pairing


def test_other_questions_do_not_pair(effect_of):
    """A retracted request is left out, so that lists of one length may be of different prompts."""
    base = {"length": 3.0, "emitted": [120.0, 90.0], "rounds": [40.0, 30.0], "questions": [3, 5]}
    same, other = (base | {"length": 2.9, "rounds": [40.0, 31.0], "questions": each} for each in ([3, 5], [3, 8]))
    assert effect_of("acceptance", base, same, (2.9, 3.1), (2.8, 3.0)).pairing == "prompts"
    assert effect_of("acceptance", base, other, (2.9, 3.1), (2.8, 3.0)).pairing == "intervals"


def numbers(outcomes):
    return {"n": len(outcomes), "accuracy": outcomes.count("1") / len(outcomes), "outcomes": outcomes}


@pytest.mark.parametrize("interval", [None, (1.0, 1.0)])
def test_one_prompt_has_no_interval_and_proves_nothing(against, gated, interval):
    one = {"length": 3.0, "reference": 3.0, "ratio": 1.0, "emitted": [120.0], "rounds": [40.0]}
    cells = [gated("acceptance", "PASS", one | {"length": length}, interval) for length in (3.0, 2.0)]
    (change,) = against(cells[:1], cells[1:]).changes
    assert (change.state, change.red, change.bound) == (ChangeState.UNKNOWN, False, "")
    assert change.why.startswith("acceptance 3.000 -> 2.000 (-33.3 %, one prompt: no interval)")
    assert change.effects[0].interval is None


def test_one_question_has_no_interval_and_proves_nothing(effect_of):
    right, wrong = ({"accuracy": share, "n": 1, "outcomes": answer} for share, answer in ((1, "1"), (0, "0")))
    assert effect_text(effect_of("accuracy", right, wrong)) == (
        "accuracy 1.000 -> 0.000 (-100.0 pt, one question: no interval)"
    )


def test_what_is_no_test_does_not_count_among_them():
    """A p value of 0.03 is significant alone, and would not be among twenty."""
    alone = made(-0.1, p_loss=0.03)
    lone = replace_fields(alone, interval=None, p_loss=None, p_gain=None, pairing="one prompt")
    found = mark_significant([lone, alone, *[lone] * 18])
    assert [effect.significant for effect in found] == ["", "loss", *[""] * 18]


def test_prompts_that_changed_alike_have_no_interval_but_count(against, gated):
    slower = [rounds * 1.04 for rounds in ROUNDS]
    (change,) = against([acceptance(gated, ROUNDS)], [acceptance(gated, slower)]).changes
    assert change.state is ChangeState.REGRESSED
    assert change.why.endswith("(-3.8 %, 24 prompts changed alike: no interval, p 0.0005)")
    few = against([acceptance(gated, ROUNDS[:4])], [acceptance(gated, slower[:4])]).changes[0]
    assert few.state is ChangeState.UNKNOWN
    assert few.why.endswith("(-3.8 %, 4 prompts changed alike: no interval, p 0.062); more samples are needed")


@pytest.mark.parametrize("states", [("NOT MEASURED", "PASS"), ("PASS", "NOT MEASURED")])
def test_what_was_not_measured_is_not_compared(effect_of, states):
    assert effect_of("accuracy", {"accuracy": 0.5, "n": 9}, {"accuracy": 0.4, "n": 9}, states=states) is None


@pytest.mark.parametrize(
    ("base", "head", "pairing"),
    [("1100", "1000", "prompts"), ("1100", "10000", "other questions"), ("", "1000", "other questions")],
)
def test_outcomes_pair_only_if_they_are_of_the_same_questions(effect_of, base, head, pairing):
    n = len(head) or 4
    old, new = {"accuracy": 0.5, "n": 4, "outcomes": base}, {"accuracy": 1 / n, "n": n, "outcomes": head}
    effect = effect_of("accuracy", old, new)
    assert effect.pairing == pairing and (effect.interval is None) == (pairing == "other questions")


def test_incomparable_gates_have_no_effect(make_cell):
    old = make_cell("a", gates=(GateResult("accuracy", "PASS", {"accuracy": 0.9, "n": 9}),))
    new = make_cell("a", gates=(GateResult("accuracy", "PASS", {"accuracy": 0.1, "n": 9}),))
    assert effects(old, new, {"accuracy"}) == ()
    assert len(effects(old, new, {"acceptance"})) == 1


@pytest.mark.parametrize(
    ("change", "p_loss", "p_gain", "significant"),
    [
        (-0.01, 0.05, 0.95, "loss"),
        (-0.0099, 0.0, 1.0, ""),
        (-0.01, 0.051, 0.949, ""),
        (0.01, 0.95, 0.05, "gain"),
        (0.0099, 1.0, 0.0, ""),
    ],
)
def test_an_effect_counts_if_it_is_sure_and_large_enough(change, p_loss, p_gain, significant):
    assert [effect.significant for effect in mark_significant([made(change, p_loss, p_gain)])] == [significant]


@pytest.mark.parametrize(("low", "bounded"), [(-0.02, True), (-0.0201, False), (0.01, True)])
def test_the_tolerance_bounds_the_loss(low, bounded):
    assert is_bounded(made(0.0, low=low)) is bounded


def accuracy(gated, outcomes, state="PASS"):
    return gated("accuracy", state, numbers(outcomes))


def acceptance(gated, rounds, emitted=None):
    emitted = emitted or [90.0 + index for index in range(len(rounds))]
    numbers = {"length": sum(emitted) / sum(rounds), "emitted": emitted, "rounds": rounds}
    return gated("acceptance", "PASS", numbers)


RIGHT = "1" * 190 + "0" * 10


def test_a_significant_loss_of_accuracy_is_regressed(against, gated):
    worse = "0" * 8 + RIGHT[8:]
    comparison = against([accuracy(gated, RIGHT)], [accuracy(gated, worse)])
    change = comparison.changes[0]
    assert (change.state, change.red, comparison.verdict) == (ChangeState.REGRESSED, True, "red")
    effect = change.effects[0]
    assert (effect.significant, effect.pairing) == ("loss", "prompts")
    assert effect.change == pytest.approx(-0.04)
    assert effect.p_loss == pytest.approx(1 / 256)


@pytest.mark.parametrize(
    ("base", "head", "state", "bound"),
    [
        (RIGHT, "1" * 198 + "00", "IMPROVED", ""),
        ("1" * 19 + "0", "0" + "1" * 18 + "0", "UNKNOWN", "accuracy loss "),
        ("1" * 900 + "0" * 100, "0" + "1" * 900 + "0" * 99, "SAME", "accuracy loss below 0.4 pt"),
    ],
)
def test_a_gain_is_improved_and_churn_is_the_same_only_in_many_questions(against, gated, base, head, state, bound):
    change = against([accuracy(gated, base)], [accuracy(gated, head)]).changes[0]
    assert (change.state, change.red) == (state, False) and change.bound.startswith(bound)
    assert change.why.endswith("; more samples are needed") == (state == "UNKNOWN")


ROUNDS = [30.0 + index % 5 for index in range(24)]


def test_a_significant_loss_of_acceptance_is_regressed(against, gated):
    slower = [rounds * (1.03 + index % 3 / 100) for index, rounds in enumerate(ROUNDS)]
    change = against([acceptance(gated, ROUNDS)], [acceptance(gated, slower)]).changes[0]
    assert change.state is ChangeState.REGRESSED
    assert change.why.startswith("acceptance 3.")
    assert change.effects[0].change == pytest.approx(1 / 1.04 - 1, abs=1e-3)


def test_a_loss_below_the_least_effect_is_the_same_with_a_bound(against, gated):
    slower = [rounds * (1.004 + index % 2 / 1000) for index, rounds in enumerate(ROUNDS)]
    change = against([acceptance(gated, ROUNDS)], [acceptance(gated, slower)]).changes[0]
    assert (change.state, change.bound) == (ChangeState.SAME, "acceptance loss below 0.5 %")


def test_other_lengths_weaken_the_pairing(against, gated):
    shorter = acceptance(gated, ROUNDS, [80.0 + index for index in range(24)])
    change = against([acceptance(gated, ROUNDS)], [shorter]).changes[0]
    assert change.effects[0].pairing == "prompts of other length"


def test_summaries_are_compared_by_their_intervals(against, gated):
    base = gated("acceptance", "PASS", {"length": 3.0}, (2.9, 3.1))
    far = gated("acceptance", "PASS", {"length": 2.5}, (2.4, 2.6))
    near = gated("acceptance", "PASS", {"length": 2.98}, (2.88, 3.08))
    change = against([base], [far]).changes[0]
    assert (change.state, change.effects[0].pairing) == (ChangeState.REGRESSED, "intervals")
    assert against([base], [near]).changes[0].state is ChangeState.UNKNOWN
    assert against([far], [base]).changes[0].state is ChangeState.IMPROVED


def test_many_tests_are_judged_together(against, gated):
    """One cell of a hundred at p = 0.03 is expected by chance."""
    base, head = "1" * 100 + "0" * 100, "00000" + "1" * 95 + "0" * 100
    noise = "0" + "1" * 100 + "0" * 99
    alone = against([accuracy(gated, base)], [accuracy(gated, head)])
    assert alone.counts[ChangeState.REGRESSED] == 1
    cells = [replace(accuracy(gated, base), id=f"cell{index}") for index in range(60)]
    others = [replace(accuracy(gated, noise), id=f"cell{index}") for index in range(60)]
    crowd = against([accuracy(gated, base), *cells], [accuracy(gated, head), *others])
    assert crowd.counts[ChangeState.REGRESSED] == 0


def test_numbers_that_are_missing_or_equal_have_no_effect(effect_of):
    good = {"accuracy": 0.25, "n": 4}
    for numbers in ({"accuracy": 0.5}, {"n": 4}, {"accuracy": 0.5, "n": 0}):
        assert effect_of("accuracy", good, numbers) is effect_of("accuracy", numbers, good) is None
    assert effect_of("accuracy", good, good | {"lost": 1}) is None
    assert effect_of("acceptance", {"length": 2.0}, {"length": 2.0, "extra": 1}, (1.9, 2.1), (1.8, 2.2)) is None
