import pytest

from specmatrix.errors import nearest


@pytest.mark.parametrize(
    ("word", "close"),
    [
        ("page_sise", "page_size"),
        ("eagl3", "eagle3"),
        ("bogus", ""),
        ("", ""),
        ("out", "out"),
        ("nonsense", ""),
        ("non", "none"),
        ("nine", "none"),
        ("nope", "none"),
        ("pages", ""),
    ],
)
def test_only_a_word_that_is_like_it_is_named(word: str, close: str):
    assert nearest(word, ["page_size", "eagle3", "out", "none"]) == close
