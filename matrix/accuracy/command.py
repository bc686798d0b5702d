"""`specmatrix accuracy`: a task's real questions on a cell and on plain decoding, paired question by question."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engine.core.config import AUTO, EngineConfig
from engine.core.errors import ConfigError
from matrix.accuracy.data import Split, split
from matrix.accuracy.record import SCHEMA, markdown, write_record
from matrix.axes import AXES, describe
from matrix.cell import Cell
from matrix.gates.gate import State
from matrix.zoo.registry import verify_cells

if TYPE_CHECKING:  # importing it for real would import torch
    from matrix.accuracy.task import Sample

DEFAULT_CELL: Final = "eagle3.s3.k1.n4.v2"
MOST_EXAMPLES: Final = 5
# The task brings its own questions, sampling and stop strings.
FIXED: Final = ("sampling", "finish", "abort")


def main_accuracy(
    task: str,
    data: Path,
    *,
    train: Path | None = None,
    cell: str = DEFAULT_CELL,
    limit: int | None = None,
    num_fewshot: int = 0,
    max_new_tokens: int = 256,
    out: Path | None = None,
    json_: bool = False,
) -> int:
    """Run, judge, print (JSON with `json_`, else Markdown) and, with `out`, write accuracy.json and accuracy.md there.

    Returns the exit status: 0 if the gate is green, 1 if it is not. Every mistake in the input raises EngineError or
    ReportError with one sentence, for the caller to print with exit status 2.
    num_fewshot counts worked examples per prompt; the zoo's models were trained on single questions, hence 0.
    """
    wanted = _cell(cell)
    for name, value, low, high in (
        ("num_fewshot", num_fewshot, 0, MOST_EXAMPLES),
        ("max_new_tokens", max_new_tokens, 1, None),
        ("limit", limit, 1, None),
    ):
        if value is not None and (value < low or (high is not None and value > high)):
            allowed = f"at least {low}" if high is None else f"{low} to {high}"
            raise ConfigError(f"{name} is {value}; allowed: {allowed}")
    questions = split(data, train, num_fewshot, limit)
    verify_cells([wanted])
    record = measure(task, questions, wanted, max_new_tokens, progress=not json_)
    if out is not None:
        write_record(out, record)
    print(json.dumps({k: v for k, v in record.items() if k != "answers"}) if json_ else markdown(record), flush=True)
    return 0 if record["state"] == State.PASS else 1


def measure(task: str, questions: Split, cell: Cell, max_new_tokens: int, progress: bool) -> dict[str, Any]:
    """The record of a paired run on one compute thread, JSON-able. EngineError as `main_accuracy`."""
    # What follows imports torch, which a refused command line need not wait for.
    import torch

    from matrix.accuracy.task import definition, evaluate
    from matrix.accuracy.verdict import counts, overall, pair, unproven
    from matrix.subjects.reference import checkpoint

    definition(task)
    torch.set_num_threads(1)
    runs: dict[str, Sequence[Sample]] = {}
    launches: dict[str, dict[str, Any]] = {}
    for name, launched in (("baseline", cell.canonical), ("cell", cell)):
        start = time.perf_counter()
        with _Bar(f"{name} {launched.id}", len(questions.asked), progress) as tick:
            runs[name], model = evaluate(
                task, questions, _config(launched), checkpoint, max_new_tokens=max_new_tokens, tick=tick
            )
        launches[name] = {
            "cell": launched.id,
            "resolved": model.llm.resolved.as_dict(),
            "readback": model.llm.readback(),
            "witness": model.llm.probes,
            "seconds": time.perf_counter() - start,
        }
    tests = pair(runs["baseline"], runs["cell"])
    doubt = unproven(cell.algorithm, launches["cell"]["witness"])
    return {
        "schema": SCHEMA,
        "kind": "accuracy",
        "state": str(overall(tests, doubt)),
        "doubt": doubt,
        "task": {
            "name": task,
            "source": questions.source,
            "digest": questions.digest,
            "questions": len(questions.asked),
            "num_fewshot": len(questions.examples),
            "max_new_tokens": max_new_tokens,
        },
        "cell": cell.id,
        "baseline": cell.canonical.id,
        "weights": {name: _weights(checkpoint(name)) for name in (cell.target, cell.draft) if name is not None},
        "versions": {"lm_eval": version("lm_eval"), "torch": torch.__version__},
        "launches": launches,
        "tests": [test.as_dict() for test in tests],
        "runs": {name: counts(samples) for name, samples in runs.items()},
        **_answers(runs["baseline"], runs["cell"]),
    }


def _answers(baseline: Sequence[Sample], cell: Sequence[Sample]) -> dict[str, Any]:
    """Question by question, the baseline's value before the cell's."""
    from matrix.accuracy.task import EXTRACTORS

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


def _cell(text: str) -> Cell:
    """ConfigError where the cell is unknown or asks for what the task decides."""
    cell = Cell.from_id(text)
    asked = [(axis.name, cell.values[axis.name]) for axis in AXES if axis.name in FIXED]
    own = [(name, value) for name, value in asked if value != Cell._field_defaults[name]]
    if own:
        raise ConfigError(f"cell {text} sets {describe(own)}, which the task decides; leave it out")
    return cell


def _config(cell: Cell) -> EngineConfig:
    """Deterministic, so that a difference between the runs is a fault and not rounding.

    Ample memory is ample for the task's questions, which the cell's own size does not know.
    """
    config = replace(cell.config(), enable_deterministic_inference=True)
    return config if cell.memory == "tight" else replace(config, max_total_tokens=AUTO)


def _weights(folder: Path) -> str:
    """12 hex digits over a checkpoint's weight files."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


class _Bar:
    """A progress bar on stderr; `with _Bar(...) as tick`, then tick(ended)."""

    def __init__(self, title: str, total: int, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(console=Console(file=sys.stderr), disable=not shown or not sys.stderr.isatty())
        self._task = self._progress.add_task(title, total=total)

    def __enter__(self) -> Callable[[int], None]:
        self._progress.start()
        return self._advance

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def _advance(self, ended: int) -> None:
        self._progress.advance(self._task, ended)
