"""The process of `specmatrix contract`, in which an algorithm's code runs.

`python -m specmatrix.matrix.conformance.child FILE ALGORITHM FIELDS` runs the suite for an algorithm by name, or those
of a Python file, with configuration fields in JSON. It appends a line of JSON to FILE for each engine start, and one at
the end; without that one there is no verdict.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Final

import torch

from specmatrix.engine.core.draft.algorithms import Traits, algorithm, known_algorithms
from specmatrix.engine.plugin import load_algorithms
from specmatrix.errors import ConfigError, EngineError, shown
from specmatrix.exit_with_parent import exit_with_parent
from specmatrix.matrix.cells.cell import MODELS, Cell, model_facts
from specmatrix.matrix.conformance.inspector import restored_process_state
from specmatrix.matrix.conformance.suite import run_suite
from specmatrix.matrix.zoo.registry import resolve_path, verify_models

SUFFIX: Final = ".py"


def main(file: Path, algorithm: str, asked: Mapping[str, str]) -> None:
    """Write the results, and finally the reason for which the algorithm or the fields were refused, or None."""
    refused = None
    try:
        for result in results(algorithm, asked):
            _append(file, result)
    except EngineError as error:
        refused = str(error)
    _append(file, {"refused": refused})


def results(word: str, asked: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """A record for each engine start. ConfigError if there is no such file or algorithm, or it cannot run."""
    torch.set_num_threads(1)
    with restored_process_state() as changes:
        registered = _algorithms(word)
    imported = [f"the import of {word} {change}" for change in changes]
    for traits in registered:
        models = with_models(traits, asked)
        verify_models((models["model_path"], models.get("speculative_draft_model_path")))
        for result in run_suite(traits, models, resolve_path):
            yield {
                "algorithm": traits.name,
                "start": result.start,
                "tokens_per_round": result.tokens_per_round if traits.drafts else None,
                "violations": (*imported, *result.violations),
            }


def with_models(traits: Traits, asked: Mapping[str, str]) -> dict[str, str]:
    """The given fields, with a zoo target and its draft for the algorithm as defaults."""
    known = dict(asked)
    bundled = [each for each in MODELS.values() if model_facts(each).bundled is not None]
    target = known.setdefault("model_path", (bundled if traits.draft_weights == "bundled" else [*MODELS.values()])[0])
    model = next((model for model, name in MODELS.items() if name == target), "")
    if draft := Cell(traits.name.lower(), model).draft:
        known.setdefault("speculative_draft_model_path", draft)
    return known


def _algorithms(word: str) -> Sequence[Traits]:
    path = Path(word)
    if path.suffix == SUFFIX or path.is_file():
        return load_algorithms(path)
    names = [traits.name for traits in known_algorithms()]
    if word.upper() not in names:
        known = ", ".join(names)
        raise ConfigError(f"{shown(word)} is neither a file nor an algorithm; give a Python file or one of {known}")
    return (algorithm(word),)


def _append(file: Path, record: Mapping[str, Any]) -> None:
    # Opened for each line, as an algorithm may close any file descriptor.
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    exit_with_parent()
    # Standard input is the parent's; reading from it would wait for the parent's end.
    sys.stdin = StringIO()
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
