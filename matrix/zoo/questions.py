"""Question files in GSM8K format: one JSON object per line with `question` and `answer`, which ends in `#### n`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specmatrix.errors import EngineError, text_of
from specmatrix.files import read_text
from specmatrix.json_text import parse_json

FINAL: Final = re.compile(r"#### \S")


class DataError(EngineError):
    """An invalid question file; the message names the file and, if possible, the line."""


@dataclass(frozen=True, slots=True)
class Question:
    """One line of a question file; `line` counts from 1."""

    line: int
    question: str
    answer: str


def read_questions(path: Path) -> tuple[Question, ...]:
    """Every question of a file. DataError if it is missing, empty or too large, and on the first invalid line."""
    try:
        text = read_text(path)
    except OSError as error:
        raise DataError(f"cannot read {text_of(path)}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path} line {line} is not UTF-8; the file is damaged") from None
    # Only \n ends a line: str.splitlines would also split at other characters within a question.
    lines = text.removesuffix("\n").split("\n") if text else []
    if not lines:
        raise DataError(f"{path} is empty; give a file with one question per line")
    return tuple(_question(path, number, line) for number, line in enumerate(lines, 1))


def _question(path: Path, number: int, line: str) -> Question:
    try:
        raw = parse_json(line)
    except ValueError as error:
        raise DataError(f"{path} line {number} is not valid JSON ({error})") from None
    if not isinstance(raw, dict):
        raise DataError(f"{path} line {number} is {type(raw).__name__}, not an object with question and answer")
    for name in ("question", "answer"):
        if not isinstance(raw.get(name), str) or not raw[name].strip():
            raise DataError(f"{path} line {number} has no string {name!r}; it needs question and answer")
    if not FINAL.search(raw["answer"]):
        raise DataError(f"{path} line {number} has an answer without '#### n', so it has no final number to grade")
    return Question(number, raw["question"], raw["answer"])
