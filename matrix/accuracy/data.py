"""The questions and few-shot examples of an evaluation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specmatrix.matrix.zoo.questions import DataError, Question, read_questions


@dataclass(frozen=True, slots=True)
class Split:
    """The data of one evaluation: its few-shot examples and its questions.

    source: names of the files. digest: 12 hex digits over the questions and the examples.
    """

    examples: tuple[Question, ...]
    asked: tuple[Question, ...]
    source: str
    digest: str

    def blocks(self, size: int) -> Iterator[Split]:
        """Yield the same examples with `size` questions at a time."""
        for start in range(0, len(self.asked), size):
            yield replace(self, asked=self.asked[start : start + size])


def split(data: Path, train: Path | None, num_fewshot: int, limit: int | None) -> Split:
    """The first `num_fewshot` lines of `train` as examples, and the first `limit` questions of `data`.

    Without `train` the first lines of `data` serve as examples instead of questions. DataError on an invalid file, or
    if too few lines are left.
    """
    questions = read_questions(data)
    examples = (questions if train is None else read_questions(train))[:num_fewshot]
    if len(examples) < num_fewshot:
        raise DataError(f"num_fewshot must be at most {len(examples)}, the lines of {train or data}, got {num_fewshot}")
    asked = questions[num_fewshot if train is None else 0 :][:limit]
    if not asked:
        raise DataError(f"all {len(questions)} lines of {data} are few-shot examples; give --train or fewer examples")
    text = json.dumps([[q.question, q.answer] for q in (*examples, *asked)])
    source = data.name if train is None or not num_fewshot else f"{data.name}, examples from {train.name}"
    return Split(examples, asked, source, hashlib.sha256(text.encode()).hexdigest()[:12])
