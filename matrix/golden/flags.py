"""The outcome of single flags on a start, as a golden file: the refusal's message, or what runs and the rewrites."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from specmatrix.engine.core.config.asked import EngineConfig, Facts
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.model_facts import model_facts
from specmatrix.matrix.zoo.recipes import RECIPES

FLAGS_FILE: Final = Path(__file__).with_name("flags.yaml")
# Axes by which a cell is matched with the starts whose flags are judged with it.
JUDGED_BY: Final = ("algorithm", "adaptive")
# Start -> flags -> outcome.
FlagOutcomes: TypeAlias = Mapping[str, Mapping[str, str]]


def flags_of(config: EngineConfig) -> dict[str, str]:
    """The flags of a configuration, as typed on a command line."""
    typed = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in _set(config)}
    return {f"--{name.replace('_', '-')}": text for name, text in typed.items()}


def _set(config: EngineConfig) -> list[tuple[str, object]]:
    return [(name, value) for name, value in asdict(config).items() if value is not None]


def with_flags(start: Cell, words: str) -> tuple[dict[str, str], Facts]:
    """A start's flags overridden by `words`, and its facts. A flag without a value is `true`; a word such as
    `draft.hidden_size=96` or `target.gpus=1` is a fact (also of a bundled draft), its value JSON or text."""
    flags, name = flags_of(start.config()), ""
    changes: dict[str, dict[str, Any]] = {"draft": {}, "target": {}}
    for word in shlex.split(words):
        if fact := re.fullmatch(r"(draft|target)\.(\w+)=(.+)", word):
            changes[fact[1]][fact[2]] = _value(fact[3])
        elif word.startswith("--"):
            flags[name := word] = "true"
        else:
            flags[name] = word
    draft = flags.get("--speculative-draft-model-path")
    facts = model_facts(flags["--model-path"], draft if draft in RECIPES else None)
    name = "bundled" if facts.draft is None else "draft"
    if changes["draft"]:
        facts = replace(facts, **{name: replace(getattr(facts, name), **changes["draft"])})
    return flags, replace(facts, **changes["target"])


def outcome_of(start: Cell, words: str) -> str:
    """The outcome of a start with these flags (see `with_flags`), as text."""
    flags, facts = with_flags(start, words)
    try:
        resolved = resolve(EngineConfig.from_flags(flags), facts)
    except ConfigError as error:
        return f"refused: {error}"
    depths = ", ".join(str(slot.candidate_steps) for slot in resolved.adaptive_slots)
    steps = f"{resolved.num_steps} of {depths}" if depths else resolved.num_steps
    tokens, version = resolved.num_draft_tokens, resolved.spec_version
    runs = f"runs {resolved.algorithm} {version}: steps {steps}, topk {resolved.topk}, draft tokens {tokens}"
    sizes = f"{resolved.max_total_tokens} tokens in pages of {resolved.page_size}"
    graphs = f", graphs up to {resolved.cuda_graph_max_bs}" if resolved.cuda_graph_max_bs else ""
    layers = ", a layer per step" if resolved.enable_multi_layer_eagle else ""
    layers += ", all steps in one forward" if resolved.parallel_drafting else ""
    told = [f"{one.field} {one.asked} is {one.got}: {one.reason}" for one in resolved.rewrites]
    return "; ".join([f"{runs}{layers}; {sizes}{graphs}", *told])


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


@cache
def golden_flags(path: Path = FLAGS_FILE) -> FlagOutcomes:
    """The reviewed outcomes."""
    # PyYAML is slow to import, and collection does not need it.
    from specmatrix.reports.yaml_text import parse_yaml

    found: dict[str, dict[str, str]] = parse_yaml(path.read_text(encoding="utf-8"), own=True)
    return found


@cache
def _outcomes(start: str, asks: tuple[str, ...]) -> dict[str, str]:
    return {words: outcome_of(Cell.from_id(start), words) for words in asks}


def changed_flag(golden: FlagOutcomes, cell: Cell) -> str:
    """A sentence on the first flags whose outcome differs from the golden file, or ""."""
    for start, rows in golden.items():
        if all(getattr(Cell.from_id(start), name) == getattr(cell, name) for name in JUDGED_BY):
            for words, found in _outcomes(start, tuple(rows)).items():
                if found != rows[words]:
                    return f"{start} with {words} {found!r}; the golden file expects {rows[words]!r}"
    return ""
