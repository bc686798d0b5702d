"""`specmatrix zoo`: what the fixture models are, whether they are whole, and training them anew."""

from __future__ import annotations

import time
from pathlib import Path

from engine.core.errors import ConfigError
from matrix.zoo import card
from matrix.zoo.recipes import DATA, RECIPES, SMOKE_DATA, smoke
from matrix.zoo.registry import CHECKPOINTS, verify


def list_models(folder: Path = CHECKPOINTS) -> int:
    """Print the card of every model. ConfigError if one is missing."""
    for name in RECIPES:
        if not (folder / name / "card.json").is_file():
            raise ConfigError(
                f"zoo model {name!r} is missing in {folder}; restore it or run `specmatrix zoo train {name}`"
            )
        print("\n".join(card.lines(card.read(folder / name))))
    return 0


def verify_models(folder: Path = CHECKPOINTS) -> int:
    """Compare every file of every model with its recorded checksum. ConfigError names the first that differs."""
    for name in RECIPES:
        verify(name, folder)
        print(f"{name}: whole")
    return 0


def train_models(names: list[str], device: str, out: Path, minutes: float, quick: bool) -> int:
    """Train models from their recipes. ConfigError on an unknown name or a device that is not there."""
    import torch

    from matrix.zoo.train import Plan, train

    for name in names:
        if name not in RECIPES:
            raise ConfigError(f"zoo model {name!r} is unknown; it must be one of {', '.join(RECIPES)}")
    if minutes <= 0:
        raise ConfigError(f"minutes must be above 0, got {minutes:g}")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        there = "cpu, cuda" if torch.cuda.is_available() else "cpu"
        raise ConfigError(f"device {device!r} is not available; it must be one of {there}")
    recipes = {name: smoke(recipe) if quick else recipe for name, recipe in RECIPES.items()}
    data = SMOKE_DATA if quick else DATA
    train(Plan(torch.device(device), out, minutes * 60, data, recipes, time.monotonic()), names or list(RECIPES))
    return 0
