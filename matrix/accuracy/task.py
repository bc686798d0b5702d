"""lm-eval's own task definitions on local files, without network access, and its data."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.accuracy.generation import Answered
from specmatrix.matrix.zoo.gsm_mini import DataError, Question, read_questions
from specmatrix.temp_dir import TempDir

if TYPE_CHECKING:
    from specmatrix.matrix.accuracy.model import EngineModel


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


# Task name -> its definition in the installed lm-eval.
TASKS: Final = {"gsm8k": "gsm8k/gsm8k.yaml"}
EXTRACTORS: Final = ("strict-match", "flexible-extract")
INVALID: Final = "[invalid]"
OFFLINE: Final = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One graded answer. By extractor, `right`: whether it equals the reference; `valid`: whether an answer was
    found."""

    line: int
    prompt_hash: str
    right: Mapping[str, bool]
    valid: Mapping[str, bool]
    text: str
    by_length: bool
    tokens: int
    rounds: int
    retractions: int


def offline() -> None:
    """Set the Hugging Face libraries offline. They read this once, so call it before they are imported."""
    os.environ.update(OFFLINE)


def definition(task: str) -> Path:
    """The installed definition of a task. ConfigError on an unknown task or without lm-eval."""
    if task not in TASKS:
        raise ConfigError(f"task {shown(task)} is unknown; it must be one of {', '.join(TASKS)}")
    found = importlib.util.find_spec("lm_eval")
    if found is None or found.origin is None:
        raise ConfigError("lm-eval is not installed; install specmatrix with the extra `accuracy`")
    return Path(found.origin).parent / "tasks" / TASKS[task]


def evaluate(task: str, questions: Split, model: EngineModel, max_new_tokens: int) -> tuple[Sample, ...]:
    """The graded answers of a model, in the order of the questions. Raises what the model raises.

    Call `offline` before, and before the model's module is imported.
    """
    installed = definition(task)
    # Unlike simple_evaluate, this queries neither git nor the system.
    from lm_eval.evaluator import evaluate as run_tasks
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.CRITICAL)
    name = f"{task}_local"
    with TempDir("accuracy") as folder:
        _write_task(folder, name, installed, questions)
        # lm-eval's progress bars cannot be switched off and would hide an error message.
        with redirect_stderr(StringIO()):
            tasks = TaskManager(include_path=str(folder), include_defaults=False).load([name])
            tasks["tasks"][name].set_config("num_fewshot", len(questions.examples))
            tasks["tasks"][name].set_config("generation_kwargs", {"max_gen_toks": max_new_tokens}, update=True)
            result = run_tasks(lm=model, task_dict=tasks, log_samples=True, bootstrap_iters=0)
    return _samples(result["samples"][name], questions.asked, model.answered)


def _write_task(folder: Path, name: str, installed: Path, questions: Split) -> None:
    """lm-eval's definition with local files; `first_n`, because the default sampler picks examples at random."""
    # The loader needs a train file even if no example is used.
    files = {"train": questions.examples or questions.asked[:1], "test": questions.asked}
    paths = {}
    for part, rows in files.items():
        paths[part] = str(folder / f"{part}.jsonl")
        lines = (json.dumps({"question": q.question, "answer": q.answer}) for q in rows)
        Path(paths[part]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = {
        "include": str(installed),
        "task": name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": paths, "cache_dir": str(folder / "cache")},
        "fewshot_config": {"sampler": "first_n"},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def _samples(
    rows: Sequence[Mapping[str, Any]], asked: Sequence[Question], answered: Sequence[Answered]
) -> tuple[Sample, ...]:
    """Join lm-eval's rows, one per question and extractor, with the model's own data on its answers."""
    table: dict[int, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        table.setdefault(int(row["doc_id"]), {})[row["filter"]] = row
    samples = []
    for index, (question, answer) in enumerate(zip(asked, answered, strict=True)):
        found = table[index]
        first = found[EXTRACTORS[0]]
        if first["doc"]["question"] != question.question or first["resps"][0][0] != answer.text:
            raise AssertionError(f"lm-eval's sample {index} is not the answer to line {question.line}")
        samples.append(
            Sample(
                line=question.line,
                prompt_hash=str(first["prompt_hash"]),
                right={name: bool(found[name]["exact_match"] == 1.0) for name in EXTRACTORS},
                valid={name: found[name]["filtered_resps"][0] != INVALID for name in EXTRACTORS},
                **answer._asdict(),
            )
        )
    return tuple(samples)
