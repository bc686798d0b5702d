import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import AXES, NAMES, START_AXES, axis, describe


def test_tokens_name_one_value_each():
    tokens = [value.token for axis in AXES for value in axis.values if value.token]
    assert len(set(tokens)) == len(tokens)
    assert not any("." in token or token in NAMES for token in tokens)


def test_only_defaults_have_no_token():
    for index, row in enumerate(AXES):
        assert all(value.token for value in row.values[1:])
        assert bool(row.values[0].token) == (index == 0)


def test_start_axes_stand_first():
    assert NAMES[: len(START_AXES)] == START_AXES
    assert {row.scope for row in AXES[len(START_AXES) :]} == {"request"}


def test_prices_are_never_negative():
    assert all(value.seconds >= 0 and value.gpus >= 0 for row in AXES for value in row.values)


def test_an_unknown_axis_lists_the_axes():
    with pytest.raises(ConfigError) as caught:
        axis("topkk")
    assert str(caught.value) == "axis 'topkk' is unknown; the closest is topk"


def test_an_unknown_value_lists_the_values():
    with pytest.raises(ConfigError) as caught:
        axis("topk").value("3")
    assert str(caught.value) == "topk has no value '3'; it must be one of auto, 1, 2, 4"


def test_describe():
    assert describe([("algorithm", "eagle3"), ("topk", "4")]) == "algorithm=eagle3 topk=4"
