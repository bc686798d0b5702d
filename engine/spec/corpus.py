"""An external corpus for n-gram drafting: JSON Lines, one document per line, read once at the engine's start."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from specmatrix.engine.models.tokenizer import Tokenizer
from specmatrix.errors import ConfigError
from specmatrix.files import MAX_BYTES, opened
from specmatrix.json_text import parse_json


def read_corpus(path: Path, tokenizer: Tokenizer, vocab_size: int, max_tokens: int) -> list[list[int]]:
    """The token ids of each document, without a bos id. vocab_size: the model's.

    A line is a JSON string, an object with a string "text", or a list of token ids. Raises ConfigError, naming the file
    and line, on anything else, a token outside the vocabulary, or a corpus of more than `max_tokens` tokens.
    """
    documents: list[list[int]] = []
    total = 0
    for where, line in _lines(path):
        document = _tokens(where, line, tokenizer)
        wrong = [token for token in document if not 0 <= token < vocab_size]
        if wrong:
            raise ConfigError(f"{where}: token {wrong[0]} is outside the vocabulary of {vocab_size}")
        total += len(document)
        if total > max_tokens:
            raise ConfigError(
                f"{where}: the corpus has more than {max_tokens} tokens; raise "
                "speculative_ngram_external_corpus_max_tokens or shorten the corpus"
            )
        documents.append(document)
    if not total:
        raise ConfigError(f"corpus {path} is empty; it must hold at least one document")
    return documents


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with opened(path) as file:
            # A device may never end its first line.
            for number, line in enumerate(iter(partial(file.readline, MAX_BYTES), b""), 1):
                if len(line) == MAX_BYTES:
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
                if line.strip():
                    yield f"{path}:{number}", line.decode()
    except OSError as error:
        raise ConfigError(f"corpus {path} cannot be read ({error.strerror}); pass a JSON Lines file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"corpus {path} is not UTF-8 text; pass a JSON Lines file") from None


def _tokens(where: str, line: str, tokenizer: Tokenizer) -> list[int]:
    try:
        value = parse_json(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not valid JSON ({error})") from None
    if isinstance(value, dict):
        value = value.get("text")
    if isinstance(value, str):
        ids = tokenizer.encode(value)
        return ids[1:] if ids and ids[0] == tokenizer.bos_id else ids
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise ConfigError(f'{where}: a document must be a string, an object with a string "text" or a list of ids')
    return value
