import pytest

from specmatrix.reports.compare.cell_state import Effect
from specmatrix.reports.compare.drift import drifts

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")


def effect(change, significant=""):
    return Effect("acceptance", 3.0, 3.0 * (1 + change), change, (change, change), 0.1, 0.9, "prompts", significant)


def cells(changes, **values: str):
    return [(values, effect(change)) for change in changes]


MIXED = [0.004, -0.004, 0.003, -0.003, 0.005, -0.005, 0.002, -0.002, 0.006, -0.006, 0.001, -0.001]


def test_a_drift_in_one_value_is_found_there():
    found = drifts(cells([-0.006] * 12, page="64") + cells(MIXED, page="1") + cells(MIXED, page="16"))
    places = [(row.axis, row.value, row.down, row.up) for row in found if row.axis]
    assert places == [("page", "64", 12, 0)]
    assert found[0].median == -0.006


def test_a_drift_everywhere_is_one_line():
    found = drifts(cells([-0.006] * 12, page="64") + cells([-0.004] * 12, page="1"))
    assert [(row.axis, row.down, row.up) for row in found] == [("", 24, 0)]


def test_a_drift_may_go_up():
    found = drifts(cells([0.006] * 14, page="64"))
    assert [(row.axis, row.down, row.up) for row in found] == [("", 0, 14)]


def test_noise_and_few_cells_are_no_drift():
    assert drifts(cells(MIXED, page="64") + cells(MIXED, page="1")) == ()
    assert drifts(cells([-0.01] * 7, page="64")) == ()
    assert drifts([]) == ()


def test_eight_cells_are_enough():
    assert [(row.down, row.up) for row in drifts(cells([-0.01] * 8, page="64"))] == [(8, 0)]


def test_significant_cells_speak_for_themselves():
    assert drifts([({"page": "64"}, effect(-0.05, "loss"))] * 20) == ()
