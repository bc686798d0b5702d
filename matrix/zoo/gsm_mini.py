"""gsm-mini: a procedural grade-school-math set in GSM8K's format, from data/words.yaml and data/templates.yaml, which
explains its notation.

Every problem is a pure function of (seed, split, index). A checksum of a question's text decides between train and
test, so they share no question; the held-out split uses templates that are never trained on.

Question files in GSM8K format: one JSON object per line with `question` and `answer`, which ends in `#### n`.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Final

import msgspec

from specmatrix.errors import EngineError, text_of
from specmatrix.files import read_text
from specmatrix.json_text import parse_json


@dataclass(frozen=True, slots=True)
class Template:
    """One kind of problem: its numbers, phrasings and worked steps."""

    name: str
    numbers: str
    questions: tuple[str, ...]
    work: tuple[str, ...]
    given: str = ""


_TEMPLATES: Final = Path(__file__).parent / "data" / "templates.yaml"
_TABLE: Final = msgspec.yaml.decode(_TEMPLATES.read_bytes(), type=dict[str, tuple[Template, ...]])
TRAINED: Final = _TABLE["trained"]
HELDOUT: Final = _TABLE["heldout"]

LEVELS = 6

RANGES: dict[str, tuple[tuple[int, int], ...]] = {
    "G": ((2, 4), (2, 4), (2, 5), (2, 6), (2, 7), (2, 9)),
    "S": ((2, 5), (2, 9), (3, 12), (6, 19), (12, 49), (21, 99)),
    "T": ((5, 30), (11, 99), (21, 199), (101, 499), (201, 999), (1001, 4999)),
    "H": ((30, 120), (100, 499), (200, 999), (1000, 4999), (2001, 9999), (10001, 49999)),
}
PERCENT: tuple[int, ...] = (5, 10, 15, 20, 25, 30, 40, 50, 60, 75)

_FILE: Final = Path(__file__).parent / "data" / "words.yaml"
_WORDS: Final = msgspec.yaml.decode(_FILE.read_bytes(), type=dict[str, tuple[str, ...]])
MEN, WOMEN, THINGS = (_WORDS[name] for name in ("men", "women", "things"))

SPLITS = ("train", "test", "heldout")
TEST_SHARE = 16
TRIES = 2000
LEADS, LEAD_WEIGHTS = ("", "Now: ", "Next: "), (0.7, 0.2, 0.1)
_STEP = re.compile(r"\[(\$?)(\w)=([^\]]+)\]")


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its worked answer; the other fields are for analysis and are not written to files."""

    question: str
    answer: str
    template: str
    level: int
    steps: int


@dataclass(frozen=True, slots=True)
class _SolutionStep:
    text: str
    variable: str
    shown: str
    code: CodeType


@dataclass(frozen=True, slots=True)
class _Compiled:
    numbers: tuple[tuple[str, str], ...]
    given: tuple[tuple[str, CodeType], ...]
    work: tuple[_SolutionStep, ...]


@cache
def _compiled(template: Template) -> _Compiled:
    numbers = tuple((pair[0], pair[2:]) for pair in template.numbers.split())
    given = tuple((part[0], compile(part[2:], template.name, "eval")) for part in template.given.split(";") if part)
    work = []
    for line in template.work:
        match = _STEP.search(line)
        if match is None:
            raise ValueError(f"template {template.name}: no step in {line!r}")
        dollar, variable, expression = match.groups()
        worked = f"{expression}={dollar}<<{expression}={{{variable}}}>>{{{variable}}}"
        text = line[: match.start()] + worked + line[match.end() :]
        plain = expression.replace("{", "").replace("}", "")
        work.append(_SolutionStep(text, variable, expression, compile(plain, template.name, "eval")))
    return _Compiled(numbers, given, tuple(work))


def _numbers(compiled: _Compiled, level: int, rng: random.Random) -> dict[str, int] | None:
    """Draw all numbers and compute the steps; None if a result is not a positive whole number."""
    values: dict[str, int] = {}
    for variable, kind in compiled.numbers:
        values[variable] = rng.choice(PERCENT) if kind == "P" else rng.randint(*RANGES[kind][level])
    for variable, code in compiled.given:
        values[variable] = eval(code, {"__builtins__": {}}, values)  # an expression of our own templates
        if values[variable] <= 0:
            return None
    for step in compiled.work:
        result = eval(step.code, {"__builtins__": {}}, values)  # an expression of our own templates
        if result <= 0 or result != int(result):
            return None
        values[step.variable] = int(result)
    return values


def _words(rng: random.Random) -> dict[str, str]:
    male = rng.random() < 0.5
    first = rng.choice(MEN if male else WOMEN)
    others = [name for name in rng.sample(MEN + WOMEN, 3) if name != first]
    thing, other = rng.sample(THINGS, 2)
    he = "he" if male else "she"
    return {
        "P": first, "Q": others[0], "R": others[1], "thing": thing, "other": other,
        "he": he, "He": he.capitalize(), "his": "his" if male else "her",
    }  # fmt: skip


def compose(template: Template, level: int, rng: random.Random) -> Problem:
    """A problem of this template and level (0..5); ValueError if no valid numbers are found."""
    compiled = _compiled(template)
    for _ in range(TRIES):
        values = _numbers(compiled, level, rng)
        if values is not None:
            break
    else:
        raise ValueError(f"template {template.name} has no valid numbers at level {level}")
    fields: dict[str, object] = {**_words(rng), **values}
    question = rng.choice(template.questions).format_map(fields)
    # An unpredictable prefix per line: without it answers have almost no entropy, and sampling would not be tested.
    lines = [rng.choices(LEADS, LEAD_WEIGHTS)[0] + step.text.format_map(fields) for step in compiled.work]
    final = values[compiled.work[-1].variable]
    return Problem(question, "\n".join([*lines, f"#### {final}"]), template.name, level, len(lines))


def is_test(question: str) -> bool:
    """Whether a question belongs to the test split (one in TEST_SHARE), by its checksum."""
    return zlib.crc32(question.encode()) % TEST_SHARE == 0


def problem(seed: int, split: str, index: int, mix: Sequence[float]) -> Problem:
    """Problem number `index` of a split; `mix`: weights of the levels. ValueError for an unknown split."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    rng = random.Random(f"{seed}/{split}/{index}")
    templates = HELDOUT if split == "heldout" else TRAINED
    while True:
        made = compose(rng.choice(templates), rng.choices(range(LEVELS), mix)[0], rng)
        if split == "heldout" or is_test(made.question) == (split == "test"):
            return made


def problems(seed: int, split: str, count: int, mix: Sequence[float]) -> Iterator[Problem]:
    """`count` problems of a split without repeated questions."""
    seen: set[str] = set()
    index = 0
    while len(seen) < count:
        made = problem(seed, split, index, mix)
        index += 1
        if made.question not in seen:
            seen.add(made.question)
            yield made


def in_form(answer: str, form: str) -> str:
    """A worked answer in a recipe's form: as it is, or `{"steps": [...], "answer": N}` without calculator marks."""
    if form == "worked":
        return answer
    *steps, _ = answer.split("\n")
    lines = [re.sub("<<[^>]*>>", "", step) for step in steps]
    return json.dumps({"steps": lines, "answer": int(final_of(answer, "worked"))}, ensure_ascii=False)


def final_of(text: str, form: str) -> str:
    """The number that an answer in this form ends with; "" if it has none."""
    if form == "worked":
        return text.rsplit("####", 1)[-1].strip()
    try:
        return str(json.loads(text)["answer"])
    except (ValueError, LookupError, TypeError):
        return ""


def write_jsonl(path: Path, rows: Sequence[Problem]) -> None:
    """Write GSM8K's file format: one object with `question` and `answer` per line."""
    lines = [json.dumps({"question": row.question, "answer": row.answer}, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_corpus(path: Path, rows: Sequence[Problem]) -> None:
    """Write a corpus for n-gram drafting: one JSON string per line, prompt and answer."""
    lines = [json.dumps(f"{prompt_of(row.question)} {row.answer}", ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def prompt_of(question: str) -> str:
    """The prompt format of the zoo's training data, as in lm-eval's gsm8k task."""
    return f"Question: {question}\nAnswer:"


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
