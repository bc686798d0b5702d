"""A metric: median with extremes, its goal, and when it counts as noisy."""

import pytest

from specmatrix.benchmarks.metric import MOST_SPREAD, Metric, of, red, spread_of, unmeasured


def test_the_stable_keys():
    metric = of("m", [3.0, 1.0, 2.0, 9.0], goal=2.5, spread=0.1)
    row = metric.as_dict()
    assert {key: row[key] for key in ("name", "ratio", "min", "max", "goal", "pairs")} == {
        "name": "m", "ratio": 2.5, "min": 1.0, "max": 9.0, "goal": 2.5, "pairs": 4,
    }  # fmt: skip
    assert row["state"] == "met"


@pytest.mark.parametrize(
    ("figure", "better", "state"),
    [(2.5, "higher", "met"), (2.49, "higher", "missed"), (2.5, "lower", "met"), (2.51, "lower", "missed")],
)
def test_a_goal_is_met_at_its_boundary(figure, better, state):
    assert of("m", [figure], 2.5, 0.0, better).state == state


def test_a_peer_that_varies_too_much_proves_neither():
    assert of("m", [9.0], 2.5, MOST_SPREAD).state == "met"
    assert of("m", [9.0], 2.5, MOST_SPREAD + 0.01).state == "noisy"
    assert of("m", [0.1], 2.5, MOST_SPREAD + 0.01).state == "noisy"


def test_no_figure_without_equal_outputs_or_a_measurement():
    assert (red("m", 2.5, "tokens differ").state, unmeasured("m", 2.5, "no plugin").state) == ("red", "not measured")
    assert red("m", 2.5, "tokens differ").as_dict()["ratio"] is None
    assert of("m", [1.0], None, 0.0).state == "reported"
    assert isinstance(unmeasured("m", None, ""), Metric)


def test_the_spread_forgives_one_disturbed_run_in_ten_on_each_side():
    calm = [1.0] * 8
    assert spread_of([*calm, 1.0, 50.0]) == 0.0
    assert spread_of([*calm, 1.2, 1.2]) == pytest.approx(0.2)
    assert spread_of([1.0, 1.0, 1.5]) == pytest.approx(0.5), "few runs forgive nothing"
