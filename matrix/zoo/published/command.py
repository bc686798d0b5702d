"""`specmatrix checkpoints`: the GPU tiers' published checkpoints, and whether they are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from specmatrix.matrix.zoo.published.pairs import ACCURACY, MODELS, PAIRS, ModelPair, Published, missing, pair_of
from specmatrix.reports.render.console import print_answer, table_console

HEAD: Final = ("checkpoint", "tier", "target", "algorithm")


def list_pairs(json_: bool = False) -> int:
    """Print a table of all pairs, or a JSON list with all details."""
    rows = [HEAD, *(_row(pair) for pair in PAIRS.values())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if max(map(len, lines)) > table_console().width:
        lines = [
            f"{name}\n  {', '.join(f'{key} {value}' for key, value in zip(HEAD[1:], values, strict=True))}"
            for name, *values in rows[1:]
        ]
    return print_answer([_record(pair) for pair in PAIRS.values()], "\n".join(lines), json_)


def check(names: list[str] | None = None, models: Path | None = None, json_: bool = False) -> int:
    """Report for each pair what this machine lacks to run it: a GPU, or a folder.

    Returns 0 if nothing is missing, else 2. ConfigError on an unknown name.
    """
    pairs = [pair_of(name) for name in names or ()] or [*PAIRS.values()]
    found = {pair.name: missing(pair, models) for pair in pairs}
    lines = ["\n  ".join([f"{name}:", *what]) if what else f"{name}: ready" for name, what in found.items()]
    print_answer([{"checkpoint": name, "missing": what} for name, what in found.items()], "\n".join(lines), json_)
    return 2 if any(found.values()) else 0


def _row(pair: ModelPair) -> tuple[str, ...]:
    draft = "" if pair.draft is None else f" {MODELS[pair.draft].repo}"
    return pair.name, pair.tier, MODELS[pair.target].repo, f"{pair.algorithm}{draft}"


def _record(pair: ModelPair) -> dict[str, Any]:
    expected = ACCURACY.get(pair.target)
    return {
        "checkpoint": pair.name,
        "tier": pair.tier,
        "algorithm": pair.algorithm,
        "target": _model(MODELS[pair.target]),
        "draft": None if pair.draft is None else _model(MODELS[pair.draft]),
        "flags": dict(pair.flags),
        "gsm8k": pair.gsm8k,
        "expected_accuracy": None if expected is None else msgspec.to_builtins(expected),
    }


def _model(model: Published) -> dict[str, Any]:
    return {"repo": model.repo, "revision": model.revision, "unverified": list(model.unverified)}
