import pytest

from specmatrix.reports.schema import ReportError
from specmatrix.reports.shape import ANY, NUMBER, Shape

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")
SHAPE = Shape({"name": str, "seconds": NUMBER, "error": (str, type(None)), "value": ANY})
SOUND = {"name": "a", "seconds": 1.5, "error": None, "value": [True]}


def test_values_come_in_the_order_of_the_keys():
    assert SHAPE.read({"more": 1, **dict(reversed(SOUND.items()))}, "it") == ("a", 1.5, None, [True])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": 3}, "it has name = 3, allowed is str"),
        ({"seconds": True}, "it has seconds = True, allowed is int or float"),
        ({"error": {}}, "it has error = {}, allowed is str or null"),
    ],
)
def test_a_value_of_another_type_is_named(change, sentence):
    with pytest.raises(ReportError, match=f"^{sentence}$"):
        SHAPE.read(SOUND | change, "it")


@pytest.mark.parametrize("key", SOUND)
def test_a_key_that_is_missing_is_named(key):
    with pytest.raises(ReportError, match=f"^it has no '{key}'$"):
        SHAPE.read({k: v for k, v in SOUND.items() if k != key}, "it")


@pytest.mark.parametrize("body", [None, 3, "text", [1]])
def test_anything_but_an_object_is_named(body):
    with pytest.raises(ReportError, match=r"^it is .*, allowed is a JSON object$"):
        SHAPE.read(body, "it")
