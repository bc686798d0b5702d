"""`specmatrix accuracy`: a task's questions on a cell and on plain decoding, paired question by question."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specmatrix.errors import ConfigError
from specmatrix.matrix.accuracy.compared import Compared, ComparedEngine, of_cell, of_pair
from specmatrix.matrix.accuracy.data import Split, split
from specmatrix.matrix.accuracy.record import FILES, SCHEMA, markdown, write_record
from specmatrix.matrix.cli.progress import counting
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.zoo.published.pairs import pair_of
from specmatrix.reports.atomic import check_place

if TYPE_CHECKING:  # a runtime import would import torch
    from specmatrix.matrix.accuracy.task import Sample

DEFAULT_CELL: Final = "eagle3.s3.k1.n4.v2"
MOST_EXAMPLES: Final = 5


def main_accuracy(
    task: str,
    data: Path,
    *,
    train: Path | None = None,
    cell: str | None = None,
    checkpoint: str | None = None,
    models: Path | None = None,
    limit: int | None = None,
    num_fewshot: int = 0,
    max_new_tokens: int = 256,
    out: Path | None = None,
    json_: bool = False,
) -> int:
    """Run, judge, print (JSON with `json_`, else Markdown) and, with `out`, write accuracy.json and accuracy.md there.

    cell: id of a zoo cell; or checkpoint: name of a published pair, whose files are in the hub's cache or in `models`.
    Returns the exit status: 0 if the gate passes, else 1. Invalid input, and a machine without the required GPU, memory
    or weights, raise EngineError or ReportError with a one-line message for exit status 2.
    num_fewshot: few-shot examples per prompt; 0 by default, as the zoo's models were trained on single questions.
    """
    if checkpoint is not None and cell is not None:
        raise ConfigError("--cell and --checkpoint are mutually exclusive")
    if checkpoint is None and models is not None:
        raise ConfigError("--models requires --checkpoint")
    wanted = None if checkpoint is not None else of_cell(cell or DEFAULT_CELL)
    for name, value, low, high in (
        ("num_fewshot", num_fewshot, 0, MOST_EXAMPLES),
        ("max_new_tokens", max_new_tokens, 1, None),
        ("limit", limit, 1, None),
    ):
        if value is not None and (value < low or (high is not None and value > high)):
            allowed = f"at least {low}" if high is None else f"{low} to {high}"
            raise ConfigError(f"{name} must be {allowed}, got {value}")
    questions = split(data, train, num_fewshot, limit)
    if wanted is None:
        assert checkpoint is not None
        wanted = published(checkpoint, models)
    if out is not None:
        check_place(out, *FILES)
    record = measure(task, questions, wanted, max_new_tokens)
    if out is not None:
        write_record(out, record)
    print(json.dumps({k: v for k, v in record.items() if k != "answers"}) if json_ else markdown(record), flush=True)
    return 0 if record["state"] == State.PASS else 1


def published(name: str, models: Path | None) -> Compared:
    """A pair of published checkpoints on this machine. ConfigError if it is unknown or cannot run here."""
    pair = pair_of(name)
    # What follows imports torch.
    from specmatrix.matrix.zoo.published.machine import gpus, locate

    return of_pair(pair, locate(pair, gpus(), models))


def measure(task: str, questions: Split, compared: Compared, max_new_tokens: int) -> dict[str, Any]:
    """The JSON-serialisable record of a paired run on one compute thread. EngineError as in `main_accuracy`."""
    # The following imports torch, for which an invalid command line should not have to wait.
    import torch

    from specmatrix.matrix.accuracy.task import definition
    from specmatrix.matrix.accuracy.verdict import counts, overall, pair, unproven

    definition(task)
    torch.set_num_threads(1)
    runs: dict[str, Sequence[Sample]] = {}
    starts: dict[str, dict[str, Any]] = {}

    def lost(samples: Sequence[Sample]) -> bool:
        return any(test.state is State.FAIL for test in pair(runs["baseline"][: len(samples)], samples))

    for name, engine, enough in (("baseline", compared.baseline, None), ("cell", compared.cell, lost)):
        with counting(len(questions.asked), "question") as update:
            tick = partial(update, f"{name} {engine.name}")
            runs[name], starts[name] = _run(task, questions, engine, compared, max_new_tokens, tick, enough)
    # A cell that has lost too many answers need not answer the other questions.
    runs["baseline"] = runs["baseline"][: len(runs["cell"])]
    tests = pair(runs["baseline"], runs["cell"])
    doubt = unproven(compared.algorithm, starts["cell"]["evidence"])
    return {
        "schema": SCHEMA,
        "kind": "accuracy",
        "state": str(overall(tests, doubt)),
        "doubt": doubt,
        "task": {
            "name": task,
            "source": questions.source,
            "digest": questions.digest,
            "questions": len(runs["cell"]),
            "asked": len(questions.asked),
            "num_fewshot": len(questions.examples),
            "max_new_tokens": max_new_tokens,
        },
        "cell": compared.cell.name,
        "baseline": compared.baseline.name,
        "weights": {name: _weights(folder) for name, folder in compared.folders.items()},
        "versions": {"lm_eval": version("lm_eval"), "torch": torch.__version__},
        "starts": starts,
        "tests": [test.as_dict() for test in tests],
        "runs": {name: counts(samples) for name, samples in runs.items()},
        **_answers(runs["baseline"], runs["cell"]),
    }


def _run(
    task: str,
    questions: Split,
    engine: ComparedEngine,
    compared: Compared,
    max_new_tokens: int,
    tick: Callable[[int], None],
    enough: Callable[[Sequence[Sample]], bool] | None,
) -> tuple[Sequence[Sample], dict[str, Any]]:
    """The answers of one engine, and its resolved configuration and counters; the engine is closed afterwards."""
    from specmatrix.matrix.accuracy.task import evaluate

    start = time.perf_counter()
    samples, model = evaluate(
        task, questions, engine.config, compared.locate, max_new_tokens=max_new_tokens, tick=tick, enough=enough
    )
    return samples, {
        "cell": engine.name,
        "resolved": model.llm.resolved.as_dict(),
        "readback": model.llm.readback(),
        "evidence": model.llm.counters,
        "seconds": time.perf_counter() - start,
    }


def _answers(baseline: Sequence[Sample], cell: Sequence[Sample]) -> dict[str, Any]:
    """The answers by question, the baseline's value before the cell's."""
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
