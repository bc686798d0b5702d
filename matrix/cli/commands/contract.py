"""`specmatrix contract`: the conformance suite for draft algorithms."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from specmatrix.engine.algorithm_file import load_algorithms
from specmatrix.engine.core.draft.algorithms import Traits, algorithm, known_algorithms
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import DRAFTS, MODELS
from specmatrix.matrix.cells.model_facts import model_facts
from specmatrix.matrix.cli.commands.flags import flags_of
from specmatrix.matrix.cli.console import StdoutConsole
from specmatrix.matrix.cli.progress import waiting
from specmatrix.matrix.conformance.suite import Held, hold
from specmatrix.matrix.zoo.registry import resolve_path, verify_models
from specmatrix.reports.wording import count

SUFFIX: Final = ".py"


def contract(words: list[str], json_: bool) -> int:
    """Run the suite for the algorithms of a file, or for one by name; 0 if every engine start conforms.

    words: the file or the name, and engine flags as typed. ConfigError on an invalid one.
    """
    import torch

    names, asked = flags_of(words)
    if len(names) != 1:
        given = count(len(names), "algorithm")
        raise ConfigError(f"{given} given; give one Python file that registers algorithms, or one algorithm's name")
    if asked.get("tp_size", "1") != "1":
        raise ConfigError(
            f"tp_size must be 1 for contract, got {asked['tp_size']}; tensor parallelism is tested by cells with tp=2, "
            "4 or 8"
        )
    torch.set_num_threads(1)
    console = StdoutConsole(soft_wrap=True, highlight=False)
    found: list[tuple[Traits, list[Held]]] = []
    for traits in _algorithms(names[0]):
        done: list[Held] = []
        found.append((traits, done))
        models = with_models(traits, asked)
        verify_models((models["model_path"], models.get("speculative_draft_model_path")))
        starts = hold(traits, models, resolve_path)
        while (held := _next(starts, traits.name)) is not None:
            done.append(held)
            if not json_:
                console.print(_line(traits, held), markup=False)
        if not json_:
            console.print(_sum(traits, done), markup=False)
    if json_:
        print(json.dumps({"schema": 1, "algorithms": [_record(traits, done) for traits, done in found]}, indent=2))
    return int(any(held.broken for _, done in found for held in done))


def _algorithms(word: str) -> Sequence[Traits]:
    path = Path(word)
    if path.suffix == SUFFIX or path.is_file():
        return load_algorithms(path)
    names = [traits.name for traits in known_algorithms()]
    if word.upper() not in names:
        known = ", ".join(names)
        raise ConfigError(f"{word!r} is neither a file nor an algorithm; give a Python file or one of {known}")
    return (algorithm(word),)


def with_models(traits: Traits, asked: Mapping[str, str]) -> dict[str, str]:
    """The given fields, with a zoo target and its draft for the algorithm as defaults."""
    known = dict(asked)
    bundled = [each for each in MODELS.values() if model_facts(each).bundled is not None]
    target = known.setdefault("model_path", (bundled if traits.draft_weights == "bundled" else [*MODELS.values()])[0])
    drafts = {(MODELS[model], name): draft for (model, name), draft in DRAFTS.items()}
    if (target, traits.name.lower()) in drafts:
        known.setdefault("speculative_draft_model_path", drafts[target, traits.name.lower()])
    return known


def _next(starts: Iterator[Held], name: str) -> Held | None:
    with waiting(f"testing {name}"):
        return next(starts, None)


def _line(traits: Traits, held: Held) -> str:
    verdict = "kept" if not held.broken else "BROKEN"
    speed = f"{held.tokens_per_round:5.2f} tokens per round" if traits.drafts else ""
    return "\n".join([f"  {held.start:40} {verdict:6} {speed}".rstrip(), *(f"    {each}" for each in held.broken)])


def _sum(traits: Traits, done: Sequence[Held]) -> str:
    broken = sum(bool(held.broken) for held in done)
    if broken:
        return f"{traits.name} VIOLATES the contract in {broken} of {count(len(done), 'engine start')}"
    return f"{traits.name} satisfies the contract in {count(len(done), 'engine start')}"


def _record(traits: Traits, done: Sequence[Held]) -> dict[str, Any]:
    starts = [
        {"launch": each.start, "tokens_per_round": each.tokens_per_round, "broken": list(each.broken)} for each in done
    ]
    return {"name": traits.name, "kept": not any(each.broken for each in done), "launches": starts}
