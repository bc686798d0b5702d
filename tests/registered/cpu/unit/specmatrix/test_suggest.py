import pytest

from specmatrix.errors import nearest

NEAREST = {"page_sise": "page_size", "eagl3": "eagle3", "out": "out", "non": "none", "nine": "none", "nope": "none"}


@pytest.mark.parametrize("word", [*NEAREST, "bogus", "", "nonsense", "pages"])
def test_only_a_word_that_is_like_it_is_named(word: str):
    assert nearest(word, ["page_size", "eagle3", "out", "none"]) == NEAREST.get(word, "")
