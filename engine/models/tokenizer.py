"""Converts text to token ids and back, with a checkpoint's tokenizer.json."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from specmatrix.engine.models.config_reader import MAX_INT, read_json
from specmatrix.engine.models.draft_config import flat_config
from specmatrix.errors import ConfigError, RequestError, described, is_interrupt, shown, text_of

# A decoder's output for bytes that do not form a character yet.
INCOMPLETE = "\ufffd"
WINDOW = 4
# Ids that begin or end a text; published models have up to a dozen.
MAX_SPECIAL = 256


class Tokenizer:
    """A checkpoint's tokenizer, whose ids may exceed the model's vocabulary.

    bos_id: prepended to every encoded text, None if the checkpoint has none or does not prepend it (Qwen's). eos_ids:
    ids that end a text. longest: characters of the longest token. Raises ConfigError on files that are
    missing or damaged.
    """

    def __init__(self, path: str | Path) -> None:
        folder = Path(path)
        self._tokenizer = _read(folder / "tokenizer.json")
        begins, ends = _special_ids(folder)
        self.bos_id = begins[0] if begins and self._puts(begins[0], folder) else None
        self.eos_ids = frozenset(ends)
        self.longest = max(map(len, self._tokenizer.get_vocab()), default=1)

    @cached_property
    def text(self) -> str:
        """A text of tokenizer.json."""
        return self._tokenizer.to_str()

    def _puts(self, bos: int, folder: Path) -> bool:
        """Whether to prepend bos: as tokenizer_config.json says, or else if tokenizer.json does."""
        asked = _optional_json(folder / "tokenizer_config.json").get("add_bos_token")
        return asked if type(asked) is bool else bool(self._tokenizer.encode("").ids[:1] == [bos])

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, after one bos_id (none is added if the text starts with it). RequestError on a surrogate."""
        try:
            str.encode(text)
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text has half of a surrogate pair, {shown(text[error.start])}, at character {error.start}; "
                "allowed: Unicode characters"
            ) from None
        with _failing("encode the text"):
            ids = list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        if self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def prompt_ids(self, prompt: str | Sequence[int], vocab_size: int) -> tuple[int, ...]:
        """Ids of a prompt for a model with `vocab_size` tokens. RequestError if it is neither text nor such ids."""
        allowed, kinds = f"allowed: [0, {vocab_size})", "allowed: a string or a list of token ids"
        if isinstance(prompt, str):
            ids = tuple(self.encode(prompt))
            if (most := max(ids, default=0)) >= vocab_size:
                raise RequestError(f"the text contains token {most}, which is outside the vocabulary; {allowed}")
            return ids
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
            raise RequestError(f"the prompt is {shown(prompt)}; {kinds}")
        try:
            ids = tuple(prompt)
        except Exception as error:  # raised by a user-defined sequence
            raise RequestError(f"the prompt cannot be read ({described(error)}); {kinds}") from None
        if wrong := [token for token in ids if type(token) is not int]:
            kind = type(wrong[0]).__name__
            raise RequestError(f"prompt token {shown(wrong[0])} is of type {kind}; allowed: int in [0, {vocab_size})")
        if outside := [token for token in ids if not 0 <= token < vocab_size]:
            raise RequestError(f"prompt token {shown(outside[0])} is outside the vocabulary; {allowed}")
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; special tokens produce no text."""
        with _failing("decode the tokens"):
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


@contextmanager
def _failing(verb: str) -> Iterator[None]:
    """Convert failures of the library to RequestError, including Rust panics, which do not derive from Exception."""
    try:
        yield
    except BaseException as error:
        if not _of_library(error):
            raise
        raise RequestError(f"the tokenizer cannot {verb} ({described(error)})") from None


def _of_library(error: BaseException) -> bool:
    """Whether the library raised an error: an Exception, or a PanicException, which does not derive from it."""
    return (isinstance(error, Exception) or type(error).__name__ == "PanicException") and not is_interrupt(error)


class Detokenizer:
    """Text of a growing list of ids.

    The text is always a prefix of what `Tokenizer.decode` returns for all ids: it waits while the last character is
    incomplete. Only a window of recent ids is decoded, so a push costs the same at any length.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self.text = ""
        self._window = 0
        self._shown = ""
        self._settled = 0

    def push(self, tokens: Sequence[int]) -> str:
        """Add ids, in groups of any size; return the whole text so far."""
        self._ids.extend(tokens)
        seen = self._tokenizer.decode(self._ids[self._window :])
        ready = seen.rstrip(INCOMPLETE)
        self.text += ready[len(self._shown) :]
        self._shown = max(self._shown, ready, key=len)
        if len(ready) < len(seen):
            return self.text
        if len(self._ids) - self._window > WINDOW:
            # An earlier position between two characters, so that the window starts between characters.
            self._window = self._settled
            self._shown = self._tokenizer.decode(self._ids[self._window :])
        self._settled = len(self._ids)
        return self.text


def tokenizer_hash(path: str | Path) -> str | None:
    """12 hex digits over a checkpoint's vocabulary, equal iff every token has the same id; None without a tokenizer.

    ConfigError on a damaged file.
    """
    file = Path(path) / "tokenizer.json"
    if not file.is_file():
        return None
    vocabulary = _read(file).get_vocab(with_added_tokens=True)
    text = json.dumps(sorted(vocabulary.items()), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _read(file: Path) -> tokenizers.Tokenizer:
    if not file.is_file():
        found_there = "a folder" if file.is_dir() else "no regular file" if os.path.lexists(file) else "missing"
        raise ConfigError(f"{file} is {found_there}; the checkpoint has no tokenizer")
    try:
        found = tokenizers.Tokenizer.from_file(str(file))
    except BaseException as error:
        if not _of_library(error):
            raise
        raise ConfigError(f"{file} is not a tokenizer ({text_of(error)}); the file is truncated or damaged") from None
    if dropout := getattr(found.model, "dropout", None):
        raise ConfigError(f"{file}: dropout {shown(dropout)} makes encodings random; allowed: null or 0")
    # The file may hold truncation and padding settings; a prompt is encoded whole, as in transformers.
    found.no_truncation()
    found.no_padding()
    return found


def _special_ids(folder: Path) -> tuple[list[int], list[int]]:
    """bos and eos ids: generation_config.json overrides config.json, as in transformers. ConfigError if not ids."""
    found: tuple[list[int], list[int]] = ([], [])
    size = flat_config(_optional_json(folder / "config.json")).get("vocab_size")
    for name in ("generation_config.json", "config.json"):
        raw = flat_config(_optional_json(folder / name))
        for ids, key in zip(found, ("bos_token_id", "eos_token_id"), strict=True):
            value = raw.get(key)
            given = value if isinstance(value, list) else [] if value is None else [value]
            if len(given) > MAX_SPECIAL:
                raise ConfigError(f"{folder / name}: {key} lists {len(given):,} ids; allowed: at most {MAX_SPECIAL}")
            if any(type(token) is not int or not 0 <= token <= MAX_INT for token in given):
                raise ConfigError(
                    f"{folder / name}: {key} must be a token id or a list of token ids, got {shown(value)}"
                )
            # Some ids may be outside the vocabulary, if others can still end a text.
            if ids is found[1] and type(size) is int and given and min(given) >= size:
                raise ConfigError(
                    f"{folder / name}: {key} {shown(value)} is outside the model's vocabulary; allowed: [0, {size})"
                )
            if not ids:
                ids.extend(given)
    return found


def _optional_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file, empty if there is no such file. ConfigError if it is not a JSON object."""
    return read_json(file) if os.path.lexists(file) else {}
