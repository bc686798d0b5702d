"""lm-eval's generation arguments: nothing is dropped silently."""

import pytest

from specmatrix.errors import RequestError
from specmatrix.matrix.accuracy.generation import parameters


def test_stop_strings_length_and_temperature():
    wanted = {"until": ["Question:", "</s>"], "do_sample": False, "temperature": 0.7, "max_gen_toks": 9}
    params = parameters(wanted)
    assert (params.stop, params.max_new_tokens, params.temperature) == (("Question:", "</s>"), 9, 0.0)
    assert parameters(wanted | {"do_sample": True}).temperature == 0.7
    assert parameters(wanted | {"until": "\n\n"}).stop == ("\n\n",)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"max_gen_toks": 9, "num_beams": 4}, r"^generation argument 'num_beams' is unknown; it must be one of"),
        ({}, r"^generation argument max_gen_toks is missing; the number of new tokens must be explicit$"),
    ],
)
def test_what_the_engine_cannot_give_is_refused(given, text):
    with pytest.raises(RequestError, match=text):
        parameters({"until": [], **given})
