"""A metric: median with extremes, its goal, when it counts as noisy, and the pairs that it comes from."""

import pytest

from specmatrix.benchmarks.metric import MAX_SPREAD, Metric, Pairs, interleave, spread_of, unmeasured, wrong


@pytest.mark.parametrize(
    ("figure", "better", "state"),
    [(2.5, "higher", "met"), (2.49, "higher", "missed"), (2.5, "lower", "met"), (2.51, "lower", "missed")],
)
def test_a_goal_is_met_at_its_boundary(figure, better, state):
    assert Metric("m", [figure], 2.5, better=better).state == state


@pytest.mark.parametrize("figure", [9.0, 0.1])
def test_a_peer_that_varies_too_much_proves_neither(figure):
    assert Metric("m", [figure], 2.5, MAX_SPREAD).state != "noisy"
    assert Metric("m", [figure], 2.5, MAX_SPREAD + 0.01).state == "noisy"


def test_no_figure_without_equal_outputs_or_a_measurement():
    assert (wrong("m", 2.5, "tokens differ").state, unmeasured("m", 2.5, "no plugin").state) == ("red", "not measured")
    assert wrong("m", 2.5, "tokens differ").as_dict()["ratio"] is None
    assert Metric("m", [1.0], None).state == "reported"


def test_the_spread_forgives_one_disturbed_run_in_ten_on_each_side():
    calm = [1.0] * 8
    assert spread_of([*calm, 1.0, 50.0]) == 0.0
    assert spread_of([*calm, 1.2, 1.2]) == pytest.approx(0.2)
    assert spread_of([1.0, 1.0, 1.5]) == pytest.approx(0.5), "few runs forgive nothing"


def test_two_sides_are_interleaved_and_alternate_in_front():
    calls = []
    pairs = interleave(lambda: calls.append("a"), lambda: calls.append("b"), pairs=4)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab" + "ba"
    assert len(pairs.ours) == len(pairs.theirs) == 4


def test_ratios_are_theirs_over_ours_pair_by_pair_and_red_if_outputs_differ():
    pairs = Pairs([1.0, 2.0, 4.0], [2.0, 8.0, 4.0])
    metric = pairs.metric("m", goal=2.0, note="n")
    assert (metric.figures, metric.median, metric.state) == ([2.0, 4.0, 1.0], 2.0, "noisy")
    assert metric.spread == pytest.approx(6.0 / 4.0)
    assert pairs._replace(differs="token 3").metric("m", 2.0).state == "red"
