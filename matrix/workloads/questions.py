"""The questions that workloads ask, and their tokens."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Final

import tokenizers

from specmatrix import HOME
from specmatrix.errors import ConfigError
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.gsm_mini import prompt_of, read_questions
from specmatrix.matrix.zoo.tokenizer import BOS_ID

DATA: Final = HOME / "matrix" / "zoo" / "data"
# The first questions of the test split, for which the oracle holds continuations.
ORACLE_PROMPTS: Final = 32


@cache
def questions() -> tuple[tuple[str, str], ...]:
    """(question, worked answer) pairs of the test split, in file order. DataError if the file is missing or damaged."""
    return tuple((row.question, row.answer) for row in read_questions(DATA / "test.jsonl"))


@cache
def tokenizer() -> tokenizers.Tokenizer:
    """The zoo's tokenizer, without a checkpoint."""
    return tokenizers.Tokenizer.from_file(str(DATA / "tokenizer.json"))


def prompt_ids(request: RequestSpec) -> tuple[int, ...]:
    """The tokens of a request's prompt, BOS included, as every zoo model reads it."""
    return (BOS_ID, *map(int, tokenizer().encode(request.prompt, add_special_tokens=False).ids))


def token_id(text: str) -> int:
    """The id of the single token that encodes `text`. ConfigError if it takes several tokens."""
    ids = tokenizer().encode(text, add_special_tokens=False).ids
    if len(ids) != 1:
        raise ConfigError(f"a stop token must be a single token, got {text!r}, which is {len(ids)} tokens")
    return int(ids[0])


@cache
def text_lengths(index: int) -> tuple[int, int]:
    """Numbers of tokens in a question's prompt, including BOS, and in its answer."""
    question, answer = questions()[index]
    return 1 + count_tokens(prompt_of(question)), count_tokens(" " + answer)


@lru_cache(4096)
def count_tokens(text: str) -> int:
    return len(tokenizer().encode(text).ids)
