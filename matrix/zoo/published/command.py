"""`specmatrix checkpoints`: the GPU tiers' published checkpoints, their requirements, and their availability."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from specmatrix.engine.core.config.asked import GIB
from specmatrix.matrix.zoo.published.expected import ACCURACY, LENGTHS
from specmatrix.matrix.zoo.published.models import MODELS, Published
from specmatrix.matrix.zoo.published.needs import SPARE, Needs, needs
from specmatrix.matrix.zoo.published.pairs import PAIRS, ModelPair, pair_of
from specmatrix.matrix.zoo.published.store import fetch
from specmatrix.options import Json, Models
from specmatrix.reports.render.console import print_answer, table_console

HEAD: Final = ("checkpoint", "tier", "target", "algorithm", "download", "KV per token", "GPU memory")


def list_pairs(json_: Json = False) -> int:
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


def show(name: Annotated[str, typer.Argument(metavar="NAME", help="a name of the list")], json_: Json = False) -> int:
    """Print all details of a pair. ConfigError on an unknown name."""
    pair = pair_of(name)
    return print_answer(_record(pair), "\n".join(_lines(pair)), json_)


def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="names of the list; default: all")] = None,
    models: Models = None,
    json_: Json = False,
) -> int:
    """Report for each pair whether this machine can run it, and what is missing.

    Reads file headers, no weights. Returns 0 if all can run, else 2. ConfigError on an unknown name.
    """
    from specmatrix.matrix.zoo.published.machine import gpus, missing  # which imports torch

    memory = gpus()
    pairs = [pair_of(name) for name in names or ()] or [*PAIRS.values()]
    found = {pair.name: missing(pair, memory, models) for pair in pairs}
    lines = ["\n  ".join([f"{name}:", *what]) if what else f"{name}: ready" for name, what in found.items()]
    print_answer([{"checkpoint": name, "missing": what} for name, what in found.items()], "\n".join(lines), json_)
    return 2 if any(found.values()) else 0


def _row(pair: ModelPair) -> tuple[str, ...]:
    need = needs(pair)
    draft = "" if pair.draft is None else f" {MODELS[pair.draft].repo}"
    return (
        pair.name,
        pair.tier,
        MODELS[pair.target].repo,
        f"{pair.algorithm}{draft}",
        _gib(need.disk),
        _kib(need.token),
        _gib(need.total),
    )


def _lines(pair: ModelPair) -> list[str]:
    need = needs(pair)
    lines = [f"{pair.name} (tier {pair.tier}): {pair.algorithm} on {MODELS[pair.target].repo}"]
    for role, model in zip(("target", "draft"), pair.models.values(), strict=False):
        lines += [f"  {role}: {model.repo} at {model.revision}", f"    {fetch(model)}"]
        lines += [f"    not verified: {fact}" for fact in model.unverified]
    lines.append(f"  GPU memory: {_gib(need.total)} = {_sum(need)}")
    lines += [f"  GSM8K, from a checkout of its repository: {pair.gsm8k}"]
    lines += [f"  expected: {sentence}" for sentence in _expected(pair)]
    return lines


def _expected(pair: ModelPair) -> list[str]:
    """What others measured, in sentences."""
    accuracy, length = ACCURACY.get(pair.target), LENGTHS.get(pair.name)
    found = ["accuracy: no figure is known that was measured as this command measures"]
    if accuracy is not None:
        low, high = accuracy.interval
        found = [
            f"accuracy {accuracy.share:.1%}, at 95 % {low:.1%} to {high:.1%} ({accuracy.questions:,} questions, the "
            f"mean of both extractors; {accuracy.source})"
        ]
    if length is not None:
        low, high = length.low, length.high
        ends = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        found.append(f"{ends} tokens per round ({length.source}; with {length.but})")
    return found


def _sum(need: Needs) -> str:
    parts = [f"target {_gib(need.target)}"]
    parts += [f"draft {_gib(need.draft)}"] if need.draft else []
    parts.append(f"KV {_gib(need.kv)} ({need.tokens:,} tokens of {_kib(need.token)})")
    return " + ".join([*parts, f"{_gib(SPARE)} spare for CUDA, graphs and activations"])


def _record(pair: ModelPair) -> dict[str, Any]:
    return {
        "checkpoint": pair.name,
        "tier": pair.tier,
        "algorithm": pair.algorithm,
        "target": _model(MODELS[pair.target]),
        "draft": None if pair.draft is None else _model(MODELS[pair.draft]),
        "flags": dict(pair.flags),
        "bytes": needs(pair).as_dict(),
        "gsm8k": pair.gsm8k,
        "expected": _expected(pair),
    }


def _model(model: Published) -> dict[str, Any]:
    return {"repo": model.repo, "revision": model.revision, "unverified": list(model.unverified)}


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _kib(size: int) -> str:
    return f"{size / 1024:.0f} KiB"
