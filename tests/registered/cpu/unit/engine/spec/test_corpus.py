"""An external corpus: valid lines, and the error for each invalid one."""

from __future__ import annotations

import json

import pytest

from specmatrix.engine.models.tokenizer import Tokenizer
from specmatrix.engine.spec.builders import read_corpus
from specmatrix.errors import ConfigError
from tests.support.tables import table


@pytest.fixture
def tokenizer(zoo) -> Tokenizer:
    return Tokenizer(zoo("llama-mini"))


def written(tmp_path, *lines: str):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_document_is_a_text_an_object_or_token_ids(tmp_path, tokenizer):
    path = written(tmp_path, '"Ann has 3 pens."', '{"text": "Ann has 3 pens.", "id": 7}', "", "[5, 6, 7]")
    first, second, third = read_corpus(path, tokenizer, 768, 1000)
    assert tokenizer.bos_id not in first
    assert tokenizer.decode(first) == "Ann has 3 pens." and second == first and third == [5, 6, 7]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [*table(__file__)["bad"], (json.dumps([1] * 20), "{path}:2: the corpus has more than 8 tokens; raise")],
)
def test_a_bad_line_is_named(tmp_path, tokenizer, line, sentence):
    tokenizer._tokenizer.add_tokens(["<|beyond|>"])
    path = written(tmp_path, "[1, 2]", line)
    with pytest.raises(ConfigError) as caught:
        read_corpus(path, tokenizer, 768, 8)
    assert str(caught.value).startswith(sentence.format(path=path, vocab=768))


def test_a_file_that_is_unreadable_or_empty(tmp_path, tokenizer):
    missing, empty, odd = tmp_path / "none.jsonl", written(tmp_path, "", "[]"), tmp_path / "bytes.jsonl"
    odd.write_bytes(b"\xff\xfe")
    for path, sentence in (
        (missing, r"cannot be read \(No such file or directory\); pass a JSON Lines file"),
        (empty, "is empty; it must hold at least one document"),
        (odd, "is not UTF-8 text; pass a JSON Lines file"),
    ):
        with pytest.raises(ConfigError, match=f"^corpus {path} {sentence}$"):
            read_corpus(path, tokenizer, 768, 8)
