"""Each command refuses wrong options in one sentence that names the value or what is allowed, with exit status 2."""

import os
import shlex

import pytest

from specmatrix.cli import main
from specmatrix.matrix.zoo.registry import TEST
from tests.support.tables import table

SANE = f"between 1 and {8 * (os.cpu_count() or 1)} (8 per CPU core), got "
EMPTY = "is empty, perhaps an unset shell variable; "
LEAST = "greater than or equal to "
# Words that differ between machines, or that are in many sentences, by their names in the table.
WORDS = {"{sane}": SANE, "{empty}": EMPTY, "{least}": LEAST, "{questions}": str(TEST)}


def worded(text: str) -> str:
    """A text of the table."""
    for name, word in WORDS.items():
        text = text.replace(name, word)
    return text


WRONG = {worded(line): worded(sentence) for line, sentence in table(__file__).items()}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_options_are_refused_in_one_sentence(line: str, capsys: pytest.CaptureFixture[str]):
    assert main(shlex.split(line)) == 2
    said = capsys.readouterr()
    assert WRONG[line] in said.err
    # A slow machine shows progress before the refusal.
    assert said.err.splitlines()[-1].startswith("specmatrix: ") and said.err.count("specmatrix: ") == 1
    assert said.out == ""
