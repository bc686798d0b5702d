import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from specmatrix.matrix.zoo.registry import CHECKPOINTS, HERE, NAMES
from specmatrix.matrix.zoo.tokenizer import BOS_ID, EOS_ID

TOKENIZER = Tokenizer.from_file(str(HERE / "data" / "tokenizer.json"))


@settings(deadline=None, derandomize=True)
@given(st.text())
def test_any_text_survives_the_round_trip(text):
    if "<|" in text:
        return
    ids = TOKENIZER.encode(text).ids
    assert ids[0] == BOS_ID
    assert TOKENIZER.decode(ids) == text


def test_every_digit_is_one_token_and_the_special_tokens_and_the_size_are_fixed():
    assert len(TOKENIZER.encode("20481", add_special_tokens=False).ids) == 5
    assert TOKENIZER.get_vocab_size() == 768 and TOKENIZER.token_to_id("<|end|>") == EOS_ID


@pytest.mark.parametrize("name", NAMES)
def test_each_checkpoint_carries_the_same_tokenizer(name):
    stored = CHECKPOINTS / name / "tokenizer.json"
    assert stored.read_bytes() == (HERE / "data" / "tokenizer.json").read_bytes()
