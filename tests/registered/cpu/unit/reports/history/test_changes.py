"""Change points: levels that moved and stayed are found, noise and outliers are not."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from specmatrix.errors import ConfigError
from specmatrix.reports.history import changes as module
from specmatrix.reports.history.changes import NEWEST, changes
from specmatrix.reports.history.store import MEASURES, History


def history(values, measure="acceptance", **columns: object) -> History:
    """A history of one measure, of shape (runs, cells)."""
    values = np.asarray(values, dtype=float).reshape(len(values), -1)
    runs, cells = values.shape
    line = {"subject": "reference", "tier": "cpu", "seed": 0, "machine": "m", "commit": "c", "dirty": False} | columns
    measures = {name: np.full((runs, cells), np.nan) for name in MEASURES} | {measure: values}
    frame = pd.DataFrame(line, index=range(runs))
    return History(Path("x"), frame, tuple(f"c{n}" for n in range(cells)), np.zeros((0, 0)), measures, ())


def noise(runs, cells=1, seed=0, share=0.05):
    return np.random.default_rng(seed).normal(1.0, share, (runs, cells))


def test_a_level_that_moved_and_stayed_is_found_where_it_moved():
    values = noise(60, share=0.002)
    values[40:] *= 0.9
    of_all, of_cell = changes(history(3.0 * values))
    assert of_cell.cell == "c0" and (of_cell.before, of_cell.after) == (39, 40) and of_cell.lasted == (40, 20)
    assert of_cell.ratio == pytest.approx(0.9, abs=0.01) and of_cell.old == pytest.approx(3.0, abs=0.03)
    assert of_all.cell == "" and of_all.after == 40


def test_three_runs_are_enough_and_two_are_not():
    for since, found in ((3, 1), (2, 0)):
        values = np.ones(30)
        values[-since:] = 0.98
        assert sum(change.cell == "c0" for change in changes(history(values))) == found


def test_noise_of_seconds_has_no_change_point_in_a_thousand_cells():
    assert changes(history(noise(NEWEST, 1000), "seconds")) == []


def test_outliers_are_no_change():
    values = noise(100, 20, share=0.03)
    for place in (20, 21, 50, 80):
        values[place] *= 6.0
    assert [change for change in changes(history(values, "seconds")) if change.cell] == []


def test_a_change_smaller_than_the_smallest_visible_one_is_none():
    for factor, found in ((1.005, 0), (1.02, 1)):
        values = np.where(np.arange(40) < 20, 1.0, factor)
        assert len([change for change in changes(history(values)) if change.cell]) == found


def test_seconds_are_compared_within_a_machine_and_acceptance_is_not():
    machine = ["slow"] * 20 + ["fast"] * 20
    values = np.where(np.arange(40) < 20, 4.0, 1.0)
    assert changes(history(values, "seconds", machine=machine)) == []
    assert changes(history(values, "acceptance", machine=machine)) != []
    assert changes(history(values, "acceptance", seed=[0] * 20 + [1] * 20)) == []


def test_runs_without_a_value_are_left_out_and_an_all_missing_cell_is_none():
    values = np.column_stack([np.where(np.arange(40) < 20, 2.0, 1.0), np.full(40, np.nan)])
    values[5:9, 0] = np.nan
    found = [change for change in changes(history(values)) if change.cell]
    assert [(change.cell, change.before, change.after) for change in found] == [("c0", 19, 20)]


def test_only_the_chosen_cells_are_searched():
    values = np.tile(np.where(np.arange(40) < 20, 2.0, 1.0).reshape(-1, 1), 3)
    assert {change.cell for change in changes(history(values), cells=(1,))} == {"c1"}


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ruptures", None)
    with pytest.raises(ConfigError, match=r"ruptures is not installed.*specmatrix\[history\]"):
        module.changes(history(np.where(np.arange(40) < 20, 2.0, 1.0)))
