"""What a reader takes of numbers that a report may have made up."""

import pytest

from specmatrix.reports.compare import compare
from specmatrix.reports.compare.compare import comparison_record
from specmatrix.reports.lengths import number, positives
from specmatrix.reports.render.run import run_page, view
from specmatrix.reports.schema import GateResult
from specmatrix.reports.speed import FIGURES, speed_text
from specmatrix.reports.store import load

WRONG = [None, True, "5", "10x", [], ["x"], [0, -1], [1e300], [None] * 5, {"a": 1}, -1, 0, 0.5, 1e308]
GOOD = {
    "acceptance": {"length": 2.5, "reference": 2.5, "ratio": 1.0, "per_position": [0.5], "emitted": [5, 5],
                   "rounds": [2, 2], "questions": [0, 1]},
    "accuracy": {"accuracy": 0.5, "baseline": 0.5, "n": 4, "lost": 1, "won": 1, "outcomes": "1100"},
    "distribution": {"draws": 100},
    "lossless": {"tokens": 256, "proving": 9},
    "speed": {"starts": 2, "turns": 1, "clock": "wall", "gpus": 0, "work_ms": 1.0, "speed_ups": [1.0, 1.1],
              "own_speeds": [1.0, 1.1], **dict.fromkeys(FIGURES, 2.0)},
}  # fmt: skip


def test_only_numbers_in_their_range_are_taken():
    assert number(10**400) is None
    assert [value for value in WRONG if number(value) is not None] == [0, 0.5]
    assert positives([2, 0.5]) == [2, 0.5] and positives([1, 0]) == positives([1, True]) == positives([5e-324]) == []


@pytest.mark.parametrize(("gate", "name"), [(gate, name) for gate, names in GOOD.items() for name in names])
def test_whatever_a_number_is_the_report_is_shown_and_compared(tmp_path, make_cell, write_report, gate, name):
    limits = {"distribution": {"alpha": 0.01}, "accuracy": {"alpha": 0.01}, "acceptance": {"low": 0.97}}

    def written(folder, values):
        gates = [(GateResult(gate, "PASS", GOOD[gate] | {name: value}, (0.9, 1.1)),) for value in values]
        cells = [make_cell(f"c{at}", gates=row) for at, row in enumerate(gates)]
        return load(write_report(tmp_path / folder, cells, thresholds=limits))

    base, head = written("base", [GOOD[gate][name]] * len(WRONG)), written("head", WRONG)
    for sides in ((base, head), (head, base)):
        comparison_record(compare(*sides))
    assert run_page(view(head))
    assert all(isinstance(speed_text(cell), str) for cell in head)
