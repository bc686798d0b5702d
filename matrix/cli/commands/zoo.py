"""`specmatrix zoo`: list, verify and train the fixture models."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.zoo import card
from specmatrix.matrix.zoo.recipes import RECIPES
from specmatrix.matrix.zoo.registry import CHECKPOINTS, verify
from specmatrix.reports.render.console import print_text
from specmatrix.reports.render.progress import waiting


def list_models(json_: bool = False, folder: Path = CHECKPOINTS) -> int:
    """Print the card of every model, or a JSON list of them. ConfigError if one is missing."""
    cards = []
    for name in RECIPES:
        if not (folder / name / "card.json").is_file():
            raise ConfigError(
                f"zoo model {name!r} is missing in {folder}; restore it or run `specmatrix zoo train {name}`"
            )
        cards.append(card.read(folder / name))
    if json_:
        print(json.dumps([asdict(each) for each in cards], indent=2))
    else:
        print_text(_text(cards))
    return 0


def _text(cards: list[card.Card]) -> str:
    return "\n".join(line for each in cards for line in card.lines(each))


def verify_models(folder: Path = CHECKPOINTS) -> int:
    """Compare every model file with its recorded checksum. ConfigError names the first mismatch."""
    for name in RECIPES:
        with waiting(name):
            verify(name, folder)
        print(f"{name}: whole")
    return 0


def train_models(names: list[str], device: str, out: Path, minutes: float, quick: bool) -> int:
    """Train models from their recipes. ConfigError on an unknown name, an unavailable device or a full disk."""
    import torch
    from safetensors import SafetensorError

    from specmatrix.matrix.zoo.train import plan_of, train

    for name in names:
        if name not in RECIPES:
            raise ConfigError(f"zoo model {shown(name)} is unknown; it must be one of {', '.join(RECIPES)}")
    if not 0 < minutes < float("inf"):
        raise ConfigError(f"minutes must be above 0 and finite, got {minutes:g}")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        there = "cpu, cuda" if torch.cuda.is_available() else "cpu"
        raise ConfigError(f"device {shown(device)} is not available; it must be one of {there}")
    plan = plan_of(device, out, minutes, quick)
    try:
        with waiting(f"training {', '.join(names or RECIPES)}"):
            train(plan, names or list(RECIPES))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot write checkpoints in {out}: {error}") from error
    return 0
