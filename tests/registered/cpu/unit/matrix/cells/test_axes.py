from specmatrix.matrix.cells.axes import AXES, NAMES, START_AXES, axis, describe
from tests.support.refusals import refusal


def test_tokens_name_one_value_each_and_only_defaults_have_none():
    tokens = [value.token for axis in AXES for value in axis.values if value.token]
    assert len(set(tokens)) == len(tokens)
    assert not any("." in token or token in NAMES for token in tokens)
    for index, row in enumerate(AXES):
        assert all(value.token for value in row.values[1:]) and bool(row.values[0].token) == (index == 0)
        assert all(value.seconds >= 0 and value.gpus >= 0 for value in row.values)


def test_start_axes_stand_first():
    assert NAMES[: len(START_AXES)] == START_AXES
    assert {row.scope for row in AXES[len(START_AXES) :]} == {"request"}


def test_an_unknown_axis_or_value_lists_those_that_are_known():
    assert refusal(axis, "topkk") == "axis 'topkk' is unknown; the closest is topk"
    assert refusal(axis("topk").value, "3") == "topk has no value '3'; it must be one of auto, 1, 2, 4"
    assert describe([("algorithm", "eagle3"), ("topk", "4")]) == "algorithm=eagle3 topk=4"
