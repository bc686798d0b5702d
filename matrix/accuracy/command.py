"""`specmatrix accuracy`: a task's questions on a cell and on plain decoding, paired question by question; the record as
JSON and as Markdown."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.accuracy.paired_run import FILES, Asking, Compared, of_cell, of_pair, paired_run
from specmatrix.matrix.accuracy.task import Split, definition
from specmatrix.matrix.cover.selection import WEIGHTS
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.zoo.published.pairs import locate, pair_of
from specmatrix.reports.atomic import check_place, write_text
from specmatrix.reports.render.console import print_markdown
from specmatrix.reports.render.markup import markdown as from_template

if TYPE_CHECKING:  # a runtime import would import torch
    from specmatrix.matrix.accuracy.task import Sample


SCHEMA: Final = 2


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write accuracy.json and accuracy.md atomically. ReportError if the folder cannot be written."""
    for name, text in zip(FILES, (json.dumps(record, indent=1) + "\n", markdown(record)), strict=True):
        write_text(folder / name, text)


def markdown(record: Mapping[str, Any]) -> str:
    """A record's summary and two tables, without individual answers."""
    return from_template("accuracy.md.j2", record=record)


DEFAULT_CELL: Final = "eagle3.s3.k1.n4.v2"


def accuracy(
    data: Path,
    task: str = "gsm8k",
    train: Path | None = None,
    cell: str | None = None,
    checkpoint: list[str] | None = None,
    stage: str | None = None,
    models: Path | None = None,
    limit: int | None = None,
    num_fewshot: int | None = None,
    max_new_tokens: int = 256,
    out: Path | None = None,
    json_: bool = False,
) -> int:
    """0 if the gate passes, else 1. EngineError or ReportError on invalid input, and on a machine without the required
    GPU, memory or weights."""
    shots = num_fewshot if num_fewshot is not None else 5 if checkpoint or stage else 0
    asking = Asking(task, data, train, limit, shots, max_new_tokens)
    checkpoints = checkpoint or []
    check_choice(stage, cell, checkpoints, models, out)
    if stage is not None:
        from specmatrix.matrix.accuracy.weights import main_weights

        assert out is not None
        definition(task)
        return main_weights(asking, checkpoints, models, out, json_)
    record = _measured(asking, cell, checkpoints, models, out)
    if json_:
        print(json.dumps({name: value for name, value in record.items() if name != "answers"}), flush=True)
    else:
        print_markdown(markdown(record))
    return 0 if record["state"] == State.PASS else 1


def _measured(
    asking: Asking, cell: str | None, checkpoints: Sequence[str], models: Path | None, out: Path | None
) -> dict[str, Any]:
    """Measure what the options select; returns the record, also written to `out` if given."""
    # A cell is checked before the questions are read, a checkpoint's files after them.
    wanted = None if checkpoints else of_cell(cell or DEFAULT_CELL)
    questions = asking.questions()
    definition(asking.task)
    if wanted is None:
        pair = pair_of(checkpoints[0])
        wanted = of_pair(pair, locate(pair, models))
    if out is not None:
        check_place(out, *FILES)
    record = measure(asking, questions, wanted)
    if out is not None:
        write_record(out, record)
    return record


def check_choice(
    stage: str | None, cell: str | None, checkpoints: Sequence[str], models: Path | None, out: Path | None
) -> None:
    """ConfigError if the options select more than one thing to measure, or one only in part."""
    if stage is not None:
        if stage != WEIGHTS:
            raise ConfigError(f"stage {shown(stage)} has no accuracy run; it must be {WEIGHTS}")
        if cell is not None:
            raise ConfigError(f"--stage {WEIGHTS} runs published checkpoints; it excludes --cell")
        if out is None:
            raise ConfigError(f"--stage {WEIGHTS} writes a report; give --out")
        return
    if checkpoints and cell is not None:
        raise ConfigError("--cell and --checkpoint are mutually exclusive")
    if len(checkpoints) > 1:
        raise ConfigError(f"--checkpoint is given {len(checkpoints)} times; several need --stage {WEIGHTS}")
    if not checkpoints and models is not None:
        raise ConfigError("--models requires --checkpoint")


def measure(asking: Asking, questions: Split, compared: Compared) -> dict[str, Any]:
    """The JSON-serialisable record of a paired run on one compute thread. EngineError as in `accuracy`."""
    # Imports torch; deferred so that an invalid command line fails fast.
    import torch

    from specmatrix.matrix.accuracy.verdict import counts, overall, unproven

    torch.set_num_threads(1)
    answers = paired_run(asking, questions, compared)
    tests, starts = answers.tests, answers.starts
    doubt = unproven(compared.algorithm, starts["cell"]["evidence"])
    return {
        "schema": SCHEMA,
        "kind": "accuracy",
        "state": str(overall(tests, doubt)),
        "doubt": doubt,
        "task": {
            "name": asking.task,
            "source": questions.source,
            "digest": questions.digest,
            "questions": len(answers.cell),
            "asked": len(questions.asked),
            "num_fewshot": len(questions.examples),
            "max_new_tokens": asking.max_new_tokens,
        },
        "cell": compared.cell.name,
        "baseline": compared.baseline.name,
        "weights": {name: _weights(folder) for name, folder in compared.folders.items()},
        "versions": {"lm_eval": version("lm_eval"), "torch": torch.__version__},
        "starts": starts,
        "tests": [test.as_dict() for test in tests],
        "runs": {"baseline": counts(answers.baseline), "cell": counts(answers.cell)},
        **_answers(answers.baseline, answers.cell),
    }


def _answers(baseline: Sequence[Sample], cell: Sequence[Sample]) -> dict[str, Any]:
    """The answers by question; pairs of values are [baseline, cell]."""
    from specmatrix.matrix.accuracy.task import EXTRACTORS

    both = list(zip(baseline, cell, strict=True))
    return {
        "different_texts": sum(one.text != other.text for one, other in both),
        "answers": [
            {
                "line": one.line,
                "prompt_hash": one.prompt_hash,
                "right": {name: [one.right[name], other.right[name]] for name in EXTRACTORS},
                "valid": {name: [one.valid[name], other.valid[name]] for name in EXTRACTORS},
                "by_length": [one.by_length, other.by_length],
                "emitted": [each.tokens - 1 - each.retractions for each in (one, other)],
                "rounds": [one.rounds, other.rounds],
                "texts": [one.text] if one.text == other.text else [one.text, other.text],
            }
            for one, other in both
        ],
    }


def _weights(folder: Path) -> str:
    """12 hex digits over a checkpoint's weight files."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while part := file.read(2**24):
                digest.update(part)
    return digest.hexdigest()[:12]
