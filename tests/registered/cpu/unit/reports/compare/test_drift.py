import random

import pytest
from scipy.stats import ttest_1samp

from specmatrix.reports.compare.drift import Moves, drifts

PROMPTS = range(12)
MIXED = (0.004, -0.004, 0.003, -0.003, 0.005, -0.005, 0.002, -0.002, 0.006, -0.006, 0.001, -0.001)
ALGORITHMS = ("eagle3", "eagle", "nextn", "dflash")
PAGES = ("1", "4", "16", "64")


def cells(change, number=8, noise=MIXED, **values: str):
    return [Moves("acceptance", values, {p: change + noise[p % len(noise)] for p in PROMPTS})] * number


def places(found):
    return [(row.axis, row.value, row.down, row.up) for row in found]


def test_a_drift_in_one_value_is_found_there():
    """On each prompt the other cells moved by the same noise, which cancels."""
    found = drifts(cells(-0.006, page="64") + cells(0.0, page="1") + cells(0.0, page="16"))
    assert ("page", "64", 12, 0) in places(found)
    assert next(row for row in found if row.value == "64").median == pytest.approx(-0.006)


def test_a_drift_everywhere_is_one_line():
    found = drifts(cells(-0.02, page="64") + cells(-0.02, page="1"))
    assert places(found) == [("", "", 12, 0)]
    moves = [-0.02 + noise for noise in MIXED]
    assert found[0].p == pytest.approx(ttest_1samp(moves, 0).pvalue)


def test_a_drift_may_go_up_and_alike():
    found = drifts(cells(0.006, noise=(0.0,), page="64"))
    assert places(found) == [("", "", 0, 12)]
    assert found[0].p == pytest.approx(2 * 0.5**12)


def test_one_drafters_drift_is_its_own():
    calm = [cell for name in ALGORITHMS for cell in cells(0.0, algorithm=name)]
    found = places(drifts(calm + cells(-0.02, number=16, algorithm="ngram")))
    assert found[0] == ("algorithm", "ngram", 12, 0)
    assert {value for axis, value, _, _ in found if axis} == {"ngram"}


def test_noise_few_cells_and_few_prompts_are_no_drift():
    assert drifts(cells(0.0, page="64") + cells(0.0, page="1")) == ()
    assert drifts(cells(-0.01, number=7, page="64")) == ()
    few = [Moves("acceptance", {"page": "64"}, dict.fromkeys(range(5), -0.01 - p)) for p in range(40)]
    assert drifts(few) == drifts([]) == drifts([Moves("accuracy", {}, dict.fromkeys(PROMPTS, 0.0))] * 20) == ()


def report(draw, shared, true):
    """100 cells; a share `shared` of the noise on a prompt is common to all cells of a drafter, half of it to all."""
    texts = [draw.gauss(0, 1) for _ in PROMPTS]
    common = {name: [0.7 * text + 0.7 * draw.gauss(0, 1) for text in texts] for name in ALGORITHMS}
    out = []
    for _ in range(100):
        values = {"algorithm": draw.choice(ALGORITHMS), "page": draw.choice(PAGES), "lag": draw.choice("01")}
        lost = true if values["page"] == "64" else 0.0
        noise = {p: shared * common[values["algorithm"]][p] + (1 - shared) * draw.gauss(0, 1) for p in PROMPTS}
        asked = draw.sample(PROMPTS, 5)
        out.append(Moves("acceptance", values, {p: 0.01 * noise[p] - lost for p in asked}))
    return out


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
def test_false_alarms_stay_rare_however_much_cells_share(shared):
    """A sign test over cells, as if prompts were not shared, would be wrong in 4 to 10 of 10 reports at 0.5 and 1."""
    draw = random.Random(9)
    assert sum(bool(drifts(report(draw, shared, 0.0))) for _ in range(150)) / 150 <= 0.08


@pytest.mark.parametrize("shared", [0.0, 0.5])
def test_a_loss_of_one_percent_at_one_page_size_is_seen(shared):
    draw = random.Random(10)
    seen = [any(row[:2] == ("page", "64") for row in places(drifts(report(draw, shared, 0.01)))) for _ in range(60)]
    assert sum(seen) / 60 >= 0.9
